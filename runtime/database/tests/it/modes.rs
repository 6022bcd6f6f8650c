//! Every log mode: a restart finds the acknowledged rows again, by whichever record, with the same digest.

use std::path::Path;

use crate::common::{self, i64s, submit_to, wasm};
use reprise_database::{
    AfterImage, Database, DatabaseConfig, LogPolicy, OpenError, RecoverFrom, RecoveryReport, RedoConfig,
};
use reprise_router::ReplyOutcome;

fn config(dir: &Path, sites: u16, log: LogPolicy, redo: RedoConfig) -> DatabaseConfig {
    DatabaseConfig {
        partitions: 6,
        log,
        redo,
        segment_bytes: 1 << 20,
        ..common::config(dir, sites)
    }
}

fn try_open(dir: &Path, sites: u16, log: LogPolicy, redo: RedoConfig) -> Result<(Database, RecoveryReport), OpenError> {
    let database = Database::open(config(dir, sites, log, redo))?;
    let report = database.recover()?;
    Ok((database, report))
}

fn open(dir: &Path, sites: u16, log: LogPolicy, redo: RedoConfig) -> (Database, RecoveryReport) {
    try_open(dir, sites, log, redo).expect("open")
}

/// Accounts, transfers within and between partitions, and some that abort.
fn work(database: &Database, round: i64) {
    let opened: Vec<_> = (0..40)
        .map(|i| ("bank", "open", None, i64s(&[round * 40 + i, 100])))
        .collect();
    submit_to(database, &opened);
    let transfers: Vec<_> = (0..60)
        .map(|i| {
            let from = round * 40 + (i * 7) % 40;
            let to = round * 40 + (i * 3 + 1) % 40;
            ("bank", "transfer", None, i64s(&[from, to, 9 + i]))
        })
        .collect();
    let reply = submit_to(database, &transfers);
    let committed = (0..reply.len()).filter(|i| *reply.get(*i).outcome == ReplyOutcome::Committed);
    assert!(committed.count() > 10);
}

fn kinds(database: &Database) -> Vec<&'static str> {
    let records = common::records(database, None);
    records.iter().map(|entry| entry.kind).collect()
}

#[test]
fn one_log_holds_both_kinds_in_one_order_and_any_of_them_recovers() {
    let dir = tempfile::tempdir().expect("a directory");
    let whole = RedoConfig {
        images: AfterImage::Whole,
        ..RedoConfig::default()
    };
    let modes = [
        (LogPolicy::Physiological, RedoConfig::default()),
        (LogPolicy::Command, RedoConfig::default()),
        (LogPolicy::Both, RedoConfig::default()),
        (LogPolicy::Physiological, whole),
        (LogPolicy::Auto, RedoConfig::default()),
        (LogPolicy::Both, whole),
    ];
    let mut digest = None;
    for (round, (mode, redo)) in modes.into_iter().enumerate() {
        let (database, _) = open(dir.path(), 1 + round as u16 % 3, mode, redo);
        if round == 0 {
            database.router().deploy("bank", &wasm("bank")).expect("deploy");
        }
        if digest.is_some() {
            assert_eq!(database.router().digest().ok(), digest, "round {round}");
        }
        work(&database, round as i64);
        let keyed = ("bank", "transfer", Some("key"), i64s(&[1, 2, 1]));
        assert_eq!(submit_to(&database, &[keyed]).get(0).replayed, round > 0);
        digest = database.router().digest().ok();
        if round == 0 {
            let kinds = kinds(&database);
            assert!(kinds.contains(&"changes") && !kinds.contains(&"command"), "{kinds:?}");
        }
        database.close().expect("close");
    }
    for from in [RecoverFrom::Command, RecoverFrom::Changes] {
        for sites in [1, 2, 3] {
            let redo = RedoConfig {
                from,
                ..RedoConfig::default()
            };
            let (database, report) = open(dir.path(), sites, LogPolicy::Command, redo);
            assert_eq!(database.router().digest().ok(), digest, "{from:?}, {sites} sites");
            assert_eq!(report.keys, 1);
            // Each transaction once, however it was logged.
            let kinds = kinds(&database);
            let count = |kind| kinds.iter().filter(|found| **found == kind).count();
            assert!(count("command") + count("changes") > report.commands as usize);
        }
    }
}

#[test]
fn a_repeat_finds_its_answer_after_redo() {
    let dir = tempfile::tempdir().expect("a directory");
    let redo = RedoConfig::default();
    let (database, _) = open(dir.path(), 2, LogPolicy::Physiological, redo);
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    work(&database, 0);
    // Between partitions, within one, and on one account.
    let calls = [[1, 2], [3, 9], [4, 4]].map(|[from, to]| {
        let key = ["a", "b", "c"][from as usize % 3];
        ("bank", "transfer", Some(key), i64s(&[from, to, 1]))
    });
    let first = submit_to(&database, &calls);
    let kept: Vec<_> = (0..3)
        .map(|i| (first.get(i).txn_id, first.get(i).lsn, first.get(i).result.to_vec()))
        .collect();
    database.close().expect("close");
    let (database, report) = open(dir.path(), 1, LogPolicy::Physiological, redo);
    let committed = (0..3)
        .filter(|i| *first.get(*i).outcome == ReplyOutcome::Committed)
        .count();
    assert_eq!(report.keys, committed);
    let again = submit_to(&database, &calls);
    for (i, kept) in kept.iter().enumerate() {
        if *first.get(i).outcome == ReplyOutcome::Committed {
            let call = again.get(i);
            assert!(call.replayed, "call {i}");
            assert_eq!((call.txn_id, call.lsn, call.result.to_vec()), *kept);
        }
    }
    let other = ("bank", "transfer", Some("b"), i64s(&[1, 2, 77]));
    let conflict = submit_to(&database, &[other]);
    assert_eq!(*conflict.get(0).outcome, ReplyOutcome::IdempotencyConflict);
}

/// Two procedures over one table: `put(k)` inserts a row, `spin(k)` counts for a while and then does the same.
fn spinning() -> Vec<u8> {
    let procedure = |name: &str, log: &str| {
        format!(
            r#"{{"name":"{name}","params":[{{"name":"k","type":"i64"}}],"returns":"unit","read_only":false,"partitioning":{{"by":["k"]}},"log":"{log}"}}"#
        )
    };
    let description = format!(
        r#"{{"abi":1,"tables":[{{"name":"t","columns":[{{"name":"k","type":"i64","nullable":false}}],"primary_key":["k"],
        "placement":{{"by":"k"}}}}],"procedures":[{},{}]}}"#,
        procedure("put", "physiological"),
        procedure("spin", "auto"),
    );
    let section: String = description.bytes().map(|byte| format!("\\{byte:02x}")).collect();
    let text = format!(
        r#"(module
            (import "reprise1" "args_read" (func $args_read (param i32)))
            (import "reprise1" "insert" (func $insert (param i32 i64) (result i64)))
            (memory (export "memory") 1)
            (func $put (export "reprise_call_put") (param i32) (result i32)
                (call $args_read (i32.const 0))
                (drop (call $insert (i32.const 0) (i64.const {row})))
                (i32.const 0))
            (func (export "reprise_call_spin") (param i32) (result i32) (local $left i32)
                (local.set $left (i32.const 300000))
                (loop $again
                    (local.set $left (i32.sub (local.get $left) (i32.const 1)))
                    (br_if $again (local.get $left)))
                (call $put (local.get 0)))
            (@custom "reprise.describe" "{section}"))"#,
        row = 8u64 << 32,
    );
    wat::parse_str(text).expect("a module")
}

#[test]
fn procedure_is_logged_as_it_declares_and_a_long_computation_by_its_changes() {
    let dir = tempfile::tempdir().expect("a directory");
    let redo = RedoConfig::default();
    let (database, _) = open(dir.path(), 1, LogPolicy::Command, redo);
    database.router().deploy("work", &spinning()).expect("deploy");
    let explain = |name: &str| {
        let deployed = database.router().deployed();
        let module = &deployed.current["work"];
        let (number, _) = module.procedure(name).expect("a procedure");
        database.router().explain_log(module, number as u16)
    };
    assert_eq!(explain("put"), ("physiological", None));
    let (choice, why) = explain("spin");
    let why = why.expect("a reason");
    assert!(choice == "auto" && why.starts_with("command: 0 of"), "{why}");
    for round in 0..100i64 {
        let calls: Vec<_> = (0..40)
            .map(|i| ("work", "spin", None, i64s(&[round * 40 + i])))
            .collect();
        submit_to(&database, &calls);
        if round == 0 {
            submit_to(&database, &[("work", "put", None, i64s(&[-1]))]);
        }
    }
    let why = explain("spin").1.expect("a reason");
    assert!(why.starts_with("physiological: of the last 16 measured calls"), "{why}");
    let kinds = kinds(&database);
    let first = kinds.iter().position(|kind| *kind == "changes").expect("some");
    assert!(kinds[..first].iter().filter(|kind| **kind == "command").count() >= 40);
    let digest = database.router().digest().ok();
    database.close().expect("close");
    let (database, report) = open(dir.path(), 3, LogPolicy::Command, redo);
    assert_eq!(database.router().digest().ok(), digest);
    assert_eq!(report.commands, 4_001);
}

/// Accounts by the thousand, one in a hundred with a key, and transfers between partitions.
fn work_long(database: &Database, round: i64) {
    for batch in 0..80 {
        let first = 1_000 + round * 30_000 + batch * 256;
        let keys: Vec<String> = (0..256).map(|i| format!("open-{}", first + i)).collect();
        let opened: Vec<_> = (0..256)
            .map(|i| {
                let key = (i % 100 == 0).then(|| keys[i as usize].as_str());
                ("bank", "open", key, i64s(&[first + i, 100]))
            })
            .collect();
        submit_to(database, &opened);
        let transfers: Vec<_> = (0..60)
            .map(|i| ("bank", "transfer", None, i64s(&[first + i, first + i * 3 + 1, 1 + i])))
            .collect();
        submit_to(database, &transfers);
    }
}

#[test]
fn long_stretches_of_changes_are_redone_between_commands() {
    let dir = tempfile::tempdir().expect("a directory");
    let redo = RedoConfig::default();
    let modes = [
        LogPolicy::Physiological,
        LogPolicy::Command,
        LogPolicy::Physiological,
        LogPolicy::Both,
        LogPolicy::Physiological,
    ];
    for (round, mode) in modes.into_iter().enumerate() {
        let (database, _) = open(dir.path(), 2, mode, redo);
        if round == 0 {
            let deployed = database.router().deploy("bank", &wasm("bank"));
            deployed.expect("deploy");
        }
        match mode {
            LogPolicy::Physiological => work_long(&database, round as i64),
            _ => work(&database, round as i64),
        }
        database.close().expect("close");
    }
    let mut found = Vec::new();
    for sites in [1, 2, 6] {
        let (database, report) = open(dir.path(), sites, LogPolicy::Physiological, redo);
        assert!(report.log_bytes > 3 << 20, "{} bytes of log", report.log_bytes);
        let before = database.router().digest().ok();
        // Later calls run on it, and come behind all of it.
        let call = ("bank", "transfer", None, i64s(&[1_000, 61_001, 1]));
        let reply = submit_to(&database, &[call]);
        assert_eq!(*reply.get(0).outcome, ReplyOutcome::Committed);
        let again = ("bank", "open", Some("open-1000"), i64s(&[1_000, 100]));
        assert!(submit_to(&database, &[again]).get(0).replayed);
        let after = database.router().digest().ok();
        found.push((report.commands, report.keys, before, after));
        database.close().expect("close");
    }
    assert_eq!((found[0].1, found[0].3), (found[1].1, found[1].2));
    assert_eq!((found[1].1, found[1].3), (found[2].1, found[2].2));
    let counts: Vec<_> = found.iter().map(|found| found.0).collect();
    assert_eq!(counts, [counts[0], counts[0] + 1, counts[0] + 2]);
    assert_eq!(found[0].1, 3 * 80 * 3);
}

#[test]
fn a_long_log_of_both_kinds_is_redone_by_all_cores_where_changes_are_asked_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let (database, _) = open(dir.path(), 2, LogPolicy::Both, RedoConfig::default());
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    // More than a window that lies apart from all else.
    (0..250).for_each(|round| work(&database, round));
    let digest = database.router().digest().ok();
    database.close().expect("close");
    let mut replayed = Vec::new();
    for (from, sites) in [(RecoverFrom::Changes, 1), (RecoverFrom::Command, 2)] {
        let redo = RedoConfig {
            from,
            ..RedoConfig::default()
        };
        let (database, report) = open(dir.path(), sites, LogPolicy::Both, redo);
        assert_eq!(database.router().digest().ok(), digest, "{from:?}");
        replayed.push(report.commands);
        database.close().expect("close");
    }
    assert_eq!(replayed[0], replayed[1]);
}

#[test]
fn a_restart_is_estimated_by_the_opening_and_by_the_time_of_the_calls_since() {
    let dir = tempfile::tempdir().expect("a directory");
    let (database, _) = open(dir.path(), 1, LogPolicy::Physiological, RedoConfig::default());
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    let opened = |database: &Database, round: i64| {
        let account = |i| ("bank", "open", None, i64s(&[round * 1_000 + i, 100]));
        let accounts: Vec<_> = (0..1_000).map(account).collect();
        submit_to(database, &accounts);
    };
    (0..160).for_each(|round| opened(&database, round));
    database.close().expect("close");
    let estimate = |database: &Database| common::checkpointer(database).restart();
    let (database, report) = open(dir.path(), 1, LogPolicy::Command, RedoConfig::default());
    // The log behind the checkpoint has the changes that were just replayed, although the server logs commands now.
    let before = estimate(&database);
    let estimated_s = before.replay_seconds.expect("measured");
    assert!(
        (estimated_s / report.replay_seconds - 1.0).abs() < 0.02,
        "{before:?}, {report:?}"
    );
    // Commands behind it take as long as they ran.
    let ran_s = |database: &Database| database.router().write_ns() as f64 / 1e9;
    assert_eq!(ran_s(&database), 0.0);
    (160..180).for_each(|round| opened(&database, round));
    // A turn is counted behind its answers, so the last one may be counted between two of these.
    let least_s = ran_s(&database);
    let after = estimate(&database);
    let most_s = ran_s(&database);
    assert!(after.replay_bytes > before.replay_bytes);
    let commands_s = after.replay_seconds.expect("measured") - estimated_s;
    assert!(
        least_s > 0.0 && (least_s * 0.9..=most_s * 1.1).contains(&commands_s),
        "{least_s}, {commands_s}, {most_s}"
    );
    database.close().expect("close");
}

#[test]
fn call_beyond_the_configured_waiting_calls_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = common::config(dir.path(), 1);
    config.batch_limits.waiting_max = 2;
    let database = common::recovered(config);
    database.router().deploy("bank", &common::wasm("bank")).expect("deploy");
    let outcomes = |count: i64| {
        // All of one partition: the batch is taken or refused whole.
        let calls: Vec<_> = (0..count).map(|_| ("bank", "open", None, i64s(&[7, 1]))).collect();
        let reply = submit_to(&database, &calls);
        (0..reply.len())
            .map(|at| reply.get(at).outcome.clone())
            .collect::<Vec<_>>()
    };
    assert!(matches!(outcomes(2)[..], [ReplyOutcome::Committed, _]));
    let refused = outcomes(3);
    assert!(
        refused
            .iter()
            .all(|outcome| matches!(outcome, ReplyOutcome::Overloaded { .. })),
        "{refused:?}"
    );
    common::close(database);
}
