//! Safety levels: the servers on which a write is durable before its caller gets the answer that it committed.

use crate::named_enum;

named_enum! {
    /// The place where a write is durable when it counts as committed (Gray and Reuter; Query Fresh, section 2.1, for more than one
    /// standby). Frames hold the numbers, and settings and the API the names. The weakest is the first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Safety {
        /// Nowhere yet.
        LocalAsync = 0 => "local-async",
        /// On the node that answers.
        LocalSync = 1 => "local-sync",
        /// On the primary; standbys get it in the background.
        OneSafe = 2 => "1-safe",
        /// On the primary and on each standby that is in sync. With none in sync: on the primary alone.
        TwoSafe = 3 => "2-safe",
        /// On more than half of the nodes, and on one standby at least.
        Quorum = 4 => "quorum",
        /// On the primary and on every standby; without one of them nothing is written.
        VerySafe = 5 => "very-safe",
    }
}

impl Safety {
    /// The level of a name; none for other texts.
    pub fn from_name(name: &str) -> Option<Self> {
        name.parse().ok()
    }

    /// True if a commit waits for standbys.
    pub const fn asks_standbys(self) -> bool {
        matches!(self, Self::TwoSafe | Self::Quorum | Self::VerySafe)
    }

    /// True where a write needs standbys that are counted, and is refused without them.
    pub const fn counts_standbys(self) -> bool {
        matches!(self, Self::Quorum | Self::VerySafe)
    }

    /// True if a client that gets this level also has `asked`, whatever happens to standbys. A 2-safe server may continue without
    /// standbys, but a client that asks for 2-safe wants a standby to have its write. Therefore only very-safe covers 2-safe, and only
    /// the level itself covers quorum or very-safe.
    pub fn covers(self, asked: Self) -> bool {
        match asked {
            Self::LocalAsync => true,
            Self::LocalSync | Self::OneSafe => self >= Self::LocalSync,
            Self::TwoSafe | Self::Quorum => self == Self::VerySafe || (self == asked && asked == Self::Quorum),
            Self::VerySafe => self == Self::VerySafe,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_vouches_for_what_it_never_falls_below() {
        let covered = |level: Safety| {
            let asked = Safety::ALL.into_iter().filter(|asked| level.covers(*asked));
            asked.map(Safety::name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(covered(Safety::LocalAsync), "local-async");
        assert_eq!(covered(Safety::LocalSync), "local-async local-sync 1-safe");
        assert_eq!(covered(Safety::OneSafe), covered(Safety::LocalSync));
        assert_eq!(covered(Safety::TwoSafe), covered(Safety::LocalSync));
        assert_eq!(covered(Safety::Quorum), "local-async local-sync 1-safe quorum");
        assert_eq!(
            covered(Safety::VerySafe),
            "local-async local-sync 1-safe 2-safe quorum very-safe"
        );
    }
}
