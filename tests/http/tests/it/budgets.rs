//! Memory that clients may make the server hold, whatever they ask for and however little they take: results, texts, pages and
//! requests on their way each have a budget over all connections, told by `/v1/status`, and it comes back.

use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use reprise_test_http::{Options, Server};
use serde_json::{Value, json};

/// A wait that ends only by a mistake.
const LONG: Duration = Duration::from_secs(180);
/// Of the limit below: results and texts have 32 MiB each, and so have requests.
const SETTINGS: &str = "memory_max = \"512MiB\"\n[http]\nwrite_wait_s = 20\nbody_wait_s = 20\nbatch_idle_s = 20";
const BUDGET_BYTES: u64 = 32 << 20;
/// What a run may pass its budget by: results of calls that were begun while there was room, and texts that are being made.
const BESIDE_BYTES: u64 = 64 << 20;
/// What the allocators of the server's threads keep of what was given back.
const KEPT_BYTES: u64 = 64 << 20;
const CLIENTS: usize = 60;

/// Procedures whose results are large: `big` has 3 MB of bytes, 4 MB as text; `put` stores nothing and takes a text.
fn module() -> Vec<u8> {
    let description = r#"{"abi":1,"tables":[],"procedures":[
        {"name":"big","params":[],"returns":"bytes","read_only":true,"partitioning":"any"},
        {"name":"little","params":[],"returns":"i64","read_only":true,"partitioning":"any"},
        {"name":"long","params":[{"name":"text","type":"text"}],"returns":"unit","read_only":true,"partitioning":"any"}]}"#;
    let description = description.replace('\n', " ").replace('"', "\\\"");
    // The length of the bytes before them, 3,000,000, as a varint.
    let text = format!(
        r#"(module (@custom "reprise.describe" "{description}")
          (import "reprise1" "result_write" (func $result_write (param i64)))
          (memory (export "memory") 64 64)
          (func (export "reprise_call_big") (param i32) (result i32)
            (i32.store (i32.const 0) (i32.const 0x01b78dc0))
            (call $result_write (i64.const {big}))
            (i32.const 0))
          (func (export "reprise_call_little") (param i32) (result i32)
            (call $result_write (i64.const {little}))
            (i32.const 0))
          (func (export "reprise_call_long") (param i32) (result i32) (i32.const 0)))"#,
        big = slice(3_000_004),
        little = slice(8),
    );
    wat::parse_str(text).expect("valid wasm text")
}

/// A slice of the guest's memory from its beginning, as host calls take it.
fn slice(bytes: u64) -> u64 {
    bytes << 32
}

fn server() -> Server {
    let server = Server::start_with(Options {
        settings: SETTINGS,
        partitions: Some(2),
        is_measured: true,
        ..Options::default()
    });
    server.put_module("sizes", module()).ok(201);
    server
}

fn little(server: &Server) {
    let begun = Instant::now();
    server
        .send(reqwest::Method::POST, "/v1/call/sizes/little", &[], b"{}".to_vec())
        .ok(200);
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
}

fn held(server: &Server, kind: &str) -> u64 {
    let status = server.get("/v1/status").ok(200);
    let kinds = status["memory"]["kinds"].as_array().expect("kinds").clone();
    let found = kinds.iter().find(|found| found["kind"] == kind).expect("a known kind");
    found["bytes"].as_u64().expect("a number")
}

/// Waits until nothing of a kind is held.
fn until_none(server: &Server, kind: &str) {
    let begun = Instant::now();
    while held(server, kind) > 0 {
        assert!(begun.elapsed() < LONG, "{} bytes of {kind} stay", held(server, kind));
        thread::sleep(Duration::from_millis(20));
    }
}

/// Sends `request` over many connections that read nothing, and looks at the server meanwhile: what it grew by at most, and the most
/// that was held of a kind.
fn while_nobody_reads(server: &Server, request: &[u8], kind: &str) -> (u64, u64, Vec<TcpStream>) {
    little(server);
    let before = server.resident_bytes();
    let (mut grown, mut most) = (0, 0);
    let mut streams = Vec::new();
    for _ in 0..CLIENTS {
        let mut stream = TcpStream::connect(&server.address).expect("connect");
        stream
            .set_write_timeout(Some(Duration::from_millis(200)))
            .expect("set timeout");
        let _ = stream.write_all(request); // the server reads no further at some point
        streams.push(stream);
        grown = grown.max(server.resident_bytes().saturating_sub(before));
        most = most.max(held(server, kind));
    }
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        little(server);
        grown = grown.max(server.resident_bytes().saturating_sub(before));
        most = most.max(held(server, kind));
        thread::sleep(Duration::from_millis(50));
    }
    (grown, most, streams)
}

#[test]
fn answers_that_nobody_reads_stay_within_their_budget() {
    let server = server();
    let single = "POST /v1/call/sizes/big HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}".repeat(8);
    let line = "{\"module\":\"sizes\",\"procedure\":\"big\",\"args\":{}}\n".repeat(40);
    let batch = format!(
        "POST /v1/batch HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{line}",
        line.len()
    );
    for request in [single, batch] {
        let (grown, most, streams) = while_nobody_reads(&server, request.as_bytes(), "answers");
        assert!(
            most > 0 && most <= 2 * BUDGET_BYTES + BESIDE_BYTES,
            "{} MiB of answers are held",
            most >> 20
        );
        let bound = 2 * BUDGET_BYTES + BESIDE_BYTES + KEPT_BYTES;
        assert!(
            grown < bound,
            "grown by {} MiB, of which {} MiB are counted",
            grown >> 20,
            most >> 20
        );
        drop(streams);
        until_none(&server, "answers");
        // Who reads is answered again.
        let answer = server.send(reqwest::Method::POST, "/v1/call/sizes/big", &[], b"{}".to_vec());
        assert!(
            answer.ok(200)["result"]
                .as_str()
                .is_some_and(|text| text.len() >= 3_000_000)
        );
        until_none(&server, "answers");
        until_none(&server, "requests");
    }
}

#[test]
fn bodies_that_do_not_end_stay_within_their_budget() {
    let server = server();
    // All but the last byte of the longest body that there may be, of a call and of a batch.
    let text = "x".repeat((2 << 20) - 64);
    let call = format!(
        "POST /v1/call/sizes/long HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{{\"text\":\"{text}",
        text.len() + 11
    );
    let line = format!(
        "{{\"module\":\"sizes\",\"procedure\":\"long\",\"args\":{{\"text\":\"{}",
        &text[100..]
    );
    let batch = format!(
        "POST /v1/batch HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{line}",
        line.len() + 4
    );
    for request in [call, batch] {
        let (grown, most, mut streams) = while_nobody_reads(&server, request.as_bytes(), "requests");
        assert!(
            most > 0 && most <= BUDGET_BYTES,
            "{} MiB of requests are held",
            most >> 20
        );
        assert!(grown < BUDGET_BYTES + KEPT_BYTES, "grown by {} MiB", grown >> 20);
        // Those for whom there was no room were told so.
        let told = streams.iter_mut().filter_map(|stream| {
            stream
                .set_read_timeout(Some(Duration::from_millis(20)))
                .expect("set timeout");
            let mut answer = [0; 4096];
            let bytes = stream.read(&mut answer).ok()?;
            Some(String::from_utf8_lossy(&answer[..bytes]).into_owned())
        });
        let told: Vec<String> = told.filter(|answer| answer.contains("/problems/")).collect();
        assert!(told.len() > CLIENTS / 4, "{} of {CLIENTS} were refused", told.len());
        assert!(
            told.iter().all(|answer| answer.contains("/problems/overloaded")),
            "{:?}",
            told[0]
        );
        drop(streams);
        until_none(&server, "requests");
        let body = json!({"text": "x".repeat(900_000)}).to_string().into_bytes();
        server
            .send(reqwest::Method::POST, "/v1/call/sizes/long", &[], body)
            .ok(200);
        until_none(&server, "requests");
    }
}

#[test]
fn pages_that_nobody_reads_stay_within_their_budget() {
    let server = server();
    // Uploads are records of the log with many bytes; each page has one text of about its own length and no more.
    for round in 0..4 {
        let lines = (0..200).map(|at| {
            format!(
                "{}\n",
                json!({"module": "sizes", "procedure": "little", "args": {}, "id": at + round})
            )
        });
        server.batch(&lines.collect::<String>());
    }
    let request = "GET /v1/log?limit=1000 HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(4);
    let (grown, most, streams) = while_nobody_reads(&server, request.as_bytes(), "answers");
    assert!(
        most <= BUDGET_BYTES && grown < BUDGET_BYTES + KEPT_BYTES,
        "{} MiB held, grown by {} MiB",
        most >> 20,
        grown >> 20
    );
    drop(streams);
    until_none(&server, "answers");
    assert!(matches!(server.get("/v1/log").ok(200)["records"], Value::Array(_)));
}
