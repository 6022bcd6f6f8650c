//! A snapshot holds the tables as they were when it began, whatever is written while it is copied; loaded, it is them.

use crate::common::table;
use proptest::prelude::*;
use reprise_abi::{ColumnSet, Field, IndexKind, ScalarType};
use reprise_storage::{SnapshotPage, Store, TableId, plan_change};

const KEYED: TableId = TableId(0);
const NUMBERED: TableId = TableId(1);
const HASHED: TableId = TableId(2);

fn empty() -> Store {
    let columns = [
        ("id", ScalarType::I64, false),
        ("sum", ScalarType::I64, false),
        ("text", ScalarType::Text, true),
    ];
    let mut store = Store::new();
    let by_text: &[u16] = &[2];
    let mut hashed = table("hashed", &columns, &[0], &[]);
    hashed.primary_kind = IndexKind::Hash;
    for schema in [
        table("keyed", &columns, &[0], &[("by_text", by_text, false)]),
        table("numbered", &columns, &[], &[]),
        hashed,
    ] {
        store.create_table(schema).expect("a table");
    }
    store
}

/// One transaction: table, what, key, text length.
type Step = (u8, u8, i64, usize);

fn apply(store: &mut Store, (at, what, id, length): Step) {
    let table = [KEYED, NUMBERED, HASHED][at as usize % 3];
    let text = "x".repeat(length);
    let row = store
        .layout(table)
        .build(&[Field::Int(id), Field::Int(length as i64), Field::Text(&text)]);
    store.begin();
    let rids = store.sorted_rids(table);
    let chosen = rids.get(id as usize % rids.len().max(1)).copied();
    match (what % 8, chosen) {
        (0, Some(rid)) => store.delete(table, rid).expect("live"),
        (1, Some(rid)) => {
            let _ = store.add(table, rid, 1, id);
        }
        (2, Some(rid)) => {
            let _ = store.update(table, rid, &row);
        }
        (3, Some(rid)) => {
            store.delete(table, rid).expect("live");
            let _ = store.insert(table, &row);
        }
        (4, Some(rid)) => {
            let some: Vec<_> = rids.iter().copied().take(20).chain([rid]).collect();
            let values: Vec<u8> = some.iter().flat_map(|_| id.to_le_bytes()).collect();
            let patcher = store.patcher(table, ColumnSet(0b10));
            patcher
                .expect("a plain column")
                .patch_run(&some, &values)
                .expect("live");
        }
        (5, _) => {
            let of = |id| {
                store
                    .layout(table)
                    .build(&[Field::Int(id), Field::Int(1), Field::Text(&text)])
            };
            let rows: Vec<_> = (id..id + 20).map(of).collect();
            let _ = store.multi_insert(table, rows.iter().map(Vec::as_slice), |_| {});
        }
        _ => {
            let _ = store.insert(table, &row);
        }
    }
    match what % 7 {
        6 => store.rollback(),
        _ => {
            store.commit();
        }
    }
}

fn load(pages: &[SnapshotPage], next_numbers: &[u64]) -> Store {
    let mut store = empty();
    for mut load in store.loads() {
        let table = load.id();
        for page in pages.iter().filter(|page| page.table == table.0) {
            assert_eq!(load.rows(&page.bytes).expect("own bytes"), page.rows);
        }
        let indexes = load.finish(next_numbers[table.0 as usize]).expect("a free number");
        indexes
            .into_iter()
            .for_each(|index| index.build().expect("keys that were there"));
    }
    store
}

fn step() -> impl Strategy<Value = Step> {
    (any::<u8>(), any::<u8>(), 0i64..60, 0usize..90)
}

proptest! {
    #[test]
    fn a_snapshot_is_the_moment_at_which_it_began(
        before in proptest::collection::vec(step(), 0..120),
        during in proptest::collection::vec((step(), 0usize..400), 0..120),
    ) {
        let mut store = empty();
        before.iter().for_each(|step| apply(&mut store, *step));
        let digest = store.digest();
        let tables = store.begin_snapshot();
        let mut pages = Vec::new();
        for (step, bytes) in during {
            apply(&mut store, step);
            store.copy_snapshot(bytes);
            pages.extend(store.take_snapshot_pages());
        }
        while !store.copy_snapshot(100) {}
        pages.extend(store.take_snapshot_pages());
        store.end_snapshot();
        let rows: u64 = pages.iter().map(|page| page.rows as u64).sum();
        prop_assert_eq!(rows, tables.iter().map(|table| table.rows).sum::<u64>());
        let next: Vec<_> = tables.iter().map(|table| table.next_number).collect();
        prop_assert_eq!(load(&pages, &next).digest(), digest);
    }
}

fn add_column(store: &mut Store) {
    let mut changed = store.schema(KEYED).clone();
    changed.columns.push(reprise_abi::ColumnSchema {
        nullable: true,
        ..reprise_abi::ColumnSchema::new("more", ScalarType::I64)
    });
    let change = plan_change(store.schema(KEYED), &changed).expect("fits");
    let prepared = store.prepare(KEYED, change, &|_| true).expect("fits");
    store.install(prepared);
}

#[test]
fn a_schema_change_does_not_tear_a_snapshot() {
    let mut store = empty();
    (0..500).for_each(|id| apply(&mut store, (0, 5, id, 40)));
    let digest = store.digest();
    let tables = store.begin_snapshot();
    store.copy_snapshot(3000);
    add_column(&mut store);
    apply(&mut store, (1, 5, 3, 3));
    while !store.copy_snapshot(1000) {}
    let pages = store.take_snapshot_pages();
    let next: Vec<_> = tables.iter().map(|table| table.next_number).collect();
    assert_eq!(load(&pages, &next).digest(), digest);
}

#[test]
fn a_snapshot_holds_no_more_than_the_rows_that_change_meanwhile() {
    const PAGE_BYTES: usize = 256 << 10;
    let mut store = empty();
    let text = "x".repeat(100);
    let row = |store: &Store, id: i64, sum: i64| {
        let fields = [Field::Int(id), Field::Int(sum), Field::Text(&text)];
        store.layout(KEYED).build(&fields)
    };
    store.begin();
    for id in 0..40_000 {
        let row = row(&store, id, 0);
        store.insert(KEYED, &row).expect("new");
    }
    store.commit();
    let row_bytes = row(&store, 0, 0).len();
    let rids = store.sorted_rids(KEYED);
    store.begin_snapshot();
    let (mut held, mut copied) = (0, 0);
    let mut take = |store: &mut Store| {
        let pages = store.take_snapshot_pages();
        held += pages.iter().map(|page| page.bytes.capacity()).sum::<usize>();
        copied += pages.iter().map(|page| page.rows).sum::<u32>();
        (held, copied)
    };
    // The transactions change each of 5,000 rows four times, and insert later rows. The store keeps only the rows that the first changes
    // found.
    for turn in 1..5 {
        for at in 0..5_000 {
            store.begin();
            let rid = rids[at * 8];
            let id = at as i64 * 8;
            let changed = row(&store, id, turn);
            store.update(KEYED, rid, &changed).expect("live");
            let new = row(&store, turn * 1_000_000 + id, 0);
            store.insert(KEYED, &new).expect("new");
            store.commit();
        }
        let (held, copied) = take(&mut store);
        assert!(copied <= 5_000 && copied as usize >= 5_000 - PAGE_BYTES / row_bytes);
        assert!(
            held <= 5_000 * (row_bytes + 8) + PAGE_BYTES,
            "{held} bytes for 5,000 rows of {row_bytes}"
        );
    }
    // Copied as it is taken, the rest is never held at once.
    while !store.copy_snapshot(64 << 10) {
        let pages = store.take_snapshot_pages();
        assert!(pages.len() <= 1, "{} pages of one slice", pages.len());
    }
    store.end_snapshot();
}

proptest! {
    #[test]
    fn digests_are_of_the_moment_at_which_they_began(
        before in proptest::collection::vec(step(), 0..120),
        during in proptest::collection::vec((step(), 0usize..400), 0..120),
        copies in any::<bool>(),
    ) {
        let mut store = empty();
        before.iter().for_each(|step| apply(&mut store, *step));
        let all = [KEYED, NUMBERED, HASHED];
        let expected = all.map(|table| store.rows_digest(table));
        // A checkpoint may be copied at the same time, begun at another moment.
        if copies {
            store.begin_snapshot();
        }
        store.begin_digest();
        prop_assert!(store.is_digesting());
        let mut found = None;
        for (step, bytes) in during {
            apply(&mut store, step);
            store.copy_snapshot(bytes / 2);
            found = found.or_else(|| store.go_on_digest(bytes));
        }
        let found = loop {
            match found.or_else(|| store.go_on_digest(100)) {
                Some(found) => break found,
                None => found = None,
            }
        };
        prop_assert!(!store.is_digesting());
        prop_assert_eq!(found.iter().map(|table| table.digest).collect::<Vec<_>>(), expected.to_vec());
        let now = all.map(|table| store.rows_digest(table));
        store.begin_digest();
        let again = store.go_on_digest(usize::MAX).expect("all at once");
        prop_assert_eq!(again.iter().map(|table| table.digest).collect::<Vec<_>>(), now.to_vec());
    }
}

#[test]
fn digests_outlive_a_schema_change_and_end_when_they_are_told_to() {
    let mut store = empty();
    (0..500).for_each(|id| apply(&mut store, (0, 7, id, 40)));
    let expected = store.rows_digest(KEYED);
    store.begin_digest();
    assert!(store.go_on_digest(3000).is_none());
    add_column(&mut store);
    let found = loop {
        if let Some(found) = store.go_on_digest(1000) {
            break found;
        }
    };
    assert_eq!((found[0].digest, found[0].rows), (expected, 500));
    store.begin_digest();
    store.end_digest();
    assert!(!store.is_digesting() && store.go_on_digest(usize::MAX).is_none());
}
