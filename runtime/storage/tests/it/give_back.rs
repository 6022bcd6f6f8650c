//! Pieces of memory in which nothing is left go from one table to all others while it has rows.

use std::collections::BTreeMap;

use crate::common::{Random, table};
use reprise_abi::{Field, IndexKind, ScalarType};
use reprise_base::{MemoryKind, MemoryLedger};
use reprise_storage::{Range, Rid, Store, TableId, WriteError};

const MAX_BYTES: u64 = 160 << 20;

fn make(store: &mut Store, name: &str, kind: IndexKind, has_second: bool) -> TableId {
    let columns = [("key", ScalarType::I64, false), ("note", ScalarType::Text, false)];
    let second: &[(&str, &[u16], bool)] = &[("by_note", &[1, 0], false)];
    let mut schema = table(name, &columns, &[0], if has_second { second } else { &[] });
    schema.primary_kind = kind;
    store.create_table(schema).expect("a table")
}

fn row(store: &Store, table: TableId, key: i64, note_bytes: usize) -> Vec<u8> {
    let note = format!("{:09}{}", key % 1000, "x".repeat(note_bytes));
    store.layout(table).build(&[Field::Int(key), Field::Text(&note)])
}

/// Inserts rows until one is refused.
fn fill(store: &mut Store, table: TableId, note_bytes: usize) -> Vec<Rid> {
    let mut rids = Vec::new();
    loop {
        let row = row(store, table, rids.len() as i64, note_bytes);
        store.begin();
        match store.insert(table, &row) {
            Ok(rid) => rids.push(rid),
            Err(WriteError::NoMemory { .. }) => break store.rollback(),
            Err(error) => panic!("{error}"),
        }
        store.commit();
    }
    rids
}

fn delete(store: &mut Store, table: TableId, rids: impl Iterator<Item = Rid>) -> usize {
    let mut count = 0;
    for rid in rids {
        store.begin();
        store.delete(table, rid).expect("live");
        store.commit();
        count += 1;
    }
    count
}

#[test]
fn pieces_emptied_by_deletes_serve_other_tables() {
    type IsDeleted = fn(usize, usize) -> bool;
    let first: (&str, IsDeleted) = ("the first half", |at, count| at < count / 2);
    let last: (&str, IsDeleted) = ("the last half", |at, count| at >= count / 2);
    let stretches: (&str, IsDeleted) = ("stretches", |at, count| at / (count / 4) % 2 == 0);
    for (kind, has_second, orders) in [
        (IndexKind::Ordered, false, &[first, last, stretches][..]),
        (IndexKind::Ordered, true, &[stretches]),
        (IndexKind::Dense, false, &[last]),
        (IndexKind::Hash, false, &[first]),
    ] {
        for (name, is_deleted) in orders {
            let name = format!("{kind:?}, second {has_second}, {name}");
            let memory = MemoryLedger::new(MAX_BYTES);
            memory.enforce();
            let mut store = Store::counted_in(&memory);
            let (first, other) = (
                make(&mut store, "first", kind, has_second),
                make(&mut store, "other", kind, has_second),
            );
            let rids = fill(&mut store, first, 100);
            let full = fill(&mut store, other, 100).len();
            let count = rids.len();
            let (gone, left): (Vec<_>, Vec<_>) = (0..count).partition(|at| is_deleted(*at, count));
            let gone_count = delete(&mut store, first, gone.iter().map(|at| rids[*at]));
            let got = fill_on(&mut store, other, full as i64, 100);
            // A piece is whole or it stays, at both ends of each stretch. The room of the entries of a hash stays. That of an index by other columns
            // stays too, because its entries went here and there.
            let part = if kind == IndexKind::Hash || has_second {
                0.55
            } else {
                0.65
            };
            assert!(
                got as f64 >= part * gone_count as f64,
                "{name}: {got} of {gone_count} rows found room"
            );
            assert_eq!(store.rows_count(first), left.len() as u64, "{name}");
            for at in left {
                let row = row(&store, first, at as i64, 100);
                assert_eq!(store.row(first, rids[at]), Some(&row[..]), "{name}: row {at}");
            }
            // And back again.
            let others: Vec<Rid> = store.rids_from(other, Rid(0)).collect();
            delete(&mut store, other, others.into_iter());
            let back = fill_on(&mut store, first, count as i64, 100);
            assert!(back as f64 >= 0.9 * got as f64, "{name}: {back} after {got}");
            let counted = memory.data_bytes() as usize;
            let held = store.memory_bytes();
            assert!(counted + (4 << 20) >= held, "{name}: {counted} counted, {held} held");
            drop(store);
            assert_eq!(memory.used(), 0, "{name}: all is given back");
        }
    }
}

/// The `fill` variant with keys from `first` on. Returns the number of rows.
fn fill_on(store: &mut Store, table: TableId, first: i64, note_bytes: usize) -> usize {
    for count in 0.. {
        let row = row(store, table, first + count as i64, note_bytes);
        store.begin();
        let inserted = store.insert(table, &row);
        if inserted.is_err() {
            store.rollback();
            return count;
        }
        store.commit();
    }
    0
}

/// Deletes that are not durable give no memory back, and deletes that are taken back restore their rows.
#[test]
fn rows_that_may_come_back_keep_their_memory() {
    let memory = MemoryLedger::new(MAX_BYTES);
    memory.enforce();
    let mut store = Store::counted_in(&memory);
    let table = make(&mut store, "rows", IndexKind::Ordered, true);
    store.retain_undo();
    let rids = fill(&mut store, table, 100);
    store.seal(1);
    store.release_undo(1);
    let digest = store.digest();
    let rows = || memory.kind(MemoryKind::Rows).used();
    let before = rows();
    let half = || rids[..rids.len() / 2].iter().copied();

    store.begin();
    half().for_each(|rid| store.delete(table, rid).expect("live"));
    store.rollback();
    assert_eq!(store.digest(), digest);
    assert!(rows() + (1 << 20) > before, "{} of {before}", rows());

    delete(&mut store, table, half());
    store.seal(2);
    assert!(rows() + (4 << 20) > before, "not before it is durable: {}", rows());
    store.unwind();
    assert_eq!(store.digest(), digest);

    delete(&mut store, table, half());
    store.begin_snapshot();
    store.seal(3);
    store.release_undo(3);
    assert!(rows() < before * 2 / 3, "{} of {before}", rows());
    while !store.copy_snapshot(1 << 20) {}
    let pages = store.take_snapshot_pages();
    let copied: u64 = pages.iter().map(|page| u64::from(page.rows)).sum();
    assert_eq!(copied, store.rows_count(table));
    store.end_snapshot();
    let left: Vec<Rid> = store.rids_from(table, Rid(0)).collect();
    assert_eq!(left, rids[rids.len() / 2..]);
}

/// Stretches of rows that come, go and change their lengths, some of them taken back, against a map.
#[test]
fn a_store_that_gives_back_is_its_model() {
    for (seed, kind) in [(1, IndexKind::Ordered), (2, IndexKind::Hash), (3, IndexKind::Dense)] {
        let mut random = Random(seed);
        let memory = MemoryLedger::new(MAX_BYTES);
        let mut store = Store::counted_in(&memory);
        let table = make(&mut store, "rows", kind, true);
        let mut model = BTreeMap::<i64, (Rid, usize)>::new();
        let (mut next_key, mut least, mut most) = (0_i64, u64::MAX, 0);
        for step in 0..40 {
            let before = (random.next(5) == 0).then(|| model.clone());
            store.begin();
            match (random.next(3) as usize, model.len()) {
                (0, 1..) | (_, 400_000..) => {
                    let keys: Vec<i64> = model.keys().copied().collect();
                    let from = random.next(keys.len() as u64) as usize;
                    let count = random.next(350_000) as usize;
                    for key in keys.iter().cycle().skip(from).take(count.min(keys.len())) {
                        let (rid, _) = model.remove(key).expect("live");
                        store.delete(table, rid).expect("live");
                    }
                }
                (1, 1..) => {
                    let stride = 1 + random.next(50) as usize;
                    let note_bytes = random.next(400) as usize;
                    for (key, (rid, bytes)) in model.iter_mut().step_by(stride) {
                        let row = row(&store, table, *key, note_bytes);
                        store.update(table, *rid, &row).expect("no limit");
                        *bytes = note_bytes;
                    }
                }
                _ => {
                    let note_bytes = random.next(60) as usize;
                    for _ in 0..random.next(250_000) as usize {
                        let row = row(&store, table, next_key, note_bytes);
                        let rid = store.insert(table, &row).expect("no limit");
                        model.insert(next_key, (rid, note_bytes));
                        next_key += 1;
                    }
                }
            }
            match before {
                None => {
                    store.commit();
                }
                Some(before) => {
                    store.rollback();
                    model = before;
                }
            }
            assert_eq!(store.rows_count(table), model.len() as u64, "{kind:?}, step {step}");
            let rows = memory.data_bytes();
            (least, most) = (least.min(rows), most.max(rows));
            if step % 10 == 9 {
                check(&store, table, kind, &model);
            }
        }
        check(&store, table, kind, &model);
        assert!(most > 64 << 20, "{most} bytes: too few to give any back");
        drop(store);
        assert_eq!(memory.used(), 0);
    }
}

fn check(store: &Store, table: TableId, kind: IndexKind, model: &BTreeMap<i64, (Rid, usize)>) {
    for (key, (rid, note_bytes)) in model {
        let expected = row(store, table, *key, *note_bytes);
        assert_eq!(store.row(table, *rid), Some(&expected[..]));
        let encoded = ((*key as u64) ^ (1 << 63)).to_be_bytes();
        assert_eq!(store.get(table, 0, &encoded), Some(*rid), "key {key}");
        let number = store.row_number(table, *rid);
        assert_eq!(store.numbered_row(table, number), Some(&expected[..]));
    }
    let all = Range::new(&[], &[0xff; 64], Default::default());
    assert_eq!(store.count(table, 1, &all), Ok(model.len() as u64));
    if kind == IndexKind::Ordered {
        assert_eq!(store.count(table, 0, &all), Ok(model.len() as u64));
    }
    let live: Vec<Rid> = store.rids_from(table, Rid(0)).collect();
    let mut expected: Vec<Rid> = model.values().map(|(rid, _)| *rid).collect();
    expected.sort_unstable();
    assert_eq!(live, expected);
}

/// A table that is filled and emptied but for one row, over and over, takes no more memory each time.
#[test]
fn released_places_are_used_again() {
    let memory = MemoryLedger::new(MAX_BYTES);
    let mut store = Store::counted_in(&memory);
    let table = make(&mut store, "rows", IndexKind::Ordered, false);
    let mut full = Vec::new();
    let mut keys = 0..;
    for _ in 0..4 {
        let rids: Vec<Rid> = (0..600_000)
            .map(|_| {
                let row = row(&store, table, keys.next().expect("no end"), 10);
                store.begin();
                let rid = store.insert(table, &row).expect("no limit");
                store.commit();
                rid
            })
            .collect();
        full.push(memory.data_bytes());
        delete(&mut store, table, rids[1..].iter().copied());
        let left = memory.data_bytes();
        assert!(left < full[0] / 2, "{left} of {} bytes for one row", full[0]);
    }
    assert!(full[3] < full[0] + (12 << 20), "{full:?}");
}
