//! Fuzzing guided by coverage: builds `fuzz` with the flags that this needs, and runs one target over its corpus.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use crate::tasks;

/// Compiler options that count edges for libFuzzer, in our own crates (`fuzz/cover.sh`).
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing";
/// Longest input.
const BYTES_MAX: u32 = 8_192;

pub fn run(root: &Path, target: &str, seconds: u64, engine: bool, merge: bool) -> Result<()> {
    let folder = root.join("fuzz");
    let mut build = tasks::cargo(&folder);
    // With an explicit target build scripts and macros are built without these flags.
    let triple = "x86_64-unknown-linux-gnu";
    build.args(["build", "--release", "--quiet", "--target", triple]);
    if engine {
        build.args(["--features", "engine"]);
    }
    build.env("RUSTC_WRAPPER", folder.join("cover.sh"));
    build.env("REPRISE_COVERAGE", COVERAGE);
    tasks::run(build.env("RUSTC_BOOTSTRAP", "1"))?;
    let corpus = folder.join("corpus").join(target);
    fs::create_dir_all(&corpus).context("make the corpus' folder")?;
    let program = folder.join("target").join(triple).join("release/decoders");
    let mut fuzz = std::process::Command::new(program);
    fuzz.current_dir(&folder).env("FUZZ_TARGET", target);
    fuzz.arg(format!("-max_len={BYTES_MAX}"));
    if !merge {
        return tasks::run(fuzz.arg(format!("-max_total_time={seconds}")).arg(corpus));
    }
    let all = folder.join("corpus").join(format!("{target}.all"));
    fs::rename(&corpus, &all).context("set the corpus aside")?;
    fs::create_dir(&corpus).context("make the corpus' folder")?;
    tasks::run(fuzz.arg("-merge=1").arg(&corpus).arg(&all))?;
    fs::remove_dir_all(&all).context("remove the larger corpus")
}
