//! `reprise-bench --device nvram`: the run is made on a region, its report says so, and flags that do not fit are refused.

use std::process::Output;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A machine may stand still for as long as a short run takes. A longer one then has commits.
const SECONDS: [&str; 3] = ["0.5", "2.5", "12.5"];

fn bench(args: &[&str]) -> Result<Output> {
    bench_for(SECONDS[0], args)
}

fn bench_for(seconds: &str, args: &[&str]) -> Result<Output> {
    let mut command = crate::bench(&[
        "bank",
        "--seconds",
        seconds,
        "--warmup",
        "0",
        "--partitions",
        "2",
        "--sites",
        "2",
    ]);
    command.args(args).output().context("run the load")
}

#[test]
fn a_run_in_nvram_says_so() -> Result<()> {
    let dir = tempfile::tempdir()?;
    for (log, flush) in [
        ("command", None),
        ("physiological", Some("commit")),
        ("physiological", Some("insert")),
        ("both", Some("insert-fence")),
    ] {
        let region = dir.path().join(flush.unwrap_or("none"));
        let path = region.to_str().expect("text");
        let mut args = vec![
            "--log",
            log,
            "--device",
            "nvram",
            "--nvram",
            path,
            "--nvram-size",
            "16MiB",
        ];
        args.extend(["--nvram-assume-persistent", "--output", "json"]);
        args.extend(flush.iter().flat_map(|flush| ["--nvram-flush", flush]));
        let mut report = Value::Null;
        for seconds in SECONDS {
            let output = bench_for(seconds, &args)?;
            ensure!(
                output.status.success(),
                "{log}, {flush:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            report = serde_json::from_slice(&output.stdout).context("the report")?;
            if report["committed"].as_u64() > Some(0) {
                break;
            }
            std::fs::remove_file(&region)?; // the next run makes its own
        }
        ensure!(
            report["device"] == "nvram" && report["flush"] == flush.unwrap_or("commit"),
            "{report}"
        );
        ensure!(report["checks"] == "passed" && report["log"] == log, "{report}");
        ensure!(report["committed"].as_u64() > Some(0), "{report}");
        ensure!(
            std::fs::metadata(&region)?.len() == 16 << 20,
            "the region has another size"
        );
    }
    let slow = dir.path().join("slow");
    let on_slow = [
        "--device",
        "nvram",
        "--nvram",
        slow.to_str().expect("text"),
        "--nvram-assume-persistent",
    ];
    let output = bench(
        &[
            &on_slow[..],
            &["--nvram-size", "16MiB", "--nvram-delay-ns", "500", "--output", "json"],
        ]
        .concat(),
    )?;
    let report: Value = serde_json::from_slice(&output.stdout).context("the report")?;
    ensure!(
        report["nvram_delay_ns"] == 500 && report["checks"] == "passed",
        "{report}"
    );
    let output = bench(&["--output", "json"])?;
    let report: Value = serde_json::from_slice(&output.stdout).context("the report")?;
    ensure!(report["device"] == "file" && report["flush"].is_null(), "{report}");
    let output = bench(&["--log", "none", "--output", "json"])?;
    let report: Value = serde_json::from_slice(&output.stdout).context("the report")?;
    ensure!(report["device"].is_null() && report["flush"].is_null(), "{report}");
    Ok(())
}

#[test]
fn conflicting_options_are_refused() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let region = dir.path().join("region");
    let path = region.to_str().expect("text");
    let on_nvram = ["--device", "nvram", "--nvram", path, "--nvram-assume-persistent"];
    for (args, part) in [
        (vec!["--device", "nvram"], "needs --nvram PATH"),
        (vec!["--nvram", path], "nvram goes with device nvram"),
        (vec!["--nvram-flush", "insert"], "--nvram"),
        (vec!["--nvram-delay-ns", "5"], "--nvram"),
        (
            [&on_nvram[..], &["--nvram-delay-ns", "2000000"]].concat(),
            "0 to 1000000 ns",
        ),
        (
            [&on_nvram[..], &["--nvram-flush", "insert"]].concat(),
            "log command has none",
        ),
        (
            [&on_nvram[..], &["--nvram-flush", "later"]].concat(),
            "commit, insert, insert-fence",
        ),
        (
            [
                &on_nvram[..],
                &[
                    "--nvram-flush",
                    "insert",
                    "--log",
                    "both",
                    "--log-differential",
                    "false",
                ],
            ]
            .concat(),
            "log-differential true",
        ),
    ] {
        let output = bench(&args)?;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && told.contains(part), "{args:?}: {told}");
        ensure!(!region.exists(), "{args:?} left a region");
    }
    Ok(())
}
