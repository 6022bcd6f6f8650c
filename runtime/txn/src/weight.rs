//! Estimates the memory of the descriptions of modules and tables. The ledger counts it like rows.

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
};

use reprise_abi::{
    AbortSchema, ColumnSchema, IndexSchema, ModuleSchema, Parameter, ProcedureSchema, StructField, TableSchema, Type,
};
use reprise_observe::ProcedureMeter;

use crate::{
    install::Candidate,
    module::{Deployed, Module, TableBinding},
    prefetch::PrefetchRow,
};

/// Bytes that the allocator adds to an allocation: an estimate.
const ALLOCATION_BYTES: usize = 16;
/// Bytes of a column in each of a binding's row layouts: an estimate.
const COLUMN_SLOT_BYTES: usize = 48;
/// Bytes of a procedure among the meters of a version. The meter itself is shared by all versions.
const METER_BYTES: usize = size_of::<OnceLock<Arc<ProcedureMeter>>>();

fn heap(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        bytes => bytes + ALLOCATION_BYTES,
    }
}

fn texts(list: &[String]) -> usize {
    heap(size_of_val(list)) + list.iter().map(|text| heap(text.len())).sum::<usize>()
}

/// Estimates the bytes of a table, without its own structure.
fn table(table: &TableSchema) -> usize {
    let column = |column: &ColumnSchema| {
        let was = column.was.as_ref().map_or(0, String::len);
        let default = column.default.as_ref().map_or(0, Vec::len);
        heap(column.name.len()) + heap(was) + heap(default) + texts(&column.variants)
    };
    let index = |index: &IndexSchema| heap(index.name.len()) + heap(2 * index.columns.len());
    heap(table.owner.len())
        + heap(table.name.len())
        + heap(2 * table.primary_key.len())
        + heap(table.columns.len() * size_of::<ColumnSchema>())
        + table.columns.iter().map(column).sum::<usize>()
        + heap(table.indexes.len() * size_of::<IndexSchema>())
        + table.indexes.iter().map(index).sum::<usize>()
}

fn tables(list: &[TableSchema]) -> usize {
    heap(size_of_val(list)) + list.iter().map(table).sum::<usize>()
}

/// Estimates the bytes of a type, without its own structure.
fn value_type(ty: &Type) -> usize {
    match ty {
        Type::Unit | Type::Scalar(_) => 0,
        Type::Option(inner) | Type::List(inner) => heap(size_of::<Type>()) + value_type(inner),
        Type::Enum(variants) => texts(variants),
        Type::Struct(found) => {
            let field = |field: &StructField| heap(field.name.len()) + value_type(&field.ty);
            heap(found.fields.len() * size_of::<StructField>())
                + found.name.as_ref().map_or(0, |name| heap(name.len()))
                + found.fields.iter().map(field).sum::<usize>()
        }
    }
}

fn procedure(procedure: &ProcedureSchema) -> usize {
    let param = |param: &Parameter| heap(param.name.len()) + value_type(&param.ty);
    let abort = |abort: &AbortSchema| heap(abort.code.len()) + heap(abort.docs.len());
    heap(procedure.name.len())
        + heap(procedure.docs.len())
        + heap(procedure.params.len() * size_of::<Parameter>())
        + procedure.params.iter().map(param).sum::<usize>()
        + value_type(&procedure.returns)
        + heap(procedure.aborts.len() * size_of::<AbortSchema>())
        + procedure.aborts.iter().map(abort).sum::<usize>()
}

fn schema(schema: &ModuleSchema) -> usize {
    tables(&schema.tables)
        + tables(&schema.retiring)
        + texts(&schema.table_docs)
        + heap(schema.procedures.len() * size_of::<ProcedureSchema>())
        + schema.procedures.iter().map(procedure).sum::<usize>()
}

/// Estimates the bytes of the bindings of these tables.
fn bindings(list: &[TableSchema]) -> usize {
    let binding = |table: &TableSchema| {
        let keys = (table.indexes.len() + 1) * (size_of::<String>() + 2 * ALLOCATION_BYTES);
        size_of::<TableBinding>() + table.columns.len() * COLUMN_SLOT_BYTES + keys
    };
    list.iter().map(binding).sum()
}

impl Candidate {
    /// Returns the bytes that its description takes once it is in service.
    pub fn description_bytes(&self) -> u64 {
        let procedures = self.schema.procedures.len();
        let lists = heap(procedures * METER_BYTES) + heap(procedures * size_of::<Vec<PrefetchRow>>());
        let bound = bindings(&self.schema.tables) + lists;
        (heap(self.name.len()) + heap(self.description.len()) + schema(&self.schema) + bound) as u64
    }
}

impl Module {
    /// Estimates its own bytes: without the declarations and the description, which versions share.
    fn own_bytes(&self) -> u64 {
        let rows = self.prefetch.iter().map(|rows| heap(size_of_val(rows.as_slice())));
        let prefetch = heap(size_of_val(self.prefetch.as_slice())) + rows.sum::<usize>();
        let lists = heap(self.schema.procedures.len() * METER_BYTES) + prefetch;
        (size_of::<Self>() + heap(self.name.len()) + bindings(&self.schema.tables) + lists) as u64
    }
}

/// Sums the bytes of values that may share their memory. Each is counted once.
fn shared_bytes<'a, T: ?Sized + 'a>(all: impl Iterator<Item = &'a Arc<T>>, bytes: impl Fn(&T) -> usize) -> u64 {
    let mut counted = BTreeSet::new();
    let own = all.filter(|value| counted.insert(Arc::as_ptr(value).addr()));
    own.map(|value| bytes(value) as u64).sum()
}

impl Deployed {
    /// Returns the bytes of all descriptions: of versions in and out of service, of stored tables, and of former tables.
    pub fn description_bytes(&self) -> u64 {
        let versions: u64 = self.versions.iter().map(|module| module.own_bytes()).sum();
        let declared = self.versions.iter().map(|module| &module.schema);
        let declared = shared_bytes(declared, |found| heap(size_of::<ModuleSchema>()) + schema(found));
        let sent = self.versions.iter().map(|module| &module.description);
        let sent = shared_bytes(sent, |found| heap(found.len()));
        let stored = self.tables.iter().chain(self.past.tables());
        let stored = shared_bytes(stored, |found| size_of::<TableSchema>() + table(found));
        versions + declared + sent + stored + self.lineage.bytes()
    }
}

#[cfg(test)]
mod tests {
    use reprise_abi::Partitioning;
    use reprise_base::TxnId;
    use reprise_observe::ModuleMeters;

    use super::*;
    use crate::{
        install::remove,
        module::{Code, Executor, ModuleId},
    };

    struct NoCode;

    impl Code for NoCode {
        fn instantiate(&self) -> Result<Box<dyn Executor>, String> {
            Err("no code".into())
        }
    }

    /// Deploys a module with this many procedures.
    fn deployed(procedures: usize) -> Deployed {
        let procedure = ProcedureSchema {
            name: "p".into(),
            docs: String::new(),
            params: Vec::new(),
            returns: Type::Unit,
            read_only: true,
            partitioning: Partitioning::All,
            prefetch: Vec::new(),
            log: Default::default(),
            time_max_ms: None,
            fuel_max: None,
            aborts: Vec::new(),
        };
        let module = Arc::new(Module {
            id: ModuleId(0),
            name: "module".into(),
            version: 1,
            hash: [1; 32],
            wasm_bytes: 1,
            installed_by: TxnId::new(1, TxnId::MULTI_PARTITION),
            schema: Arc::new(ModuleSchema {
                procedures: vec![procedure; procedures],
                ..ModuleSchema::default()
            }),
            description: Arc::default(),
            tables: Vec::new(),
            prefetch: vec![Vec::new(); procedures],
            results: Vec::new(),
            meters: ModuleMeters::new(procedures),
            code: Arc::new(NoCode),
        });
        let mut deployed = Deployed::default();
        deployed.versions.push(module.clone());
        deployed.current.insert(module.name.clone(), module);
        deployed
    }

    #[test]
    fn version_out_of_service_counts_its_name_and_meters_and_keeps_no_rows_to_prefetch() {
        const PROCEDURES: usize = 1_024;
        let former = |procedures| {
            let removed = remove(&deployed(procedures), "module").expect("it is in service");
            let version = &removed.versions[0];
            assert!(version.prefetch.is_empty());
            version.own_bytes() as usize
        };
        assert!(former(0) >= size_of::<Module>() + "module".len());
        assert!(former(PROCEDURES) >= former(0) + 16 * PROCEDURES);
        let current = deployed(PROCEDURES).versions[0].own_bytes() as usize;
        assert!(
            current >= former(PROCEDURES) + 24 * PROCEDURES,
            "a list of rows for each"
        );
    }
}
