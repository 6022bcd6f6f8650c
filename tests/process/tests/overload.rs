//! Three times the load that the database can take: what is accepted stays quick, memory stays where it was, the rest is
//! refused. No speed is asserted: what may wait is counted in calls, and the run says how long so many take, and how late
//! its own generator was. A machine that stands still for a second in the middle gets another try; a queue without a bound
//! is as long in every one.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::binary;
use serde_json::Value;

/// Calls that may wait for a partition (`reprise_base::limits::WAITING_TXNS_MAX`).
const WAITING_MAX: f64 = 5_000.0;
/// Waits of a machine that does other things, too. Unbounded waiting would reach two seconds of the three.
const SLACK_US: f64 = 800_000.0;
/// Were all taken that is offered, gigabytes would wait on a machine that is quick, and no machine needs so much for what
/// may wait.
const GROWTH_KIB_MAX: i64 = 256 << 10;
const TRIES: u32 = 6;

/// Runs `reprise bench bank` to its end; its report, and the most memory that it had, in KiB.
fn bench(args: &[&str]) -> Result<(Value, i64)> {
    let mut command = Command::new(binary()?);
    command.args(["bench", "bank", "--log", "none", "--output", "json"]);
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = command.spawn().context("start the load")?;
    let mut status = 0;
    // SAFETY: all zero is a value of this plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let mut stdout = child.stdout.take().context("piped")?;
    let mut text = String::new();
    std::io::Read::read_to_string(&mut stdout, &mut text).context("read the report")?;
    // SAFETY: both pointers are valid for the call, and nobody else waits for this child.
    let waited = unsafe { libc::wait4(child.id() as i32, &mut status, 0, &mut usage) };
    ensure!(waited == child.id() as i32, "wait for the load");
    ensure!(status == 0, "the load ended with {status}: {text}");
    let report = serde_json::from_str(&text).with_context(|| format!("no report: {text}"))?;
    Ok((report, usage.ru_maxrss))
}

fn number(report: &Value, pointer: &str) -> Result<f64> {
    let value = report.pointer(pointer).and_then(Value::as_f64);
    value.with_context(|| format!("no {pointer} in {report}"))
}

#[test]
fn three_times_too_much_load_is_refused_in_part_and_the_rest_stays_quick() -> Result<()> {
    let mut last = Ok(());
    for _ in 0..TRIES {
        last = overload();
        let Err(error) = &last else {
            break;
        };
        println!("once more: {error:#}");
    }
    last
}

fn overload() -> Result<()> {
    let (_, usual_kib) = bench(&["--seconds", "1"])?;
    let (report, peak_kib) = bench(&["--seconds", "3", "--warmup", "1", "--overload", "3"])?;
    ensure!(
        number(&report, "/committed")? > 0.0,
        "nothing runs: {report}"
    );
    ensure!(
        number(&report, "/refused")? > 0.0,
        "nothing is refused: {report}"
    );
    ensure!(
        number(&report, "/unsent")? == 0.0,
        "calls were not sent: {report}"
    );
    let queue_us = WAITING_MAX / number(&report, "/txn_per_s")? * 1e6;
    let p99_us = number(&report, "/latency_us/p99")?;
    let late_us = number(&report, "/late_us")?;
    ensure!(
        p99_us <= 3.0 * queue_us + late_us + SLACK_US,
        "p99 is {p99_us} us, {WAITING_MAX} calls take {queue_us} us, the generator was {late_us} us late"
    );
    ensure!(
        peak_kib <= usual_kib + GROWTH_KIB_MAX,
        "{peak_kib} KiB under overload, {usual_kib} KiB else"
    );
    Ok(())
}
