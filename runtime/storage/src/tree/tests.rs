use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{NONE, Tree, edge};
use crate::{
    indirection::Rid,
    treekey::{Long, TreeKey, Wide},
};

impl<K: TreeKey + std::fmt::Debug, const CAP: usize> Tree<K, CAP> {
    fn entries(&self) -> Vec<(K, u32)> {
        let mut entries = Vec::new();
        let all = self.walk_up(
            self.seek(&K::probe(edge(&[], false))),
            &K::probe(edge(&[], true)),
            |k, r| {
                entries.push((k.clone(), r));
                true
            },
        );
        assert!(all);
        entries
    }

    /// Checks that fences, links, lengths and free lists agree, and that the remembered ranges are right.
    fn check(&self) {
        let mut leaves = Vec::new();
        self.check_node(self.root, self.height, None, None, &mut leaves);
        let way_down = |key: &K| self.descend(|inner| K::rank_up_to(&inner.fences, inner.len(), key));
        for (low, end, leaf) in self.fingers.iter().flat_map(|fingers| fingers.all()) {
            let reach = way_down(low);
            assert!(reach.leaf == leaf && low < end && reach.low <= *low && *end <= reach.end);
        }
        if let Some(low) = &self.rightmost_low {
            let reach = way_down(low);
            assert!(reach.leaf == self.rightmost && reach.low == *low);
        }
        let (mut id, mut before, mut linked) = (leaves[0], NONE, Vec::new());
        while id != NONE {
            assert_eq!(self.leaves[id].previous, before);
            linked.push(id);
            (before, id) = (id, self.leaves[id].next);
        }
        assert_eq!(leaves, linked);
        assert_eq!(self.rightmost, before);
        assert_eq!(self.leaves.len(), leaves.len() + self.free_leaves.len_with_gone());
        assert_eq!(self.len, leaves.iter().map(|l| self.leaves[*l].len()).sum::<usize>());
    }

    fn check_node(&self, id: u32, level: u32, low: Option<&K>, high: Option<&K>, leaves: &mut Vec<u32>) {
        if level == 0 {
            let keys = self.leaves[id].keys();
            assert!(keys.windows(2).all(|w| w[0] < w[1]));
            assert!(
                keys.iter()
                    .all(|k| low.is_none_or(|l| l <= k) && high.is_none_or(|h| k < h))
            );
            return leaves.push(id);
        }
        let inner = &self.inners[id];
        for child in 0..=inner.len() {
            let low = if child == 0 {
                low
            } else {
                Some(&inner.fences[child - 1])
            };
            let high = if child == inner.len() {
                high
            } else {
                Some(&inner.fences[child])
            };
            self.check_node(inner.children[child], level - 1, low, high, leaves);
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u32),
    Remove(u32),
    InsertRun(u32, u8),
    RemoveRun(u32, u8),
    /// A number of keys at each of some places in turn.
    Interleave(u32, u8),
    /// Takes the first key behind each of some places, like a delivery.
    TakeFirst(u32, u8),
}

/// Beginnings of runs that take turns, and the distance of the keys in each.
const PLACES: [u32; 5] = [0, 90, 100, 340, 500];

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let key = 0..600u32;
    prop::collection::vec(
        prop_oneof![
            4 => key.clone().prop_map(Op::Insert),
            3 => key.clone().prop_map(Op::Remove),
            2 => (key.clone(), any::<u8>()).prop_map(|(k, n)| Op::InsertRun(k, n)),
            2 => (key.clone(), any::<u8>()).prop_map(|(k, n)| Op::RemoveRun(k, n)),
            2 => (key, any::<u8>()).prop_map(|(k, n)| Op::Interleave(k, n)),
            2 => (0..60u32, any::<u8>()).prop_map(|(k, n)| Op::TakeFirst(k, n)),
        ],
        0..120,
    )
}

/// Returns five bytes behind a lead, whose order is the number's. Zero bytes occur in front, in the middle and at the end.
fn bytes_of(lead: usize, number: u32) -> Vec<u8> {
    let mut bytes = vec![0; lead];
    bytes.extend_from_slice(&(number / 7).to_be_bytes());
    bytes.push((number % 7) as u8);
    bytes
}

fn check_tree<K: TreeKey + std::fmt::Debug>(lead: usize, ops: &[Op], bounds: &[(u32, usize, bool, u32, usize, bool)]) {
    let mut tree = Tree::<K, 8>::new();
    let mut model = BTreeMap::new();
    for op in ops {
        let (numbers, is_insert): (Vec<u32>, bool) = match *op {
            Op::Insert(key) => (vec![key], true),
            Op::Remove(key) => (vec![key], false),
            Op::InsertRun(key, count) => ((key..key + count as u32).collect(), true),
            Op::RemoveRun(key, count) => ((key..key + count as u32).collect(), false),
            Op::Interleave(key, count) => {
                let turn = |at| PLACES.map(|place| place + key % 60 + at);
                ((0..count as u32 % 32).flat_map(turn).collect(), true)
            }
            Op::TakeFirst(key, count) => {
                let firsts = PLACES.iter().flat_map(|place| {
                    let lower = bytes_of(lead, place + key);
                    let found = model.range(lower..).take(count as usize % 8);
                    found.map(|(_, rid)| *rid).collect::<Vec<u32>>()
                });
                (firsts.collect(), false)
            }
        };
        for number in numbers {
            let key = bytes_of(lead, number);
            let probe = edge(&key, false);
            assert_eq!(tree.get(&K::probe(probe)), model.get(&key).copied());
            if is_insert {
                tree.touch_place_of(&K::from_bytes(&key));
                let expected = model.get(&key).map_or(Ok(()), |rid| Err(*rid));
                assert_eq!(tree.insert(K::from_bytes(&key), number), expected);
                model.entry(key).or_insert(number);
            } else {
                assert_eq!(tree.remove(&K::probe(probe)), model.remove(&key));
            }
        }
        tree.check();
    }
    let expected: Vec<_> = model.iter().map(|(k, r)| (K::from_bytes(k), *r)).collect();
    assert_eq!(tree.entries(), expected);
    assert_eq!(
        tree.heap_bytes(),
        expected.iter().map(|(k, _)| k.heap_bytes()).sum::<usize>()
    );
    for bound in bounds {
        check_range(lead, &tree, &model, bound);
    }
}

fn check_range<K: TreeKey>(
    lead: usize,
    tree: &Tree<K, 8>,
    model: &BTreeMap<Vec<u8>, u32>,
    &(low, low_len, low_after, high, high_len, high_after): &(u32, usize, bool, u32, usize, bool),
) {
    let cut = |number, len: usize| {
        let mut bytes = bytes_of(lead, number);
        bytes.resize(lead - 3 + len, 0);
        bytes
    };
    let (low, high) = (cut(low, low_len), cut(high, high_len));
    let is_before = |key: &[u8], bound: &[u8], after: bool| {
        let mut padded = key.to_vec();
        padded.resize(key.len().max(bound.len()), 0);
        padded[..bound.len()] < *bound || after && padded[..bound.len()] == *bound
    };
    let expected: Vec<u32> = model
        .iter()
        .filter(|(key, _)| !is_before(key, &low, low_after) && is_before(key, &high, high_after))
        .map(|(_, rid)| *rid)
        .collect();
    let (low, high) = (K::probe(edge(&low, low_after)), K::probe(edge(&high, high_after)));
    let mut found = Vec::new();
    tree.walk_up(tree.seek(&low), &high, |_, rid| {
        found.push(rid);
        true
    });
    assert_eq!(found, expected);
    assert_eq!(tree.count(tree.seek(&low), &high, &mut |_| true), expected.len() as u64);
    if !expected.is_empty() {
        assert_eq!(tree.next(tree.seek(&low)).map(|e| e.1), expected.first().copied());
        assert_eq!(tree.previous(tree.seek(&high)).map(|e| e.1), expected.last().copied());
    }
    let mut found = Vec::new();
    tree.walk_down(tree.seek(&high), &low, |_, rid| {
        found.insert(0, rid);
        true
    });
    assert_eq!(found, expected);
}

/// Runs that are inserted together, at places in turn, and keys that exist already.
fn check_runs<K: TreeKey + Copy + std::fmt::Debug>(runs: &[(usize, u32, u8, bool)]) {
    let mut tree = Tree::<K, 8>::new();
    let mut model = BTreeMap::new();
    let mut ends = PLACES.map(|place| place * 1000);
    for (place, gap, count, is_forward) in runs {
        let end = &mut ends[place % PLACES.len()];
        let first = if *is_forward {
            *end + gap % 3
        } else {
            end.saturating_sub(*gap)
        };
        let numbers: Vec<u32> = (first..first + *count as u32 % 20).collect();
        *end = (*end).max(first + numbers.len() as u32);
        let keys: Vec<K> = numbers.iter().map(|n| K::from_bytes(&bytes_of(3, *n))).collect();
        let rids: Vec<Rid> = numbers.iter().map(|n| Rid(*n)).collect();
        let taken = tree.insert_run(&keys, &rids);
        let expected = numbers
            .iter()
            .position(|n| model.contains_key(n))
            .unwrap_or(numbers.len());
        assert_eq!(taken, expected);
        model.extend(numbers[..taken].iter().zip(&keys).map(|(n, key)| (*n, *key)));
        tree.check();
    }
    let expected: Vec<_> = model.iter().map(|(number, key)| (*key, *number)).collect();
    assert_eq!(tree.entries(), expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn a_tree_is_a_sorted_map(
        ops in ops(),
        bounds in prop::collection::vec((0..700u32, 0..12usize, any::<bool>(), 0..700u32, 0..12usize, any::<bool>()), 20),
    ) {
        check_tree::<u64>(3, &ops, &bounds);
        check_tree::<u128>(3, &ops, &bounds);
        check_tree::<Wide<3>>(3, &ops, &bounds);
        for lead in [3, 8, 12, 16, 27, 28, 31, 32, 46] {
            check_tree::<Long>(lead, &ops, &bounds);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn runs_in_turn_are_put_where_each_of_their_keys_belongs(
        runs in prop::collection::vec((0..5usize, 0..40u32, any::<u8>(), prop::bool::weighted(0.8)), 0..120),
    ) {
        check_runs::<u64>(&runs);
        check_runs::<u128>(&runs);
        check_runs::<Wide<3>>(&runs);
    }
}

#[test]
fn leaves_of_runs_in_turn_are_found_without_a_way_down() {
    let mut tree = Tree::<u64, 40>::new();
    let key = |run: u64, at: u64| run << 32 | at;
    for at in 0..1_000 {
        for run in 0..10 {
            tree.insert(key(run, at), 0).expect("fresh key");
            let known = tree.known_leaf_of(&key(run, at + 1));
            assert!(at < 60 || known.is_some(), "run {run} at {at}");
        }
    }
    // Keys are taken from the front, as from a queue.
    for at in 0..900 {
        for run in 0..10 {
            let probe = key(run, at).as_probe();
            assert_eq!(tree.remove(&probe), Some(0));
        }
        tree.check();
    }
    let fingers = tree.fingers.as_ref().expect("runs were met");
    assert!(fingers.all().count() >= 10, "{}", fingers.all().count());
}

#[test]
fn keys_in_order_fill_their_leaves() {
    let mut tree = Tree::<u64, 64>::new();
    for key in 0..64_000 {
        tree.insert(key, key as u32).expect("fresh key");
    }
    assert_eq!(tree.leaves.len(), 1000);
    tree.check();
}

#[test]
fn interleaved_runs_fill_their_leaves() {
    let mut tree = Tree::<u64, 64>::new();
    for round in 0..400u64 {
        for district in 0..10u64 {
            for line in 0..10 {
                let key = district << 32 | (round * 10 + line);
                tree.insert(key, 0).expect("fresh key");
            }
        }
    }
    tree.check();
    assert!(tree.leaves.len() < 800, "{} leaves for 40,000 keys", tree.leaves.len());
}

#[test]
fn a_queue_gives_its_leaves_back() {
    let mut tree = Tree::<u64, 64>::new();
    for key in 0..200_000u64 {
        tree.insert(key, 0).expect("fresh key");
        if key >= 1000 {
            tree.remove(&u64::probe(edge(&(key - 1000).to_be_bytes(), false)))
                .expect("old key");
        }
    }
    tree.check();
    assert!(tree.leaves.len() < 40, "{} leaves for 1,000 keys", tree.leaves.len());
}
