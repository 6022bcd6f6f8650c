//! A primary and its standbys, whose logs hold words.
#![allow(dead_code)]

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use reprise_base::{Lsn, PartitionId, Role, Safety, TxnId, WatermarkWaiter};
use reprise_env::{Clock, Disk, Net, RealClock, RealNet, RealThreads, SimDisk, Threads};
use reprise_log::{AppendError, AppendOutcome, Group, GroupAppender, Log, LogConfig, LogError, LogReader, Position};
use reprise_ship::{
    BeatSeen, CheckpointSource, ChosenCheckpoint, Commits, Link, LinkConfig, LinkError, LogReceiver, Member,
    PersistedHook, SafetyStatus, ShipEvent, ShippedLog, Shipper, ShipperConfig, StandbyProgress, StandbyStatus,
    SyncReport, Taker, WelcomeSeen,
};
use reprise_wire::{
    Change, ChangesRef, CommandRef, DeployRef, FILE_CHUNK_BYTES_MAX, PartitionSet, RecordBatch, RecordRef, TwoForms,
};

pub const WAIT_MAX: Duration = Duration::from_secs(60);
pub const DATABASE: [u8; 16] = *b"a log in a test!";
pub const PARTITIONS: u16 = 4;

pub type TestLog = Log<()>;

/// The last `SafetyStatus` that the shipper published.
#[derive(Default)]
pub struct Told {
    pub stand: Mutex<Option<SafetyStatus>>,
    pub given_up: AtomicU64,
}

impl Commits for Told {
    fn set(&self, stand: &SafetyStatus) {
        *self.stand.lock().expect("whole") = Some(stand.clone());
    }

    fn release(&self) {}

    fn leave_open(&self, _: &Arc<str>) {
        self.given_up.fetch_add(1, Ordering::Relaxed);
    }

    fn expire(&self, _: u64, _: u64, _: &Arc<str>) {}

    fn confirm(&self, _: u64) {}

    fn committed(&self, durable: Lsn) -> Lsn {
        let stand = self.stand.lock().expect("whole");
        let limit = stand.as_ref().and_then(|stand| stand.limit);
        limit.map_or(durable, |limit| limit.min(durable))
    }
}

pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + WAIT_MAX;
    while Instant::now() < until {
        if holds() {
            return;
        }
        thread::sleep(Duration::from_millis(2));
    }
    panic!("waited in vain: {what}");
}

pub fn open_log(disk: &SimDisk, role: Role, (clock, threads): (Arc<dyn Clock>, Arc<dyn Threads>)) -> Arc<TestLog> {
    let config = LogConfig {
        segment_bytes: 64 << 10,
        role,
        new_block_key: 7,
        ..LogConfig::new(DATABASE)
    };
    let complete = Box::new(|_: Lsn, _: Result<(), &LogError>, ()| {});
    let opened = Log::open_on(Arc::new(disk.clone()), clock, threads, config, complete);
    Arc::new(opened.expect("open").0)
}

/// Appends a record of a word; its end.
pub fn append(log: &TestLog, word: &str) -> Lsn {
    append_with(log, word, 0)
}

/// Appends a record of a word and of `bytes` more bytes. Returns its end.
pub fn append_with(log: &TestLog, word: &str, bytes: usize) -> Lsn {
    let wasm = vec![0xee; bytes];
    let records = RecordBatch::of(&RecordRef::Deploy(DeployRef {
        txn_id: TxnId::new(0, 0),
        module_id: 1,
        version: 1,
        name: word,
        hash: [0; 32],
        wasm: &wasm,
        tables: Default::default(),
        destroyed: Default::default(),
        migration: None,
    }));
    let start = log.appender().append(&records, None).map_err(|e| e.0).expect("append");
    Lsn(start.0 + 1)
}

/// Appends a transaction of this many bytes in one form, which standbys get in the other. Returns its end.
pub fn append_apart(log: &TestLog, number: u64, bytes: usize, forms: TwoForms) -> Lsn {
    let (args, row, mut changes) = (vec![1; bytes], vec![2; bytes], Vec::new());
    let (table, row) = (1, &row[..]);
    Change::Insert { table, number, row }.encode(&mut changes);
    let changes = ChangesRef {
        txn_id: TxnId::new(number, 0),
        partitions: PartitionSet::One(PartitionId(0)),
        module_id: 0,
        procedure: 0,
        digest: 7,
        principal: 0,
        parts: 0,
        keyed: None,
        changes: &changes,
    };
    let command = CommandRef {
        txn_id: changes.txn_id,
        partitions: changes.partitions,
        module_id: 0,
        procedure: 0,
        digest: 7,
        principal: 0,
        keyed: None,
        args: &args,
    };
    let mut records = RecordBatch::default();
    records.push_forms(Some(&command), &changes, Some(forms));
    let start = log.appender().append(&records, None).map_err(|e| e.0).expect("append");
    Lsn(start.0 + 1)
}

pub fn words(mut reader: LogReader) -> Vec<String> {
    let mut words = Vec::new();
    while let Some(record) = reader.next_record().expect("read") {
        match record.record {
            RecordRef::Deploy(deploy) => words.push(deploy.name.to_owned()),
            other => panic!("nobody wrote {other:?}"),
        }
    }
    words
}

pub fn words_of(log: &TestLog, from: Lsn) -> Vec<String> {
    words(log.reader(from).expect("reader"))
}

/// A file that passes for a checkpoint.
pub struct FakeCheckpoints {
    pub disk: SimDisk,
    pub lsn: AtomicU64,
}

impl CheckpointSource for FakeCheckpoints {
    fn choose(&self) -> Result<Option<ChosenCheckpoint>, String> {
        let lsn = Lsn(self.lsn.load(Ordering::Acquire));
        if lsn == Lsn(0) {
            return Ok(None);
        }
        let name = "checkpoint-of-words.ckpt".to_owned();
        let file = self.disk.open_read(&name).map_err(|error| error.to_string())?;
        let kept = Box::new(());
        Ok(Some(ChosenCheckpoint { lsn, name, file, kept }))
    }
}

pub struct Primary {
    pub disk: SimDisk,
    pub log: Arc<TestLog>,
    pub checkpoints: Arc<FakeCheckpoints>,
    pub shipper: Shipper,
    pub events: Arc<Mutex<Vec<ShipEvent>>>,
    pub commits: Arc<Told>,
    pub kept: Arc<KeptSync>,
}

/// The store of the sync set, as a test has it.
#[derive(Default)]
pub struct KeptSync {
    /// Whether any standby was in sync, for each time that the shipper saved the set.
    pub asked: Mutex<Vec<bool>>,
    /// True while the store does not confirm in time that a standby is in sync.
    pub is_late: AtomicBool,
}

impl KeptSync {
    fn keep(&self, expected: &[Member]) -> bool {
        let is_any_in = expected.iter().any(|standby| standby.is_in_sync);
        self.asked.lock().expect("test").push(is_any_in);
        !is_any_in || !self.is_late.load(Ordering::Relaxed)
    }
}

pub struct Around {
    pub net: Arc<dyn Net>,
    pub clock: Arc<dyn Clock>,
    pub threads: Arc<dyn Threads>,
    pub listen: &'static str,
}

impl Primary {
    pub fn start(disk: &SimDisk, around: &Around, ring_bytes: usize) -> Self {
        Self::start_at(Safety::OneSafe, disk, around, ring_bytes)
    }

    pub fn start_at(safety: Safety, disk: &SimDisk, around: &Around, ring_bytes: usize) -> Self {
        Self::start_over(safety, disk, around, (ring_bytes, |log| log.clone()))
    }

    /// Starts a primary that ships the log that `shipped` makes.
    pub fn start_with(
        disk: &SimDisk,
        around: &Around,
        ring_bytes: usize,
        shipped: impl FnOnce(&Arc<TestLog>) -> Arc<dyn ShippedLog>,
    ) -> Self {
        Self::start_over(Safety::OneSafe, disk, around, (ring_bytes, shipped))
    }

    fn start_over<F: FnOnce(&Arc<TestLog>) -> Arc<dyn ShippedLog>>(
        safety: Safety,
        disk: &SimDisk,
        around: &Around,
        (ring_bytes, shipped): (usize, F),
    ) -> Self {
        let log = open_log(disk, Role::Primary, (around.clock.clone(), around.threads.clone()));
        let checkpoints = Arc::new(FakeCheckpoints {
            disk: SimDisk::new(),
            lsn: AtomicU64::new(0),
        });
        let events: Arc<Mutex<Vec<ShipEvent>>> = Arc::default();
        let told = events.clone();
        let (drawn, commits) = (AtomicU64::new(1), Arc::<Told>::default());
        let kept = Arc::<KeptSync>::default();
        let keeping = kept.clone();
        let shipper = Shipper::start(ShipperConfig {
            net: around.net.clone(),
            clock: around.clock.clone(),
            threads: around.threads.clone(),
            log: shipped(&log),
            checkpoints: checkpoints.clone(),
            listen: around.listen.into(),
            primary: "http://primary:1".into(),
            partitions: PARTITIONS,
            ring_bytes,
            file_part_bytes: FILE_CHUNK_BYTES_MAX,
            following: Box::new(|_| ()),
            safety,
            commits: commits.clone(),
            expected: Vec::new(),
            keep: Box::new(move |expected| keeping.keep(expected)),
            entropy: Box::new(move || -> io::Result<[u8; 16]> {
                Ok([drawn.fetch_add(1, Ordering::Relaxed) as u8; 16])
            }),
            report: Box::new(move |event| told.lock().expect("test").push(event)),
        });
        Self {
            disk: disk.clone(),
            log,
            checkpoints,
            shipper: shipper.expect("start"),
            events,
            commits,
            kept,
        }
    }

    pub fn link(&self, around: &Around, name: &str) -> LinkConfig {
        let ticket = self.shipper.join(&name.into()).expect("a good name");
        LinkConfig {
            net: around.net.clone(),
            clock: around.clock.clone(),
            address: self.shipper.address().to_owned(),
            certificate: None,
            ticket,
            name: name.into(),
            connect_time: Duration::from_secs(2),
        }
    }

    pub fn find(&self, name: &str) -> Option<StandbyStatus> {
        let all = self.shipper.standbys();
        all.into_iter().find(|status| *status.name == *name)
    }

    pub fn status(&self, name: &str) -> StandbyStatus {
        self.find(name).expect("known")
    }
}

/// Places groups into a log.
pub struct LogTaker {
    pub log: Arc<TestLog>,
    receiver: GroupAppender<()>,
    pub room_bytes: AtomicU64,
    /// The time that each group takes.
    pub slow: Mutex<Duration>,
    /// True while groups wait before they are placed.
    pub is_held: AtomicBool,
    pub beats: Mutex<Vec<BeatSeen>>,
    pub standings: Mutex<Vec<SyncReport>>,
    /// The standby keeps no standing.
    pub is_forgetful: AtomicBool,
    /// There is a later primary: it is seen by who looks, and not before.
    pub has_later: AtomicBool,
    sees_later: AtomicBool,
}

impl LogTaker {
    pub fn new(log: &Arc<TestLog>) -> Arc<Self> {
        Arc::new(Self {
            log: log.clone(),
            receiver: log.group_appender(),
            room_bytes: AtomicU64::new(1 << 20),
            slow: Mutex::default(),
            is_held: AtomicBool::new(false),
            beats: Mutex::default(),
            standings: Mutex::default(),
            is_forgetful: AtomicBool::new(false),
            has_later: AtomicBool::new(false),
            sees_later: AtomicBool::new(false),
        })
    }
}

impl Taker for LogTaker {
    fn position(&self) -> Position {
        self.log.received().expect("a standby's")
    }

    fn place(&self, group: &Group<'_>) -> Result<AppendOutcome, AppendError> {
        let slow = *self.slow.lock().expect("test");
        if !slow.is_zero() {
            thread::sleep(slow);
        }
        // A test that fails opens no gate, and its thread ends all the same.
        let until = Instant::now() + WAIT_MAX;
        while self.is_held.load(Ordering::Acquire) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        self.receiver.append(group)
    }

    fn progress(&self) -> StandbyProgress {
        let durable = self.log.durable();
        StandbyProgress {
            persisted: durable,
            replayed: durable,
            view: durable,
            room_bytes: self.room_bytes.load(Ordering::Relaxed),
        }
    }

    fn on_heartbeat(&self, beat: &BeatSeen) {
        self.beats.lock().expect("test").push(*beat);
    }

    fn save_sync_report(&self, standing: &SyncReport) -> bool {
        self.standings.lock().expect("test").push(standing.clone());
        !self.is_forgetful.load(Ordering::Relaxed)
    }

    fn check_primary(&self, _: &WelcomeSeen) -> Result<(), String> {
        match self.sees_later.load(Ordering::Relaxed) {
            true => Err("another one followed".into()),
            false => Ok(()),
        }
    }

    fn knows_since(&self, _: u64) -> bool {
        let has_later = self.has_later.load(Ordering::Relaxed);
        // The look takes until the next time that it is asked for.
        let had_looked = self.sees_later.swap(has_later, Ordering::Relaxed);
        had_looked == has_later
    }

    fn when_persisted(&self, _: Lsn, _: PersistedHook) -> Option<WatermarkWaiter> {
        None
    }
}

pub fn stream(link: &LinkConfig, taker: &Arc<LogTaker>) -> Result<LogReceiver, LinkError> {
    Link::stream(link, DATABASE, PARTITIONS, taker.clone())
}

/// Over TCP on this machine.
pub fn around() -> Around {
    Around {
        net: Arc::new(RealNet),
        clock: Arc::new(RealClock::new()),
        threads: Arc::new(RealThreads),
        listen: "127.0.0.1:0",
    }
}

/// Streams on a thread of its own until told to stop.
pub struct Running {
    pub goes_on: Arc<AtomicBool>,
    pub thread: thread::JoinHandle<Result<(), LinkError>>,
}

impl Running {
    pub fn start(link: &LinkConfig, taker: &Arc<LogTaker>) -> Self {
        let mut streaming = stream(link, taker).expect("connect");
        let goes_on = Arc::new(AtomicBool::new(true));
        let flag = goes_on.clone();
        let thread = thread::spawn(move || streaming.run(&|| flag.load(Ordering::Acquire)));
        Self { goes_on, thread }
    }

    pub fn stop(self) -> Result<(), LinkError> {
        self.goes_on.store(false, Ordering::Release);
        self.thread.join().expect("no panic")
    }
}

pub fn append_all(log: &TestLog, word: &str, count: u32) {
    for n in 0..count {
        append(log, &format!("{word}{n}"));
    }
}
