//! The first sector of a segment file.

use reprise_abi::SEMANTICS;
use reprise_base::{Epoch, Lsn, limits::LOG_ALIGN_BYTES};

use crate::{WireError, check, corrupt, crc32c, u16_at, u32_at, u64_at};

/// Bytes of the header; the segment's first block follows at once.
pub const SEGMENT_HEADER_BYTES: usize = LOG_ALIGN_BYTES;
/// Version of everything in this crate, and of the inputs of a digest. Files of another version are refused.
pub const FORMAT_VERSION: u32 = 9;

const MAGIC: [u8; 8] = *b"RPRSLOG\n";
const FIELDS_BYTES: usize = 74;
const CRC_AT: usize = SEGMENT_HEADER_BYTES - 4;

/// CRC-32C of the bytes of all records since the log's beginning, however blocks divide them. Each record counts in the form of the node
/// that wrote it first. Nodes compare it at an LSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct History(pub u32);

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    pub database_id: [u8; 16],
    /// LSN of the first record.
    pub start: Lsn,
    /// The place of the segment's first block: bytes of blocks before it, from the log's beginning.
    pub place: u64,
    /// Hash of every setting that can change the results of a replay.
    pub settings_hash: u64,
    /// No block of the segment has a lower one.
    pub epoch: Epoch,
    /// History of all records before the first one.
    pub history: History,
    /// `chain` of the first block: the header checksum of the block before it, 0 at the log's beginning.
    pub chain: u32,
    /// Key in the tag of the segment's blocks. It is secret, so that no argument of a call can pass for a block.
    pub block_key: u32,
}

impl SegmentHeader {
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut out = [0; SEGMENT_HEADER_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        put_numbers(&mut out);
        out[16..32].copy_from_slice(&self.database_id);
        out[32..40].copy_from_slice(&self.start.0.to_le_bytes());
        out[40..48].copy_from_slice(&self.settings_hash.to_le_bytes());
        out[48..52].copy_from_slice(&self.epoch.count().to_le_bytes());
        out[52..56].copy_from_slice(&self.chain.to_le_bytes());
        out[56..60].copy_from_slice(&self.block_key.to_le_bytes());
        out[60..68].copy_from_slice(&self.place.to_le_bytes());
        out[68..72].copy_from_slice(&self.history.0.to_le_bytes());
        out[72..74].copy_from_slice(&self.epoch.writer().to_le_bytes());
        let crc = crc32c(&out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() < SEGMENT_HEADER_BYTES {
            return Err(corrupt("segment header length", SEGMENT_HEADER_BYTES, bytes.len()));
        }
        let bytes = &bytes[..SEGMENT_HEADER_BYTES];
        if bytes[..8] != MAGIC {
            return Err(corrupt(
                "segment magic",
                MAGIC.escape_ascii(),
                bytes[..8].escape_ascii(),
            ));
        }
        check(
            "segment header checksum",
            crc32c(&bytes[..CRC_AT]),
            u32_at(bytes, CRC_AT),
        )?;
        check_numbers(bytes)?;
        let reserved = bytes[FIELDS_BYTES..CRC_AT].iter();
        check("reserved segment bytes", 0, reserved.filter(|b| **b != 0).count())?;
        Ok(Self {
            database_id: bytes[16..32].try_into().expect("16 bytes"),
            start: Lsn(u64_at(bytes, 32)),
            place: u64_at(bytes, 60),
            settings_hash: u64_at(bytes, 40),
            epoch: Epoch::new(u32_at(bytes, 48), u16_at(bytes, 72)),
            history: History(u32_at(bytes, 68)),
            chain: u32_at(bytes, 52),
            block_key: u32_at(bytes, 56),
        })
    }

    /// Returns the base of the tags of the segment's blocks: the database's id, folded, and the segment's key.
    pub fn block_tag(&self) -> u32 {
        let words = self.database_id.chunks_exact(4).map(|word| u32_at(word, 0));
        words.fold(0u32, |tag, word| tag.rotate_left(7) ^ word) ^ self.block_key
    }
}

/// The tag of a block at a place, of a segment with this `block_tag`: a block that was written for another place is not believed.
#[inline]
pub fn tag_at(block_tag: u32, place: u64) -> u32 {
    block_tag ^ (place / LOG_ALIGN_BYTES as u64) as u32
}

/// Writes format version and semantics number behind a file's magic.
pub(crate) fn put_numbers(header: &mut [u8]) {
    header[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&SEMANTICS.to_le_bytes());
}

/// Checks what `put_numbers` wrote, in a header whose checksum was checked.
pub(crate) fn check_numbers(header: &[u8]) -> Result<(), WireError> {
    check(FORMAT_WORD, FORMAT_VERSION, u32_at(header, 8))?;
    check_semantics(u32_at(header, 12))
}

/// Checks the semantics number in a file or record.
pub(crate) fn check_semantics(found: u32) -> Result<(), WireError> {
    check(SEMANTICS_WORD, SEMANTICS, found)
}

const FORMAT_WORD: &str = "format version";
const SEMANTICS_WORD: &str = "semantics number";

impl WireError {
    /// True for a whole file that a program with other numbers wrote: it is not damaged.
    pub fn is_foreign(&self) -> bool {
        [FORMAT_WORD, SEMANTICS_WORD].contains(&self.what)
    }
}
