//! `/v1/replication`: who is the primary, how far each standby is, and the way to become one or the other.

use axum::{
    Json,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
};
use reprise_api::{
    Comparison, Cut, JoinRequest, JoinTicket, Lease, LeaseState, LostRange, OtherPrimary, OutOfSync, Problem,
    ProblemKind, Promotion, Replication, Standby, StandbyState, StepDownRequest, SteppedDown, U64, headers,
};
use reprise_base::{Joiner, Lsn, NodeProcess, check_node_name};
use reprise_codec::{hex, rfc3339};
use reprise_router::{
    ComparedInfo, CutRecords, LaggingStandby as RouterOutOfSync, LeaseInfo, LeaseStatus as RouterLease,
    LostRecords as RouterLost, PromoteOptions, ReplicationError, ReplicationInfo, Router, StandbyInfo,
    StandbyPhase as RouterState, ViewAge,
};
use serde::Deserialize;
use tokio::time::Instant;
use utoipa::IntoParams;

use crate::{
    body,
    calls::{FreshWait, POLL_INTERVAL, number},
    control::ControlOp,
    front::{Params, PathName},
    permits::Operation,
    principal::Principal,
    refusal::Refusal,
    state::{AppState, Parts},
};

/// Tells who is the primary, and how far each standby is
///
/// On a primary: its standbys, also those whose connection is lost. On a standby: itself, as the one entry.
#[utoipa::path(
    get,
    path = "/v1/replication",
    tag = "Replication",
    responses((status = 200, description = "This node's part in replication", body = Replication))
)]
pub async fn show_replication(State(state): State<AppState>) -> Result<Json<Replication>, Refusal> {
    let asked = state.blocking(Operation::ReadStats, |parts| {
        let info = match parts.router.replication() {
            Some(service) => service.info(),
            None => alone(&parts.router),
        };
        answer(info, &parts.router)
    });
    Ok(Json(asked.await?))
}

/// How a standby becomes the primary.
#[derive(Clone, Copy, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PromoteParams {
    /// Do not ask the old primary to step down: it was stopped by other means; `false` unless given. What it answered and had not shipped is
    /// not here.
    force: Option<bool>,
    /// With `force`: also where this standby can't exclude that what the old primary answered is lost; `false` unless given. The answer names the
    /// records.
    accept_loss: Option<bool>,
}

/// Makes this standby the primary
///
/// The old primary is asked to step down first: it writes nothing more, and this standby gets its last records. What is here is replayed;
/// then it takes writes, in a new epoch, and nothing of an older one any more. Where the old primary can't be reached it is refused, unless
/// `force` is given. By force it is refused where this standby can't exclude a loss, unless `accept_loss` is given, too: it is out of sync, or does
/// not know whether it is (`in_sync` is null), or at 1-safe the primary alone answers. At quorum it asks the other standbys, and is refused if too few
/// of them answer, or one has more. With a lease its store tells. A server that stepped down takes its place again in the same way: without a lease nothing tells whether its successor took over.
#[utoipa::path(
    post,
    path = "/v1/replication/promote",
    tag = "Replication",
    params(PromoteParams),
    responses(
        (status = 200, description = "It takes writes now", body = Promotion),
        (status = 409, description = "not-standby: it is the primary already; primary-not-stopped: the old one did not step down; out-of-sync: what was answered may be lost", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn promote(
    State(state): State<AppState>,
    Params(params): Params<PromoteParams>,
    principal: Principal,
) -> Result<Json<Promotion>, Refusal> {
    let options = PromoteOptions {
        is_forced: params.force == Some(true),
        accepts_loss: params.accept_loss == Some(true),
    };
    let promoted = state.control(ControlOp::Promote, principal, move |parts| {
        let service = parts.router.replication().ok_or_else(|| {
            let epoch = parts.router.status().epoch.unwrap_or_default();
            Refusal::from(ReplicationError::IsPrimary(epoch))
        })?;
        Ok(service.promote(options)?)
    });
    let promoted = promoted.await?;
    Ok(Json(Promotion {
        epoch: promoted.epoch.count(),
        lsn: U64(promoted.lsn.0),
        stepped_down: promoted.has_stepped_down,
        may_be_lost: promoted.may_be_lost.map(lost),
    }))
}

/// Gives this primary's place to a standby
///
/// Asked for by a standby that is promoted. From the answer on this server writes nothing, sends writers to its successor and opens as no primary
/// until it is promoted itself. Every record before `lsn` is durable on the successor. Where that one does not get them within 10 s, this
/// server goes on as the primary.
#[utoipa::path(
    post,
    path = "/v1/replication/step-down",
    tag = "Replication",
    request_body = StepDownRequest,
    responses(
        (status = 200, description = "It is the primary no longer", body = SteppedDown),
        (status = 404, description = "not-found: this server takes no standbys", body = Problem, content_type = "application/problem+json"),
        (status = 421, description = "not-primary", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn step_down(
    State(state): State<AppState>,
    principal: Principal,
    request: Request,
) -> Result<Json<SteppedDown>, Refusal> {
    let asked: StepDownRequest = body::read_question(&state, request, "a request to step down").await?;
    check_node_name(&asked.name).map_err(Refusal::malformed)?;
    let stepped = state
        .control(ControlOp::StepDown(asked.name.clone()), principal, move |parts| {
            let service = parts.router.replication().ok_or(ReplicationError::NotServed)?;
            Ok(service.step_down(&asked.name, asked.url.map(Into::into))?)
        })
        .await?;
    Ok(Json(SteppedDown {
        epoch: stepped.epoch.count(),
        epoch_writer: stepped.epoch.writer(),
        lsn: U64(stepped.lsn.0),
    }))
}

/// Lets a standby connect
///
/// Asked for by a server that was started with `--standby-of`. The ticket is shown on the connection to `ship_address`, over which the standby
/// gets every row and the database's secret.
#[utoipa::path(
    post,
    path = "/v1/replication/join",
    tag = "Replication",
    request_body = JoinRequest,
    responses(
        (status = 200, description = "The way to connect", body = JoinTicket),
        (status = 404, description = "not-found: this server takes no standbys (--ship-listen)", body = Problem, content_type = "application/problem+json"),
        (status = 421, description = "not-primary", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn join(
    State(state): State<AppState>,
    principal: Principal,
    request: Request,
) -> Result<Json<JoinTicket>, Refusal> {
    let host = host_of(request.headers()).to_owned();
    let asked: JoinRequest = body::read_question(&state, request, "a request to join").await?;
    check_node_name(&asked.name).map_err(Refusal::malformed)?;
    let joiner = Joiner {
        name: asked.name.as_str().into(),
        process: asked.process.map(|process| NodeProcess {
            node: process.node.0,
            starts: process.starts.0,
            nonce: process.nonce.0,
        }),
        url: asked.url.map(Into::into),
    };
    let ticket = state
        .control(ControlOp::AdmitStandby(asked.name), principal, move |parts| {
            let service = parts.router.replication().ok_or(ReplicationError::NotServed)?;
            Ok(service.join(&joiner)?)
        })
        .await?;
    Ok(Json(JoinTicket {
        ticket: hex(&ticket.ticket),
        ship_address: reachable(&ticket.ship_address, &host),
        transport: ticket.transport.to_owned(),
        certificate: ticket.certificate.map(|sum| hex(&sum)),
        database_id: hex(&ticket.database_id),
        partitions: ticket.partitions,
    }))
}

/// Forgets a standby
///
/// One that is lost and will not come back: no log is kept for it any more. One that comes all the same has to begin anew, if the log that it
/// lacks was let go.
#[utoipa::path(
    delete,
    path = "/v1/replication/standbys/{name}",
    tag = "Replication",
    params(("name" = String, Path, description = "The standby's name")),
    responses(
        (status = 204, description = "It is forgotten"),
        (status = 404, description = "not-found: none of that name, or this server takes no standbys", body = Problem, content_type = "application/problem+json"),
        (status = 421, description = "not-primary", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn forget_standby(
    State(state): State<AppState>,
    PathName(name): PathName,
    principal: Principal,
) -> Result<StatusCode, Refusal> {
    let forget = {
        let name = name.clone();
        move |parts: &Parts| {
            let service = parts.router.replication().ok_or(ReplicationError::NotServed)?;
            service.forget(&name).map_err(|error| match error {
                ReplicationError::Name(reason) => Refusal::not_found(&*reason),
                other => other.into(),
            })
        }
    };
    state.control(ControlOp::ForgetStandby(name), principal, forget).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn host_of(headers: &HeaderMap) -> &str {
    let authority = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let authority = authority.unwrap_or("127.0.0.1");
    match authority.strip_prefix('[') {
        Some(_) => authority.split_inclusive(']').next().unwrap_or(authority),
        None => authority.split(':').next().unwrap_or(authority),
    }
}

/// Returns the address at which a server that listens on all addresses is reached: the one that this request used.
fn reachable(address: &str, host: &str) -> String {
    let all = ["0.0.0.0:", "[::]:"].iter().find_map(|all| address.strip_prefix(all));
    match all {
        Some(port) => format!("{host}:{port}"),
        None => address.to_owned(),
    }
}

/// Describes a node that neither takes standbys nor is one.
fn alone(router: &Router) -> ReplicationInfo {
    let (status, (safety, reached)) = (router.status(), router.safety());
    ReplicationInfo {
        role: status.role,
        epoch: status.epoch.unwrap_or_default(),
        safety,
        reached,
        primary: None,
        ship_address: None,
        ship: "as-logged",
        durable: status.durable_lsn,
        acked: status.durable_lsn,
        committed: status.durable_lsn,
        standbys: Vec::new(),
        out_of_sync: Vec::new(),
        cuts: Vec::new(),
        lease: None,
    }
}

/// Returns the information in the API's form.
pub fn answer(info: ReplicationInfo, router: &Router) -> Replication {
    Replication {
        role: info.role.name().to_owned(),
        epoch: info.epoch.count(),
        epoch_writer: info.epoch.writer(),
        safety: info.safety.name().to_owned(),
        reached: info.reached.name().to_owned(),
        primary: info.primary.as_deref().map(str::to_owned),
        ship_address: info.ship_address,
        ship: info.ship.to_owned(),
        durable_lsn: U64(info.durable.0),
        acked_lsn: U64(info.acked.0),
        committed_lsn: U64(info.committed.0),
        standbys: info.standbys.into_iter().map(standby).collect(),
        waits_for: router.replay_waits_for().as_deref().map(str::to_owned),
        out_of_sync: info.out_of_sync.into_iter().map(out_of_sync).collect(),
        cuts: info.cuts.into_iter().map(cut).collect(),
        lease: info.lease.map(lease),
        other_primary: router.other_primary().map(|other| OtherPrimary {
            name: other.name,
            url: other.url,
            epoch: other.epoch.count(),
        }),
    }
}

fn lease(info: LeaseInfo) -> Lease {
    Lease {
        store: info.kind.to_owned(),
        state: match info.state {
            RouterLease::Held => LeaseState::Held,
            RouterLease::Over => LeaseState::Over,
            RouterLease::Elsewhere => LeaseState::Elsewhere,
            RouterLease::Free => LeaseState::Free,
            RouterLease::Unknown => LeaseState::Unknown,
        },
        holder: info.holder,
        holder_url: info.holder_url,
        in_sync: info.in_sync,
        ttl_ms: info.ttl_us / 1000,
        left_ms: info.left_us / 1000,
        error: info.error.as_deref().map(str::to_owned),
    }
}

fn out_of_sync(laggard: RouterOutOfSync) -> OutOfSync {
    OutOfSync {
        name: laggard.name,
        from_lsn: U64(laggard.from.0),
    }
}

fn lost(range: RouterLost) -> LostRange {
    LostRange {
        epoch: range.epoch.count(),
        from_lsn: U64(range.from.0),
        known_to_lsn: range.known_to.map(|known_to| U64(known_to.0)),
        proven: range.is_proven(),
        class: "acknowledged".to_owned(),
    }
}

fn cut(records: CutRecords) -> Cut {
    Cut {
        name: records.name,
        epoch: records.epoch.count(),
        from_lsn: U64(records.from.0),
        to_lsn: U64(records.to.0),
        acknowledged: records.may_be_acknowledged,
        at: rfc3339(records.cut_us),
    }
}

fn comparison(info: ComparedInfo) -> Comparison {
    Comparison {
        lsn: U64(info.lsn.0),
        at: rfc3339(info.at_us),
        equal: info.difference.is_none(),
        difference: info.difference.as_deref().map(str::to_owned),
    }
}

fn standby(info: StandbyInfo) -> Standby {
    Standby {
        name: info.name,
        state: match info.state {
            RouterState::Joining => StandbyState::Joining,
            RouterState::CatchingUp => StandbyState::CatchingUp,
            RouterState::Streaming => StandbyState::Streaming,
            RouterState::Lost => StandbyState::Lost,
        },
        transport: info.transport.to_owned(),
        path: info.path,
        encrypted: info.is_encrypted,
        shipped_lsn: U64(info.shipped.0),
        persisted_lsn: U64(info.persisted.0),
        replayed_lsn: U64(info.replayed.0),
        view_lsn: U64(info.view.0),
        in_sync: info.in_sync,
        freshness: info.freshness,
        lag_ms: info.lag_us as f64 / 1e3,
        lag_known: info.is_lag_known,
        lag_bytes: info.lag_bytes,
        lag_txns: info.lag_records,
        compared: info.compared.map(comparison),
        error: info.error.as_deref().map(str::to_owned),
    }
}

/// The age of the data that an answer of a standby shows.
#[derive(Clone, Copy, Debug)]
pub struct Staleness(ViewAge);

impl Staleness {
    /// Returns the staleness of the current view. None on a primary, unless it may be deposed.
    pub fn of(router: &Router) -> Option<Self> {
        router.replication()?.view_age(router.view()).map(Self)
    }

    /// Returns the staleness of a finished answer that shows this record and all before it.
    pub fn of_record(router: &Router, lsn: u64) -> Option<Self> {
        let view = Lsn(lsn.saturating_add(1)).min(router.view());
        router.replication()?.view_age(view).map(Self)
    }

    /// Returns the staleness of the finished answer. `waited_for` is the record that it waited for, `shown` the newest one that it shows.
    pub fn answered(self, router: &Router, waited_for: Option<u64>, shown: Option<u64>) -> Option<Self> {
        let before = self.0.view.0.checked_sub(1).max(waited_for);
        match shown.or(before) {
            Some(lsn) => Self::of_record(router, lsn),
            None => Self::of(router),
        }
    }

    /// The headers that tell it, as names and values.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, String)> {
        let lag = format!("{:.3}", self.0.lag_us as f64 / 1e3);
        // Never rounded up to fresh.
        let freshness = self.0.freshness.map(|freshness| (freshness * 1e4).floor() / 1e4);
        let freshness = freshness.map(|freshness| format!("{freshness:.4}"));
        [
            (headers::VIEW_LSN, self.0.view.to_string()),
            (headers::LAG_MS, lag),
            (headers::LAG_KNOWN, self.0.is_lag_known.to_string()),
        ]
        .into_iter()
        .chain(freshness.map(|freshness| (headers::FRESHNESS, freshness)))
    }

    pub fn write_headers(&self, answer: &mut HeaderMap) {
        for (name, value) in self.headers() {
            if let Ok(value) = HeaderValue::try_from(value) {
                answer.insert(name, value);
            }
        }
    }
}

/// Waits until a standby is not further behind than a read allows it to be (`Reprise-Max-Lag-Ms`).
pub async fn wait_for_max_lag(state: &AppState, headers: &HeaderMap, wait: &FreshWait) -> Result<(), Refusal> {
    let Some(max_ms) = number(headers, headers::MAX_LAG_MS)? else {
        return Ok(());
    };
    loop {
        let Some(Staleness(own)) = Staleness::of(&state.router) else {
            return Ok(());
        };
        if own.is_lag_known && own.lag_us <= max_ms.saturating_mul(1000) {
            return Ok(());
        }
        if Instant::now() >= wait.until() {
            let least = if own.is_lag_known { "" } else { "at least " };
            return Err(wait.refusal(format!(
                "this server is {least}{:.3} ms behind, asked was {max_ms} at most; wait longer (Reprise-Max-Wait-Ms) or read from the primary",
                own.lag_us as f64 / 1e3
            )));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

impl From<ReplicationError> for Refusal {
    fn from(error: ReplicationError) -> Self {
        let text = error.to_string();
        match error {
            ReplicationError::IsPrimary(_) => Self::new(ProblemKind::NotStandby, text),
            ReplicationError::PrimaryNotStopped(_) => Self::new(ProblemKind::PrimaryNotStopped, text),
            ReplicationError::OutOfSync(range) => {
                let mut problem = Problem::new(ProblemKind::OutOfSync, text);
                problem.may_be_lost = Some(lost(range));
                problem.into()
            }
            ReplicationError::NotPrimary(primary) => Self::not_primary(primary.as_deref()),
            ReplicationError::NotServed => Self::not_found(text),
            ReplicationError::Name(_) => Self::malformed(text),
            ReplicationError::Unavailable(reason) => Self::unavailable(&reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_on_all_addresses_is_reached_at_the_requests_address() {
        let headers = |host: &'static str| HeaderMap::from_iter([(header::HOST, HeaderValue::from_static(host))]);
        for (address, host, expected) in [
            ("0.0.0.0:9", "db.example:8080", "db.example:9"),
            ("[::]:9", "[::1]:8080", "[::1]:9"),
            ("10.0.0.1:9", "db.example", "10.0.0.1:9"),
        ] {
            assert_eq!(reachable(address, host_of(&headers(host))), expected);
        }
    }
}
