//! Spans of calls reach an OpenTelemetry collector, in the trace that the caller began.

use std::{
    io::{Read, Write},
    net::TcpListener,
    sync::mpsc,
    thread,
    time::Duration,
};

use reprise_test_http::{Options, Server};
use serde_json::json;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// Takes OTLP over HTTP and hands on each body; its address.
fn collector() -> (String, mpsc::Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("address").to_string();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("accept");
            let sender = sender.clone();
            thread::spawn(move || {
                let mut received = Vec::new();
                let mut piece = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut piece) {
                    received.extend_from_slice(&piece[..count]);
                    let Some(end) = received.windows(4).position(|w| w == b"\r\n\r\n") else {
                        continue;
                    };
                    let head = String::from_utf8_lossy(&received[..end]).to_lowercase();
                    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                    let length: usize = length.expect("a length").parse().expect("a number");
                    if received.len() < end + 4 + length {
                        continue;
                    }
                    let body = received[end + 4..end + 4 + length].to_vec();
                    let _ = sender.send((head, body)); // the test may be over
                    received.drain(..end + 4 + length);
                    let answer =
                        b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
                    stream.write_all(answer).expect("answer");
                }
            });
        }
    });
    (address, receiver)
}

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2)
        .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hexadecimal"))
        .collect()
}

#[test]
fn a_call_and_a_batch_become_spans_of_the_callers_trace() {
    let (address, spans) = collector();
    let settings = format!("otlp_endpoint = \"http://{address}\"");
    let server = Server::with_probe(Options {
        settings: settings.leak(),
        ..Options::default()
    });
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let traced = [("traceparent", parent.as_str())];
    let answer = server.call_with("echo", json!({"id": 1}), &traced);
    assert_eq!(answer.status, 200);
    let continued = answer.header("traceparent").expect("continued").to_owned();
    assert!(continued.starts_with(&format!("00-{TRACE}-")) && !continued.contains(PARENT));
    let txn_id = answer.header("reprise-txn-id").expect("an id").to_owned();
    server
        .call_with("stop", json!({"id": 1}), &traced)
        .problem("procedure-aborted", 422);
    let unsampled = format!("00-{TRACE}-{PARENT}-00");
    server.call_with(
        "text_length",
        json!({"id": 1, "text": ""}),
        &[("traceparent", &unsampled)],
    );
    let line = r#"{"module":"probe","procedure":"echo","args":{"id":1}}"#;
    let lines = format!("{line}\n{{}}\n");
    server.send(reqwest::Method::POST, "/v1/batch", &traced, lines.into_bytes());
    // The server sends its collected spans when it is told to stop.
    assert_eq!(server.terminate(), Some(0));
    let mut all = Vec::new();
    while let Ok((head, body)) = spans.recv_timeout(Duration::from_secs(1)) {
        assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
        all.extend_from_slice(&body);
    }
    let has = |bytes: &[u8]| all.windows(bytes.len()).any(|window| window == bytes);
    assert!(
        has(&bytes_of(TRACE)) && has(&bytes_of(PARENT)),
        "the caller's trace goes on"
    );
    assert!(has(&bytes_of(&continued[36..52])), "under the id that the answer told");
    for text in [
        "call",
        "batch",
        "reprise.module",
        "probe",
        "reprise.procedure",
        "echo",
        "committed",
        "stop",
        "procedure-aborted",
        "reprise.calls_failed",
        "reprise.queue_us",
        "reprise.run_us",
        "reprise.log_us",
        "service.name",
        "reprise",
        &txn_id,
    ] {
        assert!(has(text.as_bytes()), "{text}");
    }
    assert!(!has(b"text_length"), "what the caller does not sample is not sent");
}

#[test]
fn a_collector_that_is_gone_harms_no_call() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let settings = format!("otlp_endpoint = \"http://{}\"", listener.local_addr().expect("address"));
    drop(listener);
    let server = Server::with_probe(Options {
        settings: settings.leak(),
        ..Options::default()
    });
    for id in 0..5000 {
        server.call("echo", json!({"id": id})).ok(200);
    }
    assert_eq!(server.terminate(), Some(0));
}
