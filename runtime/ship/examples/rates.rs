//! How fast the log gets to a standby over TCP on this machine: log of earlier, and each group as it is sealed. In MB and us.
//!
//! `cargo run --release -p reprise-ship --example rates -- DIR [MIB]`: both logs lie below DIR.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use reprise_base::{Lsn, Role, Safety, TxnId, Waiter, Watermark};
use reprise_env::{Clock, RealClock, RealDisk, RealNet, RealThreads, entropy};
use reprise_log::{Group, Log, LogConfig, PlaceError, Placed, Position, Receiver};
use reprise_ship::{
    BeatSeen, CheckpointSource, ChosenCheckpoint, Commits, Link, LinkConfig, PersistedHook, Shipper, ShipperConfig,
    Stand, StandbyProgress, StandingSeen, Taker,
};
use reprise_wire::{DeployRef, FILE_CHUNK_BYTES_MAX, RecordBatch, RecordRef};

const DATABASE: [u8; 16] = *b"rates of a ship!";
const ROOM_BYTES: u64 = 6 << 20;

fn open(dir: &Path, role: Role) -> Arc<Log<()>> {
    let disk = Arc::new(RealDisk::create(dir).expect("a directory"));
    let config = LogConfig {
        role,
        new_block_key: 7,
        ..LogConfig::new(DATABASE)
    };
    let opened = Log::open(disk, Arc::new(RealClock::new()), config, Box::new(|_, _, ()| {}));
    Arc::new(opened.expect("open").0)
}

/// Nobody waits here.
struct Open;

impl Commits for Open {
    fn set(&self, _: &Stand) {}

    fn release(&self) {}

    fn give_up(&self, _: &Arc<str>) {}

    fn expire(&self, _: u64, _: u64, _: &Arc<str>) {}

    fn committed(&self, durable: Lsn) -> Lsn {
        durable
    }
}

struct NoCheckpoints;

impl CheckpointSource for NoCheckpoints {
    fn choose(&self) -> Result<Option<ChosenCheckpoint>, String> {
        Ok(None)
    }
}

struct LogTaker {
    log: Arc<Log<()>>,
    receiver: Receiver<()>,
}

impl Taker for LogTaker {
    fn position(&self) -> Position {
        self.log.received().expect("a standby's")
    }

    fn place(&self, group: &Group<'_>) -> Result<Placed, PlaceError> {
        self.receiver.place(group)
    }

    fn progress(&self) -> StandbyProgress {
        let durable = self.log.durable();
        StandbyProgress {
            persisted: durable,
            replayed: durable,
            view: durable,
            room_bytes: ROOM_BYTES,
        }
    }

    fn note_heartbeat(&self, _: &BeatSeen) {}

    fn keep_standing(&self, _: &StandingSeen) -> bool {
        true
    }

    fn when_persisted(&self, lsn: Lsn, hook: PersistedHook) -> Option<Waiter> {
        self.log.when_durable(lsn, hook)
    }
}

fn batch(bytes: usize) -> RecordBatch {
    RecordBatch::of(&RecordRef::Deploy(DeployRef {
        txn_id: TxnId::new(0, 0),
        module_id: 1,
        version: 1,
        semantics: 1,
        name: "w",
        hash: [0; 32],
        wasm: &vec![0xee; bytes],
        migration: None,
    }))
}

fn wait(what: impl Fn() -> bool) {
    while !what() {
        thread::sleep(Duration::from_micros(200));
    }
}

fn percentile(sorted: &[u64], percent: usize) -> f64 {
    sorted[(sorted.len() - 1) * percent / 100] as f64 / 1e3
}

fn start(primary: &Arc<Log<()>>, clock: &Arc<dyn Clock>) -> Shipper {
    let shipper = Shipper::start(ShipperConfig {
        net: Arc::new(RealNet),
        clock: clock.clone(),
        threads: Arc::new(RealThreads),
        log: primary.clone(),
        checkpoints: Arc::new(NoCheckpoints),
        listen: "127.0.0.1:0".into(),
        primary: String::new(),
        partitions: 1,
        file_part_bytes: FILE_CHUNK_BYTES_MAX,
        ring_bytes: 16 << 20,
        following: Box::new(|_| ()),
        safety: Safety::OneSafe,
        commits: Arc::new(Open),
        expected: Vec::new(),
        keep: Box::new(|_| true),
        entropy: Box::new(entropy),
        tell: Box::new(|event| eprintln!("{event:?}")),
    });
    shipper.expect("start")
}

/// One client's commits, durable here, and there where that is told.
fn time_commits(place: &str, primary: &Log<()>, acked: Option<&Arc<Watermark>>) {
    let (appender, small) = (primary.appender(), batch(200));
    let mut times = Vec::new();
    for _ in 0..5_000 {
        let begun = Instant::now();
        let start = appender
            .append(&small, None)
            .map_err(|(error, _)| error)
            .expect("append");
        let end = Lsn(start.0 + 1);
        assert!(primary.wait_durable(end, Duration::from_secs(60)));
        if let Some(acked) = acked {
            let (tell, told) = std::sync::mpsc::channel();
            let waiter = acked.when(end.0, Box::new(move || _ = tell.send(())));
            if waiter.is_some() {
                told.recv().expect("acknowledged");
            }
        }
        times.push(begun.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    let [median, p99] = [percentile(&times, 50), percentile(&times, 99)];
    println!("commit of one client, durable {place}: median {median:.0} us, p99 {p99:.0} us");
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().expect("a directory");
    let mib: usize = arguments.next().map_or(512, |mib| mib.parse().expect("MiB"));
    let (primary, standby) = (
        open(&Path::new(&dir).join("primary"), Role::Primary),
        open(&Path::new(&dir).join("standby"), Role::Standby),
    );
    let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
    let shipper = start(&primary, &clock);
    let large = batch(100 << 10);
    let begun = Instant::now();
    for _ in 0..mib * 10 {
        primary
            .appender()
            .append(&large, None)
            .map_err(|(error, _)| error)
            .expect("append");
    }
    let end = primary.filled();
    assert!(primary.wait_durable(end, Duration::from_secs(300)));
    let mb = (mib * 10 * (100 << 10)) as f64 / 1e6;
    println!("written: {mb:.0} MB at {:.0} MB/s", mb / begun.elapsed().as_secs_f64());

    time_commits("here, without a standby", &primary, None);
    let ticket = shipper.join("s1").expect("a ticket");
    let link = LinkConfig {
        net: Arc::new(RealNet),
        clock,
        address: ticket.ship_address,
        certificate: None,
        ticket: ticket.ticket,
        name: "s1".into(),
        connect_time: Duration::from_secs(2),
    };
    let taker = Arc::new(LogTaker {
        receiver: standby.receiver(),
        log: standby.clone(),
    });
    let mut streaming = Link::stream(&link, DATABASE, 1, taker).expect("connect");
    let goes_on = Arc::new(AtomicBool::new(true));
    let flag = goes_on.clone();
    let begun = Instant::now();
    let running = thread::spawn(move || streaming.run(&|| flag.load(Ordering::Acquire)));
    let acked = shipper.acked(1).expect("one");
    let end = primary.filled();
    wait(|| acked.get() >= end.0);
    println!(
        "caught up: {:.0} MB/s, durable there",
        mb / begun.elapsed().as_secs_f64()
    );

    time_commits("here, and sent", &primary, None);
    time_commits("here and there", &primary, Some(&acked));
    goes_on.store(false, Ordering::Release);
    running.join().expect("no panic").expect("no error");
}
