//! Maps a row's number to its record id, in a table with a primary key. The changes of the log name a row by its number. Numbers are given
//! out in order, so an array of pages has them. When most rows of a page are gone, its other numbers go to a hash beside it (`Dense`). A
//! table without a primary key has its numbers in its first index, and has no such map.
//!
//! Memory is counted by rows, at twice the bytes of a number that has its neighbours. A new row that takes the room of a removed one needs
//! a place behind all others. The counted memory already includes that place. If rows are removed at random, the map needs more memory, and
//! counts it when it takes it.

use std::sync::Arc;

use reprise_base::Budget;

use crate::{charge::Charge, dense::Dense, indirection::Rid, tag::tag_of};

/// Bound of the numbers that a table gives out. A greater number was never given out.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;
/// The bytes counted for each row: its place in a page that is half full.
pub(crate) const NUMBER_ENTRY_BYTES: usize = 8;
/// Number of rows that are counted together.
const STEP_ROWS_MIN: usize = 512;
const STEP_ROWS_MAX: usize = 32 << 10;

/// Number of insertions after which the held memory is checked: about a page.
const NUMBERS_BETWEEN: u64 = 1024;

/// The error that another row has the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NumberTaken;

pub(crate) struct Numbers {
    rids: Dense,
    /// Number of rows that are counted.
    room: usize,
    charge: Charge,
    /// The greatest number that was added.
    newest: u64,
}

fn key_of(number: u64) -> u128 {
    (number as u128) << 64
}

impl Numbers {
    pub fn new() -> Self {
        Self {
            rids: Dense::new(size_of::<u64>()),
            room: 0,
            charge: Charge::default(),
            newest: 0,
        }
    }

    /// Counts its memory in `budget` from now on.
    pub fn count_in(&mut self, budget: &Arc<Budget>) {
        self.charge.count_in(budget);
    }

    /// Returns the bytes that it holds.
    pub fn memory_bytes(&self) -> usize {
        self.rids.memory_bytes()
    }

    /// True if one more row is counted already.
    #[inline(always)]
    pub fn has_memory(&self) -> bool {
        self.rids.len() < self.room
    }

    /// Counts some more rows. False if that is refused.
    #[cold]
    pub fn make_memory(&mut self) -> bool {
        let step = self.step();
        let is_counted = self.has_memory() || self.charge.try_grow(step * NUMBER_ENTRY_BYTES);
        if is_counted && !self.has_memory() {
            self.room += step;
        }
        is_counted
    }

    fn step(&self) -> usize {
        self.room.clamp(STEP_ROWS_MIN, STEP_ROWS_MAX)
    }

    /// The `make_memory` variant that ignores the limit.
    #[cold]
    fn take_memory(&mut self) {
        let step = self.step();
        self.charge.grow(step * NUMBER_ENTRY_BYTES);
        self.room += step;
    }

    /// True if `give_back` may find memory to release.
    #[inline]
    pub fn has_whole(&self) -> bool {
        self.rids.has_whole()
    }

    /// Releases memory in which no number is left. The rest is counted twice, so that as many rows may be inserted as were removed.
    #[cold]
    pub fn give_back(&mut self) {
        self.rids.give_back();
        let held = 2 * self.rids.memory_bytes();
        let rows = held.div_ceil(NUMBER_ENTRY_BYTES).max(self.rids.len() + STEP_ROWS_MIN);
        if rows < self.room {
            self.room = rows;
            self.charge.resize(rows * NUMBER_ENTRY_BYTES);
        }
    }

    /// Adds a row. `number_of` returns the numbers of other rows.
    #[inline]
    pub fn insert(&mut self, number: u64, rid: Rid, number_of: impl Fn(Rid) -> u64) -> Result<(), NumberTaken> {
        let is_same = |other| number_of(Rid(other)) == number;
        let added = self.rids.insert(key_of(number), rid.0, is_same);
        added.map_err(|_| NumberTaken)?;
        self.newest = self.newest.max(number);
        if self.rids.len() > self.room {
            self.take_memory();
        }
        if number.is_multiple_of(NUMBERS_BETWEEN) && self.rids.memory_bytes() > self.charge.bytes() {
            self.charge.resize(self.rids.memory_bytes());
        }
        Ok(())
    }

    /// Removes a row. It panics if the row is not in the map.
    #[inline]
    pub fn remove(&mut self, number: u64, rid: Rid) {
        let newest = key_of(self.newest);
        let is_removed = self.rids.remove_for_good(key_of(number), rid.0, newest);
        assert!(is_removed, "a live row has a number");
    }

    /// Returns the row of a number. `number_of` returns the numbers of rows.
    #[inline]
    pub fn get(&self, number: u64, number_of: impl Fn(Rid) -> u64) -> Option<Rid> {
        if let Some(rid) = self.rids.find_short(number) {
            return Some(Rid(rid));
        }
        let is_it = |rid| (number_of(Rid(rid)) == number).then_some(Rid(rid));
        self.rids.thin()?.find(tag_of(key_of(number)), is_it)
    }

    /// Returns the row that `get` finds, if it is known without reading the row.
    #[inline]
    pub fn candidate(&self, number: u64) -> Option<Rid> {
        self.rids.find_short(number).map(Rid)
    }

    /// Prefetches the memory that `candidate` reads.
    #[inline]
    pub fn touch(&self, number: u64) {
        self.rids.prefetch_slot_of_short(number);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 80, ..ProptestConfig::default() })]
        /// Rows are inserted in order. Of some stretches all, most or some rows are removed, and a few come back.
        #[test]
        fn numbers_are_a_map(steps in prop::collection::vec((0..3000u64, 1..200u64, any::<bool>()), 1..20)) {
            let (mut numbers, mut model, mut given) = (Numbers::new(), BTreeMap::new(), Vec::new());
            for (count, kept, comes_back) in steps {
                for _ in 0..count {
                    let (number, rid) = (given.len() as u64, Rid(given.len() as u32 ^ 1));
                    given.push(rid);
                    prop_assert_eq!(numbers.insert(number, rid, |rid| u64::from(rid.0 ^ 1)), Ok(()));
                    prop_assert_eq!(numbers.insert(number, rid, |rid| u64::from(rid.0 ^ 1)), Err(NumberTaken));
                    model.insert(number, rid);
                }
                let gone: Vec<_> = model.iter().filter(|(number, _)| *number % kept != 0).map(|(n, rid)| (*n, *rid)).collect();
                for (number, rid) in gone {
                    numbers.remove(number, rid);
                    model.remove(&number);
                    if comes_back && number % 100 == 3 {
                        prop_assert_eq!(numbers.insert(number, rid, |rid| u64::from(rid.0 ^ 1)), Ok(()));
                        model.insert(number, rid);
                    }
                }
            }
            for number in 0..given.len() as u64 + 10 {
                let found = numbers.get(number, |rid| u64::from(rid.0 ^ 1));
                prop_assert_eq!(found, model.get(&number).copied());
                let candidate = numbers.candidate(number);
                prop_assert!(candidate.is_none() || candidate == found);
            }
            prop_assert_eq!(numbers.get(u64::MAX, |rid| u64::from(rid.0 ^ 1)), None);
        }
    }

    /// Numbers in order cost their place in a page. A few numbers that are left of many do not keep the pages.
    #[test]
    fn a_number_costs_four_bytes_and_a_lonely_one_little() {
        let mut numbers = Numbers::new();
        let number_of = |rid: Rid| u64::from(rid.0);
        for number in 0..1 << 20 {
            numbers.insert(number, Rid(number as u32), number_of).expect("new");
        }
        let dense = numbers.memory_bytes();
        assert!(
            dense <= (4 << 20) + (2 << 20) + (64 << 10),
            "{dense} bytes of 2^20 rows"
        );
        let mut lonely = Numbers::new();
        for number in (0..1 << 30).step_by(1 << 14) {
            lonely.insert(number, Rid(number as u32), number_of).expect("new");
        }
        let each = lonely.memory_bytes() / (1 << 16);
        assert!(each <= 48, "{each} bytes a row of which no neighbour is left");
    }

    /// Rows that are inserted and removed at random all the time take some bytes each, and these are counted.
    #[test]
    fn rows_that_are_replaced_at_random_take_few_bytes_and_they_are_counted() {
        let (mut numbers, mut live, mut random) = (Numbers::new(), Vec::new(), 1_u64);
        for number in 0..2_000_000 {
            if live.len() == 100_000 {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let gone = live.swap_remove((random >> 33) as usize % live.len());
                numbers.remove(gone, Rid(gone as u32));
            }
            numbers
                .insert(number, Rid(number as u32), |rid| u64::from(rid.0))
                .expect("new");
            live.push(number);
        }
        let each = numbers.memory_bytes() as f64 / live.len() as f64;
        assert!(each <= 18.0, "{each:.1} bytes a row");
        let counted = numbers.charge.bytes() as f64 / live.len() as f64;
        assert!(
            counted >= each - 1.0,
            "{counted:.1} bytes a row are counted, {each:.1} held"
        );
    }
}
