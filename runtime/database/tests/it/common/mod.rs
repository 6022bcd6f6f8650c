//! A database of accounts in this process.
#![allow(dead_code)]

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use reprise_database::{
    CheckpointConfig, CommitMode, Database, DatabaseConfig, DeviceConfig, LogPolicy, RecoveryReport, RedoConfig,
};
use reprise_router::{BatchBuilder, BatchReply, CheckpointInfo, CheckpointState, ReplyOutcome};

pub fn wasm(name: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("target/procedures").join(name).with_extension("wasm");
    std::fs::read(&path)
        .unwrap_or_else(|error| panic!("read {}: {error}; `cargo xtask wasm` builds it", path.display()))
}

pub fn config(dir: &Path, sites: u16) -> DatabaseConfig {
    DatabaseConfig {
        dir: Some(PathBuf::from(dir)),
        partitions: 4,
        sites,
        log: LogPolicy::Command,
        redo: RedoConfig::default(),
        device: DeviceConfig::File,
        commit: CommitMode::Sync,
        group_commit_us: 0,
        segment_bytes: 64 << 10,
        checkpoints: CheckpointConfig::BY_HAND,
        memory_max_bytes: u64::MAX,
    }
}

pub fn open(dir: &Path, sites: u16) -> (Database, RecoveryReport) {
    let database = Database::open(config(dir, sites)).expect("open");
    let report = database.recover().expect("recover");
    (database, report)
}

pub fn submit(database: &Database, calls: &[(&str, Option<&str>, Vec<u8>)]) -> BatchReply {
    let router = database.router();
    let deployed = router.deployed();
    let mut batch = BatchBuilder::new(deployed.clone(), router);
    for (procedure, key, args) in calls {
        let module: &Arc<_> = &deployed.current["bank"];
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

pub fn i64s(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub fn fill(database: &Database, from: i64, count: i64) {
    let calls: Vec<_> = (from..from + count)
        .map(|account| ("open", None, i64s(&[account, 100])))
        .collect();
    let reply = submit(database, &calls);
    for index in 0..reply.len() {
        assert_eq!(*reply.get(index).outcome, ReplyOutcome::Committed);
    }
}

pub fn transfer(database: &Database, round: i64) {
    let calls: Vec<_> = (0..20)
        .map(|i| {
            let from = (round * 7 + i) % 200;
            ("transfer", None, i64s(&[from, (from * 3 + 1) % 200, 2]))
        })
        .collect();
    submit(database, &calls);
}

pub fn take(database: &Database) -> CheckpointInfo {
    let begun = database.router().take_checkpoint().expect("begun");
    loop {
        let all = database.router().checkpoints();
        let found = all.into_iter().find(|info| info.lsn == begun.lsn).expect("listed");
        if found.state != CheckpointState::Running {
            assert_eq!(found.error, None);
            assert_eq!(found.state, CheckpointState::Published);
            return found;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

pub fn files(dir: &Path, folder: &str) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(dir.join(folder)).expect("a folder");
    let mut paths: Vec<_> = listed.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

/// Every file under a directory, with its bytes.
pub fn snapshot(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for folder in ["log", "checkpoints"] {
        for path in files(dir, folder) {
            let bytes = std::fs::read(&path).expect("a file");
            found.insert(path, bytes);
        }
    }
    found
}

/// The files of a directory's log.
pub fn copy_log(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let read = |path: PathBuf| (path.clone(), std::fs::read(path).expect("a segment"));
    files(dir, "log").into_iter().map(read).collect()
}

/// Puts an older copy in the place of a directory's log.
pub fn put_log(dir: &Path, copy: &[(PathBuf, Vec<u8>)]) {
    for path in files(dir, "log") {
        std::fs::remove_file(path).expect("removed");
    }
    for (path, bytes) in copy {
        std::fs::write(path, bytes).expect("written");
    }
}
