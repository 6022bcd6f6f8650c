//! Redo of many transactions' changes, table by table: no constraint of the schema reaches over two tables, so each may be at
//! another place of the log until all are at its end.

use reprise_wire::{Change, RowName};

use crate::{
    apply::{ApplyError, Near, Target},
    indirection::{NO_RID, Rid},
    keyplan::Scratch,
    store::Store,
    table::{Table, WriteError},
};

/// Changes whose memory is waited for together.
const GROUP: usize = 32;

/// A table to which changes are applied beside those of other tables.
pub struct TableRedo<'s> {
    table: &'s mut Table,
    scratch: Scratch,
}

impl Store {
    /// All tables, in the order of their ids. Between transactions, and where neither undo is retained nor a snapshot copied.
    pub fn redos(&mut self) -> Vec<TableRedo<'_>> {
        self.assert_no_undo();
        assert!(
            self.snapshot.is_none(),
            "tables are not copied while they are made"
        );
        let tables = self.tables.iter_mut();
        let redos = tables.map(|table| TableRedo {
            table,
            scratch: Scratch::default(),
        });
        redos.collect()
    }
}

impl TableRedo<'_> {
    /// Applies `count` changes of this table in the order of the log, each with a number of its transaction, growing; `change`
    /// is asked for one a few times. The error comes with the number that it belongs to; the table is of no use then.
    pub fn apply<'c>(
        &mut self,
        count: usize,
        change: impl Fn(usize) -> (u32, Change<'c>),
    ) -> Result<(), (u32, ApplyError)> {
        let mut hints = [NO_RID; GROUP];
        let mut at = 0;
        while at < count {
            let group = at..count.min(at + GROUP);
            let is_far = self.table.is_far();
            if is_far {
                self.bring_near(group.clone().map(|at| change(at).1), &mut hints);
            }
            while at < group.end {
                let (txn, next) = change(at);
                let hint = match is_far {
                    true => hints[at - group.start],
                    false => NO_RID,
                };
                match self.apply_one(&next, hint) {
                    Ok(()) => at += 1,
                    Err(ApplyError::Row {
                        error: WriteError::Duplicate { .. },
                        ..
                    }) => {
                        // What is left of the transaction may give up the unique value in question.
                        let end = (at..count).find(|at| change(*at).0 != txn);
                        let rest = at..end.unwrap_or(count);
                        at = rest.end;
                        self.apply_at_once(rest.map(|at| change(at).1))
                            .map_err(|error| (txn, error))?;
                    }
                    Err(error) => return Err((txn, error)),
                }
            }
        }
        Ok(())
    }

    /// Asks for what the changes will look at, each step for all of them before the next; where their rows probably are.
    #[inline]
    fn bring_near<'c>(
        &self,
        changes: impl Iterator<Item = Change<'c>> + Clone,
        hints: &mut [u32; GROUP],
    ) {
        let index = &self.table.indexes[0];
        // Of a tree the way down is not worth going twice.
        if !index.is_ordered() {
            for change in changes.clone() {
                self.table.touch_change(&change, Near::Index);
            }
        }
        for (change, hint) in changes.zip(hints.iter_mut()) {
            *hint = NO_RID;
            let name = match change {
                Change::Insert { .. } => continue,
                Change::Replace { name, .. }
                | Change::Patch { name, .. }
                | Change::Delete { name, .. } => name,
            };
            let found = match name {
                RowName::Key(key) => index.candidate_near(key),
                RowName::Number(number) => index.candidate_near(&number.to_be_bytes()),
            };
            if let Some(rid) = found {
                self.table.rows.touch_place(rid);
                *hint = rid.0;
            }
        }
        for hint in hints.iter().filter(|hint| **hint != NO_RID) {
            self.table.rows.touch(Rid(*hint));
        }
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
    fn apply_at_once<'c>(
        &mut self,
        changes: impl Iterator<Item = Change<'c>>,
    ) -> Result<(), ApplyError> {
        let again = changes.map(|change| self.table.last_state(&change));
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
