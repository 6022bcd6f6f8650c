//! Copies a part of a log to another directory, cut behind any record: for a backup, or for a restore to a point.

use std::sync::Arc;

use reprise_base::Lsn;
use reprise_env::{Disk, DiskError, DiskFile};
use reprise_wire::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockKind, Records, SEGMENT_HEADER_BYTES, SegmentHeader, block_bytes, seal_block,
};

use crate::{
    cursor::{Continuity, NoBlock, SegmentCursor},
    error::{LogError, UnavailableKind},
    index::segment_name,
    reader::{LogReader, damaged, record_lsn},
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

/// What was copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogCopy {
    /// File names, in order.
    pub files: Vec<String>,
    pub start: Lsn,
    /// Behind the last block, which says that the log was closed in order.
    pub end: Lsn,
    pub records: u64,
    pub bytes: u64,
}

impl LogReader {
    /// Copies what lies in `range` to files on `target`, where no log is. Positions stay what they are; files may begin
    /// elsewhere. All of it is durable at the end. `goes_on` is told how far the copy is; false gives it up. On an error
    /// what was written is the caller's to remove.
    pub fn copy(
        &self,
        range: CopyRange,
        target: &dyn Disk,
        goes_on: &mut dyn FnMut(Lsn) -> bool,
    ) -> Result<LogCopy, LogError> {
        let mut copier = Copier {
            target,
            out: None,
            block_tag: 0,
            memory_units: 0,
            last: Continuity::BEGINNING,
            copy: LogCopy::default(),
        };
        let mut walk = Walk::begin(self, range.from)?;
        while let Some((block, after)) = walk.next()? {
            // The record that ends at `from` lies in the last block that begins before it.
            if block.end() < range.from {
                continue;
            }
            if block.lsn >= range.until || !goes_on(block.lsn) {
                break;
            }
            let version = walk.version();
            let kept = kept_records(&block, walk.bytes(&block)?, range.until, version);
            if matches!(kept, Kept::None) {
                break;
            }
            if copier.out.is_none() || walk.begins_segment(&block) {
                copier.begin(&block, walk.segment_header()?)?;
            }
            let bytes = walk.bytes(&block)?;
            if let Kept::First { bytes: kept, count } = kept {
                copier.push_cut(&block, bytes, kept, count)?;
                break;
            }
            copier.push(&block, bytes, after)?;
        }
        if copier.out.is_none() {
            return Err(self.nothing(range));
        }
        if !goes_on(copier.copy.end) {
            let reason = "the copy was given up";
            return Err(LogError::unavailable(UnavailableKind::Closed, reason));
        }
        copier.finish()
    }

    fn nothing(&self, range: CopyRange) -> LogError {
        LogError::OutOfRange {
            lsn: range.until,
            start: Lsn(self.index.start()),
            end: self.end(),
        }
    }
}

/// What of a block's records lies before the end of the range.
enum Kept {
    All,
    None,
    First { bytes: usize, count: u32 },
}

fn kept_records(block: &BlockHeader, bytes: &[u8], until: Lsn, version: u32) -> Kept {
    if until >= block.end() || block.payload_bytes == 0 {
        return Kept::All;
    }
    let payload = &bytes[BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + block.payload_bytes as usize];
    let mut records = Records::new(payload, version);
    let mut count = 0;
    while record_lsn(block, records.offset()) < until {
        match records.next() {
            Some(Ok(_)) => count += 1,
            _ => return Kept::All,
        }
    }
    match count {
        0 => Kept::None,
        count => Kept::First {
            bytes: records.offset(),
            count,
        },
    }
}

/// The blocks of a log, one after the other.
struct Walk<'r> {
    reader: &'r LogReader,
    cursor: Option<SegmentCursor>,
    before: Option<Continuity>,
    at: u64,
}

impl<'r> Walk<'r> {
    fn begin(reader: &'r LogReader, from: Lsn) -> Result<Self, LogError> {
        let start = reader.index.start();
        let marked = reader.index.block_before(from.0.saturating_sub(1));
        Ok(Self {
            reader,
            cursor: None,
            before: None,
            at: marked.unwrap_or(start),
        })
    }

    fn next(&mut self) -> Result<Option<(BlockHeader, Continuity)>, LogError> {
        let end = self.reader.end().0;
        if self.at >= end {
            return Ok(None);
        }
        let found = self.reader.index.segment_of(self.at);
        let place = found.ok_or_else(|| self.reader.out_of_range(self.at))?;
        let start = place.start;
        if self.cursor.as_ref().is_none_or(|cursor| cursor.start != start) {
            self.cursor = Some(SegmentCursor::at(&*self.reader.disk, &place)?);
        }
        let cursor = self.cursor.as_mut().expect("just set");
        let limit = cursor.offset_of(place.following.map_or(end, |next| next.min(end)));
        match cursor.block(self.at, limit, self.before.as_ref()) {
            Ok((block, after)) => {
                self.at = block.end().0;
                self.before = Some(after);
                Ok(Some((block, after)))
            }
            Err(NoBlock::Disk(error)) => Err(error.into()),
            Err(NoBlock::Invalid(error) | NoBlock::Stranger(error)) => Err(damaged(start, self.at, &error)),
        }
    }

    /// Of the format of the segment in which the block lies that `next` returned.
    fn version(&self) -> u32 {
        self.cursor.as_ref().expect("a block was found through it").version
    }

    /// The whole block that `next` returned.
    fn bytes(&mut self, block: &BlockHeader) -> Result<&[u8], LogError> {
        let cursor = self.cursor.as_mut().expect("a block was found through it");
        let (offset, count) = (cursor.offset_of(block.lsn.0), block.block_bytes());
        Ok(cursor.bytes(offset, count, offset + count as u64)?)
    }

    fn begins_segment(&self, block: &BlockHeader) -> bool {
        self.cursor.as_ref().is_some_and(|cursor| cursor.start == block.lsn.0)
    }

    fn segment_header(&self) -> Result<SegmentHeader, LogError> {
        let start = self.cursor.as_ref().expect("a block was found through it").start;
        let file = self.reader.disk.open_read(&segment_name(Lsn(start)))?;
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        let read = file.read_at(0, &mut bytes)?;
        SegmentHeader::decode(&bytes[..read]).map_err(|error| damaged(start, start, &error))
    }
}

/// A file on its way.
struct Out {
    file: Arc<dyn DiskFile>,
    buffer: Vec<u8>,
    written: u64,
}

impl Out {
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

struct Copier<'t> {
    target: &'t dyn Disk,
    out: Option<Out>,
    /// Of the blocks of the file that is written.
    block_tag: u32,
    /// As the last block told.
    memory_units: u32,
    /// What the next block continues.
    last: Continuity,
    copy: LogCopy,
}

impl Copier<'_> {
    /// Begins a file; `source` is the header of the one that the block comes from.
    fn begin(&mut self, block: &BlockHeader, source: SegmentHeader) -> Result<(), LogError> {
        if let Some(out) = self.out.take() {
            self.copy.bytes += out.finish()?;
        } else {
            self.copy.start = block.lsn;
        }
        let header = SegmentHeader {
            start: block.lsn,
            chain: block.chain,
            ..source
        };
        self.block_tag = header.block_tag();
        let name = segment_name(block.lsn);
        let mut out = Out {
            file: self.target.create(&name)?,
            buffer: Vec::new(),
            written: 0,
        };
        out.push(&header.encode())?;
        self.copy.files.push(name);
        self.out = Some(out);
        Ok(())
    }

    fn push(&mut self, block: &BlockHeader, bytes: &[u8], after: Continuity) -> Result<(), LogError> {
        let out = self.out.as_mut().expect("begun before its blocks");
        out.push(bytes)?;
        self.last = after;
        if block.kind != BlockKind::Close {
            self.memory_units = block.memory_units;
        }
        self.copy.end = block.end();
        self.copy.records += block.records_count as u64;
        Ok(())
    }

    /// The block with its first records alone, in the same place.
    fn push_cut(&mut self, block: &BlockHeader, bytes: &[u8], kept: usize, count: u32) -> Result<(), LogError> {
        let header = BlockHeader {
            payload_bytes: kept as u32,
            records_count: count,
            ..*block
        };
        let mut cut = vec![0; block_bytes(kept)];
        let end = BLOCK_HEADER_BYTES + kept;
        cut[BLOCK_HEADER_BYTES..end].copy_from_slice(&bytes[BLOCK_HEADER_BYTES..end]);
        let after = Continuity {
            chain: seal_block(&header, &mut cut),
            generation: block.generation,
        };
        self.push(&header, &cut, after)
    }

    /// Closes the log in order: what is missing behind it was left out, not lost.
    fn finish(mut self) -> Result<LogCopy, LogError> {
        let header = BlockHeader {
            kind: BlockKind::Close,
            lsn: self.copy.end,
            payload_bytes: 0,
            records_count: 0,
            chain: self.last.chain,
            tag: self.block_tag,
            generation: self.last.generation,
            payload_crc: 0,
            memory_units: self.memory_units,
        };
        let mut close = vec![0; block_bytes(0)];
        let chain = seal_block(&header, &mut close);
        let after = Continuity { chain, ..self.last };
        self.push(&header, &close, after)?;
        let out = self.out.take().expect("the caller copied something");
        self.copy.bytes += out.finish()?;
        self.target.sync_dir()?;
        Ok(self.copy)
    }
}
