//! Requests mean what they say: what would change the meaning of a request is followed or refused, and never passed over.

use reprise_test_http::{Options, Server, probe, probe_with, raw};
use reqwest::Method;
use serde_json::{Value, json};

/// The status of the one answer.
#[track_caller]
fn status(answer: &str) -> u16 {
    let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
    status
        .and_then(|status| status.parse().ok())
        .unwrap_or_else(|| panic!("no answer: {answer:?}"))
}

fn ask(server: &Server, head: &str, body: &str) -> String {
    let request = format!(
        "{head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    raw(&server.address, request.as_bytes())
}

#[test]
fn bodies_in_codings_that_are_not_read_are_refused() {
    let server = Server::with_probe(Options::default());
    let encoded = |method: Method, path: &str, coding: &str| {
        server.send(method, path, &[("content-encoding", coding)], b"{\"id\":1}".to_vec())
    };
    for coding in ["gzip", "br", "zstd", "identity, gzip"] {
        for (method, path) in [
            (Method::POST, "/v1/call/probe/echo"),
            (Method::POST, "/v1/batch"),
            (Method::PUT, "/v1/modules/other"),
            (Method::POST, "/v1/replication/join"),
        ] {
            encoded(method, path, coding).problem("unsupported-media-type", 415);
        }
    }
    encoded(Method::POST, "/v1/call/probe/echo", "identity").ok(200);
    let transfer = |coding: &str| {
        let head = "POST /v1/call/probe/echo HTTP/1.1\r\nhost: localhost\r\nconnection: close";
        raw(
            &server.address,
            format!("{head}\r\ntransfer-encoding: {coding}\r\n\r\n8\r\n{{\"id\":1}}\r\n0\r\n\r\n").as_bytes(),
        )
    };
    assert_eq!(status(&transfer("chunked")), 200);
    let refused = transfer("gzip, chunked");
    assert_eq!(status(&refused), 501);
    assert!(refused.contains("/problems/malformed-request"), "{refused}");
}

#[test]
fn a_query_that_is_not_asked_for_is_refused() {
    let server = Server::with_probe(Options::default());
    let call = |path: &str| server.send(Method::POST, path, &[], b"{\"id\":1}".to_vec());
    call("/v1/call/probe/echo?id=5").problem_with(("malformed-request", 400), "no parameters in the query");
    call("/v1/call/probe/echo?").ok(200);
    call("/v1/batch?id=5").problem("malformed-request", 400);
    for path in [
        "/v1/status?x=1",
        "/v1/modules/probe?version=1",
        "/v1/modules?odrer=name",
        "/v1/tables?limt=1",
        "/v1/calls?limt=1",
        "/v1/events?from=1",
        "/v1/checkpoints?limit=1",
        "/v1/replication?x",
        "/v1/tables/items?x=1",
    ] {
        server.get(path).problem("malformed-request", 400);
    }
    server
        .send(Method::DELETE, "/v1/tables/items?force=true", &[], Vec::new())
        .problem("malformed-request", 400);
    // Probes are asked in whatever way a balancer has.
    assert_eq!(server.get("/healthz?x=1").status, 200);
}

#[test]
fn escapes_in_a_path_are_read_alike_everywhere() {
    let server = Server::with_probe(Options::default());
    let call = |path: &str| server.send(Method::POST, path, &[], b"{\"id\":1}".to_vec());
    for path in [
        "/v1/call/prob%65/echo",
        "/v1/call/probe/%65cho",
        "/v1/call/%70%72%6f%62%65/%65%63%68%6f",
    ] {
        assert_eq!(call(path).ok(200)["result"], "1", "{path}");
    }
    call("/v1/call/probe%2Fecho").problem("not-found", 404);
    call("/v1/call/probe/ech%6").problem("not-found", 404);
    call("/v1/call/probe/%ff").problem("malformed-request", 400);
    assert_eq!(server.get("/v1/modules/prob%65").ok(200)["module"], "probe");
    assert_eq!(server.get("/v1/tables/%69tems").ok(200)["name"], "probe.items");
}

#[test]
fn hosts_have_no_case_and_may_end_with_a_dot() {
    let server = Server::start();
    for (host, expected) in [
        ("LOCALHOST", 200),
        ("localhost.", 200),
        ("Localhost.:8080", 200),
        ("stranger.example", 403),
        ("localhost.stranger.example", 403),
    ] {
        let answer = ask(&server, &format!("GET /v1/status HTTP/1.1\r\nhost: {host}"), "");
        assert_eq!(status(&answer), expected, "{host}");
    }
    let own = "GET /v1/status HTTP/1.1\r\nhost: LocalHost.:8080\r\norigin: http://localhost:8080";
    assert_eq!(status(&ask(&server, own, "")), 200);
}

#[test]
fn a_token_is_shown_once() {
    let server = Server::start_with(Options {
        tokens: true,
        ..Options::default()
    });
    let ask_as = |path: &str, tokens: &[&str]| {
        let lines: String = tokens
            .iter()
            .map(|token| format!("\r\nauthorization: Bearer {token}"))
            .collect();
        ask(&server, &format!("{path} HTTP/1.1\r\nhost: localhost{lines}"), "")
    };
    for path in ["GET /v1/status", "POST /v1/call/probe/echo", "POST /v1/batch"] {
        assert_eq!(status(&ask_as(path, &["secret-read", "secret-admin"])), 400, "{path}");
        assert_eq!(status(&ask_as(path, &["secret-admin", "secret-admin"])), 400, "{path}");
    }
    assert_eq!(status(&ask_as("GET /v1/status", &["secret-read"])), 200);
}

#[test]
fn integers_are_exact_over_http() {
    let server = Server::with_probe(Options::default());
    let call = |text: &str| {
        let body = format!("{{\"id\":{text}}}").into_bytes();
        server.send(Method::POST, "/v1/call/probe/echo", &[], body)
    };
    assert_eq!(call("9007199254740993.0").ok(200)["result"], "9007199254740993");
    assert_eq!(call("9.007199254740993e15").ok(200)["result"], "9007199254740993");
    for text in ["4503599627370496.2", "0.99999999999999999999", "1e-400", "1e400"] {
        call(text).problem("invalid-arguments", 400);
    }
    let line = |text: &str| format!("{{\"module\":\"probe\",\"procedure\":\"echo\",\"args\":{{\"id\":{text}}}}}\n");
    let answers = server.batch(&(line("9007199254740993.0") + &line("1.5")));
    assert_eq!(answers[0]["result"], "9007199254740993");
    assert_eq!(answers[1]["problem"]["type"], "/problems/invalid-arguments");
    let rows = |prefix: &str| server.get(&format!("/v1/tables/items/rows?prefix={prefix}"));
    server
        .call("put", json!({"id": "9007199254740993", "amount": 1}))
        .ok(200);
    assert_eq!(
        rows("%5B9007199254740993.0%5D").ok(200)["rows"][0]["id"],
        "9007199254740993"
    );
    rows("%5B9007199254740992.5%5D").problem("malformed-request", 400);
}

#[test]
fn keys_follow_one_rule_and_a_byte_order_mark_is_named() {
    let server = Server::with_probe(Options::default());
    let line = |key: Value| {
        json!({"module": "probe", "procedure": "put", "args": {"id": 1, "amount": 1}, "idempotency_key": key})
            .to_string()
    };
    for key in ["", "a\tb", "a\u{7f}", "schlüssel", "a\nb", &"k".repeat(256)] {
        let answers = server.batch(&line(json!(key)));
        assert_eq!(answers[0]["problem"]["type"], "/problems/malformed-request", "{key:?}");
    }
    server
        .call_with("put", json!({"id": 1, "amount": 1}), &[("idempotency-key", "a\tb")])
        .problem("malformed-request", 400);
    server.get("/v1/idempotency/a%09b").problem("malformed-request", 400);
    assert!(server.batch(&line(json!("order ~7")))[0].get("problem").is_none());
    server.get("/v1/idempotency/order%20~7").ok(200);
    let marked = server.send(
        Method::POST,
        "/v1/call/probe/echo",
        &[],
        b"\xef\xbb\xbf{\"id\":1}".to_vec(),
    );
    marked.problem_with(("malformed-request", 400), "byte order mark");
}

#[test]
fn events_are_not_to_be_kept_back() {
    let server = Server::start();
    let mut stream = server.connect();
    std::io::Write::write_all(&mut stream, b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("send");
    let mut begin = [0; 1024];
    let bytes = std::io::Read::read(&mut stream, &mut begin).expect("an answer");
    let head = String::from_utf8_lossy(&begin[..bytes]).to_ascii_lowercase();
    for line in [
        "x-accel-buffering: no",
        "cache-control: no-store, no-transform",
        "content-encoding: identity",
    ] {
        assert!(head.contains(line), "{head}");
    }
}

/// A module without tables, `count` of them in all.
fn many(server: &Server, count: usize) -> Vec<String> {
    let names: Vec<_> = (0..count).map(|at| format!("m{at:03}")).collect();
    for name in &names {
        server.put_module(name, probe()).ok(201);
    }
    names
}

#[test]
fn lists_come_page_by_page() {
    let server = Server::start();
    let names = many(&server, 7);
    for (path, list, member) in [("/v1/modules", "modules", "module"), ("/v1/tables", "tables", "name")] {
        let (mut found, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
        loop {
            let page = server.get(&format!("{path}?limit=3{cursor}")).ok(200);
            let items = page[list].as_array().expect("items");
            assert!(items.len() <= 3);
            found.extend(
                items
                    .iter()
                    .map(|item| item[member].as_str().expect("a name").to_owned()),
            );
            pages += 1;
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        let whole = server.get(path).ok(200);
        assert_eq!(whole["next_cursor"], Value::Null);
        assert_eq!((whole[list].as_array().map(Vec::len), pages), (Some(7), 3), "{path}");
        let expected: Vec<_> = names
            .iter()
            .map(|name| name.to_owned() + if list == "tables" { ".items" } else { "" })
            .collect();
        assert_eq!(found, expected);
        for query in [
            "limit=0",
            "limit=1001",
            "limit=x",
            "cursor=%21",
            "cursor=A%20b",
            "limit=1&limit=2",
        ] {
            server.get(&format!("{path}?{query}")).problem("malformed-request", 400);
        }
    }
}

#[test]
fn a_modules_description_is_that_of_the_version_in_service() {
    let server = Server::start();
    server.put_module("probe", probe()).ok(201);
    let ask = || server.get("/v1/modules/probe/openapi.json").ok(200);
    let first = ask();
    assert_eq!(first, ask(), "kept");
    assert!(first["paths"]["/v1/call/probe/extra"].is_null());
    assert_eq!(first["servers"][0]["url"], "../../..", "from where it lies");
    server.put_module("probe", probe_with("i64", "unit")).ok(200);
    let second = ask();
    assert!(second["paths"]["/v1/call/probe/extra"].is_object());
    assert_eq!(second["info"]["version"], "2");
}
