//! B-trees: against a model, and under latches while threads split and merge their nodes.

use std::{collections::BTreeMap, thread};

use reprise_abi::ScalarType;
use reprise_bench_looking_glass::{
    log::Chain,
    parts::{LATCHES, POOL, SMALL_PAGES, TREE_KEYS},
    pool::Pool,
    tree::{Rid, Tree},
};

use crate::{Numbers, engine};

/// The key of a number: two integer columns, as the encoding of keys has them.
fn key(number: u64) -> Vec<u8> {
    let mut key = Vec::new();
    reprise_abi::key::push_i16(&mut key, (number >> 32) as i16 - 2);
    reprise_abi::key::push_i32(&mut key, number as i32);
    key
}

fn new_tree<const P: u32>(pool: &Pool<P>, chain: &mut Chain) -> Tree {
    Tree::create(pool, chain, 0, vec![(ScalarType::I16, false), (ScalarType::I32, false)])
}

fn entries<const P: u32>(tree: &Tree, pool: &Pool<P>, lower: &[u8]) -> Vec<(Vec<u8>, Rid)> {
    let mut all = Vec::new();
    tree.scan(pool, lower, &mut |key, rid| {
        all.push((key.to_vec(), rid));
        true
    });
    all
}

fn check_against_model<const P: u32>() {
    let engine = engine::<P>(4_000, 1);
    let (pool, chain) = (&engine.pool, &mut Chain::default());
    let tree = new_tree(pool, chain);
    let (mut model, mut random) = (BTreeMap::new(), Numbers(P as u64));
    let mut most = 0;
    // Grows, shrinks to little, and grows again.
    for turn in 0..90_000_u64 {
        let number = random.below(5) << 32 | random.below(30_000);
        let adds = match turn / 30_000 {
            1 => random.below(40) == 0,
            _ => random.below(10) > 0,
        };
        if adds {
            let is_new = tree.insert(pool, chain, &key(number), Rid::unpack(number));
            assert_eq!(is_new, model.insert(key(number), Rid::unpack(number)).is_none());
        } else {
            let victim = model.range(key(number)..).next().map(|(key, _)| key.clone());
            let victim = victim.unwrap_or_else(|| key(number));
            assert_eq!(tree.remove(pool, chain, &victim), model.remove(&victim));
        }
        most = most.max(model.len());
        if turn % 10_000 == 0 {
            let (count, _) = tree.check(pool).expect("a whole tree");
            assert_eq!(count, model.len());
        }
    }
    let (_, levels) = tree.check(pool).expect("a whole tree");
    assert!(levels > 1 && most > 20_000, "{levels} levels, {most} keys");
    assert!(entries(&tree, pool, &[]).iter().map(|(key, rid)| (key, rid)).eq(&model));
    let lower = key(2 << 32 | 15_000);
    assert!(
        entries(&tree, pool, &lower)
            .iter()
            .map(|(key, rid)| (key, rid))
            .eq(model.range(lower..))
    );
    for key in model.keys().cloned().collect::<Vec<_>>() {
        assert_eq!(tree.find(pool, &key), model.get(&key).copied());
        assert!(tree.remove(pool, chain, &key).is_some());
    }
    assert_eq!(tree.check(pool), Ok((0, 1)), "an empty tree is a root");
}

#[test]
fn a_tree_does_what_a_map_does() {
    check_against_model::<SMALL_PAGES>();
    check_against_model::<{ SMALL_PAGES | TREE_KEYS }>();
}

#[test]
fn threads_split_and_merge_a_tree_that_stays_whole() {
    const PARTS: u32 = LATCHES | POOL | SMALL_PAGES;
    const THREADS: u64 = 4;
    const KEYS: u64 = 12_000;
    // Few frames: pages come and go as well.
    let engine = engine::<PARTS>(96, 1);
    let tree = new_tree(&engine.pool, &mut Chain::default());
    let shared = engine.share();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (shared, tree) = (&shared, &tree);
            scope.spawn(move || {
                let (pool, chain) = (&shared.get().pool, &mut Chain::default());
                let own = || (0..KEYS).map(|at| at * THREADS + thread);
                for number in own() {
                    assert!(tree.insert(pool, chain, &key(number), Rid::unpack(number)));
                }
                for number in own() {
                    assert_eq!(tree.find(pool, &key(number)), Some(Rid::unpack(number)));
                }
                // All but each sixteenth: most nodes are merged.
                for number in own().filter(|number| !(number / THREADS).is_multiple_of(16)) {
                    assert_eq!(tree.remove(pool, chain, &key(number)), Some(Rid::unpack(number)));
                }
            });
        }
        let (shared, tree) = (&shared, &tree);
        scope.spawn(move || {
            for _ in 0..20 {
                let seen = entries(tree, &shared.get().pool, &[]);
                assert!(
                    seen.is_sorted_by(|one, other| one.0 < other.0),
                    "each key once, in order"
                );
            }
        });
    });
    let (count, _) = tree.check(&engine.pool).expect("a whole tree");
    assert_eq!(count as u64, THREADS * KEYS / 16);
    let left = (0..KEYS)
        .step_by(16)
        .flat_map(|at| (0..THREADS).map(move |thread| at * THREADS + thread));
    for number in left {
        assert_eq!(tree.find(&engine.pool, &key(number)), Some(Rid::unpack(number)));
    }
}
