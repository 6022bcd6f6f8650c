//! Replies -> lines, or items.

use std::{borrow::Cow, sync::Arc};

use reprise_api::{Problem, U64};
use reprise_router::{BatchBuilder, CallReply, ReplyOutcome};
use serde::Serialize;

use super::line::{Chunk, LineParser, Slot, SlotState};
use crate::{
    calls::superseded_too_often,
    codec::{Cbor, Format, Packer},
    limits::SUPERSEDED_RETRIES_MAX,
    refusal::{Refusal, problem_of_reply},
    state::AppState,
    submit::{Target, engine_gone, submit},
};

/// What a line says of a call that did not commit, beside its id.
#[derive(Serialize)]
struct Shown<'a> {
    problem: &'a Problem,
    #[serde(skip_serializing_if = "Option::is_none")]
    txn_id: Option<U64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lsn: Option<U64>,
}

impl Chunk {
    /// Calls whose module was replaced on their way are encoded for its new version and submitted again.
    pub async fn repeat_superseded(&mut self, state: &AppState, may_write: bool, scope: Option<Arc<str>>) {
        for round in 1..=SUPERSEDED_RETRIES_MAX as u16 {
            let again: Vec<_> = (0..self.slots.len())
                .filter(|at| self.is_superseded(&self.slots[*at]))
                .collect();
            if again.is_empty() {
                return;
            }
            let mut batch = BatchBuilder::new(state.router.deployed(), &state.router);
            batch.set_scope(scope.clone());
            batch.set_deadline(self.deadline_ns);
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
                let reply = self.replies.get(round as usize).map(|reply| reply.get(index as usize));
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

    pub fn has_superseded(&self) -> bool {
        self.slots.iter().any(|slot| self.is_superseded(slot))
    }

    /// The longest that all answers together can be as text; 0 where no result is long.
    pub fn text_bytes_max(&self) -> u64 {
        if self.has_small_results() {
            return 0;
        }
        let bytes = self.slots.iter().map(|slot| match self.outcome(slot) {
            Ok((target, reply)) => target.text_bytes_max(&reply),
            Err(_) => 0,
        });
        bytes.fold(0, u64::saturating_add)
    }

    /// How many of the calls did not commit.
    pub fn write_answers(&self, format: Format, out: &mut Vec<u8>) -> usize {
        out.reserve(self.slots.len() * 128);
        let mut committed = 0;
        for slot in &self.slots {
            let is_committed = match format {
                Format::Json => self.write_json(slot, out),
                Format::Cbor => self.write_cbor(slot, out),
            };
            committed += is_committed as usize;
        }
        self.slots.len() - committed
    }

    /// True for a committed call.
    fn write_json(&self, slot: &Slot, out: &mut Vec<u8>) -> bool {
        out.push(b'{');
        if !slot.id.is_empty() {
            let id = &self.text[slot.id.start as usize..slot.id.end as usize];
            out.extend_from_slice(b"\"id\":");
            match self.format {
                Format::Json => out.extend_from_slice(id),
                Format::Cbor => Cbor::new(id).write_json(out),
            }
            out.push(b',');
        }
        let before = out.len();
        let failure = match self.outcome(slot) {
            Ok((target, reply)) => {
                if target.write_answer(&reply, out) {
                    let end: &[u8] = match reply.replayed {
                        true => b",\"replayed\":true}\n",
                        false => b"}\n",
                    };
                    out.extend_from_slice(end);
                    return true;
                }
                not_of_its_type(&reply)
            }
            Err(failure) => failure,
        };
        out.truncate(before);
        let text = serde_json::to_vec(&failure.shown()).expect("a problem serializes");
        out.extend_from_slice(&text[1..]);
        out.push(b'\n');
        false
    }

    fn write_cbor(&self, slot: &Slot, out: &mut Vec<u8>) -> bool {
        let before = out.len();
        let has_id = !slot.id.is_empty();
        let failure = match self.outcome(slot) {
            Ok((target, reply)) => {
                let members = 4 + has_id as u64 + reply.replayed as u64;
                self.begin_cbor(slot, members, out);
                if target.pack_answer(&reply, out) {
                    if reply.replayed {
                        let mut packer = Packer::new(out);
                        packer.text("replayed");
                        packer.bool(true);
                    }
                    return true;
                }
                not_of_its_type(&reply)
            }
            Err(failure) => failure,
        };
        out.truncate(before);
        let members = 1 + has_id as u64 + 2 * failure.ids.is_some() as u64;
        self.begin_cbor(slot, members, out);
        let mut packer = Packer::new(out);
        let problem = serde_json::to_value(&failure.problem).expect("a problem serializes");
        packer.text("problem");
        packer.json(&problem);
        if let Some((txn_id, lsn)) = failure.ids {
            packer.text("txn_id");
            packer.unsigned(txn_id);
            packer.text("lsn");
            packer.unsigned(lsn);
        }
        false
    }

    fn begin_cbor(&self, slot: &Slot, members: u64, out: &mut Vec<u8>) {
        let mut packer = Packer::new(out);
        packer.map(members);
        if slot.id.is_empty() {
            return;
        }
        let id = &self.text[slot.id.start as usize..slot.id.end as usize];
        packer.text("id");
        match self.format {
            Format::Cbor => packer.item(id),
            // What our reader takes and serde_json does not is a number beyond a float's range.
            Format::Json => packer.json(&serde_json::from_slice(id).unwrap_or_default()),
        }
    }

    /// What a slot's answer tells: a committed call, or why there is none.
    fn outcome<'c>(&'c self, slot: &'c Slot) -> Result<(&'c Target, CallReply<'c>), Box<Failure<'c>>> {
        let (target, round, index) = match &slot.state {
            SlotState::Refused(problem) => {
                return Err(Failure::without_txn(Cow::Borrowed(problem)));
            }
            SlotState::Called { target, round, index } => (*target, *round, *index),
        };
        let reply = self.replies[round as usize].get(index as usize);
        if *reply.outcome == ReplyOutcome::Superseded {
            let problem = *superseded_too_often().problem;
            return Err(Failure::without_txn(Cow::Owned(problem)));
        }
        match problem_of_reply(&reply) {
            Some(problem) => Err(Box::new(Failure {
                problem: Cow::Owned(problem),
                ids: ids_of(&reply),
            })),
            None => Ok((&self.targets[target as usize], reply)),
        }
    }
}

fn ids_of(reply: &CallReply<'_>) -> Option<(u64, u64)> {
    (reply.txn_id.0 != 0).then_some((reply.txn_id.0, reply.lsn.0))
}

fn not_of_its_type(reply: &CallReply<'_>) -> Box<Failure<'static>> {
    let refusal = Refusal::internal("the stored result is not of the procedure's type");
    Box::new(Failure {
        problem: Cow::Owned(*refusal.problem),
        ids: ids_of(reply),
    })
}

/// Why a call did not commit, and under which ids.
struct Failure<'c> {
    problem: Cow<'c, Problem>,
    ids: Option<(u64, u64)>,
}

impl<'c> Failure<'c> {
    fn without_txn(problem: Cow<'c, Problem>) -> Box<Self> {
        Box::new(Self { problem, ids: None })
    }

    fn shown(&self) -> Shown<'_> {
        Shown {
            problem: &self.problem,
            txn_id: self.ids.map(|ids| U64(ids.0)),
            lsn: self.ids.map(|ids| U64(ids.1)),
        }
    }
}
