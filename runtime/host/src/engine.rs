//! The one wasmtime engine of a process, and every setting that affects the results of a guest.

use std::{
    num::NonZeroUsize,
    sync::{Arc, OnceLock},
};

use reprise_abi::ABI_VERSION;
use reprise_base::{Grant, MemoryKind, MemoryLedger, limits};
use reprise_env::{Disk, DiskError};
use sha2::{Digest, Sha256};
use wasmtime::{Config, Enabled, Linker, OptLevel, PoolingAllocationConfig, WasmBacktraceDetails};

use crate::{
    calls,
    features::features,
    kept_code::KeptCode,
    memory::Creator,
    module::{CompiledModule, InvalidModule},
    quiet::Quiet,
    rewrite::Allowance,
    start::StartTime,
    state::HostState,
};

/// Version of wasmtime that runs the guests. A test compares it with the lock file.
pub(crate) const WASMTIME_VERSION: &str = "48.0.8";
/// Raised with every change of `rewrite` that a guest or its fuel can notice, of `wasi`, or of the checks in `state`.
const HOST_VERSION: u32 = 5;
/// Number of simultaneous instances of modules whose instances are not reused: one for each engine thread and upload.
const POOL_INSTANCES: u32 = reprise_base::limits::SITES_MAX as u32 + 44;
/// Number of tables of such an instance: its own, and the one through which the host is asked.
const POOL_TABLES: u32 = 2;
/// Bytes of a returned memory that are cleared in place, if the kernel knows which pages were written.
const POOL_RESIDENT_BYTES: usize = 1 << 20;

/// The processor that code is compiled for, even if this machine has more features. With the machine's own set, a replay on another machine
/// could have another outcome.
#[cfg(target_arch = "x86_64")]
mod processor {
    pub const NAME: &str = "x86-64-v3";
    /// Cranelift's name of each feature beyond the first x86-64.
    pub const FLAGS: [&str; 12] = [
        "has_sse3",
        "has_ssse3",
        "has_sse41",
        "has_sse42",
        "has_cmpxchg16b",
        "has_popcnt",
        "has_avx",
        "has_avx2",
        "has_fma",
        "has_bmi1",
        "has_bmi2",
        "has_lzcnt",
    ];

    /// Returns the required features that this machine lacks.
    pub fn missing() -> Vec<&'static str> {
        macro_rules! lacking {
            ($($name:tt)*) => {
                [$(($name, std::arch::is_x86_feature_detected!($name))),*]
            };
        }
        let all =
            lacking!("sse3" "ssse3" "sse4.1" "sse4.2" "cmpxchg16b" "popcnt" "avx" "avx2" "fma" "bmi1" "bmi2" "lzcnt");
        all.iter().filter(|(_, has)| !has).map(|(name, _)| *name).collect()
    }
}

/// The first version of the architecture, which every machine of it has.
#[cfg(not(target_arch = "x86_64"))]
mod processor {
    pub const NAME: &str = std::env::consts::ARCH;
    pub const FLAGS: [&str; 0] = [];

    pub fn missing() -> Vec<&'static str> {
        Vec::new()
    }
}
/// Frames of a trap's backtrace at most.
const BACKTRACE_FRAMES_MAX: NonZeroUsize = NonZeroUsize::new(32).expect("not zero");

/// The bounds of every call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub module_bytes_max: usize,
    /// Bytes of guest memory at most, a multiple of a wasm page (64 KiB).
    pub guest_memory_bytes_max: usize,
    /// Bytes of stack at most, in the counting of `depth`.
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
    inner: Arc<EngineInner>,
}

struct EngineInner {
    reused: Runtime,
    /// The runtime for modules whose instances are not reused, made with the first of them. None if the machine refuses it.
    pooled: OnceLock<Option<Runtime>>,
    limits: Limits,
    /// The kept code, after `keep_code` was called.
    kept: OnceLock<KeptCode>,
    /// The ledger in which compilations are counted, after `count_in` was called.
    memory: OnceLock<Arc<MemoryLedger>>,
    /// The thread that compiles uploads.
    quiet: Quiet,
    /// False for `Engine::unmetered` alone.
    is_metered: bool,
}

/// A wasmtime engine with the imports bound.
pub(crate) struct Runtime {
    pub wasmtime: wasmtime::Engine,
    pub linker: Linker<HostState>,
}

impl Runtime {
    fn new(config: &Config) -> wasmtime::Result<Self> {
        let wasmtime = wasmtime::Engine::new(config)?;
        let mut linker = Linker::new(&wasmtime);
        calls::link(&mut linker).expect("import names are distinct");
        Ok(Self { wasmtime, linker })
    }
}

impl Engine {
    /// Makes the engine. It panics if this machine can't run wasm at all.
    pub fn new(limits: Limits) -> Self {
        Self::build(limits, true)
    }

    /// Makes an engine without fuel and without the settings that make guests deterministic. It serves only to measure what these cost. An
    /// endless loop runs for ever.
    pub fn unmetered(limits: Limits) -> Self {
        Self::build(limits, false)
    }

    fn build(limits: Limits, is_metered: bool) -> Self {
        let missing = processor::missing();
        assert!(
            missing.is_empty(),
            "modules are compiled for {}, of which this processor lacks {}",
            processor::NAME,
            missing.join(", ")
        );
        assert!(limits.guest_stack_bytes_max < limits::GUEST_NATIVE_STACK_BYTES);
        let mut config = config(is_metered);
        config.with_host_memory(Arc::new(Creator)).memory_init_cow(false);
        let reused = Runtime::new(&config).expect("wasmtime takes this configuration on every supported machine");
        Self {
            inner: Arc::new(EngineInner {
                reused,
                pooled: OnceLock::new(),
                limits,
                kept: OnceLock::new(),
                memory: OnceLock::new(),
                quiet: Quiet::default(),
                is_metered,
            }),
        }
    }

    /// Checks and compiles an upload on a thread of low priority, one module at a time.
    pub fn compile_quietly(&self, wasm: &[u8], time: &StartTime) -> Result<CompiledModule, InvalidModule> {
        self.inner
            .quiet
            .run(|| CompiledModule::compile_within(self, wasm, time))
    }

    /// Keeps compiled code in `disk` from now on, and takes it from there. `secret` is the database's own. The caller does so once.
    pub fn keep_code(&self, disk: Arc<dyn Disk>, secret: &[u8]) -> Result<(), DiskError> {
        let kept = KeptCode::open(disk, secret)?;
        assert!(self.inner.kept.set(kept).is_ok(), "code is kept in one place");
        Ok(())
    }

    /// Counts in `memory` what the compiler takes for modules that were in service before, and the instance with which each compiled module
    /// is checked. A process with several databases counts in the first one's.
    pub fn count_in(&self, memory: &Arc<MemoryLedger>) {
        self.inner.memory.get_or_init(|| memory.clone());
    }

    /// Counts what the compiler takes for as long as it works. It is never refused, because a module that was in service must load again.
    pub(crate) fn take_compile_memory(&self, wasm_bytes: usize) -> Option<Grant> {
        let modules = self.inner.memory.get()?.kind(MemoryKind::Modules);
        Some(modules.take(wasm_bytes as u64 * limits::COMPILE_BYTES_EACH))
    }

    /// Returns the ledger of `count_in`. None before it was called.
    pub(crate) fn memory(&self) -> Option<&Arc<MemoryLedger>> {
        self.inner.memory.get()
    }

    /// Deletes kept code that nothing has needed since the folder was opened.
    pub fn delete_unused_code(&self) {
        if let Some(kept) = self.kept() {
            kept.delete_unused();
        }
    }

    pub(crate) fn kept(&self) -> Option<&KeptCode> {
        self.inner.kept.get()
    }

    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    #[inline]
    pub(crate) fn is_metered(&self) -> bool {
        self.inner.is_metered
    }

    /// Returns the allowance of a call. None if the engine charges nothing.
    pub(crate) fn allowance(&self) -> Option<Allowance> {
        self.is_metered().then_some(Allowance {
            fuel_max: self.inner.limits.fuel_max,
            stack_bytes: self.inner.limits.guest_stack_bytes_max,
        })
    }

    /// Returns a hash that is equal on two machines exactly if every guest has the same results on both. The log's header has it.
    pub fn settings_hash(&self) -> u64 {
        assert!(self.is_metered(), "what is unmetered is not to be replayed");
        let settings = format!(
            "host {HOST_VERSION}; wasmtime {WASMTIME_VERSION}; abi {ABI_VERSION}; features {:x}; \
             cpu {}; nan canonical; fuel function,loop turn,host call,call_indirect,weight of 64 others 1, bulk 1 each; \
             limits {:?} native stack {} table {} args {} result {} host-call-bytes {}",
            features().bits(),
            processor::NAME,
            self.inner.limits,
            limits::GUEST_NATIVE_STACK_BYTES,
            limits::GUEST_TABLE_ELEMENTS_MAX,
            reprise_abi::value::ARGS_BYTES_MAX,
            reprise_abi::value::RESULT_BYTES_MAX,
            limits::HOST_CALL_BYTES_MAX,
        );
        let digest = Sha256::digest(settings.as_bytes());
        u64::from_le_bytes(digest[..8].try_into().expect("8 bytes"))
    }

    /// Returns the runtime for modules whose instances are restored after each call.
    pub(crate) fn reused(&self) -> &Runtime {
        &self.inner.reused
    }

    /// Returns the runtime that makes instances cheaply, for modules that need a fresh one for each call.
    pub(crate) fn pooled(&self) -> Option<&Runtime> {
        let limits = &self.inner.limits;
        let make = || {
            let mut config = config(self.is_metered());
            config.allocation_strategy(pool(limits));
            Runtime::new(&config).ok()
        };
        self.inner.pooled.get_or_init(make).as_ref()
    }
}

fn pool(limits: &Limits) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_core_instances(POOL_INSTANCES)
        .total_memories(POOL_INSTANCES)
        .max_memories_per_module(1)
        .max_memory_size(limits.guest_memory_bytes_max)
        .total_tables(POOL_INSTANCES * POOL_TABLES)
        .max_tables_per_module(POOL_TABLES)
        .table_elements(limits::GUEST_TABLE_ELEMENTS_MAX as usize)
        .linear_memory_keep_resident(POOL_RESIDENT_BYTES)
        .table_keep_resident(POOL_RESIDENT_BYTES)
        .pagemap_scan(Enabled::Auto);
    pool
}

fn config(is_metered: bool) -> Config {
    let mut config = Config::new();
    let libc = if cfg!(target_env = "musl") { "musl" } else { "gnu" };
    config
        .target(&format!("{}-unknown-linux-{libc}", std::env::consts::ARCH))
        .expect("the architecture of this program has a name");
    for flag in processor::FLAGS {
        // SAFETY: these flags name instructions, which `Engine::new` has found on this processor.
        unsafe { config.cranelift_flag_enable(flag) };
    }
    config
        .parallel_compilation(false) // the caller's thread compiles, so the caller chooses the priority
        .cranelift_opt_level(OptLevel::Speed)
        .cranelift_nan_canonicalization(is_metered)
        .max_wasm_stack(limits::GUEST_NATIVE_STACK_BYTES)
        // `rewrite` writes these hints. A guest's own hints are dropped.
        .wasm_branch_hinting(true)
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
    #[should_panic(expected = "not to be replayed")]
    fn an_unmetered_engine_has_no_settings_hash() {
        Engine::unmetered(Limits::default()).settings_hash();
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
