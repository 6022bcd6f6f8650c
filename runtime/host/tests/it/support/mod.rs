//! Helpers of the host's tests: modules from text, and a transaction that is a map.
#![allow(dead_code, clippy::unwrap_used)]

use std::{cell::Cell, collections::BTreeMap};

use reprise_abi::{
    ColumnSet, EndReason, HostOps, IndexTarget, LogLevel, OpError, RowHandle, RowTaker, ScanBatch, ScanRequest,
    random::TxnRandom,
};
use reprise_base::limits::REPLAY_LIMITS_FACTOR;
use reprise_host::{CallOutcome, CompiledModule, Engine, Fault, GuestExit, Instance, Limits};

/// A transaction over one table: key -> row.
#[derive(Default)]
pub struct MapOps {
    pub args: Vec<u8>,
    /// How often they were asked for.
    pub args_asked: Cell<usize>,
    pub result: Vec<u8>,
    pub rows: BTreeMap<Vec<u8>, Vec<u8>>,
    pub handles: Vec<Vec<u8>>,
    pub log: Vec<(LogLevel, String)>,
    pub abort: Option<(String, String)>,
    pub random: Option<TxnRandom>,
    pub calls: usize,
    pub patches: Vec<(RowHandle, ColumnSet, Vec<u8>)>,
    /// Number of questions whether the call may continue, and the one at which it may not.
    pub asked: usize,
    pub end_at: Option<usize>,
    pub is_replay: bool,
    /// Fuel that the procedure declares.
    pub fuel_max: Option<u64>,
    /// Runs inside of the host call `log`.
    pub on_log: Option<Box<dyn FnMut()>>,
}

impl MapOps {
    pub fn with_args(args: &[u8]) -> Self {
        Self {
            args: args.to_vec(),
            ..Self::default()
        }
    }

    fn handle(&mut self, key: &[u8]) -> RowHandle {
        self.handles.push(key.to_vec());
        (self.handles.len() - 1) as RowHandle
    }

    fn key(&self, handle: RowHandle) -> Result<Vec<u8>, OpError> {
        let key = self.handles.get(handle as usize);
        key.cloned()
            .ok_or_else(|| OpError::Guest(format!("no handle {handle}")))
    }
}

impl HostOps for MapOps {
    fn args(&self) -> &[u8] {
        self.args_asked.set(self.args_asked.get() + 1);
        &self.args
    }
    fn set_result(&mut self, bytes: &[u8]) -> Result<(), OpError> {
        self.result = bytes.to_vec();
        Ok(())
    }
    fn get(&mut self, _: IndexTarget, key: &[u8]) -> Result<Option<(RowHandle, &[u8])>, OpError> {
        self.calls += 1;
        if !self.rows.contains_key(key) {
            return Ok(None);
        }
        let handle = self.handle(key);
        Ok(Some((handle, &self.rows[key])))
    }
    fn row(&mut self, handle: RowHandle) -> Result<&[u8], OpError> {
        let key = self.key(handle)?;
        Ok(&self.rows[&key])
    }
    fn insert(&mut self, table: u16, row: &[u8]) -> Result<RowHandle, OpError> {
        if table != 0 {
            return Err(OpError::Guest(format!("no table {table}")));
        }
        let key = row[..row.len().min(4)].to_vec();
        if self.rows.contains_key(&key) {
            return Err(OpError::DuplicateKey { index: 0 });
        }
        self.rows.insert(key.clone(), row.to_vec());
        Ok(self.handle(&key))
    }
    fn update(&mut self, handle: RowHandle, row: &[u8]) -> Result<(), OpError> {
        let key = self.key(handle)?;
        self.rows.insert(key, row.to_vec());
        Ok(())
    }
    fn delete(&mut self, handle: RowHandle) -> Result<(), OpError> {
        let key = self.key(handle)?;
        self.rows.remove(&key);
        Ok(())
    }
    fn add(&mut self, handle: RowHandle, _: u16, delta: i64) -> Result<i64, OpError> {
        self.key(handle)?;
        Ok(delta)
    }
    fn table_of_handle(&self, handle: RowHandle) -> Option<u16> {
        self.handles.get(handle as usize).map(|_| 0)
    }
    fn patch(&mut self, _: u16, handle: RowHandle, set: ColumnSet, values: &[u8]) -> Result<(), OpError> {
        self.key(handle)?;
        self.patches.push((handle, set, values.to_vec()));
        Ok(())
    }
    fn scan(&mut self, request: &ScanRequest<'_>, visit: &mut RowTaker<'_>) -> Result<ScanBatch, OpError> {
        let found: Vec<_> = self.rows.range(request.lower.to_vec()..).collect();
        for (position, (_, row)) in found.iter().enumerate() {
            if !visit(position as u32, row) {
                return Ok(ScanBatch {
                    cursor: 1,
                    rows: position as u32,
                });
            }
        }
        Ok(ScanBatch {
            cursor: 0,
            rows: found.len() as u32,
        })
    }
    fn scan_next(&mut self, cursor: u32, _: &mut RowTaker<'_>) -> Result<ScanBatch, OpError> {
        Err(OpError::Guest(format!("no cursor {cursor}")))
    }
    fn count(&mut self, _: &ScanRequest<'_>) -> Result<u64, OpError> {
        Ok(self.rows.len() as u64)
    }
    fn savepoint(&mut self) -> Result<u32, OpError> {
        Ok(7)
    }
    fn rollback_to(&mut self, savepoint: u32) -> Result<(), OpError> {
        match savepoint {
            7 => Ok(()),
            _ => Err(OpError::Limit {
                limit: "savepoints",
                max: 1,
            }),
        }
    }
    fn go_on(&mut self) -> Result<(), OpError> {
        self.asked += 1;
        match self.end_at == Some(self.asked) {
            true => Err(OpError::Ended(EndReason::Cancelled)),
            false => Ok(()),
        }
    }
    fn limits_times(&self) -> u64 {
        match self.is_replay {
            true => REPLAY_LIMITS_FACTOR,
            false => 1,
        }
    }
    fn fuel_max(&self) -> Option<u64> {
        self.fuel_max
    }
    fn now_us(&self) -> i64 {
        1_800_000_000_000_000
    }
    fn txn_id(&self) -> u64 {
        42
    }
    fn random_u64(&mut self) -> u64 {
        self.random.get_or_insert_with(|| TxnRandom::new([1, 2], 3)).next_u64()
    }
    fn log(&mut self, level: LogLevel, text: &str) -> Result<(), OpError> {
        if let Some(on_log) = &mut self.on_log {
            on_log();
        }
        self.log.push((level, text.to_owned()));
        Ok(())
    }
    fn abort(&mut self, code: &str, message: &str) {
        self.abort = Some((code.to_owned(), message.to_owned()));
    }
}

/// Appends a custom section to a module.
pub fn with_section(mut wasm: Vec<u8>, name: &str, data: &[u8]) -> Vec<u8> {
    let mut body = vec![name.len() as u8];
    body.extend_from_slice(name.as_bytes());
    body.extend_from_slice(data);
    wasm.push(0);
    reprise_abi::value::push_varint(&mut wasm, body.len() as u32);
    wasm.extend_from_slice(&body);
    wasm
}

pub fn description(procedures: &[&str]) -> String {
    let procedures: Vec<String> = procedures
        .iter()
        .map(|name| format!(r#"{{"name":"{name}","params":[],"returns":"bytes","partitioning":"all"}}"#))
        .collect();
    format!(r#"{{"abi":1,"tables":[],"procedures":[{}]}}"#, procedures.join(","))
}

/// A module from text, with a description that names `procedures`.
pub fn module(wat: &str, procedures: &[&str]) -> Vec<u8> {
    let wasm = wat::parse_str(wat).unwrap_or_else(|error| panic!("{error}"));
    with_section(wasm, "reprise.describe", description(procedures).as_bytes())
}

pub fn small_limits() -> Limits {
    Limits {
        fuel_max: 2_000_000,
        ..Limits::default()
    }
}

pub fn compile(wat: &str, procedures: &[&str]) -> CompiledModule {
    let engine = Engine::new(small_limits());
    CompiledModule::compile(&engine, &module(wat, procedures)).unwrap_or_else(|e| panic!("{e}"))
}

pub fn refusal(wasm: &[u8]) -> reprise_host::InvalidModule {
    let engine = Engine::new(small_limits());
    match CompiledModule::compile(&engine, wasm) {
        Ok(_) => panic!("module was taken"),
        Err(invalid) => invalid,
    }
}

pub fn start(wat: &str, procedures: &[&str]) -> Instance {
    Instance::new(&compile(wat, procedures))
}

pub fn run(instance: &mut Instance, procedure: usize, args: &[u8]) -> (CallOutcome, MapOps) {
    let mut ops = MapOps::with_args(args);
    let outcome = instance.call(procedure, args.len(), &mut ops);
    (outcome, ops)
}

/// Runs a procedure that must return, and gives its result.
pub fn returned(instance: &mut Instance, procedure: usize, args: &[u8]) -> Vec<u8> {
    let (outcome, ops) = run(instance, procedure, args);
    assert_eq!(outcome.kind, Ok(GuestExit::Returned));
    ops.result
}

/// Runs a procedure that must fault.
pub fn faulted(instance: &mut Instance, procedure: usize, args: &[u8]) -> Box<Fault> {
    run(instance, procedure, args).0.kind.expect_err("must fault")
}
