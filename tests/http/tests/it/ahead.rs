//! Requests sent ahead of their answers. The answers come in order, whatever is among them and however the bytes arrive. The answer to
//! doubtful bytes does not depend on the code that reads them. No client takes more than its share.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    os::fd::AsRawFd,
    thread,
    time::{Duration, Instant},
};

use reprise_test_http::{Options, Server, probe, probe_grown, raw, rest};
use serde_json::json;

/// Only a client that takes no answers is to be cut off.
const SETTINGS: &str = "[http]\nconnections_max = 200\nheader_wait_s = 60\nbody_wait_s = 60\nwrite_wait_s = 4";
/// A wait that ends only by a mistake.
const LONG: Duration = Duration::from_secs(180);
/// Bytes that eight clients which take no answers may make the server hold. They are bytes, calls and answers of a pipeline each, and
/// buffers of threads. Without limits it would be six times as much.
const GROWN_BYTES_MAX: u64 = 128 << 20;

fn server() -> Server {
    server_with(SETTINGS)
}

fn server_with(settings: &'static str) -> Server {
    Server::with_probe(Options {
        settings,
        partitions: Some(2),
        is_measured: true,
        ..Options::default()
    })
}

fn call(procedure: &str, body: &str, lines: &str) -> String {
    format!(
        "POST /v1/call/probe/{procedure} HTTP/1.1\r\nhost: localhost\r\n{lines}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn get(path: &str, lines: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n")
}

/// Returns the answers in a text: the status, and the first words of the body.
fn answers(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = text;
    while !left.is_empty() {
        let Some((head, tail)) = left.split_once("\r\n\r\n") else {
            found.push(format!("cut off: {left}"));
            break;
        };
        let status = head.split(' ').nth(1).unwrap_or("none");
        let length = head.to_ascii_lowercase();
        let length = length.split("content-length: ").nth(1).unwrap_or("0");
        let length: usize = length.lines().next().and_then(|text| text.parse().ok()).unwrap_or(0);
        let body = &tail[..length.min(tail.len())];
        let said = body.split(['"', ':', ',']).filter(|word| !word.is_empty()).take(3);
        found.push(format!("{status} {}", said.collect::<Vec<_>>().join(" ")));
        left = &tail[length.min(tail.len())..];
    }
    found
}

/// Calls and their expected answers: every kind of answer, and a request of another kind before the last ones.
fn mixture() -> (String, Vec<&'static str>) {
    let put = |id: u8, amount: u8, lines| call("put", &format!("{{\"id\":{id},\"amount\":{amount}}}"), lines);
    let requests = [
        (call("echo", "{\"id\":1}", ""), "200 { result 1"),
        (put(1, 5, ""), "200 { result null"),
        (put(1, 6, ""), "422 { type /problems/procedure-aborted"),
        (
            call("echo", "{\"id\":\"x\"}", ""),
            "400 { type /problems/invalid-arguments",
        ),
        (call("echo", "{\"id\":", ""), "400 { type /problems/malformed-request"),
        (call("nothing", "{}", ""), "404 { type /problems/not-found"),
        (call("everywhere", "{\"id\":7}", ""), "200 { result 7"),
        (call("stop", "{\"id\":9}", ""), "422 { type /problems/procedure-aborted"),
        (call("trap", "{\"id\":9}", ""), "500 { type /problems/procedure-trapped"),
        (call("flood", "{\"id\":9}", ""), "422 { type /problems/limit-exceeded"),
        (put(2, 5, "idempotency-key: k\r\n"), "200 { result null"),
        (put(2, 5, "idempotency-key: k\r\n"), "200 { result null"),
        (
            put(3, 5, "idempotency-key: k\r\n"),
            "409 { type /problems/idempotency-conflict",
        ),
        (
            put(4, 5, "reprise-safety: 2-safe\r\n"),
            "503 { type /problems/standby-unavailable",
        ),
        (
            put(5, 5, "reprise-safety: best\r\n"),
            "400 { type /problems/malformed-request",
        ),
        (put(5, 5, "reprise-safety: local-sync\r\n"), "200 { result null"),
        (
            call("echo", "{\"id\":3}", "host: else.where\r\n"),
            "400 { type /problems/malformed-request",
        ),
        // This call has no body. A refusal before the body has come costs the connection.
        (
            call("echo", "", "origin: http://else.where\r\n"),
            "403 { type /problems/forbidden",
        ),
        (call("echo", "{\"id\":5}", ""), "200 { result 5"),
        (get("/v1/nothing", ""), "404 { type /problems/not-found"),
        (call("echo", "{\"id\":6}", ""), "200 { result 6"),
        (call("echo", "{\"id\":7}", "connection: close\r\n"), "200 { result 7"),
    ];
    let text = requests.iter().map(|(request, _)| request.as_str()).collect();
    (text, requests.iter().map(|(_, answer)| *answer).collect())
}

#[test]
fn errors_in_the_middle_keep_their_places() {
    let server = server();
    let (requests, expected) = mixture();
    assert_eq!(answers(&raw(&server.address, requests.as_bytes())), expected);
    server.call("echo", json!({"id": 1})).ok(200);
}

#[test]
fn the_answers_do_not_depend_on_how_the_requests_arrive() {
    // A fixed sequence, so that a failure comes again.
    let mut random = 7_u64;
    for piece_max in [1, 3, 40, 400, 2_000] {
        let server = server();
        let (requests, expected) = mixture();
        let mut stream = server.connect();
        let mut left = requests.as_bytes();
        let begun = Instant::now();
        while !left.is_empty() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bytes = ((random >> 33) as usize % piece_max + 1).min(left.len());
            if stream.write_all(&left[..bytes]).is_err() {
                break;
            }
            left = &left[bytes..];
            if piece_max > 3 {
                thread::sleep(Duration::from_micros(300));
            }
        }
        assert_eq!(
            answers(&rest(&mut stream)),
            expected,
            "pieces up to {piece_max}, {:?}",
            begun.elapsed()
        );
    }
}

/// Requests that no reader may take for two, or for something else.
fn doubtful() -> Vec<String> {
    let body = "{\"id\":1}";
    let lines = [
        "content-length: 8\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 8\r\n",
        "transfer-encoding: identity\r\ncontent-length: 8\r\n",
        "transfer-encoding: gzip, chunked\r\n",
        "transfer-encoding: chunked, identity\r\n",
        "content-length: 8\r\ncontent-length: 8\r\n",
        "content-length: 8\r\ncontent-length: 9\r\n",
        "content-length: 8, 8\r\n",
        "content-length: +8\r\n",
        "content-length: -8\r\n",
        "content-length: 0x8\r\n",
        "content-length: 8 8\r\n",
        "content-length: \r\n",
        "content-length: 99999999999999999999999\r\n",
        "content-length: 8\r\nx-a: b\r\n folded\r\n",
        "content-length : 8\r\n",
        "content-length: 8\nx-a: b\r\n",
        "x-a: b\0c\r\ncontent-length: 8\r\n",
        "x\0a: b\r\ncontent-length: 8\r\n",
        ": b\r\ncontent-length: 8\r\n",
        "no colon\r\ncontent-length: 8\r\n",
        "content-length: 8\r\nexpect: 100-continue\r\n",
        "content-length: 8\r\nupgrade: h2c\r\nconnection: upgrade, http2-settings\r\n",
    ];
    let mut requests: Vec<_> = lines
        .iter()
        .map(|lines| format!("POST /v1/call/probe/echo HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n{body}"))
        .collect();
    let line = |line: &str| format!("{line}\r\nhost: localhost\r\ncontent-length: 8\r\n\r\n{body}");
    requests.extend(
        [
            "POST /v1/call/probe/echo HTTP/1.0",
            "POST /v1/call/probe/echo HTTP/2.0",
            "POST /v1/call/probe/echo HTTP/1.1 ",
            "POST /v1/call/probe/echo",
            "POST  /v1/call/probe/echo HTTP/1.1",
            "POST /v1/call/probe/e\tcho HTTP/1.1",
            "POST /v1/call/probe/ec%68o HTTP/1.1",
            "POST /v1/call/probe/echo?x=1 HTTP/1.1",
            "POST /v1/call/probe/../echo HTTP/1.1",
            "POST http://localhost/v1/call/probe/echo HTTP/1.1",
            "P\u{d6}ST /v1/call/probe/echo HTTP/1.1",
            "\r\nPOST /v1/call/probe/echo HTTP/1.1",
        ]
        .map(line),
    );
    let many = "x-a: b\r\n".repeat(100);
    requests.push(format!(
        "POST /v1/call/probe/echo HTTP/1.1\r\n{many}content-length: 8\r\n\r\n{body}"
    ));
    requests.push(format!(
        "POST /v1/call/probe/echo HTTP/1.1\r\nx-a: {}\r\n\r\n",
        "b".repeat(70_000)
    ));
    requests
}

#[test]
fn doubtful_requests_are_told_the_same_at_first_and_after_a_request_of_another_kind() {
    let server = server();
    let after = call("echo", "{\"id\":77}", "connection: close\r\n");
    let told = |before: &str, request: &str| {
        let mut stream = server.connect();
        let _ = stream.write_all(format!("{before}{request}{after}").as_bytes()); // it may be cut off while it writes
        let _ = stream.shutdown(Shutdown::Write); // it may have been closed by the peer
        answers(&rest(&mut stream))
    };
    let other = get("/v1/nothing", "");
    let plain = call("echo", "{\"id\":5}", "");
    for request in doubtful() {
        // A request of another kind comes first, so hyper has the connection from the first byte on.
        let expected = told(&other, &request);
        let shown = &request[..request.len().min(300)];
        assert_eq!(told("", &request), expected[1..], "{shown}");
        // And after a call the connection was a pipeline until now.
        assert_eq!(told(&plain, &request)[1..], expected[1..], "{shown}");
        let is_two = expected.iter().filter(|answer| answer.contains("result 77")).count();
        assert!(is_two <= 1, "{shown}: {expected:?}");
    }
}

#[test]
fn a_length_told_twice_is_refused_and_nothing_behind_it_is_read() {
    let server = server();
    let both = [
        "transfer-encoding: chunked\r\ncontent-length: 4\r\n",
        "content-length: 4\r\ntransfer-encoding: chunked\r\n",
    ];
    let befores = [
        String::new(),
        call("echo", "{\"id\":5}", ""),
        get("/v1/nothing", ""),
        "POST /v1/batch HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
    ];
    for lines in both {
        for before in &befores {
            for path in ["/v1/call/probe/echo", "/v1/batch", "/v1/status"] {
                let request = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n0\r\n\r\n");
                let behind = call("echo", "{\"id\":77}", "");
                let told = raw(&server.address, format!("{before}{request}{behind}").as_bytes());
                assert_eq!(
                    told.matches("both Transfer-Encoding and Content-Length").count(),
                    1,
                    "{told}"
                );
                assert!(
                    told.contains("HTTP/1.1 400 ") && told.contains("/problems/malformed-request"),
                    "{told}"
                );
                assert!(
                    !told.contains("\"result\":\"77\"") && !told.contains("\"result\":77"),
                    "{told}"
                );
            }
        }
    }
}

#[test]
fn a_client_that_sends_ahead_and_takes_no_answers_is_cut_off_in_bounded_memory() {
    let server = server();
    server.call("echo", json!({"id": 1})).ok(200);
    let before = server.resident_bytes();
    let requests = call("echo", "{\"id\":7}", "").repeat(1_000);
    let begun = Instant::now();
    let mut peak = before;
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut stream = server.connect();
                stream.set_write_timeout(Some(LONG)).expect("set timeout");
                // 100 MB a client, were all of it taken.
                for _ in 0..1_000 {
                    if stream.write_all(requests.as_bytes()).is_err() {
                        return;
                    }
                }
                panic!("the server took everything from a client that takes no answers");
            });
        }
        for id in 0..40 {
            server.call("echo", json!({"id": id})).ok(200);
            peak = peak.max(server.resident_bytes());
            thread::sleep(Duration::from_millis(50));
        }
    });
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    let grown = peak.saturating_sub(before);
    assert!(grown < GROWN_BYTES_MAX, "grown by {} KiB", grown >> 10);
}

#[test]
fn half_closed_connections_get_every_answer() {
    let server = server();
    let mut stream = server.connect();
    let requests: String = (0..300)
        .map(|id| call("echo", &format!("{{\"id\":{id}}}"), ""))
        .collect();
    stream.write_all(requests.as_bytes()).expect("send");
    stream.shutdown(Shutdown::Write).expect("half close");
    let expected: Vec<_> = (0..300).map(|id| format!("200 {{ result {id}")).collect();
    assert_eq!(answers(&rest(&mut stream)), expected);
    // The last one is not whole: those before it are answered all the same.
    let mut stream = server.connect();
    stream
        .write_all(&requests.as_bytes()[..requests.len() - 3])
        .expect("send");
    stream.shutdown(Shutdown::Write).expect("half close");
    assert_eq!(answers(&rest(&mut stream))[..299], expected[..299]);
}

#[test]
fn client_that_leaves_in_the_middle_harms_no_other_client() {
    let server = server();
    for round in 0..20_i64 {
        let mut stream = server.connect();
        let ids = 1_000 * round..1_000 * round + 200;
        let requests: String = ids
            .map(|id| call("put", &format!("{{\"id\":{id},\"amount\":{round}}}"), ""))
            .collect();
        stream.write_all(requests.as_bytes()).expect("send");
        if round % 2 == 0 {
            reset_when_closed(&stream);
        }
        drop(stream);
        server.call("echo", json!({"id": round})).ok(200);
    }
    let begun = Instant::now();
    while server.get("/v1/status").ok(200)["waiting"] != 0 {
        assert!(begun.elapsed() < LONG, "calls of clients that are gone wait for ever");
    }
    // Calls that ran, ran whole: an id is free or taken, and can be told.
    for id in [0, 199, 1_000, 19_199] {
        let status = server.call("put", json!({"id": id, "amount": 1})).status;
        assert!(status == 200 || status == 422, "{status}");
    }
}

/// A close by reset, as when a process is killed with input unread.
fn reset_when_closed(stream: &TcpStream) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: the pointer and the length are those of a live `linger`.
    let outcome = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
    assert_eq!(outcome, 0);
}

#[test]
fn calls_whose_module_is_replaced_on_their_way_run_with_the_new_one() {
    let server = server();
    let requests: String = (0..100)
        .map(|id| call("echo", &format!("{{\"id\":{id}}}"), ""))
        .collect();
    thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut stream = server.connect();
            let mut text = String::new();
            let mut rounds = 0;
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(2) {
                stream.write_all(requests.as_bytes()).expect("send");
                let mut buffer = vec![0; 64 << 10];
                while text.matches("HTTP/1.1 ").count() < 100 || !text.ends_with('}') {
                    let bytes = stream.read(&mut buffer).expect("an answer");
                    assert!(bytes > 0, "the server closed: {text}");
                    text += &String::from_utf8_lossy(&buffer[..bytes]);
                }
                let expected: Vec<_> = (0..100).map(|id| format!("200 {{ result {id}")).collect();
                assert_eq!(answers(&text), expected);
                text.clear();
                rounds += 1;
            }
            rounds
        });
        // And each alone, with others beside it.
        for client in 0..20 {
            let server = &server;
            scope.spawn(move || {
                let (mut stream, mut text) = (server.connect(), String::new());
                for id in client * 1_000..client * 1_000 + 300 {
                    let request = call("echo", &format!("{{\"id\":{id}}}"), "");
                    stream.write_all(request.as_bytes()).expect("send");
                    let told = answer(&mut stream, &mut text);
                    assert_eq!(told, format!("200 {{ result {id}"));
                }
            });
        }
        // And batches, with keys, arguments that come before the procedure's name, and none at all.
        scope.spawn(|| {
            for round in 0..100 {
                let put = |id: u32| {
                    let key = id
                        .is_multiple_of(3)
                        .then(|| format!(r#","idempotency_key":"{round}-{id}""#));
                    format!(
                        r#"{{"args":{{"id":{},"amount":1}},"module":"probe","procedure":"put"{}}}"#,
                        round * 1_000 + id,
                        key.unwrap_or_default()
                    )
                };
                let echo = |id: u32| format!(r#"{{"module":"probe","procedure":"echo","args":{{"id":{id}}}}}"#);
                let lines: Vec<_> = (0..100).flat_map(|id| [put(id), echo(id)]).collect();
                let answers = server.batch(&lines.join("\n"));
                for (at, answer) in answers.iter().enumerate() {
                    let expected = match at % 2 {
                        0 => json!(null),
                        _ => json!((at / 2).to_string()),
                    };
                    assert_eq!(answer["result"], expected, "{answer}");
                }
                assert_eq!(answers.len(), 200);
            }
        });
        for round in 0..12 {
            let module = if round % 2 == 0 { probe_grown() } else { probe() };
            let status = server.put_module("probe", module).status;
            // The table does not lose its new column again.
            assert!(status == 200 || status == 409, "{status}");
            thread::sleep(Duration::from_millis(100));
        }
        assert!(client.join().expect("the client") > 0);
    });
}

#[test]
fn a_stopping_server_answers_what_it_took_and_says_that_it_closes() {
    // A call that a busy machine interrupts may take longer than the usual time.
    let server = server_with(format!("call_time_max_ms = 0\n{SETTINGS}").leak());
    let mut idle = server.connect();
    let mut stream = server.connect();
    let slow = call("sleepy", "{\"id\":1,\"turns\":10000000}", "");
    stream.write_all(slow.repeat(30).as_bytes()).expect("send");
    while server.get("/v1/status").ok(200)["waiting"] == 0 {
        thread::yield_now();
    }
    let reader = thread::spawn(move || rest(&mut stream));
    assert_eq!(server.terminate(), Some(0));
    let text = reader.join().expect("no panic");
    let answers = answers(&text);
    assert_eq!(answers, vec!["200 { result null"; answers.len()], "{text}");
    assert!(!answers.is_empty());
    assert!(text.contains("connection: close\r\n"), "{text}");
    assert_eq!(rest(&mut idle), "");
}

/// Reads one answer.
fn answer(stream: &mut TcpStream, text: &mut String) -> String {
    let mut buffer = [0; 4096];
    loop {
        if let Some((head, tail)) = text.split_once("\r\n\r\n") {
            let length = head
                .split("content-length: ")
                .nth(1)
                .and_then(|text| text.lines().next());
            let length: usize = length.expect("a length").parse().expect("a number");
            if tail.len() >= length {
                let rest = tail[length..].to_owned();
                let whole = text[..head.len() + 4 + length].to_owned();
                *text = rest;
                return answers(&whole).remove(0);
            }
        }
        let bytes = stream.read(&mut buffer).expect("an answer");
        assert!(bytes > 0, "the server closed: {text}");
        *text += &String::from_utf8_lossy(&buffer[..bytes]);
    }
}

#[test]
fn single_calls_of_many_connections_each_get_their_own_answers() {
    const CLIENTS: i64 = 60;
    const ROUNDS: i64 = 60;
    let server = server();
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let server = &server;
            scope.spawn(move || {
                let mut stream = server.connect();
                let mut text = String::new();
                for round in 0..ROUNDS {
                    let id = client * ROUNDS + round;
                    let put = format!("{{\"id\":{id},\"amount\":{client}}}");
                    for (request, expected) in [
                        (call("put", &put, ""), "200 { result null".to_owned()),
                        (
                            call("put", &put, ""),
                            "422 { type /problems/procedure-aborted".to_owned(),
                        ),
                        (
                            call("echo", &format!("{{\"id\":{id}}}"), ""),
                            format!("200 {{ result {id}"),
                        ),
                        (
                            call("echo", "{}", ""),
                            "400 { type /problems/invalid-arguments".to_owned(),
                        ),
                        (
                            call("everywhere", &format!("{{\"id\":{id}}}"), ""),
                            format!("200 {{ result {id}"),
                        ),
                    ] {
                        stream.write_all(request.as_bytes()).expect("send");
                        assert_eq!(answer(&mut stream, &mut text), expected, "{id}");
                    }
                }
            });
        }
    });
    server.wait_rows("items", (CLIENTS * ROUNDS) as u64);
}

#[test]
fn a_head_that_came_before_is_judged_by_its_own_token() {
    let server = Server::start_with(Options {
        tokens: true,
        ..Options::default()
    });
    let admin = [("authorization", "Bearer secret-admin")];
    server
        .send(reqwest::Method::PUT, "/v1/modules/probe", &admin, probe())
        .ok(201);
    let mut stream = server.connect();
    let mut text = String::new();
    let mut told = |procedure: &str, token: &str, id: i64| {
        let body = format!("{{\"id\":{id},\"amount\":1}}");
        let body = if procedure == "echo" {
            format!("{{\"id\":{id}}}")
        } else {
            body
        };
        let line = format!("authorization: Bearer {token}\r\n");
        stream
            .write_all(call(procedure, &body, &line).as_bytes())
            .expect("send");
        answer(&mut stream, &mut text)
    };
    for id in 10..20 {
        assert_eq!(told("put", "secret-write", id), "200 { result null");
        assert_eq!(told("put", "secret-read!", id), "401 { type /problems/unauthorized");
        assert_eq!(told("put", "secret-read", id), "403 { type /problems/forbidden");
        assert_eq!(told("echo", "secret-read", id), format!("200 {{ result {id}"));
        assert_eq!(told("echo", "secret-none", id), "401 { type /problems/unauthorized");
    }
}
