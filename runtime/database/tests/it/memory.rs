//! A database whose memory is used up: what grows it is refused, everything else goes on, and what was acknowledged opens again.

use crate::common;
use std::path::Path;

use crate::common::{close, digest_now, fill_bank, i64s, snapshot, submit, take, wasm};
use reprise_base::{MemoryKind, limits::MEMORY_MAX_LIMIT};
use reprise_database::{Database, DatabaseConfig, LogPolicy, OpenError};
use reprise_router::{Failure, ReplyOutcome};

const MAX_BYTES: u64 = 64 << 20;
const BATCH_CALLS: i64 = 4_000;

fn config(dir: &Path, sites: u16, log: LogPolicy, memory_max_bytes: u64) -> DatabaseConfig {
    DatabaseConfig {
        log,
        segment_bytes: 64 << 20,
        memory_max_bytes,
        ..common::config(dir, sites)
    }
}

fn open(config: DatabaseConfig) -> Result<Database, OpenError> {
    let database = Database::open(config)?;
    database.recover()?;
    Ok(database)
}

/// Opens accounts until one is refused; how many there are then, and the first that was refused.
fn fill_up(database: &Database) -> (i64, i64) {
    let (mut opened, mut from) = (0, 0);
    loop {
        let calls: Vec<_> = (from..from + BATCH_CALLS)
            .map(|account| ("open", None, i64s(&[account, 100])))
            .collect();
        let reply = submit(database, &calls);
        let mut first_refused = None;
        for at in 0..reply.len() {
            let outcome = reply.get(at).outcome;
            match (outcome, outcome.failure()) {
                (ReplyOutcome::Committed, _) => opened += 1,
                (_, Some(Failure::Limit { limit, max, .. })) => {
                    assert_eq!((limit.as_str(), *max), (MEMORY_MAX_LIMIT, MAX_BYTES));
                    first_refused = first_refused.or(Some(from + at as i64));
                }
                other => panic!("{other:?}"),
            }
        }
        if let Some(refused) = first_refused {
            return (opened, refused);
        }
        from += BATCH_CALLS;
        assert!(from < 10_000_000, "memory has no end");
    }
}

fn check_goes_on(database: &Database, opened: i64, refused: i64) {
    let memory = database.router().memory();
    assert!(
        memory.used() <= MAX_BYTES && memory.peak() <= MAX_BYTES,
        "{} bytes",
        memory.peak()
    );
    assert!(
        memory.data_bytes() > MAX_BYTES / 2 - (24 << 20),
        "{} bytes",
        memory.data_bytes()
    );
    let reply = submit(
        database,
        &[
            ("balance", None, i64s(&[7])),
            ("transfer", None, i64s(&[1, 2, 5])),
            ("open", None, i64s(&[refused, 100])),
            ("total", None, Vec::new()),
        ],
    );
    for at in [0, 1, 3] {
        assert_eq!(*reply.get(at).outcome, ReplyOutcome::Committed, "call {at}");
    }
    assert!(matches!(reply.get(2).outcome.failure(), Some(Failure::Limit { .. })));
    let total = reply.get(3).result;
    assert_eq!(i64::from_le_bytes(total[..8].try_into().expect("a count")), opened);
}

#[test]
fn full_memory_refuses_what_grows_and_opens_again_under_the_same_limit() {
    for log in [LogPolicy::Command, LogPolicy::Physiological] {
        let dir = tempfile::tempdir().expect("a directory");
        let with = |sites, max| config(dir.path(), sites, log, max);
        let database = open(with(2, MAX_BYTES)).expect("open");
        database.router().deploy("bank", &wasm("bank")).expect("deploy");
        let (opened, refused) = fill_up(&database);
        check_goes_on(&database, opened, refused);
        let digest = digest_now(&database);
        close(database);
        for sites in [1, 2] {
            let database = open(with(sites, MAX_BYTES)).expect("opens again");
            assert_eq!(digest_now(&database), digest, "{log:?}, {sites} sites");
            let memory = database.router().memory();
            assert!(memory.used() <= MAX_BYTES);
            database.close().expect("close");
        }
        // What is too little is told, and nothing is changed.
        let before = snapshot(dir.path());
        let error = open(with(2, MAX_BYTES / 8)).err().expect("too little");
        assert!(error.to_string().contains("--memory-max is 8 MiB"), "{error}");
        assert!(snapshot(dir.path()) == before, "nothing was changed");
        let database = open(with(2, MAX_BYTES)).expect("opens again");
        // A checkpoint is taken all the same, and loaded.
        take(&database);
        close(database);
        let database = open(with(2, MAX_BYTES)).expect("opens again");
        assert_eq!(digest_now(&database), digest, "{log:?}, from the checkpoint");
        close(database);
        let error = open(with(2, MAX_BYTES / 8)).err().expect("too little");
        assert!(error.to_string().contains("--memory-max is 8 MiB"), "{error}");
    }
}

#[test]
fn a_deployment_that_takes_more_than_there_is_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(config(dir.path(), 2, LogPolicy::Command, MAX_BYTES)).expect("open");
    fill_bank(&database, 100);
    let rows = database.router().memory().kind(MemoryKind::Rows);
    let most = rows.take(MAX_BYTES);
    let error = database
        .router()
        .deploy("voter", &wasm("voter"))
        .err()
        .expect("no room");
    assert!(error.to_string().contains("bytes more than there are"), "{error}");
    assert!(!database.router().deployed().current.contains_key("voter"));
    drop(most);
    database.router().deploy("voter", &wasm("voter")).expect("room again");
    database.close().expect("close");
}
