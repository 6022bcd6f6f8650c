//! Plans stop no call: `cargo xtask plans` at a small size.

use anyhow::{Context, Result, ensure};
use reprise_test_process::{PlansConfig, run_plans};

#[test]
fn plans_beside_load_send_no_barrier() -> Result<()> {
    let dir = tempfile::tempdir().context("temporary directory")?;
    let config = PlansConfig {
        rows: 20_000,
        rounds: 1,
        seconds: 1,
    };
    let report = run_plans(config, dir.path())?;
    ensure!(report.barriers == 0, "{report}");
    Ok(())
}
