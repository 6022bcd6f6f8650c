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
    let lines = lines.columns::<LineItem>().batch_bytes(lines_max * LINE_BYTES);
    let items = distinct(lines.iter().map(|line| line.ol_i_id), lines_max);
    let stocks = StockQuantity::multi_read(tx, items.iter().map(|i_id| (w_id, *i_id)));
    let is_low = |stock: Option<Row<StockQuantity>>| stock.is_some_and(|stock| stock.s_quantity < threshold);
    Ok(stocks.iter().map(|stock| is_low(stock) as i32).sum())
}

/// What stands where no number is. No item has it.
const NO_ITEM: i32 = 0;

/// Items, each once, in the order of their first coming. There are at most so many.
#[inline(always)]
fn distinct(items: impl Iterator<Item = i32>, most: usize) -> Vec<i32> {
    let (mut list, mut count) = (vec![NO_ITEM; most + 1], 0);
    // Each item is at its hash or behind it, going around; a third of the places stays free.
    let mut places = vec![NO_ITEM; (most + most / 2).next_power_of_two()];
    let mask = places.len() - 1;
    items.for_each(|item| {
        let mut at = (item as u32).wrapping_mul(0x9e37_79b9) as usize >> 8;
        while let Some(place) = places.get_mut(at & mask) {
            let is_free = *place == NO_ITEM;
            if is_free | (*place == item) {
                // Whether it is new is not asked, which would be guessed wrongly: one that is not is written over by the next.
                *place = item;
                if let Some(last) = list.get_mut(count) {
                    *last = item;
                }
                count += is_free as usize;
                break;
            }
            at += 1;
        }
    });
    list.truncate(count);
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_listed_once() {
        let numbers: Vec<i32> = (0..300).map(|n| 1 + n * n % 97).collect();
        let mut expected = Vec::new();
        for number in &numbers {
            if !expected.contains(number) {
                expected.push(*number);
            }
        }
        assert_eq!(distinct(numbers.into_iter(), 300), expected);
        assert_eq!(distinct(1..=300, 300), (1..=300).collect::<Vec<i32>>());
    }
}
