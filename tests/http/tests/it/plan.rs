//! What is looked at before it is done: deployments by `dry_run`, and tables that go.

use reprise_test_http::{Answer, Options, Server, probe, probe_changed, probe_grown};
use reqwest::Method;
use serde_json::json;

fn put(server: &Server, query: &str, wasm: Vec<u8>) -> Answer {
    let path = format!("/v1/modules/probe?{query}");
    server.send(Method::PUT, &path, &[("content-type", "application/wasm")], wasm)
}

#[test]
fn a_dry_run_judges_and_installs_nothing() {
    let server = Server::start();
    let planned = put(&server, "dry_run=true", probe()).ok(200);
    assert_eq!(planned["plan"]["tables"][0]["table"], "probe.items");
    assert_eq!(planned["plan"]["tables"][0]["steps"][0]["action"], "create");
    server.get("/v1/modules/probe").problem("not-found", 404);
    put(&server, "dry_run=false", probe()).ok(201);
    server.call("put", json!({"id": 1, "amount": 10})).ok(200);

    let refused = put(&server, "dry_run=true", probe_changed()).ok(200);
    let conflict = &refused["plan"]["conflicts"][0];
    assert_eq!(conflict["item"], "amount");
    assert!(
        conflict["way_on"].as_str().is_some_and(|way_on| !way_on.is_empty()),
        "{conflict}"
    );

    let grown = put(&server, "dry_run=true", probe_grown()).ok(200);
    assert_eq!(grown["plan"]["conflicts"], json!([]));
    assert_eq!(grown["plan"]["tables"][0]["rows"], 1);

    // What is not understood is not taken for a deployment.
    for query in ["dry_run=maybe", "dryrun=true", "dry_run=true&force=true"] {
        put(&server, query, probe_grown()).problem("malformed-request", 400);
    }
    put(&server, "dry_run=true", b"no module".to_vec()).problem("invalid-module", 422);
    assert_eq!(server.get("/v1/modules/probe").ok(200)["version"], 1);
}

#[test]
fn a_table_goes_once_no_module_in_service_declares_it() {
    let server = Server::with_probe(Options::default());
    server.call("put", json!({"id": 1, "amount": 10})).ok(200);
    let drop = |server: &Server| server.send(Method::DELETE, "/v1/tables/items", &[], Vec::new());
    drop(&server).problem("schema-conflict", 409);
    assert_eq!(server.get("/v1/tables/items").ok(200)["rows"], 1);
    assert_eq!(
        server.send(Method::DELETE, "/v1/modules/probe", &[], Vec::new()).status,
        204
    );
    assert_eq!(drop(&server).status, 204);
    server.get("/v1/tables/items").problem("not-found", 404);
    drop(&server).problem("not-found", 404);
    let server = server.restart();
    server.get("/v1/tables/items").problem("not-found", 404);
    // The next one of this name begins without rows.
    server.put_module("probe", probe()).ok(201);
    assert_eq!(server.get("/v1/tables/items").ok(200)["rows"], 0);
}
