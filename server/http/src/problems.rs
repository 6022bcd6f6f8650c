//! `/problems/{slug}`: the page that a problem's `type` names. What it means, what to do, whether a repeat is safe.

use axum::{
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use reprise_api::ProblemKind;

use crate::{front::PathName, refusal::Refusal};

/// Returns slug, status, meaning and whether a repeat is safe, for the documentation.
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

/// An explanation for the reader of an error.
struct Guide {
    means: &'static str,
    remedy: &'static str,
    repeat: &'static str,
}

const UNCHANGED_FAILS: &str = "Safe but useless: the server changed nothing, and would answer the same.";
const SAFE: &str = "Yes: the server kept nothing of the call.";
const SAFE_LATER: &str = "Yes: the server began nothing. Wait first for <code>retry_after_ms</code>.";
const SAFE_UNBEGUN: &str = "Yes: the server began nothing.";
const SAFE_SAME_CODE: &str = "Yes, but the result is the same until the code or the rows change.";

/// Explains an error
///
/// Returns the page that the `type` of a problem names: what it means, what to do, and whether you may repeat the request.
#[utoipa::path(
    get,
    path = "/problems/{slug}",
    tag = "Server",
    params(("slug" = String, Path, description = "The part of a problem's `type` after `/problems/`")),
    responses(
        (status = 200, description = "A page for people", body = String, content_type = "text/html"),
    ),
    security(())
)]
pub async fn problem_page(PathName(slug): PathName) -> Result<Response, Refusal> {
    let kind = ProblemKind::from_slug(&slug)
        .ok_or_else(|| Refusal::not_found("there is no error with this name; /problems/ lists all errors"))?;
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
            "You asked this server to become the primary, and it is the primary already.",
            "Do nothing. <code>GET /v1/replication</code> shows the role of each server.",
            UNCHANGED_FAILS,
        ),
        ProblemKind::PrimaryNotStopped => (
            "You asked this server to become the primary, but the old primary did not step down: it can't be reached, or it refused.",
            "Read <code>detail</code> for the reason. Stop the old primary by other means. Then promote with <code>?force=true</code> \
             (<code>--force</code>). If the old primary still runs, both servers acknowledge writes.",
            SAFE,
        ),
        _ => (
            "The old primary may have acknowledged writes that this standby lacks. The standby is out of sync, or does not know it, or the \
             safety level lets the primary acknowledge alone. <code>may_be_lost</code> names the known LSNs of these writes.",
            "Read <code>detail</code> for the reason. Promote a standby that is in sync. If there is none and the old primary is lost for good, \
             promote with <code>?force=true&amp;accept_loss=true</code> (<code>--force --accept-loss</code>).",
            SAFE,
        ),
    };
    Guide { means, remedy, repeat }
}

/// Explains errors in the request itself.
fn guide_of_request(kind: ProblemKind) -> Guide {
    let (means, remedy, repeat) = match kind {
        ProblemKind::InvalidArguments => (
            "The arguments do not fit the procedure's parameters, or they make a key of a table longer than 1,024 bytes.",
            "Correct each argument in <code>errors</code>, which names it by a JSON pointer. GET /v1/modules/{module} shows the parameters.",
            UNCHANGED_FAILS,
        ),
        ProblemKind::MalformedRequest => (
            "The server can't read the request: it is not JSON, CBOR or UTF-8, or it has a wrong parameter or header.",
            "Read <code>detail</code> for the fault and its place. /openapi.json describes every parameter. The server refuses unknown ones.",
            UNCHANGED_FAILS,
        ),
        ProblemKind::Unauthorized => (
            "The server requires a token, and the request has no valid one.",
            "Send <code>Authorization: Bearer TOKEN</code>. The operator of the server issues tokens.",
            UNCHANGED_FAILS,
        ),
        ProblemKind::Forbidden => (
            "The token's role or grants do not allow this, or the request comes from a web page of another site.",
            "Use a token with the role that <code>detail</code> names. To allow pages of another site, the operator adds it to \
             <code>origins</code> in the table <code>[http]</code> of the configuration.",
            UNCHANGED_FAILS,
        ),
        ProblemKind::NotFound => (
            "The server has no module, procedure, table, record, checkpoint, backup or path with this name.",
            "Read <code>detail</code>: it has the name, and the request that lists the existing ones.",
            UNCHANGED_FAILS,
        ),
        ProblemKind::MethodNotAllowed => (
            "The path exists, but not with this method.",
            "Use a method that the header <code>Allow</code> lists.",
            UNCHANGED_FAILS,
        ),
        ProblemKind::RequestTimeout => (
            "The client sent the body too slowly, or a piece of it came too late.",
            "Send the body faster, or send smaller requests.",
            SAFE,
        ),
        ProblemKind::SchemaConflict => (
            "The server can't convert a stored table to the declared one, or the request would destroy something without consent.",
            "Change the declarations that <code>conflicts</code> names, or use another table name. If the answer has a <code>plan</code>, only \
             your consent is missing. Repeat the request with an <code>allow</code> for each entry of <code>plan.missing</code>, or change the \
             module so that it keeps what <code>plan.destroyed</code> names.",
            UNCHANGED_FAILS,
        ),
        ProblemKind::IdempotencyConflict => (
            "An earlier call used this idempotency key for another procedure, or with other arguments.",
            "The earlier call ran or runs. <code>GET /v1/idempotency/KEY</code> shows its outcome. If you repeat the earlier request unchanged, \
             the server answers with that outcome. Use a new key only for a new call: a payment under a new key is a second payment.",
            UNCHANGED_FAILS,
        ),
        _ => (
            "The server no longer has this part of the log. It keeps the log since its oldest checkpoint.",
            "Begin at <code>oldest</code>. A backup or an archive may have the earlier part.",
            UNCHANGED_FAILS,
        ),
    };
    Guide { means, remedy, repeat }
}

/// Explains inputs that are too large or of the wrong kind, and errors inside a procedure.
fn guide_of_limits(kind: ProblemKind) -> Guide {
    let (means, remedy, repeat) = match kind {
        ProblemKind::TooLarge => (
            "The body, the module, the arguments or the answer is larger than its limit.",
            "Read <code>limit</code> and <code>max</code> for the limit. Send less in one request, or ask for less.",
            UNCHANGED_FAILS,
        ),
        ProblemKind::UnsupportedMediaType => (
            "The server does not read bodies of this <code>Content-Type</code>.",
            "Send JSON as <code>application/json</code>, CBOR as <code>application/cbor</code>, a batch as \
             <code>application/x-ndjson</code> or <code>application/cbor-seq</code>. With curl: \
             <code>-H 'content-type: application/json'</code>.",
            UNCHANGED_FAILS,
        ),
        ProblemKind::NotPrimary => (
            "The call writes, and this server is a standby.",
            "Send the call to the server that <code>primary</code> names.",
            SAFE_UNBEGUN,
        ),
        ProblemKind::InvalidModule => (
            "The upload is not a WebAssembly module that this host can run.",
            "Read <code>reason</code> and <code>offset</code> for the fault and its place. Build the module for this server's guest contract.",
            UNCHANGED_FAILS,
        ),
        ProblemKind::MigrationFailed => (
            "The module's migration failed or took too long. The earlier version stays in service, and its rows are unchanged.",
            "Read <code>detail</code> for the reason and the partition. Correct the module and deploy it again.",
            SAFE_SAME_CODE,
        ),
        ProblemKind::ProcedureAborted => (
            "The procedure aborted its own transaction, and the server rolled it back.",
            "Read <code>code</code> and <code>message</code>, which the procedure chose.",
            "Yes: the server kept nothing of the call. The result depends on the rows.",
        ),
        ProblemKind::LimitExceeded => (
            "The transaction reached a limit of time, memory, result size or written rows, and the server rolled it back.",
            "Read <code>limit</code> and <code>max</code> for the limit. Split the work into several calls.",
            "Yes, but the result is the same while the call has the same work to do.",
        ),
        ProblemKind::Cancelled => (
            "An operator cancelled the transaction while it ran or waited.",
            "Ask the operator for the reason. Repeat the call if you still need it.",
            SAFE,
        ),
        ProblemKind::ProcedureTrapped => (
            "The procedure's code has a fault (for example an index out of bounds), and the server rolled the transaction back.",
            "Read <code>trap</code> and <code>backtrace</code> for the place. Correct the procedure and deploy it again.",
            SAFE_SAME_CODE,
        ),
        _ => (
            "The server has a fault.",
            "The server's output has the details. Please report them.",
            "Reads: yes. Writes: with an idempotency key, or after you checked the stored rows.",
        ),
    };
    Guide { means, remedy, repeat }
}

const KEPT_NOTHING: &str = "Yes: the server certainly kept nothing of the call.";

/// Writes that can't be made as durable as they must be.
fn guide_of_durability(kind: ProblemKind) -> Guide {
    let (means, remedy, repeat) = match kind {
        ProblemKind::LogUnavailable => (
            "The server can't write its log, because the disk is full or failed. The server refuses writes, and reads work.",
            "The operator removes the cause, which <code>log_error</code> of /v1/status names. If the disk was full, the server takes writes \
             again once there is room. If a write failed, the operator must restart the server.",
            KEPT_NOTHING,
        ),
        ProblemKind::StandbyUnavailable => (
            "The safety level needs standbys that are missing. The server refuses writes before they run. Reads work while the server keeps \
             acknowledged rows.",
            "GET /v1/replication shows the lost standbys. The operator starts them again, or forgets those that will not come back. If the \
             server's own level allows it, a client may ask for a lower level with <code>Reprise-Safety</code>.",
            KEPT_NOTHING,
        ),
        ProblemKind::LeaseLost => (
            "This primary lost its lease, and too few standbys are in sync. Another server may be the primary now. This server refuses writes.",
            "The server gets the lease again once etcd answers (<code>lease</code> of GET /v1/replication has the reason). If another server \
             is the primary now, send writes there.",
            KEPT_NOTHING,
        ),
        _ => (
            "The write ran, and one of two things happened. Either the log failed while the server wrote the record; the next start shows \
             whether the write is kept. Or the write is durable on this server (<code>reached</code>), but standbys did not confirm it in time. \
             If so, a promotion of a standby that lacks it cuts it off.",
            "Wait until the server runs again, or its standbys are back. Then repeat the call with the same idempotency key, or look for \
             <code>txn_id</code> at <code>lsn</code> in GET /v1/log.",
            "Only with the same idempotency key. Without a key the call may run twice.",
        ),
    };
    Guide { means, remedy, repeat }
}

/// Explains work that the server can't do now.
fn guide_of_server(kind: ProblemKind) -> Guide {
    let (means, remedy, repeat) = match kind {
        ProblemKind::Overloaded => (
            "Too much waits on the server: calls of a partition, streams, downloads, or bytes of answers.",
            "Wait for <code>retry_after_ms</code>, which the server computes from the queue. Or send fewer requests at once.",
            SAFE_LATER,
        ),
        ProblemKind::TooStale => (
            "The data on this server did not reach <code>Reprise-Min-Lsn</code> or <code>Reprise-Max-Lag-Ms</code> within \
             <code>Reprise-Max-Wait-Ms</code>. Or a call on a standby held its view for longer than <code>--view-time-max-ms</code>, or needed \
             more than <code>--view-memory-max</code>.",
            "Wait longer, ask for less in one request, or ask the primary.",
            "Yes.",
        ),
        ProblemKind::LogUnavailable
        | ProblemKind::StandbyUnavailable
        | ProblemKind::LeaseLost
        | ProblemKind::OutcomeUnknown => return guide_of_durability(kind),
        ProblemKind::Recovering => (
            "The server loads its checkpoint and replays the log after it. It answers no calls yet.",
            "Wait. <code>phase</code> and GET /readyz show the progress.",
            SAFE_LATER,
        ),
        ProblemKind::ReadOnly => (
            "The operator started the server with <code>--read-only</code>, so it refuses writes.",
            "Send writes to another server, or ask the operator to start this one without <code>--read-only</code>.",
            SAFE_UNBEGUN,
        ),
        ProblemKind::Quarantined => (
            "A replay of this procedure had another outcome than the first run. The server refuses its calls until you deploy a new version.",
            "Deploy a version whose outcome depends on its arguments and rows alone. The server's report of the divergence names the transaction.",
            SAFE_UNBEGUN,
        ),
        ProblemKind::Unavailable => (
            "The server is stopping, could not open its log, or its engine ended. Or a standby or etcd, which the request needs, does not answer.",
            "Read <code>detail</code> for the reason. GET /readyz shows the state of the server, and GET /v1/replication that of standbys and etcd.",
            SAFE_LATER,
        ),
        ProblemKind::DeadlineExceeded => (
            "The call did not begin, or did not end, within <code>Reprise-Timeout-Ms</code>.",
            "Allow more time, or split the work into several calls.",
            SAFE,
        ),
        _ => (
            "Rows, remembered outcomes, requests and answers reached the memory limit. The server refuses calls that need more memory. It \
             still takes reads and deletes.",
            "Delete rows, or start the server with a larger <code>--memory-max</code>. /v1/status shows how much memory each kind takes.",
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
