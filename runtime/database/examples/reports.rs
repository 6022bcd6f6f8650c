//! How fresh a standby is under writes at a steady rate: without reports, with a long report all the time on its readers, and with the same report on
//! its engine threads, one after the other in this process. Prints a line for each.
//! Command: `cargo run --release -p reprise-database --example reports [SECONDS]`, behind `cargo xtask wasm`.

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/following/mod.rs"]
mod following;

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use common::{config, wasm};
use following::{Primary, bootstrap, follow_primary, service, serving, wait_streaming};
use reprise_abi::value::push_varint;
use reprise_database::{Database, ReadersConfig};
use reprise_router::{BatchBuilder, ReplyOutcome};

const REGISTERS: i64 = 2_000;
/// Writes of a batch, and how often there is one.
const WRITES: i64 = 20;
const EVERY: Duration = Duration::from_millis(10);
/// Rows that a report reads.
const REPORT_ROWS: i64 = 100_000;
const SAMPLE: Duration = Duration::from_millis(20);

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

/// Freshness and lag in ms, each 20 ms; and how many reports ran.
fn measure(dir: &Path, readers: Option<u16>, time: Duration) -> (Vec<f64>, Vec<f64>, usize) {
    let primary = Arc::new(Database::open(config(&dir.join("a"), 2)).expect("open"));
    primary.recover().expect("recover");
    primary
        .router()
        .deploy("registers", &wasm("registers"))
        .expect("deploy");
    primary.serve_standbys(serving("http://a:1")).expect("served");
    let of: Primary = Arc::new(Mutex::new(Some(primary.clone())));
    bootstrap(&primary, "b", &dir.join("b"));
    let standby = Arc::new(Database::open_standby(config(&dir.join("b"), 2)).expect("open"));
    standby.recover().expect("recover");
    let readers_config = ReadersConfig {
        threads: readers.unwrap_or(0),
        view_time_max: Duration::from_secs(60),
        view_bytes_max: 1 << 30,
    };
    standby.start_readers(&readers_config).expect("readers");
    standby.follow_primary(follow_primary(&of, "b")).expect("it follows");
    wait_streaming(&primary, "b");
    let (is_over, begun) = (AtomicBool::new(false), Instant::now());
    let mut samples = (Vec::new(), Vec::new());
    let reports = thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !is_over.load(Ordering::Acquire) {
                let calls: Vec<_> = (0..WRITES)
                    .map(|at| write((round * 31 + at * 97) % REGISTERS, round))
                    .collect();
                call(&primary, "write", &calls);
                round += 1;
                thread::sleep(EVERY);
            }
        });
        let reports = scope.spawn(|| {
            let (mut count, args) = (0, ids((0..REPORT_ROWS).map(|at| at % REGISTERS)));
            while readers.is_some() && !is_over.load(Ordering::Acquire) {
                call(&standby, "read", std::slice::from_ref(&args));
                count += 1;
            }
            count
        });
        while begun.elapsed() < time {
            thread::sleep(SAMPLE);
            if let Some(own) = service(&standby).own() {
                samples.0.push(own.freshness.unwrap_or(0.0));
                samples.1.push(own.lag_us as f64 / 1e3);
            }
        }
        is_over.store(true, Ordering::Release);
        reports.join().expect("reports")
    });
    (samples.0, samples.1, reports)
}

fn at(samples: &mut [f64], part: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples
        .get((samples.len() as f64 * part) as usize)
        .copied()
        .unwrap_or(f64::NAN)
}

fn main() {
    let seconds = std::env::args().nth(1).map_or(5, |text| text.parse().expect("seconds"));
    for (name, readers) in [
        ("no report", None),
        ("reports on readers", Some(1)),
        ("reports on engine threads", Some(0)),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut freshness, mut lag, reports) = measure(dir.path(), readers, Duration::from_secs(seconds));
        println!(
            "{name}: freshness median {:.4}, first percentile {:.4}; lag median {:.2} ms, 99th percentile {:.2} ms; {reports} reports",
            at(&mut freshness, 0.5),
            at(&mut freshness, 0.01),
            at(&mut lag, 0.5),
            at(&mut lag, 0.99),
        );
    }
}
