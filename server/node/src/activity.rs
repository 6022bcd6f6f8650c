//! What happens, on standard error: a line for each deployment, trap, slow call, checkpoint and control operation. What comes more often than can be
//! read is told as a number.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime},
};

use reprise_codec::rfc3339;
use reprise_observe::{Notice, Notices, RefusalReason};
use reprise_router::Router;

use crate::output::{bytes, grouped};

/// Of each kind a few lines are told in so long.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Tells until it is dropped.
pub struct Activity {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Activity {
    pub fn start(router: Router) -> io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = is_over.clone();
        let work = move || {
            while !seen.load(Ordering::Acquire) {
                thread::park_timeout(LOOK_EVERY);
                router.look_at_clock();
                router.look_for_dangers();
                tell(router.notices());
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
            let _ = thread.join(); // it prints and nothing else
        }
    }
}

fn tell(notices: &Notices) {
    let taken = notices.take();
    if taken.notices.is_empty() && taken.left_out.is_empty() {
        return;
    }
    let now_us = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as i64);
    let time = rfc3339(now_us);
    for notice in &taken.notices {
        eprintln!("{time} {}", line(notice));
    }
    for (kind, count) in &taken.left_out {
        eprintln!("{time} {} more {} in the last second", grouped(*count), kind.plural());
    }
}

/// The end of a line about what was destroyed.
fn consented(destroyed: &[String]) -> String {
    match destroyed {
        [] => String::new(),
        all => format!("; destroyed with consent: {}", all.join(", ")),
    }
}

fn line(notice: &Notice) -> String {
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
            format!("deployed {module} version {version}{replaced}, transaction {txn_id}{destroyed}")
        }
        Notice::ClockJumped { by_us } => clock_line(*by_us),
        Notice::Removed { module, destroyed } => format!("removed {module}{}", consented(destroyed)),
        Notice::TableDropped { table } => format!("dropped table {table}"),
        Notice::Trapped {
            txn_id,
            procedure,
            message,
        } => {
            let first = message.lines().next().unwrap_or_default();
            format!("trap in {procedure}, transaction {txn_id}: {first}")
        }
        Notice::SlowCall {
            txn_id,
            procedure,
            ran_ms,
        } => {
            format!(
                "slow call of {procedure}, transaction {txn_id}: ran for {} ms",
                grouped(*ran_ms)
            )
        }
        Notice::MemoryExhausted { .. }
        | Notice::KeysRefused { .. }
        | Notice::Danger { .. }
        | Notice::Refused { .. } => danger_line(notice),
        Notice::CheckpointPublished { .. } | Notice::CheckpointFailed { .. } | Notice::FormerLost { .. } => {
            checkpoint_line(notice)
        }
        Notice::Standby { name, what } => match name.as_str() {
            "" => format!("standbys: {what}"),
            name => format!("standby {name:?}: {what}"),
        },
        Notice::Controlled {
            principal,
            operation,
            subject,
            outcome,
            took,
        } => {
            let subject = match subject.as_str() {
                "" => String::new(),
                subject => format!(" {subject:?}"),
            };
            let took_ms = took.as_secs_f64() * 1e3;
            format!("control: {operation}{subject} by {principal:?}: {outcome} in {took_ms:.1} ms")
        }
        Notice::ArchiveFailed { reason } => {
            format!("archive failed, and the data directory keeps what was to go until it goes well: {reason}")
        }
    }
}

/// The line of a notice about a checkpoint; empty for another one.
fn checkpoint_line(notice: &Notice) -> String {
    match notice {
        Notice::CheckpointPublished {
            lsn,
            rows,
            file_bytes,
            seconds,
        } => format!(
            "checkpoint at LSN {lsn}: {} rows, {} in {seconds:.3} s",
            grouped(*rows),
            bytes(*file_bytes)
        ),
        Notice::CheckpointFailed { reason } => format!("checkpoint failed: {reason}"),
        Notice::FormerLost {
            module,
            version,
            reason,
        } => format!(
            "the checkpoint lacks the bytes of {module} version {version}, so {module} can't be rolled back to it: {reason}"
        ),
        _ => String::new(),
    }
}

/// The line of a notice about what refuses calls; empty for another one.
fn danger_line(notice: &Notice) -> String {
    match notice {
        Notice::MemoryExhausted { txn_id, procedure, max } => format!(
            "memory exhausted: call of {procedure}, transaction {txn_id}, was refused; the limit is {} (--memory-max), reads and deletes go on",
            bytes(*max)
        ),
        Notice::KeysRefused { scope, taken, room } => format!(
            "idempotency keys refused: those of the token {scope:?} take {} of the {} that there are for all, and one token has at most half; \
             none is forgotten before its time (--idempotency-keep-s)",
            bytes(*taken),
            bytes(*room)
        ),
        Notice::Danger { what, reason } => state_line(what, reason.as_deref()),
        Notice::Refused { reason, calls } => refused_line(*reason, *calls),
        _ => String::new(),
    }
}

fn state_line(what: &str, reason: Option<&str>) -> String {
    match (what, reason) {
        ("log", Some(reason)) => {
            format!("writes are refused, at least long ones, because the log does not take them: {reason}")
        }
        ("log", None) => "the log takes all writes again".to_owned(),
        (_, Some(reason)) => format!("writes are refused for want of standbys: {reason}"),
        (_, None) => "writes are no longer refused for want of standbys".to_owned(),
    }
}

fn refused_line(reason: RefusalReason, calls: u64) -> String {
    let way_on = match reason {
        RefusalReason::Unauthorized => "somebody has no valid token, or guesses",
        RefusalReason::MemoryExhausted => "the data, or the idempotency keys, take all of their room (--memory-max)",
        RefusalReason::LogUnavailable => "log_error of GET /v1/status says why",
        RefusalReason::StandbyUnavailable | RefusalReason::LeaseLost => "GET /v1/replication says why",
        _ => "reprise_calls_refused_total counts them",
    };
    format!(
        "refused as {}: {} requests since this was told last; {way_on}",
        reason.name(),
        grouped(calls)
    )
}

fn clock_line(by_us: i64) -> String {
    let (seconds, direction) = (
        by_us.unsigned_abs() / 1_000_000,
        if by_us > 0 { "ahead" } else { "back" },
    );
    format!(
        "the wall clock jumped {direction} by {} h {} min: transactions' times and points of time to restore go by it; \
         idempotency keys do not",
        seconds / 3_600,
        seconds / 60 % 60
    )
}
