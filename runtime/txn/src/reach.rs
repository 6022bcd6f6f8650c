//! The rows that a call may read and write: those of its own partitions. The refusal of any other access names the table and the
//! partitions.

use reprise_abi::{OpError, TablePlacement, TableSchema};
use reprise_base::PartitionId;

use crate::{module::TableBinding, ops::guest, run::TxnInput};

/// The kind of a look-up that could reach beyond the call's partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReachKind {
    /// One whole key.
    Key,
    /// A range, of which the call wants only the rows of its own partitions (`ScanFlags::LOCAL`).
    Local,
    /// A range, of which the call wants all rows.
    Range,
}

impl ReachKind {
    pub fn of(flags: reprise_abi::ScanFlags) -> Self {
        match flags.has(reprise_abi::ScanFlags::LOCAL) {
            true => Self::Local,
            false => Self::Range,
        }
    }
}

/// Returns a table as the called module declares it. Retiring tables, which a migration reads, have the numbers behind all others.
fn declaration_of<'a>(input: &TxnInput<'a>, table: u16) -> Option<&'a TableSchema> {
    let schema = &input.module.schema;
    schema.tables.iter().chain(&schema.retiring).nth(table as usize)
}

/// Returns the table's name in the module that was called.
pub(crate) fn name_of<'a>(input: &TxnInput<'a>, table: u16) -> &'a str {
    declaration_of(input, table).map_or("", |table| &table.name)
}

/// Returns the refusal of a row, read or written, that lies on another partition.
#[cold]
pub(crate) fn elsewhere(
    input: &TxnInput<'_>,
    table: u16,
    home: PartitionId,
    held: impl Iterator<Item = PartitionId>,
) -> OpError {
    guest(format!(
        "the row of {} belongs to partition {home}, the call runs on {}",
        name_of(input, table),
        listed(held)
    ))
}

/// Returns the refusal to write back a copy of a row that the call has changed since it was read.
#[cold]
pub(crate) fn outdated(input: &TxnInput<'_>, table: u16) -> OpError {
    guest(format!(
        "the row of {} was changed by this call after it was read: read it again, or add to its columns",
        name_of(input, table)
    ))
}

/// Returns the refusal of a look-up that does not say where its rows lie, in a call that does not have all partitions.
#[cold]
pub(crate) fn unplaced(
    input: &TxnInput<'_>,
    (table, binding): (u16, &TableBinding),
    kind: ReachKind,
    held: impl Iterator<Item = PartitionId>,
) -> OpError {
    let columns = declaration_of(input, table).map_or(&[][..], |table| &table.columns[..]);
    let column = match binding.placement {
        TablePlacement::By(column) => columns.get(column as usize).map_or("", |column| &column.name),
        TablePlacement::Local | TablePlacement::Replicated => "",
    };
    let (what, way_on) = match kind {
        ReachKind::Key => ("key", "read it by a key that does"),
        ReachKind::Local | ReachKind::Range => ("range", "scan_local and count_local see the rows that are there"),
    };
    guest(format!(
        "the {what} does not hold {column}, by which the rows of {} are placed, and the call runs on {}: {way_on}. A procedure over all partitions \
         sees all rows",
        name_of(input, table),
        listed(held)
    ))
}

fn listed(held: impl Iterator<Item = PartitionId>) -> String {
    let names: Vec<String> = held.map(|partition| partition.to_string()).collect();
    match &names[..] {
        [only] => format!("partition {only} alone"),
        several => format!("partitions {}", several.join(", ")),
    }
}
