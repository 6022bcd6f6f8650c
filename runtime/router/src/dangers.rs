//! Dangers that an operator must see: a log that takes no writes, commits that are refused, and refusals to clients. The watch checks them
//! once a second. It reports each when it begins, when it ends, and at most once a minute meanwhile.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use reprise_base::Role;
use reprise_log::Log;
use reprise_observe::{Notice, NoticeKind, Notices, RefusalReason, Refusals};
use reprise_partition::LogRefusal;

use crate::router::{NodePhase, Router};

/// Shortest time between two reports of refusals of one reason.
const LINE_INTERVAL: Duration = Duration::from_secs(60);
/// Refusals that are the server's matter. Others are their client's, and have their count alone.
const REPORTED: [RefusalReason; 6] = [
    RefusalReason::LeaseLost,
    RefusalReason::LogUnavailable,
    RefusalReason::MemoryExhausted,
    RefusalReason::Overloaded,
    RefusalReason::StandbyUnavailable,
    RefusalReason::Unauthorized,
];

/// The states and counts that the last lines told.
#[derive(Default)]
pub(crate) struct DangerWatch(Mutex<Last>);

#[derive(Default)]
struct Last {
    log: Option<Arc<str>>,
    commits: Option<Arc<str>>,
    other_primary: Option<Arc<str>>,
    refusals: [RefusalLine; REPORTED.len()],
}

/// The last line about the refusals of one reason.
#[derive(Clone, Copy, Default)]
struct RefusalLine {
    /// Number of refusals by then.
    count: u64,
    /// Time of the line by the monotonic clock. None: there was none.
    at_ns: Option<u64>,
}

impl RefusalLine {
    /// Returns the number that came since the last notice, if it is time for the next.
    fn due(&mut self, count: u64, now_ns: u64) -> Option<u64> {
        let is_time = self
            .at_ns
            .is_none_or(|at_ns| now_ns.saturating_sub(at_ns) >= LINE_INTERVAL.as_nanos() as u64);
        let new = count - self.count;
        if new == 0 || !is_time {
            return None;
        }
        (self.count, self.at_ns) = (count, Some(now_ns));
        Some(new)
    }
}

/// Reports when a state begins, becomes another one, or ends.
fn report_change(notices: &Notices, last: &mut Option<Arc<str>>, now: Option<Arc<str>>, what: &'static str) {
    if *last != now {
        last.clone_from(&now);
        notices.publish(NoticeKind::Danger, || Notice::Danger { what, reason: now });
    }
}

impl Router {
    /// Returns why the log takes no writes, or no long ones.
    pub(crate) fn log_trouble(&self) -> Option<Arc<str>> {
        let log = self.0.config.log.as_deref();
        // That a standby's log takes no appends is no error.
        log.filter(|log| !self.is_standby() || log.is_stopped())
            .and_then(Log::trouble)
    }

    /// Describes the server that leads beside this one.
    fn describe_other(&self) -> Option<Arc<str>> {
        let other = self.other_primary()?;
        let (name, url) = (&other.name, &other.url);
        let own = self.status().epoch.unwrap_or_default();
        Some(
            format!(
                "{name} at {url}, in epoch {}; this server leads in epoch {own}",
                other.epoch
            )
            .into(),
        )
    }

    /// Calls and requests that did not run, by reason.
    pub fn refusals(&self) -> &Refusals {
        &self.0.config.registry.refusals
    }

    /// Reports everything that has become dangerous since the last check.
    pub fn report_dangers(&self) {
        // A server that opens, stops, or is read alone takes no writes, and says so itself.
        if self.phase() != NodePhase::Ready || self.role() == Role::ReadOnly {
            return;
        }
        let (shared, notices) = (&self.0.config.shared, self.notices());
        let now_ns = shared.clock.monotonic_ns();
        let commits = shared.gate.refusal().map(|refusal| match refusal {
            LogRefusal::StandbyUnavailable(reason) | LogRefusal::LeaseLost(reason) => reason,
            other => other.to_string().into(),
        });
        let mut last = self.0.dangers.0.lock().unwrap_or_else(PoisonError::into_inner);
        report_change(notices, &mut last.log, self.log_trouble(), "log");
        report_change(notices, &mut last.commits, commits, "standbys");
        report_change(notices, &mut last.other_primary, self.describe_other(), "other-primary");
        for (line, reason) in last.refusals.iter_mut().zip(REPORTED) {
            let count = self.refusals().get(reason);
            if let Some(calls) = line.due(count, now_ns) {
                notices.publish(NoticeKind::Refusal, || Notice::Refused { reason, calls });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_reported_at_once_and_then_once_a_minute() {
        const S: u64 = 1_000_000_000;
        let mut line = RefusalLine::default();
        assert_eq!(line.due(0, S), None);
        assert_eq!(line.due(3, 2 * S), Some(3));
        assert_eq!(line.due(900, 3 * S), None);
        assert_eq!(line.due(1_003, 62 * S), Some(1_000));
        assert_eq!(line.due(1_003, 200 * S), None, "nothing new");
        assert_eq!(line.due(1_004, 201 * S), Some(1));
    }

    #[test]
    fn state_is_reported_when_it_begins_changes_and_ends() {
        let (notices, mut last) = (Notices::default(), None);
        for reason in [None, Some("full"), Some("full"), Some("broken"), None, None] {
            report_change(&notices, &mut last, reason.map(Into::into), "log");
        }
        let reasons = notices.take().notices.into_iter().map(|notice| match notice {
            Notice::Danger { what: "log", reason } => reason,
            other => panic!("{other:?}"),
        });
        let reasons: Vec<Option<Arc<str>>> = reasons.collect();
        let reasons: Vec<Option<&str>> = reasons.iter().map(Option::as_deref).collect();
        assert_eq!(reasons, [Some("full"), Some("broken"), None]);
    }
}
