//! Reads beside writes that are not acknowledged: they show the rows as they were before these writes.

use std::collections::BTreeMap;

use crate::common::{Random, patch_from};
use reprise_abi::{ColumnSchema, ColumnSet, Field, IndexKind, IndexSchema, RowLayout, ScalarType, TableSchema, key};
use reprise_storage::{Range, ScanPosition, ShownRow, Store, StoreAtView, TableId, Visit};

const TABLE: TableId = TableId(0);
const BY_TAG: u16 = 1;
const BY_GROUP: u16 = 2;
const SUM: u16 = 3;
const NOTE: u16 = 4;
const IDS: i64 = 24;

/// A unique tag, a group, a sum and a note.
type Value = [i64; 4];
/// By id.
type Rows = BTreeMap<i64, Value>;

fn store(kind: IndexKind) -> Store {
    let column = |name: &str| ColumnSchema::new(name, ScalarType::I64);
    let index = |name: &str, column, unique| IndexSchema::new(name, &[column], unique);
    let mut store = Store::new();
    let schema = TableSchema {
        primary_kind: kind,
        indexes: vec![index("by_tag", 1, true), index("by_group", 2, false)],
        ..TableSchema::new("t", ["id", "tag", "of_group", "sum", "note"].map(column).to_vec(), &[0])
    };
    store.create_table(schema).expect("a table");
    store.retain_undo();
    store
}

fn key_of(id: i64) -> Vec<u8> {
    let mut bytes = Vec::new();
    key::push_i64(&mut bytes, id);
    bytes
}

fn row_of(layout: &RowLayout, id: i64, value: Value) -> Vec<u8> {
    let [tag, group, sum, note] = value;
    layout.build(&[id, tag, group, sum, note].map(Field::Int))
}

fn read(row: &[u8], layout: &RowLayout) -> (i64, Value) {
    let int = |at| match layout.field(row, at) {
        Field::Int(value) => value,
        other => panic!("{other:?}"),
    };
    (int(0), [int(1), int(2), int(3), int(4)])
}

/// Changes a row, or inserts it, by the kind of write. False: it was refused.
fn put(store: &mut Store, id: i64, value: Value, kind: u64) -> bool {
    let layout = RowLayout::of_table(store.schema(TABLE));
    let row = row_of(&layout, id, value);
    let Some(rid) = store.get(TABLE, 0, &key_of(id)) else {
        return store.insert(TABLE, &row).is_ok();
    };
    match kind {
        0 => {
            let row = store.row(TABLE, rid).expect("a live row");
            let [_, _, before, _] = read(row, &layout).1;
            store.add(TABLE, rid, SUM, value[2] - before).is_ok()
        }
        1 => {
            let set = ColumnSet(1 << NOTE);
            patch_from(store, TABLE, rid, set, &row).is_ok()
        }
        _ => store.update(TABLE, rid, &row).is_ok(),
    }
}

/// Runs a transaction that inserts, changes or deletes some rows. One in five is taken back.
fn write(store: &mut Store, rows: &mut Rows, random: &mut Random) {
    let mut changed = rows.clone();
    store.begin();
    for _ in 0..1 + random.next(2) {
        let id = random.next(IDS as u64) as i64;
        if let Some(rid) = store.get(TABLE, 0, &key_of(id)).filter(|_| random.next(5) == 0) {
            store.delete(TABLE, rid).expect("a live row");
            changed.remove(&id);
            continue;
        }
        let any = [40, 4, 100, 100].map(|bound| random.next(bound) as i64);
        let kind = random.next(4);
        let value = match (changed.get(&id), kind) {
            (Some([tag, group, _, note]), 0) => [*tag, *group, any[2], *note],
            (Some([tag, group, sum, _]), 1) => [*tag, *group, *sum, any[3]],
            _ => any,
        };
        if put(store, id, value, kind) {
            changed.insert(id, value);
        }
    }
    match random.next(5) {
        0 => store.rollback(),
        _ => {
            store.commit();
            *rows = changed;
        }
    }
}

/// Compares what a read shows.
fn check<T: PartialEq + std::fmt::Debug>(
    store: &mut Store,
    end: u64,
    expected: T,
    read: impl FnOnce(&mut StoreAtView<'_>) -> T,
) {
    let found = read(&mut store.as_acknowledged(end).expect("all undo is kept"));
    assert_eq!(found, expected, "before {end}");
}

fn scan(at: &mut StoreAtView<'_>, index: u16, key: &[u8], layout: &RowLayout) -> Vec<(i64, Value)> {
    let (mut position, mut shown) = (ScanPosition::default(), Vec::new());
    let range = Range::new(key, key, Default::default());
    while !position.is_end() {
        let on_row = |row: ShownRow<'_>| {
            shown.push(read(row.row, layout));
            Visit::Next
        };
        at.scan(TABLE, index, &range, (&mut position, 3), on_row)
            .expect("in order");
    }
    shown.sort_unstable();
    shown
}

/// Compares all rows by each index.
fn check_all(store: &mut Store, end: u64, rows: &Rows) {
    let layout = RowLayout::of_table(store.schema(TABLE));
    for id in 0..IDS {
        let expected = rows.get(&id).map(|value| (id, *value));
        check(store, end, expected, |at| {
            at.get_row(TABLE, 0, &key_of(id)).map(|(_, row)| read(row, &layout))
        });
    }
    for tag in 0..40 {
        let expected = rows.iter().find(|(_, value)| value[0] == tag);
        let expected = expected.map(|(id, value)| (*id, *value));
        check(store, end, expected, |at| {
            at.get_row(TABLE, BY_TAG, &key_of(tag))
                .map(|(_, row)| read(row, &layout))
        });
    }
    for group in 0..4 {
        let of_group = rows.iter().filter(|(_, value)| value[1] == group);
        let expected: Vec<_> = of_group.map(|(id, value)| (*id, *value)).collect();
        check(store, end, expected, |at| scan(at, BY_GROUP, &key_of(group), &layout));
    }
}

#[test]
fn read_shows_what_is_acknowledged_beside_writes_that_wait() {
    for seed in 1..120 {
        let mut random = Random(seed * 0x9e37_79b9);
        let kind = if seed % 2 == 0 {
            IndexKind::Ordered
        } else {
            IndexKind::Hash
        };
        let mut store = store(kind);
        let mut rows = Rows::new();
        // The rows at each end.
        let mut states = vec![rows.clone()];
        let (mut durable, mut acknowledged) = (0, 0);
        for end in 1..40u64 {
            write(&mut store, &mut rows, &mut random);
            store.seal(end);
            states.push(rows.clone());
            durable = durable.max(end.saturating_sub(random.next(3)));
            // Acknowledgements stand still now and then.
            if random.next(6) > 0 {
                acknowledged = acknowledged.max(durable.saturating_sub(random.next(4)));
            }
            // A read between two writes: the next one goes by what it found.
            check_all(&mut store, acknowledged, &states[acknowledged as usize]);
            store.acknowledge(acknowledged);
            store.release_undo(durable);
            check_all(&mut store, acknowledged, &states[acknowledged as usize]);
        }
        // The store takes back writes that are not durable. Reads show the rows as before.
        store.unwind();
        rows.clone_from(&states[durable as usize]);
        check_all(&mut store, acknowledged, &states[acknowledged as usize]);
        check_all(&mut store, durable, &rows);
    }
}

#[test]
fn undo_that_is_not_kept_hides_the_rows_before_it() {
    let mut store = store(IndexKind::Hash);
    store.acknowledge(0);
    for end in 1..=5u64 {
        store.begin();
        assert!(put(&mut store, end as i64, [end as i64, 0, 0, 0], 2));
        store.commit();
        store.seal(end);
    }
    store.release_undo(5);
    store.forget_waiting(5);
    assert!(store.as_acknowledged(4).is_none() && store.as_acknowledged(5).is_some());
}

#[test]
fn rows_that_are_shown_by_undo_are_bounded() {
    const COUNT: i64 = 120_000;
    let mut store = store(IndexKind::Hash);
    store.begin();
    (0..COUNT).for_each(|id| assert!(put(&mut store, id, [id, 0, 0, 0], 2)));
    store.commit();
    store.seal(1);
    store.acknowledge(1);
    store.release_undo(1);
    let before = store.memory_bytes();
    // An addition keeps a few bytes, and its row has to be shown whole.
    store.begin();
    (0..COUNT).for_each(|id| assert!(put(&mut store, id, [id, 0, 1, 0], 0)));
    store.commit();
    store.seal(2);
    store.release_undo(2);
    for _ in 0..2 {
        assert!(store.as_acknowledged(1).is_none(), "the rows take too much");
    }
    assert!(
        store.memory_bytes() < before + (20 << 20),
        "{before}, {}",
        store.memory_bytes()
    );
    store.acknowledge(2);
    store.release_undo(2);
    assert!(store.as_acknowledged(2).is_some());
}

#[test]
fn undo_of_waiting_writes_is_bounded() {
    let mut store = store(IndexKind::Hash);
    store.acknowledge(0);
    for end in 1..=40_000u64 {
        store.begin();
        for id in 0..8 {
            assert!(put(&mut store, id, [id, end as i64, 0, 0], 2));
        }
        store.commit();
        store.seal(end);
        store.release_undo(end);
    }
    assert!(store.as_acknowledged(0).is_none(), "the oldest undo went");
    assert!(store.as_acknowledged(39_000).is_some());
    assert!(store.memory_bytes() < 40 << 20, "{}", store.memory_bytes());
    store.acknowledge(40_000);
    store.release_undo(40_000);
    assert!(store.as_acknowledged(40_000).is_some());
}
