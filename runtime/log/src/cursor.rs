//! Reads one segment file forward, a window at a time, and judges its blocks.

use std::sync::Arc;

use reprise_base::{Lsn, limits::LOG_ALIGN_BYTES};
use reprise_env::{AlignedBuf, Disk, DiskError, DiskFile};
use reprise_wire::{BLOCK_HEADER_BYTES, BlockHeader, SEGMENT_HEADER_BYTES, WireError};

use crate::index::{SegmentPlace, segment_name};

const WINDOW_BYTES: u64 = 1 << 20;

/// What the next block must continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Continuity {
    pub chain: u32,
    pub generation: u32,
}

impl Continuity {
    pub const BEGINNING: Self = Self {
        chain: 0,
        generation: 0,
    };
}

/// Why there is no block at a place.
#[derive(Debug)]
pub(crate) enum NoBlock {
    /// The bytes are not a block of this log for this place: never written, or a write that was cut off.
    Invalid(WireError),
    /// A whole block for this place that does not follow the one before it.
    Stranger(WireError),
    Disk(DiskError),
}

impl From<DiskError> for NoBlock {
    fn from(error: DiskError) -> Self {
        Self::Disk(error)
    }
}

pub(crate) struct SegmentCursor {
    file: Arc<dyn DiskFile>,
    pub start: u64,
    /// Of the segment's blocks; whoever reads the header first sets it.
    pub block_tag: u32,
    /// Of the segment's format; set likewise.
    pub version: u32,
    window: Vec<u8>,
    window_at: u64,
}

impl SegmentCursor {
    /// Of a segment whose header was not read yet.
    pub fn new(file: Arc<dyn DiskFile>, start: u64) -> Self {
        Self {
            file,
            start,
            block_tag: 0,
            version: 0,
            window: Vec::new(),
            window_at: 0,
        }
    }

    /// Of a segment that the index knows.
    pub fn at(disk: &dyn Disk, place: &SegmentPlace) -> Result<Self, DiskError> {
        let file = disk.open_read(&segment_name(Lsn(place.start)))?;
        let mut cursor = Self::new(file, place.start);
        (cursor.block_tag, cursor.version) = (place.block_tag, place.version);
        Ok(cursor)
    }

    pub fn file_bytes(&self) -> Result<u64, DiskError> {
        self.file.len()
    }

    /// Where a position of the log lies in this file.
    pub fn offset_of(&self, lsn: u64) -> u64 {
        lsn - self.start + SEGMENT_HEADER_BYTES as u64
    }

    /// `count` bytes at `offset`; fewer where the file or `limit` ends. Nothing behind `limit` is read: a later call may
    /// find it changed.
    pub fn bytes(&mut self, offset: u64, count: usize, limit: u64) -> Result<&[u8], DiskError> {
        let end = (offset + count as u64).min(limit);
        let window_end = self.window_at + self.window.len() as u64;
        if offset < self.window_at || end > window_end {
            let wanted = (end.max(offset + WINDOW_BYTES).min(limit)).saturating_sub(offset);
            self.window.resize(wanted as usize, 0);
            let read = self.file.read_at(offset, &mut self.window)?;
            self.window.truncate(read);
            self.window_at = offset;
        }
        let from = (offset - self.window_at) as usize;
        let until = ((end.max(offset) - self.window_at) as usize).min(self.window.len());
        Ok(self.window.get(from..until).unwrap_or_default())
    }

    /// The header at `lsn`, if it is one of this log for this place.
    fn header(&mut self, lsn: u64, limit: u64) -> Result<(BlockHeader, u32), NoBlock> {
        let (offset, block_tag) = (self.offset_of(lsn), self.block_tag);
        let bytes = self.bytes(offset, BLOCK_HEADER_BYTES, limit)?;
        judge_header(bytes, lsn, block_tag).map_err(NoBlock::Invalid)
    }

    /// Reads and checks the whole block at `lsn`, also that it follows the one `before` where that is known. Returns its
    /// header and what the next one must continue; its records are then found by `payload`.
    pub fn block(
        &mut self,
        lsn: u64,
        limit: u64,
        before: Option<&Continuity>,
    ) -> Result<(BlockHeader, Continuity), NoBlock> {
        let (header, crc) = self.header(lsn, limit)?;
        let offset = self.offset_of(lsn);
        let block = self.bytes(offset, header.block_bytes(), limit)?;
        let after = judge_block(&header, crc, block, before)?;
        Ok((header, after))
    }

    /// Reads what lies from `offset + from` to `offset + until` to the same places of `buffer`, which grows where it must; how many
    /// bytes there were.
    pub fn read_into(&self, buffer: &mut Vec<u8>, offset: u64, from: usize, until: usize) -> Result<usize, DiskError> {
        if buffer.is_empty() {
            // Memory that the system gives out cleared needs no clearing.
            *buffer = vec![0; until];
        } else if buffer.len() < until {
            buffer.resize(until, 0);
        }
        self.file.read_at(offset + from as u64, &mut buffer[from..until])
    }

    /// The records' bytes of a block that `block` has checked.
    pub fn payload(&mut self, header: &BlockHeader) -> Result<&[u8], DiskError> {
        let offset = self.offset_of(header.lsn.0) + BLOCK_HEADER_BYTES as u64;
        let count = header.payload_bytes as usize;
        self.bytes(offset, count, offset + count as u64)
    }

    /// Looks for a block of this log behind the place `lsn`, which holds none, and for the last byte that is not zero.
    /// Where the place holds a good header with a damaged payload, the search begins behind that block: its payload may
    /// hold anything, also what looks like blocks.
    pub fn look_behind(&mut self, lsn: u64) -> Result<Behind, DiskError> {
        let (file_end, block_tag) = (self.file_bytes()?, self.block_tag);
        let own_end = match self.header(lsn, file_end) {
            Ok((header, _)) => header.end().0,
            Err(NoBlock::Disk(error)) => return Err(error),
            Err(_) => lsn,
        };
        let mut behind = Behind::default();
        let mut at = lsn;
        while self.offset_of(at) < file_end {
            let offset = self.offset_of(at);
            let sector = self.bytes(offset, LOG_ALIGN_BYTES, file_end)?;
            if sector.iter().any(|byte| *byte != 0) {
                behind.nonzero_bytes = at + sector.len() as u64 - lsn;
                if at >= own_end.max(lsn + 1) && judge_header(sector, at, block_tag).is_ok() {
                    behind.block = Some(Lsn(at));
                    return Ok(behind);
                }
            }
            at += LOG_ALIGN_BYTES as u64;
        }
        Ok(behind)
    }

    /// Writes a whole block once more. The process that wrote it may have died, or been told of a failure, before it was
    /// durable, and another sync need not make it so: what is appended behind it must not be kept without it.
    pub fn write_again(&mut self, lsn: u64, end: u64) -> Result<(), DiskError> {
        let offset = self.offset_of(lsn);
        let bytes = self.bytes(offset, (end - lsn) as usize, self.offset_of(end))?;
        let mut block = AlignedBuf::with_capacity(bytes.len());
        block.extend_from_slice(bytes);
        self.file.write_durable_at(offset, &block)
    }

    /// Zeros over the remains of a write that was cut off, so that nobody has to judge them again.
    pub fn erase(&mut self, lsn: u64, bytes: u64) -> Result<(), DiskError> {
        let zeros = vec![0; WINDOW_BYTES as usize];
        let (mut offset, end) = (self.offset_of(lsn), self.offset_of(lsn) + bytes);
        self.window.clear();
        while offset < end {
            let count = (end - offset).min(WINDOW_BYTES);
            self.file.write_at(offset, &zeros[..count as usize])?;
            offset += count;
        }
        self.file.sync()
    }
}

/// What lies behind a place without a block.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    /// A block of this log, which shows that the place once held one, too.
    pub block: Option<Lsn>,
    /// Bytes from the place to the last one that is not zero.
    pub nonzero_bytes: u64,
}

/// Checks a whole block against its header, and that it follows the one `before` where that is known; what the next one must
/// continue.
pub(crate) fn judge_block(
    header: &BlockHeader,
    crc: u32,
    block: &[u8],
    before: Option<&Continuity>,
) -> Result<Continuity, NoBlock> {
    header.payload(block).map_err(NoBlock::Invalid)?;
    let stranger = |what, expected: u32, found: u32| {
        Err(NoBlock::Stranger(WireError {
            what,
            expected: expected.to_string(),
            found: found.to_string(),
        }))
    };
    match before {
        Some(before) if header.chain != before.chain => {
            stranger("chain to the block before", before.chain, header.chain)
        }
        Some(before) if header.generation < before.generation => {
            stranger("generation of the block", before.generation, header.generation)
        }
        _ => Ok(Continuity {
            chain: crc,
            generation: header.generation,
        }),
    }
}

pub(crate) fn judge_header(bytes: &[u8], lsn: u64, block_tag: u32) -> Result<(BlockHeader, u32), WireError> {
    let (header, crc) = BlockHeader::decode(bytes)?;
    let judge = |what, expected: u64, found: u64| {
        if expected == found {
            return Ok(());
        }
        Err(WireError {
            what,
            expected: expected.to_string(),
            found: found.to_string(),
        })
    };
    judge("position of the block", lsn, header.lsn.0)?;
    judge("tag of the block", block_tag.into(), header.tag.into())?;
    Ok((header, crc))
}
