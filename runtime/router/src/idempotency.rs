//! Idempotency keys: the first committed outcome of a key answers every repeat, for the promised time. Recovery rebuilds them from the log.
//!
//! A key belongs to a scope, by default the name of the caller's token. If a scope lacks a key, the server searches it among the keys from
//! a time without tokens. A key ages by the key clock, which counts time in which a primary ran. The server never forgets a key before its
//! time is over. Without room for another key, it refuses calls with new keys before they run. The keys of one scope take at most half of
//! the room, so that no token takes all of it from the others.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use reprise_base::{Budget, Grant, TxnId, limits::IDEMPOTENCY_KEEP_DEFAULT};
use reprise_observe::{Notice, NoticeKind};
use reprise_partition::{ReplyOutcome, Shared};
use reprise_txn::ModuleId;

use crate::{
    key_entry::{Begin, CallDigests, CommittedOutcome, KeyEntry, Waiter},
    key_table::KeyTable,
    scoped_key::{ScopedKey, ScopedName, scope_of, split},
};

/// A key with its outcome, for a checkpoint.
pub struct ExportedKey {
    pub scope: Box<str>,
    pub key: Box<str>,
    pub digests: CallDigests,
    /// Reading of the key clock from which the outcome ages.
    pub kept_us: u64,
    pub outcome: CommittedOutcome,
}

/// The number and age of the kept keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdempotencyStats {
    pub keys: u64,
    pub bytes: u64,
    /// Bytes beyond which new keys are refused.
    pub bytes_max: u64,
    /// Time of the oldest key's transaction.
    pub oldest_unix_us: Option<i64>,
    /// Age of the oldest key, in time that a primary ran.
    pub oldest_age: Option<Duration>,
    pub keep: Duration,
    /// Number of calls refused because there was no room for their keys.
    pub refused: u64,
}

/// The state of a key.
pub enum Lookup {
    /// The outcome, and the time for which it is still kept.
    Kept(CommittedOutcome, Duration),
    /// Its first call has not ended.
    Running,
    Unknown,
}

/// The keys of one database.
pub struct Idempotency {
    state: Mutex<IdempotencyState>,
    /// The shared state, which has the key clock.
    shared: Arc<Shared>,
    keep_us: AtomicU64,
}

struct IdempotencyState {
    entries: KeyTable<KeyEntry>,
    /// Committed keys by their readings of the key clock and their transactions, oldest first.
    by_age: BTreeMap<(u64, TxnId), ScopedName>,
    /// Bytes taken by everything in `entries`.
    taken: Grant,
    /// Bytes taken by each scope. The first parts of names are the keys.
    taken_by_scope: BTreeMap<Box<[u8]>, u64>,
    refused: u64,
}

/// Bytes of an entry beside its name and its result: its places in table and map at their usual fill, and the cost of allocations.
const ENTRY_BYTES: u64 = 336;
/// Divisor of the room that one scope's keys take at most.
const SCOPE_SHARE: u64 = 2;
/// Number of expired entries that are forgotten at once, so that no call waits for a million.
const FORGET_AT_ONCE: usize = 64;

fn entry_bytes(name: &ScopedName) -> u64 {
    ENTRY_BYTES + name.len() as u64
}

impl Idempotency {
    pub(crate) fn new(shared: Arc<Shared>, budget: &Arc<Budget>) -> Self {
        Self {
            state: Mutex::new(IdempotencyState {
                entries: KeyTable::new(shared.secret[0]),
                by_age: BTreeMap::new(),
                taken: budget.take(0),
                taken_by_scope: BTreeMap::new(),
                refused: 0,
            }),
            shared,
            keep_us: AtomicU64::new(IDEMPOTENCY_KEEP_DEFAULT.as_micros() as u64),
        }
    }

    /// Sets the time for which an outcome is kept.
    pub fn set_keep(&self, keep: Duration) {
        let keep_us = u64::try_from(keep.as_micros()).unwrap_or(u64::MAX);
        self.keep_us.store(keep_us, Ordering::Relaxed);
    }

    /// Sets the bytes beyond which calls with new keys are refused.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        self.lock().taken.budget().set_limit(bytes_max);
    }

    fn lock(&self) -> MutexGuard<'_, IdempotencyState> {
        self.state.lock().expect("no code panics under this lock")
    }

    /// Returns the reading of the key clock before which kept outcomes have expired.
    fn expired_before(&self) -> u64 {
        let keep_us = self.keep_us.load(Ordering::Relaxed);
        self.shared.key_clock.expired_before(keep_us)
    }

    /// Returns the version and the procedure that ran, or run now, under a key. A repeat is compared with the arguments of that call.
    pub fn version_of(&self, key: ScopedKey<'_>) -> Option<(ModuleId, usize)> {
        match self.lock().find(key, self.expired_before())? {
            KeyEntry::Running { module, procedure, .. } => Some((*module, *procedure)),
            KeyEntry::Done { outcome, .. } => Some((outcome.module, outcome.procedure)),
        }
    }

    /// Finds the answer to a repeat of the same bytes before its arguments are encoded. None: encode them.
    pub(crate) fn repeat(&self, key: ScopedKey<'_>, fingerprint: u128) -> Option<Begin> {
        let state = self.lock();
        let found = state.find(key, self.expired_before())?;
        (found.digests().fingerprint == fingerprint).then(|| found.answer())
    }

    /// Returns the answer to a call whose key came before. None: the key is free, and stays so.
    pub(crate) fn earlier(&self, key: ScopedKey<'_>, digests: CallDigests) -> Option<Begin> {
        self.lock().earlier(key, digests, self.expired_before())
    }

    pub(crate) fn begin(&self, key: ScopedKey<'_>, digests: CallDigests, module: ModuleId, procedure: usize) -> Begin {
        let (before, mut state) = (self.expired_before(), self.lock());
        if let Some(begun) = state.earlier(key, digests, before) {
            return begun;
        }
        // The remaining entry of the name has expired.
        let name = key.name();
        state.forget(&name);
        if !state.try_take(&name) {
            state.forget_before(before);
            if !state.try_take(&name) {
                state.refused += 1;
                let (scope, taken) = (key.scope, state.scope_bytes(&name));
                let room = state.taken.budget().limit();
                drop(state);
                let notices = &self.shared.notices;
                notices.publish(NoticeKind::Keys, || refused_keys(scope, taken, room));
                return Begin::Full;
            }
        }
        let running = KeyEntry::Running {
            digests,
            module,
            procedure,
            waiters: Vec::new(),
        };
        state.entries.insert(name, running);
        Begin::Run
    }

    /// Calls `waiter` when the running call of this key has ended, or at once if it has already ended.
    pub(crate) fn wait(&self, key: ScopedKey<'_>, waiter: Waiter) {
        let (before, mut state) = (self.expired_before(), self.lock());
        let name = state.name_of(key, before);
        let answer = match state.entries.get_mut(&name) {
            Some((_, KeyEntry::Running { waiters, .. })) => {
                waiters.push(waiter);
                return;
            }
            Some((_, KeyEntry::Done { outcome, .. })) => Ok(outcome.clone()),
            None => Err(ReplyOutcome::Superseded), // the first call has failed, so this one runs
        };
        drop(state);
        waiter(answer);
    }

    /// Keeps the committed outcome of a key that `begin` let run.
    pub(crate) fn finish(&self, key: ScopedKey<'_>, outcome: CommittedOutcome) {
        let waiters = {
            let mut state = self.lock();
            let kept_us = self.shared.key_clock.now_us();
            let Some(waiters) = key.with_name(|name| state.complete(name, kept_us, &outcome)) else {
                return;
            };
            state.forget_before(self.expired_before());
            waiters
        };
        for waiter in waiters {
            waiter(Ok(outcome.clone()));
        }
    }

    /// Frees a key whose call did not commit. Calls that waited for it get the same answer.
    pub(crate) fn release(&self, key: ScopedKey<'_>, outcome: &ReplyOutcome) {
        let waiters = {
            let (name, mut state) = (key.name(), self.lock());
            let Some(KeyEntry::Running { waiters, .. }) = state.entries.remove(&name) else {
                return;
            };
            state.give_back(&name, entry_bytes(&name));
            waiters
        };
        for waiter in waiters {
            waiter(Err(outcome.clone()));
        }
    }

    /// Adds a key from the log or a checkpoint. It ignores the limit of room, because the key was promised.
    pub fn restore(&self, key: ScopedKey<'_>, digests: CallDigests, kept_us: u64, outcome: CommittedOutcome) {
        let (name, mut state) = (key.name(), self.lock());
        if let Some(KeyEntry::Done { outcome: known, .. }) = state.entries.get(&name) {
            if known.lsn >= outcome.lsn {
                return;
            }
            // The later call ran because the earlier one's outcome had expired.
            state.forget(&name);
        }
        state.keep(name, digests, kept_us, outcome);
        state.forget_before(self.expired_before());
    }

    /// Forgets every committed outcome, because a new restore brings them again.
    pub fn clear(&self) {
        let mut state = self.lock();
        while let Some(oldest) = state.by_age.values().next().cloned() {
            state.forget(&oldest);
        }
    }

    /// Returns the outcome that is kept under a key now.
    pub fn look_up(&self, key: ScopedKey<'_>) -> Lookup {
        let (before, now_us) = (self.expired_before(), self.shared.key_clock.now_us());
        match self.lock().find(key, before) {
            Some(KeyEntry::Done { outcome, kept_us, .. }) => {
                let date_us = self.shared.key_clock.date_of(*kept_us);
                let until_us = date_us.saturating_add(self.keep_us.load(Ordering::Relaxed));
                Lookup::Kept(outcome.clone(), Duration::from_micros(until_us.saturating_sub(now_us)))
            }
            Some(KeyEntry::Running { .. }) => Lookup::Running,
            None => Lookup::Unknown,
        }
    }

    /// Returns committed keys behind the one whose `kept_us` and transaction are `after`, at most `limit`, the oldest first.
    pub fn export(&self, after: Option<(u64, TxnId)>, limit: usize) -> Vec<ExportedKey> {
        let (key_clock, state) = (&self.shared.key_clock, self.lock());
        // If a mark dated the last key, that key still stands at its reading. If a mark dated it since, it stands at `kept_us`.
        let after = after.map(
            |(kept_us, txn_id)| match state.by_age.contains_key(&(kept_us, txn_id)) {
                true => (kept_us, txn_id),
                false => (key_clock.reading_dated(kept_us), txn_id),
            },
        );
        let first = after.map_or(Bound::Unbounded, Bound::Excluded);
        let names = state.by_age.range((first, Bound::Unbounded)).take(limit);
        let exported = names.filter_map(|(_, name)| match state.entries.get(name)? {
            KeyEntry::Done {
                digests,
                kept_us,
                outcome,
            } => {
                let (scope, key) = split(name);
                Some(ExportedKey {
                    scope,
                    key,
                    digests: *digests,
                    kept_us: key_clock.date_of(*kept_us),
                    outcome: outcome.clone(),
                })
            }
            KeyEntry::Running { .. } => None,
        });
        exported.collect()
    }

    pub fn stats(&self) -> IdempotencyStats {
        let key_clock = &self.shared.key_clock;
        let now_us = key_clock.now_us();
        let state = self.lock();
        IdempotencyStats {
            keys: state.by_age.len() as u64,
            bytes: state.taken.bytes(),
            bytes_max: state.taken.budget().limit(),
            oldest_age: state
                .by_age
                .keys()
                .next()
                .map(|(kept_us, _)| Duration::from_micros(now_us.saturating_sub(key_clock.date_of(*kept_us)))),
            oldest_unix_us: state.by_age.keys().next().map(|(_, txn_id)| txn_id.time_us()),
            keep: Duration::from_micros(self.keep_us.load(Ordering::Relaxed)),
            refused: state.refused,
        }
    }
}

fn refused_keys(scope: &str, taken: u64, room: u64) -> Notice {
    Notice::KeysRefused {
        scope: scope.to_owned(),
        taken,
        room,
    }
}

impl IdempotencyState {
    /// Takes the room for a new key. False if there is none, or if the key's scope has its share.
    fn try_take(&mut self, name: &ScopedName) -> bool {
        let bytes = entry_bytes(name);
        let share = self.taken.budget().limit() / SCOPE_SHARE;
        // Without tokens there is one scope, which need not leave room to others.
        let is_beyond = scope_of(name).len() > 1 && self.scope_bytes(name) + bytes > share;
        if is_beyond || !self.taken.try_grow(bytes) {
            return false;
        }
        self.count(name, bytes);
        true
    }

    fn scope_bytes(&self, name: &ScopedName) -> u64 {
        self.taken_by_scope.get(scope_of(name)).copied().unwrap_or(0)
    }

    fn count(&mut self, name: &ScopedName, bytes: u64) {
        match self.taken_by_scope.get_mut(scope_of(name)) {
            Some(taken) => *taken += bytes,
            None => drop(self.taken_by_scope.insert(scope_of(name).into(), bytes)),
        }
    }

    fn give_back(&mut self, name: &ScopedName, bytes: u64) {
        self.taken.shrink(bytes);
        if let Some(taken) = self.taken_by_scope.get_mut(scope_of(name)) {
            *taken -= bytes;
            if *taken == 0 {
                self.taken_by_scope.remove(scope_of(name));
            }
        }
    }

    /// Returns the entry of a name, if it is that of a running call, or of an outcome that has not expired.
    fn alive(&self, name: &[u8], before_us: u64) -> Option<&KeyEntry> {
        self.entries.get(name).filter(|entry| match entry {
            KeyEntry::Running { .. } => true,
            KeyEntry::Done { kept_us, .. } => *kept_us >= before_us,
        })
    }

    /// Returns the name that a key means: its own if its scope has it, otherwise that from a time without tokens, if that exists.
    fn name_of(&self, key: ScopedKey<'_>, before_us: u64) -> ScopedName {
        let open = ScopedKey { scope: "", ..key };
        let is_alive = |key: ScopedKey<'_>| key.with_name(|name| self.alive(name, before_us).is_some());
        match is_alive(key) || !is_alive(open) {
            true => key.name(),
            false => open.name(),
        }
    }

    fn earlier(&self, key: ScopedKey<'_>, digests: CallDigests, before_us: u64) -> Option<Begin> {
        let found = self.find(key, before_us)?;
        Some(match found.digests().is_same(&digests) {
            true => found.answer(),
            false => Begin::Conflict,
        })
    }

    fn find(&self, key: ScopedKey<'_>, before_us: u64) -> Option<&KeyEntry> {
        let open = (!key.scope.is_empty()).then_some(ScopedKey { scope: "", ..key });
        let mut keys = [Some(key), open].into_iter().flatten();
        keys.find_map(|key| key.with_name(|name| self.alive(name, before_us)))
    }

    /// Keeps the outcome of a running call in its place. Returns the callbacks that wait for it. None: no call with this name runs.
    fn complete(&mut self, name: &[u8], kept_us: u64, outcome: &CommittedOutcome) -> Option<Vec<Waiter>> {
        let (name, entry) = self.entries.get_mut(name)?;
        let KeyEntry::Running { digests, waiters, .. } = entry else {
            return None;
        };
        let (digests, waiters) = (*digests, std::mem::take(waiters));
        *entry = KeyEntry::Done {
            digests,
            kept_us,
            outcome: outcome.clone(),
        };
        let name = name.clone();
        // The call has committed, so the memory of its result can't be refused.
        let bytes = outcome.result.len() as u64;
        self.taken.grow(bytes);
        self.count(&name, bytes);
        self.by_age.insert((kept_us, outcome.txn_id), name);
        Some(waiters)
    }

    fn keep(&mut self, name: ScopedName, digests: CallDigests, kept_us: u64, outcome: CommittedOutcome) {
        let bytes = entry_bytes(&name) + outcome.result.len() as u64;
        self.taken.grow(bytes);
        self.count(&name, bytes);
        self.by_age.insert((kept_us, outcome.txn_id), name.clone());
        let done = KeyEntry::Done {
            digests,
            kept_us,
            outcome,
        };
        self.entries.insert(name, done);
    }

    /// Forgets outcomes that were kept before this reading of the key clock, a few at a time. That is more than a stream of new keys adds.
    fn forget_before(&mut self, before_us: u64) {
        for _ in 0..FORGET_AT_ONCE {
            match self.by_age.first_key_value() {
                Some(((kept_us, _), oldest)) if *kept_us < before_us => {
                    let oldest = oldest.clone();
                    self.forget(&oldest);
                }
                _ => return,
            }
        }
    }

    /// Forgets the outcome under a name, if there is one.
    fn forget(&mut self, name: &ScopedName) {
        let Some(KeyEntry::Done { outcome, kept_us, .. }) = self.entries.get(name) else {
            return;
        };
        let bytes = entry_bytes(name) + outcome.result.len() as u64;
        self.by_age.remove(&(*kept_us, outcome.txn_id));
        self.give_back(name, bytes);
        self.entries.remove(name);
    }
}
