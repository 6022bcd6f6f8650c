//! Writes that are durable here and not yet where the server's safety level wants them: by row, so that a read which met none of them may be answered.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{
    indirection::Rid,
    journal::{Undo, UndoKind},
    retained::{Retained, Turn},
    store::TableId,
};

/// What one store keeps of turns that wait. Older ones are known as a whole.
const KEPT_BYTES_MAX: usize = 16 << 20;

/// Turns that are durable and not acknowledged, in the order of the log.
pub(crate) struct Waiting {
    /// Everything before it is acknowledged.
    pub acknowledged: u64,
    turns: VecDeque<Turn>,
    /// Of all turns.
    memory_bytes: usize,
    /// Before it any row may have changed.
    whole_before: u64,
    rows: WaitingRows,
    /// What `rows` is of: reads at which end, and the last turn.
    made_for: Option<(u64, u64)>,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            acknowledged: u64::MAX,
            turns: VecDeque::new(),
            memory_bytes: 0,
            whole_before: 0,
            rows: WaitingRows::default(),
            made_for: None,
        }
    }
}

/// Rows whose last write a read must not show.
#[derive(Default)]
pub(crate) struct WaitingRows {
    /// Of all tables.
    is_whole: bool,
    /// By table and record id, ascending.
    rows: Vec<u64>,
    /// Tables whose writes may have taken a row away from where a read looks for it, ascending.
    hiding: Vec<u16>,
    has_met: AtomicBool,
}

impl Waiting {
    /// Keeps a durable turn until it is acknowledged.
    pub fn push(&mut self, mut turn: Turn) {
        turn.bytes.clear();
        turn.garbage.clear();
        self.memory_bytes += turn.memory_bytes();
        self.turns.push_back(turn);
        while self.memory_bytes > KEPT_BYTES_MAX
            && let Some(turn) = self.turns.pop_front()
        {
            self.memory_bytes -= turn.memory_bytes();
            self.hold_all(turn.end());
        }
    }

    /// The oldest turn, if it is acknowledged.
    #[inline]
    pub fn take_acknowledged(&mut self) -> Option<Turn> {
        let acknowledged = self.acknowledged;
        let turn = self.turns.pop_front_if(|turn| turn.end() <= acknowledged)?;
        self.memory_bytes -= turn.memory_bytes();
        Some(turn)
    }

    pub fn hold_all(&mut self, end: u64) {
        self.whole_before = self.whole_before.max(end);
        self.made_for = None;
    }

    /// The rows of a read that shows what is before `end`; `retained`: turns that are not durable.
    pub fn rows_behind(&mut self, end: u64, retained: &Retained) -> &WaitingRows {
        let turns = || self.turns.iter().chain(retained.turns());
        let made_for = (end, turns().last().map_or(0, Turn::end));
        if self.made_for != Some(made_for) {
            let waiting = || turns().filter(|turn| turn.end() > end).flat_map(|turn| &turn.ops);
            let mut rows: Vec<u64> = waiting().map(Undo::row).collect();
            let mut hiding: Vec<u16> = waiting().filter(|undo| may_hide(undo)).map(|undo| undo.table).collect();
            rows.sort_unstable();
            rows.dedup();
            hiding.sort_unstable();
            hiding.dedup();
            self.rows = WaitingRows {
                is_whole: self.whole_before > end,
                rows,
                hiding,
                has_met: AtomicBool::new(false),
            };
            self.made_for = Some(made_for);
        }
        &self.rows
    }

    /// Whether a read met a waiting write since this was asked last.
    pub fn take_met(&self) -> bool {
        self.rows.has_met.swap(false, Ordering::Relaxed)
    }

    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}

/// Whether a look-up may miss a row for this change. One that only adds a row, or changes no key, hides none.
fn may_hide(undo: &Undo) -> bool {
    match undo.kind {
        UndoKind::Insert | UndoKind::Add => false,
        UndoKind::Delete | UndoKind::Move | UndoKind::Patch | UndoKind::Columns => true,
    }
}

impl WaitingRows {
    /// A read looks at a row.
    pub fn on_row(&self, table: TableId, rid: Rid) {
        let row = u64::from(table.0) << 32 | u64::from(rid.0);
        if self.is_whole || self.rows.binary_search(&row).is_ok() {
            self.has_met.store(true, Ordering::Relaxed);
        }
    }

    /// A read finds no row, or several of a range.
    pub fn on_range(&self, table: TableId) {
        if self.is_whole || self.hiding.binary_search(&table.0).is_ok() {
            self.has_met.store(true, Ordering::Relaxed);
        }
    }
}
