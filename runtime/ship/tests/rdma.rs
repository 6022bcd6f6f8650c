//! RDMA with simulated cards: the cost of a group commit for the primary, and a standby that gets all of it, whatever the completions do.

#[path = "it/common/mod.rs"]
mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use common::{
    Around, DATABASE, LogTaker, PARTITIONS, Primary, TestLog, append, append_with, open_log, stream, wait_until,
    words_of,
};
use reprise_base::{Epoch, Lsn, Role};
use reprise_env::{RealClock, RealNet, RealThreads, SimDisk, sim::CrashPolicy};
use reprise_log::{DestageDemand, EpochStart, Group, GroupSink, LogError, LogReader, ReplicationSlot};
use reprise_net_rdma::{
    RdmaNet,
    fake::{CardFault, FakeCard},
};
use reprise_ship::{Link, LinkError, ShippedLog, StandbyStage};
use reprise_wire::{GROUP_HEAD_BYTES, History};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts what each thread asks of the system's allocator.
struct Counting;

// SAFETY: all of it is the system's, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn around(net: RdmaNet) -> Around {
    Around {
        net: Arc::new(net),
        clock: Arc::new(RealClock::new()),
        threads: Arc::new(RealThreads),
        listen: "127.0.0.1:0",
    }
}

fn standby(disk: &SimDisk, around: &Around) -> Arc<TestLog> {
    open_log(disk, Role::Standby, (around.clock.clone(), around.threads.clone()))
}

/// Streams on a thread of its own, again after each break, until told to stop.
struct Running {
    goes_on: Arc<AtomicBool>,
    breaks: Arc<AtomicU64>,
    thread: thread::JoinHandle<()>,
}

impl Running {
    fn start(primary: &Arc<Primary>, around: &Around, name: &'static str, taker: &Arc<LogTaker>) -> Self {
        let (goes_on, breaks) = (Arc::new(AtomicBool::new(true)), Arc::<AtomicU64>::default());
        let (flag, count) = (goes_on.clone(), breaks.clone());
        let (primary, taker) = (primary.clone(), taker.clone());
        let around = Around {
            net: around.net.clone(),
            clock: around.clock.clone(),
            threads: around.threads.clone(),
            listen: around.listen,
        };
        let follow = move || -> Result<(), LinkError> {
            let mut streaming = stream(&primary.link(&around, name), &taker)?;
            streaming.run(&|| flag.load(Ordering::Acquire))
        };
        let flag = goes_on.clone();
        let thread = thread::spawn(move || {
            while flag.load(Ordering::Acquire) {
                if let Err(error) = follow() {
                    assert!(!error.is_final(), "{error}");
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self {
            goes_on,
            breaks,
            thread,
        }
    }

    fn stop(self) -> u64 {
        self.goes_on.store(false, Ordering::Release);
        self.thread.join().expect("no panic");
        self.breaks.load(Ordering::Relaxed)
    }
}

fn wait_streaming(primary: &Primary, name: &str) {
    wait_until("it streams", || {
        primary
            .find(name)
            .is_some_and(|found| found.state == StandbyStage::Streaming)
    });
}

/// A log that counts the allocations of its flusher in the shipper's sink.
struct Counted {
    log: Arc<TestLog>,
    allocations: Arc<AtomicU64>,
}

struct CountedSink {
    sink: Arc<dyn GroupSink>,
    allocations: Arc<AtomicU64>,
}

impl GroupSink for CountedSink {
    fn take(&self, group: &Group<'_>) {
        let before = ALLOCATIONS.with(Cell::get);
        self.sink.take(group);
        let after = ALLOCATIONS.with(Cell::get);
        self.allocations.fetch_add(after - before, Ordering::Relaxed);
    }
}

impl ShippedLog for Counted {
    fn database_id(&self) -> [u8; 16] {
        DATABASE
    }

    fn epoch(&self) -> Epoch {
        self.log.epoch()
    }

    fn durable(&self) -> Lsn {
        self.log.durable()
    }

    fn copied(&self) -> Lsn {
        self.log.copied()
    }

    fn filled(&self) -> Lsn {
        self.log.filled()
    }

    fn answered_max(&self) -> Lsn {
        self.log.answered_max()
    }

    fn history_at(&self, lsn: Lsn) -> Result<Option<History>, LogError> {
        self.log.history_at(lsn)
    }

    fn epochs(&self) -> Vec<EpochStart> {
        self.log.epochs()
    }

    fn reader(&self, from: Lsn) -> Result<LogReader, LogError> {
        self.log.reader(from)
    }

    fn hold(&self, name: &str, from: Lsn) -> Result<ReplicationSlot, LogError> {
        self.log.create_slot(name, from)
    }

    fn bytes_between(&self, from: Lsn, to: Lsn) -> u64 {
        self.log.bytes_between(from, to)
    }

    fn add_sink(&self, sink: Arc<dyn GroupSink>) {
        self.log.add_sink(Arc::new(CountedSink {
            sink,
            allocations: self.allocations.clone(),
        }));
    }

    fn follow(&self) -> Option<DestageDemand> {
        self.log.follow()
    }
}

#[test]
fn a_group_commit_is_one_work_request_for_each_standby_and_allocates_nothing() {
    const GROUPS: usize = 300;
    let card = FakeCard::new();
    let around = around(RdmaNet::new(Arc::new(card.clone())));
    let allocations = Arc::<AtomicU64>::default();
    let counted = allocations.clone();
    let primary = Arc::new(Primary::start_with(&SimDisk::new(), &around, 16 << 20, move |log| {
        Arc::new(Counted {
            log: log.clone(),
            allocations: counted,
        })
    }));
    let takers: Vec<_> = (0..2)
        .map(|_| LogTaker::new(&standby(&SimDisk::new(), &around)))
        .collect();
    let mut running = Vec::new();
    for (name, taker) in ["s0", "s1"].into_iter().zip(&takers) {
        taker.room_bytes.store(8 << 20, Ordering::Relaxed);
        running.push(Running::start(&primary, &around, name, taker));
    }
    for name in ["s0", "s1"] {
        wait_streaming(&primary, name);
    }
    let mut end = append(&primary.log, "first");
    wait_until("both have it", || takers.iter().all(|taker| taker.log.durable() >= end));
    card.reserve(100 * GROUPS);
    card.take_posted();
    card.reserve(100 * GROUPS);
    allocations.store(0, Ordering::Relaxed);
    for group in 0..GROUPS {
        end = append_with(&primary.log, &format!("w{group}"), 20_000);
        assert!(primary.log.wait_durable(end, Duration::from_secs(60)));
    }
    wait_until("both have it", || takers.iter().all(|taker| taker.log.durable() >= end));
    let allocated = allocations.load(Ordering::Relaxed);
    let posted = card.take_posted().into_iter();
    let groups: Vec<_> = posted.filter(|posted| posted.write.shared.bytes > 0).collect();
    let ends = groups.iter().filter(|posted| posted.write.immediate.is_some()).count();
    assert_eq!(
        ends,
        2 * GROUPS,
        "one with an immediate value for each group and standby"
    );
    assert!(
        groups.len() <= ends + 2 * 3,
        "{} writes: one more where a ring of 4 MiB wraps",
        groups.len()
    );
    assert!(
        groups.iter().all(|posted| posted.write.own.bytes <= 8),
        "the head alone is copied for each"
    );
    assert!(groups.iter().all(|posted| {
        posted
            .write
            .immediate
            .is_none_or(|bytes| bytes as usize > GROUP_HEAD_BYTES)
    }));
    assert_eq!(allocated, 0, "allocations of the log's flusher");
    for running in running {
        assert_eq!(running.stop(), 0);
    }
    for taker in &takers {
        assert_eq!(words_of(&taker.log, Lsn(0)), words_of(&primary.log, Lsn(0)));
    }
    drop(takers);
    primary.shipper.stop();
    wait_until("all pairs are given back", || card.open() == 0);
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// How often a connection broke.
fn run(seed: u64) -> u64 {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let card = FakeCard::new();
    let around = around(RdmaNet::new(Arc::new(card.clone())));
    // Small enough that groups are read from the files, too.
    let primary = Arc::new(Primary::start(&SimDisk::new(), &around, 4 << 10));
    let logs = [(); 2].map(|()| standby(&SimDisk::new(), &around));
    let takers = [LogTaker::new(&logs[0]), LogTaker::new(&logs[1])];
    let running = [
        Running::start(&primary, &around, "s0", &takers[0]),
        Running::start(&primary, &around, "s1", &takers[1]),
    ];
    let mut end = Lsn(0);
    for word in 0..150 {
        if random.below(20) == 0 {
            let at = card.immediates() + random.below(8);
            card.fault(match random.below(4) {
                0 => CardFault::LoseReceived(at),
                1 => CardFault::SwapReceived(at),
                2 => CardFault::WrongKey(at),
                _ => CardFault::Unanswered(at),
            });
        }
        if random.below(15) == 0 {
            takers[0].room_bytes.store(random.below(3_000), Ordering::Relaxed);
        }
        end = append_with(&primary.log, &format!("w{word}"), random.below(900) as usize);
        if random.below(4) == 0 {
            thread::sleep(Duration::from_micros(random.below(4_000)));
        }
    }
    takers[0].room_bytes.store(1 << 20, Ordering::Relaxed);
    wait_until(&format!("seed {seed}: both have all of it"), || {
        logs.iter().all(|log| log.durable() >= end)
            && ["s0", "s1"].iter().all(|name| primary.status(name).persisted >= end)
    });
    let breaks = running.map(Running::stop).iter().sum();
    for log in &logs {
        assert_eq!(words_of(log, Lsn(0)), words_of(&primary.log, Lsn(0)), "seed {seed}");
    }
    primary.shipper.stop();
    wait_until(&format!("seed {seed}: all pairs are given back"), || card.open() == 0);
    breaks
}

#[test]
fn a_standby_gets_all_of_it_whatever_the_cards_do() {
    let breaks: u64 = (1..13).map(run).sum();
    assert!(breaks > 12, "{breaks}");
}

/// One that speaks TCP alone, one of another database, one of another format: told, and nothing stays.
#[test]
fn strangers_are_turned_away_and_leave_nothing() {
    let card = FakeCard::new();
    let around = around(RdmaNet::new(Arc::new(card.clone())));
    let primary = Primary::start(&SimDisk::new(), &around, 1 << 20);
    let log = standby(&SimDisk::new(), &around);
    let taker = LogTaker::new(&log);
    let ended = |database: [u8; 16], partitions: u16| -> LinkError {
        let link = primary.link(&around, "stranger");
        let streaming = Link::stream(&link, database, partitions, taker.clone());
        let ended = streaming.and_then(|mut streaming| streaming.run(&|| true));
        ended.expect_err("refused")
    };
    let error = ended(*b"another database", PARTITIONS);
    assert!(error.is_final() && error.to_string().contains("database"), "{error}");
    let error = ended(DATABASE, PARTITIONS + 1);
    assert!(error.is_final() && error.to_string().contains("partitions"), "{error}");
    let mut plain = primary.link(&around, "stranger");
    plain.net = Arc::new(RealNet);
    let over_tcp = Link::stream(&plain, DATABASE, PARTITIONS, taker.clone());
    let ended = over_tcp.and_then(|mut streaming| streaming.run(&|| true));
    assert!(
        ended.is_err_and(|error| !error.is_final()),
        "it may come to be the same transport"
    );
    wait_until("all pairs are given back", || card.open() == 0);
    assert!(
        primary
            .find("stranger")
            .is_none_or(|found| found.state == StandbyStage::Lost)
    );
}

/// Groups that a standby got and did not acknowledge are sent again. Nothing counts as acknowledged that is not on its disk.
#[test]
fn a_standby_that_is_gone_between_the_write_and_its_word_gets_it_again() {
    let card = FakeCard::new();
    let around = around(RdmaNet::new(Arc::new(card.clone())));
    let primary = Arc::new(Primary::start(&SimDisk::new(), &around, 1 << 20));
    let (disk, first) = (SimDisk::new(), append(&primary.log, "first"));
    let log = standby(&disk, &around);
    let taker = LogTaker::new(&log);
    let running = Running::start(&primary, &around, "s", &taker);
    wait_streaming(&primary, "s");
    wait_until("it has it", || primary.status("s").persisted >= first);
    taker.is_held.store(true, Ordering::Release);
    let second = append(&primary.log, "second");
    wait_until("it is in its memory", || primary.status("s").shipped >= second);
    let crash = disk.crash(&CrashPolicy::LoseAll);
    assert_eq!(primary.status("s").persisted, first, "it is not on its disk");
    assert_eq!(primary.shipper.acked(1).map(|mark| mark.get()), Some(first.0));
    taker.is_held.store(false, Ordering::Release);
    running.stop();
    drop((taker, log));
    let log = standby(&crash, &around);
    let taker = LogTaker::new(&log);
    let running = Running::start(&primary, &around, "s", &taker);
    wait_until("it has it again", || log.durable() >= second);
    running.stop();
    assert_eq!(words_of(&log, Lsn(0)), ["first", "second"]);
    primary.shipper.stop();
    wait_until("all pairs are given back", || card.open() == 0);
}
