//! Calls, one by one and in batches.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Json, Problem, U64};

/// Answer to a committed call.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CallAnswer {
    /// Result of the procedure, in the form of its result type.
    #[schema(value_type = serde_json::Value)]
    pub result: Json,
    /// Id of the transaction.
    pub txn_id: U64,
    /// LSN of the transaction. To read your write, send it as `Reprise-Min-Lsn`.
    pub lsn: U64,
    /// Partition of the transaction. Null if it ran on several.
    pub partition: Option<u16>,
}

/// The stored outcome of an idempotency key. The server answers repeats of the call with it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct KeptOutcome {
    /// The key.
    pub key: String,
    /// Name of the called module.
    pub module: String,
    /// Version of the module that ran.
    pub version: u32,
    /// Name of the called procedure.
    pub procedure: String,
    /// Result of the call.
    #[schema(value_type = serde_json::Value)]
    pub result: Json,
    /// Id of the transaction.
    pub txn_id: U64,
    /// LSN of the transaction.
    pub lsn: U64,
    /// Partition of the transaction. Null if it ran on several.
    pub partition: Option<u16>,
    /// Time of the transaction (RFC 3339).
    pub time: String,
    /// Time until which the server keeps the outcome (RFC 3339), if a primary runs all the time. Only time in which a primary runs
    /// counts.
    pub expires_at: String,
}

/// One line of a batch.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchCall {
    /// Name of the module.
    pub module: String,
    /// Name of the procedure.
    pub procedure: String,
    /// Named arguments. Default: `{}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub args: Option<Json>,
    /// Any value. The answer has the same id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub id: Option<Json>,
    /// Key of the call, like the header `Idempotency-Key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// One line of a batch's answer. It has `problem` if and only if the call did not commit.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BatchAnswer {
    /// Id of the call, if the call had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub id: Option<Json>,
    /// Result of the procedure. Null if the call did not commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Json>,
    /// Id of the transaction. Null if the call did not commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txn_id: Option<U64>,
    /// LSN of the transaction. Null if the call did not commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lsn: Option<U64>,
    /// Partition of the transaction. Null if it ran on several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<u16>,
    /// True if this is the stored outcome of an earlier call with the same idempotency key.
    #[serde(default, skip_serializing_if = "is_false")]
    pub replayed: bool,
    /// Reason why the call did not commit. Null if it committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Box<Problem>>,
}

fn is_false(value: &bool) -> bool {
    !value
}
