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
    auth::Principal,
    control::ControlOp,
    front::Name,
    modules::{deploy, installed, plan},
    places::Operation,
    plan::DeployQuery,
    refusal::Refusal,
    state::{AppState, Parts},
    target::no_module,
};

/// Deploys the bytes of a former version
///
/// They become a new version, and the stored tables become what it declares, with their rows: tables and columns have their former names
/// again, integers are narrow again if every value fits, and variants of an enum go if no row has them. A conflict has the number of the
/// rows that keep a table from going back, and the key of one. What the version runs when it is deployed runs, unless its tables have had
/// that. Migrations that it does not list are forgotten. What it would destroy needs consent. The log and the checkpoints keep the bytes of
/// the last five versions of a module, so standbys and backups have them; upload older ones.
#[utoipa::path(
    post,
    path = "/v1/modules/{module}/rollback",
    tag = "Modules",
    params(
        ("module" = String, Path, description = "Its name; it may be out of service"),
        ("version" = Option<u32>, Query, description = "The version whose bytes are deployed; the newest one before that in service with other bytes unless given"),
        ("dry_run" = Option<bool>, Query, description = "Judge them in the same way and install nothing; `false` unless given"),
        ("allow" = Option<String>, Query, description = "Consent to destroy one thing, as for an upload; may stand more than once"),
    ),
    responses(
        (status = 201, description = "In service again, where it was out of service", body = ModuleUploaded),
        (status = 200, description = "A new version, or unchanged; with dry_run, what it would do", body = ModuleUploaded),
        (status = 400, description = "malformed-request", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "not-found: the module, the version, or its bytes", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "schema-conflict", body = Problem, content_type = "application/problem+json"),
        (status = 421, description = "not-primary: primary is where to go", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "invalid-module; migration-failed; limit-exceeded", body = Problem, content_type = "application/problem+json"),
        (status = 507, description = "memory-exhausted", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn rollback_module(
    State(state): State<AppState>,
    Name(name): Name,
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
                "the bytes of version {version} of {name}: {error}; upload the file: PUT /v1/modules/{name}"
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
