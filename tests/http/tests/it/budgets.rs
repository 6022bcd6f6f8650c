//! Memory that clients may make the server hold, whatever they ask for and however little they read. Results, texts, pages and requests on
//! their way each have a budget over all connections. `/v1/status` reports it, and it is released again.

use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use reprise_test_http::{Options, Server, raw};
use serde_json::{Value, json};

/// A wait that ends only by a mistake.
const LONG: Duration = Duration::from_secs(180);
/// Settings with the limit below: results and texts have 32 MiB each, and so have requests.
const SETTINGS: &str = "memory_max = \"512MiB\"\n[http]\nwrite_wait_s = 20\nbody_wait_s = 20\nbatch_idle_s = 20";
const BUDGET_BYTES: u64 = 32 << 20;
/// Bytes by which a run may pass its budget: results of calls that began while there was room, and unfinished texts.
const BESIDE_BYTES: u64 = 64 << 20;
/// Freed bytes that the allocators of the server's threads keep.
const KEPT_BYTES: u64 = 64 << 20;
const CLIENTS: usize = 60;

/// Procedures whose results are large: `big` has 3 MB of bytes, 4 MB as text; `long` stores nothing and takes a text, and `slow` takes its time.
fn module() -> Vec<u8> {
    let description = r#"{"abi":1,"tables":[],"procedures":[
        {"name":"big","params":[],"returns":"bytes","read_only":true,"partitioning":"any"},
        {"name":"little","params":[],"returns":"i64","read_only":true,"partitioning":"any"},
        {"name":"slow","params":[],"returns":"i64","read_only":true,"partitioning":"any"},
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
          (func (export "reprise_call_slow") (param i32) (result i32) (local $left i32)
            (local.set $left (i32.const 100000000))
            (loop $again (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
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
    server_with(SETTINGS)
}

fn server_with(settings: &'static str) -> Server {
    let server = Server::start_with(Options {
        settings,
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

/// Sends `request` over many connections that read nothing, and watches the server meanwhile. Returns its greatest growth, and the most
/// that it held of a kind.
fn without_a_reader(server: &Server, request: &[u8], kind: &str) -> (u64, u64, Vec<TcpStream>) {
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
fn unread_answers_stay_within_their_budget() {
    let server = server();
    let single = "POST /v1/call/sizes/big HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}".repeat(8);
    let line = "{\"module\":\"sizes\",\"procedure\":\"big\",\"args\":{}}\n".repeat(40);
    let batch = format!(
        "POST /v1/batch HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{line}",
        line.len()
    );
    for request in [single, batch] {
        let (grown, most, streams) = without_a_reader(&server, request.as_bytes(), "answers");
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
        // A client that reads is answered again.
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
        let (grown, most, mut streams) = without_a_reader(&server, request.as_bytes(), "requests");
        assert!(
            most > 0 && most <= BUDGET_BYTES,
            "{} MiB of requests are held",
            most >> 20
        );
        assert!(grown < BUDGET_BYTES + KEPT_BYTES, "grown by {} MiB", grown >> 20);
        // Clients for whom there was no room were told so.
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

/// Few clients, because their calls are slow.
const SLOW_CLIENTS: usize = 8;

/// Blank lines are no calls. A waiting call keeps the blank lines beside it in memory.
#[test]
fn blank_lines_count_for_as_long_as_a_call_beside_them_waits() {
    let server = server();
    little(&server);
    let line = "\n{\"module\":\"sizes\",\"procedure\":\"slow\",\"args\":{}}\n";
    let body = format!("{}{line}", " ".repeat((2 << 20) - 1024)).repeat(16);
    let head = format!(
        "POST /v1/batch HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let before = server.resident_bytes();
    let connect = || {
        let mut stream = TcpStream::connect(&server.address).expect("connect");
        stream
            .set_write_timeout(Some(Duration::from_millis(500)))
            .expect("set timeout");
        let _ = stream.write_all(format!("{head}{body}").as_bytes()); // the server reads no further at some point
        stream
    };
    // On a busy machine the first calls may be over when the last client is there.
    let mut most = 0;
    let mut streams = Vec::new();
    for _ in 0..SLOW_CLIENTS {
        streams.push(connect());
        most = most.max(held(&server, "requests"));
    }
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(most > 2 << 20, "{most} bytes of requests are held");
    let bound = BUDGET_BYTES + BESIDE_BYTES;
    assert!(
        most < bound && grown < bound + KEPT_BYTES,
        "{} MiB held, grown by {} MiB",
        most >> 20,
        grown >> 20
    );
    drop(streams);
    until_none(&server, "requests");
}

#[test]
fn unread_pages_stay_within_their_budget() {
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
    let (grown, most, streams) = without_a_reader(&server, request.as_bytes(), "answers");
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

/// A procedure with many parameters, each with a long name: a call without arguments has as many mistakes.
fn with_many_parameters() -> Vec<u8> {
    let params: Vec<_> = (0..64)
        .map(|at| format!(r#"{{"name":"p{at}{}","type":"i64"}}"#, "x".repeat(55)))
        .collect();
    let description = format!(
        r#"{{"abi":1,"tables":[],"procedures":[{{"name":"many","params":[{}],"returns":"unit","read_only":true,"partitioning":"any"}}]}}"#,
        params.join(",")
    );
    let text = format!(
        r#"(module (@custom "reprise.describe" "{}") (memory (export "memory") 1)
          (func (export "reprise_call_many") (param i32) (result i32) (i32.const 0)))"#,
        description.replace('"', "\\\"")
    );
    wat::parse_str(text).expect("valid wasm text")
}

/// The texts of refused calls are counted and few: of many mistakes in one call the server tells the first.
#[test]
fn unread_texts_of_refused_calls_are_few_and_counted() {
    let server = server();
    server.put_module("many", with_many_parameters()).ok(201);
    let pipelined = "POST /v1/call/many/many HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}"
        .replace("host: a", "host: localhost");
    let line = "{\"module\":\"many\",\"procedure\":\"many\",\"args\":{}}\n".repeat(50_000);
    let batch = format!(
        "POST /v1/batch HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{line}",
        line.len()
    );
    // The kernel takes some ten megabytes of answers for a client that reads nothing.
    for request in [pipelined.repeat(50_000), batch] {
        let (grown, most, streams) = without_a_reader(&server, request.as_bytes(), "requests");
        assert!(
            most > 1 << 20 && most <= BUDGET_BYTES + BESIDE_BYTES,
            "{} KiB are held",
            most >> 10
        );
        assert!(grown < 2 * BUDGET_BYTES + BESIDE_BYTES, "grown by {} MiB", grown >> 20);
        drop(streams);
        until_none(&server, "requests");
        until_none(&server, "answers");
    }
    // One call gets all of its mistakes.
    let one = server.send(reqwest::Method::POST, "/v1/call/many/many", &[], b"{}".to_vec());
    let problem = one.problem("invalid-arguments", 400);
    assert_eq!(problem["errors"].as_array().map(Vec::len), Some(64));
}

/// An endless head is in memory once, and is counted. Once requests take all of their budget, its client gets an error.
#[test]
fn unfinished_heads_are_counted_and_lie_in_memory_once() {
    const HEADS: usize = 400;
    let server = server();
    let head = format!(
        "GET /v1/status HTTP/1.1\r\nhost: localhost\r\nx-a: {}",
        "a".repeat(30 << 10)
    );
    little(&server);
    let before = server.resident_bytes();
    let open = |head: &str| {
        let mut stream = TcpStream::connect(&server.address).expect("connect");
        stream.write_all(head.as_bytes()).expect("send");
        stream
    };
    let streams: Vec<_> = (0..HEADS).map(|_| open(&head)).collect();
    let begun = Instant::now();
    while held(&server, "requests") < (HEADS as u64) * (28 << 10) {
        assert!(
            begun.elapsed() < Duration::from_secs(15),
            "{} bytes are counted",
            held(&server, "requests")
        );
        thread::sleep(Duration::from_millis(20));
    }
    let counted = held(&server, "requests") + held(&server, "connections");
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(
        grown < counted * 2,
        "grown by {} MiB, {} MiB are counted",
        grown >> 20,
        counted >> 20
    );
    // The rest of a head makes it a request like any other.
    for mut stream in streams.into_iter().take(3) {
        stream.write_all(b"\r\nconnection: close\r\n\r\n").expect("send");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    until_none(&server, "requests");
    // Bodies that do not end take all there is.
    let body = "x".repeat((1 << 20) + 1);
    let call = format!(
        "POST /v1/call/sizes/long HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len() + 1
    );
    let (_, _, _bodies) = without_a_reader(&server, call.as_bytes(), "requests");
    let mut heads = Vec::new();
    let told = (0..HEADS).find_map(|_| {
        let mut stream = open(&head);
        stream
            .set_read_timeout(Some(Duration::from_millis(20)))
            .expect("set timeout");
        let mut answer = [0; 256];
        let bytes = stream.read(&mut answer).unwrap_or(0);
        heads.push(stream);
        (bytes > 0).then(|| String::from_utf8_lossy(&answer[..bytes]).into_owned())
    });
    let told = told.expect("there is no room for all of them");
    assert!(told.starts_with("HTTP/1.1 503 "), "{told}");
    little(&server);
}

/// A wait for the kernel to take no more. The server disconnects a client later that reads nothing.
const HOLD_PATIENCE: Duration = Duration::from_secs(40);
/// Bytes of the answers that hold all room, or more: a text of 4 MB waits for the rest.
const FULL_BYTES: u64 = BUDGET_BYTES - (4 << 20);

/// Requests large results on a few connections that read nothing, until the kernel takes no more of them. Their texts hold all room.
fn hold_all_room(server: &Server) -> Vec<TcpStream> {
    let call = "POST /v1/call/sizes/big HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}";
    let connect = |_| TcpStream::connect(&server.address).expect("connect");
    let mut streams: Vec<_> = (0..12).map(connect).collect();
    let (begun, mut bytes, mut equal_looks) = (Instant::now(), 0, 0);
    // A call that finds no room for its result is refused, and the next one may find some.
    while bytes < FULL_BYTES || equal_looks < 12 {
        assert!(begun.elapsed() < HOLD_PATIENCE, "{bytes} bytes of answers are held");
        for stream in &mut streams {
            stream.write_all(call.as_bytes()).expect("send");
        }
        thread::sleep(Duration::from_millis(150));
        let now = held(server, "answers");
        // The server's short answers are counted, too.
        equal_looks = if now.abs_diff(bytes) < 64 << 10 {
            equal_looks + 1
        } else {
            0
        };
        bytes = now;
    }
    streams
}

/// While unread answers hold all room, every path of the API waits for some and is refused; a new path needs no code for that. Paths with
/// short answers are answered, because an operator needs them just then.
#[test]
fn every_answer_of_the_api_waits_for_room_but_the_short_ones() {
    let server = server_with(SETTINGS.replace("write_wait_s = 20", "write_wait_s = 60").leak());
    let streams = hold_all_room(&server);
    let description = server.get("/openapi.json").ok(200);
    let paths = description["paths"].as_object().expect("paths").clone();
    let mut asked: Vec<_> = paths
        .into_iter()
        .filter(|(_, item)| item.get("get").is_some())
        .map(|(path, _)| path)
        .collect();
    // The usual list is short, and this one is not.
    asked.push("/v1/calls?limit=1000".to_owned());
    let answered = thread::scope(|scope| {
        let ask = |path: &String| {
            let own = path.replace(['{', '}'], "");
            let request = format!("GET {own} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
            match path == "/v1/events" {
                true => "HTTP/1.1 200".to_owned(), // which has no end
                false => raw(&server.address, request.as_bytes()),
            }
        };
        let all: Vec<_> = asked
            .iter()
            .map(|path| (path, scope.spawn(move || ask(path))))
            .collect();
        all.into_iter()
            .map(|(path, answer)| (path.clone(), answer.join().expect("no panic")))
            .collect::<Vec<_>>()
    });
    let (refused, others): (Vec<_>, Vec<_>) = answered
        .into_iter()
        .partition(|(_, answer)| answer.starts_with("HTTP/1.1 503 ") && answer.contains("/problems/overloaded"));
    let others: Vec<_> = others.into_iter().map(|(path, _)| path).collect();
    let expected = [
        "/healthz",
        "/metrics",
        "/problems/{slug}",
        "/readyz",
        "/v1/calls",
        "/v1/events",
        // There is no such key and no such record, and an answer that says so is short.
        "/v1/idempotency/{key}",
        "/v1/log/{lsn}",
        "/v1/replication",
        "/v1/status",
    ];
    assert_eq!(others, expected, "answered; refused are {}", refused.len());
    drop(streams);
    server.get("/v1/modules").ok(200);
}

/// Reads that wait for an LSN hold no room while they wait, so other answers find some.
#[test]
fn reads_that_wait_for_an_lsn_hold_no_room() {
    let server = server();
    let request = "GET /v1/tables/nothing/rows HTTP/1.1\r\nhost: localhost\r\nreprise-min-lsn: 999999999\r\n\
                   reprise-max-wait-ms: 60000\r\n\r\n";
    let ask = |_| {
        let mut stream = TcpStream::connect(&server.address).expect("connect");
        stream.write_all(request.as_bytes()).expect("send");
        stream
    };
    let waiting: Vec<_> = (0..CLIENTS).map(ask).collect();
    thread::sleep(Duration::from_millis(500));
    assert_eq!(held(&server, "answers"), 0);
    let begun = Instant::now();
    server.get("/v1/modules").ok(200);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    drop(waiting);
}
