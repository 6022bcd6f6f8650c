//! Three times the load that the database can take. An accepted call waits for few others, memory stays where it was, and the database refuses the
//! rest. The test asserts no speed: it counts the calls that a call waits for. It tries again only if the machine did something else while its
//! capacity was measured, so that three times that was nothing to refuse.

use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Calls that may wait for a partition (`reprise_base::limits::WAITING_TXNS_MAX`).
const WAITING_MAX: f64 = 5_000.0;
/// Calls of one batch, which are taken or refused together.
const BATCH_MAX: f64 = 64.0;
/// Were all taken that is offered, gigabytes would wait on a machine that is quick, and no machine needs so much for what
/// may wait.
const GROWTH_KIB_MAX: i64 = 256 << 10;
const TRIES: u32 = 6;

/// Runs `reprise-bench bank` to its end; its report, and the most memory that it had, in KiB.
fn bench(args: &[&str]) -> Result<(Value, i64)> {
    let mut command = crate::bench(&["bank", "--log", "none", "--output", "json"]);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().context("start the load")?;
    let mut status = 0;
    // SAFETY: all zero is a value of this plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let mut stdout = child.stdout.take().context("piped")?;
    let mut text = String::new();
    std::io::Read::read_to_string(&mut stdout, &mut text).context("read the report")?;
    // SAFETY: both pointers are valid for the call, and no other thread waits for this child.
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
fn three_times_too_much_load_is_refused_in_part_and_the_rest_waits_for_few() -> Result<()> {
    for _ in 0..TRIES {
        if overload()? {
            return Ok(());
        }
    }
    bail!("three times what was measured is never too much")
}

/// Returns whether the database refused a call. The bounds hold in every try.
fn overload() -> Result<bool> {
    let (_, usual_kib) = bench(&["--seconds", "1"])?;
    let (report, peak_kib) = bench(&["--seconds", "3", "--warmup", "1", "--overload", "3"])?;
    ensure!(number(&report, "/committed")? > 0.0, "nothing runs: {report}");
    ensure!(number(&report, "/unsent")? == 0.0, "calls were not sent: {report}");
    // The limit counts the calls ahead of it, and those whose answers the generator had not looked at when it was sent.
    let waited_for = number(&report, "/waited_for_calls_max")?;
    ensure!(
        waited_for > 0.0 && waited_for <= 2.0 * (WAITING_MAX + BATCH_MAX),
        "a call waited for {waited_for} others, and {WAITING_MAX} may wait"
    );
    ensure!(
        peak_kib <= usual_kib + GROWTH_KIB_MAX,
        "{peak_kib} KiB under overload, {usual_kib} KiB else"
    );
    Ok(number(&report, "/refused")? > 0.0)
}
