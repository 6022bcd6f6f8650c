//! Ordinary life: `cargo xtask life` for one round.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reprise_test_process::run_life;

#[test]
fn a_round_of_ordinary_life_causes_no_unexpected_warning() -> Result<()> {
    let dir = tempfile::tempdir().context("temporary directory")?;
    let report = run_life(Duration::ZERO, dir.path(), &mut |line| println!("{line}"))?;
    ensure!(report.unexpected.is_empty(), "{report}");
    Ok(())
}
