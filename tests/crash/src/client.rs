//! One client thread: requests until the connection dies, with a note of what was acknowledged and what is unknown.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{
    http::{Answer, Connection, Cut},
    model::{CALLS_MAX, Call, Model},
    rng::Rng,
};

/// Time for which, and number of times that, a call is sent again while standbys are missing.
pub(crate) const KNOWN_WAIT_MAX: Duration = Duration::from_secs(180);
pub(crate) const KNOWN_REST: Duration = Duration::from_millis(50);

/// Runs until the server is gone. Err: the server broke a promise.
pub fn run(model: &mut Model, address: &str, rng: &mut Rng) -> Result<()> {
    let Ok(mut connection) = Connection::open(address) else {
        return Ok(()); // killed before
    };
    loop {
        let ended = match rng.percent(50) {
            true => single(model, &mut connection, rng)?,
            false => batch(model, &mut connection, rng)?,
        };
        if ended {
            return Ok(());
        }
    }
}

/// True: the connection is at its end.
fn single(model: &mut Model, connection: &mut Connection, rng: &mut Rng) -> Result<bool> {
    let call = model.plan(rng, 1).remove(0);
    match ask(model, connection, &call) {
        Ok(answer) => {
            if is_open(&answer.json()) {
                model.counts.unknown += 1;
                model.unknown.push(call);
                return Ok(true);
            }
            if answer.status != 200 {
                return refused(model, &answer);
            }
            let is_replayed = answer.header("idempotent-replayed").is_some();
            ensure!(!is_replayed, "the first answer to {call:?} says that it is a repeat");
            model.acknowledge(&call, &answer.json())?;
            Ok(false)
        }
        Err(cut) => {
            check_death(&cut)?;
            model.counts.unknown += 1;
            model.unknown.push(call);
            Ok(true)
        }
    }
}

/// Sends one call by itself.
pub fn ask(model: &Model, connection: &mut Connection, call: &Call) -> Result<Answer, Cut> {
    let (module, procedure) = call.procedure();
    let path = format!("/v1/call/{module}/{procedure}");
    let headers: Vec<_> = call.key.iter().map(|key| ("idempotency-key", key.as_str())).collect();
    let body = model.args(call).to_string();
    connection.request("POST", &path, &headers, body.as_bytes())
}

/// One call of a batch as its line.
pub fn line(model: &Model, call: &Call, id: usize) -> String {
    let (module, procedure) = call.procedure();
    let mut line = json!({"module": module, "procedure": procedure, "args": model.args(call), "id": id});
    if let Some(key) = &call.key {
        line["idempotency_key"] = json!(key);
    }
    format!("{line}\n")
}

fn batch(model: &mut Model, connection: &mut Connection, rng: &mut Rng) -> Result<bool> {
    let count = 1 + rng.below(CALLS_MAX as u64) as usize;
    let calls = model.plan(rng, count);
    let body: String = calls
        .iter()
        .enumerate()
        .map(|(id, call)| line(model, call, id))
        .collect();
    let (lines, mut ended) = match connection.request("POST", "/v1/batch", &[], body.as_bytes()) {
        Ok(answer) if answer.status != 200 => return refused(model, &answer),
        Ok(answer) => (answer.body, false),
        Err(cut) => {
            check_death(&cut)?;
            (cut.body, true)
        }
    };
    // A line counts once its end has come.
    let whole = lines.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let answers = lines[..whole]
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let (mut answered, is_whole) = (0, !ended);
    for (call, text) in calls.iter().zip(answers) {
        let answer: Value = serde_json::from_slice(text).context("a line of a batch is not JSON")?;
        ensure!(
            answer["id"] == answered,
            "line {answered} of a batch answers another call: {answer}"
        );
        answered += 1;
        ended |= take_line(model, call, &answer)?;
    }
    if is_whole {
        ensure!(answered == calls.len(), "{answered} answers to {} calls", calls.len());
    }
    model.counts.unknown += (calls.len() - answered) as u64;
    model.unknown.extend_from_slice(&calls[answered..]);
    Ok(ended)
}

/// True: what became of it is open, and the client waits for the next check.
fn take_line(model: &mut Model, call: &Call, answer: &Value) -> Result<bool> {
    let problem = &answer["problem"];
    if problem.is_null() {
        ensure!(
            answer["replayed"].is_null(),
            "the first answer to {call:?} says that it is a repeat"
        );
        model.acknowledge(call, answer)?;
        return Ok(false);
    }
    if is_open(problem) {
        model.counts.unknown += 1;
        model.unknown.push(call.clone());
        return Ok(true);
    }
    ensure!(
        problem["status"] == 503 || problem["status"] == 421 || is_out_of_time(problem),
        "{call:?} failed: {problem}"
    );
    model.counts.refused += 1;
    Ok(false)
}

/// A write that may or may not stay: no standby that it waits for has answered.
pub(crate) fn is_open(problem: &Value) -> bool {
    problem["type"]
        .as_str()
        .is_some_and(|kind| kind.ends_with("outcome-unknown"))
}

/// Returns whether the call's outcome is open, or nothing was run, because standbys are missing. On a busy machine they may be late. The
/// call may be sent again under its key.
pub(crate) fn misses_standbys(answer: &Answer) -> bool {
    let problem = answer.json();
    let is_refused = problem["type"]
        .as_str()
        .is_some_and(|kind| kind.ends_with("standby-unavailable") || kind.ends_with("lease-lost"));
    answer.status == 503 && (is_open(&problem) || is_refused)
}

/// The server stood still for longer than a call may take: nothing of the call stays.
pub(crate) fn is_out_of_time(problem: &Value) -> bool {
    problem["limit"] == "time"
}

/// A refused call left nothing: the model is not touched, and the next check sees to it. True: the server is no primary any more.
fn refused(model: &mut Model, answer: &Answer) -> Result<bool> {
    if answer.status != 503 && answer.status != 421 && !is_out_of_time(&answer.json()) {
        bail!("a call was answered {}: {}", answer.status, answer.text());
    }
    model.counts.refused += 1;
    Ok(answer.status == 421)
}

/// Checks the end of a connection. It may end, but not stall or bring bytes that are not HTTP.
pub(crate) fn check_death(cut: &Cut) -> Result<()> {
    use std::io::ErrorKind::{InvalidData, TimedOut, WouldBlock};
    match cut.error.kind() {
        InvalidData | TimedOut | WouldBlock => {
            bail!("no answer from a server that lives: {}", cut.error)
        }
        _ => Ok(()),
    }
}
