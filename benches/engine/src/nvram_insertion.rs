//! The cost of an insertion into the NVRAM buffer for its thread, by the number of sites that insert at once (NV-Logging, figure 11).
//! `nvram-insertion [DIR]`: the region and the files lie in `DIR`, or in `/dev/shm`, which is taken for persistent memory.
//!
//! Processor time of the inserting threads alone. With more sites than cores they take turns, and a waiting thread costs nothing. The counts are
//! measured in turn. The output has the medians of the turns, also as ratios to one site.

use std::{
    error::Error,
    path::{Path, PathBuf},
    sync::{Arc, Barrier},
    thread,
    time::Duration,
};

use reprise_base::{Lsn, PartitionId, TxnId};
use reprise_env::{Clock, RealClock, RealDisk};
use reprise_log::{Log, LogConfig, NvramBufferConfig};
use reprise_nvram::{FlushPolicy, Memory, Owner, Pmem, PmemOptions, Region};
use reprise_wire::{CommandRef, PartitionSet, RecordBatch, RecordRef};

use crate::Args;

const SITES: [usize; 4] = [1, 2, 4, 8];
const TURNS: usize = 15;
/// By each site in a turn; its ring takes them without a copy.
const INSERTIONS: u64 = 10_000;
const REGION_BYTES: u64 = 128 << 20;
const COPY_MAX: Duration = Duration::from_secs(120);

pub fn run(mut args: Args) -> Result<(), Box<dyn Error>> {
    let given = args.next().map(PathBuf::from);
    let own = || format!("/dev/shm/reprise-insertion-{}", std::process::id()).into();
    let dir: PathBuf = given.unwrap_or_else(own);
    let mut found = SITES.map(|_| Vec::new());
    for _ in 0..TURNS {
        for (sites, found) in SITES.into_iter().zip(&mut found) {
            found.push(measure(&dir, sites)?);
        }
    }
    let medians = found.map(|mut found| {
        found.sort_by(f64::total_cmp);
        found[TURNS / 2]
    });
    for (sites, median) in SITES.into_iter().zip(medians) {
        println!(
            "{sites} sites: {median:6.0} ns of processor time an insertion, {:.2} x",
            median / medians[0]
        );
    }
    std::fs::remove_dir_all(dir)?;
    Ok(())
}

/// Nanoseconds of processor time an insertion.
fn measure(dir: &Path, sites: usize) -> Result<f64, Box<dyn Error>> {
    let _ = std::fs::remove_dir_all(dir);
    let disk = Arc::new(RealDisk::create(dir.join("log"))?);
    let no_callback = Box::new(|_: Lsn, _: Result<(), &reprise_log::LogError>, (): ()| {});
    let (log, _) = Log::open(disk, Arc::new(RealClock::new()), LogConfig::new([7; 16]), no_callback)?;
    let options = PmemOptions {
        path: dir.join("region"),
        bytes: Some(REGION_BYTES),
        assume_persistent: true,
    };
    let memory: Arc<dyn Memory> = Arc::new(Pmem::open(&options)?);
    let begins = (log.epoch(), log.filled());
    let region = Region::format(memory, Owner::default(), sites as u32, 2 * INSERTIONS as u32, begins)?;
    let front = NvramBufferConfig {
        copy_at_entries: u64::MAX,
        flush: FlushPolicy::OnCommit,
    };
    log.attach_nvram(region, front)?;
    let record = RecordBatch::of(&RecordRef::Command(CommandRef {
        module_id: 1,
        procedure: 2,
        digest: 3,
        ..CommandRef::new(TxnId::new(1, 0), PartitionSet::One(PartitionId(0)), &[5; 60])
    }));
    let barrier = Barrier::new(sites);
    let total_ns = thread::scope(|scope| {
        let inserting = (0..sites).map(|site| {
            let mut own = log.nvram_appender(site).expect("each site takes its own");
            let (barrier, record) = (&barrier, &record);
            scope.spawn(move || {
                let clock = RealClock::new();
                barrier.wait();
                let began_ns = clock.thread_processor_ns();
                for _ in 0..INSERTIONS {
                    own.append(record).expect("there is room");
                }
                clock.thread_processor_ns() - began_ns
            })
        });
        let inserting: Vec<_> = inserting.collect();
        inserting
            .into_iter()
            .map(|site| site.join().expect("no panic"))
            .sum::<u64>()
    });
    log.wait_copied(log.filled(), COPY_MAX)?;
    log.close()?;
    Ok(total_ns as f64 / (sites as u64 * INSERTIONS) as f64)
}
