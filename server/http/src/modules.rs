//! `/v1/modules`: what is installed.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use reprise_api::{
    LogChoice, ModuleDetail, ModuleInstalled, ModuleList, ModuleSummary, ModuleVersion, Problem, U64, headers,
};
use reprise_base::limits::MODULE_BYTES_MAX;
use reprise_catalog::CatalogModule;
use reprise_router::{Deployed, Deployment, Module, Router};

use crate::{
    body,
    codec::{hex, rfc3339},
    front::Name,
    refusal::Refusal,
    schema::procedure_info,
    places::Operation,
    state::{AppState, Parts},
    submit::no_module,
};

/// Installs a module
///
/// The body is the wasm binary. It is validated, compiled and put into service in one step on all partitions, between two
/// transactions. The same bytes again change nothing. Its stored tables become what it declares,
/// with their rows, or each conflict is told with its way on.
#[utoipa::path(
    put,
    path = "/v1/modules/{module}",
    tag = "Modules",
    params(("module" = String, Path, description = "Name: a to z, 0 to 9 and _, beginning with a letter, at most 63")),
    request_body(content = Vec<u8>, content_type = "application/wasm", description = "The wasm binary, at most 16 MiB"),
    responses(
        (status = 201, description = "A new module", body = ModuleInstalled),
        (status = 200, description = "A new version, or unchanged", body = ModuleInstalled),
        (status = 400, description = "malformed-request", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "schema-conflict", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "too-large", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "invalid-module", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "log-unavailable; recovering", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn put_module(
    State(state): State<AppState>,
    Name(name): Name,
    request: Request,
) -> Result<Response, Refusal> {
    let (head, body) = request.into_parts();
    let wasm = body::read_all(
        &head.headers,
        body,
        "a module",
        MODULE_BYTES_MAX,
        state.limits.body_wait,
    )
    .await?;
    let deployment = state
        .blocking(Operation::Deploy, move |parts| deploy(parts, &name, &wasm))
        .await??;
    let module = &deployment.module;
    let installed = ModuleInstalled {
        module: module.name.clone(),
        version: module.version,
        hash: hex(&module.hash),
        procedures: procedure_names(module),
        tables: table_names(module),
        replaced: deployment.replaced,
        unchanged: deployment.unchanged,
        lsn: U64(deployment.lsn.0),
    };
    let status = if deployment.created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    let mut response = (status, Json(installed)).into_response();
    let own = response.headers_mut();
    own.insert(
        HeaderName::from_static(headers::TXN_ID),
        module.installed_by.0.into(),
    );
    if !deployment.unchanged {
        own.insert(
            HeaderName::from_static(headers::LSN),
            deployment.lsn.0.into(),
        );
    }
    if deployment.created {
        let path = format!("/v1/modules/{}", module.name);
        let location = HeaderValue::try_from(path).expect("a module's name is ASCII");
        own.insert(header::LOCATION, location);
    }
    Ok(response)
}

fn deploy(parts: &Parts, name: &str, wasm: &[u8]) -> Result<Deployment, Refusal> {
    let deployment = parts.router.deploy(name, wasm)?;
    let module = &deployment.module;
    if !deployment.unchanged {
        let entry = CatalogModule {
            module_id: module.id.0,
            name: module.name.clone(),
            version: module.version,
            hash: module.hash,
            txn_id: module.installed_by,
            wasm: wasm.to_vec(),
        };
        // The log has the module already; the catalog is rebuilt from it when it falls behind.
        if let Err(error) = parts.catalog.record(&entry) {
            tracing::warn!(%error, module = name, "record module in catalog");
        }
    }
    Ok(deployment)
}

/// Lists the modules in service
#[utoipa::path(
    get,
    path = "/v1/modules",
    tag = "Modules",
    responses((status = 200, description = "By name", body = ModuleList))
)]
pub async fn list_modules(State(state): State<AppState>) -> Json<ModuleList> {
    let deployed = state.router.deployed();
    let modules = deployed
        .current
        .values()
        .map(|module| summary(module))
        .collect();
    Json(ModuleList { modules })
}

fn summary(module: &Module) -> ModuleSummary {
    ModuleSummary {
        module: module.name.clone(),
        version: module.version,
        hash: hex(&module.hash),
        wasm_bytes: module.wasm_bytes,
        installed_at: rfc3339(module.installed_by.time_us()),
        procedures: procedure_names(module),
        tables: table_names(module),
    }
}

/// Describes a module
#[utoipa::path(
    get,
    path = "/v1/modules/{module}",
    tag = "Modules",
    params(("module" = String, Path)),
    responses(
        (status = 200, description = "Its versions, procedures and tables", body = ModuleDetail),
        (status = 404, description = "not-found", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn show_module(
    State(state): State<AppState>,
    Name(name): Name,
) -> Result<Json<ModuleDetail>, Refusal> {
    let deployed = state.router.deployed();
    let module = deployed
        .current
        .get(&name)
        .ok_or_else(|| no_module(&deployed, &name))?;
    Ok(Json(detail(&deployed, module, &state.router)))
}

fn detail(deployed: &Deployed, module: &Arc<Module>, router: &Router) -> ModuleDetail {
    let versions = deployed
        .versions
        .iter()
        .filter(|version| version.name == module.name);
    let versions = versions.map(|version| ModuleVersion {
        version: version.version,
        hash: hex(&version.hash),
        wasm_bytes: version.wasm_bytes,
        installed_at: rfc3339(version.installed_by.time_us()),
        txn_id: U64(version.installed_by.0),
        in_service: version.id == module.id,
    });
    let procedures = module.schema.procedures.iter().enumerate();
    let procedures = procedures.map(|(at, procedure)| {
        let (kind, reason) = router.explain_log(module, at as u16);
        let log = LogChoice {
            kind: kind.to_owned(),
            declared: procedure.log.name().map(str::to_owned),
            reason,
        };
        procedure_info(procedure, log)
    });
    ModuleDetail {
        module: module.name.clone(),
        version: module.version,
        hash: hex(&module.hash),
        wasm_bytes: module.wasm_bytes,
        installed_at: rfc3339(module.installed_by.time_us()),
        versions: versions.collect(),
        procedures: procedures.collect(),
        tables: table_names(module),
    }
}

fn procedure_names(module: &Module) -> Vec<String> {
    module
        .schema
        .procedures
        .iter()
        .map(|procedure| procedure.name.clone())
        .collect()
}

fn table_names(module: &Module) -> Vec<String> {
    module
        .schema
        .tables
        .iter()
        .map(|table| match table.owner.is_empty() {
            true => format!("{}.{}", module.name, table.name),
            false => table.full_name(),
        })
        .collect()
}

/// Takes a module out of service
///
/// Its tables stay, and so do the versions that the log names: they still replay.
#[utoipa::path(
    delete,
    path = "/v1/modules/{module}",
    tag = "Modules",
    params(("module" = String, Path)),
    responses(
        (status = 204, description = "Out of service"),
        (status = 404, description = "not-found", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "log-unavailable; recovering", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn delete_module(
    State(state): State<AppState>,
    Name(name): Name,
) -> Result<Response, Refusal> {
    let lsn = state
        .blocking(Operation::Other, move |parts| -> Result<_, Refusal> {
            let lsn = parts.router.remove(&name)?;
            if let Err(error) = parts.catalog.remove(&name) {
                tracing::warn!(%error, module = name, "remove module from catalog");
            }
            Ok(lsn)
        })
        .await??;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
        .headers_mut()
        .insert(HeaderName::from_static(headers::LSN), lsn.0.into());
    Ok(response)
}
