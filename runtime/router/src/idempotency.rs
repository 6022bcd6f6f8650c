//! Idempotency keys: the first committed outcome of a key answers every repeat, for as long as is promised. Rebuilt from the
//! log at recovery.
//!
//! A key counts within a scope, the name of the token that called. It expires by the time of transactions: once one that began
//! now would be so much later than the one that committed under it. Until then it is not forgotten: where there is no room for
//! another one, calls with new keys are refused before they run.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use reprise_base::{Budget, Grant, Lsn, PartitionId, TxnId, limits::IDEMPOTENCY_KEEP_DEFAULT};
use reprise_env::Clock;
use reprise_partition::ReplyOutcome;
use reprise_txn::{Module, call_hash};

/// Hash of what was called with which arguments: a repeat must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u128);

impl Fingerprint {
    pub fn new(module: &str, procedure: &str, args: &[u8]) -> Self {
        Self(call_hash(module, procedure, args))
    }

    pub fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    pub fn to_bits(self) -> u128 {
        self.0
    }
}

/// A key within its scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScopedKey<'a> {
    /// Name of the token that calls; empty where there are no tokens.
    pub scope: &'a str,
    pub key: &'a str,
}

/// A committed outcome, kept for repeats.
#[derive(Clone)]
pub struct Remembered {
    pub module: Arc<Module>,
    pub procedure: usize,
    pub result: Arc<[u8]>,
    pub txn_id: TxnId,
    pub lsn: Lsn,
    pub partition: Option<PartitionId>,
}

/// A key with its outcome, for a checkpoint.
pub struct Exported {
    pub scope: Box<str>,
    pub key: Box<str>,
    pub fingerprint: Fingerprint,
    pub outcome: Remembered,
}

/// How much is remembered, and of what time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdempotencyStats {
    pub keys: u64,
    pub bytes: u64,
    /// New keys are refused beyond.
    pub bytes_max: u64,
    /// When the oldest one's transaction was.
    pub oldest_unix_us: Option<i64>,
    pub keep: Duration,
    /// Calls refused because there was no room for their keys.
    pub refused: u64,
}

/// What the first call of a key came to, told to those who repeated it meanwhile.
pub(crate) type Waiter = Box<dyn FnOnce(Result<Remembered, ReplyOutcome>) + Send>;

enum Entry {
    Running {
        fingerprint: Fingerprint,
        waiters: Vec<Waiter>,
    },
    Done {
        fingerprint: Fingerprint,
        outcome: Remembered,
    },
}

/// What to do with a call that carries a key.
pub(crate) enum Begin {
    /// It is the first: run it, then `finish` or `release`.
    Run,
    /// Another call with this key runs: ask again with `wait`.
    Running,
    Done(Remembered),
    Conflict,
    /// There is no room for another key.
    Full,
}

/// What is known of a key.
pub enum Lookup {
    Kept(Remembered),
    /// Its first call has not ended.
    Running,
    Unknown,
}

/// The keys of one database.
pub struct Idempotency {
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
    keep_us: AtomicU64,
}

struct State {
    entries: BTreeMap<Name, Entry>,
    /// Committed keys, oldest first.
    by_txn: BTreeMap<TxnId, Name>,
    /// Of everything in `entries`.
    taken: Grant,
    /// Time of the latest transaction with a key.
    newest_us: i64,
    refused: u64,
}

/// A scope's length, the scope, and the key: an entry and its place in time share it.
type Name = Arc<[u8]>;

/// What an entry takes beside its name and its result: its places in two maps, at the usual fill of their nodes, and what
/// allocations cost.
const ENTRY_BYTES: u64 = 288;
/// Expired entries that are forgotten in one go, so that nobody waits for a million.
const FORGET_AT_ONCE: usize = 64;

impl ScopedKey<'_> {
    fn name(&self) -> Name {
        let length = u8::try_from(self.scope.len()).expect("a scope has 255 bytes at most");
        [&[length], self.scope.as_bytes(), self.key.as_bytes()].concat().into()
    }
}

fn split(name: &[u8]) -> (Box<str>, Box<str>) {
    let (length, rest) = name.split_first().expect("a name begins with a length");
    let (scope, key) = rest.split_at(*length as usize);
    let text = |bytes: &[u8]| str::from_utf8(bytes).expect("made of text").into();
    (text(scope), text(key))
}

fn entry_bytes(name: &Name) -> u64 {
    ENTRY_BYTES + name.len() as u64
}

impl Idempotency {
    pub(crate) fn new(clock: Arc<dyn Clock>, budget: &Arc<Budget>) -> Self {
        Self {
            state: Mutex::new(State {
                entries: BTreeMap::new(),
                by_txn: BTreeMap::new(),
                taken: budget.take(0),
                newest_us: i64::MIN,
                refused: 0,
            }),
            clock,
            keep_us: AtomicU64::new(IDEMPOTENCY_KEEP_DEFAULT.as_micros() as u64),
        }
    }

    /// For how long an outcome is kept.
    pub fn set_keep(&self, keep: Duration) {
        let keep_us = u64::try_from(keep.as_micros()).unwrap_or(u64::MAX);
        self.keep_us.store(keep_us, Ordering::Relaxed);
    }

    /// Beyond so many bytes calls with new keys are refused.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        self.lock().taken.budget().set_limit(bytes_max);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics under this lock")
    }

    fn keep_us(&self) -> i64 {
        i64::try_from(self.keep_us.load(Ordering::Relaxed)).unwrap_or(i64::MAX)
    }

    /// Transactions before this time have expired for one that begins now.
    fn expired_before(&self, state: &State) -> i64 {
        self.clock.now_us().max(state.newest_us).saturating_sub(self.keep_us())
    }

    pub(crate) fn begin(&self, key: ScopedKey<'_>, fingerprint: Fingerprint) -> Begin {
        let (name, mut state) = (key.name(), self.lock());
        match state.entries.get(&name) {
            None => {}
            Some(Entry::Running { fingerprint: first, .. }) if *first == fingerprint => return Begin::Running,
            Some(Entry::Running { .. }) => return Begin::Conflict,
            Some(Entry::Done {
                fingerprint: first,
                outcome,
            }) => {
                let (is_same, outcome) = (*first == fingerprint, outcome.clone());
                if outcome.txn_id.time_us() >= self.expired_before(&state) {
                    return if is_same { Begin::Done(outcome) } else { Begin::Conflict };
                }
                state.forget(outcome.txn_id);
            }
        }
        if !state.taken.try_grow(entry_bytes(&name)) {
            let before = self.expired_before(&state);
            state.forget_before(before);
            if !state.taken.try_grow(entry_bytes(&name)) {
                state.refused += 1;
                return Begin::Full;
            }
        }
        let running = Entry::Running {
            fingerprint,
            waiters: Vec::new(),
        };
        state.entries.insert(name, running);
        Begin::Run
    }

    /// Calls `waiter` when the running call of this key has ended; at once where it already has.
    pub(crate) fn wait(&self, key: ScopedKey<'_>, waiter: Waiter) {
        let mut state = self.lock();
        let answer = match state.entries.get_mut(&key.name()) {
            Some(Entry::Running { waiters, .. }) => {
                waiters.push(waiter);
                return;
            }
            Some(Entry::Done { outcome, .. }) => Ok(outcome.clone()),
            None => Err(ReplyOutcome::Superseded), // the first call failed meanwhile: run this one
        };
        drop(state);
        waiter(answer);
    }

    /// Keeps the committed outcome of a key that `begin` let run.
    pub(crate) fn finish(&self, key: ScopedKey<'_>, outcome: Remembered) {
        let waiters = {
            let (name, mut state) = (key.name(), self.lock());
            let Some(Entry::Running { fingerprint, waiters }) = state.entries.remove(&name) else {
                return;
            };
            // It has committed: what its result takes is not asked for.
            state.taken.shrink(entry_bytes(&name));
            state.keep(name, fingerprint, outcome.clone(), self.keep_us());
            waiters
        };
        for waiter in waiters {
            waiter(Ok(outcome.clone()));
        }
    }

    /// Frees a key whose call did not commit; whoever waited gets the same answer.
    pub(crate) fn release(&self, key: ScopedKey<'_>, outcome: &ReplyOutcome) {
        let waiters = {
            let (name, mut state) = (key.name(), self.lock());
            let Some(Entry::Running { waiters, .. }) = state.entries.remove(&name) else {
                return;
            };
            state.taken.shrink(entry_bytes(&name));
            waiters
        };
        for waiter in waiters {
            waiter(Err(outcome.clone()));
        }
    }

    /// Takes in a key found in the log or in a checkpoint, whatever room there is: it was promised.
    pub fn restore(&self, key: ScopedKey<'_>, fingerprint: Fingerprint, outcome: Remembered) {
        let (name, mut state) = (key.name(), self.lock());
        if let Some(Entry::Done { outcome: known, .. }) = state.entries.get(&name) {
            let known = known.txn_id;
            if known >= outcome.txn_id {
                return;
            }
            // The later call ran because the earlier one's outcome had expired.
            state.forget(known);
        }
        state.keep(name, fingerprint, outcome, self.keep_us());
    }

    /// Forgets every committed outcome: what was restored is restored anew.
    pub fn clear(&self) {
        let mut state = self.lock();
        while let Some(oldest) = state.by_txn.keys().next().copied() {
            state.forget(oldest);
        }
    }

    /// What is kept under a key now.
    pub fn look_up(&self, key: ScopedKey<'_>) -> Lookup {
        let state = self.lock();
        match state.entries.get(&key.name()) {
            Some(Entry::Done { outcome, .. }) if outcome.txn_id.time_us() >= self.expired_before(&state) => {
                Lookup::Kept(outcome.clone())
            }
            Some(Entry::Running { .. }) => Lookup::Running,
            Some(Entry::Done { .. }) | None => Lookup::Unknown,
        }
    }

    /// Committed keys of transactions after `after`, at most `limit`, in the order of their transactions.
    pub fn export(&self, after: Option<TxnId>, limit: usize) -> Vec<Exported> {
        let state = self.lock();
        let first = after.map_or(Bound::Unbounded, Bound::Excluded);
        let names = state.by_txn.range((first, Bound::Unbounded)).take(limit);
        let exported = names.filter_map(|(_, name)| match state.entries.get(name)? {
            Entry::Done { fingerprint, outcome } => {
                let (scope, key) = split(name);
                Some(Exported {
                    scope,
                    key,
                    fingerprint: *fingerprint,
                    outcome: outcome.clone(),
                })
            }
            Entry::Running { .. } => None,
        });
        exported.collect()
    }

    pub fn stats(&self) -> IdempotencyStats {
        let state = self.lock();
        IdempotencyStats {
            keys: state.by_txn.len() as u64,
            bytes: state.taken.bytes(),
            bytes_max: state.taken.budget().limit(),
            oldest_unix_us: state.by_txn.keys().next().map(|txn_id| txn_id.time_us()),
            keep: Duration::from_micros(self.keep_us.load(Ordering::Relaxed)),
            refused: state.refused,
        }
    }
}

impl State {
    fn keep(&mut self, name: Name, fingerprint: Fingerprint, outcome: Remembered, keep_us: i64) {
        self.taken.grow(entry_bytes(&name) + outcome.result.len() as u64);
        self.newest_us = self.newest_us.max(outcome.txn_id.time_us());
        self.by_txn.insert(outcome.txn_id, name.clone());
        self.entries.insert(name, Entry::Done { fingerprint, outcome });
        self.forget_before(self.newest_us.saturating_sub(keep_us));
    }

    /// Forgets outcomes of transactions before this time: as many as one key after the other needs, and some more.
    fn forget_before(&mut self, before_us: i64) {
        for _ in 0..FORGET_AT_ONCE {
            match self.by_txn.keys().next() {
                Some(oldest) if oldest.time_us() < before_us => self.forget(*oldest),
                _ => return,
            }
        }
    }

    fn forget(&mut self, txn_id: TxnId) {
        let name = self
            .by_txn
            .remove(&txn_id)
            .expect("a committed key has its place in time");
        if let Some(Entry::Done { outcome, .. }) = self.entries.remove(&name) {
            self.taken.shrink(entry_bytes(&name) + outcome.result.len() as u64);
        }
    }
}
