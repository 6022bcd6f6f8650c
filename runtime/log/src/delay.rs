//! The time for which a group may grow before it is written. Only this module decides it.
//!
//! A configured delay applies alone. Without one, a group waits while all its appenders are busy with waiting calls. The wait is a share of
//! the time of those calls, counted from the last write. The appenders gain nothing from an earlier write, and each write costs them
//! processor time. Otherwise a group waits for clients that were just acknowledged, while that is worth it (`returns`). A thread that needs
//! the group itself ends every wait except a configured one.

use std::time::Duration;

use crate::{
    returns::{ReturnPrediction, ReturnsWait},
    state::LogState,
};

/// A commit waits by this part of the time for which its engine thread is busy; the setting `patience_max` is the most.
const BUSY_PART: u32 = 4;
/// Time of a write, about: a shorter wait is not worth a timer.
const PATIENCE_MIN: Duration = Duration::from_micros(100);

/// Time for which the records of an appender may wait that is busy for `busy`.
pub(crate) fn patience(busy: Duration, max: Duration) -> u64 {
    match (busy / BUSY_PART).min(max) {
        patience if patience < PATIENCE_MIN => 0,
        patience => patience.as_nanos() as u64,
    }
}

/// Why the flusher lets a group grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupWait {
    /// The group may grow for a configured time, or up to this number of callers.
    Configured(usize),
    /// The appenders have other calls to run.
    Busy,
    /// Clients that were just acknowledged are about to append again.
    Returns(ReturnsWait),
}

/// A wait that has begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BegunWait {
    pub pause: GroupWait,
    began_ns: u64,
    pub ns_max: u64,
}

pub(crate) struct CommitDelay {
    configured_ns: u64,
    calls_max: usize,
    returns: ReturnPrediction,
    /// When the last write ended, and how long its block might have been kept.
    last_write_ns: u64,
    kept_ns: u64,
    /// The wait in progress; only if the flusher is stepped.
    stepped: Option<BegunWait>,
}

impl CommitDelay {
    pub fn new(configured: Duration, calls_max: usize) -> Self {
        Self {
            configured_ns: configured.as_nanos() as u64,
            calls_max,
            returns: ReturnPrediction::default(),
            last_write_ns: 0,
            kept_ns: 0,
            stepped: None,
        }
    }

    /// Begins the wait that suits the next group. Its caller reports the outcome to `end`.
    pub fn begin<P>(&mut self, state: &LogState<P>, now_ns: u64) -> Option<BegunWait> {
        let (pause, ns_max) = match (self.configured_ns, state.patience_ns) {
            (0, 0) => self.begin_returns(state)?,
            (0, patience_ns) => (GroupWait::Busy, self.left_of(patience_ns, now_ns)),
            (configured_ns, _) => (GroupWait::Configured(self.calls_max), configured_ns),
        };
        let begun = BegunWait {
            pause,
            began_ns: now_ns,
            ns_max,
        };
        (ns_max > 0 && state.may_pause(pause)).then_some(begun)
    }

    fn begin_returns<P>(&mut self, state: &LogState<P>) -> Option<(GroupWait, u64)> {
        if !state.may_grow() || state.is_awaited() {
            return None;
        }
        let wait = self.returns.begin_wait(state.fill_pending.len())?;
        Some((GroupWait::Returns(wait), wait.ns_max))
    }

    /// Begins a rest while there is nothing to write, once after each block. An appender that kept the last block is about to append again,
    /// and need not wake the flusher.
    pub fn begin_idle(&mut self, now_ns: u64) -> Option<BegunWait> {
        let kept_ns = std::mem::take(&mut self.kept_ns);
        let begun = BegunWait {
            pause: GroupWait::Busy,
            began_ns: now_ns,
            ns_max: self.left_of(kept_ns, now_ns),
        };
        (begun.ns_max > 0).then_some(begun)
    }

    fn left_of(&self, patience_ns: u64, now_ns: u64) -> u64 {
        patience_ns.saturating_sub(now_ns - self.last_write_ns)
    }

    /// Records the end of a wait, with `count` callers in the group.
    pub fn end(&mut self, begun: BegunWait, count: usize, now_ns: u64) {
        if let GroupWait::Returns(wait) = begun.pause {
            self.returns.record_wait(wait, count, now_ns - begun.began_ns);
        }
    }

    /// Begins and ends waits for a stepped flusher: true while the group waits.
    pub fn still_waits<P>(&mut self, state: &LogState<P>, now_ns: u64) -> bool {
        let begun = match self.stepped.take() {
            None => self.begin(state, now_ns),
            begun => begun,
        };
        let Some(begun) = begun else {
            return false;
        };
        if now_ns - begun.began_ns < begun.ns_max && state.may_pause(begun.pause) {
            self.stepped = Some(begun);
            return true;
        }
        self.end(begun, state.fill_pending.len(), now_ns);
        false
    }

    /// Records that a group is taken to be written.
    pub fn record_taken<P>(&mut self, state: &LogState<P>) {
        self.kept_ns = match (state.fill_records, self.configured_ns) {
            (1.., 0) => state.patience_ns,
            _ => 0,
        };
    }

    /// Records that a write ended at `now_ns`.
    pub fn record_written(&mut self, now_ns: u64) {
        self.last_write_ns = now_ns;
    }

    /// Records that `acknowledged` callers are acknowledged after a write of `write_ns`, while `waiting` others wait already.
    pub fn record_acknowledged(&mut self, acknowledged: usize, waiting: usize, write_ns: u64) {
        self.returns.record_acknowledged(acknowledged, waiting, write_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_kept_for_a_part_of_what_others_wait() {
        const MAX: Duration = Duration::from_millis(4);
        let of = |busy_us: u64| patience(Duration::from_micros(busy_us), MAX);
        assert_eq!(of(0), 0);
        assert_eq!(of(390), 0, "less than a write takes");
        assert_eq!(of(4_000), 1_000_000);
        assert_eq!(of(u64::MAX), MAX.as_nanos() as u64);
    }

    #[test]
    fn behind_a_block_that_was_kept_the_flusher_rests_once() {
        let mut delay = CommitDelay::new(Duration::ZERO, usize::MAX);
        delay.kept_ns = 500;
        delay.record_written(1_000);
        let begun = delay.begin_idle(1_200).expect("a rest");
        assert_eq!((begun.pause, begun.ns_max), (GroupWait::Busy, 300));
        assert!(delay.begin_idle(1_200).is_none());
        delay.kept_ns = 500;
        assert!(delay.begin_idle(1_500).is_none(), "it is over");
    }
}
