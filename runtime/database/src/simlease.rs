//! A store of leases in this process that goes by a clock and can be out of reach, for tests and the simulation.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use reprise_env::Clock;

use crate::lease_store::{Holder, LeaseContents, LeaseStore, StoreError, SyncRecord};

/// The store that all servers of a database share: one lease, and the record of the standbys in sync.
pub struct SimLeases {
    clock: Arc<dyn Clock>,
    state: Mutex<SimLeaseState>,
}

#[derive(Default)]
struct SimLeaseState {
    held: Option<HeldLease>,
    record: Option<(SyncRecord, i64)>,
    next: i64,
    /// Keys of stores that can't reach it.
    away: BTreeSet<String>,
    is_all_away: bool,
    /// Keys of stores that get no answer to their next take of the lease.
    unanswered: BTreeSet<String>,
    /// Keys of stores that can read it and give a lease back, but can't write.
    unwritable: BTreeSet<String>,
}

struct HeldLease {
    holder: Holder,
    /// Number of the lease, which is its version too.
    number: i64,
    until_ns: u64,
}

impl SimLeaseState {
    fn next(&mut self) -> i64 {
        self.next += 1;
        self.next
    }
}

impl SimLeases {
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let state = Mutex::default();
        Arc::new(Self { clock, state })
    }

    /// Returns the store as one server reaches it; `set_away` uses the key.
    pub fn store(self: &Arc<Self>, key: &str) -> Box<dyn LeaseStore> {
        Box::new(SimStore {
            leases: self.clone(),
            key: key.to_owned(),
            ttl: Duration::ZERO,
            lease: 0,
            written: 0,
        })
    }

    /// Returns the state, without a lease that has ended.
    fn state(&self) -> MutexGuard<'_, SimLeaseState> {
        let mut state = self.state.lock().expect("nothing panics under this lock");
        let now_ns = self.clock.monotonic_ns();
        state.held.take_if(|held| held.until_ns <= now_ns);
        state
    }

    pub fn set_away(&self, key: &str, is_away: bool) {
        let mut state = self.state();
        match is_away {
            true => state.away.insert(key.to_owned()),
            false => state.away.remove(key),
        };
    }

    /// Takes the store out of reach, or back, for all servers at once. Once all can reach it, no answer is lost.
    pub fn set_all_away(&self, is_away: bool) {
        let mut state = self.state();
        state.is_all_away = is_away;
        if !is_away {
            state.unanswered.clear();
        }
    }

    /// Loses the answer to the next take by this key. The store gives the lease all the same.
    pub fn lose_answer(&self, key: &str) {
        self.state().unanswered.insert(key.to_owned());
    }

    /// Refuses what this key writes, as a store without space does. The key can still read, prolong its lease, and give it back.
    pub fn set_unwritable(&self, key: &str, is_unwritable: bool) {
        let mut state = self.state();
        match is_unwritable {
            true => state.unwritable.insert(key.to_owned()),
            false => state.unwritable.remove(key),
        };
    }

    pub fn holder(&self) -> Option<Holder> {
        self.state().held.as_ref().map(|held| held.holder.clone())
    }

    pub fn record(&self) -> Option<SyncRecord> {
        self.state().record.as_ref().map(|(record, _)| record.clone())
    }
}

struct SimStore {
    leases: Arc<SimLeases>,
    key: String,
    /// Time to live of the last take.
    ttl: Duration,
    lease: i64,
    written: i64,
}

impl SimStore {
    fn reach(&self) -> Result<MutexGuard<'_, SimLeaseState>, StoreError> {
        let state = self.leases.state();
        match state.is_all_away || state.away.contains(&self.key) {
            true => Err(StoreError("it is out of reach".into())),
            false => Ok(state),
        }
    }

    fn reach_to_write(&self) -> Result<MutexGuard<'_, SimLeaseState>, StoreError> {
        let state = self.reach()?;
        match state.unwritable.contains(&self.key) {
            true => Err(StoreError("it has no space".into())),
            false => Ok(state),
        }
    }

    fn until_ns(&self, ttl: Duration) -> u64 {
        self.leases.clock.monotonic_ns() + ttl.as_nanos() as u64
    }
}

fn seen(state: &SimLeaseState) -> LeaseContents {
    let (held, record) = (state.held.as_ref(), state.record.as_ref());
    LeaseContents {
        holder: held.map(|held| held.holder.clone()),
        record: record.map(|(record, _)| record.clone()),
        versions: (
            held.map_or(0, |held| held.number),
            record.map_or(0, |(_, version)| *version),
        ),
    }
}

impl LeaseStore for SimStore {
    fn kind(&self) -> &'static str {
        "simulated"
    }

    fn read(&mut self) -> Result<LeaseContents, StoreError> {
        Ok(seen(&*self.reach()?))
    }

    fn take(
        &mut self,
        holder: &Holder,
        record: &SyncRecord,
        expected: &LeaseContents,
        ttl: Duration,
    ) -> Result<Option<Duration>, StoreError> {
        let until_ns = self.until_ns(ttl);
        let mut state = self.reach_to_write()?;
        if seen(&state).versions != expected.versions {
            return Ok(None);
        }
        let number = state.next();
        let holder = holder.clone();
        state.held = Some(HeldLease {
            holder,
            number,
            until_ns,
        });
        state.record = Some((record.clone(), number));
        if state.unanswered.remove(&self.key) {
            return Err(StoreError("no answer".into()));
        }
        drop(state);
        (self.lease, self.written, self.ttl) = (number, number, ttl);
        Ok(Some(ttl))
    }

    fn renew(&mut self) -> Result<Option<Duration>, StoreError> {
        let (lease, ttl) = (self.lease, self.ttl);
        let until_ns = self.until_ns(ttl);
        let mut state = self.reach()?;
        let Some(held) = state.held.as_mut().filter(|held| held.number == lease) else {
            return Ok(None);
        };
        held.until_ns = until_ns;
        Ok(Some(ttl))
    }

    fn record(&mut self, record: &SyncRecord) -> Result<bool, StoreError> {
        let (lease, written) = (self.lease, self.written);
        if self.leases.state().unwritable.contains(&self.key) {
            self.written = 0; // as with etcd: after a failed request the version is unknown
        }
        let mut state = self.reach_to_write()?;
        let is_own = state.held.as_ref().is_some_and(|held| held.number == lease);
        if !is_own || state.record.as_ref().is_none_or(|(_, version)| *version != written) {
            return Ok(false);
        }
        let number = state.next();
        state.record = Some((record.clone(), number));
        drop(state);
        self.written = number;
        Ok(true)
    }

    fn release(&mut self) -> Result<(), StoreError> {
        let lease = self.lease;
        self.reach()?.held.take_if(|held| held.number == lease);
        Ok(())
    }
}
