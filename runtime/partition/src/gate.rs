//! What is durable here and not yet where the server's safety level wants it: its callers wait at the gate, also those who only read it.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use reprise_base::{Lsn, Safety};
use reprise_env::Clock;

use crate::{
    batch::CallBatch,
    sink::{Unlogged, complete},
};

/// Why nothing is answered.
const LEASE_OVER: &str =
    "this server lost its lease, and too few standbys are in sync: another server may be the primary";
/// Everything is where it is wanted.
const EVERYTHING: Lsn = Lsn(u64::MAX);

/// Until when this server may answer without standbys.
pub struct LeaseClock {
    clock: Arc<dyn Clock>,
    /// By the monotonic clock; 0: not now.
    until_ns: AtomicU64,
}

impl LeaseClock {
    /// Over at first.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let until_ns = AtomicU64::new(0);
        Self { clock, until_ns }
    }

    /// Also an earlier end is one.
    pub fn set_until(&self, until_ns: u64) {
        self.until_ns.store(until_ns, Ordering::Release);
    }

    /// Nanoseconds for which it lasts; 0: it is over.
    pub fn left_ns(&self) -> u64 {
        let until_ns = self.until_ns.load(Ordering::Acquire);
        until_ns.saturating_sub(self.clock.monotonic_ns())
    }

    /// It is not over.
    pub fn is_valid(&self) -> bool {
        self.left_ns() > 0
    }
}

/// Between the log and the callers. Open until it is told that standbys are waited for.
pub struct CommitGate {
    /// False: whatever is durable passes, without a look at the rest.
    is_kept: AtomicBool,
    /// Writes are refused; the state says why.
    refuses: AtomicBool,
    /// Standbys have what is answered now, as the level asks for. Changes under the state's lock.
    is_backed: AtomicBool,
    /// Of the server, where one was asked for.
    level: OnceLock<Safety>,
    /// None: this server may always answer alone, where its level says so.
    lease: OnceLock<Arc<LeaseClock>>,
    state: Mutex<State>,
}

struct State {
    /// The furthest that anybody was told of: that is committed, whatever becomes of the limit.
    passed: Lsn,
    /// Everything before it is where the level wants it.
    limit: Lsn,
    refusal: Option<Arc<str>>,
    /// By their ends.
    waiting: VecDeque<Waiting>,
    /// Some were let go and are not all answered yet. Whoever comes waits for that: a checkpoint's record is told to be committed behind the answers to all
    /// before it.
    is_answering: bool,
}

struct Waiting {
    end: Lsn,
    /// When it was first looked at; 0: not yet.
    since_ns: u64,
    batch: Box<CallBatch>,
}

impl Default for CommitGate {
    fn default() -> Self {
        Self {
            is_kept: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            is_backed: AtomicBool::new(false),
            level: OnceLock::new(),
            lease: OnceLock::new(),
            state: Mutex::new(State {
                passed: Lsn(0),
                limit: EVERYTHING,
                refusal: None,
                waiting: VecDeque::new(),
                is_answering: false,
            }),
        }
    }
}

impl CommitGate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }

    /// The server's level. Once: false where there is one.
    pub fn set_level(&self, level: Safety) -> bool {
        self.level.set(level).is_ok()
    }

    /// The server's, if there is one.
    pub fn level(&self) -> Option<Safety> {
        self.level.get().copied()
    }

    /// From here on nothing is answered without standbys that have it, but while this lease lasts. Once: false where there is one.
    pub fn set_lease(&self, lease: Arc<LeaseClock>) -> bool {
        self.lease.set(lease).is_ok()
    }

    /// There is a lease.
    pub fn is_leased(&self) -> bool {
        self.lease.get().is_some()
    }

    /// Looked at just before an answer: this server's lease is over, and no standbys are known, beyond it, to have what it answers. One that
    /// is lost, or comes to be in sync, may have it: whoever takes over is not told of that.
    fn is_silent(&self) -> bool {
        !self.is_backed.load(Ordering::Acquire) && self.lease.get().is_some_and(|lease| !lease.is_valid())
    }

    /// Everything before it is committed.
    fn committed_of(&self, state: &State) -> Lsn {
        match self.is_silent() {
            true => state.passed,
            false => state.passed.max(state.limit),
        }
    }

    /// What an answered write has for certain; None where no level was asked for.
    pub fn reached(&self) -> Option<Safety> {
        let level = self.level()?;
        let is_backed = !level.asks_standbys() || self.is_backed.load(Ordering::Acquire);
        Some(if is_backed { level } else { Safety::OneSafe })
    }

    /// From here on what is behind `committed` waits for `set_limit`.
    pub fn keep(&self, committed: Lsn) {
        let mut state = self.lock();
        state.passed = state.passed.max(committed);
        self.is_kept.store(true, Ordering::Release);
    }

    /// Everything before `limit` is where it is wanted; None: nothing is wanted beyond the disk here. `is_backed`: standbys have what is
    /// answered from here on, as the level asks for. Whoever may go does so at `release`. The limit may fall, when a standby comes that is
    /// behind: what passed stays committed.
    pub fn set_limit(&self, limit: Option<Lsn>, is_backed: bool, refusal: Option<Arc<str>>) {
        let mut state = self.lock();
        state.limit = limit.unwrap_or(EVERYTHING);
        self.is_backed.store(is_backed, Ordering::Release);
        self.refuses.store(refusal.is_some(), Ordering::Release);
        state.refusal = refusal;
    }

    /// Why writes are refused before they run.
    pub fn refusal(&self) -> Option<Unlogged> {
        if self.is_silent() {
            return Some(Unlogged::LeaseLost(LEASE_OVER.into()));
        }
        if !self.refuses.load(Ordering::Acquire) {
            return None;
        }
        self.lock().refusal.clone().map(Unlogged::StandbyUnavailable)
    }

    /// True where nobody is told that the record at `lsn`, which is durable here, is committed: it is not yet where it is wanted, or this server
    /// answers nothing.
    pub fn is_beyond(&self, lsn: Lsn) -> bool {
        if !self.is_kept.load(Ordering::Acquire) {
            return false;
        }
        let state = self.lock();
        self.is_silent() || self.committed_of(&state) <= lsn
    }

    /// Everything before it is committed, of what is `durable` here.
    pub fn committed(&self, durable: Lsn) -> Lsn {
        match self.is_kept.load(Ordering::Acquire) {
            true => self.committed_of(&self.lock()).min(durable),
            false => durable,
        }
    }

    /// Of a batch whose records, or what it read, end at `end`: durable, or never to be.
    pub fn complete(&self, end: Lsn, outcome: Result<(), Unlogged>, batch: Box<CallBatch>) {
        if outcome.is_ok() && self.is_kept.load(Ordering::Acquire) {
            let mut state = self.lock();
            if end > self.committed_of(&state) || state.is_answering {
                let at = state.waiting.partition_point(|waiting| waiting.end <= end);
                let since_ns = 0;
                state.waiting.insert(at, Waiting { end, since_ns, batch });
                return;
            }
            state.passed = state.passed.max(end);
        }
        complete(end, outcome, batch);
    }

    /// Calls `then` once everything before `end`, which is durable here, is where the level wants it; or with the reason why that is not waited
    /// for any more.
    pub fn when_committed(&self, end: Lsn, then: impl FnOnce(Result<(), Arc<str>>) + Send + Sync + 'static) {
        self.complete(end, Ok(()), CallBatch::waiting(then));
    }

    /// Lets those go whose records are where they are wanted. Where another thread answers some at this moment, that one does.
    pub fn release(&self) {
        let state = self.lock();
        if !state.is_answering {
            self.release_of(state);
        }
    }

    /// Until nobody is left who may go: more may have come meanwhile. This thread alone answers.
    fn release_of<'g>(&'g self, mut state: MutexGuard<'g, State>) {
        loop {
            let committed = self.committed_of(&state);
            let count = state.waiting.partition_point(|waiting| waiting.end <= committed);
            let gone: Vec<Waiting> = state.waiting.drain(..count).collect();
            let Some(last) = gone.last() else {
                state.is_answering = false;
                return;
            };
            state.passed = state.passed.max(last.end);
            state.is_answering = true;
            drop(state);
            for waiting in gone {
                complete(waiting.end, Ok(()), waiting.batch);
            }
            state = self.lock();
        }
    }

    /// Answers all writes that wait: they are kept here, and that is all that is known. Whoever only read what is
    /// not committed is refused.
    pub fn give_up(&self, reason: &Arc<str>) {
        self.give_up_where(reason, |_| true);
    }

    /// As `give_up`, for those who waited since before `before_ns`, and those whose client waits no longer.
    pub fn expire(&self, now_ns: u64, before_ns: u64, reason: &Arc<str>) {
        if self.is_kept.load(Ordering::Acquire) {
            self.give_up_where(reason, |waiting| {
                if waiting.since_ns == 0 {
                    waiting.since_ns = now_ns;
                }
                waiting.since_ns <= before_ns || waiting.batch.is_overdue(now_ns)
            });
        }
    }

    fn give_up_where(&self, reason: &Arc<str>, mut is_given_up: impl FnMut(&mut Waiting) -> bool) {
        let mut state = self.lock();
        let committed = self.committed_of(&state);
        let mut gone = Vec::new();
        for mut waiting in std::mem::take(&mut state.waiting) {
            match is_given_up(&mut waiting) {
                true => gone.push(waiting),
                false => state.waiting.push_back(waiting),
            }
        }
        let shown = gone.iter().map(|waiting| waiting.end).filter(|end| *end <= committed);
        state.passed = shown.fold(state.passed, Lsn::max);
        let answers = !state.is_answering && !gone.is_empty();
        state.is_answering |= answers;
        drop(state);
        for mut waiting in gone {
            waiting.batch.leave_open(reason, waiting.end <= committed);
            complete(waiting.end, Ok(()), waiting.batch);
        }
        if answers {
            self.release_of(self.lock());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use reprise_env::SimClock;

    use super::*;

    type Told = mpsc::Receiver<Result<(), Arc<str>>>;

    fn wait_for(gate: &CommitGate, end: u64) -> Told {
        let (sender, told) = mpsc::channel();
        gate.when_committed(Lsn(end), move |outcome| _ = sender.send(outcome));
        told
    }

    #[test]
    fn whoever_comes_while_others_are_answered_is_answered_behind_them() {
        let gate = Arc::new(CommitGate::default());
        gate.keep(Lsn(0));
        gate.set_limit(Some(Lsn(5)), true, None);
        let (sender, told) = mpsc::channel();
        let (inner, tell) = (gate.clone(), sender.clone());
        gate.when_committed(Lsn(7), move |_| {
            // As another thread would, at the same moment.
            let later = tell.clone();
            inner.when_committed(Lsn(8), move |outcome| _ = later.send((8, outcome.is_ok())));
            inner.release();
            let _ = tell.send((7, true));
        });
        gate.set_limit(Some(Lsn(9)), true, None);
        gate.release();
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [(7, true), (8, true)]);
        // The same where they are given up.
        let (inner, tell) = (gate.clone(), sender);
        gate.when_committed(Lsn(11), move |outcome| {
            let later = tell.clone();
            inner.when_committed(Lsn(9), move |outcome| _ = later.send((9, outcome.is_ok())));
            let _ = tell.send((11, outcome.is_ok()));
        });
        gate.give_up(&"nobody waits any more".into());
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [(11, false), (9, true)]);
        assert!(wait_for(&gate, 9).try_recv().is_ok(), "nobody answers now");
    }

    #[test]
    fn nothing_is_answered_alone_once_the_lease_is_over_and_all_of_it_when_it_is_back() {
        let clock = Arc::new(SimClock::at_us(1));
        let lease = Arc::new(LeaseClock::new(clock.clone()));
        let gate = CommitGate::default();
        assert!(gate.set_lease(lease.clone()) && !gate.set_lease(lease.clone()));
        gate.keep(Lsn(5));
        assert!(gate.refusal().is_some(), "it never had one");
        lease.set_until(clock.monotonic_ns() + 1_000_000);
        assert!(gate.refusal().is_none() && lease.is_valid());
        assert!(wait_for(&gate, 7).try_recv().is_ok_and(|outcome| outcome.is_ok()));
        clock.advance_us(1_000);
        assert_eq!(lease.left_ns(), 0);
        assert!(gate.refusal().is_some());
        let waits = wait_for(&gate, 9);
        gate.release();
        assert!(waits.try_recv().is_err(), "another server may be the primary");
        assert_eq!(gate.committed(Lsn(9)), Lsn(7), "what was answered is");
        // Whoever repeats a call is not told that it committed.
        assert!(gate.is_beyond(Lsn(8)) && gate.is_beyond(Lsn(6)));
        // A standby in sync has it: that needs no lease.
        gate.set_limit(Some(Lsn(9)), true, None);
        assert!(gate.is_beyond(Lsn(9)) && !gate.is_beyond(Lsn(8)));
        assert!(gate.refusal().is_none());
        gate.release();
        assert!(waits.try_recv().is_ok_and(|outcome| outcome.is_ok()));
        gate.set_limit(None, false, None);
        let waits = wait_for(&gate, 11);
        assert!(waits.try_recv().is_err());
        // One that is lost, or comes to be in sync, has it: whoever takes over does not know of that.
        gate.set_limit(Some(Lsn(12)), false, None);
        gate.release();
        assert!(waits.try_recv().is_err() && gate.refusal().is_some() && gate.is_beyond(Lsn(10)));
        lease.set_until(clock.monotonic_ns() + 1_000_000);
        gate.release();
        assert!(waits.try_recv().is_ok_and(|outcome| outcome.is_ok()));
    }
}
