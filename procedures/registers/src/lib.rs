//! The sample module `registers`: numbers by id, read and written in sets that may lie on several partitions.
//! Owns: the table `registers` and the procedures `read`, `write`, `rotate`, `all`.
//! Does not: know partitions; every item of the list `ids` names one.
//! Invariants: `rotate` changes which register holds which value, not the values.
//! Called by: users of the sample, the history tests.
#![deny(unsafe_code)]

use reprise_procedure::prelude::*;

/// A register, placed by its id.
#[table(name = "registers", primary_key(id), partition_by = id)]
#[derive(Clone, Debug, PartialEq)]
pub struct Register {
    pub id: i64,
    pub value: i64,
}

/// The answer of `all`.
#[derive(Clone, Copy, Debug, PartialEq, ProcedureStruct)]
pub struct Entry {
    pub id: i64,
    pub value: i64,
}

/// The values of some registers at one point in time; none for one that does not exist.
#[procedure(partition_by(ids), read_only)]
pub fn read(tx: &Txn, ids: Vec<i64>) -> Vec<Option<i64>> {
    ids.iter()
        .map(|id| Register::get(tx, *id).map(|row| row.value))
        .collect()
}

/// Sets registers one after the other, or removes them; answers what each held before. With `abort` it undoes all of it.
#[procedure(partition_by(ids))]
pub fn write(tx: &Txn, ids: Vec<i64>, values: Vec<Option<i64>>, abort: bool) -> Result<Vec<Option<i64>>, Abort> {
    if ids.len() != values.len() {
        return Err(Abort::new("lengths_differ", "there is one value for each id"));
    }
    let mut before = Vec::new();
    for (id, value) in ids.iter().zip(values) {
        before.push(put(tx, *id, value)?);
    }
    match abort {
        false => Ok(before),
        true => Err(Abort::new("asked_to", "the call asked for its own end")),
    }
}

/// Moves each register's value to the one before it in the list, and the first one's to the last. Returns the old values. Before that, it
/// removes all registers and gives every other one a meaningless value, and then rolls this back.
#[procedure(partition_by(ids))]
pub fn rotate(tx: &Txn, ids: Vec<i64>) -> Result<Vec<Option<i64>>, Abort> {
    let before: Vec<_> = ids
        .iter()
        .map(|id| Register::get(tx, *id).map(|row| row.value))
        .collect();
    let begun = tx.savepoint();
    for id in &ids {
        put(tx, *id, None)?;
    }
    for (at, id) in ids.iter().enumerate().step_by(2) {
        put(tx, *id, Some(at as i64))?;
    }
    tx.rollback_to(begun);
    for (at, id) in ids.iter().enumerate() {
        put(tx, *id, before[(at + 1) % before.len()])?;
    }
    Ok(before)
}

/// All registers at one point in time, by id.
#[procedure(all_partitions, read_only)]
pub fn all(tx: &Txn) -> Vec<Entry> {
    let entry = |row: Row<Register>| Entry {
        id: row.id,
        value: row.value,
    };
    Register::scan(tx).into_iter().map(entry).collect()
}

/// Sets or removes a register, and returns its value before.
fn put(tx: &Txn, id: i64, value: Option<i64>) -> Result<Option<i64>, Abort> {
    let found = Register::get(tx, id);
    let before = found.as_ref().map(|row| row.value);
    match (found, value) {
        (Some(mut row), Some(value)) => {
            row.value = value;
            row.update(tx)?;
        }
        (Some(row), None) => row.delete(tx),
        (None, Some(value)) => {
            Register::insert(tx, &Register { id, value })?;
        }
        (None, None) => {}
    }
    Ok(before)
}

reprise_procedure::module! {
    tables: [Register],
    procedures: [read, write, rotate, all],
}
