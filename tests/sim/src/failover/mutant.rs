//! Known bugs of replication, armed where the product meets what is around it: frames, disks, and the store of leases.

use std::time::Duration;

use reprise_base::Safety;
use reprise_database::{Holder, LeaseContents, LeaseStore, StoreError, SyncRecord};
use reprise_wire::Frame;

/// A known bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailoverMutant {
    /// A standby acknowledges all received records, even if they are not durable.
    AcknowledgesReceived,
    /// A standby's disk promises syncs and does none.
    LyingStandby,
    /// A primary tells its standbys that whatever is durable there is committed.
    TellsUncommitted,
    /// A standby that is lost stays recorded as in sync.
    KeepsLostInSync,
    /// A lease has ended at the store before it has ended for its holder.
    LeaseOutlived,
}

impl FailoverMutant {
    pub const ALL: [Self; 5] = [
        Self::AcknowledgesReceived,
        Self::LyingStandby,
        Self::TellsUncommitted,
        Self::KeepsLostInSync,
        Self::LeaseOutlived,
    ];

    /// The level, and whether there is a lease.
    pub fn shows_under(self) -> (Safety, bool) {
        match self {
            // The node with the most records takes over if there is no lease.
            Self::TellsUncommitted | Self::KeepsLostInSync | Self::LeaseOutlived => (Safety::TwoSafe, true),
            Self::AcknowledgesReceived | Self::LyingStandby => (Safety::Quorum, false),
        }
    }

    /// Returns the forged form of a node's frame, which arrives instead.
    pub fn forge(self, bytes: Vec<u8>) -> Vec<u8> {
        match (Frame::decode(&bytes), self) {
            (Ok(Frame::Progress(mut progress)), Self::AcknowledgesReceived) => {
                progress.persisted = progress.received;
                Frame::Progress(progress).encode()
            }
            (Ok(Frame::Heartbeat(mut beat)), Self::TellsUncommitted) => {
                beat.committed = beat.durable;
                Frame::Heartbeat(beat).encode()
            }
            _ => bytes,
        }
    }
}

/// Returns the store of leases, with the mutant's bug in it.
pub fn store_of(store: Box<dyn LeaseStore>, mutant: Option<FailoverMutant>) -> Box<dyn LeaseStore> {
    let is_of_leases =
        |mutant: &FailoverMutant| matches!(mutant, FailoverMutant::KeepsLostInSync | FailoverMutant::LeaseOutlived);
    match mutant.filter(is_of_leases) {
        Some(mutant) => Box::new(ForgingStore { store, mutant }),
        None => store,
    }
}

struct ForgingStore {
    store: Box<dyn LeaseStore>,
    mutant: FailoverMutant,
}

impl ForgingStore {
    fn outlived(&self, ttl: Option<Duration>) -> Option<Duration> {
        match self.mutant {
            FailoverMutant::LeaseOutlived => ttl.map(|ttl| 4 * ttl),
            _ => ttl,
        }
    }
}

impl LeaseStore for ForgingStore {
    fn kind(&self) -> &'static str {
        self.store.kind()
    }

    fn read(&mut self) -> Result<LeaseContents, StoreError> {
        self.store.read()
    }

    fn take(
        &mut self,
        holder: &Holder,
        record: &SyncRecord,
        seen: &LeaseContents,
        ttl: Duration,
    ) -> Result<Option<Duration>, StoreError> {
        let taken = self.store.take(holder, record, seen, ttl)?;
        Ok(self.outlived(taken))
    }

    fn renew(&mut self) -> Result<Option<Duration>, StoreError> {
        let renewed = self.store.renew()?;
        Ok(self.outlived(renewed))
    }

    fn record(&mut self, record: &SyncRecord) -> Result<bool, StoreError> {
        let seen = self.store.read()?.record;
        let was_in_sync = seen.map_or_else(Vec::new, |seen| seen.in_sync);
        let leaves = was_in_sync.iter().any(|name| !record.in_sync.contains(name));
        match self.mutant == FailoverMutant::KeepsLostInSync && leaves {
            true => Ok(true),
            false => self.store.record(record),
        }
    }

    fn release(&mut self) -> Result<(), StoreError> {
        self.store.release()
    }
}
