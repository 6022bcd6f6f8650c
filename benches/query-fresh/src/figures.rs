//! Query Fresh's table 1 and figures 6 to 12, its bootstrap time, and the cost of replay by processor time, drawn anew with our measurements.

use std::path::{Path, PathBuf};

use anyhow::Result;
use reprise_bench_figures::{Chart, Claim, Point, bounds};

use crate::{
    bootstrap,
    flush::{self, FLUSHES},
    quota::Quotas,
    replay,
    ways::{LEGEND, Measured, Offered, Run, Sample, StandbyLog, Way},
};

/// How the figures are measured.
pub struct Settings {
    pub dir: PathBuf,
    pub disk: PathBuf,
    pub modules: Option<PathBuf>,
    pub seconds: f64,
    pub runs: u32,
    pub is_short: bool,
    /// Standbys of a point, growing, beside none.
    pub standbys: Vec<usize>,
    /// Engine threads, growing.
    pub sites: Vec<u16>,
    pub rate: Option<f64>,
    /// In figure 7.
    pub quotas: Option<Quotas>,
    /// Warehouses of each run; none: two, or one for each partition.
    pub warehouses: Option<u32>,
    pub conditions: String,
}

/// A series, and the run of one of its points.
pub(crate) type Pointed<'a> = (String, usize, Run<'a>);

/// Seconds that are one point of figure 7.
const STEP_S: f64 = 0.1;

const SHARED: &str = "TPC-C's full mix. Primary, standbys, load and readers are one process and share all processors; every node talks to the others by TCP on the loopback.";
const ALONE: &str = "0 standbys: the primary by itself, with the same form of log.";

impl Settings {
    pub(crate) fn chart(&self, name: &str, title: &str, (x, y): (&'static str, &'static str), notes: &[&str]) -> Chart {
        let mut chart = Chart::new(format!("query-fresh-{name}"), title, [x, y], &self.conditions);
        chart.notes = notes.iter().map(|note| (*note).to_owned()).collect();
        chart.ways = &LEGEND;
        chart
    }

    pub(crate) fn sites_max(&self) -> u16 {
        self.sites.last().copied().unwrap_or(1)
    }

    /// TPC-C as fast as it goes, with the standbys' logs beside the primary's.
    pub(crate) fn run(&self, way: Way, standbys: usize) -> Run<'_> {
        Run {
            way,
            workload: "tpcc",
            standbys,
            partitions: self.sites_max(),
            warehouses: self.warehouses,
            sites: self.sites_max(),
            remote_percent: None,
            replay_sites: 1,
            readers: 0,
            log: StandbyLog::Beside,
            offered: Offered::All,
            quotas: None,
            seconds: self.seconds,
            warmup_s: self.seconds / 10.0,
            seed: 1,
            dir: &self.dir,
            disk: &self.disk,
            modules: self.modules.clone(),
        }
    }

    /// Measures all of them in turn, so that other work of the machine meets all alike: by run of each point.
    pub(crate) fn measure(&self, runs: &[Pointed<'_>]) -> Result<Vec<Vec<Measured>>> {
        let mut measured: Vec<Vec<Measured>> = runs.iter().map(|_| Vec::new()).collect();
        for round in 0..self.runs {
            for (at, ((_, _, run), measured)) in runs.iter().zip(&mut measured).enumerate() {
                let seed = 1 + u64::from(round);
                measured.push(Run { seed, ..run.clone() }.measure()?);
                eprintln!("round {} of {}: run {} of {}", round + 1, self.runs, at + 1, runs.len());
            }
        }
        Ok(measured)
    }

    /// The points of all series.
    pub(crate) fn points(
        runs: &[Pointed<'_>],
        measured: &[Vec<Measured>],
        value: impl Fn(&Run<'_>, &Measured) -> f64,
    ) -> Vec<Point> {
        let points = runs.iter().zip(measured).map(|((series, x, run), measured)| Point {
            series: series.clone(),
            x: *x as f64,
            y: measured.iter().map(|measured| value(run, measured)).collect(),
        });
        points.collect()
    }

    /// Each series with 0 standbys, measured once for each form of log, and with as many as are asked for.
    fn by_standbys<'a>(&'a self, series: &[(String, Run<'a>)]) -> Vec<Pointed<'a>> {
        let with = series.iter().flat_map(|(name, run)| {
            let counts = self.standbys.iter();
            counts.map(|standbys| {
                let standbys = *standbys;
                (
                    name.clone(),
                    standbys,
                    Run {
                        standbys,
                        ..run.clone()
                    },
                )
            })
        });
        with.collect()
    }

    /// Table 1.
    pub fn table_1(&self) -> Result<Vec<Chart>> {
        let of = |name: &str, way: Way, standbys: usize, sites: u16| {
            let run = Run {
                sites,
                ..self.run(way, standbys)
            };
            (name.to_owned(), usize::from(sites), run)
        };
        let runs: Vec<_> = (self.sites.iter())
            .flat_map(|sites| {
                [
                    of("standalone", Way::STANDALONE, 0, *sites),
                    of("tcp", Way::NO_REPLAY, 1, *sites),
                ]
            })
            .collect();
        let measured = self.measure(&runs)?;
        let notes = [
            SHARED,
            "tcp: one standby that receives and persists the log and replays nothing; RDMA is measured by `cargo xtask figures rdma`.",
        ];
        let title = "Table 1: a primary alone, and with a standby that keeps the log";
        let mut chart = self.chart("table-1", title, ("engine threads", "transactions a second"), &notes);
        chart.points = Self::points(&runs, &measured, |_, measured| measured.report.txn_per_s);
        chart.paper = vec![
            chart.claim("TCP to standalone, times", (0.54, 0.94), ("tcp", "standalone"), &|_| {
                true
            }),
        ];
        let title = "Table 1: the log that a primary makes";
        let mut log = self.chart("table-1-log", title, ("engine threads", "MB a second"), &notes[..1]);
        let alone = |point: &Point| point.series == "standalone";
        log.points = Self::points(&runs, &measured, |run, measured| {
            measured.report.log_bytes as f64 / 1e6 / run.seconds
        });
        log.points.retain(alone);
        let bytes = measured.iter().flatten().map(|measured| {
            let report = &measured.report;
            report.log_bytes as f64 / report.committed.max(1) as f64
        });
        log.paper = vec![Claim {
            text: "bytes of log a transaction",
            paper: (2_010.0, 2_331.0),
            ours: bounds(bytes),
        }];
        Ok(vec![chart, log])
    }

    /// The ways of sections 4.5 and 4.7.
    fn ways(&self) -> Vec<(String, Run<'_>)> {
        let ways = [Way::QUERY_FRESH, Way::ARRAYS, Way::SYNC, Way::ASYNC, Way::LOGICAL];
        ways.map(|way| (way.name.to_owned(), self.run(way, 0))).into()
    }

    /// Throughput by the number of standbys; 0 is measured once for each form of log.
    fn throughput(&self, chart: &mut Chart, series: &[(String, Run<'_>)]) -> Result<Vec<Vec<Measured>>> {
        let mut runs = self.by_standbys(series);
        let mut alone: Vec<Pointed<'_>> = Vec::new();
        for (_, run) in series {
            if !alone.iter().any(|(_, _, other)| other.way.log == run.way.log) {
                alone.push((String::new(), 0, run.clone()));
            }
        }
        let count = alone.len();
        alone.append(&mut runs);
        let measured = self.measure(&alone)?;
        chart.points = Self::points(&alone[count..], &measured[count..], |_, measured| {
            measured.report.txn_per_s
        });
        for (name, run) in series {
            let found = (0..count).find(|at| alone[*at].2.way.log == run.way.log);
            let measured = found.map_or(&[][..], |at| &measured[at]);
            chart.points.push(Point {
                series: name.clone(),
                x: 0.0,
                y: measured.iter().map(|measured| measured.report.txn_per_s).collect(),
            });
        }
        Ok(measured)
    }

    /// Primary throughput by the number of standbys.
    pub fn figure_6(&self) -> Result<Vec<Chart>> {
        let title = "Figure 6: the primary, by the number of standbys";
        let mut chart = self.chart("6", title, ("standbys", "transactions a second"), &WAYS_NOTES);
        self.throughput(&mut chart, &self.ways())?;
        chart.paper = vec![
            of_alone(
                &chart,
                "query-fresh to none (paper: RDMA, one standby), times",
                (0.94, 0.96),
                "query-fresh",
            ),
            of_alone(
                &chart,
                "sync to none (paper: 10 Gb/s Ethernet, one standby), times",
                (0.54, 0.94),
                "sync",
            ),
        ];
        Ok(vec![chart])
    }

    /// Freshness over time.
    pub fn figure_7(&self) -> Result<Vec<Chart>> {
        let title = "Figure 7: freshness of a standby over time";
        let mut chart = self.chart("7", title, ("s", "percent"), &WAYS_NOTES);
        chart.notes.push(
            "Freshness: what the standby shows of what the primary committed since the run began, each 20 ms; a point is the median of 0.1 s.".into(),
        );
        chart
            .notes
            .push("query-fresh-reads: the same with Stock-Level and Order-Status on one reader all the time.".into());
        let offered = self.rate.map_or(Offered::All, Offered::Rate);
        let mut runs: Vec<_> = (self.ways().into_iter())
            .map(|(name, run)| {
                let run = Run {
                    standbys: 1,
                    offered,
                    quotas: self.quotas,
                    ..run
                };
                (name, 1, run)
            })
            .collect();
        let with_reads = runs
            .iter()
            .find(|(name, ..)| name == "query-fresh")
            .map(|(_, _, run)| Run {
                readers: 1,
                ..run.clone()
            });
        runs.extend(with_reads.map(|run| ("query-fresh-reads".to_owned(), 1, run)));
        let measured = self.measure(&runs)?;
        for ((name, _, _), measured) in runs.iter().zip(&measured) {
            chart.points.extend(over_time(name, measured));
            let scores = |which: fn(&Sample) -> f64| measured.iter().flat_map(move |run| run.samples.iter().map(which));
            let (score, plain) = (scores(|sample| sample.score), scores(|sample| sample.plain));
            let caught_up = Point::of(name, 0.0, measured.iter().map(|run| run.catch_up_s));
            chart.notes.push(format!(
                "{name}: median {:.2} %, first percentile {:.2} %; by the paper's plain ratio of LSNs {:.2} %; lag of 99 of 100 samples {:.1} ms; \
                 {:.2} s to catch up at the end; {:.0} reads a second; {:.0} transactions a second.",
                100.0 * quantile(score.clone(), 0.5),
                100.0 * quantile(score, 0.01),
                100.0 * quantile(plain, 0.5),
                1e3 * quantile(scores(|sample| sample.lag_s), 0.99),
                caught_up.median(),
                Point::of(name, 0.0, measured.iter().map(|run| run.reads_per_s)).median(),
                Point::of(name, 0.0, measured.iter().map(|run| run.report.txn_per_s)).median(),
            ));
        }
        let ours = runs
            .iter()
            .zip(&measured)
            .find(|((name, _, _), _)| name == "query-fresh");
        let medians = ours
            .into_iter()
            .flat_map(|(_, measured)| measured)
            .map(|run| 100.0 * quantile(run.samples.iter().map(|sample| sample.score), 0.5));
        chart.paper = vec![Claim {
            text: "query-fresh, median, percent",
            paper: (99.0, 100.0),
            ours: bounds(medians),
        }];
        Ok(vec![chart])
    }

    /// Replay policies by the number of standbys: the primary, and reads on the standbys.
    pub fn figure_8(&self) -> Result<Vec<Chart>> {
        let ways = [
            Way::NO_REPLAY,
            Way::QUERY_FRESH.named("pipelined"),
            Way::SYNC.named("synchronous"),
        ];
        let series: Vec<_> = ways
            .iter()
            .map(|way| (way.name.to_owned(), self.run(*way, 0)))
            .collect();
        let title = "Figure 8: the primary, by replay policy and standbys";
        let mut top = self.chart(
            "8",
            title,
            ("standbys", "transactions a second"),
            &[SHARED, ALONE, POLICIES],
        );
        self.throughput(&mut top, &series)?;
        top.paper = vec![top.claim(
            "pipelined to no-replay, times",
            (1.0, 1.0),
            ("pipelined", "no-replay"),
            &|x| x > 0.0,
        )];
        let series: Vec<_> = series.into_iter().skip(1).collect();
        let title = "Figure 8: reads of all standbys, by replay policy";
        let bottom = self.reads(
            "8-reads",
            title,
            &series,
            &[
                SHARED,
                POLICIES,
                "no-replay is left out: a standby that never replays is not opened for reads here.",
            ],
        )?;
        Ok(vec![top, bottom])
    }

    /// Stock-Level and Order-Status on standbys while the primary runs as fast as it goes.
    fn reads(&self, name: &str, title: &str, series: &[(String, Run<'_>)], notes: &[&str]) -> Result<Chart> {
        let mut chart = self.chart(name, title, ("standbys", "reads a second"), notes);
        let series: Vec<_> = series
            .iter()
            .map(|(name, run)| {
                (
                    name.clone(),
                    Run {
                        readers: 1,
                        ..run.clone()
                    },
                )
            })
            .collect();
        let runs = self.by_standbys(&series);
        let measured = self.measure(&runs)?;
        chart.points = Self::points(&runs, &measured, |_, measured| measured.reads_per_s);
        chart
            .notes
            .push("Each standby has one reader, with one client of Stock-Level and Order-Status in turn.".into());
        Ok(chart)
    }

    /// Both replay policies by the number of replay threads.
    fn policies(&self, offered: Offered) -> Vec<(String, Run<'_>)> {
        let of_sites = self.sites.iter().flat_map(|replay_sites| {
            [Way::QUERY_FRESH.named("pipelined"), Way::SYNC.named("synchronous")].map(|way| {
                let run = Run {
                    replay_sites: *replay_sites,
                    offered,
                    ..self.run(way, 0)
                };
                (format!("{}-{replay_sites}", way.name), run)
            })
        });
        of_sites.collect()
    }

    /// Throughput by the number of replay threads.
    pub fn figure_9(&self) -> Result<Vec<Chart>> {
        let title = "Figure 9: the primary, by replay policy, replay threads and standbys";
        let mut chart = self.chart(
            "9",
            title,
            ("standbys", "transactions a second"),
            &[SHARED, ALONE, POLICIES, THREADS],
        );
        self.throughput(&mut chart, &self.policies(Offered::All))?;
        Ok(vec![chart])
    }

    /// Lazy replay against full instantiation.
    pub fn figure_10(&self) -> Result<Vec<Chart>> {
        let title = "Figure 10: the primary, by what replay builds, and standbys";
        let notes = [
            SHARED,
            ALONE,
            "full-instantiation: the product, whose replay puts rows in place; replay-arrays: replay notes where each row's newest change lies, and builds no row.",
            "replay-arrays does no index work, which the product's replay does for insertions, deletions and new keys.",
        ];
        let mut chart = self.chart("10", title, ("standbys", "transactions a second"), &notes);
        let ways = [Way::ARRAYS, Way::QUERY_FRESH.named("full-instantiation")];
        let series: Vec<_> = ways
            .iter()
            .map(|way| (way.name.to_owned(), self.run(*way, 0)))
            .collect();
        self.throughput(&mut chart, &series)?;
        Ok(vec![chart])
    }

    /// Latency of a commit by itself.
    pub fn figure_11(&self) -> Result<Vec<Chart>> {
        let title = "Figure 11: a commit by itself, by replay policy, replay threads and standbys";
        let notes = [
            SHARED,
            ALONE,
            POLICIES,
            THREADS,
            "One call is on its way at a time. The paper commits groups of 4 MB, with 3.38 ms for a commit without standbys.",
        ];
        let mut chart = self.chart("11", title, ("standbys", "median us"), &notes);
        let series = self.policies(Offered::One);
        let mut runs = vec![(String::new(), 0, series[0].1.clone())];
        runs.extend(self.by_standbys(&series));
        let measured = self.measure(&runs)?;
        let p50 = |_: &Run<'_>, measured: &Measured| measured.report.latency_us.p50;
        chart.points = Self::points(&runs[1..], &measured[1..], p50);
        for (name, run) in &series {
            chart.points.push(Point::of(
                name,
                0.0,
                measured[0].iter().map(|measured| p50(run, measured)),
            ));
        }
        let name = |policy: &str| format!("{policy}-{}", self.sites_max());
        chart.paper = vec![
            of_alone(
                &chart,
                "pipelined to none (paper: at most), times",
                (1.16, 1.16),
                &name("pipelined"),
            ),
            of_alone(&chart, "synchronous to none, times", (1.04, 4.74), &name("synchronous")),
        ];
        Ok(vec![chart])
    }

    /// The device of the standby's log.
    pub fn figure_12(&self) -> Result<Vec<Chart>> {
        let of = |way: Way, log: StandbyLog| {
            let run = Run {
                log,
                ..self.run(way, 0)
            };
            (way.name.to_owned(), run)
        };
        let series = [
            of(Way::IDEAL, StandbyLog::Beside),
            of(Way::QUERY_FRESH.named("file"), StandbyLog::Disk),
            of(Way::QUERY_FRESH.named("file-in-memory"), StandbyLog::Beside),
            of(Way::QUERY_FRESH.named("nvram"), StandbyLog::Nvram),
        ];
        let notes = [
            SHARED,
            ALONE,
            "ideal: the standby acknowledges received records. file: it acknowledges records in its log on a disk. file-in-memory: its log is on \
             the primary's file system. nvram: its log is in a region in memory, through libpmem if there is one.",
            "nvram-clwb and nvram-clflush: libpmem has no stores that pass by the caches, and flushes lines by this instruction. Each point is a process of \
             its own, measured behind the other series.",
            "The product persists before it replays, so replay threads flush nothing.",
        ];
        let title = "Figure 12: the primary, by what the standbys' logs are written to";
        let mut top = self.chart("12", title, ("standbys", "transactions a second"), &notes);
        self.throughput(&mut top, &series)?;
        for flush in FLUSHES {
            for standbys in &self.standbys {
                let rates: Vec<_> = (0..self.runs)
                    .map(|round| flush::measure_apart(flush, *standbys, round))
                    .collect::<Result<_>>()?;
                top.points
                    .push(Point::of(flush.series, *standbys as f64, rates.into_iter()));
            }
        }
        let to_ideal = |text, least, series| top.claim(text, (least, 1.0), (series, "ideal"), &|x| x > 0.0);
        top.paper = vec![
            to_ideal("nvram-clwb to ideal (paper: CLWB), times", 0.91, "nvram-clwb"),
            to_ideal("nvram-clflush to ideal (paper: CLFLUSH), times", 0.58, "nvram-clflush"),
        ];
        let title = "Figure 12: reads of all standbys, by what their logs are written to";
        let bottom = self.reads("12-reads", title, &series, &[SHARED, notes[2]])?;
        Ok(vec![top, bottom])
    }

    /// One run with standbys whose logs are in NVRAM.
    pub fn with_nvram(&self, standbys: usize, seed: u64) -> Result<Measured> {
        let run = Run {
            log: StandbyLog::Nvram,
            seed,
            ..self.run(Way::QUERY_FRESH, standbys)
        };
        run.measure()
    }

    /// How long a new standby takes.
    pub fn bootstrap(&self) -> Result<Vec<Chart>> {
        let title = "Bootstrap: a new standby, by how long its primary had run";
        let notes = [
            SHARED,
            "files: checkpoint and log copied; checkpoint: loaded; log: replayed; catch-up: until it had all of its primary, which rests meanwhile.",
            "A primary with more than 64 MiB of log behind its checkpoint takes another one first, which is part of files.",
        ];
        let mut chart = self.chart("bootstrap", title, ("s", "s"), &notes);
        let (mut loaded, mut replayed, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        for seconds in [self.seconds / 4.0, self.seconds / 2.0, self.seconds] {
            let run = Run {
                seconds,
                warmup_s: 0.0,
                ..self.run(Way::QUERY_FRESH, 0)
            };
            let began: Result<Vec<_>> = (0..self.runs).map(|_| bootstrap::measure(&run)).collect();
            let began = began?;
            let all =
                |began: &crate::standby::Began| began.files_s + began.checkpoint_s + began.log_s + began.catch_up_s;
            for (series, values) in [
                ("files", began.iter().map(|began| began.files_s).collect::<Vec<_>>()),
                ("checkpoint", began.iter().map(|began| began.checkpoint_s).collect()),
                ("log", began.iter().map(|began| began.log_s).collect()),
                ("catch-up", began.iter().map(|began| began.catch_up_s).collect()),
                ("whole", began.iter().map(all).collect()),
            ] {
                chart.points.push(Point::of(series, seconds, values.into_iter()));
            }
            loaded.extend(
                began
                    .iter()
                    .map(|began| began.checkpoint_bytes as f64 / 1e6 / began.checkpoint_s),
            );
            replayed.extend(began.iter().map(|began| began.log_bytes as f64 / 1e6 / began.log_s));
            whole.extend(began.iter().map(all));
        }
        let claim = |text, paper, values: Vec<f64>| Claim {
            text,
            paper,
            ours: bounds(values.into_iter().filter(|value| value.is_finite() && *value > 0.0)),
        };
        chart.paper = vec![
            claim("checkpoint, MB of rows a second", (310.0, 310.0), loaded),
            claim("log, MB a second", (248.0, 248.0), replayed),
            claim("whole, s", (30.0, 30.0), whole),
        ];
        Ok(vec![chart])
    }

    /// Processor time of a transaction on either side.
    pub fn processor(&self) -> Result<Vec<Chart>> {
        let series = self.ways();
        let mut runs = vec![
            ("standalone".to_owned(), 0, self.run(Way::STANDALONE, 0)),
            ("standalone-commands".to_owned(), 0, self.run(Way::LOGICAL, 0)),
        ];
        runs.extend(
            series
                .into_iter()
                .map(|(name, run)| (name, 1, Run { standbys: 1, ..run })),
        );
        let measured = self.measure(&runs)?;
        let notes = [
            SHARED,
            "Processor time of threads by logged transaction, which other work of the machine touches little.",
            "primary: engine, log and shipping; standby: log, replay and link. What TCP's reading threads take is in neither: their names do not tell whose they are.",
        ];
        let axes = ("standbys", "ns a transaction");
        let mut primary = self.chart(
            "processor-primary",
            "Processor time of a transaction on the primary",
            axes,
            &notes,
        );
        let mut standby = self.chart(
            "processor-standby",
            "Processor time of a transaction on the standby",
            axes,
            &notes,
        );
        let each = |ns: u64, measured: &Measured| ns as f64 / measured.records.max(1) as f64;
        primary.points = Self::points(&runs, &measured, |_, run| each(run.spent.primary_ns, run));
        standby.points = Self::points(&runs[2..], &measured[2..], |_, run| each(run.spent.standbys_ns, run));
        let median = |chart: &Chart, series: &str| {
            let found = chart.points.iter().find(|point| point.series == series);
            found.map_or(f64::NAN, Point::median)
        };
        let alone = median(&primary, "standalone");
        let engine = |way: &str| {
            let found = runs.iter().position(|(name, _, _)| name == way);
            let engine = found.into_iter().flat_map(|at| &measured[at]);
            quantile(
                engine
                    .filter_map(|run| run.report.engine_ns_per_call)
                    .map(|ns| ns as f64),
                0.5,
            )
        };
        for way in ["async", "query-fresh", "sync", "replay-arrays"] {
            let ratio = median(&primary, way) / alone;
            let engine = engine(way) / engine("standalone");
            primary.notes.push(format!(
                "{way}: {ratio:.2} x the processor time of standalone; the engine threads alone {engine:.2} x."
            ));
            let ratio = alone / median(&standby, way);
            standby.notes.push(format!(
                "{way}: a core takes {ratio:.2} x the transactions that a core of the primary makes alone."
            ));
        }
        let commands = median(&primary, "standalone-commands");
        let (logical, run_again) = (
            median(&primary, "logical") / commands,
            commands / median(&standby, "logical"),
        );
        primary.notes.push(format!(
            "logical: {logical:.2} x the processor time of standalone with commands."
        ));
        standby.notes.push(format!("logical: a core takes {run_again:.2} x the transactions that a core of the primary makes alone with commands."));
        Ok(vec![primary, standby])
    }

    /// One log replayed by redo and by replay arrays on one thread, and reads of what that left.
    pub fn replay(&self) -> Result<Vec<Chart>> {
        ["tpcc", "voter"]
            .into_iter()
            .map(|workload| self.replay_of(workload))
            .collect()
    }

    /// A log to be replayed by itself.
    pub fn make_log(&self, workload: &str, dir: &Path) -> Result<()> {
        let made = replay::make_log(&self.replay_run(workload), dir)?;
        println!(
            "{:.0} transactions a second; the engine took {:?} ns for each",
            made.txn_per_s, made.engine_ns
        );
        Ok(())
    }

    fn replay_run<'a>(&'a self, workload: &'a str) -> Run<'a> {
        Run {
            workload,
            partitions: 1,
            sites: 1,
            ..self.run(Way::STANDALONE, 0)
        }
    }

    fn replay_of(&self, workload: &'static str) -> Result<Chart> {
        let title = format!("Replay of {workload} on one thread, and reads behind it");
        let notes = [
            "run: the engine's processor time of a transaction, which made the log. redo: the replay puts changes in place as the product does. \
             replay-arrays: the replay notes places and does no index work.",
            "Reads are by row number, of rows that the run changed, in random order. The rows are in place, or built from the changes and \
             installed, or installed before.",
        ];
        let mut chart = self.chart(&format!("replay-{workload}"), &title, ("1", "ns"), &notes);
        let run = self.replay_run(workload);
        let (mut made, mut replayed) = (Vec::new(), Vec::new());
        for _ in 0..self.runs {
            let dir = self.dir.join("replay");
            let log = replay::make_log(&run, &dir)?;
            replayed.push(replay::measure(workload, &log.dir)?);
            made.push(log);
            std::fs::remove_dir_all(&dir)?;
        }
        let engine = made.iter().filter_map(|made| made.engine_ns).map(|ns| ns as f64);
        chart.points.push(Point::of("run", 1.0, engine));
        let values: [(&str, fn(&replay::Replayed) -> f64); 5] = [
            ("redo", |found| found.redo_ns),
            ("replay-arrays", |found| found.arrays_ns),
            ("read in place", |found| found.plain_read_ns),
            ("first read by replay-arrays", |found| found.first_read_ns),
            ("later read by replay-arrays", |found| found.later_read_ns),
        ];
        for (series, value) in values {
            chart.points.push(Point::of(series, 1.0, replayed.iter().map(value)));
        }
        for found in &replayed {
            chart.notes.push(format!(
                "{} transactions with {} changes of {} rows in {} bytes; {:.1} changes behind a row that is read; redo {:.2} x replay-arrays, first read {:.2} x, later {:.2} x a read in place.",
                found.transactions,
                found.changes,
                found.rows,
                found.log_bytes,
                found.chain,
                found.redo_ns / found.arrays_ns,
                found.first_read_ns / found.plain_read_ns,
                found.later_read_ns / found.plain_read_ns,
            ));
        }
        Ok(chart)
    }
}

const POLICIES: &str = "pipelined: the product, whose standby replays behind its acknowledgement; synchronous: it acknowledges what it has replayed.";
const THREADS: &str = "The number behind a series is that of threads that replay on each standby.";

const WAYS_NOTES: [&str; 6] = [
    SHARED,
    ALONE,
    "query-fresh: the product at 2-safe. The primary ships changes as it writes them, and the standby puts them in place after its acknowledgement. \
     Its replay builds rows while no client reads. The paper's replay arrays are the series replay-arrays.",
    "sync: as query-fresh, but the standby acknowledges what it has replayed. The paper's Sync replays behind its acknowledgement over slower Ethernet, which over one network is query-fresh with rows built.",
    "async: 1-safe, changes; logical: 2-safe, commands that the standby runs again.",
    "replay-arrays: 2-safe, and the standby notes where each row's newest change lies; it serves no reads, and does no index work.",
];

/// A series at its standbys to what the primary does without any.
fn of_alone(chart: &Chart, text: &'static str, paper: (f64, f64), series: &str) -> Claim {
    let of = |x: f64| {
        let mut points = chart.points.iter();
        points
            .find(|point| point.series == series && point.x == x)
            .map(Point::median)
    };
    let points = chart
        .points
        .iter()
        .filter(|point| point.series == series && point.x > 0.0);
    let ratios = points.filter_map(|point| Some(point.median() / of(0.0)?));
    Claim {
        text,
        paper,
        ours: bounds(ratios),
    }
}

/// Freshness in percent, in steps.
fn over_time(name: &str, measured: &[Measured]) -> Vec<Point> {
    let samples = || measured.iter().flat_map(|run| &run.samples);
    let last = samples().map(|sample| sample.at_s).fold(0.0, f64::max);
    let steps = (0..=(last / STEP_S) as usize).map(|step| {
        let of_step = samples().filter(|sample| (sample.at_s / STEP_S) as usize == step);
        Point::of(name, step as f64 * STEP_S, of_step.map(|sample| 100.0 * sample.score))
    });
    steps.filter(|point| !point.y.is_empty()).collect()
}

fn quantile(values: impl Iterator<Item = f64>, part: f64) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() as f64 * part) as usize;
    sorted
        .get(at.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(f64::NAN)
}

/// The values of `--figure`, in words.
pub const NAMES: &str = "table-1, 6, 7, 8, 9, 10, 11, 12, bootstrap, processor, replay and command-logging-10";
