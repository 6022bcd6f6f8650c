//! Reads records back: forward from any position, or the newest first.

use std::{collections::VecDeque, sync::Arc};

use reprise_base::{Epoch, Lsn, Watermark};
use reprise_env::Disk;
use reprise_wire::{BLOCK_HEADER_BYTES, RecordRef, Records, WireError};

use crate::{
    cursor::{Continuity, NoBlock, PlacedBlock, SegmentCursor},
    error::{Damage, LogError},
    index::{LogIndex, LogPoint, segment_name},
    log::Log,
    scan::{VerifyReport, scan},
};

/// Bytes of log that one page of newest records reads, at most.
const PAGE_SCAN_BYTES_MAX: u64 = 64 << 20;

/// A record and its place.
#[derive(Clone, Debug)]
pub struct ReadRecord<'a> {
    /// Its position.
    pub lsn: Lsn,
    /// The LSN behind it.
    pub end: Lsn,
    /// Decoded.
    pub record: RecordRef<'a>,
    /// Encoded bytes, the length included.
    pub bytes: &'a [u8],
    /// Position of the record.
    pub place: RecordPlace,
}

/// The position of a record: in the log's files, or in a ring of NVRAM before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPlace {
    pub(crate) holder: RecordHolder,
    /// Offset of its first byte in the segment's file; in a ring, among the records that were written with it.
    pub offset: u64,
}

/// The holder of a record: the segment that begins at this place, or a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordHolder {
    Segment(u64),
    Ring(u32),
}

impl RecordPlace {
    /// The segment's file, or which ring.
    pub fn file(&self) -> String {
        match self.holder {
            RecordHolder::Segment(segment) => segment_name(segment),
            RecordHolder::Ring(ring) => format!("nvram-ring-{ring}"),
        }
    }
}

impl ReadRecord<'_> {
    fn to_owned(&self) -> OwnedRecord {
        OwnedRecord {
            lsn: self.lsn,
            end: self.end,
            bytes: self.bytes.to_vec(),
            place: self.place,
        }
    }
}

/// A record that was copied out of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedRecord {
    /// Its position.
    pub lsn: Lsn,
    end: Lsn,
    bytes: Vec<u8>,
    place: RecordPlace,
}

impl OwnedRecord {
    /// The record as the reader returned it.
    pub fn get(&self) -> ReadRecord<'_> {
        ReadRecord {
            lsn: self.lsn,
            end: self.end,
            record: RecordRef::decode(&self.bytes).expect("decoded before it was copied"),
            bytes: &self.bytes,
            place: self.place,
        }
    }

    /// Encoded bytes, the length included.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Records that lie one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct LogBlock<'a> {
    /// LSN of the first record.
    pub lsn: Lsn,
    /// The LSN behind the last one.
    pub end: Lsn,
    /// Encoded.
    pub records: &'a [u8],
    /// Epoch in which they were written.
    pub epoch: Epoch,
    segment: u64,
    place: u64,
}

impl LogBlock<'_> {
    /// The error for a record that can't be read.
    pub(crate) fn malformed(&self, error: &WireError) -> LogError {
        damaged(self.segment, self.place, self.lsn, error)
    }
}

/// Records, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordPage {
    /// The newest first.
    pub records: Vec<OwnedRecord>,
    /// LSN before which the next page continues. None when the log's beginning was reached.
    pub next: Option<Lsn>,
}

/// How far a reader may read.
#[derive(Clone)]
pub(crate) enum ReadEnd {
    Fixed(LogPoint),
    /// The durable end of a running log.
    Running(Arc<Durable>),
}

/// How far a running log is durable.
#[derive(Debug)]
pub(crate) struct Durable {
    pub lsn: Arc<Watermark>,
    /// The place behind it; raised first.
    pub place: Watermark,
}

impl Durable {
    pub fn get(&self) -> LogPoint {
        let lsn = Lsn(self.lsn.get());
        LogPoint {
            lsn,
            place: self.place.get(),
        }
    }
}

/// The next record of a block.
#[derive(Clone, Copy)]
struct BlockAt {
    block: PlacedBlock,
    /// Offset of the next record in the block's payload.
    at: usize,
    /// The next record's.
    lsn: Lsn,
}

impl BlockAt {
    fn is_over(&self) -> bool {
        self.at >= self.block.header.payload_bytes as usize
    }
}

/// Walks records forward.
pub struct LogReader {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) index: Arc<LogIndex>,
    end: ReadEnd,
    pub(crate) cursor: Option<SegmentCursor>,
    pub(crate) before: Option<Continuity>,
    current: Option<BlockAt>,
    /// Place and LSN of the next block.
    pub(crate) next_block: LogPoint,
    /// Records before it are passed over.
    pub(crate) from: Lsn,
}

impl LogReader {
    /// Reads a log that no process writes. It first checks all of it: the report names the damage, and the reader stops there.
    pub fn open(disk: Arc<dyn Disk>, from: Lsn) -> Result<(Self, VerifyReport), LogError> {
        let scanned = scan(&*disk)?;
        let report = scanned.report;
        let end = LogPoint {
            place: scanned.end_place,
            lsn: report.end,
        };
        let reader = Self::new(disk, Arc::new(scanned.index), ReadEnd::Fixed(end), from)?;
        Ok((reader, report))
    }

    pub(crate) fn new(disk: Arc<dyn Disk>, index: Arc<LogIndex>, end: ReadEnd, from: Lsn) -> Result<Self, LogError> {
        let (start, log_end) = (index.start(), end.get());
        if from.0 != 0 && from < start.lsn || from > log_end.lsn {
            return Err(LogError::OutOfRange {
                lsn: from,
                start: start.lsn,
                end: log_end.lsn,
            });
        }
        Ok(Self {
            next_block: index.block_before(from).unwrap_or(start),
            disk,
            index,
            end,
            cursor: None,
            before: None,
            current: None,
            from,
        })
    }

    /// The next record's block, loaded; none at the end of what can be read now.
    fn current_block(&mut self) -> Result<Option<BlockAt>, LogError> {
        loop {
            if let Some(current) = self.current.filter(|current| !current.is_over()) {
                return Ok(Some(current));
            }
            if !self.load_block()? {
                return Ok(None);
            }
        }
    }

    /// The next record; none at the end of what can be read now (a running log may have more later).
    pub fn next_record(&mut self) -> Result<Option<ReadRecord<'_>>, LogError> {
        let Some(current) = self.current_block()? else {
            return Ok(None);
        };
        let BlockAt { block, at, lsn } = current;
        let cursor = self.cursor.as_mut().expect("a block was loaded through it");
        let segment = cursor.start;
        let offset = cursor.offset_of(block.place) + (BLOCK_HEADER_BYTES + at) as u64;
        let payload = cursor.payload(&block)?;
        let decoded = Records::at(payload, at).next();
        match decoded.expect("the block has at least one byte left") {
            Ok((_, record, bytes)) => {
                let end = Lsn(lsn.0 + 1);
                self.current = Some(BlockAt {
                    block,
                    at: at + bytes.len(),
                    lsn: end,
                });
                Ok(Some(ReadRecord {
                    lsn,
                    end,
                    record,
                    bytes,
                    place: RecordPlace {
                        holder: RecordHolder::Segment(segment),
                        offset,
                    },
                }))
            }
            Err(error) => Err(damaged(segment, block.place, lsn, &error)),
        }
    }

    /// Returns the rest of the block that holds the next record, with its checksum checked and its records unread; none as with
    /// `next_record`. The next call of either continues behind it.
    pub fn next_block(&mut self) -> Result<Option<LogBlock<'_>>, LogError> {
        let Some(BlockAt { block, at, lsn }) = self.current_block()? else {
            return Ok(None);
        };
        let end = block.end();
        self.current = Some(BlockAt {
            block,
            at: block.header.payload_bytes as usize,
            lsn: end,
        });
        let cursor = self.cursor.as_mut().expect("a block was loaded through it");
        Ok(Some(LogBlock {
            lsn,
            end,
            segment: cursor.start,
            place: block.place,
            records: &cursor.payload(&block)?[at..],
            epoch: block.header.epoch,
        }))
    }

    /// Behind the last record of the block that the next record lies in; none as with `next_record`. Nothing is passed over.
    pub fn block_end(&mut self) -> Result<Option<Lsn>, LogError> {
        let (current, before, next_block) = (self.current, self.before, self.next_block);
        let found = self.current_block()?;
        (self.current, self.before, self.next_block) = (current, before, next_block);
        Ok(found.map(|found| found.block.end()))
    }

    /// Returns the LSN of the next record, even if there is none yet.
    pub fn position(&self) -> Lsn {
        match self.current.filter(|current| !current.is_over()) {
            Some(current) => current.lsn,
            None => self.next_block.lsn,
        }
    }

    /// Behind everything that can be read now.
    pub fn end(&self) -> Lsn {
        self.end.get().lsn
    }

    /// Returns the bytes of the log's files behind `from` that can be read now, as [`Log::bytes_between`] counts them.
    pub fn bytes_behind(&self, from: Lsn) -> u64 {
        let end = self.end.get();
        self.index.bytes_between(from, end.lsn, end)
    }

    pub(crate) fn end_place(&self) -> u64 {
        self.end.get().place
    }

    /// Opens the segment of the next block. Returns its beginning, and the end of the bytes that may be read. None: there is no such block
    /// now.
    pub(crate) fn seek(&mut self) -> Result<Option<(u64, u64)>, LogError> {
        let end = self.end_place();
        if self.next_block.place >= end {
            return Ok(None);
        }
        let mut found = self.index.segment_of(self.next_block.place);
        if found.is_none() && self.next_block.lsn < self.from && self.from >= self.index.start().lsn {
            // The block's earlier records were released meanwhile, and no caller reads them.
            self.next_block = self.index.block_before(self.from).unwrap_or_else(|| self.index.start());
            // The reader may have been on its way to that block: the last skipped block is not right before this one.
            self.before = None;
            if self.next_block.place >= end {
                return Ok(None);
            }
            found = self.index.segment_of(self.next_block.place);
        }
        let segment = found.ok_or_else(|| self.out_of_range(self.next_block.lsn))?;
        if self.cursor.as_ref().is_none_or(|cursor| cursor.start != segment.place) {
            self.cursor = Some(SegmentCursor::at(&*self.disk, &segment)?);
        }
        let cursor = self.cursor.as_ref().expect("just set");
        let limit = cursor.offset_of(segment.following.map_or(end, |next| next.min(end)));
        Ok(Some((segment.place, limit)))
    }

    /// Drops the block that was read to its end.
    pub(crate) fn leave_block(&mut self) {
        let left = self.current.take();
        assert!(left.is_none_or(|left| left.is_over()), "a block is read to its end");
    }

    fn load_block(&mut self) -> Result<bool, LogError> {
        let Some((segment, limit)) = self.seek()? else {
            return Ok(false);
        };
        let place = self.next_block.place;
        let cursor = self.cursor.as_mut().expect("sought just now");
        match cursor.block(place, limit, self.before.as_ref()) {
            Ok((block, after)) => {
                self.current = Some(first_record_from(cursor.payload(&block)?, block, self.from));
                self.passed(&block, after);
                Ok(true)
            }
            Err(error) => Err(self.no_block(segment, self.next_block, error)),
        }
    }

    /// The next block is the one behind this.
    pub(crate) fn passed(&mut self, block: &PlacedBlock, after: Continuity) {
        self.before = Some(after);
        self.next_block = LogPoint {
            place: block.end_place(),
            lsn: block.end(),
        };
    }

    /// The error for a missing block at `at`, in the segment that begins at `segment`.
    pub(crate) fn no_block(&self, segment: u64, at: LogPoint, error: NoBlock) -> LogError {
        match error {
            // Released while it was being read.
            _ if at.place < self.index.start().place => self.out_of_range(at.lsn),
            NoBlock::Disk(error) => error.into(),
            NoBlock::Invalid(error) | NoBlock::Stranger(error) => damaged(segment, at.place, at.lsn, &error),
        }
    }

    pub(crate) fn out_of_range(&self, lsn: Lsn) -> LogError {
        LogError::OutOfRange {
            lsn,
            start: self.index.start().lsn,
            end: self.end(),
        }
    }
}

impl ReadEnd {
    fn get(&self) -> LogPoint {
        match self {
            Self::Fixed(end) => *end,
            Self::Running(durable) => durable.get(),
        }
    }
}

/// The first record of a block at or behind `from`.
fn first_record_from(payload: &[u8], block: PlacedBlock, from: Lsn) -> BlockAt {
    let mut lsn = block.first();
    let mut records = Records::new(payload);
    while lsn < from {
        match records.next() {
            Some(Ok(_)) => lsn = Lsn(lsn.0 + 1),
            _ => {
                let at = payload.len();
                return BlockAt { block, at, lsn };
            }
        }
    }
    let at = records.offset();
    BlockAt { block, at, lsn }
}

pub(crate) fn damaged(segment: u64, place: u64, lsn: Lsn, error: &WireError) -> LogError {
    LogError::Corrupt(Arc::new(Damage {
        file: segment_name(segment),
        offset: place - segment + reprise_wire::SEGMENT_HEADER_BYTES as u64,
        lsn,
        what: error.to_string(),
    }))
}

/// The size of a page of records.
#[derive(Clone, Copy, Debug)]
pub struct PageBounds {
    /// Number of records at most.
    pub records: usize,
    /// Bytes of records with which the page is full.
    pub bytes: usize,
}

impl<P: Send + 'static> Log<P> {
    /// Reads forward from the first record at or behind `from` to the durable end, and further when that grows.
    pub fn reader(&self, from: Lsn) -> Result<LogReader, LogError> {
        self.destage_persistent()?;
        let shared = &self.shared;
        LogReader::new(
            Arc::clone(&shared.disk),
            Arc::clone(&shared.index),
            ReadEnd::Running(Arc::clone(&shared.durable)),
            from,
        )
    }

    /// The record with this LSN, if there is one and it is durable.
    pub fn record(&self, lsn: Lsn) -> Result<Option<OwnedRecord>, LogError> {
        let mut reader = match self.reader(lsn) {
            Err(LogError::OutOfRange { .. }) => return Ok(None),
            reader => reader?,
        };
        let found = reader.next_record()?.filter(|record| record.lsn == lsn);
        Ok(found.map(|record| record.to_owned()))
    }

    /// The newest durable records before `before` (none: before the end) that `keep` likes. The page ends with the record that fills it.
    pub fn newest(
        &self,
        before: Option<Lsn>,
        bounds: PageBounds,
        mut keep: impl FnMut(&ReadRecord<'_>) -> bool,
    ) -> Result<RecordPage, LogError> {
        self.destage_persistent()?;
        let index = &self.shared.index;
        let (start, copied) = (index.start().lsn, self.copied());
        let mut upper = before.map_or(copied, |before| before.min(copied));
        let mut page = RecordPage::default();
        // The places are compared, because a block without records has the LSN of the one behind it.
        let mut behind = match upper > start {
            true => index.block_before(Lsn(upper.0 - 1)),
            false => None,
        };
        let (mut looked_at_bytes, mut bytes) = (0, 0);
        while let Some(mark) = behind.filter(|_| page.records.len() < bounds.records && bytes < bounds.bytes) {
            if looked_at_bytes >= PAGE_SCAN_BYTES_MAX {
                break;
            }
            looked_at_bytes += self.bytes_between(mark.lsn, upper);
            let wanted = bounds.records - page.records.len();
            let mut found: VecDeque<OwnedRecord> = VecDeque::new();
            let mut reader = self.reader(mark.lsn)?;
            while let Some(record) = reader.next_record()? {
                if record.lsn >= upper {
                    break;
                }
                if keep(&record) {
                    bytes += record.bytes.len();
                    found.push_back(record.to_owned());
                    // The page is full without the oldest one.
                    while let Some(oldest) = found.front().map(|oldest| oldest.bytes().len())
                        && (found.len() > wanted || bytes - oldest >= bounds.bytes)
                    {
                        bytes -= oldest;
                        found.pop_front();
                    }
                }
            }
            page.records.extend(found.into_iter().rev());
            upper = upper.min(mark.lsn);
            behind = index.mark_before(mark.place);
        }
        page.next = match page.records.last() {
            Some(oldest) if page.records.len() == bounds.records || bytes >= bounds.bytes => Some(oldest.lsn),
            _ => (upper > start).then_some(upper),
        };
        Ok(page)
    }
}
