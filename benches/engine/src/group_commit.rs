//! Group commit on a real directory: `group-commit [DIR [SECONDS]]`, with the seconds for each figure.
//!
//! Measures commit latency (from append to answer) at several numbers of commits on their way, and bytes per second with large appends. Also measures
//! the cost of encoding and appending a record on the engine's side. The commits of a run belong to one thread, as they do to an engine thread: it
//! appends each again after its answer. A second run has a thread for each committer, whose wake-ups are then part of the figure.

use std::{
    error::Error,
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use reprise_base::{Lsn, PartitionId, TxnId};
use reprise_env::{RealClock, RealDisk};
use reprise_log::{Log, LogConfig};
use reprise_observe::LatencyHistogram;
use reprise_wire::{CommandRef, PartitionSet, RecordBatch, RecordRef};

use crate::Args;

/// The number of a commit on its way, and the channel for its answer.
type Waiter = (usize, Sender<(usize, Result<Lsn, String>)>);

fn open<P: Send + 'static>(
    directory: &Path,
    delay_us: u64,
    on_done: impl Fn(Result<Lsn, String>, P) + Send + Sync + 'static,
) -> Result<Log<P>, Box<dyn Error>> {
    let _ = std::fs::remove_dir_all(directory);
    let disk = Arc::new(RealDisk::create(directory)?);
    let mut config = LogConfig::new([7; 16]);
    config.group_commit_delay = Duration::from_micros(delay_us);
    let complete = Box::new(
        move |end: Lsn, outcome: Result<(), &reprise_log::LogError>, waiting: P| {
            on_done(outcome.map(|()| end).map_err(ToString::to_string), waiting)
        },
    );
    Ok(Log::open(disk, Arc::new(RealClock::new()), config, complete)?.0)
}

fn command(number: u64, args: &[u8]) -> CommandRef<'_> {
    CommandRef {
        module_id: 1,
        procedure: 2,
        digest: number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        ..CommandRef::new(TxnId::new(number, 0), PartitionSet::One(PartitionId(0)), args)
    }
}

/// Keeps `count` commits on their way until the time is over.
fn commit_in_turn(log: &Log<Waiter>, histogram: &LatencyHistogram, count: usize, run: Duration) {
    let appender = log.appender();
    let record = RecordBatch::of(&RecordRef::Command(command(1, &[5; 20])));
    let (sender, receiver) = channel();
    let append = |commit: usize| {
        let waiter = (commit, sender.clone());
        appender.append(&record, Some(waiter)).map_err(|e| e.0).expect("append");
    };
    let until = Instant::now() + run;
    let mut began = vec![Instant::now(); count];
    (0..count).for_each(append);
    let mut on_their_way = count;
    while on_their_way > 0 {
        let (commit, outcome) = receiver.recv().expect("told");
        outcome.expect("durable");
        let now = Instant::now();
        histogram.record_shared((now - began[commit]).as_nanos() as u64, 1);
        on_their_way -= 1;
        if now < until {
            began[commit] = now;
            append(commit);
            on_their_way += 1;
        }
    }
}

fn latency(
    directory: &Path,
    threads: usize,
    commits: usize,
    delay_us: u64,
    run: Duration,
) -> Result<(), Box<dyn Error>> {
    let log = open(directory, delay_us, |outcome, (commit, teller): Waiter| {
        // A committer that is gone needs no answer.
        let _ = teller.send((commit, outcome));
    })?;
    let histogram = LatencyHistogram::default();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| commit_in_turn(&log, &histogram, commits / threads, run));
        }
    });
    let (summary, stats) = (histogram.summary(), log.stats());
    println!(
        "{commits:3} commits on their way, {threads:2} threads, delay {delay_us:3} us: p50 {:5.0} us, p99 {:5.0} us, {:7.0} commits/s, {:5.0} writes/s, write p50 {:.0} us",
        summary.p50_ns as f64 / 1e3,
        summary.p99_ns as f64 / 1e3,
        summary.count as f64 / run.as_secs_f64(),
        stats.flushes.get() as f64 / run.as_secs_f64(),
        stats.write.summary().p50_ns as f64 / 1e3,
    );
    log.close()?;
    Ok(())
}

fn throughput(directory: &Path, record_bytes: usize, run: Duration) -> Result<(), Box<dyn Error>> {
    let log = open(directory, 0, |_, _: ()| {})?;
    let appender = log.appender();
    let args = vec![5; record_bytes];
    let record = RecordBatch::of(&RecordRef::Command(command(1, &args)));
    let began = Instant::now();
    let (mut bytes, mut end) = (0, Lsn(0));
    while began.elapsed() < run {
        let start = appender.append(&record, None).map_err(|e| e.0)?;
        end = Lsn(start.0 + 1);
        bytes += record.bytes().len();
    }
    assert!(log.wait_durable(end, Duration::from_secs(10)));
    let megabytes = bytes as f64 / 1e6 / began.elapsed().as_secs_f64();
    println!("appends of {record_bytes} bytes, one thread: {megabytes:.0} MB/s durable");
    log.close()?;
    Ok(())
}

/// Nanoseconds per record on the engine thread, never held up by the disk: it waits outside of the measured time.
fn append_cost(directory: &Path, args: usize, batch: u64) -> Result<(), Box<dyn Error>> {
    const RECORDS: u64 = 2_000_000;
    let log = open(directory, 0, |_, _: ()| {})?;
    let appender = log.appender();
    let (args, mut records) = (vec![5; args], RecordBatch::default());
    let mut encode_only = Duration::ZERO;
    let mut both = Duration::ZERO;
    let turns = RECORDS / batch;
    let turns_per_burst = (1 << 20) / (batch * (args.len() as u64 + 22));
    for first in (0..turns).step_by(turns_per_burst as usize) {
        let burst = first..(first + turns_per_burst).min(turns);
        let began = Instant::now();
        for turn in burst.clone() {
            encode_batch(&mut records, turn * batch, batch, &args);
        }
        encode_only += began.elapsed();
        let began = Instant::now();
        let mut end = Lsn(0);
        for turn in burst {
            encode_batch(&mut records, turn * batch, batch, &args);
            end = appender.append(&records, None).map_err(|e| e.0)?;
        }
        both += began.elapsed();
        assert!(log.wait_durable(Lsn(end.0 + batch), Duration::from_secs(10)));
    }
    println!(
        "records with {} bytes of arguments ({} in the log), {batch:3} per append: encode {:4.1} ns, encode + append {:4.1} ns per record",
        args.len(),
        records.bytes().len() as u64 / batch,
        encode_only.as_nanos() as f64 / RECORDS as f64,
        both.as_nanos() as f64 / RECORDS as f64,
    );
    log.close()?;
    Ok(())
}

fn encode_batch(records: &mut RecordBatch, first: u64, count: u64, args: &[u8]) {
    records.clear();
    for number in first..first + count {
        records.push_command(&command(number, args));
    }
}

pub fn run(mut args: Args) -> Result<(), Box<dyn Error>> {
    let root = args.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let seconds = args.next().map(|text| text.parse());
    let run = Duration::from_secs_f64(seconds.transpose()?.unwrap_or(3.0));
    let directory = root.join(format!("reprise-group-commit-{}", std::process::id()));
    for (threads, commits) in [(1, 1), (1, 8), (1, 64), (8, 8), (64, 64)] {
        latency(&directory, threads, commits, 0, run)?;
    }
    latency(&directory, 1, 64, 100, run)?;
    for record_bytes in [1_000, 100_000, 1_000_000] {
        throughput(&directory, record_bytes, run)?;
    }
    for (args, batch) in [(20, 1), (20, 32), (20, 256), (150, 32)] {
        append_cost(&directory, args, batch)?;
    }
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}
