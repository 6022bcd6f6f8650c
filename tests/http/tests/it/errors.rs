//! Every error of the contract's table, over real HTTP, but for `not-primary`, which `replication.rs` has.

use reprise_test_http::{Answer, Options, Server, probe, probe_changed, probe_with, raw};
use reqwest::Method;
use serde_json::json;

fn with_probe() -> Server {
    Server::with_probe(Options::default())
}

#[test]
fn invalid_arguments_name_each_mistake() {
    let server = with_probe();
    let problem = server
        .call("put", json!({"id": "x", "amuont": 1}))
        .problem("invalid-arguments", 400);
    let pointers: Vec<_> = problem["errors"]
        .as_array()
        .expect("errors")
        .iter()
        .map(|e| &e["pointer"])
        .collect();
    assert_eq!(pointers, ["/amuont", "/id", "/amount"]);
    server.call("put", json!([1])).problem("invalid-arguments", 400);
    assert_eq!(server.get("/v1/tables/items").ok(200)["rows"], 0);
}

#[test]
fn malformed_requests() {
    let server = with_probe();
    let send = |body: &[u8]| server.send(Method::POST, "/v1/call/probe/echo", &[], body.to_vec());
    send(b"{\"id\":").problem("malformed-request", 400);
    send(b"{\"id\":1}}").problem("malformed-request", 400);
    send(b"{\"id\":\"\xff\"}").problem("malformed-request", 400);
    let key = "k".repeat(300);
    for (name, value) in [
        ("idempotency-key", key.as_str()),
        ("reprise-min-lsn", "soon"),
        ("idempotency-key", ""),
    ] {
        server
            .call_with("echo", json!({"id": 1}), &[(name, value)])
            .problem("malformed-request", 400);
    }
    for path in [
        "/v1/log?from=%2B5",
        "/v1/log?from=-5",
        "/v1/log?from=99999999999999999999",
        "/v1/log?from=",
        "/v1/log?limit=1001",
        "/v1/log?partition=70000",
        "/v1/log?form=5",
        "/v1/tables/items/rows?limit=0",
        "/v1/tables/items/rows?limt=5",
        "/v1/procedure-log?limit=0",
        "/v1/procedure-log?since=9223372036854775808",
        "/v1/procedure-log?since=-1",
        "/v1/replication/freshness?to=4294967296",
        "/v1/replication/freshness?step=3601",
        "/v1/log?limit=0",
        "/v1/log?limit=many",
        "/v1/log?kind=unheard",
        "/v1/log?odrer=newest",
        "/v1/log?order=odd",
        "/v1/tables/items/rows?limit=1001",
        "/v1/tables/items/rows?cursor=abc",
        "/v1/tables/items/rows?prefix=x",
        "/v1/tables/items/rows?prefix=1,2",
    ] {
        server.get(path).problem("malformed-request", 400);
    }
    server
        .put_module("Not-A-Name", probe())
        .problem("malformed-request", 400);
    for kind in ["genesis", "deploy", "remove", "command", "changes", "checkpoint"] {
        server.get(&format!("/v1/log?kind={kind}")).ok(200);
    }
}

fn with_tokens() -> Server {
    Server::start_with(Options {
        tokens: true,
        ..Options::default()
    })
}

fn send_as(server: &Server, token: Option<&str>, method: Method, path: &str, body: &[u8]) -> Answer {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<_> = bearer.iter().map(|b| ("authorization", b.as_str())).collect();
    server.send(method, path, &headers, body.to_vec())
}

#[test]
fn without_a_token_only_what_holds_no_data() {
    let server = with_tokens();
    let get = |path| send_as(&server, None, Method::GET, path, b"");
    for path in ["/v1/status", "/v1/tables", "/v1/log", "/metrics", "/v1/unheard"] {
        get(path).problem("unauthorized", 401);
    }
    for path in ["/healthz", "/readyz", "/openapi.json", "/console/", "/docs/"] {
        assert_eq!(get(path).status, 200, "{path}");
    }
    let refused = send_as(&server, None, Method::POST, "/v1/batch", b"");
    refused.problem("unauthorized", 401);
    let challenge = refused.header("www-authenticate");
    assert!(challenge.is_some_and(|challenge| challenge.starts_with("Bearer")));
    // Each of them is counted, for tokens that may read the counts.
    let metrics = send_as(&server, Some("secret-read"), Method::GET, "/metrics", b"").text();
    let counted = "reprise_calls_refused_total{reason=\"unauthorized\"} 6";
    assert!(metrics.lines().any(|line| line == counted), "{metrics}");
}

#[test]
fn roles_forbid_what_they_do_not_allow() {
    let server = with_tokens();
    let put = |token| send_as(&server, Some(token), Method::PUT, "/v1/modules/probe", &probe());
    put("secret-guess").problem("unauthorized", 401);
    put("secret-read").problem("forbidden", 403);
    put("secret-write").problem("forbidden", 403);
    put("secret-admin").ok(201);
    let call = |token, procedure: &str, args: &[u8]| {
        let path = format!("/v1/call/probe/{procedure}");
        send_as(&server, Some(token), Method::POST, &path, args)
    };
    call("secret-read", "put", b"{}").problem("forbidden", 403);
    call("secret-write", "put", br#"{"id":1,"amount":2}"#).ok(200);
    call("secret-read", "echo", br#"{"id":3}"#).ok(200);
    let line = br#"{"module":"probe","procedure":"put","args":{"id":5,"amount":6}}"#;
    let batch = |token| send_as(&server, Some(token), Method::POST, "/v1/batch", line).ok(200);
    assert_eq!(batch("secret-read")["problem"]["type"], "/problems/forbidden");
    let taken = batch("secret-write");
    assert!(taken.get("problem").is_none(), "{taken}");
}

#[test]
fn strangers_pages_are_forbidden_on_an_open_server() {
    let server = with_probe();
    let foreign = [("origin", "https://stranger.example")];
    server
        .call_with("echo", json!({"id": 1}), &foreign)
        .problem("forbidden", 403);
    let own = server.url.clone();
    server
        .call_with(
            "echo",
            json!({"id": 1}),
            &[("origin", own.as_str()), ("content-type", "application/json")],
        )
        .ok(200);
    let rebound = raw(
        &server.address,
        b"GET /v1/status HTTP/1.1\r\nhost: stranger.example\r\nconnection: close\r\n\r\n",
    );
    assert!(rebound.starts_with("HTTP/1.1 403 "), "{rebound}");
}

#[test]
fn missing_things_are_not_found() {
    let server = with_probe();
    for path in [
        "/v1/modules/none",
        "/v1/tables/none",
        "/v1/tables/none/rows",
        "/v1/log/3",
        "/v1/log/x",
        "/v1/none",
        "/nix",
        "/v1/tables/items/rows?index=none",
        "/v1/checkpoints/none",
        "/v1/checkpoints/77",
        "/console/none.js",
    ] {
        server.get(path).problem("not-found", 404);
    }
    server
        .send(Method::DELETE, "/v1/modules/none", &[], Vec::new())
        .problem("not-found", 404);
    let call = |path: &str| server.send(Method::POST, path, &[], b"{}".to_vec());
    call("/v1/call/none/put").problem("not-found", 404);
    call("/v1/call/probe/none").problem_with(("not-found", 404), "put");
    call("/v1/call/probe").problem("not-found", 404);
}

#[test]
fn methods_that_a_path_does_not_know() {
    let server = Server::start();
    let answer = server.send(Method::PATCH, "/v1/modules/probe", &[], Vec::new());
    let problem = answer.json();
    assert_eq!(
        (answer.status, problem["type"].as_str()),
        (405, Some("/problems/method-not-allowed"))
    );
    assert!(
        answer
            .header("allow")
            .is_some_and(|allow| allow.contains("PUT") && allow.contains("DELETE"))
    );
    assert_eq!(server.send(Method::GET, "/v1/batch", &[], Vec::new()).status, 405);
    assert_eq!(
        server.send(Method::GET, "/v1/call/probe/put", &[], Vec::new()).status,
        405
    );
}

#[test]
fn schema_conflict_names_the_column() {
    let server = with_probe();
    server.call("put", json!({"id": 1, "amount": 10})).ok(200);
    let problem = server
        .put_module("probe", probe_changed())
        .problem("schema-conflict", 409);
    assert_eq!(problem["conflicts"][0]["table"], "probe.items");
    assert!(
        problem["conflicts"][0]["way_on"]
            .as_str()
            .is_some_and(|way_on| !way_on.is_empty())
    );
    assert_eq!(problem["conflicts"][0]["item"], "amount");
    assert_eq!(server.get("/v1/modules/probe").ok(200)["version"], 1);
    server.call("put", json!({"id": 2, "amount": 10})).ok(200);
}

/// Nothing is stored yet, so the conflict names no stored definition.
#[test]
fn schema_conflict_of_a_declaration_with_itself_names_the_declaration_alone() {
    let server = Server::start();
    let module = |rest: &str| {
        let description = format!(
            r#"{{"abi":1,"tables":[{{"name":"t","columns":[{{"name":"a","type":"i64"}},{{"name":"b","type":"i64"}}],{rest}}}],"procedures":[]}}"#
        );
        let section: String = description.bytes().map(|byte| format!("\\{byte:02x}")).collect();
        let text = format!(r#"(module (memory (export "memory") 1) (@custom "reprise.describe" "{section}"))"#);
        wat::parse_str(text).expect("a module")
    };
    for (rest, message) in [
        (
            r#""primary_key":["a"],"placement":{"by":"b"}"#,
            "table t: declared with a primary key without the partition column b",
        ),
        (
            r#""primary_key":["b"],"placement":{"by":"b"},"indexes":[{"name":"x","columns":["a"],"unique":true}]"#,
            "unique index x of table t: declared without the partition column b",
        ),
        (
            r#""placement":"replicated""#,
            "table t: declared replicated, without a primary key",
        ),
    ] {
        let problem = server.put_module("m", module(rest)).problem("schema-conflict", 409);
        assert_eq!(problem["conflicts"][0]["message"], message);
        assert_eq!(problem["conflicts"][0]["stored"], "");
    }
}

#[test]
fn idempotency_conflict_after_a_repeat() {
    let server = with_probe();
    let key = [("idempotency-key", "order 7")];
    let first = server.call_with("put", json!({"id": 1, "amount": 10}), &key);
    let repeat = server.call_with("put", json!({"amount": "10", "id": "1"}), &key);
    assert_eq!(first.ok(200), repeat.ok(200));
    assert_eq!(first.header("idempotent-replayed"), None);
    assert_eq!(repeat.header("idempotent-replayed"), Some("true"));
    assert_eq!(first.header("reprise-txn-id"), repeat.header("reprise-txn-id"));
    server
        .call_with("put", json!({"id": 1, "amount": 11}), &key)
        .problem("idempotency-conflict", 409);
    // A procedure that only reads uses no key.
    server.call_with("echo", json!({"id": 1}), &key).ok(200);
    let server = server.restart();
    let after = server.call_with("put", json!({"id": 1, "amount": 10}), &key);
    assert_eq!(after.ok(200), first.ok(200));
    server
        .call_with("put", json!({"id": 1, "amount": 11}), &key)
        .problem("idempotency-conflict", 409);
    server.wait_rows("items", 1);
}

#[test]
fn client_that_sends_too_much_gets_too_large() {
    let server = with_probe();
    let problem = server.put_module("big", vec![0; 64 << 20]).problem("too-large", 413);
    assert_eq!(problem["max"], 16 << 20);
    let args = |length: usize| json!({"id": 1, "text": "x".repeat(length)});
    server.call("text_length", args(3 << 20)).problem("too-large", 413);
    let problem = server
        .call("text_length", args((1 << 20) + 100))
        .problem("too-large", 413);
    assert_eq!(problem["max"], 1 << 20);
    server.call("text_length", args(1_000_000)).ok(200);
    let mut lines = format!(
        "{{\"id\":1,\"module\":\"probe\",\"procedure\":\"echo\",\"args\":{{\"id\":1}},\"x\":\"{}\"}}\n",
        "y".repeat(3 << 20)
    );
    lines.push_str("{\"id\":2,\"module\":\"probe\",\"procedure\":\"echo\",\"args\":{\"id\":1}}\n");
    let answers = server.batch(&lines);
    assert_eq!(answers[0]["problem"]["type"], "/problems/too-large");
    assert_eq!(answers[1]["result"], "1");
    let announced = raw(
        &server.address,
        b"PUT /v1/modules/big HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: 99000000\r\n\r\n",
    );
    assert!(announced.starts_with("HTTP/1.1 413 "), "{announced}");
}

#[test]
fn invalid_modules_say_why_and_where() {
    let server = with_probe();
    let problem = server
        .put_module("junk", b"not wasm at all".to_vec())
        .problem("invalid-module", 422);
    assert!(problem["reason"].is_string() && problem["offset"].is_u64(), "{problem}");
    server.put_module("empty", Vec::new()).problem("invalid-module", 422);
    let mut cut = probe();
    cut.truncate(cut.len() / 2);
    server.put_module("probe", cut).problem("invalid-module", 422);
    assert_eq!(
        server.get("/v1/modules").ok(200)["modules"].as_array().map(Vec::len),
        Some(1)
    );
}

#[test]
fn aborts_limits_and_traps_leave_nothing() {
    let server = with_probe();
    let args = json!({"id": 1});
    let aborted = server.call("stop", args.clone());
    let problem = aborted.problem("procedure-aborted", 422);
    assert_eq!(
        (problem["code"].as_str(), problem["message"].as_str()),
        (Some("not_today"), Some("this always stops"))
    );
    assert!(aborted.header("reprise-txn-id").is_some());
    let problem = server.call("trap", args.clone()).problem("procedure-trapped", 500);
    let backtrace = problem["backtrace"].to_string();
    assert!(
        problem["trap"].is_string() && backtrace.contains("inner_mistake"),
        "{problem}"
    );
    let problem = server.call("spin", args.clone()).problem("limit-exceeded", 422);
    assert!(problem["limit"].is_string() && problem["max"].is_u64(), "{problem}");
    server.call("flood", args).problem("limit-exceeded", 422);
    assert_eq!(server.get("/v1/tables/items").ok(200)["rows"], 0);
    server.call("put", json!({"id": 1, "amount": 1})).ok(200);
    let problem = server
        .call("put", json!({"id": 1, "amount": 1}))
        .problem("procedure-aborted", 422);
    assert_eq!(problem["code"], "duplicate");
}

/// A module that the SDK did not make: each procedure stores a row, and then gives the first bytes of its memory as its result.
fn liar() -> Vec<u8> {
    let by = r#"{"by":["k"]}"#;
    let procedures = [
        ("short", "\"i64\"", 7, by),
        ("long", "\"i64\"", 9, by),
        ("missing", "\"i64\"", 0, by),
        ("of_nothing", "\"unit\"", 1, by),
        ("no_bool", "\"bool\"", 1, by),
        ("no_text", "\"text\"", 3, by),
        ("no_list", r#"{"list":"bool"}"#, 1, by),
        (
            "no_variant",
            r#"{"struct":[{"name":"it","type":{"enum":["a","b"]}}]}"#,
            1,
            by,
        ),
        (
            "variant",
            r#"{"struct":[{"name":"it","type":{"enum":["a","b","c"]}}]}"#,
            1,
            by,
        ),
        ("everywhere", "\"i64\"", 7, "\"all\""),
        ("truth", "\"i64\"", 8, by),
    ];
    let described = procedures.map(|(name, returns, _, partitioning)| {
        format!(
            r#"{{"name":"{name}","params":[{{"name":"k","type":"i64"}}],"returns":{returns},"read_only":false,"partitioning":{partitioning}}}"#
        )
    });
    let description = format!(
        r#"{{"abi":1,"tables":[{{"name":"rows","columns":[{{"name":"k","type":"i64"}}],"primary_key":["k"],"primary_kind":"ordered",
        "indexes":[],"placement":{{"by":"k"}}}}],"procedures":[{}]}}"#,
        described.join(",")
    );
    let exports = procedures.map(|(name, _, bytes, _)| {
        format!(
            r#"(func (export "reprise_call_{name}") (param i32) (result i32)
              (call $args_read (i32.const 64))
              (drop (call $insert (i32.const 0) (i64.const 0x0000000800000040)))
              (call $result_write (i64.const {}))
              (i32.const 0))"#,
            bytes * (1_u64 << 32)
        )
    });
    let text = format!(
        r#"(module (@custom "reprise.describe" "{}")
          (import "reprise1" "args_read" (func $args_read (param i32)))
          (import "reprise1" "insert" (func $insert (param i32 i64) (result i64)))
          (import "reprise1" "result_write" (func $result_write (param i64)))
          (memory (export "memory") 1)
          (data (i32.const 0) "\02\ff\ff\00\00\00\00\00\00")
          {})"#,
        description.replace('\n', " ").replace('"', "\\\""),
        exports.concat()
    );
    wat::parse_str(text).expect("valid wasm text")
}

#[test]
fn a_result_that_is_none_of_its_type_ends_the_call_and_leaves_nothing() {
    let server = Server::start();
    server.put_module("liar", liar()).ok(201);
    let call = |procedure: &str, k: i64| {
        let args = json!({"k": k}).to_string().into_bytes();
        server.send(Method::POST, &format!("/v1/call/liar/{procedure}"), &[], args)
    };
    let lies = [
        "short",
        "long",
        "missing",
        "of_nothing",
        "no_bool",
        "no_text",
        "no_list",
        "no_variant",
        "everywhere",
    ];
    for procedure in lies {
        let problem = call(procedure, 7).problem("procedure-trapped", 500);
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(
            detail.contains("is not a value of the declared type"),
            "{procedure}: {problem}"
        );
    }
    assert_eq!(server.get("/v1/tables/rows").ok(200)["rows"], 0);
    call("truth", 7).ok(200);
    assert_eq!(call("variant", 8).ok(200)["result"], json!({"it": "c"}));
    assert_eq!(
        server.get("/v1/tables/rows/rows").ok(200)["rows"],
        json!([{"k": "7"}, {"k": "8"}])
    );
}

#[test]
fn too_stale() {
    let server = with_probe();
    let written = server.call("put", json!({"id": 1, "amount": 1}));
    let lsn = written.header("reprise-lsn").expect("an LSN").to_owned();
    server
        .call_with("echo", json!({"id": 1}), &[("reprise-min-lsn", &lsn)])
        .ok(200);
    let far = [
        ("reprise-min-lsn", "9000000000000000000"),
        ("reprise-max-wait-ms", "20"),
    ];
    server
        .call_with("echo", json!({"id": 1}), &far)
        .problem("too-stale", 503);
    server
        .send(Method::GET, "/v1/tables/items/rows", &far, Vec::new())
        .problem("too-stale", 503);
    // A client that waits for a shorter time learns that its time is over.
    let waiting = [far[0], ("reprise-max-wait-ms", "60000"), ("reprise-timeout-ms", "20")];
    server
        .call_with("echo", json!({"id": 1}), &waiting)
        .problem("deadline-exceeded", 504);
    let line = json!({"module": "probe", "procedure": "echo", "args": {"id": 1}}).to_string();
    server
        .send(Method::POST, "/v1/batch", &waiting, line.into_bytes())
        .problem("deadline-exceeded", 504);
    // The server counts also what it refuses before the engine, and a call's refusal once.
    let refused = |reason: &str| {
        let name = format!("reprise_calls_refused_total{{reason=\"{reason}\"}} ");
        let metrics = server.get("/metrics").text();
        let found = metrics
            .lines()
            .find_map(|line| line.strip_prefix(&name))
            .expect("a count");
        found.parse::<f64>().expect("a number")
    };
    assert_eq!(refused("too-stale"), 2.0);
    let patient = [far[0], far[1], ("reprise-timeout-ms", "60000")];
    server
        .call_with("echo", json!({"id": 1}), &patient)
        .problem("too-stale", 503);
    assert_eq!(refused("too-stale"), 3.0);
}

/// A server whose log can't be written any more, and its answer to the call whose record was the first to fail.
fn refusing() -> (Server, Answer) {
    for _ in 0..20 {
        let server = Server::with_probe(Options {
            survives_file_limit: true,
            ..Options::default()
        });
        server.call("put", json!({"id": 1, "amount": 1})).ok(200);
        server.refuse_writes();
        let answer = server.call("put", json!({"id": 2, "amount": 2}));
        // The thread that makes the next segment ready may have met the limit before: then nothing was tried.
        if answer.json()["type"] != "/problems/log-unavailable" {
            return (server, answer);
        }
    }
    panic!("the log was refused before a record in each of 20 runs");
}

#[test]
fn log_unavailable_refuses_writes_and_serves_reads() {
    let (server, answer) = refusing();
    // Its record can be neither written nor taken back. Until a restart, it is not known whether it is kept.
    let problem = answer.problem("outcome-unknown", 503);
    let [txn_id, lsn] = ["txn_id", "lsn"].map(|name| problem[name].as_str().map(str::to_owned));
    assert!(
        txn_id.is_some() && txn_id.as_deref() == answer.header("reprise-txn-id"),
        "{problem}"
    );
    assert!(
        lsn.is_some() && lsn.as_deref() == answer.header("reprise-lsn"),
        "{problem}"
    );
    server
        .call("put", json!({"id": 3, "amount": 3}))
        .problem("log-unavailable", 503);
    server.call("echo", json!({"id": 1})).ok(200);
    assert!(server.get("/v1/status").ok(200)["log_error"].is_string());
    let metrics = server.get("/metrics").text();
    for line in [
        "reprise_log_failed 1",
        "reprise_calls_refused_total{reason=\"log-unavailable\"} 1",
        "reprise_calls_refused_total{reason=\"overloaded\"} 0",
        "reprise_role{role=\"primary\"} 1",
        "reprise_role{role=\"standby\"} 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    let server = server.restart();
    server.call("put", json!({"id": 4, "amount": 4})).ok(200);
    let rows = server.get("/v1/tables/items/rows").ok(200);
    let ids: Vec<_> = rows["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| &row["id"])
        .collect();
    assert_eq!(ids, ["1", "4"]);
}

#[test]
fn every_error_leads_to_a_page() {
    let server = Server::start();
    let list = server.get("/problems/");
    assert_eq!(list.status, 200);
    let text = list.text();
    let slugs: Vec<_> = text
        .split("/problems/")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    assert!(slugs.len() >= 25, "{slugs:?}");
    for slug in slugs {
        let page = server.get(&format!("/problems/{slug}"));
        assert_eq!(page.status, 200, "{slug}");
        assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
        let text = page.text();
        assert!(
            text.contains(slug) && text.contains("May the request be repeated?"),
            "{text}"
        );
    }
    server.get("/problems/none").problem("not-found", 404);
}

/// Lines of calls that write rows with ids from `first` on.
fn puts(first: usize, count: usize) -> String {
    let line =
        |id: usize| format!("{{\"module\":\"probe\",\"procedure\":\"put\",\"args\":{{\"id\":{id},\"amount\":1}}}}\n");
    (first..first + count).map(line).collect()
}

#[test]
fn before_the_last_record_is_replayed_every_call_is_told_so_and_never_that_something_is_not_there() {
    let server = with_probe();
    assert_eq!(server.batch(&puts(0, 50_000)).len(), 50_000);
    let server = server.restart_unready();
    let mut is_open = false;
    while !is_open {
        // The module may not be ready yet: both answers are right, a 404 never is.
        let answers = [
            server.call("echo", json!({"id": 1})),
            server.get("/v1/modules/probe"),
            server.get("/v1/tables/items"),
            server.get("/v1/log?limit=1"),
        ];
        for answer in &answers {
            if answer.status == 200 {
                continue;
            }
            let problem = answer.problem("recovering", 503);
            assert_eq!(problem["phase"]["name"], "recovering", "{problem}");
            assert!(answer.header("retry-after").is_some());
        }
        is_open = answers.iter().all(|answer| answer.status == 200);
    }
    assert_eq!(server.get("/v1/tables/items").ok(200)["rows"], 50_000);
}

#[test]
fn the_log_before_its_beginning_is_gone_and_says_where_it_begins() {
    let server = Server::with_probe(Options {
        settings: "checkpoints_kept = 1",
        ..Options::default()
    });
    // More than the first segment, which has 4 MiB, holds.
    for round in 0..4 {
        assert_eq!(server.batch(&puts(round * 50_000, 50_000)).len(), 50_000);
    }
    let oldest = || server.get("/v1/log?limit=1").ok(200)["records"][0].clone();
    for _ in 0..10 {
        if oldest()["kind"] != "genesis" {
            break;
        }
        let begun = server.send(Method::POST, "/v1/checkpoints", &[], Vec::new()).ok(202);
        let path = format!("/v1/checkpoints/{}", begun["id"].as_str().expect("an id"));
        while server.get(&path).json()["state"] == "running" {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        server.call("put", json!({"id": -1, "amount": 1}));
    }
    assert_ne!(oldest()["kind"], "genesis", "nothing was let go");
    for path in ["/v1/log?from=0", "/v1/log?from=0&order=newest", "/v1/log/0"] {
        let problem = server.get(path).problem("log-released", 410);
        let from = problem["oldest"].as_str().expect("an LSN");
        let page = server.get(&format!("/v1/log?limit=1&from={from}")).ok(200);
        assert_eq!(page["records"][0], oldest(), "{path}");
    }
}

/// Each mistake could name a thousand variants.
#[test]
fn refusals_are_short_however_many_mistakes_and_names_there_are() {
    let variants: Vec<_> = (0..1_000)
        .map(|at| format!("\"a_variant_with_a_rather_long_name_and_the_number_{at}\""))
        .collect();
    let ty = format!("{{\"list\":{{\"enum\":[{}]}}}}", variants.join(","));
    let server = Server::start();
    server.put_module("probe", probe_with(&ty, "unit")).ok(201);
    let answer = server.call("extra", json!({"value": vec!["none"; 100]}));
    let problem = answer.problem("invalid-arguments", 400);
    let told = problem["errors"].as_array().map_or(0, Vec::len);
    assert!((8..=64).contains(&told), "{told} of 100 mistakes");
    assert!(
        problem["errors"][0]["message"]
            .as_str()
            .is_some_and(|text| text.contains("and 992 more")),
        "{problem}"
    );
    assert!(answer.body.len() < 80 << 10, "{} bytes", answer.body.len());
}

/// Nothing takes no byte, and its name many.
#[test]
fn a_type_whose_text_is_thousands_of_times_as_long_is_refused_at_the_upload() {
    let names: Vec<_> = (0..250)
        .map(|at| format!("{{\"name\":\"a_long_name_of_nothing_{at}\",\"type\":\"unit\"}}"))
        .collect();
    let list =
        |members: &str| format!("{{\"list\":{{\"struct\":[{members}{{\"name\":\"flag\",\"type\":\"bool\"}}]}}}}");
    let forged = list(&format!("{},", names.join(",")));
    let server = Server::start();
    for module in [probe_with(&forged, "unit"), probe_with("i64", &forged)] {
        let problem = server.put_module("probe", module).problem("invalid-module", 422);
        assert!(
            problem["reason"]
                .as_str()
                .is_some_and(|text| text.contains("bytes of JSON")),
            "{problem}"
        );
    }
    server.put_module("probe", probe_with(&list(""), &list(""))).ok(201);
}
