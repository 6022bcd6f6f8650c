//! Row bytes in size classes of 8 bytes, without a header: the length is part of the location.

use reprise_abi::row::ROW_BYTES_MAX;

/// Where a row's bytes lie: length in the upper half, slot in the lower. The length alone names the size class.
/// The two highest bits are never set here; `Indirection` keeps its own marks there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location(pub u64);

/// Rows above this have an allocation of their own.
const SLOT_BYTES_MAX: usize = 1024;
const GRANULE: usize = 8;
/// Size that a class's chunks stay at or below, in bytes.
const CHUNK_BYTES: usize = 32 << 10;
/// What an allocation of its own costs besides its bytes, about.
const LARGE_OVERHEAD_BYTES: usize = 32;
const NO_SLOT: u32 = u32::MAX;

const _: () = assert!(ROW_BYTES_MAX + 8 < 1 << 29);
const _: () = assert!(SLOT_BYTES_MAX <= CHUNK_BYTES);

impl Location {
    fn new(len: usize, slot: u32) -> Self {
        Self((len as u64) << 32 | slot as u64)
    }
    #[inline]
    pub fn len(self) -> usize {
        (self.0 >> 32) as usize
    }
    #[inline]
    fn slot(self) -> u32 {
        self.0 as u32
    }
}

#[inline]
fn class_of(len: usize) -> usize {
    len.div_ceil(GRANULE) - 1
}

/// What a row of `len` bytes costs here, indirection not counted.
pub(crate) fn footprint_bytes(len: usize) -> usize {
    if len > SLOT_BYTES_MAX {
        len + LARGE_OVERHEAD_BYTES
    } else {
        (class_of(len) + 1) * GRANULE
    }
}

/// All rows' bytes of one table.
#[derive(Default)]
pub(crate) struct Slabs {
    classes: Vec<Slab>,
    large: Vec<Box<[u8]>>,
    large_free: Vec<u32>,
}

/// The slots of one size.
struct Slab {
    chunks: Vec<Vec<u8>>,
    slot_bytes: usize,
    /// log2 of the slots in a chunk.
    shift: u32,
    used: u32,
    /// Head of the list of freed slots, last freed first; each holds the next one in its first four bytes.
    free: u32,
}

impl Slabs {
    /// Stores `row` followed by `trailer`. Together they are not empty.
    #[inline]
    pub fn insert(&mut self, row: &[u8], trailer: &[u8]) -> Location {
        let len = row.len() + trailer.len();
        if len > SLOT_BYTES_MAX {
            return self.insert_large(row, trailer);
        }
        let class = class_of(len);
        if class >= self.classes.len() {
            let next = self.classes.len();
            self.classes.extend((next..=class).map(Slab::new));
        }
        let slot = self.classes[class].insert(row, trailer);
        Location::new(len, slot)
    }

    #[cold]
    fn insert_large(&mut self, row: &[u8], trailer: &[u8]) -> Location {
        let bytes = [row, trailer].concat().into_boxed_slice();
        let len = bytes.len();
        let slot = match self.large_free.pop() {
            Some(slot) => {
                self.large[slot as usize] = bytes;
                slot
            }
            None => {
                self.large.push(bytes);
                (self.large.len() - 1) as u32
            }
        };
        Location::new(len, slot)
    }

    #[inline]
    pub fn get(&self, location: Location) -> &[u8] {
        let len = location.len();
        if len > SLOT_BYTES_MAX {
            return &self.large[location.slot() as usize];
        }
        self.classes[class_of(len)].get(location.slot(), len)
    }

    #[inline]
    pub fn get_mut(&mut self, location: Location) -> &mut [u8] {
        let len = location.len();
        if len > SLOT_BYTES_MAX {
            return &mut self.large[location.slot() as usize];
        }
        self.classes[class_of(len)].get_mut(location.slot(), len)
    }

    /// The location of the same slot with another length, when the slot's size class takes it.
    #[inline]
    pub fn resized(location: Location, len: usize) -> Option<Location> {
        let before = location.len();
        let fits =
            before == len || before.max(len) <= SLOT_BYTES_MAX && class_of(before) == class_of(len);
        fits.then(|| Location::new(len, location.slot()))
    }

    pub fn free(&mut self, location: Location) {
        let (len, slot) = (location.len(), location.slot());
        if len > SLOT_BYTES_MAX {
            self.large[slot as usize] = Box::default();
            self.large_free.push(slot);
        } else {
            self.classes[class_of(len)].free(slot);
        }
    }

    pub fn memory_bytes(&self) -> usize {
        let slabs = self.classes.iter().map(|slab| {
            let data: usize = slab.chunks.iter().map(Vec::capacity).sum();
            data + slab.chunks.capacity() * size_of::<Vec<u8>>()
        });
        let large = self.large.iter().map(|row| row.len());
        slabs.sum::<usize>()
            + large.sum::<usize>()
            + self.classes.capacity() * size_of::<Slab>()
            + self.large.capacity() * size_of::<Box<[u8]>>()
    }
}

impl Slab {
    fn new(class: usize) -> Self {
        let slot_bytes = (class + 1) * GRANULE;
        Self {
            chunks: Vec::new(),
            slot_bytes,
            shift: (CHUNK_BYTES / slot_bytes).ilog2(),
            used: 0,
            free: NO_SLOT,
        }
    }

    #[inline]
    fn place(&self, slot: u32) -> (usize, usize) {
        let in_chunk = slot & ((1 << self.shift) - 1);
        (
            (slot >> self.shift) as usize,
            in_chunk as usize * self.slot_bytes,
        )
    }

    #[inline]
    fn get(&self, slot: u32, len: usize) -> &[u8] {
        let (chunk, at) = self.place(slot);
        &self.chunks[chunk][at..at + len]
    }

    #[inline]
    fn get_mut(&mut self, slot: u32, len: usize) -> &mut [u8] {
        let (chunk, at) = self.place(slot);
        &mut self.chunks[chunk][at..at + len]
    }

    #[inline]
    fn insert(&mut self, row: &[u8], trailer: &[u8]) -> u32 {
        let slot = self.free;
        if slot == NO_SLOT {
            return self.append(row, trailer);
        }
        let bytes = self.get_mut(slot, self.slot_bytes);
        let next = u32::from_le_bytes(bytes[..4].try_into().expect("4 bytes"));
        bytes[..row.len()].copy_from_slice(row);
        bytes[row.len()..row.len() + trailer.len()].copy_from_slice(trailer);
        self.free = next;
        slot
    }

    #[inline]
    fn append(&mut self, row: &[u8], trailer: &[u8]) -> u32 {
        let slot = self.used;
        assert!(
            slot != NO_SLOT,
            "a table has fewer rows than slots of one size"
        );
        let (chunk, at) = self.place(slot);
        if chunk == self.chunks.len() {
            self.add_chunk();
        }
        let chunk = &mut self.chunks[chunk];
        chunk.extend_from_slice(row);
        chunk.extend_from_slice(trailer);
        chunk.resize(at + self.slot_bytes, 0);
        self.used += 1;
        slot
    }

    #[cold]
    fn add_chunk(&mut self) {
        self.chunks.push(if self.chunks.is_empty() {
            Vec::new()
        } else {
            Vec::with_capacity(self.slot_bytes << self.shift)
        });
    }

    fn free(&mut self, slot: u32) {
        let next = self.free.to_le_bytes();
        self.get_mut(slot, 4).copy_from_slice(&next);
        self.free = slot;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_bytes_and_freed_slots_come_back_last_first() {
        let mut slabs = Slabs::default();
        let rows: Vec<Vec<u8>> = (1..3000usize)
            .map(|n| vec![n as u8; n % 1500 + 1])
            .collect();
        let places: Vec<_> = rows.iter().map(|row| slabs.insert(row, b"")).collect();
        for (row, place) in rows.iter().zip(&places) {
            assert_eq!(slabs.get(*place), row);
        }
        for size in [5, 900, 1400] {
            let (a, b) = (
                slabs.insert(&vec![1; size], b"x"),
                slabs.insert(&vec![2; size], b"x"),
            );
            slabs.free(a);
            slabs.free(b);
            assert_eq!(slabs.insert(&vec![3; size], b"y"), b);
            assert_eq!(slabs.insert(&vec![4; size - 1], b"yz"), a);
            assert_eq!(slabs.get(b)[size], b'y');
        }
        for (row, place) in rows.iter().zip(&places) {
            assert_eq!(slabs.get(*place), row);
        }
    }

    #[test]
    fn a_slot_is_resized_only_within_its_class() {
        let mut slabs = Slabs::default();
        let place = slabs.insert(&[0; 20], b"");
        assert!(Slabs::resized(place, 24).is_some());
        assert!(Slabs::resized(place, 17).is_some());
        assert!(Slabs::resized(place, 16).is_none());
        assert!(Slabs::resized(place, 25).is_none());
        let large = slabs.insert(&[0; 2000], b"");
        assert!(Slabs::resized(large, 1999).is_none());
    }
}
