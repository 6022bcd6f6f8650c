//! The store of leases with a known bug in it, or in a server's use of it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use reprise_database::{Holder, LeaseContents, LeaseStore, StoreError, SyncRecord};

use super::{around::NAMES, history::lock, mutant::FailoverMutant};

/// The record that was in the store before its holder took the lease.
pub type RecordBefore = Arc<Mutex<Option<SyncRecord>>>;

/// The store as one server reaches it.
pub struct ForgedStore {
    pub store: Box<dyn LeaseStore>,
    pub mutant: FailoverMutant,
    pub before: RecordBefore,
    /// Time of the lease that this server took last.
    pub ttl: Duration,
}

impl ForgedStore {
    fn has(&self, mutant: FailoverMutant) -> bool {
        self.mutant == mutant
    }

    fn outlived(&self, ttl: Option<Duration>) -> Option<Duration> {
        match self.has(FailoverMutant::LeaseOutlived) {
            true => ttl.map(|ttl| 4 * ttl),
            false => ttl,
        }
    }

    /// Returns the record that the store gets instead, where it has another one.
    fn forge(&self, record: &SyncRecord, stored: Option<SyncRecord>) -> SyncRecord {
        let mut forged = record.clone();
        match (self.mutant, stored) {
            (FailoverMutant::EmptyListKeepsOld, Some(stored)) if record.in_sync.is_empty() => {
                forged.in_sync = stored.in_sync;
                forged.in_sync.retain(|name| *name != record.primary);
            }
            (FailoverMutant::RecordKeepsEpoch, Some(stored)) => forged.epoch = stored.epoch,
            _ => {}
        }
        forged
    }
}

impl LeaseStore for ForgedStore {
    fn kind(&self) -> &'static str {
        self.store.kind()
    }

    fn read(&mut self) -> Result<LeaseContents, StoreError> {
        let mut seen = self.store.read()?;
        match self.mutant {
            FailoverMutant::RecordEndsWithLease if seen.holder.is_none() => seen.record = None,
            FailoverMutant::ReadsOldRecord => {
                let before = lock(&self.before).clone();
                seen.record = before.or(seen.record);
            }
            FailoverMutant::GivesLeaseTwice => seen.holder = None,
            _ => {}
        }
        Ok(seen)
    }

    fn take(
        &mut self,
        holder: &Holder,
        record: &SyncRecord,
        seen: &LeaseContents,
        ttl: Duration,
    ) -> Result<Option<Duration>, StoreError> {
        let stored = self.store.read().ok().and_then(|stored| stored.record);
        let forged = self.forge(record, stored.clone());
        self.ttl = ttl;
        match self.store.take(holder, &forged, seen, ttl) {
            Ok(Some(taken)) => {
                *lock(&self.before) = stored;
                Ok(self.outlived(Some(taken)))
            }
            taken => taken,
        }
    }

    fn renew(&mut self) -> Result<Option<Duration>, StoreError> {
        match (self.store.renew(), self.mutant) {
            (Ok(None), FailoverMutant::RenewsEndedLease) => Ok(Some(self.ttl)),
            (Err(_), FailoverMutant::BelievesInLease) => Ok(Some(self.ttl)),
            (renewed, _) => Ok(self.outlived(renewed?)),
        }
    }

    fn record(&mut self, record: &SyncRecord) -> Result<bool, StoreError> {
        let stored = self.store.read()?.record;
        let mut forged = self.forge(record, stored.clone());
        let was_in_sync = stored.map_or_else(Vec::new, |stored| stored.in_sync);
        let leaves = was_in_sync.iter().any(|name| !record.in_sync.contains(name));
        match self.mutant {
            FailoverMutant::KeepsLostInSync if leaves => return Ok(true),
            FailoverMutant::RecordsAll => {
                let others = NAMES.iter().filter(|name| **name != record.primary);
                forged.in_sync = others.map(|name| (*name).to_owned()).collect();
            }
            _ => {}
        }
        self.store.record(&forged)
    }

    fn release(&mut self) -> Result<(), StoreError> {
        self.store.release()
    }
}
