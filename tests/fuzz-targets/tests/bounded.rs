//! Each target over its good inputs, over what fuzzing has kept, and over seeded changes of both.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    time::{Duration, Instant},
};

use reprise_test_fuzz_targets::{Mutator, TARGETS, Target, seeds};

/// A machine that is slow does fewer.
const TIME_MAX: Duration = Duration::from_secs(3);

fn kept(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let Ok(entries) = std::fs::read_dir(&folder) else {
        return Vec::new();
    };
    let mut files: Vec<_> = entries.map(|entry| entry.expect("read corpus").path()).collect();
    files.sort();
    let read = |path: &std::path::PathBuf| {
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        (name, std::fs::read(path).expect("read corpus"))
    };
    files.iter().map(read).collect()
}

fn check(target: &Target, bytes: &[u8], what: &str) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(bytes))).is_err() {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        panic!("target {} fails on {what}: {hex}", target.name);
    }
}

fn run(target: &Target) -> u32 {
    let good = seeds(target.name);
    assert!(!good.is_empty(), "{} has no good input", target.name);
    good.iter().for_each(|bytes| check(target, bytes, "a good input"));
    let mut inputs = good;
    for (name, bytes) in kept(target.name) {
        check(target, &bytes, &format!("corpus/{}/{name}", target.name));
        inputs.push(bytes);
    }
    // Always the same ones: a failure is repeated by running the test again.
    let mut mutator = Mutator::new(target.name.len() as u64);
    let begun = Instant::now();
    for done in 0..target.runs {
        if begun.elapsed() > TIME_MAX {
            return done;
        }
        let bytes = mutator.next(&inputs);
        check(target, &bytes, &format!("change {done}"));
    }
    target.runs
}

#[test]
fn no_target_fails() {
    for target in TARGETS {
        let begun = Instant::now();
        let runs = run(target);
        println!("{}: {runs} runs in {:.1} s", target.name, begun.elapsed().as_secs_f64());
    }
}
