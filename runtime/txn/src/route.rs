//! The placement of rows, and the partitions that a call's arguments name.

use reprise_abi::{
    Field, Partitioning, ProcedureSchema, ScalarType, Type,
    value::{ValueError, ValueReader},
};
use reprise_base::PartitionId;
use xxhash_rust::xxh3::xxh3_64;

use crate::module::Module;

/// Integers below this one go to the partitions in turn; others by hash.
const IN_TURN_MAX: u64 = 1 << 16;

/// The partitions that a call touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallPartitions {
    /// The one partition of most calls.
    One(PartitionId),
    /// These partitions, ascending, at least two.
    Several(Vec<PartitionId>),
    /// All of the database's partitions.
    All,
}

/// Arguments from which no partition can be read.
#[derive(Debug, thiserror::Error)]
#[error("arguments malformed: {0}")]
pub struct RouteError(ValueError);

impl From<ValueError> for RouteError {
    fn from(error: ValueError) -> Self {
        Self(error)
    }
}

impl Module {
    /// Returns the partitions that a call with these encoded arguments touches. A call whose lists are all empty names none and runs on
    /// partition 0.
    pub fn route(&self, procedure: usize, args: &[u8], partitions_count: u16) -> Result<CallPartitions, RouteError> {
        if partitions_count == 1 {
            return Ok(CallPartitions::One(PartitionId(0)));
        }
        let found = route(&self.schema.procedures[procedure], args, partitions_count);
        found.map_err(RouteError)
    }
}

fn route(schema: &ProcedureSchema, args: &[u8], partitions_count: u16) -> Result<CallPartitions, ValueError> {
    let positions = match &schema.partitioning {
        Partitioning::Any => return Ok(CallPartitions::One(PartitionId(0))),
        Partitioning::All => return Ok(CallPartitions::All),
        Partitioning::By(positions) => positions,
    };
    let last = positions.iter().max().map_or(0, |last| *last as usize + 1);
    let mut named = NamedPartitions::default();
    let mut reader = ValueReader::new(args);
    for (position, param) in schema.params[..last].iter().enumerate() {
        match (&param.ty, positions.contains(&(position as u16))) {
            (Type::List(item), true) => {
                for _ in 0..reader.list_len()? {
                    named.add(next_partition(&mut reader, args, item, partitions_count)?);
                }
            }
            (ty, true) => named.add(next_partition(&mut reader, args, ty, partitions_count)?),
            (ty, false) => reader.skip(ty)?,
        }
    }
    Ok(named.bound(partitions_count))
}

/// Partitions that the arguments name. It allocates nothing while there is one.
#[derive(Default)]
struct NamedPartitions {
    first: Option<PartitionId>,
    /// The others, ascending.
    others: Vec<PartitionId>,
}

impl NamedPartitions {
    #[inline]
    fn add(&mut self, partition: PartitionId) {
        let first = *self.first.get_or_insert(partition);
        if partition != first
            && let Err(at) = self.others.binary_search(&partition)
        {
            self.others.insert(at, partition);
        }
    }

    fn bound(self, partitions_count: u16) -> CallPartitions {
        let first = self.first.unwrap_or(PartitionId(0));
        let mut touched = self.others;
        if touched.is_empty() {
            return CallPartitions::One(first);
        }
        if touched.len() + 1 == partitions_count as usize {
            return CallPartitions::All;
        }
        let at = touched.partition_point(|other| *other < first);
        touched.insert(at, first);
        CallPartitions::Several(touched)
    }
}

/// Reads one scalar and returns the partition of its rows.
#[inline]
fn next_partition(
    reader: &mut ValueReader<'_>,
    args: &[u8],
    ty: &Type,
    partitions_count: u16,
) -> Result<PartitionId, ValueError> {
    let start = reader.offset();
    reader.skip(ty)?;
    Ok(partition_of_value(ty, &args[start..reader.offset()], partitions_count))
}

/// Returns the partition of an encoded scalar argument.
#[inline]
fn partition_of_value(ty: &Type, encoded: &[u8], partitions_count: u16) -> PartitionId {
    let Type::Scalar(scalar) = ty else {
        return PartitionId(0); // the check of descriptions admits only scalars and lists of scalars
    };
    let signed = || {
        // The value is sign-extended from its own width to eight bytes.
        let mut wide = [if encoded[encoded.len() - 1] >> 7 == 1 { 0xff } else { 0 }; 8];
        wide[..encoded.len()].copy_from_slice(encoded);
        i64::from_le_bytes(wide)
    };
    let unsigned = || {
        let mut wide = [0; 8];
        wide[..encoded.len()].copy_from_slice(encoded);
        u64::from_le_bytes(wide)
    };
    let sixteen = || <[u8; 16]>::try_from(encoded).expect("the reader took sixteen bytes");
    let field = match scalar {
        ScalarType::Text | ScalarType::Bytes => Field::Bytes(ValueReader::new(encoded).bytes().unwrap_or(&[])),
        ScalarType::Bool => Field::Bool(encoded[0] != 0),
        ScalarType::I8 | ScalarType::I16 | ScalarType::I32 | ScalarType::I64 | ScalarType::Timestamp => {
            Field::Int(signed())
        }
        ScalarType::U8 | ScalarType::U16 | ScalarType::U32 | ScalarType::U64 => Field::Uint(unsigned()),
        ScalarType::F64 => Field::F64(f64::from_bits(unsigned())),
        ScalarType::Decimal { .. } => Field::Decimal(i128::from_le_bytes(sixteen())),
        ScalarType::Uuid => Field::Uuid(sixteen()),
    };
    partition_of_field(&field, partitions_count)
}

/// Returns the partition of a value. An `i32` argument and an `i64` column of one value have the same partition. Small integers go in turn,
/// so a few large groups (warehouses, branches, tenants) numbered from 0 or 1 spread evenly. Large integers are many, so a hash spreads
/// them; they often have strides that a remainder would not spread. The function is frozen: it decides where stored rows lie
/// (`docs/FORMAT.md`).
#[inline]
pub fn partition_of_field(field: &Field<'_>, partitions_count: u16) -> PartitionId {
    if partitions_count == 1 {
        return PartitionId(0);
    }
    let hash = match field {
        Field::Null => 0,
        Field::Bool(value) => *value as u64,
        Field::Int(value) => spread(*value as u64),
        Field::Uint(value) => spread(*value),
        Field::F64(value) => xxh3_64(&value.to_bits().to_le_bytes()),
        Field::Decimal(value) => xxh3_64(&value.to_le_bytes()),
        Field::Text(value) => xxh3_64(value.as_bytes()),
        Field::Bytes(value) => xxh3_64(value),
        Field::Uuid(value) => xxh3_64(value),
    };
    PartitionId((hash % partitions_count as u64) as u16)
}

/// Spreads an integer. A negative one counts as large, as its two's complement.
#[inline]
fn spread(value: u64) -> u64 {
    if value < IN_TURN_MAX {
        value
    } else {
        xxh3_64(&value.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reprise_abi::{Parameter, RowLayout, value::push_varint};

    /// An argument must find the row whose column has its value, whatever the widths of the two.
    #[test]
    fn arguments_and_columns_agree_on_the_partition() {
        use ScalarType::*;
        let cases: [(ScalarType, Field<'_>); 12] = [
            (I8, Field::Int(-3)),
            (I16, Field::Int(-300)),
            (I32, Field::Int(-70_000)),
            (I64, Field::Int(i64::MIN)),
            (Timestamp, Field::Int(1)),
            (U8, Field::Uint(200)),
            (U32, Field::Uint(u32::MAX as u64)),
            (U64, Field::Uint(u64::MAX)),
            (Bool, Field::Bool(true)),
            (F64, Field::F64(-0.5)),
            (Decimal { scale: 2 }, Field::Decimal(-12_345)),
            (Uuid, Field::Uuid([7; 16])),
        ];
        for (scalar, field) in cases {
            let encoded = RowLayout::from_types([(scalar, false)].into_iter()).build(&[field]);
            let by_value = partition_of_value(&Type::Scalar(scalar), &encoded, 997);
            assert_eq!(by_value, partition_of_field(&field, 997), "{scalar:?}");
        }
        let text = partition_of_value(&Type::Scalar(Text), b"\x02ab", 997);
        assert_eq!(text, partition_of_field(&Field::Text("ab"), 997));
        assert_eq!(
            partition_of_value(&Type::Scalar(I32), &5i32.to_le_bytes(), 997),
            partition_of_field(&Field::Int(5), 997)
        );
    }

    /// The rule is part of the data format, because it places the rows of a log.
    #[test]
    fn the_places_of_values_are_frozen() {
        let places = |fields: &[Field<'_>]| -> Vec<u16> {
            fields.iter().map(|field| partition_of_field(field, 997).0).collect()
        };
        let small = [0, 1, 996, 997, 65_535].map(Field::Int);
        assert_eq!(places(&small), [0, 1, 996, 0, 730]);
        let large = [65_536, i64::MAX, -1].map(Field::Int);
        assert_eq!(places(&large), [914, 0, 913]);
        let others = [
            Field::Null,
            Field::Bool(true),
            Field::F64(1.5),
            Field::Decimal(150),
            Field::Text("ab"),
            Field::Bytes(b"ab"),
            Field::Uuid([7; 16]),
        ];
        assert_eq!(places(&others), [0, 1, 717, 315, 885, 885, 655]);
    }

    /// `p(id, note, ids)`, by `id` and `ids`.
    fn check_route(id: i32, ids: &[i32], partitions_count: u16, expected: CallPartitions) {
        let of = |name: &str, ty| Parameter { name: name.into(), ty };
        let schema = ProcedureSchema {
            docs: String::new(),
            name: "p".into(),
            params: vec![
                of("id", Type::Scalar(ScalarType::I32)),
                of("note", Type::Scalar(ScalarType::Text)),
                of("ids", Type::List(Type::Scalar(ScalarType::I32).into())),
                of("rest", Type::Unit),
            ],
            returns: Type::Unit,
            read_only: false,
            prefetch: Vec::new(),
            time_max_ms: None,
            fuel_max: None,
            aborts: Vec::new(),
            partitioning: Partitioning::By(vec![2, 0]),
            log: reprise_abi::LogDeclaration::Server,
        };
        let mut args = id.to_le_bytes().to_vec();
        args.extend(b"\x02ab");
        push_varint(&mut args, ids.len() as u32);
        ids.iter().for_each(|id| args.extend(id.to_le_bytes()));
        assert_eq!(route(&schema, &args, partitions_count), Ok(expected));
        for end in 0..args.len() {
            let cut = route(&schema, &args[..end], partitions_count);
            assert!(cut.is_err() || partitions_count == 1, "cut at {end}");
        }
    }

    #[test]
    fn every_element_of_a_list_names_a_partition() {
        let several = |ids: &[u16]| CallPartitions::Several(ids.iter().copied().map(PartitionId).collect());
        check_route(2, &[], 8, CallPartitions::One(PartitionId(2)));
        check_route(2, &[2, 10, 2], 8, CallPartitions::One(PartitionId(2)));
        check_route(2, &[7, 2, 1, 9], 8, several(&[1, 2, 7]));
        check_route(1, &[0, 1], 2, CallPartitions::All);
        check_route(1, &[0, 5], 1, CallPartitions::One(PartitionId(0)));
    }

    #[test]
    fn numbers_from_one_fill_the_partitions_evenly_and_strides_of_large_ones_too() {
        for partitions in [2, 3, 7, 16] {
            let mut in_turn = vec![0; partitions as usize];
            let mut strided = in_turn.clone();
            for number in 1..=10 * partitions as i64 {
                in_turn[partition_of_field(&Field::Int(number), partitions).index()] += 1;
            }
            assert!(in_turn.iter().all(|count| *count == 10), "{in_turn:?}");
            for number in 1_000..1_000 + 1_000 * partitions as i64 {
                let large = Field::Int(number * 4_096);
                strided[partition_of_field(&large, partitions).index()] += 1;
            }
            assert!(strided.iter().all(|count| (800..1_200).contains(count)), "{strided:?}");
        }
    }
}
