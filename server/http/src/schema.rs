//! The guest contract's schema in the API's words.

use std::sync::Arc;

use reprise_abi::{
    AbortSchema, IndexKind, Parameter, Partitioning, ProcedureSchema, ScalarType, TablePlacement, TableSchema, Type,
    value::ValueReader,
};
use reprise_api::{
    AbortInfo, ColumnInfo, FieldInfo, IndexInfo, Json, LogChoice, ParameterInfo, PartitioningInfo,
    Placement as PlacementInfo, ProcedureCalls, ProcedureInfo, TableInfo, TypeInfo,
};
use reprise_codec::{raw_json, read_scalar, write_column};
use reprise_router::{CallEnd, CallStage, CallSums, Deployed, Module, TableId, TableTotals};

/// Name of the index 0, the primary key.
pub const PRIMARY: &str = "primary";

pub fn type_info(ty: &Type) -> TypeInfo {
    match ty {
        Type::Unit => TypeInfo::Unit,
        Type::Scalar(scalar) => scalar_info(*scalar),
        Type::Option(inner) => TypeInfo::Option {
            item: Box::new(type_info(inner)),
        },
        Type::List(item) => TypeInfo::List {
            item: Box::new(type_info(item)),
        },
        Type::Struct(of) => {
            let fields = of.fields.iter().map(|field| FieldInfo {
                name: field.name.clone(),
                ty: type_info(&field.ty),
            });
            TypeInfo::Struct {
                name: of.name.clone(),
                fields: fields.collect(),
            }
        }
        Type::Enum(variants) => TypeInfo::Enum {
            variants: variants.clone(),
        },
    }
}

fn scalar_info(ty: ScalarType) -> TypeInfo {
    match ty {
        ScalarType::Bool => TypeInfo::Bool,
        ScalarType::I8 => TypeInfo::I8,
        ScalarType::I16 => TypeInfo::I16,
        ScalarType::I32 => TypeInfo::I32,
        ScalarType::I64 => TypeInfo::I64,
        ScalarType::U8 => TypeInfo::U8,
        ScalarType::U16 => TypeInfo::U16,
        ScalarType::U32 => TypeInfo::U32,
        ScalarType::U64 => TypeInfo::U64,
        ScalarType::F64 => TypeInfo::F64,
        ScalarType::Decimal { scale } => TypeInfo::Decimal { scale },
        ScalarType::Text => TypeInfo::Text,
        ScalarType::Bytes => TypeInfo::Bytes,
        ScalarType::Timestamp => TypeInfo::Timestamp,
        ScalarType::Uuid => TypeInfo::Uuid,
    }
}

pub fn procedure_info(procedure: &ProcedureSchema, log: LogChoice, calls: ProcedureCalls) -> ProcedureInfo {
    let parameters: Vec<_> = procedure.params.iter().map(parameter_info).collect();
    let result = type_info(&procedure.returns);
    let listed: Vec<_> = parameters.iter().map(|p| format!("{}: {}", p.name, p.ty)).collect();
    let returns = match &result {
        TypeInfo::Unit => String::new(),
        ty => format!(" -> {ty}"),
    };
    ProcedureInfo {
        signature: format!("{}({}){returns}", procedure.name, listed.join(", ")),
        name: procedure.name.clone(),
        docs: procedure.docs.clone(),
        parameters,
        result,
        read_only: procedure.read_only,
        partitioning: partitioning_info(procedure),
        aborts: procedure.aborts.iter().map(abort_info).collect(),
        fuel_max: procedure.fuel_max,
        log,
        calls,
    }
}

fn abort_info(abort: &AbortSchema) -> AbortInfo {
    AbortInfo {
        code: abort.code.clone(),
        docs: abort.docs.clone(),
    }
}

pub fn procedure_calls(sums: &CallSums) -> ProcedureCalls {
    let mean_us = |stage| sums.mean(stage).as_micros() as u64;
    ProcedureCalls {
        committed: sums.calls(CallEnd::Committed),
        aborted: sums.calls(CallEnd::Aborted),
        trapped: sums.calls(CallEnd::Trapped),
        limit: sums.calls(CallEnd::Limit),
        ended: sums.calls(CallEnd::Ended),
        refused: sums.calls(CallEnd::Refused),
        mean_queued_us: mean_us(CallStage::Queued),
        mean_running_us: mean_us(CallStage::Running),
        mean_logging_us: mean_us(CallStage::Logging),
    }
}

fn parameter_info(parameter: &Parameter) -> ParameterInfo {
    ParameterInfo {
        name: parameter.name.clone(),
        ty: type_info(&parameter.ty),
        required: !matches!(parameter.ty, Type::Option(_) | Type::Unit),
    }
}

fn partitioning_info(procedure: &ProcedureSchema) -> PartitioningInfo {
    match &procedure.partitioning {
        Partitioning::All => PartitioningInfo::All,
        Partitioning::Any => PartitioningInfo::Any,
        Partitioning::By(positions) => {
            let names = positions.iter().map(|at| procedure.params[*at as usize].name.clone());
            PartitioningInfo::By {
                parameters: names.collect(),
            }
        }
    }
}

pub fn table_info(deployed: &Deployed, id: TableId, table: &TableSchema, stats: TableTotals) -> TableInfo {
    let column_names = |positions: &[u16]| -> Vec<String> {
        positions
            .iter()
            .map(|at| table.columns[*at as usize].name.clone())
            .collect()
    };
    let mut indexes = Vec::new();
    if !table.primary_key.is_empty() {
        indexes.push(IndexInfo {
            name: PRIMARY.into(),
            columns: column_names(&table.primary_key),
            unique: true,
            ordered: table.primary_kind == IndexKind::Ordered,
        });
    }
    indexes.extend(table.indexes.iter().map(|index| IndexInfo {
        name: index.name.clone(),
        columns: column_names(&index.columns),
        unique: index.unique,
        ordered: true,
    }));
    let declares = |module: &&Arc<Module>| module.tables.iter().any(|bound| bound.table == id);
    let modules = deployed.current.values().filter(declares);
    TableInfo {
        name: table.full_name(),
        docs: deployed
            .current
            .values()
            .find_map(|module| docs_of(module, id))
            .unwrap_or_default(),
        columns: column_infos(table),
        primary_key: column_names(&table.primary_key),
        indexes,
        placement: match table.placement {
            TablePlacement::By(_) => PlacementInfo::ByColumn,
            TablePlacement::Replicated => PlacementInfo::Replicated,
            TablePlacement::Local => PlacementInfo::Local,
        },
        partition_column: match table.placement {
            TablePlacement::By(column) => Some(table.columns[column as usize].name.clone()),
            TablePlacement::Replicated | TablePlacement::Local => None,
        },
        modules: modules.map(|module| module.name.clone()).collect(),
        rows: stats.rows,
        bytes: stats.row_bytes + stats.index_bytes,
        row_bytes: stats.row_bytes,
        index_bytes: stats.index_bytes,
    }
}

/// Returns a module's description of a stored table.
fn docs_of(module: &Module, id: TableId) -> Option<String> {
    let at = module.tables.iter().position(|bound| bound.table == id)?;
    let docs = module.schema.table_docs.get(at)?;
    (!docs.is_empty()).then(|| docs.clone())
}

fn column_infos(table: &TableSchema) -> Vec<ColumnInfo> {
    let info = |column: &reprise_abi::ColumnSchema| ColumnInfo {
        name: column.name.clone(),
        ty: match column.variants.is_empty() {
            true => scalar_info(column.ty),
            false => TypeInfo::Enum {
                variants: column.variants.clone(),
            },
        },
        nullable: column.nullable,
        default: column
            .default
            .as_deref()
            .and_then(|encoded| default_json(column, encoded)),
    };
    table.columns.iter().map(info).collect()
}

fn default_json(column: &reprise_abi::ColumnSchema, encoded: &[u8]) -> Option<Json> {
    let mut out = Vec::new();
    let field = read_scalar(column.ty, &mut ValueReader::new(encoded)).ok()?;
    write_column(column, &field, &mut out);
    raw_json(out)
}
