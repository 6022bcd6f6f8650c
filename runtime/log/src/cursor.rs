//! Reads one segment file forward, a window at a time, and validates its blocks.

use std::sync::Arc;

use reprise_base::{Epoch, Lsn, limits::LOG_ALIGN_BYTES};
use reprise_env::{AlignedBuf, Disk, DiskError, DiskFile};
use reprise_wire::{BLOCK_HEADER_BYTES, BlockHeader, SEGMENT_HEADER_BYTES, SegmentHeader, WireError, tag_at};

use crate::index::{SegmentPlace, segment_name};

const WINDOW_BYTES: u64 = 1 << 20;

/// Values that the next block must continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Continuity {
    pub chain: u32,
    pub epoch: Epoch,
    /// LSN of its first record.
    pub lsn: Lsn,
}

impl Continuity {
    pub const BEGINNING: Self = Self {
        chain: 0,
        epoch: Epoch::new(0, 0),
        lsn: Lsn(0),
    };
}

/// A block and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlacedBlock {
    pub header: BlockHeader,
    pub place: u64,
}

impl PlacedBlock {
    pub fn end_place(&self) -> u64 {
        self.place + self.header.block_bytes() as u64
    }

    /// LSN of its first record.
    pub fn first(&self) -> Lsn {
        self.header.lsn
    }

    /// Behind its last record.
    pub fn end(&self) -> Lsn {
        Lsn(self.header.lsn.0 + u64::from(self.header.records_count))
    }
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
    /// Place of the segment's first block.
    pub start: u64,
    /// Base of the tags of its blocks; set by the code that reads the header first.
    block_tag: u32,
    window: Vec<u8>,
    window_at: u64,
}

impl SegmentCursor {
    /// A cursor over a segment whose header was not read yet.
    pub fn new(file: Arc<dyn DiskFile>, start: u64) -> Self {
        Self {
            file,
            start,
            block_tag: 0,
            window: Vec::new(),
            window_at: 0,
        }
    }

    /// A cursor over a segment that the index knows.
    pub fn at(disk: &dyn Disk, place: &SegmentPlace) -> Result<Self, DiskError> {
        let file = disk.open_read(&segment_name(place.place))?;
        let mut cursor = Self::new(file, place.place);
        cursor.block_tag = place.block_tag;
        Ok(cursor)
    }

    pub fn set_header(&mut self, header: &SegmentHeader) {
        self.block_tag = header.block_tag();
    }

    pub fn file_bytes(&self) -> Result<u64, DiskError> {
        self.file.len()
    }

    /// Offset in this file of a place of the log.
    pub fn offset_of(&self, place: u64) -> u64 {
        place - self.start + SEGMENT_HEADER_BYTES as u64
    }

    /// Returns `count` bytes at `offset`; fewer if the file or `limit` ends. It reads nothing behind `limit`, because a later call may find
    /// it changed.
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

    /// The values that a block at `place` must have.
    pub fn expected(&self, place: u64) -> ExpectedBlock {
        ExpectedBlock {
            place,
            tag: tag_at(self.block_tag, place),
        }
    }

    /// The header at `place`, if it is one of this log for it.
    fn header(&mut self, place: u64, limit: u64) -> Result<(PlacedBlock, u32), NoBlock> {
        let (offset, expected) = (self.offset_of(place), self.expected(place));
        let bytes = self.bytes(offset, BLOCK_HEADER_BYTES, limit)?;
        expected.validate(bytes).map_err(NoBlock::Invalid)
    }

    /// Reads and checks the whole block at `place`. If `before` is known, it also checks that the block follows it. Returns its header and
    /// the values that the next one must continue. `payload` then finds its records.
    pub fn block(
        &mut self,
        place: u64,
        limit: u64,
        before: Option<&Continuity>,
    ) -> Result<(PlacedBlock, Continuity), NoBlock> {
        let (found, crc) = self.header(place, limit)?;
        let offset = self.offset_of(place);
        let block = self.bytes(offset, found.header.block_bytes(), limit)?;
        let after = validate_block(&found, crc, block, before)?;
        Ok((found, after))
    }

    /// Reads the bytes from `offset + from` to `offset + until` to the same places of `buffer`, which grows if it must. Returns their
    /// number.
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
    pub fn payload(&mut self, block: &PlacedBlock) -> Result<&[u8], DiskError> {
        let offset = self.offset_of(block.place) + BLOCK_HEADER_BYTES as u64;
        let count = block.header.payload_bytes as usize;
        self.bytes(offset, count, offset + count as u64)
    }

    /// Searches behind a place that holds no block for a block of this log, and for the last byte that is not zero. If the place holds a
    /// good header with a damaged payload, the search begins behind that block. Its payload may hold anything, even bytes that look like
    /// blocks.
    pub fn search_behind(&mut self, place: u64) -> Result<UnusedTail, DiskError> {
        let file_end = self.file_bytes()?;
        let own_end = match self.header(place, file_end) {
            Ok((found, _)) => found.end_place(),
            Err(NoBlock::Disk(error)) => return Err(error),
            Err(_) => place,
        };
        let mut behind = UnusedTail::default();
        let mut at = place;
        while self.offset_of(at) < file_end {
            let (offset, expected) = (self.offset_of(at), self.expected(at));
            let sector = self.bytes(offset, LOG_ALIGN_BYTES, file_end)?;
            if sector.iter().any(|byte| *byte != 0) {
                behind.nonzero_bytes = at + sector.len() as u64 - place;
                if at >= own_end.max(place + 1)
                    && let Ok((later, _)) = expected.validate(sector)
                {
                    behind.block = Some(later.header.lsn);
                    return Ok(behind);
                }
            }
            at += LOG_ALIGN_BYTES as u64;
        }
        Ok(behind)
    }

    /// Writes a whole block again. The process that wrote it may have died or got an error before the block was durable. Another sync need
    /// not make it so, and blocks behind it must not be kept without it.
    pub fn write_again(&mut self, place: u64, end: u64) -> Result<(), DiskError> {
        let offset = self.offset_of(place);
        let bytes = self.bytes(offset, (end - place) as usize, self.offset_of(end))?;
        let mut block = AlignedBuf::with_capacity(bytes.len());
        block.extend_from_slice(bytes);
        self.file.write_durable_at(offset, &block)
    }

    /// Zeros the remains of an interrupted write, so that no later opening has to check them.
    pub fn erase(&mut self, mut offset: u64, bytes: u64) -> Result<(), DiskError> {
        let zeros = vec![0; WINDOW_BYTES as usize];
        let end = offset + bytes;
        self.window.clear();
        while offset < end {
            let count = (end - offset).min(WINDOW_BYTES);
            self.file.write_at(offset, &zeros[..count as usize])?;
            offset += count;
        }
        self.file.sync()
    }
}

/// The bytes behind a place without a block.
#[derive(Debug, Default)]
pub(crate) struct UnusedTail {
    /// A block of this log, which shows that the place once held one, too.
    pub block: Option<Lsn>,
    /// Bytes from the place to the last one that is not zero.
    pub nonzero_bytes: u64,
}

/// Checks a whole block against its header, and that it follows `before` if that is known. Returns the values that the next block must
/// continue.
pub(crate) fn validate_block(
    found: &PlacedBlock,
    crc: u32,
    block: &[u8],
    before: Option<&Continuity>,
) -> Result<Continuity, NoBlock> {
    let header = &found.header;
    header.payload(block).map_err(NoBlock::Invalid)?;
    let stranger = |what, expected: u64, found: u64| {
        Err(NoBlock::Stranger(WireError {
            what,
            expected: expected.to_string(),
            found: found.to_string(),
        }))
    };
    match before {
        Some(before) if header.chain != before.chain => {
            stranger("chain to the block before", before.chain.into(), header.chain.into())
        }
        Some(before) if before.epoch.is_after(header.epoch) => {
            stranger("epoch of the block", before.epoch.to_bits(), header.epoch.to_bits())
        }
        Some(before) if header.lsn != before.lsn => stranger("LSN of the block", before.lsn.0, header.lsn.0),
        _ => Ok(Continuity {
            chain: crc,
            epoch: header.epoch,
            lsn: found.end(),
        }),
    }
}

/// Values that a block at a place must have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpectedBlock {
    place: u64,
    tag: u32,
}

impl ExpectedBlock {
    /// The block whose header `bytes` begin with, and the header's checksum.
    pub fn validate(&self, bytes: &[u8]) -> Result<(PlacedBlock, u32), WireError> {
        let (header, crc) = BlockHeader::decode(bytes)?;
        if header.tag != self.tag {
            return Err(WireError {
                what: "tag of the block",
                expected: self.tag.to_string(),
                found: header.tag.to_string(),
            });
        }
        let block = PlacedBlock {
            header,
            place: self.place,
        };
        Ok((block, crc))
    }
}
