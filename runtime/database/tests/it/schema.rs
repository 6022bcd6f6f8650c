//! Modules that come and go: a new version takes over, tables grow, old modules keep running, and all of it replays.

use std::{path::Path, sync::mpsc};

use crate::common::{Consenting, call, call_i64, checkpointer, config, digest_now, i64s, publish_counts, recovered};
use reprise_abi::{Field, RowLayout};
use reprise_database::{Database, DatabaseConfig};
use reprise_router::{BatchBuilder, DeployError, InstallError, ReplyOutcome, RowsError, RowsRequest};

const V1: &str = r#"{"name":"k","type":"i64","nullable":false},{"name":"b","type":"i32","nullable":false}"#;
/// The table of module `a`, as others declare it.
const OF_A: &str = r#""a.t","shared":true"#;
/// The default is the i64 seven.
const V2: &str = r#"{"name":"k","type":"i64","nullable":false},{"name":"b","type":"i32","nullable":false},
    {"name":"c","type":"i64","nullable":false,"default":"0700000000000000"}"#;
const WIDER: &str = r#"{"name":"k","type":"i64","nullable":false},{"name":"b","type":"i64","nullable":false}"#;

/// A module over its shared table `t` with these columns. `put(k)` inserts a row of `row_bytes` whose other columns are 5. `size()` returns
/// the bytes that a scan of the table fills.
pub(crate) fn module(columns: &str, indexes: &str, row_bytes: u32) -> Vec<u8> {
    module_over(r#""t","shared":true"#, columns, indexes, row_bytes)
}

pub(crate) fn module_over(table: &str, columns: &str, indexes: &str, row_bytes: u32) -> Vec<u8> {
    let description = format!(
        r#"{{"abi":1,"tables":[{{"name":{table},"columns":[{columns}],"primary_key":["k"],"primary_kind":"ordered",
        "indexes":[{indexes}],"placement":{{"by":"k"}}}}],"procedures":[
        {{"name":"put","params":[{{"name":"k","type":"i64"}}],"returns":"unit","read_only":false,"partitioning":{{"by":["k"]}}}},
        {{"name":"size","params":[],"returns":"i64","read_only":true,"partitioning":"all"}}]}}"#
    );
    let section: String = description.bytes().map(|byte| format!("\\{byte:02x}")).collect();
    let text = format!(
        r#"(module
            (import "reprise1" "args_read" (func $args_read (param i32)))
            (import "reprise1" "insert" (func $insert (param i32 i64) (result i64)))
            (import "reprise1" "scan" (func $scan (param i32 i64) (result i64)))
            (import "reprise1" "result_write" (func $result_write (param i64)))
            (memory (export "memory") 2)
            (func (export "reprise_call_put") (param i32) (result i32)
                (i64.store (i32.const 8) (i64.const 5))
                (i64.store (i32.const 16) (i64.const 0))
                (i64.store8 (i32.const 12) (i64.const 5))
                (call $args_read (i32.const 0))
                (drop (call $insert (i32.const 0) (i64.const {row})))
                (i32.const 0))
            (func (export "reprise_call_size") (param i32) (result i32)
                ;; the request at 64 is all zeros: table 0, primary key, everything; the rows go to 1024
                (i64.store (i32.const 0)
                    (i64.and (call $scan (i32.const 64) (i64.const {out})) (i64.const 0xffffffff)))
                (call $result_write (i64.const {eight}))
                (i32.const 0))
            (@custom "reprise.describe" "{section}"))"#,
        row = (row_bytes as u64) << 32,
        out = 60_000u64 << 32 | 1024,
        eight = 8u64 << 32,
    );
    wat::parse_str(text).expect("a module")
}

pub(crate) fn open(dir: &Path) -> Database {
    recovered(DatabaseConfig {
        partitions: 2,
        segment_bytes: 1 << 20,
        ..config(dir, 2)
    })
}

pub(crate) fn put(database: &Database, module: &str, k: i64) {
    assert_eq!(
        call(database, module, "put", &i64s(&[k])).outcome,
        ReplyOutcome::Committed
    );
}

fn size(database: &Database, module: &str) -> i64 {
    call_i64(database, module, "size", &[]).expect("committed")
}

/// The last column of every stored row, in key order.
fn last_columns(database: &Database) -> Vec<i64> {
    let schema = database.router().deployed().tables[0].clone();
    let layout = RowLayout::of_table(&schema);
    let request = RowsRequest {
        limit: 100,
        ..RowsRequest::default()
    };
    let page = database.router().table_rows(request).expect("rows");
    let last = schema.columns.len() as u16 - 1;
    let value = |row: &Vec<u8>| match layout.field(row, last) {
        Field::Int(value) => value,
        other => panic!("{other:?}"),
    };
    page.rows.iter().map(value).collect()
}

#[test]
fn tables_grow_under_a_new_version_and_an_old_module_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    let router = database.router();
    let first = router.deploy("a", &module(V1, "", 12)).expect("deploy");
    assert!(first.created && !first.unchanged && first.replaced.is_none());
    assert!(router.deploy("a", &module(V1, "", 12)).expect("the same").unchanged);
    router.deploy("old", &module_over(OF_A, V1, "", 12)).expect("deploy");
    put(&database, "a", 1);
    put(&database, "a", 2);
    assert_eq!(last_columns(&database), [5, 5]);

    let by_b = r#"{"name":"by_b","columns":["b"],"unique":false}"#;
    let second = router.deploy("a", &module(V2, by_b, 20)).expect("a wider table");
    assert_eq!((second.module.version, second.replaced), (2, Some(1)));
    assert_eq!(last_columns(&database), [7, 7], "rows from before have the default");
    put(&database, "a", 3);
    put(&database, "old", 4);
    assert_eq!(
        last_columns(&database),
        [7, 7, 5, 7],
        "an insert of the old module has the default"
    );
    // A row is shown with its handle and length, 8 bytes, and as the module knows it.
    assert_eq!(size(&database, "old"), 4 * (8 + 12));
    assert_eq!(size(&database, "a"), 4 * (8 + 20));

    let before = router.digest().expect("ready");
    let refused = router.deploy("a", &module(WIDER, "", 16)).err().expect("a conflict");
    let DeployError::Install(InstallError::Conflicts(conflicts)) = refused else {
        panic!("{refused}");
    };
    assert_eq!((conflicts[0].table.as_str(), conflicts[0].item.as_str()), ("a.t", "b"));
    assert!(conflicts[0].way_on.contains("old"), "{conflicts:?}");
    let unique = r#"{"name":"one_b","columns":["b","k"],"unique":true}"#;
    router
        .deploy("a", &module(V2, &format!("{by_b},{unique}"), 20))
        .expect("one more index");
    assert_eq!(size(&database, "a"), 4 * (8 + 20));
    router.remove_consenting("old").expect("removed");
    assert!(!router.deployed().current.contains_key("old"));
    assert!(matches!(router.remove("old", &[]), Err(DeployError::NotFound)));
    let digest = router.digest().expect("ready");
    assert_ne!(before, digest, "an index is part of what a table is");
    database.close().expect("close");

    let database = open(dir.path());
    let deployed = database.router().deployed();
    assert_eq!(digest_now(&database), digest);
    assert_eq!(deployed.current["a"].version, 3);
    assert_eq!(deployed.versions.len(), 4);
    assert!(!deployed.current.contains_key("old"));
    put(&database, "a", 5);
}

fn columns(count: usize) -> String {
    let more = (2..count).map(|at| format!(r#",{{"name":"c{at}","type":"i8","nullable":true}}"#));
    format!("{V1}{}", more.collect::<String>())
}

fn refused(database: &Database, name: &str, wasm: &[u8]) -> String {
    let digest = digest_now(database);
    let refused = database.router().deploy(name, wasm).err().expect("refused");
    assert_eq!(digest_now(database), digest, "a refusal leaves nothing");
    match refused {
        DeployError::Install(InstallError::Conflicts(conflicts)) => {
            conflicts.iter().map(|conflict| format!("{conflict}\n")).collect()
        }
        other => other.to_string(),
    }
}

#[test]
fn tables_of_any_number_of_columns_are_refused_or_open_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    for count in [257, 1_000] {
        let found = refused(&database, "a", &module(&columns(count), "", 12));
        assert!(found.contains("256"), "{found}");
    }
    let widest = module(&columns(256), "", 12);
    database.router().deploy("a", &widest).expect("as many as there can be");
    drop(database);
    assert_eq!(open(dir.path()).router().deployed().tables[0].columns.len(), 256);
}

#[test]
fn a_column_that_is_no_longer_declared_is_dropped_and_the_database_opens_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    let router = database.router();
    router.deploy("a", &module(V1, "", 12)).expect("deploy");
    put(&database, "a", 1);
    let one = r#"{"name":"k","type":"i64","nullable":false}"#;
    publish_counts(&database);
    let planned = router.plan_deploy("a", &module(one, "", 8)).expect("planned").summary;
    let steps: Vec<_> = planned.tables[0]
        .steps
        .iter()
        .map(|step| (step.action.name(), step.item.as_str()))
        .collect();
    assert_eq!((planned.tables[0].rows, steps), (1, vec![("drop", "b")]));
    assert_eq!(router.deployed().tables[0].columns.len(), 2, "a plan does nothing");
    match router.deploy("a", &module(one, "", 8)).err() {
        Some(DeployError::Install(InstallError::Consent { plan, .. })) => {
            let lost: Vec<_> = plan.destroyed.iter().map(ToString::to_string).collect();
            assert_eq!(lost, ["drop-column:a.t.b (1 value)"]);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(router.deployed().tables[0].columns.len(), 2, "a refusal does nothing");
    router
        .deploy_consenting("a", &module(one, "", 8))
        .expect("the last field was removed");
    put(&database, "a", 2);
    assert_eq!(last_columns(&database), [1, 2]);
    router
        .deploy("u", &module_over(OF_A, one, "", 8))
        .expect("shared on both sides");
    let found = refused(&database, "w", &module_over(OF_A, V1, "", 12));
    assert!(found.contains("no such column"), "{found}");
    // Back to the older version: the column can't be filled in.
    let found = refused(&database, "a", &module(V1, "", 12));
    assert!(found.contains("default"), "{found}");
    drop(database);
    let database = open(dir.path());
    put(&database, "a", 3);
    put(&database, "u", 4);
    assert_eq!(last_columns(&database), [1, 2, 3, 4]);
}

#[test]
fn a_module_that_does_not_know_a_column_without_a_default_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    database.router().deploy("a", &module(V1, "", 12)).expect("deploy");
    let one = r#"{"name":"k","type":"i64","nullable":false}"#;
    let found = refused(&database, "u", &module_over(OF_A, one, "", 8));
    assert!(found.contains("has no default"), "{found}");
}

#[test]
fn indexes_do_not_add_up() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    let router = database.router();
    let indexes = |from: usize, count: usize| {
        let all = (from..from + count).map(|at| format!(r#"{{"name":"i{at}","columns":["b"],"unique":false}}"#));
        all.collect::<Vec<_>>().join(",")
    };
    for from in [0, 33, 66] {
        router
            .deploy("a", &module(V1, &indexes(from, 64), 12))
            .expect("64 at a time");
        put(&database, "a", from as i64);
    }
    assert!(refused(&database, "a", &module(V1, &indexes(0, 65), 12)).contains("64"));
    assert_eq!(router.deployed().tables[0].indexes.len(), 64);
    checkpointer(&database).take().expect("begun");
    database.close().expect("close");
    assert_eq!(last_columns(&open(dir.path())), [5, 5, 5]);
}

#[test]
fn a_table_is_its_module_s_own_until_both_sides_share_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    let router = database.router();
    let own = module_over(r#""t""#, V1, "", 12);
    router.deploy("a", &own).expect("deploy");
    router.deploy("b", &own).expect("a table of its own");
    put(&database, "a", 1);
    put(&database, "b", 1);
    let deployed = router.deployed();
    let names: Vec<_> = deployed.tables().map(|(_, table)| table.full_name()).collect();
    assert_eq!(names, ["a.t", "b.t"]);
    assert!(
        deployed.table("t").is_none() && deployed.table("b.t").is_some(),
        "two have it"
    );
    assert!(refused(&database, "c", &module_over(OF_A, V1, "", 12)).contains("not shared"));
    assert!(refused(&database, "c", &module_over(r#""x.t","shared":true"#, V1, "", 12)).contains("deploy module x"));
    router.deploy("a", &module(V1, "", 12)).expect("shared by its owner");
    router
        .deploy("c", &module_over(OF_A, V1, "", 12))
        .expect("and by its user");
    put(&database, "c", 2);
    assert_eq!(last_columns(&database), [5, 5]);
    let found = refused(&database, "a", &own);
    assert!(found.contains("used by module c"), "{found}");
    drop(database);
    let database = open(dir.path());
    put(&database, "c", 3);
    assert_eq!(last_columns(&database), [5, 5, 5]);
}

#[test]
fn tables_and_columns_are_renamed_with_their_rows() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    let router = database.router();
    router.deploy("a", &module(V1, "", 12)).expect("deploy");
    put(&database, "a", 1);
    let renamed = V1.replace(r#""name":"b""#, r#""name":"amount","was":"b""#);
    let renamed = module_over(r#""u","was":"t""#, &renamed, "", 12);
    router.deploy("a", &renamed).expect("renamed");
    put(&database, "a", 2);
    let check = |database: &Database| {
        let deployed = database.router().deployed();
        let (_, table) = deployed.table("u").expect("the new name");
        assert_eq!(
            (table.full_name().as_str(), table.columns[1].name.as_str()),
            ("a.u", "amount")
        );
        assert!(deployed.table("t").is_none());
        assert_eq!(last_columns(database), [5, 5]);
    };
    check(&database);
    drop(database);
    check(&open(dir.path()));
}

/// A plan without a step would not say that nothing is exchanged.
#[test]
fn columns_that_exchange_their_names_are_refused() {
    const TWO: &str = r#"{"name":"k","type":"i64","nullable":false},{"name":"b","type":"i64","nullable":false},
        {"name":"c","type":"i64","nullable":false,"default":"0700000000000000"}"#;
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    let router = database.router();
    router.deploy("a", &module(TWO, "", 24)).expect("deploy");
    put(&database, "a", 1);
    let named = |from: &str, name: &str, was: &str, columns: &str| {
        let (from, to) = (
            format!(r#""name":"{from}""#),
            format!(r#""name":"{name}","was":"{was}""#),
        );
        columns.replacen(&from, &to, 1)
    };
    let exchanged = named("c", "c", "b", &named("b", "b", "c", TWO));
    for _ in 0..2 {
        let found = refused(&database, "a", &module(&exchanged, "", 24));
        for what in [
            "table a.t: column b: stored one of this name, declared was c",
            "table a.t: column c: stored one of this name, declared was b",
        ] {
            assert!(found.contains(what), "{found}");
        }
    }
    // The way on, by three deployments. Each may be repeated.
    let first = named("b", "x", "b", TWO);
    let second = named("c", "b", "c", &TWO.replacen(r#""name":"b""#, r#""name":"x""#, 1));
    let third = named("b", "c", "x", &TWO.replacen(r#""name":"c""#, r#""name":"b""#, 1));
    for columns in [first, second, third] {
        for _ in 0..2 {
            router.deploy("a", &module(&columns, "", 24)).expect("a rename");
        }
    }
    let deployed = router.deployed();
    let (_, table) = deployed.table("t").expect("as before");
    let names: Vec<_> = table.columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(names, ["k", "c", "b"]);
}

#[test]
fn a_call_for_a_replaced_version_is_told_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    let router = database.router();
    router.deploy("a", &module(V1, "", 12)).expect("deploy");
    let before = router.deployed();
    router.deploy("a", &module(V2, "", 20)).expect("deploy");
    let mut batch = BatchBuilder::new(before.clone(), router);
    let encode = |out: &mut Vec<u8>| {
        out.extend_from_slice(&1i64.to_le_bytes());
        Ok::<(), ()>(())
    };
    batch.push(&before.current["a"], 0, None, encode).expect("encoded");
    let (sender, receiver) = mpsc::channel();
    router.submit(
        batch,
        Box::new(move |reply| sender.send(reply).expect("the test waits")),
    );
    let reply = receiver.recv().expect("a reply");
    assert_eq!(*reply.get(0).outcome, ReplyOutcome::Superseded);
    assert_eq!(last_columns(&database), [0i64; 0]);
}

/// The first column of all rows of the first table, read page by page, with the cursors between the pages.
fn walk(database: &Database, index: u16, limit: u32) -> (Vec<i64>, Vec<Vec<u8>>) {
    let schema = database.router().deployed().tables[0].clone();
    let layout = RowLayout::of_table(&schema);
    let (mut seen, mut cursors) = (Vec::new(), Vec::<Vec<u8>>::new());
    loop {
        let request = RowsRequest {
            index,
            limit,
            cursor: cursors.last().cloned(),
            ..RowsRequest::default()
        };
        let page = database.router().table_rows(request).expect("rows");
        seen.extend(page.rows.iter().map(|row| match layout.field(row, 0) {
            Field::Int(value) => value,
            other => panic!("{other:?}"),
        }));
        match page.next_cursor {
            Some(next) => cursors.push(next),
            None => break,
        }
    }
    seen.sort_unstable();
    (seen, cursors)
}

#[test]
fn rows_without_a_key_come_page_by_page_each_once_and_no_page_begins_with_all_before_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    let keyless = replace(module(V1, "", 12), br#""primary_key":["k"]"#, br#""primary_key":[   ]"#);
    database.router().deploy("a", &keyless).expect("deploy");
    const ROWS: i64 = 9;
    for k in 0..ROWS {
        put(&database, "a", k * 100_003);
    }
    assert!(database.router().deployed().tables[0].primary_key.is_empty());
    let (seen, cursors) = walk(&database, 0, 2);
    assert_eq!(seen, (0..ROWS).map(|k| k * 100_003).collect::<Vec<_>>());
    // Partition and place: a cursor that counted would be longer, and its page would walk over all that it counted.
    assert!(cursors.iter().all(|cursor| cursor.len() == 6), "{cursors:?}");
}

#[test]
fn equal_keys_of_rows_without_a_key_are_walked_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    let by_b = r#"{"name":"by_b","columns":["b"],"unique":false}"#;
    let wasm = module(V1, by_b, 12);
    let keyless = replace(wasm, br#""primary_key":["k"]"#, br#""primary_key":[   ]"#);
    database.router().deploy("a", &keyless).expect("deploy");
    const ROWS: i64 = 23;
    for k in 0..ROWS {
        put(&database, "a", k * 100_003);
    }
    let (seen, cursors) = walk(&database, 1, 3);
    assert_eq!(seen, (0..ROWS).map(|k| k * 100_003).collect::<Vec<_>>());
    // The key and its length, the row's number and its partition: a page begins there, and counts nothing off.
    assert!(
        cursors.iter().all(|cursor| cursor.len() == 4 + 4 + 8 + 2),
        "{cursors:?}"
    );
    for forged in [
        vec![],
        vec![0; 9],
        vec![0xff; 18],
        vec![0; 14],
        vec![0; 18],
        vec![0x80; 30],
    ] {
        let request = RowsRequest {
            index: 1,
            limit: 3,
            cursor: Some(forged),
            ..RowsRequest::default()
        };
        // Some rows, none, or a refusal: and nothing is walked that is not shown.
        let _ = database.router().table_rows(request);
    }
}

/// A request names its index by position and its keys by their bytes. Neither means anything in another form of the table.
#[test]
fn page_is_refused_when_a_deployment_changed_the_table_of_its_request() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    let router = database.router();
    let by_b = r#"{"name":"by_b","columns":["b"],"unique":false}"#;
    router.deploy("a", &module(V1, by_b, 12)).expect("deploy");
    put(&database, "a", 1);
    let schema = router.deployed().tables[0].clone();
    let every_row = RowsRequest {
        limit: 10,
        ..RowsRequest::default()
    };
    let page = router.table_rows(every_row).expect("rows");
    let mut prefix = Vec::new();
    RowLayout::of_table(&schema).push_key(&page.rows[0], &[1], &mut prefix);
    let request = RowsRequest {
        schema: Some(schema),
        index: 1,
        limit: 10,
        prefix,
        ..RowsRequest::default()
    };
    let read = || router.table_rows(request.clone()).map(|page| page.rows.len());
    assert!(matches!(read(), Ok(1)));
    // Deployments that leave the table as it is refuse no read.
    router
        .deploy("other", &module_over(r#""u""#, V1, "", 12))
        .expect("a table of another module");
    router.deploy("a", &module(V1, by_b, 16)).expect("other code");
    assert!(matches!(read(), Ok(1)));
    router
        .deploy_consenting("a", &module(WIDER, by_b, 16))
        .expect("a wider column");
    assert!(matches!(read(), Err(RowsError::Changed)));
    router.remove_consenting("a").expect("removed");
    router.drop_table("a.t").expect("dropped");
    assert!(matches!(read(), Err(RowsError::Changed)));
    // A table of another module takes the place. Its columns and indexes equal those of the request.
    router.deploy("b", &module(V1, by_b, 12)).expect("deploy");
    assert_eq!(router.deployed().tables[0].full_name(), "b.t");
    put(&database, "b", 1);
    assert!(matches!(read(), Err(RowsError::Changed)));
}

/// The module with these bytes of its description in place of as many others.
fn replace(mut wasm: Vec<u8>, from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let at = wasm
        .windows(from.len())
        .position(|window| window == from)
        .expect("it is there");
    wasm[at..at + to.len()].copy_from_slice(to);
    wasm
}
