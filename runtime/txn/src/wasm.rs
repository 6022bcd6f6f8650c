//! Compiled wasm modules as code that an engine thread can run.

use std::sync::{Arc, Mutex, MutexGuard};

use reprise_abi::{HostOps, ModuleSchema};
use reprise_base::MemoryLedger;
use reprise_env::{Disk, DiskError};
use reprise_host::{CallOutcome, CompiledModule, Engine, Instance, InvalidModule, StartTime, described, hash_of};

use crate::{
    install::Candidate,
    module::{Code, Executor},
};

/// Makes code from a module's bytes: wasm, or in a simulation procedures that were compiled into the program.
pub trait Compiler: Send + Sync {
    /// Returns the module under this name, ready to be installed. It must start and describe itself within `time`. Err: why its bytes can't
    /// be run.
    fn compile(&self, name: &str, wasm: &Arc<[u8]>, time: &StartTime) -> Result<Candidate, InvalidModule>;

    /// The `compile` variant for a module that was in service before. It skips the checks, and makes the code at its first use.
    fn restore(&self, name: &str, wasm: &Arc<[u8]>) -> Result<Candidate, InvalidModule> {
        self.compile(name, wasm, &StartTime::again())
    }

    /// Counts in `memory` what `restore` and the code that it returns take to compile. The caller counts `compile` itself, because it may
    /// refuse that.
    fn count_in(&self, _memory: &Arc<MemoryLedger>) {}

    /// Keeps compiled code in `disk` for the next start. `secret` is the database's own. The caller does so once.
    fn keep_code(&self, _disk: Arc<dyn Disk>, _secret: &[u8]) -> Result<(), DiskError> {
        Ok(())
    }

    /// Deletes kept code that was not needed since the start.
    fn delete_unused_code(&self) {}

    /// Returns the hash of everything that can change the results of the code.
    fn settings_hash(&self) -> u64;
}

impl Compiler for Engine {
    fn compile(&self, name: &str, wasm: &Arc<[u8]>, time: &StartTime) -> Result<Candidate, InvalidModule> {
        let compiled = self.compile_quietly(wasm, time)?;
        let (hash, described) = (compiled.hash(), compiled.described());
        let code = WasmCode::new(self.clone(), wasm.clone(), Some(compiled));
        Ok(candidate(name, wasm, hash, described, code))
    }

    fn restore(&self, name: &str, wasm: &Arc<[u8]>) -> Result<Candidate, InvalidModule> {
        let (described, compiled) = match described(wasm)? {
            Some(described) => (described, None),
            None => {
                let compiled = CompiledModule::compile_again(self, wasm)?;
                (compiled.described(), Some(compiled))
            }
        };
        let code = WasmCode::new(self.clone(), wasm.clone(), compiled);
        Ok(candidate(name, wasm, hash_of(wasm), described, code))
    }

    fn count_in(&self, memory: &Arc<MemoryLedger>) {
        Engine::count_in(self, memory);
    }

    fn keep_code(&self, disk: Arc<dyn Disk>, secret: &[u8]) -> Result<(), DiskError> {
        Engine::keep_code(self, disk, secret)
    }

    fn delete_unused_code(&self) {
        Engine::delete_unused_code(self);
    }

    fn settings_hash(&self) -> u64 {
        Engine::settings_hash(self)
    }
}

fn candidate(
    name: &str,
    wasm: &[u8],
    hash: [u8; 32],
    (schema, description): (ModuleSchema, Arc<[u8]>),
    code: WasmCode,
) -> Candidate {
    Candidate {
        name: name.to_owned(),
        hash,
        wasm_bytes: wasm.len() as u64,
        schema,
        description,
        code: Arc::new(code),
    }
}

/// A wasm module. It is compiled while it is needed, with one isolated instance for each engine thread.
pub struct WasmCode {
    engine: Engine,
    held: Mutex<LoadedCode>,
}

/// The bytes and the code. Both are empty once the module is out of service.
#[derive(Default)]
struct LoadedCode {
    wasm: Option<Arc<[u8]>>,
    compiled: Option<CompiledModule>,
}

impl WasmCode {
    fn new(engine: Engine, wasm: Arc<[u8]>, compiled: Option<CompiledModule>) -> Self {
        let held = Mutex::new(LoadedCode {
            wasm: Some(wasm),
            compiled,
        });
        Self { engine, held }
    }

    fn lock(&self) -> MutexGuard<'_, LoadedCode> {
        // A panic of the compiler leaves no code, which is a valid state.
        self.held.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn module(&self) -> Result<CompiledModule, String> {
        let mut held = self.lock();
        if let Some(module) = &held.compiled {
            return Ok(module.clone());
        }
        let wasm = held.wasm.clone().ok_or("this version is out of service")?;
        let made = CompiledModule::compile_again(&self.engine, &wasm);
        let module = made.map_err(|error| error.to_string())?;
        Ok(held.compiled.insert(module).clone())
    }
}

impl Code for WasmCode {
    fn instantiate(&self) -> Result<Box<dyn Executor>, String> {
        self.module()?.instantiate()
    }

    fn prepare(&self) -> Result<(), String> {
        self.module().map(drop)
    }

    fn release(&self) {
        *self.lock() = LoadedCode::default();
    }

    fn code_bytes(&self) -> usize {
        self.lock().compiled.as_ref().map_or(0, CompiledModule::code_bytes)
    }

    fn is_ready(&self) -> bool {
        self.lock().compiled.is_some()
    }
}

impl Code for CompiledModule {
    fn instantiate(&self) -> Result<Box<dyn Executor>, String> {
        Ok(Box::new(Instance::new(self)))
    }

    fn code_bytes(&self) -> usize {
        CompiledModule::code_bytes(self)
    }
}

impl Executor for Instance {
    fn call(&mut self, procedure: usize, ops: &mut dyn HostOps) -> CallOutcome {
        let args_bytes = ops.args().len();
        Instance::call(self, procedure, args_bytes, ops)
    }

    fn count_in(&mut self, memory: &Arc<MemoryLedger>) {
        Instance::count_in(self, memory);
    }

    fn wanted_bytes(&self) -> u64 {
        Instance::wanted_bytes(self)
    }
}
