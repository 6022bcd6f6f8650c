//! Whole blocks of the log, read straight into the caller's memory.

use std::ops::Range;

use reprise_base::Lsn;
use reprise_wire::BLOCK_HEADER_BYTES;

use crate::{
    cursor::{NoBlock, validate_block},
    error::LogError,
    reader::LogReader,
};

/// A block of a stretch.
#[derive(Clone, Debug)]
pub struct StretchBlock<'a> {
    /// LSN of its first record.
    pub lsn: Lsn,
    /// The LSN behind its last record.
    pub end: Lsn,
    /// Range of its records in the buffer.
    pub place: Range<usize>,
    /// The records, unread.
    pub records: &'a [u8],
    /// Number of records, if all are known to be changes.
    pub changes: Option<u32>,
}

/// Why a stretch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StretchEnd {
    /// There is no more room, or the segment ends: more follows.
    Full,
    /// The next block was not taken.
    Refused,
    /// That was all that can be read now.
    Log,
}

impl LogReader {
    /// Reads whole blocks, as they are in the log, into `buffer` from its beginning on: `room` bytes, or the first block if it is longer.
    /// Each is checked and shown to `take`. A block that `take` does not take is the next one for any later read. `buffer` grows if it must
    /// and keeps its length.
    ///
    /// It begins at a block: earlier reads ended at a block's end, by `next_block` or this.
    pub fn read_blocks(
        &mut self,
        buffer: &mut Vec<u8>,
        room: usize,
        mut take: impl FnMut(&StretchBlock<'_>) -> bool,
    ) -> Result<StretchEnd, LogError> {
        self.leave_block();
        let Some((segment, limit)) = self.seek()? else {
            return Ok(StretchEnd::Log);
        };
        let cursor = self.cursor.as_ref().expect("sought just now");
        let offset = cursor.offset_of(self.next_block.place);
        let whole = limit.saturating_sub(offset).min(usize::MAX as u64) as usize;
        let mut filled = cursor.read_into(buffer, offset, 0, room.min(whole))?;
        let mut at = 0;
        while at < whole {
            let next = self.next_block;
            let rest = &buffer[at..filled];
            if at > 0 && rest.len() < BLOCK_HEADER_BYTES {
                return Ok(StretchEnd::Full);
            }
            let cursor = self.cursor.as_ref().expect("sought before");
            let validated = cursor.expected(next.place).validate(rest);
            let (found, crc) = validated.map_err(|error| self.no_block(segment, next, NoBlock::Invalid(error)))?;
            let block_bytes = found.header.block_bytes();
            if block_bytes > rest.len() {
                if at > 0 {
                    return Ok(StretchEnd::Full);
                }
                filled += cursor.read_into(buffer, offset, filled, block_bytes.min(whole))?;
            }
            let block_end = filled.min(at + block_bytes);
            let block = &buffer[at..block_end];
            let after = validate_block(&found, crc, block, self.before.as_ref());
            let after = after.map_err(|error| self.no_block(segment, next, error))?;
            let start = at + BLOCK_HEADER_BYTES;
            let place = start..start + found.header.payload_bytes as usize;
            let holds_changes = self.index.holds_changes(next.place);
            let block = StretchBlock {
                lsn: found.first(),
                end: found.end(),
                records: &buffer[place.clone()],
                place,
                changes: holds_changes.then_some(found.header.records_count),
            };
            let is_before = block.lsn < self.from;
            if !block.records.is_empty() && (is_before || !take(&block)) {
                return Ok(StretchEnd::Refused);
            }
            self.passed(&found, after);
            at = block_end;
        }
        match self.next_block.place < self.end_place() {
            true => Ok(StretchEnd::Full),
            false => Ok(StretchEnd::Log),
        }
    }
}
