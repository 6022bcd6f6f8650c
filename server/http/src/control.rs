//! The one entry of control operations. It records who does what, on whose behalf, and with which result.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use reprise_api::{ControlEvent, ProblemKind};
use reprise_codec::rfc3339;
use reprise_observe::{Notice, NoticeKind, Notices};

use crate::{
    auth::Principal,
    permits::Operation,
    refusal::Refusal,
    state::{AppState, Parts},
    status::now_us,
    target::shortened,
};

/// Outcome of an operation that was not refused.
const DONE: &str = "done";
/// Time for which a repeated refusal is not recorded.
const REPEAT_TIME: Duration = Duration::from_secs(60);
/// Records that are kept for those who begin to watch.
const RECORDS_KEPT: usize = 256;

/// An operation on the database other than a procedure call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlOp {
    DeployModule(String),
    RollbackModule(String),
    RemoveModule(String),
    DropTable(String),
    TakeCheckpoint,
    CreateBackup,
    RemoveBackup(String),
    /// A file of a backup: it holds rows, or the database's secret.
    ReadBackup(String),
    CancelCall(String),
    /// Lets a standby of this name connect.
    AdmitStandby(String),
    ForgetStandby(String),
    Promote,
    /// Gives the primary's place to the standby of this name.
    StepDown(String),
    /// Promises an epoch to the server of this name.
    Promise(String),
}

impl ControlOp {
    /// Returns the operation's name in records, and its object.
    fn words(&self) -> (&'static str, &str) {
        match self {
            Self::DeployModule(module) => ("deploy-module", module),
            Self::RollbackModule(module) => ("rollback-module", module),
            Self::RemoveModule(module) => ("remove-module", module),
            Self::DropTable(table) => ("drop-table", table),
            Self::TakeCheckpoint => ("take-checkpoint", ""),
            Self::CreateBackup => ("create-backup", ""),
            Self::RemoveBackup(id) => ("remove-backup", id),
            Self::ReadBackup(file) => ("read-backup", file),
            Self::CancelCall(id) => ("cancel-call", id),
            Self::AdmitStandby(name) => ("admit-standby", name),
            Self::ForgetStandby(name) => ("forget-standby", name),
            Self::Promote => ("promote", ""),
            Self::StepDown(name) => ("step-down", name),
            Self::Promise(name) => ("promise", name),
        }
    }

    /// None: it waits for nothing, and needs no thread of its own.
    fn place(&self) -> Option<Operation> {
        match self {
            Self::CancelCall(_) | Self::AdmitStandby(_) => None,
            Self::DeployModule(_) | Self::RollbackModule(_) => Some(Operation::Deploy),
            _ => Some(Operation::Other),
        }
    }
}

/// The newest records, each with a number that counts up from 0.
#[derive(Default)]
pub struct ControlLog(Mutex<ControlRecords>);

#[derive(Default)]
struct ControlRecords {
    records: VecDeque<ControlEvent>,
    /// Number of the next record.
    next: u64,
    /// The last refusal, until an operation is done.
    refused: Option<(ControlEvent, Instant)>,
}

impl ControlLog {
    fn kept(&self) -> MutexGuard<'_, ControlRecords> {
        self.0.lock().expect("no code panics under this lock")
    }

    /// Returns whether a record repeats the last refusal within a minute. A server that tries again and again is recorded once.
    fn is_repeat(&self, record: &ControlEvent, now: Instant) -> bool {
        let mut kept = self.kept();
        let key = |record: &ControlEvent| {
            let ControlEvent {
                principal,
                operation,
                subject,
                outcome,
                ..
            } = record.clone();
            (principal, operation, subject, outcome)
        };
        let is_same =
            |(last, at): &(ControlEvent, Instant)| key(last) == key(record) && now.duration_since(*at) < REPEAT_TIME;
        if record.outcome == DONE {
            kept.refused = None;
        } else if kept.refused.as_ref().is_some_and(is_same) {
            return true;
        } else {
            kept.refused = Some((record.clone(), now));
        }
        false
    }

    fn push(&self, record: ControlEvent) {
        let mut kept = self.kept();
        if kept.records.len() == RECORDS_KEPT {
            kept.records.pop_front();
        }
        kept.records.push_back(record);
        kept.next += 1;
    }

    /// Returns the kept records from the number `from` on, the oldest first, and the number of the next one.
    pub fn since(&self, from: u64) -> (Vec<ControlEvent>, u64) {
        let kept = self.kept();
        let new = usize::try_from(kept.next - from).unwrap_or(usize::MAX);
        let known = kept.records.len().saturating_sub(new);
        (kept.records.iter().skip(known).cloned().collect(), kept.next)
    }
}

/// An operation under way.
struct ActiveControl {
    op: ControlOp,
    principal: Principal,
    begun: Instant,
}

impl ActiveControl {
    /// Records the result of the operation.
    fn record(&self, log: &ControlLog, notices: &Notices, refusal: Option<&Refusal>) {
        let (operation, subject) = self.op.words();
        let took = self.begun.elapsed();
        let record = ControlEvent {
            time: rfc3339(now_us()),
            principal: self.principal.name().to_owned(),
            operation: operation.to_owned(),
            subject: shortened(subject),
            outcome: outcome_of(refusal).to_owned(),
            took_ms: millis(took),
        };
        if log.is_repeat(&record, Instant::now()) {
            return;
        }
        notices.publish(NoticeKind::Control, || Notice::Controlled {
            principal: record.principal.clone(),
            operation,
            subject: record.subject.clone(),
            outcome: record.outcome.clone(),
            took,
        });
        log.push(record);
    }
}

/// `done`, or the slug of the problem.
fn outcome_of(refusal: Option<&Refusal>) -> &'static str {
    match refusal.map(|refusal| refusal.problem.kind()) {
        None => DONE,
        Some(kind) => kind.unwrap_or(ProblemKind::InternalError).slug(),
    }
}

/// Returns milliseconds with three digits after the point.
fn millis(took: Duration) -> f64 {
    (took.as_secs_f64() * 1e6).round() / 1e3
}

impl AppState {
    /// Carries out a control operation for `principal`, whose role was checked, and records the operation, its sender and its result. An
    /// operation that may block takes its kind's place and a thread of its own. It completes and is recorded even if its client
    /// disconnects.
    pub async fn control<T: Send + 'static>(
        &self,
        op: ControlOp,
        principal: Principal,
        operation: impl FnOnce(&Parts) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let place = op.place();
        let controlled = ActiveControl {
            op,
            principal,
            begun: Instant::now(),
        };
        let run = move |parts: &Parts| {
            let outcome = operation(parts);
            controlled.record(&parts.controls, parts.router.notices(), outcome.as_ref().err());
            outcome
        };
        match place {
            None => run(self),
            Some(kind) => self.blocking(kind, run).await?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_records_are_kept_and_each_is_reported_once() {
        let (log, notices) = (ControlLog::default(), Notices::default());
        let refusal = Refusal::not_found("no such thing");
        let drop_table = |at: usize| ActiveControl {
            op: ControlOp::DropTable(format!("{at}{}", "x".repeat(10_000))),
            principal: Principal::ANONYMOUS,
            begun: Instant::now(),
        };
        assert_eq!(log.since(0).1, 0);
        drop_table(0).record(&log, &notices, Some(&refusal));
        let (records, next) = log.since(0);
        assert_eq!((records.len(), next), (1, 1));
        let [record] = &records[..] else { unreachable!() };
        assert_eq!(
            (&*record.principal, &*record.operation, &*record.outcome),
            ("anonymous", "drop-table", "not-found")
        );
        assert!(record.subject.len() <= 100, "as long as a client may make it");
        for at in 0..RECORDS_KEPT + 5 {
            drop_table(at).record(&log, &notices, None);
        }
        let (records, end) = log.since(next);
        assert_eq!((records.len(), end), (RECORDS_KEPT, RECORDS_KEPT as u64 + 6));
        assert!(records[0].subject.starts_with("5x") && records[0].outcome == "done");
        assert!(log.since(end).0.is_empty());
        assert_eq!(notices.take().notices.len(), RECORDS_KEPT + 6, "none is left out");
    }

    #[test]
    fn same_refusal_again_is_recorded_once_a_minute() {
        let (log, notices) = (ControlLog::default(), Notices::default());
        let refusal = Refusal::not_found("no such thing");
        let admit = |name: &str, refusal| {
            let controlled = ActiveControl {
                op: ControlOp::AdmitStandby(name.to_owned()),
                principal: Principal::ANONYMOUS,
                begun: Instant::now(),
            };
            controlled.record(&log, &notices, refusal);
            log.since(0).1
        };
        assert_eq!([1, 2, 3].map(|_| admit("b", Some(&refusal))), [1, 1, 1]);
        assert_eq!(admit("c", Some(&refusal)), 2, "another subject");
        assert_eq!(
            (admit("c", None), admit("c", Some(&refusal))),
            (3, 4),
            "it was done meanwhile"
        );
        let record = log.since(3).0.remove(0);
        let later = Instant::now() + REPEAT_TIME;
        assert!(log.is_repeat(&record, Instant::now()) && !log.is_repeat(&record, later));
    }
}
