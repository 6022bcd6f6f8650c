//! Figures of papers, drawn anew: what was measured beside the paper's reading, as CSV and as SVG.
//! Owns: the two forms of a figure, and how a ratio of two of its series is told.
//! Does not: measure.
//! Invariants: a figure names its machine, its build and how long its runs were; what was not run has no value.
//! Called by: the benchmarks that draw (`bench-nvram`, `bench-query-fresh`).
#![forbid(unsafe_code)]

mod chart;

use std::fs;

pub use chart::{Chart, Claim, Point, bounds};

/// The processor's name, as the system tells it.
pub fn processor() -> String {
    let told = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut lines = told.lines().filter(|line| line.starts_with("model name"));
    let name = lines.next().and_then(|line| line.split_once(':'));
    name.map_or("a processor without a name".into(), |(_, name)| name.trim().to_owned())
}
