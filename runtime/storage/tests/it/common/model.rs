//! The store's model: a sorted map per table, copied whole for every savepoint.

use std::collections::BTreeMap;

use reprise_abi::{Field, RowLayout, ScanFlags, TableSchema};
use reprise_storage::Range;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelTable {
    pub schema: TableSchema,
    pub layout: RowLayout,
    /// Rows by encoded primary key, or by hidden number.
    pub rows: BTreeMap<Vec<u8>, Vec<u8>>,
    next_number: u64,
}

impl ModelTable {
    pub fn new(schema: TableSchema) -> Self {
        Self {
            layout: RowLayout::of_table(&schema),
            schema,
            rows: BTreeMap::new(),
            next_number: 0,
        }
    }

    pub fn key_of(&self, row: &[u8], columns: &[u16]) -> Vec<u8> {
        let mut key = Vec::new();
        self.layout.push_key(row, columns, &mut key);
        key
    }

    fn columns(&self, index: usize) -> &[u16] {
        match index {
            0 => &self.schema.primary_key,
            _ => &self.schema.indexes[index - 1].columns,
        }
    }

    pub fn index_count(&self) -> usize {
        1 + self.schema.indexes.len()
    }

    /// The index's own key of a row stored under `pk`.
    pub fn index_key(&self, index: usize, pk: &[u8], row: &[u8]) -> Vec<u8> {
        if index == 0 {
            pk.to_vec()
        } else {
            self.key_of(row, self.columns(index))
        }
    }

    /// Entries of an index in its order: (own key, primary key).
    pub fn entries(&self, index: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        let key = |(pk, row): (&Vec<u8>, &Vec<u8>)| (self.index_key(index, pk, row), pk.clone());
        let mut entries: Vec<_> = self.rows.iter().map(key).collect();
        entries.sort();
        entries
    }

    /// Primary keys of a range in its direction.
    pub fn range(&self, index: usize, range: &Range<'_>) -> Vec<Vec<u8>> {
        let compare = |key: &[u8], bound: &[u8]| {
            let mut key = key.to_vec();
            key.resize(key.len().max(bound.len()), 0);
            key[..bound.len()].cmp(bound)
        };
        let is_inside = |key: &[u8]| {
            let low = compare(key, range.lower);
            let high = compare(key, range.upper);
            let low_out = low.is_lt() || low.is_eq() && range.flags.has(ScanFlags::LOWER_EXCLUSIVE);
            let high_out = high.is_gt() || high.is_eq() && range.flags.has(ScanFlags::UPPER_EXCLUSIVE);
            !low_out && !high_out
        };
        let inside = self.entries(index).into_iter().filter(|(key, _)| is_inside(key));
        let mut keys: Vec<_> = inside.map(|(_, pk)| pk).collect();
        if range.flags.has(ScanFlags::REVERSE) {
            keys.reverse();
        }
        keys
    }

    /// The first index in which another row than `own` has a key of `row`.
    fn duplicate(&self, row: &[u8], own: Option<&[u8]>) -> Option<u16> {
        (0..self.index_count()).find_map(|index| {
            let is_unique = match index {
                0 => !self.schema.primary_key.is_empty(),
                _ => self.schema.indexes[index - 1].unique,
            };
            let key = self.key_of(row, self.columns(index));
            let is_taken = |(pk, other): (&Vec<u8>, &Vec<u8>)| {
                Some(&pk[..]) != own && self.key_of(other, self.columns(index)) == key
            };
            (is_unique && self.rows.iter().any(is_taken)).then_some(index as u16)
        })
    }

    /// The new row's primary key, or the index that refuses it.
    pub fn insert(&mut self, row: &[u8]) -> Result<Vec<u8>, u16> {
        if let Some(index) = self.duplicate(row, None) {
            return Err(index);
        }
        let mut pk = self.key_of(row, &self.schema.primary_key);
        if self.schema.primary_key.is_empty() {
            pk = self.next_number.to_be_bytes().to_vec();
            self.next_number += 1;
        }
        self.rows.insert(pk.clone(), row.to_vec());
        Ok(pk)
    }

    pub fn update(&mut self, pk: &[u8], row: &[u8]) -> Result<Vec<u8>, u16> {
        if let Some(index) = self.duplicate(row, Some(pk)) {
            return Err(index);
        }
        self.rows.remove(pk);
        let new = match self.schema.primary_key.is_empty() {
            true => pk.to_vec(),
            false => self.key_of(row, &self.schema.primary_key),
        };
        self.rows.insert(new.clone(), row.to_vec());
        Ok(new)
    }

    /// Returns the row with `delta` added to an integer column, or None if that is an error.
    pub fn added(&self, pk: &[u8], column: u16, delta: i64) -> Option<(Vec<u8>, i64)> {
        let slot = self.layout.columns.get(column as usize)?;
        let is_indexed = (0..self.index_count()).any(|index| self.columns(index).contains(&column));
        if is_indexed || !slot.ty.is_integer() {
            return None;
        }
        let row = &self.rows[pk];
        let columns = 0..self.layout.columns.len() as u16;
        let mut fields: Vec<_> = columns.map(|c| self.layout.field(row, c)).collect();
        let bits = 8 * slot.ty.slot_bytes() as u32;
        let (field, sum) = match fields[column as usize] {
            Field::Int(value) => {
                let sum = value as i128 + delta as i128;
                let limit = 1i128 << (bits - 1);
                (-limit..limit)
                    .contains(&sum)
                    .then_some((Field::Int(sum as i64), sum as i64))?
            }
            Field::Uint(value) => {
                let sum = value as i128 + delta as i128;
                (0..1i128 << bits)
                    .contains(&sum)
                    .then_some((Field::Uint(sum as u64), sum as i64))?
            }
            _ => return None,
        };
        fields[column as usize] = field;
        Some((self.layout.build(&fields), sum))
    }
}
