//! The cost of one transaction between its arguments and its outcome: no router, log or second thread.
//! Owns: a partition's store, filled by the procedures themselves, and a stretch of calls of one kind over it.
//! Does not: report throughput of the database (`reprise-bench`), or compare it with a limit.
//! Invariants: inputs follow from the count alone, so two builds do the same work.
//! Called by: `cargo xtask cost`, and people, for instruction counts:
//!   `valgrind --tool=callgrind --toggle-collect='*measured*' target/release/reprise-bench-cost new_order 2000`

mod inputs;
mod over_http;

use std::{sync::Arc, time::Instant};

use anyhow::{Context, Result, bail, ensure};
use reprise_base::{PartitionId, TxnId};
use reprise_bench_figures::callgrind;
use reprise_driver::NativeCode;
use reprise_host::{CompiledModule, Engine, Limits};
use reprise_procedure::native::NativeModule;
use reprise_storage::{AfterImage, Store};
use reprise_txn::{
    Candidate, Deployed, DeploymentRules, Executors, HeldCounts, LookAhead, Module, NextCalls, Outcome, PrefetchRow,
    TxnInput, TxnScratch, apply, outline, prepare, run_single,
};

use reprise_wire::{ChangesRef, CommandRef, PartitionSet, RecordBatch, TwoForms};

use crate::inputs::{Inputs, Kind, shares};

const USAGE: &str = "usage: reprise-bench-cost KIND [COUNT] [MODULE.wasm [unmetered]] [changes] [record=FORM] [repeat=N] [narrow] [ahead]
unmetered: a second run without fuel and without the settings that make guests deterministic
changes: the engine puts each transaction's changes together for the log, as for a physiological record
record=FORM: the engine writes each transaction's record. FORM is command, or apart: both forms, one of them for standbys (with changes)
repeat=N: the same N calls repeat, so most waits for memory and mispredicted branches go away (N = 1: all)
ahead: the engine prefetches the rows that procedures declare while the calls before run, as in a batch
narrow: orders take a hundredth of the items, so most waits for memory go away
kinds: tpcc_mix new_order payment delivery order_status stock_level vote account_update get_subscriber_data update_location
    http_vote, http_keyed_vote: the server's part of a call over HTTP, without the engine's. Only COUNT may follow. The second
    has an idempotency key and a time limit";

fn main() -> Result<()> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let looks_ahead = args.pop_if(|last| last == "ahead").is_some();
    let is_narrow = args.pop_if(|last| last == "narrow").is_some();
    let repeated = args.pop_if(|last| last.starts_with("repeat="));
    let repeated = repeated.map_or(Ok(usize::MAX), |text| text["repeat=".len()..].parse())?;
    ensure!(repeated > 0, "repeat=N takes at least one call");
    let record = match args.pop_if(|last| last.starts_with("record=")).as_deref() {
        None => None,
        Some("record=command") => Some(Record::Command),
        Some("record=apart") => Some(Record::Apart),
        Some(other) => bail!("no form {other:?}\n{USAGE}"),
    };
    let images = args.pop_if(|last| last == "changes").map(|_| AfterImage::Changed);
    let mut args = args.into_iter();
    let name = args.next().context(USAGE)?;
    let count = args.next().map_or(Ok(2_000), |text| text.parse())?;
    if let Some(kind) = over_http::Kind::find(&name) {
        return over_http::run(kind, count);
    }
    let Some(shares) = shares(&name) else {
        bail!("no kind {name:?}\n{USAGE}");
    };
    let kind = shares[0].1;
    let wasm = args.next().map(std::fs::read).transpose()?;
    let mut benches = match (&wasm, args.next().as_deref()) {
        (None, _) => vec![("native", Bench::open(kind, Code::Native)?)],
        (Some(wasm), None) => vec![("wasm", Bench::open(kind, Code::Metered(wasm))?)],
        (Some(wasm), Some("unmetered")) => vec![
            ("wasm", Bench::open(kind, Code::Metered(wasm))?),
            ("unmetered", Bench::open(kind, Code::Unmetered(wasm))?),
        ],
        (Some(_), Some(other)) => bail!("no choice {other:?}\n{USAGE}"),
    };
    for (_, bench) in &mut benches {
        for (procedure, args) in (kind.load)() {
            bench
                .call(procedure, &args)
                .with_context(|| format!("load by {procedure}"))?;
        }
    }
    let mut inputs = Inputs::new(is_narrow);
    let all = count + count / 10;
    let calls = draw(&benches[0].1, &shares, all.min(repeated), &mut inputs)?;
    let calls: Vec<Call> = calls.iter().cycle().take(all).cloned().collect();
    let (first, rest) = calls.split_at(count / 10);
    let mut times = vec![Vec::new(); benches.len()];
    let mut committed = 0;
    for (_, bench) in &mut benches {
        bench.frame.set_capture(images);
        bench.looks_ahead = looks_ahead;
        bench.record = record;
        warmed(bench, first);
    }
    callgrind::start();
    // Pieces short enough that other work of the machine meets few of them; in turn, so that it meets all alike.
    for calls in rest.chunks(200) {
        for ((_, bench), times) in benches.iter_mut().zip(&mut times) {
            let begun = Instant::now();
            committed += measured(bench, calls);
            times.push(begun.elapsed().as_nanos() as f64 / calls.len() as f64);
        }
    }
    let least_committed = rest.len() * benches.len() * 8 / 10;
    ensure!(committed > least_committed, "most calls must commit");
    report(&name, count, &benches, times);
    Ok(())
}

/// A procedure of the module, and its arguments.
type Call = (usize, Vec<u8>);

fn draw(bench: &Bench, shares: &[(u32, &Kind)], count: usize, inputs: &mut Inputs) -> Result<Vec<Call>> {
    let places = shares.iter().map(|(_, kind)| bench.procedure(kind.procedure));
    let places: Vec<usize> = places.collect::<Result<_>>()?;
    let all = shares.iter().map(|(share, _)| share).sum();
    let mut one = || {
        let mut drawn = if shares.len() == 1 { 0 } else { inputs.below(all) };
        let mut at = 0;
        while drawn >= shares[at].0 {
            drawn -= shares[at].0;
            at += 1;
        }
        (places[at], (shares[at].1.draw)(inputs))
    };
    Ok((0..count).map(|_| one()).collect())
}

fn report(name: &str, count: usize, benches: &[(&str, Bench)], mut times: Vec<Vec<f64>>) {
    if let [metered, unmetered] = &times[..] {
        let mut shares: Vec<f64> = metered.iter().zip(unmetered).map(|(a, b)| a / b).collect();
        shares.sort_by(f64::total_cmp);
        println!(
            "{name}: median of the pieces, wasm / unmetered: {:.3}",
            shares[shares.len() / 2]
        );
    }
    for ((what, _), times) in benches.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times[(times.len() as f64 * part) as usize];
        println!(
            "{name}, {what}: {count} calls; ns each: least {:.0}, best tenth {:.0}, median {:.0}",
            at(0.0),
            at(0.1),
            at(0.5)
        );
    }
}

/// The code of the procedures.
#[derive(Clone, Copy)]
enum Code<'a> {
    Native,
    Metered(&'a [u8]),
    Unmetered(&'a [u8]),
}

struct Bench {
    store: Store,
    module: Arc<Module>,
    executors: Executors,
    frame: TxnScratch,
    next: u64,
    looks_ahead: bool,
    record: Option<Record>,
    records: RecordBatch,
}

/// The record of a transaction.
#[derive(Clone, Copy)]
enum Record {
    Command,
    Apart,
}

/// The calls of a stretch, as a batch has them.
struct NextRuns<'m, 'a> {
    module: &'m Module,
    store: &'a Store,
    calls: &'a [Call],
}

impl<'m, 'a> NextRuns<'m, 'a> {
    #[inline(always)]
    fn of(module: &'m Module, bench: &'a Bench, calls: &'a [Call]) -> Self {
        Self {
            module,
            store: &bench.store,
            calls,
        }
    }
}

impl<'m> NextCalls<'m> for NextRuns<'m, '_> {
    #[inline(always)]
    fn call(&self, at: usize) -> Option<(&'m [PrefetchRow], &[u8])> {
        let (procedure, args) = self.calls.get(at)?;
        Some((&self.module.prefetch[*procedure], args))
    }

    #[inline(always)]
    fn store(&self, _: usize) -> &Store {
        self.store
    }
}

/// The region that callgrind collects.
#[inline(never)]
fn measured(bench: &mut Bench, calls: &[Call]) -> usize {
    run(bench, calls)
}

#[inline(never)]
fn warmed(bench: &mut Bench, calls: &[Call]) -> usize {
    std::hint::black_box(0);
    run(bench, calls)
}

#[inline(always)]
fn run(bench: &mut Bench, calls: &[Call]) -> usize {
    let mut committed = 0;
    let module = bench.module.clone();
    let begun = NextRuns::of(&module, bench, calls);
    let mut ahead = bench.looks_ahead.then(|| LookAhead::begin(0, &begun));
    for (at, (procedure, args)) in calls.iter().enumerate() {
        if let Some(ahead) = &mut ahead {
            ahead.step(at, &NextRuns::of(&module, bench, calls));
        }
        committed += matches!(bench.run(*procedure, args), Outcome::Commit(_)) as usize;
    }
    committed
}

impl Bench {
    fn open(kind: &Kind, code: Code<'_>) -> Result<Self> {
        let native: &'static NativeModule = kind.module;
        let mut store = Store::new();
        let compiled = match code {
            Code::Native => None,
            Code::Metered(wasm) => Some((Engine::new(Limits::default()), wasm)),
            Code::Unmetered(wasm) => Some((Engine::unmetered(Limits::default()), wasm)),
        };
        let (hash, schema, code): (_, _, Arc<dyn reprise_txn::Code>) = match compiled {
            None => ([0; 32], native.schema(), Arc::new(NativeCode(native))),
            Some((engine, wasm)) => {
                let code = CompiledModule::compile(&engine, wasm)?;
                (code.hash(), code.schema().clone(), Arc::new(code))
            }
        };
        let candidate = Candidate {
            name: "module".into(),
            hash,
            wasm_bytes: 0,
            description: Arc::default(),
            schema,
            code,
        };
        let before = Deployed::default();
        let stores = [&store];
        let outline = outline(&before, &candidate, DeploymentRules::Deployment(&HeldCounts(&stores)));
        let steps = prepare(outline, &stores, &|_| true);
        let Ok(steps) = steps else {
            bail!("the module does not fit an empty store");
        };
        let deployed = apply(&before, candidate, steps, TxnId(1), &mut [&mut store]).next;
        Ok(Self {
            store,
            module: deployed.current["module"].clone(),
            executors: Executors::default(),
            frame: TxnScratch::default(),
            next: 1 << 40,
            looks_ahead: false,
            record: None,
            records: RecordBatch::default(),
        })
    }

    fn procedure(&self, name: &str) -> Result<usize> {
        let found = self.module.procedure(name).map(|(at, _)| at);
        found.with_context(|| format!("no procedure {name}"))
    }

    #[inline]
    fn run(&mut self, procedure: usize, args: &[u8]) -> Outcome {
        self.next += 1 << 10;
        let input = TxnInput {
            txn_id: TxnId(self.next),
            secret: [1, 2],
            partitions_count: 1,
            module: &self.module,
            procedure,
            args,
            caller: None,
        };
        let executor = self.executors.get(&self.module).expect("instantiated");
        let outcome = run_single(&mut self.store, PartitionId(0), &input, executor, &mut self.frame);
        if let (Some(record), Outcome::Commit(commit)) = (self.record, &outcome) {
            write((&mut self.records, &self.frame), record, &input, commit.digest);
        }
        outcome
    }

    fn call(&mut self, procedure: &str, args: &[u8]) -> Result<()> {
        let procedure = self.procedure(procedure)?;
        match self.run(procedure, args) {
            Outcome::Commit(_) => Ok(()),
            Outcome::Fail(failure) => bail!("{failure:?}"),
        }
    }
}

/// Into a batch of one, as a partition does.
#[inline]
fn write((records, frame): (&mut RecordBatch, &TxnScratch), record: Record, input: &TxnInput<'_>, digest: u64) {
    let partitions = PartitionSet::One(PartitionId(0));
    let command = CommandRef {
        txn_id: input.txn_id,
        partitions,
        module_id: input.module.id.0,
        procedure: input.procedure as u16,
        digest,
        principal: 0,
        keyed: None,
        args: input.args,
    };
    records.clear();
    match record {
        Record::Command => records.push_command(&command),
        Record::Apart => {
            let changes = ChangesRef {
                txn_id: command.txn_id,
                partitions,
                module_id: command.module_id,
                procedure: command.procedure,
                digest,
                principal: 0,
                parts: 0,
                keyed: None,
                changes: frame.changes(),
            };
            let forms = Some(TwoForms::CommandHere);
            records.push_forms(Some(&command), &changes, forms);
        }
    }
}
