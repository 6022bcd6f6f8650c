//! Positions of the log's blocks: every segment, and a block now and then. Every lookup from an LSN to a place uses it.

use std::sync::{Mutex, MutexGuard};

use reprise_base::{Epoch, Lsn};
use reprise_wire::{History, SegmentHeader};

use crate::{cursor::PlacedBlock, rewind::EpochStart};

/// Bytes of log between two recorded blocks: 32 KiB of memory per GiB.
const MARK_EVERY_BYTES: u64 = 512 << 10;

/// Number of epochs that are known; older ones are never asked for.
const EPOCHS_MAX: usize = 1024;

const PREFIX: &str = "log-";
const SUFFIX: &str = ".seg";
/// A prepared segment that has no place in the log yet.
pub(crate) const SPARE_NAME: &str = "spare.seg";
/// A segment that fell out of the log, to be made the next spare.
pub(crate) const RECYCLE_NAME: &str = "recycle.seg";

/// The file of the segment that begins at a place.
pub fn segment_name(place: u64) -> String {
    format!("{PREFIX}{place:016x}{SUFFIX}")
}

/// The place that a file name tells, if it is a segment's.
pub fn parse_segment_name(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let place = u64::from_str_radix(digits, 16).ok()?;
    (segment_name(place) == name).then_some(place)
}

/// A segment of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentPlace {
    /// Place of its first block.
    pub place: u64,
    /// LSN of its first record.
    pub start: Lsn,
    /// Epoch in its header.
    pub epoch: Epoch,
    /// History before its first record.
    pub history: History,
    /// Base of the tags of its blocks.
    pub block_tag: u32,
    /// Place of the next segment.
    pub following: Option<u64>,
}

/// A block's place, and the LSN of its first record or of the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogPoint {
    pub place: u64,
    pub lsn: Lsn,
}

#[derive(Debug, Default)]
struct IndexState {
    /// All segments, oldest first; what follows each is the next one.
    segments: Vec<SegmentPlace>,
    /// Some blocks, growing; the first block of each segment is among them.
    marks: Vec<LogPoint>,
    /// Stretches that are known to hold changes alone, by place, growing, none touching the next.
    changes: Vec<(u64, u64)>,
    /// First records of the newest epochs, growing.
    epochs: Vec<EpochStart>,
}

#[derive(Debug, Default)]
pub(crate) struct LogIndex(Mutex<IndexState>);

impl IndexState {
    /// Estimates the place of the records from `lsn` on. It is exact at a recorded block. Between two of them it assumes that all records
    /// have one length. `end` is behind the last record.
    fn place_of(&self, lsn: Lsn, end: LogPoint) -> u64 {
        if lsn >= end.lsn {
            return end.place;
        }
        let after = self.marks.partition_point(|mark| mark.lsn <= lsn);
        let Some(before) = after.checked_sub(1).map(|before| self.marks[before]) else {
            return self.segments.first().map_or(0, |segment| segment.place);
        };
        let after = self.marks.get(after).copied().unwrap_or(end);
        let records = (after.lsn.0 - before.lsn.0).max(1);
        let bytes = (after.place - before.place) as u128;
        before.place + (bytes * u128::from(lsn.0 - before.lsn.0) / u128::from(records)) as u64
    }
}

impl LogIndex {
    fn inner(&self) -> MutexGuard<'_, IndexState> {
        self.0.lock().expect("nothing panics while the index is held")
    }

    pub fn add_segment(&self, header: &SegmentHeader) {
        let mut inner = self.inner();
        let segment = SegmentPlace {
            place: header.place,
            start: header.start,
            epoch: header.epoch,
            history: header.history,
            block_tag: header.block_tag(),
            following: None,
        };
        if let Some(last) = inner.segments.last_mut() {
            if last.place == segment.place {
                // A crash left it without a block, and it was too small for the first one: another file has its name now.
                *last = segment;
                return;
            }
            assert!(last.place < segment.place, "segments grow");
            last.following = Some(segment.place);
        }
        inner.segments.push(segment);
    }

    /// Notes a block if the last note is far enough behind.
    pub fn mark(&self, block: &PlacedBlock) {
        let mut inner = self.inner();
        let newest_segment = inner.segments.last().map(|segment| segment.place);
        let mark = LogPoint {
            place: block.place,
            lsn: block.header.lsn,
        };
        let is_due = match inner.marks.last() {
            Some(last) => mark.place >= last.place + MARK_EVERY_BYTES || newest_segment == Some(mark.place),
            None => true,
        };
        if is_due && inner.marks.last().is_none_or(|last| last.place < mark.place) {
            inner.marks.push(mark);
        }
    }

    /// Records that a stretch of blocks holds only changes; it lies behind all earlier ones.
    pub fn record_changes(&self, start: u64, end: u64) {
        let mut inner = self.inner();
        match inner.changes.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => inner.changes.push((start, end)),
        }
    }

    /// Records the epoch of a block with records, and the history before that block.
    pub fn record_epoch(&self, epoch: Epoch, start: Lsn, history: History) {
        let mut inner = self.inner();
        if inner.epochs.last().is_none_or(|last| last.epoch != epoch) {
            if inner.epochs.len() == EPOCHS_MAX {
                inner.epochs.remove(0);
            }
            inner.epochs.push(EpochStart { epoch, start, history });
        }
    }

    pub fn epochs(&self) -> Vec<EpochStart> {
        self.inner().epochs.clone()
    }

    /// True if the block at `place` is known to hold changes and nothing else.
    pub fn holds_changes(&self, place: u64) -> bool {
        let inner = self.inner();
        let after = inner.changes.partition_point(|(start, _)| *start <= place);
        let last = after.checked_sub(1).map(|last| inner.changes[last]);
        last.is_some_and(|(_, end)| place < end)
    }

    /// Bytes of blocks in which the records from `from` to `to` lie, to the part of a block, of a log that ends at `end`.
    pub fn bytes_between(&self, from: Lsn, to: Lsn, end: LogPoint) -> u64 {
        let inner = self.inner();
        inner.place_of(to, end).saturating_sub(inner.place_of(from, end))
    }

    /// The segment that holds `place`.
    pub fn segment_of(&self, place: u64) -> Option<SegmentPlace> {
        let inner = self.inner();
        let after = inner.segments.partition_point(|segment| segment.place <= place);
        inner.segments.get(after.checked_sub(1)?).copied()
    }

    /// The newest segment that begins at or before `lsn`.
    pub fn segment_with(&self, lsn: Lsn) -> Option<SegmentPlace> {
        let inner = self.inner();
        let after = inner.segments.partition_point(|segment| segment.start <= lsn);
        inner.segments.get(after.checked_sub(1)?).copied()
    }

    /// The last noted block whose records begin at or before `lsn`.
    pub fn block_before(&self, lsn: Lsn) -> Option<LogPoint> {
        let inner = self.inner();
        let after = inner.marks.partition_point(|mark| mark.lsn <= lsn);
        inner.marks.get(after.checked_sub(1)?).copied()
    }

    /// The last noted block before `place`.
    pub fn mark_before(&self, place: u64) -> Option<LogPoint> {
        let inner = self.inner();
        let after = inner.marks.partition_point(|mark| mark.place < place);
        inner.marks.get(after.checked_sub(1)?).copied()
    }

    /// Start of the oldest segment.
    pub fn start(&self) -> LogPoint {
        let inner = self.inner();
        let first = inner.segments.first();
        first.map_or(LogPoint { place: 0, lsn: Lsn(0) }, |segment| LogPoint {
            place: segment.place,
            lsn: segment.start,
        })
    }

    /// The places of segments of which all records lie before `lsn` and that another one follows, oldest first.
    pub fn oldest_before(&self, lsn: Lsn) -> Vec<u64> {
        let inner = self.inner();
        let pairs = inner.segments.windows(2);
        pairs
            .take_while(|pair| pair[1].start <= lsn)
            .map(|pair| pair[0].place)
            .collect()
    }

    /// The oldest segment, when all of it lies before `lsn` and another one follows.
    pub fn take_oldest_before(&self, lsn: Lsn) -> Option<u64> {
        let mut inner = self.inner();
        let next = inner.segments.get(1)?;
        if next.start > lsn {
            return None;
        }
        let next = next.place;
        let oldest = inner.segments.remove(0).place;
        inner.marks.retain(|mark| mark.place >= next);
        inner.changes.retain(|(_, end)| *end > next);
        Some(oldest)
    }
}

#[cfg(test)]
mod tests {
    use reprise_wire::{BlockHeader, BlockKind};

    use super::*;

    fn header(place: u64, start: u64) -> SegmentHeader {
        SegmentHeader {
            database_id: [7; 16],
            start: Lsn(start),
            place,
            settings_hash: 0,
            epoch: Epoch::new(1, 0),
            history: History(0),
            chain: 0,
            block_key: 0,
        }
    }

    fn block(place: u64, lsn: u64) -> PlacedBlock {
        PlacedBlock {
            header: BlockHeader {
                kind: BlockKind::Data,
                lsn: Lsn(lsn),
                payload_bytes: 1,
                records_count: 1,
                chain: 0,
                tag: 0,
                epoch: Epoch::new(1, 0),
                payload_crc: 0,
                memory_units: 0,
            },
            place,
        }
    }

    #[test]
    fn names_have_one_form() {
        let name = segment_name(0xabc);
        assert_eq!(name, "log-0000000000000abc.seg");
        assert_eq!(parse_segment_name(&name), Some(0xabc));
        for other in ["log-abc.seg", "log-0000000000000ABC.seg", SPARE_NAME, "log-.seg", "x"] {
            assert_eq!(parse_segment_name(other), None);
        }
    }

    /// Blocks of 400,000 bytes and ten records, ten in a segment.
    fn filled() -> LogIndex {
        let index = LogIndex::default();
        index.add_segment(&header(0, 0));
        (0..10).for_each(|at| index.mark(&block(at * 400_000, at * 10)));
        index.add_segment(&header(4_000_000, 100));
        index.mark(&block(4_000_000, 100));
        index
    }

    #[test]
    fn marks_lead_to_the_block_before() {
        let index = filled();
        let place = |lsn| index.block_before(Lsn(lsn)).map(|mark| mark.place);
        // One in two is noted.
        assert_eq!(
            (place(19), place(20), place(101)),
            (Some(0), Some(800_000), Some(4_000_000))
        );
        let first = index.segment_of(3_999_999).expect("the first one");
        assert_eq!((first.start, first.following), (Lsn(0), Some(4_000_000)));
        assert!(index.oldest_before(Lsn(99)).is_empty());
        assert_eq!(index.oldest_before(Lsn(100)), [0]);
        assert_eq!(index.take_oldest_before(Lsn(99)), None);
        assert_eq!(index.take_oldest_before(Lsn(100)), Some(0));
        assert_eq!(place(99), None);
        assert_eq!((index.start().place, index.start().lsn), (4_000_000, Lsn(100)));
    }

    #[test]
    fn bytes_are_counted_between_records() {
        let index = filled();
        let end = LogPoint {
            place: 4_800_000,
            lsn: Lsn(108),
        };
        let bytes = |from, to| index.bytes_between(Lsn(from), Lsn(to), end);
        assert_eq!((bytes(0, 108), bytes(20, 100)), (4_800_000, 3_200_000));
        // Between two noted blocks in proportion, and nothing behind the end.
        assert_eq!(
            (bytes(30, 100), bytes(104, 108), bytes(108, 200)),
            (2_800_000, 400_000, 0)
        );
        index.record_changes(800_000, 2_000_000);
        index.record_changes(4_000_000, 4_400_000);
        assert!(index.holds_changes(800_000) && !index.holds_changes(2_000_000));
    }
}
