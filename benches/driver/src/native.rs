//! Procedures compiled into this program, run over the same engine: what wasm is compared with.

use reprise_abi::HostOps;
use reprise_host::{CallOutcome, Fault, GuestExit};
use reprise_procedure::native::{self, NativeFault, NativeModule};
use reprise_txn::{Code, Executor};

/// A module of this program in the place of its wasm.
pub struct NativeCode(pub &'static NativeModule);

struct NativeExecutor(&'static NativeModule);

impl Code for NativeCode {
    fn instantiate(&self) -> Result<Box<dyn Executor>, String> {
        Ok(Box::new(NativeExecutor(self.0)))
    }
}

impl Executor for NativeExecutor {
    fn call(&mut self, procedure: usize, ops: &mut dyn HostOps) -> CallOutcome {
        let kind = match self.0.call(procedure, ops) {
            Ok(native::NativeExit::Done) => Ok(GuestExit::Returned),
            Ok(native::NativeExit::Aborted) => Ok(GuestExit::Aborted),
            Err(NativeFault::Host(error)) => Err(Fault::of_op(error)),
            Err(NativeFault::Panic(message)) => Err(Fault::trap("panic", message)),
        };
        CallOutcome { kind, fuel_used: 0 }
    }
}
