//! `/v1/modules`: the installed modules.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use reprise_abi::{ModuleSchema, TableSchema, schema::NAME_BYTES_MAX};
use reprise_api::{
    LogChoice, LogCosts, MeasuredCalls, ModuleDetail, ModuleInstalled, ModuleList, ModulePlanned, ModuleSummary,
    ModuleUploaded, ModuleVersion, Problem, RetiringTable, U64, headers,
};
use reprise_base::limits::MODULE_BYTES_MAX;
use reprise_catalog::CatalogEntry;
use reprise_codec::{hex, rfc3339};
use reprise_router::{Consent, Deployed, Deployment, MeasuredCosts, Module, ProcedureSums, Router};

use crate::{
    body,
    control::ControlOp,
    front::{Params, PathName},
    list_page::{self, ListParams, bad_cursor, json_answer},
    permits::Operation,
    plan::{DeployQuery, destroyed, plan_info},
    principal::Principal,
    refusal::Refusal,
    schema::{procedure_calls, procedure_info},
    state::{AppState, Parts},
    target::no_module,
};

/// Installs a module
///
/// The body is the wasm binary. The server validates and compiles it, and puts it into service on all partitions in one step, between
/// two transactions. If the bytes are those in service, nothing changes. The server converts the stored tables to the declared ones
/// and keeps their rows. If it can't, it refuses, and each conflict says how to continue.
///
/// The server refuses a deployment that would delete stored values, drop a procedure, or leave a table with rows without an owner.
/// The answer has the plan. To allow it, name exactly that with `allow`. A dry run blocks no partition, copies no row and stops no
/// call.
#[utoipa::path(
    put,
    path = "/v1/modules/{module}",
    tag = "Modules",
    params(
        ("module" = String, Path, description = "Name of the module: at most 63 of a to z, 0 to 9 and _, beginning with a letter"),
        ("dry_run" = Option<bool>, Query, description = "`true`: check the module in the same way, and install nothing. Default: `false`"),
        ("allow" = Option<String>, Query, description = "Consent to destroy one thing: `drop-column:MODULE.TABLE.COLUMN`, `drop-procedure:MODULE.PROCEDURE`, `abandon-table:MODULE.TABLE` or `drop-table:MODULE.TABLE`. You may give several. The server ignores one that is not needed"),
    ),
    request_body(content = Vec<u8>, content_type = "application/wasm", description = "The wasm binary, at most 16 MiB"),
    responses(
        (status = 201, description = "A new module", body = ModuleInstalled),
        (status = 200, description = "A new version, or unchanged; with dry_run, what the deployment would do", body = ModuleUploaded),
        (status = 409, description = "schema-conflict", body = Problem, content_type = "application/problem+json"),
        (status = 421, description = "not-primary: send the request to `primary`", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "invalid-module; migration-failed; limit-exceeded", body = Problem, content_type = "application/problem+json"),
        (status = 507, description = "memory-exhausted", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn put_module(
    State(state): State<AppState>,
    PathName(name): PathName,
    query: DeployQuery,
    principal: Principal,
    request: Request,
) -> Result<Response, Refusal> {
    let (head, body) = request.into_parts();
    let bounds = body::Bounds {
        what: "a module",
        bytes_max: MODULE_BYTES_MAX,
        wait_max: state.limits.body_wait,
    };
    let wasm = body::read_all(&state, &head, body, bounds).await?;
    if query.dry_run {
        let planned = state
            .blocking(Operation::Deploy, move |parts| {
                plan(parts, &name, &wasm.bytes, &query.allow)
            })
            .await??;
        return Ok(Json(planned).into_response());
    }
    let op = ControlOp::DeployModule(name.clone());
    let deployment = state
        .control(op, principal, move |parts| {
            deploy(parts, &name, &wasm.bytes, &query.allow)
        })
        .await?;
    Ok(installed(&deployment, None))
}

/// The answer that a deployment gets.
pub fn installed(deployment: &Deployment, rolled_back_to: Option<u32>) -> Response {
    let module = &deployment.module;
    let installed = ModuleInstalled {
        module: module.name.clone(),
        version: module.version,
        hash: hex(&module.hash),
        procedures: procedure_names(&module.schema),
        tables: table_names(&module.name, &module.schema),
        replaced: deployment.replaced,
        unchanged: deployment.unchanged,
        rolled_back_to,
        destroyed: deployment.destroyed.iter().map(destroyed).collect(),
        lsn: U64(deployment.lsn.0),
    };
    let status = if deployment.created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    let mut response = (status, Json(installed)).into_response();
    let own = response.headers_mut();
    own.insert(HeaderName::from_static(headers::TXN_ID), module.installed_by.0.into());
    if !deployment.unchanged {
        own.insert(HeaderName::from_static(headers::LSN), deployment.lsn.0.into());
    }
    if deployment.created {
        let path = format!("/v1/modules/{}", module.name);
        let location = HeaderValue::try_from(path).expect("a module's name is ASCII");
        own.insert(header::LOCATION, location);
    }
    response
}

/// Returns the plan of a deployment.
pub fn plan(parts: &Parts, name: &str, wasm: &[u8], given: &[Consent]) -> Result<ModulePlanned, Refusal> {
    let planned = parts.router.plan_deploy(name, wasm)?;
    let migrates = planned.summary.migrates;
    let seen = planned.schema.retiring.iter().filter(|_| migrates);
    let seen = seen.map(|table| retiring(name, table)).collect();
    Ok(ModulePlanned {
        procedures: procedure_names(&planned.schema),
        tables: table_names(name, &planned.schema),
        plan: plan_info(&planned.summary, seen, given),
        rolled_back_to: None,
    })
}

fn retiring(module: &str, table: &TableSchema) -> RetiringTable {
    RetiringTable {
        table: table_name(module, table),
        columns: table.columns.iter().map(|column| column.name.clone()).collect(),
    }
}

/// Puts a module into service, and into the catalog if there is one.
pub fn deploy(parts: &Parts, name: &str, wasm: &[u8], given: &[Consent]) -> Result<Deployment, Refusal> {
    let deployment = parts.router.deploy_with(name, wasm, given)?;
    let module = &deployment.module;
    if !deployment.unchanged {
        // The log has the module already. The next start fills a catalog that lacks it.
        if let Some(catalog) = &parts.catalog
            && let Err(error) = catalog.record(&CatalogEntry::of(module))
        {
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
    params(ListParams),
    responses(
        (status = 200, description = "By name", body = ModuleList),
    )
)]
pub async fn list_modules(
    State(state): State<AppState>,
    Params(params): Params<ListParams>,
) -> Result<Response, Refusal> {
    let limit = params.limit()?;
    let first = params.cursor.unwrap_or_default();
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if first.len() > NAME_BYTES_MAX || !first.bytes().all(is_name) {
        return Err(bad_cursor());
    }
    let deployed = state.router.deployed();
    let modules = deployed.current.range(first..).map(|(name, _)| name);
    let text = list_page::page("modules", limit, modules, |name| summary(&deployed.current[name]));
    Ok(json_answer(text))
}

fn summary(module: &Module) -> ModuleSummary {
    ModuleSummary {
        module: module.name.clone(),
        version: module.version,
        hash: hex(&module.hash),
        wasm_bytes: module.wasm_bytes,
        installed_at: rfc3339(module.installed_by.time_us()),
        procedures: procedure_names(&module.schema),
        tables: table_names(&module.name, &module.schema),
    }
}

/// Describes a module
#[utoipa::path(
    get,
    path = "/v1/modules/{module}",
    tag = "Modules",
    params(("module" = String, Path)),
    responses(
        (status = 200, description = "The module's versions, procedures and tables", body = ModuleDetail),
    )
)]
pub async fn show_module(
    State(state): State<AppState>,
    PathName(name): PathName,
) -> Result<Json<ModuleDetail>, Refusal> {
    let deployed = state.router.deployed();
    let module = deployed.current.get(&name).ok_or_else(|| no_module(&deployed, &name))?;
    Ok(Json(detail(&deployed, module, &state.router)))
}

fn detail(deployed: &Deployed, module: &Arc<Module>, router: &Router) -> ModuleDetail {
    let versions = deployed.versions.iter().filter(|version| version.name == module.name);
    let versions = versions.map(|version| ModuleVersion {
        version: version.version,
        hash: hex(&version.hash),
        wasm_bytes: version.wasm_bytes,
        installed_at: rfc3339(version.installed_by.time_us()),
        txn_id: U64(version.installed_by.0),
        in_service: version.id == module.id,
        kept: deployed.keeps_bytes_of(version),
    });
    let sums = router.procedures().sums();
    let procedures = module.schema.procedures.iter().enumerate();
    let procedures = procedures.map(|(at, procedure)| {
        let (kind, reason) = router.explain_log(module, at as u16);
        let measured = router.log_costs(module, at as u16);
        let log = LogChoice {
            kind: kind.to_owned(),
            declared: procedure.log.name().map(str::to_owned),
            reason,
            costs: measured.and_then(|measured| log_costs(&measured)),
            measured_calls: measured.map(|MeasuredCosts { measured, window, .. }| MeasuredCalls { measured, window }),
        };
        let own = |sums: &&ProcedureSums| sums.module == module.name && sums.procedure == procedure.name;
        let calls = sums.iter().find(own).map(|own| procedure_calls(&own.sums));
        procedure_info(procedure, log, calls.unwrap_or_default())
    });
    ModuleDetail {
        module: module.name.clone(),
        version: module.version,
        hash: hex(&module.hash),
        wasm_bytes: module.wasm_bytes,
        installed_at: rfc3339(module.installed_by.time_us()),
        versions: versions.collect(),
        procedures: procedures.collect(),
        tables: table_names(&module.name, &module.schema),
        migrations: deployed
            .migrations
            .get(&module.name)
            .into_iter()
            .flatten()
            .cloned()
            .collect(),
    }
}

fn log_costs(measured: &MeasuredCosts) -> Option<LogCosts> {
    let costs = measured.costs?;
    let rounded = |value: f64| (value * 1e3).round() / 1e3;
    let us = |ns: f64| rounded(ns / 1e3);
    Some(LogCosts {
        calls: costs.calls,
        run_us: us(costs.run_ns),
        rows: rounded(costs.rows),
        command_bytes: rounded(costs.command_bytes()),
        changes_bytes: rounded(costs.changed_bytes()),
        make_us: us(costs.make_ns),
        redo_us: us(costs.redo_ns),
        byte_ns: rounded(costs.byte_ns),
        command_us: us(costs.command_ns()),
        changes_us: us(costs.changes_ns()),
        better: measured.better_name().to_owned(),
    })
}

fn procedure_names(schema: &ModuleSchema) -> Vec<String> {
    schema
        .procedures
        .iter()
        .map(|procedure| procedure.name.clone())
        .collect()
}

fn table_names(module: &str, schema: &ModuleSchema) -> Vec<String> {
    schema.tables.iter().map(|table| table_name(module, table)).collect()
}

fn table_name(module: &str, table: &TableSchema) -> String {
    match table.owner.is_empty() {
        true => format!("{module}.{}", table.name),
        false => table.full_name(),
    }
}

/// Removes a module from service
///
/// Keeps the module's tables, and the versions that the log names, so that they still replay. The removal drops the module's
/// procedures and may leave its tables with rows without an owner. Both need consent.
#[utoipa::path(
    delete,
    path = "/v1/modules/{module}",
    tag = "Modules",
    params(
        ("module" = String, Path),
        ("allow" = Option<String>, Query, description = "Consent to destroy one thing: `drop-procedure:MODULE.PROCEDURE` or `abandon-table:MODULE.TABLE`. You may give several"),
    ),
    responses(
        (status = 204, description = "Out of service"),
        (status = 409, description = "schema-conflict", body = Problem, content_type = "application/problem+json"),
        (status = 421, description = "not-primary: send the request to `primary`", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn delete_module(
    State(state): State<AppState>,
    PathName(name): PathName,
    query: DeployQuery,
    principal: Principal,
) -> Result<Response, Refusal> {
    let lsn = state
        .control(ControlOp::RemoveModule(name.clone()), principal, move |parts| {
            let lsn = parts.router.remove(&name, &query.allow)?.lsn;
            if let Some(catalog) = &parts.catalog
                && let Err(error) = catalog.remove(&name)
            {
                tracing::warn!(%error, module = name, "remove module from catalog");
            }
            Ok(lsn)
        })
        .await?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
        .headers_mut()
        .insert(HeaderName::from_static(headers::LSN), lsn.0.into());
    Ok(response)
}
