//! The work after a batch has come back: it completes the keys, and counts the calls by procedure.

use std::time::Duration;

use reprise_base::limits::MEMORY_MAX_LIMIT;
use reprise_observe::{CallEnd, CallStage, CallSums, ProcedureMeter, RefusalReason};
use reprise_partition::{CallBatch, ReplyOutcome};
use reprise_txn::{Deployed, Failure, Module};

use crate::{key_entry::CommittedOutcome, router::Router, scoped_key::ScopedKey};

impl Router {
    /// Completes a finished batch. Its calls were encoded for `deployed`.
    pub(crate) fn on_answered(&self, deployed: &Deployed, batch: &mut CallBatch) {
        batch.times.durable_ns = self.monotonic_ns();
        self.complete_keys(batch);
        self.count_calls(deployed, batch);
    }

    /// Remembers or frees the idempotency keys of a finished part.
    fn complete_keys(&self, batch: &CallBatch) {
        for (at, key) in batch.keys() {
            let (slot, scope) = (&batch.calls[at], batch.scope());
            let key = ScopedKey { scope, key };
            if !matches!(slot.outcome, ReplyOutcome::Committed | ReplyOutcome::Unconfirmed(_)) {
                self.idempotency().release(key, &slot.outcome);
                continue;
            }
            let outcome = CommittedOutcome {
                module: slot.module,
                procedure: slot.procedure as usize,
                result: batch.result(at).into(),
                txn_id: slot.txn_id,
                lsn: slot.lsn,
                partition: batch.partition_of(at),
            };
            self.idempotency().finish(key, outcome);
        }
    }

    /// Calls of one procedure that follow each other are counted together.
    fn count_calls(&self, deployed: &Deployed, batch: &CallBatch) {
        let stripe = batch.partition.map_or(0, |partition| partition.index());
        let share_ns = nanoseconds(batch.times.running()) / batch.calls.len().max(1) as u64;
        let (queued_ns, logging_ns) = (nanoseconds(batch.times.queued()), nanoseconds(batch.times.logging()));
        let of_one = batch
            .calls
            .chunk_by(|a, b| a.procedure == b.procedure && a.module == b.module);
        for calls in of_one {
            let mut sums = CallSums::default();
            for call in calls {
                self.count_refusal(&call.outcome);
                match end_of(&call.outcome) {
                    Some(end) => sums.count(end),
                    None => continue,
                }
            }
            let ran = sums.ran();
            sums.took(CallStage::Queued, ran * queued_ns);
            sums.took(CallStage::Running, ran * share_ns);
            sums.took(CallStage::Logging, ran * logging_ns);
            if let Some(module) = deployed.module(calls[0].module) {
                self.meter(module, calls[0].procedure).add(stripe, &sums);
            }
        }
    }

    /// Counts an outcome by its reason, if it is a refusal.
    #[inline]
    pub(crate) fn count_refusal(&self, outcome: &ReplyOutcome) {
        if let Some(reason) = reason_of(outcome) {
            self.refusals().count(reason);
        }
    }

    fn meter<'m>(&self, module: &'m Module, procedure: u16) -> &'m ProcedureMeter {
        let procedure = usize::from(procedure);
        module.meters.get(procedure, || {
            let name = &module.schema.procedures[procedure].name;
            self.procedures().find(&module.name, name)
        })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the reason for which a call was refused, or the thing that the server lacked. None: it was not refused.
#[inline]
fn reason_of(outcome: &ReplyOutcome) -> Option<RefusalReason> {
    Some(match outcome {
        ReplyOutcome::Committed | ReplyOutcome::Waiting | ReplyOutcome::Superseded => return None,
        ReplyOutcome::Failed(failure) => match &**failure {
            Failure::Limit { limit, .. } if limit == MEMORY_MAX_LIMIT => RefusalReason::MemoryExhausted,
            _ => return None,
        },
        ReplyOutcome::LogUnavailable(_) => RefusalReason::LogUnavailable,
        ReplyOutcome::StandbyUnavailable(_) => RefusalReason::StandbyUnavailable,
        ReplyOutcome::LeaseLost(_) => RefusalReason::LeaseLost,
        ReplyOutcome::OutcomeUnknown(_) | ReplyOutcome::Unconfirmed(_) => RefusalReason::OutcomeUnknown,
        ReplyOutcome::ReadOnly(_) => RefusalReason::ReadOnly,
        ReplyOutcome::NotPrimary(_) => RefusalReason::NotPrimary,
        ReplyOutcome::Overloaded { .. } => RefusalReason::Overloaded,
        ReplyOutcome::IdempotencyConflict => RefusalReason::IdempotencyConflict,
        ReplyOutcome::IdempotencyFull => RefusalReason::MemoryExhausted,
        ReplyOutcome::Quarantined(_) => RefusalReason::Quarantined,
        ReplyOutcome::TooStale(_) => RefusalReason::TooStale,
        ReplyOutcome::Unavailable(_) => RefusalReason::Unavailable,
    })
}

/// Returns the end of a call; none if the call is submitted again, and counts then.
#[inline]
fn end_of(outcome: &ReplyOutcome) -> Option<CallEnd> {
    match outcome {
        ReplyOutcome::Committed | ReplyOutcome::Unconfirmed(_) => Some(CallEnd::Committed),
        ReplyOutcome::Failed(failure) => Some(match **failure {
            Failure::Aborted { .. } => CallEnd::Aborted,
            Failure::Limit { .. } => CallEnd::Limit,
            Failure::Trapped { .. } => CallEnd::Trapped,
            Failure::Ended(_) => CallEnd::Ended,
        }),
        ReplyOutcome::Waiting | ReplyOutcome::Superseded => None,
        _ => Some(CallEnd::Refused),
    }
}
