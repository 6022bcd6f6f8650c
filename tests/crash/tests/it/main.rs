//! The integration tests of `reprise-test-crash`, in one binary.

mod failover;
mod lease;
mod short;
mod workloads;

use std::fmt::Display;

/// Prints the report of a run. A run that found something fails.
fn tell<T: Display>(outcome: anyhow::Result<T>) -> T {
    let report = outcome.unwrap_or_else(|error| panic!("{error:#}"));
    println!("{report}");
    report
}

/// Checks that a run noticed a loss, and says how it is repeated. A check that does not see a loss sees nothing.
fn check_loss<T: Display>(outcome: anyhow::Result<T>, again: &str) {
    const WORDS: &str = "lost,forgotten,had seen,must be,must have,above,before it,has version";
    let error = match outcome {
        Ok(report) => panic!("the loss was not noticed: {report}"),
        Err(error) => format!("{error:#}"),
    };
    println!("{error}");
    assert!(error.contains(&format!("reproduce: cargo xtask {again}")), "{error}");
    let is_a_loss = WORDS.split(',').any(|words| error.contains(words));
    assert!(is_a_loss, "it failed for another reason: {error}");
}
