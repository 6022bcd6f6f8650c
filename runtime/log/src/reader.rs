//! Reads records back: forward from any position, or the newest first.

use std::{collections::VecDeque, sync::Arc};

use reprise_base::{Lsn, Watermark};
use reprise_env::Disk;
use reprise_wire::{BLOCK_HEADER_BYTES, BlockHeader, RecordRef, Records, WireError};

use crate::{
    cursor::{Continuity, NoBlock, SegmentCursor},
    error::{Damage, LogError},
    index::{LogIndex, segment_name},
    log::Log,
    scan::{VerifyReport, scan},
};

/// Bytes of log that one page of newest records looks at, at most.
const PAGE_SCAN_BYTES_MAX: u64 = 64 << 20;

/// A record and where it lies; it ends `bytes.len()` behind `lsn`.
#[derive(Clone, Debug)]
pub struct LogRecord<'a> {
    pub lsn: Lsn,
    pub record: RecordRef<'a>,
    /// As in the log, its length included.
    pub bytes: &'a [u8],
    /// Of the format of its segment.
    pub version: u32,
}

impl LogRecord<'_> {
    pub fn end(&self) -> Lsn {
        Lsn(self.lsn.0 + self.bytes.len() as u64)
    }

    fn to_owned(&self) -> OwnedRecord {
        OwnedRecord {
            lsn: self.lsn,
            bytes: self.bytes.to_vec(),
            version: self.version,
        }
    }
}

/// A record that was copied out of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedRecord {
    pub lsn: Lsn,
    bytes: Vec<u8>,
    version: u32,
}

impl OwnedRecord {
    /// As the reader showed it.
    pub fn get(&self) -> LogRecord<'_> {
        LogRecord {
            lsn: self.lsn,
            record: RecordRef::decode(&self.bytes, self.version).expect("decoded before it was copied"),
            bytes: &self.bytes,
            version: self.version,
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn end(&self) -> Lsn {
        Lsn(self.lsn.0 + self.bytes.len() as u64)
    }
}

/// Records that lie one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct LogBlock<'a> {
    /// Of the first one.
    pub lsn: Lsn,
    pub records: &'a [u8],
    /// Of the format of their segment.
    pub version: u32,
}

impl LogBlock<'_> {
    pub fn end(&self) -> Lsn {
        Lsn(self.lsn.0 + self.records.len() as u64)
    }
}

/// Records, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordPage {
    pub records: Vec<OwnedRecord>,
    /// Ask for what lies before this to go on; none when the log's beginning was reached.
    pub next: Option<Lsn>,
}

/// How far a reader may read.
#[derive(Clone)]
enum ReadEnd {
    Fixed(u64),
    /// What is durable in a running log.
    Durable(Arc<Watermark>),
}

/// Walks records forward.
pub struct LogReader {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) index: Arc<LogIndex>,
    end: ReadEnd,
    pub(crate) cursor: Option<SegmentCursor>,
    pub(crate) before: Option<Continuity>,
    block: Option<BlockHeader>,
    /// Offset of the next record in the block's payload.
    record_at: usize,
    pub(crate) next_block: u64,
    /// Records before it are passed over.
    pub(crate) from: u64,
}

impl LogReader {
    /// Reads a log that no process writes. All of it is checked first: the report says what is damaged, and the reader
    /// stops there.
    pub fn open(disk: Arc<dyn Disk>, from: Lsn) -> Result<(Self, VerifyReport), LogError> {
        let scanned = scan(&*disk)?;
        let report = scanned.report;
        let end = ReadEnd::Fixed(report.end.0);
        let reader = Self::new(disk, Arc::new(scanned.index), end, from)?;
        Ok((reader, report))
    }

    fn new(disk: Arc<dyn Disk>, index: Arc<LogIndex>, end: ReadEnd, from: Lsn) -> Result<Self, LogError> {
        let (start, log_end) = (index.start(), end.get());
        if from.0 != 0 && from.0 < start || from.0 > log_end {
            return Err(LogError::OutOfRange {
                lsn: from,
                start: Lsn(start),
                end: Lsn(log_end),
            });
        }
        Ok(Self {
            next_block: index.block_before(from.0).unwrap_or(start),
            disk,
            index,
            end,
            cursor: None,
            before: None,
            block: None,
            record_at: 0,
            from: from.0,
        })
    }

    /// The block that the next record lies in, loaded; none at the end of what can be read now.
    fn current_block(&mut self) -> Result<Option<BlockHeader>, LogError> {
        loop {
            if let Some(block) = self.block
                && self.record_at < block.payload_bytes as usize
            {
                return Ok(Some(block));
            }
            if !self.load_block()? {
                return Ok(None);
            }
        }
    }

    /// The next record; none at the end of what can be read now (a running log may have more later).
    pub fn next_record(&mut self) -> Result<Option<LogRecord<'_>>, LogError> {
        let Some(block) = self.current_block()? else {
            return Ok(None);
        };
        let record_at = self.record_at;
        let cursor = self.cursor.as_mut().expect("a block was loaded through it");
        let (segment_start, version) = (cursor.start, cursor.version);
        let payload = cursor.payload(&block)?;
        let decoded = Records::at(payload, record_at, version).next();
        match decoded.expect("the block has at least one byte left") {
            Ok((_, record, bytes)) => {
                self.record_at += bytes.len();
                Ok(Some(LogRecord {
                    lsn: record_lsn(&block, record_at),
                    record,
                    bytes,
                    version,
                }))
            }
            Err(error) => Err(damaged(segment_start, block.lsn.0, &error)),
        }
    }

    /// What is left of the block that the next record lies in, checksum checked, its records not looked at; none as with
    /// `next_record`. The next call of either goes on behind it.
    pub fn next_block(&mut self) -> Result<Option<LogBlock<'_>>, LogError> {
        let Some(block) = self.current_block()? else {
            return Ok(None);
        };
        let record_at = self.record_at;
        self.record_at = block.payload_bytes as usize;
        let cursor = self.cursor.as_mut().expect("a block was loaded through it");
        Ok(Some(LogBlock {
            lsn: record_lsn(&block, record_at),
            version: cursor.version,
            records: &cursor.payload(&block)?[record_at..],
        }))
    }

    /// Where the next record begins, or will.
    pub fn position(&self) -> Lsn {
        match &self.block {
            Some(block) if self.record_at < block.payload_bytes as usize => record_lsn(block, self.record_at),
            _ => Lsn(self.next_block),
        }
    }

    /// Behind everything that can be read now.
    pub fn end(&self) -> Lsn {
        Lsn(self.end.get())
    }

    /// Opens the segment in which the next block lies: where it begins, and up to which of its bytes it may be read. None: there is
    /// no such block now.
    pub(crate) fn seek(&mut self) -> Result<Option<(u64, u64)>, LogError> {
        let end = self.end.get();
        if self.next_block >= end {
            return Ok(None);
        }
        let lsn = self.next_block;
        let place = self.index.segment_of(lsn).ok_or(self.out_of_range(lsn))?;
        let start = place.start;
        if self.cursor.as_ref().is_none_or(|cursor| cursor.start != start) {
            self.cursor = Some(SegmentCursor::at(&*self.disk, &place)?);
        }
        let cursor = self.cursor.as_ref().expect("just set");
        let limit = cursor.offset_of(place.following.map_or(end, |next| next.min(end)));
        Ok(Some((start, limit)))
    }

    /// Lets go of the block that was read to its end.
    pub(crate) fn leave_block(&mut self) {
        let left = self.block.take().map_or(0, |block| block.payload_bytes as usize);
        assert!(left <= self.record_at, "a block is read to its end");
        self.record_at = 0;
    }

    fn load_block(&mut self) -> Result<bool, LogError> {
        let Some((start, limit)) = self.seek()? else {
            return Ok(false);
        };
        let lsn = self.next_block;
        let cursor = self.cursor.as_mut().expect("sought just now");
        match cursor.block(lsn, limit, self.before.as_ref()) {
            Ok((block, after)) => {
                let version = cursor.version;
                self.record_at = first_record_from(cursor.payload(&block)?, &block, self.from, version);
                self.before = Some(after);
                self.next_block = block.end().0;
                self.block = Some(block);
                Ok(true)
            }
            Err(error) => Err(self.no_block(start, lsn, error)),
        }
    }

    /// What it means that there is no block at `lsn`, in the segment that begins at `start`.
    pub(crate) fn no_block(&self, start: u64, lsn: u64, error: NoBlock) -> LogError {
        match error {
            // Let go while it was being read.
            _ if lsn < self.index.start() => self.out_of_range(lsn),
            NoBlock::Disk(error) => error.into(),
            NoBlock::Invalid(error) | NoBlock::Stranger(error) => damaged(start, lsn, &error),
        }
    }

    pub(crate) fn out_of_range(&self, lsn: u64) -> LogError {
        LogError::OutOfRange {
            lsn: Lsn(lsn),
            start: Lsn(self.index.start()),
            end: self.end(),
        }
    }
}

impl ReadEnd {
    fn get(&self) -> u64 {
        match self {
            Self::Fixed(end) => *end,
            Self::Durable(watermark) => watermark.get(),
        }
    }
}

pub(crate) fn record_lsn(block: &BlockHeader, record_at: usize) -> Lsn {
    Lsn(block.lsn.0 + (BLOCK_HEADER_BYTES + record_at) as u64)
}

/// Offset in the payload of the first record at or behind `from`.
fn first_record_from(payload: &[u8], block: &BlockHeader, from: u64, version: u32) -> usize {
    if record_lsn(block, 0).0 >= from {
        return 0;
    }
    let mut records = Records::new(payload, version);
    while record_lsn(block, records.offset()).0 < from {
        if records.next().is_none_or(|record| record.is_err()) {
            return payload.len();
        }
    }
    records.offset()
}

pub(crate) fn damaged(segment_start: u64, lsn: u64, error: &WireError) -> LogError {
    LogError::Corrupt(Arc::new(Damage {
        file: segment_name(Lsn(segment_start)),
        offset: lsn - segment_start + reprise_wire::SEGMENT_HEADER_BYTES as u64,
        lsn: Lsn(lsn),
        what: error.to_string(),
    }))
}

impl<P: Send + 'static> Log<P> {
    /// Reads forward from the first record at or behind `from`, as far as is durable; more as more becomes so.
    pub fn reader(&self, from: Lsn) -> Result<LogReader, LogError> {
        let shared = &self.shared;
        LogReader::new(
            Arc::clone(&shared.disk),
            Arc::clone(&shared.index),
            ReadEnd::Durable(Arc::clone(&shared.durable)),
            from,
        )
    }

    /// The record that begins at `lsn`, if one does and it is durable.
    pub fn record(&self, lsn: Lsn) -> Result<Option<OwnedRecord>, LogError> {
        let mut reader = match self.reader(lsn) {
            Err(LogError::OutOfRange { .. }) => return Ok(None),
            reader => reader?,
        };
        let found = reader.next_record()?.filter(|record| record.lsn == lsn);
        Ok(found.map(|record| record.to_owned()))
    }

    /// The newest durable records before `before` (none: before the end) that `keep` likes, at most `limit`.
    pub fn newest(
        &self,
        before: Option<Lsn>,
        limit: usize,
        mut keep: impl FnMut(&LogRecord<'_>) -> bool,
    ) -> Result<RecordPage, LogError> {
        let (start, end) = (self.start().0, self.durable().0);
        let mut upper = before.map_or(end, |before| before.0.min(end));
        let looks_until = upper.saturating_sub(PAGE_SCAN_BYTES_MAX);
        let mut page = RecordPage::default();
        while upper > start && upper > looks_until && page.records.len() < limit {
            let Some(mark) = self.shared.index.block_before(upper - 1) else {
                break;
            };
            let wanted = limit - page.records.len();
            let mut found = VecDeque::new();
            let mut reader = self.reader(Lsn(mark))?;
            while let Some(record) = reader.next_record()? {
                if record.lsn.0 >= upper {
                    break;
                }
                if keep(&record) {
                    found.push_back(record.to_owned());
                    if found.len() > wanted {
                        found.pop_front();
                    }
                }
            }
            page.records.extend(found.into_iter().rev());
            upper = mark;
        }
        page.next = match page.records.last() {
            Some(oldest) if page.records.len() == limit => Some(oldest.lsn),
            _ => (upper > start).then_some(Lsn(upper)),
        };
        Ok(page)
    }
}
