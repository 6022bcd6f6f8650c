//! Calls and requests that did not run, by reason, for an operator whose clients complain.

use std::sync::atomic::{AtomicU64, Ordering};

use reprise_base::named_enum;

named_enum! {
    /// Why a call did not run, or left nothing for want of something on the server's side. Named as the problem that its client gets.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[allow(missing_docs, reason = "each is a problem's slug")]
    pub enum RefusalReason {
        Forbidden => "forbidden",
        IdempotencyConflict => "idempotency-conflict",
        LeaseLost => "lease-lost",
        LogUnavailable => "log-unavailable",
        MemoryExhausted => "memory-exhausted",
        NotPrimary => "not-primary",
        OutcomeUnknown => "outcome-unknown",
        Overloaded => "overloaded",
        Quarantined => "quarantined",
        ReadOnly => "read-only",
        StandbyUnavailable => "standby-unavailable",
        TooStale => "too-stale",
        Unauthorized => "unauthorized",
        Unavailable => "unavailable",
    }
}

/// Counts of each reason since the start.
#[derive(Debug, Default)]
pub struct Refusals([AtomicU64; RefusalReason::ALL.len()]);

impl Refusals {
    /// One more had this reason. From any thread.
    pub fn count(&self, reason: RefusalReason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many calls had this reason.
    pub fn get(&self, reason: RefusalReason) -> u64 {
        self.0[reason as usize].load(Ordering::Relaxed)
    }

    /// Returns the counts of all reasons, in the order of `RefusalReason::ALL`.
    pub fn all(&self) -> [u64; RefusalReason::ALL.len()] {
        RefusalReason::ALL.map(|reason| self.get(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_count_of_its_own() {
        let refusals = Refusals::default();
        for (times, reason) in RefusalReason::ALL.into_iter().enumerate() {
            (0..times).for_each(|_| refusals.count(reason));
        }
        assert_eq!(
            refusals.all().to_vec(),
            (0..RefusalReason::ALL.len() as u64).collect::<Vec<_>>()
        );
        let mut names = RefusalReason::ALL.map(RefusalReason::name).to_vec();
        names.dedup();
        assert!(names.is_sorted() && names.len() == RefusalReason::ALL.len());
    }
}
