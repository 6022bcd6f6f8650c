//! A bounded run of the chains of changes of tables.

use std::time::{Duration, Instant};

use reprise_test_sim::{ChainStats, run_chain};

const TIME: Duration = Duration::from_secs(15);
/// However fast the machine is.
const CHAINS_MAX: u64 = 300;

#[test]
fn no_chain_of_deployments_loses_or_bricks_anything() {
    // The chains are equal each time, unless others are asked for: `cargo xtask schemas` runs new ones.
    let asked = std::env::var("REPRISE_SCHEMAS_SEED").ok();
    let first = asked.and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let begun = Instant::now();
    let mut total = ChainStats::default();
    for seed in first..first + CHAINS_MAX {
        total.add(&run_chain(seed, false).unwrap_or_else(|found| panic!("{found}")));
        if begun.elapsed() >= TIME {
            break;
        }
    }
    println!("{total}");
    if total.chains >= 60 {
        assert!(total.never().is_empty(), "never: {:?}", total.never());
    }
}
