//! Builds a hash index of many entries at once: as many segments as they will need, filled a cacheful at a time.

use reprise_pages::{Pages, equal};

use super::{DEPTH_MAX, HashIndex, LINE_ENTRIES, LINES, RIDS, TAGS, home_of, is_full, put};
use crate::tree::SameKey;

/// Number of entries that a segment gets. A segment that grew by insertions splits a little later.
const SEGMENT_ENTRIES: usize = 400;
/// log2 of the number of segments that are filled together. This number of segments fits the second-level cache.
const GROUP_BITS: u32 = 7;

impl HashIndex {
    /// Builds an index of tags: the first is of record id 0, the next of 1, and so on. `is_same` says whether two record ids with one tag
    /// have one key. Err: two have one.
    pub fn of_tags(tags: &[u32], mut is_same: impl FnMut(u32, u32) -> bool) -> Result<Self, SameKey> {
        let segments = tags.len().div_ceil(SEGMENT_ENTRIES).max(1);
        let depth = segments.next_power_of_two().ilog2().min(DEPTH_MAX);
        let mut index = Self::with_depth(depth);
        // The length is set first, because it bounds the directory when segments split.
        index.len = tags.len();
        if depth <= GROUP_BITS {
            for (rid, tag) in tags.iter().enumerate() {
                index.fill_in(*tag, rid as u32, &mut is_same)?;
            }
            return Ok(index);
        }
        for entry in by_group(tags, depth).iter() {
            index.fill_in((entry >> 32) as u32, *entry as u32, &mut is_same)?;
        }
        Ok(index)
    }

    fn with_depth(depth: u32) -> Self {
        let mut index = Self::new();
        let segments = 1u32 << depth;
        for _ in 1..segments {
            index.segments.push_zeroed();
        }
        index.directory = (0..segments).collect();
        index.mask = segments - 1;
        index.depths = vec![depth as u8; segments as usize];
        index
    }

    #[inline]
    fn fill_in(&mut self, tag: u32, rid: u32, is_same: &mut impl FnMut(u32, u32) -> bool) -> Result<(), SameKey> {
        let id = self.directory[(tag & self.mask) as usize];
        let segment = &mut self.segments[id];
        let mut at = home_of(tag);
        for _ in 0..LINES {
            let line = &mut segment[at];
            let mut places = equal(&line[TAGS], tag);
            while places != 0 {
                let stored = line[RIDS][places.trailing_zeros() as usize % LINE_ENTRIES];
                if stored != 0 && is_same(stored - 1, rid) {
                    return Err(SameKey);
                }
                places &= places - 1;
            }
            if !is_full(line) {
                put(line, tag, rid + 1);
                return Ok(());
            }
            at = (at + 1) % LINES;
        }
        self.fill_crowded(tag, rid, is_same)
    }

    #[cold]
    fn fill_crowded(&mut self, tag: u32, rid: u32, is_same: &mut impl FnMut(u32, u32) -> bool) -> Result<(), SameKey> {
        if self.overflowed(tag).into_iter().any(|other| is_same(other, rid)) {
            return Err(SameKey);
        }
        self.place(tag, rid + 1);
        Ok(())
    }
}

/// Sorts the tags so that those of neighbouring segments are together: tags in the upper half, record ids in the lower.
fn by_group(tags: &[u32], depth: u32) -> Pages<u64> {
    let group = |tag: u32| ((tag & ((1 << depth) - 1)) >> GROUP_BITS) as usize;
    let mut ends = vec![0usize; 1 << (depth - GROUP_BITS)];
    for tag in tags {
        ends[group(*tag)] += 1;
    }
    let mut sum = 0;
    for end in &mut ends {
        sum += std::mem::replace(end, sum);
    }
    let mut entries = Pages::zeroed(tags.len());
    entries.advise_huge();
    for (rid, tag) in tags.iter().enumerate() {
        let place = &mut ends[group(*tag)];
        entries[*place] = (*tag as u64) << 32 | rid as u64;
        *place += 1;
    }
    entries
}
