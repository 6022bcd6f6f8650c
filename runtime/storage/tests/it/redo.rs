//! Redo in windows against the same changes applied one by one. Few rows are inserted, written, deleted and moved, so that later patches of
//! a window overwrite most earlier ones.

use crate::common::{KINDS, Random, patch_from, redo::redo_by_table, store_of, table, table_by};
use proptest::prelude::*;
use reprise_abi::{ColumnSet, Field, IndexKind, ScalarType, TableSchema};
use reprise_storage::{AfterImage, RedoError, Rid, SnapshotPage, Store, TableId};
use reprise_wire::{Change, Changes, CheckpointRows, PatchWriter};

use ScalarType::*;

/// Tables by hash, in order, dense, by a hidden number, and by names of any length. Each has columns that may be overwritten, a `Bool`, a
/// text, and a unique value.
fn schemas() -> Vec<TableSchema> {
    let columns = [
        ("id", I64, false),
        ("sum", I64, false),
        ("part", I16, true),
        ("flag", Bool, false),
        ("text", Text, true),
        ("rank", I32, false),
        ("far", F64, true),
    ];
    let schema = |kind| table_by(kind, &columns, &[("by_rank", &[5], true)]);
    let mut schemas = KINDS.map(schema).to_vec();
    let mut named = schema(Some(IndexKind::Hash));
    named.name = "named".into();
    named.columns[0].ty = Text;
    schemas.push(named);
    schemas
}

/// Ids in names of other lengths: none, of one word, of two, of more words than the redo looks at.
const NAMES: [&str; 8] = [
    "",
    "a",
    "b",
    "a name",
    "eight by",
    "a name of two",
    "a name that is longer",
    "a name that is longeR",
];

fn row(random: &mut Random, store: &Store, table: TableId) -> Vec<u8> {
    let part = [Field::Null, Field::Int(7), Field::Int(-1)][random.next(3) as usize];
    let text = [Field::Null, Field::Text(""), Field::Text("longer")][random.next(3) as usize];
    let id = random.next(8);
    let id = match store.schema(table).columns[0].ty {
        Text => Field::Text(NAMES[id as usize]),
        _ => Field::Int(id as i64),
    };
    store.layout(table).build(&[
        id,
        Field::Int(random.next(1 << 20) as i64),
        part,
        Field::Bool(random.next(2) == 1),
        text,
        Field::Int(random.next(12) as i64),
        Field::F64(random.next(9) as f64),
    ])
}

/// Mostly writes of columns, some of them in an index; a few insertions, deletions and whole rows.
fn change(random: &mut Random, store: &mut Store, table: TableId) {
    let rids: Vec<_> = store.rids_from(table, Rid(0)).collect();
    let row = row(random, store, table);
    let rare = random.next(20);
    if rids.len() < 3 || rare == 0 {
        let _ = store.insert(table, &row); // refused where the key or the value is taken
        return;
    }
    let rid = rids[random.next(rids.len() as u64) as usize];
    let set = match rare {
        1 => return store.delete(table, rid).expect("live"),
        2 => {
            let _ = store.update(table, rid, &row); // as above
            return;
        }
        3 => 1 << 5 | 1 << 1,
        4 => 1 << 4,
        5 => 1 << 3 | 1 << 1,
        6..9 => 1 << 2,
        9..12 => 1 << 1 | 1 << 6,
        _ => 1 << 1,
    };
    let _ = patch_from(store, table, rid, ColumnSet(set), &row);
}

fn transaction(random: &mut Random, store: &mut Store) -> Vec<u8> {
    store.begin();
    for _ in 0..random.next(6) {
        let table = TableId(random.next(store.table_count() as u64) as u16);
        change(random, store, table);
    }
    let mut changes = Vec::new();
    store.write_set(AfterImage::Changed, &mut changes);
    store.commit();
    changes
}

/// Applies each transaction by itself; the first error, with its position.
fn apply_each(store: &mut Store, log: &[Vec<u8>]) -> Result<(), RedoError> {
    (0..)
        .zip(log)
        .try_for_each(|(txn, changes)| store.apply(changes).map_err(|error| RedoError { txn, error }))
}

fn count(log: &[Vec<u8>]) -> usize {
    log.iter().map(|changes| Changes::new(changes).count()).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn windows_of_every_size_come_to_what_each_transaction_does(seed: u64) {
        let mut random = Random(seed);
        let mut ran = store_of(schemas());
        let mut log: Vec<_> = (0..50).map(|_| transaction(&mut random, &mut ran)).collect();
        let mut serial = store_of(schemas());
        apply_each(&mut serial, &log).expect("its own log");
        prop_assert_eq!(serial.digest(), ran.digest());
        for size in 1..=log.len() {
            let mut redone = store_of(schemas());
            for window in log.chunks(size) {
                redo_by_table(&mut redone, window).expect("its own log");
            }
            prop_assert_eq!(redone.digest(), ran.digest(), "windows of {}", size);
        }
        // Later rows that come and go meet the redone ones.
        let mut redone = store_of(schemas());
        redo_by_table(&mut redone, &log).expect("its own log");
        log = (0..50).map(|_| transaction(&mut random, &mut ran)).collect();
        apply_each(&mut redone, &log).expect("the log goes on");
        prop_assert_eq!(redone.digest(), ran.digest());
    }

    #[test]
    fn misfit_is_reported_for_the_same_transaction_in_the_same_words(seed: u64, is_cut: bool) {
        let mut random = Random(seed);
        let (mut ran, mut serial, mut redone) = (store_of(schemas()), store_of(schemas()), store_of(schemas()));
        let begin: Vec<_> = (0..20).map(|_| transaction(&mut random, &mut ran)).collect();
        for store in [&mut serial, &mut redone] {
            apply_each(store, &begin).expect("its own log");
        }
        let mut log: Vec<_> = (0..60).map(|_| transaction(&mut random, &mut ran)).collect();
        let table = TableId(random.next(5) as u16);
        let rids: Vec<_> = redone.rids_from(table, Rid(0)).collect();
        if is_cut {
            let (from, step) = (random.next(60) as usize, random.next(3) as usize + 1);
            log[from..].iter_mut().step_by(step).for_each(|changes| *changes = cut(changes, table));
        } else if !rids.is_empty() {
            let rid = rids[random.next(rids.len() as u64) as usize];
            for store in [&mut serial, &mut redone] {
                store.begin();
                store.delete(table, rid).expect("live");
                store.commit();
            }
        }
        let found = redo_by_table(&mut redone, &log).map(drop);
        prop_assert_eq!(found, apply_each(&mut serial, &log));
    }
}

/// The changes again, the values of the table's patches cut by a byte.
fn cut(changes: &[u8], of: TableId) -> Vec<u8> {
    let mut out = Vec::new();
    for change in Changes::new(changes) {
        match change.expect("well-formed") {
            Change::Patch { table, number, columns } if table == of.0 => {
                let mut patch = PatchWriter::begin(&mut out, table, number, columns.count() as u16);
                for (column, value) in columns.iter() {
                    patch.column(column, value.map(|value| &value[..value.len().saturating_sub(1)]));
                }
                patch.finish();
            }
            change => change.encode(&mut out),
        }
    }
    out
}

/// A counter of few rows: of thousands of additions each row's last one is applied, in whatever table.
#[test]
fn of_many_writes_of_few_rows_the_last_ones_are_applied() {
    for table in (0..4).map(TableId) {
        let (mut ran, mut redone) = (store_of(schemas()), store_of(schemas()));
        let mut begin = Vec::new();
        ran.begin();
        for id in 0..50 {
            let fields = [Field::Int(id), Field::Int(0), Field::Null, Field::Bool(true)];
            let rest = [Field::Null, Field::Int(id), Field::F64(0.0)];
            let row = ran.layout(table).build(&[&fields[..], &rest].concat());
            ran.insert(table, &row).expect("new");
        }
        ran.write_set(AfterImage::Changed, &mut begin);
        ran.commit();
        redone.apply(&begin).expect("new rows");
        let rids: Vec<_> = ran.rids_from(table, Rid(0)).collect();
        let add = |turn: u64| {
            let mut changes = Vec::new();
            ran.begin();
            let rid = rids[(turn * 7 % 50) as usize];
            ran.add(table, rid, 1, turn as i64).expect("a sum");
            ran.write_set(AfterImage::Changed, &mut changes);
            ran.commit();
            changes
        };
        let log: Vec<_> = (1..=3_000).map(add).collect();
        let applied = redo_by_table(&mut redone, &log).expect("fits");
        // Places in which a row's last write is looked for are shared: some are forgotten.
        assert!((50..1_000).contains(&applied), "{applied} of {}", count(&log));
        assert_eq!(ran.digest(), redone.digest());
    }
}

/// Changes a large table of one index. Rows come, go and change their keys, and a key that comes twice is refused.
#[test]
fn insertions_into_a_large_table_are_where_their_keys_say() {
    for kind in [IndexKind::Hash, IndexKind::Dense, IndexKind::Ordered] {
        let mut schema = table("t", &[("id", I64, false), ("n", I32, false)], &[0], &[]);
        schema.primary_kind = kind;
        let mut random = Random(5);
        let make = || store_of(vec![schema.clone()]);
        let (mut ran, mut redone, mut serial) = (make(), make(), make());
        let table = TableId(0);
        let mut log = Vec::new();
        for window in 0..12 {
            log.clear();
            for turn in 0..400 {
                ran.begin();
                for _ in 0..4 {
                    let fields = [Field::Int(random.next(6_000) as i64), Field::Int(turn)];
                    let row = ran.layout(table).build(&fields);
                    let rid = Rid(random.next(2_000) as u32);
                    // The store refuses it if the key is taken, or if the row is not there.
                    let _ = match random.next(8) {
                        0 if ran.row(table, rid).is_some() => ran.delete(table, rid),
                        1 => ran.update(table, rid, &row),
                        _ => ran.insert(table, &row).map(drop),
                    };
                }
                let mut changes = Vec::new();
                ran.write_set(AfterImage::Changed, &mut changes);
                ran.commit();
                log.push(changes);
            }
            redo_by_table(&mut redone, &log).expect("its own log");
            apply_each(&mut serial, &log).expect("its own log");
            assert_eq!(ran.digest(), redone.digest(), "{kind:?}, window {window}");
        }
        assert!(ran.rids_from(table, Rid(0)).count() > 2_000);
        let found = redo_by_table(&mut redone, &log).map(drop);
        assert!(found.is_err(), "the last window once more");
        assert_eq!(found, apply_each(&mut serial, &log));
    }
}

/// Insertions alone, into the room of deleted rows and behind it. They fail because of a key that exists, a row that does not fit, or a
/// number out of turn. The fourth cause is a key that its row gives up in the same transaction. Each comes at every place of the run.
#[test]
fn a_run_of_insertions_ends_where_one_by_one_would() {
    let columns = [("id", I64, false), ("n", I32, false), ("state", Text, false)];
    let mut schema = table("t", &columns, &[0, 1], &[]);
    schema.primary_kind = IndexKind::Hash;
    let layout = store_of(vec![schema.clone()]).layout(TableId(0)).clone();
    let row = |id: i64| layout.build(&[Field::Int(id * 7_919), Field::Int(1), Field::Text("NY")]);
    let insertion = |number: u64, row: &[u8]| {
        let mut out = Vec::new();
        Change::Insert { table: 0, number, row }.encode(&mut out);
        out
    };
    let deletion = |number: u64| {
        let mut out = Vec::new();
        Change::Delete { table: 0, number }.encode(&mut out);
        out
    };
    let begin: Vec<_> = (0..300).map(|id| insertion(id, &row(id as i64))).collect();
    let holes: Vec<_> = (0..20).map(|id| deletion(id * 11)).collect();
    let run: Vec<_> = (300..500).map(|id| insertion(id, &row(id as i64))).collect();
    let check = |begin: &[Vec<u8>], log: &[Vec<u8>], is_good: bool| {
        let (mut redone, mut serial) = (store_of(vec![schema.clone()]), store_of(vec![schema.clone()]));
        for store in [&mut redone, &mut serial] {
            apply_each(store, begin).expect("new rows, and they go");
        }
        let found = redo_by_table(&mut redone, log).map(drop);
        assert_eq!(found, apply_each(&mut serial, log));
        assert_eq!(found.is_ok(), is_good);
        assert_eq!(redone.digest(), serial.digest());
    };
    check(&begin, &run, true);
    check(&[&begin[..], &holes].concat(), &run, true);
    let mut long = row(1_000);
    long.push(0);
    let last = row(1_000).len() - 1;
    let mut no_text = row(1_000);
    no_text[last] = 0xff;
    for at in (0..run.len()).step_by(3) {
        let with = |change: Vec<u8>| {
            let mut log = run.clone();
            log[at] = change;
            log
        };
        let (number, other) = (300 + at as u64, at * 7 % 200);
        check(&begin, &with(insertion(number, &row(299))), false);
        check(&begin, &with(insertion(number, &row(300 + other as i64))), other == at);
        check(&begin, &with(insertion(number, &long)), false);
        check(&begin, &with(insertion(number, &no_text)), false);
        check(&begin, &with(insertion(number, b"short")), false);
        let given_up = [insertion(number, &row(17)), deletion(17)].concat();
        check(&begin, &with(given_up), true);
        for number in [0, number - 1, number + 1, u64::MAX] {
            check(&begin, &with(insertion(number, &row(1_000))), false);
        }
    }
}

fn hostile(change: &Change<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    change.encode(&mut out);
    out
}

/// Numbers that no log of this program has, in tables of either kind: each is refused with a text that names it, and nothing panics.
#[test]
fn numbers_that_name_no_row_or_are_out_of_turn_are_refused() {
    let mut random = Random(3);
    let columns = [("id", I64, false), ("sum", I64, false)];
    for key in [&[0][..], &[]] {
        let mut store = store_of(vec![table("t", &columns, key, &[])]);
        let (table, layout) = (TableId(0), store.layout(TableId(0)).clone());
        let row = |id: i64| layout.build(&[Field::Int(id), Field::Int(0)]);
        store.begin();
        let rids: Vec<_> = (0..40).map(|id| store.insert(table, &row(id)).expect("new")).collect();
        store.commit();
        store.begin();
        rids.iter()
            .step_by(2)
            .for_each(|rid| store.delete(table, *rid).expect("live"));
        store.commit();
        let digest = store.digest();
        let mut refuse = |change: &Change<'_>, text: &str| {
            let found = store.apply(&hostile(change)).expect_err(text).to_string();
            assert!(found.contains(text), "{found}");
            assert_eq!(store.digest(), digest, "{found}");
        };
        let (table, row) = (0, &row(1_000)[..]);
        for gone in [0, 38, 41, 1 << 40, u64::MAX] {
            let text = format!("number {gone}");
            refuse(
                &Change::Replace {
                    table,
                    number: gone,
                    row,
                },
                &text,
            );
            let mut patch = Vec::new();
            PatchWriter::begin(&mut patch, table, gone, 1).column(1, Some(&[1; 8]));
            let patch = Changes::new(&patch).next().expect("one").expect("whole");
            refuse(&patch, &text);
        }
        refuse(&Change::Delete { table, number: 38 }, "number 38");
        refuse(
            &Change::Delete {
                table,
                number: u64::MAX,
            },
            &format!("number {}", u64::MAX),
        );
        refuse(
            &Change::Insert {
                table,
                number: u64::MAX,
                row,
            },
            &format!("number {}", u64::MAX),
        );
        if !key.is_empty() {
            for number in [0, 1, 39, 41] {
                refuse(&Change::Insert { table, number, row }, &format!("number {number}"));
            }
            refuse(&Change::Delete { table, number: 41 }, "number 41");
        }
        // Some bytes of the changes are wrong. Refused or not, nothing panics, and the resulting rows can be read.
        for _ in 0..2_000 {
            let mut bytes = hostile(&Change::Patch {
                table,
                number: random.next(45),
                columns: match Changes::new(&[0x13, 0, 1, 1, 1, 9, 1, 0, 0, 0, 0, 0, 0, 0]).next() {
                    Some(Ok(Change::Patch { columns, .. })) => columns,
                    other => panic!("{other:?}"),
                },
            });
            let at = random.next(bytes.len() as u64) as usize;
            bytes[at] = random.next(256) as u8;
            let _ = store.apply(&bytes);
        }
        store.begin();
        for id in 2_000..2_100 {
            let rid = store
                .insert(TableId(0), &layout.build(&[Field::Int(id), Field::Int(0)]))
                .expect("new");
            let number = store.row_number(TableId(0), rid);
            assert!(store.numbered_row(TableId(0), number).is_some());
        }
        store.commit();
    }
}

/// A snapshot that was begun before is of its moment, whatever redo changes while it is copied.
#[test]
fn a_snapshot_keeps_its_moment_while_changes_are_redone() {
    let mut random = Random(11);
    let mut ran = store_of(schemas());
    let log: Vec<_> = (0..400).map(|_| transaction(&mut random, &mut ran)).collect();
    let (before, after) = log.split_at(200);
    let mut redone = store_of(schemas());
    redo_by_table(&mut redone, before).expect("its own log");
    let copy = |store: &mut Store, changes: &[Vec<u8>]| {
        store.begin_snapshot();
        redo_by_table(store, changes).expect("its own log");
        while !store.copy_snapshot(100) {}
        let mut rows: Vec<_> = store
            .take_snapshot_pages()
            .into_iter()
            .flat_map(|page| rows_of(&page))
            .collect();
        store.end_snapshot();
        rows.sort();
        rows
    };
    let mut still = store_of(schemas());
    redo_by_table(&mut still, before).expect("its own log");
    assert_eq!(copy(&mut redone, after), copy(&mut still, &[]));
    assert_eq!(redone.digest(), ran.digest());
}

/// Each row with its table.
fn rows_of(page: &SnapshotPage) -> Vec<(u16, u64, Vec<u8>)> {
    let rows = CheckpointRows::new(&page.bytes);
    let rows = rows.map(|row| row.expect("just written"));
    rows.map(|(row, number)| (page.table, number, row.to_vec())).collect()
}
