//! The figures of NV-Logging that tell how a log in NVRAM does, drawn anew with what was measured here, beside the paper's reading.

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use reprise_bench_figures::{Chart, Claim, Drawing, Point, Table, TableClaim, TableGroup, TableRow};
use reprise_nvram::FlushPolicy;

use crate::{
    insertion::{SIZES, WAYS, insertion_us, write_us},
    prices::{NVRAM_TO_DISK, Prices},
    schemes::{Run, Scheme},
    timed::TimeShares,
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
    pub prices: Prices,
    pub conditions: String,
}

const REGION_BYTES: u64 = 256 << 20;
/// Sizes from here on are what a group commit flushes.
const GROUPS_FROM: usize = 4;

/// Columns of figure 15: the time of a transaction first, then shares in percent.
const SHARE_COLUMNS: [&str; 5] = [
    "us a transaction",
    "database percent",
    "log percent",
    "waiting percent",
    "log threads percent",
];

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
    pub fn figure_9(&self) -> Result<Vec<Drawing>> {
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
        Ok(vec![Drawing::Lines(chart)])
    }

    /// Latency of an insertion by the number of threads.
    pub fn figure_11(&self) -> Result<Vec<Drawing>> {
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
        Ok(vec![Drawing::Lines(chart)])
    }

    /// TPC-C by delay and number of threads.
    pub fn figure_12(&self) -> Result<Vec<Drawing>> {
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
            Ok(Drawing::Lines(chart))
        });
        by_sites.collect()
    }

    /// A workload of figure 13 on the most sites, by delay.
    fn part_of_13(&self, workload: &str, what: &str) -> Result<Chart> {
        let sites = self.most_sites();
        let title = format!("Figure 13: {what} on {sites} sites, by what a line takes longer");
        self.throughput(&format!("nv-logging-13-{workload}"), &title, workload, sites)
    }

    /// TATP by delay.
    pub fn figure_13_tatp(&self) -> Result<Vec<Drawing>> {
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
        Ok(vec![Drawing::Lines(tatp)])
    }

    /// TPC-B by delay.
    pub fn figure_13_tpcb(&self) -> Result<Vec<Drawing>> {
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
        Ok(vec![Drawing::Lines(tpcb)])
    }

    /// The workload of figures 15 and 16, and its title. A short run takes TPC-B, whose tables are filled in a moment.
    fn main_workload(&self) -> (&'static str, &'static str) {
        match self.branches {
            Some(_) => ("tpcb", "TPC-B"),
            None => ("tpcc", "TPC-C"),
        }
    }

    /// Shares of the engine threads' time with each scheme, on the most sites.
    pub fn figure_15(&self) -> Result<Vec<Drawing>> {
        let (sites, (workload, what)) = (self.most_sites(), self.main_workload());
        let mut rows: Vec<_> = Scheme::ALL
            .into_iter()
            .map(|scheme| TableRow {
                name: scheme.name(),
                cells: vec![Vec::new(); SHARE_COLUMNS.len()],
            })
            .collect();
        for round in 0..self.runs {
            let run = self.run(workload, sites, Duration::ZERO, round);
            for (scheme, row) in Scheme::ALL.into_iter().zip(&mut rows) {
                let (report, shares) = run.measure_shares(scheme)?;
                let us = 1e6 * f64::from(sites) / report.txn_per_s;
                let TimeShares {
                    database,
                    log,
                    waiting,
                    log_elsewhere,
                } = shares;
                for (cell, value) in row.cells.iter_mut().zip([us, database, log, waiting, log_elsewhere]) {
                    cell.push(value);
                }
            }
            eprintln!("nv-logging-15: round {} of {}", round + 1, self.runs);
        }
        let claims = share_claims(&rows);
        Ok(vec![Drawing::Bars(Table {
            name: "nv-logging-15".into(),
            title: format!("Figure 15: where the time of a {what} transaction goes, on {sites} sites"),
            columns: &SHARE_COLUMNS,
            groups: vec![TableGroup { name: what.into(), rows }],
            claims,
            notes: vec![
                "The bar is the time of an engine thread for each transaction. The three shares are of that time.".into(),
                "The log's share is the time in calls that write its memory, or wait for that. Timing them takes about 0.05 us a call.".into(),
                "No lock manager takes part: a partition runs one transaction at a time.".into(),
            ],
            conditions: self.conditions.clone(),
        })])
    }

    /// Throughput for each dollar, in multiples of NV-Disk's, by the price of NVRAM.
    pub fn figure_16(&self) -> Result<Vec<Drawing>> {
        let (sites, (workload, what)) = (self.most_sites(), self.main_workload());
        let title = format!(
            "Figure 16: {what} for each dollar on {sites} sites, in multiples of NV-Disk, by the price of NVRAM"
        );
        let mut chart = self.chart(
            "nv-logging-16",
            &title,
            ("price of NVRAM to disk", "transactions a second and dollar to NV-Disk"),
        );
        let rates = self.rates(&chart.name, workload, sites, Duration::ZERO)?;
        let baseline = rates
            .iter()
            .find(|(scheme, _)| *scheme == Scheme::NvDisk)
            .map(|(_, rates)| rates.clone())
            .unwrap_or_default();
        for (scheme, rates) in &rates {
            for ratio in NVRAM_TO_DISK {
                let cheaper = self.prices.dollars(Scheme::NvDisk, ratio) / self.prices.dollars(*scheme, ratio);
                let rounds = rates.iter().zip(&baseline);
                chart.points.push(Point::of(
                    &scheme.name(),
                    ratio,
                    rounds.map(|(rate, base)| rate / base * cheaper),
                ));
            }
        }
        chart.is_log = true;
        let Prices {
            dram,
            disk,
            data_gb,
            log_gb,
        } = self.prices;
        chart.notes = vec![
            format!("DRAM costs {dram} dollars a GB, and disk {disk}. {data_gb} GB of rows lie in DRAM with every scheme."),
            format!("NV-Disk has checkpoints and {log_gb} GB of log in NVRAM. The others have the log alone there."),
            "The paper's data lies in NVRAM or on disk, with a page cache of 6 GB. So its baseline costs more of NVRAM, and less of DRAM.".into(),
        ];
        chart.paper = vec![
            chart.claim(
                "NV-Logging to NV-Disk, times",
                (2.61, 6.72),
                (&ON_COMMIT.name(), "nv-disk"),
                &|_| true,
            ),
            chart.claim(
                "NV-Logging to distributed logging, times",
                (1.2113, 1.2113),
                (&ON_COMMIT.name(), "distributed"),
                &|_| true,
            ),
        ];
        Ok(vec![Drawing::Lines(chart)])
    }

    fn most_sites(&self) -> u16 {
        self.sites.last().copied().unwrap_or(1)
    }

    fn run<'a>(&'a self, workload: &'a str, sites: u16, line: Duration, round: u32) -> Run<'a> {
        Run {
            workload,
            sites,
            line,
            seconds: self.seconds,
            warmup_s: self.warmup_s,
            seed: 1 + u64::from(round),
            nvram: &self.nvram,
            region_bytes: REGION_BYTES,
            scale: self.branches.filter(|_| workload == "tpcb"),
            modules: self.modules.clone(),
        }
    }

    /// Transactions a second with each scheme, one number a round. The schemes run in turn, so that other work of the machine meets all alike.
    fn rates(&self, name: &str, workload: &str, sites: u16, line: Duration) -> Result<Vec<(Scheme, Vec<f64>)>> {
        let mut rates: Vec<_> = Scheme::ALL.into_iter().map(|scheme| (scheme, Vec::new())).collect();
        for round in 0..self.runs {
            let run = self.run(workload, sites, line, round);
            for (scheme, rates) in &mut rates {
                rates.push(run.measure(*scheme)?.txn_per_s);
            }
            eprintln!(
                "{name}, {} ns a line: round {} of {}",
                line.as_nanos(),
                round + 1,
                self.runs
            );
        }
        Ok(rates)
    }

    /// Transactions a second with each scheme, by delay.
    fn throughput(&self, name: &str, title: &str, workload: &str, sites: u16) -> Result<Chart> {
        let mut chart = self.chart(name, title, ("ns a line", "transactions a second"));
        for delay_ns in &self.delays_ns {
            let rates = self.rates(name, workload, sites, Duration::from_nanos(*delay_ns))?;
            chart.points.extend(rates.into_iter().map(|(scheme, y)| Point {
                series: scheme.name(),
                x: *delay_ns as f64,
                y,
            }));
        }
        Ok(chart)
    }
}

/// The paper's shares beside ours.
fn share_claims(rows: &[TableRow]) -> Vec<TableClaim> {
    let claim = |text: &str, scheme: Scheme, column: usize, paper: f64| TableClaim {
        text: text.into(),
        paper: Some((paper, paper)),
        ours: rows
            .iter()
            .find(|row| row.name == scheme.name())
            .map(|row| row.cells[column].clone())
            .unwrap_or_default(),
    };
    vec![
        claim(
            "NV-Disk: log contention, here waiting, percent",
            Scheme::NvDisk,
            3,
            27.64,
        ),
        claim("NV-Logging: log contention, here waiting, percent", ON_COMMIT, 3, 5.14),
        claim(
            "NV-Disk: log operations, here of a thread of its own, percent",
            Scheme::NvDisk,
            4,
            11.55,
        ),
        claim("NV-Logging: log operations, percent", ON_COMMIT, 2, 3.2),
        claim(
            "distributed logging: log operations, percent",
            Scheme::Distributed,
            2,
            10.65,
        ),
    ]
}
