//! Calls on their way.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::U64;

/// How far a call got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallPhase {
    /// It waits for its partition.
    Queued,
    /// Its procedure runs.
    Running,
    /// It has run, and can't be ended any more: its record is on its way to the disk, or calls sent with it still run.
    Committing,
}

/// A call that runs or waits.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RunningCall {
    /// Ends it, by `DELETE /v1/calls/{call_id}`.
    pub call_id: U64,
    /// Null until it has begun, and of a call that has run while others that were sent with it still run.
    pub txn_id: Option<U64>,
    /// Name of the module.
    pub module: String,
    /// Name of the procedure.
    pub procedure: String,
    /// Null for a multi-partition call.
    pub partition: Option<u16>,
    /// Milliseconds since it was accepted.
    pub age_ms: f64,
    /// Phase of the call.
    pub phase: CallPhase,
}

/// Calls that run and wait now.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CallList {
    /// Running calls, in the order in which they were accepted.
    pub calls: Vec<RunningCall>,
    /// How many there are in all.
    pub total: u64,
}
