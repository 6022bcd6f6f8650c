//! Votes through one engine thread's turn, without router, log or another thread: what a call costs from its arguments to
//! its outcome. For instruction counts: `valgrind --tool=callgrind`, and the part of a symbol by `callgrind_annotate`.
//!
//! `cargo run --release -p reprise-partition --example turn -- target/procedures/voter.wasm [VOTES] [PHONES]`

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize},
    },
    time::Instant,
};

use arc_swap::ArcSwap;
use reprise_abi::value::push_varint;
use reprise_base::{MemoryLedger, PartitionId, SiteId, TxnId};
use reprise_env::{RealClock, RealThreads};
use reprise_host::{CompiledModule, Engine, Limits};
use reprise_observe::{RecentLines, Registry};
use reprise_partition::{CallBatch, ExecContext, LogPolicy, Logging, NoLog, ReplyOutcome, Sampling, Shared, Site};
use reprise_storage::AfterImage;
use reprise_txn::{Candidate, Judge, ModuleId, apply, plan};

const BATCH: u64 = 256;
const NAMES: [&str; 6] = ["Ada", "Bruno", "Chiara", "Dmitri", "Esther", "Farid"];

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("the path of voter.wasm");
    let mut number = |default: u64| args.next().map_or(default, |text| text.parse().expect("a number"));
    let (votes, phones) = (number(2_000_000), number(2_000_000_000));
    let (mut site, vote) = open(&std::fs::read(path).expect("read the module"));
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let (mut spent, mut accepted) = (0.0, 0);
    for _ in 0..votes.div_ceil(BATCH) {
        let mut batch = CallBatch::new(Some(PartitionId(0)));
        for _ in 0..BATCH {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let phone = 2_010_000_000 + (random % phones) as i64;
            let mut bytes = [0; 20];
            bytes[..8].copy_from_slice(&phone.to_le_bytes());
            bytes[8..12].copy_from_slice(&(1 + (random >> 40) as i32 % 6).to_le_bytes());
            bytes[12..].copy_from_slice(&2_i64.to_le_bytes());
            batch.push(ModuleId(0), vote, &bytes, None);
        }
        let begun = Instant::now();
        let batch = run(&mut site, batch);
        spent += begun.elapsed().as_secs_f64();
        accepted += (0..BATCH as usize).filter(|slot| batch.result(*slot) == [0]).count();
    }
    println!(
        "{votes} votes, {accepted} accepted, {:.0} ns each, {:.0} a second",
        spent * 1e9 / votes as f64,
        votes as f64 / spent
    );
}

/// Runs a batch to its end; every call must commit.
fn run(site: &mut Site, mut batch: CallBatch) -> Box<CallBatch> {
    let (sender, receiver) = crossbeam_channel::bounded(1);
    batch.done = Some(Box::new(move |batch| sender.send(batch).expect("received below")));
    site.run_batch(Box::new(batch));
    let batch = receiver.recv().expect("a turn ends with its batch");
    for call in &batch.calls {
        assert_eq!(call.outcome, ReplyOutcome::Committed);
    }
    batch
}

/// A site with one partition, the module in service and its contestants named; the number of procedure `vote`.
fn open(wasm: &[u8]) -> (Site, u16) {
    let code = CompiledModule::compile(&Engine::new(Limits::default()), wasm).expect("compile");
    let schema = code.schema().clone();
    let of = |name: &str| schema.procedures.iter().position(|p| p.name == name).expect("voter") as u16;
    let (initialize, vote) = (of("initialize"), of("vote"));
    let shared = Arc::new(Shared {
        deployed: ArcSwap::default(),
        generation: AtomicU64::new(0),
        memory: MemoryLedger::unlimited(),
        clock: Arc::new(RealClock::new()),
        threads: Arc::new(RealThreads),
        secret: [1, 2],
        partitions_count: 1,
        sites_count: 1,
        waiting: vec![AtomicUsize::new(usize::MAX / 2)],
        multi_tick: AtomicU64::new(0),
        replay_failed: Default::default(),
        copying: AtomicUsize::new(0),
        binaries: Mutex::default(),
        lines: Arc::new(RecentLines::new()),
        notices: Default::default(),
        logging: Logging::new(LogPolicy::None, AfterImage::default(), Sampling::default()),
        calls: Arc::default(),
        gate: Arc::default(),
        coordinator: reprise_partition::Coordinator::new(1, 1),
        told: reprise_partition::Told::new(1, 1),
        underway: Default::default(),
    });
    let tools = ExecContext::new(shared, Box::new(NoLog), Registry::new().recorder());
    let mut site = Site::new(SiteId(0), tools, crossbeam_channel::never());
    let (partition, tools) = site.split(PartitionId(0));
    let candidate = Candidate {
        name: "voter".into(),
        hash: code.hash(),
        wasm_bytes: wasm.len() as u64,
        description: code.described().1,
        semantics: reprise_abi::SEMANTICS,
        schema: schema.clone(),
        code: Arc::new(code),
    };
    let before = tools.deployed().clone();
    let steps = plan(&before, &candidate, &[&partition.store], Judge::Deployment, &|_| true).expect("no conflict");
    let stores = &mut [&mut partition.store];
    tools.install(apply(&before, candidate, steps, TxnId(1), stores).next);
    let mut batch = CallBatch::new(Some(PartitionId(0)));
    let mut names = Vec::new();
    push_varint(&mut names, NAMES.len() as u32);
    for name in NAMES {
        push_varint(&mut names, name.len() as u32);
        names.extend_from_slice(name.as_bytes());
    }
    batch.push(ModuleId(0), initialize, &names, None);
    run(&mut site, batch);
    (site, vote)
}
