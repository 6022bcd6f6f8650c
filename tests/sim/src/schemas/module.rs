//! Modules whose bytes are their description: three procedures that write rows of any of their tables, and the migrations of some of them.

use std::sync::Arc;

use reprise_abi::{
    ABI_VERSION, Field, HostOps, LogDeclaration, ModuleSchema, OpError, Parameter, Partitioning, ProcedureSchema,
    RowHandle, RowLayout, ScalarType, ScanFlags, ScanRequest, TablePlacement, TableSchema, Type, calls::IndexTarget,
    value::ValueReader,
};
use reprise_host::{CallOutcome, Fault, GuestExit, InvalidModule, StartTime, describe};
use reprise_txn::{Candidate, Code, Compiler, Executor};

/// Procedures in their order in each module.
pub const PROCEDURES: [&str; 3] = ["put", "change", "erase"];

/// The migration that a module runs when it is deployed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migration {
    Nothing,
    /// One column of each table is counted on (`counted_column`).
    Counts,
    /// The migration does the same, and fails.
    Fails,
}

/// A procedure that only modules have whose migration fails.
const FAILS: &str = "fails";

/// The column that a migration counts on: an integer that is in no key.
pub fn counted_column(table: &TableSchema) -> Option<usize> {
    let is_own = table.owner.is_empty() && !table.primary_key.is_empty();
    let in_key = |column: &u16| {
        table.placement == TablePlacement::By(*column)
            || table.primary_key.contains(column)
            || table.indexes.iter().any(|index| index.columns.contains(column))
    };
    let mut free = (0..table.columns.len() as u16).filter(|column| !in_key(column));
    let found = free.find(|column| table.columns[*column as usize].ty != ScalarType::Text);
    found.filter(|_| is_own).map(usize::from)
}

/// Returns the new value of a counted column; it fits every type.
pub fn counted(value: i64) -> i64 {
    (value + 1).rem_euclid(50)
}

pub fn description(tables: &[TableSchema], migration: Migration, retiring: &[TableSchema]) -> Vec<u8> {
    let param = |name: &str, ty| Parameter {
        name: name.into(),
        ty: Type::Scalar(ty),
    };
    let procedure = |name: &str| ProcedureSchema {
        docs: String::new(),
        name: name.into(),
        params: vec![
            param("place", ScalarType::I64),
            param("table", ScalarType::I64),
            param("key", ScalarType::Bytes),
            param("row", ScalarType::Bytes),
        ],
        returns: Type::Unit,
        read_only: false,
        partitioning: Partitioning::By(vec![0]),
        prefetch: Vec::new(),
        log: LogDeclaration::Server,
        time_max_ms: None,
        fuel_max: None,
        aborts: Vec::new(),
    };
    let mut procedures = PROCEDURES.map(procedure).to_vec();
    procedures.extend((migration == Migration::Fails).then(|| procedure(FAILS)));
    let schema = ModuleSchema {
        table_docs: Vec::new(),
        abi: ABI_VERSION,
        tables: tables.to_vec(),
        procedures,
        on_deploy: (migration != Migration::Nothing).then(String::new),
        retiring: retiring.to_vec(),
    };
    describe::to_json(&schema).into_bytes()
}

pub struct DescribedCompiler;

impl Compiler for DescribedCompiler {
    fn compile(&self, name: &str, wasm: &Arc<[u8]>, _: &StartTime) -> Result<Candidate, InvalidModule> {
        let schema = describe::from_json(wasm).map_err(|error| InvalidModule::new(error.to_string()))?;
        let mut hash = [0u8; 32];
        for (at, byte) in wasm.iter().enumerate() {
            let place = &mut hash[at % 32];
            *place = place.wrapping_mul(31).wrapping_add(*byte).rotate_left((at % 7) as u32);
        }
        Ok(Candidate {
            name: name.to_owned(),
            hash,
            wasm_bytes: wasm.len() as u64,
            description: wasm.clone(),
            code: Arc::new(Described(Arc::new(schema.clone()))),
            schema,
        })
    }

    fn settings_hash(&self) -> u64 {
        0x5c4e_3a50
    }
}

#[derive(Clone)]
struct Described(Arc<ModuleSchema>);

impl Code for Described {
    fn instantiate(&self) -> Result<Box<dyn Executor>, String> {
        Ok(Box::new(self.clone()))
    }
}

impl Executor for Described {
    fn call(&mut self, procedure: usize, ops: &mut dyn HostOps) -> CallOutcome {
        let ended = match procedure == self.0.migration() {
            true => migrate(&self.0, ops),
            false => call(procedure, ops),
        };
        let kind = match ended {
            Ok(()) => Ok(GuestExit::Returned),
            Err(error) => Err(Fault::guest(format!("{error:?}"))),
        };
        CallOutcome { kind, fuel_used: 0 }
    }
}

fn call(procedure: usize, ops: &mut dyn HostOps) -> Result<(), OpError> {
    let args = ops.args().to_vec();
    let mut reader = ValueReader::new(&args);
    let malformed = |_| OpError::Guest("arguments".into());
    let _place: [u8; 8] = reader.array().map_err(malformed)?;
    let table = i64::from_le_bytes(reader.array().map_err(malformed)?) as u16;
    let key = reader.bytes().map_err(malformed)?;
    let row = reader.bytes().map_err(malformed)?;
    if procedure == 0 {
        return ops.insert(table, row).map(drop);
    }
    let found = ops.get(IndexTarget { table, index: 0 }, key)?;
    let (handle, _) = found.ok_or_else(|| OpError::Guest("no such row".into()))?;
    match procedure {
        1 => ops.update(handle, row),
        _ => ops.delete(handle),
    }
}

fn migrate(schema: &ModuleSchema, ops: &mut dyn HostOps) -> Result<(), OpError> {
    for (number, table) in schema.tables.iter().enumerate() {
        let Some(column) = counted_column(table) else {
            continue;
        };
        // A change that is taken back must leave nothing, in the copies as in tables.
        let savepoint = ops.savepoint()?;
        if let Some((handle, _)) = rows_of(number, ops)?.first() {
            ops.delete(*handle)?;
            ops.rollback_to(savepoint)?;
        }
        let rows = rows_of(number, ops)?;
        let layout = RowLayout::of_table(table);
        for (handle, row) in &rows {
            let mut fields: Vec<_> = (0..table.columns.len() as u16)
                .map(|at| layout.field(row, at))
                .collect();
            fields[column] = match fields[column] {
                Field::Int(value) => Field::Int(counted(value)),
                Field::Uint(value) => Field::Uint(counted(value as i64) as u64),
                other => other,
            };
            ops.update(*handle, &layout.build(&fields))?;
        }
        // The table before shows the rows as they were.
        let before = schema.retiring.iter().position(|retiring| retiring.name == table.name);
        if let Some(before) = before {
            let before = rows_of(schema.tables.len() + before, ops)?;
            if !before.is_empty() && before.len() != rows.len() {
                return Err(OpError::Guest("other rows before the deployment".into()));
            }
        }
    }
    match schema.procedures.len() > PROCEDURES.len() {
        true => Err(OpError::Guest(FAILS.into())),
        false => Ok(()),
    }
}

/// The rows of a table on this partition.
fn rows_of(table: usize, ops: &mut dyn HostOps) -> Result<Vec<(RowHandle, Vec<u8>)>, OpError> {
    let mut rows = Vec::new();
    let mut visit = |handle: RowHandle, row: &[u8]| {
        rows.push((handle, row.to_vec()));
        true
    };
    let request = ScanRequest {
        target: IndexTarget {
            table: table as u16,
            index: 0,
        },
        flags: ScanFlags(ScanFlags::LOCAL),
        limit: 0,
        lower: &[],
        upper: &[],
    };
    let mut cursor = ops.scan(&request, &mut visit)?.cursor;
    while cursor != 0 {
        cursor = ops.scan_next(cursor, &mut visit)?.cursor;
    }
    Ok(rows)
}
