//! The whole walk in one process: deploy, call, close or die, open again, and find what was acknowledged.

use std::path::Path;

use crate::common::{self, digest_now, i64s, submit_to, wasm};
use reprise_abi::value::ValueReader;
use reprise_database::{Database, DatabaseConfig, RecoveryReport};
use reprise_router::{Failure, LogSearch, ReplyOutcome};

fn config(dir: &Path, partitions: u16, sites: u16) -> DatabaseConfig {
    DatabaseConfig {
        partitions,
        segment_bytes: 1 << 20,
        ..common::config(dir, sites)
    }
}

fn open(dir: &Path, partitions: u16, sites: u16) -> (Database, RecoveryReport) {
    let database = Database::open(config(dir, partitions, sites)).expect("open");
    let report = database.recover().expect("recover");
    (database, report)
}

fn total(database: &Database) -> (i64, i64) {
    let reply = submit_to(database, &[("bank", "total", None, Vec::new())]);
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
    let reply = submit_to(database, &calls);
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
        let reply = submit_to(&database, &calls);
        for index in 0..reply.len() {
            let outcome = reply.get(index).outcome;
            let aborted = matches!(outcome.failure(), Some(Failure::Aborted { .. }));
            assert!(aborted || *outcome == ReplyOutcome::Committed, "{outcome:?}");
        }
    }
    assert_eq!(total(&database), (50, 5000));
    let digest = digest_now(&database);
    database.close().expect("close");
    for sites in [1, 2, 3] {
        let (database, report) = open(dir.path(), 6, sites);
        assert!(report.commands > 100, "{report:?}");
        assert_eq!(digest_now(&database), digest, "{sites} sites");
        assert_eq!(total(&database), (50, 5000));
    }
}

#[test]
fn an_abort_leaves_nothing_and_says_why() {
    let dir = tempfile::tempdir().expect("a directory");
    let (database, _) = open(dir.path(), 2, 2);
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    open_accounts(&database, 4);
    let before = digest_now(&database);
    let newest = || {
        let query = LogSearch {
            newest: true,
            limit: 1,
            ..LogSearch::default()
        };
        database.router().log_records(query).expect("a log").records[0].lsn
    };
    let newest_before = newest();
    let reply = submit_to(&database, &[("bank", "transfer", None, i64s(&[0, 1, 1000]))]);
    let Some(Failure::Aborted { code, .. }) = reply.get(0).outcome.failure() else {
        panic!("{:?}", reply.get(0).outcome);
    };
    assert_eq!(code, "insufficient_funds");
    assert_eq!(digest_now(&database), before);
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
    let reply = submit_to(&database, &[transfer.clone(), transfer.clone()]);
    assert!(!reply.get(0).replayed && reply.get(1).replayed);
    let first = (reply.get(0).txn_id, reply.get(0).lsn, reply.get(0).result.to_vec());
    let other = ("bank", "transfer", Some("pay-1"), i64s(&[1, 2, 31]));
    let conflict = submit_to(&database, std::slice::from_ref(&other));
    assert_eq!(*conflict.get(0).outcome, ReplyOutcome::IdempotencyConflict);
    database.close().expect("close");
    let (database, report) = open(dir.path(), 3, 1);
    assert_eq!(report.keys, 1);
    let reply = submit_to(&database, &[transfer, other]);
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
    let query = |newest| LogSearch {
        newest,
        limit: 3,
        ..LogSearch::default()
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
    let refused = Database::open(config(dir.path(), 3, 1));
    let message = refused.err().expect("refused").to_string();
    assert!(message.contains("made with 2 partitions"), "{message}");
}
