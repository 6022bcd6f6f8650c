//! Modules whose bytes are their description: three procedures that write rows of any of their tables.

use std::sync::Arc;

use reprise_abi::{
    ABI_VERSION, HostOps, LogChoice, ModuleSchema, OpError, Parameter, Partitioning, ProcedureSchema, ScalarType,
    TableSchema, Type, calls::Target, value::ValueReader,
};
use reprise_host::{CallEnd, CallOutcome, Fault, InvalidModule, describe};
use reprise_txn::{Candidate, Code, Compiler, Executor};

/// In their order in each module.
pub const PROCEDURES: [&str; 3] = ["put", "change", "erase"];

pub fn description(tables: &[TableSchema]) -> Vec<u8> {
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
        log: LogChoice::Server,
        time_max_ms: None,
    };
    let schema = ModuleSchema {
        table_docs: Vec::new(),
        abi: ABI_VERSION,
        tables: tables.to_vec(),
        procedures: PROCEDURES.map(procedure).to_vec(),
        on_deploy: false,
        retiring: Vec::new(),
    };
    describe::to_json(&schema).into_bytes()
}

pub struct DescribedCompiler;

impl Compiler for DescribedCompiler {
    fn compile(&self, name: &str, wasm: &Arc<[u8]>) -> Result<Candidate, InvalidModule> {
        let schema = describe::from_json(wasm).map_err(|error| InvalidModule {
            reason: error.to_string(),
            offset: None,
        })?;
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
            semantics: reprise_abi::SEMANTICS,
            schema,
            code: Arc::new(Described),
        })
    }

    fn settings_hash(&self) -> u64 {
        0x5c4e_3a50
    }
}

struct Described;

impl Code for Described {
    fn instantiate(&self) -> Result<Box<dyn Executor>, String> {
        Ok(Box::new(Self))
    }
}

impl Executor for Described {
    fn call(&mut self, procedure: usize, ops: &mut dyn HostOps) -> CallOutcome {
        let kind = match call(procedure, ops) {
            Ok(()) => Ok(CallEnd::Returned),
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
    let found = ops.get(Target { table, index: 0 }, key)?;
    let (handle, _) = found.ok_or_else(|| OpError::Guest("no such row".into()))?;
    match procedure {
        1 => ops.update(handle, row),
        _ => ops.delete(handle),
    }
}
