//! The partition of the rows with a key, if the key holds the partition column.

use std::borrow::Cow;

use reprise_abi::{Field, ScalarType, TablePlacement, TableSchema};
use reprise_base::PartitionId;

use crate::route::partition_of_field;

/// The place of an integer partition column in the keys of an index. With it, most keys are checked without the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPlace {
    offset: usize,
    bytes: usize,
    /// The sign bit of the value, moved to the end of a word; 0 if the value has no sign.
    flip: u64,
}

impl KeyPlace {
    /// Returns the place in a stored index. None if the column is not in it, is no integer, or follows a column without a fixed width.
    pub(crate) fn of(schema: &TableSchema, index: u16) -> Option<Self> {
        let TablePlacement::By(by) = schema.placement else {
            return None;
        };
        let mut offset = 0;
        for at in columns_of(schema, index)? {
            let column = schema.columns.get(*at as usize)?;
            if column.nullable || column.ty.is_variable() {
                return None;
            }
            let bytes = column.ty.slot_bytes();
            if *at == by {
                let flip = match column.ty {
                    ScalarType::Timestamp => 1 << 63,
                    ty if !ty.is_integer() => return None,
                    ScalarType::U8 | ScalarType::U16 | ScalarType::U32 | ScalarType::U64 => 0,
                    _ => 1 << 63,
                };
                return Some(Self { offset, bytes, flip });
            }
            offset += bytes;
        }
        None
    }

    /// Returns the value of a key's partition column, extended by its sign to 64 bits.
    #[inline]
    pub(crate) fn value(&self, key: &[u8]) -> Option<u64> {
        let encoded = key.get(self.offset..self.offset + self.bytes)?;
        let word = encoded.iter().fold(0, |word: u64, byte| word << 8 | *byte as u64);
        let unused = u64::BITS - 8 * self.bytes as u32;
        let word = word << unused ^ self.flip;
        Some(match self.flip {
            0 => word >> unused,
            _ => (word as i64 >> unused) as u64,
        })
    }

    /// Returns the value that all keys between two keys have, if the two agree in it.
    #[inline]
    pub(crate) fn value_between(&self, lower: &[u8], upper: &[u8]) -> Option<u64> {
        let end = self.offset + self.bytes;
        match lower.get(..end)? == upper.get(..end)? {
            true => self.value(lower),
            false => None,
        }
    }
}

fn columns_of(schema: &TableSchema, index: u16) -> Option<&[u16]> {
    match index {
        0 => Some(&schema.primary_key),
        secondary => Some(&schema.indexes.get(secondary as usize - 1)?.columns),
    }
}

/// Returns the partition of all rows whose keys in stored index `index` lie between these bounds. None if the bounds don't say: their
/// common columns don't reach the partition column `by`, or they are no keys.
pub fn partition_between(
    schema: &TableSchema,
    index: u16,
    by: u16,
    (lower, upper): (&[u8], &[u8]),
    partitions_count: u16,
) -> Option<PartitionId> {
    let columns = columns_of(schema, index)?;
    let place = columns.iter().position(|column| *column == by)?;
    let mut start = 0;
    for column in &columns[..place] {
        start += encoded_bytes(schema, *column, lower.get(start..)?)?;
    }
    let encoded = lower.get(start..)?;
    let bytes = encoded_bytes(schema, by, encoded)?;
    let end = start + bytes;
    if upper.get(..end)? != &lower[..end] {
        return None;
    }
    partition_of_encoded(schema, by, &encoded[..bytes], partitions_count)
}

/// Returns the length of a column's value at the start of `key`, its null mark included.
fn encoded_bytes(schema: &TableSchema, column: u16, key: &[u8]) -> Option<usize> {
    let column = schema.columns.get(column as usize)?;
    let mark = column.nullable as usize;
    if mark == 1 && *key.first()? == 0 {
        return Some(1);
    }
    let value = key.get(mark..)?;
    let bytes = match column.ty {
        ScalarType::Text | ScalarType::Bytes => {
            let mut at = 0;
            loop {
                match (value.get(at)?, value.get(at + 1)) {
                    (0, next) if *next? == 0 => break at + 2,
                    (0, _) => at += 2,
                    _ => at += 1,
                }
            }
        }
        fixed => fixed.slot_bytes(),
    };
    (value.len() >= bytes).then_some(mark + bytes)
}

fn partition_of_encoded(
    schema: &TableSchema,
    column: u16,
    encoded: &[u8],
    partitions_count: u16,
) -> Option<PartitionId> {
    let column = &schema.columns[column as usize];
    if column.nullable && encoded[0] == 0 {
        return Some(partition_of_field(&Field::Null, partitions_count));
    }
    let encoded = &encoded[column.nullable as usize..];
    let unsigned = encoded
        .iter()
        .take(16)
        .fold(0, |value: u128, byte| value << 8 | *byte as u128);
    // A signed integer is kept with its sign bit flipped: moved up by half of its range.
    let signed = || unsigned.wrapping_sub(1 << (8 * encoded.len() - 1)) as i128;
    let text;
    let field = match column.ty {
        ScalarType::Bool => Field::Bool(unsigned != 0),
        ScalarType::I8 | ScalarType::I16 | ScalarType::I32 | ScalarType::I64 | ScalarType::Timestamp => {
            Field::Int(signed() as i64)
        }
        ScalarType::U8 | ScalarType::U16 | ScalarType::U32 | ScalarType::U64 => Field::Uint(unsigned as u64),
        ScalarType::F64 => {
            let ordered = unsigned as u64;
            let is_negative = ordered >> 63 == 0;
            Field::F64(f64::from_bits(if is_negative { !ordered } else { ordered ^ 1 << 63 }))
        }
        ScalarType::Decimal { .. } => Field::Decimal(signed()),
        ScalarType::Uuid => Field::Uuid(encoded.try_into().ok()?),
        ScalarType::Text | ScalarType::Bytes => {
            text = unescaped(encoded.strip_suffix(&[0, 0])?);
            Field::Bytes(&text)
        }
    };
    Some(partition_of_field(&field, partitions_count))
}

/// Returns text without the marks behind its zeros.
fn unescaped(encoded: &[u8]) -> Cow<'_, [u8]> {
    if !encoded.contains(&0) {
        return Cow::Borrowed(encoded);
    }
    let mut text = Vec::with_capacity(encoded.len());
    let mut bytes = encoded.iter();
    while let Some(byte) = bytes.next() {
        text.push(*byte);
        if *byte == 0 {
            bytes.next();
        }
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use reprise_abi::{ColumnSchema, RowLayout, TablePlacement};

    fn schema(types: &[(ScalarType, bool)], key: &[u16]) -> TableSchema {
        let columns = types.iter().enumerate().map(|(at, (ty, nullable))| ColumnSchema {
            nullable: *nullable,
            ..ColumnSchema::new(format!("c{at}"), *ty)
        });
        TableSchema {
            placement: TablePlacement::By(key[key.len() - 1]),
            ..TableSchema::new("t", columns.collect(), key)
        }
    }

    /// The test's schema with a key of an `i32` and the partition column.
    fn schema_of_fixed(ty: ScalarType) -> TableSchema {
        schema(&[(ScalarType::I32, false), (ty, false)], &[0, 1])
    }

    #[test]
    fn keys_of_other_kinds_have_no_place() {
        for (types, key) in [
            (&[(ScalarType::Text, false), (ScalarType::I32, false)], [0, 1]),
            (&[(ScalarType::I32, true), (ScalarType::I32, false)], [0, 1]),
            (&[(ScalarType::I32, false), (ScalarType::Uuid, false)], [0, 1]),
        ] {
            assert_eq!(KeyPlace::of(&schema(types, &key), 0), None);
        }
        let mut other = schema_of_fixed(ScalarType::I32);
        other.placement = TablePlacement::Local;
        assert_eq!(KeyPlace::of(&other, 0), None);
    }

    /// A key's partition is that of its row, whatever type the partition column has and whatever columns precede it.
    #[test]
    fn a_key_names_the_partition_of_its_row() {
        use ScalarType::*;
        let values: [(ScalarType, Field<'_>); 19] = [
            (Bool, Field::Bool(true)),
            (I8, Field::Int(-3)),
            (I16, Field::Int(300)),
            (I32, Field::Int(-70_000)),
            (I64, Field::Int(i64::MIN)),
            (I64, Field::Int(5)),
            (Timestamp, Field::Int(1 << 50)),
            (U8, Field::Uint(200)),
            (U16, Field::Uint(65_535)),
            (U32, Field::Uint(u32::MAX as u64)),
            (U64, Field::Uint(u64::MAX)),
            (F64, Field::F64(-0.5)),
            (F64, Field::F64(7.25)),
            (Decimal { scale: 2 }, Field::Decimal(-12_345)),
            (Decimal { scale: 0 }, Field::Decimal(i128::MAX)),
            (Text, Field::Text("a\0b")),
            (Text, Field::Text("")),
            (Bytes, Field::Bytes(b"\0\0\xff")),
            (Uuid, Field::Uuid([7; 16])),
        ];
        for (ty, field) in values {
            let before = [(Text, false), (I32, true), (I32, true), (ty, false), (I32, false)];
            let schema = schema(&before, &[0, 1, 2, 3, 4]);
            let layout = RowLayout::of_table(&schema);
            let fields = [Field::Text("x\0y"), Field::Null, Field::Int(9), field, Field::Int(1)];
            let row = layout.build(&fields);
            let (mut key, mut prefix) = (Vec::new(), Vec::new());
            layout.push_key(&row, &[0, 1, 2, 3, 4], &mut key);
            layout.push_key(&row, &[0, 1, 2, 3], &mut prefix);
            let expected = Some(partition_of_field(&layout.field(&row, 3), 997));
            let of = |lower: &[u8], upper: &[u8]| partition_between(&schema, 0, 3, (lower, upper), 997);
            assert_eq!(of(&key, &key), expected, "{ty:?}");
            assert_eq!(of(&prefix, &key), expected, "{ty:?}");
            for end in 0..prefix.len() {
                assert_eq!(of(&prefix[..end], &key), None, "{ty:?} cut at {end}");
                assert_eq!(of(&key, &prefix[..end]), None, "{ty:?} cut at {end}");
            }
            if let Some(place) = KeyPlace::of(&schema_of_fixed(ty), 0) {
                let mut key = Vec::new();
                layout.push_key(&row, &[4, 3], &mut key);
                let value = match field {
                    Field::Int(value) => value as u64,
                    Field::Uint(value) => value,
                    other => panic!("{other:?} has no place"),
                };
                assert_eq!(place.value(&key), Some(value), "{ty:?}");
                assert_eq!(place.value(&key[..key.len() - 1]), None, "{ty:?}");
                let longer = [&key[..], &[7]].concat();
                assert_eq!(place.value_between(&key, &longer), Some(value), "{ty:?}");
                assert_eq!(place.value_between(&key, &key[1..]), None, "{ty:?}");
                let mut other = key.clone();
                *other.last_mut().expect("not empty") ^= 1;
                assert_eq!(place.value_between(&key, &other), None, "{ty:?}");
            }
            let mut other = prefix.clone();
            *other.last_mut().expect("not empty") ^= 1;
            assert_eq!(of(&prefix, &other), None, "{ty:?}");
        }
    }
}
