//! The hash index: extendible hashing (Fagin et al., 1979) over segments of one page each.
//!
//! The index keeps 32 bits of a key's hash beside the record id. The low ones choose the segment, the high ones the line in it. A full
//! segment therefore splits alone, without reading any row, and no split moves the whole index. A line is one cache line, so an absent key
//! costs one miss.

mod build;

use std::{collections::BTreeSet, sync::Arc};

use reprise_base::Budget;
use reprise_pages::{equal, prefetch_line};

use crate::{charge::Charge, chunked::ChunkedArray};

const LINE_ENTRIES: usize = 8;
/// The halves of a line.
const TAGS: usize = 0;
const RIDS: usize = 1;
const LINES: usize = 64;
const LINE_BITS: u32 = LINES.ilog2();
/// Number of a tag's bits that choose the segment, at most.
const DEPTH_MAX: u32 = 32 - LINE_BITS;
/// Number of lines beyond its own after which an entry splits the segment instead.
const PROBE_MAX: usize = 5;

/// Factor by which `expect` prepares an index for more entries. Its segments are then at least as full as after a split.
const GROWTH_MAX: usize = 4;
const FILLED_MIN: usize = LINES * LINE_ENTRIES * 4 / 9;

/// Bytes of an entry in a tree of the standard library.
const OVERFLOW_ENTRY_BYTES: usize = 16;

/// Tags, and as many record ids + 1; 0 in a free place. Used places come first.
type HashLine = [[u32; LINE_ENTRIES]; 2];
type Segment = [HashLine; LINES];

const _: () = assert!(size_of::<Segment>() == reprise_pages::PAGE_BYTES);

pub(crate) struct HashIndex {
    segments: ChunkedArray<Segment>,
    /// The segment for each value of a tag's low bits.
    directory: Vec<u32>,
    mask: u32,
    /// For each segment, the number of low bits that all its tags share.
    depths: Vec<u8>,
    /// Least number of such bits to which `expect` has divided the segments.
    depth_min: u32,
    len: usize,
    /// Entries (tag, record id + 1) whose segment is full and can't be split with profit, because their tags are alike.
    overflow: BTreeSet<(u32, u32)>,
    /// Memory beside the segments.
    charge: Charge,
}

#[inline(always)]
fn is_full(line: &HashLine) -> bool {
    line[RIDS][LINE_ENTRIES - 1] != 0
}

#[inline(always)]
fn home_of(tag: u32) -> usize {
    (tag >> (32 - LINE_BITS)) as usize
}

/// Returns the number of lines from `from` to `to`, going up and around.
fn distance(from: usize, to: usize) -> usize {
    (to + LINES - from) % LINES
}

/// Puts the entry into the first free place of a line that has one.
#[inline(always)]
fn put(line: &mut HashLine, tag: u32, stored: u32) {
    let at = equal(&line[RIDS], 0).trailing_zeros() as usize;
    line[TAGS][at] = tag;
    line[RIDS][at] = stored;
}

/// Takes an entry out. The last entry of the line takes its place.
fn take(line: &mut HashLine, at: usize) -> (u32, u32) {
    let taken = (line[TAGS][at], line[RIDS][at]);
    let used = equal(&line[RIDS], 0).trailing_zeros() as usize;
    let last = used.min(LINE_ENTRIES) - 1;
    for half in line {
        half[at] = half[last];
        half[last] = 0;
    }
    taken
}

/// Puts the entry into the first line with a free place, from its own line on. False if there is none.
fn put_in_segment(segment: &mut Segment, tag: u32, stored: u32) -> bool {
    for step in 0..LINES {
        let line = &mut segment[(home_of(tag) + step) % LINES];
        if !is_full(line) {
            put(line, tag, stored);
            return true;
        }
    }
    false
}

/// Moves the entries of a segment whose tags have bit `depth` to an empty one, and the others to their new places. It counts the used
/// places of each line beside the lines. A search in a line that was just written would wait until the write reaches the cache.
fn halve(segment: &mut Segment, empty: &mut Segment, depth: u32) {
    let mut kept = [[[0; LINE_ENTRIES]; 2]; LINES];
    let mut used = [[0_usize; LINES]; 2];
    let halves = [&mut kept, empty];
    for [tags, rids] in &*segment {
        for (tag, stored) in tags.iter().copied().zip(*rids) {
            if stored == 0 {
                break; // used places come first
            }
            let side = (tag >> depth & 1) as usize;
            let mut at = home_of(tag);
            // Half a segment fits into a segment.
            while used[side][at] == LINE_ENTRIES {
                at = (at + 1) % LINES;
            }
            let [tags, rids] = &mut halves[side][at];
            tags[used[side][at]] = tag;
            rids[used[side][at]] = stored;
            used[side][at] += 1;
        }
    }
    *segment = kept;
}

/// A walk through the lines that may have a tag's entries. Overflowed entries are not on it.
pub(crate) struct LineWalk<'a> {
    segment: &'a Segment,
    tag: u32,
    at: usize,
    /// Places of the line that have the tag and were not shown yet.
    places: u32,
}

impl LineWalk<'_> {
    #[inline(always)]
    pub fn next(&mut self) -> Option<u32> {
        loop {
            let [_, rids] = &self.segment[self.at % LINES];
            while self.places != 0 {
                let stored = rids[self.places.trailing_zeros() as usize % LINE_ENTRIES];
                self.places &= self.places - 1;
                // A tag of 0 is also in free places.
                if stored != 0 {
                    return Some(stored - 1);
                }
            }
            let next = (self.at + 1) % LINES;
            if rids[LINE_ENTRIES - 1] == 0 || next == home_of(self.tag) {
                return None;
            }
            self.at = next;
            self.places = equal(&self.segment[next][TAGS], self.tag);
        }
    }
}

impl HashIndex {
    pub fn new() -> Self {
        let mut segments = ChunkedArray::default();
        segments.push_zeroed();
        Self {
            segments,
            directory: vec![0],
            mask: 0,
            depths: vec![0],
            depth_min: 0,
            len: 0,
            overflow: BTreeSet::new(),
            charge: Charge::default(),
        }
    }

    /// Counts its memory in `budget` from now on.
    pub fn count_in(&mut self, budget: &Arc<Budget>) {
        self.segments.count_in(budget);
        self.charge.count_in(budget);
        self.charge.resize(self.beside_bytes());
    }

    fn beside_bytes(&self) -> usize {
        self.directory.capacity() * 4 + self.depths.capacity() + self.overflow.len() * OVERFLOW_ENTRY_BYTES
    }

    /// True if this many entries take almost certainly no memory.
    #[inline(always)]
    pub fn has_memory(&self, entries: usize) -> bool {
        self.segments.spare() >= entries
    }

    /// Takes memory for an entry of the tag. False if it is refused.
    #[cold]
    pub fn make_memory(&mut self, tag: u32) -> bool {
        self.has_memory(1) || self.segments.try_grow() || self.segment(tag).iter().any(|line| !is_full(line))
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn memory_bytes(&self) -> usize {
        self.segments.memory_bytes() + self.beside_bytes()
    }

    #[inline(always)]
    fn segment(&self, tag: u32) -> &Segment {
        &self.segments[self.directory[(tag & self.mask) as usize]]
    }

    /// Returns the entries with the tag, one by one.
    #[inline(always)]
    pub fn walk(&self, tag: u32) -> LineWalk<'_> {
        let segment = self.segment(tag);
        let at = home_of(tag);
        LineWalk {
            segment,
            tag,
            at,
            places: equal(&segment[at][TAGS], tag),
        }
    }

    /// Returns the first result that `accept` gives for an entry with the tag.
    #[inline]
    pub fn find<R>(&self, tag: u32, mut accept: impl FnMut(u32) -> Option<R>) -> Option<R> {
        let mut walk = self.walk(tag);
        while let Some(rid) = walk.next() {
            let found = accept(rid);
            if found.is_some() {
                return found;
            }
        }
        self.find_overflowed(&walk, accept)
    }

    /// The `find` variant that continues after a completed walk.
    #[inline(always)]
    pub fn find_overflowed<R>(&self, walk: &LineWalk<'_>, accept: impl FnMut(u32) -> Option<R>) -> Option<R> {
        if self.overflow.is_empty() {
            return None;
        }
        self.overflowed(walk.tag).into_iter().find_map(accept)
    }

    #[cold]
    #[inline(never)]
    fn overflowed(&self, tag: u32) -> Vec<u32> {
        let alike = self.overflow.range((tag, 0)..=(tag, u32::MAX));
        alike.map(|(_, stored)| stored - 1).collect()
    }

    /// Prefetches the directory's entry for the tag's segment.
    #[inline]
    pub fn touch_way(&self, tag: u32) {
        prefetch_line(&self.directory[(tag & self.mask) as usize]);
    }

    /// Prefetches the line in which the tag's entries begin.
    #[inline]
    pub fn touch(&self, tag: u32) {
        prefetch_line(&self.segment(tag)[home_of(tag)]);
    }

    /// Returns a record id with the tag in the tag's own line, without reading its row.
    #[inline]
    pub fn candidate(&self, tag: u32) -> Option<u32> {
        let [tags, rids] = &self.segment(tag)[home_of(tag)];
        let place = equal(tags, tag).trailing_zeros() as usize;
        rids.get(place)?.checked_sub(1)
    }

    /// Adds an entry unless `is_same` says that one with the same tag has the key already.
    #[inline]
    pub fn insert(&mut self, tag: u32, rid: u32, mut is_same: impl FnMut(u32) -> bool) -> Result<(), u32> {
        let id = self.directory[(tag & self.mask) as usize];
        let segment = &mut self.segments[id];
        let mut at = home_of(tag);
        for step in 0..LINES {
            let line = &mut segment[at];
            let mut places = equal(&line[TAGS], tag);
            while places != 0 {
                let stored = line[RIDS][places.trailing_zeros() as usize % LINE_ENTRIES];
                if stored != 0 && is_same(stored - 1) {
                    return Err(stored - 1);
                }
                places &= places - 1;
            }
            if !is_full(line) {
                if step > PROBE_MAX {
                    break;
                }
                put(line, tag, rid + 1);
                self.len += 1;
                return Ok(());
            }
            at = (at + 1) % LINES;
        }
        self.insert_crowded(tag, rid, is_same)
    }

    /// The `insert` variant for a tag whose segment was checked and is full or nearly so.
    #[cold]
    fn insert_crowded(&mut self, tag: u32, rid: u32, mut is_same: impl FnMut(u32) -> bool) -> Result<(), u32> {
        if let Some(taken) = self.overflowed(tag).into_iter().find(|rid| is_same(*rid)) {
            return Err(taken);
        }
        self.len += 1;
        self.place(tag, rid + 1);
        Ok(())
    }

    /// Puts an entry in its segment. It splits the segment while it is crowded and a split helps.
    fn place(&mut self, tag: u32, stored: u32) {
        loop {
            let id = self.directory[(tag & self.mask) as usize];
            let home = home_of(tag);
            let segment = &self.segments[id];
            let is_crowded = (0..=PROBE_MAX).all(|step| is_full(&segment[(home + step) % LINES]));
            let has_memory = self.has_memory(1) || is_crowded && self.segments.try_grow();
            if is_crowded && has_memory && self.may_split(id) {
                self.split(id, tag);
                continue;
            }
            if !put_in_segment(&mut self.segments[id], tag, stored) {
                if !has_memory && self.may_split(id) {
                    self.split(id, tag); // a split that has begun must continue
                    continue;
                }
                self.overflow.insert((tag, stored));
                self.charge.resize(self.beside_bytes());
            }
            return;
        }
    }

    /// Bounds the directory by the number of entries, so that equal tags do not make it grow.
    fn may_split(&self, id: u32) -> bool {
        let depth = self.depths[id as usize] as u32;
        let typical = (self.len / (LINES * LINE_ENTRIES / 4) + 1).ilog2();
        depth < DEPTH_MAX.min(typical + 4)
    }

    /// Divides the segment of `tag` by the next bit of its tags.
    fn split(&mut self, id: u32, tag: u32) {
        let depth = self.depths[id as usize] as u32;
        if self.mask.count_ones() == depth {
            self.directory.extend_from_within(..);
            self.mask = self.mask << 1 | 1;
        }
        let new = self.segments.len() as u32;
        self.segments.push_zeroed();
        self.depths[id as usize] += 1;
        self.depths.push(depth as u8 + 1);
        let common = tag & ((1 << depth) - 1);
        let first = (common | 1 << depth) as usize;
        for entry in (first..self.directory.len()).step_by(1 << (depth + 1)) {
            self.directory[entry] = new;
        }
        let [segment, empty] = self.segments.two_mut(id, new);
        halve(segment, empty, depth);
        if self.beside_bytes() != self.charge.bytes() {
            self.charge.resize(self.beside_bytes());
        }
        self.drain_overflow(common, depth);
    }

    /// Prepares the index for this many entries in all. It divides segments before they are full, because that moves few entries, in the
    /// order of their places. It prepares for at most `GROWTH_MAX` times the present entries, in case the others never come.
    pub fn expect(&mut self, entries: usize) {
        let entries = entries.min(self.len * GROWTH_MAX);
        let segments = (entries / FILLED_MIN).max(1);
        let depth = segments.ilog2().min(DEPTH_MAX);
        if depth <= self.depth_min {
            return;
        }
        self.depth_min = depth;
        for tag in 0..1 << depth {
            loop {
                let id = self.directory[(tag & self.mask) as usize];
                if self.depths[id as usize] as u32 >= depth {
                    break;
                }
                self.split(id, tag);
            }
        }
    }

    /// Places the overflowed entries anew whose tags end in the `depth` bits of `common`.
    fn drain_overflow(&mut self, common: u32, depth: u32) {
        let mask = (1 << depth) - 1;
        let ours = self.overflow.extract_if(.., |(tag, _)| tag & mask == common);
        for (tag, stored) in ours.collect::<Vec<_>>() {
            self.place(tag, stored);
        }
    }

    /// Removes the entry. False if it does not exist.
    pub fn remove(&mut self, tag: u32, rid: u32) -> bool {
        let id = self.directory[(tag & self.mask) as usize];
        let segment = &mut self.segments[id];
        for step in 0..LINES {
            let at = (home_of(tag) + step) % LINES;
            let line = &mut segment[at];
            let found = equal(&line[TAGS], tag) & equal(&line[RIDS], rid + 1);
            if found != 0 {
                let entry = found.trailing_zeros() as usize;
                let was_full = is_full(line);
                take(line, entry);
                if was_full {
                    close_hole(segment, at);
                }
                self.len -= 1;
                if !self.overflow.is_empty() {
                    let depth = self.depths[id as usize] as u32;
                    self.drain_overflow(tag & ((1 << depth) - 1), depth);
                }
                return true;
            }
            if !is_full(line) {
                return false;
            }
        }
        let removed = self.overflow.remove(&(tag, rid + 1));
        self.len -= removed as usize;
        removed
    }
}

/// Moves entries back that had to pass line `hole` while it was full.
fn close_hole(segment: &mut Segment, mut hole: usize) {
    let mut at = hole;
    for _ in 1..LINES {
        at = (at + 1) % LINES;
        let was_full = is_full(&segment[at]);
        let passed_hole = |entry: &usize| {
            let [tags, rids] = &segment[at];
            rids[*entry] != 0 && distance(home_of(tags[*entry]), at) >= distance(hole, at)
        };
        if let Some(entry) = (0..LINE_ENTRIES).find(passed_hole) {
            let (tag, stored) = take(&mut segment[at], entry);
            put(&mut segment[hole], tag, stored);
            hole = at;
        }
        if !was_full {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Checks that every entry is found, lies in the segment of its tag, and that no line before it on its walk has room.
    fn check(index: &HashIndex, model: &BTreeMap<u32, u32>) {
        assert_eq!(index.len(), model.len());
        let mut seen = index.overflow.len();
        for id in 0..index.segments.len() as u32 {
            let segment = &index.segments[id];
            for (at, [tags, rids]) in segment.iter().enumerate() {
                let used = rids.iter().take_while(|stored| **stored != 0).count();
                assert!(rids[used..].iter().all(|stored| *stored == 0));
                seen += used;
                for tag in &tags[..used] {
                    assert_eq!(index.directory[(tag & index.mask) as usize], id);
                    for step in 0..distance(home_of(*tag), at) {
                        assert!(is_full(&segment[(home_of(*tag) + step) % LINES]));
                    }
                }
            }
        }
        assert_eq!(seen, model.len());
        for (rid, tag) in model {
            assert_eq!(index.find(*tag, |r| (r == *rid).then_some(r)), Some(*rid));
        }
    }

    fn spread(number: u32) -> u32 {
        crate::tag::tag_of(number.into())
    }

    #[test]
    fn a_large_index_has_short_ways_and_a_directory_to_match() {
        let mut index = HashIndex::new();
        let tags: BTreeMap<u32, u32> = (0..200_000).map(|rid| (rid, spread(rid * 7 + 1))).collect();
        for (rid, tag) in &tags {
            index.insert(*tag, *rid, |_| false).expect("no key is compared");
        }
        check(&index, &tags);
        let entries_each = tags.len() / index.segments.len();
        assert!(entries_each > 230, "{entries_each} entries a segment");
        assert!(index.directory.len() < 8192 && index.overflow.is_empty());
        for rid in 0..200_000 {
            assert!(index.remove(tags[&rid], rid) && !index.remove(tags[&rid], rid));
        }
        check(&index, &BTreeMap::new());
    }

    #[test]
    fn prepared_index_is_as_large_as_a_grown_one() {
        let tags: BTreeMap<u32, u32> = (0..200_000).map(|rid| (rid, spread(rid * 7 + 1))).collect();
        let (mut ready, mut grown) = (HashIndex::new(), HashIndex::new());
        for (rid, tag) in &tags {
            if rid % 1_000 == 999 {
                ready.expect(tags.len());
            }
            for index in [&mut ready, &mut grown] {
                let put = index.insert(*tag, *rid, |_| false);
                put.expect("no key is compared");
            }
        }
        check(&ready, &tags);
        assert!(ready.segments.len() <= grown.segments.len());
        // Expected rows that never come cost little.
        let segments = ready.segments.len();
        ready.expect(usize::MAX / 16);
        check(&ready, &tags);
        assert!(ready.segments.len() <= segments * GROWTH_MAX * 2);
        ready.expect(0);
        HashIndex::new().expect(1_000_000);
    }

    #[test]
    fn tags_that_are_all_alike_overflow_and_come_back() {
        let mut index = HashIndex::new();
        let mut model = BTreeMap::new();
        for rid in 0..3000 {
            index.insert(0, rid, |_| false).expect("no key is compared");
            model.insert(rid, 0);
        }
        assert!(index.overflow.len() > 2000 && index.directory.len() < 1024);
        check(&index, &model);
        assert_eq!(index.insert(0, 9, |rid| rid == 2999), Err(2999));
        for rid in 0..3000 {
            assert!(index.remove(0, rid));
            model.remove(&rid);
            if rid % 100 == 0 {
                check(&index, &model);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
        /// Tags of few homes, so that lines fill and walks grow long.
        #[test]
        fn an_index_is_a_set(
            ops in prop::collection::vec((any::<u32>(), 0..3u8), 0..3000),
            mask in prop_oneof![Just(0xfc00_000f_u32), Just(0x0c00_00ff), Just(u32::MAX)],
        ) {
            let mut index = HashIndex::new();
            let mut model: BTreeMap<u32, u32> = BTreeMap::new();
            for (rid, (random, kind)) in ops.iter().enumerate() {
                let victim = model.keys().nth(*random as usize % model.len().max(1)).copied();
                match (kind, victim) {
                    (0, Some(rid)) => {
                        let tag = model.remove(&rid).expect("known");
                        prop_assert!(index.remove(tag, rid));
                        prop_assert!(!index.remove(tag, rid));
                    }
                    (1, Some(taken)) => {
                        let found = index.insert(model[&taken], rid as u32, |r| r == taken);
                        prop_assert_eq!(found, Err(taken));
                    }
                    _ => {
                        let tag = spread(*random) & mask;
                        prop_assert_eq!(index.insert(tag, rid as u32, |_| false), Ok(()));
                        model.insert(rid as u32, tag);
                    }
                }
            }
            check(&index, &model);
        }
    }
}
