//! The rows of one table: bytes in an arena behind the indirection array, each row followed by its number. A row gets its number when it is
//! inserted. No other row of the table on this partition ever gets that number, so it names the row on every node and in every replay. In a
//! table with a primary key, `Numbers` finds a row by its number.

use std::sync::Arc;

use reprise_abi::{ReadSpan, row::ROW_BYTES_MAX};
use reprise_base::Budget;
use reprise_pages::prefetch;

use crate::{
    arena::{Arena, Location, footprint_bytes, piece_share_bytes},
    indirection::{Indirection, Rid},
    keyplan::StoredRow,
    numbers::{NUMBER_ENTRY_BYTES, NumberTaken, Numbers},
};

/// Bytes of the indirection array for each row.
const PLACE_BYTES: usize = 8;
/// Bytes of the number behind each row.
const NUMBER_BYTES: usize = 8;

pub(crate) struct RowHeap {
    places: Indirection,
    arena: Arena,
    /// The map of numbers. None in a table without a primary key.
    numbers: Option<Numbers>,
    count: u64,
    /// Number of removed rows whose ids are not free yet, because a handle may still name them.
    buried: u64,
    nominal_bytes: u64,
}

impl RowHeap {
    /// Makes an empty set of rows, of a table with a primary key or without one.
    pub fn new(is_keyed: bool) -> Self {
        Self {
            places: Indirection::default(),
            arena: Arena::default(),
            numbers: is_keyed.then(Numbers::new),
            count: 0,
            buried: 0,
            nominal_bytes: 0,
        }
    }

    /// Returns an empty set of the same kind, whose memory is not counted.
    pub fn fresh(&self) -> Self {
        Self::new(self.numbers.is_some())
    }

    /// Returns the row of a number, in a table with a primary key.
    #[inline]
    pub fn by_number(&self, number: u64) -> Option<Rid> {
        let numbers = self.numbers.as_ref()?;
        numbers.get(number, |rid| number_at(&self.places, &self.arena, rid))
    }

    /// Returns the row that `by_number` probably finds, so that the caller can prefetch it.
    #[inline]
    pub fn numbered_candidate(&self, number: u64) -> Option<Rid> {
        self.numbers.as_ref()?.candidate(number)
    }

    /// Prefetches the memory that `numbered_candidate` reads.
    #[inline]
    pub fn touch_number(&self, number: u64) {
        if let Some(numbers) = &self.numbers {
            numbers.touch(number);
        }
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// True if there is no row, and none can come back.
    #[inline]
    pub fn is_unused(&self) -> bool {
        self.count | self.buried == 0
    }

    /// Returns the bytes that the rows cost, with indirection and rounding: a function of the rows alone.
    pub fn nominal_bytes(&self) -> u64 {
        self.nominal_bytes
    }

    /// Estimates the bytes that the rows would take beyond their present ones if each were `bytes` longer.
    pub fn growth_bytes(&self, bytes: usize) -> u64 {
        if self.count == 0 || bytes == 0 {
            return 0;
        }
        let other = PLACE_BYTES + NUMBER_ENTRY_BYTES * self.numbers.is_some() as usize;
        let mean = (self.nominal_bytes.div_ceil(self.count) as usize).saturating_sub(other);
        // A row that would be too long is refused when it is made.
        let grown = piece_share_bytes((mean + bytes).min(ROW_BYTES_MAX + NUMBER_BYTES));
        self.count * grown.saturating_sub(mean) as u64
    }

    pub fn memory_bytes(&self) -> usize {
        let numbers = self.numbers.as_ref().map_or(0, Numbers::memory_bytes);
        self.places.memory_bytes() + self.arena.memory_bytes() + numbers
    }

    /// Counts its memory in `budget` from now on.
    pub fn count_in(&mut self, budget: &Arc<Budget>) {
        self.places.count_in(budget);
        self.arena.count_in(budget);
        if let Some(numbers) = &mut self.numbers {
            numbers.count_in(budget);
        }
    }

    /// True if `give_back` may find memory to release.
    #[inline]
    pub fn has_whole(&self) -> bool {
        self.numbers.as_ref().is_some_and(Numbers::has_whole)
    }

    /// Releases memory in which no number is left. The memory of rows and their ids was released when they were removed.
    #[cold]
    pub fn give_back(&mut self) {
        if let Some(numbers) = &mut self.numbers {
            numbers.give_back();
        }
    }

    /// True if a row of this many bytes takes no memory.
    #[inline(always)]
    pub fn has_memory(&self, row_bytes: usize) -> bool {
        let has_place = self.numbers.as_ref().is_none_or(Numbers::has_memory);
        has_place && self.places.has_memory() && self.arena.has_room(row_bytes + NUMBER_BYTES)
    }

    /// Takes memory for a row of this many bytes. False if it is refused.
    #[cold]
    pub fn make_memory(&mut self, row_bytes: usize) -> bool {
        let has_place = self.numbers.as_mut().is_none_or(Numbers::make_memory);
        has_place && self.places.make_memory() && self.arena.make_room(row_bytes + NUMBER_BYTES)
    }

    /// The `make_memory` variant for a row that has its slot in the array of places.
    #[inline]
    pub fn make_memory_to_move(&mut self, row_bytes: usize) -> bool {
        let stored_bytes = row_bytes + NUMBER_BYTES;
        self.arena.has_room(stored_bytes) || self.arena.make_room(stored_bytes)
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.places.is_full()
    }

    /// False if `count` more rows might be too many.
    pub fn has_room(&self, count: usize) -> bool {
        self.places.has_room(count)
    }

    /// Returns the id that the next row gets.
    #[inline(always)]
    pub fn next_rid(&mut self) -> Rid {
        self.places.ready_next()
    }

    /// Returns the id behind the greatest record id ever given out.
    pub fn rids_end(&self) -> u32 {
        self.places.end()
    }

    pub fn rids(&self) -> impl Iterator<Item = Rid> + '_ {
        self.places.rids_from(Rid(0))
    }

    pub fn rids_from(&self, first: Rid) -> impl Iterator<Item = Rid> + '_ {
        self.places.rids_from(first)
    }

    #[inline]
    pub fn place(&self, rid: Rid) -> Option<Location> {
        self.places.get(rid)
    }

    /// The `place` variant for several rows. Returns the number of rows before the first that is not live. `places` has at least as many
    /// entries.
    #[inline]
    pub fn places_of(&self, rids: &[Rid], places: &mut [Location]) -> usize {
        for (at, (rid, place)) in rids.iter().zip(places).enumerate() {
            match self.places.get(*rid) {
                Some(found) => *place = found,
                None => return at,
            }
        }
        rids.len()
    }

    #[inline]
    pub fn get(&self, rid: Rid) -> Option<&[u8]> {
        Some(self.read(self.places.get(rid)?).row)
    }

    /// The `get` variant that returns the number too.
    #[inline]
    pub fn live(&self, rid: Rid) -> Option<StoredRow<'_>> {
        Some(self.read(self.places.get(rid)?))
    }

    /// Returns the row of an id in an index. It panics if the row is not live, because the index would be wrong.
    #[inline]
    pub fn at(&self, rid: Rid) -> StoredRow<'_> {
        self.read(self.places.live(rid))
    }

    /// The `at` variant without the number.
    #[inline(always)]
    pub fn keyed_at(&self, rid: Rid) -> StoredRow<'_> {
        let stored = self.arena.get(self.places.live(rid));
        StoredRow {
            row: &stored[..stored.len() - NUMBER_BYTES],
            number: 0,
        }
    }

    /// Prefetches the slot with the row's place.
    #[inline]
    pub fn touch_place(&self, rid: Rid) {
        self.places.touch(rid);
    }

    /// Prefetches and returns a slot, as `Indirection::prefetch_slot_of` does.
    #[inline(always)]
    pub fn prefetch_slot_of(&self, rid: Rid) -> &u64 {
        self.places.prefetch_slot_of(rid)
    }

    /// Returns the row whose place is in a slot, and prefetches the span of it that the caller reads.
    #[inline(always)]
    pub fn prefetch_row(&self, slot: &u64, span: &ReadSpan<'_>) -> &[u8] {
        let row = self.read(Indirection::live_at(slot)).row;
        prefetch(span.first(row));
        row
    }

    /// The `prefetch_row` variant for an id that an index holds.
    #[inline(always)]
    pub fn prefetch_row_of(&self, rid: Rid, span: &ReadSpan<'_>) -> &[u8] {
        let row = self.read(self.places.live(rid)).row;
        prefetch(span.first(row));
        row
    }

    /// Prefetches the space of future rows.
    #[inline]
    pub fn touch_end(&self) {
        self.arena.touch_end();
        self.places.touch_end();
    }

    /// Prefetches the row's bytes.
    #[inline]
    pub fn touch(&self, rid: Rid) {
        if let Some(place) = self.places.get(rid) {
            prefetch(self.arena.get(place));
        }
    }

    /// Returns the bytes at a place, whether or not a live row has that place.
    #[inline(always)]
    pub fn read(&self, place: Location) -> StoredRow<'_> {
        split_stored(self.arena.get(place))
    }

    /// Stores the bytes. No row has their place yet.
    #[inline]
    pub fn store(&mut self, row: StoredRow<'_>) -> Location {
        self.arena.insert(row.row, &row.number.to_be_bytes())
    }

    #[inline(always)]
    fn nominal(&self, place: Location) -> u64 {
        let numbers = NUMBER_ENTRY_BYTES * self.numbers.is_some() as usize;
        (footprint_bytes(place.len()) + PLACE_BYTES + numbers) as u64
    }

    /// Inserts a row whose number no other row has.
    #[inline]
    pub fn insert(&mut self, row: StoredRow<'_>) -> Rid {
        self.try_insert(row).expect("a number is given out once")
    }

    /// The `insert` variant for a table with a primary key, whose number another row may have. It then inserts nothing.
    #[inline]
    pub fn try_insert(&mut self, row: StoredRow<'_>) -> Result<Rid, NumberTaken> {
        self.record_number(row.number, self.places.next())?;
        let place = self.store(row);
        self.count += 1;
        self.nominal_bytes += self.nominal(place);
        Ok(self.places.take(place))
    }

    #[inline(always)]
    fn record_number(&mut self, number: u64, rid: Rid) -> Result<(), NumberTaken> {
        match &mut self.numbers {
            Some(numbers) => numbers.insert(number, rid, |rid| number_at(&self.places, &self.arena, rid)),
            None => Ok(()),
        }
    }

    /// Inserts rows with new ids in new space. `places` and `rids` have one entry for each row, `numbers` at least one, and no other row
    /// has these numbers. False, with none inserted, if removed rows have left room, or if a piece of memory ends.
    pub fn append(&mut self, rows: &[&[u8]], numbers: &[u64], places: &mut [Location], rids: &mut [Rid]) -> bool {
        if self.places.has_free(rows.len()) || !self.arena.append(rows, numbers, places) {
            return false;
        }
        let first = self.places.append(places);
        for ((rid, new), number) in rids.iter_mut().zip(first.0..).zip(numbers) {
            *rid = Rid(new);
            self.record_number(*number, *rid).expect("a number is given out once");
        }
        self.nominal_bytes += places.iter().map(|place| self.nominal(*place)).sum::<u64>();
        self.count += rows.len() as u64;
        self.places.touch_end();
        true
    }

    /// Removes rows that no reader has seen. Their room and ids are free at once.
    #[cold]
    pub fn take_back(&mut self, rids: &[Rid]) {
        for rid in rids.iter().rev() {
            let place = self.bury(*rid);
            self.free(place);
            self.release(*rid);
        }
    }

    /// Removes the row. Its bytes stay until `free`, its id until `release`.
    pub fn bury(&mut self, rid: Rid) -> Location {
        let place = self.places.get(rid).expect("a live row is buried");
        if let Some(numbers) = &mut self.numbers {
            numbers.remove(split_stored(self.arena.get(place)).number, rid);
        }
        self.count -= 1;
        self.buried += 1;
        self.nominal_bytes -= self.nominal(place);
        self.places.bury(rid);
        place
    }

    /// Undoes `bury`.
    pub fn revive(&mut self, rid: Rid, place: Location) {
        let number = self.read(place).number;
        self.record_number(number, rid).expect("no other row got the number");
        self.count += 1;
        self.buried -= 1;
        self.nominal_bytes += self.nominal(place);
        self.places.set(rid, place);
    }

    pub fn release(&mut self, rid: Rid) {
        self.buried -= 1;
        self.places.release(rid);
    }

    pub fn free(&mut self, place: Location) {
        self.arena.free(place);
    }

    /// Gives a live row another place.
    #[inline]
    pub fn redirect(&mut self, rid: Rid, to: Location) {
        let from = self.places.get(rid).expect("a live row is redirected");
        self.nominal_bytes = self.nominal_bytes - self.nominal(from) + self.nominal(to);
        self.places.set(rid, to);
    }

    /// Returns the place for `row_bytes` bytes in the slot that a row has already, if it fits.
    #[inline]
    pub fn resized(&self, place: Location, row_bytes: usize) -> Option<Location> {
        Arena::resized(place, row_bytes + NUMBER_BYTES)
    }

    /// Returns all bytes at a place, the number included.
    #[inline]
    pub fn bytes_mut(&mut self, place: Location) -> &mut [u8] {
        self.arena.get_mut(place)
    }

    /// Returns all bytes at a place, the number included.
    pub fn stored(&self, place: Location) -> &[u8] {
        self.arena.get(place)
    }
}

/// Returns the number of a live row.
#[inline]
fn number_at(places: &Indirection, arena: &Arena, rid: Rid) -> u64 {
    split_stored(arena.get(places.live(rid))).number
}

/// Splits stored bytes into a row and its number.
#[inline(always)]
pub(crate) fn split_stored(stored: &[u8]) -> StoredRow<'_> {
    let (row, number) = stored.split_at(stored.len() - NUMBER_BYTES);
    StoredRow {
        row,
        number: u64::from_be_bytes(number.try_into().expect("8 bytes")),
    }
}
