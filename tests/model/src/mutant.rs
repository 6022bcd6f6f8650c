//! Faults of a driver around the node, armed to see the properties catch them.

use reprise_base::Safety;

use crate::world::Setting;

/// A broken rule of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A standby reports as durable all that it received.
    ReportsReceived,
    /// A primary acknowledges all that is durable on its own disk.
    AcknowledgesTooMuch,
    /// A primary acknowledges what is not durable on its own disk.
    AcknowledgesUnflushed,
    /// A primary counts reports that a standby made for an earlier primary.
    CountsFormerReports,
    /// A primary leaves out one entry of those that it sends.
    SkipsEntry,
    /// A primary that gives its place away still writes.
    WritesAfterHandOver,
    /// A standby confirms a sync status before that is durable.
    ConfirmsUnsaved,
    /// A node promises an epoch before that is durable.
    PromisesUnsaved,
    /// A promise hides how far the node is.
    PromisesNoEnd,
    /// A promise hides the sync status that the node has.
    PromisesNoStatus,
    /// A promise hides that the node promised an epoch to another one before.
    PromisesNoRival,
    /// A node that is silent counts as one that promised.
    SilencePromises,
    /// A primary returns the reports of standbys that it does not wait for.
    EchoesAll,
    /// A primary continues without a standby that it heard a moment ago.
    LeavesEarly,
    /// Asking ends at once.
    AsksShortly,
    /// A standby keeps what its primary does not have.
    KeepsFork,
    /// The store gives the lease away while its holder still counts on it.
    LeaseEndsEarly,
    /// A node believes that it has the lease, and the store knows nothing of it.
    BelievesInLease,
    /// The record of the store ends with the lease.
    RecordEndsWithLease,
    /// The store gives the lease to a node that has not seen the newest record.
    TakesWithoutLook,
    /// The store takes a record from a node that does not have the lease.
    RecordsWithoutLease,
    /// A standby is forgotten while those that stay lack what was acknowledged with its help.
    ForgetsEarly,
    /// A place is given with too small an end.
    HandsOverLess,
    /// A crash takes an entry that was durable.
    LosesDurable,
    /// A crash takes the document, and the log stays.
    LosesDocument,
}

impl Mutant {
    /// Every mutant, a setting that has to catch it, and the seed of a walk that does.
    pub const ALL: [(Self, Safety, bool, u64); 25] = [
        (Self::ReportsReceived, Safety::Quorum, false, 40_572),
        (Self::AcknowledgesTooMuch, Safety::Quorum, false, 22),
        (Self::ConfirmsUnsaved, Safety::TwoSafe, false, 43_918),
        (Self::PromisesUnsaved, Safety::Quorum, false, 4571),
        (Self::PromisesNoEnd, Safety::Quorum, false, 86),
        (Self::EchoesAll, Safety::TwoSafe, false, 9671),
        (Self::LeavesEarly, Safety::TwoSafe, false, 831),
        (Self::AsksShortly, Safety::TwoSafe, false, 3108),
        (Self::KeepsFork, Safety::Quorum, false, 86),
        (Self::LeaseEndsEarly, Safety::TwoSafe, true, 103),
        (Self::BelievesInLease, Safety::OneSafe, true, 8232),
        (Self::ForgetsEarly, Safety::Quorum, false, 2867),
        (Self::HandsOverLess, Safety::OneSafe, true, 11),
        (Self::LosesDurable, Safety::Quorum, false, 3379),
        (Self::LosesDocument, Safety::Quorum, false, 1534),
        (Self::PromisesNoStatus, Safety::Quorum, false, 0),
        (Self::PromisesNoRival, Safety::TwoSafe, false, 0),
        (Self::SilencePromises, Safety::Quorum, false, 0),
        (Self::AcknowledgesUnflushed, Safety::OneSafe, false, 0),
        (Self::CountsFormerReports, Safety::Quorum, false, 0),
        (Self::SkipsEntry, Safety::Quorum, false, 0),
        (Self::WritesAfterHandOver, Safety::Quorum, false, 0),
        (Self::RecordEndsWithLease, Safety::TwoSafe, true, 0),
        (Self::TakesWithoutLook, Safety::TwoSafe, true, 0),
        (Self::RecordsWithoutLease, Safety::TwoSafe, true, 0),
    ];

    /// Returns the setting with this mutant.
    pub fn setting(self, level: Safety, has_lease: bool) -> Setting {
        Setting {
            level,
            has_lease,
            nodes: if self == Self::ForgetsEarly { 4 } else { 3 },
            mutant: Some(self),
        }
    }
}
