//! All targets in one program; the environment variable `FUZZ_TARGET` names the one that runs.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use reprise_test_fuzz_targets::{TARGETS, Target};

static CHOSEN: LazyLock<&'static Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("FUZZ_TARGET names the target: {}", names.join(", "));
        std::process::exit(2);
    })
});

fuzz_target!(|bytes: &[u8]| (CHOSEN.run)(bytes));
