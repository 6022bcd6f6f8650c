//! `reprise-bench --prepared`: calls made before they are timed have the same ends, on one partition and on two. Calls over both are among them. The
//! run's own checks read the tables.

use std::process::Output;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A machine may stand still for as long as a short run takes: then a longer one tells.
const SECONDS: [&str; 3] = ["0.5", "2.5", "12.5"];

fn bench(args: &[&str]) -> Result<Output> {
    let mut command = crate::bench(&["bank", "--prepared", "--output", "json"]);
    command.args(args).output().context("run the load")
}

#[test]
fn prepared_calls_all_run_and_are_all_counted() -> Result<()> {
    for (log, partitions) in [("none", "1"), ("none", "2"), ("command", "2")] {
        let of_run = ["--log", log, "--partitions", partitions, "--sites", partitions];
        let mut report = Value::Null;
        for seconds in SECONDS {
            let output = bench(&[&["--seconds", seconds, "--warmup", "0"][..], &of_run].concat())?;
            ensure!(
                output.status.success(),
                "log {log}, {partitions} partitions: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            report = serde_json::from_slice(&output.stdout).context("the report")?;
            if report["committed"].as_u64() > Some(0) {
                break;
            }
        }
        ensure!(report["prepared"] == true, "{report}");
        ensure!(report["checks"] == "passed", "{report}");
        ensure!(report["refused"] == 0, "{report}");
        ensure!(report["committed"].as_u64() > Some(0), "{report}");
        // Its passes are longer than the window; still the log's bytes are those of the window's calls.
        let bytes = report["log_bytes"].as_f64().context("bytes")?;
        let each = bytes / report["committed"].as_f64().context("calls")?;
        let expected = if log == "none" { 0.0..=0.0 } else { 20.0..=120.0 };
        ensure!(expected.contains(&each), "{each} bytes a call: {report}");
    }
    Ok(())
}

#[test]
fn prepared_calls_have_no_rate_and_no_server() -> Result<()> {
    for args in [["--rate", "10"], ["--url", "http://127.0.0.1:1"]] {
        let output = bench(&args)?;
        ensure!(output.status.code() == Some(2), "{args:?}: {output:?}");
    }
    Ok(())
}
