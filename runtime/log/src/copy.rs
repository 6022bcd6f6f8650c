//! Copies a part of a log to another directory, cut behind any record: for a backup, or for a restore to a point.

use std::sync::Arc;

use reprise_base::Lsn;
use reprise_env::{Disk, DiskError, DiskFile};
use reprise_wire::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockKind, History, Records, SegmentHeader, block_bytes, seal_block, tag_at,
};

use crate::{
    cursor::{Continuity, NoBlock, PlacedBlock, SegmentCursor},
    error::{LogError, UnavailableKind},
    index::segment_name,
    reader::{LogReader, damaged},
    scan::read_header,
};

/// Bytes gathered for one write.
const WRITE_BYTES: usize = 1 << 20;

/// Which part of a log is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRange {
    /// The copy begins with the block in which the record lies that ends here, or with the log.
    pub from: Lsn,
    /// Records that begin here or later are left out.
    pub until: Lsn,
}

/// The copied part of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogCopy {
    /// File names, in order.
    pub files: Vec<String>,
    /// LSN of the first record.
    pub start: Lsn,
    /// Behind the last block, which says that the log was closed in order.
    pub end: Lsn,
    /// That were copied.
    pub records: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

impl LogReader {
    /// Copies the records in `range` to files on `target`, which holds no log. LSNs and places stay the same; files may begin
    /// elsewhere. Everything is durable at the end. `goes_on` receives the number of copied bytes, and false stops the copy. After an
    /// error the caller removes the files.
    pub fn copy(
        &self,
        range: CopyRange,
        target: &dyn Disk,
        goes_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<LogCopy, LogError> {
        let mut copier = BlockCopier {
            target,
            out: None,
            source: None,
            memory_units: 0,
            last: Continuity::BEGINNING,
            end_place: 0,
            blocks_bytes: 0,
            copy: LogCopy::default(),
        };
        let mut walk = RangeWalk::begin(self, range.from)?;
        while let Some((block, after)) = walk.next()? {
            // The record that ends at `from` lies in the last block that begins before it. A segment that begins with blocks of no records, and
            // then has that record, is taken from its beginning.
            let is_beginning = walk.begins_segment(&block) && block.end().0 + 1 == range.from.0;
            if copier.out.is_none() && block.end() < range.from && !is_beginning {
                continue;
            }
            if block.first() >= range.until || !goes_on(copier.blocks_bytes) {
                break;
            }
            let kept = kept_records(&block, walk.bytes(&block)?, range.until);
            if matches!(kept, BlockPart::None) {
                break;
            }
            if copier.out.is_none() || walk.begins_segment(&block) {
                copier.begin(&block, walk.segment_header()?, walk.history)?;
            }
            let bytes = walk.bytes(&block)?;
            if let BlockPart::First { bytes: kept, count } = kept {
                copier.push_cut(&block, bytes, kept, count)?;
                break;
            }
            copier.push(&block, bytes, after)?;
        }
        if copier.out.is_none() {
            return Err(self.nothing(range));
        }
        if !goes_on(copier.blocks_bytes) {
            let reason = "the copy was given up";
            return Err(LogError::unavailable(UnavailableKind::Closed, reason));
        }
        copier.finish()
    }

    fn nothing(&self, range: CopyRange) -> LogError {
        LogError::OutOfRange {
            lsn: range.until,
            start: self.index.start().lsn,
            end: self.end(),
        }
    }
}

/// The part of a block's records before the end of the range.
enum BlockPart {
    All,
    None,
    First { bytes: usize, count: u32 },
}

fn kept_records(block: &PlacedBlock, bytes: &[u8], until: Lsn) -> BlockPart {
    let payload_bytes = block.header.payload_bytes as usize;
    if until >= block.end() || payload_bytes == 0 {
        return BlockPart::All;
    }
    let payload = &bytes[BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + payload_bytes];
    let mut records = Records::new(payload);
    let (mut count, mut lsn) = (0, block.first());
    while lsn < until {
        match records.next() {
            Some(Ok(_)) => {
                count += 1;
                lsn = Lsn(lsn.0 + 1);
            }
            _ => return BlockPart::All,
        }
    }
    match count {
        0 => BlockPart::None,
        count => BlockPart::First {
            bytes: records.offset(),
            count,
        },
    }
}

/// The blocks of a log, one after the other.
struct RangeWalk<'r> {
    reader: &'r LogReader,
    cursor: Option<SegmentCursor>,
    before: Option<Continuity>,
    at: u64,
    /// History before the block that `next` returned.
    history: History,
    /// History before the next record.
    next_history: History,
}

impl<'r> RangeWalk<'r> {
    fn begin(reader: &'r LogReader, from: Lsn) -> Result<Self, LogError> {
        let start = reader.index.start();
        let marked = reader.index.block_before(Lsn(from.0.saturating_sub(1)));
        // The walk starts at the beginning of the segment, for which the history before is known.
        let segment = reader.index.segment_of(marked.unwrap_or(start).place);
        let segment = segment.ok_or_else(|| reader.out_of_range(from))?;
        Ok(Self {
            reader,
            cursor: None,
            before: None,
            at: segment.place,
            history: segment.history,
            next_history: segment.history,
        })
    }

    fn next(&mut self) -> Result<Option<(PlacedBlock, Continuity)>, LogError> {
        let end = self.reader.end_place();
        if self.at >= end {
            return Ok(None);
        }
        let found = self.reader.index.segment_of(self.at);
        let place = found.ok_or_else(|| self.reader.out_of_range(self.next_lsn()))?;
        let start = place.place;
        if self.cursor.as_ref().is_none_or(|cursor| cursor.start != start) {
            self.cursor = Some(SegmentCursor::at(&*self.reader.disk, &place)?);
        }
        let cursor = self.cursor.as_mut().expect("just set");
        let limit = cursor.offset_of(place.following.map_or(end, |next| next.min(end)));
        match cursor.block(self.at, limit, self.before.as_ref()) {
            Ok((block, after)) => {
                self.at = block.end_place();
                self.before = Some(after);
                self.history = self.next_history;
                self.next_history = self.history.then(cursor.payload(&block)?);
                Ok(Some((block, after)))
            }
            Err(NoBlock::Disk(error)) => Err(error.into()),
            Err(NoBlock::Invalid(error) | NoBlock::Stranger(error)) => {
                Err(damaged(start, self.at, self.next_lsn(), &error))
            }
        }
    }

    /// Returns the LSN of the next block, if it is known.
    fn next_lsn(&self) -> Lsn {
        self.before.map_or(self.reader.index.start().lsn, |before| before.lsn)
    }

    /// The whole block that `next` returned.
    fn bytes(&mut self, block: &PlacedBlock) -> Result<&[u8], LogError> {
        let cursor = self.cursor.as_mut().expect("a block was found through it");
        let (offset, count) = (cursor.offset_of(block.place), block.header.block_bytes());
        Ok(cursor.bytes(offset, count, offset + count as u64)?)
    }

    fn begins_segment(&self, block: &PlacedBlock) -> bool {
        self.cursor.as_ref().is_some_and(|cursor| cursor.start == block.place)
    }

    fn segment_header(&self) -> Result<SegmentHeader, LogError> {
        let start = self.cursor.as_ref().expect("a block was found through it").start;
        read_header(&*self.reader.disk, start, self.next_lsn())
    }
}

/// A file on its way.
struct CopyTarget {
    file: Arc<dyn DiskFile>,
    buffer: Vec<u8>,
    written: u64,
}

impl CopyTarget {
    fn push(&mut self, bytes: &[u8]) -> Result<(), DiskError> {
        self.buffer.extend_from_slice(bytes);
        match self.buffer.len() >= WRITE_BYTES {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<(), DiskError> {
        self.file.write_at(self.written, &self.buffer)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<u64, DiskError> {
        self.flush()?;
        self.file.sync()?;
        Ok(self.written)
    }
}

struct BlockCopier<'t> {
    target: &'t dyn Disk,
    out: Option<CopyTarget>,
    /// The header of the file that is written.
    source: Option<SegmentHeader>,
    /// Memory units of the last block.
    memory_units: u32,
    /// The block that the next one continues.
    last: Continuity,
    /// Behind the last block.
    end_place: u64,
    blocks_bytes: u64,
    copy: LogCopy,
}

impl BlockCopier<'_> {
    /// Begins a file; `source` is the header of the one that the block comes from.
    fn begin(&mut self, block: &PlacedBlock, source: SegmentHeader, history: History) -> Result<(), LogError> {
        if let Some(out) = self.out.take() {
            self.copy.bytes += out.finish()?;
        } else {
            self.copy.start = block.header.lsn;
        }
        let header = SegmentHeader {
            start: block.header.lsn,
            place: block.place,
            chain: block.header.chain,
            epoch: block.header.epoch,
            history,
            ..source
        };
        self.source = Some(header);
        let name = segment_name(block.place);
        let mut out = CopyTarget {
            file: self.target.create(&name)?,
            buffer: Vec::new(),
            written: 0,
        };
        out.push(&header.encode())?;
        self.copy.files.push(name);
        self.out = Some(out);
        Ok(())
    }

    fn push(&mut self, block: &PlacedBlock, bytes: &[u8], after: Continuity) -> Result<(), LogError> {
        let out = self.out.as_mut().expect("begun before its blocks");
        out.push(bytes)?;
        self.last = after;
        if block.header.kind != BlockKind::Close {
            self.memory_units = block.header.memory_units;
        }
        (self.copy.end, self.end_place) = (block.end(), block.end_place());
        self.blocks_bytes += bytes.len() as u64;
        self.copy.records += block.header.records_count as u64;
        Ok(())
    }

    /// The block with its first records alone, in the same place.
    fn push_cut(&mut self, block: &PlacedBlock, bytes: &[u8], kept: usize, count: u32) -> Result<(), LogError> {
        let header = BlockHeader {
            payload_bytes: kept as u32,
            records_count: count,
            ..block.header
        };
        let mut cut = vec![0; block_bytes(kept)];
        let end = BLOCK_HEADER_BYTES + kept;
        cut[BLOCK_HEADER_BYTES..end].copy_from_slice(&bytes[BLOCK_HEADER_BYTES..end]);
        let chain = seal_block(&header, &mut cut);
        let cut_block = PlacedBlock { header, ..*block };
        let after = Continuity {
            chain,
            epoch: header.epoch,
            lsn: cut_block.end(),
        };
        self.push(&cut_block, &cut, after)
    }

    /// Closes the log in order: records missing behind it were left out, not lost.
    fn finish(mut self) -> Result<LogCopy, LogError> {
        let source = self.source.expect("the caller copied something");
        let place = self.end_place;
        let header = BlockHeader {
            kind: BlockKind::Close,
            lsn: self.copy.end,
            payload_bytes: 0,
            records_count: 0,
            chain: self.last.chain,
            tag: tag_at(source.block_tag(), place),
            epoch: self.last.epoch,
            payload_crc: 0,
            memory_units: self.memory_units,
        };
        let mut close = vec![0; block_bytes(0)];
        let chain = seal_block(&header, &mut close);
        let after = Continuity { chain, ..self.last };
        self.push(&PlacedBlock { header, place }, &close, after)?;
        let out = self.out.take().expect("the caller copied something");
        self.copy.bytes += out.finish()?;
        self.target.sync_dir()?;
        Ok(self.copy)
    }
}
