//! The time of an insertion into the log, by the number of threads (NV-Logging, figure 11). Also the time of a write to NVRAM by way and size (figure
//! 9).

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use reprise_base::{Epoch, Lsn, PartitionId, TxnId};
use reprise_env::{RealClock, RealDisk};
use reprise_log::{Log, LogConfig, LogError, NvramBufferConfig};
use reprise_nvram::{FlushPolicy, MapRegions, Memory, OpenMemory, Owner, Pmem, PmemOptions, Region};
use reprise_wire::{ChangesRef, PartitionSet, RecordBatch};

/// Sizes of the paper's figure 9, in bytes: log objects first, then what a group commit flushes.
pub const SIZES: [usize; 9] = [686, 1_956, 3_727, 6_298, 64_860, 136_243, 288_686, 465_500, 772_557];

/// Bytes of changes of the records that are inserted in turn: from 64 bytes to some KB, as OLTP leaves them.
const RECORDS: [usize; 6] = [64, 128, 256, 512, 1_024, 4_096];
const REGION_BYTES: u64 = 64 << 20;
/// Insertions of a thread until it lets the log's disk come up with it, and how long that may take.
const INSERTIONS: u32 = 500;
const ROOM_MAX: Duration = Duration::from_secs(30);

/// Ways to write to NVRAM.
pub const WAYS: [&str; 3] = ["memcpy", "mmap", "file-system"];

/// Mean microseconds of a write of `bytes` bytes, made durable, by its way; over `run` and at least 10 writes.
pub fn write_us(way: &str, nvram: &Path, bytes: usize, run: Duration) -> Result<f64> {
    let path = nvram.join("write");
    let payload = vec![7; bytes];
    let mut write: Box<dyn FnMut() -> Result<()>> = match way {
        "file-system" => {
            let file = File::options().create(true).truncate(true).write(true).open(&path)?;
            Box::new(move || {
                file.write_all_at(&payload, 0)?;
                Ok(file.sync_data()?)
            })
        }
        way => {
            let memory = Pmem::open(&PmemOptions {
                path: path.clone(),
                bytes: Some(1 << 20),
                assume_persistent: way == "memcpy",
            })?;
            Box::new(move || {
                memory.write(0, &payload);
                memory.drain();
                Ok(())
            })
        }
    };
    for _ in 0..10 {
        write()?;
    }
    let (began, mut writes) = (Instant::now(), 0);
    while writes < 10 || began.elapsed() < run {
        write()?;
        writes += 1;
    }
    let took = began.elapsed();
    drop(write);
    std::fs::remove_file(&path)?;
    Ok(took.as_secs_f64() * 1e6 / f64::from(writes))
}

fn log(dir: &Path) -> Result<Log<()>> {
    std::fs::create_dir_all(dir)?;
    let disk = Arc::new(RealDisk::create(dir)?);
    let on_durable = Box::new(|_: Lsn, _: Result<(), &LogError>, (): ()| {});
    let opened = Log::open(disk, Arc::new(RealClock::new()), LogConfig::new([7; 16]), on_durable);
    Ok(opened?.0)
}

fn record(number: u64, changes: &[u8]) -> RecordBatch {
    let mut batch = RecordBatch::default();
    batch.push_changes(&ChangesRef {
        module_id: 1,
        digest: number,
        ..ChangesRef::new(TxnId::new(number + 1, 0), PartitionSet::One(PartitionId(0)), changes)
    });
    batch
}

/// Returns deletions of at least `bytes` bytes.
fn changes(bytes: usize) -> Vec<u8> {
    let mut changes = Vec::new();
    while changes.len() < bytes {
        let number = u64::MAX;
        reprise_wire::Change::Delete { table: 1, number }.encode(&mut changes);
    }
    changes
}

/// Mean microseconds of an insertion, with `threads` threads that only insert. With NV-Disk they insert into the one buffer of a log whose files lie
/// on the NVRAM. Records are durable there later. With NV-Logging each inserts into a ring of its own, where records are durable at once.
pub fn insertion_us(nv_logging: bool, nvram: &Path, threads: u16, run: Duration) -> Result<f64> {
    let dir = nvram.join("insertion");
    let log = log(&dir.join("log"))?;
    if nv_logging {
        let regions = MapRegions {
            assume_persistent: true,
        };
        let memory = regions.open(&dir.join("region"), Some(REGION_BYTES))?;
        let begins = (Epoch::new(1, 0), log.filled());
        let region = Region::format(memory, Owner::default(), threads.into(), 10_000, begins)?;
        let front = NvramBufferConfig {
            copy_at_entries: 80_000,
            flush: FlushPolicy::OnCommit,
        };
        log.attach_nvram(region, front)?;
    }
    let records: Vec<_> = (0..)
        .zip(RECORDS)
        .map(|(number, bytes)| record(number, &changes(bytes)))
        .collect();
    let barrier = Barrier::new(threads.into());
    let measured = thread::scope(|scope| {
        let inserting: Vec<_> = (0..threads)
            .map(|site| {
                let (log, records, barrier) = (&log, &records, &barrier);
                let mut own = log.nvram_appender(site.into());
                let shared = own.is_none().then(|| log.appender());
                scope.spawn(move || {
                    barrier.wait();
                    let (began, mut count, mut inside) = (Instant::now(), 0_u32, Duration::ZERO);
                    for record in records.iter().cycle() {
                        if began.elapsed() >= run {
                            break;
                        }
                        let begins = Instant::now();
                        match (&mut own, &shared) {
                            (Some(own), _) => own.append(record).map(drop)?,
                            (None, Some(shared)) => {
                                shared.append(record, None).map(drop).map_err(|(error, _)| error)?
                            }
                            (None, None) => unreachable!("a thread inserts here or there"),
                        }
                        inside += begins.elapsed();
                        count += 1;
                        // Apart: no insertion is to wait for room.
                        if count.is_multiple_of(INSERTIONS) {
                            log.wait_copied(log.filled(), ROOM_MAX)?;
                        }
                    }
                    Ok::<_, LogError>(inside.as_secs_f64() * 1e6 / f64::from(count.max(1)))
                })
            })
            .collect();
        let ended = inserting.into_iter().map(|thread| {
            thread
                .join()
                .map_err(|_| anyhow!("a thread panicked"))?
                .map_err(Into::into)
        });
        ended.collect::<Result<Vec<f64>>>()
    });
    log.close()?;
    drop(log);
    std::fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
    let measured = measured?;
    Ok(measured.iter().sum::<f64>() / measured.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_writes_and_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        for way in WAYS {
            let us = write_us(way, dir.path(), 700, Duration::ZERO).expect("written");
            assert!(us > 0.0, "{way}: {us}");
        }
        for nv_logging in [false, true] {
            let us = insertion_us(nv_logging, dir.path(), 2, Duration::from_millis(20)).expect("inserted");
            assert!(us > 0.0, "{us}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).expect("a folder").count(), 0);
    }
}
