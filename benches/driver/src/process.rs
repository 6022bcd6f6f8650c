//! The load on a database in this process: batches straight to the router, no HTTP.

use std::{
    convert::Infallible,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use reprise_abi::describe::write_json;
use reprise_base::{PartitionId, limits::SEGMENT_BYTES};
use reprise_database::{CommitMode, Database, DatabaseConfig, Environment, LogPolicy, keep_memory_ready};
use reprise_procedure::native::NativeModule;
use reprise_router::{BatchBuilder, BatchReply, CallPartitions, Deployed, Failure, Module, ReplyOutcome, Router};
use reprise_txn::Candidate;
use sha2::{Digest, Sha256};

use crate::{
    Around, BenchError, OnProgress, Progress, around,
    during::{self, During},
    engine, failed,
    handover::Handover,
    local::{Local, describe},
    measure::{Meter, Verdict},
    native::NativeCode,
    options::{Options, ProcessOptions},
    random::Random,
    replay::{ReplayOptions, ReplayReport, replay, write_run_speed},
    report::{Report, Subject},
    slow::SlowRegions,
    workload::Workload,
};

const PROGRESS_EVERY: Duration = Duration::from_millis(200);
const TIMER_LATE_MAX: Duration = Duration::from_micros(100);

pub(crate) fn run<W: Workload>(
    mut workload: W,
    options: &Options,
    (process, around): (&ProcessOptions, &dyn Around),
    on_progress: OnProgress<'_>,
) -> Result<Report, BenchError> {
    let wasm = read_module(W::NAME, options.modules.as_deref())?;
    let (dir, _temporary) = data_dir(process)?;
    on_progress(Progress::Preparing("opening the database"));
    let opened = dir.clone();
    let database = open(process, dir, around)?;
    let router = database.router();
    deploy(router, W::NAME, &wasm, process.native.then(W::native))?;
    let mut local = Local {
        router,
        module: W::NAME,
    };
    workload.prepare(&mut local, on_progress)?;
    make_ready(&database, process, on_progress)?;
    around.filled(&database)?;

    let mut load = Load::new(&workload, &database, options, (process, around.busy_threads()))?;
    let ran_before = engine::ran_ns();
    load.run(options, process, on_progress)?;
    let ran = engine::ran_ns().zip(ran_before).map(|(after, before)| after - before);
    let (meter, log_bytes) = (load.meter, load.log_span.bytes(router));
    let (batch, in_flight) = (load.batch, load.in_flight_max);
    let during = load.during.map(During::finish).transpose()?;
    around.ran(&database)?;

    on_progress(Progress::Checking);
    meter.refuse_failures()?;
    let mut checked = workload.check_state(&mut local)?;
    checked.extend(workload.check(&mut local, options.seed, &meter.whole)?);
    let status = router.status();
    let estimated_s = database.checkpointer().ok().and_then(|own| own.restart().seconds());
    let subject = Subject {
        via: "process",
        log: status.log.into(),
        commit: status.commit.into(),
        native: process.native,
        partitions: status.partitions,
        sites: status.sites,
        log_bytes,
        batch,
        in_flight,
        pipeline: 1,
        prepared: process.prepared,
        device: status.device.map(str::to_owned),
        flush: status.nvram.map(|(device, _)| device.flush.to_owned()),
        nvram_delay_ns: process.nvram_delay_ns,
    };
    let mut report = Report::new(subject, options, &workload, &meter, checked);
    report.engine_ns_per_call = ran.map(|ns| ns / meter.whole.answered().max(1));
    report.checkpoint = during;
    let digest = process.restart.then(|| router.digest()).transpose();
    let digest = digest.map_err(|error| failed("digest the tables", error))?;
    database.close().map_err(|error| failed("close the database", error))?;
    drop(database);
    if let Some(dir) = &opened {
        write_run_speed(dir, W::NAME, report.txn_per_s)?;
    }
    if let (Some(digest), Some(dir)) = (digest, opened) {
        on_progress(Progress::Preparing("opening it again"));
        report.restart = Some(restart(process, dir, digest, estimated_s)?);
    }
    Ok(report)
}

/// Opens what lies in the data directory and checks it.
pub(crate) fn check<W: Workload>(workload: &W, process: &ProcessOptions) -> Result<Vec<String>, BenchError> {
    let Some(dir) = &process.data_dir else {
        return Err(BenchError::Usage(
            "--check-only needs --data-dir DIR or --url: something to look at".into(),
        ));
    };
    let database = open(process, Some(dir.clone()), &around::Nothing)?;
    let mut local = Local {
        router: database.router(),
        module: W::NAME,
    };
    let checked = workload.check_state(&mut local);
    let closed = database.close();
    closed.map_err(|error| failed("close the database", error))?;
    checked
}

/// Does the work between the load and the run.
fn make_ready(database: &Database, process: &ProcessOptions, on_progress: OnProgress<'_>) -> Result<(), BenchError> {
    if process.memory_ready > 0 {
        on_progress(Progress::Preparing("making memory ready"));
        let made = keep_memory_ready(process.memory_ready);
        made.map_err(|error| failed("make memory ready", error))?;
    }
    if process.restart {
        on_progress(Progress::Preparing("taking a checkpoint"));
        during::take(during::checkpointer(database)?)?;
    }
    Ok(())
}

/// Opens what the run left, and compares.
fn restart(
    process: &ProcessOptions,
    dir: PathBuf,
    digest: u64,
    estimated_s: Option<f64>,
) -> Result<ReplayReport, BenchError> {
    let mut report = replay(&ReplayOptions {
        data_dir: dir,
        partitions: process.partitions,
        sites: process.sites,
        redo: process.redo,
    })?;
    let expected = format!("{digest:016x}");
    if report.digest != expected {
        return Err(BenchError::Checks(format!(
            "the tables had the digest {expected} before the restart and have {} after it",
            report.digest
        )));
    }
    report.estimated_s = estimated_s;
    Ok(report)
}

/// The directory to use, and what removes it at the end if it is a temporary one.
fn data_dir(process: &ProcessOptions) -> Result<(Option<PathBuf>, Option<tempfile::TempDir>), BenchError> {
    if let Some(dir) = &process.data_dir {
        fs::create_dir_all(dir).map_err(|error| failed(&format!("create {}", dir.display()), error))?;
        return Ok((Some(dir.clone()), None));
    }
    if matches!(process.log, LogPolicy::None) {
        return Ok((None, None));
    }
    let temporary = tempfile::Builder::new()
        .prefix("reprise-bench-")
        .tempdir()
        .map_err(|error| failed("create a temporary directory", error))?;
    Ok((Some(temporary.path().to_owned()), Some(temporary)))
}

fn open(process: &ProcessOptions, dir: Option<PathBuf>, around: &dyn Around) -> Result<Arc<Database>, BenchError> {
    let config = DatabaseConfig {
        dir,
        partitions: process.partitions,
        sites: process.sites,
        log: process.log,
        redo: process.redo,
        device: process.device.clone(),
        commit: process.commit,
        batch_limits: process.batch_limits,
        segment_bytes: SEGMENT_BYTES,
        checkpoints: reprise_database::CheckpointConfig::BY_HAND,
        memory_max_bytes: u64::MAX,
    };
    let line = Duration::from_nanos(process.nvram_delay_ns);
    let change = |environment: &mut Environment| {
        if !line.is_zero() {
            let regions = environment.nvram.clone();
            environment.nvram = Arc::new(SlowRegions { regions, line });
        }
        around.change(environment);
    };
    let database = Database::open_changed(config, change).map_err(|error| failed("open the database", error))?;
    let database = Arc::new(database);
    around.opened(&database)?;
    database
        .recover()
        .map_err(|error| failed("recover the database", error))?;
    Ok(database)
}

/// Puts the wasm into service, or `native` in its place.
fn deploy(router: &Router, name: &str, wasm: &[u8], native: Option<&'static NativeModule>) -> Result<(), BenchError> {
    let Some(native) = native else {
        let deployed = router.deploy(name, wasm);
        return deployed
            .map(drop)
            .map_err(|error| failed(&format!("deploy {name}"), error));
    };
    if router.deployed().current.contains_key(name) {
        let text = "the data directory has the module in service already, as wasm: --native needs a new directory";
        return Err(BenchError::Usage(text.into()));
    }
    // The log keeps the wasm under its own hash: a replay runs the native calls in wasm, and has to reach the same rows.
    let candidate = Candidate {
        name: name.to_owned(),
        hash: Sha256::digest(wasm).into(),
        wasm_bytes: wasm.len() as u64,
        description: write_json(&native.schema()).into_bytes().into(),
        schema: native.schema(),
        code: Arc::new(NativeCode(native)),
    };
    let deployed = router.deploy_candidate(candidate, &wasm.into(), &[]);
    deployed
        .map(drop)
        .map_err(|error| failed(&format!("deploy {name}"), error))
}

/// NAME.wasm from `dir`, else from the `procedures` folder of the target directory that the executable lies in, else from
/// the one of the current directory.
pub(crate) fn read_module(name: &str, dir: Option<&Path>) -> Result<Vec<u8>, BenchError> {
    let file = format!("{name}.wasm");
    let mut candidates = Vec::new();
    match dir {
        Some(dir) => candidates.push(dir.join(&file)),
        None => {
            let executable = std::env::current_exe().unwrap_or_default();
            let beside = executable.ancestors().skip(1).take(3);
            candidates.extend(beside.map(|folder| folder.join("procedures").join(&file)));
            candidates.push(Path::new("target/procedures").join(&file));
        }
    }
    let Some(path) = candidates.iter().find(|path| path.is_file()) else {
        let searched: Vec<_> = candidates.iter().map(|path| path.display().to_string()).collect();
        return Err(BenchError::Failed(format!(
            "{file} is not there (looked for {}): build it with `cargo xtask wasm`, or name its folder with --modules DIR",
            searched.join(", ")
        )));
    };
    fs::read(path).map_err(|error| failed(&format!("read {}", path.display()), error))
}

/// A batch that came back.
pub(crate) struct Done<C> {
    pub reply: BatchReply,
    pub calls: Vec<C>,
    /// When its first call was due; the others follow by `spacing`.
    pub due: Instant,
    pub spacing: Duration,
    pub ended: Instant,
    /// Calls that were known to have run when it was sent.
    pub served_before: u64,
}

/// One generator thread and its batches.
pub(crate) struct Load<'a, W: Workload> {
    workload: &'a W,
    pub(crate) router: &'a Router,
    deployed: Arc<Deployed>,
    module: Arc<Module>,
    /// Positions in the module, by position in the workload.
    procedures: Vec<usize>,
    random: Random,
    pub(crate) meter: Meter,
    handover: Arc<Handover<Done<W::Call>>>,
    /// Taken from the handover, to be counted.
    arrived: Vec<Done<W::Call>>,
    pub(crate) batch: usize,
    pub(crate) in_flight_max: usize,
    pub(crate) in_flight: usize,
    /// The most bytes that all results of a prepared batch took.
    pub(crate) results_bytes: usize,
    spare: Vec<Vec<W::Call>>,
    /// The engine leaves one to the generator.
    has_free_core: bool,
    log_span: LogSpan,
    progress_at: Instant,
    during: Option<During>,
}

impl<'a, W: Workload> Load<'a, W> {
    fn new(
        workload: &'a W,
        database: &'a Database,
        options: &Options,
        (process, busy_threads): (&ProcessOptions, usize),
    ) -> Result<Self, BenchError> {
        let router = database.router();
        let deployed = router.deployed();
        let module = deployed.current[W::NAME].clone();
        let of_name = |name: &&str| module.procedure(name).map(|(at, _)| at);
        let procedures: Option<Vec<usize>> = W::PROCEDURES.iter().map(of_name).collect();
        let (batch, in_flight_max) = shape(process);
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let has_free_core = cores > process.sites as usize + busy_threads;
        let meter = Meter::new::<W>(options);
        let during = match process.checkpoint_during {
            true => Some(During::new(during::checkpointer(database)?, meter.opens, meter.closes)),
            false => None,
        };
        Ok(Self {
            workload,
            router,
            during,
            procedures: procedures
                .ok_or_else(|| BenchError::Failed(format!("{} lacks a procedure of the workload", W::NAME)))?,
            deployed,
            module,
            random: Random::new(options.seed),
            progress_at: meter.begun,
            meter,
            handover: Arc::new(Handover::new(has_free_core)),
            arrived: Vec::new(),
            batch,
            in_flight_max,
            in_flight: 0,
            results_bytes: 0,
            spare: Vec::new(),
            has_free_core,
            log_span: LogSpan::default(),
        })
    }

    /// In the open loop, of prepared calls, or in the closed loop.
    fn run(
        &mut self,
        options: &Options,
        process: &ProcessOptions,
        on_progress: OnProgress<'_>,
    ) -> Result<(), BenchError> {
        match options.rate {
            Some(rate) => self.run_open(rate, on_progress),
            None if process.prepared => self.run_prepared(process.partitions, on_progress),
            None => self.run_closed(on_progress),
        }
    }

    /// Keeps as many batches on their way as allowed, and sends each again when it is back.
    fn run_closed(&mut self, on_progress: OnProgress<'_>) -> Result<(), BenchError> {
        let mut now = Instant::now();
        while now < self.meter.closes {
            while self.in_flight < self.in_flight_max {
                self.submit(self.batch, now, Duration::ZERO);
                now = Instant::now();
            }
            // A few at a time: the batches on their way keep the engine busy meanwhile.
            let handover = self.handover.clone();
            handover.take_many((self.in_flight / 4).max(1), None, &mut self.arrived);
            self.complete_arrived()?;
            now = Instant::now();
            self.report_progress(now, on_progress);
        }
        self.finish()
    }

    /// Each call at its time, whether or not the ones before it have come back.
    fn run_open(&mut self, rate: f64, on_progress: OnProgress<'_>) -> Result<(), BenchError> {
        let begun = self.meter.begun;
        let due_at = |call: u64| begun + Duration::from_secs_f64(call as f64 / rate);
        let spacing = Duration::from_secs_f64(1.0 / rate);
        let mut next = 0;
        while due_at(next) < self.meter.closes {
            let now = Instant::now();
            let due_by_now = ((now - begun).as_secs_f64() * rate) as u64 + 1;
            if due_by_now > next {
                let count = (due_by_now - next).min(self.batch as u64);
                self.meter.late = self.meter.late.max(now.saturating_duration_since(due_at(next)));
                self.submit(count as usize, due_at(next), spacing);
                next += count;
                self.complete_ready()?;
                self.report_progress(now, on_progress);
                continue;
            }
            self.complete_ready()?;
            self.wait_until(due_at(next));
        }
        self.finish()
    }

    /// Sleeps, and where a core is free for it, spins for the last bit: timers are late by up to a tenth of a millisecond.
    fn wait_until(&self, due: Instant) {
        let spun = if self.has_free_core {
            TIMER_LATE_MAX
        } else {
            Duration::ZERO
        };
        let left = due.saturating_duration_since(Instant::now());
        if left > spun {
            std::thread::sleep(left - spun);
        }
        while Instant::now() < due {
            std::hint::spin_loop();
        }
    }

    pub(crate) fn finish(&mut self) -> Result<(), BenchError> {
        let handover = self.handover.clone();
        while self.in_flight > 0 {
            handover.take_many(1, None, &mut self.arrived);
            self.complete_arrived()?;
        }
        Ok(())
    }

    fn submit(&mut self, count: usize, due: Instant, spacing: Duration) {
        let mut calls = self.spare.pop().unwrap_or_default();
        let mut builder = self.new_batch();
        for _ in 0..count {
            let call = self.workload.generate(&mut self.random);
            self.push(&mut builder, &call);
            calls.push(call);
        }
        let (handover, served_before) = (self.handover.clone(), self.meter.whole.answered());
        self.in_flight += 1;
        self.router.submit(
            builder,
            Box::new(move |reply| {
                let ended = Instant::now();
                handover.give(Done {
                    reply,
                    calls,
                    due,
                    spacing,
                    ended,
                    served_before,
                });
            }),
        );
    }

    pub(crate) fn new_batch(&self) -> BatchBuilder {
        BatchBuilder::new(self.deployed.clone(), self.router)
    }

    pub(crate) fn push(&self, builder: &mut BatchBuilder, call: &W::Call) {
        let procedure = self.procedures[W::procedure(call)];
        let pushed = builder.push(&self.module, procedure, None, |out| {
            W::encode(call, out);
            Ok::<(), Infallible>(())
        });
        let Ok(_) = pushed;
    }

    /// Returns the next call and its partition, or the first of its partitions.
    pub(crate) fn next_call(&mut self, args: &mut Vec<u8>) -> (W::Call, PartitionId) {
        let call = self.workload.generate(&mut self.random);
        args.clear();
        W::encode(&call, args);
        let procedure = self.procedures[W::procedure(&call)];
        let bound = self.module.route(procedure, args, self.router.partitions_count());
        let partition = match bound {
            Ok(CallPartitions::One(partition)) => partition,
            Ok(CallPartitions::Several(several)) => several[0],
            _ => PartitionId(0),
        };
        (call, partition)
    }

    fn complete_ready(&mut self) -> Result<(), BenchError> {
        let handover = self.handover.clone();
        handover.take(&mut self.arrived);
        self.complete_arrived()
    }

    fn complete_arrived(&mut self) -> Result<(), BenchError> {
        let mut arrived = std::mem::take(&mut self.arrived);
        for done in arrived.drain(..) {
            self.complete(done)?;
        }
        self.arrived = arrived;
        Ok(())
    }

    pub(crate) fn complete(&mut self, done: Done<W::Call>) -> Result<(), BenchError> {
        self.in_flight -= 1;
        let waited_for = self.meter.whole.answered().saturating_sub(done.served_before);
        self.meter.waited_for = self.meter.waited_for.max(waited_for);
        let part = self.meter.part(done.ended);
        let is_inside = self.meter.opens <= done.ended && done.ended < self.meter.closes;
        let (mut answered, mut committed) = (0, 0);
        for (at, call) in done.calls.iter().enumerate() {
            let reply = done.reply.get(at);
            let verdict = match reply.outcome {
                ReplyOutcome::Committed => Verdict::Committed(W::outcome(call, reply.result)),
                other => verdict_of::<W>(other)?,
            };
            self.meter.add(W::procedure(call), &verdict, part);
            if matches!(verdict, Verdict::Committed(_)) {
                committed += 1;
                if is_inside {
                    self.log_span.record(reply.lsn.0);
                }
            }
            if matches!(verdict, Verdict::Refused) {
                continue;
            }
            answered += 1;
            if !done.spacing.is_zero() {
                let due = done.due + done.spacing * at as u32;
                self.meter.latency(due, done.ended, 1);
            }
        }
        if done.spacing.is_zero() {
            self.meter.latency(done.due, done.ended, answered);
        }
        if let Some(during) = &mut self.during {
            during.add(done.due, done.ended, committed);
        }
        let mut calls = done.calls;
        calls.clear();
        self.spare.push(calls);
        Ok(())
    }

    pub(crate) fn report_progress(&mut self, now: Instant, on_progress: OnProgress<'_>) {
        if let Some(during) = &mut self.during {
            during.begin_if_due(now);
        }
        if now - self.progress_at >= PROGRESS_EVERY {
            self.progress_at = now;
            on_progress(Progress::Running {
                elapsed: now - self.meter.begun,
                total: self.meter.closes - self.meter.begun,
                committed: self.meter.whole.committed,
            });
        }
    }
}

/// The LSNs of the window's calls.
#[derive(Debug, Default)]
struct LogSpan {
    first: Option<u64>,
    last: u64,
}

impl LogSpan {
    fn record(&mut self, lsn: u64) {
        self.first = Some(self.first.map_or(lsn, |first| first.min(lsn)));
        self.last = self.last.max(lsn);
    }

    /// From the first record to the last.
    fn bytes(&self, router: &Router) -> u64 {
        let first = self.first.unwrap_or(self.last);
        router.log_bytes_between(reprise_base::Lsn(first), reprise_base::Lsn(self.last))
    }
}

/// Any outcome but a commit. Err: the run can't continue.
fn verdict_of<W: Workload>(outcome: &ReplyOutcome) -> Result<Verdict, BenchError> {
    match outcome {
        ReplyOutcome::Failed(failure) => Ok(match &**failure {
            Failure::Aborted { code, message } => match W::outcome_of_abort(code) {
                Some(outcome) => Verdict::Aborted(outcome),
                None => Verdict::Failed(format!("aborted with {code}: {message}")),
            },
            _ => Verdict::Failed(describe(outcome)),
        }),
        ReplyOutcome::Overloaded { .. } => Ok(Verdict::Refused),
        other => Err(BenchError::Failed(describe(other))),
    }
}

/// Calls of one batch and batches on their way. A commit that waits for the device needs many on their way; without the
/// wait few keep the engine busy. A prepared run has as many with any log, so that runs compare.
fn shape(process: &ProcessOptions) -> (usize, usize) {
    let waits =
        process.prepared || !matches!(process.log, LogPolicy::None) && matches!(process.commit, CommitMode::Sync);
    let batch = process.batch.unwrap_or(if waits { 128 } else { 64 });
    let chosen = if waits {
        (process.batch_limits.waiting_max - 1) / batch
    } else {
        8
    };
    (batch, process.in_flight.unwrap_or(chosen.max(1)))
}
