//! The block: what one group commit writes.

use reprise_base::{
    Epoch, Lsn,
    limits::{BLOCK_BYTES_MAX, LOG_ALIGN_BYTES},
};

use crate::{WireError, check, corrupt, crc32c, u16_at, u32_at, u64_at};

pub const BLOCK_HEADER_BYTES: usize = 48;
/// The unit of the counted memory in a block.
pub const MEMORY_UNIT_BYTES: u64 = 64 << 10;

const MAGIC: u32 = u32::from_le_bytes(*b"RPBK");
/// The header checksum covers the header from here on.
const CHECKED_AT: usize = 8;

const _: () = assert!(BLOCK_HEADER_BYTES <= LOG_ALIGN_BYTES, "the header lies in one sector");
const _: () = assert!(BLOCK_BYTES_MAX.is_multiple_of(LOG_ALIGN_BYTES));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Records.
    Data = 0,
    /// No records: written after a pause, so that damage to the block before it is not taken for a torn tail.
    Seal = 1,
    /// No records: the log was closed in order here.
    Close = 2,
}

/// The head of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    pub kind: BlockKind,
    /// LSN of its first record; of a block without records, the next one. In segments before `LSN_COUNTS_FROM` the place of the block.
    pub lsn: Lsn,
    pub payload_bytes: u32,
    pub records_count: u32,
    /// Header checksum of the block before.
    pub chain: u32,
    /// A tag of segment and place (`tag_at`). It exposes blocks of other databases or places, and bytes that a client sent.
    pub tag: u32,
    /// Epoch of the primary that wrote its records; never falls along the log.
    pub epoch: Epoch,
    /// CRC-32C of the payload; set by `seal_block`.
    pub payload_crc: u32,
    /// Counted memory of the database when the block was written, in units of `MEMORY_UNIT_BYTES`, rounded up; 0: not told.
    pub memory_units: u32,
}

/// Returns the bytes in the log of a block with `payload_bytes` of records.
#[inline]
pub const fn block_bytes(payload_bytes: usize) -> usize {
    (BLOCK_HEADER_BYTES + payload_bytes).next_multiple_of(LOG_ALIGN_BYTES)
}

/// Finishes a block: `block` is room for the header, the records, and zeros up to the next sector. Returns the header's
/// checksum, the `chain` of the next block.
pub fn seal_block(header: &BlockHeader, block: &mut [u8]) -> u32 {
    let payload_end = BLOCK_HEADER_BYTES + header.payload_bytes as usize;
    assert_eq!(block.len(), block_bytes(header.payload_bytes as usize), "block length");
    assert!(block.len() <= BLOCK_BYTES_MAX, "block length");
    assert!(block[payload_end..].iter().all(|b| *b == 0), "padding is zero");
    let payload_crc = crc32c(&block[BLOCK_HEADER_BYTES..payload_end]);
    let out = &mut block[..BLOCK_HEADER_BYTES];
    out[..4].copy_from_slice(&MAGIC.to_le_bytes());
    out[8..16].copy_from_slice(&header.lsn.0.to_le_bytes());
    out[16..20].copy_from_slice(&header.payload_bytes.to_le_bytes());
    out[20..24].copy_from_slice(&header.records_count.to_le_bytes());
    out[24..28].copy_from_slice(&payload_crc.to_le_bytes());
    out[28..32].copy_from_slice(&header.chain.to_le_bytes());
    out[32..36].copy_from_slice(&header.tag.to_le_bytes());
    out[36..40].copy_from_slice(&header.epoch.count().to_le_bytes());
    out[40..42].copy_from_slice(&(header.kind as u16).to_le_bytes());
    out[42..44].copy_from_slice(&header.epoch.writer().to_le_bytes());
    out[44..48].copy_from_slice(&header.memory_units.to_le_bytes());
    let crc = crc32c(&out[CHECKED_AT..]);
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    crc
}

impl BlockHeader {
    /// Reads a header and its checksum, the `chain` of the next block. It does not read the payload.
    pub fn decode(bytes: &[u8]) -> Result<(Self, u32), WireError> {
        if bytes.len() < BLOCK_HEADER_BYTES {
            return Err(corrupt("block header length", BLOCK_HEADER_BYTES, bytes.len()));
        }
        let bytes = &bytes[..BLOCK_HEADER_BYTES];
        check("block magic", MAGIC, u32_at(bytes, 0))?;
        let crc = crc32c(&bytes[CHECKED_AT..]);
        check("block header checksum", crc, u32_at(bytes, 4))?;
        let kind = match u16_at(bytes, 40) {
            0 => BlockKind::Data,
            1 => BlockKind::Seal,
            2 => BlockKind::Close,
            other => return Err(corrupt("block kind", "0 to 2", other)),
        };
        let header = Self {
            kind,
            lsn: Lsn(u64_at(bytes, 8)),
            payload_bytes: u32_at(bytes, 16),
            records_count: u32_at(bytes, 20),
            payload_crc: u32_at(bytes, 24),
            chain: u32_at(bytes, 28),
            tag: u32_at(bytes, 32),
            epoch: Epoch::new(u32_at(bytes, 36), u16_at(bytes, 42)),
            memory_units: u32_at(bytes, 44),
        };
        header.check_sizes()?;
        Ok((header, crc))
    }

    fn check_sizes(&self) -> Result<(), WireError> {
        let payload = self.payload_bytes as usize;
        if payload > BLOCK_BYTES_MAX - BLOCK_HEADER_BYTES || block_bytes(payload) > BLOCK_BYTES_MAX {
            return Err(corrupt("block length", format!("at most {BLOCK_BYTES_MAX}"), payload));
        }
        let has_records = self.kind == BlockKind::Data;
        if has_records != (self.records_count > 0) || has_records != (payload > 0) {
            return Err(corrupt("records in block", has_records, self.records_count));
        }
        Ok(())
    }

    /// Bytes of the whole block in the log.
    pub fn block_bytes(&self) -> usize {
        block_bytes(self.payload_bytes as usize)
    }

    /// Checks the bytes of the whole block against this header and returns the records' bytes.
    pub fn payload<'a>(&self, block: &'a [u8]) -> Result<&'a [u8], WireError> {
        check("block length", self.block_bytes(), block.len())?;
        let (records, padding) = block[BLOCK_HEADER_BYTES..].split_at(self.payload_bytes as usize);
        check("block checksum", self.payload_crc, crc32c(records))?;
        check("block padding", 0, padding.iter().filter(|b| **b != 0).count())?;
        Ok(records)
    }
}
