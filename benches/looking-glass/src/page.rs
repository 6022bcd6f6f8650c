//! The slotted page: records from the front, slots of four bytes from the end.
//!
//! `[lsn u64][next u32][kind u8][level u8][count u16][used u16][dead u16][records ...] ... [slot n-1] ... [slot 0]`; a slot is
//! `[offset u16][length u16]`. A slot whose offset is 0 is free of a record; the highest bits of its
//! length mark a forward and a hidden row.

use std::ops::Range;

const LSN: usize = 0;
const NEXT: usize = 8;
const KIND: usize = 12;
const LEVEL: usize = 13;
const COUNT: usize = 14;
const USED: usize = 16;
const DEAD: usize = 18;
/// Bytes before the first record.
pub const HEADER_BYTES: usize = 20;
const SLOT_BYTES: usize = 4;
const FORWARD: u16 = 1 << 15;
const HIDDEN: u16 = 1 << 14;
const LENGTH: u16 = HIDDEN - 1;
/// Longest record.
pub const RECORD_BYTES_MAX: usize = LENGTH as usize;
/// Shortest room of a record: that of a forward.
pub const RECORD_BYTES_MIN: usize = 8;

/// The use of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PageKind {
    /// Never used.
    Free = 0,
    /// Rows of a table.
    Heap = 1,
    /// A node of a B-tree.
    Node = 2,
}

/// A page in memory.
#[derive(Clone)]
pub struct Page(Box<[u8]>);

impl Page {
    /// A free page.
    pub fn new(bytes: usize) -> Self {
        Self(vec![0; bytes].into_boxed_slice())
    }

    /// All bytes, as a file has them.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// All bytes, to be read from a file.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    #[inline(always)]
    fn u16_at(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }

    #[inline(always)]
    fn put_u16(&mut self, at: usize, value: u16) {
        self.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    /// Makes an empty page of a kind.
    pub fn format(&mut self, kind: PageKind, level: u8) {
        self.0[..HEADER_BYTES].fill(0);
        self.0[KIND] = kind as u8;
        self.0[LEVEL] = level;
        self.put_u16(USED, HEADER_BYTES as u16);
    }

    /// LSN of the last change.
    #[inline]
    pub fn lsn(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[LSN..LSN + 8]);
        u64::from_le_bytes(bytes)
    }

    /// Stamps the page.
    #[inline]
    pub fn set_lsn(&mut self, lsn: u64) {
        self.0[LSN..LSN + 8].copy_from_slice(&lsn.to_le_bytes());
    }

    /// Number of the page behind this one; 0 for none.
    #[inline]
    pub fn next(&self) -> u32 {
        u32::from_le_bytes([self.0[NEXT], self.0[NEXT + 1], self.0[NEXT + 2], self.0[NEXT + 3]])
    }

    /// Links the page behind this one.
    pub fn set_next(&mut self, next: u32) {
        self.0[NEXT..NEXT + 4].copy_from_slice(&next.to_le_bytes());
    }

    /// The use of this page.
    pub fn kind(&self) -> PageKind {
        match self.0[KIND] {
            1 => PageKind::Heap,
            2 => PageKind::Node,
            _ => PageKind::Free,
        }
    }

    /// Height over the leaves.
    #[inline]
    pub fn level(&self) -> u8 {
        self.0[LEVEL]
    }

    /// Changes the height, of a root that grows or shrinks.
    pub fn set_level(&mut self, level: u8) {
        self.0[LEVEL] = level;
    }

    /// Slots, those without a record included.
    #[inline]
    pub fn count(&self) -> usize {
        self.u16_at(COUNT) as usize
    }

    #[inline(always)]
    fn slot_at(&self, slot: usize) -> usize {
        self.0.len() - (slot + 1) * SLOT_BYTES
    }

    #[inline(always)]
    fn slot(&self, slot: usize) -> (usize, u16) {
        let at = self.slot_at(slot);
        (self.u16_at(at) as usize, self.u16_at(at + 2))
    }

    #[inline(always)]
    fn put_slot(&mut self, slot: usize, offset: usize, length: u16) {
        let at = self.slot_at(slot);
        self.put_u16(at, offset as u16);
        self.put_u16(at + 2, length);
    }

    /// The record in a slot; empty where there is none.
    #[inline(always)]
    pub fn record(&self, slot: usize) -> &[u8] {
        let (offset, length) = self.slot(slot);
        &self.0[offset..offset + (length & LENGTH) as usize]
    }

    /// The record in a slot, to be changed in place.
    #[inline]
    pub fn record_mut(&mut self, slot: usize) -> &mut [u8] {
        let (offset, length) = self.slot(slot);
        &mut self.0[offset..offset + (length & LENGTH) as usize]
    }

    /// Whether a slot holds a record or a forward.
    #[inline]
    pub fn is_taken(&self, slot: usize) -> bool {
        slot < self.count() && self.slot(slot).0 != 0
    }

    /// Whether the record of a slot says where the row lies.
    #[inline]
    pub fn is_forward(&self, slot: usize) -> bool {
        self.slot(slot).1 & FORWARD != 0
    }

    /// Whether the row of a slot was removed.
    #[inline]
    pub fn is_hidden(&self, slot: usize) -> bool {
        self.slot(slot).1 & HIDDEN != 0
    }

    /// Hides the row of a slot, which keeps its room, or shows it again.
    pub fn set_hidden(&mut self, slot: usize, is_hidden: bool) {
        let (offset, length) = self.slot(slot);
        let mark = if is_hidden { HIDDEN } else { 0 };
        self.put_slot(slot, offset, length & !HIDDEN | mark);
    }

    /// Bytes between the records and the slots.
    #[inline]
    fn gap(&self) -> usize {
        self.0.len() - self.count() * SLOT_BYTES - self.u16_at(USED) as usize
    }

    /// Bytes for further records, if the page were put in order.
    #[inline]
    pub fn free_bytes(&self) -> usize {
        self.gap() + self.u16_at(DEAD) as usize
    }

    /// Bytes of records and slots.
    pub fn filled_bytes(&self) -> usize {
        self.0.len() - HEADER_BYTES - self.free_bytes()
    }

    /// Whether a further record of this length fits, with its slot.
    #[inline]
    pub fn fits(&self, length: usize) -> bool {
        length <= RECORD_BYTES_MAX && self.free_bytes() >= length.max(RECORD_BYTES_MIN) + SLOT_BYTES
    }

    /// Puts a record of two pieces before `slot`, whose followers move up. False where there is no room.
    #[inline]
    pub fn insert(&mut self, slot: usize, first: &[u8], last: &[u8]) -> bool {
        let length = first.len() + last.len();
        if !self.fits(length) {
            return false;
        }
        if self.gap() < length.max(RECORD_BYTES_MIN) + SLOT_BYTES {
            self.compact();
        }
        let count = self.count();
        let (low, high) = (self.slot_at(count), self.slot_at(slot));
        self.0.copy_within(low + SLOT_BYTES..high + SLOT_BYTES, low);
        self.put_u16(COUNT, count as u16 + 1);
        let offset = self.take_room(length);
        self.0[offset..offset + first.len()].copy_from_slice(first);
        self.0[offset + first.len()..offset + length].copy_from_slice(last);
        self.put_slot(slot, offset, length as u16);
        true
    }

    /// Room behind the last record, of which there is enough.
    #[inline]
    fn take_room(&mut self, length: usize) -> usize {
        let offset = self.u16_at(USED) as usize;
        self.put_u16(USED, (offset + length.max(RECORD_BYTES_MIN)) as u16);
        offset
    }

    fn add_dead(&mut self, length: usize) {
        let dead = self.u16_at(DEAD) + length.max(RECORD_BYTES_MIN) as u16;
        self.put_u16(DEAD, dead);
    }

    /// Takes a slot out, whose followers move down.
    pub fn remove(&mut self, slot: usize) {
        self.clear(slot);
        let count = self.count();
        let (low, high) = (self.slot_at(count - 1), self.slot_at(slot));
        self.0.copy_within(low..high, low + SLOT_BYTES);
        self.put_u16(COUNT, count as u16 - 1);
    }

    /// Takes the record out of a slot, which stays.
    pub fn clear(&mut self, slot: usize) {
        let (offset, length) = self.slot(slot);
        if offset != 0 {
            self.add_dead((length & LENGTH) as usize);
            self.put_slot(slot, 0, 0);
        }
    }

    /// Takes out the slots from `slot` on.
    pub fn truncate(&mut self, slot: usize) {
        (slot..self.count()).for_each(|slot| self.clear(slot));
        self.put_u16(COUNT, slot as u16);
    }

    /// Replaces the record of a slot, or puts one into a slot that has none. False where there is no room.
    pub fn replace(&mut self, slot: usize, record: &[u8], is_forward: bool) -> bool {
        let (offset, length) = self.slot(slot);
        let room = match offset {
            0 => 0,
            _ => ((length & LENGTH) as usize).max(RECORD_BYTES_MIN),
        };
        let needed = record.len().max(RECORD_BYTES_MIN);
        if record.len() > RECORD_BYTES_MAX || self.free_bytes() + room < needed {
            return false;
        }
        self.clear(slot);
        if self.gap() < needed {
            self.compact();
        }
        let offset = self.take_room(record.len());
        self.0[offset..offset + record.len()].copy_from_slice(record);
        let mark = if is_forward { FORWARD } else { 0 };
        self.put_slot(slot, offset, record.len() as u16 | mark);
        true
    }

    /// Puts a record into a slot that may lie behind the last one, as a repeat of the log does.
    pub fn put(&mut self, slot: usize, record: &[u8], is_forward: bool) -> bool {
        while self.count() <= slot {
            if self.gap() < SLOT_BYTES {
                self.compact();
            }
            let count = self.count();
            self.put_u16(COUNT, count as u16 + 1);
            self.put_slot(count, 0, 0);
        }
        self.replace(slot, record, is_forward)
    }

    /// The bytes before the gap, and those behind it.
    pub fn ends(&self) -> (Vec<u8>, Vec<u8>) {
        let (front, back) = (self.u16_at(USED) as usize, self.0.len() - self.count() * SLOT_BYTES);
        (self.0[..front].to_vec(), self.0[back..].to_vec())
    }

    /// The reverse of `ends`.
    pub fn put_ends(&mut self, front: &[u8], back: &[u8]) {
        let at = self.0.len() - back.len();
        self.0[..front.len()].copy_from_slice(front);
        self.0[at..].copy_from_slice(back);
    }

    /// Moves the records together.
    #[inline(never)]
    fn compact(&mut self) {
        let old = self.0.clone();
        let mut used = HEADER_BYTES;
        for slot in 0..self.count() {
            let (offset, length) = self.slot(slot);
            if offset == 0 {
                continue;
            }
            let record = (length & LENGTH) as usize;
            self.0[used..used + record].copy_from_slice(&old[offset..offset + record]);
            self.put_slot(slot, used, length);
            used += record.max(RECORD_BYTES_MIN);
        }
        self.put_u16(USED, used as u16);
        self.put_u16(DEAD, 0);
    }

    /// The slots that hold a record.
    pub fn taken(&self) -> impl Iterator<Item = usize> + '_ {
        let slots: Range<usize> = 0..self.count();
        slots.filter(|slot| self.is_taken(*slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_stay_under_their_slots_when_the_page_is_put_in_order() {
        let mut page = Page::new(1_024);
        page.format(PageKind::Heap, 0);
        let mut slot = 0;
        while page.insert(slot, &[slot as u8; 20], &[7; 20]) {
            slot += 1;
        }
        assert_eq!(slot, (1_024 - HEADER_BYTES) / 44);
        (0..slot).step_by(2).for_each(|slot| page.clear(slot));
        assert!(page.replace(1, &[9; 200], false), "what was cleared is room");
        assert!(!page.replace(3, &[9; 700], false));
        assert_eq!(page.record(1), [9; 200]);
        for other in (3..slot).step_by(2) {
            assert_eq!(page.record(other)[..20], [other as u8; 20]);
        }
        assert!(page.replace(3, &[5; 8], true) && page.is_forward(3) && !page.is_forward(5));
        assert_eq!(page.taken().count(), slot / 2);
    }

    #[test]
    fn slots_move_when_one_is_put_before_them_or_taken_out() {
        let mut page = Page::new(512);
        page.format(PageKind::Node, 0);
        for (slot, byte) in [(0, b'b'), (1, b'd'), (0, b'a'), (2, b'c')] {
            assert!(page.insert(slot, &[byte], &[]));
        }
        let all = |page: &Page| -> Vec<u8> { (0..page.count()).map(|slot| page.record(slot)[0]).collect() };
        assert_eq!(all(&page), b"abcd");
        page.remove(1);
        assert_eq!(all(&page), b"acd");
        page.truncate(1);
        assert_eq!(
            (all(&page), page.free_bytes()),
            (b"a".to_vec(), 512 - HEADER_BYTES - 12)
        );
        assert!(page.put(3, b"x", false) && page.taken().eq([0, 3]));
    }
}
