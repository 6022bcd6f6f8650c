//! Replay arrays (Query Fresh, sections 3.2 and 3.3). Replay records the place of the newest change of each row, and builds no row. A reader builds a
//! row that it needs from the changes, and installs it.
//!
//! Changes here are patches as well as whole rows, so each one keeps the place of the row's previous change. Indexes are left out. The cost of an
//! insertion, a deletion or a new key there is beside this in any replay.

use anyhow::{Context, Result, bail};
use reprise_abi::{RowLayout, row::ColumnSlot};
use reprise_wire::{Change, ChangeSink, Changes, PatchColumns, RawRecords, RecordEffect};

/// Rows of one table of one partition, by their numbers.
#[derive(Default)]
struct TableArray {
    /// One more than the position in `changes` of the newest change; 0: none came.
    newest: Vec<u32>,
}

/// A change that was replayed.
#[derive(Clone, Copy)]
struct Noted {
    /// Its beginning in the fed log.
    place: u64,
    /// The change before it of the same row, numbered as `TableArray::newest`.
    before: u32,
}

/// The changes as replay leaves them.
#[derive(Default)]
pub struct ReplayArrays {
    /// By partition and table.
    tables: Vec<Vec<TableArray>>,
    changes: Vec<Noted>,
}

/// The table and the number of a changed row.
struct Named;

impl ChangeSink<'_> for Named {
    type Out = (u16, u64);

    #[inline(always)]
    fn take(self, _: usize, change: Change<'_>) -> Self::Out {
        (change.table(), change.number())
    }
}

impl ReplayArrays {
    /// Notes the changes of one partition, which begin at `place`.
    #[inline]
    pub fn add(&mut self, partition: usize, place: u64, changes: &[u8]) -> Result<()> {
        if self.tables.len() <= partition {
            self.tables.resize_with(partition + 1, Vec::new);
        }
        let tables = &mut self.tables[partition];
        let mut walk = Changes::new(changes);
        loop {
            let at = place + walk.offset() as u64;
            let Some(named) = walk.next_into(Named) else {
                return Ok(());
            };
            let (table, number) = named?;
            let (table, number) = (table as usize, number as usize);
            if tables.len() <= table {
                tables.resize_with(table + 1, TableArray::default);
            }
            let newest = &mut tables[table].newest;
            if newest.len() <= number {
                newest.resize((number + 1).next_power_of_two(), 0);
            }
            let before = std::mem::replace(&mut newest[number], self.changes.len() as u32 + 1);
            self.changes.push(Noted { place: at, before });
        }
    }

    /// Notes whole records, which begin at `place` in a log; how many transactions they end.
    pub fn add_records(&mut self, place: u64, records: &[u8]) -> Result<u64> {
        let at = |changes: &[u8]| place + (changes.as_ptr() as u64 - records.as_ptr() as u64);
        let mut transactions = 0;
        for record in RawRecords::new(records) {
            let record = record?;
            if let Some((txn_id, changes)) = record.plain_changes() {
                transactions += 1;
                self.add(txn_id.origin() as usize, at(changes), changes)?;
                continue;
            }
            let record = record.decode()?;
            let facts = record.facts();
            if facts.effect == RecordEffect::Call {
                bail!("replay arrays take changes, and the log holds commands");
            }
            transactions += u64::from(facts.effect == RecordEffect::Rows && facts.standalone);
            for (partition, changes) in record.groups() {
                self.add(partition.index(), at(changes), changes)?;
            }
        }
        Ok(transactions)
    }

    /// Changes that were noted.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// The rows of a table that were changed, by number.
    pub fn changed(&self, partition: usize, table: usize) -> impl Iterator<Item = u64> + '_ {
        let newest = self.tables.get(partition).and_then(|tables| tables.get(table));
        let newest = newest.map_or(&[][..], |table| &table.newest);
        let changed = newest.iter().enumerate().filter(|(_, newest)| **newest > 0);
        changed.map(|(number, _)| number as u64)
    }

    /// The position of a row's newest change, of which a reader keeps what it built; 0: none came.
    #[inline]
    pub fn newest(&self, partition: usize, table: usize, number: u64) -> u32 {
        let newest = self.tables.get(partition).and_then(|tables| tables.get(table));
        newest.map_or(0, |table| table.newest.get(number as usize).copied().unwrap_or(0))
    }

    /// Changes of a row of the first partition, on average.
    pub fn chain(&self, rows: &mut dyn Iterator<Item = (usize, u64)>) -> f64 {
        let (mut count, mut changes) = (0u64, 0u64);
        for (table, number) in rows {
            count += 1;
            let mut at = self.newest(0, table, number);
            while let Some(position) = at.checked_sub(1) {
                changes += 1;
                at = self.changes[position as usize].before;
            }
        }
        changes as f64 / count.max(1) as f64
    }

    /// Builds a row from its changes in `log` and from what it was before them. False: it is deleted, or never was.
    pub fn build(
        &self,
        newest: u32,
        log: &[u8],
        layout: &RowLayout,
        before: Option<&[u8]>,
        row: &mut Vec<u8>,
    ) -> Result<bool> {
        row.clear();
        let mut patches = [0u64; PATCHES_MAX];
        let (mut count, mut more, mut at) = (0, Vec::new(), newest);
        let is_there = loop {
            let Some(noted) = at.checked_sub(1).map(|at| self.changes[at as usize]) else {
                row.extend_from_slice(before.unwrap_or_default());
                break before.is_some();
            };
            match read(log, noted.place)? {
                Change::Insert { row: whole, .. } | Change::Replace { row: whole, .. } => {
                    row.extend_from_slice(whole);
                    break true;
                }
                Change::Delete { .. } => break false,
                Change::Patch { .. } if count < PATCHES_MAX => patches[count] = noted.place,
                Change::Patch { .. } => more.push(noted.place),
            }
            (count, at) = (count + 1, noted.before);
        };
        if !is_there {
            return Ok(false);
        }
        let few = patches[..count.min(PATCHES_MAX)].iter().rev();
        for place in more.iter().rev().chain(few) {
            let Change::Patch { columns, .. } = read(log, *place)? else {
                bail!("another change lies where a patch was noted");
            };
            patch(layout, row, columns);
        }
        Ok(true)
    }
}

/// Patches of a row that are found again without memory of their own.
const PATCHES_MAX: usize = 16;

#[inline]
fn read(log: &[u8], place: u64) -> Result<Change<'_>> {
    // Changes have a length of their own; what lies behind this one is not read.
    let bytes = log.get(place as usize..).unwrap_or_default();
    Changes::new(bytes)
        .next()
        .context("no change lies where one was noted")?
        .context("read a noted change")
}

/// Puts columns into a row.
#[inline]
fn patch(layout: &RowLayout, row: &mut Vec<u8>, columns: PatchColumns<'_>) {
    for (column, value) in columns.iter() {
        let slot = &layout.columns[column as usize];
        if slot.is_nullable() {
            let bit = 1 << (slot.null_bit % 8);
            let byte = &mut row[slot.null_bit as usize / 8];
            *byte = if value.is_none() { *byte | bit } else { *byte & !bit };
        }
        if slot.ty.is_variable() {
            patch_variable(layout, row, column as usize, value.unwrap_or_default());
            continue;
        }
        let place = &mut row[slot.offset as usize..][..slot.ty.slot_bytes()];
        match value {
            Some(value) => place.copy_from_slice(value),
            None => place.fill(0),
        }
    }
}

/// Puts data of another length in place: that of the variable columns behind it moves.
fn patch_variable(layout: &RowLayout, row: &mut Vec<u8>, column: usize, value: &[u8]) {
    let end_of = |row: &[u8], slot: &ColumnSlot| {
        let end: [u8; 4] = row[slot.offset as usize..][..4].try_into().expect("4 bytes");
        u32::from_le_bytes(end) as usize
    };
    let before = layout.columns[..column].iter().rev().find(|slot| slot.ty.is_variable());
    let start = before.map_or(0, |slot| end_of(row, slot));
    let end = end_of(row, &layout.columns[column]);
    let data = layout.fixed_bytes();
    row.splice(data + start..data + end, value.iter().copied());
    let behind = layout.columns[column..].iter().filter(|slot| slot.ty.is_variable());
    for slot in behind {
        let moved = (end_of(row, slot) + value.len() - (end - start)) as u32;
        row[slot.offset as usize..][..4].copy_from_slice(&moved.to_le_bytes());
    }
}
