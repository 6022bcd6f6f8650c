//! A database of accounts in this process.
#![allow(dead_code)]

pub mod parts;

use std::{
    borrow::Borrow,
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicI64, Ordering},
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

use reprise_base::{Lsn, TxnId};
use reprise_database::{
    BatchLimits, CheckpointConfig, CommitMode, Database, DatabaseConfig, DeviceConfig, Group, GroupSink, LogPolicy,
    Position, RecoveryReport, RedoConfig,
};
use reprise_router::{
    BatchBuilder, BatchReply, CallKey, Consent, DeployError, Deployment, InstallError, LogEntry, LogSearch,
    PlanSummary, Removal, ReplyOutcome, Router, call_hash,
};
use reprise_upkeep::{CheckpointInfo, CheckpointPhase, Checkpointer};

pub fn wasm(name: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("target/procedures").join(name).with_extension("wasm");
    std::fs::read(&path)
        .unwrap_or_else(|error| panic!("read {}: {error}; `cargo xtask wasm` builds it", path.display()))
}

/// A module with an unused section of this many bytes.
pub fn with_section(wasm: &[u8], bytes: usize) -> Vec<u8> {
    let content = [&[3][..], b"pad", &vec![0; bytes]].concat();
    let mut left = content.len();
    let mut long = [wasm, &[0]].concat();
    while left > 0x7f {
        long.push(left as u8 | 0x80);
        left >>= 7;
    }
    long.push(left as u8);
    [long, content].concat()
}

/// Deployments and removals with consent to whatever they destroy.
pub trait Consenting {
    fn deploy_consenting(&self, name: &str, wasm: &[u8]) -> Result<Deployment, DeployError>;
    fn remove_consenting(&self, name: &str) -> Result<Removal, DeployError>;
}

impl Consenting for Router {
    fn deploy_consenting(&self, name: &str, wasm: &[u8]) -> Result<Deployment, DeployError> {
        match self.deploy(name, wasm) {
            Err(DeployError::Install(InstallError::Consent { plan, .. })) => {
                self.deploy_with(name, wasm, &consents_to(&plan))
            }
            other => other,
        }
    }

    fn remove_consenting(&self, name: &str) -> Result<Removal, DeployError> {
        match self.remove(name, &[]) {
            Err(DeployError::Install(InstallError::Consent { plan, .. })) => self.remove(name, &consents_to(&plan)),
            other => other,
        }
    }
}

pub fn consents_to(plan: &PlanSummary) -> Vec<Consent> {
    plan.destroyed.iter().map(|found| found.consent.clone()).collect()
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
        batch_limits: BatchLimits::default(),
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

pub fn recovered(config: DatabaseConfig) -> Database {
    let database = Database::open(config).expect("open");
    database.recover().expect("recover");
    database
}

/// Closes a database, and releases its directory.
pub fn close(database: impl Borrow<Database>) {
    database.borrow().close().expect("close");
}

/// A directory, and accounts in it.
pub fn bank(sites: u16, count: i64) -> (tempfile::TempDir, Database) {
    let dir = tempfile::tempdir().expect("a directory");
    let (database, _) = open(dir.path(), sites);
    fill_bank(&database, count);
    (dir, database)
}

/// Waits until all partitions have published their counts of rows. A plan waits for them no longer than 30 ms.
pub fn publish_counts(database: &Database) {
    let stats = database.router().table_stats(Duration::from_secs(60));
    stats.expect("ready");
}

pub fn digest_now(database: &Database) -> u64 {
    database.router().digest().expect("ready")
}

/// A call: its module, its procedure, its idempotency key, and its encoded arguments.
pub type Call<'a> = (&'a str, &'a str, Option<&'a str>, Vec<u8>);

/// Sends calls in one batch, whose keys count in a scope, and does not wait for the reply.
pub fn begin(database: &Database, scope: &str, calls: &[Call<'_>]) -> Receiver<BatchReply> {
    let router = database.router();
    let deployed = router.deployed();
    let mut batch = BatchBuilder::new(deployed.clone(), router);
    batch.set_caller((!scope.is_empty()).then(|| {
        router.define_principal(scope).expect("defined");
        router.caller(&scope.into(), &scope.into())
    }));
    for (module, procedure, key, args) in calls {
        let module = &deployed.current[*module];
        let (number, _) = module.procedure(procedure).expect("a procedure");
        let encode = |out: &mut Vec<u8>| {
            out.extend_from_slice(args);
            Ok::<(), ()>(())
        };
        let key = key.map(|key| CallKey {
            key,
            fingerprint: call_hash(&module.name, procedure, args),
        });
        batch.push(module, number, key, encode).expect("encoded");
    }
    let (sender, receiver) = mpsc::channel();
    let done = Box::new(move |reply| _ = sender.send(reply)); // the test may be over
    router.submit(batch, done);
    receiver
}

/// Calls of any modules in one batch.
pub fn submit_to(database: &Database, calls: &[Call<'_>]) -> BatchReply {
    begin(database, "", calls).recv().expect("a reply")
}

/// Calls of the module `bank` in one batch.
pub fn submit(database: &Database, calls: &[(&str, Option<&str>, Vec<u8>)]) -> BatchReply {
    let calls = calls
        .iter()
        .map(|(name, key, args)| ("bank", *name, *key, args.clone()));
    submit_to(database, &calls.collect::<Vec<_>>())
}

pub struct Answer {
    pub outcome: ReplyOutcome,
    pub result: Vec<u8>,
    pub lsn: Lsn,
}

/// One call.
pub fn call(database: &Database, module: &str, procedure: &str, args: &[u8]) -> Answer {
    let reply = submit_to(database, &[(module, procedure, None, args.to_vec())]);
    let reply = reply.get(0);
    Answer {
        outcome: reply.outcome.clone(),
        result: reply.result.to_vec(),
        lsn: reply.lsn,
    }
}

/// The integer with which a call answers, or why it has none.
pub fn call_i64(database: &Database, module: &str, procedure: &str, args: &[i64]) -> Result<i64, String> {
    let answer = call(database, module, procedure, &i64s(args));
    match answer.outcome {
        ReplyOutcome::Committed => Ok(i64::from_le_bytes(answer.result.try_into().expect("eight bytes"))),
        other => Err(format!("{other:?}")),
    }
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

/// Deploys the module `bank`, and opens accounts from 0 on.
pub fn fill_bank(database: &Database, count: i64) {
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    fill(database, 0, count);
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

/// Transfers in round after round.
pub fn transfer_until(database: &Database, is_over: &AtomicBool) {
    (0..)
        .take_while(|_| !is_over.load(Ordering::Acquire))
        .for_each(|round| transfer(database, round));
}

pub fn checkpointer(database: &Database) -> &Checkpointer {
    database.checkpointer().expect("there is a log")
}

/// Polls until the condition holds.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < until, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Takes a checkpoint, and waits until it is published or has failed.
pub fn try_take(database: &Database) -> CheckpointInfo {
    let checkpointer = checkpointer(database);
    let begun = checkpointer.take().expect("begun");
    loop {
        let all = checkpointer.list();
        let found = all.into_iter().find(|info| info.lsn == begun.lsn).expect("listed");
        if found.state != CheckpointPhase::Running {
            return found;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

pub fn take(database: &Database) -> CheckpointInfo {
    let taken = try_take(database);
    assert_eq!((&taken.error, taken.state), (&None, CheckpointPhase::Published));
    taken
}

/// A state that the database was in: its last transaction, and the digest of its tables.
pub struct Moment {
    pub lsn: Lsn,
    pub txn_id: TxnId,
    pub digest: u64,
}

/// Opens one more account, whose number no test uses, and notes the state.
pub fn moment(database: &Database) -> Moment {
    static NEXT: AtomicI64 = AtomicI64::new(1 << 40);
    let account = NEXT.fetch_add(1, Ordering::Relaxed);
    let last = submit(database, &[("open", None, i64s(&[account, 1]))]);
    Moment {
        lsn: last.get(0).lsn,
        txn_id: last.get(0).txn_id,
        digest: digest_now(database),
    }
}

/// The digest of the tables in a directory, which takes more transactions.
pub fn digest_of(dir: &Path) -> u64 {
    let (database, _) = open(dir, 1);
    let digest = digest_now(&database);
    transfer(&database, 7);
    close(database);
    digest
}

/// All entries of the log from an LSN on, or from its beginning on, the oldest first. A page ends after 1 s, perhaps before its first record.
pub fn records(database: &Database, mut from: Option<Lsn>) -> Vec<LogEntry> {
    let (mut found, until) = (Vec::new(), Instant::now() + Duration::from_secs(60));
    loop {
        assert!(Instant::now() < until, "the log is read to its end");
        let query = LogSearch {
            from,
            limit: 1_000,
            ..LogSearch::default()
        };
        let page = database.router().log_records(query).expect("a log");
        let next = page.next.expect("oldest first");
        found.extend(page.records);
        if next >= page.end {
            return found;
        }
        from = Some(next);
    }
}

pub fn files(dir: &Path, folder: &str) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(dir.join(folder)).expect("a folder");
    let mut paths: Vec<_> = listed.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

/// All files below a directory, with their bytes.
pub fn files_below(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => found.extend(files_below(&path)),
            false => drop(found.insert(path.clone(), std::fs::read(&path).expect("read"))),
        }
    }
    found
}

/// Every file of the log and of the checkpoints of a directory, with its bytes.
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

/// A group on its way.
#[derive(Clone)]
pub struct Sent {
    pub first: Lsn,
    pub end: Position,
    pub records: Vec<u8>,
}

impl Sent {
    pub fn get(&self) -> Group<'_> {
        Group {
            first: self.first,
            end: self.end,
            records: &self.records,
        }
    }
}

/// The groups that a primary has sealed, in order.
#[derive(Default)]
pub struct Line(pub Mutex<VecDeque<Sent>>);

impl GroupSink for Line {
    fn take(&self, group: &Group<'_>) {
        self.0.lock().expect("the line").push_back(Sent {
            first: group.first,
            end: group.end,
            records: group.records.to_vec(),
        });
    }
}
