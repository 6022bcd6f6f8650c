//! The figures of "Rethinking Main Memory OLTP Recovery", drawn anew with what was measured here, beside the paper's reading.

mod tables;

use std::{fmt::Write as _, path::PathBuf};

use anyhow::{Context, Result};
use reprise_bench_figures::{Chart, Claim, Drawing, Point, bounds};
use reprise_database::LogPolicy;
use reprise_driver::Report;

use crate::runs::{LOGS, Offered, Run};

/// How the figures are measured.
pub struct Settings {
    pub dir: PathBuf,
    pub modules: Option<PathBuf>,
    pub is_short: bool,
    pub seconds: f64,
    pub runs: u32,
    pub cores: u16,
    pub conditions: String,
}

/// Figures that share their runs.
pub struct Figure {
    /// The names that `--figure` takes, in the order of the charts.
    pub names: &'static [&'static str],
    pub measure: fn(&Settings) -> Result<Vec<Drawing>>,
}

pub const FIGURES: [Figure; 7] = [
    Figure {
        names: &["3", "4"],
        measure: |settings| settings.by_load("voter", ["3", "4"]).map(lines),
    },
    Figure {
        names: &["5"],
        measure: |settings| settings.replay("voter", "5").map(lines),
    },
    Figure {
        names: &["6", "7"],
        measure: |settings| settings.by_load("tpcc", ["6", "7"]).map(lines),
    },
    Figure {
        names: &["8"],
        measure: |settings| settings.replay("tpcc", "8").map(lines),
    },
    Figure {
        names: &["9", "11"],
        measure: |settings| settings.by_distribution().map(lines),
    },
    Figure {
        names: &["bytes"],
        measure: Settings::bytes,
    },
    Figure {
        names: &["cut"],
        measure: Settings::cut,
    },
];

/// Offered load, of what the engine takes from a generator without a log.
const LOADS: [f64; 7] = [0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.2];
const LOADS_SHORT: [f64; 2] = [0.2, 1.2];
/// Loads up to this leave the engine with time to spare.
const LIGHT: f64 = 0.6;
/// Percent of transactions that touch two partitions, in figure 9.
const REMOTE: [u8; 7] = [0, 1, 5, 10, 25, 50, 100];
const REMOTE_SHORT: [u8; 2] = [0, 100];

const GROUPS: &str = "Group commit as the server has it: the next write to the log begins when the last one ended. The paper waits 5 ms.";
const QUEUE: &str = "At most 5,000 calls wait, as in the paper; the server refuses others at once.";

/// The paper's name of a workload.
fn title_of(workload: &str) -> &'static str {
    if workload == "voter" { "Voter" } else { "TPC-C" }
}

fn lines(charts: Vec<Chart>) -> Vec<Drawing> {
    charts.into_iter().map(Drawing::Lines).collect()
}

fn claim(text: &'static str, paper: [f64; 2], ours: Option<(f64, f64)>) -> Claim {
    let [least, most] = paper;
    Claim {
        text,
        paper: (least, most),
        ours,
    }
}

impl Settings {
    fn chart(&self, name: &str, title: &str, axes: [&'static str; 2], notes: &[&str]) -> Chart {
        Chart {
            notes: notes.iter().map(|note| (*note).to_owned()).collect(),
            ..Chart::new(format!("command-logging-{name}"), title, axes, &self.conditions)
        }
    }

    fn run(&self, workload: &'static str, log: LogPolicy, sites: u16) -> Run<'_> {
        Run {
            workload,
            log,
            offered: Offered::All,
            sites,
            remote_percent: None,
            warehouses: (self.is_short && workload == "tpcc").then(|| u32::from(sites)),
            restart: false,
            record_bytes_max: None,
            seconds: self.seconds,
            seed: 1,
            dir: &self.dir,
            modules: self.modules.clone(),
        }
    }

    /// Measures all of them in turn, so that other work of the machine meets all alike: the reports of each.
    fn measure(&self, runs: &[Run<'_>]) -> Result<Vec<Vec<Report>>> {
        let mut reports: Vec<Vec<Report>> = runs.iter().map(|_| Vec::new()).collect();
        for round in 0..self.runs {
            for (at, (run, reports)) in runs.iter().zip(&mut reports).enumerate() {
                let seed = 1 + u64::from(round);
                reports.push(Run { seed, ..run.clone() }.measure()?);
                eprintln!("round {} of {}: run {} of {}", round + 1, self.runs, at + 1, runs.len());
            }
        }
        Ok(reports)
    }

    /// Returns the transactions a second without a log when the generator offers more than the engine takes. The engine takes more from itself:
    /// a generator costs it a hand-over for each call.
    fn most_offered(&self, workload: &'static str) -> Result<f64> {
        let run = self.run(workload, LogPolicy::None, 1);
        let rate = run.measure()?.txn_per_s;
        let run = Run {
            offered: Offered::PerSecond(rate),
            ..run
        };
        Ok(run.measure()?.txn_per_s)
    }

    /// Figures 3 and 4, or 6 and 7: throughput and latency by the load that is offered.
    fn by_load(&self, workload: &'static str, names: [&str; 2]) -> Result<Vec<Chart>> {
        let most = self.most_offered(workload)?;
        let loads: &[f64] = if self.is_short { &LOADS_SHORT } else { &LOADS };
        let mut points = Vec::new();
        for load in loads {
            for (name, log) in LOGS {
                points.push((name, *load, self.run(workload, log, 1)));
            }
        }
        // Rounded to three digits: a rate that a reader can offer again.
        let step = 10_f64.powf(most.max(1_000.0).log10().floor() - 2.0);
        let rate_of = |load: f64| ((load * most / step).round() * step).max(1.0);
        let runs = points.iter().map(|(_, load, run)| Run {
            offered: Offered::PerSecond(rate_of(*load)),
            ..run.clone()
        });
        let runs: Vec<_> = runs.collect();
        let reports = self.measure(&runs)?;
        let of = |value: fn(&Report) -> f64| {
            let points = points.iter().zip(&reports);
            let points =
                points.map(|((name, load, _), reports)| Point::of(name, rate_of(*load), reports.iter().map(value)));
            points.collect::<Vec<_>>()
        };
        let what = title_of(workload);
        let [throughput, latency] = names;
        let notes = [
            "One partition on one engine thread; a generator on the other processor offers the load (open loop).",
            GROUPS,
            QUEUE,
        ];
        let title = format!("Figure {throughput}: throughput of {what} by the load that is offered");
        let axes = ["transactions a second offered", "transactions a second committed"];
        let mut top = self.chart(throughput, &title, axes, &notes);
        top.points = of(|report| report.txn_per_s);
        top.paper = throughput_claims(&top, workload);
        let title = format!("Figure {latency}: latency of {what} by the load that is offered");
        let mut bottom = self.chart(latency, &title, ["transactions a second offered", "median us"], &notes);
        bottom.points = of(|report| report.latency_us.p50);
        bottom.is_log = true;
        bottom.notes.push(p99_note(&of(|report| report.latency_us.p99)));
        let light = rate_of(LIGHT);
        let paper = if workload == "voter" { [1.0, 1.15] } else { [1.45, 1.45] };
        let is_light = |x: f64| x <= light;
        bottom.paper = vec![
            bottom.claim(
                "command to none, light load, times",
                (1.0, 1.0),
                ("command", "none"),
                &is_light,
            ),
            bottom.claim(
                "physiological to command, light load, times (TPC-C: the paper's least)",
                (paper[0], paper[1]),
                ("physiological", "command"),
                &is_light,
            ),
        ];
        Ok(vec![top, bottom])
    }

    /// Figures 5 and 8: how fast the log is replayed.
    fn replay(&self, workload: &'static str, name: &str) -> Result<Vec<Chart>> {
        let mut points = Vec::new();
        for sites in (0..8).map(|power| 1_u16 << power).filter(|sites| *sites <= self.cores) {
            for (name, log) in LOGS.into_iter().skip(1) {
                let run = Run {
                    restart: true,
                    ..self.run(workload, log, sites)
                };
                points.push((name, sites, run));
            }
        }
        let runs: Vec<_> = points.iter().map(|(_, _, run)| run.clone()).collect();
        let reports = self.measure(&runs)?;
        let notes = [
            "A checkpoint, a run in a closed loop without a generator, and a restart: replay alone, without the checkpoint's load.",
            "The log is read while it is replayed. The paper leaves the reading out.",
        ];
        let what = title_of(workload);
        let title = format!("Figure {name}: replay of {what}'s log");
        let axes = ["partitions, each with an engine thread", "transactions a second"];
        let mut chart = self.chart(name, &title, axes, &notes);
        let mut of_run = Vec::new();
        for ((series, sites, _), reports) in points.iter().zip(&reports) {
            let replayed: Option<Vec<_>> = reports
                .iter()
                .map(|report| Some(report.restart.as_ref()?.txn_per_s))
                .collect();
            let replayed = replayed.context("a run with a restart that reports none")?;
            let x = f64::from(*sites);
            let point = Point::of(series, x, replayed.into_iter());
            let ran = Point::of(
                &format!("{series} at run time"),
                x,
                reports.iter().map(|report| report.txn_per_s),
            );
            if *series == "command" {
                of_run.push(point.median() / ran.median());
            }
            chart.points.extend([point, ran]);
        }
        let times = if workload == "voter" { 5.0 } else { 1.5 };
        chart.paper = vec![
            chart.claim(
                "physiological to command, times",
                (times, times),
                ("physiological", "command"),
                &|_| true,
            ),
            claim(
                "replay of commands to the run, times",
                [1.0, 1.05],
                bounds(of_run.into_iter()),
            ),
        ];
        Ok(vec![chart])
    }

    /// Figures 9 and 11: transactions between partitions, and which log is better.
    fn by_distribution(&self) -> Result<Vec<Chart>> {
        let sites = self.cores.max(2);
        let shares: &[u8] = if self.is_short { &REMOTE_SHORT } else { &REMOTE };
        let mut points = Vec::new();
        for share in shares {
            for (name, log) in LOGS {
                let run = Run {
                    remote_percent: Some(*share),
                    restart: log != LogPolicy::None,
                    ..self.run("tpcc", log, sites)
                };
                points.push((name, f64::from(*share), run));
            }
        }
        let runs: Vec<_> = points.iter().map(|(_, _, run)| run.clone()).collect();
        let reports = self.measure(&runs)?;
        let notes = [
            "TPC-C's full mix in a closed loop; the share is that of New-Orders and Payments that touch two partitions. The paper runs New-Orders alone.",
            "One partition for each engine thread, and one thread for each processor, at least two.",
        ];
        let axes = ["percent on two partitions", "transactions a second"];
        let title = "Figure 9: throughput by the share of transactions on two partitions";
        let mut nine = self.chart("9", title, axes, &notes);
        for ((series, x, _), reports) in points.iter().zip(&reports) {
            nine.points
                .push(Point::of(series, *x, reports.iter().map(|report| report.txn_per_s)));
        }
        nine.paper = vec![
            nine.claim(
                "command to physiological, none distributed, times",
                (1.5, 1.5),
                ("command", "physiological"),
                &|x| x == 0.0,
            ),
            nine.claim(
                "the same, all distributed, times",
                (1.0, 1.0),
                ("command", "physiological"),
                &|x| x == 100.0,
            ),
        ];
        let names: Vec<_> = points.iter().map(|(series, x, _)| (*series, *x)).collect();
        let eleven = self.better_log(&names, &reports, &notes)?;
        Ok(vec![nine, eleven])
    }

    /// Figure 11, from the reports of each point of figure 9.
    fn better_log(&self, points: &[(&str, f64)], reports: &[Vec<Report>], notes: &[&str]) -> Result<Chart> {
        let title = "Figure 11: which log is better, by the share of transactions on two partitions";
        let axes = ["percent on two partitions", "command to physiological, times"];
        let mut chart = self.chart("11", title, axes, notes);
        let reading = "Above 1, the log of commands is faster; below 1, the physiological log is.";
        chart.notes.push(reading.into());
        let ways: [(&str, fn(&Report) -> Option<f64>); 2] = [
            ("run", |report| Some(report.txn_per_s)),
            ("replay", |report| Some(report.restart.as_ref()?.txn_per_s)),
        ];
        let of = |name: &str, x: f64| {
            points
                .iter()
                .position(|point| *point == (name, x))
                .map(|at| &reports[at])
        };
        for (_, x) in points.iter().filter(|(name, _)| *name == "command") {
            let logs = of("command", *x).zip(of("physiological", *x));
            let (command, physiological) = logs.context("both logs were run")?;
            for (way, value) in ways {
                let pairs = command.iter().zip(physiological);
                let ratios = pairs.filter_map(|(command, other)| Some(value(command)? / value(other)?));
                chart.points.push(Point::of(way, *x, ratios));
            }
        }
        let at = |way: &str| {
            let mut found = chart.points.iter();
            let point = found.find(|point| point.series == way && point.x == 0.0);
            bounds(point.map(Point::median).into_iter())
        };
        let (run, replay) = (at("run"), at("replay"));
        chart.paper = vec![
            claim("run, none distributed, times", [1.5, 1.5], run),
            claim("replay, none distributed, times", [0.67, 0.67], replay),
        ];
        Ok(chart)
    }
}

/// The most that each log reaches, of what none reaches.
fn throughput_claims(chart: &Chart, workload: &str) -> Vec<Claim> {
    let most = |series: &str| {
        let points = chart.points.iter().filter(|point| point.series == series);
        points.map(Point::median).fold(0.0, f64::max)
    };
    let of_none = |series: &str| bounds(std::iter::once(most(series) / most("none")));
    let physiological = if workload == "voter" {
        [0.84, 0.85]
    } else {
        [0.66, 0.66]
    };
    vec![
        claim("command, at most, to none, times", [0.95, 1.0], of_none("command")),
        claim(
            "physiological, at most, to none, times",
            physiological,
            of_none("physiological"),
        ),
    ]
}

/// The latency of 99 of 100 calls at each point, as a note.
fn p99_note(points: &[Point]) -> String {
    let mut note = String::from("99 of 100 calls, us, by load:");
    for (name, _) in LOGS {
        let values = points.iter().filter(|point| point.series == name);
        let values: Vec<_> = values.map(|point| format!("{:.0}", point.median())).collect();
        let _ = write!(note, " {name} {};", values.join(" ")); // a string takes all
    }
    note.pop();
    note + "."
}
