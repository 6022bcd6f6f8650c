//! Short runs of what `cargo xtask power` does for long.

use reprise_test_crash::skip;
use reprise_test_hardware::{Config, is_available, run};

fn config(commit: &str, points: usize) -> Config {
    Config {
        seed: 1,
        seconds: 4,
        points,
        log: None,
        commit: commit.into(),
    }
}

#[test]
fn power_failures_lose_nothing_that_was_acknowledged() {
    if let Err(why) = is_available() {
        return skip("power_failures_lose_nothing_that_was_acknowledged", &why);
    }
    match run(&config("sync", 10)) {
        Ok(report) => println!("{report}"),
        Err(error) => panic!("{error:#}"),
    }
}

/// What is answered before it is durable is lost with the power. A check that does not see that sees nothing.
#[test]
fn a_loss_is_noticed() {
    if let Err(why) = is_available() {
        return skip("a_loss_is_noticed", &why);
    }
    let error = match run(&config("async", 40)) {
        Ok(report) => panic!("a server that acknowledges too early passed: {report}"),
        Err(error) => format!("{error:#}"),
    };
    assert!(
        error.contains("lost: client") && error.contains("cargo xtask power"),
        "{error}"
    );
}
