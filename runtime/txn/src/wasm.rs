//! Compiled wasm modules as code that can be run.

use std::sync::Arc;

use reprise_abi::HostOps;
use reprise_host::{CallOutcome, CompiledModule, Engine, Instance, InvalidModule};

use crate::{
    install::Candidate,
    module::{Code, Executor},
};

/// Makes code of a module's bytes: wasm, or in a simulation procedures that were compiled into the program.
pub trait Compiler: Send + Sync {
    /// The module under this name, ready to be installed. Err: why its bytes can't be run.
    fn compile(&self, name: &str, wasm: &[u8]) -> Result<Candidate, InvalidModule>;

    /// Hash of everything that can change what the code computes.
    fn settings_hash(&self) -> u64;
}

impl Compiler for Engine {
    fn compile(&self, name: &str, wasm: &[u8]) -> Result<Candidate, InvalidModule> {
        let compiled = CompiledModule::compile(self, wasm)?;
        Ok(Candidate {
            name: name.to_owned(),
            hash: compiled.hash(),
            wasm_bytes: wasm.len() as u64,
            schema: compiled.schema().clone(),
            code: Arc::new(WasmCode(compiled)),
        })
    }

    fn settings_hash(&self) -> u64 {
        Engine::settings_hash(self)
    }
}

/// A compiled module; one isolated instance per engine thread.
pub struct WasmCode(pub CompiledModule);

impl Code for WasmCode {
    fn instantiate(&self) -> Result<Box<dyn Executor>, String> {
        match Instance::new(&self.0) {
            Ok(instance) => Ok(Box::new(instance)),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Executor for Instance {
    fn call(&mut self, procedure: usize, ops: &mut dyn HostOps) -> CallOutcome {
        let args_bytes = ops.args().len();
        Instance::call(self, procedure, args_bytes, ops)
    }
}
