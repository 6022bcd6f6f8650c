//! Idempotency keys: the first committed outcome of a key answers every repeat. Rebuilt from the log at recovery.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use reprise_base::{Lsn, PartitionId, TxnId, limits::IDEMPOTENCY_KEYS_MAX};
use reprise_txn::{Module, call_hash};

use crate::builder::ReplyOutcome;

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
    pub key: Box<str>,
    pub fingerprint: Fingerprint,
    pub outcome: Remembered,
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
}

/// The keys of one database, the oldest forgotten beyond the limit.
#[derive(Default)]
pub struct Idempotency {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: BTreeMap<Box<str>, Entry>,
    /// Committed keys, oldest first.
    order: VecDeque<Box<str>>,
    /// Keys that fell off its front: positions in the order go on growing.
    forgotten: u64,
}

impl Idempotency {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics under this lock")
    }

    pub(crate) fn begin(&self, key: &str, fingerprint: Fingerprint) -> Begin {
        let mut state = self.lock();
        match state.entries.get(key) {
            None => {
                let running = Entry::Running {
                    fingerprint,
                    waiters: Vec::new(),
                };
                state.entries.insert(key.into(), running);
                Begin::Run
            }
            Some(Entry::Running { fingerprint: first, .. }) if *first == fingerprint => {
                Begin::Running
            }
            Some(Entry::Done { fingerprint: first, outcome }) if *first == fingerprint => {
                Begin::Done(outcome.clone())
            }
            Some(_) => Begin::Conflict,
        }
    }

    /// Calls `waiter` when the running call of this key has ended; at once where it already has.
    pub(crate) fn wait(&self, key: &str, waiter: Waiter) {
        let mut state = self.lock();
        let answer = match state.entries.get_mut(key) {
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
    pub(crate) fn finish(&self, key: &str, outcome: Remembered) {
        let waiters = {
            let mut state = self.lock();
            let Some(Entry::Running { fingerprint, waiters }) = state.entries.remove(key) else {
                return;
            };
            state.keep(key.into(), fingerprint, outcome.clone());
            waiters
        };
        for waiter in waiters {
            waiter(Ok(outcome.clone()));
        }
    }

    /// Frees a key whose call did not commit; whoever waited gets the same answer.
    pub(crate) fn release(&self, key: &str, outcome: ReplyOutcome) {
        let entry = self.lock().entries.remove(key);
        if let Some(Entry::Running { waiters, .. }) = entry {
            for waiter in waiters {
                waiter(Err(outcome.clone()));
            }
        }
    }

    /// Takes in a key found in the log.
    pub fn restore(&self, key: &str, fingerprint: Fingerprint, outcome: Remembered) {
        self.lock().keep(key.into(), fingerprint, outcome);
    }

    /// Committed keys from position `from` of their order on, at most `limit` of them looked at, and the position after.
    pub fn export(&self, from: u64, limit: usize) -> (Vec<Exported>, u64) {
        let state = self.lock();
        let first = from.max(state.forgotten);
        let keys = state.order.iter().skip((first - state.forgotten) as usize);
        let taken: Vec<&Box<str>> = keys.take(limit).collect();
        let end = first + taken.len() as u64;
        let done = taken.into_iter().filter_map(|key| match state.entries.get(key)? {
            Entry::Done {
                fingerprint,
                outcome,
            } => Some(Exported {
                key: key.clone(),
                fingerprint: *fingerprint,
                outcome: outcome.clone(),
            }),
            Entry::Running { .. } => None,
        });
        (done.collect(), end)
    }

    pub fn len(&self) -> usize {
        self.lock().order.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl State {
    fn keep(&mut self, key: Box<str>, fingerprint: Fingerprint, outcome: Remembered) {
        let done = Entry::Done {
            fingerprint,
            outcome,
        };
        if let Some(Entry::Done { .. }) = self.entries.insert(key.clone(), done) {
            return; // it has its place in the order
        }
        self.order.push_back(key);
        while self.order.len() > IDEMPOTENCY_KEYS_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.forgotten += 1;
                self.entries.remove(&oldest);
            }
        }
    }
}
