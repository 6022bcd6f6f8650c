//! Clients that dribble, stall, stop reading, hang up in the middle or come in hordes. The server answers or disconnects each within its
//! time, its memory does not grow, and it serves others meanwhile.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    thread,
    time::{Duration, Instant},
};

use reprise_test_http::{Options, Server, rest};
use serde_json::json;

/// Waits of which a client that means well has enough, on a machine that does other things, too.
const SETTINGS: &str =
    "[http]\nconnections_max = 40\nheader_wait_s = 3\nbody_wait_s = 3\nbatch_idle_s = 4\nwrite_wait_s = 4";
/// A wait that ends only by a mistake. The waits under test end after seconds, or never.
const LONG: Duration = Duration::from_secs(180);
/// Bytes that a stalled client may make the server hold. Each of four holds a batch's calls and bytes on their way, and their answers.
/// Without limits it would be ten times as much.
const GROWN_BYTES_MAX: u64 = 128 << 20;

fn server() -> Server {
    Server::with_probe(Options {
        settings: SETTINGS,
        partitions: Some(1),
        is_measured: true,
        ..Options::default()
    })
}

/// Writes a byte every 50 ms until the server has had enough; how long it bore that.
fn dribble(stream: &mut TcpStream, bytes: &[u8]) -> Duration {
    let begun = Instant::now();
    stream.set_nodelay(true).expect("set nodelay");
    stream
        .set_read_timeout(Some(Duration::from_millis(50)))
        .expect("set timeout");
    for byte in bytes.iter().cycle() {
        assert!(begun.elapsed() < LONG, "the server bears a dribble for ever");
        if stream.write_all(&[*byte]).is_err() {
            break;
        }
        // Readable: an answer, or the end.
        match stream.peek(&mut [0]) {
            Ok(_) => break,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    stream.set_read_timeout(Some(LONG)).expect("set timeout");
    begun.elapsed()
}

/// Writes a byte every 50 ms until the batch, whose answer has begun, has a refusal or an end; what it answered.
fn dribble_batch(stream: &mut TcpStream) -> String {
    let (begun, mut answer, mut part) = (Instant::now(), String::new(), [0; 4096]);
    let pause = Some(Duration::from_millis(50));
    stream.set_read_timeout(pause).expect("set timeout");
    while !answer.contains("408") && stream.write_all(b" ").is_ok() {
        assert!(begun.elapsed() < LONG, "pieces of a call hold a batch open: {answer}");
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(bytes) => answer.push_str(&String::from_utf8_lossy(&part[..bytes])),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    answer
}

/// Others are served: a call comes back.
#[track_caller]
fn check_served(server: &Server, id: i64) {
    let begun = Instant::now();
    server.call("echo", json!({"id": id})).ok(200);
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
}

#[test]
fn dribbled_heads_and_bodies_are_given_up() {
    let server = server();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = server.connect();
            stream
                .write_all(b"GET /v1/status HTTP/1.1\r\nhost: localhost\r\nx-a: ")
                .expect("send");
            let borne = dribble(&mut stream, b"a");
            assert!(borne < LONG, "{borne:?}");
            let answer = rest(&mut stream);
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
        });
        scope.spawn(|| {
            let mut stream = server.connect();
            let head = b"POST /v1/call/probe/echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n";
            stream.write_all(head).expect("send");
            let borne = dribble(&mut stream, b" ");
            assert!(borne < LONG, "{borne:?}");
            let answer = rest(&mut stream);
            assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        });
        scope.spawn(|| {
            let mut stream = server.connect();
            let head = b"POST /v1/batch HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n{";
            stream.write_all(head).expect("send");
            let answer = dribble_batch(&mut stream);
            assert!(answer.contains("408"), "{answer}");
        });
        scope.spawn(|| {
            let mut stream = server.connect();
            let head = b"POST /v1/batch HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{\"module";
            stream.write_all(head).expect("send");
            let begun = Instant::now();
            let answer = rest(&mut stream);
            assert!(begun.elapsed() < LONG, "a silent batch is given up");
            assert!(answer.contains("408"), "{answer}");
        });
        for id in 0..40 {
            check_served(&server, id);
            thread::sleep(Duration::from_millis(50));
        }
    });
}

#[test]
fn a_client_that_takes_no_answers_is_cut_off_in_bounded_memory() {
    let server = server();
    check_served(&server, 1);
    let before = server.resident_bytes();
    let lines = "{\"module\":\"probe\",\"procedure\":\"echo\",\"args\":{\"id\":7}}\n".repeat(1000);
    let begun = Instant::now();
    let mut streams: Vec<_> = (0..4).map(|_| server.connect()).collect();
    thread::scope(|scope| {
        for stream in &mut streams {
            scope.spawn(|| {
                let head = b"POST /v1/batch HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n";
                stream.write_all(head).expect("send");
                stream.set_write_timeout(Some(LONG)).expect("set timeout");
                let chunk = format!("{:x}\r\n{lines}\r\n", lines.len());
                // 200 MB a client, were all of it taken.
                for _ in 0..3_000 {
                    if stream.write_all(chunk.as_bytes()).is_err() {
                        return;
                    }
                }
                panic!("the server took everything from a client that takes no answers");
            });
        }
        for id in 0..20 {
            check_served(&server, id);
            thread::sleep(Duration::from_millis(50));
        }
    });
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < GROWN_BYTES_MAX, "grown by {} MiB", grown >> 20);
}

/// Rounds of half-closed requests: whether the end comes before or behind the answer is a matter of luck.
const HALF_CLOSED_ROUNDS: i64 = 100;

/// Sends all of `request`, says that nothing follows, and reads until the server closes.
fn half_closed(server: &Server, request: &str) -> String {
    let mut stream = server.connect();
    stream.write_all(request.as_bytes()).expect("send");
    stream.shutdown(Shutdown::Write).expect("half close");
    rest(&mut stream)
}

/// A POST whose body lacks `missing` of its declared bytes.
fn post(path: &str, body: &str, missing: usize) -> String {
    let length = body.len() + missing;
    format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}")
}

#[test]
fn half_closed_connections_get_their_answers() {
    let server = server();
    for id in 0..HALF_CLOSED_ROUNDS {
        let result = format!("\"result\":\"{id}\"");
        let called = half_closed(&server, &post("/v1/call/probe/echo", &format!("{{\"id\":{id}}}"), 0));
        assert!(
            called.starts_with("HTTP/1.1 200") && called.contains(&result),
            "{called:?}"
        );
        let line = format!("{{\"module\":\"probe\",\"procedure\":\"echo\",\"args\":{{\"id\":{id}}}}}\n");
        let answered = half_closed(&server, &post("/v1/batch", &line.repeat(3), 0));
        assert!(answered.starts_with("HTTP/1.1 200"), "{answered:?}");
        assert!(
            answered.matches(&result).count() == 3 && answered.ends_with("\r\n0\r\n\r\n"),
            "{answered:?}"
        );
        let status = half_closed(&server, "GET /v1/status HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let (head, body) = status.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{status:?}"));
        assert!(head.starts_with("HTTP/1.1 200"), "{status:?}");
        serde_json::from_str::<serde_json::Value>(body).expect("a whole status");
    }
    check_served(&server, 1);
}

#[test]
fn requests_that_break_off_are_refused_and_leave_nothing() {
    let server = server();
    for id in 0..HALF_CLOSED_ROUNDS {
        let args = format!("{{\"id\":{id},\"amount\":1}}");
        // All of the arguments, and not all of the body.
        let called = half_closed(&server, &post("/v1/call/probe/put", &args, 1));
        assert!(
            called.starts_with("HTTP/1.1 400") && called.contains("/problems/malformed-request"),
            "{called:?}"
        );
        // A line whose end is missing is no call.
        let line = format!("{{\"module\":\"probe\",\"procedure\":\"put\",\"args\":{args}}}");
        let answered = half_closed(&server, &post("/v1/batch", &line, 1));
        assert!(
            answered.contains("/problems/malformed-request") && !answered.contains("txn_id"),
            "{answered:?}"
        );
        let head = half_closed(&server, "GET /v1/status HTTP/1.1\r\nhost: local");
        assert!(head.is_empty() || head.starts_with("HTTP/1.1 400"), "{head:?}");
    }
    let rows = server.get("/v1/tables/items/rows").ok(200)["rows"].clone();
    assert_eq!(rows, json!([]));
    let begun = Instant::now();
    while server.get("/v1/status").ok(200)["waiting"] != 0 {
        assert!(begun.elapsed() < LONG, "calls that broke off wait");
    }
    check_served(&server, 1);
}

#[test]
fn header_floods_are_refused() {
    let server = server();
    let many = "x-a: b\r\n".repeat(1000);
    let long = format!("x-a: {}\r\n", "b".repeat(100_000));
    let path = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "p".repeat(100_000));
    for request in [
        format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{many}\r\n"),
        format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{long}\r\n"),
        path,
    ] {
        let mut stream = server.connect();
        let _ = stream.write_all(request.as_bytes()); // it may be cut off while it writes
        let answer = rest(&mut stream);
        let is_refused = answer.is_empty() || answer.starts_with("HTTP/1.1 4");
        assert!(is_refused, "{}", &answer[..answer.len().min(200)]);
        check_served(&server, 1);
    }
    // A header without end: the connection does not live on it.
    let mut stream = server.connect();
    let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\n");
    let begun = Instant::now();
    while stream.write_all(&[b'a'; 4096]).is_ok() {
        assert!(begun.elapsed() < LONG, "a header without end is borne for ever");
    }
    check_served(&server, 2);
}

#[test]
fn connections_beyond_the_limit_are_told_so_until_there_is_a_place() {
    let server = server();
    // Silent connections fill every place of this address; the header wait frees them again.
    let idle: Vec<_> = (0..60).map(|_| server.connect()).collect();
    let begun = Instant::now();
    loop {
        let mut late = server.connect();
        let _ = late.write_all(b"GET /v1/tables HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"); // it may be closed
        let answer = rest(&mut late);
        if answer.starts_with("HTTP/1.1 200") {
            break;
        }
        let is_told = answer.starts_with("HTTP/1.1 503") && answer.contains("/problems/overloaded");
        assert!(answer.is_empty() || is_told, "{answer}");
        assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
        thread::sleep(Duration::from_millis(50));
    }
    drop(idle);
    check_served(&server, 1);
}
