//! Stock-Level (clause 2.8): how many items of a district's last 20 orders run low, read-only.

use reprise_procedure::prelude::*;

use crate::{
    LINES_MAX,
    columns::{DistrictTax, LineItem, StockQuantity},
    missing,
    tables::OrderLine,
};

/// Orders that are looked at.
const ORDERS: i32 = 20;
/// What a line takes in the answer of the scan.
const LINE_BYTES: usize = 8 + 4;

/// The number of distinct items in the last 20 orders whose stock is below the threshold.
#[procedure(partition_by(w_id), read_only)]
pub fn stock_level(tx: &Txn, w_id: i16, d_id: i8, threshold: i16) -> Result<i32, Abort> {
    let district = DistrictTax::get(tx, (w_id, d_id));
    let next = district
        .ok_or_else(|| missing("there is no such district"))?
        .d_next_o_id;
    let lines = OrderLine::scan(tx).range((w_id, d_id, next - ORDERS)..(w_id, d_id, next));
    let lines_max = ORDERS as usize * LINES_MAX as usize;
    let lines = lines
        .columns::<LineItem>()
        .batch_bytes(lines_max * LINE_BYTES);
    let mut items = Distinct::with_room_for(lines_max);
    lines.iter().for_each(|line| items.add(line.ol_i_id));
    let items = items.list;
    let stocks = StockQuantity::multi_read(tx, items.iter().map(|i_id| (w_id, *i_id)));
    let low = stocks
        .flatten()
        .filter(|stock| stock.s_quantity < threshold);
    Ok(low.count() as i32)
}

/// Numbers, each once, in the order of their first coming.
struct Distinct {
    list: Vec<i32>,
    /// For each number its place in the list, from 1, at the number's hash or behind it, going around; 0 where none is.
    places: Vec<u16>,
}

impl Distinct {
    /// At most so many different numbers, which leave a third of the places free.
    fn with_room_for(count: usize) -> Self {
        Self {
            list: Vec::with_capacity(count),
            places: vec![0; (count + count / 2).next_power_of_two()],
        }
    }

    fn add(&mut self, number: i32) {
        let mask = self.places.len() - 1;
        let mut at = (number as u32).wrapping_mul(0x9e37_79b9) as usize >> 8;
        while let Some(place) = self.places.get_mut(at & mask) {
            let Some(before) = (*place as usize).checked_sub(1) else {
                self.list.push(number);
                *place = self.list.len() as u16;
                return;
            };
            if self.list.get(before) == Some(&number) {
                return;
            }
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_listed_once() {
        let mut distinct = Distinct::with_room_for(300);
        let numbers: Vec<i32> = (0..300).map(|n| 1 + n * n % 97).collect();
        numbers.iter().for_each(|number| distinct.add(*number));
        let mut expected = Vec::new();
        for number in numbers {
            if !expected.contains(&number) {
                expected.push(number);
            }
        }
        assert_eq!(distinct.list, expected);
    }
}
