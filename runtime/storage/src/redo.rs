//! Redoes many transactions' changes of one partition, table by table. No constraint of the schema spans two tables, so each table may be
//! at another place of the log until all are at its end. A snapshot may be copied meanwhile.
//!
//! Within a table, changes are in the log's order, each with the row's last state. If two rows swap unique values, no such order works row
//! by row. Then the remaining rows of the transaction are all taken out first, and put in again in their last state.

mod lend;
mod list;
mod run;

use std::ops::Range;

use reprise_abi::ScalarType;
use reprise_wire::{Change, ChangeSink, Changes, PatchColumns};

use crate::{
    apply::{ApplyError, ChangeTarget},
    indirection::{NO_RID, Rid},
    keyplan::{KeyScratch, StoredRow},
    store::{Store, TableId},
    table::{StoredTable, WriteError},
    views::Touch,
    watchers::Watchers,
};

use list::{ChangePlace, RedoList};

pub use lend::LentTable;
pub use list::{LastWrites, REDO_WINDOW_BYTES_MAX};

/// Number of changes that wait for memory together.
const GROUP: usize = 32;
/// Number of rows from which on a table is assumed to have left the caches. Other work runs in between, maybe on another core.
const FAR_ROWS: u64 = 512;

/// The number of no row.
const NO_NUMBER: u64 = u64::MAX;

/// Number of insertions whose tags are known ahead.
const AHEAD: usize = 2 * GROUP;

/// Tags of future insertions, by their position in the list.
struct Ahead([(u32, u32); AHEAD]);

impl Default for Ahead {
    fn default() -> Self {
        Self([(u32::MAX, 0); AHEAD])
    }
}

impl Ahead {
    #[inline]
    fn record(&mut self, at: usize, tag: Option<u32>) {
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

/// A table to which changes are applied.
struct TableRedo<'s> {
    id: u16,
    table: &'s mut StoredTable,
    scratch: &'s mut KeyScratch,
    watchers: Option<&'s mut Watchers>,
}

/// Changes of one partition, sorted by table, until they are applied. They are in one window, and the numbers of their transactions grow.
#[derive(Default)]
pub struct PartitionRedo {
    /// The list of each table.
    lists: Vec<RedoList>,
    /// The tables with changes to apply, in the order of their first change.
    begun: Vec<TableId>,
}

/// The schema by which changes are sorted into lists: for each table, the columns of which only the last value counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedoSchema {
    overwritable: Vec<u64>,
}

/// Changes of a transaction that do not fit the tables. The tables are unusable then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedoError {
    /// Number of the transaction.
    pub txn: u32,
    /// Why the changes do not fit.
    pub error: ApplyError,
}

impl PartitionRedo {
    /// True if no transaction was begun.
    pub fn is_empty(&self) -> bool {
        self.begun.is_empty()
    }

    /// Returns the number of changes that are left to apply.
    pub fn len(&self) -> usize {
        self.begun.iter().map(|id| self.lists[id.0 as usize].len()).sum()
    }

    /// Adds the changes of transaction number `txn`, which lie at `changes` in the window. Most are insertions and patches, which go to
    /// their lists as they are read. Err: they can't be read, or belong to no table. The changes before the error were added.
    pub fn push(
        &mut self,
        schema: &RedoSchema,
        window: &[u8],
        txn: u32,
        changes: Range<usize>,
        last: &mut LastWrites,
    ) -> Result<(), RedoError> {
        let start = changes.start;
        let mut walk = Changes::new(&window[changes]);
        let at_error = |error: ApplyError| RedoError { txn, error };
        loop {
            let found = ChangePlace {
                txn,
                at: (start + walk.offset()) as u32,
                end: start as u32,
            };
            let demux = Demux {
                redo: self,
                schema,
                last,
                found,
            };
            match walk.next_into(demux) {
                None => return Ok(()),
                Some(Ok(pushed)) => pushed.map_err(at_error)?,
                Some(Err(error)) => return Err(at_error(error.into())),
            }
        }
    }

    #[inline(always)]
    fn list(&mut self, schema: &RedoSchema, table: u16, last: &mut LastWrites) -> Result<&mut RedoList, ApplyError> {
        let at = table as usize;
        if self.lists.get(at).is_none_or(RedoList::is_empty) {
            self.begin_list(schema, table, last)?;
        }
        Ok(&mut self.lists[at])
    }

    #[cold]
    fn begin_list(&mut self, schema: &RedoSchema, table: u16, last: &mut LastWrites) -> Result<(), ApplyError> {
        let count = schema.overwritable.len();
        let at = table as usize;
        if at >= count {
            return Err(ApplyError::Table { table, count });
        }
        if self.lists.len() < count {
            self.lists.resize_with(count, RedoList::default);
        }
        self.lists[at].begin(last.list(), schema.overwritable[at]);
        self.begun.push(TableId(table));
        Ok(())
    }

    /// Applies all changes; the lists are empty then. `growth_times` estimates how many times as many rows will be inserted in the end; 0:
    /// unknown. The indexes are prepared for them, if that costs little in case they never come. Err: the earliest transaction that does
    /// not fit. All changes before it are applied.
    pub fn apply(&mut self, store: &mut Store, window: &[u8], growth_times: f64) -> Result<(), RedoError> {
        store.assert_no_undo();
        let mut failed = Ok(());
        for id in self.begun.drain(..) {
            let list = &mut self.lists[id.0 as usize];
            let redo = TableRedo {
                id: id.0,
                table: &mut store.tables[id.0 as usize],
                scratch: &mut store.journal.scratch,
                watchers: store.watchers.as_deref_mut(),
            };
            failed = earlier(failed, redo.apply(window, list, growth_times));
            list.clear();
        }
        if store.watchers.is_some() {
            store.build_some();
        }
        failed
    }
}

/// The sink that puts a change into the list of its table.
struct Demux<'r> {
    redo: &'r mut PartitionRedo,
    schema: &'r RedoSchema,
    last: &'r mut LastWrites,
    /// The place of the change. Its `end` is the beginning of all changes until `take` adds the offset of this one.
    found: ChangePlace,
}

impl<'w> ChangeSink<'w> for Demux<'_> {
    type Out = Result<(), ApplyError>;

    #[inline(always)]
    fn take(mut self, end: usize, change: Change<'w>) -> Self::Out {
        self.found.end += end as u32;
        let list = self.redo.list(self.schema, change.table(), self.last)?;
        match change {
            Change::Insert { .. } => list.push_row(self.found),
            Change::Patch { number, columns, .. } => list.push_patch(self.found, number, columns, self.last),
            Change::Replace { .. } => list.push(self.found, 0),
            Change::Delete { .. } => list.push(self.found, -1),
        }
        Ok(())
    }
}

/// The sink that applies a change as it is read.
struct ApplyRead<'r, 's> {
    redo: &'r mut TableRedo<'s>,
    hint: u32,
}

impl<'w> ChangeSink<'w> for ApplyRead<'_, '_> {
    type Out = Result<(), ApplyError>;

    #[inline(always)]
    fn take(self, _: usize, change: Change<'w>) -> Self::Out {
        match change {
            Change::Insert { number, row, .. } => self.redo.insert(row, number),
            Change::Patch { number, columns, .. } => self.redo.patch(number, columns, self.hint),
            other => self.redo.apply_one(&other, self.hint),
        }
    }
}

/// The sink that returns the number of a changed row.
struct NumberOf;

impl<'w> ChangeSink<'w> for NumberOf {
    type Out = u64;

    #[inline(always)]
    fn take(self, _: usize, change: Change<'w>) -> u64 {
        change.number()
    }
}

/// Returns the error of the earlier transaction, if both tables have one.
fn earlier(one: Result<(), RedoError>, other: Result<(), RedoError>) -> Result<(), RedoError> {
    match (one, other) {
        (Err(one), Err(other)) if other.txn < one.txn => Err(other),
        (Ok(()), other) => other,
        (one, _) => one,
    }
}

/// Returns the columns of which only the last value counts: no index holds them, and all values have one length.
fn overwritable(table: &StoredTable) -> u64 {
    let columns = table.layout.columns.iter().take(64).enumerate();
    let bools = columns.filter(|(_, slot)| slot.ty == ScalarType::Bool);
    let bools = bools.fold(0, |set, (at, _)| set | 1 << at);
    table.plain_columns & !bools
}

impl Store {
    /// Applies one partition's changes of a record (`Changes`). The caller does so between transactions, and only if no undo is retained.
    pub fn apply(&mut self, changes: &[u8]) -> Result<(), ApplyError> {
        let (mut redo, mut last) = (PartitionRedo::default(), LastWrites::default());
        last.begin(changes.len());
        let pushed = redo.push(&self.redo_schema(), changes, 0, 0..changes.len(), &mut last);
        pushed.map_err(|found| found.error)?;
        redo.apply(self, changes, 0.0).map_err(|found| found.error)
    }

    /// Returns the schema by which changes of these tables are sorted. A deployment changes it.
    pub fn redo_schema(&self) -> RedoSchema {
        RedoSchema {
            overwritable: self.tables.iter().map(overwritable).collect(),
        }
    }
}

impl TableRedo<'_> {
    /// Has each watcher keep the row in its present form.
    #[inline]
    fn keep_before(&mut self, rid: Rid, touch: Touch) {
        if let Some(watchers) = &mut self.watchers {
            watchers.before_change(TableId(self.id), rid, self.table, touch);
        }
    }

    /// Has each watcher skip a new row.
    #[inline]
    fn pass_over(&mut self, rid: Rid) {
        if let Some(watchers) = &mut self.watchers
            && !watchers.defer(TableId(self.id), rid, None, self.table)
        {
            watchers.before_change(TableId(self.id), rid, self.table, Touch::New);
        }
    }

    /// True if a patch of these columns was noted, so that the row is built when it is needed. Otherwise the watchers keep the row as it
    /// is.
    #[cold]
    fn defer_or_keep(&mut self, rid: Rid, columns: PatchColumns<'_>) -> bool {
        let Some(watchers) = &mut self.watchers else {
            return false;
        };
        let is_plain = self.table.fits_plain(columns);
        if is_plain && watchers.defer(TableId(self.id), rid, Some(columns), self.table) {
            return true;
        }
        self.keep_before(rid, if is_plain { Touch::Plain } else { Touch::Any });
        false
    }

    /// Applies a window's changes of this table. `growth_times` is as in `PartitionRedo::apply`.
    fn apply(mut self, window: &[u8], list: &RedoList, growth_times: f64) -> Result<(), RedoError> {
        if growth_times > 0.0 {
            self.expect_rows((list.growth() as f64 * growth_times) as u64);
        }
        let applied = self.apply_list(window, list);
        applied.map_err(|(txn, error)| RedoError { txn, error })
    }

    /// Prepares the indexes for the rows that will probably be added to the table.
    fn expect_rows(&mut self, more: u64) {
        let entries = self.table.rows.count().saturating_add(more) as usize;
        self.table.indexes.iter_mut().for_each(|index| index.expect(entries));
    }

    /// Applies the list. The error comes with the number of its transaction.
    fn apply_list(mut self, window: &[u8], list: &RedoList) -> Result<(), (u32, ApplyError)> {
        let mut hints = [NO_RID; GROUP];
        let mut ahead = Ahead::default();
        (0..AHEAD).for_each(|at| ahead.record(at, self.touch_row(window, list, at)));
        let has_runs = run::has_runs(self.table) && self.watchers.is_none();
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
                if is_far {
                    if let Some(tag) = ahead.tag(at + GROUP) {
                        self.table.indexes[0].touch_tag(tag);
                    }
                    ahead.record(at + AHEAD, self.touch_row(window, list, at + AHEAD));
                }
                let hint = if is_far { hints[at - group.start] } else { NO_RID };
                let redo = &mut self;
                let applied = list.read_into(window, at, ApplyRead { redo, hint });
                match applied {
                    Ok(()) => at += 1,
                    Err(ApplyError::Row {
                        error: WriteError::Duplicate { .. },
                        ..
                    }) => {
                        // Later changes of the transaction may release the unique value in question.
                        let rest = list.rest_of_txn(at);
                        let changes = rest.clone().map(|at| list.change(window, at));
                        let changes: Vec<_> = changes.collect();
                        self.apply_at_once(&changes).map_err(|error| (list.txn(at), error))?;
                        at = rest.end;
                    }
                    Err(error) => return Err((list.txn(at), error)),
                }
            }
        }
        self.table.give_back();
        Ok(())
    }

    /// Prefetches the memory that a future insertion writes to, as its first step (`Index::touch_of`). It also prefetches the bytes from
    /// which a later insertion is read.
    #[inline]
    fn touch_row(&self, window: &[u8], list: &RedoList, at: usize) -> Option<u32> {
        list.prefetch_line(window, at + GROUP);
        let (number, row) = list.row(window, at)?;
        if row.len() < self.table.layout.fixed_bytes() {
            return None;
        }
        self.table.rows.touch_end();
        self.table.indexes[0].touch_of(StoredRow { row, number })
    }

    #[inline]
    fn insert(&mut self, row: &[u8], number: u64) -> Result<(), ApplyError> {
        self.table.check_number(number)?;
        let rid = self.table.rows.next_rid();
        let loaded = self.table.load(row, number, self.scratch);
        loaded.map_err(|error| self.table.unfit(error))?;
        self.pass_over(rid);
        Ok(())
    }

    /// Prefetches the memory that changes of rows will read, each step for all of them before the next. `hints` gets their probable rows.
    #[inline]
    fn prefetch(&self, window: &[u8], list: &RedoList, group: Range<usize>, hints: &mut [u32; GROUP]) {
        let mut numbers = [NO_NUMBER; GROUP];
        *hints = [NO_RID; GROUP];
        for (place, at) in group.enumerate() {
            if list.row(window, at).is_some() {
                continue;
            }
            let number = list.read_into(window, at, NumberOf);
            match self.table.has_number() {
                true => hints[place] = self.prefetch_place(number),
                false => {
                    self.table.rows.touch_number(number);
                    numbers[place] = number;
                }
            }
        }
        for (number, hint) in numbers.iter().zip(hints.iter_mut()) {
            if *number != NO_NUMBER
                && let Some(rid) = self.table.rows.numbered_candidate(*number)
            {
                self.table.rows.touch_place(rid);
                *hint = rid.0;
            }
        }
        for hint in hints.iter().filter(|hint| **hint != NO_RID) {
            self.table.rows.touch(Rid(*hint));
        }
    }

    /// Returns the row that the number probably names, in a table without a primary key. It prefetches the slot with its place.
    #[inline]
    fn prefetch_place(&self, number: u64) -> u32 {
        let Some(rid) = self.table.indexes[0].candidate_prefetch(&number.to_be_bytes()) else {
            return NO_RID;
        };
        self.table.rows.touch_place(rid);
        rid.0
    }

    #[inline]
    fn patch(&mut self, number: u64, columns: PatchColumns<'_>, hint: u32) -> Result<(), ApplyError> {
        let rid = match self.table.is_numbered(Rid(hint), number) {
            true => Rid(hint),
            false => self.table.numbered(number)?,
        };
        if self.watchers.is_some() && self.defer_or_keep(rid, columns) {
            return Ok(());
        }
        self.table.put_columns(rid, columns, self.scratch)
    }

    #[inline]
    fn apply_one(&mut self, change: &Change<'_>, hint: u32) -> Result<(), ApplyError> {
        let target = match self.table.is_row_of(Rid(hint), change) {
            true => ChangeTarget::Row(Rid(hint)),
            false => self.table.target(change)?,
        };
        if let ChangeTarget::Row(rid) = target {
            self.keep_before(rid, Touch::Any);
        }
        if let Some(rid) = self.table.carry_out(change, target, self.scratch)? {
            self.pass_over(rid);
        }
        Ok(())
    }

    /// Applies changes of one transaction with all its rows out of the indexes first.
    #[cold]
    fn apply_at_once(&mut self, changes: &[Change<'_>]) -> Result<(), ApplyError> {
        let mut again = Vec::with_capacity(changes.len());
        for change in changes {
            // The result of a change depends on the present row.
            if let ChangeTarget::Row(rid) = self.table.target(change)? {
                self.keep_before(rid, Touch::Any);
            }
            again.push(self.table.last_state(change)?);
        }
        for rid in again.iter().filter_map(|entry| entry.rid) {
            self.table.check_live(rid)?;
            self.table.take_out(rid, self.scratch);
        }
        for entry in &again {
            let Some(row) = &entry.row else { continue };
            let put = self.table.put_new(row, entry.number, self.scratch);
            let rid = put.map_err(|error| self.table.unfit(error))?;
            self.pass_over(rid);
        }
        Ok(())
    }
}
