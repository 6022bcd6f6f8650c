//! The clients' knowledge of their calls, and the rows that must therefore be stored.

use std::collections::{BTreeMap, BTreeSet};

use reprise_base::{Lsn, TxnId};
use reprise_router::{CallReply, Failure, ReplyOutcome};

use crate::{
    model::{At, Model, Tables},
    op::{Op, Ret},
};

/// The known fate of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing was answered yet, or the process died, or the log failed, before there was an answer to rely on.
    Unknown,
    Committed {
        txn: u64,
        /// The life in which it was committed.
        life: u64,
        ret: Option<Ret>,
        /// Operations that the disk had done in this life when it was acknowledged; none once that life is over.
        ops: Option<usize>,
    },
    /// The call is not stored, and never will be unless it is sent again.
    Absent,
}

#[derive(Clone, Debug)]
pub struct Call {
    pub op: Op,
    pub key: Option<String>,
    pub fate: Fate,
    pub flying: u32,
    /// True if a client was told in this life that the call may be stored, or not.
    pub is_doubtful: bool,
    /// The number of disk operations in this life after which the log refused it.
    pub refused_at: Option<usize>,
}

/// One sending of a call.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    pub call: usize,
    /// True if the call was known to be committed before this was sent. The answer is then the same again.
    pub is_repeat: bool,
    /// Its key belongs to another call.
    pub conflicts: bool,
}

/// A read, or an abort, at its place in the order.
pub struct Seen {
    txn: u64,
    life: u64,
    call: usize,
    answer: Result<Ret, String>,
    ops: Option<usize>,
}

#[derive(Default)]
pub struct Ledger {
    pub calls: Vec<Call>,
    seen: Vec<Seen>,
    /// The numbers that `draw` drew, by call.
    randoms: BTreeMap<i64, u64>,
    /// Positions of the records of acknowledged calls.
    positions: BTreeMap<usize, Lsn>,
    /// True if the log failed in this life in such a way that the stored calls are unknown. A later read may lack them.
    pub is_doubtful: bool,
    /// The transaction that put the second version into service.
    pub second_from: Option<u64>,
    life: u64,
    pub commits: u64,
    pub repeats: u64,
}

impl Ledger {
    /// Returns the number that a call writes. Nonces begin at 1.
    pub fn nonce(call: usize) -> i64 {
        call as i64 + 1
    }

    pub fn flying(&self) -> u32 {
        self.calls.iter().map(|call| call.flying).sum()
    }

    pub fn answered(&mut self, attempt: Attempt, reply: &CallReply<'_>, ops: usize) -> Result<(), String> {
        let at = attempt.call;
        self.calls[at].flying -= 1;
        let wrong = |what: &str| {
            Err(format!(
                "call {at}: {what}; it was answered with {:?} as transaction {}",
                reply.outcome, reply.txn_id
            ))
        };
        if attempt.conflicts {
            return match reply.outcome {
                ReplyOutcome::IdempotencyConflict => Ok(()),
                _ => wrong("its key is another call's"),
            };
        }
        let is_committed = matches!(self.calls[at].fate, Fate::Committed { .. });
        match reply.outcome {
            ReplyOutcome::Committed => self.committed(attempt, reply, ops),
            _ if attempt.is_repeat => wrong("it had been committed"),
            ReplyOutcome::Failed(failure) if let Failure::Aborted { code, .. } = &**failure => {
                // Before that its key was free again: a batch is answered when its last call is.
                let is_earlier = |txn| reply.txn_id < TxnId(txn);
                match self.calls[at].fate {
                    Fate::Committed { txn, .. } if is_earlier(txn) => {}
                    Fate::Committed { .. } => return wrong("it had been committed meanwhile"),
                    _ => self.calls[at].fate = Fate::Absent,
                }
                // An answer without a number is that of another attempt with the same key.
                if reply.txn_id != TxnId(0) {
                    self.see(at, reply.txn_id, Err(code.clone()), ops);
                }
                Ok(())
            }
            ReplyOutcome::Superseded => {
                self.not_run(at, is_committed);
                Ok(())
            }
            ReplyOutcome::Failed(failure) if matches!(**failure, Failure::Ended(_)) => {
                self.not_run(at, is_committed);
                Ok(())
            }
            ReplyOutcome::LogUnavailable(_) | ReplyOutcome::OutcomeUnknown(_) => {
                let is_doubtful = matches!(reply.outcome, ReplyOutcome::OutcomeUnknown(_));
                self.is_doubtful |= is_doubtful;
                let call = &mut self.calls[at];
                call.is_doubtful |= is_doubtful;
                if !call.is_doubtful && !is_committed {
                    call.fate = Fate::Absent;
                    call.refused_at = Some(ops);
                }
                Ok(())
            }
            _ => wrong("no such answer was to be expected"),
        }
    }

    /// Nothing of the attempt is stored.
    fn not_run(&mut self, call: usize, is_committed: bool) {
        if !is_committed {
            self.calls[call].fate = Fate::Absent;
        }
    }

    fn committed(&mut self, attempt: Attempt, reply: &CallReply<'_>, ops: usize) -> Result<(), String> {
        let at = attempt.call;
        let TxnId(txn) = reply.txn_id;
        let op = &self.calls[at].op;
        let ret = op.decode(reply.result).map_err(|error| format!("call {at}: {error}"))?;
        if op.is_read() {
            self.calls[at].fate = Fate::Absent;
            self.see(at, reply.txn_id, Ok(ret), ops);
            return Ok(());
        }
        if let (Op::Draw { .. }, Ret::Number(random)) = (op, &ret) {
            self.randoms.insert(Self::nonce(at), *random as u64);
        }
        self.positions.entry(at).or_insert(reply.lsn);
        self.repeats += reply.replayed as u64;
        if attempt.is_repeat && !reply.replayed {
            return Err(format!("call {at} ran again as transaction {txn}"));
        }
        let call = &mut self.calls[at];
        if let Fate::Committed {
            txn: first, ret: known, ..
        } = &mut call.fate
        {
            if *first != txn || known.as_ref().is_some_and(|known| *known != ret) {
                return Err(format!(
                    "call {at} was transaction {first} with {known:?}, and is now {txn} with {ret:?}"
                ));
            }
            *known = Some(ret);
            return Ok(());
        }
        self.commits += 1;
        call.fate = Fate::Committed {
            txn,
            life: self.life,
            ret: Some(ret),
            ops: Some(ops),
        };
        Ok(())
    }

    fn see(&mut self, call: usize, txn: TxnId, answer: Result<Ret, String>, ops: usize) {
        if self.is_doubtful {
            return;
        }
        self.seen.push(Seen {
            txn: txn.0,
            life: self.life,
            call,
            answer,
            ops: Some(ops),
        });
    }

    /// Records that the process died after this many operations of its disk. Later answers were never sent.
    pub fn died_after(&mut self, ops_at_death: usize) {
        self.seen.retain_mut(|seen| {
            let was_told = seen.ops.is_none_or(|ops| ops <= ops_at_death);
            seen.ops = None;
            was_told
        });
        for (at, call) in self.calls.iter_mut().enumerate() {
            match &mut call.fate {
                Fate::Committed { ops: Some(ops), .. } if *ops > ops_at_death => call.fate = Fate::Unknown,
                Fate::Committed { ops, .. } => *ops = None,
                Fate::Absent if call.flying > 0 => call.fate = Fate::Unknown,
                // The record may have been written when the process died, and not yet been taken back.
                Fate::Absent if call.refused_at.is_some_and(|ops| ops > ops_at_death) => {
                    call.fate = Fate::Unknown;
                }
                _ => {}
            }
            if call.fate == Fate::Unknown {
                self.positions.remove(&at);
            }
            call.flying = 0;
            (call.is_doubtful, call.refused_at) = (false, None);
        }
        self.is_doubtful = false;
        self.life += 1;
    }

    /// Settles the unknown calls after a restart. Each is stored, or is not.
    pub fn resolve(&mut self, found: &Tables) {
        let mut stored: BTreeMap<i64, u64> = BTreeMap::new();
        stored.extend(found.marks.iter().map(|((_, nonce), txn)| (*nonce, *txn)));
        stored.extend(found.announcements.iter().map(|(nonce, (txn, _))| (*nonce, *txn)));
        for (at, call) in self.calls.iter_mut().enumerate() {
            if call.fate == Fate::Unknown {
                call.fate = match stored.get(&Self::nonce(at)) {
                    None => Fate::Absent,
                    Some(txn) => Fate::Committed {
                        txn: *txn,
                        life: self.life.saturating_sub(1),
                        ret: None,
                        ops: None,
                    },
                };
            }
        }
    }

    /// Forgets the calls that a database cut before this position does not hold. Calls acknowledged before it must be there, and later
    /// calls must not.
    pub fn cut_at(&mut self, cut: Lsn, found: &Tables) -> Result<(), String> {
        let marks = found.marks.keys().map(|(_, nonce)| *nonce);
        let stored: BTreeSet<i64> = marks.chain(found.announcements.keys().copied()).collect();
        for (at, call) in self.calls.iter_mut().enumerate() {
            let position = self.positions.get(&at).copied();
            let is_stored = stored.contains(&Self::nonce(at));
            let is_committed = matches!(call.fate, Fate::Committed { .. });
            match (is_stored, position) {
                (true, Some(position)) if position >= cut => {
                    return Err(format!("call {at} lies at {position}, and is there"));
                }
                (false, Some(position)) if is_committed && position < cut => {
                    return Err(format!("call {at} lies at {position}, and is not there"));
                }
                (false, _) if is_committed => call.fate = Fate::Absent,
                _ => {}
            }
        }
        Ok(())
    }

    /// Drops acknowledged calls from `lsn` on, and reads made meanwhile, because they are lost for good: as if they had never been sent.
    pub fn lose_from(&mut self, lsn: Lsn) {
        self.positions.retain(|_, position| *position < lsn);
        let calls = &self.calls;
        self.randoms
            .retain(|nonce, _| matches!(calls[(nonce - 1) as usize].fate, Fate::Committed { .. }));
        self.seen.clear();
    }

    /// Takes the results of reads and aborts, to be given back later. If records are missing, they can't be checked.
    pub fn take_seen(&mut self) -> Vec<Seen> {
        std::mem::take(&mut self.seen)
    }

    pub fn give_seen(&mut self, seen: Vec<Seen>) {
        self.seen = seen;
    }

    /// Returns the tables that must be stored, and compares every answer on the way.
    pub fn expected(&mut self, partitions: u16, found: &Tables) -> Result<Tables, String> {
        for (nonce, random) in found.draws.values().flatten() {
            self.randoms.entry(*nonce).or_insert(*random);
        }
        // The order is life by life. Calls that are not logged take numbers that the next life, whose clock is set back, may not know of.
        let mut order: Vec<(u64, u64, usize, Option<Result<Ret, String>>)> = Vec::new();
        for (at, call) in self.calls.iter().enumerate() {
            if let Fate::Committed { txn, life, ret, .. } = &call.fate {
                order.push((*life, *txn, at, ret.clone().map(Ok)));
            }
        }
        let seen = self.seen.iter();
        order.extend(seen.map(|seen| (seen.life, seen.txn, seen.call, Some(seen.answer.clone()))));
        order.sort_by_key(|(life, txn, call, _)| (*life, *txn, *call));
        let same = |pair: &&[(u64, u64, usize, _)]| (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1);
        if let Some(pair) = order.windows(2).find(same) {
            return Err(format!(
                "transaction {} is call {} and call {}",
                pair[0].1, pair[0].2, pair[1].2
            ));
        }
        let mut model = Model::new(partitions);
        for (_, txn, call, answer) in order {
            let nonce = Self::nonce(call);
            let op = &self.calls[call].op;
            let at = At {
                op,
                nonce,
                txn,
                is_second: self.second_from.is_some_and(|from| txn > from),
                random: self.randoms.get(&nonce).copied().unwrap_or(0),
            };
            let expected = model.apply(&at).map_err(str::to_owned);
            if answer.as_ref().is_some_and(|answer| *answer != expected) {
                let found = answer.expect("just looked at");
                return Err(format!(
                    "call {call} {op:?}, transaction {txn}: expected {expected:?}, answered {found:?}"
                ));
            }
            if answer.is_none() && expected.is_err() {
                return Err(format!(
                    "call {call} {op:?}, transaction {txn}: stored, and could not have committed"
                ));
            }
        }
        Ok(model.tables)
    }
}
