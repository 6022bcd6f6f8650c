//! Compiled wasm modules as code that can be run.

use reprise_abi::HostOps;
use reprise_host::{CallOutcome, CompiledModule, Instance};

use crate::module::{Code, Executor};

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
