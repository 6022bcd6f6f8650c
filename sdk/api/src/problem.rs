//! Errors: `application/problem+json` (RFC 9457).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{DeployPlan, LostRange, Phase, U64};

/// Every error type of the API: what a problem's `type` names behind `/problems/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProblemKind {
    /// The arguments do not fit the procedure's parameters.
    InvalidArguments,
    /// The request can't be read.
    MalformedRequest,
    /// There is no token, or an unknown one.
    Unauthorized,
    /// The token's role, or the page that asks, may not.
    Forbidden,
    /// Nothing has this name.
    NotFound,
    /// The address has no such method.
    MethodNotAllowed,
    /// The request did not come whole in time.
    RequestTimeout,
    /// A module's tables can't be reconciled with what is stored.
    SchemaConflict,
    /// The idempotency key was used with another call.
    IdempotencyConflict,
    /// The server has released the log before `oldest`.
    LogReleased,
    /// The server to be promoted is no standby.
    NotStandby,
    /// The server would become the primary while the old one may still answer.
    PrimaryNotStopped,
    /// The standby to be promoted may lack what was answered.
    OutOfSync,
    /// A body, module, argument or result is over its limit.
    TooLarge,
    /// The body is of a type that is not read here.
    UnsupportedMediaType,
    /// A write reached a standby.
    NotPrimary,
    /// The upload is not a module that the server can run.
    InvalidModule,
    /// The module's migration failed.
    MigrationFailed,
    /// The procedure rolled its transaction back.
    ProcedureAborted,
    /// The transaction reached one of its limits.
    LimitExceeded,
    /// An operator cancelled the call.
    Cancelled,
    /// The module's code trapped.
    ProcedureTrapped,
    /// The server made a mistake.
    InternalError,
    /// Too many calls wait.
    Overloaded,
    /// The read view did not reach the asked position in time.
    TooStale,
    /// The log can't be written.
    LogUnavailable,
    /// The safety level can't be met: standbys are missing.
    StandbyUnavailable,
    /// This primary's lease is over.
    LeaseLost,
    /// Whether the write is durable shows after a restart.
    OutcomeUnknown,
    /// The server is not open yet.
    Recovering,
    /// The server was opened for reads alone.
    ReadOnly,
    /// The procedure is kept from running.
    Quarantined,
    /// The server can't do this now.
    Unavailable,
    /// The call was not done within its time.
    DeadlineExceeded,
    /// The data has reached the memory limit.
    MemoryExhausted,
}

impl ProblemKind {
    /// All kinds, by status.
    pub const ALL: [Self; 35] = [
        Self::InvalidArguments,
        Self::MalformedRequest,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::RequestTimeout,
        Self::SchemaConflict,
        Self::IdempotencyConflict,
        Self::NotStandby,
        Self::PrimaryNotStopped,
        Self::OutOfSync,
        Self::LogReleased,
        Self::TooLarge,
        Self::UnsupportedMediaType,
        Self::NotPrimary,
        Self::InvalidModule,
        Self::MigrationFailed,
        Self::ProcedureAborted,
        Self::LimitExceeded,
        Self::Cancelled,
        Self::ProcedureTrapped,
        Self::InternalError,
        Self::Overloaded,
        Self::TooStale,
        Self::LogUnavailable,
        Self::StandbyUnavailable,
        Self::LeaseLost,
        Self::OutcomeUnknown,
        Self::Recovering,
        Self::ReadOnly,
        Self::Quarantined,
        Self::Unavailable,
        Self::DeadlineExceeded,
        Self::MemoryExhausted,
    ];

    /// The last part of a problem's `type`.
    pub const fn slug(self) -> &'static str {
        match self {
            Self::InvalidArguments => "invalid-arguments",
            Self::MalformedRequest => "malformed-request",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not-found",
            Self::MethodNotAllowed => "method-not-allowed",
            Self::RequestTimeout => "request-timeout",
            Self::SchemaConflict => "schema-conflict",
            Self::IdempotencyConflict => "idempotency-conflict",
            Self::NotStandby => "not-standby",
            Self::PrimaryNotStopped => "primary-not-stopped",
            Self::OutOfSync => "out-of-sync",
            Self::LogReleased => "log-released",
            Self::TooLarge => "too-large",
            Self::UnsupportedMediaType => "unsupported-media-type",
            Self::NotPrimary => "not-primary",
            Self::InvalidModule => "invalid-module",
            Self::MigrationFailed => "migration-failed",
            Self::ProcedureAborted => "procedure-aborted",
            Self::LimitExceeded => "limit-exceeded",
            Self::Cancelled => "cancelled",
            Self::ProcedureTrapped => "procedure-trapped",
            Self::InternalError => "internal-error",
            Self::Overloaded => "overloaded",
            Self::TooStale => "too-stale",
            Self::LogUnavailable => "log-unavailable",
            Self::StandbyUnavailable => "standby-unavailable",
            Self::LeaseLost => "lease-lost",
            Self::OutcomeUnknown => "outcome-unknown",
            Self::Recovering => "recovering",
            Self::ReadOnly => "read-only",
            Self::Quarantined => "quarantined",
            Self::Unavailable => "unavailable",
            Self::DeadlineExceeded => "deadline-exceeded",
            Self::MemoryExhausted => "memory-exhausted",
        }
    }

    /// The HTTP status of its responses.
    pub const fn status(self) -> u16 {
        match self {
            Self::InvalidArguments | Self::MalformedRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::RequestTimeout => 408,
            Self::SchemaConflict
            | Self::IdempotencyConflict
            | Self::NotStandby
            | Self::PrimaryNotStopped
            | Self::OutOfSync => 409,
            Self::LogReleased => 410,
            Self::TooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::NotPrimary => 421,
            Self::InvalidModule
            | Self::MigrationFailed
            | Self::ProcedureAborted
            | Self::LimitExceeded
            | Self::Cancelled => 422,
            Self::ProcedureTrapped | Self::InternalError => 500,
            Self::Overloaded
            | Self::TooStale
            | Self::LogUnavailable
            | Self::StandbyUnavailable
            | Self::LeaseLost
            | Self::OutcomeUnknown
            | Self::Recovering
            | Self::ReadOnly
            | Self::Quarantined
            | Self::Unavailable => 503,
            Self::DeadlineExceeded => 504,
            Self::MemoryExhausted => 507,
        }
    }

    /// Short name of the problem.
    pub const fn title(self) -> &'static str {
        match self {
            Self::InvalidArguments => "The arguments do not fit the procedure's parameters",
            Self::MalformedRequest => "The request is malformed",
            Self::Unauthorized => "A valid token is needed",
            Self::Forbidden => "This is not allowed",
            Self::NotFound => "Nothing of this name is here",
            Self::MethodNotAllowed => "The path does not know this method",
            Self::RequestTimeout => "The request came too slowly",
            Self::SchemaConflict => "The module's tables can't be reconciled with what is stored",
            Self::IdempotencyConflict => "The idempotency key was used with other arguments",
            Self::NotStandby => "This server is no standby",
            Self::PrimaryNotStopped => "The old primary did not step down",
            Self::OutOfSync => "The standby is out of sync",
            Self::LogReleased => "This part of the log was let go",
            Self::TooLarge => "Too large",
            Self::UnsupportedMediaType => "The body is of a type that is not read here",
            Self::NotPrimary => "This server is a standby",
            Self::InvalidModule => "The upload is not a module that can be run",
            Self::MigrationFailed => "What the module runs when it is deployed did not come to its end",
            Self::ProcedureAborted => "The procedure rolled its transaction back",
            Self::LimitExceeded => "The transaction reached a limit",
            Self::Cancelled => "Somebody ended the transaction",
            Self::ProcedureTrapped => "The procedure trapped",
            Self::InternalError => "The server made a mistake",
            Self::Overloaded => "Too many transactions wait",
            Self::TooStale => "The read view did not reach the asked LSN in time",
            Self::LogUnavailable => "The log can't be written",
            Self::StandbyUnavailable => "The safety level can't be met",
            Self::LeaseLost => "This primary's lease is over",
            Self::OutcomeUnknown => "The write may or may not be durable",
            Self::Recovering => "The database is not open yet",
            Self::ReadOnly => "The database was opened for reads alone",
            Self::Quarantined => "This procedure is kept from running",
            Self::Unavailable => "The server takes no calls",
            Self::DeadlineExceeded => "Not done within the asked time",
            Self::MemoryExhausted => "The data reached the memory limit",
        }
    }

    /// The kind behind a slug.
    pub fn from_slug(slug: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.slug() == slug)
    }

    /// The kind behind a problem's `type`.
    pub fn from_type(uri: &str) -> Option<Self> {
        Self::from_slug(uri.strip_prefix("/problems/")?)
    }
}

/// An error. The members after `detail` depend on the error's type.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `/problems/` and the error's slug: the path of a page that explains the error.
    #[serde(rename = "type")]
    pub type_uri: String,
    /// Kind of the error in a few words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// Description of this error, and what to do about it.
    pub detail: String,
    /// invalid-arguments: every mistake.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ArgumentError>,
    /// schema-conflict: every table, column and index in conflict.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<SchemaConflict>,
    /// schema-conflict: plan of the deployment, if only consent is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Box<DeployPlan>>,
    /// procedure-aborted: code of the procedure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// procedure-aborted: message of the procedure. procedure-trapped: message of the runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// invalid-module: reason of the refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// invalid-module: byte offset in the upload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// limit-exceeded, memory-exhausted and too-large: name of the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// limit-exceeded, memory-exhausted and too-large: value of the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u64>,
    /// procedure-trapped: kind of the trap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trap: Option<String>,
    /// procedure-trapped: function names, innermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backtrace: Vec<String>,
    /// not-primary: URL of the primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
    /// out-of-sync: records that may be lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may_be_lost: Option<LostRange>,
    /// log-released: oldest LSN in the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest: Option<U64>,
    /// outcome-unknown: id of the transaction. After a restart, look for it in the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txn_id: Option<U64>,
    /// outcome-unknown: LSN at which its record would be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lsn: Option<U64>,
    /// outcome-unknown: safety level that the write certainly reached. Absent if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<String>,
    /// recovering: progress of the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// overloaded, recovering, unavailable: milliseconds to wait before you try again. The header `Retry-After` has the same, rounded up
    /// to seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u32>,
}

/// One mistake in the arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArgumentError {
    /// JSON pointer (RFC 6901) into the arguments.
    pub pointer: String,
    /// Expected value.
    pub message: String,
}

/// One column or index whose declaration conflicts with the stored one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SchemaConflict {
    /// Name of the table.
    pub table: String,
    /// Name of the column or index. Empty for the table itself.
    pub item: String,
    /// Stored definition.
    pub stored: String,
    /// Declared definition.
    pub declared: String,
    /// Description of the conflict.
    pub message: String,
    /// Remedy for the author of the module.
    pub way_on: String,
}

impl Problem {
    /// A problem of this kind without members of its own. `detail` says what happened and what to do about it.
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self {
            type_uri: format!("/problems/{}", kind.slug()),
            title: kind.title().into(),
            status: kind.status(),
            detail: detail.into(),
            ..Self::default()
        }
    }

    /// The kind that `type` names; none where this version knows no such slug.
    pub fn kind(&self) -> Option<ProblemKind> {
        ProblemKind::from_type(&self.type_uri)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_found_by_their_type() {
        for kind in ProblemKind::ALL {
            let problem = Problem::new(kind, "do this");
            assert_eq!(problem.kind(), Some(kind));
            assert_eq!(problem.status, kind.status());
        }
        assert_eq!(ProblemKind::from_type("about:blank"), None);
    }
}
