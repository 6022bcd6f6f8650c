//! A piece of the log in memory that is used again: what replay is fed.

use std::ops::Range;

use reprise_base::{
    Lsn,
    limits::{BLOCK_BYTES_MAX, RECORD_BYTES_MAX, RUN_BYTES_MAX},
};
use reprise_storage::REDO_WINDOW_BYTES_MAX;
use reprise_txn::ModuleId;
use reprise_wire::{ChangesRef, RawRecords};

use crate::command::Redo;

/// Bytes of log that are fed at once if there are as many. In a longer window more writes are overwritten, but a site takes longer
/// before it serves others.
pub const WINDOW_BYTES: usize = 2 << 20;

/// Bytes by which a window of one transaction grows at most, unless its next part is longer.
const GROWTH_BYTES_MAX: usize = 4 << 20;

/// A window and one block more, or all parts of a transaction and what ends them.
const _: () = assert!(BLOCK_BYTES_MAX + WINDOW_BYTES < REDO_WINDOW_BYTES_MAX);
const _: () = assert!(RUN_BYTES_MAX + RECORD_BYTES_MAX < REDO_WINDOW_BYTES_MAX);

/// Blocks of the log, in memory that is used again.
#[derive(Default)]
pub struct Window {
    /// The buffer has at least `used` bytes. Bytes between the blocks' records do not count.
    buffer: Vec<u8>,
    used: usize,
    blocks: Vec<BlockRange>,
    /// True if it was not read from the log, but has the gathered parts of one transaction.
    is_run: bool,
}

struct BlockRange {
    /// LSN of the first record.
    lsn: Lsn,
    /// Behind the last one.
    end: Lsn,
    records: Range<usize>,
}

/// Whole records that lie one behind the other in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowBlock<'w> {
    pub lsn: Lsn,
    pub records: &'w [u8],
}

impl Window {
    /// Adds a copy of whole records that lie one behind the other, with these LSNs.
    pub fn push(&mut self, lsns: Range<Lsn>, records: &[u8]) {
        let end = self.used + records.len();
        if self.buffer.len() < end {
            self.buffer.resize(end.next_power_of_two(), 0);
        }
        self.buffer[self.used..end].copy_from_slice(records);
        self.record_block(lsns, self.used..end);
    }

    /// Adds bytes that are no record. Returns their place.
    pub(crate) fn extend(&mut self, bytes: &[u8]) -> usize {
        let at = self.used;
        self.buffer.truncate(at);
        if self.buffer.capacity() - at < bytes.len() {
            // The buffer does not double, as a vector does, because its memory is not available to the tables.
            self.buffer.reserve_exact(bytes.len().max(at.min(GROWTH_BYTES_MAX)));
        }
        self.buffer.extend_from_slice(bytes);
        self.used = self.buffer.len();
        at
    }

    /// Adds the record that ends a transaction in parts. Returns its place. The window has no other record.
    pub(crate) fn push_run(&mut self, lsns: Range<Lsn>, record: &[u8]) -> usize {
        let at = self.extend(record);
        self.is_run = true;
        self.record_block(lsns, at..self.used);
        at
    }

    /// False for one that goes back to where windows to fill come from.
    pub(crate) fn is_run(&self) -> bool {
        self.is_run
    }

    /// Fills an empty window. `read` appends to the buffer, which it may extend, and reports the ranges of whole records in log order,
    /// with their LSNs.
    pub fn fill<T>(&mut self, read: impl FnOnce(&mut Vec<u8>, &mut dyn FnMut(Range<Lsn>, Range<usize>)) -> T) -> T {
        assert!(self.is_empty(), "a window is filled from its beginning on");
        let mut buffer = std::mem::take(&mut self.buffer);
        let filled = read(&mut buffer, &mut |lsns, records| self.record_block(lsns, records));
        self.buffer = buffer;
        filled
    }

    fn record_block(&mut self, lsns: Range<Lsn>, records: Range<usize>) {
        self.used = records.end;
        self.blocks.push(BlockRange {
            lsn: lsns.start,
            end: lsns.end,
            records,
        });
    }

    pub(crate) fn clear(&mut self) {
        self.used = 0;
        self.blocks.clear();
    }

    /// True if no block was added.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.used]
    }

    /// Offset of a part of this window's bytes.
    #[inline(always)]
    pub(crate) fn place_of(&self, part: &[u8]) -> usize {
        part.as_ptr() as usize - self.buffer.as_ptr() as usize
    }

    pub(crate) fn blocks(&self) -> impl Iterator<Item = WindowBlock<'_>> {
        let blocks = self.blocks.iter();
        blocks.map(|block| WindowBlock {
            lsn: block.lsn,
            records: &self.buffer[block.records.clone()],
        })
    }

    /// Behind its last record.
    pub fn end(&self) -> Lsn {
        let last = self.blocks.last();
        last.map_or(Lsn(0), |block| block.end)
    }

    /// Returns how many more such windows the log has behind it, if it ends at `log_end`; 0 if that is not known.
    pub(crate) fn windows_behind(&self, log_end: Lsn) -> f64 {
        if self.is_run {
            return 0.0; // one transaction says nothing about the others
        }
        let begin = self.blocks.first().map_or(Lsn(0), |block| block.lsn);
        let own = self.end().0 - begin.0;
        log_end.0.saturating_sub(self.end().0) as f64 / own.max(1) as f64
    }

    fn block_of(&self, at: usize) -> &BlockRange {
        let behind = self.blocks.partition_point(|block| block.records.start <= at);
        &self.blocks[behind - 1]
    }

    /// LSN of the first record of the block that holds a byte.
    pub(crate) fn block_lsn(&self, at: usize) -> Lsn {
        self.block_of(at).lsn
    }

    /// LSN of the record at a byte, for a message: its block is walked.
    pub(crate) fn lsn_of(&self, at: usize) -> Lsn {
        let block = self.block_of(at);
        let records = RawRecords::new(&self.buffer[block.records.clone()]);
        let before = records
            .map_while(Result::ok)
            .take_while(|record| block.records.start + record.start < at);
        Lsn(block.lsn.0 + before.count() as u64)
    }

    /// Returns the record of changes that begins at a byte, with its place in the log. None if it can't be read.
    pub(crate) fn changes_at(&self, at: usize) -> Option<(Redo, ChangesRef<'_>)> {
        let lsn = self.lsn_of(at);
        let record = RawRecords::new(&self.bytes()[at..]).next()?.ok()?;
        let changes = record.changes().ok()?;
        let redo = Redo {
            lsn,
            txn_id: changes.txn_id,
            module_id: ModuleId(changes.module_id),
            procedure: changes.procedure,
        };
        Some((redo, changes))
    }
}
