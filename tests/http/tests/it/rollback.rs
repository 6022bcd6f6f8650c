//! Former versions put back into service: judged like any deployment, and refused where that is not possible.

use reprise_test_http::{Answer, Options, Server, probe, probe_grown, table_module};
use reqwest::Method;
use serde_json::{Value, json};

fn roll_back(server: &Server, module: &str, query: &str) -> Answer {
    let path = format!("/v1/modules/{module}/rollback?{query}");
    server.send(Method::POST, &path, &[], Vec::new())
}

fn remove(server: &Server, module: &str) {
    let path = format!("/v1/modules/{module}");
    assert_eq!(server.consenting(Method::DELETE, &path, b"").status, 204);
}

/// The `roll_back` variant with consent to the data that it destroys.
fn roll_back_consenting(server: &Server, query: &str) -> Answer {
    server.consenting(Method::POST, &format!("/v1/modules/probe/rollback?{query}"), b"")
}

/// A module of one table whose second column has this type of `bytes` bytes. `put(id)` inserts 4294967303 there, or its low bytes, 7.
fn typed(column: &str, bytes: u64) -> Vec<u8> {
    let put = r#"{"name":"put","params":[{"name":"id","type":"i64"}],"returns":"unit","partitioning":{"by":["id"]}}"#;
    let code = format!(
        r#"(func (export "reprise_call_put") (param i32) (result i32)
                (i64.store (i32.const 8) (i64.const 4294967303))
                (call $args_read (i32.const 0))
                (drop (call $insert (i32.const 0) (i64.const {})))
                (i32.const 0))"#,
        (8 + bytes) << 32
    );
    table_module(column, put, &code)
}

#[test]
fn the_former_bytes_become_a_new_version_with_the_rows() {
    let server = Server::with_probe(Options::default());
    roll_back(&server, "probe", "").problem("not-found", 404);
    server.call("put", json!({"id": 1, "amount": 10})).ok(200);
    server.put_module("probe", probe_grown()).ok(200);
    let planned = roll_back(&server, "probe", "dry_run=true").ok(200);
    assert_eq!(planned["rolled_back_to"], 1);
    let step = &planned["plan"]["tables"][0]["steps"][0];
    assert_eq!((&step["action"], &step["item"]), (&json!("drop"), &json!("note")));
    assert_eq!(server.get("/v1/modules/probe").ok(200)["version"], 2);

    roll_back(&server, "probe", "").problem("schema-conflict", 409);
    let first = roll_back_consenting(&server, "");
    let back = first.ok(200);
    let found = [
        &back["version"],
        &back["replaced"],
        &back["rolled_back_to"],
        &back["unchanged"],
    ];
    assert_eq!(found, [&json!(3), &json!(2), &json!(1), &json!(false)]);
    assert!(first.header("reprise-lsn").is_some());
    let rows = server.get("/v1/tables/items/rows").ok(200);
    assert_eq!(rows["rows"], json!([{"id": "1", "amount": "10"}]));
    let versions = server.get("/v1/modules/probe").ok(200)["versions"].clone();
    assert_eq!(versions[0]["hash"], versions[2]["hash"]);
    server.call("put", json!({"id": 2, "amount": 20})).ok(200);
    server.put_module("probe", probe()).ok(200);

    // Back and forth, over a restart; a version may be named.
    let server = server.restart();
    assert_eq!(roll_back_consenting(&server, "").ok(200)["rolled_back_to"], 2);
    let named = roll_back_consenting(&server, "version=1").ok(200);
    assert_eq!((&named["version"], &named["rolled_back_to"]), (&json!(5), &json!(1)));
    let same = roll_back(&server, "probe", "version=5").ok(200);
    assert_eq!((&same["version"], &same["unchanged"]), (&json!(5), &json!(true)));
    assert_eq!(server.get("/v1/tables/items").ok(200)["rows"], 2);

    // A removed module comes back in its last form.
    remove(&server, "probe");
    let again = roll_back(&server, "probe", "").ok(201);
    assert_eq!((&again["version"], &again["replaced"]), (&json!(6), &Value::Null));
    assert_eq!(again["hash"], versions[0]["hash"]);
    server.call("put", json!({"id": 3, "amount": 30})).ok(200);
}

const NARROW: &str = r#""name":"a","type":"i32""#;
/// An equal column with another name and a wider type.
const WIDE: &str = r#""name":"b","was":"a","type":"i64""#;

fn put_typed(server: &Server, id: i64) {
    let row = json!({"id": id}).to_string().into_bytes();
    server.send(Method::POST, "/v1/call/typed/put", &[], row).ok(200);
}

#[test]
fn renamed_and_wider_column_goes_back_over_a_restart_as_the_plan_says() {
    let server = Server::start();
    server.put_module("typed", typed(NARROW, 4)).ok(201);
    put_typed(&server, 1);
    let planned = server.send(Method::PUT, "/v1/modules/typed?dry_run=true", &[], typed(WIDE, 8));
    let way_back = planned.ok(200)["plan"]["way_back"].clone();
    assert_eq!(way_back["is_open"], true);
    assert_eq!(way_back["needs"], json!(["typed.t.b fits i32 in every row"]));
    server.put_module("typed", typed(WIDE, 8)).ok(200);
    let rows = |server: &Server| server.get("/v1/tables/t/rows").ok(200)["rows"].clone();
    assert_eq!(rows(&server), json!([{"id": "1", "b": "7"}]));

    let server = server.restart();
    let planned = roll_back(&server, "typed", "dry_run=true").ok(200);
    assert_eq!(planned["plan"]["conflicts"], json!([]));
    let steps = planned["plan"]["tables"][0]["steps"].as_array().expect("steps").clone();
    let actions: Vec<_> = steps.iter().map(|step| &step["action"]).collect();
    assert_eq!(actions, ["rename", "convert"], "{planned}");
    assert_eq!(roll_back(&server, "typed", "").ok(200)["rolled_back_to"], 1);
    assert_eq!(rows(&server), json!([{"id": "1", "a": 7}]));

    // The log has it: a replay does the same, and the way leads forth again.
    let server = server.restart();
    assert_eq!(rows(&server), json!([{"id": "1", "a": 7}]));
    assert_eq!(roll_back(&server, "typed", "version=2").ok(200)["rolled_back_to"], 2);
    put_typed(&server, 2);
    let planned = roll_back(&server, "typed", "version=1&dry_run=true").ok(200);
    let refused = roll_back(&server, "typed", "version=1").problem("schema-conflict", 409);
    assert_eq!(refused["conflicts"], planned["plan"]["conflicts"]);
    assert_eq!(
        refused["conflicts"][0]["stored"],
        "i64: 1 row beyond i32 there, as the one with id=2"
    );
    assert_eq!(
        rows(&server),
        json!([{"id": "1", "b": "7"}, {"id": "2", "b": "4294967303"}])
    );
}

#[test]
fn impossible_rollback_is_refused_with_the_reason() {
    let server = Server::start();
    roll_back(&server, "typed", "").problem("not-found", 404);
    server.put_module("typed", typed(NARROW, 4)).ok(201);
    server
        .put_module("typed", typed(r#""name":"a","type":"i64""#, 8))
        .ok(200);
    put_typed(&server, 1);
    let planned = roll_back(&server, "typed", "dry_run=true").ok(200);
    let conflicts = planned["plan"]["conflicts"].as_array().expect("conflicts").clone();
    assert_eq!(conflicts.len(), 1, "{planned}");
    assert_eq!(conflicts[0]["item"], "a");
    assert_eq!(
        conflicts[0]["stored"],
        "i64: 1 row beyond i32 there, as the one with id=1"
    );
    let refused = roll_back(&server, "typed", "").problem("schema-conflict", 409);
    assert_eq!(refused["conflicts"], json!(conflicts));
    assert_eq!(server.get("/v1/modules/typed").ok(200)["version"], 2);

    roll_back(&server, "typed", "version=9").problem_with(("not-found", 404), "1 to 2");
    roll_back(&server, "typed", "version=0").problem("not-found", 404);
    for query in [
        "version=x",
        "version=-1",
        "versions=1",
        "dry_run=maybe",
        "version=1&version=2",
    ] {
        roll_back(&server, "typed", query).problem("malformed-request", 400);
    }
    assert_eq!(server.get("/v1/modules/typed/rollback").status, 405);

    // The log has the bytes: what else lies in the directory may go.
    server.consenting(Method::PUT, "/v1/modules/typed", &probe()).ok(200);
    let mut server = server;
    server.kill();
    for name in ["catalog", "code"] {
        let _there_or_not = std::fs::remove_dir_all(server.data_dir().join(name));
    }
    let server = server.restart();
    assert_eq!(roll_back(&server, "typed", "dry_run=true").ok(200)["rolled_back_to"], 2);
}

#[test]
fn bytes_of_five_versions_are_kept_and_an_older_one_is_refused() {
    let server = Server::start();
    for number in 1..=6 {
        let mut wasm = probe();
        wasm.extend([0, 3, 1, b'n', number]); // a custom section
        let answer = server.put_module("probe", wasm);
        assert!(matches!(answer.status, 200 | 201), "{number}");
    }
    let module = server.get("/v1/modules/probe").ok(200);
    let versions = module["versions"].as_array().expect("versions");
    let kept: Vec<_> = versions.iter().map(|version| version["kept"] == true).collect();
    assert_eq!(kept, [false, true, true, true, true, true]);
    assert!(
        versions
            .iter()
            .all(|version| version["wasm_bytes"] == module["wasm_bytes"])
    );
    let part = "the bytes of version 1 of probe: the server keeps the last 5 different versions of each module";
    roll_back(&server, "probe", "version=1").problem_with(("not-found", 404), part);
    assert_eq!(roll_back(&server, "probe", "version=2").ok(200)["rolled_back_to"], 2);
}

#[test]
fn only_an_admin_rolls_back() {
    let server = Server::start_with(Options {
        tokens: true,
        ..Options::default()
    });
    let as_role = |role: &str| {
        let token = format!("Bearer secret-{role}");
        let headers = [("authorization", token.as_str())];
        server.send(Method::POST, "/v1/modules/m/rollback", &headers, Vec::new())
    };
    as_role("read").problem("forbidden", 403);
    as_role("write").problem("forbidden", 403);
    as_role("admin").problem("not-found", 404);
}
