//! The stages of the tests (`docs/TESTING.md`): one build for all of them, then each runs its own programs.

use std::{env, fmt, fs, path::Path, process::Command, thread, time::Duration};

use anyhow::{Result, ensure};
use clap::ValueEnum;

use crate::{
    cost,
    programs::{Program, Step, build},
    tasks::{cargo, console, run, skipped, wasm},
    workspace::{Package, packages},
};

/// The summary names steps that took as long.
const SLOW: Duration = Duration::from_secs(10);

/// One stage of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Stage {
    /// Unit tests, and the integration tests of each crate
    Unit,
    /// The simulator: order, faults, crashes
    Sim,
    /// Real servers: signals, files, sockets
    Process,
    /// Virtual machines: power, NVDIMMs, RDMA
    Hardware,
    /// The web console
    Console,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no stage is hidden");
        f.write_str(value.get_name())
    }
}

impl Stage {
    /// The stage that runs the tests of the package in this folder.
    pub(crate) fn of(folder: &str) -> Self {
        match folder {
            "tests/sim" | "tests/model" => Self::Sim,
            "tests/hardware" => Self::Hardware,
            // The decoders are functions of bytes.
            "tests/fuzz-targets" => Self::Unit,
            _ if folder.starts_with("tests/") => Self::Process,
            _ => Self::Unit,
        }
    }

    /// Number of tests of one program that run at a time. Tests of servers and nodes wait for half of their time: for other processes, for disks
    /// and for time-outs. A virtual machine computes all the time, and its clocks are late where it shares its processor.
    pub(crate) fn tests_at_a_time(self) -> usize {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        match self {
            Self::Hardware => processors,
            Self::Unit | Self::Sim | Self::Process | Self::Console => 2 * processors,
        }
    }

    /// Runs its programs, and the tests that are no such programs.
    fn run(self, root: &Path, packages: &[Package], programs: &[Program]) -> Vec<Step> {
        let own = programs.iter().filter(|program| Self::of(&program.folder) == self);
        let mut steps: Vec<_> = own
            .map(|program| Step::run(program.name(), || program.run(root)))
            .collect();
        match self {
            Self::Unit => {
                steps.push(Step::run("examples in the docs", || examples(root, packages)));
                steps.push(Step::run("instructions of calls", || cost::count(root, false)));
            }
            Self::Console => steps.push(Step::run("npm test", || {
                let mut npm = Command::new("npm");
                npm.env("REPRISE_BIN", root.join("target/quick/reprise"));
                run(npm.arg("test").current_dir(root.join("web-console")))
            })),
            Self::Sim | Self::Process | Self::Hardware => {}
        }
        steps
    }
}

/// Builds and runs the stages, or all of them where none is named. A failure does not stop the others.
///
/// # Errors
/// A build that fails, or the names of the tests that fail.
pub fn test(root: &Path, stages: &[Stage]) -> Result<()> {
    let stages = if stages.is_empty() {
        Stage::value_variants()
    } else {
        stages
    };
    let packages = packages(root)?;
    let mut programs = Vec::new();
    let built = Step::run("build", || {
        if *stages != [Stage::Sim] {
            wasm(root, None, Vec::new(), None, None)?;
            console(root)?;
        }
        programs = build(root, &mut selection(root, stages, &packages))?;
        Ok(())
    });
    ensure!(built.is_done(), "the tests can't be built");
    let _ = fs::remove_file(root.join("target/skipped-tests.txt")); // there may be none
    let (mut totals, mut steps) = (vec![built], Vec::new());
    for stage in stages {
        let mut own = Vec::new();
        totals.push(Step::run(format!("test-{stage}"), || {
            own = stage.run(root, &packages, &programs);
            ensure!(own.iter().all(|step| step.is_done()), "tests failed");
            Ok(())
        }));
        steps.append(&mut own);
    }
    for step in &steps {
        if let Some(failure) = &step.failure {
            println!("\n== failed: {}\n{failure}", step.name);
        }
    }
    println!("\nfailed, or {} s and longer:", SLOW.as_secs());
    let shown = steps.iter().filter(|step| !step.is_done() || step.time >= SLOW);
    shown.for_each(|step| println!("{step}"));
    println!("stages:");
    totals.iter().for_each(|step| println!("{step}"));
    skipped(root);
    let failed: Vec<_> = totals.iter().filter(|step| !step.is_done()).collect();
    let failed: Vec<_> = failed.iter().map(|step| step.name.as_str()).collect();
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// Cargo without the state for a next build, which takes more room than all that is built. In CI, clippy compiles the tree: a run of its own would
/// check all dependencies a second time.
pub(crate) fn whole(root: &Path) -> Command {
    let mut command = cargo(root);
    command.env("CARGO_INCREMENTAL", "0");
    if is_ci() {
        // Environment that `cargo clippy -- -D warnings` sets.
        command.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
        command.env("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__");
    }
    command
}

/// Whether this is a run of CI, in which nothing may be skipped.
pub(crate) fn is_ci() -> bool {
    env::var_os("CI").is_some_and(|value| value == "true")
}

/// The build of the stages' test programs, and of the programs that they start. Several stages are built as the whole workspace: cargo gives a
/// shared dependency other features where it builds other packages, and would build it twice.
fn selection(root: &Path, stages: &[Stage], packages: &[Package]) -> Command {
    let mut command = whole(root);
    command.args(["build", "--profile", "quick", "--tests"]);
    if *stages != [Stage::Sim] {
        command.args(["--bin", "reprise", "--bin", "reprise-bench"]);
    }
    if stages.contains(&Stage::Unit) {
        command.args(["--bin", "reprise-bench-cost"]);
    }
    let [stage] = stages else {
        command.arg("--workspace");
        return command;
    };
    let own = packages.iter().filter(|package| Stage::of(&package.folder) == *stage);
    let mut names: Vec<_> = own.map(|package| package.name.as_str()).collect();
    if ![Stage::Unit, Stage::Sim].contains(stage) {
        names.extend(["reprise-node", "reprise-driver"]);
    }
    for name in names {
        command.args(["--package", name]);
    }
    command
}

/// Runs the examples in the doc comments of the packages that have any.
fn examples(root: &Path, packages: &[Package]) -> Result<()> {
    let mut command = whole(root);
    command.args(["test", "--profile", "quick", "--doc"]);
    let sources = crate::tidy::sources(root)?;
    for package in packages {
        let folder = format!("{}/src/", package.folder);
        let mut own = sources.iter().filter(|source| source.path.starts_with(&folder));
        if own.any(|source| has_example(&source.text)) {
            command.args(["--package", &package.name]);
        }
    }
    run(&mut command)
}

/// Whether a doc comment has a block of Rust.
fn has_example(text: &str) -> bool {
    let fences = text.lines().filter_map(|line| {
        let line = line.trim_start();
        let language = line.strip_prefix("/// ```").or_else(|| line.strip_prefix("//! ```"))?;
        Some(language.trim_end())
    });
    let mut opening = fences.step_by(2);
    opening.any(|language| ["", "rust", "no_run", "should_panic"].contains(&language))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_package_has_one_stage() {
        for (folder, stage) in [
            ("runtime/log", Stage::Unit),
            ("tests/fuzz-targets", Stage::Unit),
            ("tests/sim", Stage::Sim),
            ("tests/model", Stage::Sim),
            ("tests/history", Stage::Process),
            ("tests/hardware", Stage::Hardware),
        ] {
            assert_eq!(Stage::of(folder), stage, "{folder}");
        }
    }

    #[test]
    fn an_example_is_a_block_of_rust() {
        assert!(has_example("/// ```\n/// let x = 1;\n/// ```\n"));
        assert!(!has_example("//! ```text\n//! a b\n//! ```\n"));
    }
}
