//! What is durable here and not yet where the server's safety level wants it: its callers wait at the gate, also those who only read it.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use reprise_base::{Lsn, Safety};

use crate::{
    batch::CallBatch,
    sink::{Unlogged, complete},
};

/// Everything is where it is wanted.
const EVERYTHING: Lsn = Lsn(u64::MAX);

/// Between the log and the callers. Open until it is told that standbys are waited for.
pub struct CommitGate {
    /// False: whatever is durable passes, without a look at the rest.
    is_kept: AtomicBool,
    /// Writes are refused; the state says why.
    refuses: AtomicBool,
    /// A standby has what is answered now.
    is_backed: AtomicBool,
    /// Of the server, where one was asked for.
    level: OnceLock<Safety>,
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
}

struct Waiting {
    end: Lsn,
    /// When it was first looked at; 0: not yet.
    since_ns: u64,
    batch: Box<CallBatch>,
}

impl State {
    fn committed(&self) -> Lsn {
        self.passed.max(self.limit)
    }
}

impl Default for CommitGate {
    fn default() -> Self {
        Self {
            is_kept: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            is_backed: AtomicBool::new(false),
            level: OnceLock::new(),
            state: Mutex::new(State {
                passed: Lsn(0),
                limit: EVERYTHING,
                refusal: None,
                waiting: VecDeque::new(),
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

    pub fn level(&self) -> Option<Safety> {
        self.level.get().copied()
    }

    /// What an answered write has for certain; None where no level was asked for.
    pub fn reached(&self) -> Option<Safety> {
        let level = self.level()?;
        let is_backed = !level.asks_standbys() || self.is_backed.load(Ordering::Acquire);
        Some(if is_backed { level } else { Safety::OneSafe })
    }

    /// Whether a standby has what is answered now, as the level asks for.
    pub fn set_backed(&self, is_backed: bool) {
        self.is_backed.store(is_backed, Ordering::Release);
    }

    /// From here on what is behind `committed` waits for `set_limit`.
    pub fn keep(&self, committed: Lsn) {
        let mut state = self.lock();
        state.passed = state.passed.max(committed);
        self.is_kept.store(true, Ordering::Release);
    }

    /// Everything before `limit` is where it is wanted; None: nothing is wanted beyond the disk here. Whoever may go does so at `release`.
    /// It may fall, when a standby comes that is behind: what passed stays committed.
    pub fn set_limit(&self, limit: Option<Lsn>, refusal: Option<Arc<str>>) {
        let mut state = self.lock();
        state.limit = limit.unwrap_or(EVERYTHING);
        self.refuses.store(refusal.is_some(), Ordering::Release);
        state.refusal = refusal;
    }

    /// Why writes are refused before they run.
    pub fn refusal(&self) -> Option<Unlogged> {
        if !self.refuses.load(Ordering::Acquire) {
            return None;
        }
        self.lock().refusal.clone().map(Unlogged::Unavailable)
    }

    /// True where the record at `lsn` is durable here and not yet where it is wanted.
    pub fn is_beyond(&self, lsn: Lsn) -> bool {
        self.is_kept.load(Ordering::Acquire) && self.lock().committed() <= lsn
    }

    /// Everything before it is committed, of what is `durable` here.
    pub fn committed(&self, durable: Lsn) -> Lsn {
        match self.is_kept.load(Ordering::Acquire) {
            true => self.lock().committed().min(durable),
            false => durable,
        }
    }

    /// Of a batch whose records, or what it read, end at `end`: durable, or never to be.
    pub fn complete(&self, end: Lsn, outcome: Result<(), Unlogged>, batch: Box<CallBatch>) {
        if outcome.is_ok() && self.is_kept.load(Ordering::Acquire) {
            let mut state = self.lock();
            if end > state.committed() {
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

    /// Lets those go whose records are where they are wanted.
    pub fn release(&self) {
        let mut state = self.lock();
        let committed = state.committed();
        let count = state.waiting.partition_point(|waiting| waiting.end <= committed);
        let gone: Vec<Waiting> = state.waiting.drain(..count).collect();
        if let Some(last) = gone.last() {
            state.passed = state.passed.max(last.end);
        }
        drop(state);
        for waiting in gone {
            complete(waiting.end, Ok(()), waiting.batch);
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
        let committed = state.committed();
        let mut gone = Vec::new();
        for mut waiting in std::mem::take(&mut state.waiting) {
            match is_given_up(&mut waiting) {
                true => gone.push(waiting),
                false => state.waiting.push_back(waiting),
            }
        }
        let shown = gone.iter().map(|waiting| waiting.end).filter(|end| *end <= committed);
        state.passed = shown.fold(state.passed, Lsn::max);
        drop(state);
        for mut waiting in gone {
            waiting.batch.leave_open(reason, waiting.end <= committed);
            complete(waiting.end, Ok(()), waiting.batch);
        }
    }
}
