//! Calls of a batch that go to the log before the rest of it has run. One append is bounded in bytes, and the parts of a transaction are an
//! append of their own. The sender of the batch gets it back in one piece.

use std::sync::{Mutex, MutexGuard};

use reprise_base::Lsn;

use crate::batch::CallBatch;

/// The records of one batch on their way to the log.
#[derive(Default)]
pub(crate) struct PartialAppend(Mutex<PartialAppendState>);

#[derive(Default)]
struct PartialAppendState {
    /// Number of heads that are still on their way.
    missing: usize,
    /// Heads that came back, each with the position of its first call.
    back: Vec<(usize, Box<CallBatch>)>,
    /// The batch itself, once all its calls have run and the records that it waits for are durable.
    rest: Option<Box<CallBatch>>,
}

impl CallBatch {
    /// Takes the calls before position `until` that ran and are in no head yet, as a batch of their own. From then on, this batch ignores
    /// their slots.
    pub(crate) fn take_head(&mut self, until: usize) -> Box<CallBatch> {
        let heads = self.heads.get_or_insert_default().clone();
        let from = self.headed;
        let mut head = Box::new(Self::new(self.partition));
        head.calls = self.calls[from..until].to_vec();
        let relics = self.calls[from..until].iter_mut();
        relics.for_each(|slot| slot.lsn = Lsn(0));
        head.results = std::mem::take(&mut self.results);
        head.answers.clone_from(&self.answers);
        head.count_results();
        head.times = self.times;
        let deadlines = self.deadlines.iter();
        let own = deadlines.filter(|(at, _)| (from..until).contains(&(*at as usize)));
        head.deadlines = own.map(|(at, deadline)| (at - from as u32, deadline.clone())).collect();
        self.headed = until;
        heads.0.lock().expect("held for a count").missing += 1;
        head.done = Some(Box::new(move |head| heads.come_back(from, head)));
        head
    }
}

impl PartialAppend {
    fn come_back(&self, from: usize, head: Box<CallBatch>) {
        let mut state = self.0.lock().expect("held for a push");
        state.missing -= 1;
        state.back.push((from, head));
        Self::close_if_whole(state);
    }

    /// Ends the batch: all of it ran, and the records that its last calls wait for are durable.
    pub fn close(&self, rest: Box<CallBatch>) {
        let mut state = self.0.lock().expect("held for a store");
        state.rest = Some(rest);
        Self::close_if_whole(state);
    }

    fn close_if_whole(mut state: MutexGuard<'_, PartialAppendState>) {
        if state.missing > 0 {
            return;
        }
        let Some(mut rest) = state.rest.take() else {
            return;
        };
        let back = std::mem::take(&mut state.back);
        drop(state);
        for (from, head) in back {
            rest.put_head(from, *head);
        }
        rest.finish();
    }
}

impl CallBatch {
    fn put_head(&mut self, from: usize, head: CallBatch) {
        let shift = self.results.len() as u32;
        self.results.extend_from_slice(&head.results);
        self.head_grants.extend(head.grant);
        let slots = self.calls[from..].iter_mut().zip(head.calls);
        slots.for_each(|(slot, ran)| {
            *slot = ran;
            (slot.result.start, slot.result.end) = (slot.result.start + shift, slot.result.end + shift);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use reprise_base::TxnId;
    use reprise_txn::ModuleId;

    use super::*;
    use crate::{
        caller::CallKey,
        outcome::ReplyOutcome,
        sink::{LogRefusal, complete},
    };

    /// Runs the call at a position. Its result is the position, and it has one record.
    fn run(batch: &mut CallBatch, at: usize) {
        let start = batch.results.len() as u32;
        batch.results.extend_from_slice(&vec![at as u8; at + 1]);
        let end = batch.results.len() as u32;
        let slot = &mut batch.calls[at];
        (slot.outcome, slot.txn_id) = (ReplyOutcome::Committed, TxnId(at as u64 + 1));
        slot.result = start..end;
        slot.lsn = Lsn((at - batch.headed) as u64);
    }

    #[test]
    fn a_batch_in_pieces_comes_back_whole_in_whatever_order_they_end() {
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]] {
            let (sender, answers) = mpsc::channel();
            let mut batch = Box::new(CallBatch::new(None));
            let key = CallKey {
                key: "key",
                fingerprint: 7,
            };
            (0..6).for_each(|at| batch.push(ModuleId(0), at, b"args", (at == 3).then_some(key)));
            batch.done = Some(Box::new(move |batch| sender.send(batch).expect("somebody waits")));
            (0..2).for_each(|at| run(&mut batch, at));
            let first = batch.take_head(2);
            (2..5).for_each(|at| run(&mut batch, at));
            let second = batch.take_head(5);
            run(&mut batch, 5);
            let mut pieces = [(first, 2, 12), (second, 3, 25), (batch, 1, 40)].map(Some);
            for piece in order {
                assert!(answers.try_recv().is_err(), "{order:?}");
                let (mut piece, records, end) = pieces[piece].take().expect("each once");
                piece.records = records;
                complete(Lsn(end), Ok(()), piece);
            }
            let batch = answers.try_recv().expect("whole");
            let lsns: Vec<_> = batch.calls.iter().map(|slot| slot.lsn.0).collect();
            assert_eq!(lsns, [10, 11, 22, 23, 24, 39], "{order:?}");
            for at in 0..6 {
                assert_eq!(batch.result(at), vec![at as u8; at + 1], "{order:?}");
                assert_eq!(batch.args(at), b"args");
            }
            assert_eq!(batch.keys().collect::<Vec<_>>(), [(3, "key")]);
        }
    }

    #[test]
    fn outcome_of_a_part_is_reported_to_its_calls_alone() {
        let (sender, answers) = mpsc::channel();
        let mut batch = Box::new(CallBatch::new(None));
        (0..3).for_each(|at| batch.push(ModuleId(0), at, b"", None));
        batch.done = Some(Box::new(move |batch| sender.send(batch).expect("somebody waits")));
        run(&mut batch, 0);
        let mut first = batch.take_head(1);
        (1..3).for_each(|at| run(&mut batch, at));
        (first.records, batch.records) = (1, 2);
        complete(Lsn(8), Ok(()), first);
        complete(Lsn(10), Err(LogRefusal::Unknown("it broke".into())), batch);
        let batch = answers.try_recv().expect("whole");
        assert_eq!(batch.calls[0].outcome, ReplyOutcome::Committed);
        for slot in &batch.calls[1..] {
            assert!(matches!(slot.outcome, ReplyOutcome::OutcomeUnknown(_)));
        }
    }
}
