//! A table that is loaded in bulk is the table that insertions make: every index, every range, every later change.

use crate::common::table;
use proptest::prelude::*;
use reprise_abi::{Field, IndexKind, RowLayout, ScalarType, ScanFlags, TableSchema};
use reprise_storage::{LoadError, Range, Rid, ScanPosition, Store, TableId, Visit, WriteError};
use reprise_wire::push_checkpoint_row;

const KINDS: [IndexKind; 3] = [IndexKind::Ordered, IndexKind::Hash, IndexKind::Dense];

/// Tables with an index of every form.
fn schemas() -> Vec<TableSchema> {
    let columns = [
        ("id", ScalarType::I64, false),
        ("kind", ScalarType::U8, false),
        ("text", ScalarType::Text, false),
        ("weight", ScalarType::F64, true),
        ("tag", ScalarType::Uuid, false),
    ];
    let mut schemas = Vec::new();
    for kind in KINDS {
        for (name, key) in [("one", &[0u16][..]), ("two", &[1, 0]), ("by_text", &[2, 0])] {
            let indexes: &[(&str, &[u16], bool)] = &[
                ("kind", &[1], false),
                ("weight", &[3, 0], true),
                ("tag", &[4], false),
                ("wide", &[4, 0, 1], false),
                ("text", &[2], false),
            ];
            let mut schema = table(&format!("{name}_{}", schemas.len()), &columns, key, indexes);
            schema.primary_kind = kind;
            schemas.push(schema);
        }
    }
    schemas.push(table("numbered", &columns, &[], &[("kind", &[1], false)]));
    schemas
}

fn empty() -> Store {
    let mut store = Store::new();
    schemas().into_iter().for_each(|schema| {
        store.create_table(schema).expect("a table");
    });
    store
}

fn row(layout: &RowLayout, id: i64) -> Vec<u8> {
    let spread = (id as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let text = "abcdefgh".repeat((spread % 4) as usize);
    let mut tag = [0; 16];
    tag[8..].copy_from_slice(&(spread >> 60).to_be_bytes());
    layout.build(&[
        Field::Int(id),
        Field::Uint(spread >> 62),
        Field::Text(&text),
        if spread & 1 == 0 {
            Field::Null
        } else {
            Field::F64(spread as f64)
        },
        Field::Uuid(tag),
    ])
}

/// The rows of a table as blocks of a checkpoint.
fn blocks(store: &Store, table: TableId) -> Vec<(Vec<u8>, u32)> {
    let rids: Vec<Rid> = store.rids_from(table, Rid(0)).collect();
    rids.chunks(97)
        .map(|rids| {
            let mut raw = Vec::new();
            for rid in rids {
                let number = store.row_number(table, *rid);
                push_checkpoint_row(&mut raw, store.row(table, *rid).expect("live"), number);
            }
            (raw, rids.len() as u32)
        })
        .collect()
}

fn load_all(from: &Store) -> Store {
    let mut store = empty();
    for mut load in store.loads() {
        let id = load.id();
        for (raw, count) in blocks(from, id) {
            assert_eq!(load.rows(&raw), Ok(count));
        }
        for index in load.finish(from.stats(id).rows).expect("a free number") {
            assert_eq!(index.build(), Ok(()));
        }
    }
    store
}

fn scan(store: &Store, table: TableId, index: u16, range: &Range<'_>) -> Vec<Vec<u8>> {
    let (mut rows, mut position) = (Vec::new(), ScanPosition::default());
    let visit = |_, row: &[u8]| {
        rows.push(row.to_vec());
        Visit::Next
    };
    store
        .scan(table, index, range, &mut position, visit)
        .expect("an ordered index");
    rows
}

/// Both answer alike, whatever they are asked.
fn check_same(a: &Store, b: &Store) {
    assert_eq!(a.digest(), b.digest());
    for table in a.table_ids() {
        assert_eq!(a.stats(table), b.stats(table));
        for index in 0..a.index_count(table) as u16 {
            if a.is_ordered(table, index) {
                let all = Range::default();
                assert_eq!(scan(a, table, index, &all), scan(b, table, index, &all));
                let back = Range::new(&[], &[], ScanFlags(ScanFlags::REVERSE));
                assert_eq!(scan(a, table, index, &back), scan(b, table, index, &back));
            }
        }
        let key_columns = a.schema(table).primary_key.clone();
        for rid in a.rids_from(table, Rid(0)).filter(|_| !key_columns.is_empty()) {
            let (row, mut key) = (a.row(table, rid).expect("live"), Vec::new());
            a.layout(table).push_key(row, &key_columns, &mut key);
            assert_eq!(b.get_row(table, 0, &key).map(|found| found.1), Some(row));
        }
    }
}

/// Inserts and deletes on both; what one refuses the other refuses.
fn change(stores: [&mut Store; 2], ids: &[i64]) {
    let [a, b] = stores;
    for store in [&mut *a, &mut *b] {
        store.begin();
    }
    for table in a.table_ids() {
        for id in ids {
            let row = row(a.layout(table), *id);
            let taken = (a.insert(table, &row).is_ok(), b.insert(table, &row).is_ok());
            assert_eq!(taken.0, taken.1);
            let key_columns = a.schema(table).primary_key.clone();
            if !taken.0 && id % 2 == 0 && !key_columns.is_empty() {
                let mut key = Vec::new();
                a.layout(table).push_key(&row, &key_columns, &mut key);
                for store in [&mut *a, &mut *b] {
                    let rid = store.get(table, 0, &key).expect("it was refused because of this one");
                    store.delete(table, rid).expect("live");
                }
            }
        }
    }
    for store in [a, b] {
        store.commit();
    }
}

fn check(ids: &[i64], later: &[i64]) {
    let mut inserted = empty();
    inserted.begin();
    for table in inserted.table_ids() {
        for id in ids {
            let row = row(inserted.layout(table), *id);
            let _ = inserted.insert(table, &row);
        }
    }
    inserted.commit();
    let mut loaded = load_all(&inserted);
    check_same(&inserted, &loaded);
    change([&mut inserted, &mut loaded], later);
    check_same(&inserted, &loaded);
}

#[test]
fn many_rows_in_order_and_out_of_order() {
    let ordered: Vec<i64> = (0..6_000).collect();
    let mixed: Vec<i64> = (0..6_000).map(|n| (n * 2_741) % 6_000 - 3_000).collect();
    let far: Vec<i64> = (0..3_000i64).map(|n| n.wrapping_mul(0x1234_5678_9abc_def1)).collect();
    check(&ordered, &(5_000..7_000).collect::<Vec<_>>());
    check(&mixed, &ordered);
    check(&far, &far);
}

#[test]
fn a_large_hash_is_filled_in_groups() {
    let schema = |name: &str| {
        let columns = [("id", ScalarType::I64, false), ("sum", ScalarType::I32, false)];
        let mut schema = table(name, &columns, &[0], &[]);
        schema.primary_kind = IndexKind::Hash;
        schema
    };
    let (mut store, table) = (Store::new(), TableId(0));
    store.create_table(schema("large")).expect("a table");
    let layout = store.layout(table).clone();
    let mut raw = Vec::new();
    for id in 0..300_000i64 {
        let row = layout.build(&[Field::Int(id * 7), Field::Int(id)]);
        push_checkpoint_row(&mut raw, &row, id as u64);
    }
    let mut load = store.loads().pop().expect("one table");
    assert_eq!(load.rows(&raw), Ok(300_000));
    for index in load.finish(300_000).expect("a free number") {
        assert_eq!((index.entries(), index.build()), (300_000, Ok(())));
    }
    for id in 0..300_000i64 {
        let key = ((id * 7) as u64 ^ 1 << 63).to_be_bytes();
        let (_, row) = store.get_row(table, 0, &key).expect("it is there");
        assert_eq!(layout.field(row, 1), Field::Int(id));
        let absent = ((id * 7 + 1) as u64 ^ 1 << 63).to_be_bytes();
        assert!(store.get(table, 0, &absent).is_none());
    }
    let per_row = store.memory_bytes() / 300_000;
    assert!(per_row < 16 + 8 + 8 + 8 + 16, "{per_row} bytes a row");
}

#[test]
fn rows_that_no_table_could_hold_are_refused() {
    for (table_number, schema) in schemas().into_iter().enumerate() {
        let is_numbered = schema.primary_key.is_empty();
        let layout = RowLayout::of_table(&schema);
        for (ids, expected) in [([1, 2, 1], !is_numbered), ([1, 2, 3], false)] {
            let (mut store, mut raw) = (empty(), Vec::new());
            for (number, id) in (0..).zip(ids) {
                push_checkpoint_row(&mut raw, &row(&layout, id), number);
            }
            let mut load = store.loads().remove(table_number);
            assert_eq!(load.rows(&raw), Ok(3));
            let indexes = load.finish(3).expect("a free number");
            let built: Vec<_> = indexes.into_iter().map(|index| index.build()).collect();
            let is_refused = built.contains(&Err(WriteError::Duplicate { index: 0 }));
            assert_eq!(is_refused, expected, "{}: {built:?}", schema.name);
        }
    }
}

#[test]
fn numbers_come_once_and_the_next_one_is_free() {
    let numbered = schemas().len() - 1;
    let layout = RowLayout::of_table(&schemas()[numbered]);
    for (numbers, next, is_free) in [([0, 5], 6, true), ([0, 5], 5, false), ([7, 2], 7, false)] {
        let (mut store, mut raw) = (empty(), Vec::new());
        for number in numbers {
            push_checkpoint_row(&mut raw, &row(&layout, 1), number);
        }
        let mut load = store.loads().remove(numbered);
        assert_eq!(load.rows(&raw), Ok(2));
        assert_eq!(load.finish(next).is_some(), is_free);
    }
}

#[test]
fn a_row_of_another_layout_is_refused() {
    let layout = RowLayout::of_table(&schemas()[0]);
    let good = row(&layout, 3);
    let mut store = empty();
    let mut load = store.loads().remove(0);
    let mut raw = Vec::new();
    push_checkpoint_row(&mut raw, &good[1..], 0);
    assert!(matches!(load.rows(&raw), Err(LoadError::Row(WriteError::Malformed(_)))));
    raw.pop();
    assert!(matches!(load.rows(&raw), Err(LoadError::Block(_))));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn loaded_is_inserted(
        ids in prop::collection::vec(prop_oneof![0i64..2_000, any::<i64>()], 0..500),
        later in prop::collection::vec(0i64..2_000, 0..100),
    ) {
        check(&ids, &later);
    }

    #[test]
    fn forged_blocks_are_refused_or_harmless(
        id in 0i64..50,
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        table in 0usize..10,
    ) {
        let layout = RowLayout::of_table(&schemas()[table]);
        let mut raw = Vec::new();
        for id in [id, id + 1, id + 2] {
            push_checkpoint_row(&mut raw, &row(&layout, id), id as u64);
        }
        for (at, byte) in flips {
            let at = at.index(raw.len());
            raw[at] ^= byte;
        }
        let mut store = empty();
        let mut load = store.loads().remove(table);
        if load.rows(&raw).is_ok()
            && let Some(indexes) = load.finish(u64::MAX)
            && indexes.into_iter().map(|index| index.build()).fold(true, |all, built| all & built.is_ok())
        {
            let table = TableId(table as u16);
            prop_assert!(store.sorted_rids(table).len() <= 3 * raw.len());
            store.digest();
            // Each index knows each row: to delete all rows panics if one does not.
            store.begin();
            for rid in store.sorted_rids(table) {
                store.delete(table, rid).expect("live");
            }
            store.commit();
        }
    }
}
