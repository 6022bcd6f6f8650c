//! The inputs of TPC-C's New-Order (clause 2.4.1), drawn for every peer alike.

use reprise_driver::{Random, TPCC_LINES_MAX as LINES_MAX, TPCC_REMOTE_LINES, TPCC_ROLLED_BACK};
pub use tpcc::CUSTOMERS;

use crate::calls::below;

const LINES_MIN: u32 = tpcc::LINES_MIN as u32;
pub const DISTRICTS: i16 = tpcc::DISTRICTS as i16;
/// Order numbers of a district begin here.
pub const FIRST_ORDER: i64 = CUSTOMERS as i64 + 1;
/// An item that no peer has: such an order is taken back.
const NO_ITEM: i32 = tpcc::ITEMS + 1;
/// Constants of NURand, the same for every run.
const CUSTOMER_C: u32 = 259;
const ITEM_C: u32 = 7_911;

/// A line of an order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Line {
    /// Warehouse that delivers the item.
    pub supplier: i16,
    pub item: i32,
    pub quantity: i16,
}

/// An order of a customer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Order {
    pub warehouse: i16,
    pub district: i16,
    pub customer: i32,
    lines: [Line; LINES_MAX],
    count: u8,
}

impl Order {
    /// Its lines, in the order of their stock: two orders that take stock in this order never wait for each other.
    pub fn lines(&self) -> &[Line] {
        &self.lines[..self.count.into()]
    }

    pub fn units(&self) -> i64 {
        self.lines().iter().map(|line| i64::from(line.quantity)).sum()
    }

    pub fn draw(random: &mut Random, warehouses: u32, items: u32) -> Self {
        let place = random.next_u64();
        let warehouse = below(place, warehouses);
        let count = LINES_MIN + below(random.next_u64(), LINES_MAX as u32 - LINES_MIN + 1);
        let mut order = Self {
            warehouse: 1 + warehouse as i16,
            district: 1 + below(place >> 32, DISTRICTS as u32) as i16,
            customer: 1 + ((uneven(random, 1_023, CUSTOMERS as u32) + CUSTOMER_C) % CUSTOMERS as u32) as i32,
            lines: [Line::default(); LINES_MAX],
            count: count as u8,
        };
        for line in &mut order.lines[..count as usize] {
            let kind = random.next_u64();
            let is_remote = warehouses > 1 && below(kind, 100) < TPCC_REMOTE_LINES;
            let supplier = match is_remote {
                true => (warehouse + 1 + below(random.next_u64(), warehouses - 1)) % warehouses,
                false => warehouse,
            };
            *line = Line {
                supplier: 1 + supplier as i16,
                item: 1 + ((uneven(random, 8_191, items) + ITEM_C) % items) as i32,
                quantity: 1 + below(kind >> 32, 10) as i16,
            };
        }
        if below(random.next_u64(), 100) < TPCC_ROLLED_BACK {
            order.lines[count as usize - 1].item = NO_ITEM;
        }
        order.lines[..count as usize].sort_by_key(|line| (line.supplier, line.item));
        order
    }
}

/// `random(0, a) | random(1, count)` less 1: what `NURand(a, 1, count)` adds its constant to (clause 2.1.6).
fn uneven(random: &mut Random, a: u32, count: u32) -> u32 {
    let bits = random.next_u64();
    (below(bits, a + 1) | (1 + below(bits >> 32, count))) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_have_the_shares_of_the_specification() {
        let mut random = Random::new(3);
        let orders: Vec<_> = (0..20_000).map(|_| Order::draw(&mut random, 4, 100_000)).collect();
        let lines = || orders.iter().flat_map(Order::lines);
        assert!(lines().all(|line| (1..=10).contains(&line.quantity) && (1..=4).contains(&line.supplier)));
        let mean = lines().count() as f64 / orders.len() as f64;
        assert!((9.8..10.2).contains(&mean), "{mean}");
        let remote = |order: &Order| {
            order
                .lines()
                .iter()
                .filter(|line| line.supplier != order.warehouse)
                .count()
        };
        let remote = orders.iter().map(remote).sum::<usize>() as f64 / lines().count() as f64;
        assert!((0.008..0.012).contains(&remote), "{remote}");
        let is_taken_back = |order: &&Order| order.lines().iter().any(|line| line.item == NO_ITEM);
        let taken_back = orders.iter().filter(is_taken_back).count();
        assert!((130..280).contains(&taken_back), "{taken_back}");
        let is_sorted = |order: &Order| order.lines().is_sorted_by_key(|line| (line.supplier, line.item));
        assert!(orders.iter().all(is_sorted));
    }
}
