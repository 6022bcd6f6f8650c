//! A compiler that tells what taking modules up again takes: a part of each opening that neither rows nor log tell.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use reprise_env::{Clock, Disk, DiskError};
use reprise_host::InvalidModule;
use reprise_txn::{Candidate, Compiler};

/// Bytes of modules, and the time that taking them up took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TakenUp {
    pub bytes: u64,
    pub ns: u64,
}

impl TakenUp {
    pub fn seconds(self) -> f64 {
        self.ns as f64 / 1e9
    }
}

/// Does what another one does, and counts what it restores.
pub(crate) struct TimedCompiler {
    compiler: Arc<dyn Compiler>,
    clock: Arc<dyn Clock>,
    bytes: AtomicU64,
    ns: AtomicU64,
}

impl TimedCompiler {
    pub fn new(compiler: Arc<dyn Compiler>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            compiler,
            clock,
            bytes: AtomicU64::new(0),
            ns: AtomicU64::new(0),
        })
    }

    /// Since the beginning.
    pub fn taken_up(&self) -> TakenUp {
        TakenUp {
            bytes: self.bytes.load(Ordering::Relaxed),
            ns: self.ns.load(Ordering::Relaxed),
        }
    }
}

impl Compiler for TimedCompiler {
    fn compile(&self, name: &str, wasm: &Arc<[u8]>) -> Result<Candidate, InvalidModule> {
        self.compiler.compile(name, wasm)
    }

    fn restore(&self, name: &str, wasm: &Arc<[u8]>) -> Result<Candidate, InvalidModule> {
        let begun_ns = self.clock.monotonic_ns();
        let restored = self.compiler.restore(name, wasm);
        self.ns
            .fetch_add(self.clock.monotonic_ns() - begun_ns, Ordering::Relaxed);
        self.bytes.fetch_add(wasm.len() as u64, Ordering::Relaxed);
        restored
    }

    fn keep_code(&self, disk: Arc<dyn Disk>, secret: &[u8]) -> Result<(), DiskError> {
        self.compiler.keep_code(disk, secret)
    }

    fn let_go_unused_code(&self) {
        self.compiler.let_go_unused_code();
    }

    fn settings_hash(&self) -> u64 {
        self.compiler.settings_hash()
    }
}
