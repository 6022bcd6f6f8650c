//! A run of one bar: its load, its transactions in blocks of one kind, what they did and what they left.

use std::ffi::CStr;

use anyhow::{Result, bail, ensure};
use reprise_bench_figures::callgrind;
use reprise_driver::{TpccInput, TypedTpcc};
use reprise_env::{Clock, RealClock};
use reprise_procedure::native::NativeModule;

use crate::{
    digest::RowsDigest,
    engine::{Engine, Room},
    ours::Ours,
    parts::{MAIN_LOG, has},
    redb_bar::RedbBar,
    txn::{TxnEnd, Worker},
    work::{Call, Calls, Kind, LINES, Scale},
};

/// An engine that runs the calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bar {
    /// The paged engine, with these parts.
    Paged(u32),
    /// Our engine, with the procedures compiled into this program.
    Ours,
    /// Our engine, with the procedures as wasm.
    Wasm(std::path::PathBuf),
    /// New-Order and Payment over redb.
    Redb,
    /// The transactions over typed arrays, without keys, log or undo: the useful work. It has no rows to compare.
    Kernel,
}

/// The work of a run, and the rows that it left.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Digest of all rows, at the end.
    pub digest: RowsDigest,
    /// By kind of transaction: bytes of log records, and pages made.
    pub grown: [[u64; 2]; 2],
    /// By kind: nanoseconds for which all transactions had a processor. Waits for the disk are none of them.
    pub ns: [u64; 2],
}

impl Report {
    /// Takes the times of another run of the same bar where they are shorter.
    pub fn keep_least_time(&mut self, other: &Self) {
        let pairs = self.ns.iter_mut().zip(other.ns);
        pairs.for_each(|(ns, other)| *ns = (*ns).min(other));
    }
}

/// An engine as a run sees it.
trait Runner {
    /// Runs a call; why it did not commit, otherwise.
    fn run(&mut self, call: &Call) -> Result<(), String>;
    /// Bytes of the log, and pages.
    fn sizes(&self) -> [u64; 2] {
        [0; 2]
    }
    /// Checks the rest, and digests it.
    fn finish(&self) -> Result<RowsDigest, String>;
}

struct PagedRunner<'e, const P: u32> {
    engine: &'e Engine<P>,
    worker: Worker<'e, P>,
}

impl<const P: u32> Runner for PagedRunner<'_, P> {
    fn run(&mut self, call: &Call) -> Result<(), String> {
        match measured_transaction(&mut self.worker, &tpcc::MODULE, call) {
            TxnEnd::Committed => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }

    fn sizes(&self) -> [u64; 2] {
        let pool = &self.engine.pool;
        let bytes = if has(P, MAIN_LOG) { pool.log.progress().next } else { 0 };
        [bytes, pool.pages().into()]
    }

    fn finish(&self) -> Result<RowsDigest, String> {
        self.engine.check()?;
        Ok(self.engine.digest())
    }
}

/// The region that callgrind collects, in the paged engine: one transaction, from its begin to its commit.
#[inline(never)]
fn measured_transaction<const P: u32>(worker: &mut Worker<'_, P>, module: &NativeModule, call: &Call) -> TxnEnd {
    worker.run(module, call.procedure, call.txn_id, &call.args)
}

impl Runner for Ours {
    fn run(&mut self, call: &Call) -> Result<(), String> {
        match measured_transaction_of_ours(self, call) {
            true => Ok(()),
            false => Err("it did not commit".into()),
        }
    }

    fn finish(&self) -> Result<RowsDigest, String> {
        Ok(self.digest())
    }
}

/// The region that callgrind collects, in our engine.
#[inline(never)]
fn measured_transaction_of_ours(ours: &mut Ours, call: &Call) -> bool {
    Ours::run(ours, call)
}

impl Runner for RedbBar {
    fn run(&mut self, call: &Call) -> Result<(), String> {
        measured_transaction_of_redb(self, call)
    }

    fn finish(&self) -> Result<RowsDigest, String> {
        self.digest().map_err(|error| error.to_string())
    }
}

/// The region that callgrind collects, in redb.
#[inline(never)]
fn measured_transaction_of_redb(redb: &mut RedbBar, call: &Call) -> Result<(), String> {
    RedbBar::run(redb, call)
}

/// The region that callgrind collects, in the typed kernel.
#[inline(never)]
fn measured_transaction_of_kernel(kernel: &mut TypedTpcc, input: &TpccInput) -> bool {
    kernel.run(input)
}

/// Transactions of a block that callgrind counts, from its first on: sixteen groups of commits. It counts slowly, and a block's
/// transactions are all of one kind.
const COUNTED: usize = 16 * GROUP as usize;

/// How many transactions of each kind callgrind counts.
pub fn counted_transactions(calls: &Calls) -> [u64; 2] {
    let mut counted = [0; 2];
    for block in calls.run.chunk_by(|(one, _), (other, _)| one == other) {
        counted[block[0].0 as usize] += block.len().min(COUNTED) as u64;
    }
    counted
}

/// Runs the typed kernel, and checks that every order and payment is there.
fn run_kernel(calls: &Calls, warehouses: u16) -> Result<Report> {
    let (mut kernel, mut report) = (TypedTpcc::new(warehouses, 1), Report::default());
    let before = kernel.rows();
    let (mut inputs, mut is_done, clock) = (calls.inputs.iter(), true, RealClock::new());
    for block in calls.run.chunk_by(|(one, _), (other, _)| one == other) {
        let (kind, begun) = (block[0].0, clock.thread_processor_ns());
        callgrind::start();
        for (at, input) in inputs.by_ref().take(block.len()).enumerate() {
            if at == COUNTED {
                callgrind::stop();
            }
            is_done &= measured_transaction_of_kernel(&mut kernel, input);
        }
        report.ns[kind as usize] += clock.thread_processor_ns() - begun;
        callgrind::stop();
        callgrind::dump(kind.dump_name());
    }
    let count = |kind| calls.run.iter().filter(|(of, _)| *of == kind).count();
    let [orders, payments] = Kind::ALL.map(count);
    let [orders_before, lines, payments_before] = before;
    let expected = [
        orders_before + orders,
        lines + orders * LINES,
        payments_before + payments,
    ];
    ensure!(
        is_done && kernel.rows() == expected,
        "the kernel lost an order or a payment"
    );
    Ok(report)
}

/// Runs a bar.
///
/// # Errors
/// A call that does not commit, or an engine that is not whole afterwards: such a run has no figure.
pub fn run(bar: &Bar, calls: &Calls, scale: Scale) -> Result<Report> {
    match bar {
        Bar::Paged(parts) => run_build(*parts, calls, scale.frames()),
        Bar::Redb => run_calls(&mut RedbBar::open()?, calls),
        Bar::Kernel => run_kernel(calls, scale.warehouses as u16),
        Bar::Ours => run_calls(&mut Ours::open(None)?, calls),
        Bar::Wasm(path) => run_calls(&mut Ours::open(Some(&std::fs::read(path)?))?, calls),
    }
}

macro_rules! builds {
    ($($parts:literal)*) => {
        fn run_build(parts: u32, calls: &Calls, frames: usize) -> Result<Report> {
            match parts {
                $($parts => run_paged::<$parts>(calls, frames),)*
                other => bail!("there is no build of the parts {other}"),
            }
        }

        /// Whether a build is compiled into this program.
        pub fn has_build(parts: u32) -> bool {
            [$($parts),*].contains(&parts)
        }
    };
}

// The paper's order of removal, and the further ones of the order of adding.
builds! {
    1023 1022 1020 1016 1008 992 960 896 768 512 0
    64 96 112 240 496
}

fn run_paged<const P: u32>(calls: &Calls, frames: usize) -> Result<Report> {
    let room = Room { frames, group: GROUP };
    let engine = Engine::<P>::create(&tpcc::MODULE.schema(), room)?;
    let worker = Worker::new(&engine);
    run_calls(
        &mut PagedRunner {
            engine: &engine,
            worker,
        },
        calls,
    )
}

/// Commits of a group.
const GROUP: u32 = 32;

fn run_calls(runner: &mut dyn Runner, calls: &Calls) -> Result<Report> {
    for call in &calls.load {
        if let Err(text) = runner.run(call) {
            bail!("loading: {text}");
        }
    }
    let (mut report, mut failed, clock) = (Report::default(), None, RealClock::new());
    for block in calls.run.chunk_by(|(one, _), (other, _)| one == other) {
        let (kind, before) = (block[0].0, runner.sizes());
        let begun = clock.thread_processor_ns();
        callgrind::start();
        for (at, (_, call)) in block.iter().enumerate() {
            if at == COUNTED {
                callgrind::stop();
            }
            failed = runner.run(call).err().or(failed);
        }
        report.ns[kind as usize] += clock.thread_processor_ns() - begun;
        callgrind::stop();
        callgrind::dump(kind.dump_name());
        let done = runner.sizes();
        let grown = &mut report.grown[kind as usize];
        grown
            .iter_mut()
            .zip(done)
            .zip(before)
            .for_each(|((sum, done), before)| *sum += done - before);
    }
    if let Some(text) = failed {
        bail!("a transaction failed: {text}");
    }
    report.digest = runner.finish().map_err(anyhow::Error::msg)?;
    ensure!(report.digest.rows() > 0, "nothing was loaded");
    Ok(report)
}

impl Kind {
    /// Both, in the order of a report.
    pub const ALL: [Self; 2] = [Self::NewOrder, Self::Payment];

    /// The name in dumps and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::NewOrder => "new-order",
            Self::Payment => "payment",
        }
    }

    /// The name of a dump for callgrind.
    pub(crate) fn dump_name(self) -> &'static CStr {
        match self {
            Self::NewOrder => c"new-order",
            Self::Payment => c"payment",
        }
    }
}
