//! `overloaded`: more calls than may wait. Batches are slowed down before that, so it takes many single calls beside them.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use reprise_test_http::{Options, Server, probe};
use serde_json::json;

/// Batches that fill what batches may have waiting, and single calls that go over the whole limit.
const BATCHES: usize = 20;
const SINGLES: usize = 1_500;

fn raise_file_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is valid for the length of each call.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
    assert!(
        limit.rlim_cur > 2 * SINGLES as u64,
        "the test needs {} open files",
        2 * SINGLES
    );
}

#[test]
fn too_many_waiting_calls_are_refused_with_a_time_to_come_back() {
    raise_file_limit();
    let server = Server::start_with(Options {
        partitions: Some(1),
        ..Options::default()
    });
    server.put_module("probe", probe()).ok(201);
    let slow = json!({"id": 1, "turns": 20_000_000}).to_string();
    let line = format!("{{\"module\":\"probe\",\"procedure\":\"sleepy\",\"args\":{slow}}}\n");
    let lines = line.repeat(1_000);
    let stop = AtomicBool::new(false);
    let address = server.address.as_str();
    thread::scope(|scope| {
        for _ in 0..BATCHES {
            scope.spawn(|| {
                let mut stream = TcpStream::connect(address).expect("connect");
                let head = format!(
                    "POST /v1/batch HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
                    lines.len()
                );
                stream.write_all(head.as_bytes()).expect("send head");
                stream.write_all(lines.as_bytes()).expect("send lines");
                while !stop.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(10));
                }
            });
        }
        thread::sleep(Duration::from_millis(500));
        let singles: Vec<_> = (0..SINGLES).map(|_| send_single(address, &slow)).collect();
        let refused = find_refused(singles);
        stop.store(true, Ordering::Relaxed);
        let (head, body) = refused.split_once("\r\n\r\n").expect("head and body");
        let head = head.to_ascii_lowercase();
        assert!(
            head.starts_with("http/1.1 503 ") && head.contains("\r\nretry-after: "),
            "{head}"
        );
        let problem: serde_json::Value = serde_json::from_str(body).expect("a problem");
        assert_eq!(problem["type"], "/problems/overloaded");
    });
    assert_eq!(server.get("/healthz").status, 200);
    assert!(
        server.get("/v1/status").ok(200)["waiting"]
            .as_u64()
            .is_some_and(|waiting| waiting <= 5_000)
    );
}

fn send_single(address: &str, args: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("connect");
    let head = format!(
        "POST /v1/call/probe/sleepy HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        args.len()
    );
    stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(args.as_bytes()))
        .expect("send");
    stream
        .set_read_timeout(Some(Duration::from_millis(20)))
        .expect("set timeout");
    stream
}

/// Those over the limit are answered at once, the others not for a long time.
fn find_refused(singles: Vec<TcpStream>) -> String {
    for mut stream in singles.into_iter().rev() {
        let mut answer = [0; 2048];
        if let Ok(length @ 1..) = stream.read(&mut answer) {
            let text = String::from_utf8_lossy(&answer[..length]).into_owned();
            if text.starts_with("HTTP/1.1 503") {
                return text;
            }
        }
    }
    panic!("no call was refused");
}
