//! The readers on a standby: TPC-C's Stock-Level and Order-Status in turn, batch after batch.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Instant,
};

use anyhow::{Context, Result, anyhow, bail};
use reprise_driver::TpccReads;
use reprise_router::{BatchBuilder, ReplyOutcome};

use crate::standby::Standby;

/// Calls of a batch.
const BATCH: usize = 32;

/// A client of one standby.
pub struct Readers {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<f64>>,
}

impl Readers {
    pub fn begin(standby: Arc<Standby>, warehouses: u32, partitions: u16, seed: u64) -> Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, mut reads) = (is_over.clone(), TpccReads::new(warehouses, partitions, seed)?);
        let read = move || {
            let (begun, mut count) = (Instant::now(), 0);
            while !over.load(Ordering::Acquire) {
                count += batch(&standby, &mut reads)?;
            }
            Ok(count as f64 / begun.elapsed().as_secs_f64())
        };
        let thread = thread::Builder::new().name("reads".into()).spawn(read)?;
        Ok(Self { is_over, thread })
    }

    /// Reads a second.
    pub fn finish(self) -> Result<f64> {
        self.is_over.store(true, Ordering::Release);
        self.thread.join().map_err(|_| anyhow!("whoever reads ended early"))?
    }
}

/// Calls that were answered; an error where one was not.
fn batch(standby: &Standby, reads: &mut TpccReads) -> Result<usize> {
    let router = standby.database.router();
    let deployed = router.deployed();
    let module = deployed.current.get("tpcc").context("no module tpcc on the standby")?;
    let mut batch = BatchBuilder::new(deployed.clone(), router);
    for _ in 0..BATCH {
        let mut args = Vec::new();
        let procedure = reads.next(&mut args);
        let (number, _) = module.procedure(procedure).context("a procedure that there is not")?;
        let encode = |out: &mut Vec<u8>| {
            out.extend_from_slice(&args);
            Ok::<(), std::convert::Infallible>(())
        };
        let Ok(_) = batch.push(module, number, None, encode);
    }
    let (sender, receiver) = mpsc::channel();
    router.submit(batch, Box::new(move |reply| _ = sender.send(reply)));
    let reply = receiver.recv().context("the standby ended")?;
    for at in 0..reply.len() {
        if *reply.get(at).outcome != ReplyOutcome::Committed {
            bail!("a read on a standby: {:?}", reply.get(at).outcome);
        }
    }
    Ok(reply.len())
}
