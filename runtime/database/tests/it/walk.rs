//! The whole walk in one process: deploy, call, close or die, open again, and find what was acknowledged.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
};

use reprise_abi::value::ValueReader;
use reprise_database::{CommitMode, Database, DatabaseConfig, DeviceConfig, LogPolicy, RecoveryReport};
use reprise_router::{BatchBuilder, BatchReply, Failure, ReplyOutcome};

/// The wasm of a sample module; `cargo xtask wasm` builds it.
fn wasm(name: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("target/procedures").join(name).with_extension("wasm");
    std::fs::read(&path)
        .unwrap_or_else(|error| panic!("read {}: {error}; `cargo xtask wasm` builds it", path.display()))
}

fn open(dir: &Path, partitions: u16, sites: u16) -> (Database, RecoveryReport) {
    let database = Database::open(DatabaseConfig {
        dir: Some(PathBuf::from(dir)),
        partitions,
        sites,
        log: LogPolicy::Command,
        redo: reprise_database::RedoConfig::default(),
        device: DeviceConfig::File,
        commit: CommitMode::Sync,
        group_commit_us: 0,
        segment_bytes: 1 << 20,
        checkpoints: reprise_database::CheckpointConfig::BY_HAND,
        memory_max_bytes: u64::MAX,
    })
    .expect("open");
    let report = database.recover().expect("recover");
    (database, report)
}

/// Calls in one batch, each `(module, procedure, key, encoded arguments)`.
fn submit(database: &Database, calls: &[(&str, &str, Option<&str>, Vec<u8>)]) -> BatchReply {
    let router = database.router();
    let deployed = router.deployed();
    let mut batch = BatchBuilder::new(deployed.clone(), router);
    for (module, procedure, key, args) in calls {
        let module: &Arc<_> = &deployed.current[*module];
        let (number, _) = module.procedure(procedure).expect("a procedure");
        let encode = |out: &mut Vec<u8>| {
            out.extend_from_slice(args);
            Ok::<(), ()>(())
        };
        batch.push(module, number, *key, encode).expect("encoded");
    }
    let (sender, receiver) = mpsc::channel();
    let done = Box::new(move |reply| sender.send(reply).expect("the test waits"));
    router.submit(batch, done);
    receiver.recv().expect("a reply")
}

fn i64s(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn total(database: &Database) -> (i64, i64) {
    let reply = submit(database, &[("bank", "total", None, Vec::new())]);
    let call = reply.get(0);
    assert_eq!(*call.outcome, ReplyOutcome::Committed);
    let mut reader = ValueReader::new(call.result);
    let mut next = || i64::from_le_bytes(reader.array().expect("eight bytes"));
    (next(), next())
}

fn open_accounts(database: &Database, count: i64) {
    let calls: Vec<_> = (0..count)
        .map(|account| ("bank", "open", None, i64s(&[account, 100])))
        .collect();
    let reply = submit(database, &calls);
    for index in 0..reply.len() {
        assert_eq!(*reply.get(index).outcome, ReplyOutcome::Committed);
    }
}

#[test]
fn transfers_survive_a_restart_on_any_number_of_sites() {
    let dir = tempfile::tempdir().expect("a directory");
    let (database, _) = open(dir.path(), 6, 2);
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    open_accounts(&database, 50);
    for round in 0..40i64 {
        let calls: Vec<_> = (0..20)
            .map(|i| {
                let from = (round * 7 + i) % 50;
                ("bank", "transfer", None, i64s(&[from, (from * 3 + 1) % 50, 9]))
            })
            .collect();
        let reply = submit(&database, &calls);
        for index in 0..reply.len() {
            let outcome = reply.get(index).outcome;
            let aborted = matches!(outcome.failure(), Some(Failure::Aborted { .. }));
            assert!(aborted || *outcome == ReplyOutcome::Committed, "{outcome:?}");
        }
    }
    assert_eq!(total(&database), (50, 5000));
    let digest = database.router().digest().expect("ready");
    database.close().expect("close");
    for sites in [1, 2, 3] {
        let (database, report) = open(dir.path(), 6, sites);
        assert!(report.commands > 100, "{report:?}");
        assert_eq!(database.router().digest().expect("ready"), digest, "{sites} sites");
        assert_eq!(total(&database), (50, 5000));
    }
}

#[test]
fn an_abort_leaves_nothing_and_says_why() {
    let dir = tempfile::tempdir().expect("a directory");
    let (database, _) = open(dir.path(), 2, 2);
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    open_accounts(&database, 4);
    let before = database.router().digest().expect("ready");
    let newest = || {
        let query = reprise_router::LogQuery {
            from: None,
            newest: true,
            limit: 1,
            partition: None,
            kind: None,
            ..reprise_router::LogQuery::default()
        };
        database.router().log_records(query).expect("a log").records[0].lsn
    };
    let newest_before = newest();
    let reply = submit(&database, &[("bank", "transfer", None, i64s(&[0, 1, 1000]))]);
    let Some(Failure::Aborted { code, .. }) = reply.get(0).outcome.failure() else {
        panic!("{:?}", reply.get(0).outcome);
    };
    assert_eq!(code, "insufficient_funds");
    assert_eq!(database.router().digest().expect("ready"), before);
    assert_eq!(newest(), newest_before, "an abort is not logged");
}

#[test]
fn a_key_answers_once_before_and_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let (database, _) = open(dir.path(), 3, 1);
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    open_accounts(&database, 10);
    let transfer = ("bank", "transfer", Some("pay-1"), i64s(&[1, 2, 30]));
    // The repeats of one batch wait for the first.
    let reply = submit(&database, &[transfer.clone(), transfer.clone()]);
    assert!(!reply.get(0).replayed && reply.get(1).replayed);
    let first = (reply.get(0).txn_id, reply.get(0).lsn, reply.get(0).result.to_vec());
    let other = ("bank", "transfer", Some("pay-1"), i64s(&[1, 2, 31]));
    let conflict = submit(&database, std::slice::from_ref(&other));
    assert_eq!(*conflict.get(0).outcome, ReplyOutcome::IdempotencyConflict);
    database.close().expect("close");
    let (database, report) = open(dir.path(), 3, 1);
    assert_eq!(report.keys, 1);
    let reply = submit(&database, &[transfer, other]);
    let again = reply.get(0);
    assert!(again.replayed);
    assert_eq!((again.txn_id, again.lsn, again.result.to_vec()), first);
    assert_eq!(*reply.get(1).outcome, ReplyOutcome::IdempotencyConflict);
}

#[test]
fn the_log_shows_what_was_called() {
    let dir = tempfile::tempdir().expect("a directory");
    let (database, _) = open(dir.path(), 2, 1);
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    open_accounts(&database, 5);
    let query = |newest| reprise_router::LogQuery {
        from: None,
        newest,
        limit: 3,
        partition: None,
        kind: None,
        ..reprise_router::LogQuery::default()
    };
    let oldest = database.router().log_records(query(false)).expect("a log");
    let kinds: Vec<_> = oldest.records.iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, ["genesis", "deploy", "command"]);
    let newest = database.router().log_records(query(true)).expect("a log");
    assert!(newest.records.windows(2).all(|pair| pair[0].lsn > pair[1].lsn));
    let lsn = newest.records[0].lsn;
    let one = database.router().log_record(lsn).expect("a log").expect("a record");
    assert_eq!(one.kind, "command");
    assert!(
        database
            .router()
            .log_record(reprise_base::Lsn(lsn.0 + 1))
            .expect("a log")
            .is_none()
    );
}

#[test]
fn another_number_of_partitions_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(open(dir.path(), 2, 1));
    let refused = Database::open(DatabaseConfig {
        dir: Some(dir.path().to_owned()),
        partitions: 3,
        sites: 1,
        log: LogPolicy::Command,
        redo: reprise_database::RedoConfig::default(),
        device: DeviceConfig::File,
        commit: CommitMode::Sync,
        group_commit_us: 0,
        segment_bytes: 1 << 20,
        checkpoints: reprise_database::CheckpointConfig::BY_HAND,
        memory_max_bytes: u64::MAX,
    });
    let message = refused.err().expect("refused").to_string();
    assert!(message.contains("made with 2 partitions"), "{message}");
}
