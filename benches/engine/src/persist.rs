//! The cost of a commit in the ring. As the sink of an engine thread writes it, the records of a batch are one object with one entry.
//! `persist [PATH]`. Without a path a file in memory (`/dev/shm`) is taken to be persistent.

use std::{error::Error, path::PathBuf, sync::Arc, time::Instant};

use reprise_base::{Epoch, Lsn};
use reprise_nvram::{FlushPolicy, Memory, Owner, Pmem, PmemOptions, Region, RingReader, RingWriter};

use crate::Args;

const COMMITS: u64 = 200_000;

pub fn run(mut args: Args) -> Result<(), Box<dyn Error>> {
    let given = args.next().map(PathBuf::from);
    let path = given
        .clone()
        .unwrap_or_else(|| format!("/dev/shm/reprise-persist-{}", std::process::id()).into());
    let options = PmemOptions {
        path: path.clone(),
        bytes: Some(64 << 20),
        assume_persistent: true,
    };
    let memory: Arc<dyn Memory> = Arc::new(Pmem::open(&options)?);
    for bytes in [60, 200, 1_000] {
        for together in [1, 16] {
            let region = Region::format(memory.clone(), Owner::default(), 1, 80_000, (Epoch::new(1, 0), Lsn(0)))?;
            let (mut writer, mut reader) = region.rings(FlushPolicy::OnCommit).remove(0);
            let mut times = measure(&mut writer, &mut reader, bytes, together)?;
            times.sort_unstable();
            let at = |percent: usize| times[times.len() * percent / 100] / together;
            println!(
                "{bytes:5} bytes, {together:2} a batch: p50 {:4} ns, p99 {:4} ns a record",
                at(50),
                at(99)
            );
        }
    }
    if given.is_none() {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// Nanoseconds of each batch.
fn measure(
    writer: &mut RingWriter,
    reader: &mut RingReader,
    bytes: usize,
    together: u64,
) -> Result<Vec<u64>, Box<dyn Error>> {
    let payload = vec![7; bytes * together as usize];
    let mut times = Vec::new();
    let mut lsn = 0;
    while lsn < COMMITS {
        let began = Instant::now();
        writer.records(Lsn(lsn), together as u32, &payload, &[])?;
        writer.persist();
        lsn += together;
        times.push(began.elapsed().as_nanos() as u64);
        if lsn % 8_000 < together {
            let mut last = None;
            while let Some(record) = reader.next_record().map_err(|at| format!("damaged at {at}"))? {
                last = Some(record);
            }
            last.iter().for_each(|record| reader.free(record));
        }
    }
    Ok(times)
}
