//! A short run of what `cargo xtask crash` does for long.

use crate::{check_loss, tell};
use reprise_test_crash::{Config, run};

#[test]
fn no_acknowledged_transaction_is_lost_none_is_half_none_is_there_twice() {
    let seed = std::env::var("REPRISE_CRASH_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    tell(run(&Config::new(15, seed.unwrap_or(1))));
}

#[test]
fn neither_is_one_in_nvram_nor_between_nvram_and_files() {
    let config = Config {
        device: "mixed".into(),
        ..Config::new(12, 3)
    };
    tell(run(&config));
}

/// What is answered before it is durable is lost by kill -9.
#[test]
fn a_loss_is_noticed() {
    let config = Config {
        // What is told early stays unwritten for a while: a kill in that time is no matter of luck.
        server_args: ["--commit", "async", "--group-commit-us", "100000"]
            .map(String::from)
            .into(),
        keeps: false,
        ..Config::new(25, 2)
    };
    check_loss(run(&config), "crash");
}
