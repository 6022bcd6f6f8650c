//! `cargo xtask sim-coverage`: which lines of the engine the seeds of the simulation reach.
//!
//! The crates of this tree alone are built with counters; what they are built on is as in every other build.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{
    rustc::Rustc,
    tasks::{cargo, run},
};

/// The crates of `runtime/` that the simulation is there for, and what it is to reach of them together, in percent.
const AIM: [&str; 4] = ["recovery", "replay", "partition", "log"];
const AIM_PERCENT: f64 = 85.0;
/// Files shown of which most lines are not reached.
const FILES_SHOWN: usize = 12;

/// Lines that could run, and lines that ran.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Lines {
    count: u64,
    covered: u64,
}

impl Lines {
    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.covered += other.covered;
    }

    fn missed(self) -> u64 {
        self.count - self.covered
    }

    fn percent(self) -> f64 {
        100.0 * self.covered as f64 / self.count.max(1) as f64
    }
}

/// Runs `seeds` seeds and `chains` chains of deployments. Prints the lines that they reach together, by crate of `runtime/`.
///
/// # Errors
/// Names the missing tool where LLVM's are not here in rustc's own version, or the step that failed; a seed that finds something, too.
pub fn sim(root: &Path, seeds: u64, threads: u64, chains: u64) -> Result<()> {
    let rustc = Rustc::ask()?;
    let (merger, reader) = (rustc.tool("llvm-profdata", "")?, rustc.tool("llvm-cov", "")?);
    let work = root.join("target/sim-coverage");
    let counts = work.join("counts");
    let _ = fs::remove_dir_all(&counts);
    fs::create_dir_all(&counts)?;
    let [program, chained] = build(root, &work)?;
    let counted = |program: &Path| {
        let mut command = Command::new(program);
        command.env("LLVM_PROFILE_FILE", counts.join("%p.profraw"));
        command
    };
    run(counted(&program).args(["--seeds", &seeds.to_string(), "--threads", &threads.to_string()]))?;
    run(counted(&chained).args(["--chains", &chains.to_string()]))?;
    let merged = work.join("merged.profdata");
    run(Command::new(merger)
        .args(["merge", "--sparse", "-o"])
        .args([&merged, &counts]))?;
    let output = Command::new(reader)
        .args(["export", "--summary-only", "--format=text", "--instr-profile"])
        .args([&merged, &program])
        .arg("--object")
        .arg(&chained)
        .output()?;
    anyhow::ensure!(output.status.success(), "llvm-cov ended with {}", output.status);
    let files =
        files_of(&serde_json::from_slice(&output.stdout)?, root).context("what llvm-cov exports names no files")?;
    print!("{}", report(&files, seeds, chains));
    Ok(())
}

/// Builds the simulation with counters in the crates of this tree, by a wrapper that cargo calls for these alone.
fn build(root: &Path, work: &Path) -> Result<[PathBuf; 2]> {
    let wrapper = work.join("rustc.sh");
    fs::write(&wrapper, "#!/bin/sh\nexec \"$@\" -C instrument-coverage\n")?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
    let mut command = cargo(root);
    command.env("RUSTC_WORKSPACE_WRAPPER", &wrapper);
    run(command.args(["build", "--release", "--package", "reprise-test-sim", "--bins"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let programs = ["sim", "schemas"].map(|name| (target.join("release").join(name), work.join(name)));
    for (built, program) in &programs {
        // Away from where the next build without counters searches.
        fs::rename(built, program).context("take the program that counts")?;
    }
    Ok(programs.map(|(_, program)| program))
}

/// Lines by file of `runtime/`: `log/src/flush.rs`.
fn files_of(exported: &Value, root: &Path) -> Option<BTreeMap<String, Lines>> {
    let files = exported["data"][0]["files"].as_array()?;
    let runtime = root.join("runtime");
    let lines = files.iter().filter_map(|file| {
        let name = Path::new(file["filename"].as_str()?);
        let name = name
            .strip_prefix(&runtime)
            .or_else(|_| name.strip_prefix("runtime"))
            .ok()?;
        let lines = &file["summary"]["lines"];
        let lines = Lines {
            count: lines["count"].as_u64()?,
            covered: lines["covered"].as_u64()?,
        };
        Some((name.to_string_lossy().into_owned(), lines))
    });
    Some(lines.collect())
}

fn report(files: &BTreeMap<String, Lines>, seeds: u64, chains: u64) -> String {
    let mut crates: BTreeMap<&str, Lines> = BTreeMap::new();
    for (file, lines) in files {
        let name = file.split('/').next().unwrap_or_default();
        crates.entry(name).or_default().add(*lines);
    }
    let mut out = format!("lines of runtime/ that {seeds} seeds and {chains} chains of deployments reach\n");
    let mut line = |name: &str, lines: Lines| {
        let (covered, count) = (lines.covered, lines.count);
        out.push_str(&format!(
            "{name:24} {covered:6} of {count:6}  {:5.1} %\n",
            lines.percent()
        ));
    };
    let mut aimed = Lines::default();
    for (name, lines) in &crates {
        line(name, *lines);
        if AIM.contains(name) {
            aimed.add(*lines);
        }
    }
    line(&AIM.join(", "), aimed);
    let mut least: Vec<_> = files
        .iter()
        .filter(|(file, _)| AIM.iter().any(|name| is_of(file, name)))
        .collect();
    least.sort_by_key(|(_, lines)| std::cmp::Reverse(lines.missed()));
    out.push_str(&format!("the aim is {AIM_PERCENT} %; most lines are missed in\n"));
    for (file, lines) in least.iter().take(FILES_SHOWN) {
        out.push_str(&format!("  {file:32} {:5} of {:5}\n", lines.missed(), lines.count));
    }
    out
}

fn is_of(file: &str, name: &str) -> bool {
    file.split('/').next() == Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_summed_by_crate_and_the_aim_is_of_four() {
        let file = |name: &str, count: u64, covered: u64| serde_json::json!({"filename": name, "summary": {"lines": {"count": count, "covered": covered}}});
        let exported = serde_json::json!({"data": [{"files": [
            file("/tree/runtime/log/src/a.rs", 10, 5),
            file("/tree/runtime/log/src/b.rs", 30, 30),
            file("/tree/runtime/replay/src/a.rs", 60, 50),
            file("/tree/runtime/storage/src/a.rs", 100, 1),
            file("/tree/tests/sim/src/run.rs", 7, 7),
        ]}]});
        let files = files_of(&exported, Path::new("/tree")).expect("files");
        assert_eq!(files.len(), 4);
        let text = report(&files, 3, 2);
        let line = |begin: &str| {
            text.lines()
                .find(|line| line.starts_with(begin))
                .expect("a line")
                .to_owned()
        };
        assert!(
            line("log").contains("35 of     40") && line("log").ends_with("87.5 %"),
            "{text}"
        );
        assert!(line("recovery, replay").ends_with("85.0 %"), "{text}");
        assert!(
            text.contains("  replay/src/a.rs") && !text.contains("  storage/src/a.rs"),
            "{text}"
        );
        assert!(files_of(&serde_json::json!({}), Path::new("/tree")).is_none());
    }
}
