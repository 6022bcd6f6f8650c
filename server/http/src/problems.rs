//! `/problems/{slug}`: the page that a problem's `type` names. What it means, what to do, whether a repeat is safe.

use axum::{
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use reprise_api::{Problem, ProblemKind};

use crate::{front::Name, refusal::Refusal};

/// Slug, status, what it means and whether a repeat is safe: for the documentation.
#[cfg(test)]
pub fn described() -> Vec<(&'static str, u16, &'static str, &'static str)> {
    let line = |kind: ProblemKind| {
        let guide = guide(kind);
        (kind.slug(), kind.status(), guide.means, guide.repeat)
    };
    ProblemKind::ALL.into_iter().map(line).collect()
}

/// The page needs nothing but itself.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What a reader of an error wants to know.
struct Guide {
    means: &'static str,
    remedy: &'static str,
    repeat: &'static str,
}

const UNCHANGED_FAILS: &str = "Safe, and of no use: the same request is answered the same way. Nothing was changed.";
const SAFE: &str = "Safe: nothing of the call stays.";
const SAFE_LATER: &str =
    "Safe: nothing was begun. Wait as long as <code>retry_after_ms</code> says, where it is there.";

/// Explains an error
///
/// The page that a problem's `type` names: what it means, what to do, whether the request may be repeated.
#[utoipa::path(
    get,
    path = "/problems/{slug}",
    tag = "Server",
    params(("slug" = String, Path, description = "Behind `/problems/` in a problem's `type`")),
    responses(
        (status = 200, description = "A page to read", body = String, content_type = "text/html"),
        (status = 404, description = "not-found", body = Problem, content_type = "application/problem+json"),
    ),
    security(())
)]
pub async fn problem_page(Name(slug): Name) -> Result<Response, Refusal> {
    let kind = ProblemKind::from_slug(&slug)
        .ok_or_else(|| Refusal::not_found("no error has this name; /problems/ lists them all"))?;
    Ok(page(kind.slug(), &guide_text(kind)))
}

/// All of them.
pub async fn problem_list() -> Response {
    let mut text = String::from("<h1>Errors</h1>\n<table>\n");
    for kind in ProblemKind::ALL {
        let (slug, status, title) = (kind.slug(), kind.status(), kind.title());
        text.push_str(&format!(
            "<tr><td>{status}</td><td><a href=\"/problems/{slug}\">{slug}</a></td><td>{title}</td></tr>\n"
        ));
    }
    text.push_str("</table>");
    page("Errors", &text)
}

fn guide_text(kind: ProblemKind) -> String {
    let guide = guide(kind);
    format!(
        "<h1>{}</h1>\n<p><code>{}</code>, status {}</p>\n<h2>What it means</h2>\n<p>{}</p>\n\
         <h2>What to do</h2>\n<p>{}</p>\n<h2>May the request be repeated?</h2>\n<p>{}</p>\n\
         <p><a href=\"/problems/\">All errors</a> · <a href=\"/docs/\">The API</a></p>",
        kind.title(),
        kind.slug(),
        kind.status(),
        guide.means,
        guide.remedy,
        guide.repeat
    )
}

fn page(title: &str, text: &str) -> Response {
    let html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{title}</title>\n\
         <style>body{{font:1rem/1.5 sans-serif;max-width:40rem;margin:2rem auto;padding:0 1rem}}td{{padding-right:1rem}}</style>\n\
         {text}\n</html>\n"
    );
    let mut response = html.into_response();
    let own = response.headers_mut();
    let value = |text| HeaderValue::from_static(text);
    own.insert(header::CONTENT_TYPE, value("text/html; charset=utf-8"));
    own.insert(header::CONTENT_SECURITY_POLICY, value(POLICY));
    own.insert(header::X_CONTENT_TYPE_OPTIONS, value("nosniff"));
    response
}

fn guide(kind: ProblemKind) -> Guide {
    match (kind, kind.status()) {
        (ProblemKind::NotStandby | ProblemKind::PrimaryNotStopped | ProblemKind::OutOfSync, _) => {
            guide_of_promotion(kind)
        }
        (_, 503..) => guide_of_server(kind),
        (_, 413..) => guide_of_limits(kind),
        _ => guide_of_request(kind),
    }
}

/// Why a server does not become the primary.
fn guide_of_promotion(kind: ProblemKind) -> Guide {
    let (means, remedy, repeat) = match kind {
        ProblemKind::NotStandby => (
            "The server is to become the primary, and is the primary already.",
            "Nothing. <code>GET /v1/replication</code> tells who is what.",
            UNCHANGED_FAILS,
        ),
        ProblemKind::PrimaryNotStopped => (
            "The server is to become the primary, and the old one did not give its place away: it can't be reached, or says no.",
            "<code>detail</code> says why. Stop the old primary by other means, then promote with <code>?force=true</code> (<code>--force</code>): \
             while both run, both answer.",
            SAFE,
        ),
        _ => (
            "The standby that is to become the primary can't exclude that the old one answered writes that it lacks: it is out of sync, does not know \
             whether it is, or the safety level lets the primary answer alone. <code>may_be_lost</code> names their LSNs, as far as they are known.",
            "<code>detail</code> says why. Promote a standby that is in sync. Where there is none, and the old primary is lost for good, promote with \
             <code>?force=true&amp;accept_loss=true</code> (<code>--force --accept-loss</code>).",
            SAFE,
        ),
    };
    Guide { means, remedy, repeat }
}

/// What the request itself has wrong.
fn guide_of_request(kind: ProblemKind) -> Guide {
    let (means, remedy, repeat) = match kind {
        ProblemKind::InvalidArguments => (
            "The document can be read, but its members do not fit the procedure's parameters, or make a key of a table longer than 1,024 bytes.",
            "Correct what <code>errors</code> lists, each with its JSON pointer. GET /v1/modules/{module} shows the parameters.",
            UNCHANGED_FAILS,
        ),
        ProblemKind::MalformedRequest => (
            "The request can't be read: no JSON or CBOR, no UTF-8, an unknown or wrong parameter, a bad header.",
            "<code>detail</code> says what and where. /openapi.json describes every parameter; unknown ones are refused.",
            UNCHANGED_FAILS,
        ),
        ProblemKind::Unauthorized => (
            "The server has tokens, and the request has none of them.",
            "Send <code>Authorization: Bearer TOKEN</code>. Whoever runs the server gives out tokens.",
            UNCHANGED_FAILS,
        ),
        ProblemKind::Forbidden => (
            "The token's role does not allow this, or the request comes from a web page of another site.",
            "Use a token with the role that <code>detail</code> names. A page of another site has to be named in the server's \
             configuration (<code>origins</code> in the table <code>[http]</code>).",
            UNCHANGED_FAILS,
        ),
        ProblemKind::NotFound => (
            "No module, procedure, table, record, checkpoint, backup or path of this name is here.",
            "<code>detail</code> says which name, and what lists those that there are.",
            UNCHANGED_FAILS,
        ),
        ProblemKind::MethodNotAllowed => (
            "The path exists, and does not know this method.",
            "The header <code>Allow</code> lists those that it knows.",
            UNCHANGED_FAILS,
        ),
        ProblemKind::RequestTimeout => (
            "The body came too slowly, or its next piece did not come in time.",
            "Send it faster, or in smaller parts.",
            SAFE,
        ),
        ProblemKind::SchemaConflict => (
            "The module declares tables in a way that can't be reconciled with what is stored, or the request would destroy something without consent.",
            "<code>conflicts</code> names each column and index. Change these declarations, or use another table name. Where there is a \
             <code>plan</code>, nothing but consent is missing: keep what <code>plan.destroyed</code> names, or repeat the request with an \
             <code>allow</code> for each of <code>plan.missing</code>.",
            UNCHANGED_FAILS,
        ),
        ProblemKind::IdempotencyConflict => (
            "The idempotency key belongs to a call of another procedure, or with other arguments.",
            "The first call was carried out. <code>GET /v1/idempotency/KEY</code> shows its outcome, and so does the first request, sent as it \
             was. A new key runs the call beside the first: what was paid under the old key is then paid twice.",
            UNCHANGED_FAILS,
        ),
        _ => (
            "This part of the log lies before the oldest checkpoint that is kept, and was let go.",
            "Begin at <code>oldest</code>. A backup or an archive may have what was before.",
            UNCHANGED_FAILS,
        ),
    };
    Guide { means, remedy, repeat }
}

/// What is too large, of the wrong kind, or went wrong inside of a procedure.
fn guide_of_limits(kind: ProblemKind) -> Guide {
    let (means, remedy, repeat) = match kind {
        ProblemKind::TooLarge => (
            "A body, a module, the arguments or the answer is longer than its limit.",
            "<code>limit</code> and <code>max</code> name it. Send less at once, or ask for less.",
            UNCHANGED_FAILS,
        ),
        ProblemKind::UnsupportedMediaType => (
            "The body's <code>Content-Type</code> is not one that is read here.",
            "Send JSON as <code>application/json</code>, CBOR as <code>application/cbor</code>, a batch as \
             <code>application/x-ndjson</code> or <code>application/cbor-seq</code>. With curl: \
             <code>-H 'content-type: application/json'</code>.",
            UNCHANGED_FAILS,
        ),
        ProblemKind::NotPrimary => (
            "The server is a standby, and the call writes.",
            "Send it to <code>primary</code>.",
            "Safe: nothing was begun.",
        ),
        ProblemKind::InvalidModule => (
            "The upload is not a WebAssembly module that this host can run.",
            "<code>reason</code> and <code>offset</code> say why and where. Build it against this server's guest contract.",
            UNCHANGED_FAILS,
        ),
        ProblemKind::MigrationFailed => (
            "What the module runs when it is deployed aborted, trapped, reached a limit or took too long. The version before is in service, \
             with its rows as they were.",
            "<code>detail</code> says why, and on which partition. Correct it and deploy the module again.",
            "Safe: nothing was changed. It ends the same way while code and rows are the same.",
        ),
        ProblemKind::ProcedureAborted => (
            "The procedure itself decided to roll its transaction back.",
            "<code>code</code> and <code>message</code> are the procedure's own words.",
            "Safe: nothing of the call stays. Whether it ends the same way hangs on what is stored then.",
        ),
        ProblemKind::LimitExceeded => (
            "The transaction reached a limit of time, memory, result or written rows, and was rolled back.",
            "<code>limit</code> and <code>max</code> name it. Let one call do less.",
            "Safe: nothing of the call stays. It ends the same way as long as there is as much to do.",
        ),
        ProblemKind::Cancelled => (
            "Somebody ended the transaction while it ran or waited.",
            "Ask who did; repeat the call if it is still wanted.",
            SAFE,
        ),
        ProblemKind::ProcedureTrapped => (
            "The procedure's code made a mistake (an unreachable instruction, an index out of bounds), and was rolled back.",
            "<code>trap</code> and <code>backtrace</code> say where. Correct the procedure and deploy it again.",
            "Safe: nothing of the call stays. It ends the same way while code and rows are the same.",
        ),
        _ => (
            "The server made a mistake.",
            "The server's log has the details: please report them.",
            "Reads: safe. Writes: with an idempotency key, or after a look at what is stored.",
        ),
    };
    Guide { means, remedy, repeat }
}

const KEPT_NOTHING: &str = "Safe: it is known that nothing of the call is kept.";

/// Writes that can't be made as durable as they must be.
fn guide_of_durability(kind: ProblemKind) -> Guide {
    let (means, remedy, repeat) = match kind {
        ProblemKind::LogUnavailable => (
            "The server's disk does not take the log: it is full, or it failed. The server refuses writes; reads work.",
            "The operator removes the cause; <code>log_error</code> of /v1/status names it. After a full disk the server takes writes by itself \
             once there is room. After a write that failed it takes them again when it is restarted.",
            KEPT_NOTHING,
        ),
        ProblemKind::StandbyUnavailable => (
            "Standbys are missing that the safety level of the write asks for. The server refuses such writes before they run; reads work.",
            "GET /v1/replication tells which standbys are lost. The operator starts them, or forgets those that will not come back. A client \
             may ask for less by <code>Reprise-Safety</code>, if the server's own level allows it.",
            KEPT_NOTHING,
        ),
        ProblemKind::LeaseLost => (
            "The lease of this primary is over, and too few standbys are in sync: another server may be the primary. This server answers no \
             write until it has the lease again.",
            "The lease comes back by itself once etcd answers (<code>lease</code> of GET /v1/replication says why not). If another server has \
             become the primary, send writes there.",
            KEPT_NOTHING,
        ),
        _ => (
            "The write ran, and while its record was written the log failed: whether it is kept shows after the next start. Or it is durable on \
             this server, as <code>reached</code> says, and standbys did not say in time that they have it: it is kept as long as this server is.",
            "Once the server runs again, or its standbys are back: repeat the call with the same idempotency key, or look for \
             <code>txn_id</code> at <code>lsn</code> in GET /v1/log.",
            "Only with the idempotency key that the call had: without one it may be done twice.",
        ),
    };
    Guide { means, remedy, repeat }
}

/// What the server can't do now.
fn guide_of_server(kind: ProblemKind) -> Guide {
    let (means, remedy, repeat) = match kind {
        ProblemKind::Overloaded => (
            "More waits than the server takes on: calls of a partition, streams, downloads, or bytes of answers.",
            "Wait as long as <code>retry_after_ms</code> says, which comes from the queue, or send fewer at once.",
            SAFE_LATER,
        ),
        ProblemKind::TooStale => (
            "What can be read here did not reach <code>Reprise-Min-Lsn</code>, or <code>Reprise-Max-Lag-Ms</code>, within \
             <code>Reprise-Max-Wait-Ms</code>. Or a call on a standby held its view for longer than <code>--view-time-max-ms</code>, or past \
             <code>--view-memory-max</code>.",
            "Wait longer, ask for less at once, or ask the primary.",
            "Safe.",
        ),
        ProblemKind::LogUnavailable
        | ProblemKind::StandbyUnavailable
        | ProblemKind::LeaseLost
        | ProblemKind::OutcomeUnknown => return guide_of_durability(kind),
        ProblemKind::Recovering => (
            "The server loads its checkpoint and replays the log behind it; until the last record is replayed no call is answered.",
            "Wait. <code>phase</code>, like GET /readyz, says how far it is.",
            SAFE_LATER,
        ),
        ProblemKind::ReadOnly => (
            "The server was started to be read alone (<code>--read-only</code>); it takes no writes.",
            "Read, or ask whoever runs it for a server that takes writes.",
            "Safe: nothing was begun.",
        ),
        ProblemKind::Quarantined => (
            "The procedure did not replay as it ran, and is kept from running until a new version of its module is deployed.",
            "Deploy a version in which it does the same each time. The server's report of the divergence names the transaction.",
            "Safe: nothing was begun.",
        ),
        ProblemKind::Unavailable => (
            "The server stops, or could not open its log, or its engine ended; or others on which this depends do not answer: standbys, etcd.",
            "<code>detail</code> says which. GET /readyz tells of the server, with the report where there is one; GET /v1/replication of the others.",
            SAFE_LATER,
        ),
        ProblemKind::DeadlineExceeded => (
            "The call had not begun, or was not done, within <code>Reprise-Timeout-Ms</code>.",
            "Allow more time, or let one call do less.",
            SAFE,
        ),
        _ => (
            "What is stored, remembered or on its way reached a limit of memory: what would let it grow is refused. Reads and \
             deletes go on.",
            "Delete rows, or start the server with a larger <code>--memory-max</code>. /v1/status says what takes how much.",
            SAFE,
        ),
    };
    Guide { means, remedy, repeat }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_a_page_of_its_own() {
        let mut pages: Vec<_> = ProblemKind::ALL.into_iter().map(|kind| guide(kind).means).collect();
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages.len(), ProblemKind::ALL.len());
    }
}
