//! Calls, one by one and in batches.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Json, Problem, U64};

/// Answer to a committed call.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CallAnswer {
    /// Result of the procedure, by its result type.
    #[schema(value_type = serde_json::Value)]
    pub result: Json,
    /// The transaction's id.
    pub txn_id: U64,
    /// The transaction's position in the log: what must see it asks with `Reprise-Min-Lsn`.
    pub lsn: U64,
    /// Null for a transaction over several partitions.
    pub partition: Option<u16>,
}

/// The outcome kept under an idempotency key: what a repeat of the call is answered with.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct KeptOutcome {
    /// The key.
    pub key: String,
    /// The module that was called.
    pub module: String,
    /// Version of the module that ran.
    pub version: u32,
    /// The procedure that was called.
    pub procedure: String,
    /// Result of the call.
    #[schema(value_type = serde_json::Value)]
    pub result: Json,
    /// The transaction's id.
    pub txn_id: U64,
    /// The transaction's position in the log.
    pub lsn: U64,
    /// Null for a transaction over several partitions.
    pub partition: Option<u16>,
    /// When the transaction was (RFC 3339).
    pub time: String,
    /// Until when it is kept, if a primary runs all the time until then (RFC 3339): its age counts time in which one ran.
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
    /// Named arguments; `{}` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub args: Option<Json>,
    /// Anything; comes back in the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub id: Option<Json>,
    /// Idempotency key, as in the header `Idempotency-Key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// One line of a batch's answer: `problem` is there exactly when the call did not commit.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BatchAnswer {
    /// The call's own, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub id: Option<Json>,
    /// Result of the procedure; null if it did not commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Json>,
    /// The transaction's id; null where none committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txn_id: Option<U64>,
    /// The transaction's position in the log; null where none committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lsn: Option<U64>,
    /// The partition that it ran on; null for several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<u16>,
    /// True when this is the first outcome of the idempotency key, returned again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub replayed: bool,
    /// Why it did not commit; null where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Box<Problem>>,
}

fn is_false(value: &bool) -> bool {
    !value
}
