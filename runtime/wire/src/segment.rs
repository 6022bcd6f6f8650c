//! The first sector of a segment file.

use reprise_base::{Lsn, limits::LOG_ALIGN_BYTES};

use crate::{WireError, check, corrupt, crc32c, u32_at, u64_at};

/// Bytes of the header; the segment's first block follows at once.
pub const SEGMENT_HEADER_BYTES: usize = LOG_ALIGN_BYTES;
/// Version of everything in this crate, and of what a digest is made of. A reader takes this one only.
pub const FORMAT_VERSION: u32 = 2;

const MAGIC: [u8; 8] = *b"RPRSLOG\n";
const FIELDS_BYTES: usize = 56;
const CRC_AT: usize = SEGMENT_HEADER_BYTES - 4;

/// What a segment says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    pub database_id: [u8; 16],
    /// LSN of the first block.
    pub start: Lsn,
    /// Hash of every setting that can change what a replay computes.
    pub settings_hash: u64,
    pub epoch: u32,
    /// `chain` of the first block: the header checksum of the block before it, 0 at the log's beginning.
    pub chain: u32,
}

impl SegmentHeader {
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut out = [0; SEGMENT_HEADER_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        // 12..16 stays zero: the fields after it are aligned.
        out[16..32].copy_from_slice(&self.database_id);
        out[32..40].copy_from_slice(&self.start.0.to_le_bytes());
        out[40..48].copy_from_slice(&self.settings_hash.to_le_bytes());
        out[48..52].copy_from_slice(&self.epoch.to_le_bytes());
        out[52..56].copy_from_slice(&self.chain.to_le_bytes());
        let crc = crc32c(&out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() < SEGMENT_HEADER_BYTES {
            return Err(corrupt(
                "segment header length",
                SEGMENT_HEADER_BYTES,
                bytes.len(),
            ));
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
        check("format version", FORMAT_VERSION, u32_at(bytes, 8))?;
        let reserved = bytes[12..16].iter().chain(&bytes[FIELDS_BYTES..CRC_AT]);
        check(
            "reserved segment bytes",
            0,
            reserved.filter(|b| **b != 0).count(),
        )?;
        Ok(Self {
            database_id: bytes[16..32].try_into().expect("16 bytes"),
            start: Lsn(u64_at(bytes, 32)),
            settings_hash: u64_at(bytes, 40),
            epoch: u32_at(bytes, 48),
            chain: u32_at(bytes, 52),
        })
    }

    /// The version that the bytes claim, when they are a whole segment header of any version.
    pub fn peek_version(bytes: &[u8]) -> Option<u32> {
        let is_header = bytes.len() >= SEGMENT_HEADER_BYTES
            && bytes[..8] == MAGIC
            && crc32c(&bytes[..CRC_AT]) == u32_at(bytes, CRC_AT);
        is_header.then(|| u32_at(bytes, 8))
    }
}
