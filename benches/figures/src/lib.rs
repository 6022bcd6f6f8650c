//! Figures of papers, drawn anew: our measurements beside the paper's reading, as CSV and as SVG.
//! Owns: the forms of a figure, the text of a ratio of two of its series, the requests to callgrind, the programs' flags and their test.
//! Does not: measure.
//! Invariants: a figure names its machine, its build and how long its runs were; what was not run has no value.
//! Called by: the benchmarks that draw or that callgrind counts.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub mod callgrind;
mod chart;
pub mod check;
pub mod program;
mod table;

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result};
pub use chart::{Chart, Claim, Point, bounds, median, wrapped};
pub use table::{Table, TableClaim, TableGroup, TableRow};

/// A figure, or a part of one.
pub enum Drawing {
    Lines(Chart),
    Bars(Table),
}

impl Drawing {
    /// Writes NAME.csv and NAME.svg, as `write_files` does.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, out: &Path) -> Result<()> {
        match self {
            Self::Lines(chart) => chart.write(out),
            Self::Bars(table) => table.write(out),
        }
    }
}

/// Writes NAME.csv and NAME.svg into a folder, which is made, and says where they are.
///
/// # Errors
/// A file cannot be written.
pub fn write_files(out: &Path, name: &str, csv: &str, svg: &str) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("create {}", out.display()))?;
    for (ending, text) in [("csv", csv), ("svg", svg)] {
        let path = out.join(name).with_extension(ending);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// The machine's load of the last minute: how many threads wanted a processor. None: the system does not tell.
pub fn load() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split(' ').next()?.parse().ok()
}

/// The processor's name, as the system tells it.
pub fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut lines = text.lines().filter(|line| line.starts_with("model name"));
    let name = lines.next().and_then(|line| line.split_once(':'));
    name.map_or("a processor without a name".into(), |(_, name)| name.trim().to_owned())
}

/// A number with as many digits as a reader of a figure needs; one decimal from `tenths_from` on.
fn short(value: f64, tenths_from: f64) -> String {
    match value.abs() {
        at_least if at_least >= 100.0 => format!("{value:.0}"),
        at_least if at_least >= tenths_from => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn push_text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>"
    );
}

/// The lines of a CSV before its numbers.
fn csv_head(title: &str, conditions: &str, notes: &[String]) -> String {
    let notes: String = notes.iter().map(|note| format!("# {note}\n")).collect();
    format!("# {title}\n# {conditions}\n{notes}")
}
