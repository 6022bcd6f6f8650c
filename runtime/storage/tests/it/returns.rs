//! The way back of a table to a former version. Names and types become the former ones, or the error names the rows that prevent it.

use crate::common::table;
use reprise_abi::{ColumnSchema, Field, ScalarType::*, TableSchema};
use reprise_storage::{Conflict, Store, TableChange, TableId, plan_change, plan_return};

/// Columns of the former version in the table of now.
const SOURCES: [Option<u16>; 3] = [Some(0), Some(1), Some(2)];

fn named(count: usize) -> Vec<String> {
    ["open", "paid", "void"][..count]
        .iter()
        .map(|name| (*name).to_owned())
        .collect()
}

fn before() -> TableSchema {
    let columns = [("id", I32, false), ("state", U8, false), ("cents", I16, false)];
    let mut table = table("t", &columns, &[0], &[("by_cents", &[2], false)]);
    table.columns[1].variants = named(2);
    table
}

/// One more variant, a column with another name, a wider type and nulls, another index, and a column called as one was.
fn after() -> TableSchema {
    let columns = [
        ("id", I32, false),
        ("state", U8, false),
        ("amount", I64, true),
        ("extra", I64, false),
    ];
    let mut table = table("t", &columns, &[0], &[("by_state", &[1], false)]);
    table.columns[1].variants = named(3);
    table.columns[2].was = Some("cents".into());
    table.columns[3].default = Some(7_i64.to_le_bytes().into());
    table
}

fn go(store: &mut Store, id: TableId, change: TableChange) -> Result<TableChange, Vec<Conflict>> {
    let stored = store.schema(id).clone();
    let misfits = store.misfits(id, &change, &|_| true).expect("not ended");
    let conflicts = change.conflicts_of(&stored, misfits);
    if !conflicts.is_empty() {
        return Err(conflicts);
    }
    let prepared = store.prepare(id, change.clone(), &|_| true);
    store.install(prepared.unwrap_or_else(|error| panic!("{error:?}")));
    Ok(change)
}

fn insert(store: &mut Store, id: TableId, fields: &[Field<'_>]) {
    let row = store.layout(id).build(fields);
    store.begin();
    store.insert(id, &row).expect("fresh key");
    store.commit();
}

fn filled() -> (Store, TableId) {
    let mut store = Store::new();
    let id = store.create_table(before()).expect("schema is valid");
    for (number, state, cents) in [(1, 0, -32_768), (2, 1, 32_767)] {
        insert(
            &mut store,
            id,
            &[Field::Int(number), Field::Uint(state), Field::Int(cents)],
        );
    }
    (store, id)
}

#[test]
fn table_goes_back_with_its_values_when_they_fit() {
    let (mut store, id) = filled();
    let digest = store.digest();
    let there = plan_change(store.schema(id), &after()).expect("no conflict");
    go(&mut store, id, there).expect("there");
    assert_ne!(store.digest(), digest);
    let back = plan_return(store.schema(id), &before(), &SOURCES).expect("no conflict");
    let back = go(&mut store, id, back).expect("back");
    assert!(back.reads_rows());
    let lines = back
        .steps
        .iter()
        .map(|s| format!("{} {} {}: {}\n", s.action.name(), s.what, s.item, s.detail));
    expect_test::expect![[r#"
        rename column cents: was amount
        convert column state: enum(open, paid, void) to enum(open, paid)
        convert column cents: i64 or null to i16
        drop column extra: i64
        add index by_cents: (cents)
        drop index by_state: (state)
    "#]]
    .assert_eq(&lines.collect::<String>());
    assert_eq!(store.digest(), digest);
}

#[test]
fn misfits_are_counted_and_one_is_named() {
    let (mut store, id) = filled();
    let there = plan_change(store.schema(id), &after()).expect("no conflict");
    go(&mut store, id, there).expect("there");
    for (number, state, amount) in [
        (3, 2, Field::Int(0)),
        (4, 0, Field::Null),
        (5, 2, Field::Int(32_768)),
        (6, 1, Field::Int(-32_769)),
        (7, 2, Field::Int(i64::MAX)),
    ] {
        insert(
            &mut store,
            id,
            &[Field::Int(number), Field::Uint(state), amount, Field::Int(1)],
        );
    }
    let digest = store.digest();
    let back = plan_return(store.schema(id), &before(), &SOURCES).expect("no conflict of its own");
    let conflicts = go(&mut store, id, back).expect_err("rows");
    let lines: String = conflicts
        .iter()
        .map(|conflict| format!("{}: {}\n", conflict.item, conflict.stored))
        .collect();
    expect_test::expect![[r#"
        state: enum(open, paid, void): 3 rows with void there, as the one with id=3
        amount: i64 or null: 1 row with null there, as the one with id=4
        amount: i64 or null: 3 rows beyond i16 there, as the one with id=5
    "#]]
    .assert_eq(&lines);
    assert_eq!(store.digest(), digest);
}

#[test]
fn column_with_the_name_of_a_former_one_makes_room_for_it() {
    let (mut store, id) = filled();
    let digest = store.digest();
    let mut renamed = after();
    renamed.columns[3].name = "new".into();
    let there = plan_change(store.schema(id), &renamed).expect("no conflict");
    go(&mut store, id, there).expect("there");
    let mut taken = renamed.clone();
    taken.columns[2].was = None;
    taken.columns.push(ColumnSchema {
        name: "cents".into(),
        default: Some(3_i64.to_le_bytes().into()),
        ..taken.columns[3].clone()
    });
    let there = plan_change(store.schema(id), &taken).expect("no conflict");
    go(&mut store, id, there).expect("there");
    let back = plan_return(store.schema(id), &before(), &SOURCES).expect("no conflict");
    go(&mut store, id, back).expect("back");
    assert_eq!(store.digest(), digest);
    // Other types and keys than it had are refused, as ever.
    let mut other = before();
    other.primary_key = vec![1];
    assert!(plan_return(store.schema(id), &other, &SOURCES).is_err());
    other = before();
    other.columns[2].ty = Text;
    assert!(plan_return(store.schema(id), &other, &SOURCES).is_err());
}

#[test]
fn column_that_no_row_has_any_more_is_a_misfit_of_every_row() {
    let (mut store, id) = filled();
    let mut without = before();
    without.columns.pop();
    without.indexes.clear();
    let there = plan_change(store.schema(id), &without).expect("no conflict");
    go(&mut store, id, there).expect("there");
    let back = plan_return(store.schema(id), &before(), &[Some(0), Some(1), None]).expect("no conflict of its own");
    let conflicts = go(&mut store, id, back).expect_err("rows");
    assert_eq!(conflicts.len(), 1);
    assert_eq!(conflicts[0].stored, "2 rows without it, as the one with id=1");
    assert!(conflicts[0].way_on.contains("default"), "{:?}", conflicts[0]);
}
