//! Replies -> lines, or items.

use std::{borrow::Cow, ops::Range};

use reprise_api::{Problem, U64};
use reprise_codec::{Cbor, Format, JsonSource, Packer};
use reprise_router::CallReply;
use serde::Serialize;

use super::line::Chunk;
use crate::{
    refusal::{Refusal, problem_of_reply},
    submission,
    target::Target,
};

/// The facts in the line of a call that did not commit, beside its id.
#[derive(Serialize)]
struct FailureFacts<'a> {
    problem: &'a Problem,
    #[serde(skip_serializing_if = "Option::is_none")]
    txn_id: Option<U64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lsn: Option<U64>,
}

/// Ids of a chunk that go without room for long texts.
const SHORT_IDS_BYTES: u64 = 64 << 10;
/// Bytes of text that a byte of an id may become at most. A float of 3 bytes in CBOR becomes up to 21 digits.
const ID_TEXT_PER_BYTE: u64 = 8;

/// A call, and where its id lies.
type LineSlot = submission::Slot<Range<u32>>;

impl Chunk {
    /// Returns the longest text of all answers together; 0 if no result is long and all ids are short.
    pub fn text_bytes_max(&self) -> u64 {
        let slots = self.calls.slots();
        let ids: u64 = slots.iter().map(|slot| slot.framing.len() as u64).sum();
        if self.calls.has_small_results() && ids <= SHORT_IDS_BYTES {
            return 0;
        }
        let bytes = slots.iter().map(|slot| self.calls.text_bytes_max(slot));
        bytes.fold(ids * ID_TEXT_PER_BYTE, u64::saturating_add)
    }

    /// How many of the calls did not commit.
    pub fn write_answers(&self, format: Format, out: &mut Vec<u8>) -> usize {
        let slots = self.calls.slots();
        out.reserve(slots.len() * 128);
        let mut committed = 0;
        for slot in slots {
            let is_committed = match format {
                Format::Json => self.write_json(slot, out),
                Format::Cbor => self.write_cbor(slot, out),
            };
            committed += is_committed as usize;
        }
        slots.len() - committed
    }

    /// True for a committed call.
    fn write_json(&self, slot: &LineSlot, out: &mut Vec<u8>) -> bool {
        out.push(b'{');
        if !slot.framing.is_empty() {
            let id = &self.text[slot.framing.start as usize..slot.framing.end as usize];
            out.extend_from_slice(b"\"id\":");
            match self.format {
                Format::Json => out.extend_from_slice(id),
                Format::Cbor => Cbor::new(id).write_json(out).expect("checked with its line"),
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

    fn write_cbor(&self, slot: &LineSlot, out: &mut Vec<u8>) -> bool {
        let before = out.len();
        let has_id = !slot.framing.is_empty();
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

    fn begin_cbor(&self, slot: &LineSlot, members: u64, out: &mut Vec<u8>) {
        let mut packer = Packer::new(out);
        packer.map(members);
        if slot.framing.is_empty() {
            return;
        }
        let id = &self.text[slot.framing.start as usize..slot.framing.end as usize];
        packer.text("id");
        match self.format {
            Format::Cbor => packer.item(id),
            Format::Json => packer
                .document(&mut JsonSource::new(id))
                .expect("the id was read with its line"),
        }
    }

    /// Returns a slot's committed call, or the reason why there is none.
    fn outcome<'c>(&'c self, slot: &'c LineSlot) -> Result<(&'c Target, CallReply<'c>), Box<CallFailure<'c>>> {
        let (target, reply) = match self.calls.answer(slot) {
            Ok(answer) => answer,
            Err(refusal) => return Err(CallFailure::without_txn(&refusal.problem)),
        };
        match problem_of_reply(&reply) {
            Some(problem) => Err(Box::new(CallFailure {
                problem: Cow::Owned(problem),
                ids: ids_of(&reply),
            })),
            None => Ok((target, reply)),
        }
    }
}

fn ids_of(reply: &CallReply<'_>) -> Option<(u64, u64)> {
    (reply.txn_id.0 != 0).then_some((reply.txn_id.0, reply.lsn.0))
}

fn not_of_its_type(reply: &CallReply<'_>) -> Box<CallFailure<'static>> {
    let refusal = Refusal::internal("the stored result is not of the procedure's type");
    Box::new(CallFailure {
        problem: Cow::Owned(*refusal.problem),
        ids: ids_of(reply),
    })
}

/// Why a call did not commit, and under which ids.
struct CallFailure<'c> {
    problem: Cow<'c, Problem>,
    ids: Option<(u64, u64)>,
}

impl<'c> CallFailure<'c> {
    fn without_txn(problem: &'c Problem) -> Box<Self> {
        let problem = Cow::Borrowed(problem);
        Box::new(Self { problem, ids: None })
    }

    fn shown(&self) -> FailureFacts<'_> {
        FailureFacts {
            problem: &self.problem,
            txn_id: self.ids.map(|ids| U64(ids.0)),
            lsn: self.ids.map(|ids| U64(ids.1)),
        }
    }
}
