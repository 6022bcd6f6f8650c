//! A database whose memory is used up: writes that grow it are refused, everything else continues, and acknowledged rows open again.

use crate::common;
use std::path::Path;

use crate::common::{
    Consenting, close, digest_now, fill_bank, i64s,
    parts::{B, K, Parts, TABLE, module},
    snapshot, submit, submit_to, take, wasm,
};
use reprise_abi::value::push_bytes;
use reprise_base::{MemoryKind, limits::MEMORY_MAX_LIMIT};
use reprise_database::{Database, DatabaseConfig, LogPolicy, OpenError};
use reprise_router::{DeployError, Failure, InstallError, ReplyOutcome};

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
        // A limit that is too small gets an error, and nothing changes.
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
    assert!(error.to_string().contains("bytes more than the limit"), "{error}");
    assert!(!database.router().deployed().current.contains_key("voter"));
    drop(most);
    database.router().deploy("voter", &wasm("voter")).expect("room again");
    database.close().expect("close");
}

/// A column of text whose default has this many bytes.
fn text_column(bytes: usize) -> String {
    let mut default = Vec::new();
    push_bytes(&mut default, &vec![b'x'; bytes]);
    let hex: String = default.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(r#"{{"name":"text","type":"text","nullable":false,"default":"{hex}"}}"#)
}

/// The rows have room, and their copies with the default have none. Without the refusal, the server could not open the database again.
#[test]
fn deployment_is_refused_when_the_default_of_a_new_column_has_no_room() {
    let dir = tempfile::tempdir().expect("a directory");
    let with = |max| config(dir.path(), 2, LogPolicy::Command, max);
    let database = open(with(MAX_BYTES)).expect("open");
    database.router().deploy("m", &module(&TABLE)).expect("deployed");
    for from in [0, BATCH_CALLS] {
        let calls: Vec<_> = (from..from + BATCH_CALLS)
            .map(|k| ("m", "put", None, i64s(&[k])))
            .collect();
        let reply = submit_to(&database, &calls);
        for at in 0..reply.len() {
            assert_eq!(*reply.get(at).outcome, ReplyOutcome::Committed);
        }
    }
    let digest = digest_now(&database);
    let text = text_column(8_000);
    let wider = module(&Parts {
        tables: &[("t", &[K, B, text.as_str()], r#""k""#)],
        row_bytes: 20,
        ..TABLE
    });
    match database.router().deploy("m", &wider).err() {
        Some(DeployError::Install(InstallError::Memory { bytes, max })) => {
            assert!(bytes > 2 * BATCH_CALLS as u64 * 8_000, "{bytes} bytes");
            assert_eq!(max, MAX_BYTES);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(digest_now(&database), digest, "nothing was changed");
    close(database);
    let database = open(with(MAX_BYTES)).expect("opens again");
    assert_eq!(digest_now(&database), digest);
    close(database);
    let database = open(with(u64::MAX)).expect("opens again");
    database.router().deploy("m", &wider).expect("there is room");
    close(database);
}

/// A version with this many tables of 250 columns each; no two have the same description.
fn described(version: usize, tables: usize) -> Vec<u8> {
    let columns: Vec<String> = (0..250)
        .map(|at| format!(r#"{{"name":"column_{at}","type":"i64","nullable":true}}"#))
        .collect();
    let mut of_table = vec![K];
    of_table.extend(columns.iter().map(String::as_str));
    let names: Vec<String> = (0..tables).map(|at| format!("t{at}")).collect();
    let tables: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), &of_table[..], r#""k""#))
        .collect();
    module(&Parts {
        tables: &tables,
        procedures: &[&format!("version_{version}")],
        ..TABLE
    })
}

#[test]
fn ledger_counts_descriptions_and_keeps_of_former_versions_what_was_sent() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(config(dir.path(), 2, LogPolicy::Command, u64::MAX)).expect("open");
    let used = |database: &Database| database.router().memory().kind(MemoryKind::Modules).used();
    let deploy = |wasm: &[u8]| {
        let router = database.router();
        router.deploy_consenting("m", wasm).expect("deployed");
        let deployed = router.deployed();
        deployed.current["m"].description.len() as u64
    };
    let sent = deploy(&described(0, 16));
    let first = used(&database);
    assert!(
        first > 3 * sent,
        "{first}: columns take more than their text of {sent} bytes"
    );
    for version in 1..=8 {
        deploy(&described(version, 16));
    }
    let all = used(&database);
    assert!(all - first >= 8 * sent, "{first} to {all}");
    assert!(
        all - first < 8 * (sent + (32 << 10)),
        "{first} to {all}: tables are kept of each"
    );
    // Versions that differ in their code alone share the bytes that were sent.
    for number in 0..4 {
        let mut wasm = described(8, 16);
        wasm.extend([0, 3, 1, b'n', number]); // a custom section
        deploy(&wasm);
    }
    assert!(used(&database) < all + (100 << 10), "{all} to {}", used(&database));
    take(&database);
    let before = used(&database);
    database.close().expect("close");
    let database = open(config(dir.path(), 2, LogPolicy::Command, u64::MAX)).expect("open");
    let after = used(&database);
    assert!(after.abs_diff(before) < before / 4, "{before}, then {after}");
}

/// Bytes of the ledger for a version out of service that declares the same as an earlier one. It has a number, a name, a hash, and places for the
/// meters of its procedures.
const VERSION_BYTES_MAX: u64 = 448;

#[test]
fn ledger_grows_by_no_declarations_when_two_versions_alternate() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(config(dir.path(), 2, LogPolicy::Command, u64::MAX)).expect("open");
    let used = |database: &Database| database.router().memory().kind(MemoryKind::Modules).used();
    let deploy = |database: &Database, times: usize| {
        for number in 0..times {
            let wasm = wasm(["contacts1", "contacts2"][number % 2]);
            let deployed = database.router().deploy_consenting("contacts", &wasm);
            deployed.expect("deployed");
        }
    };
    deploy(&database, 4);
    let before = used(&database);
    deploy(&database, 20);
    let grown = used(&database) - before;
    assert!(grown <= 20 * VERSION_BYTES_MAX, "{grown} bytes by 20 versions");

    take(&database);
    let before = used(&database);
    database.close().expect("close");
    let database = open(config(dir.path(), 2, LogPolicy::Command, u64::MAX)).expect("open");
    let after = used(&database);
    assert!(after <= before + 20 * VERSION_BYTES_MAX, "{before}, then {after}");
    database.close().expect("close");
}

const SMALL_BYTES: u64 = 32 << 20;

#[test]
fn deployment_is_refused_when_descriptions_fill_the_ledger() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(config(dir.path(), 1, LogPolicy::Command, SMALL_BYTES)).expect("open");
    let refused = (0..200).find_map(|version| {
        let error = database
            .router()
            .deploy_consenting("m", &described(version, 40))
            .err()?;
        Some((version, error))
    });
    let (version, error) = refused.expect("memory has no end");
    assert!(
        matches!(
            error,
            DeployError::Install(InstallError::Memory { max: SMALL_BYTES, .. })
        ),
        "{error:?}"
    );
    let memory = database.router().memory();
    assert!(memory.used() <= SMALL_BYTES, "{}", memory.used());
    let deployed = database.router().deployed();
    assert_eq!(
        deployed.current["m"].version as usize, version,
        "the last one is in service"
    );
    assert!(memory.kind(MemoryKind::Modules).used() > SMALL_BYTES / 8);
}
