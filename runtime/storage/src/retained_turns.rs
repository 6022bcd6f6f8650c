//! Undo of transactions that are committed here and not yet durable, turn by turn.

use std::collections::VecDeque;

use crate::journal::{Journal, Undo};

/// The undo of the transactions that one turn of the engine thread committed.
#[derive(Default)]
pub(crate) struct Turn {
    pub ops: Vec<Undo>,
    pub bytes: Vec<u8>,
    /// Entries of `ops` with something to free.
    pub garbage: Vec<Undo>,
    /// The log position at which it is durable.
    end: u64,
}

/// Turns in the order of the log.
#[derive(Default)]
pub(crate) struct RetainedTurns {
    turns: VecDeque<Turn>,
    spare: Vec<Turn>,
    /// Memory of all turns.
    memory_bytes: usize,
}

impl Turn {
    /// Makes a turn that is not sealed.
    pub fn of(ops: Vec<Undo>, bytes: Vec<u8>, garbage: Vec<Undo>) -> Self {
        Self {
            ops,
            bytes,
            garbage,
            end: 0,
        }
    }

    /// The log position from which on it is durable.
    pub fn end(&self) -> u64 {
        self.end
    }

    pub fn memory_bytes(&self) -> usize {
        let entries = self.ops.capacity() + self.garbage.capacity();
        self.bytes.capacity() + entries * size_of::<Undo>()
    }
}

/// Number of turns that are kept for reuse.
const SPARE_MAX: usize = 64;
/// Number of undo entries for which a turn that is kept for reuse may have room.
const SPARE_OPS_MAX: usize = 1 << 16;

impl RetainedTurns {
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Returns the turns in the order of the log.
    pub fn turns(&self) -> impl DoubleEndedIterator<Item = &Turn> + Clone {
        self.turns.iter()
    }

    /// True if there are removed rows that may come back.
    pub fn has_garbage(&self) -> bool {
        self.turns.iter().any(|turn| !turn.garbage.is_empty())
    }

    /// Moves the journal's undo into a turn that ends at `end`.
    pub fn seal(&mut self, journal: &mut Journal, end: u64) {
        if journal.ops.is_empty() {
            return;
        }
        assert!(
            self.turns.back().is_none_or(|last| last.end <= end),
            "turns are sealed in order"
        );
        let mut turn = self.spare.pop().unwrap_or_default();
        self.memory_bytes -= turn.memory_bytes();
        std::mem::swap(&mut turn.ops, &mut journal.ops);
        std::mem::swap(&mut turn.bytes, &mut journal.bytes);
        std::mem::swap(&mut turn.garbage, &mut journal.garbage);
        turn.end = end;
        self.memory_bytes += turn.memory_bytes();
        self.turns.push_back(turn);
    }

    /// The `seal` variant that leaves out the last transaction.
    pub fn seal_before_last(&mut self, journal: &mut Journal, end: u64) {
        let last = journal.split_last();
        self.seal(journal, end);
        journal.forget();
        journal.restore(last);
    }

    /// Returns the oldest turn, if it ends at or before `durable`.
    pub fn take_durable(&mut self, durable: u64) -> Option<Turn> {
        let turn = self.turns.pop_front_if(|turn| turn.end <= durable)?;
        self.memory_bytes -= turn.memory_bytes();
        Some(turn)
    }

    pub fn take_newest(&mut self) -> Option<Turn> {
        let turn = self.turns.pop_back()?;
        self.memory_bytes -= turn.memory_bytes();
        Some(turn)
    }

    pub fn recycle(&mut self, mut turn: Turn) {
        if self.spare.len() < SPARE_MAX && turn.ops.capacity() <= SPARE_OPS_MAX {
            turn.ops.clear();
            turn.garbage.clear();
            turn.bytes.clear();
            self.memory_bytes += turn.memory_bytes();
            self.spare.push(turn);
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}
