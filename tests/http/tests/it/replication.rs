//! A server's reports about replication, and its refusals, while no standby is there.

use reprise_test_http::{Options, Server};
use reqwest::Method;
use serde_json::json;

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn server_alone_is_a_primary_without_standbys() {
    let server = Server::start();
    let told = server.get("/v1/replication").ok(200);
    assert_eq!(
        (&told["role"], &told["epoch"], &told["safety"], &told["standbys"]),
        (&json!("primary"), &json!(1), &json!("local-sync"), &json!([]))
    );
    assert_eq!((&told["primary"], &told["ship_address"]), (&json!(null), &json!(null)));
    assert_eq!(told["durable_lsn"], told["committed_lsn"]);
    let promoted = server.send(Method::POST, "/v1/replication/promote", &[], Vec::new());
    promoted.problem_with(("not-standby", 409), "epoch 1");
    let wrong = server.send(Method::POST, "/v1/replication/promote?force=perhaps", &[], Vec::new());
    wrong.problem("malformed-request", 400);
    let step_down = |body: &str| {
        let body = body.as_bytes().to_vec();
        server.send(Method::POST, "/v1/replication/step-down", &[JSON], body)
    };
    for bad in ["", "{}", r#"{"name": ""}"#, r#"{"name": "b", "more": 1}"#] {
        step_down(bad).problem("malformed-request", 400);
    }
    step_down(r#"{"name": "b"}"#).problem("not-found", 404);
    let server = server.restart();
    assert_eq!(server.get("/v1/replication").ok(200)["epoch"], 2);
}

#[test]
fn joining_standby_is_checked_first() {
    let server = Server::start_with(Options {
        tokens: true,
        ..Options::default()
    });
    let join = |token: &str, body: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", &*bearer), JSON];
        server.send(Method::POST, "/v1/replication/join", &headers, body.as_bytes().to_vec())
    };
    for token in ["secret-read", "secret-write"] {
        join(token, r#"{"name": "b"}"#).problem("forbidden", 403);
    }
    for bad in [
        "",
        "{}",
        "[]",
        r#"{"name": 1}"#,
        r#"{"name": ""}"#,
        r#"{"name": "a b"}"#,
        r#"{"name": "b", "more": 1}"#,
    ] {
        join("secret-admin", bad).problem("malformed-request", 400);
    }
    let long = format!(r#"{{"name": "{}"}}"#, "x".repeat(5_000));
    join("secret-admin", &long).problem("too-large", 413);
    join("secret-admin", r#"{"name": "b"}"#).problem_with(("not-found", 404), "--ship-listen");
    let bearer = [("authorization", "Bearer secret-write")];
    let promoted = server.send(Method::POST, "/v1/replication/promote", &bearer, Vec::new());
    promoted.problem("forbidden", 403);
    let headers = [("authorization", "Bearer secret-write"), JSON];
    let body = br#"{"name": "b"}"#.to_vec();
    let stepped = server.send(Method::POST, "/v1/replication/step-down", &headers, body);
    stepped.problem("forbidden", 403);
}

#[test]
fn a_write_names_the_level_that_it_has_and_a_level_is_asked_for_once() {
    let server = Server::with_probe(Options::default());
    let written = server.call("put", json!({"id": 1, "amount": 5}));
    written.ok(200);
    assert_eq!(written.header("reprise-safety"), Some("local-sync"));
    let twice = [("reprise-safety", "1-safe"), ("reprise-safety", "2-safe")];
    let refused = server.call_with("put", json!({"id": 2, "amount": 5}), &twice);
    refused.problem("malformed-request", 400);
    let beyond = [("reprise-safety", "2-safe")];
    let refused = server.call_with("put", json!({"id": 2, "amount": 5}), &beyond);
    refused.problem("standby-unavailable", 503);
    // Nothing is written, so no level is asked for.
    server.call_with("echo", json!({"id": 1}), &beyond).ok(200);
}

#[test]
fn a_primary_is_never_behind_itself() {
    let server = Server::with_probe(Options::default());
    server.call("put", json!({"id": 1, "amount": 5})).ok(200);
    let read = |lag: &str| server.call_with("echo", json!({"id": 1}), &[("reprise-max-lag-ms", lag)]);
    let answer = read("0");
    answer.ok(200);
    assert_eq!(
        (answer.header("reprise-view-lsn"), answer.header("reprise-lag-ms")),
        (None, None)
    );
    read("soon").problem("malformed-request", 400);
    let rows = server.send(
        Method::GET,
        "/v1/tables/items/rows",
        &[("reprise-max-lag-ms", "x")],
        Vec::new(),
    );
    rows.problem("malformed-request", 400);
}
