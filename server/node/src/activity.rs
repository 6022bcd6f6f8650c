//! Events as lines of the server's output: one for each deployment, trap, slow call, checkpoint and control operation. Events too frequent
//! to read are printed as a number.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use reprise_observe::{Notice, Notices, RefusalReason};
use reprise_router::Router;

use crate::{
    certificate::CertificateWatch,
    output::{bytes, grouped},
    server_output::{self, Line},
};

/// The period in which the server prints a few lines of each kind.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Tells until it is dropped.
pub struct Activity {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Activity {
    pub fn start(router: Router, mut certificate: CertificateWatch) -> io::Result<Self> {
        // A line is said when its thing happens, so it has that time and its place among the others.
        router.notices().set_listener(|notice| server_output::say(line(notice)));
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = is_over.clone();
        let work = move || {
            while !seen.load(Ordering::Acquire) {
                thread::park_timeout(POLL_INTERVAL);
                router.check_clock();
                router.report_dangers();
                certificate.warn_if_near();
                report_left_out(router.notices());
            }
        };
        let thread = thread::Builder::new().name("activity".into()).spawn(work)?;
        Ok(Self {
            is_over,
            thread: Some(thread),
        })
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join(); // the thread only prints, so its panic matters to nothing else
        }
    }
}

fn report_left_out(notices: &Notices) {
    for (kind, count) in notices.take().left_out {
        let text = format!("{} more {} in the last second", grouped(count), kind.plural());
        server_output::say(Line::info("left_out", text).with("count", count));
    }
}

/// Returns the end of a line, with the destroyed things.
fn consented(destroyed: &[String]) -> String {
    match destroyed {
        [] => String::new(),
        all => format!("; destroyed with consent: {}", all.join(", ")),
    }
}

fn line(notice: &Notice) -> Line {
    match notice {
        Notice::Deployed { .. } | Notice::Removed { .. } | Notice::TableDropped { .. } => schema_line(notice),
        Notice::Trapped { .. } | Notice::SlowCall { .. } | Notice::MemoryExhausted { .. } => call_line(notice),
        Notice::CheckpointPublished { .. } | Notice::CheckpointFailed { .. } | Notice::FormerLost { .. } => {
            checkpoint_line(notice)
        }
        Notice::ClockJumped { by_us } => clock_line(*by_us),
        Notice::Standby { name, what } => match name.as_str() {
            "" => Line::info("standby", format!("standbys: {what}")),
            name => Line::info("standby", format!("standby {name:?}: {what}")).with("standby", name),
        },
        Notice::Controlled { .. } => control_line(notice),
        Notice::KeysRefused { .. } | Notice::Danger { .. } | Notice::Refused { .. } => danger_line(notice),
        Notice::ArchiveFailed { reason } => Line::error(
            "archive_failed",
            format!("archive failed: {reason}. The data directory keeps the files until the archive takes them"),
        ),
    }
}

/// The line of a deployment, a removal or a drop; an empty one for another notice.
fn schema_line(notice: &Notice) -> Line {
    match notice {
        Notice::Deployed {
            txn_id,
            module,
            version,
            replaced,
            destroyed,
        } => {
            let replaced = replaced.map_or(String::new(), |replaced| format!(" in place of version {replaced}"));
            let destroyed = consented(destroyed);
            let text = format!("deployed {module} version {version}{replaced}, transaction {txn_id}{destroyed}");
            Line::info("deployed", text)
                .with("module", module.as_str())
                .with("version", *version)
                .with("txn_id", txn_id.to_string())
        }
        Notice::Removed { module, destroyed } => {
            let text = format!("removed {module}{}", consented(destroyed));
            Line::info("removed", text).with("module", module.as_str())
        }
        Notice::TableDropped { table } => {
            Line::info("table_dropped", format!("dropped table {table}")).with("table", table.as_str())
        }
        _ => Line::info("unknown", ""),
    }
}

/// The line of a call; an empty one for another notice.
fn call_line(notice: &Notice) -> Line {
    let (line, procedure, txn_id) = match notice {
        Notice::Trapped {
            txn_id,
            procedure,
            message,
        } => {
            let first = message.lines().next().unwrap_or_default();
            let text = format!("trap in {procedure}, transaction {txn_id}: {first}");
            (Line::warning("trap", text).with("trap", first), procedure, txn_id)
        }
        Notice::SlowCall {
            txn_id,
            procedure,
            ran_ms,
        } => {
            let ran = grouped(*ran_ms);
            let text = format!("slow call of {procedure}, transaction {txn_id}: ran for {ran} ms");
            (Line::info("slow_call", text).with("ran_ms", *ran_ms), procedure, txn_id)
        }
        Notice::MemoryExhausted { txn_id, procedure, max } => {
            let limit = bytes(*max);
            let text = format!(
                "memory exhausted: the server refused the call of {procedure}, transaction {txn_id}. The limit is {limit} (--memory-max). \
                 The server still takes reads and deletes"
            );
            (Line::error("memory_exhausted", text), procedure, txn_id)
        }
        _ => return Line::info("unknown", ""),
    };
    line.with("procedure", procedure.as_str())
        .with("txn_id", txn_id.to_string())
}

/// The line of a checkpoint; an empty one for another notice.
fn checkpoint_line(notice: &Notice) -> Line {
    match notice {
        Notice::CheckpointPublished {
            lsn,
            rows,
            file_bytes,
            seconds,
        } => {
            let text = format!(
                "checkpoint at LSN {lsn}: {} rows, {} in {seconds:.3} s",
                grouped(*rows),
                bytes(*file_bytes)
            );
            Line::info("checkpoint", text)
                .with("lsn", lsn.to_string())
                .with("rows", *rows)
                .with("file_bytes", *file_bytes)
                .with("seconds", *seconds)
        }
        Notice::CheckpointFailed { reason } => Line::error("checkpoint_failed", format!("checkpoint failed: {reason}")),
        Notice::FormerLost {
            module,
            version,
            reason,
        } => Line::warning(
            "version_lost",
            format!(
                "the checkpoint lacks the bytes of {module} version {version}, so you can't roll {module} back to it: {reason}"
            ),
        ),
        _ => Line::info("unknown", ""),
    }
}

/// The line of what refuses calls; an empty one for another notice.
fn danger_line(notice: &Notice) -> Line {
    match notice {
        Notice::KeysRefused { scope, taken, room } => {
            let text = format!(
                "idempotency keys refused: the keys of the token {scope:?} take {} of the {} for all tokens, and one token may take half. \
                 The server keeps each key for its full time (--idempotency-keep-s)",
                bytes(*taken),
                bytes(*room)
            );
            Line::error("keys_refused", text).with("scope", scope.as_str())
        }
        Notice::Danger { what, reason } => state_line(what, reason.as_deref()),
        Notice::Refused { reason, calls } => refused_line(*reason, *calls),
        _ => Line::info("unknown", ""),
    }
}

fn state_line(what: &str, reason: Option<&str>) -> Line {
    match (what, reason) {
        ("log", Some(reason)) => Line::error(
            "log_refuses",
            format!("writes are refused, at least long ones, because the log can't store them: {reason}"),
        ),
        ("log", None) => Line::info("log_takes", "the log stores all writes again"),
        ("other-primary", Some(reason)) => Line::error(
            "other_primary",
            format!(
                "another server leads this database, too: {reason}. Each may acknowledge writes that the other one lacks. Stop the one that is to \
                 follow, and start it with --standby-of"
            ),
        ),
        ("other-primary", None) => Line::info("one_primary", "no other server leads this database any more"),
        (_, Some(reason)) => Line::error(
            "standbys_missing",
            format!("writes are refused for want of standbys: {reason}"),
        ),
        (_, None) => Line::info(
            "standbys_back",
            "enough standbys are back: the server takes writes again",
        ),
    }
}

fn refused_line(reason: RefusalReason, calls: u64) -> Line {
    let way_on = match reason {
        RefusalReason::Unauthorized => "a client has no valid token, or guesses tokens",
        RefusalReason::MemoryExhausted => "the data or the idempotency keys fill their memory (--memory-max)",
        RefusalReason::LogUnavailable => "log_error of GET /v1/status says why",
        RefusalReason::StandbyUnavailable | RefusalReason::LeaseLost => "GET /v1/replication says why",
        _ => "reprise_calls_refused_total counts them",
    };
    let (name, count) = (reason.name(), grouped(calls));
    let text = format!("refused as {name}: {count} requests since the last such line; {way_on}");
    Line::warning("refused", text).with("reason", name).with("count", calls)
}

/// The line of a control operation; an empty one for another notice.
fn control_line(notice: &Notice) -> Line {
    let Notice::Controlled {
        principal,
        operation,
        subject,
        outcome,
        took,
    } = notice
    else {
        return Line::info("unknown", "");
    };
    let named = match subject.as_str() {
        "" => String::new(),
        subject => format!(" {subject:?}"),
    };
    let took_ms = took.as_secs_f64() * 1e3;
    let text = format!("control: {operation}{named} by {principal:?}: {outcome} in {took_ms:.1} ms");
    Line::info("control", text)
        .with("operation", *operation)
        .with("subject", subject.as_str())
        .with("principal", principal.as_str())
        .with("outcome", outcome.as_str())
        .with("took_ms", took_ms)
}

fn clock_line(by_us: i64) -> Line {
    let (seconds, direction) = (
        by_us.unsigned_abs() / 1_000_000,
        if by_us > 0 { "ahead" } else { "back" },
    );
    let text = format!(
        "the wall clock jumped {direction} by {} h {} min. It sets the times of transactions, and so the points of time that you can \
         restore. It does not affect idempotency keys",
        seconds / 3_600,
        seconds / 60 % 60
    );
    Line::warning("clock_jumped", text).with("by_us", by_us)
}
