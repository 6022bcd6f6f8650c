//! Calls on their way.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::U64;

/// State of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallPhase {
    /// The call waits for its partition.
    Queued,
    /// The procedure runs.
    Running,
    /// The call has run and can't be cancelled. The server writes its record, or calls sent with it still run.
    Committing,
}

/// A call that runs or waits.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RunningCall {
    /// Id of the call, for `DELETE /v1/calls/{call_id}`.
    pub call_id: U64,
    /// Id of the transaction. Null until the call has begun, and after it has run while calls sent with it still run.
    pub txn_id: Option<U64>,
    /// Name of the module.
    pub module: String,
    /// Name of the procedure.
    pub procedure: String,
    /// Partition of the call. Null for a call on several partitions.
    pub partition: Option<u16>,
    /// Milliseconds since the server accepted the call.
    pub age_ms: f64,
    /// Current state.
    pub phase: CallPhase,
}

/// Calls that run and wait now.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CallList {
    /// Calls, oldest first.
    pub calls: Vec<RunningCall>,
    /// Number of all such calls.
    pub total: u64,
}
