//! `overloaded`: more calls than may wait. Batches are slowed down before that, so it takes many single calls beside them,
//! or three times as many calls as the engine can do: then some are refused, and the others wait no longer than for those
//! that may wait.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use reprise_test_http::{Options, Server, probe};
use serde_json::json;

/// Batches that fill what batches may have waiting, and single calls that go over the whole limit.
const BATCHES: usize = 20;
const SINGLES: usize = 1_500;

/// One test at a time: each wants the machine for itself.
static MACHINE: Mutex<()> = Mutex::new(());

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
    let _machine = MACHINE.lock();
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

/// Calls that may wait for a partition (`reprise_base::limits::WAITING_TXNS_MAX`).
const WAITING_MAX: f64 = 5_000.0;
/// Waits of a machine that does other things, too.
const SLACK: Duration = Duration::from_millis(800);
/// Many enough that none has more on its way than a connection may: answers come in order, so a refusal waits for the
/// calls before it.
const CLIENTS: usize = 80;

/// Calls of one connection that the server has taken and not yet answered (`LANE_CALLS_IN_FLIGHT_MAX`), and what the server
/// may hold for each: its request, its place in a batch, its outcome. Beside them, room for what the allocator keeps.
const TAKEN_MAX: u64 = 256;
const TAKEN_BYTES_MAX: u64 = 4 << 10;
const KEPT_BYTES_MAX: u64 = 32 << 20;

/// A call's answer: whether it was refused, and when it was here.
type Told = (bool, Instant);

/// Reads `count` answers, each a commit or a refusal that says when to come back.
fn read_told(stream: TcpStream, count: usize) -> Vec<Told> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    let mut told = Vec::new();
    for _ in 0..count {
        let (mut head, mut length) = (String::new(), 0);
        loop {
            line.clear();
            let bytes = reader.read_line(&mut line).expect("a line of an answer");
            assert!(bytes > 0, "the server closed after {} answers", told.len());
            line.make_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().expect("a length");
            }
            if line == "\r\n" {
                break;
            }
            head.push_str(&line);
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("a body");
        let is_refused = head.starts_with("http/1.1 503 ");
        if is_refused {
            assert!(head.contains("retry-after: "), "{head}");
            assert!(String::from_utf8_lossy(&body).contains("/problems/overloaded"));
        } else {
            assert!(head.starts_with("http/1.1 200 "), "{head}");
        }
        told.push((is_refused, Instant::now()));
    }
    told
}

fn request() -> String {
    let body = r#"{"id":1,"turns":200000}"#;
    format!(
        "POST /v1/call/probe/sleepy HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Calls a second that the engine does, with enough of them on their way.
fn capacity(address: &str) -> f64 {
    const CALLS: usize = 4_000;
    let begun = Instant::now();
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut stream = TcpStream::connect(address).expect("connect");
                let count = CALLS / CLIENTS;
                stream
                    .write_all(request().repeat(count).as_bytes())
                    .expect("send");
                let told = read_told(stream, count);
                assert!(
                    told.iter().all(|(is_refused, _)| !is_refused),
                    "{CALLS} calls may wait"
                );
            });
        }
    });
    CALLS as f64 / begun.elapsed().as_secs_f64()
}

/// Sends `rate` calls a second, each when it is due; the answers, by call, and what the last was late when it was sent.
fn offer(address: &str, rate: f64, calls: usize) -> (Instant, Vec<Told>, Duration) {
    let mut streams: Vec<_> = (0..CLIENTS)
        .map(|_| TcpStream::connect(address).expect("connect"))
        .collect();
    thread::scope(|scope| {
        let readers: Vec<_> = streams
            .iter()
            .map(|stream| stream.try_clone().expect("clone"))
            .map(|stream| scope.spawn(move || read_told(stream, calls / CLIENTS)))
            .collect();
        let request = request();
        let begun = Instant::now();
        for call in 0..calls {
            let due = begun + Duration::from_secs_f64(call as f64 / rate);
            let left = due.saturating_duration_since(Instant::now());
            if left > Duration::from_millis(1) {
                thread::sleep(left);
            }
            streams[call % CLIENTS]
                .write_all(request.as_bytes())
                .expect("send");
        }
        let late = begun
            .elapsed()
            .saturating_sub(Duration::from_secs_f64(calls as f64 / rate));
        let by_client: Vec<_> = readers
            .into_iter()
            .map(|reader| reader.join().expect("no panic"))
            .collect();
        let told = (0..calls)
            .map(|call| by_client[call % CLIENTS][call / CLIENTS])
            .collect();
        (begun, told, late)
    })
}

/// What became of calls that were offered at a rate.
struct Outcome {
    /// Waits of the accepted, and of the refused, from when each was due; ascending.
    accepted: Vec<Duration>,
    refused: Vec<Duration>,
    late: Duration,
    seconds: f64,
}

fn overload(address: &str, rate: f64, calls: usize) -> Outcome {
    let (begun, told, late) = offer(address, rate, calls);
    let waits = |wanted: bool| {
        let due = |call: usize| begun + Duration::from_secs_f64(call as f64 / rate);
        let calls = told.iter().enumerate().filter(|(_, told)| told.0 == wanted);
        let mut waits: Vec<_> = calls
            .map(|(call, told)| told.1.saturating_duration_since(due(call)))
            .collect();
        waits.sort();
        waits
    };
    Outcome {
        accepted: waits(false),
        refused: waits(true),
        late,
        seconds: begun.elapsed().as_secs_f64(),
    }
}

#[test]
fn three_times_too_many_calls_are_refused_in_part_and_the_others_stay_quick() {
    let _machine = MACHINE.lock();
    let server = Server::start_with(Options {
        partitions: Some(1),
        ..Options::default()
    });
    server.put_module("probe", probe()).ok(201);
    let mut capacity = capacity(&server.address).max(capacity(&server.address));
    let before = server.resident_bytes();
    for attempt in 1.. {
        let (rate, queue_s) = (3.0 * capacity, WAITING_MAX / capacity);
        // The queue is full after half the time that it takes.
        let calls = (rate * (3.0 + queue_s)) as usize / CLIENTS * CLIENTS;
        let outcome = overload(&server.address, rate, calls);
        let Outcome {
            accepted,
            refused,
            late,
            seconds,
        } = &outcome;
        let after = server.resident_bytes();
        let p99 = accepted[accepted.len() * 99 / 100];
        println!(
            "capacity {capacity:.0}/s, offered {rate:.0}/s: accepted {} (p50 {:?}, p99 {p99:?}), refused {} (p99 {:?}); \
             sender {late:?} late at the end; resident {} MiB before, {} after",
            accepted.len(),
            accepted[accepted.len() / 2],
            refused.len(),
            refused.get(refused.len() * 99 / 100),
            before >> 20,
            after >> 20,
        );
        // What may wait takes as long as the server needs for it now, beside the sender and whatever else the machine does.
        let done_per_s = capacity.min(accepted.len() as f64 / seconds);
        let bound = Duration::from_secs_f64(3.0 * WAITING_MAX / done_per_s) + SLACK + *late;
        assert!(p99 < bound, "p99 {p99:?}, bound {bound:?}");
        let taken = (CLIENTS as u64 * TAKEN_MAX).min(calls as u64);
        assert!(
            after < before + taken * TAKEN_BYTES_MAX + KEPT_BYTES_MAX,
            "from {} to {} KiB",
            before >> 10,
            after >> 10
        );
        if refused.len() * 5 > calls {
            break;
        }
        assert!(
            attempt < 4,
            "few of what is three times too much are refused"
        );
        // The machine did something else when the capacity was measured.
        capacity = capacity.max(accepted.len() as f64 / seconds) * 1.2;
    }
    let begun = Instant::now();
    server.call("echo", json!({"id": 1})).ok(200);
    assert!(begun.elapsed() < SLACK, "{:?}", begun.elapsed());
}
