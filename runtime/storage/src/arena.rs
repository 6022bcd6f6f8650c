//! Row bytes of one table in an arena: granules of 8 bytes, without a header. The location of a row has its length.
//!
//! Space comes from the end of a piece. A freed slot goes to the list of its size class and piece. Rows never cross a piece. A piece whose
//! slots are all free therefore returns to the system, and another piece takes its place later.

use std::sync::Arc;

use reprise_abi::{
    copy::{copy_first, copy_short},
    row::ROW_BYTES_MAX,
};
use reprise_base::Budget;
use reprise_pages::{HUGE_BYTES, prefetch_line};

use crate::chunked::{GrowthRule, Pieces};

/// The place of a row's bytes: length in the upper bits, granule in the lower bits. The highest bit is never set here, because
/// `Indirection` keeps its own mark there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location(pub u64);

const GRANULE_BYTES: usize = 8;
const LEN_SHIFT: u32 = 40;
/// log2 of the granules in a piece, which is one huge page.
const CHUNK_SHIFT: u32 = (HUGE_BYTES / GRANULE_BYTES).ilog2();
const CHUNK_GRANULES: usize = 1 << CHUNK_SHIFT;
/// Number of granules up to which each count is a class of its own. Above, an octave has `STEPS` classes.
const EXACT_MAX: usize = 128;
const STEPS: usize = 8;

/// Distance in bytes at which `touch_end` prefetches.
const AHEAD_BYTES: usize = 1024;
/// Bytes that the processor fetches at once.
const LINE_BYTES: usize = 64;

const _: () = assert!(ROW_BYTES_MAX + 8 < 1 << 22);
const _: () = assert!(slot_of(ROW_BYTES_MAX + 8).1 <= CHUNK_GRANULES);

impl Location {
    #[inline]
    fn new(len: usize, granule: u64) -> Self {
        Self((len as u64) << LEN_SHIFT | granule)
    }
    #[inline]
    pub fn len(self) -> usize {
        (self.0 >> LEN_SHIFT) as usize
    }
    #[inline]
    fn granule(self) -> usize {
        (self.0 & ((1 << LEN_SHIFT) - 1)) as usize
    }
    /// Returns the piece, and the byte in it.
    #[inline]
    fn place(self) -> (usize, usize) {
        let granule = self.granule();
        let inside = granule & (CHUNK_GRANULES - 1);
        (granule >> CHUNK_SHIFT, inside * GRANULE_BYTES)
    }
}

/// Returns the size class of `len` bytes (at least one), and the granules of its slots.
#[inline]
const fn slot_of(len: usize) -> (usize, usize) {
    let granules = len.div_ceil(GRANULE_BYTES);
    if granules <= EXACT_MAX {
        return (granules - 1, granules);
    }
    large_slot_of(granules)
}

const fn large_slot_of(granules: usize) -> (usize, usize) {
    let octave = (granules - 1).ilog2() as usize;
    let step_shift = octave - STEPS.ilog2() as usize;
    let step = (granules - 1 - (1 << octave)) >> step_shift;
    let class = EXACT_MAX + (octave - EXACT_MAX.ilog2() as usize) * STEPS + step;
    (class, (1 << octave) + ((step + 1) << step_shift))
}

/// Returns the granules of a class's slots.
fn granules_of(class: usize) -> usize {
    match class.checked_sub(EXACT_MAX) {
        None => class + 1,
        Some(above) => {
            let octave = above / STEPS + EXACT_MAX.ilog2() as usize;
            let step_shift = octave - STEPS.ilog2() as usize;
            (1 << octave) + ((above % STEPS + 1) << step_shift)
        }
    }
}

/// Returns the greatest slot that fits into `granules` (at least one).
fn slot_within(granules: usize) -> usize {
    if granules <= EXACT_MAX {
        return granules;
    }
    let octave = granules.ilog2() as usize;
    let step_shift = octave - STEPS.ilog2() as usize;
    granules >> step_shift << step_shift
}

/// Returns the bytes that a row of `len` bytes costs here, without its indirection.
#[inline(always)]
pub(crate) fn footprint_bytes(len: usize) -> usize {
    slot_of(len).1 * GRANULE_BYTES
}

/// Returns the bytes that each of many rows of `len` bytes costs here, with its part of the ends of pieces that are too short for a row.
pub(crate) fn piece_share_bytes(len: usize) -> usize {
    HUGE_BYTES / (CHUNK_GRANULES / slot_of(len).1)
}

/// The row bytes of one table.
#[derive(Default)]
pub(crate) struct Arena {
    chunks: Pieces<u8>,
    /// First granule of the open piece that was never used.
    used: usize,
    /// Granule of the open piece up to which there is memory.
    room: usize,
    /// The end of the open piece.
    end: usize,
    /// For each class, the piece + 1 whose free slots are taken first, or 0.
    free: Vec<u32>,
    /// The free slots of each piece.
    slots: Vec<FreeSlots>,
    /// Pieces that returned to the system.
    gone: Vec<u32>,
}

/// The free slots of one piece.
#[derive(Default)]
struct FreeSlots {
    /// Granules of all free slots together.
    granules: usize,
    /// The list of each class.
    lists: Vec<FreeList>,
}

/// The free slots of one class in one piece, and the neighbours of the piece among pieces with such slots.
#[derive(Clone, Copy, Default)]
struct FreeList {
    /// The last freed slot's granule in the piece + 1, or 0. A free slot holds the next one in its first eight bytes.
    head: u32,
    /// The neighbouring pieces + 1, or 0.
    previous: u32,
    next: u32,
}

impl Arena {
    /// Stores `row` followed by `trailer`. Together they are not empty.
    #[inline(always)]
    pub fn insert(&mut self, row: &[u8], trailer: &[u8]) -> Location {
        let len = row.len() + trailer.len();
        let (class, granules) = slot_of(len);
        let location = Location::new(len, self.take(class, granules));
        let bytes = self.get_mut(location);
        let (row_bytes, rest) = bytes.split_at_mut(row.len());
        copy_short(row, row_bytes);
        copy_short(trailer, rest);
        location
    }

    /// Stores rows in new space, one behind the other, each followed by its number. `places` gets their places and has as many entries.
    /// False, with no row stored, if freed slots would take some rows, or if the piece is too small.
    pub fn append(&mut self, rows: &[&[u8]], numbers: &[u64], places: &mut [Location]) -> bool {
        let base = self.used & !(CHUNK_GRANULES - 1);
        if self.used == self.room {
            return false;
        }
        let chunk = self.chunks.at_mut(self.used >> CHUNK_SHIFT);
        let mut used = self.used - base;
        for ((row, number), place) in rows.iter().zip(numbers).zip(places) {
            let number = number.to_be_bytes();
            let len = row.len() + number.len();
            let (class, granules) = slot_of(len);
            let has_freed = self.free.get(class).is_some_and(|head| *head != 0);
            if has_freed || base + used + granules > self.room || used + granules > CHUNK_GRANULES {
                return false;
            }
            let (to, behind) = chunk[used * GRANULE_BYTES..][..len].split_at_mut(row.len());
            copy_short(row, to);
            copy_first::<8>(&number, behind);
            *place = Location::new(len, (base + used) as u64);
            used += granules;
        }
        let appended = base + used - self.used;
        self.used = base + used;
        self.touch_next(appended * GRANULE_BYTES);
        true
    }

    /// Returns the piece whose end gets new rows, unless it is full.
    #[inline]
    fn open(&self) -> Option<&[u8]> {
        (self.used < self.end).then(|| &self.chunks.at(self.used >> CHUNK_SHIFT)[..])
    }

    /// Prefetches the space for this many bytes of rows that will follow.
    #[inline]
    fn touch_next(&self, bytes: usize) {
        let first = (self.used & (CHUNK_GRANULES - 1)) * GRANULE_BYTES;
        let next = first..first + bytes.min(AHEAD_BYTES);
        if let Some(next) = self.open().and_then(|chunk| chunk.get(next)) {
            next.iter().step_by(LINE_BYTES).for_each(prefetch_line);
        }
    }

    /// Prefetches the space for rows that will follow, some bytes ahead.
    #[inline]
    pub fn touch_end(&self) {
        let ahead = (self.used & (CHUNK_GRANULES - 1)) * GRANULE_BYTES + AHEAD_BYTES;
        if let Some(byte) = self.open().and_then(|chunk| chunk.get(ahead)) {
            prefetch_line(byte);
        }
    }

    #[inline(always)]
    fn take(&mut self, class: usize, granules: usize) -> u64 {
        if let Some(head) = self.free.get(class)
            && *head != 0
        {
            return self.take_free(class);
        }
        if self.used + granules > self.room {
            return self.take_behind(class, granules);
        }
        let granule = self.used;
        self.used += granules;
        granule as u64
    }

    #[inline(never)]
    fn take_free(&mut self, class: usize) -> u64 {
        let piece = self.free[class] as usize - 1;
        let slots = &mut self.slots[piece];
        slots.granules -= granules_of(class);
        let list = &mut slots.lists[class];
        let granule = (piece << CHUNK_SHIFT | (list.head as usize - 1)) as u64;
        let link = self.chunks.any(piece)[Location::new(8, granule).place().1..].first_chunk();
        list.head = u32::from_le_bytes(*link.expect("a slot has 8 bytes"));
        if list.head == 0 {
            self.unlink(piece, class);
        }
        granule
    }

    /// Puts a piece with free slots of the class first, so that its slots are taken first.
    fn link(&mut self, piece: usize, class: usize) {
        if class >= self.free.len() {
            self.free.resize(class + 1, 0);
        }
        let next = std::mem::replace(&mut self.free[class], piece as u32 + 1);
        let list = &mut self.slots[piece].lists[class];
        (list.previous, list.next) = (0, next);
        if let Some(next) = next.checked_sub(1) {
            self.slots[next as usize].lists[class].previous = piece as u32 + 1;
        }
    }

    /// Undoes `link`.
    fn unlink(&mut self, piece: usize, class: usize) {
        let FreeList { previous, next, .. } = self.slots[piece].lists[class];
        match previous.checked_sub(1) {
            Some(previous) => self.slots[previous as usize].lists[class].next = next,
            None => self.free[class] = next,
        }
        if let Some(next) = next.checked_sub(1) {
            self.slots[next as usize].lists[class].previous = previous;
        }
    }

    /// The `take` variant for an arena without room. It takes new memory, then a part of a greater free slot, then memory beyond the limit.
    #[cold]
    fn take_behind(&mut self, class: usize, granules: usize) -> u64 {
        if !self.grow(granules, GrowthRule::Judged) {
            if let Some(granule) = self.take_greater(class, granules) {
                return granule;
            }
            self.grow(granules, GrowthRule::Forced);
        }
        let granule = self.used;
        self.used += granules;
        granule as u64
    }

    fn greater(&self, class: usize) -> Option<usize> {
        let classes = class + 1..self.free.len();
        classes.into_iter().find(|class| self.free[*class] != 0)
    }

    /// Takes the first part of a free slot of a greater class. The rest of it becomes free slots of lesser classes.
    fn take_greater(&mut self, class: usize, granules: usize) -> Option<u64> {
        let greater = self.greater(class)?;
        let granule = self.take_free(greater);
        let end = granule as usize + granules_of(greater);
        self.free_between(granule as usize + granules, end);
        Some(granule)
    }

    /// Frees granules that no slot has.
    fn free_between(&mut self, from: usize, end: usize) {
        let mut at = from;
        while at < end {
            let granules = slot_within(end - at);
            self.free(Location::new(granules * GRANULE_BYTES, at as u64));
            at += granules;
        }
    }

    /// True if a row of `len` bytes needs no new memory.
    #[inline(always)]
    pub fn has_room(&self, len: usize) -> bool {
        let (class, granules) = slot_of(len);
        self.used + granules <= self.room || self.free.get(class).is_some_and(|head| *head != 0)
    }

    /// Makes room for a row of `len` bytes. False if that needs memory and the memory is refused.
    #[cold]
    pub fn make_room(&mut self, len: usize) -> bool {
        let (class, granules) = slot_of(len);
        self.has_room(len) || self.grow(granules, GrowthRule::Judged) || self.greater(class).is_some()
    }

    /// Makes room for this many granules behind the used ones. If the open piece has fewer left, they become free slots, and a new piece
    /// begins.
    fn grow(&mut self, granules: usize, growth: GrowthRule) -> bool {
        if self.used + granules <= self.end {
            return self.extend(self.used + granules - self.room, growth);
        }
        let short = self.end - self.room;
        if short > 0 && !self.extend(short, growth) {
            return false;
        }
        let Some(piece) = self.begin_piece(granules, growth) else {
            return false;
        };
        let used = std::mem::replace(&mut self.used, piece << CHUNK_SHIFT);
        let end = std::mem::replace(&mut self.end, (piece + 1) << CHUNK_SHIFT);
        self.free_between(used, end);
        true
    }

    /// Takes memory for a piece, in the place of a released one or behind all others, and makes room in it.
    fn begin_piece(&mut self, granules: usize, growth: GrowthRule) -> Option<usize> {
        let piece = match self.gone.last() {
            Some(piece) => {
                let piece = *piece as usize;
                if !self.chunks.refill(piece, HUGE_BYTES, growth) {
                    return None;
                }
                self.gone.pop();
                self.room = (piece + 1) << CHUNK_SHIFT;
                piece
            }
            None => {
                let piece = self.chunks.count();
                if !self.extend(granules, growth) {
                    return None;
                }
                self.slots.push(FreeSlots::default());
                piece
            }
        };
        self.chunks.at_mut(piece).fill_with_zeros();
        Some(piece)
    }

    fn extend(&mut self, granules: usize, growth: GrowthRule) -> bool {
        let has_grown = self.chunks.extend(HUGE_BYTES, granules * GRANULE_BYTES, growth);
        if has_grown {
            self.room = self.chunks.room() / GRANULE_BYTES;
        }
        has_grown
    }

    /// Counts its memory in `budget` from now on.
    pub fn count_in(&mut self, budget: &Arc<Budget>) {
        self.chunks.count_in(budget);
    }

    #[inline(always)]
    pub fn get(&self, location: Location) -> &[u8] {
        let (chunk, at) = location.place();
        &self.chunks.any(chunk)[at..at + location.len()]
    }

    #[inline]
    pub fn get_mut(&mut self, location: Location) -> &mut [u8] {
        let (chunk, at) = location.place();
        &mut self.chunks.any_mut(chunk)[at..at + location.len()]
    }

    /// Returns the location of the same slot with another length, if the slot's size class takes it.
    #[inline]
    pub fn resized(location: Location, len: usize) -> Option<Location> {
        let before = location.len();
        let fits = before == len || slot_of(before).0 == slot_of(len).0;
        fits.then(|| Location::new(len, location.granule() as u64))
    }

    pub fn free(&mut self, location: Location) {
        let (class, granules) = slot_of(location.len());
        let (piece, at) = location.place();
        let slots = &mut self.slots[piece];
        if class >= slots.lists.len() {
            slots.lists.resize(class + 1, FreeList::default());
        }
        slots.granules += granules;
        let is_whole = slots.granules == CHUNK_GRANULES;
        let next = std::mem::replace(&mut slots.lists[class].head, (at / GRANULE_BYTES) as u32 + 1);
        self.chunks.any_mut(piece)[at..at + 8].copy_from_slice(&u64::from(next).to_le_bytes());
        if next == 0 {
            self.link(piece, class);
        }
        if is_whole {
            self.give_back(piece);
        }
    }

    /// Releases the memory of a piece whose slots are all free, unless it is the first one.
    #[cold]
    fn give_back(&mut self, piece: usize) {
        if piece == 0 {
            return;
        }
        for class in 0..self.slots[piece].lists.len() {
            if self.slots[piece].lists[class].head != 0 {
                self.unlink(piece, class);
            }
        }
        self.slots[piece] = FreeSlots::default();
        self.chunks.release(piece, HUGE_BYTES);
        self.gone.push(piece as u32);
    }

    pub fn memory_bytes(&self) -> usize {
        let lists: usize = self.slots.iter().map(|slots| slots.lists.capacity()).sum();
        let beside = (self.free.capacity() + self.gone.capacity()) * 4
            + self.slots.capacity() * size_of::<FreeSlots>()
            + lists * size_of::<FreeList>();
        self.chunks.memory_bytes() + beside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_grow_with_the_length_and_their_slots_fit() {
        let mut before = (0, 1);
        for len in 1..=ROW_BYTES_MAX + 8 {
            let (class, granules) = slot_of(len);
            assert!(granules * GRANULE_BYTES >= len && granules * GRANULE_BYTES < len + len / 8 + 8);
            assert!(class == before.0 && granules == before.1 || class == before.0 + 1);
            before = (class, granules);
            assert_eq!(granules_of(class), granules);
            if len.is_multiple_of(8) {
                let within = slot_within(len / 8);
                assert!(within <= len / 8 && slot_of(within * 8).1 == within, "{len}");
            }
        }
    }

    #[test]
    fn rows_keep_their_bytes_and_freed_slots_come_back_last_first() {
        let mut arena = Arena::default();
        let rows: Vec<Vec<u8>> = (1..6000usize).map(|n| vec![n as u8; n * n % 9000 + 1]).collect();
        let places: Vec<_> = rows.iter().map(|row| arena.insert(row, b"")).collect();
        for size in [5, 900, 1400, ROW_BYTES_MAX] {
            let (a, b) = (arena.insert(&vec![1; size], b"x"), arena.insert(&vec![2; size], b"x"));
            arena.free(a);
            arena.free(b);
            assert_eq!(arena.insert(&vec![3; size], b"y"), b);
            let same = arena.insert(&vec![4; size - 1], b"yz");
            assert_eq!(same.granule(), a.granule());
            assert_eq!(arena.get(b)[size], b'y');
        }
        for (row, place) in rows.iter().zip(&places) {
            assert_eq!(arena.get(*place), row);
        }
    }

    #[test]
    fn the_rest_of_a_piece_is_used_for_smaller_rows() {
        let mut arena = Arena::default();
        for _ in 0..20 {
            arena.insert(&vec![1; 800 << 10], b"");
        }
        let chunks = arena.chunks.count();
        for _ in 0..40_000 {
            arena.insert(&[2; 64], b"");
        }
        assert!(arena.chunks.count() <= chunks + 2, "{} pieces", arena.chunks.count());
    }

    #[test]
    fn a_slot_is_resized_only_within_its_class() {
        let mut arena = Arena::default();
        let place = arena.insert(&[0; 20], b"");
        assert!(Arena::resized(place, 24).is_some());
        assert!(Arena::resized(place, 17).is_some());
        assert!(Arena::resized(place, 16).is_none());
        assert!(Arena::resized(place, 25).is_none());
    }
}
