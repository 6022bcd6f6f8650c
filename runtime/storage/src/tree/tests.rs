use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{NONE, Tree, edge};
use crate::treekey::{Long, TreeKey, Wide};

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

    /// Fences, links, lengths and free lists agree.
    fn check(&self) {
        let mut leaves = Vec::new();
        self.check_node(self.root, self.height, None, None, &mut leaves);
        let (mut id, mut before, mut linked) = (leaves[0], NONE, Vec::new());
        while id != NONE {
            assert_eq!(self.leaves[id].previous, before);
            linked.push(id);
            (before, id) = (id, self.leaves[id].next);
        }
        assert_eq!(leaves, linked);
        assert_eq!(self.rightmost, before);
        assert_eq!(self.leaves.len(), leaves.len() + self.free_leaves.len());
        assert_eq!(
            self.len,
            leaves.iter().map(|l| self.leaves[*l].len()).sum::<usize>()
        );
    }

    fn check_node(
        &self,
        id: u32,
        level: u32,
        low: Option<&K>,
        high: Option<&K>,
        leaves: &mut Vec<u32>,
    ) {
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
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let key = 0..600u32;
    prop::collection::vec(
        prop_oneof![
            4 => key.clone().prop_map(Op::Insert),
            3 => key.clone().prop_map(Op::Remove),
            2 => (key.clone(), any::<u8>()).prop_map(|(k, n)| Op::InsertRun(k, n)),
            2 => (key, any::<u8>()).prop_map(|(k, n)| Op::RemoveRun(k, n)),
        ],
        0..120,
    )
}

/// Five bytes behind a lead whose order is the number's; zero bytes in front, in the middle and at the end do occur.
fn bytes_of(lead: usize, number: u32) -> Vec<u8> {
    let mut bytes = vec![0; lead];
    bytes.extend_from_slice(&(number / 7).to_be_bytes());
    bytes.push((number % 7) as u8);
    bytes
}

fn check_tree<K: TreeKey + std::fmt::Debug>(
    lead: usize,
    ops: &[Op],
    bounds: &[(u32, usize, bool, u32, usize, bool)],
) {
    let mut tree = Tree::<K, 8>::new();
    let mut model = BTreeMap::new();
    for op in ops {
        let (first, count, is_insert) = match *op {
            Op::Insert(key) => (key, 1, true),
            Op::Remove(key) => (key, 1, false),
            Op::InsertRun(key, count) => (key, count as u32, true),
            Op::RemoveRun(key, count) => (key, count as u32, false),
        };
        for number in first..first + count {
            let key = bytes_of(lead, number);
            let probe = edge(&key, false);
            assert_eq!(tree.get(&K::probe(probe)), model.get(&key).copied());
            if is_insert {
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
    let (low, high) = (
        K::probe(edge(&low, low_after)),
        K::probe(edge(&high, high_after)),
    );
    let mut found = Vec::new();
    tree.walk_up(tree.seek(&low), &high, |_, rid| {
        found.push(rid);
        true
    });
    assert_eq!(found, expected);
    assert_eq!(tree.count(tree.seek(&low), &high), expected.len() as u64);
    if !expected.is_empty() {
        assert_eq!(
            tree.next(tree.seek(&low)).map(|e| e.1),
            expected.first().copied()
        );
        assert_eq!(
            tree.previous(tree.seek(&high)).map(|e| e.1),
            expected.last().copied()
        );
    }
    let mut found = Vec::new();
    tree.walk_down(tree.seek(&high), &low, |_, rid| {
        found.insert(0, rid);
        true
    });
    assert_eq!(found, expected);
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
        for lead in [3, 8, 11, 12, 15, 16, 30] {
            check_tree::<Long>(lead, &ops, &bounds);
        }
    }
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
    assert!(
        tree.leaves.len() < 800,
        "{} leaves for 40,000 keys",
        tree.leaves.len()
    );
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
    assert!(
        tree.leaves.len() < 40,
        "{} leaves for 1,000 keys",
        tree.leaves.len()
    );
}
