//! Answers to clients: each one goes into the ledger.

use reprise_router::{CallReply, ReplyOutcome};

use super::{Life, Run};
use crate::ledger::Attempt;

/// Turns of all threads within which every call is answered.
const QUIESCE_TURNS_MAX: u32 = 200_000;

impl Run {
    /// Lets time go on until every call is answered.
    pub(super) fn quiesce(&mut self, world: &Life) -> Result<(), String> {
        for _ in 0..QUIESCE_TURNS_MAX {
            if self.ledger.flying() == 0 {
                return Ok(());
            }
            world.stepper.help();
            self.settle(world)?;
        }
        Err(format!("{} calls are never answered", self.ledger.flying()))
    }

    pub(super) fn settle(&mut self, world: &Life) -> Result<(), String> {
        for arrived in world.take_arrived() {
            for (at, attempt) in arrived.attempts.iter().enumerate() {
                let mut reply = arrived.reply.get(at);
                let mut tampering = std::mem::take(&mut self.tampering);
                let op = &self.ledger.calls[attempt.call].op;
                let mutant = self.options.mutant;
                let is_told = mutant.is_none_or(|mutant| tampering.tamper(mutant, op, &mut reply));
                if is_told {
                    self.settle_one(world, *attempt, &reply, arrived.ops)?;
                }
                self.tampering = tampering;
            }
        }
        Ok(())
    }

    pub(super) fn settle_one(
        &mut self,
        world: &Life,
        attempt: Attempt,
        reply: &CallReply<'_>,
        ops: usize,
    ) -> Result<(), String> {
        self.note(|| {
            format!(
                "{attempt:?} after {ops} operations: {:?} {}",
                reply.outcome, reply.txn_id
            )
        });
        self.stats.refused_calls += matches!(
            reply.outcome,
            ReplyOutcome::LogUnavailable(_) | ReplyOutcome::OutcomeUnknown(_)
        ) as u64;
        let durable = world.router().status().durable_lsn;
        let is_write = !self.ledger.calls[attempt.call].op.is_read();
        if *reply.outcome == ReplyOutcome::Committed && is_write && reply.lsn >= durable {
            return Err(format!(
                "{attempt:?} was acknowledged at {}, durable is {durable}",
                reply.lsn
            ));
        }
        self.ledger.answered(attempt, reply, ops)
    }
}
