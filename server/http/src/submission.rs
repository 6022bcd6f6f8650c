//! Calls that one client sent together. They are encoded, handed to the engine, sent again if their module was replaced meanwhile, and answered by
//! index. Every way in uses this type: the ways differ in how requests come and how answers are written.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
};

use reprise_base::Safety;
use reprise_codec::{ArgsError, Format, encode_document};
use reprise_observe::RefusalReason;
use reprise_router::{BatchBuilder, CallPartitions, CallReply, CallTerms, CallTimes, Deployed, ReplyOutcome, Stream};

use crate::{
    bounded_refusal::bounded,
    call_text::{CallText, SCRATCH, encode, encode_again, superseded_too_often},
    coalescer::{Coalescers, RoutedCall},
    deadlines::Deadlines,
    limits::SUPERSEDED_RETRIES_MAX,
    refusal::Refusal,
    reply::{BatchResources, PendingReply, ReplySlot},
    safety::{AskedSafety, Confirmation},
    state::AppState,
    target::Target,
};

/// A call and what became of it. `framing` is what its way in needs to write the answer.
pub struct Slot<F> {
    text: CallText,
    state: SlotState,
    pub framing: F,
}

enum SlotState {
    Refused(Box<Refusal>),
    /// Numbers of the target and of the reply, and the index in that reply.
    Called {
        target: u16,
        round: u16,
        index: u32,
    },
}

/// Calls that travel through the engine together, in the order of their requests.
pub struct Submission<F> {
    slots: Vec<Slot<F>>,
    /// Procedures that the calls name.
    targets: Vec<Target>,
    /// Keeps the calls in order with the client's others.
    order: Option<Stream>,
    /// The reply to the calls, and those to the ones that were sent again.
    rounds: Vec<PendingReply>,
    /// Deadlines of the last round.
    deadlines: Deadlines,
    is_answered: bool,
    /// Words of its refused calls.
    refused_bytes: usize,
    /// The safety that its writes ask for beyond the server's level.
    safety: Option<Confirmation>,
}

impl<F> Default for Submission<F> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            targets: Vec::new(),
            order: None,
            rounds: Vec::new(),
            deadlines: Deadlines::default(),
            is_answered: false,
            refused_bytes: 0,
            safety: None,
        }
    }
}

impl<F> Slot<F> {
    pub fn is_refused(&self) -> bool {
        matches!(self.state, SlotState::Refused(_))
    }
}

impl<F> Submission<F> {
    pub fn in_order(order: Stream) -> Self {
        Self {
            order: Some(order),
            ..Self::default()
        }
    }

    /// Makes it as new, with memory for one call.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.slots.shrink_to(1);
        self.targets.clear();
        self.targets.shrink_to(1);
        self.rounds.clear();
        self.deadlines.set(Vec::new());
        self.safety = None;
        (self.is_answered, self.refused_bytes) = (false, 0);
    }

    pub fn slots(&self) -> &[Slot<F>] {
        &self.slots
    }

    /// The procedure with this number.
    pub fn target(&self, number: u16) -> &Target {
        &self.targets[number as usize]
    }

    /// Procedures that calls named, the last ones first, with their numbers.
    pub fn last_targets(&self) -> impl Iterator<Item = (u16, &Target)> {
        let targets = self.targets.iter().enumerate().rev();
        targets.map(|(number, target)| (number as u16, target))
    }

    /// The number of a procedure.
    pub fn number_of(&mut self, target: &Target) -> u16 {
        if !self.targets.last().is_some_and(|last| last.is(target)) {
            self.targets.push(target.clone());
        }
        self.targets.len() as u16 - 1
    }

    /// True if no result of a call in here can be large.
    pub fn has_small_results(&self) -> bool {
        self.targets.iter().all(|target| target.has_small_result)
    }

    /// The builder for its calls.
    pub fn batch(&self, state: &AppState, deployed: Arc<Deployed>) -> BatchBuilder {
        let batch = BatchBuilder::new(deployed, &state.router);
        match self.order {
            None => batch,
            Some(order) => batch.in_stream(order),
        }
    }

    /// Adds a call that gets this answer.
    pub fn refuse(&mut self, refusal: Refusal, framing: F) {
        let text = CallText {
            args: 0..0,
            format: Format::Json,
            may_write: false,
        };
        let state = SlotState::Refused(bounded(refusal, &mut self.refused_bytes));
        self.slots.push(Slot { text, state, framing });
    }

    /// Bytes that its refusals hold.
    pub fn refused_bytes(&self) -> usize {
        self.refused_bytes
    }

    /// Adds a call that has this index in the batch, or will have one once it is encoded.
    pub fn add(&mut self, target: u16, index: usize, text: CallText, framing: F) {
        let state = SlotState::Called {
            target,
            round: 0,
            index: index as u32,
        };
        self.slots.push(Slot { text, state, framing });
    }

    /// Encodes the calls that were added, each under its own terms.
    pub fn encode_all<'s>(
        &'s mut self,
        batch: &mut BatchBuilder,
        text: &[u8],
        terms_of: impl Fn(&'s F) -> CallTerms<'s>,
    ) {
        for slot in &mut self.slots {
            let SlotState::Called { target, index, .. } = &mut slot.state else {
                continue;
            };
            let target = &self.targets[*target as usize];
            match encode(batch, target, &slot.text, text, terms_of(&slot.framing)) {
                Ok(at) => *index = at as u32,
                Err(refusal) => slot.state = SlotState::Refused(bounded(refusal, &mut self.refused_bytes)),
            }
        }
    }

    /// Hands the calls to the engine.
    pub fn submit(&mut self, state: &AppState, mut batch: BatchBuilder, held: BatchResources) {
        if batch.is_empty() {
            return;
        }
        if self.rounds.is_empty()
            && let Some(reason) = self.lacks_safety(state)
        {
            let is_called = |slot: &&Slot<F>| matches!(slot.state, SlotState::Called { .. });
            let refused = self.slots.iter().filter(is_called);
            refused.for_each(|_| state.router.refusals().count(RefusalReason::StandbyUnavailable));
            self.refuse_all(|| Refusal::no_safety(&reason));
            return; // the batch frees the keys that it has begun
        }
        self.take_deadlines(&mut batch);
        let slot = ReplySlot::holding(held);
        self.rounds.push(slot.wait(0));
        slot.submit(&state.router, batch);
    }

    /// Watches the calls' deadlines from now on.
    fn take_deadlines(&mut self, batch: &mut BatchBuilder) {
        let deadlines = batch.take_deadlines();
        if !deadlines.is_empty() {
            self.deadlines.set(deadlines);
        }
    }

    /// Sends the only call together with those of other connections, or finds its error. False: it has to go alone. Such a call touches
    /// several partitions, its answer may be long, its key was used, or its safety level is not available.
    pub fn submit_coalesced(
        &mut self,
        state: &AppState,
        deployed: &Arc<Deployed>,
        text: &[u8],
        terms_of: impl for<'s> Fn(&'s F) -> CallTerms<'s>,
    ) -> bool {
        if self.lacks_safety(state).is_some() {
            return false;
        }
        let [slot] = &mut self.slots[..] else {
            return false;
        };
        let SlotState::Called { target, index, .. } = &mut slot.state else {
            return true;
        };
        let target = &self.targets[*target as usize];
        if !target.has_small_result {
            return false;
        }
        let terms = terms_of(&slot.framing);
        let joined = SCRATCH.with_borrow_mut(|(scratch, args)| {
            args.clear();
            let (format, sent) = (slot.text.format, slot.text.of(text));
            encode_document(format, &target.schema().params, sent, args, scratch)?;
            let partitions = state.router.partitions_count();
            let bound = target.module.route(target.procedure, args, partitions);
            let Ok(CallPartitions::One(partition)) = bound else {
                return Ok(None);
            };
            let call = RoutedCall {
                target,
                partition,
                args,
                key: target.call_key(terms.key, format, sent)?,
                terms,
            };
            Ok(Coalescers::join(state, deployed, &call))
        });
        match joined {
            Ok(None) => return false,
            Ok(Some(joined)) => {
                *index = joined.index as u32;
                self.deadlines.set(joined.deadlines);
                self.rounds.push(joined.reply);
            }
            // The key may be another call's, which had other arguments.
            Err(_) if terms.key.is_some() => return false,
            Err(error) => slot.state = SlotState::Refused(bounded(ArgsError::into(error), &mut self.refused_bytes)),
        }
        true
    }

    /// Its writes are to have this, beside the server's level. Before they are submitted.
    pub fn ask_safety(&mut self, asked: Option<AskedSafety>) {
        self.safety = asked.map(Confirmation::from);
    }

    /// True if its writes are to have more than the server gives to all.
    pub fn asks_safety(&self) -> bool {
        self.safety.is_some()
    }

    /// Ready once every call has its answer, and the level that was asked for.
    pub fn poll(&mut self, cx: &mut Context<'_>, state: &AppState, text: &[u8]) -> Poll<()> {
        ready!(self.poll_answers(cx, state, text));
        let Some(mut asked) = self.safety.take() else {
            return Poll::Ready(());
        };
        let polled = asked.poll(cx, state, || self.slots.iter().any(|slot| self.has_written(slot)));
        self.safety = Some(asked);
        polled
    }

    /// Returns the safety that its writes have reached.
    pub fn reached(&self, state: &AppState) -> Safety {
        let asked = self.safety.as_ref().and_then(Confirmation::reached);
        asked.unwrap_or_else(|| named_safety(state))
    }

    /// Why its writes can't have the safety level that they ask for.
    fn lacks_safety(&self, state: &AppState) -> Option<Arc<str>> {
        let asked = self.safety.as_ref()?;
        match self.writes() {
            true => asked.check(state).err(),
            false => None,
        }
    }

    /// Some of its calls may write.
    fn writes(&self) -> bool {
        let may_write = |slot: &Slot<F>| match &slot.state {
            SlotState::Called { target, .. } => !self.targets[*target as usize].schema().read_only,
            _ => false,
        };
        self.slots.iter().any(may_write)
    }

    fn has_written(&self, slot: &Slot<F>) -> bool {
        let answer = self.answer(slot);
        answer.is_ok_and(|(target, reply)| !target.schema().read_only && *reply.outcome == ReplyOutcome::Committed)
    }

    fn poll_answers(&mut self, cx: &mut Context<'_>, state: &AppState, text: &[u8]) -> Poll<()> {
        while !self.is_answered {
            let reply = match self.rounds.last() {
                None => break,
                Some(pending) => pending.poll(cx),
            };
            match reply {
                Poll::Pending => return self.poll_deadlines(cx, state),
                Poll::Ready(Some(reply)) if reply.has_superseded() => self.resubmit_superseded(state, text),
                Poll::Ready(Some(_)) => self.is_answered = true,
                Poll::Ready(None) => {
                    self.refuse_round(
                        |_| true,
                        || Refusal::unavailable("the engine stopped before it answered"),
                    );
                    self.is_answered = true;
                }
            }
        }
        Poll::Ready(())
    }

    /// Answers for calls that never begin, since their deadlines passed. Ready: no other is waited for.
    fn poll_deadlines(&mut self, cx: &mut Context<'_>, state: &AppState) -> Poll<()> {
        loop {
            let expired = ready!(self.deadlines.poll(cx, &state.router));
            let is_expired = |index: u32| expired.contains(&(index as usize));
            let left = self.refuse_round(is_expired, Refusal::deadline_exceeded);
            if left == 0 {
                self.is_answered = true;
                // Calls of other connections may wait for the same reply, and this connection reads it no more.
                self.rounds.iter().for_each(PendingReply::leave);
                return Poll::Ready(());
            }
        }
    }

    /// Answers for those calls of the last round whose index is one of `these`; how many of the round are left.
    fn refuse_round(&mut self, these: impl Fn(u32) -> bool, refusal: impl Fn() -> Refusal) -> usize {
        let last = self.rounds.len().saturating_sub(1) as u16;
        let mut left = 0;
        for slot in &mut self.slots {
            match slot.state {
                SlotState::Called { round, index, .. } if round == last && these(index) => {
                    slot.state = SlotState::Refused(Box::new(refusal()));
                }
                SlotState::Called { round, .. } => left += (round == last) as usize,
                SlotState::Refused(_) => {}
            }
        }
        left
    }

    /// Calls that were not submitted get this answer.
    pub fn refuse_all(&mut self, refusal: impl Fn() -> Refusal) {
        self.refuse_round(|_| true, refusal);
    }

    /// Encodes the last round's calls whose module was replaced for its new version, and submits them in their order.
    fn resubmit_superseded(&mut self, state: &AppState, text: &[u8]) {
        let last = self.rounds.len() - 1;
        self.deadlines.set(Vec::new());
        let mut batch = self.batch(state, state.router.deployed());
        for at in 0..self.slots.len() {
            let SlotState::Called { target, round, index } = self.slots[at].state else {
                continue;
            };
            let reply = self.rounds[last].reply().expect("read before");
            let index = index as usize;
            if round as usize != last || *reply.get(index).outcome != ReplyOutcome::Superseded {
                continue;
            }
            let (call, terms) = (&self.slots[at].text, reply.terms(index));
            let again = match last >= SUPERSEDED_RETRIES_MAX {
                true => Err(superseded_too_often()),
                false => encode_again(&mut batch, &self.targets[target as usize], call, text, terms),
            };
            self.slots[at].state = match again {
                Err(refusal) => SlotState::Refused(bounded(refusal, &mut self.refused_bytes)),
                Ok((target, index)) => SlotState::Called {
                    target: self.number_of(&target),
                    round: round + 1,
                    index: index as u32,
                },
            };
        }
        match batch.is_empty() {
            true => self.is_answered = true,
            false => self.submit(state, batch, BatchResources::default()),
        }
    }

    /// The answer to a call, once all are there, or once it is refused: that of a procedure, or why it was not called.
    pub fn answer<'s>(&'s self, slot: &'s Slot<F>) -> Result<(&'s Target, CallReply<'s>), &'s Refusal> {
        match &slot.state {
            SlotState::Refused(refusal) => Err(refusal),
            SlotState::Called { target, round, index } => {
                let reply = self.rounds[*round as usize].reply().expect("every call is answered");
                let (target, mut reply) = (&self.targets[*target as usize], reply.get(*index as usize));
                if let Some(open) = self.safety.as_ref().and_then(Confirmation::failure)
                    && !target.schema().read_only
                    && *reply.outcome == ReplyOutcome::Committed
                {
                    reply.outcome = open;
                }
                Ok((target, reply))
            }
        }
    }

    /// When a call that ran passed which point.
    pub fn times(&self, slot: &Slot<F>) -> Option<&CallTimes> {
        match &slot.state {
            SlotState::Refused(_) => None,
            SlotState::Called { round, index, .. } => self.rounds[*round as usize].reply()?.times(*index as usize),
        }
    }

    /// Returns the longest text of the answer to a call; 0 if it is not long.
    pub fn text_bytes_max(&self, slot: &Slot<F>) -> u64 {
        match self.answer(slot) {
            Ok((target, reply)) => target.text_bytes_max(&reply),
            Err(_) => 0,
        }
    }
}

/// Returns the safety of acknowledged writes. At quorum and very-safe every one has it, even after the loss of a standby.
pub fn named_safety(state: &AppState) -> Safety {
    match state.router.safety() {
        (level @ (Safety::Quorum | Safety::VerySafe), _) => level,
        (_, reached) => reached,
    }
}
