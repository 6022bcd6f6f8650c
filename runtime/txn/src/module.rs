//! A module in service: its code, its description, and how its tables map to the stored ones.

use std::{collections::BTreeMap, sync::Arc};

use reprise_abi::{
    Field, HostOps, ModuleSchema, Partitioning, Placement, ProcedureSchema, RowLayout, ScalarType,
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
fn partition_of_value(ty: &Type, encoded: &[u8], partitions_count: u16) -> PartitionId {
    let Type::Scalar(scalar) = ty else {
        return PartitionId(0); // the description's check admits scalars alone
    };
    let field = match scalar {
        ScalarType::Text | ScalarType::Bytes => {
            Field::Bytes(ValueReader::new(encoded).bytes().unwrap_or(&[]))
        }
        fixed => RowLayout::from_types([(*fixed, false)].into_iter()).field(encoded, 0),
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
