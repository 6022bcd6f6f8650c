//! Short runs of what `cargo xtask power` does for long.

use reprise_test_crash::skip;
use reprise_test_hardware::{Config, Processors, is_available, run};

fn config(commit: &str, seconds: u64, points: usize, seed: u64) -> Config {
    Config {
        seed,
        seconds,
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
    let _processor = Processors::one();
    match run(&config("sync", 4, 10, 1)) {
        Ok(report) => println!("{report}"),
        Err(error) => panic!("{error:#}"),
    }
}

/// A write acknowledged before it is durable is lost with the power. A check that misses this loss checks nothing.
#[test]
fn a_loss_is_noticed() {
    if let Err(why) = is_available() {
        return skip("a_loss_is_noticed", &why);
    }
    let _processor = Processors::one();
    // On a slow machine a run may answer so seldom that all of it is durable by chance.
    let found = (1..=8).find_map(|seed| run(&config("async", 12, 40, seed)).err());
    let error = match found {
        None => panic!("a server that acknowledges too early passed eight times"),
        Some(error) => format!("{error:#}"),
    };
    assert!(
        error.contains("lost: client") && error.contains("cargo xtask power"),
        "{error}"
    );
}
