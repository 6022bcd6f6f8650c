//! The integration tests of `reprise-test-sim`, in one binary.

mod failovers;
mod schemas;
mod seeds;

use std::time::{Duration, Instant};

const TIME: Duration = Duration::from_secs(20);

/// Runs up to `count` seeds while there is time. They are the same each time, unless `REPRISE_SIM_SEED` names the first:
/// `cargo xtask sim` runs new ones.
fn run_seeds(count: u64, mut run: impl FnMut(u64)) -> Duration {
    let asked = std::env::var("REPRISE_SIM_SEED").ok();
    let first = asked.and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let begun = Instant::now();
    for seed in first..first + count {
        run(seed);
        if begun.elapsed() >= TIME {
            break;
        }
    }
    begun.elapsed()
}

/// The events and how often each occurred, as text.
fn counts_text(counts: &[(&str, u64)]) -> String {
    let listed: Vec<_> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    listed.join(", ")
}
