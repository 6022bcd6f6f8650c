//! The parts that programs of figures share: their flags, the folder of their runs, the conditions below their figures.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context, Result};

use crate::processor;

/// Flags of every program that draws figures.
#[derive(clap::Args)]
pub struct FigureArgs {
    /// Folder for NAME.csv and NAME.svg
    #[arg(long, value_name = "DIR", default_value = "target/figures")]
    pub out: PathBuf,
    /// One short run of each point: whether it works, and no figure
    #[arg(long)]
    pub short: bool,
    /// Folder of NAME.wasm [default: procedures/ beside this program's folder]
    #[arg(long, value_name = "DIR")]
    pub modules: Option<PathBuf>,
    /// The measured build, for the figures' captions
    #[arg(long, default_value = concat!("reprise ", env!("CARGO_PKG_VERSION")))]
    pub build: String,
}

impl FigureArgs {
    /// The seconds and the number of runs of each point: the asked ones, or those of a short run.
    pub fn length(&self, seconds: f64, runs: u32) -> (f64, u32) {
        if self.short { (0.2, 1) } else { (seconds, runs) }
    }

    /// The machine, the build and the runs, in words; `which` is what they ran on or with.
    pub fn conditions(&self, which: &str, seconds: f64, runs: u32) -> String {
        let what = if self.short { "a short run: no figure" } else { "median" };
        format!(
            "{} with {} processors; {}; {which}; {runs} runs of {seconds} s, {what}",
            processor(),
            cores(),
            self.build
        )
    }
}

/// Number of the machine's processors.
pub fn cores() -> u16 {
    thread::available_parallelism().map_or(1, |cores| cores.get() as u16)
}

/// The numbers of engine threads to measure, growing: the asked ones, or 1, 2, 4 and so on up to the processors.
pub fn growing_sites(asked: &[u16]) -> Vec<u16> {
    let mut sites = match asked.is_empty() {
        true => (0..8)
            .map(|power| 1 << power)
            .filter(|sites| *sites <= cores())
            .collect(),
        false => asked.to_vec(),
    };
    sites.sort_unstable();
    sites
}

/// Works with a folder that is made in `place`, and removed at the end.
///
/// # Errors
/// The work failed, or the folder cannot be made or removed.
pub fn in_folder<T>(place: &Path, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    fs::create_dir_all(place).with_context(|| format!("create {}", place.display()))?;
    let folder = tempfile::Builder::new()
        .prefix("reprise-figures-")
        .tempdir_in(place)
        .with_context(|| format!("make a folder in {}", place.display()))?;
    let done = work(folder.path());
    folder.close().context("remove the run's folder")?;
    done
}
