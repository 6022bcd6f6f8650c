//! Short runs of what `cargo xtask power` does for long.

use reprise_test_crash::skip;
use reprise_test_hardware::{Config, is_available, run};

fn config(commit: &str, points: usize, seed: u64) -> Config {
    Config {
        seed,
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
    match run(&config("sync", 10, 1)) {
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
    // On a slow machine a run may answer so seldom that all of it is durable by chance.
    let found = (1..=4).find_map(|seed| run(&config("async", 40, seed)).err());
    let error = match found {
        None => panic!("a server that acknowledges too early passed four times"),
        Some(error) => format!("{error:#}"),
    };
    assert!(
        error.contains("lost: client") && error.contains("cargo xtask power"),
        "{error}"
    );
}
