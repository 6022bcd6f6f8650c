//! Calls of clients and their answers: writes to the node that they take for the primary, reads anywhere, and the positions a session has
//! seen.

use std::sync::Arc;

use reprise_base::{Lsn, Safety};
use reprise_router::{BatchBuilder, BatchReply, CallKey, ReplyOutcome, call_hash};

use super::{
    Run,
    around::{Life, NAMES, node_of},
    history::{Path, Place, args, lock},
    marks::Mark,
};
use crate::{
    model::{Item, Tables},
    module::NAME,
    op::{IDS, Op, decode_everywhere},
};

/// Procedure, idempotency key, arguments.
type Call<'a> = (&'a str, Option<&'a str>, &'a [u8]);

/// The request that an answer belongs to.
#[derive(Clone, Copy, Debug)]
pub enum What {
    Write {
        call: usize,
        session: usize,
    },
    /// A read. `since` is the place that the session had seen when it asked.
    Read {
        session: usize,
        since: Option<Place>,
    },
}

/// An answer, as its client got it.
pub struct Arrived {
    life: Arc<Life>,
    what: What,
    reply: BatchReply,
    /// The safety that acknowledged writes had at that time.
    reached: Safety,
    /// Path of the log that answered.
    path: Path,
    epoch: u32,
}

/// A client with all that it has seen.
#[derive(Clone, Copy, Default)]
pub struct Session {
    pub seen: Option<Place>,
    /// The node that it takes for the primary.
    pub primary: usize,
}

impl Run {
    pub(super) fn write(&mut self) {
        let session = self.below(super::SESSIONS) as usize;
        let node = match self.below(6) {
            0 => self.below(3) as usize,
            _ => self.sessions[session].primary,
        };
        let resent = self.open_keys.last().copied().filter(|_| self.below(3) == 0);
        let call = resent.unwrap_or_else(|| {
            let op = self.some_op();
            let has_key = self.below(4) == 0;
            let mut all = lock(&self.histories);
            let key = has_key.then(|| format!("key {}", all.calls.len()));
            all.call(op, key)
        });
        let what = What::Write { call, session };
        let (name, key, args) = {
            let all = lock(&self.histories);
            let sent = &all.calls[call];
            (sent.op.procedure(), sent.key.clone(), args(&sent.op, call))
        };
        self.note(|| format!("session {session} sends call {call} ({name}) to {}", NAMES[node]));
        if self.submit(node, (name, key.as_deref(), &args), (what, session)) && resent.is_some() {
            self.open_keys.pop();
        }
    }

    fn some_op(&mut self) -> Op {
        let id = self.below(IDS) as i64;
        match self.below(8) {
            0 => Op::Announce {
                value: self.below(1000) as i64,
            },
            1..4 => Op::Put {
                ids: vec![id, (id + 1) % IDS as i64],
                values: vec![Some(self.below(100) as i64), (self.below(4) > 0).then_some(id)],
                note: self.below(40) as u32,
                abort: false,
            },
            _ => Op::Add {
                id,
                amount: self.below(30) as i64,
            },
        }
    }

    pub(super) fn read(&mut self) {
        let session = self.below(super::SESSIONS) as usize;
        let node = self.below(3) as usize;
        let Some(process) = &self.nodes[node].process else {
            return;
        };
        // The server waits until it shows that much, and says that it is too stale; a client of the simulation goes elsewhere.
        let seen = self.sessions[session].seen;
        if seen.is_none_or(|seen| process.database.router().is_in_view(Lsn(seen.lsn))) {
            let what = What::Read { session, since: seen };
            self.submit(node, ("everywhere", None, &[]), (what, session));
        }
    }

    /// Sends a call. False: it was not sent.
    pub(super) fn submit(&mut self, node: usize, (name, key, args): Call<'_>, (what, session): (What, usize)) -> bool {
        let Some(process) = &self.nodes[node].process else {
            self.sessions[session].primary = self.below(3) as usize;
            return false;
        };
        let router = process.database.router();
        let deployed = router.deployed();
        let Some(module) = deployed.current.get(NAME) else {
            return false;
        };
        let mut batch = BatchBuilder::new(deployed.clone(), router);
        let (number, _) = module.procedure(name).expect("one of the module's");
        let encode = |out: &mut Vec<u8>| {
            out.extend_from_slice(args);
            Ok::<(), ()>(())
        };
        let key = key.map(|key| CallKey {
            key,
            fingerprint: call_hash(NAME, name, args),
        });
        batch.push(module, number, key, encode).expect("encoded");
        let (around, life) = (self.around.clone(), process.life.clone());
        let (tape, answering) = (process.tape.clone(), router.clone());
        let done = Box::new(move |reply: BatchReply| {
            if life.is_dead() {
                return; // no client hears of it
            }
            let arrived = Arrived {
                life,
                what,
                reply,
                reached: answering.safety().1,
                path: tape.path(),
                epoch: answering.status().epoch.unwrap_or_default().count(),
            };
            lock(&around.arrived).push(arrived);
        });
        router.submit(batch, done);
        true
    }

    /// Looks at what clients were told since the last look.
    pub(super) fn look_at_answers(&mut self) -> Result<(), String> {
        let arrived = std::mem::take(&mut *lock(&self.around.arrived));
        for answer in arrived {
            match answer.what {
                What::Write { call, session } => self.written((call, session), &answer)?,
                What::Read { session, since } => self.has_read((session, since), &answer)?,
            }
        }
        Ok(())
    }

    fn written(&mut self, (call, session): (usize, usize), answer: &Arrived) -> Result<(), String> {
        let reply = answer.reply.get(0);
        let name = NAMES[answer.life.node];
        self.note(|| format!("{name}: call {call} is {:?} at {}", reply.outcome, reply.lsn));
        match reply.outcome {
            ReplyOutcome::Committed => {}
            ReplyOutcome::NotPrimary(url) => {
                let hint = url.as_deref().and_then(node_of);
                let primary = hint.unwrap_or(self.below(3) as usize);
                self.sessions.iter_mut().for_each(|session| session.primary = primary);
                self.stats.not_primary += 1;
                return self.refused(call);
            }
            ReplyOutcome::LogUnavailable(_)
            | ReplyOutcome::StandbyUnavailable(_)
            | ReplyOutcome::LeaseLost(_)
            | ReplyOutcome::Overloaded { .. } => {
                self.stats.refused += 1;
                return self.refused(call);
            }
            ReplyOutcome::Unconfirmed(_) | ReplyOutcome::OutcomeUnknown(_) => {
                self.stats.unknown += 1;
                self.repeatable(call);
                return Ok(());
            }
            ReplyOutcome::Unavailable(_) | ReplyOutcome::Superseded => return Ok(()),
            other => {
                return Err(format!(
                    "call {call} on {name}: no such answer was to be expected: {other:?}"
                ));
            }
        }
        let place = lock(&self.histories).place_in(call, &answer.path);
        let place = place.ok_or_else(|| format!("{name} acknowledged call {call}, and has no record of it"))?;
        // Beside the command there may be changes, in parts before it.
        if place.lsn.abs_diff(reply.lsn.0) > 1 {
            return Err(format!("{name} tells LSN {} of call {call} at {place:?}", reply.lsn));
        }
        self.stats.acknowledged += 1;
        self.stats.repeats += u64::from(reply.replayed);
        let is_safe = self.settings.safety.asks_standbys() && answer.reached.asks_standbys();
        self.stats.alone += u64::from(self.settings.safety.asks_standbys() && !is_safe);
        let mark = Mark {
            place,
            epoch: lock(&self.histories).epoch_of(place).max(answer.epoch),
            by: Some(answer.life.node),
            is_safe: is_safe || self.settings.is_leased,
            what: format!("call {call}, which {name} acknowledged as {}", answer.reached.name()),
        };
        // Two primaries without a lease can't see each other, and the newest one's log decides which writes are safe. If that one has the write, too, a
        // repeat is true on either server. If it began with the write, so is a late answer.
        let is_true = self.marks.began_with(place) || (reply.replayed && self.marks.has(place));
        let may_be_two = !self.settings.is_leased || is_true;
        self.marks.acknowledged(mark, answer.epoch, may_be_two)?;
        self.see(session, place);
        Ok(())
    }

    /// A session has seen that much, unless it has seen more that is still there.
    fn see(&mut self, session: usize, place: Place) {
        let all = lock(&self.histories);
        let seen = &mut self.sessions[session].seen;
        let is_there = |place| !self.marks.is_lost(&all, place);
        let keeps = seen.is_some_and(|seen| is_there(seen) && (seen.lsn >= place.lsn || !is_there(place)));
        if !keeps {
            *seen = Some(place);
        }
    }

    /// The call was not run, unless it had been before, under its key.
    fn refused(&mut self, call: usize) -> Result<(), String> {
        let all = lock(&self.histories);
        match all.has_record(call) && all.calls[call].key.is_none() {
            true => Err(format!("call {call} was refused, and is in a log")),
            false => Ok(()),
        }
    }

    fn repeatable(&mut self, call: usize) {
        if lock(&self.histories).calls[call].key.is_some() {
            self.open_keys.push(call);
        }
    }

    fn has_read(&mut self, (session, since): (usize, Option<Place>), answer: &Arrived) -> Result<(), String> {
        let reply = answer.reply.get(0);
        let name = NAMES[answer.life.node];
        if *reply.outcome != ReplyOutcome::Committed {
            self.note(|| format!("{name}: a read of session {session} is {:?}", reply.outcome));
            return match reply.outcome {
                ReplyOutcome::Unavailable(_)
                | ReplyOutcome::LogUnavailable(_)
                | ReplyOutcome::StandbyUnavailable(_)
                | ReplyOutcome::LeaseLost(_)
                | ReplyOutcome::Superseded => Ok(()),
                other => Err(format!("a read on {name} ended with {other:?}")),
            };
        }
        let everywhere = decode_everywhere(reply.result).map_err(|error| error.to_string())?;
        let items = everywhere.items.into_iter().map(|item| {
            let held = Item {
                value: item.value,
                note_bytes: item.note_bytes,
                total: item.total,
                later: item.later,
            };
            (item.id, held)
        });
        let marks = everywhere.marks.iter().map(|mark| ((mark.a, mark.b), mark.c as u64));
        let found = Tables {
            items: items.collect(),
            marks: marks.collect(),
            ..Tables::default()
        };
        let head = lock(&self.histories).find(&found, self.settings.partitions);
        let head = head.map_err(|what| format!("{name}: {what}"))?;
        self.stats.reads += 1;
        self.note(|| format!("{name}: session {session} reads up to {head:?}"));
        if let Some(place) = head {
            let is_counted = matches!(self.settings.safety, Safety::Quorum | Safety::VerySafe);
            let epoch = lock(&self.histories).epoch_of(place).max(answer.epoch);
            self.marks.shown(Mark {
                place,
                epoch,
                by: self.primary,
                is_safe: is_counted || self.settings.is_leased,
                what: format!("what a read on {name} showed"),
            })?;
        }
        self.keep_order((session, since), head, answer)?;
        if let Some(place) = head {
            self.see(session, place);
        }
        Ok(())
    }

    /// A session sees everything that it had seen when it asked, unless that was given up. The exception is an answer of a server that has
    /// the records given up, and has not heard of the newest primary.
    fn keep_order(
        &self,
        (session, since): (usize, Option<Place>),
        head: Option<Place>,
        answer: &Arrived,
    ) -> Result<(), String> {
        let all = lock(&self.histories);
        let Some((seen, visible)) = since.and_then(|seen| Some((seen, all.visible(seen)?))) else {
            return Ok(());
        };
        let is_kept = head.is_some_and(|head| all.is_before(visible, head));
        let there = answer.path.place_at(seen.lsn).or(head);
        let epoch = |place| all.epoch_of(place).max(answer.epoch);
        let is_given_up = there.is_some_and(|there| self.marks.is_given_up(there, epoch(there)));
        if is_kept || is_given_up || self.marks.is_lost(&all, seen) {
            return Ok(());
        }
        Err(format!(
            "session {session} saw up to {seen:?}, and then up to {head:?} on {}",
            NAMES[answer.life.node]
        ))
    }
}
