//! A short run of what `cargo xtask crash` does for long.

use reprise_test_crash::{Config, run};

#[test]
fn no_acknowledged_transaction_is_lost_none_is_half_none_is_there_twice() {
    let seed = std::env::var("REPRISE_CRASH_SEED").ok().and_then(|seed| seed.parse().ok());
    match run(&Config::new(15, seed.unwrap_or(1))) {
        Ok(report) => println!("{report}"),
        Err(error) => panic!("{error:#}"),
    }
}
