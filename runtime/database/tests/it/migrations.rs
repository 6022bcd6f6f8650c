//! Deployments that change their data: the procedure that a module runs when it is deployed, over copies of its tables.

use crate::common::{self, Consenting, config, open, recovered, take, wasm};
use reprise_abi::{Field, RowLayout, ScalarType, value::push_varint};
use reprise_base::{
    MemoryKind,
    limits::{DEPLOY_TIME_MAX_S, MEMORY_MAX_LIMIT, WRITE_SET_BYTES_MAX},
};
use reprise_database::{Database, LogPolicy};
use reprise_router::{DeployError, Failure, InstallError, LogBody, LogMigration, ReplyOutcome};

const PEOPLE: i64 = 200;

fn text(value: &str) -> Vec<u8> {
    let mut encoded = Vec::new();
    push_varint(&mut encoded, value.len() as u32);
    encoded.extend_from_slice(value.as_bytes());
    encoded
}

/// A call that commits; its encoded result.
fn call(database: &Database, procedure: &str, args: &[u8]) -> Vec<u8> {
    let answer = common::call(database, "contacts", procedure, args);
    assert_eq!(answer.outcome, ReplyOutcome::Committed, "{procedure}");
    answer.result
}

/// The first version, with people of whom each has as many addresses as its number's last digit.
fn fill(database: &Database) {
    database
        .router()
        .deploy_consenting("contacts", &wasm("contacts1"))
        .expect("deployed");
    for id in 0..PEOPLE {
        add(database, id, "Ada Lovelace");
    }
}

fn add(database: &Database, id: i64, name: &str) {
    let emails: Vec<_> = (0..id % 10).map(|number| format!("{number}@a.org")).collect();
    let args = [id.to_le_bytes().to_vec(), text(name), text(&emails.join(","))].concat();
    call(database, "add", &args);
}

fn check_first(database: &Database) {
    for id in 0..PEOPLE {
        let name = call(database, "name", &id.to_le_bytes());
        assert_eq!(name, [&[1][..], &text("Ada Lovelace")].concat(), "{id}");
    }
    assert!(database.router().deployed().table("contacts.addresses").is_none());
}

fn check_second(database: &Database) {
    for id in 0..PEOPLE {
        let last = call(database, "last", &id.to_le_bytes());
        assert_eq!(last, [&[1][..], &text("Lovelace")].concat(), "{id}");
        let count = call(database, "addresses", &id.to_le_bytes());
        assert_eq!(count, (id % 10).to_le_bytes(), "{id}");
    }
}

fn digest(database: &Database) -> u64 {
    database.router().digest().expect("a digest")
}

/// Every way back to the result of a deployment: a restart with as many sites or others, with checkpoints before and behind it.
#[test]
fn a_migration_takes_columns_apart_and_replays() {
    for (log, checkpoint) in [
        (LogPolicy::Command, ""),
        (LogPolicy::Command, "before"),
        (LogPolicy::Command, "behind"),
        (LogPolicy::Physiological, ""),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut settings = config(dir.path(), 2);
        settings.log = log;
        let database = recovered(settings);
        fill(&database);
        if checkpoint == "before" {
            take(&database);
        }
        common::publish_counts(&database);
        let planned = database
            .router()
            .plan_deploy("contacts", &wasm("contacts2"))
            .expect("planned");
        assert!(planned.summary.migrates && planned.summary.conflicts.is_empty());
        let consents = common::consents_to(&planned.summary);
        let names: Vec<_> = consents.iter().map(ToString::to_string).collect();
        for column in ["name", "emails"] {
            assert!(
                names.contains(&format!("drop-column:contacts.contacts.{column}")),
                "{names:?}"
            );
        }
        check_first(&database);
        let deployed = database
            .router()
            .deploy_consenting("contacts", &wasm("contacts2"))
            .expect("deployed");
        assert_eq!((deployed.module.version, deployed.replaced), (2, Some(1)));
        check_second(&database);
        let again = database
            .router()
            .plan_deploy("contacts", &wasm("contacts2"))
            .expect("planned");
        assert!(
            !again.summary.migrates && again.summary.tables.is_empty(),
            "the same bytes change nothing"
        );
        if checkpoint == "behind" {
            take(&database);
        }
        let before = digest(&database);
        database.close().expect("closed");
        for sites in [2, 1, 4] {
            let (database, _) = open(dir.path(), sites);
            assert_eq!(digest(&database), before, "{log:?} {checkpoint} {sites}");
            check_second(&database);
            database.close().expect("closed");
        }
    }
}

#[test]
fn the_log_says_what_ran() {
    let dir = tempfile::tempdir().expect("a directory");
    let (database, _) = open(dir.path(), 2);
    fill(&database);
    database
        .router()
        .deploy_consenting("contacts", &wasm("contacts2"))
        .expect("deployed");
    let migrations: Vec<_> = common::records(&database, None)
        .iter()
        .filter_map(|entry| match &entry.body {
            LogBody::Deploy { migration, .. } => Some(migration.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(migrations.len(), 2);
    assert!(migrations.contains(&None));
    let LogMigration { name, plan, digests } = migrations.into_iter().flatten().next().expect("the second one");
    assert_eq!(name, "split-name");
    for step in ["contacts.contacts add column first", "drop column name", "create table"] {
        assert!(plan.contains(step), "{plan}");
    }
    assert_eq!(digests.len(), 4);
    let lines = database.router().procedure_log(&Default::default(), 100);
    assert!(lines.iter().any(|line| line.procedure == "on_deploy"), "{lines:?}");
}

/// A module without tables of its own, whose `on_deploy` is `body`.
fn running(body: &str) -> Vec<u8> {
    let wat = format!(
        r#"(module (import "reprise1" "abort" (func $abort (param i64 i64)))
            (memory (export "memory") 1)
            (func (export "reprise_on_deploy") (param i32) (result i32) {body})
            (@custom "reprise.describe" "{}"))"#,
        r#"{\"abi\":1,\"tables\":[{\"name\":\"contacts\",\"columns\":[{\"name\":\"id\",\"type\":\"i64\"},{\"name\":\"name\",\"type\":\"text\"},{\"name\":\"emails\",\"type\":\"text\"}],\"primary_key\":[\"id\"],\"placement\":{\"by\":\"id\"}}],\"procedures\":[],\"on_deploy\":true}"#
    );
    wat::parse_str(wat).expect("valid")
}

/// A module with a retiring table of these columns beside `id`; its `on_deploy` is `body`, and `peek` looks for a retiring row.
fn retiring(columns: &str, body: &str) -> Vec<u8> {
    let own = r#"{\"name\":\"contacts\",\"columns\":[{\"name\":\"id\",\"type\":\"i64\"}],\"primary_key\":[\"id\"],\"placement\":{\"by\":\"id\"}}"#;
    let before = own.replace("[{", &format!("[{columns},{{"));
    let peek = r#"{\"name\":\"peek\",\"params\":[{\"name\":\"id\",\"type\":\"i64\"}],\"returns\":\"unit\",\"partitioning\":{\"by\":[\"id\"]}}"#;
    let wat = format!(
        r#"(module (import "reprise1" "exists" (func $exists (param i32 i64) (result i32)))
            (import "reprise1" "count" (func $count (param i32) (result i64)))
            (import "reprise1" "scan" (func $scan (param i32 i64) (result i64)))
            (import "reprise1" "scan_columns" (func $scan_columns (param i32 i64 i64) (result i64)))
            (import "reprise1" "insert" (func $insert (param i32 i64) (result i64)))
            (memory (export "memory") 1)
            (data (i32.const 64) "\00\00\01\00\08\00\00\00")
            (func (export "reprise_call_peek") (param i32) (result i32)
                (drop (call $exists (i32.const 65536) (i64.const 34359738368))) i32.const 0)
            (func (export "reprise_on_deploy") (param i32) (result i32) {body} i32.const 0)
            (@custom "reprise.describe" "{{\"abi\":1,\"tables\":[{own}],\"procedures\":[{peek}],\"on_deploy\":true,\"retiring\":[{before}]}}"))"#,
    );
    wat::parse_str(wat).expect("valid")
}

/// Seen by what runs at the deployment, written by nothing, gone for everybody else.
#[test]
fn a_retiring_table_is_read_by_the_migration_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let (database, _) = open(dir.path(), 2);
    fill(&database);
    let router = database.router();
    let name = r#"{\"name\":\"name\",\"type\":\"text\",\"nullable\":true}"#;
    let other = name.replace("text", "i64");
    match router.deploy_consenting("contacts", &retiring(&other, "")).err() {
        Some(DeployError::Install(InstallError::Conflicts(conflicts))) => {
            let found = &conflicts[0];
            assert_eq!((&*found.table, &*found.item), ("contacts.contacts", "name"), "{found}");
        }
        found => panic!("{found:?}"),
    }
    let write = "(drop (call $insert (i32.const 1) (i64.const 77309411328)))";
    match router.deploy_consenting("contacts", &retiring(name, write)).err() {
        Some(DeployError::Install(InstallError::Migration {
            failure: Failure::Trapped { message, .. },
            ..
        })) => assert!(message.contains("none that is retiring"), "{message}"),
        found => panic!("{found:?}"),
    }
    check_first(&database);
    let read = "(if (i64.ne (call $count (i32.const 64)) (i64.const 50)) (then unreachable))";
    router
        .deploy_consenting("contacts", &retiring(name, read))
        .expect("deployed");
    let failed = common::call(&database, "contacts", "peek", &7_i64.to_le_bytes()).outcome;
    match failed {
        ReplyOutcome::Failed(failure) => {
            let text = format!("{failure:?}");
            assert!(text.contains("seen by what runs at a deployment"), "{text}");
        }
        found => panic!("{found:?}"),
    }
    let before = digest(&database);
    database.close().expect("closed");
    let (database, _) = open(dir.path(), 1);
    assert_eq!(digest(&database), before);
}

/// A range that needs the rows of other partitions, too, is refused by its table's name, and the server continues.
#[test]
fn retiring_table_is_refused_by_name_when_a_range_leaves_the_partition() {
    let dir = tempfile::tempdir().expect("a directory");
    let (database, _) = open(dir.path(), 2);
    fill(&database);
    let name = r#"{\"name\":\"name\",\"type\":\"text\",\"nullable\":true}"#;
    // The request of the module has the flag of a local range.
    let all_partitions = "(i32.store (i32.const 68) (i32.const 0))";
    for read in [
        "(drop (call $count (i32.const 64)))",
        "(drop (call $scan (i32.const 64) (i64.const 0x2000_0000_0400)))",
        "(drop (call $scan_columns (i32.const 64) (i64.const 2) (i64.const 0x2000_0000_0400)))",
    ] {
        let wasm = retiring(name, &format!("{all_partitions} {read}"));
        match database.router().deploy_consenting("contacts", &wasm).err() {
            Some(DeployError::Install(InstallError::Migration {
                failure: Failure::Trapped { message, .. },
                ..
            })) => {
                let placed = "does not hold id, by which the rows of contacts are placed";
                assert!(
                    message.contains(placed) && message.contains("scan_local"),
                    "{read}: {message}"
                );
            }
            found => panic!("{read}: {found:?}"),
        }
        check_first(&database);
    }
    database.close().expect("closed");
}

/// Each of the 50 rows of a partition takes 16 bytes: handle, length, and the column `id`.
#[test]
fn retiring_table_is_read_by_columns() {
    let dir = tempfile::tempdir().expect("a directory");
    let (database, _) = open(dir.path(), 2);
    fill(&database);
    let name = r#"{\"name\":\"name\",\"type\":\"text\",\"nullable\":true}"#;
    let read = "(if (i64.ne
        (call $scan_columns (i32.const 64) (i64.const 2) (i64.const 0x2000_0000_0400))
        (i64.const 800)) (then unreachable))";
    database
        .router()
        .deploy_consenting("contacts", &retiring(name, read))
        .expect("deployed");
    database.close().expect("closed");
}

/// Whatever ends what runs at a deployment: the version before is in service, with its rows, now and behind a restart.
#[test]
fn failed_migration_leaves_the_former_version_in_service() {
    let dir = tempfile::tempdir().expect("a directory");
    let (database, _) = open(dir.path(), 2);
    fill(&database);
    let before = digest(&database);
    let router = database.router();
    let failed = |wasm: &[u8]| match router.deploy_consenting("contacts", wasm).err() {
        Some(DeployError::Install(InstallError::Migration { failure, .. })) => failure,
        other => panic!("{other:?}"),
    };
    assert!(matches!(failed(&running("unreachable")), Failure::Trapped { .. }));
    router.set_deploy_time_max_s(1);
    assert!(matches!(failed(&running("(loop br 0) unreachable")), Failure::Ended(_)));
    router.set_deploy_time_max_s(DEPLOY_TIME_MAX_S);
    let abort = "(call $abort (i64.const 4294967296) (i64.const 4294967296)) i32.const 1";
    assert!(matches!(failed(&running(abort)), Failure::Aborted { .. }));
    add(&database, PEOPLE, "Plato");
    let one_name = failed(&wasm("contacts2"));
    assert!(
        matches!(&one_name, Failure::Aborted { code, .. } if code == "one_name"),
        "{one_name:?}"
    );
    check_first(&database);
    assert_eq!(router.deployed().current["contacts"].version, 1);
    database.close().expect("closed");
    let (database, _) = open(dir.path(), 1);
    check_first(&database);
    assert_ne!(digest(&database), before, "Plato is there");
    // A migration without a failing step succeeds, with the next number.
    let deployed = database
        .router()
        .deploy_consenting("contacts", &running("i32.const 0"))
        .expect("deployed");
    assert_eq!(deployed.module.version, 2);
}

/// A module with one table of this many columns of type i64 and this placement. Its `on_deploy` is `body`, with two locals, and `$put`
/// inserts the row at the memory's begin.
fn writing(columns: usize, placement: &str, body: &str) -> Vec<u8> {
    let names: Vec<_> = (0..columns)
        .map(|at| format!(r#"{{"name":"c{at}","type":"i64"}}"#))
        .collect();
    let description = format!(
        r#"{{"abi":1,"tables":[{{"name":"wide","columns":[{}],"primary_key":["c0"],"placement":{placement}}}],
            "procedures":[],"on_deploy":true}}"#,
        names.join(",")
    );
    let layout = RowLayout::from_types(std::iter::repeat_n((ScalarType::I64, false), columns));
    let row = layout.build(&vec![Field::Int(0); columns]);
    let section: String = description.bytes().map(|byte| format!("\\{byte:02x}")).collect();
    let text = format!(
        r#"(module (import "reprise1" "insert" (func $insert (param i32 i64) (result i64)))
            (import "reprise1" "txn_id" (func $txn_id (result i64)))
            (import "reprise1" "scan" (func $scan (param i32 i64) (result i64)))
            (import "reprise1" "savepoint" (func $savepoint (result i32)))
            (import "reprise1" "rollback_to" (func $rollback_to (param i32)))
            (memory (export "memory") 1)
            (func $put (drop (call $insert (i32.const 0) (i64.const {}))))
            (func (export "reprise_on_deploy") (param i32) (result i32) (local $n i64) (local $s i32)
                {body} i32.const 0)
            (@custom "reprise.describe" "{section}"))"#,
        (row.len() as u64) << 32
    );
    wat::parse_str(text).expect("valid")
}

/// The body of a migration that inserts this many rows.
fn putting(rows: usize) -> String {
    format!(
        "(loop $again
            (i64.store (i32.const 0) (local.get $n))
            (call $put)
            (local.set $n (i64.add (local.get $n) (i64.const 1)))
            (br_if $again (i64.lt_u (local.get $n) (i64.const {rows}))))"
    )
}

/// Columns of a row of 800 bytes.
const WIDE: usize = 100;

fn rows_of_wide(database: &Database) -> u64 {
    let deployed = database.router().deployed();
    let (id, _) = deployed.table("m.wide").expect("stored");
    let stats = database.router().table_stats(std::time::Duration::from_secs(60));
    stats.expect("ready")[usize::from(id.0)].rows
}

#[test]
fn a_replicated_table_gets_the_same_rows_everywhere_or_none() {
    let dir = tempfile::tempdir().expect("a directory");
    let (database, _) = open(dir.path(), 2);
    let router = database.router();
    let differing = "(i64.store (i32.const 0) (i64.const 99)) (i64.store (i32.const 8) (call $txn_id)) (call $put)";
    match router
        .deploy_consenting("m", &writing(2, r#""replicated""#, differing))
        .err()
    {
        Some(DeployError::Install(InstallError::Replicated { table })) => assert_eq!(table, "wide"),
        found => panic!("{found:?}"),
    }
    assert!(router.deployed().table("m.wide").is_none() && router.deployed().current.is_empty());
    router
        .deploy_consenting("m", &writing(2, r#""replicated""#, &putting(10)))
        .expect("deployed");
    assert_eq!(rows_of_wide(&database), 10);
    // Over rows that are there: those of the new version are put in beside them, or nothing changes.
    let next = |body: &str| writing(2, r#""replicated""#, &format!("(local.set $n (i64.const 10)) {body}"));
    let failed = router
        .deploy_consenting("m", &next(&format!("{} {differing}", putting(20))))
        .err();
    assert!(
        matches!(failed, Some(DeployError::Install(InstallError::Replicated { .. }))),
        "{failed:?}"
    );
    assert_eq!(rows_of_wide(&database), 10);
    router.deploy_consenting("m", &next(&putting(25))).expect("deployed");
    let before = digest(&database);
    database.close().expect("closed");
    for sites in [1, 4] {
        let (database, _) = open(dir.path(), sites);
        assert_eq!((rows_of_wide(&database), digest(&database)), (25, before));
        database.close().expect("closed");
    }
}

/// A migration may write more than a call. With a savepoint, the undo of its writes has the limit of a call.
#[test]
fn one_may_write_more_than_a_call_and_takes_back_to_a_savepoint() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut settings = config(dir.path(), 1);
    (settings.partitions, settings.segment_bytes) = (1, 64 << 20);
    let database = recovered(settings.clone());
    let rows = WRITE_SET_BYTES_MAX / 800 + 5_000;
    let by_key = r#"{"by":"c0"}"#;
    let taken_back = format!(
        "(local.set $s (call $savepoint)) {} (call $rollback_to (local.get $s))
         (local.set $n (i64.const 0)) {}",
        putting(500),
        putting(200)
    );
    let router = database.router();
    router
        .deploy_consenting("m", &writing(WIDE, by_key, &taken_back))
        .expect("deployed");
    assert_eq!(rows_of_wide(&database), 200);
    let more = format!("(local.set $n (i64.const 200)) {}", putting(rows));
    router
        .deploy_consenting("m", &writing(WIDE, by_key, &more))
        .expect("deployed");
    assert_eq!(rows_of_wide(&database), rows as u64);
    let before = digest(&database);
    database.close().expect("closed");
    let database = recovered(settings);
    assert_eq!((rows_of_wide(&database), digest(&database)), (rows as u64, before));
    database.close().expect("closed");
}

/// The scan of a loop is open while the loop writes. Its request, at 4096, is that of all rows, and its buffer has room for one of them.
#[test]
fn one_may_write_more_than_a_call_while_a_scan_is_open() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut settings = config(dir.path(), 1);
    (settings.partitions, settings.segment_bytes) = (1, 64 << 20);
    let database = recovered(settings.clone());
    let (rows, by_key) = (WRITE_SET_BYTES_MAX / 800 + 5_000, r#"{"by":"c0"}"#);
    let router = database.router();
    router
        .deploy_consenting("m", &writing(WIDE, by_key, &putting(10)))
        .expect("deployed");
    let scan = "(if (i64.lt_u
        (call $scan (i32.const 4096) (i64.const 0x384_0000_2000))
        (i64.const 0x1_0000_0000)) (then unreachable))";
    let more = format!("{scan} (local.set $n (i64.const 10)) {}", putting(rows));
    router
        .deploy_consenting("m", &writing(WIDE, by_key, &more))
        .expect("deployed");
    assert_eq!(rows_of_wide(&database), rows as u64);
    let before = digest(&database);
    database.close().expect("closed");
    let database = recovered(settings);
    assert_eq!((rows_of_wide(&database), digest(&database)), (rows as u64, before));
    database.close().expect("closed");
}

/// The server checks the memory for the copies before, and the memory for the new rows while the migration runs. Either way nothing of it
/// stays, nor is it counted.
#[test]
fn without_memory_for_it_the_version_before_serves() {
    let dir = tempfile::tempdir().expect("a directory");
    let max_bytes = 192 << 20;
    let mut settings = config(dir.path(), 1);
    (settings.partitions, settings.segment_bytes, settings.memory_max_bytes) = (1, 64 << 20, max_bytes);
    let database = recovered(settings.clone());
    let router = database.router();
    let by_key = r#"{"by":"c0"}"#;
    let filled = 40_000;
    router
        .deploy_consenting("m", &writing(WIDE, by_key, &putting(filled)))
        .expect("deployed");
    let (before, memory) = (digest(&database), router.memory());
    let data_bytes = memory.data_bytes();
    let far = |rows: usize| format!("(local.set $n (i64.const {filled})) {}", putting(filled + rows));
    let mut failed = Vec::new();
    for rows in [100_000, 1_000] {
        match router.deploy_consenting("m", &writing(WIDE, by_key, &far(rows))) {
            Ok(_) => failed.push("deployed"),
            Err(DeployError::Install(InstallError::Memory { max, .. })) => {
                assert_eq!(max, max_bytes);
                failed.push("judged");
            }
            Err(DeployError::Install(InstallError::Migration {
                failure: Failure::Limit { limit, max, .. },
                ..
            })) => {
                assert_eq!((limit.as_str(), max), (MEMORY_MAX_LIMIT, max_bytes));
                failed.push("ran");
            }
            Err(other) => panic!("{other:?}"),
        }
        if rows == 100_000 {
            assert_eq!((rows_of_wide(&database), digest(&database)), (filled as u64, before));
            assert_eq!(memory.data_bytes(), data_bytes, "nothing of it is held");
            assert!(memory.kind(MemoryKind::Undo).used() < 64 << 20);
            assert_eq!(router.deployed().current["m"].version, 1);
        }
    }
    assert_eq!(failed, ["ran", "deployed"]);
    // Twice as many rows have no room for their copies.
    let count = 2 * filled + 4_000;
    router
        .deploy_consenting(
            "m",
            &writing(
                WIDE,
                by_key,
                &format!("(local.set $n (i64.const {})) {}", filled + 1_000, putting(count)),
            ),
        )
        .expect("deployed");
    let (before, version) = (digest(&database), router.deployed().current["m"].version);
    let refused = router.deploy_consenting("m", &writing(WIDE, by_key, "")).err();
    assert!(
        matches!(refused, Some(DeployError::Install(InstallError::Memory { .. }))),
        "{refused:?}"
    );
    assert_eq!(
        (digest(&database), router.deployed().current["m"].version),
        (before, version)
    );
    database.close().expect("closed");
    let database = recovered(settings);
    assert_eq!(digest(&database), before);
    database.close().expect("closed");
}
