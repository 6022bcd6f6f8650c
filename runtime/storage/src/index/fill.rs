//! Builds an index of all rows of a table at once, instead of row by row.

use reprise_abi::RowLayout;
use reprise_pages::{HUGE_BYTES, Pages};

use super::{Body, Index, KeyRefusal, int_key};
use crate::{
    bulk::radix::{RadixEntries, sort},
    convert::{GoOn, is_to_go_on},
    dense::Dense,
    hash::HashIndex,
    indirection::Rid,
    keyplan::{KeyPlan, KeyScratch, StoredRow},
    rows::RowHeap,
    tag::{tag_of, tag_of_bytes},
    tree::{SameKey, Tree},
    treekey::TreeKey,
};

/// Why an index was not built.
pub(crate) enum FillError {
    /// The index can't hold the rows together.
    Refused(KeyRefusal),
    /// The caller ended it.
    Ended,
}

impl From<KeyRefusal> for FillError {
    fn from(refused: KeyRefusal) -> Self {
        Self::Refused(refused)
    }
}

impl Index {
    /// Builds the index of rows with record ids from 0 to their number. It drops the former contents. `go_on` says now and then whether to
    /// continue. After an error the index is not usable.
    pub fn fill(&mut self, rows: &RowHeap, layout: &RowLayout, go_on: GoOn<'_>) -> Result<(), FillError> {
        let source = KeySource {
            plan: &self.plan,
            rows,
            layout,
            go_on,
        };
        match &mut self.body {
            Body::HashInts(hash) => *hash = source.hash_of_ints()?,
            Body::HashBytes(hash) => *hash = source.hash_of_bytes()?,
            Body::Dense(dense) => source.fill_dense(dense)?,
            Body::W8(tree) => *tree = source.tree::<_, _, 2>()?,
            Body::W16(tree) => *tree = source.tree::<_, _, 3>()?,
            Body::W24(tree) => *tree = source.tree::<_, _, 4>()?,
            Body::W32(tree) => *tree = source.tree::<_, _, 5>()?,
            Body::Bytes(tree) => *tree = source.tree_of_bytes()?,
        }
        if let Some(budget) = self.budget.take() {
            self.count_in(&budget);
        }
        Ok(())
    }
}

/// The source of the keys.
struct KeySource<'a> {
    plan: &'a KeyPlan,
    rows: &'a RowHeap,
    layout: &'a RowLayout,
    go_on: GoOn<'a>,
}

impl<'a> KeySource<'a> {
    /// Asks once in some thousand rows whether to continue.
    #[inline]
    fn ask(&self, rid: u32) -> Result<(), FillError> {
        match is_to_go_on(self.go_on, u64::from(rid) + 1) {
            true => Ok(()),
            false => Err(FillError::Ended),
        }
    }

    fn count(&self) -> usize {
        self.rows.rids_end() as usize
    }

    fn all(&self) -> impl Iterator<Item = (u32, StoredRow<'a>)> + use<'a> {
        let rows = self.rows;
        (0..rows.rids_end()).map(|rid| (rid, rows.at(Rid(rid))))
    }

    fn hash_of_ints(&self) -> Result<HashIndex, FillError> {
        let mut tags = room(self.count());
        for (rid, row) in self.all() {
            self.ask(rid)?;
            tags.push(tag_of(int_key(self.plan, row)));
        }
        let key = |rid| int_key(self.plan, self.rows.keyed_at(Rid(rid)));
        HashIndex::of_tags(&tags, |a, b| key(a) == key(b)).map_err(|_| KeyRefusal::Taken.into())
    }

    fn hash_of_bytes(&self) -> Result<HashIndex, FillError> {
        let (mut tags, mut scratch) = (room(self.count()), KeyScratch::default());
        for (rid, row) in self.all() {
            self.ask(rid)?;
            let key = self.plan.encode(self.layout, row, &mut scratch);
            if key.is_too_long() {
                return Err(KeyRefusal::TooLong.into());
            }
            tags.push(tag_of_bytes(key.bytes));
        }
        let is_same = |a, b| {
            let key = self.plan.encode(self.layout, self.rows.at(Rid(a)), &mut scratch);
            self.plan.matches(self.rows.at(Rid(b)), key.bytes)
        };
        HashIndex::of_tags(&tags, is_same).map_err(|_| KeyRefusal::Taken.into())
    }

    /// Returns keys as words, with record ids.
    fn entries<const W: usize>(&self) -> Result<RadixEntries<W>, FillError> {
        let mut entries = room(self.count());
        if let Some(ints) = self.plan.ints() {
            for (rid, row) in self.all() {
                self.ask(rid)?;
                let mut entry: [u64; W] = ints.words(row);
                entry[W - 1] = rid as u64;
                entries.push(entry);
            }
            return Ok(entries);
        }
        let mut scratch = KeyScratch::default();
        for (rid, row) in self.all() {
            self.ask(rid)?;
            let key = self.plan.encode(self.layout, row, &mut scratch);
            if key.is_too_long() {
                return Err(KeyRefusal::TooLong.into());
            }
            let mut entry = [0; W];
            for (word, bytes) in entry.iter_mut().zip(key.bytes.chunks(8)) {
                let mut padded = [0; 8];
                padded[..bytes.len()].copy_from_slice(bytes);
                *word = u64::from_be_bytes(padded);
            }
            entry[W - 1] = rid as u64;
            entries.push(entry);
        }
        Ok(entries)
    }

    fn fill_dense(&self, dense: &mut Dense) -> Result<(), FillError> {
        let (entries, _) = sort(self.entries::<3>()?);
        dense.fill_sorted(&entries).map_err(|_| KeyRefusal::Taken.into())
    }

    fn tree<K: TreeKey, const CAP: usize, const W: usize>(&self) -> Result<Tree<K, CAP>, FillError> {
        let (entries, was_sorted) = sort(self.entries::<W>()?);
        let keyed = entries
            .iter()
            .map(|entry| (K::from_words(&entry[..W - 1]), entry[W - 1] as u32));
        Ok(tree_of(keyed, was_sorted)?)
    }

    fn tree_of_bytes<K: TreeKey, const CAP: usize>(&self) -> Result<Tree<K, CAP>, FillError> {
        let mut scratch = KeyScratch::default();
        let mut entries = Vec::with_capacity(self.count());
        for (rid, row) in self.all() {
            self.ask(rid)?;
            let key = self.plan.encode(self.layout, row, &mut scratch);
            if key.is_too_long() {
                return Err(KeyRefusal::TooLong.into());
            }
            entries.push((K::from_bytes(key.bytes), rid));
        }
        let was_sorted = entries.is_sorted();
        if !was_sorted {
            entries.sort_unstable();
        }
        Ok(tree_of(entries.into_iter(), was_sorted)?)
    }
}

fn tree_of<K: TreeKey, const CAP: usize>(
    entries: impl Iterator<Item = (K, u32)>,
    was_sorted: bool,
) -> Result<Tree<K, CAP>, KeyRefusal> {
    let leaf_entries = match was_sorted {
        true => Tree::<K, CAP>::TIGHT,
        false => Tree::<K, CAP>::LOOSE,
    };
    Tree::from_sorted(entries, leaf_entries).map_err(|SameKey| KeyRefusal::Taken)
}

/// Returns room for this many elements, which are written once from end to end. It uses huge pages if the elements fill a good part of one.
fn room<T>(count: usize) -> Pages<T> {
    let pages = Pages::with_capacity(count.max(1));
    if count.saturating_mul(size_of::<T>()) >= HUGE_BYTES / 4 {
        pages.advise_huge();
    }
    pages
}
