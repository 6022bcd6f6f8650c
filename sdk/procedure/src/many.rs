//! Rows by many keys, read in one host call. Each lies in a slot of its own, so that the compiler knows each offset.

use std::marker::PhantomData;

use reprise_abi::{RowHandle, calls::HANDLE_NONE};

use crate::{
    column::{Columns, has_same_shape},
    key::WholeKey,
    result_writer::ResultWriter,
    scratch::Scratch,
    table::{InModule, IndexOf, Owned, ReadRow, Row, RowBuffer, Table, misfit, read_long, take_row, target},
    txn::Txn,
};

/// A usual key of a length that varies, with that length before it, in bytes.
const KEY_BYTES: usize = 20;
/// Encoded keys, one behind the other.
#[derive(Clone, Copy)]
pub struct KeyBytes<'k> {
    pub bytes: &'k [u8],
    pub count: u32,
}

/// Handle and length before a row.
const HEADER_BYTES: usize = 8;

/// Reads many rows in one host call, in the order of the keys.
pub fn multi_get<T: InModule + IndexOf<I> + Owned, K: WholeKey<<T as IndexOf<I>>::Columns>, const I: u16>(
    tx: &Txn<'_>,
    keys: impl IntoIterator<Item = K>,
) -> Vec<Option<Row<T>>> {
    multi_read(tx, keys).collect()
}

/// Reads rows like `multi_get`, and decodes each when it is used.
#[inline]
pub fn multi_read<T: InModule + IndexOf<I>, K: WholeKey<<T as IndexOf<I>>::Columns>, const I: u16>(
    tx: &Txn<'_>,
    keys: impl IntoIterator<Item = K>,
) -> FoundRows<T> {
    read_many::<T, K, _>(tx, target(T::TABLE, I), T::COLUMNS, keys)
}

/// Columns of the same table that have the types of `T`'s, one by one. The code for them is the same.
#[derive(Clone, Copy)]
pub struct SameLayout<T> {
    columns: Columns,
    of: PhantomData<fn() -> T>,
}

impl<T: InModule + Table> SameLayout<T> {
    /// The columns of `S`.
    pub const fn of<S: InModule + Table>() -> Self {
        assert!(has_same_shape(T::SHAPE, S::SHAPE), "columns of other types");
        assert!(T::TABLE == S::TABLE, "columns of another table");
        Self {
            columns: S::COLUMNS.expect("columns of a table, not its whole rows"),
            of: PhantomData,
        }
    }
}

/// Reads rows like `multi_read`, of columns that are chosen when it is called.
#[inline]
pub fn multi_read_alike<T: InModule + IndexOf<I>, K: WholeKey<<T as IndexOf<I>>::Columns>, const I: u16>(
    tx: &Txn<'_>,
    columns: SameLayout<T>,
    keys: impl IntoIterator<Item = K>,
) -> FoundRows<T> {
    read_many::<T, K, _>(tx, target(T::TABLE, I), Some(columns.columns), keys)
}

#[inline(always)]
fn read_many<T: Table, K: WholeKey<C>, C>(
    tx: &Txn<'_>,
    target: u32,
    columns: Option<Columns>,
    keys: impl IntoIterator<Item = K>,
) -> FoundRows<T> {
    let (keys, slot_bytes) = (keys.into_iter(), slot_bytes::<T>());
    let (slots, long) = match columns {
        Some(columns) if K::BYTES > 0 => {
            return match keys.size_hint() {
                (count, Some(most)) if count == most => read_slots(tx, target, columns, keys, count),
                _ => {
                    let keys: Vec<K> = keys.collect();
                    let count = keys.len();
                    read_slots(tx, target, columns, keys.into_iter(), count)
                }
            };
        }
        columns => {
            let mut bytes = Scratch::for_bytes(KEY_BYTES * keys.size_hint().0);
            let mut count = 0;
            for key in keys {
                bytes.push_with_length(|out| key.push_whole(out));
                count += 1;
            }
            let keys = KeyBytes {
                bytes: bytes.as_slice(),
                count,
            };
            look_up(tx, target, columns, keys, slot_bytes)
        }
    };
    FoundRows::new(slots, long)
}

/// Looks up `count` keys of one length. They lie behind the slots that receive the rows: one block of the heap serves both.
#[inline(always)]
fn read_slots<T: Table, K: WholeKey<C>, C>(
    tx: &Txn<'_>,
    target: u32,
    columns: Columns,
    keys: impl Iterator<Item = K>,
    most: usize,
) -> FoundRows<T> {
    let slot_bytes = slot_bytes::<T>();
    let mut room = vec![0; most * (slot_bytes + K::BYTES)];
    let (slots, behind) = room.split_at_mut(most * slot_bytes);
    let mut writer = ResultWriter::new(behind);
    keys.for_each(|key| key.push_whole(&mut writer));
    let Ok(filled) = writer.finish() else {
        panic!("an iterator of keys has more of them than it says");
    };
    let count = filled / K::BYTES;
    let slots = slots.get_mut(..count * slot_bytes).unwrap_or_default();
    let keys = KeyBytes {
        bytes: behind.get(..filled).unwrap_or(&[]),
        count: count as u32,
    };
    let long = match tx.ops.multi_get_slots(target, keys, columns, slots) {
        0 => Vec::new(),
        _ => read_misfits(tx, columns, slots, slot_bytes),
    };
    room.truncate(count * slot_bytes);
    FoundRows::new(room, long)
}

const fn slot_bytes<T: Table>() -> usize {
    size_of::<T::Buffer>()
}

/// Rows that a slot has no room for, by their handles.
type LongRows = Vec<(RowHandle, Vec<u8>)>;

/// The rows that did not fit their slots, read one by one.
#[cold]
#[inline(never)]
fn read_misfits(tx: &Txn<'_>, columns: Columns, slots: &[u8], slot_bytes: usize) -> LongRows {
    let room = slot_bytes - HEADER_BYTES;
    let headers = slots.chunks_exact(slot_bytes).filter_map(header_of);
    let long = headers.filter(|(_, bytes)| *bytes > room);
    long.map(|(handle, _)| (handle, read_long(tx, handle, Some(columns), 2 * room)))
        .collect()
}

/// The handle, and the bytes of the row.
#[inline(always)]
fn header_of(slot: &[u8]) -> Option<(RowHandle, usize)> {
    let (handle, rest) = slot.split_first_chunk::<4>()?;
    let bytes = u32::from_le_bytes(*rest.first_chunk()?);
    Some((u32::from_le_bytes(*handle), bytes as usize))
}

/// Looks up keys of any length, each with its length before it, and puts the found rows into slots.
#[inline(never)]
fn look_up(
    tx: &Txn<'_>,
    target: u32,
    columns: Option<Columns>,
    keys: KeyBytes<'_>,
    slot_bytes: usize,
) -> (Vec<u8>, LongRows) {
    let (keys, count) = (keys.bytes, keys.count);
    let mut found = vec![0; slot_bytes * count as usize];
    let filled = loop {
        let read = match columns {
            None => tx.ops.multi_get(target, keys, count, &mut found),
            Some(columns) => tx.ops.multi_get_columns(target, keys, columns, &mut found),
        };
        match read {
            Ok(filled) => break filled,
            Err(needed) => found.resize(needed, 0),
        }
    };
    let (mut slots, mut long) = (vec![0; slot_bytes * count as usize], Vec::new());
    let mut rest = found.get(..filled).unwrap_or(&[]);
    for slot in slots.chunks_exact_mut(slot_bytes) {
        let (Some((handle, row)), Some((header, room))) =
            (take_row(&mut rest), slot.split_first_chunk_mut::<HEADER_BYTES>())
        else {
            misfit();
        };
        *header = (u64::from(handle) | (row.len() as u64) << 32).to_le_bytes();
        match room.get_mut(..row.len()) {
            Some(room) => room.copy_from_slice(row),
            None => long.push((handle, row.to_vec())),
        }
    }
    (slots, long)
}

/// Rows that were looked up, one for each key in the keys' order, or None if there was no such row.
pub struct FoundRows<T> {
    /// For each key `[handle u32][bytes u32]` and the row, or the columns chosen of it, if it fits.
    slots: Vec<u8>,
    /// The slots from this one on are still to be handed out.
    at: usize,
    long: LongRows,
    table: PhantomData<fn() -> T>,
}

impl<T: Table> FoundRows<T> {
    #[inline(always)]
    fn new(slots: Vec<u8>, long: LongRows) -> Self {
        Self {
            slots,
            at: 0,
            long,
            table: PhantomData,
        }
    }

    /// The rows that were not handed out yet. Their texts may be borrowed from here.
    #[inline(always)]
    pub fn iter<'r>(&'r self) -> impl ExactSizeIterator<Item = Option<Row<T>>> + use<'r, T>
    where
        T: ReadRow<'r>,
    {
        let slots = T::Buffer::slots(&self.slots).get(self.at..).unwrap_or(&[]);
        slots.iter().map(|slot| self.read(slot))
    }

    /// The row for the key of this slot.
    #[inline(always)]
    fn read<'r>(&'r self, slot: &'r T::Buffer) -> Option<Row<T>>
    where
        T: ReadRow<'r>,
    {
        let (handle, bytes) = header_of(slot.as_ref())?;
        if handle == HANDLE_NONE {
            return None;
        }
        // Each way reads the row for itself: of the usual one the compiler knows how long it is.
        let value = match bytes <= slot_bytes::<T>() - HEADER_BYTES {
            true => T::read_row(slot.as_ref().get(HEADER_BYTES..)?),
            false => T::read_row(self.long_row(handle)),
        };
        Some(Row::new(value.unwrap_or_else(|| misfit()), handle))
    }

    #[cold]
    #[inline(never)]
    fn long_row(&self, handle: RowHandle) -> &[u8] {
        let found = self.long.iter().find(|(long, _)| *long == handle);
        found.map_or(&[], |(_, row)| row)
    }
}

impl<T: Owned> Iterator for FoundRows<T> {
    type Item = Option<Row<T>>;

    #[inline]
    fn next(&mut self) -> Option<Option<Row<T>>> {
        let slot = T::Buffer::slots(&self.slots).get(self.at)?;
        let found = self.read(slot);
        self.at += 1;
        Some(found)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.slots.len() / slot_bytes::<T>() - self.at;
        (left, Some(left))
    }
}
