//! Replies -> lines.

use reprise_api::{Problem, U64};
use reprise_router::{BatchBuilder, ReplyOutcome};
use serde::Serialize;

use super::line::{Chunk, LineParser, Slot, SlotState};
use crate::{
    calls::superseded_too_often,
    limits::SUPERSEDED_RETRIES_MAX,
    refusal::{Refusal, problem_of_outcome},
    state::AppState,
    submit::{engine_gone, submit},
};

/// What a line says of a call that did not commit, beside its id.
#[derive(Serialize)]
struct Failed<'a> {
    problem: &'a Problem,
    #[serde(skip_serializing_if = "Option::is_none")]
    txn_id: Option<U64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lsn: Option<U64>,
}

impl Chunk {
    /// Calls whose module was replaced on their way are encoded for its new version and submitted again.
    pub async fn repeat_superseded(&mut self, state: &AppState, may_write: bool) {
        for round in 1..=SUPERSEDED_RETRIES_MAX as u16 {
            let again: Vec<_> = (0..self.slots.len())
                .filter(|at| self.is_superseded(&self.slots[*at]))
                .collect();
            if again.is_empty() {
                return;
            }
            let mut batch = BatchBuilder::new(state.router.deployed(), &state.router);
            let mut parser = LineParser::default();
            for at in again {
                let line = self.slots[at].line.clone();
                let (_, slot_state) = self.parse(line, &mut batch, &mut parser, may_write, round);
                self.slots[at].state = slot_state;
            }
            if batch.is_empty() {
                return;
            }
            match submit(&state.router, batch, None).await {
                Ok(reply) => self.replies.push(reply),
                Err(_) => return self.engine_gone(),
            }
        }
    }

    fn is_superseded(&self, slot: &Slot) -> bool {
        match slot.state {
            SlotState::Called { round, index, .. } => {
                let reply = self
                    .replies
                    .get(round as usize)
                    .map(|reply| reply.get(index as usize));
                reply.is_some_and(|reply| *reply.outcome == ReplyOutcome::Superseded)
            }
            SlotState::Refused(_) => false,
        }
    }

    /// Answers for a round whose reply will never come.
    pub fn engine_gone(&mut self) {
        let rounds = self.replies.len();
        for slot in &mut self.slots {
            if matches!(slot.state, SlotState::Called { round, .. } if round as usize >= rounds) {
                slot.state = SlotState::Refused(engine_gone().problem);
            }
        }
    }

    pub fn write_answers(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.slots.len() * 128);
        for slot in &self.slots {
            out.push(b'{');
            if !slot.id.is_empty() {
                out.extend_from_slice(b"\"id\":");
                out.extend_from_slice(&self.text[slot.id.start as usize..slot.id.end as usize]);
                out.push(b',');
            }
            self.write_outcome(slot, &mut out);
            out.extend_from_slice(b"}\n");
        }
        out
    }

    fn write_outcome(&self, slot: &Slot, out: &mut Vec<u8>) {
        let (target, round, index) = match &slot.state {
            SlotState::Refused(problem) => return write_problem(problem, None, out),
            SlotState::Called {
                target,
                round,
                index,
            } => (*target, *round, *index),
        };
        let reply = self.replies[round as usize].get(index as usize);
        let ids = (reply.txn_id.0 != 0).then_some((U64(reply.txn_id.0), U64(reply.lsn.0)));
        if *reply.outcome == ReplyOutcome::Superseded {
            return write_problem(&superseded_too_often().problem, None, out);
        }
        if let Some(problem) = problem_of_outcome(reply.outcome) {
            return write_problem(&problem, ids, out);
        }
        let before = out.len();
        if !self.targets[target as usize].write_answer(&reply, out) {
            out.truncate(before);
            let refusal = Refusal::internal("the stored result is not of the procedure's type");
            return write_problem(&refusal.problem, ids, out);
        }
        if reply.replayed {
            out.extend_from_slice(b",\"replayed\":true");
        }
    }
}

/// Writes members without the braces around them.
fn write_problem(problem: &Problem, ids: Option<(U64, U64)>, out: &mut Vec<u8>) {
    let (txn_id, lsn) = (ids.map(|ids| ids.0), ids.map(|ids| ids.1));
    let failed = Failed {
        problem,
        txn_id,
        lsn,
    };
    let text = serde_json::to_vec(&failed).expect("a problem serializes");
    out.extend_from_slice(&text[1..text.len() - 1]);
}
