//! Reads every block of a log, and reports whole, interrupted and damaged parts.

use reprise_base::{Epoch, Lsn};
use reprise_env::Disk;
use reprise_wire::{BlockKind, History, MEMORY_UNIT_BYTES, RecordEffect, Records, SEGMENT_HEADER_BYTES, SegmentHeader};

use crate::{
    cursor::{Continuity, NoBlock, PlacedBlock, SegmentCursor},
    error::{Damage, LogError},
    index::{LogIndex, parse_segment_name, segment_name},
    reader::damaged,
};

/// A segment as found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    /// Its name.
    pub file: String,
    /// LSN of its first record.
    pub start: Lsn,
    /// Behind its last whole block.
    pub end: Lsn,
    /// Place of its first block: bytes of blocks before it, from the log's beginning.
    pub place: u64,
    /// Place of its end.
    pub end_place: u64,
    /// Hash of the settings under which it was written.
    pub settings_hash: u64,
    /// Epoch in its header.
    pub epoch: Epoch,
    /// Its length.
    pub file_bytes: u64,
}

/// Remains of the last write, which a crash cut off before it was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// File of the damage.
    pub file: String,
    /// Byte in the file.
    pub offset: u64,
    /// Behind the last whole record.
    pub lsn: Lsn,
    /// Its length.
    pub bytes: u64,
}

/// Everything found in a log. The log is good when `damage` is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// None for an empty directory.
    pub database_id: Option<[u8; 16]>,
    /// The segments in order.
    pub segments: Vec<SegmentReport>,
    /// LSN of the first record.
    pub start: Lsn,
    /// Behind the last whole block.
    pub end: Lsn,
    /// Epoch of the last whole block.
    pub epoch: Epoch,
    /// Bytes of all whole blocks.
    pub bytes: u64,
    /// That are whole.
    pub blocks: u64,
    /// Number of records in these.
    pub records: u64,
    /// Kind of the last block: `Close` after a close in order.
    pub last_block: Option<BlockKind>,
    /// Counted memory of the database, as the last block but a close told; 0: not told.
    pub memory_bytes: u64,
    /// LSNs of records that change modules, tables, or which procedures take calls.
    pub control: Vec<Lsn>,
    /// If there is one.
    pub torn: Option<TornTail>,
    /// The first one, if any.
    pub damage: Option<Damage>,
}

/// Reads the whole log without changing it. Err only if the disk fails, or if a file has another program's numbers.
pub fn verify(disk: &dyn Disk) -> Result<VerifyReport, LogError> {
    Ok(scan(disk)?.report)
}

/// The LSN of the first record of the segment that begins at a place, as its header tells.
pub fn start_of_segment(disk: &dyn Disk, place: u64) -> Result<Lsn, LogError> {
    Ok(read_header(disk, place, Lsn(0))?.start)
}

/// Returns the header of the segment that begins at a place. `lsn` is the end of the whole part.
pub(crate) fn read_header(disk: &dyn Disk, place: u64, lsn: Lsn) -> Result<SegmentHeader, LogError> {
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    let read = disk.open_read(&segment_name(place))?.read_at(0, &mut bytes)?;
    SegmentHeader::decode(&bytes[..read]).map_err(|error| match error.is_foreign() {
        true => LogError::foreign(&segment_name(place), error),
        false => damaged(place, place, lsn, &error),
    })
}

/// Id of the database whose log is on `disk`, by its oldest segment; None: there is no log.
pub fn database_id(disk: &dyn Disk) -> Result<Option<[u8; 16]>, LogError> {
    let names = disk.list()?;
    let Some(place) = names.iter().filter_map(|name| parse_segment_name(name)).min() else {
        return Ok(None);
    };
    Ok(Some(read_header(disk, place, Lsn(0))?.database_id))
}

pub(crate) struct LogScan {
    pub report: VerifyReport,
    pub index: LogIndex,
    /// Block key of the newest segment.
    pub block_key: u32,
    /// Values that the next block must continue.
    pub next: Continuity,
    /// History of all records.
    pub history: History,
    /// Place of the last whole block.
    pub last_block: Option<u64>,
    /// Behind the last whole block.
    pub end_place: u64,
}

/// Why the walk ends early: damage is a finding, the rest an error.
enum Stop {
    Damage(Damage),
    Error(LogError),
}

impl<E: Into<LogError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

pub(crate) fn scan(disk: &dyn Disk) -> Result<LogScan, LogError> {
    let names = disk.list()?;
    let places: Vec<_> = names.iter().filter_map(|name| parse_segment_name(name)).collect();
    let mut scan = LogScan {
        report: VerifyReport::default(),
        index: LogIndex::default(),
        block_key: 0,
        next: Continuity::BEGINNING,
        history: History::default(),
        last_block: None,
        end_place: 0,
    };
    // Sixteen hexadecimal digits: the order of names is that of places.
    for (number, place) in places.iter().enumerate() {
        let following = places.get(number + 1).copied();
        match scan.segment(disk, *place, following) {
            Ok(()) => {}
            Err(Stop::Damage(damage)) => {
                scan.report.damage = Some(damage);
                break;
            }
            Err(Stop::Error(error)) => return Err(error),
        }
    }
    Ok(scan)
}

impl LogScan {
    fn segment(&mut self, disk: &dyn Disk, place: u64, following: Option<u64>) -> Result<(), Stop> {
        let file = segment_name(place);
        let mut cursor = SegmentCursor::new(disk.open_read(&file)?, place);
        let file_bytes = cursor.file_bytes()?;
        let header = self.header(&mut cursor, &file)?;
        self.report.segments.push(SegmentReport {
            file,
            start: header.start,
            end: header.start,
            place,
            end_place: place,
            settings_hash: header.settings_hash,
            epoch: header.epoch,
            file_bytes,
        });
        (self.report.end, self.end_place) = (header.start, place);
        cursor.set_header(&header);
        self.block_key = header.block_key;
        self.index.add_segment(&header);
        // The segment that follows was begun when everything before its start was durable.
        let end = following.unwrap_or(u64::MAX);
        while self.end_place < end {
            match cursor.block(self.end_place, file_bytes, Some(&self.next)) {
                Ok((block, next)) => self.block(&mut cursor, &block, next)?,
                Err(NoBlock::Disk(error)) => return Err(error.into()),
                Err(NoBlock::Stranger(error)) => {
                    return Err(self.damage(&cursor, format!("a whole block, but the {error}")));
                }
                Err(NoBlock::Invalid(error)) if following.is_some() => {
                    let what = format!("{error}; the segment that follows shows that it was whole");
                    return Err(self.damage(&cursor, what));
                }
                Err(NoBlock::Invalid(error)) => return self.tail(&mut cursor, &error.to_string()),
            }
        }
        if self.end_place == end {
            return Ok(());
        }
        Err(self.damage(
            &cursor,
            format!("the last block reaches beyond byte {end} of the log, where the next file begins"),
        ))
    }

    fn header(&mut self, cursor: &mut SegmentCursor, file: &str) -> Result<SegmentHeader, Stop> {
        let (place, end) = (cursor.start, self.report.end);
        let damage = |what: String| {
            Err(Stop::Damage(Damage {
                file: file.to_owned(),
                offset: 0,
                lsn: end,
                what,
            }))
        };
        let bytes = cursor.bytes(0, SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES as u64)?;
        let header = match SegmentHeader::decode(bytes) {
            Ok(header) => header,
            Err(error) if error.is_foreign() => return Err(Stop::Error(LogError::foreign(file, error))),
            Err(error) => return damage(error.to_string()),
        };
        if header.place != place {
            return damage(format!("the header tells of byte {} of the log", header.place));
        }
        match self.report.database_id {
            None => {
                self.report.database_id = Some(header.database_id);
                self.report.start = header.start;
                (self.next.chain, self.next.lsn) = (header.chain, header.start);
            }
            Some(id) if id != header.database_id => {
                return damage("the file belongs to another database".to_owned());
            }
            Some(_) if self.end_place != place => {
                return damage(format!("the file before it ends at byte {} of the log", self.end_place));
            }
            Some(_) if self.report.end != header.start => {
                return damage(format!("the file before it ends at LSN {}", self.report.end));
            }
            Some(_) if self.next.chain != header.chain => {
                return damage("the file does not follow the one before it".to_owned());
            }
            Some(_) => {}
        }
        if self.next.epoch.is_after(header.epoch) {
            return damage(format!("the file before it is of epoch {}", self.next.epoch));
        }
        if !self.report.segments.is_empty() && header.history != self.history {
            return damage("the records before it are not those that it tells of".to_owned());
        }
        (self.next.epoch, self.history) = (header.epoch, header.history);
        Ok(header)
    }

    fn block(&mut self, cursor: &mut SegmentCursor, block: &PlacedBlock, next: Continuity) -> Result<(), Stop> {
        let mut count = 0;
        let mut malformed = None;
        let mut is_changes = true;
        let mut control = Vec::new();
        let mut lsn = block.first();
        let payload = cursor.payload(block)?;
        let history = self.history.then(payload);
        for record in Records::new(payload) {
            count += 1;
            match record {
                Ok((_, record, _)) => {
                    let effect = record.facts().effect;
                    is_changes &= effect == RecordEffect::Rows;
                    control.extend((effect == RecordEffect::Control).then_some(lsn));
                    lsn = Lsn(lsn.0 + 1);
                }
                Err(error) => malformed = Some(error),
            }
        }
        if let Some(error) = malformed {
            return Err(self.damage(cursor, format!("record {count} of the block: {error}")));
        }
        if count != block.header.records_count {
            let what = format!("{count} records in the block, {} told", block.header.records_count);
            return Err(self.damage(cursor, what));
        }
        self.report.control.append(&mut control);
        self.index.mark(block);
        if count > 0 {
            self.index.record_epoch(next.epoch, block.first(), self.history);
        }
        if is_changes {
            self.index.record_changes(block.place, block.end_place());
        }
        (self.next, self.history) = (next, history);
        self.report.epoch = next.epoch;
        (self.last_block, self.end_place) = (Some(block.place), block.end_place());
        self.report.blocks += 1;
        self.report.bytes += block.end_place() - block.place;
        self.report.records += count as u64;
        self.report.last_block = Some(block.header.kind);
        self.report.end = block.end();
        let segment = self.report.segments.last_mut().expect("pushed before its blocks");
        (segment.end, segment.end_place) = (block.end(), block.end_place());
        // At a close, the tables are freed already.
        if block.header.kind != BlockKind::Close {
            self.report.memory_bytes = block.header.memory_units as u64 * MEMORY_UNIT_BYTES;
        }
        Ok(())
    }

    /// The place behind the last whole block of the last segment.
    fn tail(&mut self, cursor: &mut SegmentCursor, invalid: &str) -> Result<(), Stop> {
        let behind = cursor.search_behind(self.end_place)?;
        if let Some(later) = behind.block {
            let what = format!("{invalid}; the block at LSN {later} shows that it was whole");
            return Err(self.damage(cursor, what));
        }
        if behind.nonzero_bytes > 0 {
            self.report.torn = Some(TornTail {
                file: segment_name(cursor.start),
                offset: cursor.offset_of(self.end_place),
                lsn: self.report.end,
                bytes: behind.nonzero_bytes,
            });
        }
        Ok(())
    }

    fn damage(&self, cursor: &SegmentCursor, what: String) -> Stop {
        Stop::Damage(Damage {
            file: segment_name(cursor.start),
            offset: cursor.offset_of(self.end_place),
            lsn: self.report.end,
            what,
        })
    }
}
