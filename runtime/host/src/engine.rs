//! The one wasmtime engine of a process, and every setting that decides what a guest computes.

use std::{num::NonZeroUsize, sync::Arc};

use reprise_abi::ABI_VERSION;
use reprise_base::limits;
use sha2::{Digest, Sha256};
use wasmtime::{
    Config, Linker, OperatorCost, OptLevel, VariableOperatorCost, WasmBacktraceDetails,
};

use crate::{calls, inspect, memory::Creator, state::HostState};

/// Version of wasmtime that runs the guests; a test holds it to the lock file.
const WASMTIME_VERSION: &str = "48.0.8";
/// To be raised with every change of `rewrite`, `wasi`, the costs below or the checks in `state`.
const HOST_VERSION: u32 = 1;
/// Frames of a trap's backtrace at most.
const BACKTRACE_FRAMES_MAX: NonZeroUsize = NonZeroUsize::new(32).expect("not zero");

/// Bounds of every call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub module_bytes_max: usize,
    /// A multiple of a wasm page (64 KiB).
    pub guest_memory_bytes_max: usize,
    pub guest_stack_bytes_max: usize,
    pub fuel_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            module_bytes_max: limits::MODULE_BYTES_MAX,
            guest_memory_bytes_max: limits::GUEST_MEMORY_BYTES_MAX,
            guest_stack_bytes_max: limits::GUEST_STACK_BYTES_MAX,
            fuel_max: limits::FUEL_MAX,
        }
    }
}

/// Compiles and runs guests. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    wasmtime: wasmtime::Engine,
    linker: Linker<HostState>,
    limits: Limits,
}

impl Engine {
    /// Panics when this machine can't run wasm at all.
    pub fn new(limits: Limits) -> Self {
        let wasmtime = wasmtime::Engine::new(&config(&limits))
            .expect("wasmtime takes this configuration on every supported machine");
        let mut linker = Linker::new(&wasmtime);
        calls::link(&mut linker).expect("import names are distinct");
        Self {
            inner: Arc::new(Inner {
                wasmtime,
                linker,
                limits,
            }),
        }
    }

    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// Equal on two machines exactly when every guest computes the same on both. Goes into the log's header.
    pub fn settings_hash(&self) -> u64 {
        let settings = format!(
            "host {HOST_VERSION}; wasmtime {WASMTIME_VERSION}; abi {ABI_VERSION}; features {:x}; \
             nan canonical; fuel br,br_if,br_table,call,call_indirect,nop 1, bulk 1 per byte; \
             limits {:?} args {} result {} host-call-bytes {}",
            inspect::features().bits(),
            self.inner.limits,
            reprise_abi::value::ARGS_BYTES_MAX,
            reprise_abi::value::RESULT_BYTES_MAX,
            limits::HOST_CALL_BYTES_MAX,
        );
        let digest = Sha256::digest(settings.as_bytes());
        u64::from_le_bytes(digest[..8].try_into().expect("8 bytes"))
    }

    pub(crate) fn wasmtime(&self) -> &wasmtime::Engine {
        &self.inner.wasmtime
    }

    pub(crate) fn linker(&self) -> &Linker<HostState> {
        &self.inner.linker
    }
}

fn config(limits: &Limits) -> Config {
    let mut config = Config::new();
    config
        .cranelift_opt_level(OptLevel::Speed)
        .cranelift_nan_canonicalization(true)
        .consume_fuel(true)
        .operator_cost(operator_cost())
        .max_wasm_stack(limits.guest_stack_bytes_max)
        .with_host_memory(Arc::new(Creator))
        .memory_init_cow(false)
        .guard_before_linear_memory(false)
        .concurrency_support(false)
        .wasm_backtrace_max_frames(Some(BACKTRACE_FRAMES_MAX))
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        .generate_address_map(false)
        .native_unwind_info(false)
        .wasm_bulk_memory(true)
        .wasm_multi_value(true)
        .wasm_simd(true)
        .wasm_extended_const(true)
        .wasm_relaxed_simd(false)
        .wasm_tail_call(false)
        .wasm_memory64(false)
        .wasm_multi_memory(false)
        .wasm_custom_page_sizes(false)
        .wasm_wide_arithmetic(false);
    config
}

macro_rules! define_free_operators {
    ($(@$proposal:ident $op:ident $({ $($arg:ident: $ty:ty),* })? => $visit:ident ($($ann:tt)*))*) => {
        /// A price list on which everything is free.
        fn free_operators() -> OperatorCost {
            let mut cost = OperatorCost::new();
            $(cost.$op = 0;)*
            cost
        }
    };
}
wasmparser::for_each_operator!(define_free_operators);

/// One unit per branch and call, which bounds loops and recursion at half the price of counting every instruction; one per
/// `nop`, of which `rewrite` puts one into every long run of free instructions; one per byte of bulk operations.
fn operator_cost() -> OperatorCost {
    let mut cost = free_operators();
    cost.Br = 1;
    cost.BrIf = 1;
    cost.BrTable = 1;
    cost.Call = 1;
    cost.CallIndirect = 1;
    cost.Nop = 1;
    cost.variable = VariableOperatorCost::new();
    cost
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_wasmtime_is_the_one_in_the_lock_file() {
        let lock = include_str!("../../../Cargo.lock");
        let entry = format!("name = \"wasmtime\"\nversion = \"{WASMTIME_VERSION}\"\n");
        assert!(lock.contains(&entry), "lock file has another wasmtime");
    }

    #[test]
    fn settings_hash_follows_the_limits() {
        let default = Engine::new(Limits::default()).settings_hash();
        assert_eq!(default, Engine::new(Limits::default()).settings_hash());
        let other = Limits {
            fuel_max: 1,
            ..Limits::default()
        };
        assert_ne!(default, Engine::new(other).settings_hash());
    }
}
