//! Errors: `application/problem+json` (RFC 9457).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{DeployPlan, LostRange, Phase, U64};

macro_rules! problem_kinds {
    ($($(#[$doc:meta])* $kind:ident $status:literal $slug:literal $title:literal,)+) => {
        /// Every error type of the API: what a problem's `type` names behind `/problems/`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ProblemKind {
            $($(#[$doc])* $kind,)+
        }

        impl ProblemKind {
            /// All kinds, by status.
            pub const ALL: [Self; [$($status),+].len()] = [$(Self::$kind),+];

            /// The last part of a problem's `type`.
            pub const fn slug(self) -> &'static str {
                match self {
                    $(Self::$kind => $slug,)+
                }
            }

            /// The HTTP status of its responses.
            pub const fn status(self) -> u16 {
                match self {
                    $(Self::$kind => $status,)+
                }
            }

            /// Short name of the problem.
            pub const fn title(self) -> &'static str {
                match self {
                    $(Self::$kind => $title,)+
                }
            }
        }
    };
}

// Kind, status, slug and title.
problem_kinds! {
    /// The arguments do not fit the procedure's parameters.
    InvalidArguments 400 "invalid-arguments" "The arguments do not fit the procedure's parameters",
    /// The request can't be read.
    MalformedRequest 400 "malformed-request" "The request is malformed",
    /// There is no token, or an unknown one.
    Unauthorized 401 "unauthorized" "A valid token is needed",
    /// The token's role, or the page that asks, may not.
    Forbidden 403 "forbidden" "This is not allowed",
    /// Nothing has this name.
    NotFound 404 "not-found" "Nothing of this name is here",
    /// The address has no such method.
    MethodNotAllowed 405 "method-not-allowed" "The path does not know this method",
    /// The request did not come whole in time.
    RequestTimeout 408 "request-timeout" "The request came too slowly",
    /// A module's tables can't be reconciled with what is stored.
    SchemaConflict 409 "schema-conflict" "The module's tables can't be reconciled with what is stored",
    /// The idempotency key was used with another call.
    IdempotencyConflict 409 "idempotency-conflict" "The idempotency key was used with other arguments",
    /// The server to be promoted is no standby.
    NotStandby 409 "not-standby" "This server is no standby",
    /// The server would become the primary while the old one may still answer.
    PrimaryNotStopped 409 "primary-not-stopped" "The old primary did not step down",
    /// The standby to be promoted may lack what was answered.
    OutOfSync 409 "out-of-sync" "The standby is out of sync",
    /// The server has released the log before `oldest`.
    LogReleased 410 "log-released" "This part of the log was let go",
    /// A body, module, argument or result is over its limit.
    TooLarge 413 "too-large" "Too large",
    /// The body is of a type that is not read here.
    UnsupportedMediaType 415 "unsupported-media-type" "The body is of a type that is not read here",
    /// A write reached a standby.
    NotPrimary 421 "not-primary" "This server is a standby",
    /// The upload is not a module that the server can run.
    InvalidModule 422 "invalid-module" "The upload is not a module that can be run",
    /// The module's migration failed.
    MigrationFailed 422 "migration-failed" "What the module runs when it is deployed did not come to its end",
    /// The procedure rolled its transaction back.
    ProcedureAborted 422 "procedure-aborted" "The procedure rolled its transaction back",
    /// The transaction reached one of its limits.
    LimitExceeded 422 "limit-exceeded" "The transaction reached a limit",
    /// An operator cancelled the call.
    Cancelled 422 "cancelled" "Somebody ended the transaction",
    /// The module's code trapped.
    ProcedureTrapped 500 "procedure-trapped" "The procedure trapped",
    /// The server made a mistake.
    InternalError 500 "internal-error" "The server made a mistake",
    /// Too many calls wait.
    Overloaded 503 "overloaded" "Too many transactions wait",
    /// The read view did not reach the asked position in time.
    TooStale 503 "too-stale" "The read view did not reach the asked LSN in time",
    /// The log can't be written.
    LogUnavailable 503 "log-unavailable" "The log can't be written",
    /// The safety level can't be met: standbys are missing.
    StandbyUnavailable 503 "standby-unavailable" "The safety level can't be met",
    /// This primary's lease is over.
    LeaseLost 503 "lease-lost" "This primary's lease is over",
    /// Whether the write is durable shows after a restart.
    OutcomeUnknown 503 "outcome-unknown" "The write may or may not be durable",
    /// The server is not open yet.
    Recovering 503 "recovering" "The database is not open yet",
    /// The server was opened for reads alone.
    ReadOnly 503 "read-only" "The database was opened for reads alone",
    /// The procedure is kept from running.
    Quarantined 503 "quarantined" "This procedure is kept from running",
    /// The server can't do this now.
    Unavailable 503 "unavailable" "The server takes no calls",
    /// The call was not done within its time.
    DeadlineExceeded 504 "deadline-exceeded" "Not done within the asked time",
    /// The data has reached the memory limit.
    MemoryExhausted 507 "memory-exhausted" "The data reached the memory limit",
}

impl ProblemKind {
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
