//! The layout of a region, and its bytes.
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 4,096 | header: magic, layout version, checksum, owner, geometry; written once, its magic last |
//! | 4,096 | 64 each | below which sequence number a ring is free |
//! | 20,480 | 8 each | per ring: its entries |
//! | behind | | per ring: its log objects |

use reprise_base::{Epoch, Lsn};

use crate::Memory;

/// Bytes of a cache line: what becomes persistent together.
pub const LINE_BYTES: usize = 64;
/// Rings that a region has at most.
pub const RINGS_MAX: usize = 256;
/// Entries that a ring has at least and at most.
pub const ENTRIES_MIN: u32 = 64;
/// Entries of a ring, at most.
pub const ENTRIES_MAX: u32 = 1 << 24;
/// Bytes of objects that a ring has at least.
const OBJECTS_BYTES_MIN: u64 = 64 << 10;
/// An entry has 32 bits for the line at which its object begins.
const OBJECTS_BYTES_MAX: u64 = (1 << 32) * LINE_BYTES as u64;

const MAGIC: u64 = u64::from_le_bytes(*b"RPRSNVR\x01");
pub(crate) const VERSION: u32 = 3;
const HEADER_BYTES: usize = 112;
/// Below which LSN the log's files have everything.
const COPIED_AT: usize = 2048;
/// Offset of the records' epoch.
const EPOCH_AT: usize = COPIED_AT + LINE_BYTES;
const FREED_AT: usize = 4096;
const ENTRIES_AT: usize = FREED_AT + RINGS_MAX * LINE_BYTES;

/// How a region is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// One for each site.
    pub rings: u32,
    /// Entries of a ring.
    pub entries: u32,
    /// Bytes for the objects of a ring, a multiple of [`LINE_BYTES`].
    pub objects_bytes: u64,
}

/// The database whose records a region holds, and the program that wrote them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Id of the database.
    pub database_id: [u8; 16],
    /// Id of this creation of the region: an older copy of it has another one.
    pub region_id: [u8; 16],
    /// Settings hash, as in the headers of the log's segments.
    pub settings_hash: u64,
    /// Under which the records' commands ran.
    pub semantics: u32,
    /// Format of the records' bytes.
    pub format: u32,
}

/// The contents of a region's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionHeader {
    pub owner: Owner,
    pub region_bytes: u64,
    pub geometry: Geometry,
}

/// Why a header is not one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    /// Nothing was ever written here, or a format was begun and not ended, or the region was erased.
    Blank,
    /// The region begins like a blank one, and holds something else.
    NotBlank,
    Magic,
    Version(u32),
    Checksum,
    Geometry,
}

impl Geometry {
    /// Divides `bytes` among `rings`, with `entries` in each. None if the objects would get less than 64 KiB a ring, or if a count is out
    /// of bounds.
    pub fn new(bytes: u64, rings: u32, entries: u32) -> Option<Self> {
        if rings == 0 || rings as usize > RINGS_MAX || !(ENTRIES_MIN..=ENTRIES_MAX).contains(&entries) {
            return None;
        }
        let entries_bytes = rings as u64 * entries_bytes(entries) as u64;
        let rest = bytes.checked_sub(ENTRIES_AT as u64)?.checked_sub(entries_bytes)?;
        let geometry = Self {
            rings,
            entries,
            objects_bytes: rest / rings as u64 / LINE_BYTES as u64 * LINE_BYTES as u64,
        };
        geometry.is_valid(bytes).then_some(geometry)
    }

    fn is_valid(&self, region_bytes: u64) -> bool {
        self.rings > 0
            && self.rings as usize <= RINGS_MAX
            && (ENTRIES_MIN..=ENTRIES_MAX).contains(&self.entries)
            && (OBJECTS_BYTES_MIN..=OBJECTS_BYTES_MAX).contains(&self.objects_bytes)
            && self.objects_bytes.is_multiple_of(LINE_BYTES as u64)
            && self.end().is_some_and(|end| end <= region_bytes)
    }

    fn end(&self) -> Option<u64> {
        let ring = self.objects_bytes.checked_add(entries_bytes(self.entries) as u64)?;
        ring.checked_mul(self.rings as u64)?.checked_add(ENTRIES_AT as u64)
    }

    pub(crate) fn copied_at() -> usize {
        COPIED_AT
    }

    pub(crate) fn epoch_at() -> usize {
        EPOCH_AT
    }

    pub(crate) fn freed_at(&self, ring: u32) -> usize {
        FREED_AT + ring as usize * LINE_BYTES
    }

    pub(crate) fn entry_at(&self, ring: u32, sequence: u64) -> usize {
        let slot = (sequence % self.entries as u64) as usize;
        ENTRIES_AT + ring as usize * entries_bytes(self.entries) + slot * 8
    }

    /// Offset of byte `place` of a ring's objects; places continue beyond the ring's end.
    pub(crate) fn object_at(&self, ring: u32, place: u64) -> usize {
        let objects = ENTRIES_AT as u64 + self.rings as u64 * entries_bytes(self.entries) as u64;
        (objects + ring as u64 * self.objects_bytes + place % self.objects_bytes) as usize
    }

    /// How often a ring's entries were used before those with `sequence`.
    fn lap(&self, sequence: u64) -> u64 {
        sequence / self.entries as u64
    }

    /// An entry that is persistent: its state bit, 23 bits of its lap, a sum of 8 bits, the line at which its object begins.
    pub(crate) fn entry(&self, sequence: u64, place: u64) -> u64 {
        with_sum(STATE_BIT | self.tag(sequence) | place % self.objects_bytes / LINE_BYTES as u64)
    }

    /// The state of the word at the entry of `sequence`.
    pub(crate) fn entry_state(&self, entry: u64, sequence: u64) -> EntryState {
        let place = (entry & LINE_MASK) * LINE_BYTES as u64;
        match entry {
            0 => EntryState::Unset,
            _ if with_sum(entry & !SUM_MASK) != entry || place >= self.objects_bytes => EntryState::Damaged,
            _ if entry & TAG_MASK == self.tag(sequence) => EntryState::Set { place },
            // The one of a lap before.
            _ => EntryState::Unset,
        }
    }

    fn tag(&self, sequence: u64) -> u64 {
        (self.lap(sequence) << TAG_SHIFT) & TAG_MASK
    }
}

/// The state of an entry's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryState {
    /// Its state bit is set: the object that begins at `place` of the ring's objects is persistent.
    Set {
        place: u64,
    },
    Unset,
    /// No entry that was ever written.
    Damaged,
}

const STATE_BIT: u64 = 1 << 63;
const TAG_SHIFT: u32 = 40;
const TAG_MASK: u64 = ((1 << 23) - 1) << TAG_SHIFT;
const SUM_SHIFT: u32 = 32;
const SUM_MASK: u64 = 0xff << SUM_SHIFT;
const LINE_MASK: u64 = (1 << SUM_SHIFT) - 1;

/// The word with the exclusive or of its other bytes in its sum: one bit that is wrong shows.
fn with_sum(word: u64) -> u64 {
    let sum = word.to_le_bytes().iter().fold(0, |sum, byte| sum ^ byte);
    word | (sum as u64) << SUM_SHIFT
}

const FREED_BITS: u32 = 48;

/// The word that says below which sequence number a ring is free: 48 bits of it, and a sum of 16 bits.
pub(crate) fn freed_word(sequence: u64) -> u64 {
    let sequence = sequence & ((1 << FREED_BITS) - 1);
    sequence | ((crc_of(&sequence.to_le_bytes()) & 0xffff) as u64) << FREED_BITS
}

/// Whether such a word takes all of a number: an LSN's too.
pub(crate) fn is_marked(number: u64) -> bool {
    number >> FREED_BITS == 0
}

/// Returns the sequence number of such a word. None if it is none.
pub(crate) fn freed_of(word: u64) -> Option<u64> {
    let sequence = word & ((1 << FREED_BITS) - 1);
    (freed_word(sequence) == word).then_some(sequence)
}

fn entries_bytes(entries: u32) -> usize {
    (entries as usize * 8).next_multiple_of(LINE_BYTES)
}

pub(crate) fn crc_of(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

impl RegionHeader {
    /// Bytes behind the magic.
    fn encode(&self) -> [u8; HEADER_BYTES - 8] {
        let mut bytes = [0; HEADER_BYTES - 8];
        bytes[0..4].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.owner.database_id);
        bytes[24..32].copy_from_slice(&self.region_bytes.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.geometry.rings.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.geometry.entries.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.geometry.objects_bytes.to_le_bytes());
        bytes[48..64].copy_from_slice(&self.owner.region_id);
        bytes[64..72].copy_from_slice(&self.owner.settings_hash.to_le_bytes());
        bytes[72..76].copy_from_slice(&self.owner.semantics.to_le_bytes());
        bytes[76..80].copy_from_slice(&self.owner.format.to_le_bytes());
        let sum = crc_of(&bytes);
        bytes[4..8].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Makes the region empty: no entry is set, nothing is freed. The magic comes last: a crash leaves a blank region or a whole one.
    pub fn write(&self, memory: &dyn Memory, epoch: Epoch, copied: Lsn) {
        Self::erase(memory);
        memory.store(COPIED_AT, freed_word(copied.0));
        memory.store(EPOCH_AT, freed_word(epoch.to_bits()));
        for ring in 0..self.geometry.rings {
            memory.store(self.geometry.freed_at(ring), freed_word(0));
        }
        let zeros = [0; 4096];
        let entries_end = self.geometry.object_at(0, 0);
        for at in (ENTRIES_AT..entries_end).step_by(zeros.len()) {
            memory.write(at, &zeros[..zeros.len().min(entries_end - at)]);
        }
        memory.write(8, &self.encode());
        memory.drain();
        memory.store(0, MAGIC);
        memory.drain();
    }

    pub fn erase(memory: &dyn Memory) {
        memory.store(0, 0);
        memory.drain();
    }

    pub fn read(memory: &dyn Memory) -> Result<Self, HeaderError> {
        match memory.load(0) {
            0 if is_blank(memory) => return Err(HeaderError::Blank),
            0 => return Err(HeaderError::NotBlank),
            MAGIC => {}
            _ => return Err(HeaderError::Magic),
        }
        let mut bytes = [0; HEADER_BYTES - 8];
        memory.read(8, &mut bytes);
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if u32_at(0) != VERSION {
            return Err(HeaderError::Version(u32_at(0)));
        }
        if !is_checked(&bytes) {
            return Err(HeaderError::Checksum);
        }
        let header = Self {
            owner: Owner {
                database_id: bytes[8..24].try_into().expect("16 bytes"),
                region_id: bytes[48..64].try_into().expect("16 bytes"),
                settings_hash: u64_at(64),
                semantics: u32_at(72),
                format: u32_at(76),
            },
            region_bytes: u64_at(24),
            geometry: Geometry {
                rings: u32_at(32),
                entries: u32_at(36),
                objects_bytes: u64_at(40),
            },
        };
        match header.geometry.is_valid(header.region_bytes) {
            true => Ok(header),
            false => Err(HeaderError::Geometry),
        }
    }
}

/// True if a header's bytes behind the magic match their checksum.
fn is_checked(bytes: &[u8; HEADER_BYTES - 8]) -> bool {
    let mut unsigned = *bytes;
    unsigned[4..8].fill(0);
    bytes[4..8] == crc_of(&unsigned).to_le_bytes()
}

const PAGE_BYTES: usize = 4096;
/// Pages of a large region that are checked, evenly spread.
const PAGES_LOOKED_AT: usize = 1 << 14;
/// Pages that are checked at each end.
const PAGES_AT_ENDS: usize = 1 << 8;

/// Returns whether a region without a magic may be used. It may be zeros throughout, or a region of ours that was erased or whose format a
/// crash interrupted.
fn is_blank(memory: &dyn Memory) -> bool {
    let mut area = vec![0; ENTRIES_AT];
    memory.read(0, &mut area);
    let header = area[8..HEADER_BYTES].try_into().expect("a header");
    if is_checked(header) {
        return true;
    }
    let words = area.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let is_ours = |(number, word)| word == 0 || is_mark(number * 8) && freed_of(word).is_some();
    if !words.enumerate().skip(HEADER_BYTES / 8).all(is_ours) {
        return false;
    }
    // One that was made anew over another one has its version; a new one is zero behind.
    match u32::from_le_bytes(header[..4].try_into().expect("4 bytes")) {
        0 => is_zero_behind(memory),
        version => version == VERSION,
    }
}

/// True for offsets in the header's area that hold a word with a checksum.
fn is_mark(at: usize) -> bool {
    [COPIED_AT, EPOCH_AT].contains(&at) || at >= FREED_AT && at.is_multiple_of(LINE_BYTES)
}

/// True if entries and objects are zero, in the part that is checked: all of it up to 64 MiB.
fn is_zero_behind(memory: &dyn Memory) -> bool {
    let bytes = memory.bytes();
    let step = (bytes / PAGES_LOOKED_AT).next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
    let ends = PAGES_AT_ENDS * PAGE_BYTES;
    let first = (ENTRIES_AT..bytes.min(ends)).step_by(PAGE_BYTES);
    let last = (bytes.saturating_sub(ends).max(ENTRIES_AT)..bytes).step_by(PAGE_BYTES);
    let mut places = first.chain(last).chain((ENTRIES_AT..bytes).step_by(step));
    let mut page = [0; PAGE_BYTES];
    places.all(|at| {
        let page = &mut page[..PAGE_BYTES.min(bytes - at)];
        memory.read(at, page);
        page.iter().all(|byte| *byte == 0)
    })
}
