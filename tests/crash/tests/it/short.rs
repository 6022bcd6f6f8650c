//! A short run of what `cargo xtask crash` does for long.

use reprise_test_crash::{Config, run};

#[test]
fn no_acknowledged_transaction_is_lost_none_is_half_none_is_there_twice() {
    let seed = std::env::var("REPRISE_CRASH_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    match run(&Config::new(15, seed.unwrap_or(1))) {
        Ok(report) => println!("{report}"),
        Err(error) => panic!("{error:#}"),
    }
}

#[test]
fn neither_is_one_in_nvram_nor_between_nvram_and_files() {
    let config = Config {
        device: "mixed".into(),
        ..Config::new(12, 3)
    };
    match run(&config) {
        Ok(report) => println!("{report}"),
        Err(error) => panic!("{error:#}"),
    }
}

/// What is answered before it is durable is lost by kill -9. A check that does not see that sees nothing.
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
    let error = match run(&config) {
        Ok(report) => panic!("a server that acknowledges too early passed: {report}"),
        Err(error) => format!("{error:#}"),
    };
    println!("{error}");
    assert!(error.contains("reproduce: cargo xtask crash"), "{error}");
    let is_a_loss = [
        "lost",
        "forgotten",
        "had seen",
        "must be",
        "must have",
        "above",
        "before it",
    ]
    .iter()
    .any(|word| error.contains(word));
    assert!(is_a_loss, "it failed for another reason: {error}");
}
