//! Figures of papers, drawn anew: our measurements beside the paper's reading, as CSV and as SVG.
//! Owns: the forms of a figure, the text of a ratio of two of its series, the requests to callgrind.
//! Does not: measure.
//! Invariants: a figure names its machine, its build and how long its runs were; what was not run has no value.
//! Called by: the benchmarks that draw or that callgrind counts.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub mod callgrind;
mod chart;
mod table;

use std::{fs, path::Path};

use anyhow::{Context, Result};
pub use chart::{Chart, Claim, Point, bounds, median, wrapped};
pub use table::{Table, TableClaim, TableGroup, TableRow};

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
    let told = fs::read_to_string("/proc/loadavg").ok()?;
    told.split(' ').next()?.parse().ok()
}

/// The processor's name, as the system tells it.
pub fn processor() -> String {
    let told = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut lines = told.lines().filter(|line| line.starts_with("model name"));
    let name = lines.next().and_then(|line| line.split_once(':'));
    name.map_or("a processor without a name".into(), |(_, name)| name.trim().to_owned())
}
