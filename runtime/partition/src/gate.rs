//! The gate between the log and the callers. A call waits here while its record is durable on this server and not yet where the safety level wants
//! it. A call that only read such a record waits too.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
};

use reprise_base::{Lsn, Safety, limits::STANDBY_SILENT_NS};
use reprise_env::Clock;

use crate::{
    batch::CallBatch,
    sink::{LogRefusal, complete},
};

/// Why the server answers nothing.
const LEASE_OVER: &str =
    "this server lost its lease, and too few standbys are in sync: another server may be the primary";
const NO_LEVEL: u8 = u8::MAX;
/// The limit if everything is where the level wants it.
const EVERYTHING: Lsn = Lsn(u64::MAX);

/// The time until which this server may answer without standbys.
pub struct LeaseClock {
    clock: Arc<dyn Clock>,
    /// By the clock that counts suspended time; 0: not now.
    until_ns: AtomicU64,
}

impl LeaseClock {
    /// Makes a clock whose lease is over.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let until_ns = AtomicU64::new(0);
        Self { clock, until_ns }
    }

    /// Sets the end of the lease. It may be earlier than the one before.
    pub fn set_until(&self, until_ns: u64) {
        self.until_ns.store(until_ns, Ordering::Release);
    }

    /// Returns the nanoseconds for which the lease lasts; 0: it is over.
    pub fn left_ns(&self) -> u64 {
        let until_ns = self.until_ns.load(Ordering::Acquire);
        until_ns.saturating_sub(self.clock.boot_ns())
    }

    /// True if the lease is not over.
    pub fn is_valid(&self) -> bool {
        self.left_ns() > 0
    }
}

/// The reasons why calls do not wait for standbys that are missing.
#[derive(Clone, Debug, Default)]
pub struct Shortage {
    /// Reason why writes are refused before they run.
    pub writes: Option<Arc<str>>,
    /// Reason why reads show the committed rows.
    pub reads: Option<Arc<str>>,
}

/// The age of the rows that a primary shows which may be deposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeposedAge {
    /// Time since enough standbys followed it.
    pub age_ns: u64,
    /// False: the age is at least this.
    pub is_known: bool,
}

/// The limit up to which reads show the tables while standbys are missing.
#[derive(Clone, Debug)]
pub struct ReadLimit {
    /// Everything before it is committed.
    pub end: Lsn,
    /// The refusal of a read that can't be shown committed rows alone.
    pub reason: LogRefusal,
}

/// The gate between the log and the callers. It stays open until `keep` says that calls wait for standbys.
pub struct CommitGate {
    /// False: every durable record passes, and the gate reads nothing else.
    is_kept: AtomicBool,
    /// Writes are refused; the state says why.
    refuses: AtomicBool,
    /// Standbys are missing, and reads do not wait for them. The state says why.
    is_short: AtomicBool,
    /// Time at which enough standbys last followed this primary; 0: none did since it leads.
    confirmed_ns: AtomicU64,
    /// `GateState::passed`; everything, if calls wait for no standbys.
    acknowledged: AtomicU64,
    /// Standbys have what this server answers now, as the level asks for. Changes under the state's lock.
    is_backed: AtomicBool,
    /// Number of the server's level; `NO_LEVEL` if it has none.
    level: AtomicU8,
    /// None: this server may always answer alone, if its level allows it.
    lease: OnceLock<Arc<LeaseClock>>,
    state: Mutex<GateState>,
}

struct GateState {
    /// The end of everything that a caller has learned of. It stays committed, even if the limit falls.
    passed: Lsn,
    /// Everything before it is where the level wants it.
    limit: Lsn,
    refusal: Option<Arc<str>>,
    /// Which standbys are missing, if some are that the limit waits for.
    missing: Option<Arc<str>>,
    /// The calls that wait, by their ends.
    waiting: VecDeque<GateWaiter>,
    /// A thread has released callers and has not answered all of them yet. A caller that arrives meanwhile waits for that thread. Otherwise a
    /// checkpoint could learn that its record is committed before the callers of earlier records have their answers.
    is_answering: bool,
}

struct GateWaiter {
    end: Lsn,
    /// Time at which the gate first checked it; 0: not yet.
    since_ns: u64,
    batch: Box<CallBatch>,
}

impl Default for CommitGate {
    fn default() -> Self {
        Self {
            is_kept: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            is_short: AtomicBool::new(false),
            confirmed_ns: AtomicU64::new(0),
            acknowledged: AtomicU64::new(u64::MAX),
            is_backed: AtomicBool::new(false),
            level: AtomicU8::new(NO_LEVEL),
            lease: OnceLock::new(),
            state: Mutex::new(GateState {
                passed: Lsn(0),
                limit: EVERYTHING,
                refusal: None,
                missing: None,
                waiting: VecDeque::new(),
                is_answering: false,
            }),
        }
    }
}

impl CommitGate {
    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().expect("nothing panics under this lock")
    }

    /// Sets the server's level: at its start, and once a standby leads, whose cluster may have another one.
    pub fn set_level(&self, level: Safety) {
        self.level.store(level as u8, Ordering::Release);
    }

    /// Returns the server's level, if it has one.
    pub fn level(&self) -> Option<Safety> {
        let number = usize::from(self.level.load(Ordering::Acquire));
        Safety::ALL.get(number).copied()
    }

    /// Sets the lease, once. Without standbys that have the record, this server then answers only while the lease lasts. False: there is a lease
    /// already.
    pub fn set_lease(&self, lease: Arc<LeaseClock>) -> bool {
        self.lease.set(lease).is_ok()
    }

    /// True if there is a lease.
    pub fn is_leased(&self) -> bool {
        self.lease.get().is_some()
    }

    /// True if this server must not answer: its lease is over, and it knows of no standbys that have its answer. Checked just before each answer. A
    /// standby that is lost, or that becomes in sync, may have the record, but the server that takes over does not know that.
    fn is_silent(&self) -> bool {
        !self.is_backed.load(Ordering::Acquire) && self.lease.get().is_some_and(|lease| !lease.is_valid())
    }

    /// Returns the limit before which everything is committed.
    fn committed_of(&self, state: &GateState) -> Lsn {
        match self.is_silent() {
            true => state.passed,
            false => state.passed.max(state.limit),
        }
    }

    /// Returns the level that an answered write certainly reached. None if the server has no level.
    pub fn reached(&self) -> Option<Safety> {
        let level = self.level()?;
        let is_backed = !level.asks_standbys() || self.is_backed.load(Ordering::Acquire);
        Some(if is_backed { level } else { Safety::OneSafe })
    }

    /// Closes the gate: from now on, records behind `committed` wait for `set_limit`.
    pub fn keep(&self, committed: Lsn) {
        let mut state = self.lock();
        self.pass(&mut state, committed);
        self.is_kept.store(true, Ordering::Release);
    }

    /// Records that a caller learns of everything before `end`.
    fn pass(&self, state: &mut GateState, end: Lsn) {
        state.passed = state.passed.max(end);
        self.acknowledged.store(state.passed.0, Ordering::Release);
    }

    /// Returns the limit before which everything stays committed, even if the gate's limit falls.
    #[inline]
    pub fn acknowledged(&self) -> Lsn {
        match self.is_kept.load(Ordering::Acquire) {
            true => Lsn(self.acknowledged.load(Ordering::Acquire)),
            false => EVERYTHING,
        }
    }

    /// True if standbys are missing that the limit waits for.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Acquire)
    }

    /// Returns up to where reads show the rows before `end` while standbys are missing. None: none are, and reads wait for the writes that they show.
    #[cold]
    pub(crate) fn read_limit(&self, end: Lsn) -> Option<ReadLimit> {
        let mut state = self.lock();
        let missing = state.missing.clone()?;
        let end = self.committed_of(&state).min(end);
        self.pass(&mut state, end);
        let reason = match self.is_silent() {
            true => LogRefusal::LeaseLost(LEASE_OVER.into()),
            false => LogRefusal::StandbyUnavailable(
                format!("the rows as they were acknowledged are not kept: {missing}").into(),
            ),
        };
        Some(ReadLimit { end, reason })
    }

    /// Sets the limit: everything before it is where the level wants it. None: the disk of this server is enough. `is_backed`: standbys have what
    /// this server answers from now on, as the level asks for. `release` answers the calls that may pass. The limit may fall when a standby comes
    /// that is behind. Records that passed stay committed.
    pub fn set_limit(&self, limit: Option<Lsn>, is_backed: bool, shortage: Shortage) {
        let Shortage { writes, reads } = shortage;
        let mut state = self.lock();
        state.limit = limit.unwrap_or(EVERYTHING);
        self.is_backed.store(is_backed, Ordering::Release);
        self.refuses.store(writes.is_some(), Ordering::Release);
        self.is_short.store(reads.is_some(), Ordering::Release);
        (state.refusal, state.missing) = (writes, reads);
    }

    /// Records that enough standbys followed this primary at that moment, by a clock that counts suspended time.
    pub fn record_confirmed(&self, boot_ns: u64) {
        self.confirmed_ns.fetch_max(boot_ns, Ordering::AcqRel);
    }

    /// Returns the age that the rows of this primary may have. The standbys that it counts on are silent and it has no lease, so another server may
    /// lead. None while this server is certainly the primary.
    pub fn doubt(&self, clock: &dyn Clock) -> Option<DeposedAge> {
        if !self.level()?.counts_standbys() || self.lease.get().is_some_and(|lease| lease.is_valid()) {
            return None;
        }
        let confirmed_ns = self.confirmed_ns.load(Ordering::Acquire);
        let age_ns = clock.boot_ns().saturating_sub(confirmed_ns);
        let is_known = confirmed_ns > 0;
        (self.is_short() || !is_known || age_ns > STANDBY_SILENT_NS).then_some(DeposedAge {
            age_ns: if is_known { age_ns } else { 0 },
            is_known,
        })
    }

    /// Returns why writes are refused before they run.
    pub fn refusal(&self) -> Option<LogRefusal> {
        if self.is_silent() {
            return Some(LogRefusal::LeaseLost(LEASE_OVER.into()));
        }
        if !self.refuses.load(Ordering::Acquire) {
            return None;
        }
        self.lock().refusal.clone().map(LogRefusal::StandbyUnavailable)
    }

    /// True if this server tells no caller that the record at `lsn` is committed. The record is durable here, but is not yet where the level wants
    /// it, or this server answers nothing.
    pub fn is_beyond(&self, lsn: Lsn) -> bool {
        if !self.is_kept.load(Ordering::Acquire) {
            return false;
        }
        let state = self.lock();
        self.is_silent() || self.committed_of(&state) <= lsn
    }

    /// Checks whether everything before `end` is committed. If so, each later read shows it.
    pub fn shows(&self, end: Lsn) -> bool {
        if !self.is_kept.load(Ordering::Acquire) {
            return true;
        }
        let mut state = self.lock();
        let is_committed = self.committed_of(&state) >= end;
        if is_committed {
            self.pass(&mut state, end);
        }
        is_committed
    }

    /// Returns the end of the committed records among those that are `durable` here.
    pub fn committed(&self, durable: Lsn) -> Lsn {
        match self.is_kept.load(Ordering::Acquire) {
            true => self.committed_of(&self.lock()).min(durable),
            false => durable,
        }
    }

    /// Answers a batch whose records, or the records that it read, end at `end`. They are durable, or never will be. A mark of this server needs no
    /// standby, because no client learns of it: it passes once all calls before it are answered.
    pub fn complete(&self, end: Lsn, outcome: Result<(), LogRefusal>, batch: Box<CallBatch>) {
        if outcome.is_ok() && self.is_kept.load(Ordering::Acquire) {
            let mut state = self.lock();
            let waits = match batch.is_mark() {
                true => state.waiting.front().is_some_and(|waiting| waiting.end <= end),
                false => end > self.committed_of(&state),
            };
            if waits || state.is_answering {
                let at = state.waiting.partition_point(|waiting| waiting.end <= end);
                let since_ns = 0;
                state.waiting.insert(at, GateWaiter { end, since_ns, batch });
                return;
            }
            if !batch.is_mark() {
                self.pass(&mut state, end);
            }
        }
        complete(end, outcome, batch);
    }

    /// Calls `then` once everything before `end`, which is durable here, is where the level wants it. Calls it with the reason if the gate gives up
    /// that wait.
    pub fn when_committed(&self, end: Lsn, then: impl FnOnce(Result<(), Arc<str>>) + Send + Sync + 'static) {
        let waiting = CallBatch::waiting(|outcome| then(outcome.map_err(|outcome| outcome.reason())));
        self.complete(end, Ok(()), waiting);
    }

    /// Answers the callers whose records are where the level wants them. If another thread answers some at this moment, it answers these too.
    pub fn release(&self) {
        if self.is_short.load(Ordering::Acquire) {
            self.release_reads();
        }
        let state = self.lock();
        if !state.is_answering {
            self.release_of(state);
        }
    }

    /// Lets reads pass without missing standbys.
    #[cold]
    fn release_reads(&self) {
        let mut state = self.lock();
        let Some(reason) = state.missing.clone() else { return };
        let committed = self.committed_of(&state);
        let from = state.waiting.partition_point(|waiting| waiting.end <= committed);
        let waiting: Vec<GateWaiter> = state.waiting.drain(from..).collect();
        // Writes keep their place. The answer to a read is no news of the log: it needs no order.
        let (reads, others): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|waiting| waiting.batch.may_read_again());
        state.waiting.extend(others);
        drop(state);
        reads.into_iter().for_each(|waiting| waiting.batch.read_again(&reason));
    }

    /// Answers callers until none is left that may pass: more may have come meanwhile. This thread alone answers.
    fn release_of<'g>(&'g self, mut state: MutexGuard<'g, GateState>) {
        loop {
            let committed = self.committed_of(&state);
            let passes = |waiting: &&GateWaiter| waiting.end <= committed || waiting.batch.is_mark();
            let count = state.waiting.iter().take_while(passes).count();
            let gone: Vec<GateWaiter> = state.waiting.drain(..count).collect();
            if gone.is_empty() {
                state.is_answering = false;
                return;
            }
            if let Some(last) = gone.iter().rfind(|waiting| !waiting.batch.is_mark()) {
                self.pass(&mut state, last.end);
            }
            state.is_answering = true;
            drop(state);
            for waiting in gone {
                complete(waiting.end, Ok(()), waiting.batch);
            }
            state = self.lock();
        }
    }

    /// Answers all writes that wait: this server keeps them, and more is not known. A read of records that are not committed is refused.
    pub fn leave_open(&self, reason: &Arc<str>) {
        self.leave_open_where(reason, |_| true);
    }

    /// Does the same as `leave_open` for calls that waited since before `before_ns`, and for calls whose client waits no longer.
    pub fn expire(&self, now_ns: u64, before_ns: u64, reason: &Arc<str>) {
        if self.is_kept.load(Ordering::Acquire) {
            self.leave_open_where(reason, |waiting| {
                if waiting.since_ns == 0 {
                    waiting.since_ns = now_ns;
                }
                waiting.since_ns <= before_ns || waiting.batch.is_overdue(now_ns)
            });
        }
    }

    fn leave_open_where(&self, reason: &Arc<str>, mut is_gone: impl FnMut(&mut GateWaiter) -> bool) {
        let mut state = self.lock();
        let committed = self.committed_of(&state);
        let mut gone = Vec::new();
        for mut waiting in std::mem::take(&mut state.waiting) {
            match is_gone(&mut waiting) {
                true => gone.push(waiting),
                false => state.waiting.push_back(waiting),
            }
        }
        let shown = gone.iter().map(|waiting| waiting.end).filter(|end| *end <= committed);
        let passed = shown.fold(state.passed, Lsn::max);
        self.pass(&mut state, passed);
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
mod tests;
