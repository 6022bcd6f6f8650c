//! The parts of an open database that upkeep works on.

use std::sync::Arc;

use reprise_checkpoint::Checkpoints;
use reprise_log::Log;
use reprise_partition::{CallBatch, Shared};
use reprise_router::Router;
use reprise_wire::Genesis;

/// Handles of an open database. A checkpoint copies its rows through the router, its modules and keys from memory, log and files.
pub struct EngineHandles {
    /// Marks the moment that a checkpoint holds, and has the engine threads copy it.
    pub router: Router,
    /// The log that checkpoints shorten.
    pub log: Arc<Log<Box<CallBatch>>>,
    /// The folder of checkpoints.
    pub files: Checkpoints,
    /// The clock, threads, notices and modules that the engine threads share.
    pub shared: Arc<Shared>,
    /// The identity of the database, which each checkpoint holds.
    pub genesis: Genesis,
    /// Hash of the settings that decide outcomes, which each checkpoint holds.
    pub settings_hash: u64,
}
