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
    /// A primary takes the report of one standby for that of all.
    CountsTwice,
    /// A primary sends all entries but one.
    SkipsEntry,
    /// A standby confirms a sync status before that is durable.
    ConfirmsUnsaved,
    /// A node promises an epoch before that is durable.
    PromisesUnsaved,
    /// A promise hides how far the node is.
    PromisesNoEnd,
    /// A standby that promised an epoch still takes entries of its former primary, and reports them.
    ServesFormerPrimary,
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
    /// The store gives a lease away that another node has.
    GivesHeldLease,
    /// A standby is forgotten while those that stay lack what was acknowledged with its help.
    ForgetsEarly,
    /// A primary hides from its first set that this may lack what was acknowledged before.
    HidesBeginning,
    /// A place is given with too small an end.
    HandsOverLess,
    /// A crash takes an entry that was durable.
    LosesDurable,
    /// A crash takes the document, and the log stays.
    LosesDocument,
}

impl Mutant {
    /// Every mutant, a setting that has to catch it, and the seed of a walk that does.
    pub const ALL: [(Self, Safety, bool, u64); 22] = [
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
        (Self::SilencePromises, Safety::Quorum, false, 234),
        (Self::AcknowledgesUnflushed, Safety::OneSafe, true, 680),
        (Self::SkipsEntry, Safety::Quorum, false, 0),
        (Self::ServesFormerPrimary, Safety::Quorum, false, 64),
        (Self::CountsTwice, Safety::VerySafe, false, 72),
        (Self::GivesHeldLease, Safety::TwoSafe, true, 1),
        (Self::HidesBeginning, Safety::Quorum, false, 12_857),
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
