//! Known bugs of replication, armed where the product meets what is around it: frames, questions to other nodes, disks, and the store of leases.

use reprise_base::Safety;

/// A known bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailoverMutant {
    // Frames of standbys.
    /// A standby acknowledges all received records, even if they are not durable.
    AcknowledgesReceived,

    // Frames of primaries.
    /// A primary tells its standbys that whatever is durable there is committed.
    TellsUncommitted,
    /// A primary tells each standby that no other one counts.
    TellsSetOfOne,
    /// A primary leaves the standbys that are out of sync out of its list.
    OmitsLostStandbys,

    // Questions to other nodes.
    /// A promise hides the end of the log.
    PromiseHidesEnd,
    /// A promotion compares two logs by their lengths alone.
    ComparesLengths,
    /// A peer that does not answer counts as one that promised.
    SilencePromises,
    /// A standby gives a promise, and forgets it at once.
    PromiseForgotten,
    /// A primary answers that it hands over, and stays the primary.
    HandsOverAndStays,

    // Disks.
    /// A standby's disk promises syncs and does none.
    LyingStandby,
    /// A crash takes what a standby's disk synced last.
    StandbyLosesSyncs,
    /// A crash takes what a primary's disk synced last.
    PrimaryLosesSyncs,
    /// After a crash, a standby takes all its records for committed.
    OverstatesView,

    // The store of leases.
    /// A standby that is lost stays recorded as in sync.
    KeepsLostInSync,
    /// Every standby is recorded as in sync.
    RecordsAll,
    /// A list without standbys leaves the list before it in the record.
    EmptyListKeepsOld,
    /// The record ends with the lease.
    RecordEndsWithLease,
    /// A read returns the record of the holder before.
    ReadsOldRecord,
    /// The record keeps its first epoch.
    RecordKeepsEpoch,
    /// A lease has ended at the store before it has ended for its holder.
    LeaseOutlived,
    /// A holder takes the refusal of its renewal for a success.
    RenewsEndedLease,
    /// A holder that does not reach the store takes its lease for renewed.
    BelievesInLease,
    /// The store does not show a holder to other servers, and gives them the lease.
    GivesLeaseTwice,
}

impl FailoverMutant {
    /// Every mutant, the level and whether there is a lease where it shows, and a seed that catches it.
    pub const ALL: [(Self, Safety, bool, u64); 23] = [
        (Self::AcknowledgesReceived, Safety::Quorum, false, 31),
        // The node with the most records takes over if there is no lease.
        (Self::TellsUncommitted, Safety::TwoSafe, true, 83),
        (Self::TellsSetOfOne, Safety::Quorum, false, 5),
        (Self::OmitsLostStandbys, Safety::Quorum, false, 82),
        (Self::PromiseHidesEnd, Safety::Quorum, true, 22),
        (Self::ComparesLengths, Safety::Quorum, true, 440),
        (Self::SilencePromises, Safety::Quorum, true, 2),
        (Self::PromiseForgotten, Safety::Quorum, false, 41),
        (Self::HandsOverAndStays, Safety::Quorum, false, 15),
        (Self::LyingStandby, Safety::Quorum, false, 32),
        (Self::StandbyLosesSyncs, Safety::Quorum, false, 4),
        (Self::PrimaryLosesSyncs, Safety::VerySafe, false, 1),
        (Self::OverstatesView, Safety::TwoSafe, true, 49),
        (Self::KeepsLostInSync, Safety::TwoSafe, true, 0),
        (Self::RecordsAll, Safety::TwoSafe, true, 0),
        (Self::EmptyListKeepsOld, Safety::TwoSafe, true, 4),
        (Self::RecordEndsWithLease, Safety::TwoSafe, true, 4),
        (Self::ReadsOldRecord, Safety::TwoSafe, true, 4),
        (Self::RecordKeepsEpoch, Safety::TwoSafe, true, 29),
        (Self::LeaseOutlived, Safety::TwoSafe, true, 0),
        (Self::RenewsEndedLease, Safety::TwoSafe, true, 7),
        (Self::BelievesInLease, Safety::TwoSafe, true, 2),
        (Self::GivesLeaseTwice, Safety::TwoSafe, true, 0),
    ];

    /// Returns the mutant of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut mutants = Self::ALL.iter().map(|(mutant, ..)| *mutant);
        mutants.find(|mutant| format!("{mutant:?}") == name)
    }

    /// The level, and whether there is a lease.
    pub fn shows_under(self) -> (Safety, bool) {
        let mut all = Self::ALL.iter();
        let found = all.find_map(|(mutant, level, has_lease, _)| (*mutant == self).then_some((*level, *has_lease)));
        found.expect("each one is listed")
    }

    /// True if a disk may be damaged by it.
    pub fn harms_disks(self) -> bool {
        self == Self::LyingStandby
    }

    /// True if the mutant shows only while the old primary goes on beside the new one.
    pub fn needs_old_primary(self) -> bool {
        self == Self::PromiseForgotten
    }

    /// True if the mutant shows only while records wait for a disk.
    pub fn needs_slow_disks(self) -> bool {
        self == Self::AcknowledgesReceived
    }
}
