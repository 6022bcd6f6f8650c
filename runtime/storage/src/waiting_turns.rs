//! Writes that are durable here and that the server's safety level does not have yet. Their undo is kept, so that a read can be shown the tables without
//! them.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use reprise_abi::ColumnSet;
use reprise_base::MemoryLedger;

use crate::{
    at_view::StoreAtView,
    indirection::Rid,
    journal::{Undo, UndoKind},
    retained_turns::{RetainedTurns, Turn},
    store::Store,
    table::{StoredTable, write_integer},
    views::{IMAGES_VIEW, Views},
};

/// Memory of the undo that one store keeps of waiting writes, and of the rows that it shows by that undo. The oldest undo goes first.
const KEPT_BYTES_MAX: usize = 16 << 20;

/// The stored bytes of each row that waiting writes changed, as they were before. None: there was no row.
pub(crate) type RowImages = BTreeMap<(u16, u32), Option<Vec<u8>>>;

/// Turns that are durable and not acknowledged, in the order of the log.
pub(crate) struct WaitingTurns {
    /// Everything before it is acknowledged.
    pub acknowledged: u64,
    turns: VecDeque<Turn>,
    /// Memory of all turns and of the rows that they hold.
    memory_bytes: usize,
    /// Rows in all turns that went and may be shown.
    removed_rows: usize,
    /// Writes before it may wait whose undo is not kept.
    forgotten_before: u64,
    shown: Option<AcknowledgedTables>,
}

/// The tables as a read sees them that shows the rows before `end`.
struct AcknowledgedTables {
    end: u64,
    /// End of the newest turn.
    newest: u64,
    views: Views,
}

impl Default for WaitingTurns {
    fn default() -> Self {
        Self {
            acknowledged: u64::MAX,
            turns: VecDeque::new(),
            memory_bytes: 0,
            removed_rows: 0,
            forgotten_before: 0,
            shown: None,
        }
    }
}

fn kept_bytes(turn: &Turn) -> usize {
    let rows = turn.garbage.iter().map(|undo| undo.place().len());
    turn.memory_bytes() + rows.sum::<usize>()
}

impl WaitingTurns {
    /// Keeps a durable turn. `take_done` follows.
    #[inline]
    pub fn push(&mut self, turn: Turn) {
        self.memory_bytes += kept_bytes(&turn);
        self.removed_rows += turn.garbage.len();
        self.turns.push_back(turn);
    }

    /// Takes off the oldest turn, if it is acknowledged or there is no room for it.
    #[inline]
    pub fn take_done(&mut self) -> Option<Turn> {
        let (acknowledged, is_full) = (self.acknowledged, self.memory_bytes > KEPT_BYTES_MAX);
        let turn = self.turns.pop_front_if(|turn| is_full || turn.end() <= acknowledged)?;
        self.memory_bytes -= kept_bytes(&turn);
        self.removed_rows -= turn.garbage.len();
        if turn.end() > acknowledged {
            self.forgotten_before = turn.end();
        }
        self.shown = None;
        Some(turn)
    }

    /// Takes off all turns. The undo of writes before `end` is not kept.
    pub fn forget(&mut self, end: u64) -> VecDeque<Turn> {
        self.forgotten_before = self.forgotten_before.max(end);
        (self.memory_bytes, self.removed_rows, self.shown) = (0, 0, None);
        std::mem::take(&mut self.turns)
    }

    /// Whether rows went that a read may be shown.
    pub fn has_garbage(&self) -> bool {
        self.removed_rows > 0
    }

    /// Forgets what reads were shown: writes are taken back.
    pub fn forget_shown(&mut self) {
        self.shown = None;
    }

    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// Returns the versions for a read that shows the rows before `end`. `retained` has the turns that are not durable. None: the undo of a write
    /// behind `end` is not kept.
    pub fn views_at(
        &mut self,
        end: u64,
        retained: &RetainedTurns,
        tables: &mut [StoredTable],
        memory: Option<&Arc<MemoryLedger>>,
    ) -> Option<&mut Views> {
        if self.forgotten_before > end {
            return None;
        }
        let turns = self.turns.iter().chain(retained.turns());
        let newest = turns.clone().next_back().map_or(end, Turn::end).max(end);
        let is_usable = |shown: &AcknowledgedTables| shown.end == end && shown.newest <= newest;
        let shown = self.shown.take().filter(is_usable);
        let shown = self.shown.insert(shown.unwrap_or_else(|| AcknowledgedTables {
            end,
            newest: end,
            views: Views::of_images(memory),
        }));
        if shown.newest < newest {
            // Writes since the last call: a row that was changed before them has its image.
            let before = std::mem::replace(&mut shown.newest, newest);
            let since = turns.rev().take_while(|turn| turn.end() > before);
            let images = images(since, tables);
            if images
                .as_ref()
                .is_none_or(|images| !shown.views.add_images(images, tables, KEPT_BYTES_MAX))
            {
                // Wide rows with little undo: reads wait for the acknowledgement of these writes, and are not tried again before.
                (self.forgotten_before, self.shown) = (newest, None);
                return None;
            }
        }
        self.shown.as_mut().map(|shown| &mut shown.views)
    }
}

/// Takes back the changes of these turns, the newest first, on copies of the rows. None: the copies take too much memory.
fn images<'t>(turns: impl Iterator<Item = &'t Turn>, tables: &mut [StoredTable]) -> Option<RowImages> {
    let (mut images, mut bytes) = (RowImages::new(), 0);
    for turn in turns {
        let mut kept = &turn.bytes[..];
        for undo in turn.ops.iter().rev() {
            let before;
            (kept, before) = kept.split_at(kept.len() - undo.kept_bytes());
            let table = &mut tables[undo.table as usize];
            let image = images.entry((undo.table, undo.rid.0)).or_insert_with(|| {
                let stored = table.stored(undo.rid);
                bytes += stored.as_ref().map_or(0, Vec::len);
                stored
            });
            if bytes > KEPT_BYTES_MAX {
                return None;
            }
            table.undo_in(image, undo, before);
        }
    }
    Some(images)
}

impl StoredTable {
    fn stored(&self, rid: Rid) -> Option<Vec<u8>> {
        self.rows.place(rid).map(|place| self.rows.stored(place).to_vec())
    }

    /// Takes one change back on a copy of the row, as `undo` does in place. `before` are the bytes that the change kept.
    fn undo_in(&mut self, image: &mut Option<Vec<u8>>, undo: &Undo, before: &[u8]) {
        match (undo.kind, image) {
            (UndoKind::Insert, image) => *image = None,
            (UndoKind::Delete | UndoKind::Move, image) => *image = Some(self.rows.stored(undo.place()).to_vec()),
            (UndoKind::Patch, image) => *image = Some(before.to_vec()),
            (UndoKind::Columns, Some(image)) => {
                let written = self.plans.of(&self.layout, ColumnSet(undo.detail)).written();
                let before = &before[..written.len()];
                image[written].copy_from_slice(before);
            }
            (UndoKind::Add, Some(image)) => {
                let before = before.first_chunk().expect("an addition kept 8 bytes");
                write_integer(
                    image,
                    undo.detail as u32,
                    undo.width as usize,
                    u64::from_le_bytes(*before),
                );
            }
            (UndoKind::Columns | UndoKind::Add, None) => unreachable!("a changed row was there"),
        }
    }
}

impl Store {
    /// Records that everything before `end` is acknowledged. The store keeps the undo of durable writes that are not acknowledged
    /// (`Store::as_acknowledged`). Until the first call, every durable write counts as acknowledged. `release_undo` follows.
    #[inline]
    pub fn acknowledge(&mut self, end: u64) {
        self.waiting.acknowledged = end;
    }

    /// Forgets the undo of durable writes. Before `end` any row may have changed without a `seal`: by a recovery, or a deployment.
    pub fn forget_waiting(&mut self, end: u64) {
        for turn in self.waiting.forget(end) {
            self.recycle(turn);
        }
        self.count_undo();
    }

    /// The tables without the writes from `end` on, to be read as those at a view are. None: the undo of such a write is not kept.
    pub fn as_acknowledged(&mut self, end: u64) -> Option<StoreAtView<'_>> {
        self.build_notes();
        let memory = self.memory.as_ref();
        let views = self.waiting.views_at(end, &self.retained, &mut self.tables, memory)?;
        Some(StoreAtView::new(&mut self.tables, Some(views), IMAGES_VIEW))
    }
}
