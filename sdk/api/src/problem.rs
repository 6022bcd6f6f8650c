//! Errors: `application/problem+json` (RFC 9457).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Every error type of the API. A problem of plain HTTP (a method that a path does not know, a server that still
/// recovers) has no type of its own: its `type` is `about:blank`, and its status says it all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProblemKind {
    InvalidArguments,
    MalformedRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    SchemaConflict,
    IdempotencyConflict,
    TooLarge,
    NotPrimary,
    InvalidModule,
    ProcedureAborted,
    LimitExceeded,
    ProcedureTrapped,
    Overloaded,
    TooStale,
    LogUnavailable,
}

impl ProblemKind {
    pub const ALL: [Self; 16] = [
        Self::InvalidArguments,
        Self::MalformedRequest,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::SchemaConflict,
        Self::IdempotencyConflict,
        Self::TooLarge,
        Self::NotPrimary,
        Self::InvalidModule,
        Self::ProcedureAborted,
        Self::LimitExceeded,
        Self::ProcedureTrapped,
        Self::Overloaded,
        Self::TooStale,
        Self::LogUnavailable,
    ];

    pub const fn slug(self) -> &'static str {
        match self {
            Self::InvalidArguments => "invalid-arguments",
            Self::MalformedRequest => "malformed-request",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not-found",
            Self::SchemaConflict => "schema-conflict",
            Self::IdempotencyConflict => "idempotency-conflict",
            Self::TooLarge => "too-large",
            Self::NotPrimary => "not-primary",
            Self::InvalidModule => "invalid-module",
            Self::ProcedureAborted => "procedure-aborted",
            Self::LimitExceeded => "limit-exceeded",
            Self::ProcedureTrapped => "procedure-trapped",
            Self::Overloaded => "overloaded",
            Self::TooStale => "too-stale",
            Self::LogUnavailable => "log-unavailable",
        }
    }

    pub const fn status(self) -> u16 {
        match self {
            Self::InvalidArguments | Self::MalformedRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::SchemaConflict | Self::IdempotencyConflict => 409,
            Self::TooLarge => 413,
            Self::NotPrimary => 421,
            Self::InvalidModule | Self::ProcedureAborted | Self::LimitExceeded => 422,
            Self::ProcedureTrapped => 500,
            Self::Overloaded | Self::TooStale | Self::LogUnavailable => 503,
        }
    }

    pub const fn title(self) -> &'static str {
        match self {
            Self::InvalidArguments => "The arguments do not fit the procedure's parameters",
            Self::MalformedRequest => "The request is malformed",
            Self::Unauthorized => "A valid token is needed",
            Self::Forbidden => "This is not allowed",
            Self::NotFound => "Nothing of this name is here",
            Self::SchemaConflict => "The module's tables can't be reconciled with what is stored",
            Self::IdempotencyConflict => "The idempotency key was used with other arguments",
            Self::TooLarge => "Too large",
            Self::NotPrimary => "This server is a standby",
            Self::InvalidModule => "The upload is not a module that can be run",
            Self::ProcedureAborted => "The procedure rolled its transaction back",
            Self::LimitExceeded => "The transaction reached a limit",
            Self::ProcedureTrapped => "The procedure trapped",
            Self::Overloaded => "Too many transactions wait",
            Self::TooStale => "The read view did not reach the asked LSN in time",
            Self::LogUnavailable => "The log can't be written",
        }
    }

    /// The kind behind a problem's `type`.
    pub fn from_type(uri: &str) -> Option<Self> {
        let slug = uri.strip_prefix("/problems/")?;
        Self::ALL.into_iter().find(|kind| kind.slug() == slug)
    }
}

/// An error. The members after `detail` are there where the error's type has them.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `/problems/` and the error's slug, or `about:blank` for an error of plain HTTP.
    #[serde(rename = "type")]
    pub type_uri: String,
    pub title: String,
    pub status: u16,
    /// What happened, and what to do about it.
    pub detail: String,
    /// invalid-arguments: everything that is wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ArgumentError>,
    /// schema-conflict: every column and index that can't be reconciled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<SchemaConflict>,
    /// procedure-aborted: the procedure's own code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// procedure-aborted: the procedure's own words. procedure-trapped: the runtime's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// invalid-module: why the host refuses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// invalid-module: byte offset in the upload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// limit-exceeded and too-large: the limit's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// limit-exceeded and too-large: its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u64>,
    /// procedure-trapped: the kind of trap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trap: Option<String>,
    /// procedure-trapped: function names, innermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backtrace: Vec<String>,
    /// not-primary: where to go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
    /// overloaded: when to try again; the header `Retry-After` says the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u32>,
}

/// One mistake in the arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArgumentError {
    /// JSON pointer (RFC 6901) into the arguments.
    pub pointer: String,
    pub message: String,
}

/// One column or index that differs from what is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SchemaConflict {
    pub table: String,
    /// The column or index; empty when it is the table itself.
    pub item: String,
    pub stored: String,
    pub declared: String,
    pub message: String,
}

impl Problem {
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self {
            type_uri: format!("/problems/{}", kind.slug()),
            title: kind.title().into(),
            status: kind.status(),
            detail: detail.into(),
            ..Self::default()
        }
    }

    /// An error of plain HTTP.
    pub fn of_status(status: u16, title: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            type_uri: "about:blank".into(),
            title: title.into(),
            status,
            detail: detail.into(),
            ..Self::default()
        }
    }

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
        assert_eq!(
            Problem::of_status(405, "Method Not Allowed", "").kind(),
            None
        );
    }
}
