//! Calls that were taken together, from their requests to their answers.

use std::{
    ops::Range,
    sync::Arc,
    task::{Context, Poll},
};

use reprise_codec::Format;
use reprise_router::{CallTerms, Deployed, Stream};

use super::{answer::Answers, take::TakeOutcome};
use crate::{
    call_text::CallText,
    calls::{Call, Terms},
    limits::{PIPELINE_ANSWER_BYTES, PIPELINE_LARGE_CALL},
    refusal::Refusal,
    reply::BatchResources,
    safety::AskedSafety,
    state::AppState,
    submission::Submission,
    texts::WaitForRoom,
    trace::CallTrace,
};

pub struct CallRun {
    /// The requests.
    pub text: Vec<u8>,
    calls: Submission<Terms>,
    /// Bytes of the requests that were taken.
    bytes: usize,
    /// Bytes that the pipeline counts for it.
    pub counted_bytes: usize,
    pub weight: usize,
    /// Its call travels with those of other connections.
    is_coalesced: bool,
    /// Calls answered.
    done: usize,
    /// The next call's answer is long, and waits for its room.
    room: Option<WaitForRoom>,
}

/// How far the answers to a run got.
pub enum AnswerProgress {
    Done,
    /// The finished answers must be written first.
    Full,
    /// The engine has one to give.
    Waits,
}

impl Terms {
    /// Returns the terms of a call that is refused at once.
    fn refused(trace: Option<Box<CallTrace>>) -> Self {
        Self {
            key: None,
            caller: None,
            timeout: None,
            safety: None,
            answer: Format::Json,
            trace,
        }
    }

    #[inline]
    fn of_call(&self, state: &AppState) -> CallTerms<'_> {
        CallTerms {
            key: self.key.as_deref(),
            caller: self.caller.as_ref(),
            deadline_ns: self.timeout.map(|timeout| state.router.deadline_in(timeout)),
        }
    }
}

impl CallRun {
    pub fn in_order(order: Stream) -> Self {
        Self {
            text: Vec::new(),
            calls: Submission::in_order(order),
            bytes: 0,
            counted_bytes: 0,
            weight: 0,
            is_coalesced: false,
            done: 0,
            room: None,
        }
    }

    /// Makes it as new, for the calls that come next, and returns the memory of its requests.
    pub fn clear(&mut self) -> Vec<u8> {
        self.calls.clear();
        (self.bytes, self.counted_bytes, self.weight, self.done) = (0, 0, 0, 0);
        (self.is_coalesced, self.room) = (false, None);
        std::mem::take(&mut self.text)
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of its requests and of its refusals.
    pub fn held_bytes(&self) -> usize {
        self.bytes + self.calls.refused_bytes()
    }

    pub fn is_empty(&self) -> bool {
        self.calls.slots().is_empty()
    }

    pub fn is_coalesced(&self) -> bool {
        self.is_coalesced
    }

    /// True if its call asks for more safety than the server gives to all: no other goes with it.
    pub fn asks_safety(&self) -> bool {
        self.calls.asks_safety()
    }

    /// Takes a request, whose body lies at `body` of it and ends it.
    pub fn push(
        &mut self,
        state: &AppState,
        body: Range<usize>,
        call: &Call,
        key: Option<Box<str>>,
        trace: impl FnOnce() -> Option<Box<CallTrace>>,
    ) -> TakeOutcome {
        match AskedSafety::of(state, call.terms.safety, call.terms.timeout) {
            Ok(None) => {}
            Ok(Some(_)) if !self.is_empty() => return TakeOutcome::Later,
            Ok(asked) => self.calls.ask_safety(asked),
            Err(refusal) => {
                self.refuse(body.end, refusal, trace());
                return TakeOutcome::Call;
            }
        }
        self.weight += match call.target.has_small_result {
            true => 1,
            false => PIPELINE_LARGE_CALL,
        };
        let target = self.calls.number_of(&call.target);
        let text = CallText {
            args: (self.bytes + body.start) as u32..(self.bytes + body.end) as u32,
            format: call.format,
            may_write: call.may_write,
        };
        let terms = Terms {
            key,
            trace: trace(),
            ..call.terms.clone()
        };
        self.calls.add(target, 0, text, terms);
        self.bytes += body.end;
        TakeOutcome::Call
    }

    /// Takes a request of this many bytes that is refused.
    pub fn refuse(&mut self, bytes: usize, refusal: Refusal, trace: Option<Box<CallTrace>>) {
        self.weight += 1;
        self.bytes += bytes;
        self.calls.refuse(refusal, Terms::refused(trace));
    }

    /// Hands the calls to the engine. `may_coalesce`: a single one may go with those of other connections.
    pub fn submit(&mut self, state: &AppState, deployed: &Arc<Deployed>, may_coalesce: bool) {
        let (calls, text) = (&mut self.calls, &self.text);
        if may_coalesce && calls.submit_coalesced(state, deployed, text, |terms| terms.of_call(state)) {
            self.is_coalesced = true;
            return;
        }
        let mut batch = calls.batch(state, deployed.clone());
        calls.encode_all(&mut batch, text, |terms| terms.of_call(state));
        calls.submit(state, batch, BatchResources::default());
    }

    /// Writes the answers that are there. `is_last`: nothing is answered after this run.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        state: &AppState,
        answers: &mut Answers<'_>,
        is_last: bool,
    ) -> AnswerProgress {
        let are_all_here = self.calls.poll(cx, state, &self.text).is_ready();
        while let Some(slot) = self.calls.slots().get(self.done) {
            if answers.out.len() >= PIPELINE_ANSWER_BYTES {
                return AnswerProgress::Full;
            }
            if !are_all_here && !slot.is_refused() {
                return AnswerProgress::Waits;
            }
            if let Some(progress) = self.poll_room(cx, state, answers) {
                return progress;
            }
            let closes = is_last && self.done + 1 == self.calls.slots().len();
            let slot = &self.calls.slots()[self.done];
            let trace = slot.framing.trace.as_deref();
            if let Some(span) = trace.and_then(|trace| trace.span.as_ref())
                && let Some(times) = self.calls.times(slot)
            {
                span.ran(times);
            }
            if self.calls.asks_safety() {
                answers.safety = Some(self.calls.reached(state));
            }
            match self.calls.answer(slot) {
                Ok((target, reply)) => {
                    let status = answers.push_reply(target, &reply, slot.framing.answer, trace, closes);
                    state.count_answer(status, None);
                }
                Err(refusal) => {
                    answers.push_refusal(refusal, trace, closes);
                    state.count_refusal(refusal);
                }
            }
            self.done += 1;
        }
        AnswerProgress::Done
    }

    /// Takes room for the next call's answer, if it needs any. Before it waits, it writes the answers that it has, so that no task waits
    /// while it holds room.
    fn poll_room(
        &mut self,
        cx: &mut Context<'_>,
        state: &AppState,
        answers: &mut Answers<'_>,
    ) -> Option<AnswerProgress> {
        if self.room.is_none() {
            let slot = &self.calls.slots()[self.done];
            self.room = Some(Box::pin(state.texts.asked(self.calls.text_bytes_max(slot))?));
        }
        if !answers.out.is_empty() {
            return Some(AnswerProgress::Full);
        }
        let room = self.room.as_mut().expect("made above").as_mut();
        let Poll::Ready(room) = room.poll(cx) else {
            return Some(AnswerProgress::Waits);
        };
        self.room = None;
        *answers.room = Some(room);
        None
    }
}
