//! Estimates the memory of the descriptions of modules and tables. The ledger counts it like rows.

use std::{collections::BTreeSet, sync::Arc};

use reprise_abi::{
    AbortSchema, ColumnSchema, IndexSchema, ModuleSchema, Parameter, ProcedureSchema, StructField, TableSchema, Type,
};

use crate::{
    install::Candidate,
    module::{Deployed, Module, TableBinding},
};

/// Bytes that the allocator adds to an allocation: an estimate.
const ALLOCATION_BYTES: usize = 16;
/// Bytes of a column in each of a binding's row layouts: an estimate.
const COLUMN_SLOT_BYTES: usize = 48;

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
        (heap(self.description.len()) + schema(&self.schema) + bindings(&self.schema.tables)) as u64
    }
}

impl Module {
    /// Estimates its own bytes: without the declarations and the description, which versions share.
    fn own_bytes(&self) -> u64 {
        (size_of::<Self>() + bindings(&self.schema.tables)) as u64
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
