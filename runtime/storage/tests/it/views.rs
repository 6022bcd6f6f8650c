//! A view shows the tables of its opening, whatever is written since, in transactions, by redo, or rolled back. The test reads every row by
//! every key, and every range in both directions, with pages that end anywhere. Once the last view is closed, nothing is kept.

use crate::common::{KINDS, Random, patch_from, redo::redo_by_table, store_of, table, table_by};
use proptest::prelude::*;
use reprise_abi::{ColumnSet, Field, IndexKind, ScalarType, ScanFlags, TableSchema};
use reprise_storage::{
    AfterImage, Range, Rid, ScanPosition, ShownRow, Store, StoreAtView, TableId, ViewError, ViewId, Visit,
};

use ScalarType::*;

const BYTES_MAX: usize = 64 << 20;
const TEXTS: [&str; 6] = ["", "a", "b", "a\0", "a text of some bytes", "a text of some bytes more"];

/// Tables by hash, in order, dense, by a hidden number, and by a text. Each has a unique value, an index that is not unique, and one that
/// is wide.
fn schemas() -> Vec<TableSchema> {
    let columns = [
        ("id", I64, false),
        ("sum", I64, false),
        ("text", Text, true),
        ("rank", I32, false),
        ("part", I16, true),
    ];
    let indexes: [(&str, &[u16], bool); 3] = [
        ("by_rank", &[3], true),
        ("by_part", &[4], false),
        ("by_text", &[2, 4], false),
    ];
    let schema = |kind| table_by(kind, &columns, &indexes);
    let mut schemas = KINDS.map(schema).to_vec();
    for (name, kind) in [("named", IndexKind::Ordered), ("hashed_name", IndexKind::Hash)] {
        let mut named = schema(Some(kind));
        named.name = name.into();
        named.columns[0].ty = Text;
        schemas.push(named);
    }
    let mut plain = table("plain", &columns, &[0], &[]);
    plain.primary_kind = IndexKind::Hash;
    schemas.push(plain);
    schemas
}

fn empty() -> Store {
    store_of(schemas())
}

fn row(random: &mut Random, store: &Store, table: TableId) -> Vec<u8> {
    let id = random.next(12);
    let id = match store.schema(table).columns[0].ty {
        Text => Field::Text(["", "x", "y", "xy", "z\0", "zz", "long name", "longer name"][id as usize % 8]),
        _ => Field::Int(id as i64 - 3),
    };
    let text = match random.next(7) {
        6 => Field::Null,
        at => Field::Text(TEXTS[at as usize]),
    };
    let part = [Field::Null, Field::Int(7), Field::Int(-1)][random.next(3) as usize];
    store.layout(table).build(&[
        id,
        Field::Int(random.next(1 << 20) as i64),
        text,
        Field::Int(random.next(20) as i64),
        part,
    ])
}

fn change(random: &mut Random, store: &mut Store, table: TableId) {
    let rids: Vec<_> = store.rids_from(table, Rid(0)).collect();
    let row = row(random, store, table);
    if rids.len() < 3 || random.next(5) == 0 {
        let _ = store.insert(table, &row); // refused where the key or the value is taken
        return;
    }
    let rid = rids[random.next(rids.len() as u64) as usize];
    let set = match random.next(9) {
        0 | 1 => return store.delete(table, rid).expect("live"),
        2 => {
            let _ = store.update(table, rid, &row); // as above
            return;
        }
        3 => {
            let _ = store.add(table, rid, 1, 5);
            return;
        }
        4 => 0b1_1000,
        5 => 0b100,
        _ => 0b10,
    };
    let _ = patch_from(store, table, rid, ColumnSet(set), &row);
}

/// A transaction, committed or taken back, in part or whole; its changes.
fn transaction(random: &mut Random, store: &mut Store) -> Vec<u8> {
    store.begin();
    for _ in 0..random.next(6) {
        let table = TableId(random.next(store.table_count() as u64) as u16);
        let savepoint = store.savepoint();
        change(random, store, table);
        if random.next(6) == 0 {
            store.rollback_to(savepoint);
        }
    }
    let mut changes = Vec::new();
    if random.next(5) == 0 {
        store.rollback();
        return changes;
    }
    store.write_set(AfterImage::Changed, &mut changes);
    store.commit();
    changes
}

type Rows = Vec<Vec<u8>>;

/// Each key that any row of any time has, by an index.
fn keys(store: &Store, table: TableId, index: u16) -> Rows {
    let schema = store.schema(table);
    let columns = match index {
        0 => schema.primary_key.clone(),
        _ => schema.indexes[index as usize - 1].columns.clone(),
    };
    let mut random = Random(7);
    let mut keys: Rows = (0..400)
        .map(|_| {
            let mut key = Vec::new();
            store
                .layout(table)
                .push_key(&row(&mut random, store, table), &columns, &mut key);
            key
        })
        .collect();
    if columns.is_empty() {
        keys = (0..60_u64).map(|number| number.to_be_bytes().to_vec()).collect();
    }
    keys.sort();
    keys.dedup();
    keys
}

const FLAGS: [u32; 5] = [
    0,
    ScanFlags::REVERSE,
    ScanFlags::LOWER_EXCLUSIVE,
    ScanFlags::UPPER_EXCLUSIVE | ScanFlags::REVERSE,
    ScanFlags::UPPER_EXCLUSIVE | ScanFlags::LOWER_EXCLUSIVE,
];

/// Ranges of an index: between keys, from and to parts of keys, all of it, none.
fn ranges(random: &mut Random, keys: &[Vec<u8>]) -> Vec<(Vec<u8>, Vec<u8>, ScanFlags)> {
    let bound = |random: &mut Random| {
        let mut bound = keys[random.next(keys.len() as u64) as usize].clone();
        match random.next(5) {
            0 => bound.truncate(bound.len() / 2),
            1 => bound.push(0),
            2 => bound.clear(),
            3 => bound.extend([0xff; 3]),
            _ => {}
        }
        bound
    };
    let mut ranges: Vec<_> = FLAGS
        .iter()
        .map(|flags| (bound(random), bound(random), ScanFlags(*flags)))
        .collect();
    ranges.push((Vec::new(), vec![0xff; 40], ScanFlags(0)));
    ranges.push((Vec::new(), vec![0xff; 40], ScanFlags(ScanFlags::REVERSE)));
    ranges
}

/// All that can be asked, and the answers.
#[derive(Debug, PartialEq, Eq)]
struct Answers(Vec<Rows>);

fn numbered(row: &[u8], number: u64) -> Vec<u8> {
    [row, &number.to_be_bytes()].concat()
}

/// Record ids are each store's own.
fn sorted(mut rows: Rows) -> Rows {
    rows.sort();
    rows
}

/// All rows as they lie, in pieces that end as those of `ask_at` do.
fn walk(at: &mut StoreAtView<'_>, table: TableId, random: &mut Random) -> Rows {
    let (mut rows, mut shown, mut from) = (Rows::new(), Vec::new(), Some(Rid(0)));
    while let Some(first) = from {
        let (said, mut left, ids_max) = (random.next(3), random.next(4), 1 + random.next(9) as u32);
        from = at.walk(table, first, ids_max, |ShownRow { rid, number, row }| {
            assert!(rid >= first);
            if left == 0 && said == 0 {
                return Visit::Again;
            }
            rows.push(numbered(row, number));
            shown.push((rid, row.to_vec()));
            if left == 0 {
                return Visit::Stop;
            }
            left -= 1;
            Visit::Next
        });
    }
    check_rows(at, table, shown);
    rows
}

/// Rows that were shown are found by their ids.
fn check_rows(at: &mut StoreAtView<'_>, table: TableId, shown: Vec<(Rid, Vec<u8>)>) {
    for (rid, row) in shown {
        assert_eq!(at.row(table, rid), Some(&row[..]));
    }
}

fn ask(store: &Store, seed: u64) -> Answers {
    let mut answers = Vec::new();
    for table in store.table_ids() {
        let row = |rid| numbered(store.row(table, rid).expect("live"), store.row_number(table, rid));
        answers.push(sorted(store.rids_from(table, Rid(0)).map(row).collect()));
        for index in 0..store.index_count(table) as u16 {
            let keys = keys(store, table, index);
            let get = |key: &Vec<u8>| store.get_row(table, index, key).map(|(_, row)| row.to_vec());
            answers.push(keys.iter().map(|key| get(key).unwrap_or_default()).collect());
            for (lower, upper, flags) in ranges(&mut Random(seed), &keys) {
                let (mut rows, mut position) = (Vec::new(), ScanPosition::default());
                let range = Range::new(&lower, &upper, flags);
                let on_row = |_, row: &[u8]| {
                    rows.push(row.to_vec());
                    Visit::Next
                };
                if store.scan(table, index, &range, &mut position, on_row).is_ok() {
                    answers.push(rows);
                }
            }
        }
    }
    Answers(answers)
}

/// The `ask` variant at a view, in pages. Rows are taken, taken last, or left for the next page.
fn ask_at(schemas: &Store, at: &mut StoreAtView<'_>, seed: u64, random: &mut Random) -> Answers {
    let mut answers = Vec::new();
    for table in schemas.table_ids() {
        answers.push(sorted(walk(at, table, random)));
        for index in 0..schemas.index_count(table) as u16 {
            let keys = keys(schemas, table, index);
            let mut get = |key: &Vec<u8>| {
                let (rid, row) = at.get_row(table, index, key)?;
                let row = row.to_vec();
                assert_eq!(at.row(table, rid), Some(&row[..]));
                Some(row)
            };
            answers.push(keys.iter().map(|key| get(key).unwrap_or_default()).collect());
            'ranges: for (lower, upper, flags) in ranges(&mut Random(seed), &keys) {
                let (mut rows, mut shown, mut position) = (Vec::new(), Vec::new(), ScanPosition::default());
                let range = Range::new(&lower, &upper, flags);
                while !position.is_end() {
                    let (said, mut left) = (random.next(3), random.next(4));
                    let entries_max = 1 + random.next(5) as usize;
                    let on_row = |ShownRow { rid, row, .. }: ShownRow<'_>| {
                        if left == 0 && said == 0 {
                            return Visit::Again;
                        }
                        rows.push(row.to_vec());
                        shown.push((rid, row.to_vec()));
                        if left == 0 {
                            return Visit::Stop;
                        }
                        left -= 1;
                        Visit::Next
                    };
                    if at
                        .scan(table, index, &range, (&mut position, entries_max), on_row)
                        .is_err()
                    {
                        continue 'ranges;
                    }
                }
                check_rows(at, table, shown);
                answers.push(rows);
            }
        }
    }
    Answers(answers)
}

fn digests(store: &Store) -> Vec<u64> {
    store.table_ids().map(|table| store.rows_digest(table)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn views_show_what_was_there_when_they_were_opened(seed in any::<u64>()) {
        let mut random = Random(seed);
        // Transactions write one store, and their logged changes write the other.
        let (schemas, mut stores) = (empty(), [empty(), empty()]);
        let mut log = Vec::new();
        let mut open: Vec<(ViewId, Answers)> = Vec::new();
        let mut digesting: Option<Vec<u64>> = None;
        for number in 1..14 {
            for _ in 0..random.next(25) {
                log.push(transaction(&mut random, &mut stores[0]));
            }
            redo_by_table(&mut stores[1], &log).expect("its own changes");
            log.clear();
            // A reader without a view finds each row built, and a checkpoint finds rows as they were.
            match random.next(8) {
                0 => {
                    stores[1].begin();
                    stores[1].rollback();
                    prop_assert_eq!(digests(&stores[0]), digests(&stores[1]));
                }
                1 if digesting.is_none() => {
                    stores[1].begin_digest();
                    digesting = Some(digests(&stores[0]));
                }
                2 if digesting.is_some() => {
                    let found = stores[1].go_on_digest(usize::MAX).expect("all tables were gone over");
                    let found = found.into_iter().map(|table| table.digest).collect();
                    prop_assert_eq!(digesting.take(), Some(found));
                }
                _ => {}
            }
            let view = ViewId(number);
            if random.next(3) > 0 {
                stores.iter_mut().for_each(|store| store.open_view(view, number, BYTES_MAX));
                open.push((view, ask(&stores[0], seed)));
            }
            // The test reads some views late, and some never.
            for (view, expected) in open.iter().filter(|_| random.next(3) > 0) {
                for store in &mut stores {
                    let mut at = store.at_view(*view).expect("it is open");
                    prop_assert_eq!(at.mark(), view.0);
                    let found = ask_at(&schemas, &mut at, seed, &mut Random(seed ^ number));
                    prop_assert!(&found == expected, "seed {seed}, view {view:?} of {number}: {found:?} is not {expected:?}");
                }
            }
            if !open.is_empty() && random.next(3) == 0 {
                let (view, _) = open.remove(random.next(open.len() as u64) as usize);
                for store in &mut stores {
                    store.close_view(view);
                    prop_assert_eq!(store.has_view(view), Err(ViewError::NotOpen));
                }
            }
        }
        for (view, _) in open {
            stores.iter_mut().for_each(|store| store.close_view(view));
        }
        prop_assert_eq!(digests(&stores[0]), digests(&stores[1]));
        prop_assert_eq!(stores.each_ref().map(Store::version_bytes), [0, 0]);
    }
}

/// Fills a table of its own with as many rows.
fn filled(rows: i64) -> (Store, TableId) {
    let mut store = Store::new();
    let schema = table("t", &[("id", I64, false), ("sum", I64, false)], &[0], &[]);
    let table = store.create_table(schema).expect("a table");
    store.begin();
    for id in 0..rows {
        let row = store.layout(table).build(&[Field::Int(id), Field::Int(0)]);
        store.insert(table, &row).expect("another key");
    }
    store.commit();
    (store, table)
}

fn add_to_all(store: &mut Store, table: TableId) {
    store.begin();
    for rid in store.sorted_rids(table) {
        store.add(table, rid, 1, 1).expect("live");
    }
    store.commit();
}

#[test]
fn versions_go_once_no_view_needs_them() {
    let (mut store, table) = filled(100);
    add_to_all(&mut store, table);
    assert_eq!(store.version_bytes(), 0, "nobody looks");
    store.open_view(ViewId(1), 0, BYTES_MAX);
    add_to_all(&mut store, table);
    let one = store.version_bytes();
    assert!(one >= 100 * 16);
    add_to_all(&mut store, table);
    assert_eq!(store.version_bytes(), one, "a row is kept once for a view");
    for view in 2..50 {
        store.open_view(ViewId(view), 0, BYTES_MAX);
        add_to_all(&mut store, table);
        store.close_view(ViewId(view - 1));
        assert!(
            store.version_bytes() <= one,
            "what is kept is for the views that are open"
        );
    }
    store.close_view(ViewId(49));
    assert_eq!(store.version_bytes(), 0);
}

#[test]
fn views_that_take_too_much_are_lost_and_later_ones_are_not() {
    let (mut store, table) = filled(1_000);
    store.open_view(ViewId(1), 0, 20_000);
    store.open_view(ViewId(2), 0, 20_000);
    add_to_all(&mut store, table);
    for view in [ViewId(1), ViewId(2)] {
        assert_eq!(store.has_view(view), Err(ViewError::Lost { max: 20_000 }));
    }
    assert_eq!(store.version_bytes(), 0);
    store.open_view(ViewId(3), 0, BYTES_MAX);
    add_to_all(&mut store, table);
    let (rid, layout) = (store.sorted_rids(table)[7], store.layout(table).clone());
    let mut at = store.at_view(ViewId(3)).expect("it is open");
    let sum = |row: &[u8]| layout.field(row, 1) == Field::Int(1);
    assert!(at.row(table, rid).is_some_and(sum));
    assert_eq!(store.has_view(ViewId(2)), Err(ViewError::Lost { max: BYTES_MAX }));
    for view in [1, 2, 3] {
        store.close_view(ViewId(view));
    }
    assert_eq!(store.version_bytes(), 0);
}

#[test]
fn a_table_that_is_dropped_takes_the_views_with_it() {
    let (mut store, table) = filled(10);
    store.open_view(ViewId(1), 0, BYTES_MAX);
    store.drop_table(table);
    assert!(matches!(store.has_view(ViewId(1)), Err(ViewError::Lost { .. })));
    store.close_view(ViewId(1));
    assert_eq!(store.version_bytes(), 0);
}

/// The log of a transaction that adds 1 to the sum of each row.
fn logged_adding(source: &mut Store, table: TableId) -> Vec<u8> {
    source.begin();
    for rid in source.sorted_rids(table) {
        source.add(table, rid, 1, 1).expect("live");
    }
    let mut changes = Vec::new();
    source.write_set(AfterImage::Changed, &mut changes);
    source.commit();
    changes
}

fn sum_at(store: &mut Store, view: u64, table: TableId, rid: Rid) -> Field<'static> {
    let layout = store.layout(table).clone();
    let mut at = store.at_view(ViewId(view)).expect("it is open");
    match layout.field(at.row(table, rid).expect("live"), 1) {
        Field::Int(sum) => Field::Int(sum),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_row_that_was_replayed_under_a_view_is_built_by_its_first_reader() {
    let ((mut source, table), (mut store, _)) = (filled(100), filled(100));
    let rid = store.sorted_rids(table)[7];
    store.open_view(ViewId(1), 0, BYTES_MAX);
    store.apply(&logged_adding(&mut source, table)).expect("fits");
    assert_eq!(store.notes(), 100, "replay builds no row");
    store.open_view(ViewId(2), 0, BYTES_MAX);
    store.apply(&logged_adding(&mut source, table)).expect("fits");
    assert_eq!(sum_at(&mut store, 1, table, rid), Field::Int(0));
    assert_eq!(store.notes(), 200, "the first view sees none of them");
    for _ in 0..2 {
        assert_eq!(sum_at(&mut store, 2, table, rid), Field::Int(1));
        assert_eq!(store.notes(), 199, "the second sees one, which is in place then");
        assert_eq!(sum_at(&mut store, 1, table, rid), Field::Int(0));
    }
    store.close_view(ViewId(1));
    store.close_view(ViewId(2));
    assert_eq!((store.notes(), store.digest()), (0, source.digest()));
}

#[test]
fn replay_builds_a_row_after_many_unread_patches() {
    let ((mut source, table), (mut store, _)) = (filled(1), filled(1));
    let rid = store.sorted_rids(table)[0];
    store.open_view(ViewId(1), 0, BYTES_MAX);
    for count in 1..=40 {
        store.apply(&logged_adding(&mut source, table)).expect("fits");
        assert_eq!(store.notes(), (count - 1) % 16 + 1);
    }
    assert_eq!(sum_at(&mut store, 1, table, rid), Field::Int(0));
    store.open_view(ViewId(2), 0, BYTES_MAX);
    assert_eq!(sum_at(&mut store, 2, table, rid), Field::Int(40));
}

#[test]
fn notes_take_a_part_of_what_views_may_take_and_no_view_is_lost_for_them() {
    const ROWS: i64 = 2_000;
    const MAX: usize = 600_000;
    let ((mut source, table), (mut store, _)) = (filled(ROWS), filled(ROWS));
    store.open_view(ViewId(1), 0, MAX);
    for _ in 0..50 {
        store.apply(&logged_adding(&mut source, table)).expect("fits");
        assert!(store.version_bytes() < MAX, "{} bytes", store.version_bytes());
    }
    for rid in store.rids_from(table, Rid(0)).collect::<Vec<_>>() {
        assert_eq!(sum_at(&mut store, 1, table, rid), Field::Int(0));
    }
    // One transaction with more notes than that, and a view that is lost: its rows are built all the same.
    store.open_view(ViewId(2), 0, 1_000);
    store.apply(&logged_adding(&mut source, table)).expect("fits");
    assert_eq!(store.has_view(ViewId(2)), Err(ViewError::Lost { max: 1_000 }));
    assert_eq!((store.notes(), store.digest()), (0, source.digest()));
    store.close_view(ViewId(1));
    store.close_view(ViewId(2));
    assert_eq!(store.version_bytes(), 0);
}

/// The sums of all rows, by record id.
fn sums_at(store: &mut Store, view: ViewId, table: TableId) -> Vec<i64> {
    let layout = store.layout(table).clone();
    let mut at = store.at_view(view).expect("it is open");
    let (mut sums, mut from) = (Vec::new(), Some(Rid(0)));
    while let Some(first) = from {
        from = at.walk(table, first, 100, |shown| {
            if let Field::Int(sum) = layout.field(shown.row, 1) {
                sums.push(sum);
            }
            Visit::Next
        });
    }
    sums
}

#[test]
fn a_view_shows_the_same_where_notes_take_too_much_and_where_they_do_again() {
    const MAX: usize = 2 << 20;
    const ROWS: i64 = 1_000;
    let mut was_full = false;
    for seed in 0..8 {
        let mut random = Random(seed);
        let ((mut source, table), (mut store, _)) = (filled(ROWS), filled(ROWS));
        let mut open: Vec<(ViewId, Vec<i64>)> = Vec::new();
        for number in 1..40 {
            let before = store.notes();
            for _ in 0..random.next(4) {
                source.begin();
                let rids = source.sorted_rids(table);
                for _ in 0..ROWS {
                    let rid = rids[random.next(ROWS as u64) as usize];
                    source.add(table, rid, 1, 1).expect("live");
                }
                let mut changes = Vec::new();
                source.write_set(AfterImage::Changed, &mut changes);
                source.commit();
                store.apply(&changes).expect("fits");
                was_full |= before > 5_000 && store.notes() <= before;
            }
            if random.next(3) > 0 {
                let view = ViewId(number);
                store.open_view(view, 0, MAX);
                source.open_view(view, 0, MAX);
                open.push((view, sums_at(&mut source, view, table)));
                source.close_view(view);
            }
            for (view, expected) in open.iter().filter(|_| random.next(4) == 0) {
                assert_eq!(
                    &sums_at(&mut store, *view, table),
                    expected,
                    "seed {seed}, {view:?} of {number}"
                );
            }
            // A long read, and then none for a while.
            if open.len() > 6 || number % 20 == 0 {
                for (view, expected) in open.drain(..random.next(open.len() as u64 + 1) as usize) {
                    assert_eq!(
                        sums_at(&mut store, view, table),
                        expected,
                        "seed {seed}, {view:?} of {number}"
                    );
                    store.close_view(view);
                }
            }
        }
        open.into_iter().for_each(|(view, _)| store.close_view(view));
        assert_eq!((store.notes(), store.digest()), (0, source.digest()));
    }
    assert!(was_full);
}

/// Tables of wide rows, filled.
fn wide(tables: usize, rows: i64, bytes: usize) -> (Store, Vec<TableId>) {
    let mut store = Store::new();
    let columns = [("id", I64, false), ("sum", I64, false), ("text", Text, false)];
    let text = "x".repeat(bytes);
    let ids = (0..tables).map(|at| {
        let table = table(&format!("t{at}"), &columns, &[0], &[]);
        let table = store.create_table(table).expect("a table");
        store.begin();
        for id in 0..rows {
            let row = [Field::Int(id), Field::Int(0), Field::Text(&text)];
            let row = store.layout(table).build(&row);
            store.insert(table, &row).expect("another key");
        }
        store.commit();
        table
    });
    let ids = ids.collect();
    (store, ids)
}

#[test]
fn a_reader_that_builds_rows_keeps_no_more_for_older_views_than_they_may_take() {
    const MAX: usize = 8 << 20;
    let ((mut source, ids), (mut store, _)) = (wide(1, 1_000, 10_000), wide(1, 1_000, 10_000));
    store.open_view(ViewId(1), 0, MAX);
    store.apply(&logged_adding(&mut source, ids[0])).expect("fits");
    assert_eq!(store.notes(), 1_000);
    store.open_view(ViewId(2), 0, MAX);
    assert_eq!(sums_at(&mut store, ViewId(2), ids[0]), [1; 1_000]);
    assert!(store.version_bytes() <= MAX, "{} bytes", store.version_bytes());
    for view in [ViewId(1), ViewId(2)] {
        assert_eq!(store.has_view(view), Err(ViewError::Lost { max: MAX }));
    }
    store.apply(&logged_adding(&mut source, ids[0])).expect("fits");
    assert!(
        store.notes() == 0 && store.version_bytes() < 20_000,
        "what is lost is let go"
    );
    assert_eq!(store.digest(), source.digest());
}

#[test]
fn views_of_a_few_changes_in_each_of_many_tables_are_not_lost() {
    const MAX: usize = 1 << 20;
    let ((mut source, ids), (mut store, _)) = (wide(40, 10, 0), wide(40, 10, 0));
    for view in 1..20 {
        store.open_view(ViewId(view), 0, MAX);
        if view > 1 {
            store.close_view(ViewId(view - 1));
        }
        for table in &ids {
            store.apply(&logged_adding(&mut source, *table)).expect("fits");
        }
        assert_eq!(store.has_view(ViewId(view)), Ok(()));
        assert!(store.version_bytes() < MAX / 2, "{} bytes", store.version_bytes());
    }
}
