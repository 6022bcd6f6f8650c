//! A module in service: its code, its description, and how its tables map to the stored ones.

use std::{collections::BTreeMap, sync::Arc};

use reprise_abi::{
    Field, HostOps, ModuleSchema, Partitioning, Placement, ProcedureSchema, ScalarType,
    TableSchema, Type,
    value::{ValueError, ValueReader},
};
use reprise_base::{PartitionId, TxnId};
use reprise_host::CallOutcome;
use reprise_storage::{RowProjection, TableId};
use xxhash_rust::xxh3::xxh3_64;

/// One version of one module; numbered in the order of deployment, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleId(pub u32);

/// Code that can be run: a compiled wasm module, or procedures compiled into this binary.
pub trait Code: Send + Sync {
    /// An executor for one engine thread. Err: why the code can't be instantiated.
    fn instantiate(&self) -> Result<Box<dyn Executor>, String>;
}

/// Code that runs on one engine thread.
pub trait Executor {
    /// Runs one procedure to its end; its rows go through `ops`.
    fn call(&mut self, procedure: usize, ops: &mut dyn HostOps) -> CallOutcome;
}

/// One version of a module, as installed.
pub struct Module {
    pub id: ModuleId,
    pub name: String,
    /// From 1, per name.
    pub version: u32,
    /// SHA-256 of the uploaded bytes.
    pub hash: [u8; 32],
    pub wasm_bytes: u64,
    /// Transaction that installed it; its time is the time of installation.
    pub installed_by: TxnId,
    pub schema: ModuleSchema,
    /// Bindings of `schema.tables`, in the same order.
    pub tables: Vec<TableBinding>,
    pub code: Arc<dyn Code>,
}

/// How a module's table maps to the stored one.
pub struct TableBinding {
    pub table: TableId,
    pub placement: Placement,
    /// Module's index number -> stored index number; index 0 is the primary key in both.
    pub indexes: Vec<u16>,
    /// Set where the stored table has columns that this module does not know.
    pub projection: Option<RowProjection>,
}

/// Why a module could not be bound to the stored tables.
#[derive(Debug, thiserror::Error)]
#[error("the module's tables can't be reconciled with what is stored")]
pub struct BindError {
    pub conflicts: Vec<reprise_storage::Conflict>,
}

/// The partitions that a call touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    One(PartitionId),
    /// Ascending, at least two.
    Several(Vec<PartitionId>),
    All,
}

/// Arguments from which no partition can be read.
#[derive(Debug, thiserror::Error)]
#[error("arguments malformed: {0}")]
pub struct RouteError(ValueError);

impl Module {
    pub fn procedure(&self, name: &str) -> Option<(usize, &ProcedureSchema)> {
        self.schema
            .procedures
            .iter()
            .enumerate()
            .find(|(_, procedure)| procedure.name == name)
    }

    /// The partitions that a call with these encoded arguments touches.
    pub fn route(
        &self,
        procedure: usize,
        args: &[u8],
        partitions_count: u16,
    ) -> Result<Bound, RouteError> {
        let schema = &self.schema.procedures[procedure];
        let positions = match &schema.partitioning {
            Partitioning::Any => return Ok(Bound::One(PartitionId(0))),
            Partitioning::All => return Ok(Self::bound_all(partitions_count)),
            Partitioning::By(positions) => positions,
        };
        let mut touched = Vec::new();
        let mut first = None;
        let mut reader = ValueReader::new(args);
        for (position, param) in schema.params.iter().enumerate() {
            let start = reader.offset();
            reader.skip(&param.ty).map_err(RouteError)?;
            if !positions.contains(&(position as u16)) {
                continue;
            }
            let partition =
                partition_of_value(&param.ty, &args[start..reader.offset()], partitions_count);
            match first {
                None => first = Some(partition),
                Some(one) if one == partition && touched.is_empty() => {}
                Some(one) => {
                    if touched.is_empty() {
                        touched.push(one);
                    }
                    touched.push(partition);
                }
            }
        }
        touched.sort_unstable();
        touched.dedup();
        Ok(match (touched.len(), first) {
            (0, Some(one)) => Bound::One(one),
            (0, None) => Bound::One(PartitionId(0)),
            (count, _) if count == partitions_count as usize => Bound::All,
            _ => Bound::Several(touched),
        })
    }

    fn bound_all(partitions_count: u16) -> Bound {
        if partitions_count == 1 {
            Bound::One(PartitionId(0))
        } else {
            Bound::All
        }
    }
}

/// The partition of an encoded scalar argument.
#[inline]
fn partition_of_value(ty: &Type, encoded: &[u8], partitions_count: u16) -> PartitionId {
    let Type::Scalar(scalar) = ty else {
        return PartitionId(0); // the description's check admits scalars alone
    };
    let signed = || {
        // Sign-extended from its own width to eight bytes.
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
        ScalarType::Text | ScalarType::Bytes => {
            Field::Bytes(ValueReader::new(encoded).bytes().unwrap_or(&[]))
        }
        ScalarType::Bool => Field::Bool(encoded[0] != 0),
        ScalarType::I8
        | ScalarType::I16
        | ScalarType::I32
        | ScalarType::I64
        | ScalarType::Timestamp => Field::Int(signed()),
        ScalarType::U8 | ScalarType::U16 | ScalarType::U32 | ScalarType::U64 => {
            Field::Uint(unsigned())
        }
        ScalarType::F64 => Field::F64(f64::from_bits(unsigned())),
        ScalarType::Decimal { .. } => Field::Decimal(i128::from_le_bytes(sixteen())),
        ScalarType::Uuid => Field::Uuid(sixteen()),
    };
    partition_of_field(&field, partitions_count)
}

/// The partition of a value. Integers of every width hash as the same eight bytes, so that an `i32` argument finds the rows
/// of an `i64` column. Frozen: it decides where stored rows lie (`docs/FORMAT.md`).
#[inline]
pub fn partition_of_field(field: &Field<'_>, partitions_count: u16) -> PartitionId {
    if partitions_count == 1 {
        return PartitionId(0);
    }
    let hash = match field {
        Field::Null => 0,
        Field::Bool(value) => xxh3_64(&(*value as u64).to_le_bytes()),
        Field::Int(value) => xxh3_64(&value.to_le_bytes()),
        Field::Uint(value) => xxh3_64(&value.to_le_bytes()),
        Field::F64(value) => xxh3_64(&value.to_bits().to_le_bytes()),
        Field::Decimal(value) => xxh3_64(&value.to_le_bytes()),
        Field::Text(value) => xxh3_64(value.as_bytes()),
        Field::Bytes(value) => xxh3_64(value),
        Field::Uuid(value) => xxh3_64(value),
    };
    PartitionId((hash % partitions_count as u64) as u16)
}

/// All modules and tables of a database at one moment. Swapped whole.
#[derive(Default, Clone)]
pub struct Deployed {
    /// Grows with each deployment and removal.
    pub generation: u64,
    /// Every version since the log begins, by `ModuleId`.
    pub versions: Vec<Arc<Module>>,
    /// Modules in service by name.
    pub current: BTreeMap<String, Arc<Module>>,
    /// Stored tables by `TableId`, with the module that declared each first.
    pub tables: Vec<Arc<TableSchema>>,
}

impl Deployed {
    pub fn module(&self, id: ModuleId) -> Option<&Arc<Module>> {
        self.versions.get(id.0 as usize)
    }

    pub fn is_current(&self, id: ModuleId) -> bool {
        self.module(id).is_some_and(|module| {
            self.current
                .get(&module.name)
                .is_some_and(|current| current.id == id)
        })
    }

    pub fn table(&self, name: &str) -> Option<(TableId, &Arc<TableSchema>)> {
        self.tables
            .iter()
            .position(|table| table.name == name)
            .map(|position| (TableId(position as u16), &self.tables[position]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reprise_abi::RowLayout;

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
}
