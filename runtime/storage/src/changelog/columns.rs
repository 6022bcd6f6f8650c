//! Columns of a changed row: which ones differ, and how they are written.

use reprise_abi::{ColumnSet, RowLayout, row::ColumnSlot};
use reprise_wire::PatchWriter;

use crate::keyplan::NO_PREVIOUS;

/// Number of columns that a `ColumnSet` can name.
pub(super) const NAMED_COLUMNS: usize = 64;

/// Returns the bytes that a column of fixed width adds to a patch, or a few more.
pub(super) fn fixed_bytes(width: usize) -> usize {
    2 + width
}

/// Returns the columns in which two rows differ. None if a column set can't name all of them.
pub(super) fn differing_columns(layout: &RowLayout, old: &[u8], now: &[u8]) -> Option<u64> {
    if old == now {
        return Some(0);
    }
    if layout.columns.len() > NAMED_COLUMNS {
        return None;
    }
    let slots = layout.columns.iter().enumerate();
    let differ = |slot| column_value(layout, old, slot) != column_value(layout, now, slot);
    Some(slots.fold(0, |set, (at, slot)| set | (differ(slot) as u64) << at))
}

/// Returns the bytes of the columns in a patch, or a few more.
#[inline]
pub(super) fn patch_bytes(layout: &RowLayout, columns: ColumnSet, row: &[u8]) -> usize {
    let bytes = columns.positions().map(|at| {
        let slot = &layout.columns[at];
        match slot.ty.is_variable() {
            true => 4 + column_value(layout, row, slot).map_or(0, <[u8]>::len),
            false => fixed_bytes(slot.ty.slot_bytes()),
        }
    });
    bytes.sum()
}

#[inline]
pub(super) fn write_patch(
    out: &mut Vec<u8>,
    table: u16,
    number: u64,
    layout: &RowLayout,
    columns: ColumnSet,
    row: &[u8],
) {
    let mut patch = PatchWriter::begin(out, table, number, columns.0.count_ones() as u16);
    for at in columns.positions() {
        patch.column(at as u16, column_value(layout, row, &layout.columns[at]));
    }
    patch.finish();
}

/// Returns the bytes of a column in a valid row, without the length of a variable column; none for null.
#[inline]
pub(crate) fn column_value<'a>(layout: &RowLayout, row: &'a [u8], slot: &ColumnSlot) -> Option<&'a [u8]> {
    if slot.is_null(row) {
        return None;
    }
    let at = slot.offset as usize;
    if !slot.ty.is_variable() {
        return Some(&row[at..at + slot.ty.slot_bytes()]);
    }
    let read = |at: usize| u32::from_le_bytes(row[at..at + 4].try_into().expect("4 bytes")) as usize;
    let start = match slot.previous {
        NO_PREVIOUS => 0,
        previous => read(previous as usize),
    };
    let data = layout.fixed_bytes();
    Some(&row[data + start..data + read(at)])
}
