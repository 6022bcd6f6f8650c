//! Reads on a standby: writes at a steady rate, and beside them no reads, short ones, or a long report all the time. The ways take turns in this
//! process. `reports [SECONDS [WRITES-A-BATCH [WAY]]]`, behind `cargo xtask wasm`.
//!
//! Prints a line for each way: freshness and lag, and the standby's processor time a write. Also the number of reads, how long they took, and the
//! memory of an idle reader.

use std::{
    collections::BTreeMap,
    error::Error,
    fs::{self, DirEntry},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use reprise_abi::value::push_varint;
use reprise_backup::DirHandle;
use reprise_database::{
    BatchLimits, CheckpointConfig, CommitMode, Database, DatabaseConfig, DeviceConfig, FollowPrimary, LogPolicy,
    ReadersConfig, RedoConfig, ServeStandbys, ShipForm, TicketError, keep_committed,
};
use reprise_env::{RealClock, RealNet, RealThreads};
use reprise_router::{BatchBuilder, ReplicationService, ReplyOutcome, StandbyPhase};
use reprise_ship::{Link, LinkConfig, LogBeside};

use crate::Args;

const REGISTERS: i64 = 2_000;
/// Writes of a batch, and how often there is one.
const WRITES: i64 = 20;
const EVERY: Duration = Duration::from_millis(10);
/// Rows that a report reads.
const REPORT_ROWS: i64 = 100_000;
const PAUSE: Duration = Duration::from_millis(1);
/// Name of the threads that have no name of their own.
const PROGRAM: &str = "reprise-bench-e";
const SAMPLE: Duration = Duration::from_millis(20);
/// Idle readers whose memory is measured.
const IDLE: u16 = 64;

fn wasm() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/procedures/registers.wasm");
    fs::read(&path).unwrap_or_else(|error| panic!("read {}: {error}; `cargo xtask wasm` builds it", path.display()))
}

fn config(dir: &Path) -> DatabaseConfig {
    DatabaseConfig {
        dir: Some(dir.into()),
        partitions: 4,
        sites: 2,
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

fn service(database: &Database) -> Arc<dyn ReplicationService> {
    database.router().replication().expect("it is served")
}

fn primary(dir: &Path) -> Arc<Database> {
    let primary = Arc::new(Database::open(config(dir)).expect("open"));
    primary.recover().expect("recover");
    let serving = ServeStandbys {
        name: "a".into(),
        net: Arc::new(RealNet),
        listen: "127.0.0.1:0".into(),
        ship_address: None,
        url: Some("http://a:1".into()),
        hold_bytes_max: 1 << 30,
        compare_every: Duration::ZERO,
        ship: ShipForm::AsLogged,
        has_lease: false,
    };
    primary.serve_standbys(serving).expect("served");
    primary
}

/// A standby `b` of the primary, which is not recovered and does not follow yet.
fn standby(primary: &Database, dir: &Path) -> Arc<Database> {
    let ticket = service(primary).join(&"b".into()).expect("a ticket");
    let link = LinkConfig {
        net: Arc::new(RealNet),
        clock: Arc::new(RealClock::new()),
        address: ticket.ship_address,
        certificate: None,
        ticket: ticket.ticket,
        name: "b".into(),
        connect_time: Duration::from_secs(5),
    };
    let beside = LogBeside {
        threads: Arc::new(RealThreads),
        keep_committed,
    };
    let place = DirHandle::beside(dir).expect("a name");
    let coming = Link::bootstrap(&link, &place, beside).expect("connect");
    coming.run(&|| true).expect("no error").expect("whole");
    Arc::new(Database::open_standby(config(dir)).expect("open"))
}

fn readers_config(threads: u16) -> ReadersConfig {
    ReadersConfig {
        threads,
        view_time_max: Duration::from_secs(60),
        view_fuel_max: 100_000_000,
        view_bytes_max: 1 << 30,
    }
}

fn follow(primary: &Arc<Database>, standby: &Arc<Database>) {
    let of = primary.clone();
    let following = FollowPrimary {
        net: Arc::new(RealNet),
        name: "b".into(),
        primary: Some("http://a:1".into()),
        ticket: Box::new(move || {
            service(&of).join(&"b".into()).map_err(|error| TicketError {
                reason: error.to_string().into(),
                is_final: true,
            })
        }),
        step_down: Arc::new(|| Err("no primary steps down here".into())),
        ask_peers: Arc::new(|_, _| Vec::new()),
    };
    standby.follow_primary(following).expect("it follows");
    let is_streaming = || {
        let all = service(primary).info().standbys;
        all.iter().any(|standby| standby.state == StandbyPhase::Streaming)
    };
    while !is_streaming() {
        thread::sleep(Duration::from_millis(2));
    }
}

fn call(database: &Database, procedure: &str, calls: &[Vec<u8>]) {
    let router = database.router();
    let deployed = router.deployed();
    let mut batch = BatchBuilder::new(deployed.clone(), router);
    let module = &deployed.current["registers"];
    let (number, _) = module.procedure(procedure).expect("a procedure");
    for args in calls {
        let encode = |out: &mut Vec<u8>| {
            out.extend_from_slice(args);
            Ok::<(), ()>(())
        };
        batch.push(module, number, None, encode).expect("encoded");
    }
    let (sender, receiver) = mpsc::channel();
    router.submit(
        batch,
        Box::new(move |reply| sender.send(reply).expect("it is waited for")),
    );
    let reply = receiver.recv().expect("a reply");
    for at in 0..calls.len() {
        assert_eq!(*reply.get(at).outcome, ReplyOutcome::Committed);
    }
}

fn ids(of: impl Iterator<Item = i64>) -> Vec<u8> {
    let of: Vec<_> = of.collect();
    let mut args = Vec::new();
    push_varint(&mut args, of.len() as u32);
    of.iter().for_each(|id| args.extend_from_slice(&id.to_le_bytes()));
    args
}

fn write(id: i64, value: i64) -> Vec<u8> {
    let mut args = ids(std::iter::once(id));
    args.extend_from_slice(&[1, 1]);
    args.extend_from_slice(&value.to_le_bytes());
    args.push(0);
    args
}

/// The reads beside the writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    None,
    /// One row a call, one call at a time, with a pause behind each.
    Paced,
    /// One row a call without pauses.
    Short,
    Report,
}

/// The findings of one way.
#[derive(Default)]
struct Found {
    freshness: Vec<f64>,
    lag_ms: Vec<f64>,
    writes: i64,
    /// Processor time of the standby's threads without its readers.
    standby_ns: u64,
    readers_ns: u64,
    /// The time of each read, in us.
    reads_us: Vec<f64>,
}

/// Processor time of each thread of this process, with its name.
fn threads() -> BTreeMap<String, (String, u64)> {
    let read = |thread: &DirEntry, name: &str| fs::read_to_string(thread.path().join(name)).ok();
    let tasks = fs::read_dir("/proc/self/task").expect("this system tells of threads");
    let ran = tasks.flatten().filter_map(|thread| {
        let ns = read(&thread, "schedstat")?
            .split_ascii_whitespace()
            .next()?
            .parse()
            .ok()?;
        let id = thread.file_name().to_string_lossy().into_owned();
        Some((id, (read(&thread, "comm")?.trim().to_owned(), ns)))
    });
    ran.collect()
}

fn resident_kib() -> f64 {
    let status = fs::read_to_string("/proc/self/status").expect("this system tells of memory");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_ascii_whitespace().nth(1)?.parse().ok());
    kib.expect("a number of KiB")
}

fn write_until(primary: &Database, writes: i64, is_over: &AtomicBool) -> i64 {
    let mut round = 0;
    while !is_over.load(Ordering::Acquire) {
        let calls: Vec<_> = (0..writes)
            .map(|at| write((round * 31 + at * 97) % REGISTERS, round))
            .collect();
        call(primary, "write", &calls);
        round += 1;
        thread::sleep(EVERY);
    }
    round * writes
}

fn read_until(standby: &Database, reads: Reads, is_over: &AtomicBool) -> Vec<f64> {
    let mut took = Vec::new();
    let report = ids((0..REPORT_ROWS).map(|at| at % REGISTERS));
    while reads != Reads::None && !is_over.load(Ordering::Acquire) {
        let args = match reads {
            Reads::Report => report.clone(),
            _ => ids(std::iter::once(took.len() as i64 * 7 % REGISTERS)),
        };
        let begun = Instant::now();
        call(standby, "read", std::slice::from_ref(&args));
        took.push(begun.elapsed().as_secs_f64() * 1e6);
        if reads == Reads::Paced {
            thread::sleep(PAUSE);
        }
    }
    took
}

fn measure(dir: &Path, reads: Reads, (time, writes): (Duration, i64)) -> Found {
    let primary = primary(&dir.join("a"));
    primary.router().deploy("registers", &wasm()).expect("deploy");
    let others = threads();
    let standby = standby(&primary, &dir.join("b"));
    standby.set_readers(readers_config(1));
    standby.recover().expect("recover");
    follow(&primary, &standby);
    let before = threads();
    let (is_over, begun, mut found) = (AtomicBool::new(false), Instant::now(), Found::default());
    thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(&primary, writes, &is_over));
        let reader = scope.spawn(|| read_until(&standby, reads, &is_over));
        while begun.elapsed() < time {
            thread::sleep(SAMPLE);
            if let Some(own) = service(&standby).own() {
                found.freshness.push(own.freshness.unwrap_or(0.0));
                found.lag_ms.push(own.lag_us as f64 / 1e3);
            }
        }
        let ran = threads().into_iter().filter(|(id, _)| !others.contains_key(id));
        for (id, (name, ns)) in ran {
            let of = match &*name {
                name if name.starts_with("reader") => &mut found.readers_ns,
                // The primary's end of the connection, and this program's own.
                name if name.starts_with("ship") || name.starts_with("net-") || name == PROGRAM => continue,
                _ => &mut found.standby_ns,
            };
            *of += ns.saturating_sub(before.get(&id).map_or(0, |(_, ns)| *ns));
        }
        is_over.store(true, Ordering::Release);
        found.writes = writer.join().expect("writes");
        found.reads_us = reader.join().expect("reads");
    });
    found
}

fn at(samples: &mut [f64], part: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples
        .get((samples.len() as f64 * part) as usize)
        .copied()
        .unwrap_or(f64::NAN)
}

/// KiB that the recovery of an empty standby takes, with its idle readers.
fn recovered_kib(readers: u16) -> f64 {
    let dir = tempfile::tempdir().expect("a directory");
    let primary = primary(&dir.path().join("a"));
    let standby = standby(&primary, &dir.path().join("b"));
    standby.set_readers(readers_config(readers));
    let before = resident_kib();
    standby.recover().expect("recover");
    thread::sleep(Duration::from_millis(200));
    resident_kib() - before
}

pub fn run(mut args: Args) -> Result<(), Box<dyn Error>> {
    let seconds = args.next().map_or(Ok(5), |text| text.parse())?;
    let writes = args.next().map_or(Ok(WRITES), |text| text.parse())?;
    let way = args.next().unwrap_or_default();
    for (name, reads) in [
        ("no reads", Reads::None),
        ("1,000 short reads/s", Reads::Paced),
        ("short reads", Reads::Short),
        ("reports", Reads::Report),
    ] {
        if !name.contains(way.as_str()) {
            continue;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let mut found = measure(dir.path(), reads, (Duration::from_secs(seconds), writes));
        println!(
            "{name}: freshness median {:.4}, first percentile {:.4}; lag median {:.2} ms, p99 {:.2} ms; {:.0} writes/s, each {:.2} us of the standby; \
             {:.0} reads/s, median {:.0} us, p99 {:.0} us, {:.1} us of readers a read",
            at(&mut found.freshness, 0.5),
            at(&mut found.freshness, 0.01),
            at(&mut found.lag_ms, 0.5),
            at(&mut found.lag_ms, 0.99),
            found.writes as f64 / seconds as f64,
            found.standby_ns as f64 / 1e3 / found.writes as f64,
            found.reads_us.len() as f64 / seconds as f64,
            at(&mut found.reads_us, 0.5),
            at(&mut found.reads_us, 0.99),
            found.readers_ns as f64 / 1e3 / found.reads_us.len() as f64,
        );
    }
    let [few, many] = [1, 1 + IDLE].map(recovered_kib);
    println!("an idle reader: {:.0} KiB", (many - few) / f64::from(IDLE));
    Ok(())
}
