//! Where the log's blocks lie: every segment, and now and then a block in it.

use std::sync::{Mutex, MutexGuard};

use reprise_base::Lsn;
use reprise_wire::SegmentHeader;

/// One block is noted for every so many bytes of log: 16 KiB of memory per GiB.
const MARK_EVERY_BYTES: u64 = 512 << 10;

const PREFIX: &str = "log-";
const SUFFIX: &str = ".seg";
/// A prepared segment that has no place in the log yet.
pub(crate) const SPARE_NAME: &str = "spare.seg";
/// A segment that fell out of the log, to be made the next spare.
pub(crate) const RECYCLE_NAME: &str = "recycle.seg";

/// The file of the segment that begins at a position.
pub fn segment_name(start: Lsn) -> String {
    format!("{PREFIX}{:016x}{SUFFIX}", start.0)
}

/// The start that a file name tells, if it is a segment's.
pub fn parse_segment_name(name: &str) -> Option<Lsn> {
    let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let start = Lsn(u64::from_str_radix(digits, 16).ok()?);
    (segment_name(start) == name).then_some(start)
}

/// A segment of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentPlace {
    pub start: u64,
    /// What its blocks have as their tag.
    pub block_tag: u32,
    /// Of the format: what its records are read by.
    pub version: u32,
    /// Where the next one begins.
    pub following: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u64,
    block_tag: u32,
    version: u32,
}

#[derive(Debug, Default)]
struct Inner {
    /// All segments, oldest first.
    segments: Vec<Segment>,
    /// Starts of some blocks, growing; the first block of each segment is among them.
    marks: Vec<u64>,
    /// Stretches that are known to hold changes alone, growing, none touching the next.
    changes: Vec<(u64, u64)>,
}

#[derive(Debug, Default)]
pub(crate) struct LogIndex(Mutex<Inner>);

impl LogIndex {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("nothing panics while the index is held")
    }

    pub fn add_segment(&self, header: &SegmentHeader) {
        let mut inner = self.inner();
        let segment = Segment {
            start: header.start.0,
            block_tag: header.block_tag(),
            version: header.version,
        };
        if let Some(last) = inner.segments.last_mut().filter(|last| last.start == segment.start) {
            // A crash left it without a block, and it was too small for the first one: another file has its name now.
            *last = segment;
            return;
        }
        let last = inner.segments.last().map(|last| last.start);
        assert!(last < Some(segment.start), "segments grow");
        inner.segments.push(segment);
    }

    /// Notes a block if the last note is far enough behind.
    pub fn mark(&self, block: u64) {
        let mut inner = self.inner();
        let newest_segment = inner.segments.last().map(|segment| segment.start);
        let is_due = match inner.marks.last() {
            Some(last) => block >= last + MARK_EVERY_BYTES || newest_segment == Some(block),
            None => true,
        };
        if is_due && inner.marks.last() < Some(&block) {
            inner.marks.push(block);
        }
    }

    /// Notes that the blocks of a stretch behind those that were noted before hold changes and nothing else.
    pub fn note_changes(&self, start: u64, end: u64) {
        let mut inner = self.inner();
        match inner.changes.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => inner.changes.push((start, end)),
        }
    }

    /// True where the block at `lsn` is known to hold changes and nothing else.
    pub fn holds_changes(&self, lsn: u64) -> bool {
        let inner = self.inner();
        let after = inner.changes.partition_point(|(start, _)| *start <= lsn);
        let last = after.checked_sub(1).map(|last| inner.changes[last]);
        last.is_some_and(|(_, end)| lsn < end)
    }

    /// Bytes of such stretches behind `from`, of those that are as long as `stretch_min` there.
    pub fn changes_bytes(&self, from: u64, stretch_min: u64) -> u64 {
        let inner = self.inner();
        let stretches = inner.changes.iter();
        let lengths = stretches.map(|(start, end)| end.saturating_sub(from.max(*start)));
        lengths.filter(|bytes| *bytes >= stretch_min).sum()
    }

    /// The segment that holds `lsn`.
    pub fn segment_of(&self, lsn: u64) -> Option<SegmentPlace> {
        let inner = self.inner();
        let after = inner.segments.partition_point(|segment| segment.start <= lsn);
        let segment = inner.segments.get(after.checked_sub(1)?)?;
        Some(SegmentPlace {
            start: segment.start,
            block_tag: segment.block_tag,
            version: segment.version,
            following: inner.segments.get(after).map(|segment| segment.start),
        })
    }

    /// The last noted block at or before `lsn`.
    pub fn block_before(&self, lsn: u64) -> Option<u64> {
        let inner = self.inner();
        let after = inner.marks.partition_point(|mark| *mark <= lsn);
        inner.marks.get(after.checked_sub(1)?).copied()
    }

    pub fn start(&self) -> u64 {
        self.inner().segments.first().map_or(0, |segment| segment.start)
    }

    /// The segments of which all lies before `lsn` and that another one follows, oldest first.
    pub fn oldest_before(&self, lsn: u64) -> Vec<u64> {
        let inner = self.inner();
        let pairs = inner.segments.windows(2);
        pairs
            .take_while(|pair| pair[1].start <= lsn)
            .map(|pair| pair[0].start)
            .collect()
    }

    /// The oldest segment, when all of it lies before `lsn` and another one follows.
    pub fn take_oldest_before(&self, lsn: u64) -> Option<u64> {
        let mut inner = self.inner();
        let next = inner.segments.get(1)?.start;
        if next > lsn {
            return None;
        }
        let oldest = inner.segments.remove(0).start;
        inner.marks.retain(|mark| *mark >= next);
        inner.changes.retain(|(_, end)| *end > next);
        Some(oldest)
    }
}

#[cfg(test)]
mod tests {
    use reprise_wire::FORMAT_VERSION;

    use super::*;

    fn header(start: u64) -> SegmentHeader {
        SegmentHeader {
            version: FORMAT_VERSION,
            semantics: 1,
            database_id: [7; 16],
            start: Lsn(start),
            settings_hash: 0,
            epoch: 0,
            chain: 0,
            block_key: 0,
        }
    }

    #[test]
    fn names_have_one_form() {
        let name = segment_name(Lsn(0xabc));
        assert_eq!(name, "log-0000000000000abc.seg");
        assert_eq!(parse_segment_name(&name), Some(Lsn(0xabc)));
        for other in ["log-abc.seg", "log-0000000000000ABC.seg", SPARE_NAME, "log-.seg", "x"] {
            assert_eq!(parse_segment_name(other), None);
        }
    }

    #[test]
    fn marks_lead_to_the_block_before() {
        let index = LogIndex::default();
        index.add_segment(&header(0));
        (0..10).for_each(|block| index.mark(block * 400_000));
        index.add_segment(&header(4_000_000));
        index.mark(4_000_000);
        assert_eq!(index.block_before(399_999), Some(0));
        assert_eq!(index.block_before(4_000_001), Some(4_000_000));
        let first = SegmentPlace {
            start: 0,
            block_tag: header(0).block_tag(),
            version: FORMAT_VERSION,
            following: Some(4_000_000),
        };
        assert_eq!(index.segment_of(3_999_999), Some(first));
        assert!(index.oldest_before(3_999_999).is_empty());
        assert_eq!(index.oldest_before(u64::MAX), [0]);
        assert_eq!(index.take_oldest_before(3_999_999), None);
        assert_eq!(index.take_oldest_before(4_000_000), Some(0));
        assert_eq!(index.block_before(399_999), None);
        assert_eq!(index.start(), 4_000_000);
    }
}
