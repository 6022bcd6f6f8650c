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

/// A write acknowledged before it is durable is lost by kill -9.
#[test]
fn a_loss_is_noticed() {
    let config = Config {
        // Records stay unwritten for a while after their acknowledgement, so that a kill in that time needs no luck.
        server_args: ["--commit", "async", "--group-commit-us", "100000"]
            .map(String::from)
            .into(),
        keeps: false,
        ..Config::new(25, 2)
    };
    check_loss(run(&config), "crash");
}
