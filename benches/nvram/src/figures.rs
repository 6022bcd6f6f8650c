//! The figures of NV-Logging that tell how a log in NVRAM does, drawn anew with what was measured here, beside the paper's reading.

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use reprise_bench_figures::{Chart, Claim, Point};
use reprise_nvram::FlushPolicy;

use crate::{
    insertion::{SIZES, WAYS, insertion_us, write_us},
    schemes::{Run, Scheme},
};

/// How the figures are measured.
pub struct Settings {
    pub nvram: PathBuf,
    pub modules: Option<PathBuf>,
    pub seconds: f64,
    pub warmup_s: f64,
    pub runs: u32,
    /// Engine threads, growing.
    pub sites: Vec<u16>,
    /// Additional time of a line, in nanoseconds.
    pub delays_ns: Vec<u64>,
    /// Branches of TPC-B; none: as many as the driver takes.
    pub branches: Option<u32>,
    pub conditions: String,
}

const REGION_BYTES: u64 = 256 << 20;
/// Sizes from here on are what a group commit flushes.
const GROUPS_FROM: usize = 4;

const ON_COMMIT: Scheme = Scheme::NvLogging(FlushPolicy::OnCommit);
const ON_INSERT: Scheme = Scheme::NvLogging(FlushPolicy::OnInsertFence);

impl Settings {
    fn chart(&self, name: &str, title: &str, (x, y): (&'static str, &'static str)) -> Chart {
        Chart::new(name.into(), title, [x, y], &self.conditions)
    }

    fn each_run<T>(&self, mut measure: impl FnMut() -> Result<T>) -> Result<Vec<T>> {
        (0..self.runs).map(|_| measure()).collect()
    }

    /// Write latency by way and size.
    pub fn figure_9(&self) -> Result<Vec<Chart>> {
        let title = "Figure 9: a write to NVRAM, by its size and its way";
        let mut chart = self.chart("nv-logging-9", title, ("bytes", "us"));
        chart.is_log = true;
        let run = Duration::from_secs_f64(self.seconds / 10.0);
        for way in WAYS {
            for bytes in SIZES {
                chart.points.push(Point {
                    series: way.into(),
                    x: bytes as f64,
                    y: self.each_run(|| write_us(way, &self.nvram, bytes, run))?,
                });
            }
        }
        let objects = |x: f64| x < SIZES[GROUPS_FROM] as f64;
        chart.paper = vec![
            chart.claim(
                "log objects: file system to memcpy, times",
                (49.0, 154.0),
                ("file-system", "memcpy"),
                &objects,
            ),
            chart.claim(
                "log objects: mmap to memcpy, times",
                (5.0, 18.3),
                ("mmap", "memcpy"),
                &objects,
            ),
            chart.claim(
                "groups: file system to memcpy, times",
                (5.0, 9.5),
                ("file-system", "memcpy"),
                &|x| !objects(x),
            ),
            chart.claim("groups: mmap to memcpy, times", (1.4, 2.9), ("mmap", "memcpy"), &|x| {
                !objects(x)
            }),
        ];
        Ok(vec![chart])
    }

    /// Latency of an insertion by the number of threads.
    pub fn figure_11(&self) -> Result<Vec<Chart>> {
        let title = "Figure 11: an insertion into the log, by threads";
        let mut chart = self.chart("nv-logging-11", title, ("threads", "us"));
        let run = Duration::from_secs_f64(self.seconds);
        for (series, nv_logging) in [("nv-disk", false), ("nv-logging", true)] {
            for sites in &self.sites {
                chart.points.push(Point {
                    series: series.into(),
                    x: f64::from(*sites),
                    y: self.each_run(|| insertion_us(nv_logging, &self.nvram, *sites, run))?,
                });
            }
        }
        let most = |series: &str| {
            let points = chart.points.iter().filter(|point| point.series == series);
            points.map(Point::median).fold(0.0, f64::max)
        };
        let (disk, logging) = (most("nv-disk"), most("nv-logging"));
        chart.paper = vec![
            Claim {
                text: "NV-Disk, at most, us",
                paper: (74.3, 74.3),
                ours: Some((disk, disk)),
            },
            Claim {
                text: "NV-Logging, at most, us",
                paper: (2.5, 2.5),
                ours: Some((logging, logging)),
            },
        ];
        Ok(vec![chart])
    }

    /// TPC-C by delay and number of threads.
    pub fn figure_12(&self) -> Result<Vec<Chart>> {
        let by_sites = self.sites.iter().map(|sites| {
            let (name, title) = (
                format!("nv-logging-12-sites-{sites}"),
                format!("Figure 12: TPC-C on {sites} sites, by what a line takes longer"),
            );
            let mut chart = self.throughput(&name, &title, "tpcc", *sites)?;
            chart.paper = vec![
                chart.claim(
                    "NV-Logging to NV-Disk, times",
                    (1.62, 2.72),
                    (&ON_COMMIT.name(), "nv-disk"),
                    &|_| true,
                ),
                chart.claim(
                    "flush-on-commit to flush-on-insert, slower writes, times",
                    (1.0789, 1.1379),
                    (&ON_COMMIT.name(), &ON_INSERT.name()),
                    &|x| x > 0.0,
                ),
                chart.claim(
                    "NV-Logging to distributed logging, times",
                    (1.138, 1.2681),
                    (&ON_COMMIT.name(), "distributed"),
                    &|_| true,
                ),
            ];
            Ok(chart)
        });
        by_sites.collect()
    }

    /// A workload of figure 13 on the most sites, by delay.
    fn part_of_13(&self, workload: &str, what: &str) -> Result<Chart> {
        let sites = self.sites.last().copied().unwrap_or(1);
        let title = format!("Figure 13: {what} on {sites} sites, by what a line takes longer");
        self.throughput(&format!("nv-logging-13-{workload}"), &title, workload, sites)
    }

    /// TATP by delay.
    pub fn figure_13_tatp(&self) -> Result<Vec<Chart>> {
        let mut tatp = self.part_of_13("tatp", "TATP")?;
        tatp.paper = vec![
            tatp.claim(
                "NV-Logging to NV-Disk, times",
                (1.10, 1.62),
                (&ON_COMMIT.name(), "nv-disk"),
                &|_| true,
            ),
            tatp.claim(
                "flush-on-commit to flush-on-insert, times",
                (1.0, 1.2432),
                (&ON_COMMIT.name(), &ON_INSERT.name()),
                &|_| true,
            ),
            tatp.claim(
                "NV-Logging to distributed logging, times",
                (1.0894, 1.1097),
                (&ON_COMMIT.name(), "distributed"),
                &|_| true,
            ),
        ];
        Ok(vec![tatp])
    }

    /// TPC-B by delay.
    pub fn figure_13_tpcb(&self) -> Result<Vec<Chart>> {
        let mut tpcb = self.part_of_13("tpcb", "TPC-B")?;
        tpcb.paper = vec![
            tpcb.claim(
                "NV-Logging to NV-Disk, times",
                (1.26, 1.99),
                (&ON_COMMIT.name(), "nv-disk"),
                &|_| true,
            ),
            tpcb.claim(
                "flush-on-commit to flush-on-insert, times",
                (1.0, 1.2918),
                (&ON_COMMIT.name(), &ON_INSERT.name()),
                &|_| true,
            ),
            tpcb.claim(
                "NV-Logging to distributed logging, times",
                (1.15, 1.21),
                (&ON_COMMIT.name(), "distributed"),
                &|_| true,
            ),
        ];
        Ok(vec![tpcb])
    }

    /// Transactions a second with each scheme; the schemes in turn, so that other work of the machine meets all alike.
    fn throughput(&self, name: &str, title: &str, workload: &str, sites: u16) -> Result<Chart> {
        let mut chart = self.chart(name, title, ("ns a line", "transactions a second"));
        for delay_ns in &self.delays_ns {
            let mut rates = vec![Vec::new(); Scheme::ALL.len()];
            for round in 0..self.runs {
                let run = Run {
                    workload,
                    sites,
                    line: Duration::from_nanos(*delay_ns),
                    seconds: self.seconds,
                    warmup_s: self.warmup_s,
                    seed: 1 + u64::from(round),
                    nvram: &self.nvram,
                    region_bytes: REGION_BYTES,
                    scale: self.branches.filter(|_| workload == "tpcb"),
                    modules: self.modules.clone(),
                };
                for (scheme, rates) in Scheme::ALL.into_iter().zip(&mut rates) {
                    rates.push(run.measure(scheme)?.txn_per_s);
                }
                eprintln!("{name}, {delay_ns} ns a line: round {} of {}", round + 1, self.runs);
            }
            chart
                .points
                .extend(Scheme::ALL.into_iter().zip(rates).map(|(scheme, y)| Point {
                    series: scheme.name(),
                    x: *delay_ns as f64,
                    y,
                }));
        }
        Ok(chart)
    }
}
