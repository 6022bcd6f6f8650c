//! `/v1/replication/promise`: a standby promises an epoch to a server that is to lead.

use axum::{
    Json,
    extract::{Request, State},
};
use reprise_api::{EpochPromise, GivenPromise, Problem, PromiseMember, PromiseRequest, PromiseStatus, U64};
use reprise_base::{Epoch, check_node_name};
use reprise_router::{PromiseQuestion, ReplicationError};

use crate::{body, control::ControlOp, principal::Principal, refusal::Refusal, state::AppState};

/// Has this standby promise an epoch
///
/// Another standby asks before it leads. From the answer on this standby follows no primary before that epoch. A standby that knows of a later epoch
/// tells so in its answer, and promises nothing.
#[utoipa::path(
    post,
    path = "/v1/replication/promise",
    tag = "Replication",
    request_body = PromiseRequest,
    responses(
        (status = 200, description = "How far this standby is", body = EpochPromise),
        (status = 409, description = "not-standby", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn promise(
    State(state): State<AppState>,
    principal: Principal,
    request: Request,
) -> Result<Json<EpochPromise>, Refusal> {
    let asked: PromiseRequest = body::read_question(&state, request, "a question for a promise").await?;
    check_node_name(&asked.name).map_err(Refusal::malformed)?;
    let question = PromiseQuestion {
        epoch: Epoch::new(asked.epoch, asked.epoch_writer),
        name: asked.name.clone(),
        url: asked.url.map(Into::into),
        is_withdrawn: asked.withdrawn,
    };
    let answer = state
        .control(ControlOp::Promise(asked.name), principal, move |parts| {
            let service = parts.router.replication().ok_or(ReplicationError::NotServed)?;
            Ok(service.promise(&question)?)
        })
        .await?;
    Ok(Json(EpochPromise {
        name: answer.name,
        epoch: answer.epoch.count(),
        epoch_writer: answer.epoch.writer(),
        end_lsn: U64(answer.end.0),
        has_been_in_sync: answer.has_been_in_sync,
        promises: answer
            .promises
            .into_iter()
            .map(|(epoch, name)| GivenPromise {
                epoch: epoch.count(),
                epoch_writer: epoch.writer(),
                name,
            })
            .collect(),
        status: answer.status.map(|status| PromiseStatus {
            epoch: status.epoch.count(),
            epoch_writer: status.epoch.writer(),
            number: U64(status.number),
            members: status
                .members
                .into_iter()
                .map(|member| PromiseMember {
                    name: member.name,
                    url: member.url,
                    from_lsn: U64(member.from.0),
                    in_sync: member.is_in_sync,
                    counted: member.is_counted,
                    counted_next: member.is_counted_next,
                })
                .collect(),
        }),
    }))
}
