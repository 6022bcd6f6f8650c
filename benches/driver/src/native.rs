//! Procedures compiled into this program, run over the same engine: what wasm is compared with.

use reprise_abi::{HostOps, OpError};
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
            Err(fault) => Err(fault_of(fault)),
        };
        CallOutcome { kind, fuel_used: 0 }
    }
}

fn fault_of(fault: NativeFault) -> Box<Fault> {
    match fault {
        NativeFault::Host(OpError::Limit { limit, max }) => Fault::limit(limit, max),
        NativeFault::Host(OpError::KeyTooLong { key }) => Fault::key_too_long(&key),
        NativeFault::Host(OpError::Guest(message)) => Fault::guest(message),
        NativeFault::Host(OpError::Ended(ended)) => Fault::ended(ended),
        NativeFault::Host(OpError::DuplicateKey { index }) => {
            Fault::guest(format!("duplicate key in index {index} not handled"))
        }
        NativeFault::Panic(message) => Fault::trap("panic", message),
    }
}
