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
    calls::Calls, coordinator::Coordinator, gate::CommitGate, key_clock::KeyClock, logging::Logging,
    principals::Principals, told::Told, underway::Underway,
};

/// The bytes of a module version, or where they lie.
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
    /// The node's.
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
    /// The last tick that a multi-partition transaction took.
    pub multi_tick: AtomicU64,
    /// A record could not be replayed: what the partitions hold is shown to nobody.
    pub replay_failed: AtomicBool,
    /// Partitions whose tables are being copied, and those of which digests are made.
    pub copying: AtomicUsize,
    /// The bytes of every module version, by `ModuleId`.
    pub binaries: Mutex<Vec<ModuleBytes>>,
    /// Longest run of records that the log takes at once, in bytes: the least of all engine threads.
    pub records_max: AtomicUsize,
    /// Lines that procedures logged.
    pub lines: Arc<RecentLines>,
    /// Messages for the operator.
    pub notices: Notices,
    /// Which form a transaction leaves in the log.
    pub logging: Logging,
    /// The running and waiting calls.
    pub calls: Arc<Calls>,
    /// The place where transactions over several partitions wait.
    pub coordinator: Coordinator,
    /// The gate where callers wait for standbys.
    pub gate: Arc<CommitGate>,
    /// The statistics that partitions publish about their tables.
    pub told: Told,
    /// Idempotency keys age by it.
    pub key_clock: KeyClock,
    /// Names of callers, by the numbers that records have of them.
    pub principals: Principals,
    /// How far the deployment is that holds all partitions.
    pub underway: Underway,
}

impl Shared {
    /// Frees the bytes of versions that are out of service: no call is theirs any more, a replay that begins before has them from
    /// where it begins, and a rollback reads them from the newest checkpoint or the log.
    pub fn release_binaries(&self, deployed: &Deployed) {
        let mut binaries = self.binaries.lock().expect("held for a look at each");
        for (bytes, module) in binaries.iter_mut().zip(&deployed.versions) {
            if !deployed.is_current(module.id) {
                bytes.wasm = Arc::default();
            }
        }
    }

    /// Tells how much memory the modules' bytes, their compiled code and all descriptions take.
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
