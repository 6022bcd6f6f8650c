//! Redo of many transactions' changes, table by table: no constraint of the schema reaches over two tables, so each may be at
//! another place of the log until all are at its end.

mod list;
mod run;

use std::ops::Range;

use reprise_abi::ScalarType;
use reprise_wire::{Change, PatchColumns, RowName};

use crate::{
    apply::{ApplyError, Target},
    indirection::{NO_RID, Rid},
    keyplan::{RowRef, Scratch},
    store::Store,
    table::{Table, WriteError},
};

pub use list::{Found, LastWrites, REDO_WINDOW_BYTES_MAX, RedoList};

/// Changes whose memory is waited for together.
const GROUP: usize = 32;
/// Rows from which on a table is taken not to be near: others work on other tables in between, maybe on another core.
const FAR_ROWS: u64 = 512;

/// Insertions whose tags are known ahead.
const AHEAD: usize = 2 * GROUP;

/// Tags of insertions to come, by their position in the list.
struct Ahead([(u32, u32); AHEAD]);

impl Default for Ahead {
    fn default() -> Self {
        Self([(u32::MAX, 0); AHEAD])
    }
}

impl Ahead {
    #[inline]
    fn note(&mut self, at: usize, tag: Option<u32>) {
        self.0[at % AHEAD] = match tag {
            Some(tag) => (at as u32, tag),
            None => (u32::MAX, 0),
        };
    }

    #[inline]
    fn tag(&self, at: usize) -> Option<u32> {
        let (of, tag) = self.0[at % AHEAD];
        (of == at as u32).then_some(tag)
    }
}

/// A table to which changes are applied beside those of other tables.
pub struct TableRedo<'s> {
    id: u16,
    has_number: bool,
    table: &'s mut Table,
    scratch: Scratch,
}

impl Store {
    /// All tables, in the order of their ids. Between transactions, and where neither undo is retained nor a snapshot copied.
    pub fn redos(&mut self) -> Vec<TableRedo<'_>> {
        self.assert_no_undo();
        assert!(self.snapshot.is_none(), "tables are not copied while they are made");
        let tables = (0..).zip(&mut self.tables);
        let redos = tables.map(|(id, table)| TableRedo {
            id,
            has_number: table.has_number(),
            table,
            scratch: Scratch::default(),
        });
        redos.collect()
    }
}

impl TableRedo<'_> {
    /// Columns of which the last value is all that counts: no index holds them, and whatever has their length is a value.
    pub fn overwritable(&self) -> u64 {
        let columns = self.table.layout.columns.iter().take(64).enumerate();
        let bools = columns.filter(|(_, slot)| slot.ty == ScalarType::Bool);
        let bools = bools.fold(0, |set, (at, _)| set | 1 << at);
        self.table.plain_columns & !bools
    }

    /// So many more rows will probably come: indexes are made ready for them, as far as that costs little if they do not.
    pub fn expect(&mut self, more: u64) {
        let entries = self.table.rows.count().saturating_add(more) as usize;
        self.table.indexes.iter_mut().for_each(|index| index.expect(entries));
    }

    /// Applies the changes that a window holds of this table. The error comes with the number of the transaction that it belongs
    /// to; the table is of no use then.
    pub fn apply(&mut self, window: &[u8], list: &RedoList) -> Result<(), (u32, ApplyError)> {
        let mut hints = [NO_RID; GROUP];
        let mut ahead = Ahead::default();
        (0..AHEAD).for_each(|at| ahead.note(at, self.touch_row(window, list, at)));
        let has_runs = run::has_runs(self.table);
        let mut at = 0;
        while at < list.len() {
            if has_runs {
                at = run::insert(self.table, window, list, at);
            }
            let group = at..list.len().min(at + GROUP);
            let is_far = self.table.rows.count() >= FAR_ROWS;
            if is_far {
                self.prefetch(window, list, group.clone(), &mut hints);
            }
            while at < group.end {
                let tag = ahead.tag(at);
                if is_far {
                    if let Some(tag) = ahead.tag(at + GROUP) {
                        self.table.indexes[0].touch_tag(tag);
                    }
                    ahead.note(at + AHEAD, self.touch_row(window, list, at + AHEAD));
                }
                let hint = if is_far { hints[at - group.start] } else { NO_RID };
                let applied = if let Some(row) = list.row(window, at)
                    && !self.has_number
                {
                    self.insert(row, tag)
                } else if let Some((name, columns)) = list.patch(window, at) {
                    self.patch(name, columns, hint)
                } else {
                    self.apply_one(&list.change(window, at, self.id), hint)
                };
                match applied {
                    Ok(()) => at += 1,
                    Err(ApplyError::Row {
                        error: WriteError::Duplicate { .. },
                        ..
                    }) => {
                        // What is left of the transaction may give up the unique value in question.
                        let rest = list.rest_of_txn(at);
                        let changes = rest.clone().map(|at| list.change(window, at, self.id));
                        let changes: Vec<_> = changes.collect();
                        self.apply_at_once(&changes).map_err(|error| (list.txn(at), error))?;
                        at = rest.end;
                    }
                    Err(error) => return Err((list.txn(at), error)),
                }
            }
        }
        Ok(())
    }

    /// Asks for what an insertion to come is written to, in its first step (`Index::touch_of`), and for what one behind it is read
    /// from.
    #[inline]
    fn touch_row(&self, window: &[u8], list: &RedoList, at: usize) -> Option<u32> {
        list.prefetch_line(window, at + GROUP);
        let row = list.row(window, at)?;
        if row.len() < self.table.layout.fixed_bytes() {
            return None;
        }
        self.table.rows.touch_end();
        self.table.indexes[0].touch_of(RowRef { row, number: 0 })
    }

    #[inline]
    fn insert(&mut self, row: &[u8], tag: Option<u32>) -> Result<(), ApplyError> {
        let loaded = match tag {
            Some(tag) if self.table.indexes.len() == 1 => self.table.load_tagged(row, tag),
            _ => self.table.load(row, 0, &mut self.scratch),
        };
        loaded.map_err(|error| self.table.unfit(error))
    }

    /// Asks for what changes of rows will look at, each step for all of them before the next; where their rows probably are.
    #[inline]
    fn prefetch(&self, window: &[u8], list: &RedoList, group: Range<usize>, hints: &mut [u32; GROUP]) {
        let index = &self.table.indexes[0];
        // Of a tree the way down is not worth going twice.
        let is_touched = !index.is_ordered();
        let mut keys: [&[u8]; GROUP] = [&[]; GROUP];
        *hints = [NO_RID; GROUP];
        for (place, at) in group.enumerate() {
            if list.row(window, at).is_some() {
                continue;
            }
            let name = match list.patch(window, at) {
                Some((name, _)) => name,
                None => match list.change(window, at, self.id) {
                    Change::Insert { .. } => continue,
                    Change::Replace { name, .. } | Change::Patch { name, .. } | Change::Delete { name, .. } => name,
                },
            };
            match name {
                RowName::Key(key) => {
                    if is_touched {
                        index.touch(key);
                    }
                    keys[place] = key;
                }
                RowName::Number(number) => {
                    hints[place] = self.prefetch_place(&number.to_be_bytes());
                }
            }
        }
        for (key, hint) in keys.iter().zip(hints.iter_mut()) {
            if !key.is_empty() {
                *hint = self.prefetch_place(key);
            }
        }
        for hint in hints.iter().filter(|hint| **hint != NO_RID) {
            self.table.rows.touch(Rid(*hint));
        }
    }

    /// The row that the key probably names; where it stands at which place it lies is asked for.
    #[inline]
    fn prefetch_place(&self, key: &[u8]) -> u32 {
        let Some(rid) = self.table.indexes[0].candidate_prefetch(key) else {
            return NO_RID;
        };
        self.table.rows.touch_place(rid);
        rid.0
    }

    #[inline]
    fn patch(&mut self, name: RowName<'_>, columns: PatchColumns<'_>, hint: u32) -> Result<(), ApplyError> {
        let rid = match self.table.is_named(Rid(hint), name) {
            true => Rid(hint),
            false => self.table.named(name)?,
        };
        self.table.put_columns(rid, columns, &mut self.scratch)
    }

    #[inline]
    fn apply_one(&mut self, change: &Change<'_>, hint: u32) -> Result<(), ApplyError> {
        let target = match self.table.is_row_of(Rid(hint), change) {
            true => Target::Row(Rid(hint)),
            false => self.table.target(change)?,
        };
        self.table.carry_out(change, target, &mut self.scratch)?;
        Ok(())
    }

    /// Applies changes of one transaction with all its rows out of the indexes first.
    #[cold]
    fn apply_at_once(&mut self, changes: &[Change<'_>]) -> Result<(), ApplyError> {
        let again = changes.iter().map(|change| self.table.last_state(change));
        let again = again.collect::<Result<Vec<_>, _>>()?;
        for rid in again.iter().filter_map(|entry| entry.rid) {
            self.table.check_live(rid)?;
            self.table.take_out(rid, &mut self.scratch);
        }
        for entry in &again {
            let Some(row) = &entry.row else { continue };
            let put = self.table.put_new(row, entry.number, &mut self.scratch);
            put.map_err(|error| self.table.unfit(error))?;
        }
        Ok(())
    }
}
