//! Write sets of random transactions, applied to a second store. Both stores must be the same after each, whatever the kind of table, with
//! savepoints, and with rows that swap unique values inside a transaction.

use crate::common::{PLAIN, Random, hashed, keyless, patch_from, redo::redo_by_table, store_of, table};
use proptest::prelude::*;
use reprise_abi::{ColumnSet, Field, IndexKind, ScalarType, TableSchema};
use reprise_storage::{AfterImage, ApplyError, PrefetchStep, Range, Rid, ScanPosition, Store, TableId, Visit};
use reprise_wire::{Change, Changes};

use ScalarType::*;

fn schemas() -> Vec<TableSchema> {
    let hashed = hashed(&[("by_rank", &[1], false), ("by_total", &[2], true)]);
    let mut dense = table(
        "dense",
        &[
            ("a", I8, false),
            ("b", I16, false),
            ("text", Text, true),
            ("sum", I64, false),
            ("flag", Bool, false),
        ],
        &[0, 1],
        &[("by_text", &[2], false)],
    );
    dense.primary_kind = IndexKind::Dense;
    let names: Vec<String> = (0..70).map(|at| format!("c{at}")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), I16, false)).collect();
    vec![
        table(
            "plain",
            &[&PLAIN[..], &[("sum", I64, true)]].concat(),
            &[0],
            &[("by_name", &[2], false), ("by_tag", &[3], true)],
        ),
        keyless(),
        hashed,
        dense,
        table(
            "wide",
            &[
                ("a", I64, false),
                ("e", Uuid, false),
                ("d", Decimal { scale: 2 }, true),
                ("f", F64, true),
            ],
            &[0, 1],
            &[],
        ),
        table("many", &many, &[0], &[]),
    ]
}

fn field(random: &mut Random, ty: ScalarType, nullable: bool) -> Field<'static> {
    if nullable && random.next(4) == 0 {
        return Field::Null;
    }
    let small = random.next(6);
    match ty {
        Bool => Field::Bool(small & 1 == 1),
        I8 | I16 | I32 | I64 | Timestamp => Field::Int(small as i64 - 2),
        U8 | U16 | U32 | U64 => Field::Uint(small),
        F64 => Field::F64(small as f64 / 2.0),
        Decimal { .. } => Field::Decimal(small as i128 - 3),
        Text => Field::Text(["", "a", "b\0", "ab", "\u{e4}", "a text that is longer than slots are"][small as usize]),
        Bytes => Field::Bytes(&b"\0\x01 bytes of which some are taken"[..small as usize * 5]),
        Uuid => Field::Uuid([small as u8 & 1; 16]),
    }
}

fn fields(random: &mut Random, schema: &TableSchema) -> Vec<Field<'static>> {
    let columns = schema.columns.iter();
    columns
        .map(|column| field(random, column.ty, column.nullable))
        .collect()
}

fn any_row(random: &mut Random, store: &Store, table: TableId) -> Option<Rid> {
    let rids: Vec<_> = store.rids_from(table, Rid(0)).collect();
    (!rids.is_empty()).then(|| rids[random.next(rids.len() as u64) as usize])
}

/// One random change; refused ones leave nothing.
fn change(random: &mut Random, store: &mut Store) {
    let table = TableId(random.next(store.table_count() as u64) as u16);
    let schema = store.schema(table).clone();
    let row = store.layout(table).build(&fields(random, &schema));
    let Some(rid) = any_row(random, store, table).filter(|_| random.next(3) > 0) else {
        let _ = store.insert(table, &row);
        return;
    };
    match random.next(5) {
        0 => _ = store.delete(table, rid),
        1 => _ = store.update(table, rid, &row),
        2 => {
            let column = random.next(schema.columns.len() as u64) as u16;
            _ = store.add(table, rid, column, random.next(7) as i64 - 3);
        }
        3 => {
            // An equal row, or one that differs in a column.
            let layout = store.layout(table);
            let old = store.row(table, rid).expect("live").to_vec();
            let columns = 0..schema.columns.len() as u16;
            let mut fields: Vec<_> = columns.map(|c| layout.field(&old, c)).collect();
            let at = random.next(fields.len() as u64) as usize;
            fields[at] = field(random, schema.columns[at].ty, schema.columns[at].nullable);
            let row = layout.build(&fields);
            _ = store.update(table, rid, &row);
        }
        _ => {
            let used = schema.columns.len().min(64) as u64;
            let set = ColumnSet((1 << random.next(used)) | (1 << random.next(used)));
            _ = patch_from(store, table, rid, set, &row);
        }
    }
}

fn transaction(random: &mut Random, store: &mut Store, images: AfterImage) -> Vec<u8> {
    store.begin();
    if random.next(3) > 0 {
        store.capture(images);
    }
    let length = [1, 4, 12, 60][random.next(4) as usize];
    let mut savepoint = store.savepoint();
    for _ in 0..length {
        match random.next(12) {
            0 => savepoint = store.savepoint(),
            1 => {
                store.rollback_to(savepoint);
            }
            _ => change(random, store),
        }
    }
    let mut changes = Vec::new();
    let rows = store.write_set(images, &mut changes);
    let walked = Changes::new(&changes).map(|change| change.expect("well-formed"));
    assert_eq!(walked.count(), rows as usize);
    if random.next(5) == 0 {
        store.rollback();
        return Vec::new();
    }
    store.commit();
    changes
}

/// Returns the rows by every index, in its order if it has one.
fn by_indexes(store: &Store) -> Vec<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for table in store.table_ids() {
        for index in 0..store.index_count(table) as u16 {
            let mut rows = Vec::new();
            let visit = |_, row: &[u8]| {
                rows.push(row.to_vec());
                Visit::Next
            };
            let mut position = ScanPosition::default();
            if store
                .scan(table, index, &Range::default(), &mut position, visit)
                .is_err()
            {
                for rid in store.sorted_rids(table) {
                    let row = store.row(table, rid).expect("live");
                    let mut key = Vec::new();
                    let columns = &store.schema(table).primary_key;
                    store.layout(table).push_key(row, columns, &mut key);
                    assert_eq!(store.get(table, 0, &key), Some(rid));
                    rows.push(row.to_vec());
                }
            }
            all.push(rows);
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn applied_write_sets_make_the_same_store(seed: u64, retains: bool) {
        let mut random = Random(seed);
        let (mut ran, mut redone) = (store_of(schemas()), store_of(schemas()));
        if retains {
            ran.retain_undo();
        }
        for turn in 0..20 {
            let images = [AfterImage::Changed, AfterImage::Whole][random.next(2) as usize];
            let changes = transaction(&mut random, &mut ran, images);
            for prefetch in [PrefetchStep::Index, PrefetchStep::Place, PrefetchStep::Row] {
                let walk = Changes::new(&changes).map(|change| change.expect("well-formed"));
                walk.for_each(|change| redone.touch_change(&change, prefetch));
            }
            redone.apply(&changes).expect("the store was the same before");
            prop_assert_eq!(ran.digest(), redone.digest(), "turn {}", turn);
            if retains && turn % 3 == 2 {
                ran.seal(turn);
                ran.release_undo(turn);
            }
        }
        prop_assert_eq!(by_indexes(&ran), by_indexes(&redone));
    }

    #[test]
    fn redo_by_table_in_windows_makes_the_same_store(seed: u64, few_rows: bool) {
        let mut random = Random(seed);
        let (mut ran, mut redone) = (store_of(schemas()), store_of(schemas()));
        for window in 0..4 {
            let mut log: Vec<Vec<u8>> = Vec::new();
            for _ in 0..random.next(30) {
                let images = [AfterImage::Changed, AfterImage::Whole][random.next(2) as usize];
                log.push(transaction(&mut random, &mut ran, images));
            }
            if few_rows {
                log.push(emptied(&mut ran, TableId(random.next(6) as u16)));
            }
            redo_by_table(&mut redone, &log).expect("the store was the same before");
            prop_assert_eq!(ran.digest(), redone.digest(), "window {}", window);
            prop_assert_eq!(by_indexes(&ran), by_indexes(&redone));
        }
    }

    #[test]
    fn redo_of_any_changes_is_refused_or_taken_without_a_panic(seed: u64, flips in prop::collection::vec((0usize..400, any::<u8>()), 0..4)) {
        let mut random = Random(seed);
        let (mut ran, mut other) = (store_of(schemas()), store_of(schemas()));
        for _ in 0..6 {
            let changes = harmed(transaction(&mut random, &mut ran, AfterImage::Changed), &flips);
            let twice = [changes.clone(), changes].concat();
            let _ = redo_by_table(&mut other, &[twice]);
            by_indexes(&other);
        }
    }

    #[test]
    fn changes_of_another_store_are_refused_or_taken_without_a_panic(seed: u64, flips in prop::collection::vec((0usize..400, any::<u8>()), 0..4)) {
        let mut random = Random(seed);
        let (mut ran, mut other) = (store_of(schemas()), store_of(schemas()));
        for _ in 0..6 {
            let changes = harmed(transaction(&mut random, &mut ran, AfterImage::Changed), &flips);
            let _ = transaction(&mut random, &mut other, AfterImage::Whole);
            let _ = other.apply(&changes);
            by_indexes(&other);
        }
    }
}

/// The bytes with others at these places.
fn harmed(mut bytes: Vec<u8>, flips: &[(usize, u8)]) -> Vec<u8> {
    for (at, value) in flips {
        if let Some(byte) = bytes.get_mut(*at) {
            *byte = *value;
        }
    }
    bytes
}

/// A transaction that deletes all rows of a table.
fn emptied(store: &mut Store, table: TableId) -> Vec<u8> {
    store.begin();
    for rid in store.sorted_rids(table) {
        store.delete(table, rid).expect("live");
    }
    let mut changes = Vec::new();
    store.write_set(AfterImage::Changed, &mut changes);
    store.commit();
    changes
}

/// Tables so large that rows are looked for ahead; keys come, go and move among a few neighbours meanwhile.
#[test]
fn redo_finds_rows_that_move_after_they_were_looked_for() {
    let kinds = [IndexKind::Ordered, IndexKind::Hash, IndexKind::Dense];
    let schemas = || {
        let schema = |kind| {
            let columns = [("id", I32, false), ("total", I64, false), ("note", Text, true)];
            let mut schema = table("t", &columns, &[0], &[("by_total", &[1], false)]);
            schema.name = format!("{kind:?}").to_lowercase();
            schema.primary_kind = kind;
            schema
        };
        kinds.map(schema).to_vec()
    };
    let row = |store: &Store, table, id: i64, total| {
        let fields = [Field::Int(id), Field::Int(total), Field::Text("as it was")];
        store.layout(table).build(&fields)
    };
    let key = |id: i64| (id as u32 ^ 1 << 31).to_be_bytes();
    let (mut ran, mut redone) = (store_of(schemas()), store_of(schemas()));
    let mut random = Random(11);
    for table in ran.table_ids() {
        for store in [&mut ran, &mut redone] {
            store.begin();
            for id in 0..9_000 {
                store.insert(table, &row(store, table, id, 0)).expect("new");
            }
            store.commit();
        }
        for window in 0..30 {
            let mut log = Vec::new();
            for turn in 0..60 {
                ran.begin();
                for _ in 0..random.next(4) {
                    let (id, other) = (random.next(12) as i64, random.next(12) as i64);
                    let new = row(&ran, table, other, turn);
                    match (ran.get(table, 0, &key(id)), random.next(3)) {
                        (Some(rid), 0) => ran.delete(table, rid).expect("live"),
                        (Some(rid), 1) => drop(ran.update(table, rid, &new)),
                        (Some(rid), _) => drop(ran.add(table, rid, 1, turn)),
                        (None, _) => drop(ran.insert(table, &new)),
                    }
                }
                let mut changes = Vec::new();
                ran.write_set(AfterImage::Changed, &mut changes);
                ran.commit();
                log.push(changes);
            }
            redo_by_table(&mut redone, &log).expect("fits");
            assert_eq!(ran.digest(), redone.digest(), "{table:?}, window {window}");
        }
    }
    assert_eq!(by_indexes(&ran), by_indexes(&redone));
}

fn two_rows() -> (Store, Rid, Rid) {
    let schema = table(
        "t",
        &[("id", I32, false), ("place", I32, false), ("note", Text, false)],
        &[0],
        &[("by_place", &[1], true)],
    );
    let mut store = store_of(vec![schema]);
    store.begin();
    let [one, two] = [1, 2].map(|id| {
        let row = store
            .layout(TableId(0))
            .build(&[Field::Int(id), Field::Int(10 * id), Field::Text("")]);
        store.insert(TableId(0), &row).expect("new")
    });
    store.commit();
    (store, one, two)
}

fn set(store: &mut Store, rid: Rid, id: i64, place: i64) {
    let row = store
        .layout(TableId(0))
        .build(&[Field::Int(id), Field::Int(place), Field::Text("")]);
    store.update(TableId(0), rid, &row).expect("free");
}

#[test]
fn rows_swap_unique_values_and_keys() {
    for images in [AfterImage::Changed, AfterImage::Whole] {
        let (mut ran, one, two) = two_rows();
        let (mut redone, ..) = two_rows();
        ran.begin();
        set(&mut ran, one, 1, 99);
        set(&mut ran, two, 2, 10);
        set(&mut ran, one, 1, 20);
        // And their keys.
        set(&mut ran, one, 77, 20);
        set(&mut ran, two, 1, 10);
        set(&mut ran, one, 2, 20);
        let mut changes = Vec::new();
        assert_eq!(ran.write_set(images, &mut changes), 2);
        ran.commit();
        redone.apply(&changes).expect("fits");
        assert_eq!(ran.digest(), redone.digest());
        assert_eq!(by_indexes(&ran), by_indexes(&redone));
        let (mut redone, ..) = two_rows();
        redo_by_table(&mut redone, &[changes]).expect("fits");
        assert_eq!(by_indexes(&ran), by_indexes(&redone));
    }
}

#[test]
fn one_key_comes_goes_and_comes_again() {
    let (mut ran, ..) = two_rows();
    let (mut redone, ..) = two_rows();
    let mut log = Vec::new();
    for turn in 0..5 {
        ran.begin();
        if let Some(rid) = ran.get(TableId(0), 0, &[0x80, 0, 0, 7]) {
            ran.delete(TableId(0), rid).expect("live");
        } else {
            let fields = [Field::Int(7), Field::Int(70 + turn), Field::Text("again")];
            let row = ran.layout(TableId(0)).build(&fields);
            ran.insert(TableId(0), &row).expect("new");
        }
        let mut changes = Vec::new();
        ran.write_set(AfterImage::Changed, &mut changes);
        ran.commit();
        log.push(changes);
    }
    // Within a window, and over two.
    redo_by_table(&mut redone, &log[..3]).expect("fits");
    redo_by_table(&mut redone, &log[3..]).expect("fits");
    assert_eq!(ran.digest(), redone.digest());
    assert_eq!(by_indexes(&ran), by_indexes(&redone));
}

#[test]
fn an_update_names_what_changed_and_a_row_that_came_and_went_leaves_its_number() {
    let (mut store, one, _) = two_rows();
    let row = |store: &Store, fields: &[Field<'_>]| store.layout(TableId(0)).build(fields);
    store.begin();
    let passing = row(&store, &[Field::Int(5), Field::Int(50), Field::Text("gone")]);
    let rid = store.insert(TableId(0), &passing).expect("new");
    store.delete(TableId(0), rid).expect("live");
    let text = row(
        &store,
        &[Field::Int(1), Field::Int(10), Field::Text("a note of some length")],
    );
    store.update(TableId(0), one, &text).expect("live");
    let mut changes = Vec::new();
    assert_eq!(store.write_set(AfterImage::Changed, &mut changes), 2);
    let found: Vec<_> = Changes::new(&changes).map(|change| change.expect("whole")).collect();
    let [passed, Change::Patch { table: 0, columns, .. }] = found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(passed, Change::Delete { table: 0, number: 2 });
    let columns: Vec<_> = columns.iter().collect();
    assert_eq!(columns, [(2, Some(&b"a note of some length"[..]))]);
    // Taken back: nothing is left of it, and nothing is written.
    set(&mut store, one, 1, 10);
    let mut changes = Vec::new();
    assert_eq!(store.write_set(AfterImage::Changed, &mut changes), 1);
    store.rollback();
}

#[test]
fn changes_that_do_not_fit_are_named() {
    let (mut store, ..) = two_rows();
    let (mut other, one, _) = two_rows();
    other.begin();
    other.delete(TableId(0), one).expect("live");
    let mut changes = Vec::new();
    other.write_set(AfterImage::Changed, &mut changes);
    other.commit();
    store.apply(&changes).expect("fits");
    let again = store.apply(&changes);
    let error = again.expect_err("the row is gone").to_string();
    assert_eq!(error, "the changed row with number 0 is not in table t");
    let mut nowhere = Store::new();
    let refused = nowhere.apply(&changes);
    assert_eq!(refused, Err(ApplyError::Table { table: 0, count: 0 }));
}

/// The changes of one transaction on a fresh pair of rows, and the store as it is behind it.
fn changed(work: impl FnOnce(&mut Store, Rid, Rid)) -> (Store, Vec<u8>) {
    let (mut store, one, two) = two_rows();
    store.begin();
    work(&mut store, one, two);
    let mut changes = Vec::new();
    store.write_set(AfterImage::Changed, &mut changes);
    store.commit();
    (store, changes)
}

#[test]
fn the_first_difference_names_row_column_and_values() {
    let insert = |store: &mut Store, id: i64, note: &str| {
        let layout = store.layout(TableId(0));
        let row = layout.build(&[Field::Int(id), Field::Int(id * 10), Field::Text(note)]);
        store.insert(TableId(0), &row).expect("new");
    };
    let (_, logged) = changed(|store, one, _| {
        insert(store, 7, "seven");
        set(store, one, 1, 11);
    });
    let check = |(store, replayed): (Store, Vec<u8>), expected: &str| {
        let found = store.first_difference(&logged, &replayed);
        let found = found.map_or("none".into(), |difference| difference.to_string());
        assert_eq!(found, expected);
    };
    let same = |store: &mut Store, one| {
        set(store, one, 1, 11);
        insert(store, 7, "seven");
    };
    check(changed(|store, one, _| same(store, one)), "none");
    check(
        changed(|store, one, _| {
            insert(store, 7, "six");
            set(store, one, 1, 11);
        }),
        "row id=7 of table t, column note: logged \"seven\", replayed \"six\"",
    );
    check(
        changed(|store, one, _| {
            insert(store, 7, "seven");
            set(store, one, 1, 12);
        }),
        "row id=1 of table t, column place: logged 11, replayed 12",
    );
    check(
        changed(|store, one, _| set(store, one, 1, 11)),
        "row id=7 of table t: logged inserted, replayed no such row",
    );
    check(
        changed(|store, one, two| {
            same(store, one);
            store.delete(TableId(0), two).expect("live");
        }),
        "row number 1 of table t: logged no change, replayed deleted",
    );
}

/// Returns the number of each live row, by record id.
fn numbers(store: &Store) -> Vec<u64> {
    let rids = store.rids_from(TableId(0), Rid(0));
    rids.map(|rid| store.row_number(TableId(0), rid)).collect()
}

/// A row of a table with a key has a number, too: never given out again, restored by a rollback, and the same after redo.
#[test]
fn a_row_has_a_number_that_no_other_row_gets() {
    let (mut store, one, _) = two_rows();
    let (mut redone, ..) = two_rows();
    assert_eq!(numbers(&store), [0, 1]);
    let insert = |store: &mut Store, id: i64| {
        let fields = [Field::Int(id), Field::Int(100 + id), Field::Text("")];
        let row = store.layout(TableId(0)).build(&fields);
        store.insert(TableId(0), &row).expect("new")
    };
    let work: [(bool, &dyn Fn(&mut Store)); 4] = [
        (false, &|store| {
            insert(store, 3);
            insert(store, 4);
        }),
        // A row that comes and goes takes its number along.
        (true, &|store| {
            let rid = insert(store, 5);
            store.delete(TableId(0), rid).expect("live");
        }),
        (true, &|store| {
            store.delete(TableId(0), one).expect("live");
            insert(store, 1);
            let mark = store.savepoint();
            insert(store, 6);
            store.rollback_to(mark);
        }),
        (true, &|store| {
            insert(store, 8);
        }),
    ];
    for (commits, work) in work {
        store.begin();
        work(&mut store);
        let mut changes = Vec::new();
        store.write_set(AfterImage::Changed, &mut changes);
        match commits {
            true => {
                store.commit();
            }
            false => store.rollback(),
        }
        if commits {
            redone.apply(&changes).expect("fits");
        }
        assert_eq!(store.digest(), redone.digest());
    }
    let mut all = numbers(&store);
    all.sort_unstable();
    assert_eq!(
        all,
        [1, 3, 4],
        "2 came and went, 0 is deleted, what was rolled back took none"
    );
}
