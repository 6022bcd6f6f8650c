//! Idempotency keys over HTTP: a repeat is answered with the first outcome, however it is written and whatever was deployed since.

use std::{io::Write, net::TcpStream, thread, time::Duration};

use reprise_test_http::{Answer, Options, Server, probe, probe_put_grown, probe_signed, probe_without_put, rest};
use reqwest::Method;
use serde_json::{Value, json};

const KEY: (&str, &str) = ("idempotency-key", "order 17");

fn put(server: &Server, body: &str) -> Answer {
    server.send(Method::POST, "/v1/call/probe/put", &[KEY], body.as_bytes().to_vec())
}

#[test]
fn batch_with_a_key_for_all_is_refused() {
    let server = Server::with_probe(Options::default());
    let line = r#"{"module":"probe","procedure":"put","args":{"id":1,"amount":1}}"#;
    let refused = server.send(Method::POST, "/v1/batch", &[KEY], line.into());
    refused.problem_with(("malformed-request", 400), "idempotency_key of its line");
    server.wait_rows("items", 0);
}

#[test]
fn kept_outcome_is_answered_whatever_is_in_service() {
    let server = Server::with_probe(Options::default());
    let body = r#"{"id": 1, "amount": 10}"#;
    let first = put(&server, body).ok(200);
    let is_first = |server: &Server| {
        let again = put(server, body);
        assert_eq!(again.ok(200), first);
        assert_eq!(again.header("idempotent-replayed"), Some("true"));
        let line = r#"{"module":"probe","procedure":"put","args":{"amount":1e1,"id":1},"idempotency_key":"order 17"}"#;
        let answers = server.batch(&[line, line].join("\n"));
        for answer in &answers {
            assert_eq!(
                (&answer["txn_id"], &answer["replayed"]),
                (&first["txn_id"], &json!(true))
            );
        }
        let other = put(server, r#"{"id": 1, "amount": 11}"#);
        other.problem_with(("idempotency-conflict", 409), "GET /v1/idempotency/KEY");
        let other = put(server, r#"{"id": 1, "amount": "ten"}"#);
        other.problem("idempotency-conflict", 409);
        let kept = server.get("/v1/idempotency/order%2017").ok(200);
        assert_eq!((&kept["txn_id"], &kept["procedure"]), (&first["txn_id"], &json!("put")));
        let day = |member: &str| kept[member].as_str().map(|time| time[..10].to_owned());
        assert_ne!(day("time"), day("expires_at"), "it is kept for a day");
    };
    is_first(&server);
    server.put_module("probe", probe_put_grown()).ok(200);
    is_first(&server);
    let gone = "/v1/modules/probe?allow=drop-procedure:probe.put";
    server.send(Method::PUT, gone, &[], probe_without_put()).ok(200);
    is_first(&server);
    let unknown = server.send(
        Method::POST,
        "/v1/call/probe/put",
        &[("idempotency-key", "order 18")],
        body.into(),
    );
    unknown.problem("not-found", 404);
    let removed = server.consenting(Method::DELETE, "/v1/modules/probe", &[]);
    assert_eq!(removed.status, 204);
    is_first(&server);
    let server = server.restart();
    is_first(&server);
    server.put_module("probe", probe());
    is_first(&server);
    server.wait_rows("items", 1);
}

#[test]
fn repeat_is_the_same_however_it_is_written() {
    let server = Server::with_probe(Options::default());
    server.put_module("probe", probe_put_grown()).ok(200);
    let first = put(&server, r#"{"id": 1, "amount": 10}"#).ok(200);
    for same in [
        r#"{"amount":10,"id":1}"#,
        r#"{"amount":"10","id":"1"}"#,
        r#"{"amount":10.0,"id":1e0,"note":null}"#,
    ] {
        assert_eq!(put(&server, same).ok(200), first, "{same}");
    }
    let cbor = b"\xa2\x62id\x01\x66amount\x0a".to_vec();
    let headers = [
        KEY,
        ("content-type", "application/cbor"),
        ("accept", "application/json"),
    ];
    let again = server.send(Method::POST, "/v1/call/probe/put", &headers, cbor);
    assert_eq!(again.ok(200), first);
    for other in [
        r#"{"amount":10,"id":2}"#,
        r#"{"amount":10,"id":1,"note":""}"#,
        r#"{"amount":10,"id":1,"nota":1}"#,
    ] {
        put(&server, other).problem("idempotency-conflict", 409);
    }
}

fn as_token(server: &Server, token: &str, procedure: &str, body: &str) -> Answer {
    let bearer = format!("Bearer {token}");
    let headers = [KEY, ("authorization", bearer.as_str())];
    let path = format!("/v1/call/probe/{procedure}");
    server.send(Method::POST, &path, &headers, body.into())
}

#[test]
fn key_from_a_time_without_tokens_is_found_by_each_token() {
    let server = Server::with_probe(Options::default());
    let body = r#"{"id": 1, "amount": 10}"#;
    let first = put(&server, body).ok(200);
    let server = server.restart_with(Options {
        tokens: true,
        ..Options::default()
    });
    for token in ["secret-write", "secret-admin"] {
        assert_eq!(as_token(&server, token, "put", body).ok(200), first);
    }
}

#[test]
fn record_has_the_caller_and_so_has_the_procedure() {
    let options = Options {
        tokens: true,
        ..Options::default()
    };
    let server = Server::start_with(options);
    let admin = [("authorization", "Bearer secret-admin")];
    let deployed = server.send(Method::PUT, "/v1/modules/probe", &admin, probe_signed());
    deployed.ok(201);
    let call = |server: &Server, token: &str, procedure: &str, id: u32| {
        let bearer = format!("Bearer {token}");
        let body = json!({"id": id, "amount": 1}).to_string();
        let headers = [("authorization", bearer.as_str())];
        let path = format!("/v1/call/probe/{procedure}");
        server.send(Method::POST, &path, &headers, body.into()).ok(200)
    };
    let sign = |server: &Server, token: &str, id: u32| call(server, token, "sign", id);
    let record = |server: &Server, answer: &Value| {
        let lsn = answer["lsn"].as_str().expect("an LSN");
        server
            .send(Method::GET, &format!("/v1/log/{lsn}"), &admin, Vec::new())
            .ok(200)
    };
    let signed = [
        ("secret-write", "writeer"),
        ("secret-admin", "adminer"),
        ("secret-write", "writeer"),
    ];
    let mut answers = Vec::new();
    for (id, (token, name)) in (1..).zip(signed) {
        let answer = sign(&server, token, id);
        assert_eq!(answer["result"], name);
        assert_eq!(record(&server, &answer)["principal"], name);
        answers.push(answer);
    }
    // Over several partitions, too.
    for (id, (token, name)) in (11..).zip(signed) {
        let answer = call(&server, token, "sign_all", id);
        assert_eq!((&answer["result"], &answer["partition"]), (&json!(name), &Value::Null));
        assert_eq!(record(&server, &answer)["principal"], name);
        answers.push(answer);
    }
    // A replay runs the calls again, and stops if one answers with another name.
    let server = server.restart();
    for (answer, (_, name)) in answers.iter().zip(signed.iter().cycle()) {
        assert_eq!(record(&server, answer)["principal"], *name);
    }
    assert_eq!(sign(&server, "secret-admin", 9)["result"], "adminer");
    let defined = server
        .send(Method::GET, "/v1/log?kind=principal", &admin, Vec::new())
        .ok(200);
    let names: Vec<_> = defined["records"]
        .as_array()
        .expect("records")
        .iter()
        .map(|found| &found["principal"])
        .collect();
    assert_eq!(names, ["writeer", "adminer"]);
}

#[test]
fn repeat_of_a_former_version_leaves_the_lines_beside_it_to_the_version_in_service() {
    let server = Server::with_probe(Options::default());
    put(&server, r#"{"id": 1, "amount": 10}"#).ok(200);
    server.put_module("probe", probe_put_grown()).ok(200);
    let lines = [
        r#"{"module":"probe","procedure":"put","args":{"id":1,"amount":10},"idempotency_key":"order 17"}"#,
        r#"{"module":"probe","procedure":"put","args":{"id":2,"amount":1,"note":"new"}}"#,
    ];
    let answers = server.batch(&lines.join("\n"));
    assert_eq!(answers[0]["replayed"], json!(true), "{answers:?}");
    assert!(answers[1]["txn_id"].is_string(), "{answers:?}");
}

/// A key counts as running from the moment when its call is read. So its batch must not wait then for places that others hold who wait for the key.
#[test]
fn batches_that_wait_for_a_key_leave_places_to_the_batch_that_has_it() {
    const KEYED: &str =
        r#"{"module":"probe","procedure":"put","args":{"id":1,"amount":1},"idempotency_key":"one for all"}"#;
    const SLOW: &str = r#"{"module":"probe","procedure":"spin","args":{"id":1}}"#;
    const LONG: &str = r#"{"module":"probe","procedure":"flood","args":{"id":1}}"#;
    let server = Server::with_probe(Options::default());
    let begin = || {
        let mut stream = server.connect();
        let head = format!(
            "POST /v1/batch HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/x-ndjson\r\n\
             transfer-encoding: chunked\r\n\r\n",
            server.address
        );
        stream.write_all(head.as_bytes()).expect("sent");
        stream
    };
    let send = |stream: &mut TcpStream, lines: &[&str]| {
        let text = lines.join("\n") + "\n";
        let piece = format!("{:x}\r\n{text}\r\n", text.len());
        stream.write_all(piece.as_bytes()).expect("sent");
    };
    let mut first = begin();
    send(&mut first, &[SLOW]);
    thread::sleep(Duration::from_millis(100));
    send(&mut first, &[KEYED, LONG]);
    thread::sleep(Duration::from_millis(100));
    let mut others: Vec<_> = (0..3).map(|_| begin()).collect();
    for other in &mut others {
        (0..5).for_each(|_| send(other, &[KEYED; 400]));
    }
    for stream in [&mut first].into_iter().chain(&mut others) {
        stream.write_all(b"0\r\n\r\n").expect("sent");
    }
    let lines = |stream: &mut TcpStream| rest(stream).matches("\"result\"").count();
    assert_eq!(lines(&mut first), 1, "the call with the key");
    for other in &mut others {
        assert_eq!(lines(other), 2_000);
    }
    server.wait_rows("items", 1);
}
