//! Operations that are looked at before they are done: deployments by `dry_run`, and tables that go.

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

    // The server never takes an unknown parameter for a deployment.
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
    assert_eq!(server.consenting(Method::DELETE, "/v1/modules/probe", b"").status, 204);
    assert_eq!(drop(&server).status, 204);
    server.get("/v1/tables/items").problem("not-found", 404);
    drop(&server).problem("not-found", 404);
    let server = server.restart();
    server.get("/v1/tables/items").problem("not-found", 404);
    // The next one of this name begins without rows.
    server.put_module("probe", probe()).ok(201);
    assert_eq!(server.get("/v1/tables/items").ok(200)["rows"], 0);
}

#[test]
fn deployment_that_destroys_is_refused_with_its_plan_until_allowed() {
    let server = Server::start();
    put(&server, "", probe()).ok(201);
    let row = json!({"id": 1, "amount": 10});
    server.call("put", row).ok(200);
    put(&server, "", probe_grown()).ok(200);
    let barriers = |server: &Server| {
        let text = server.get("/metrics").text();
        let line = text.lines().find(|line| line.starts_with("reprise_barriers_total "));
        line.expect("a counter").to_owned()
    };
    let before = barriers(&server);
    for _ in 0..20 {
        let plan = put(&server, "dry_run=true", probe()).ok(200)["plan"].clone();
        assert_eq!(
            plan["procedures"],
            json!([{"procedure": "extra", "action": "drop", "detail": ""}])
        );
        let missing = json!(["drop-column:probe.items.note", "drop-procedure:probe.extra"]);
        assert_eq!(
            plan["missing"], missing,
            "a plan counts a nullable column as if no row had null"
        );
        assert_eq!(
            plan["destroyed"][0],
            json!({"allow": missing[0], "count": 1, "is_exact": false})
        );
        assert_eq!(plan["way_back"]["version"], 2);
    }
    assert_eq!(barriers(&server), before, "a plan holds no partition");

    // The row has null there: the procedure alone goes.
    let refused = put(&server, "", probe()).problem("schema-conflict", 409);
    assert_eq!(refused["plan"]["missing"], json!(["drop-procedure:probe.extra"]));
    assert_eq!(refused["conflicts"][0]["item"], "extra");
    let detail = refused["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("allow=drop-procedure:probe.extra"), "{detail}");
    for query in [
        "allow=all",
        "allow=drop-column:probe.items.*",
        "allow=drop-table:items",
        "allow",
    ] {
        put(&server, query, probe()).problem("malformed-request", 400);
    }
    assert_eq!(server.get("/v1/modules/probe").ok(200)["version"], 2);
    let query = "allow=drop-procedure:probe.extra&allow=drop-table:probe.nothing";
    let done = put(&server, query, probe()).ok(200);
    assert_eq!(
        done["destroyed"],
        json!([{"allow": "drop-procedure:probe.extra", "count": 0, "is_exact": true}])
    );
    let page = server.get("/v1/log?kind=deploy&order=newest&limit=1").ok(200);
    assert_eq!(page["records"][0]["destroyed"], done["destroyed"]);
    let removal = server.send(Method::DELETE, "/v1/modules/probe", &[], Vec::new());
    let refused = removal.problem("schema-conflict", 409);
    let missing = refused["plan"]["missing"].as_array().cloned().unwrap_or_default();
    assert!(missing.contains(&json!("abandon-table:probe.items")), "{refused}");
}
