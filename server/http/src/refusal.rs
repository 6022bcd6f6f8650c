//! Errors on their way out: a problem and its headers.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use reprise_api::{ArgumentError, Phase, Problem, ProblemKind, U64, headers};
use reprise_base::{
    Lsn, Safety, TxnId,
    limits::{KEY_BYTES_LIMIT, MAPPINGS_LIMIT, MEMORY_MAX_LIMIT},
};
use reprise_router::{CallReply, EndReason, Failure, LogReadError, LogRefusal, ReplyOutcome, RowsError, Unavailable};

mod deployments;

pub(crate) use deployments::conflict;

/// An answer other than the one asked for.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub problem: Box<Problem>,
    /// The transaction that ended with this refusal, and its LSN.
    pub txn: Option<(TxnId, Lsn)>,
    /// The engine refused the call, and counted that.
    pub is_counted: bool,
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self {
            problem: Box::new(problem),
            txn: None,
            is_counted: false,
        }
    }
}

impl Refusal {
    pub fn slug(&self) -> &str {
        self.problem.type_uri.trim_start_matches("/problems/")
    }
}

impl Refusal {
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Problem::new(kind, detail).into()
    }

    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(ProblemKind::MalformedRequest, detail)
    }

    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(ProblemKind::NotFound, detail)
    }

    pub fn too_large(limit: &str, max: usize) -> Self {
        let detail = format!("{limit} may have at most {max} bytes; send less");
        let mut problem = Problem::new(ProblemKind::TooLarge, detail);
        problem.limit = Some(limit.into());
        problem.max = Some(max as u64);
        problem.into()
    }

    /// The server stops, or could not open its log, or others do not answer on which this depends.
    pub fn unavailable(reason: &str) -> Self {
        let detail = format!("{reason}; GET /readyz and GET /v1/replication show the state of the server");
        let mut problem = Problem::new(ProblemKind::Unavailable, detail);
        problem.retry_after_ms = Some(200);
        problem.into()
    }

    /// Something of the server's that is full.
    pub fn limit(limit: &str, detail: String) -> Self {
        let mut problem = Problem::new(ProblemKind::LimitExceeded, detail);
        problem.limit = Some(limit.into());
        problem.into()
    }

    /// A deployment that ended before its record. The version before stays in service.
    fn migration(why: String) -> Self {
        let detail = format!("{why}. The server changed nothing: the earlier version stays in service");
        Self::new(ProblemKind::MigrationFailed, detail)
    }

    /// The server replays its log, so it can't say yet which data it has.
    pub fn recovering(phase: Phase) -> Self {
        let detail = "the server is opening the database: it loads the checkpoint and replays the log after it; \
                      try again once GET /readyz answers 200";
        let mut problem = Problem::new(ProblemKind::Recovering, detail);
        problem.retry_after_ms = Some(recovery_ms(&phase));
        problem.phase = Some(phase);
        problem.into()
    }

    /// Returns the refusal of a call whose records a failed log may have kept all the same.
    fn outcome_unknown(reason: &str, txn_id: TxnId, lsn: Lsn) -> Self {
        let mut problem = Problem::new(ProblemKind::OutcomeUnknown, reason);
        problem.txn_id = Some(U64(txn_id.0));
        problem.lsn = Some(U64(lsn.0));
        problem.into()
    }

    /// The write is durable here, and standbys may have it.
    pub fn unconfirmed(reason: &str, txn_id: TxnId, lsn: Lsn) -> Self {
        let detail = format!(
            "{reason}. The write is durable on this server, but standbys may not have it yet. Repeat the call with the same idempotency \
             key: the server answers once standbys have it"
        );
        let mut refusal = Self::outcome_unknown(&detail, txn_id, lsn);
        refusal.problem.reached = Some(Safety::OneSafe.name().into());
        refusal
    }

    /// The level that a write asks for can't be had now.
    pub fn no_safety(reason: &str) -> Self {
        let detail = format!(
            "{reason}; the server ran nothing. Ask for a lower level (Reprise-Safety), or try again once the standbys are back"
        );
        Self::new(ProblemKind::StandbyUnavailable, detail)
    }

    pub fn read_only(reason: &str) -> Self {
        Self::new(
            ProblemKind::ReadOnly,
            format!("{reason}; the server refuses writes until the operator starts it without --read-only"),
        )
    }

    /// The key was used for another call. A client that then takes a new key runs the call twice.
    pub fn idempotency_conflict() -> Self {
        let detail = "an earlier request used this key for another module, procedure or arguments, and has run or runs: the server \
                      did nothing now. GET /v1/idempotency/KEY shows the earlier call and its outcome. Repeat the earlier request \
                      unchanged to get that outcome. With a new key the call runs in addition to the earlier one";
        Self::new(ProblemKind::IdempotencyConflict, detail)
    }

    /// A write reached a standby, whose primary is at this URL, if it knows it.
    pub fn not_primary(primary: Option<&str>) -> Self {
        let detail = match primary {
            Some(url) => format!("this server is a standby: send writes to {url}"),
            None => {
                "this server is a standby and does not know its primary's URL: send writes to the primary".to_owned()
            }
        };
        let mut problem = Problem::new(ProblemKind::NotPrimary, detail);
        problem.primary = primary.map(str::to_owned);
        problem.into()
    }

    /// Ours, and a mistake.
    pub fn internal(what: &str) -> Self {
        tracing::error!(what, "request failed inside the server");
        Self::new(
            ProblemKind::InternalError,
            format!("{what}; the server's output has more"),
        )
    }

    /// The call did not begin in its client's time, and never will.
    pub fn deadline_exceeded() -> Self {
        problem_of_failure(&Failure::Ended(EndReason::Deadline)).into()
    }

    /// Standbys are missing, or the lease is.
    fn not_backed(kind: ProblemKind, reason: &str) -> Self {
        Self::new(
            kind,
            format!(
                "{reason}; the server kept nothing of the call. Other reads work. GET /v1/replication shows the standbys \
                 and the lease"
            ),
        )
    }

    pub fn standby_unavailable(reason: &str) -> Self {
        Self::not_backed(ProblemKind::StandbyUnavailable, reason)
    }

    pub fn lease_lost(reason: &str) -> Self {
        Self::not_backed(ProblemKind::LeaseLost, reason)
    }

    pub fn log_unavailable(reason: &str) -> Self {
        Self::new(
            ProblemKind::LogUnavailable,
            format!(
                "{reason}; reads work. The server refuses writes until the cause is removed, and after a failed write to the disk until a \
                 restart"
            ),
        )
    }
}

/// Estimates the rest of an opening's step: 100 MiB in a second. A client that asks too early gets the same answer again.
fn recovery_ms(phase: &Phase) -> u32 {
    const BYTES_PER_MS: u64 = 100 << 10;
    let left = match phase {
        Phase::Recovering {
            bytes_done,
            bytes_total,
            ..
        } => bytes_total.saturating_sub(*bytes_done),
        Phase::Ready | Phase::Failed { .. } | Phase::Stopping => 0,
    };
    (left / BYTES_PER_MS).clamp(50, 1_000) as u32
}

/// Names the problem of an answer, for the span of its call and for the counts.
#[derive(Clone)]
pub struct ProblemSlug {
    pub slug: String,
    pub is_counted: bool,
}

impl Refusal {
    /// The whole answer.
    pub fn answer(&self) -> Response<Vec<u8>> {
        let problem = &*self.problem;
        let body = serde_json::to_vec(problem).expect("a problem serializes");
        let mut response = Response::new(body);
        response.extensions_mut().insert(ProblemSlug {
            slug: self.slug().to_owned(),
            is_counted: self.is_counted,
        });
        *response.status_mut() = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let out = response.headers_mut();
        let media_type = HeaderValue::from_static(reprise_api::PROBLEM_MEDIA_TYPE);
        out.insert(header::CONTENT_TYPE, media_type);
        if let Some(ms) = problem.retry_after_ms {
            out.insert(header::RETRY_AFTER, ms.div_ceil(1_000).into());
        }
        if problem.status == 401 {
            let challenge = HeaderValue::from_static("Bearer realm=\"reprise\"");
            out.insert(header::WWW_AUTHENTICATE, challenge);
        }
        if let Some((txn_id, lsn)) = self.txn {
            out.insert(headers::TXN_ID, txn_id.0.into());
            out.insert(headers::LSN, lsn.0.into());
        }
        response
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        self.answer().map(Body::from)
    }
}

/// The problem of a call that did not commit.
pub fn problem_of_reply(reply: &CallReply<'_>) -> Option<Problem> {
    Some(match reply.outcome {
        ReplyOutcome::OutcomeUnknown(reason) => *Refusal::outcome_unknown(reason, reply.txn_id, reply.lsn).problem,
        ReplyOutcome::Unconfirmed(reason) => *Refusal::unconfirmed(reason, reply.txn_id, reply.lsn).problem,
        outcome => return problem_of_outcome(outcome),
    })
}

fn problem_of_outcome(outcome: &ReplyOutcome) -> Option<Problem> {
    Some(match outcome {
        ReplyOutcome::Committed => return None,
        // Superseded calls run again before any answer.
        ReplyOutcome::Waiting | ReplyOutcome::Superseded => {
            *Refusal::internal("the server would answer a call that has not run").problem
        }
        ReplyOutcome::Failed(failure) => problem_of_failure(failure),
        ReplyOutcome::Overloaded { retry_after_ms } => {
            let detail = "too many calls wait for a partition, or too many answers for their clients. Try again after the given time, or send fewer \
            calls at once";
            let mut problem = Problem::new(ProblemKind::Overloaded, detail);
            problem.retry_after_ms = Some(*retry_after_ms);
            problem
        }
        ReplyOutcome::IdempotencyConflict => return Some(*Refusal::idempotency_conflict().problem),
        ReplyOutcome::IdempotencyFull => {
            let detail = "the outcomes of idempotency keys fill their memory, or the outcomes of this token fill half of it. The server keeps each \
            outcome for its full time. Call without a key, or keep outcomes for a shorter time (--idempotency-keep-s)";
            let mut problem = Problem::new(ProblemKind::MemoryExhausted, detail);
            problem.limit = Some("idempotency".into());
            problem
        }
        ReplyOutcome::LogUnavailable(reason) => *Refusal::log_unavailable(reason).problem,
        ReplyOutcome::StandbyUnavailable(reason) => *Refusal::standby_unavailable(reason).problem,
        ReplyOutcome::LeaseLost(reason) => *Refusal::lease_lost(reason).problem,
        ReplyOutcome::OutcomeUnknown(reason) | ReplyOutcome::Unconfirmed(reason) => {
            Problem::new(ProblemKind::OutcomeUnknown, &**reason)
        }
        ReplyOutcome::ReadOnly(reason) => *Refusal::read_only(reason).problem,
        ReplyOutcome::NotPrimary(primary) => *Refusal::not_primary(primary.as_deref()).problem,
        ReplyOutcome::Quarantined(reason) => Problem::new(ProblemKind::Quarantined, &**reason),
        ReplyOutcome::TooStale(reason) => Problem::new(ProblemKind::TooStale, &**reason),
        ReplyOutcome::Unavailable(reason) => *Refusal::unavailable(reason).problem,
    })
}

/// The data may not grow any more.
fn memory_exhausted(limit: &str, max: u64) -> Problem {
    let detail = format!(
        "the data, or the module's own memory, would exceed its part of --memory-max ({} MiB); the server rolled the transaction back. \
         It still takes reads and deletes, and a table can use the room of its deleted rows at once",
        max >> 20
    );
    let mut problem = Problem::new(ProblemKind::MemoryExhausted, detail);
    problem.limit = Some(limit.to_owned());
    problem.max = Some(max);
    problem
}

fn problem_of_failure(failure: &Failure) -> Problem {
    match failure {
        Failure::Aborted { code, message } => {
            let detail = match message.is_empty() {
                true => format!("the procedure aborted with the code {code}; the server rolled the transaction back"),
                false => message.clone(),
            };
            let mut problem = Problem::new(ProblemKind::ProcedureAborted, detail);
            problem.code = Some(code.clone());
            problem.message = Some(message.clone());
            problem
        }
        Failure::Limit { limit, max, .. } if limit == MEMORY_MAX_LIMIT => memory_exhausted(limit, *max),
        Failure::Limit { limit, max, message } if limit == MAPPINGS_LIMIT => {
            let detail = format!(
                "{message}; the server rolled the transaction back. Raise vm.max_map_count ({max} now), or use fewer modules or engine threads"
            );
            let mut problem = Problem::new(ProblemKind::MemoryExhausted, detail);
            problem.limit = Some(limit.clone());
            problem.max = Some(*max);
            problem
        }
        Failure::Limit { limit, message, .. } if limit == KEY_BYTES_LIMIT => {
            let detail = format!("{message}; the server rolled the transaction back. Send a shorter value");
            let mut problem = Problem::new(ProblemKind::InvalidArguments, detail);
            problem.errors = vec![ArgumentError {
                pointer: String::new(),
                message: message.clone(),
            }];
            problem
        }
        Failure::Limit { limit, max, message } => {
            let other = match &**limit {
                "fuel" => ", or declare a larger fuel_max for the procedure",
                _ => "",
            };
            let mut problem = Problem::new(
                ProblemKind::LimitExceeded,
                format!("{message}; the server rolled the transaction back. Split the work into several calls{other}"),
            );
            problem.limit = Some(limit.clone());
            problem.max = Some(*max);
            problem
        }
        Failure::Trapped {
            trap,
            message,
            backtrace,
        } => {
            let mut problem = Problem::new(
                ProblemKind::ProcedureTrapped,
                format!("{message}; the server rolled the transaction back. Correct the procedure and deploy it again"),
            );
            problem.trap = Some(trap.clone());
            problem.message = Some(message.clone());
            problem.backtrace = backtrace.clone();
            problem
        }
        Failure::Ended(EndReason::Cancelled) => Problem::new(
            ProblemKind::Cancelled,
            "an operator cancelled the transaction with DELETE /v1/calls; the server rolled it back",
        ),
        Failure::Ended(EndReason::Deadline) => Problem::new(
            ProblemKind::DeadlineExceeded,
            "the call did not begin, or did not end, within Reprise-Timeout-Ms; the server kept nothing of it. Try again, or allow more time",
        ),
    }
}

impl From<LogRefusal> for Refusal {
    fn from(reason: LogRefusal) -> Self {
        match reason {
            LogRefusal::Unavailable(reason) | LogRefusal::Unknown(reason) => Self::log_unavailable(&reason),
            LogRefusal::ReadOnly(reason) => Self::read_only(&reason),
            LogRefusal::StandbyUnavailable(reason) => Self::standby_unavailable(&reason),
            LogRefusal::LeaseLost(reason) => Self::lease_lost(&reason),
            LogRefusal::Paused(reason) => Self::unavailable(&reason),
        }
    }
}

impl From<Unavailable> for Refusal {
    fn from(unavailable: Unavailable) -> Self {
        Self::unavailable(&unavailable.0)
    }
}

impl From<RowsError> for Refusal {
    fn from(error: RowsError) -> Self {
        match error {
            RowsError::NotFound => Self::not_found("the server can't read this table or index in order"),
            RowsError::BadCursor => Self::malformed("no page returned this cursor; begin again without it"),
            RowsError::Unordered => Self::malformed(
                "this index has no order: leave out from, to and reverse, or name another index (GET /v1/tables/{table} lists them)",
            ),
            RowsError::Changed => Self::unavailable("a deployment changed the table while the server read it"),
            RowsError::LogUnavailable(reason) => Self::log_unavailable(&reason),
            RowsError::StandbyUnavailable(reason) => Self::standby_unavailable(&reason),
            RowsError::LeaseLost(reason) => Self::lease_lost(&reason),
            RowsError::TooStale(reason) => Self::new(ProblemKind::TooStale, reason.to_string()),
            RowsError::Unavailable(reason) => Self::unavailable(&reason),
        }
    }
}

impl From<LogReadError> for Refusal {
    fn from(error: LogReadError) -> Self {
        match error {
            LogReadError::NoLog => Self::not_found("this server keeps no log (--log none)"),
            LogReadError::BadKind(_) => Self::malformed(error.to_string()),
            LogReadError::Released { oldest } => {
                let detail = format!("{error}; begin at oldest, or read a backup or an archive");
                let mut problem = Problem::new(ProblemKind::LogReleased, detail);
                problem.oldest = Some(U64(oldest.0));
                problem.into()
            }
            LogReadError::Failed(reason) => Self::internal(&format!("read log: {reason}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Method;
    use expect_test::expect;
    use reprise_router::{DeployError, InstallError};

    use super::*;
    use crate::docs::statuses;

    #[test]
    fn outcomes_become_the_contracts_problems() {
        let limit = Failure::Limit {
            limit: "fuel".into(),
            max: 7,
            message: "too much fuel".into(),
        };
        let key = Failure::Limit {
            limit: KEY_BYTES_LIMIT.into(),
            max: 1024,
            message: "the key is too long".into(),
        };
        let aborted = Failure::Aborted {
            code: "no".into(),
            message: "because".into(),
        };
        let trapped = Failure::Trapped {
            trap: "unreachable".into(),
            message: "wasm unreachable".into(),
            backtrace: vec!["inner".into()],
        };
        let outcomes = [
            ReplyOutcome::Failed(aborted.into()),
            ReplyOutcome::Failed(limit.into()),
            ReplyOutcome::Failed(key.into()),
            ReplyOutcome::Failed(trapped.into()),
            ReplyOutcome::Overloaded { retry_after_ms: 2_001 },
            ReplyOutcome::IdempotencyConflict,
            ReplyOutcome::LogUnavailable("disk full".into()),
            ReplyOutcome::OutcomeUnknown("write failed".into()),
            ReplyOutcome::Unconfirmed("the standby was lost".into()),
            ReplyOutcome::ReadOnly("read alone".into()),
            ReplyOutcome::NotPrimary(Some("http://other:8080".into())),
            ReplyOutcome::NotPrimary(None),
            ReplyOutcome::Quarantined("in quarantine".into()),
            ReplyOutcome::TooStale("the view is over".into()),
            ReplyOutcome::Unavailable("the node stops".into()),
        ];
        let lines = outcomes.iter().map(|outcome| {
            let problem = problem_of_outcome(outcome).expect("not committed");
            let retry = problem.retry_after_ms;
            let response = Refusal::from(problem.clone()).into_response();
            let header = response.headers().get(header::RETRY_AFTER);
            let seconds = header.map(|text| text.to_str().expect("digits").parse::<u32>().expect("a number"));
            assert_eq!(seconds, retry.map(|ms| ms.div_ceil(1_000)));
            let status = response.status().as_u16();
            assert!(
                statuses(&Method::POST, "/v1/call/{module}/{procedure}").contains(&status),
                "{status}"
            );
            format!("{status} {} {retry:?}", problem.type_uri)
        });
        expect![[r#"
            422 /problems/procedure-aborted None
            422 /problems/limit-exceeded None
            400 /problems/invalid-arguments None
            500 /problems/procedure-trapped None
            503 /problems/overloaded Some(2001)
            409 /problems/idempotency-conflict None
            503 /problems/log-unavailable None
            503 /problems/outcome-unknown None
            503 /problems/outcome-unknown None
            503 /problems/read-only None
            421 /problems/not-primary None
            421 /problems/not-primary None
            503 /problems/quarantined None
            503 /problems/too-stale None
            503 /problems/unavailable Some(200)"#]]
        .assert_eq(&lines.collect::<Vec<_>>().join("\n"));
        assert!(problem_of_outcome(&ReplyOutcome::Committed).is_none());
    }

    #[test]
    fn refused_deployments_say_what_and_where() {
        let problem = |error: DeployError| *Refusal::from(error).problem;
        let invalid = problem(DeployError::Invalid {
            reason: "bad magic".into(),
            offset: Some(4),
        });
        assert_eq!((invalid.status, invalid.offset), (422, Some(4)));
        assert!(invalid.detail.starts_with("bad magic (at byte 4)"));
        assert_eq!(problem(DeployError::TooLarge { max: 9 }).max, Some(9));
        let long = problem(DeployError::RecordTooLong { bytes: 20, max: 9 });
        assert_eq!((long.status, long.max), (422, Some(9)));
        assert_eq!(long.limit.as_deref(), Some("log-record-bytes"));
        assert_eq!(problem(DeployError::NotFound).status, 404);
        let of_deployments = [
            DeployError::TooLarge { max: 9 },
            DeployError::RecordTooLong { bytes: 20, max: 9 },
            DeployError::BadName("no".into()),
            DeployError::Install(InstallError::Conflicts(Vec::new())),
            DeployError::Install(InstallError::Memory { bytes: 1, max: 2 }),
            DeployError::Install(InstallError::Time { max_s: 1 }),
            DeployError::Log(LogRefusal::Unavailable("full".into())),
            DeployError::Log(LogRefusal::ReadOnly("read alone".into())),
            DeployError::Unavailable("stops".into()),
        ];
        let documented = statuses(&Method::PUT, "/v1/modules/{module}");
        for error in of_deployments {
            let status = problem(error).status;
            assert!(documented.contains(&status), "{status}");
        }
        for (method, path) in [
            (Method::PUT, "/v1/modules/{module}"),
            (Method::DELETE, "/v1/modules/{module}"),
            (Method::POST, "/v1/modules/{module}/rollback"),
            (Method::DELETE, "/v1/tables/{table}"),
        ] {
            let status = Refusal::not_primary(None).problem.status;
            assert!(statuses(&method, path).contains(&status), "{method} {path}");
        }
        assert_eq!(problem(DeployError::BadName("no".into())).status, 400);
        let unauthorized = Refusal::new(ProblemKind::Unauthorized, "who").into_response();
        assert!(unauthorized.headers().contains_key(header::WWW_AUTHENTICATE));
    }
}
