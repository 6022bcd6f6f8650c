//! The problems of status 503 that each operation answers with, for the API's description.

use axum::http::Method;
use reprise_api::ProblemKind;

use crate::{
    batch, calls,
    front::{is_answered_while_recovering, shows_data},
};

/// Status of temporary problems: the server, its standbys or its disk can't do the work now.
pub const STATUS: u16 = 503;

/// Returns the slugs of all problems of this status that the operation may answer with, in the order of their list.
pub fn slugs(method: &Method, path: &str) -> String {
    let kinds = ProblemKind::ALL.into_iter();
    let kinds = kinds.filter(|kind| kind.status() == STATUS && may_answer(*kind, method, path));
    kinds.map(ProblemKind::slug).collect::<Vec<_>>().join(", ")
}

fn may_answer(kind: ProblemKind, method: &Method, path: &str) -> bool {
    let changes = !method.is_safe();
    match kind {
        ProblemKind::Overloaded | ProblemKind::Unavailable => true,
        ProblemKind::Recovering => !is_answered_while_recovering(path),
        ProblemKind::TooStale => shows_data(path),
        // Rows are shown once they are durable.
        ProblemKind::LogUnavailable => changes || shows_data(path),
        ProblemKind::StandbyUnavailable | ProblemKind::LeaseLost | ProblemKind::ReadOnly => changes,
        // The outcome kept under a key may be in doubt, too.
        ProblemKind::OutcomeUnknown => changes || path.starts_with("/v1/idempotency/"),
        ProblemKind::Quarantined => path == batch::PATH || path.starts_with(calls::PATH_PREFIX),
        // No kind of another status is asked for; a new one of this status is missed by the test below.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docs;

    #[test]
    fn every_kind_of_the_status_is_named_by_calls_and_writes_name_what_ends_them() {
        let call = docs::description(&Method::POST, "/v1/call/{module}/{procedure}", STATUS);
        for kind in ProblemKind::ALL.into_iter().filter(|kind| kind.status() == STATUS) {
            assert!(call.split(", ").any(|slug| slug == kind.slug()), "{}", kind.slug());
        }
        let ends_writes = [
            ProblemKind::LogUnavailable,
            ProblemKind::StandbyUnavailable,
            ProblemKind::LeaseLost,
            ProblemKind::ReadOnly,
            ProblemKind::OutcomeUnknown,
        ];
        for (method, path) in [
            (Method::PUT, "/v1/modules/{module}"),
            (Method::DELETE, "/v1/modules/{module}"),
            (Method::POST, "/v1/modules/{module}/rollback"),
            (Method::DELETE, "/v1/tables/{table}"),
            (Method::POST, "/v1/checkpoints"),
            (Method::POST, "/v1/replication/promote"),
        ] {
            let text = docs::description(&method, path, STATUS);
            for kind in ends_writes {
                assert!(text.contains(kind.slug()), "{method} {path}: {text}");
            }
        }
        let status = docs::description(&Method::GET, "/v1/status", STATUS);
        assert_eq!(status, "overloaded, unavailable");
        assert_eq!(
            docs::description(&Method::GET, "/v1/tables/{table}/rows", STATUS),
            "overloaded, too-stale, log-unavailable, recovering, unavailable"
        );
    }

    /// No operation has a text of its own for this status, but the one whose answer is no problem.
    #[test]
    fn texts_of_the_status_are_made_of_the_list() {
        for (path, item) in docs::openapi().paths.paths {
            let operations = [
                (Method::GET, item.get),
                (Method::PUT, item.put),
                (Method::POST, item.post),
                (Method::DELETE, item.delete),
            ];
            for (method, operation) in operations {
                if operation.is_some() && path != "/readyz" {
                    let text = docs::description(&method, &path, STATUS);
                    assert_eq!(text, slugs(&method, &path), "{method} {path}");
                }
            }
        }
    }
}
