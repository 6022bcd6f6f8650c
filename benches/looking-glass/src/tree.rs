//! B-trees, a node a page: threads couple latches from the root down, and along the leaves from left to right.
//!
//! A leaf's record is `[key][page u32][slot u16]`, an inner node's `[key][child u32]`. The first key of an inner node counts as less than any. The
//! root keeps its page. An insert that meets a full leaf starts again. It then splits every full node on its way down, and holds two levels at most.
//! A removal that leaves little merges in the same way.

mod check;
mod shape;

use std::cmp::Ordering;

use self::shape::is_sparse;
use reprise_abi::{ScalarType, key::KEY_BYTES_MAX};

use crate::{
    log::{Chain, RecordKind, Site},
    page::{Page, PageKind},
    parts::{TREE_KEYS, has},
    pool::{Pool, ReadPage, WritePage},
};

/// Bytes of a row's place behind a key.
const RID_BYTES: usize = 6;
const CHILD_BYTES: usize = 4;

/// The place of a row: page and slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rid {
    /// Page of the table's heap.
    pub page: u32,
    /// In the page.
    pub slot: u16,
}

impl Rid {
    /// Packs the place into a number.
    pub fn pack(self) -> u64 {
        (self.page as u64) << 16 | self.slot as u64
    }

    /// The reverse of `pack`.
    pub fn unpack(bits: u64) -> Self {
        Self {
            page: (bits >> 16) as u32,
            slot: bits as u16,
        }
    }

    pub(crate) fn bytes(self) -> [u8; RID_BYTES] {
        let [a, b, c, d] = self.page.to_le_bytes();
        let [e, f] = self.slot.to_le_bytes();
        [a, b, c, d, e, f]
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            page: u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            slot: u16::from_le_bytes([bytes[4], bytes[5]]),
        }
    }
}

/// A B-tree.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Page of the root, for ever.
    pub root: u32,
    /// Among all trees of the engine.
    pub number: u16,
    /// The columns of a key, with what each may be.
    pub columns: Vec<(ScalarType, bool)>,
}

/// A key that is looked for: its integer beside it where the key is short.
struct Probe<'k> {
    key: &'k [u8],
    word: u64,
}

/// Bytes of at most eight as an integer in their order, among keys of one length.
#[inline(always)]
fn word_of(key: &[u8]) -> u64 {
    if let Some(whole) = key.first_chunk::<8>()
        && key.len() == 8
    {
        return u64::from_be_bytes(*whole);
    }
    if let (Some(first), Some(last)) = (key.first_chunk::<4>(), key.last_chunk::<4>()) {
        return (u32::from_be_bytes(*first) as u64) << 32 | u32::from_be_bytes(*last) as u64;
    }
    key.iter().fold(0, |word, byte| word << 8 | *byte as u64)
}

#[inline(always)]
fn leaf_key(record: &[u8]) -> &[u8] {
    &record[..record.len() - RID_BYTES]
}

#[inline(always)]
fn inner_key(record: &[u8]) -> &[u8] {
    &record[..record.len() - CHILD_BYTES]
}

fn child_at(page: &Page, slot: usize) -> u32 {
    let record = page.record(slot);
    let at = record.len() - CHILD_BYTES;
    u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]])
}

impl Tree {
    /// An empty tree.
    pub fn create<const P: u32>(
        pool: &Pool<P>,
        chain: &mut Chain,
        number: u16,
        columns: Vec<(ScalarType, bool)>,
    ) -> Self {
        let root = pool.allocate(chain, PageKind::Node, 0).number;
        Self { root, number, columns }
    }

    /// Longest key that a node must take.
    fn key_bytes_max(&self) -> usize {
        match self.columns.iter().any(|(ty, _)| ty.is_variable()) {
            true => KEY_BYTES_MAX,
            false => self
                .columns
                .iter()
                .map(|(ty, nullable)| ty.slot_bytes() + *nullable as usize)
                .sum(),
        }
    }

    #[inline(always)]
    fn probe<'k, const P: u32>(&self, key: &'k [u8]) -> Probe<'k> {
        let is_short = !has(P, TREE_KEYS) && key.len() <= 8;
        Probe {
            key,
            word: if is_short { word_of(key) } else { 0 },
        }
    }

    /// How a stored key stands to the one that is looked for.
    #[inline(always)]
    fn compare<const P: u32>(&self, stored: &[u8], probe: &Probe<'_>) -> Ordering {
        if const { has(P, TREE_KEYS) } {
            return self.compare_columns(stored, probe.key);
        }
        match stored.len() == probe.key.len() && stored.len() <= 8 {
            true => word_of(stored).cmp(&probe.word),
            false => stored.cmp(probe.key),
        }
    }

    /// Column by column, each as its type says, up to the end of the shorter key.
    #[inline(never)]
    fn compare_columns(&self, one: &[u8], other: &[u8]) -> Ordering {
        let (mut one, mut other) = (one, other);
        for (ty, nullable) in &self.columns {
            if one.is_empty() || other.is_empty() {
                break;
            }
            if *nullable {
                let order = one[0].cmp(&other[0]);
                if order != Ordering::Equal {
                    return order;
                }
                let is_null = one[0] == 0;
                (one, other) = (&one[1..], &other[1..]);
                if is_null {
                    continue;
                }
            }
            let bytes = ty.slot_bytes();
            if ty.is_variable() || one.len() < bytes || other.len() < bytes {
                return one.cmp(other);
            }
            let order = compare_values(*ty, &one[..bytes], &other[..bytes]);
            if order != Ordering::Equal {
                return order;
            }
            (one, other) = (&one[bytes..], &other[bytes..]);
        }
        one.len().cmp(&other.len())
    }

    /// The first slot of a leaf whose key is not less, and whether it is equal.
    #[inline]
    fn leaf_slot<const P: u32>(&self, page: &Page, probe: &Probe<'_>) -> (usize, bool) {
        let (mut low, mut high) = (0, page.count());
        while low < high {
            let middle = (low + high) / 2;
            match self.compare::<P>(leaf_key(page.record(middle)), probe) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return (middle, true),
                Ordering::Greater => high = middle,
            }
        }
        (low, false)
    }

    /// The slot of an inner node under which a key lies.
    #[inline]
    fn inner_slot<const P: u32>(&self, page: &Page, probe: &Probe<'_>) -> usize {
        let (mut low, mut high) = (1, page.count());
        while low < high {
            let middle = (low + high) / 2;
            match self.compare::<P>(inner_key(page.record(middle)), probe) {
                Ordering::Greater => high = middle,
                _ => low = middle + 1,
            }
        }
        low - 1
    }

    /// The leaf of a key, to be read.
    fn leaf<'p, const P: u32>(&self, pool: &'p Pool<P>, probe: &Probe<'_>) -> ReadPage<'p, P> {
        let mut page = pool.read(self.root);
        while page.level() > 0 {
            let child = child_at(&page, self.inner_slot::<P>(&page, probe));
            let next = pool.read(child);
            page = next;
        }
        page
    }

    /// The leaf of a key, to be changed: with latches on the way that are shared.
    fn leaf_for_write<'p, const P: u32>(&self, pool: &'p Pool<P>, probe: &Probe<'_>) -> WritePage<'p, P> {
        loop {
            let mut page = pool.read(self.root);
            if page.level() == 0 {
                drop(page);
                let root = pool.write(self.root);
                if root.level() == 0 {
                    return root;
                }
                continue;
            }
            while page.level() > 1 {
                let child = child_at(&page, self.inner_slot::<P>(&page, probe));
                let next = pool.read(child);
                page = next;
            }
            let child = child_at(&page, self.inner_slot::<P>(&page, probe));
            return pool.write(child);
        }
    }

    /// The place that stands under a key.
    #[inline(never)]
    pub fn find<const P: u32>(&self, pool: &Pool<P>, key: &[u8]) -> Option<Rid> {
        let probe = self.probe::<P>(key);
        let leaf = self.leaf(pool, &probe);
        let (slot, is_there) = self.leaf_slot::<P>(&leaf, &probe);
        is_there.then(|| Rid::from_bytes(&leaf.record(slot)[key.len()..]))
    }

    /// Puts in a key. False, and nothing done, where it is there.
    #[inline(never)]
    pub fn insert<const P: u32>(&self, pool: &Pool<P>, chain: &mut Chain, key: &[u8], rid: Rid) -> bool {
        let probe = self.probe::<P>(key);
        let mut leaf = self.leaf_for_write(pool, &probe);
        let (slot, is_there) = self.leaf_slot::<P>(&leaf, &probe);
        if is_there {
            return false;
        }
        if leaf.insert(slot, key, &rid.bytes()) {
            self.log_entry(&mut leaf, chain, RecordKind::NodeInsert, slot, key, &rid.bytes());
            return true;
        }
        drop(leaf);
        self.insert_splitting(pool, chain, key, rid)
    }

    /// Takes out a key; the place that stood under it.
    pub fn remove<const P: u32>(&self, pool: &Pool<P>, chain: &mut Chain, key: &[u8]) -> Option<Rid> {
        let probe = self.probe::<P>(key);
        let mut leaf = self.leaf_for_write(pool, &probe);
        let (slot, is_there) = self.leaf_slot::<P>(&leaf, &probe);
        if !is_there {
            return None;
        }
        let record = leaf.record(slot).to_vec();
        leaf.remove(slot);
        self.log_entry(
            &mut leaf,
            chain,
            RecordKind::NodeRemove,
            slot,
            key,
            &record[key.len()..],
        );
        let is_sparse = is_sparse::<P>(&leaf);
        let is_root = leaf.number == self.root;
        drop(leaf);
        if is_sparse && !is_root {
            self.merge_on_the_way(pool, chain, key);
        }
        Some(Rid::from_bytes(&record[key.len()..]))
    }

    /// A record of an entry that came or went.
    #[inline]
    fn log_entry<const P: u32>(
        &self,
        page: &mut WritePage<'_, P>,
        chain: &mut Chain,
        kind: RecordKind,
        slot: usize,
        key: &[u8],
        behind: &[u8],
    ) {
        let site = Site {
            kind,
            page: page.number,
            slot: slot as u16,
            extra: self.number.into(),
        };
        page.append(chain, site, key, behind);
    }

    /// Logs an entry that a roll back leaves: the shape of the tree.
    fn log_shape<const P: u32>(
        &self,
        page: &mut WritePage<'_, P>,
        chain: &mut Chain,
        kind: RecordKind,
        slot: usize,
        entry: &[u8],
    ) {
        let before = std::mem::replace(&mut chain.is_redo_only, true);
        self.log_entry(page, chain, kind, slot, entry, &[]);
        chain.is_redo_only = before;
    }

    /// Visits the entries from the first key that is not less than `lower` on, until `visit` returns false.
    pub fn scan<const P: u32>(&self, pool: &Pool<P>, lower: &[u8], visit: &mut dyn FnMut(&[u8], Rid) -> bool) {
        let probe = self.probe::<P>(lower);
        let mut leaf = self.leaf(pool, &probe);
        let (mut slot, _) = self.leaf_slot::<P>(&leaf, &probe);
        loop {
            while slot < leaf.count() {
                let record = leaf.record(slot);
                let key = leaf_key(record);
                if !visit(key, Rid::from_bytes(&record[key.len()..])) {
                    return;
                }
                slot += 1;
            }
            if leaf.next() == 0 {
                return;
            }
            let next = pool.read(leaf.next());
            (leaf, slot) = (next, 0);
        }
    }
}

/// Two values of one type, as keys have them: read and compared as what they are. A number of a signed type has its sign
/// turned in a key.
fn compare_values(ty: ScalarType, one: &[u8], other: &[u8]) -> Ordering {
    let is_signed = matches!(
        ty,
        ScalarType::I8 | ScalarType::I16 | ScalarType::I32 | ScalarType::I64 | ScalarType::Timestamp
    );
    let turned = |bits: u64| match is_signed {
        true => bits as i64 - (1 << (8 * one.len() - 1)),
        false => bits as i64,
    };
    match (one, other) {
        ([one], [other]) => turned((*one).into()).cmp(&turned((*other).into())),
        ([a, b], [c, d]) => {
            let of = |high: u8, low: u8| turned(u16::from_be_bytes([high, low]).into());
            of(*a, *b).cmp(&of(*c, *d))
        }
        _ => match (one.first_chunk::<4>(), other.first_chunk::<4>(), one.len()) {
            (Some(one), Some(other), 4) => {
                let of = |bytes: &[u8; 4]| turned(u32::from_be_bytes(*bytes).into());
                of(one).cmp(&of(other))
            }
            // Wider ones are in the order of their bytes.
            _ => one.cmp(other),
        },
    }
}
