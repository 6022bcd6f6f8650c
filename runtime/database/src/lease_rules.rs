//! Rules for taking the lease, by the contents of the store.

use reprise_base::Epoch;

use crate::{
    cutting::Reached,
    leasing::{Holder, LeaseError, Seen, SyncRecord},
};

/// Whether a server may take the lease at its start, which nobody has.
pub(crate) fn may_begin(seen: &Seen, own: &str, reached: Reached) -> Result<(), LeaseError> {
    let Some(record) = &seen.record else {
        return Ok(());
    };
    match record.primary == own {
        true if !reached.has(record.epoch) => Err(LeaseError::Older {
            recorded: record.epoch,
            found: reached.epoch,
        }),
        false if !record.in_sync.iter().any(|name| name == own) => Err(LeaseError::Behind {
            primary: record.primary.clone(),
        }),
        _ => Ok(()),
    }
}

/// The first epoch that no other server had. A standby that is promoted, or a server that begins, may have seen nothing of the last ones.
pub(crate) fn free_epoch(seen: &Seen, own: &str) -> u32 {
    match &seen.record {
        Some(record) if record.primary == own => record.epoch,
        Some(record) => record.epoch + 1,
        None => 0,
    }
}

/// True where a standby takes over by itself. `tried`: of the record by which it did so already, and which the store may have written without
/// saying so; who was in sync before is not known from that one.
pub(crate) fn may_take_over(seen: &Seen, own: &Holder, tried: Option<u32>) -> bool {
    let Some(record) = &seen.record else {
        return false;
    };
    let is_written = record.primary == own.name && Some(record.epoch) == tried;
    match &seen.holder {
        Some(holder) => is_written && holder == own,
        None => is_written || record.in_sync.contains(&own.name),
    }
}

/// True where a primary whose lease ran out may have it again: nobody else had it meanwhile.
pub(crate) fn may_take_again(seen: &Seen, own: &Holder) -> bool {
    let is_own = |record: &SyncRecord| record.primary == own.name;
    seen.holder.as_ref().is_none_or(|holder| holder == own) && seen.record.as_ref().is_none_or(is_own)
}

/// How somebody has a standby promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByHand {
    /// The epoch of the old primary, which gave its place to this one; none: by force.
    pub given: Option<Epoch>,
    pub accepts_loss: bool,
}

impl ByHand {
    /// Whether the old primary had the place that it gave: since then another server may have been promoted by force, and have answered.
    pub fn is_given(&self, seen: &Seen, own: &str) -> bool {
        let is_last = |given: Epoch| {
            let record = seen.record.as_ref();
            record.is_none_or(|record| record.primary == own || record.epoch <= given.0)
        };
        self.given.is_some_and(is_last)
    }
}
