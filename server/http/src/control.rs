//! The one entry of control operations. It records who does what, on whose behalf, and with which result.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, Method};
use reprise_api::{ControlEnd, ControlEvent, ProblemKind};
use reprise_codec::rfc3339;
use reprise_observe::{Notice, NoticeKind, Notices};
use reprise_router::EndedControl;

use crate::{
    permits::Operation,
    principal::Principal,
    refusal::Refusal,
    state::{AppState, Parts},
    status::now_us,
    target::shortened,
};

/// Outcome of an operation that was not refused.
const DONE: &str = "done";
/// Time for which a repeated refusal is not recorded.
const REPEAT_TIME: Duration = Duration::from_secs(60);
/// Refusals that are recorded in a minute at most: a client can cause as many as it likes.
const REFUSALS_A_MINUTE: u32 = 60;
/// Records that are kept for those who begin to watch.
const RECORDS_KEPT: usize = 256;
/// The longest wait of an operation for its record in the log. A record that takes longer follows.
const LOGGED_WAIT_MAX: Duration = Duration::from_secs(1);

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
    /// A request, by method and path, that the role or the grants of its token do not allow.
    Forbidden(String),
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
            Self::Forbidden(request) => ("request", request),
        }
    }

    /// Whether it becomes a record of the log. Standbys come and go by themselves, also to a primary that leads no more.
    fn is_logged(&self) -> bool {
        !matches!(self, Self::AdmitStandby(_))
    }

    /// Returns the kind of the operation, by the resource that it waits for. None: it waits for nothing, and needs no thread of its own.
    fn place(&self) -> Option<Operation> {
        match self {
            Self::CancelCall(_) | Self::AdmitStandby(_) | Self::Forbidden(_) => None,
            Self::DeployModule(_) | Self::RollbackModule(_) => Some(Operation::Deploy),
            Self::RemoveModule(_) | Self::DropTable(_) => Some(Operation::Remove),
            Self::CreateBackup | Self::RemoveBackup(_) | Self::ReadBackup(_) => Some(Operation::Backup),
            Self::Promote | Self::StepDown(_) => Some(Operation::Promote),
            Self::ForgetStandby(_) | Self::Promise(_) => Some(Operation::Membership),
            Self::TakeCheckpoint => Some(Operation::Other),
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
    /// Begin of the present minute, and the refusals that were recorded in it.
    minute: Option<(Instant, u32)>,
    /// Refusals that were not recorded, because their minute had too many.
    left_out: u64,
}

impl ControlLog {
    fn kept(&self) -> MutexGuard<'_, ControlRecords> {
        self.0.lock().expect("no code panics under this lock")
    }

    /// Returns whether a record is to be kept: not the last refusal again within a minute, and no refusal beyond the number of a minute.
    fn admits(&self, record: &ControlEvent, now: Instant) -> bool {
        let mut kept = self.kept();
        if record.control.outcome == DONE {
            kept.refused = None;
            return true;
        }
        let key = |record: &ControlEvent| {
            let ControlEnd {
                operation,
                subject,
                outcome,
                ..
            } = record.control.clone();
            (record.principal.clone(), operation, subject, outcome)
        };
        let is_recent = |at: Instant| now.duration_since(at) < REPEAT_TIME;
        let is_same = |(last, at): &(ControlEvent, Instant)| key(last) == key(record) && is_recent(*at);
        if kept.refused.as_ref().is_some_and(is_same) {
            return false;
        }
        let (begun, count) = kept.minute.filter(|(begun, _)| is_recent(*begun)).unwrap_or((now, 0));
        if count == REFUSALS_A_MINUTE {
            kept.left_out += 1;
            return false;
        }
        kept.minute = Some((begun, count + 1));
        kept.refused = Some((record.clone(), now));
        true
    }

    /// Returns the number of refusals that were not recorded, because their minute had too many.
    pub fn left_out(&self) -> u64 {
        self.kept().left_out
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
    /// Records the result of the operation: for those who watch, and in the log.
    fn record(&self, parts: &Parts, refusal: Option<&Refusal>) {
        let ended = self.publish(&parts.controls, parts.router.notices(), refusal);
        if let Some(ended) = ended.filter(|_| self.op.is_logged()) {
            let wait_max = self.op.place().map_or(Duration::ZERO, |_| LOGGED_WAIT_MAX);
            let subject = ended.subject.clone();
            if let Err(reason) = parts.router.log_control(ended, wait_max) {
                let operation = self.op.words().0;
                tracing::warn!(%reason, operation, subject, "put a control operation into the log");
            }
        }
    }

    /// Tells those who watch of the result of the operation. None: it is not to be recorded.
    fn publish(&self, log: &ControlLog, notices: &Notices, refusal: Option<&Refusal>) -> Option<EndedControl> {
        let (operation, subject) = self.op.words();
        let ended = EndedControl {
            principal: self.principal.name().to_owned(),
            operation,
            subject: shortened(subject),
            outcome: outcome_of(refusal),
            took: self.begun.elapsed(),
        };
        let record = ControlEvent {
            time: rfc3339(now_us()),
            principal: ended.principal.clone(),
            control: ControlEnd {
                operation: operation.to_owned(),
                subject: ended.subject.clone(),
                outcome: ended.outcome.to_owned(),
                took_ms: millis(ended.took),
            },
        };
        if !log.admits(&record, Instant::now()) {
            return None;
        }
        notices.publish(NoticeKind::Control, || Notice::Controlled {
            principal: ended.principal.clone(),
            operation,
            subject: ended.subject.clone(),
            outcome: ended.outcome.to_owned(),
            took: ended.took,
        });
        log.push(record);
        Some(ended)
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
    /// disconnects, or gets the answer that a disk does not answer.
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
            controlled.record(parts, outcome.as_ref().err());
            outcome
        };
        match place {
            None => run(self),
            Some(kind) => self.blocking(kind, run).await?,
        }
    }

    /// Records a request that the role or the grants of its token do not allow.
    pub fn record_forbidden(&self, headers: &HeaderMap, method: &Method, path: &str, refusal: &Refusal) {
        if refusal.problem.kind() != Some(ProblemKind::Forbidden) {
            return;
        }
        let Some(principal) = self.auth().named(headers) else {
            return;
        };
        let refused = ActiveControl {
            op: ControlOp::Forbidden(format!("{method} {path}")),
            principal,
            begun: Instant::now(),
        };
        refused.record(self, Some(refusal));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_on_backups_and_other_servers_share_no_place_with_the_rest() {
        let name = || "a".to_owned();
        let kinds = |ops: &[ControlOp]| ops.iter().map(ControlOp::place).collect::<Vec<_>>();
        let on_backups = [
            ControlOp::CreateBackup,
            ControlOp::RemoveBackup(name()),
            ControlOp::ReadBackup(name()),
        ];
        assert_eq!(kinds(&on_backups), [Some(Operation::Backup); 3]);
        let to_others = [ControlOp::Promote, ControlOp::StepDown(name())];
        assert_eq!(kinds(&to_others), [Some(Operation::Promote); 2]);
        let rest = [
            ControlOp::RemoveModule(name()),
            ControlOp::DropTable(name()),
            ControlOp::TakeCheckpoint,
            ControlOp::ForgetStandby(name()),
            ControlOp::Promise(name()),
        ];
        for kind in kinds(&rest) {
            assert!(
                !matches!(kind, None | Some(Operation::Backup | Operation::Promote)),
                "{kind:?}"
            );
        }
    }

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
        drop_table(0).publish(&log, &notices, Some(&refusal));
        let (records, next) = log.since(0);
        assert_eq!((records.len(), next), (1, 1));
        let [record] = &records[..] else { unreachable!() };
        let control = &record.control;
        assert_eq!(
            (&*record.principal, &*control.operation, &*control.outcome),
            ("anonymous", "drop-table", "not-found")
        );
        assert!(control.subject.len() <= 100, "as long as a client may make it");
        for at in 0..RECORDS_KEPT + 5 {
            drop_table(at).publish(&log, &notices, None);
        }
        let (records, end) = log.since(next);
        assert_eq!((records.len(), end), (RECORDS_KEPT, RECORDS_KEPT as u64 + 6));
        let control = &records[0].control;
        assert!(control.subject.starts_with("5x") && control.outcome == "done");
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
            controlled.publish(&log, &notices, refusal);
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
        assert!(!log.admits(&record, Instant::now()) && log.admits(&record, later));
    }

    #[test]
    fn a_minute_has_at_most_so_many_refusals_and_each_further_one_is_counted() {
        let log = ControlLog::default();
        let refused = |at: u32| ControlEvent {
            time: String::new(),
            principal: "app".into(),
            control: ControlEnd {
                operation: "request".into(),
                subject: format!("DELETE /v1/modules/{at}"),
                outcome: "forbidden".into(),
                took_ms: 0.0,
            },
        };
        let now = Instant::now();
        let admitted = (0..REFUSALS_A_MINUTE + 5)
            .filter(|at| log.admits(&refused(*at), now))
            .count();
        assert_eq!((admitted as u32, log.left_out()), (REFUSALS_A_MINUTE, 5));
        let mut done = refused(0);
        done.control.outcome = DONE.into();
        assert!(log.admits(&done, now), "refusals do not hide what is done");
        assert!(log.admits(&refused(0), now + REPEAT_TIME), "the next minute");
    }
}
