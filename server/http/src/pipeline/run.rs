//! Calls that were taken together, from their requests to their answers.

use std::{
    future::Future,
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    body::Body,
    extract::Request,
    http::{Method, Response},
};
use http_body_util::BodyExt;
use reprise_router::{BatchBuilder, BatchReply, Bound, Deployed, ReplyOutcome, Stream};
use tokio::sync::oneshot;

use super::{
    answer::Answers,
    request::{Seen, recognise},
};
use crate::{
    calls::{self, encode_call},
    coalescer::{Coalescers, PendingCall, SharedReply},
    codec::Format,
    deadlines::Deadlines,
    limits::{PIPELINE_ANSWER_BYTES, PIPELINE_LARGE_CALL},
    refusal::Refusal,
    state::AppState,
    submit::{Target, engine_gone, submit},
    texts::Room,
};

#[derive(Default)]
pub struct Run {
    /// The requests.
    pub text: Vec<u8>,
    pub slots: Vec<Slot>,
    pub weight: usize,
    reply: Reply,
    deadlines: Deadlines,
    /// Indices of calls whose deadline passed before they began.
    expired: Vec<usize>,
    /// Slots answered.
    done: usize,
    /// The next slot's call, made once more: its module was replaced.
    again: Option<Again>,
    /// The next slot's answer is long, and waits for its room.
    room: Option<WaitForRoom>,
}

type WaitForRoom = Pin<Box<dyn Future<Output = Room> + Send>>;

type Again = Pin<Box<dyn Future<Output = Response<Vec<u8>>> + Send>>;

#[derive(Default)]
enum Reply {
    Awaited(oneshot::Receiver<BatchReply>),
    /// The call travels with those of other connections.
    Riding(PendingCall),
    Own(BatchReply),
    Shared(SharedReply),
    /// Nothing was submitted, or the engine stopped.
    #[default]
    None,
}

pub struct Slot {
    /// In `Run::text`.
    request: Range<u32>,
    state: SlotState,
}

pub enum SlotState {
    Called {
        /// In the reply, once submitted.
        index: usize,
        /// In `Run::text`.
        body: Range<u32>,
        call: Call,
    },
    Refused(Box<Refusal>),
}

/// What a head asks for.
#[derive(Clone)]
pub struct Call {
    pub target: Target,
    pub key: Option<Box<str>>,
    /// Within which the key counts.
    pub scope: Option<Arc<str>>,
    /// For which the client waits.
    pub timeout: Option<Duration>,
    /// Of the arguments.
    pub format: Format,
    pub answer: Format,
}

/// How far the answers to a run got.
pub enum Progress {
    Done,
    /// So many answers are to be written first.
    Full,
    /// The engine has one to give.
    Waits,
}

impl SlotState {
    /// A call whose request begins at `at` and whose body lies at `body` of that.
    pub fn called(at: usize, body: Range<usize>, call: Call) -> Self {
        Self::Called {
            index: 0,
            body: (at + body.start) as u32..(at + body.end) as u32,
            call,
        }
    }
}

impl Run {
    pub fn bytes(&self) -> usize {
        self.slots.last().map_or(0, |slot| slot.request.end as usize)
    }

    pub fn is_riding(&self) -> bool {
        matches!(self.reply, Reply::Riding(_))
    }

    pub fn push(&mut self, bytes: usize, state: SlotState) {
        self.weight += match &state {
            SlotState::Called { call, .. } if !call.target.has_small_result => PIPELINE_LARGE_CALL,
            _ => 1,
        };
        let begin = self.bytes();
        let request = begin as u32..(begin + bytes) as u32;
        self.slots.push(Slot { request, state });
    }

    /// Hands the calls to the engine. `may_ride`: a single one may go with those of other connections.
    pub fn submit(&mut self, state: &AppState, deployed: &Arc<Deployed>, order: Stream, may_ride: bool) {
        if may_ride && self.slots.len() == 1 && self.pending_call(state, deployed) {
            return;
        }
        let batch = BatchBuilder::new(deployed.clone(), &state.router);
        let mut batch = batch.in_stream(order);
        for slot in &mut self.slots {
            let SlotState::Called { index, body, call } = &mut slot.state else {
                continue;
            };
            let (target, key) = (&call.target, call.key.as_deref());
            if key.is_some() {
                batch.set_scope(call.scope.clone());
            }
            let body = &self.text[body.start as usize..body.end as usize];
            let encode = |out: &mut Vec<u8>| encode_call(target, call.format, body, out);
            batch.set_deadline(call.timeout.map(|timeout| state.router.deadline_in(timeout)));
            match batch.push(&target.module, target.procedure, key, encode) {
                Ok(at) => *index = at,
                Err(error) => slot.state = SlotState::Refused(Box::new(error.into())),
            }
        }
        if !batch.is_empty() {
            self.deadlines = Deadlines::of(&mut batch);
            self.reply = Reply::Awaited(submit(&state.router, batch, None));
        }
    }

    /// Sends the only call with a coalescer, or says what is wrong with it. False: it has to go alone.
    fn pending_call(&mut self, state: &AppState, deployed: &Arc<Deployed>) -> bool {
        let slot = &mut self.slots[0];
        let SlotState::Called { index, body, call } = &mut slot.state else {
            return true;
        };
        let target = &call.target;
        if call.key.is_some() || call.timeout.is_some() || !target.has_small_result {
            return false;
        }
        let mut args = Vec::new();
        let body = &self.text[body.start as usize..body.end as usize];
        if let Err(error) = encode_call(target, call.format, body, &mut args) {
            slot.state = SlotState::Refused(Box::new(error.into()));
            return true;
        }
        let partitions = state.router.partitions_count();
        let bound = target.module.route(target.procedure, &args, partitions);
        let Ok(Bound::One(partition)) = bound else {
            return false;
        };
        let (at, pending_call) = Coalescers::join(state, deployed, partition, target, &args);
        *index = at;
        self.reply = Reply::Riding(pending_call);
        true
    }

    /// Writes the answers that are there. `is_last`: nothing is answered after this run.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        state: &AppState,
        answers: &mut Answers<'_>,
        is_last: bool,
    ) -> Progress {
        let here = match &mut self.reply {
            Reply::Awaited(reply) => Pin::new(reply).poll(cx).map_ok(Reply::Own),
            Reply::Riding(pending_call) => Pin::new(pending_call).poll(cx).map_ok(Reply::Shared),
            here => Poll::Ready(Ok(std::mem::take(here))),
        };
        match here {
            Poll::Ready(reply) => self.reply = reply.unwrap_or(Reply::None),
            Poll::Pending => return self.poll_deadlines(cx, state, answers, is_last),
        }
        while self.done < self.slots.len() {
            if answers.out.len() >= PIPELINE_ANSWER_BYTES {
                return Progress::Full;
            }
            if let Some(progress) = self.poll_room(cx, state, answers) {
                return progress;
            }
            let closes = is_last && self.done + 1 == self.slots.len();
            let Poll::Ready(status) = self.poll_slot(cx, state, answers, closes) else {
                return Progress::Waits;
            };
            state.counts.answered(status);
            self.done += 1;
        }
        Progress::Done
    }

    /// While the reply is awaited: answers the next calls as far as they never begin.
    fn poll_deadlines(
        &mut self,
        cx: &mut Context<'_>,
        state: &AppState,
        answers: &mut Answers<'_>,
        is_last: bool,
    ) -> Progress {
        while let Poll::Ready(expired) = self.deadlines.poll(cx, &state.router) {
            self.expired.extend(expired);
        }
        while let Some(slot) = self.slots.get(self.done) {
            if answers.out.len() >= PIPELINE_ANSWER_BYTES {
                return Progress::Full;
            }
            if !self.has_expired(slot) {
                return Progress::Waits;
            }
            let closes = is_last && self.done + 1 == self.slots.len();
            let status = answers.push_answer(Refusal::deadline_exceeded().answer(), closes);
            state.counts.answered(status);
            self.done += 1;
        }
        Progress::Done
    }

    fn has_expired(&self, slot: &Slot) -> bool {
        matches!(&slot.state, SlotState::Called { index, .. } if self.expired.contains(index))
    }

    /// Room for the next slot's answer, where it needs any: before it is waited for, what is there is written, so that nobody
    /// waits who holds some.
    fn poll_room(&mut self, cx: &mut Context<'_>, state: &AppState, answers: &mut Answers<'_>) -> Option<Progress> {
        if self.room.is_none() {
            let bytes_max = self.text_bytes_max();
            self.room = Some(Box::pin(state.texts.asked(bytes_max)?));
        }
        if !answers.out.is_empty() {
            return Some(Progress::Full);
        }
        let room = self.room.as_mut().expect("made above").as_mut();
        let Poll::Ready(room) = room.poll(cx) else {
            return Some(Progress::Waits);
        };
        self.room = None;
        *answers.room = Some(room);
        None
    }

    /// Of the next slot.
    fn text_bytes_max(&self) -> u64 {
        let SlotState::Called { index, call, .. } = &self.slots[self.done].state else {
            return 0;
        };
        match &self.reply {
            // Those that ride have little results.
            Reply::Own(reply) if !call.target.has_small_result => call.target.text_bytes_max(&reply.get(*index)),
            _ => 0,
        }
    }

    /// Writes the next slot's answer; its status.
    fn poll_slot(
        &mut self,
        cx: &mut Context<'_>,
        state: &AppState,
        answers: &mut Answers<'_>,
        closes: bool,
    ) -> Poll<u16> {
        if let Some(again) = &mut self.again {
            let answer = ready!(again.as_mut().poll(cx));
            self.again = None;
            return Poll::Ready(answers.push_answer(answer, closes));
        }
        if let Some(status) = self.push_answer(answers, closes) {
            return Poll::Ready(status);
        }
        let request = &self.slots[self.done].request;
        let request = &self.text[request.start as usize..request.end as usize];
        self.again = Some(Box::pin(call_again(state.clone(), request.to_vec())));
        self.poll_slot(cx, state, answers, closes)
    }

    /// Writes the next slot's answer, or finds that its module was replaced.
    fn push_answer(&self, answers: &mut Answers<'_>, closes: bool) -> Option<u16> {
        let (index, call) = match &self.slots[self.done].state {
            SlotState::Refused(refusal) => {
                return Some(answers.push_answer(refusal.answer(), closes));
            }
            SlotState::Called { index, call, .. } => (*index, call),
        };
        let shared;
        let reply = match &self.reply {
            Reply::Own(reply) => reply,
            Reply::Shared(reply) => {
                shared = reply.lock().expect("held to look at an answer alone");
                &*shared
            }
            _ => return Some(answers.push_answer(engine_gone().answer(), closes)),
        };
        let reply = reply.get(index);
        let is_superseded = *reply.outcome == ReplyOutcome::Superseded;
        (!is_superseded).then(|| answers.push_reply(&call.target, &reply, call.answer, closes))
    }
}

/// A call whose module was replaced on its way, from its beginning.
async fn call_again(state: AppState, text: Vec<u8>) -> Response<Vec<u8>> {
    let Seen::Call(head) = recognise(&text) else {
        unreachable!("it was recognised before");
    };
    let body = Body::from(text[head.bytes..].to_vec());
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = head.path.parse().expect("a plain path");
    *request.headers_mut() = head.headers;
    let (head, body) = calls::answer(&state, request).await.into_parts();
    let body = body.collect().await.expect("an answer to a call is in memory");
    Response::from_parts(head, body.to_bytes().into())
}
