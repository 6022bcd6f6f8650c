//! Callers, the idempotency keys of their calls, and the costs of a call that was measured.

use std::sync::Arc;

use reprise_base::PartitionId;
use reprise_storage::Store;
use reprise_txn::{TxnScratch, call_hash};
use reprise_wire::{KeyRef, PartitionSet};

use crate::{
    log_costs::{Choice, CostSample, MeasuredCall},
    shared::Shared,
    turn::CallContext,
};

/// The client that calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Name of the token.
    pub name: Arc<str>,
    /// Number of the name in records ([`crate::Principals`]). While it is 0, no record may be left for this caller.
    pub number: u32,
    /// Scope of the caller's idempotency keys: two callers with one scope share keys.
    pub scope: Arc<str>,
}

/// An idempotency key, and the digest of the call that was sent under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallKey<'a> {
    /// 1 to 255 bytes.
    pub key: &'a str,
    /// Digest of module, procedure and arguments as the client sent them.
    pub fingerprint: u128,
}

impl<'a> CallContext<'a> {
    #[inline]
    pub(crate) fn principal(&self) -> u32 {
        self.caller.map_or(0, |caller| caller.number)
    }

    #[inline]
    pub(crate) fn key_ref(&self) -> Option<KeyRef<'a>> {
        let (key, fingerprint) = self.key?;
        Some(KeyRef {
            key,
            scope: self.caller.map_or(&[], |caller| caller.scope.as_bytes()),
            fingerprint,
        })
    }

    pub(crate) fn call_hash(&self) -> u128 {
        let procedure = &self.module.schema.procedures[self.procedure as usize];
        call_hash(&self.module.name, &procedure.name, self.args)
    }

    /// Adds a call that these partitions committed to the costs of its procedure, if it was measured.
    #[inline]
    pub(crate) fn record_sample<'s>(
        &self,
        choice: &mut Choice,
        sample: Option<CostSample>,
        partitions: PartitionSet<'s>,
        shared: &Shared,
        frame: &'s TxnScratch,
        stores: &'s dyn Fn(PartitionId) -> Option<&'s Store>,
    ) {
        let Some(sample) = sample else { return };
        let call = MeasuredCall {
            args_bytes: self.args.len(),
            changes: frame.changes(),
            partitions,
            rows: frame.changed_rows(),
            stores,
            byte_ns: shared.logging.byte_ns(),
        };
        choice.record(&sample, &call, &*shared.clock);
    }
}
