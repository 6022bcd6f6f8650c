//! Roles: what a token may do at all, and which role a request needs.

use axum::http::Method;

/// The permissions of a token; each role includes the ones before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TokenRole {
    /// Everything that reads, and read-only procedures.
    Read,
    /// All procedures.
    Write,
    /// Modules too.
    Admin,
}

impl TokenRole {
    /// A role as the configuration names it.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "read" => Some(Self::Read),
            "write" => Some(Self::Write),
            "admin" => Some(Self::Admin),
            _ => None,
        }
    }

    /// The name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }
}

/// Returns the role that a path needs. None for public paths: probes, the API's description, the console's files.
pub fn needed_role(method: &Method, path: &str) -> Option<TokenRole> {
    let is_read = method == Method::GET || method == Method::HEAD;
    let is_public = matches!(
        path,
        "/" | "/healthz" | "/readyz" | "/openapi.json" | "/docs" | "/console"
    ) || path.starts_with("/docs/")
        || path.starts_with("/console/")
        || path == "/problems"
        || path.starts_with("/problems/");
    if is_read && is_public {
        return None;
    }
    // A backup holds every row, and more: the secret that makes a procedure's random numbers. The audit names people.
    if path == "/v1/backups" || path.starts_with("/v1/backups/") || path == "/v1/audit" {
        return Some(TokenRole::Admin);
    }
    // Calls: the procedure decides whether reading is enough.
    let is_call = method == Method::POST && (path == "/v1/batch" || path.starts_with("/v1/call/"));
    Some(if is_read || is_call {
        TokenRole::Read
    } else {
        TokenRole::Admin
    })
}
