//! The limit of memory. The store refuses a write that would grow the data before it changes anything. Reads, deletes and undo continue.

use std::sync::Arc;

use crate::common::*;
use reprise_abi::{Field, IndexKind, ScalarType};
use reprise_base::{MemoryKind, MemoryLedger};
use reprise_storage::{AfterImage, Range, Store, TableId, WriteError};

const MAX_BYTES: u64 = 64 << 20;

fn limited() -> (Arc<MemoryLedger>, Store) {
    let memory = MemoryLedger::new(MAX_BYTES);
    memory.enforce();
    let store = Store::counted_in(&memory);
    (memory, store)
}

fn make(store: &mut Store, kind: IndexKind, is_text: bool, has_second: bool) -> TableId {
    make_named(store, "rows", kind, is_text, has_second)
}

fn make_named(store: &mut Store, name: &str, kind: IndexKind, is_text: bool, has_second: bool) -> TableId {
    let ty = if is_text { ScalarType::Text } else { ScalarType::I64 };
    let columns = [("key", ty, false), ("note", ScalarType::Text, false)];
    let second: &[(&str, &[u16], bool)] = &[("by_note", &[1], false)];
    let mut schema = table(name, &columns, &[0], if has_second { second } else { &[] });
    schema.primary_kind = kind;
    store.create_table(schema).expect("a table")
}

/// The key of row `number`, in no order but that of a dense table.
fn number_of(kind: IndexKind, number: u64) -> i64 {
    match kind {
        IndexKind::Dense => number as i64,
        _ => (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as i64,
    }
}

fn row(store: &Store, table: TableId, kind: IndexKind, is_text: bool, number: u64) -> Vec<u8> {
    let number = number_of(kind, number);
    let text = format!("{number:020} and so on, longer than what lies in a node");
    let key = if is_text {
        Field::Text(&text)
    } else {
        Field::Int(number)
    };
    store.layout(table).build(&[key, Field::Text(&text[..24])])
}

#[test]
fn growth_is_refused_at_the_limit_and_deletes_make_room_at_once() {
    for (kind, is_text, has_second) in [
        (IndexKind::Ordered, false, false),
        (IndexKind::Ordered, true, true),
        (IndexKind::Hash, false, true),
        (IndexKind::Hash, true, false),
        (IndexKind::Dense, false, true),
    ] {
        let name = format!("{kind:?}, text {is_text}, second {has_second}");
        let (memory, mut store) = limited();
        let table = make(&mut store, kind, is_text, has_second);
        let mut rids = Vec::new();
        let refused = loop {
            let row = row(&store, table, kind, is_text, rids.len() as u64);
            store.begin();
            match store.insert(table, &row) {
                Ok(rid) => rids.push(rid),
                Err(error) => break error,
            }
            store.commit();
            assert!(rids.len() < 2_000_000, "{name}: no end");
        };
        store.rollback();
        assert_eq!(refused, WriteError::NoMemory { max: MAX_BYTES }, "{name}");
        let used = memory.used();
        assert!(
            used <= MAX_BYTES / 2 && used > MAX_BYTES / 2 - (8 << 20),
            "{name}: {used}"
        );
        assert!(used >= store.stats(table).row_bytes, "{name}: {used}");

        // Refused again and again, and nothing of it stays.
        let digest = store.digest();
        for more in 0..100 {
            let row = row(&store, table, kind, is_text, rids.len() as u64 + more * 7);
            store.begin();
            if store.insert(table, &row).is_ok() {
                store.rollback();
                continue; // where there was room for this one
            }
            store.rollback();
        }
        assert_eq!(
            (store.digest(), store.stats(table).rows),
            (digest, rids.len() as u64),
            "{name}"
        );

        // A transaction that deletes and fails on the way is taken back whole.
        store.begin();
        for rid in rids.iter().step_by(3) {
            store.delete(table, *rid).expect("live");
        }
        store.rollback();
        assert_eq!(store.digest(), digest, "{name}");

        // Memory that deletes give back is there for as many rows.
        let gone: Vec<u64> = (0..rids.len() as u64).step_by(2).collect();
        for number in &gone {
            store.begin();
            store.delete(table, rids[*number as usize]).expect("live");
            store.commit();
        }
        for number in &gone {
            let row = row(&store, table, kind, is_text, *number);
            store.begin();
            store
                .insert(table, &row)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            store.commit();
        }
        // Equal rows, under numbers of their own.
        assert_eq!(store.stats(table).rows, rids.len() as u64, "{name}");
        assert_ne!(store.digest(), digest, "{name}");
        if kind == IndexKind::Ordered {
            let all = store.count(table, 0, &Range::new(&[], &[0xff; 64], Default::default()));
            assert_eq!(all, Ok(rids.len() as u64), "{name}");
        }
        assert!(memory.used() <= MAX_BYTES, "{name}");
        drop(store);
        assert_eq!(memory.used(), 0, "{name}: all is given back");
    }
}

#[test]
fn updates_that_move_are_refused_and_those_in_place_go_on() {
    let (memory, mut store) = limited();
    let table = make(&mut store, IndexKind::Ordered, false, false);
    let short = |store: &Store, number: i64| store.layout(table).build(&[Field::Int(number), Field::Text("short")]);
    let long_text = "x".repeat(900 << 10);
    let mut rids = Vec::new();
    store.begin();
    for number in 0..100 {
        let row = short(&store, number);
        rids.push(store.insert(table, &row).expect("room"));
    }
    store.commit();
    store.begin();
    let refused = rids.iter().enumerate().find_map(|(number, rid)| {
        let row = store
            .layout(table)
            .build(&[Field::Int(number as i64), Field::Text(&long_text)]);
        store.update(table, *rid, &row).err()
    });
    assert_eq!(refused, Some(WriteError::NoMemory { max: MAX_BYTES }));
    store.rollback();
    let row = short(&store, 0);
    store.begin();
    store.update(table, rids[0], &row).expect("in place");
    store.commit();
    // The slots of long rows, which a rollback freed, serve shorter ones.
    store.begin();
    for (number, rid) in rids.iter().enumerate() {
        let fields = [Field::Int(number as i64), Field::Text(&long_text[..100 << 10])];
        let row = store.layout(table).build(&fields);
        store.update(table, *rid, &row).expect("room that a rollback made");
    }
    store.commit();
    assert!(memory.used() <= MAX_BYTES / 2);
}

#[test]
fn many_rows_at_once_are_refused_as_each_of_them() {
    let (_memory, mut store) = limited();
    let table = make(&mut store, IndexKind::Ordered, false, true);
    let mut number = 0;
    let refused = loop {
        let rows: Vec<_> = (number..number + 200)
            .map(|number| row(&store, table, IndexKind::Dense, false, number))
            .collect();
        store.begin();
        if let Err(error) = store.multi_insert(table, rows.iter().map(Vec::as_slice), |_| ()) {
            break error;
        }
        store.commit();
        number += 200;
    };
    assert_eq!(refused, WriteError::NoMemory { max: MAX_BYTES });
    store.rollback();
    assert_eq!(store.stats(table).rows, number);
}

#[test]
fn undo_and_snapshots_are_counted_and_go_beyond_the_limit_of_data() {
    let (memory, mut store) = limited();
    let table = make(&mut store, IndexKind::Ordered, false, false);
    store.retain_undo();
    let mut rids = Vec::new();
    store.begin();
    for number in 0..50_000u64 {
        let row = row(&store, table, IndexKind::Dense, false, number);
        rids.push(store.insert(table, &row).expect("room"));
    }
    store.commit();
    store.seal(1);
    let undo = memory.kind(MemoryKind::Undo);
    assert!(undo.used() >= 50_000 * 16, "{}", undo.used());
    store.release_undo(1);
    store.seal(2);
    store.begin_snapshot();
    let snapshots = memory.kind(MemoryKind::Snapshots);
    let begun = snapshots.used();
    assert!(begun >= 50_000 / 8);
    while !store.copy_snapshot(usize::MAX) {}
    assert!(snapshots.used() > begun + (1 << 20), "{}", snapshots.used());
    drop(store.take_snapshot_pages());
    store.end_snapshot();
    assert_eq!(snapshots.used(), 0);
}

/// The memory of a table that lost all rows is there for others at once, whatever undo was kept, even while a snapshot is copied.
#[test]
fn the_memory_of_an_emptied_table_is_for_all_tables() {
    for (retains, copies) in [(false, false), (true, false), (true, true)] {
        let (memory, mut store) = limited();
        let kinds = [
            (IndexKind::Ordered, false, true),
            (IndexKind::Hash, true, true),
            (IndexKind::Dense, false, false),
        ];
        let tables: Vec<_> = kinds
            .iter()
            .enumerate()
            .map(|(at, (kind, is_text, has_second))| {
                make_named(&mut store, &format!("t{at}"), *kind, *is_text, *has_second)
            })
            .collect();
        if retains {
            store.retain_undo();
        }
        let mut end = 0;
        let mut settle = |store: &mut Store| {
            if retains {
                end += 1;
                store.seal(end);
                store.release_undo(end);
            }
        };
        let mut most = [0; 3];
        for round in 0..6 {
            let (table, (kind, is_text, _)) = (tables[round % 3], kinds[round % 3]);
            let mut rids = Vec::new();
            loop {
                let row = row(&store, table, kind, is_text, rids.len() as u64);
                store.begin();
                let inserted = store.insert(table, &row);
                match inserted {
                    Ok(rid) => rids.push(rid),
                    Err(_) => break store.rollback(),
                }
                store.commit();
                if rids.len() % 1_000 == 0 {
                    settle(&mut store);
                }
            }
            settle(&mut store);
            let count = rids.len();
            let before = std::mem::replace(&mut most[round % 3], count);
            assert!(count > before - before / 10, "{kind:?}: {count} rows, {before} before");
            if copies {
                store.begin_snapshot();
                assert!(!store.copy_snapshot(1 << 20));
            }
            // Taken back, they are there.
            store.begin();
            rids.iter().for_each(|rid| store.delete(table, *rid).expect("live"));
            store.rollback();
            assert_eq!(store.rows_count(table), count as u64);
            store.begin();
            rids.iter().for_each(|rid| store.delete(table, *rid).expect("live"));
            store.commit();
            let data = || memory.data_bytes();
            if retains {
                assert!(data() > MAX_BYTES / 4, "not before it is durable: {}", data());
                settle(&mut store);
            }
            assert!(data() < 4 << 20, "{kind:?}: {} bytes", data());
            if copies {
                let mut rows = 0;
                while !store.copy_snapshot(1 << 20) {}
                rows += store
                    .take_snapshot_pages()
                    .iter()
                    .map(|page| page.rows as usize)
                    .sum::<usize>();
                assert_eq!(rows, count, "the rows of its moment");
                store.end_snapshot();
            }
        }
    }
}

/// Redo puts a transaction's changes in place again.
#[test]
fn redo_gives_up_what_an_emptied_table_held() {
    let memory = MemoryLedger::unlimited();
    let (mut source, mut store) = (Store::new(), Store::counted_in(&memory));
    let table = make(&mut source, IndexKind::Ordered, false, true);
    make(&mut store, IndexKind::Ordered, false, true);
    let apply = |source: &mut Store, store: &mut Store| {
        let mut changes = Vec::new();
        source.write_set(AfterImage::Changed, &mut changes);
        source.commit();
        store.apply(&changes).expect("fits");
    };
    let mut rids = Vec::new();
    source.begin();
    for number in 0..100_000 {
        let row = row(&source, table, IndexKind::Ordered, false, number);
        rids.push(source.insert(table, &row).expect("no limit"));
    }
    apply(&mut source, &mut store);
    assert!(memory.data_bytes() > 8 << 20);
    source.begin();
    rids.iter().for_each(|rid| source.delete(table, *rid).expect("live"));
    apply(&mut source, &mut store);
    assert!(memory.data_bytes() < 1 << 20, "{}", memory.data_bytes());
    assert_eq!(store.digest(), source.digest());
    // The next row has a number that no row had.
    source.begin();
    let row = row(&source, table, IndexKind::Ordered, false, 7);
    source.insert(table, &row).expect("no limit");
    apply(&mut source, &mut store);
    assert_eq!(store.digest(), source.digest());
}
