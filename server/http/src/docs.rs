//! The routes, and the OpenAPI document that they make.

#[cfg(test)]
use std::collections::BTreeMap;
use std::{
    collections::HashSet,
    sync::{Arc, LazyLock},
};

use axum::{
    Router,
    extract::{MatchedPath, Request},
    http::{HeaderValue, Method, header},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use reprise_api::{ControlEvent, FieldInfo, PROBLEM_MEDIA_TYPE, Phase, Problem, Status};
#[cfg(test)]
use utoipa::openapi::Response as UtoipaResponse;
use utoipa::{
    Modify, OpenApi,
    openapi::{
        ContentBuilder, Ref, RefOr, Required, ResponseBuilder,
        path::{Operation, Parameter, ParameterIn},
        schema::{Schema, SchemaType, Type},
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    assets, audit, backups, batch, calls, checkpoints, events, freshness, front, idempotency,
    list_page::json_answer,
    log, metrics, module_openapi, modules, problems, promise, replication,
    roles::needed_role,
    rollback,
    rows::{groups, page},
    running_calls,
    state::AppState,
    status, tables, unavailable,
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Reprise",
        description = "An in-memory transactional database with WebAssembly procedures: upload a module, call its procedures, read tables \
         and \
                       log. \
                       64-bit integers in answers are strings, or numbers if you send the header `Reprise-Integers: number`. In requests you \
                       may send a string or an exact integer. \
                       Every error is a problem (RFC 9457). Its `type` is `/problems/` and a slug, and is the path of a page that explains it. \
                       If a path does not take a method, the server answers 405 and lists the methods in `Allow`.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    servers((url = ".", description = "This server")),
    tags(
        (name = "Modules", description = "Procedures and tables, as wasm"),
        (name = "Calls", description = "Transactions"),
        (name = "Tables", description = "Stored tables and their rows"),
        (name = "Log", description = "Log records, and log lines of procedures"),
        (name = "Backups", description = "Complete copies of the database"),
        (name = "Replication", description = "Primary, standbys, lag and freshness"),
        (name = "Server", description = "State, events, metrics"),
    ),
    components(schemas(Problem, ControlEvent, Status, Phase, FieldInfo, log::LogOrder, log::LineLevel)),
    modifiers(&BearerToken),
    security((), ("token" = [])),
)]
struct ApiDoc;

struct BearerToken;

impl Modify for BearerToken {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some(
                "A token of the server's configuration. A server without tokens needs none.",
            ))
            .build();
        let components = openapi.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

fn described() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(ApiDoc::openapi())
        .routes(routes!(modules::list_modules))
        .routes(routes!(
            modules::put_module,
            modules::show_module,
            modules::delete_module
        ))
        .routes(routes!(module_openapi::module_openapi))
        .routes(routes!(rollback::rollback_module))
        .routes(routes!(calls::call))
        .routes(routes!(batch::batch))
        .routes(routes!(idempotency::show_outcome))
        .routes(routes!(running_calls::list_calls))
        .routes(routes!(running_calls::cancel_call))
        .routes(routes!(tables::list_tables))
        .routes(routes!(tables::show_table, tables::drop_table))
        .routes(routes!(page::list_rows))
        .routes(routes!(groups::list_groups))
        .routes(routes!(log::list_log))
        .routes(routes!(log::show_record))
        .routes(routes!(log::procedure_log))
        .routes(routes!(audit::list_audit))
        .routes(routes!(checkpoints::list_checkpoints, checkpoints::take_checkpoint))
        .routes(routes!(checkpoints::show_checkpoint))
        .routes(routes!(backups::list_backups, backups::create_backup))
        .routes(routes!(backups::show_backup, backups::delete_backup))
        .routes(routes!(backups::download_file))
        .routes(routes!(replication::show_replication))
        .routes(routes!(freshness::freshness))
        .routes(routes!(replication::forget_standby))
        .routes(routes!(replication::promote))
        .routes(routes!(replication::step_down))
        .routes(routes!(promise::promise))
        .routes(routes!(replication::join))
        .routes(routes!(status::status))
        .routes(routes!(events::events))
        .routes(routes!(status::healthz))
        .routes(routes!(status::readyz))
        .routes(routes!(metrics::metrics))
        .routes(routes!(problems::problem_page))
}

/// The API's description, as the handlers give it.
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut openapi = described().into_openapi();
    for (path, item) in &mut openapi.paths.paths {
        for (method, operation) in [
            (Method::GET, &mut item.get),
            (Method::PUT, &mut item.put),
            (Method::POST, &mut item.post),
            (Method::DELETE, &mut item.delete),
        ] {
            let Some(operation) = operation else {
                continue;
            };
            describe_refusals(&method, path, operation);
            operation.parameters.iter_mut().flatten().for_each(never_null);
            // No call in a batch, and no argument of a call, is none and no mistake.
            if matches!(&path[..], "/v1/call/{module}/{procedure}" | "/v1/batch")
                && let Some(RefOr::T(body)) = &mut operation.request_body
            {
                body.required = Some(Required::False);
            }
        }
    }
    openapi
}

/// A parameter that may be left out is not null: there is no such word in a header or a query.
fn never_null(parameter: &mut RefOr<Parameter>) {
    let RefOr::T(Parameter {
        schema: Some(RefOr::T(Schema::Object(schema))),
        ..
    }) = parameter
    else {
        return;
    };
    if let SchemaType::Array(types) = &mut schema.schema_type {
        types.retain(|ty| *ty != Type::Null);
        if let [only] = &types[..] {
            schema.schema_type = SchemaType::Type(only.clone());
        }
    }
}

/// Adds the refusals of any operation to the documented ones of this operation.
fn describe_refusals(method: &Method, path: &str, operation: &mut Operation) {
    let (has_body, changes) = (operation.request_body.is_some(), !method.is_safe());
    let is_open = needed_role(method, path).is_none();
    let unavailable = unavailable::slugs(method, path);
    let all = [
        (true, 400, "malformed-request"),
        (!is_open, 401, "unauthorized"),
        (
            true,
            403,
            "forbidden: the token's role or grants do not allow it, or the request comes from a page of another site",
        ),
        (path.contains('{') && *method != Method::PUT, 404, "not-found"),
        (has_body, 408, "request-timeout"),
        (has_body, 413, "too-large"),
        (
            changes,
            415,
            "unsupported-media-type: the server does not read this Content-Type or Content-Encoding",
        ),
        (true, 500, "internal-error"),
        (
            changes,
            501,
            "malformed-request: the body has a transfer coding other than chunked",
        ),
        (true, unavailable::STATUS, unavailable.as_str()),
    ];
    for (_, status, description) in all.into_iter().filter(|(applies, ..)| *applies) {
        let schema = Ref::from_schema_name("Problem");
        let content = ContentBuilder::new().schema(Some(schema)).build();
        let response = ResponseBuilder::new().description(description);
        let response = response.content(PROBLEM_MEDIA_TYPE, content).build();
        let responses = &mut operation.responses.responses;
        responses.entry(status.to_string()).or_insert_with(|| response.into());
    }
}

/// Every path that the server knows.
pub fn routes(state: AppState) -> Router {
    let (router, _) = described().split_for_parts();
    let operations = Arc::new(without_query());
    router
        .route_layer(from_fn(move |path: MatchedPath, request: Request, next: Next| {
            refuse_query(operations.clone(), path, request, next)
        }))
        .route("/openapi.json", get(openapi_json))
        .route("/problems/", get(problems::problem_list))
        .route("/problems", get(problems::problem_list))
        .route("/", get(assets::to_console))
        .route("/console", get(assets::to_console))
        .route("/console/", get(assets::console))
        .route("/console/{*path}", get(assets::console))
        .route("/docs", get(assets::to_docs))
        .route("/docs/", get(assets::docs))
        .route("/docs/guide", get(assets::to_guide))
        .route("/docs/{*path}", get(assets::docs))
        .fallback(front::unknown_path)
        .method_not_allowed_fallback(front::unknown_method)
        .with_state(state)
}

/// The text of the description, made once, because it needs no token.
static OPENAPI: LazyLock<Bytes> = LazyLock::new(|| openapi().to_json().expect("a description serializes").into());

async fn openapi_json() -> Response {
    let mut answer = json_answer(OPENAPI.clone());
    let no_cache = HeaderValue::from_static("no-cache");
    answer.headers_mut().insert(header::CACHE_CONTROL, no_cache);
    answer
}

/// Operations of the API that have no parameters in their query, by method and path.
fn without_query() -> HashSet<(Method, String)> {
    let is_query =
        |parameter: &RefOr<Parameter>| matches!(parameter, RefOr::T(own) if own.parameter_in == ParameterIn::Query);
    let mut found = HashSet::new();
    for (path, item) in openapi().paths.paths {
        for (method, operation) in [
            (Method::GET, item.get),
            (Method::PUT, item.put),
            (Method::POST, item.post),
            (Method::DELETE, item.delete),
        ] {
            if let Some(operation) = operation
                && path.starts_with("/v1/")
                && !operation.parameters.iter().flatten().any(is_query)
            {
                found.insert((method, path.clone()));
            }
        }
    }
    found
}

/// Refuses a query if the operation has no parameters there.
async fn refuse_query(
    operations: Arc<HashSet<(Method, String)>>,
    path: MatchedPath,
    request: Request,
    next: Next,
) -> Response {
    let method = match *request.method() {
        Method::HEAD => Method::GET,
        ref method => method.clone(),
    };
    if request.uri().query().is_some()
        && operations.contains(&(method, path.as_str().to_owned()))
        && let Err(refusal) = front::check_no_query(request.uri())
    {
        return refusal.into_response();
    }
    next.run(request).await
}

/// The statuses that the description has for an operation.
#[cfg(test)]
pub fn statuses(method: &Method, path: &str) -> Vec<u16> {
    let statuses = responses(method, path).into_keys();
    statuses.filter_map(|status| status.parse().ok()).collect()
}

/// The description's text of a status of an operation.
#[cfg(test)]
pub fn description(method: &Method, path: &str, status: u16) -> String {
    match responses(method, path).remove(&status.to_string()) {
        Some(RefOr::T(response)) => response.description,
        _ => String::new(),
    }
}

#[cfg(test)]
fn responses(method: &Method, path: &str) -> BTreeMap<String, RefOr<UtoipaResponse>> {
    let Some(item) = openapi().paths.paths.remove(path) else {
        return BTreeMap::new();
    };
    let operation = match *method {
        Method::GET => item.get,
        Method::PUT => item.put,
        Method::POST => item.post,
        _ => item.delete,
    };
    operation
        .map(|operation| operation.responses.responses)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use reprise_api::ProblemKind;

    use super::*;

    /// `BLESS=1` rewrites the golden file.
    #[test]
    fn the_golden_description_is_what_the_handlers_say() {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../sdk/api/openapi.json");
        let actual = openapi().to_pretty_json().expect("serializes") + "\n";
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &actual).expect("write golden file");
        }
        let golden = std::fs::read_to_string(&path).expect("read golden file");
        assert!(
            golden == actual,
            "sdk/api/openapi.json is out of date; run this test with BLESS=1"
        );
    }

    #[test]
    fn every_status_that_code_can_give_is_described() {
        let items = openapi().paths.paths.into_values();
        let operations = items
            .flat_map(|item| [item.get, item.put, item.post, item.delete])
            .flatten();
        let described: HashSet<String> = operations
            .flat_map(|operation| operation.responses.responses.into_keys())
            .collect();
        // That of a method which is no operation.
        let kinds = ProblemKind::ALL
            .into_iter()
            .filter(|kind| *kind != ProblemKind::MethodNotAllowed);
        for kind in kinds {
            assert!(described.contains(&kind.status().to_string()), "{}", kind.slug());
        }
        let reader: HashSet<u16> = statuses(&Method::GET, "/v1/tables").into_iter().collect();
        assert_eq!(reader, [200, 400, 401, 403, 500, 503].into());
    }

    #[test]
    fn every_operation_is_described() {
        let openapi = openapi();
        let paths: Vec<_> = openapi.paths.paths.keys().map(String::as_str).collect();
        assert!(paths.contains(&"/v1/call/{module}/{procedure}"));
        assert!(paths.contains(&"/v1/replication/promote"));
        let text = openapi.to_json().expect("serializes");
        assert!(text.contains("\"openapi\":\"3.1"));
    }

    /// A reader of the document follows every reference: one that leads nowhere makes it useless to generators.
    #[test]
    fn every_schema_that_is_named_is_there() {
        let text = openapi().to_json().expect("an OpenAPI document");
        let document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let known = document["components"]["schemas"].as_object().expect("schemas");
        for named in text.split("#/components/schemas/").skip(1) {
            let name = named.split('"').next().unwrap_or_default();
            assert!(known.contains_key(name), "{name} is named and not described");
        }
    }
}
