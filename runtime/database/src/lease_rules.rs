//! Rules for taking the lease, by the contents of the store.

use reprise_base::Epoch;

use crate::{
    cutting::ReachedEpoch,
    leasing::{Holder, LeaseContents, LeaseError, SyncRecord},
};

/// Checks that a server may take a free lease at its start. `needs_promises`: a standby has to ask the others before it leads, so this server has to
/// have led in the recorded epoch.
pub(crate) fn may_begin(
    seen: &LeaseContents,
    own: &str,
    reached: ReachedEpoch,
    needs_promises: bool,
) -> Result<(), LeaseError> {
    let Some(record) = &seen.record else {
        return Ok(());
    };
    let has_led = match needs_promises {
        true => record.epoch <= reached.epoch,
        false => reached.has(record.epoch),
    };
    let is_in_sync = !needs_promises && record.in_sync.iter().any(|name| name == own);
    match record.primary == own {
        true if !has_led => Err(LeaseError::Older {
            recorded: record.epoch,
            found: reached.epoch,
        }),
        false if !is_in_sync => Err(LeaseError::Behind {
            primary: record.primary.clone(),
        }),
        _ => Ok(()),
    }
}

/// Returns the first epoch that no other server had. A promoted standby, or a server that starts, may have no record of the last epochs.
pub(crate) fn free_epoch(seen: &LeaseContents, own: &str) -> u32 {
    match &seen.record {
        Some(record) if record.primary == own => record.epoch,
        Some(record) => record.epoch + 1,
        None => 0,
    }
}

/// True if a standby takes over by itself. `tried` is the epoch of its last attempt, which the store may have recorded without confirming
/// it. Such a record no longer says which standbys were in sync.
pub(crate) fn may_take_over(seen: &LeaseContents, own: &Holder, tried: Option<u32>) -> bool {
    let Some(record) = &seen.record else {
        return false;
    };
    let is_written = record.primary == own.name && Some(record.epoch) == tried;
    match &seen.holder {
        Some(holder) => is_written && holder == own,
        None => is_written || record.in_sync.contains(&own.name),
    }
}

/// True if a primary whose lease ran out may take it again, because no other server had it meanwhile.
pub(crate) fn may_take_again(seen: &LeaseContents, own: &Holder) -> bool {
    let is_own = |record: &SyncRecord| record.primary == own.name;
    seen.holder.as_ref().is_none_or(|holder| holder == own) && seen.record.as_ref().is_none_or(is_own)
}

/// The order of an operator to promote a standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByHand {
    /// The epoch in which the old primary handed over to this standby. None: the promotion is forced.
    pub given: Option<Epoch>,
    pub accepts_loss: bool,
    /// The other standbys' promises decide once this server has the lease.
    pub is_judged_later: bool,
}

impl ByHand {
    /// True if the old primary was still the last primary when it handed over. Otherwise another server may have been promoted by force
    /// since, and have acknowledged writes.
    pub fn is_given(&self, seen: &LeaseContents, own: &str) -> bool {
        let is_last = |given: Epoch| {
            let record = seen.record.as_ref();
            record.is_none_or(|record| record.primary == own || record.epoch <= given.0)
        };
        self.given.is_some_and(is_last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_needs_the_lead_where_promises_decide_and_a_place_in_the_record_elsewhere() {
        let seen = |primary: &str| LeaseContents {
            holder: None,
            record: Some(SyncRecord {
                primary: primary.into(),
                epoch: 7,
                in_sync: vec!["a".into()],
            }),
            versions: (1, 1),
        };
        let led = ReachedEpoch {
            epoch: 7,
            claimed: None,
        };
        let claimed = ReachedEpoch {
            epoch: 6,
            claimed: Some(7),
        };
        for (primary, reached, alone, with_promises) in [
            ("a", led, true, true),
            ("a", claimed, true, false),
            ("b", led, true, false),
            ("b", claimed, true, false),
        ] {
            let may = |needs_promises| may_begin(&seen(primary), "a", reached, needs_promises).is_ok();
            assert_eq!((may(false), may(true)), (alone, with_promises), "{primary} {reached:?}");
        }
        assert!(
            may_begin(&seen("a"), "b", led, false).is_err(),
            "it is not in the record"
        );
    }
}
