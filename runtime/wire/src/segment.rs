//! The first sector of a segment file.

use reprise_base::{Epoch, Lsn, limits::LOG_ALIGN_BYTES};

use crate::{WireError, check, corrupt, crc32c, u32_at, u64_at};

/// Bytes of the header; the segment's first block follows at once.
pub const SEGMENT_HEADER_BYTES: usize = LOG_ALIGN_BYTES;
/// Version of everything in this crate, and of what a digest is made of: what is written has it.
pub const FORMAT_VERSION: u32 = 6;
/// A reader takes all from this one on.
pub const FORMAT_VERSION_OLDEST: u32 = 2;
/// From this version on an LSN counts records; before, it is the place of a record's first byte.
pub const LSN_COUNTS_FROM: u32 = 4;
/// From this version on a segment tells the history before it, and the epoch of its first block.
pub const HISTORY_FROM: u32 = 5;
/// From this version on changes name rows by their numbers, in tables of either kind.
pub const NUMBERS_NAME_FROM: u32 = 6;
/// What files of version 2, which do not say it, were written under.
pub const SEMANTICS_OLDEST: u32 = 1;

const MAGIC: [u8; 8] = *b"RPRSLOG\n";
const FIELDS_BYTES: usize = 72;
const CRC_AT: usize = SEGMENT_HEADER_BYTES - 4;

/// CRC-32C of the bytes of all records since the log's beginning, however they lie in blocks, each as whoever wrote it first has it: nodes
/// compare it at an LSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct History(pub u32);

/// What a segment says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Of the format: `FORMAT_VERSION`, or an older one in a copy of older blocks.
    pub version: u32,
    /// What guests saw when the segment's commands ran (`reprise_abi::SEMANTICS`).
    pub semantics: u32,
    pub database_id: [u8; 16],
    /// LSN of the first record.
    pub start: Lsn,
    /// Where the segment's first block lies: bytes of blocks before it, from the log's beginning. Before `LSN_COUNTS_FROM` the same
    /// number as `start`.
    pub place: u64,
    /// Hash of every setting that can change what a replay computes.
    pub settings_hash: u64,
    /// No block of the segment has a lower one. Zero before `HISTORY_FROM`.
    pub epoch: Epoch,
    /// Of all records before the first one. Zero before `HISTORY_FROM`: not known.
    pub history: History,
    /// `chain` of the first block: the header checksum of the block before it, 0 at the log's beginning.
    pub chain: u32,
    /// Goes into the tag of the segment's blocks. Nobody outside learns it, so that no argument of a call can pass for a block.
    pub block_key: u32,
}

impl SegmentHeader {
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut out = [0; SEGMENT_HEADER_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&self.version.to_le_bytes());
        match self.version < LSN_COUNTS_FROM {
            true => assert_eq!(self.start.0, self.place, "an LSN is a place"),
            false => out[60..68].copy_from_slice(&self.place.to_le_bytes()),
        }
        if self.version > FORMAT_VERSION_OLDEST {
            out[12..16].copy_from_slice(&self.semantics.to_le_bytes());
            out[56..60].copy_from_slice(&self.block_key.to_le_bytes());
        }
        out[16..32].copy_from_slice(&self.database_id);
        out[32..40].copy_from_slice(&self.start.0.to_le_bytes());
        out[40..48].copy_from_slice(&self.settings_hash.to_le_bytes());
        if self.version >= HISTORY_FROM {
            out[48..52].copy_from_slice(&self.epoch.0.to_le_bytes());
            out[68..72].copy_from_slice(&self.history.0.to_le_bytes());
        }
        out[52..56].copy_from_slice(&self.chain.to_le_bytes());
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
        let version = check_version(u32_at(bytes, 8))?;
        let semantics = check_semantics(version, u32_at(bytes, 12))?;
        let fields_end = match version {
            ..=FORMAT_VERSION_OLDEST => 56,
            version if version < LSN_COUNTS_FROM => 60,
            version if version < HISTORY_FROM => 68,
            _ => FIELDS_BYTES,
        };
        let start = u64_at(bytes, 32);
        let has_history = version >= HISTORY_FROM;
        if !has_history {
            check("epoch", 0, u32_at(bytes, 48))?;
        }
        let reserved = bytes[fields_end..CRC_AT].iter();
        check("reserved segment bytes", 0, reserved.filter(|b| **b != 0).count())?;
        Ok(Self {
            version,
            semantics,
            database_id: bytes[16..32].try_into().expect("16 bytes"),
            start: Lsn(start),
            place: match version < LSN_COUNTS_FROM {
                true => start,
                false => u64_at(bytes, 60),
            },
            settings_hash: u64_at(bytes, 40),
            epoch: Epoch(u32_at(bytes, 48)),
            history: History(if has_history { u32_at(bytes, 68) } else { 0 }),
            chain: u32_at(bytes, 52),
            block_key: u32_at(bytes, 56),
        })
    }

    /// What the tags of the segment's blocks are made of: the database's id, folded, and the segment's key.
    pub fn block_tag(&self) -> u32 {
        let words = self.database_id.chunks_exact(4).map(|word| u32_at(word, 0));
        words.fold(0u32, |tag, word| tag.rotate_left(7) ^ word) ^ self.block_key
    }

    /// The version that the bytes claim, when they are a whole segment header of any version.
    pub fn peek_version(bytes: &[u8]) -> Option<u32> {
        let is_header = bytes.len() >= SEGMENT_HEADER_BYTES
            && bytes[..8] == MAGIC
            && crc32c(&bytes[..CRC_AT]) == u32_at(bytes, CRC_AT);
        is_header.then(|| u32_at(bytes, 8))
    }
}

/// The tag of a block at a place, of a segment with this `block_tag`: a block that was written for another place is not believed.
#[inline]
pub fn tag_at(version: u32, block_tag: u32, place: u64) -> u32 {
    match version < LSN_COUNTS_FROM {
        true => block_tag,
        false => block_tag ^ (place / LOG_ALIGN_BYTES as u64) as u32,
    }
}

/// The LSN behind a record of so many bytes.
#[inline]
pub fn lsn_after(version: u32, lsn: Lsn, record_bytes: usize) -> Lsn {
    match version < LSN_COUNTS_FROM {
        true => Lsn(lsn.0 + record_bytes as u64),
        false => Lsn(lsn.0 + 1),
    }
}

/// The version, if this program reads it.
pub(crate) fn check_version(found: u32) -> Result<u32, WireError> {
    if (FORMAT_VERSION_OLDEST..=FORMAT_VERSION).contains(&found) {
        return Ok(found);
    }
    let readable = format!("{FORMAT_VERSION_OLDEST} to {FORMAT_VERSION}");
    Err(corrupt("format version", readable, found))
}

/// The semantics number in a header of this version: the oldest one says none.
pub(crate) fn check_semantics(version: u32, found: u32) -> Result<u32, WireError> {
    match (version, found) {
        (FORMAT_VERSION_OLDEST, 0) => Ok(SEMANTICS_OLDEST),
        (FORMAT_VERSION_OLDEST, _) => Err(corrupt("semantics number", 0, found)),
        (_, 0) => Err(corrupt("semantics number", "1 or more", 0)),
        _ => Ok(found),
    }
}
