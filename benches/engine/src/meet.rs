//! The cost of meetings. Clients of two sites each send single calls and now and then a job over both partitions. All of them burn instructions in
//! place of work. Prints how much more is done than by one thread that does the same work alone.
//! `meet [SINGLES [CLIENTS [SECONDS]]]`: single calls a job (8), clients a partition (20), seconds (1).

use std::{
    error::Error,
    hint::black_box,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam_channel::Sender;
use reprise_base::{MemoryLedger, PartitionId, SiteId};
use reprise_env::{RealClock, RealThreads};
use reprise_observe::{RecentLines, Registry};
use reprise_partition::{
    CallBatch, Coordinator, ExecContext, LogSettings, MultiPartitionTxn, NoLog, Shared, Site, SiteMessage, Stream,
    TxnPartitions,
};
use reprise_txn::ModuleId;

use crate::Args;

/// Rounds of `burn` that take a microsecond or so.
const ROUNDS_A_US: u64 = 700;
const CALL_US: u64 = 6;
const JOB_US: u64 = 9;
/// Pairs of a batch of single calls and a job that a client sends at once.
const PAIRS: u64 = 14;

fn burn(us: u64) {
    let mut x = 1u64;
    for round in 0..us * ROUNDS_A_US {
        x = black_box(x.wrapping_mul(6_364_136_223_846_793_005) ^ round);
    }
}

struct World {
    shared: Arc<Shared>,
    inboxes: Vec<Sender<SiteMessage>>,
    order: Mutex<()>,
    singles: u64,
    work_us: AtomicU64,
    is_over: AtomicBool,
}

impl World {
    fn send_client(self: &Arc<Self>, client: u64) {
        let (stream, home) = (Stream(client), (client % 2) as u16);
        for pair in 0..PAIRS {
            let mut batch = CallBatch::new(Some(PartitionId(home)));
            batch.stream = Some(stream);
            batch.push(ModuleId(0), 0, &[], None);
            let world = self.clone();
            batch.done = Some(Box::new(move |_| world.work(world.singles * CALL_US)));
            self.send(home as usize, SiteMessage::Batch(Box::new(batch)));
            let world = self.clone();
            let job = Box::new(move |_: &mut reprise_partition::ExclusivePartitions<'_>| {
                world.work(JOB_US);
                if pair + 1 == PAIRS && !world.is_over.load(Ordering::Relaxed) {
                    world.send_client(client);
                }
            });
            let sent_ns = self.shared.clock.monotonic_ns();
            let gathering = MultiPartitionTxn::in_stream(TxnPartitions::All, 2, stream, sent_ns, job);
            let gathering = Arc::new(gathering);
            let _order = self.order.lock().expect("held for sends");
            (0..2).for_each(|site| self.send(site, SiteMessage::Multi(gathering.clone())));
        }
    }

    fn work(&self, us: u64) {
        burn(us);
        self.work_us.fetch_add(us, Ordering::Relaxed);
    }

    fn send(&self, site: usize, message: SiteMessage) {
        let _ = self.inboxes[site].send(message); // the end may have come
    }
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared {
        deployed: Default::default(),
        generation: AtomicU64::new(0),
        memory: MemoryLedger::unlimited(),
        clock: Arc::new(RealClock::new()),
        threads: Arc::new(RealThreads),
        secret: [1, 2],
        partitions_count: 2,
        sites_count: 2,
        waiting: (0..2).map(|_| AtomicUsize::new(1 << 40)).collect(),
        waiting_max: usize::MAX,
        multi_tick: AtomicU64::new(0),
        replay_failed: Default::default(),
        copying: AtomicUsize::new(0),
        binaries: Mutex::default(),
        records_max: AtomicUsize::new(usize::MAX),
        lines: Arc::new(RecentLines::new()),
        notices: Default::default(),
        logging: LogSettings::default(),
        calls: Arc::default(),
        gate: Arc::default(),
        coordinator: Coordinator::new(2, 2),
        published: reprise_partition::PublishedStats::new(2, 2),
        underway: Default::default(),
        key_clock: reprise_partition::KeyClock::new(Arc::new(RealClock::new())),
        principals: Default::default(),
    })
}

pub fn run(args: Args) -> Result<(), Box<dyn Error>> {
    let mut arguments = args.map(|text| text.parse::<u64>().expect("a number"));
    let (singles, clients) = (arguments.next().unwrap_or(8), arguments.next().unwrap_or(20));
    let length = Duration::from_secs(arguments.next().unwrap_or(1));
    let begun = Instant::now();
    burn(100_000);
    let alone_ns = begun.elapsed().as_nanos() as f64 / 100_000.0;
    let shared = shared();
    let (inboxes, receivers): (Vec<_>, Vec<_>) = (0..2).map(|_| crossbeam_channel::unbounded::<SiteMessage>()).unzip();
    let threads = receivers.into_iter().enumerate().map(|(id, inbox)| {
        let shared = shared.clone();
        std::thread::spawn(move || {
            let tools = ExecContext::new(shared, Box::new(NoLog), Registry::new().recorder());
            Site::new(SiteId(id as u16), tools, inbox).run();
        })
    });
    let threads: Vec<_> = threads.collect();
    let world = Arc::new(World {
        shared: shared.clone(),
        inboxes,
        order: Mutex::new(()),
        singles,
        work_us: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    });
    (0..2 * clients).for_each(|client| world.send_client(client));
    let begun = Instant::now();
    std::thread::sleep(length);
    let (work_us, elapsed) = (world.work_us.load(Ordering::Relaxed), begun.elapsed());
    world.is_over.store(true, Ordering::Relaxed);
    let ratio = work_us as f64 * alone_ns / elapsed.as_nanos() as f64;
    let stats = shared.coordinator.stats();
    println!(
        "{ratio:.2} x one thread; {:.1} txns a rendezvous; {stats:?}",
        stats.txns as f64 / stats.rendezvous as f64
    );
    (0..2).for_each(|site| world.send(site, SiteMessage::Stop));
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("no site panics"));
    Ok(())
}
