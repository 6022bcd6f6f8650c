//! Placement of rows on the test kit's partitions, by a value, a key or a call's arguments.

use reprise_abi::{
    Field, Partitioning, ProcedureSchema, ScalarType, ScanRequest, TablePlacement, TableSchema, Type, key::KeyReader,
    value::ValueReader,
};

/// Limit of integers that go to the partitions in turn, from 0 on, as on a server; others go by hash.
const IN_TURN_MAX: u64 = 1 << 16;

/// The partition, of `partitions`, of rows with this value. The hash is not a server's: no procedure can see the difference.
fn partition_of(value: u64, data: Option<&[u8]>, partitions: usize) -> usize {
    let spread = match data {
        None if value < IN_TURN_MAX => value,
        None => hash(&value.to_le_bytes()),
        Some(data) => hash(data),
    };
    (spread % partitions as u64) as usize
}

/// FNV-1a of 64 bits.
fn hash(bytes: &[u8]) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ *byte as u64).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold)
}

pub fn of_field(field: &Field<'_>, partitions: usize) -> usize {
    let of_data = |data: &[u8]| partition_of(0, Some(data), partitions);
    match field {
        Field::Null => 0,
        Field::Bool(value) => partition_of(*value as u64, None, partitions),
        Field::Int(value) => partition_of(*value as u64, None, partitions),
        Field::Uint(value) => partition_of(*value, None, partitions),
        Field::F64(value) => of_data(&value.to_le_bytes()),
        Field::Decimal(value) => of_data(&value.to_le_bytes()),
        Field::Uuid(value) => of_data(value),
        Field::Text(text) => of_data(text.as_bytes()),
        Field::Bytes(bytes) => of_data(bytes),
    }
}

/// The partition for a value in a row's slot, or for the data of a text or bytes.
fn of_slot(ty: ScalarType, slot: &[u8], partitions: usize) -> usize {
    use ScalarType::*;
    let is_number = ty.is_integer() || matches!(ty, Bool | Timestamp);
    if !is_number {
        return partition_of(0, Some(slot), partitions);
    }
    let is_signed = matches!(ty, I8 | I16 | I32 | I64 | Timestamp);
    let is_negative = is_signed && slot.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut wide = [if is_negative { 0xff } else { 0 }; 8];
    for (wide, byte) in wide.iter_mut().zip(slot) {
        *wide = *byte;
    }
    partition_of(u64::from_le_bytes(wide), None, partitions)
}

fn of_argument(ty: &Type, encoded: &[u8], partitions: usize) -> usize {
    match ty {
        Type::Scalar(scalar) if scalar.is_variable() => {
            let data = ValueReader::new(encoded).bytes().unwrap_or(encoded);
            of_slot(*scalar, data, partitions)
        }
        Type::Scalar(scalar) => of_slot(*scalar, encoded, partitions),
        _ => 0,
    }
}

/// Two encoded keys of an index.
#[derive(Clone, Copy)]
pub struct KeyBounds<'k> {
    pub lower: &'k [u8],
    pub upper: &'k [u8],
}

impl<'k> KeyBounds<'k> {
    /// The bounds of a scan.
    pub fn of(request: &ScanRequest<'k>) -> Self {
        Self {
            lower: request.lower,
            upper: request.upper,
        }
    }
}

/// The way in which a call looks for rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LookupKind {
    Key,
    Local,
    Range,
}

/// Returns the partition of all rows whose keys lie between two of an index with these columns. None: the keys don't agree up to the
/// partition column.
pub fn of_keys(table: &TableSchema, columns: &[u16], keys: KeyBounds<'_>, partitions: usize) -> Option<usize> {
    let TablePlacement::By(by) = table.placement else {
        return None;
    };
    let place = columns.iter().position(|column| *column == by)?;
    let read = |key| {
        let mut reader = KeyReader::new(key);
        let mut next = |column: &u16| {
            let column = &table.columns[*column as usize];
            reader.next_column(column.ty, column.nullable)
        };
        columns[..=place].iter().map(&mut next).collect::<Option<Vec<_>>>()
    };
    let (first, last) = (read(keys.lower)?, read(keys.upper)?);
    if first != last {
        return None;
    }
    Some(match first.last()? {
        None => 0,
        Some(slot) => of_slot(table.columns[by as usize].ty, slot, partitions),
    })
}

/// The partitions that a call with these arguments runs on, ascending. One that names none runs on partition 0.
pub fn of_call(procedure: &ProcedureSchema, args: &[u8], partitions: usize) -> Vec<usize> {
    let positions = match &procedure.partitioning {
        Partitioning::All => return (0..partitions).collect(),
        Partitioning::Any => return vec![0],
        Partitioning::By(positions) => positions,
    };
    let mut reader = ValueReader::new(args);
    let mut touched = Vec::new();
    for (position, param) in procedure.params.iter().enumerate() {
        let names_partitions = positions.contains(&(position as u16));
        let (count, ty) = match (&param.ty, names_partitions) {
            (Type::List(item), true) => (reader.list_len().unwrap_or(0), &**item),
            (ty, _) => (1, ty),
        };
        for _ in 0..count {
            let start = reader.offset();
            if reader.skip(ty).is_ok() && names_partitions {
                let encoded = &args[start..reader.offset()];
                touched.push(of_argument(ty, encoded, partitions));
            }
        }
    }
    touched.sort_unstable();
    touched.dedup();
    match touched.is_empty() {
        true => vec![0],
        false => touched,
    }
}
