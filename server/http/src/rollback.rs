//! `/v1/modules/{module}/rollback`: a deployment of the bytes of a former version.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use reprise_api::{ModuleUploaded, Problem};
use reprise_router::{Deployed, Module};
use reprise_upkeep::BytesError;
use sha2::{Digest, Sha256};

use crate::{
    control::ControlOp,
    front::PathName,
    modules::{deploy, installed, plan},
    permits::Operation,
    plan::DeployQuery,
    principal::Principal,
    refusal::Refusal,
    state::{AppState, Parts},
    target::no_module,
};

/// Rolls a module back
///
/// Deploys the bytes of an earlier version as a new version. The server converts the stored tables to what that version declares, and
/// keeps their rows. Tables and columns get their earlier names back. Integers become narrow again if every value fits, and variants
/// of an enum go if no row has them. A conflict has the number of rows that prevent this, and the key of one.
///
/// The version's migration runs, unless its tables have had it. The server forgets migrations that came after the version. What
/// the rollback would destroy needs consent. The log and the checkpoints keep the bytes of the last five versions of a module, so
/// standbys and backups have them. Upload older versions as files.
#[utoipa::path(
    post,
    path = "/v1/modules/{module}/rollback",
    tag = "Modules",
    params(
        ("module" = String, Path, description = "Name of the module. It may be out of service"),
        ("version" = Option<u32>, Query, description = "Version to deploy again. Default: the newest earlier version with other bytes"),
        ("dry_run" = Option<bool>, Query, description = "`true`: check the version in the same way, and install nothing. Default: `false`"),
        ("allow" = Option<String>, Query, description = "Consent to destroy one thing, as for an upload. You may give several"),
    ),
    responses(
        (status = 201, description = "In service again, if it was out of service", body = ModuleUploaded),
        (status = 200, description = "A new version, or unchanged; with dry_run, what the deployment would do", body = ModuleUploaded),
        (status = 404, description = "not-found: the server has no such module or version, or no longer its bytes", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "schema-conflict", body = Problem, content_type = "application/problem+json"),
        (status = 421, description = "not-primary: send the request to `primary`", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "invalid-module; migration-failed; limit-exceeded", body = Problem, content_type = "application/problem+json"),
        (status = 507, description = "memory-exhausted", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn rollback_module(
    State(state): State<AppState>,
    PathName(name): PathName,
    query: DeployQuery,
    principal: Principal,
) -> Result<Response, Refusal> {
    if query.dry_run {
        let planned = state
            .blocking(Operation::Deploy, move |parts| {
                let former = Former::find(parts, &name, query.version)?;
                let mut planned = plan(parts, &name, &former.wasm, &query.allow)?;
                planned.rolled_back_to = Some(former.version);
                Ok::<_, Refusal>(planned)
            })
            .await??;
        return Ok(Json(ModuleUploaded::Planned(planned)).into_response());
    }
    let op = ControlOp::RollbackModule(name.clone());
    let (deployment, version) = state
        .control(op, principal, move |parts| {
            let former = Former::find(parts, &name, query.version)?;
            Ok((deploy(parts, &name, &former.wasm, &query.allow)?, former.version))
        })
        .await?;
    Ok(installed(&deployment, Some(version)))
}

/// A version and its bytes.
struct Former {
    version: u32,
    wasm: Vec<u8>,
}

impl Former {
    fn find(parts: &Parts, name: &str, version: Option<u32>) -> Result<Self, Refusal> {
        let deployed = parts.router.deployed();
        let module = choose(&deployed, name, version)?;
        let found = parts
            .database
            .checkpointer()
            .map_err(BytesError::from)
            .and_then(|checkpointer| checkpointer.module_bytes(module))
            .and_then(|wasm| match Sha256::digest(&wasm)[..] == module.hash {
                true => Ok(wasm),
                false => Err(BytesError::Unreadable("they do not have its SHA-256".to_owned())),
            });
        let wasm = found.map_err(|error| {
            let version = module.version;
            Refusal::not_found(format!(
                "the server can't read the bytes of version {version} of {name}: {error}; upload the file with PUT /v1/modules/{name}"
            ))
        })?;
        Ok(Self {
            version: module.version,
            wasm,
        })
    }
}

/// The version that is asked for, or the newest one before that in service with other bytes.
fn choose<'d>(deployed: &'d Deployed, name: &str, version: Option<u32>) -> Result<&'d Module, Refusal> {
    let mut versions = deployed.versions.iter().filter(|module| module.name == name);
    let in_service = deployed.current.get(name);
    let found = match version {
        Some(version) => versions.clone().find(|module| module.version == version),
        None => versions
            .clone()
            .rfind(|module| in_service.is_none_or(|now| module.version < now.version && module.hash != now.hash)),
    };
    if let Some(module) = found {
        return Ok(module);
    }
    let Some(newest) = versions.next_back() else {
        return Err(no_module(deployed, name));
    };
    Err(Refusal::not_found(match version {
        Some(version) => format!("{name} has no version {version}; it has 1 to {}", newest.version),
        None => format!("{name} has no version before {} with other bytes", newest.version),
    }))
}
