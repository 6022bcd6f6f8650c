//! Schema changes: which changes are taken up, which are a conflict, and that a conflict changes nothing.

use crate::common::table;
use expect_test::{Expect, expect};
use reprise_abi::{ColumnSchema, Field, IndexKind, IndexSchema, ScalarType::*, TablePlacement, TableSchema};
use reprise_storage::{
    ColumnProblem, Conflict, ConvertError, Range, Store, TableChange, TableId, Visit, WriteError, check_limits,
    plan_change, plan_change_of_empty, plan_logged_change,
};

fn accounts() -> TableSchema {
    table(
        "accounts",
        &[("id", I32, false), ("owner", Text, false), ("cents", I64, false)],
        &[0],
        &[("by_owner", &[1], false)],
    )
}

fn filled() -> (Store, TableId) {
    let mut store = Store::new();
    let id = store.create_table(accounts()).expect("schema is valid");
    store.begin();
    for (number, owner) in [(3, "ann"), (1, "bob"), (2, "ann")] {
        let row = store
            .layout(id)
            .build(&[Field::Int(number), Field::Text(owner), Field::Int(10 * number)]);
        store.insert(id, &row).expect("fresh key");
    }
    store.commit();
    (store, id)
}

fn column(name: &str, ty: reprise_abi::ScalarType, nullable: bool, default: Option<&[u8]>) -> ColumnSchema {
    ColumnSchema {
        nullable,
        default: default.map(Into::into),
        ..ColumnSchema::new(name, ty)
    }
}

fn dump(store: &Store, id: TableId, index: u16) -> String {
    let mut text = String::new();
    let layout = store.layout(id);
    let mut position = Default::default();
    let visit = |_, row: &[u8]| {
        let fields = (0..layout.columns.len() as u16).map(|c| format!("{:?}", layout.field(row, c)));
        text += &(fields.collect::<Vec<_>>().join(" ") + "\n");
        Visit::Next
    };
    store
        .scan(id, index, &Range::default(), &mut position, visit)
        .expect("index is ordered");
    text
}

/// Changes the stored table into the declared one.
fn evolve(store: &mut Store, id: TableId, declared: &TableSchema) -> Result<TableChange, Vec<Conflict>> {
    let change = plan_change(store.schema(id), declared)?;
    let prepared = store.prepare(id, change.clone(), &|_| true);
    let prepared = prepared.map_err(|unprepared| match unprepared {
        ConvertError::Conflicts(conflicts) => conflicts,
        ConvertError::Ended => unreachable!("nobody ended it"),
    })?;
    store.install(prepared);
    Ok(change)
}

fn steps(change: &TableChange) -> String {
    let steps = change.steps.iter();
    let lines = steps.map(|s| format!("{} {} {}: {}\n", s.action.name(), s.what, s.item, s.detail));
    lines.collect()
}

fn check_conflict(change: impl FnOnce(&mut TableSchema), expected: Expect) {
    let (mut store, id) = filled();
    let before = (store.digest(), store.stats(id), dump(&store, id, 1));
    let mut declared = accounts();
    change(&mut declared);
    let conflicts = evolve(&mut store, id, &declared).expect_err("a conflict");
    let lines: Vec<String> = conflicts.iter().map(ToString::to_string).collect();
    expected.assert_eq(&lines.join("\n"));
    assert_eq!((store.digest(), store.stats(id), dump(&store, id, 1)), before);
    store.begin();
    store.rollback();
}

#[test]
fn table_without_rows_is_made_anew_when_its_change_fits_no_row() {
    let mut store = Store::new();
    let id = store.create_table(accounts()).expect("schema is valid");
    let mut declared = accounts();
    declared.columns[0].ty = Text;
    declared.columns.push(column("level", U16, false, None));
    declared.primary_key = vec![1, 0];
    assert!(plan_change(store.schema(id), &declared).is_err());
    let change = plan_change_of_empty(store.schema(id), &declared, None).expect("there are no rows");
    expect![[r#"
        convert column id: i32 to text
        convert column level: rows without it to level u16, without a default
        convert primary key : (id) to (owner, id)
        convert index by_owner: (owner)
    "#]]
    .assert_eq(&steps(&change));
    assert_eq!(change.sources(), [None; 4]);
    // The log has the sources alone, and they lead to the same table.
    let logged = plan_logged_change(store.schema(id), &declared, change.sources()).expect("as it was logged");
    assert_eq!(logged.schema, change.schema);
    let prepared = store.prepare(id, logged, &|_| true).expect("there are no rows");
    store.install(prepared);
    assert_eq!(store.schema(id).primary_key, [1, 0]);

    let same = plan_change_of_empty(&accounts(), &accounts(), None).expect("no conflict");
    assert!(same.is_noop());
    let foreign = plan_logged_change(&accounts(), &accounts(), &[Some(0), Some(1), Some(9)]);
    assert!(foreign.expect_err("no such column")[0].way_on.contains("damaged"));
}

#[test]
fn rename_alone_is_a_change_when_it_is_logged() {
    let mut declared = accounts();
    declared.columns[2].name = "amount".into();
    declared.columns[2].was = Some("cents".into());
    let change = plan_change(&accounts(), &declared).expect("no conflict");
    let logged = plan_logged_change(&accounts(), &declared, change.sources()).expect("as it was logged");
    assert_eq!(steps(&logged), "rename column amount: was cents\n");
    assert_eq!((logged.steps.clone(), logged.is_noop()), (change.steps.clone(), false));
}

#[test]
fn values_are_counted_without_nulls() {
    let (mut store, id) = filled();
    let mut declared = accounts();
    declared.columns.push(column("note", Text, true, None));
    evolve(&mut store, id, &declared).expect("no conflict");
    store.begin();
    let fields = [Field::Int(4), Field::Text("eve"), Field::Int(1), Field::Text("new")];
    let row = store.layout(id).build(&fields);
    store.insert(id, &row).expect("fresh key");
    store.commit();
    assert_eq!((store.values_count(id, 0), store.values_count(id, 3)), (4, 1));
    let dropped = plan_change(store.schema(id), &accounts()).expect("no conflict");
    assert_eq!(dropped.dropped_columns(store.schema(id)).collect::<Vec<_>>(), [3]);
}

#[test]
fn columns_and_indexes_are_taken_up() {
    let (mut store, id) = filled();
    let mut declared = accounts();
    declared.columns.push(column("note", Text, true, None));
    declared.columns.push(column("level", U16, false, Some(&[7, 0])));
    declared.indexes.insert(0, IndexSchema::new("by_cents", &[2], true));
    let before = store.digest();
    let change = evolve(&mut store, id, &declared).expect("no conflict");
    expect![[r#"
        add column note: text or null
        add column level: u16
        add index by_cents: unique (cents)
    "#]]
    .assert_eq(&steps(&change));
    assert_ne!(store.digest(), before);
    expect![[r#"
        Int(2) Text("ann") Int(20) Null Uint(7)
        Int(3) Text("ann") Int(30) Null Uint(7)
        Int(1) Text("bob") Int(10) Null Uint(7)
    "#]]
    .assert_eq(&dump(&store, id, 2));

    assert!(evolve(&mut store, id, &declared).expect("no conflict").is_noop());
    let narrower = evolve(&mut store, id, &accounts()).expect("no conflict");
    expect![[r#"
        drop column note: text or null
        drop column level: u16
        drop index by_cents: unique (cents)
    "#]]
    .assert_eq(&steps(&narrower));
    expect![[r#"
        Int(2) Text("ann") Int(20)
        Int(3) Text("ann") Int(30)
        Int(1) Text("bob") Int(10)
    "#]]
    .assert_eq(&dump(&store, id, 1));
}

#[test]
fn columns_are_renamed_widened_made_nullable_and_change_places() {
    let (mut store, id) = filled();
    let mut declared = accounts();
    declared.columns[0].ty = I64;
    declared.columns[1].nullable = true;
    declared.columns[1].name = "holder".into();
    declared.columns[1].was = Some("owner".into());
    declared.columns.swap(1, 2);
    declared.indexes[0].columns = vec![2];
    let change = evolve(&mut store, id, &declared).expect("no conflict");
    expect![[r#"
        rename column holder: was owner
        convert column id: i32 to i64
        convert column holder: text to text or null
        convert column : another order
    "#]]
    .assert_eq(&steps(&change));
    expect![[r#"
        Int(1) Int(10) Text("bob")
        Int(2) Int(20) Text("ann")
        Int(3) Int(30) Text("ann")
    "#]]
    .assert_eq(&dump(&store, id, 0));
    expect![[r#"
        Int(2) Int(20) Text("ann")
        Int(3) Int(30) Text("ann")
        Int(1) Int(10) Text("bob")
    "#]]
    .assert_eq(&dump(&store, id, 1));
    let again = evolve(&mut store, id, &declared).expect("`was` stays in the source");
    assert!(again.is_noop(), "{again:?}");
}

#[test]
fn variants_are_added_at_the_end_of_an_enum() {
    let (mut store, id) = filled();
    let with = |variants: &[&str]| {
        let mut declared = accounts();
        declared.columns.push(column("state", U8, false, Some(&[1])));
        declared.columns[3].variants = variants.iter().map(|name| (*name).into()).collect();
        declared
    };
    evolve(&mut store, id, &with(&["open", "closed"])).expect("no conflict");
    let change = evolve(&mut store, id, &with(&["open", "closed", "frozen"])).expect("no conflict");
    expect![[r#"
        convert column state: enum(open, closed) to enum(open, closed, frozen)
    "#]]
    .assert_eq(&steps(&change));
    assert!(!change.reads_rows());
    assert_eq!(store.schema(id).columns[3].variants.len(), 3);
    for other in [
        &["open", "frozen", "closed"][..],
        &["open", "closed"],
        &["open", "shut", "frozen"],
        &[],
    ] {
        let conflicts = evolve(&mut store, id, &with(other)).expect_err("a conflict");
        assert!(
            conflicts[0]
                .to_string()
                .contains("further variants of an enum are added at its end"),
            "{conflicts:?}"
        );
    }
    let mut plain = with(&["open", "closed", "frozen"]);
    plain.columns[3].variants = Vec::new();
    plain.columns[3].ty = U16;
    evolve(&mut store, id, &plain).expect_err("an enum is no number");
    let (mut store, id) = filled();
    evolve(&mut store, id, &with(&[])).expect("no conflict");
    evolve(&mut store, id, &with(&["open"])).expect_err("a number is no enum");
}

#[test]
fn dropped_tables_make_room() {
    let (mut store, id) = filled();
    let many = |from: usize| {
        let mut declared = accounts();
        declared.indexes = (from..from + 64)
            .map(|at| IndexSchema::new(format!("i{at}"), &[2], false))
            .collect();
        declared
    };
    for from in [0, 33, 66] {
        evolve(&mut store, id, &many(from)).expect("no conflict");
        assert_eq!(store.index_count(id), 65);
        assert_eq!(check_limits(store.schema(id)), []);
    }
    let mut more = many(0);
    more.indexes.push(IndexSchema::new("one_more", &[1], false));
    let found: Vec<_> = check_limits(&more).iter().map(ToString::to_string).collect();
    expect!["table accounts: indexes: stored at most 64, declared 65; leave out those that no procedure scans"]
        .assert_eq(&found.join("\n"));
}

#[test]
fn keys_that_no_row_could_have_are_refused() {
    let columns: Vec<_> = (0..70).map(|at| format!("c{at}")).collect();
    let columns: Vec<_> = columns.iter().map(|name| (name.as_str(), Uuid, false)).collect();
    let key: Vec<u16> = (0..65).collect();
    let wide = table("wide", &columns, &key, &[]);
    let found: Vec<_> = check_limits(&wide).iter().map(ToString::to_string).collect();
    expect!["table wide: primary key: stored at most 1024 bytes, declared at least 1040; leave columns out of the key"]
        .assert_eq(&found.join("\n"));
}

#[test]
fn a_dropped_table_leaves_its_number() {
    let (mut store, id) = filled();
    let mut second = accounts();
    second.name = "second".into();
    let other = store.create_table(second.clone()).expect("another name");
    store.drop_table(id);
    assert_eq!((store.table_id("accounts"), store.rows_count(id)), (None, 0));
    assert_eq!(store.table_id("second"), Some(other));
    let mut third = accounts();
    third.name = "third".into();
    assert_eq!(store.create_table(third), Ok(id));
    assert_eq!(store.rows_count(id), 0);
}

#[test]
fn rows_with_holes_get_their_new_indexes() {
    let (mut store, id) = filled();
    store.begin();
    let rid = store.get(id, 0, &0x8000_0003u32.to_be_bytes()).expect("row 3 exists");
    store.delete(id, rid).expect("live");
    store.commit();
    let mut declared = accounts();
    declared.indexes.push(IndexSchema::new("by_cents", &[2], true));
    let change = evolve(&mut store, id, &declared).expect("no conflict");
    assert!(change.reads_rows());
    expect![[r#"
        Int(1) Text("bob") Int(10)
        Int(2) Text("ann") Int(20)
    "#]]
    .assert_eq(&dump(&store, id, 2));
}

#[test]
fn a_changed_table_goes_on_working() {
    let (mut store, id) = filled();
    let mut declared = accounts();
    declared.columns.push(column("level", U16, true, None));
    declared.indexes.push(IndexSchema::new("by_level", &[3], false));
    evolve(&mut store, id, &declared).expect("no conflict");
    store.begin();
    let rid = store.get(id, 1, b"ann\0\0").expect("ann has an account");
    let row = store
        .layout(id)
        .build(&[Field::Int(2), Field::Text("cid"), Field::Int(5), Field::Uint(9)]);
    store.update(id, rid, &row).expect("keys are free");
    assert_eq!(store.add(id, rid, 2, 4), Ok(9));
    let problem = ColumnProblem::Indexed;
    assert_eq!(
        store.add(id, rid, 3, 1),
        Err(WriteError::BadColumn { column: 3, problem })
    );
    store.commit();
    expect![[r#"
        Int(1) Text("bob") Int(10) Null
        Int(3) Text("ann") Int(30) Null
        Int(2) Text("cid") Int(9) Uint(9)
    "#]]
    .assert_eq(&dump(&store, id, 2));
}

#[test]
fn hidden_numbers_survive_a_change() {
    let mut store = Store::new();
    let mut schema = table("log", &[("text", Text, false)], &[], &[]);
    let id = store.create_table(schema.clone()).expect("schema is valid");
    let insert = |store: &mut Store, fields: &[Field<'_>]| {
        store.begin();
        let row = store.layout(id).build(fields);
        store.insert(id, &row).expect("no key to meet");
        store.commit();
    };
    insert(&mut store, &[Field::Text("b")]);
    insert(&mut store, &[Field::Text("a")]);
    schema.columns.push(column("n", I8, false, Some(&[1])));
    evolve(&mut store, id, &schema).expect("no conflict");
    insert(&mut store, &[Field::Text("a"), Field::Int(2)]);
    expect![[r#"
        Text("b") Int(1)
        Text("a") Int(1)
        Text("a") Int(2)
    "#]]
    .assert_eq(&dump(&store, id, 0));
}

#[test]
fn conflicts_name_what_differs() {
    check_conflict(
        |t| {
            t.columns[0].ty = I16;
            t.columns[2].name = "euros".into();
            t.columns[2].was = Some("owner".into());
            t.columns.push(column("level", U16, false, None));
            t.placement = TablePlacement::By(0);
        },
        expect![[r#"
            table accounts: column id: stored i32, declared i16; integers become wider ones; for anything else add a column of another name and copy what is there
            table accounts: column euros: stored rows without it, declared euros i64, without a default; give it a default, or make it nullable; if it had another name, say so with `was`
            table accounts: column level: stored rows without it, declared level u16, without a default; give it a default, or make it nullable; if it had another name, say so with `was`
            table accounts: placement: stored local, declared by id; declare a table of another name beside this one, and copy the rows by a procedure; then drop this one"#]],
    );
    check_conflict(
        |t| t.primary_key = vec![0, 1],
        expect![
            "table accounts: primary key: stored (id), declared (id, owner); declare a table of another name beside this one, and copy the rows by a procedure; then drop this one"
        ],
    );
    check_conflict(
        |t| t.columns.push(column("n", I16, true, Some(&[1]))),
        expect![
            "table accounts: default n: stored a value of the column's type, declared the default of column n is not a value of its type; declare a default that the column can hold"
        ],
    );
    check_conflict(
        |t| t.indexes.push(IndexSchema::new("by_x", &[9], false)),
        expect![
            "table accounts: index by_x: stored distinct columns of the table, declared [9]; name columns that it has, each once"
        ],
    );
    check_conflict(
        |t| t.indexes.push(IndexSchema::new("owner_once", &[1], true)),
        expect![
            "table accounts: index owner_once: stored rows with equal keys, as owner=\"ann\" of the rows id=3 and id=2, declared unique (owner); delete or change the rows that are equal, or declare it without unique"
        ],
    );
}

#[test]
fn nulls_are_equal_in_a_unique_index() {
    check_conflict(
        |t| {
            t.columns.push(column("external", I64, true, None));
            t.indexes.push(IndexSchema::new("external_once", &[3], true));
        },
        expect![
            "table accounts: index external_once: stored rows with equal keys, as external=null of the rows id=3 and id=1, declared unique (external); delete or change the rows that are equal (null equals null), or declare it without unique"
        ],
    );
}

#[test]
fn refused_rows_leave_nothing() {
    let (mut store, id) = filled();
    let before = (store.digest(), store.stats(id));
    let long = "x".repeat(2000);
    let row = store
        .layout(id)
        .build(&[Field::Int(8), Field::Text(&long), Field::Int(0)]);
    store.begin();
    assert_eq!(store.insert(id, &row), Err(WriteError::KeyTooLong { index: 1 }));
    assert!(matches!(store.insert(id, &row[1..]), Err(WriteError::Malformed(_))));
    let huge = vec![0; (1 << 20) + 1];
    assert!(matches!(store.insert(id, &huge), Err(WriteError::Malformed(_))));
    let rid = store.get(id, 0, &0x8000_0001u32.to_be_bytes()).expect("row 1 exists");
    assert_eq!(store.update(id, rid, &row), Err(WriteError::KeyTooLong { index: 1 }));
    assert_eq!(store.add(id, rid, 2, i64::MAX), Err(WriteError::Overflow));
    assert_eq!(store.commit(), Default::default());
    assert_eq!((store.digest(), store.stats(id)), before);
}

#[test]
fn the_digest_does_not_know_the_kind_of_the_key() {
    let digest = |kind| {
        let mut schema = accounts();
        schema.primary_kind = kind;
        let mut store = Store::new();
        store.create_table(schema).expect("schema is valid");
        store.digest()
    };
    assert_eq!(digest(IndexKind::Hash), digest(IndexKind::Ordered));
}

#[test]
fn a_table_is_checked_before_it_is_made() {
    let mut store = Store::new();
    for schema in [
        table("none", &[], &[], &[]),
        table("twice", &[("a", I8, false), ("a", I8, false)], &[], &[]),
        table("key", &[("a", I8, false)], &[1], &[]),
        table("key", &[("a", I8, false)], &[0, 0], &[]),
        table("index", &[("a", I8, false)], &[], &[("i", &[], false)]),
    ] {
        assert!(store.create_table(schema).is_err());
    }
    assert_eq!(store.table_count(), 0);
    store.create_table(accounts()).expect("schema is valid");
    assert!(store.create_table(accounts()).is_err());
}

/// A whole copy is written without undo, and given up for the table that stood aside.
#[test]
fn a_whole_copy_can_be_written_and_put_back() {
    let (mut store, id) = filled();
    let before = (store.digest(), store.stats(id), dump(&store, id, 1));
    let same = plan_change(store.schema(id), &accounts()).expect("no conflict");
    assert!(same.is_noop());
    let prepared = store.prepare(id, same.whole(), &|_| true);
    let mut replaced = vec![store.install(prepared.expect("fits")).expect("a whole copy")];
    assert_eq!((store.digest(), dump(&store, id, 1)), (before.0, before.2.clone()));
    let mut other = accounts();
    other.name = "others".into();
    replaced.push(store.place_table(other));
    store.begin();
    let rids: Vec<_> = store.sorted_rids(id);
    store.delete(id, rids[0]).expect("a row");
    store.forgo_undo();
    assert_eq!(store.undo_bytes(), 0);
    let row = store
        .layout(id)
        .build(&[Field::Int(9), Field::Text("cid"), Field::Int(0)]);
    let rid = store.insert(id, &row).expect("fresh key");
    assert_ne!(rid, rids[0], "a handle of the transaction may name the row that went");
    store.commit();
    store.forget_unsealed();
    assert_ne!(store.digest(), before.0);
    store.put_back(replaced);
    assert_eq!((store.digest(), store.stats(id), dump(&store, id, 1)), before);
    assert_eq!(store.table_count(), 1);
}

#[test]
fn a_copy_ends_where_it_is_not_to_go_on() {
    let (store, id) = filled();
    let same = plan_change(store.schema(id), &accounts()).expect("no conflict");
    let prepared = store.prepare(id, same.whole(), &|_| false);
    assert_eq!(prepared.err(), Some(ConvertError::Ended));
}
