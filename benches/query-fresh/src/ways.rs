//! The ways that are compared, and a run of one of them: a primary and its standbys in this process, over TCP on the loopback.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use crossbeam_channel::{Sender, bounded};
use reprise_base::{Lsn, Safety};
use reprise_database::{
    COPY_AT_ENTRIES_DEFAULT, Database, DeviceConfig, Environment, FlushPolicy, LogPolicy, NvramConfig, ServeStandbys,
    ShipForm,
};
use reprise_driver::{Around, BenchError, Options, ProcessOptions, Report, run_in};
use reprise_env::RealNet;
use reprise_router::ReplicationInfo;

use crate::{
    quota::{Group, Quotas},
    readers::Readers,
    standby::{Standby, StandbyConfig, rest},
    taker::{Acknowledges, Replays},
    threads::{Spent, spent},
};

/// Interval of the freshness samples (Query Fresh, section 4.5).
const SAMPLE: Duration = Duration::from_millis(20);
const NVRAM_BYTES: u64 = 256 << 20;
const HOLD_BYTES_MAX: u64 = 16 << 30;
/// Series whose way is the server's own, or the paper's. In the paper, pipelined replay fills arrays.
pub const LEGEND: [(&str, &str); 7] = [
    ("query-fresh", "server"),
    ("query-fresh-reads", "server"),
    ("pipelined", "server"),
    ("full-instantiation", "server"),
    ("async", "server"),
    ("logical", "server"),
    ("replay-arrays", "paper"),
];

/// How a primary's log reaches its standbys, and what they make of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub name: &'static str,
    pub log: LogPolicy,
    pub safety: Safety,
    pub replays: Replays,
    pub acknowledges: Acknowledges,
}

impl Way {
    /// Changes at 2-safe, put in place behind the acknowledgement: the product.
    pub const QUERY_FRESH: Self = Self {
        name: "query-fresh",
        log: LogPolicy::Physiological,
        safety: Safety::TwoSafe,
        replays: Replays::Tables,
        acknowledges: Acknowledges::Persisted,
    };
    pub const STANDALONE: Self = Self {
        name: "standalone",
        ..Self::QUERY_FRESH
    };
    /// Replayed before the acknowledgement.
    pub const SYNC: Self = Self {
        name: "sync",
        acknowledges: Acknowledges::Replayed,
        ..Self::QUERY_FRESH
    };
    /// The primary waits for no standby.
    pub const ASYNC: Self = Self {
        name: "async",
        safety: Safety::LocalSync,
        ..Self::QUERY_FRESH
    };
    /// Commands, run again.
    pub const LOGICAL: Self = Self {
        name: "logical",
        log: LogPolicy::Command,
        ..Self::QUERY_FRESH
    };
    /// The paper's own replay.
    pub const ARRAYS: Self = Self {
        name: "replay-arrays",
        replays: Replays::Arrays,
        ..Self::QUERY_FRESH
    };
    pub const NO_REPLAY: Self = Self {
        name: "no-replay",
        replays: Replays::Nothing,
        ..Self::QUERY_FRESH
    };
    /// The standby's log costs an acknowledgement nothing.
    pub const IDEAL: Self = Self {
        name: "ideal",
        acknowledges: Acknowledges::Received,
        ..Self::QUERY_FRESH
    };

    pub const fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }
}

/// The device that a standby's log is written to first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandbyLog {
    /// Files on the runs' file system.
    Beside,
    /// Files on a disk.
    Disk,
    /// A region on the runs' file system.
    Nvram,
}

/// How calls are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Offered {
    /// The most that the engine takes, in batches.
    All,
    /// One at a time: the time of a commit by itself.
    One,
    /// A number each second.
    Rate(f64),
}

/// A run of one way.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    pub way: Way,
    pub workload: &'a str,
    pub standbys: usize,
    pub partitions: u16,
    /// The default of `reprise-bench tpcc`.
    pub warehouses: Option<u32>,
    /// Percent of New-Orders and Payments that touch two partitions; none: as the specification has it.
    pub remote_percent: Option<u8>,
    /// Sites of the primary.
    pub sites: u16,
    /// Threads that replay, for each standby.
    pub replay_sites: u16,
    /// Clients of each standby, and threads that run their calls.
    pub readers: u16,
    pub log: StandbyLog,
    pub offered: Offered,
    /// Shares of the processors; none: all share all of them.
    pub quotas: Option<Quotas>,
    pub seconds: f64,
    pub warmup_s: f64,
    pub seed: u64,
    /// A folder of this run alone, and one on a disk.
    pub dir: &'a Path,
    pub disk: &'a Path,
    pub modules: Option<PathBuf>,
}

/// The state of a standby at one time.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Seconds from the run's beginning.
    pub at_s: f64,
    /// Freshness from the run's beginning on, as part of 1.
    pub score: f64,
    /// The paper's ratio.
    pub plain: f64,
    /// How far it is behind, in seconds, as the primary tells.
    pub lag_s: f64,
}

/// The results of a run.
pub struct Measured {
    pub report: Report,
    /// Samples of the first standby.
    pub samples: Vec<Sample>,
    /// Reads on all standbys.
    pub reads_per_s: f64,
    pub spent: Spent,
    /// Records that the primary logged meanwhile: of transactions that wrote.
    pub records: u64,
    /// Until the standbys had replayed what was there when the load ended.
    pub catch_up_s: f64,
}

/// The options that `reprise-bench` takes for the same run.
pub fn options(run: &Run<'_>, data_dir: Option<PathBuf>) -> Options {
    let one = run.offered == Offered::One;
    let process = ProcessOptions {
        partitions: run.partitions,
        data_dir,
        batch: one.then_some(1),
        in_flight: one.then_some(1),
        ..ProcessOptions::new(run.sites, run.way.log)
    };
    Options {
        seconds: run.seconds,
        warmup_s: run.warmup_s,
        rate: match run.offered {
            Offered::Rate(rate) => Some(rate),
            Offered::All | Offered::One => None,
        },
        seed: run.seed,
        remote_percent: run.remote_percent,
        warehouses: run.warehouses.filter(|_| run.workload == "tpcc"),
        modules: run.modules.clone(),
        ..Options::new(run.workload, process)
    }
}

/// The workload's number without `--warehouses`.
const WAREHOUSES_MIN: u32 = 2;

/// The parts around a run: the standbys, their readers, and the thread that samples freshness.
struct Cluster<'a> {
    run: &'a Run<'a>,
    /// Groups of the primary, and of each standby, if they have shares of the processors.
    groups: Vec<Group>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether the primary's threads have its share of the processors.
    entered: Option<Result<()>>,
    standbys: Vec<Arc<Standby>>,
    readers: Vec<Readers>,
    sampler: Option<Sampler>,
    before: Spent,
    begin: Lsn,
    /// The processor time of the run.
    spent: Spent,
    records: u64,
    samples: Vec<Sample>,
    reads_per_s: f64,
    catch_up_s: f64,
}

/// The thread that samples freshness.
struct Sampler {
    over: Sender<()>,
    thread: JoinHandle<Vec<Sample>>,
}

impl Sampler {
    fn begin(primary: Arc<Database>, standby: Arc<Standby>) -> Result<Self> {
        let (over, is_over) = bounded::<()>(1);
        let sample = move || {
            let replication_info = || primary.router().replication().map(|service| service.info());
            let committed = |info: &Option<ReplicationInfo>| info.as_ref().map_or(0, |info| info.committed.0);
            let (begun, start, mut samples) = (Instant::now(), committed(&replication_info()), Vec::new());
            while !rest(&is_over, SAMPLE) {
                // The standby first: what it is found to lack may be a little more than it lacks.
                let (view, info) = (standby.view().0, replication_info());
                let now = committed(&info);
                let lag_us = info.and_then(|info| info.standbys.first().map(|standby| standby.lag_us));
                let part = |from: u64| match now.saturating_sub(from) {
                    0 => 1.0,
                    all => view.saturating_sub(from) as f64 / all as f64,
                };
                samples.push(Sample {
                    at_s: begun.elapsed().as_secs_f64(),
                    score: part(start).min(1.0),
                    plain: part(0).min(1.0),
                    lag_s: lag_us.unwrap_or(0) as f64 / 1e6,
                });
            }
            samples
        };
        let thread = thread::Builder::new().name("sampler".into()).spawn(sample)?;
        Ok(Self { over, thread })
    }

    fn finish(self) -> Result<Vec<Sample>> {
        drop(self.over);
        self.thread.join().map_err(|_| anyhow!("the sampler ended early"))
    }
}

impl Cluster<'_> {
    fn config(&self, name: &str) -> StandbyConfig {
        let run = self.run;
        let dir = match run.log {
            StandbyLog::Disk => run.disk.join(name),
            StandbyLog::Beside | StandbyLog::Nvram => run.dir.join(name),
        };
        StandbyConfig {
            dir,
            partitions: run.partitions,
            sites: run.replay_sites,
            device: match run.log {
                StandbyLog::Nvram => DeviceConfig::Nvram(NvramConfig {
                    path: run.dir.join(format!("{name}.region")),
                    bytes: Some(NVRAM_BYTES),
                    copy_at_entries: COPY_AT_ENTRIES_DEFAULT,
                    flush: FlushPolicy::OnCommit,
                    assume_persistent: true,
                }),
                StandbyLog::Beside | StandbyLog::Disk => DeviceConfig::File,
            },
            replays: run.way.replays,
            acknowledges: run.way.acknowledges,
            readers: run.readers,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("held by one thread at a time")
    }

    fn begin(&self, primary: &Arc<Database>) -> Result<()> {
        let mut state = self.lock();
        if self.run.standbys > 0 {
            primary.serve_standbys(serving())?;
        }
        self.groups.first().map_or(Ok(()), Group::leave)?;
        for number in 0..self.run.standbys {
            let (name, group) = (format!("standby{number}"), self.groups.get(number + 1));
            group.map_or(Ok(()), Group::enter)?;
            let (standby, _) = Standby::begin(primary, &name, &self.config(&name))?;
            group.map_or(Ok(()), Group::leave)?;
            state.standbys.push(Arc::new(standby));
        }
        let default = WAREHOUSES_MIN.max(self.run.partitions.into());
        let warehouses = self.run.warehouses.unwrap_or(default);
        for number in 0..self.run.standbys * usize::from(self.run.readers > 0) {
            let standby = state.standbys[number].clone();
            let readers = Readers::begin(standby, warehouses, self.run.partitions, self.run.seed)?;
            state.readers.push(readers);
        }
        if let Some(standby) = state.standbys.first().cloned() {
            state.sampler = Some(Sampler::begin(primary.clone(), standby)?);
        }
        (state.before, state.begin) = (spent(), primary.router().durable());
        Ok(())
    }

    fn finish(&self, primary: &Arc<Database>) -> Result<()> {
        let mut state = self.lock();
        state.spent = spent().since(&state.before);
        state.records = primary.router().durable().0 - state.begin.0;
        if let Some(sampler) = state.sampler.take() {
            state.samples = sampler.finish()?;
        }
        for readers in std::mem::take(&mut state.readers) {
            state.reads_per_s += readers.finish()?;
        }
        let begun = Instant::now();
        for standby in &state.standbys {
            standby.catch_up(primary)?;
        }
        state.catch_up_s = begun.elapsed().as_secs_f64();
        for standby in &state.standbys {
            standby.compare(primary)?;
        }
        Ok(())
    }
}

fn groups(quotas: Quotas, standbys: usize) -> Result<Vec<Group>> {
    let standby = |number| Group::new(&format!("standby{number}"), quotas.standby);
    let primary = Group::new("primary", quotas.primary);
    std::iter::once(primary).chain((0..standbys).map(standby)).collect()
}

/// How a primary of a run takes standbys.
pub fn serving() -> ServeStandbys {
    ServeStandbys {
        name: "primary".into(),
        net: Arc::new(RealNet),
        listen: "127.0.0.1:0".into(),
        ship_address: None,
        url: None,
        hold_bytes_max: HOLD_BYTES_MAX,
        compare_every: Duration::ZERO,
        ship: ShipForm::AsLogged,
        has_lease: false,
    }
}

fn failed(error: anyhow::Error) -> BenchError {
    BenchError::Failed(format!("{error:#}"))
}

impl Around for Cluster<'_> {
    fn busy_threads(&self) -> usize {
        self.run.standbys * usize::from(self.run.replay_sites + self.run.readers)
    }

    /// The primary's threads start from here on.
    fn change(&self, _: &mut Environment) {
        self.lock().entered = self.groups.first().map(Group::enter);
    }

    fn opened(&self, primary: &Arc<Database>) -> Result<(), BenchError> {
        self.lock().entered.take().unwrap_or(Ok(())).map_err(failed)?;
        if self.run.standbys > 0 && self.run.way.safety.asks_standbys() {
            let set = primary.set_safety(self.run.way.safety);
            set.map_err(|error| failed(error.into()))?;
        }
        Ok(())
    }

    fn filled(&self, primary: &Arc<Database>) -> Result<(), BenchError> {
        self.begin(primary).map_err(failed)
    }

    fn ran(&self, primary: &Arc<Database>) -> Result<(), BenchError> {
        self.finish(primary).map_err(failed)
    }
}

impl Run<'_> {
    /// Runs it on folders that are emptied before and after.
    pub fn measure(&self) -> Result<Measured> {
        self.clear()?;
        let groups = self.quotas.map(|quotas| groups(quotas, self.standbys)).transpose()?;
        let cluster = Cluster {
            run: self,
            groups: groups.unwrap_or_default(),
            state: Mutex::default(),
        };
        let report = run_in(&options(self, Some(self.dir.join("primary"))), &cluster, &|_| {});
        let mut state = cluster.state.into_inner().expect("nothing panics while it is held");
        // Whatever the run came to, its threads end.
        drop(state.sampler.take());
        for readers in std::mem::take(&mut state.readers) {
            let _ = readers.finish(); // the run's own error is the one to tell
        }
        let ended: Result<Vec<()>> = std::mem::take(&mut state.standbys)
            .into_iter()
            .map(Standby::end)
            .collect();
        self.clear()?;
        let report = report.with_context(|| format!("{} with {} standbys", self.way.name, self.standbys))?;
        ended?;
        Ok(Measured {
            report,
            samples: state.samples,
            reads_per_s: state.reads_per_s,
            spent: state.spent,
            records: state.records,
            catch_up_s: state.catch_up_s,
        })
    }

    pub fn clear(&self) -> Result<()> {
        for dir in [self.dir, self.disk] {
            match fs::remove_dir_all(dir) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("empty {}", dir.display()));
                }
                _ => fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?,
            }
        }
        Ok(())
    }
}
