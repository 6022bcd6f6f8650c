//! Rules for taking the lease, by the contents of the store.

use reprise_base::{Epoch, Lsn};

use crate::{
    cutting::ReachedEpoch,
    lease_store::{Holder, LeaseContents, SyncRecord},
    leasing::LeaseError,
};

/// A server that may take the lease, and its data directory.
pub(crate) struct LeaseCandidate<'a> {
    pub name: &'a str,
    /// Identity of the directory.
    pub node: String,
    pub reached: ReachedEpoch,
    /// End of the log.
    pub end: Lsn,
    /// A standby has to ask the others before it leads. So this server has to have led in the recorded epoch.
    pub needs_promises: bool,
    /// The directory is a standby's.
    pub follows: bool,
    /// A primary told this directory that it is in sync. A restored or emptied one under the name of a standby was not told.
    pub was_in_sync: bool,
    /// Count of the last epoch of which the directory has a record or a primary's word. The store may hold an old copy of its record.
    pub heard: u32,
}

impl LeaseCandidate<'_> {
    /// Whether the record names this node in sync, this node was told so, and it has heard of no later epoch.
    fn is_named(&self, record: &SyncRecord) -> bool {
        let is_there = record.in_sync.iter().any(|name| name == self.name);
        is_there && self.was_in_sync && self.heard <= record.epoch
    }

    /// Returns why the directory is not the one with which this server was the primary of the record, or not all of it.
    fn lacks(&self, record: &SyncRecord) -> Option<String> {
        let has_led = match self.needs_promises {
            true => record.epoch <= self.reached.epoch,
            false => self.reached.has(record.epoch),
        };
        if !has_led {
            let (recorded, found) = (record.epoch, self.reached.epoch);
            Some(format!("epoch {recorded} is recorded, and it reaches epoch {found}"))
        } else if record.node != self.node {
            Some(format!(
                "node {} is recorded, and it is node {}",
                record.node, self.node
            ))
        } else if record.lsn > self.end.0 {
            Some(format!(
                "LSN {} is recorded, and its log ends at LSN {}",
                record.lsn, self.end
            ))
        } else {
            None
        }
    }
}

/// Checks that a server may take a free lease at its start.
pub(crate) fn may_begin(seen: &LeaseContents, own: &LeaseCandidate<'_>) -> Result<(), LeaseError> {
    let Some(record) = &seen.record else {
        return match own.follows {
            true => Err(LeaseError::NoRecord),
            false => Ok(()),
        };
    };
    if record.primary == own.name {
        return own.lacks(record).map_or(Ok(()), |what| Err(LeaseError::Older(what)));
    }
    match !own.needs_promises && own.is_named(record) {
        true => Ok(()),
        false => Err(LeaseError::Behind {
            primary: record.primary.clone(),
        }),
    }
}

/// Returns the count of the first epoch that no other server had. A promoted standby, or a server that starts, may have no record of the last epochs.
pub(crate) fn free_count(seen: &LeaseContents, own: &str) -> u32 {
    match &seen.record {
        Some(record) if record.primary == own => record.epoch,
        Some(record) => record.epoch.saturating_add(1),
        None => 0,
    }
}

/// True if a standby takes over by itself. `tried` is the epoch of its last attempt, which the store may have recorded without confirming
/// it. Such a record no longer says which standbys were in sync.
pub(crate) fn may_take_over(
    seen: &LeaseContents,
    own: &Holder,
    candidate: &LeaseCandidate<'_>,
    tried: Option<u32>,
) -> bool {
    let Some(record) = &seen.record else {
        return false;
    };
    let is_written = record.primary == own.name && Some(record.epoch) == tried;
    match &seen.holder {
        Some(holder) => is_written && holder == own,
        None => is_written || candidate.is_named(record),
    }
}

/// True if a primary whose lease ran out may take it again, because no other server had it meanwhile.
pub(crate) fn may_take_again(seen: &LeaseContents, own: &Holder) -> bool {
    let is_own = |record: &SyncRecord| record.primary == own.name;
    seen.holder.as_ref().is_none_or(|holder| holder == own) && seen.record.as_ref().is_none_or(is_own)
}

/// Keeps the record before a promotion in `before`. An earlier try may have left this server's own one in the store.
pub(crate) fn keep_record(before: &mut Option<SyncRecord>, seen: &LeaseContents, own: &str) {
    let is_own = seen.record.as_ref().is_some_and(|record| record.primary == own);
    if !is_own || before.is_none() {
        before.clone_from(&seen.record);
    }
}

/// The order of an operator to promote a standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByHand {
    /// The epoch in which the old primary handed over to this standby. None: the promotion is forced.
    pub given: Option<Epoch>,
    pub accepts_loss: bool,
    /// The other standbys' promises decide once this server has the lease.
    pub is_checked_later: bool,
}

impl ByHand {
    /// True if the old primary was still the last primary when it handed over. Otherwise another server may have been promoted by force
    /// since, and have acknowledged writes.
    pub fn is_given(&self, seen: &LeaseContents, own: &str) -> bool {
        let is_last = |given: Epoch| {
            let record = seen.record.as_ref();
            record.is_none_or(|record| record.primary == own || record.epoch <= given.count())
        };
        self.given.is_some_and(is_last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A standby that the primary of epoch 7 told that it is in sync.
    fn standby(name: &str) -> LeaseCandidate<'_> {
        LeaseCandidate {
            name,
            node: "n".into(),
            reached: ReachedEpoch {
                epoch: 7,
                claimed: None,
            },
            end: Lsn(100),
            needs_promises: false,
            follows: true,
            was_in_sync: true,
            heard: 7,
        }
    }

    #[test]
    fn a_name_in_the_record_is_of_use_to_the_directory_that_was_told_so() {
        let own = Holder {
            name: "a".into(),
            url: None,
            instance: 1,
        };
        let record = SyncRecord {
            primary: "b".into(),
            epoch: 7,
            in_sync: vec!["a".into()],
            node: "m".into(),
            lsn: 100,
        };
        let mut seen = LeaseContents {
            holder: None,
            record: Some(record),
            versions: (1, 1),
        };
        let restored = LeaseCandidate {
            was_in_sync: false,
            ..standby("a")
        };
        let ahead_of_an_old_record = LeaseCandidate {
            heard: 8,
            ..standby("a")
        };
        for (candidate, may) in [(standby("a"), true), (restored, false), (ahead_of_an_old_record, false)] {
            assert_eq!(may_take_over(&seen, &own, &candidate, None), may);
            assert_eq!(may_begin(&seen, &candidate).is_ok(), may);
        }
        seen.record = None;
        assert!(may_begin(&seen, &standby("a")).is_err());
    }

    #[test]
    fn start_needs_the_directory_that_led_or_a_place_in_the_record_where_no_promises_decide() {
        let seen = |primary: &str| LeaseContents {
            holder: None,
            record: Some(SyncRecord {
                primary: primary.into(),
                epoch: 7,
                in_sync: vec!["a".into()],
                node: "n".into(),
                lsn: 100,
            }),
            versions: (1, 1),
        };
        let led = (7, None);
        let claimed = (6, Some(7));
        for (primary, (epoch, claimed), node, end, alone, with_promises) in [
            ("a", led, "n", 100, true, true),
            ("a", led, "n", 99, false, false),
            ("a", led, "m", 100, false, false),
            ("a", claimed, "n", 100, true, false),
            ("b", led, "m", 0, true, false),
            ("b", claimed, "m", 0, true, false),
        ] {
            let may = |name, needs_promises| {
                let own = LeaseCandidate {
                    node: node.to_owned(),
                    reached: ReachedEpoch { epoch, claimed },
                    end: Lsn(end),
                    needs_promises,
                    ..standby(name)
                };
                may_begin(&seen(primary), &own).is_ok()
            };
            let found = (may("a", false), may("a", true));
            assert_eq!(
                found,
                (alone, with_promises),
                "{primary} {epoch} {claimed:?} {node} {end}"
            );
            assert!(!may("c", false), "it is not in the record");
        }
    }
}
