//! The state that the sites of a node share.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, AtomicUsize},
};

use arc_swap::ArcSwap;
use reprise_base::{Lsn, MemoryKind, MemoryLedger};
use reprise_env::{Clock, Threads};
use reprise_observe::{Notices, RecentLines};
use reprise_txn::Deployed;

use crate::{
    calls::Calls, coordinator::Coordinator, gate::CommitGate, key_clock::KeyClock, logging::LogSettings,
    principals::Principals, published_stats::PublishedStats, underway::Underway,
};

/// The bytes of a module version, and the record that brought them.
#[derive(Clone, Debug, Default)]
pub struct ModuleBytes {
    /// Empty for a version out of service: only the disk keeps them.
    pub wasm: Arc<[u8]>,
    /// Record that brought the version. None if a checkpoint brought it.
    pub logged_at: Option<Lsn>,
}

/// The state that all sites of a node share.
pub struct Shared {
    /// Modules and tables, swapped whole.
    pub deployed: ArcSwap<Deployed>,
    /// `Deployed::generation`, readable without touching the swap.
    pub generation: AtomicU64,
    /// The ledger of all memory.
    pub memory: Arc<MemoryLedger>,
    /// The node's clock.
    pub clock: Arc<dyn Clock>,
    /// How threads are started and wait.
    pub threads: Arc<dyn Threads>,
    /// Key of the transactions' random streams.
    pub secret: [u64; 2],
    /// Partitions of the database.
    pub partitions_count: u16,
    /// Sites of this node.
    pub sites_count: u16,
    /// Calls accepted and not yet run, per partition.
    pub waiting: Vec<AtomicUsize>,
    /// Calls that may wait for one partition.
    pub waiting_max: usize,
    /// The last tick that a multi-partition transaction took.
    pub multi_tick: AtomicU64,
    /// True once a record could not be replayed. Then no reader sees the partitions' tables.
    pub replay_failed: AtomicBool,
    /// Number of partitions whose tables are being copied or digested.
    pub copying: AtomicUsize,
    /// The bytes of every module version, by `ModuleId`.
    pub binaries: Mutex<Vec<ModuleBytes>>,
    /// Longest run of records that the log takes at once, in bytes: the minimum over all engine threads.
    pub records_max: AtomicUsize,
    /// Lines that procedures logged.
    pub lines: Arc<RecentLines>,
    /// Messages for the operator.
    pub notices: Notices,
    /// The rule for the form that a transaction leaves in the log.
    pub logging: LogSettings,
    /// The running and waiting calls.
    pub calls: Arc<Calls>,
    /// The place where transactions over several partitions wait.
    pub coordinator: Coordinator,
    /// The gate where callers wait for standbys.
    pub gate: Arc<CommitGate>,
    /// The statistics that partitions publish about their tables.
    pub published: PublishedStats,
    /// The clock by which idempotency keys age.
    pub key_clock: KeyClock,
    /// Names of callers, by their numbers in records.
    pub principals: Principals,
    /// Progress of the deployment that holds all partitions.
    pub underway: Underway,
}

impl Shared {
    /// Frees the bytes of versions that are out of service. No call uses them any more. A replay that begins before them reads them at its
    /// beginning. A rollback reads them from the newest checkpoint or the log.
    pub fn release_binaries(&self, deployed: &Deployed) {
        let mut binaries = self.binaries.lock().expect("held to read each");
        for (bytes, module) in binaries.iter_mut().zip(&deployed.versions) {
            if !deployed.is_current(module.id) {
                bytes.wasm = Arc::default();
            }
        }
    }

    /// Publishes how much memory the modules' bytes, their compiled code and all descriptions take.
    pub fn count_binaries(&self) {
        let binaries = self.binaries.lock().expect("held for a sum");
        let bytes: u64 = binaries.iter().map(|bytes| bytes.wasm.len() as u64).sum();
        drop(binaries);
        let deployed = self.deployed.load();
        let codes = deployed.current.values().map(|module| module.code.code_bytes() as u64);
        let all = bytes + codes.sum::<u64>() + deployed.description_bytes();
        self.memory.publish(MemoryKind::Modules, all);
    }
}
