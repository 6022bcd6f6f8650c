//! `overloaded`: more calls than may wait. Batches are slowed down before that. So the test needs many single calls beside them, or three
//! times as many calls as the engine can do. Then some are refused, and the others wait for no more calls than may wait. The wait is
//! counted in calls, so it holds at any speed.

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
/// A wait that ends only by a mistake.
const LONG: Duration = Duration::from_secs(180);

/// One test at a time: each wants the machine for itself.
static MACHINE: Mutex<()> = Mutex::new(());

/// Raises the limit of open files. False: it can't be raised that far.
fn raise_file_limit() -> bool {
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
    let is_enough = limit.rlim_cur > 2 * SINGLES as u64;
    if !is_enough {
        let why = format!("{} open files are not permitted here", 2 * SINGLES);
        reprise_test_crash::skip("overload over many connections", &why);
    }
    is_enough
}

#[test]
fn too_many_waiting_calls_are_refused_with_a_time_to_come_back() {
    let _machine = MACHINE.lock();
    if !raise_file_limit() {
        return;
    }
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
        let refused = find_refused(address, &slow);
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
    stream.set_nonblocking(true).expect("set nonblocking");
    stream
}

/// Sends single calls until one of them is over the limit: it is answered at once, the others not for a long time.
fn find_refused(address: &str, args: &str) -> String {
    let begun = Instant::now();
    let mut singles = Vec::new();
    while begun.elapsed() < LONG {
        match singles.len() < SINGLES {
            true => singles.extend((0..50).map(|_| send_single(address, args))),
            false => thread::sleep(Duration::from_millis(10)),
        }
        let mut refused = None;
        singles.retain_mut(|stream| {
            let mut answer = [0; 2048];
            let Ok(length) = stream.read(&mut answer) else {
                return true; // nothing yet
            };
            let text = String::from_utf8_lossy(&answer[..length]).into_owned();
            if text.starts_with("HTTP/1.1 503") {
                refused = Some(text);
            }
            false
        });
        if let Some(text) = refused {
            return text;
        }
    }
    panic!("no call was refused");
}

/// Calls that may wait for a partition (`reprise_base::limits::WAITING_TXNS_MAX`).
const WAITING_MAX: usize = 5_000;
/// Number of calls offered at least. Without refusals, the last ones would wait for many times the allowed number.
const CALLS_MIN: usize = 60_000;
/// Number of clients. It is large enough that none has more calls on its way than a connection may have. Answers come in order, so a
/// refusal waits for the calls before it.
const CLIENTS: usize = 80;

/// Calls of one connection that the server has taken and not yet answered (`LANE_CALLS_IN_FLIGHT_MAX`). The next constants are the bytes
/// that the server may hold for each, and room for its threads' allocators. A call holds its request, its place in a batch and its outcome.
const TAKEN_MAX: u64 = 256;
const TAKEN_BYTES_MAX: u64 = 4 << 10;
const KEPT_BYTES_MAX: u64 = 128 << 20;

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
                stream.write_all(request().repeat(count).as_bytes()).expect("send");
                let told = read_told(stream, count);
                assert!(told.iter().all(|(is_refused, _)| !is_refused), "{CALLS} calls may wait");
            });
        }
    });
    CALLS as f64 / begun.elapsed().as_secs_f64()
}

/// A call: when it was sent, and its answer.
struct Offered {
    sent: Instant,
    told: Told,
}

/// Sends `rate` calls a second, each when it is due, or later if the machine is not fast enough.
fn offer(address: &str, rate: f64, calls: usize) -> Vec<Offered> {
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
        let mut sent = Vec::with_capacity(calls);
        for call in 0..calls {
            let due = begun + Duration::from_secs_f64(call as f64 / rate);
            let left = due.saturating_duration_since(Instant::now());
            if left > Duration::from_millis(1) {
                thread::sleep(left);
            }
            sent.push(Instant::now());
            streams[call % CLIENTS].write_all(request.as_bytes()).expect("send");
        }
        let by_client: Vec<_> = readers
            .into_iter()
            .map(|reader| reader.join().expect("no panic"))
            .collect();
        let offered = sent.into_iter().enumerate().map(|(call, sent)| Offered {
            sent,
            told: by_client[call % CLIENTS][call / CLIENTS],
        });
        offered.collect()
    })
}

/// Returns for how many accepted calls each accepted one waited: those answered between its sending and its answer. The hundredth part with
/// the longest waits is left out.
fn waited_for(offered: &[Offered]) -> usize {
    let accepted = || offered.iter().filter(|call| !call.told.0);
    let mut ends: Vec<_> = accepted().map(|call| call.told.1).collect();
    ends.sort();
    let before = |at: Instant| ends.partition_point(|end| *end < at);
    let mut counts: Vec<_> = accepted().map(|call| before(call.told.1) - before(call.sent)).collect();
    counts.sort();
    counts[counts.len() * 99 / 100]
}

#[test]
fn three_times_too_many_calls_are_refused_in_part_and_the_others_stay_quick() {
    let _machine = MACHINE.lock();
    let server = Server::start_with(Options {
        partitions: Some(1),
        // A call that a busy machine interrupts may take longer than the usual time.
        settings: "call_time_max_ms = 0",
        is_measured: true,
        ..Options::default()
    });
    server.put_module("probe", probe()).ok(201);
    let mut capacity = capacity(&server.address).max(capacity(&server.address));
    let before = server.resident_bytes();
    for attempt in 1.. {
        let (rate, queue_s) = (3.0 * capacity, WAITING_MAX as f64 / capacity);
        // The queue is full after half the time that it takes.
        let calls = ((rate * (2.0 + queue_s)) as usize).max(CALLS_MIN) / CLIENTS * CLIENTS;
        let begun = Instant::now();
        let offered = offer(&server.address, rate, calls);
        let seconds = begun.elapsed().as_secs_f64();
        let after = server.resident_bytes();
        let refused = offered.iter().filter(|call| call.told.0).count();
        let waited_for = waited_for(&offered);
        println!(
            "capacity {capacity:.0}/s, offered {rate:.0}/s: of {calls} calls {refused} were refused, the others waited for \
             {waited_for} at most; {seconds:.1} s; resident {} MiB before, {} after",
            before >> 20,
            after >> 20,
        );
        // The limit counts calls that may wait, calls that arrive while the answer is on its way, and calls whose answers are on their way.
        assert!(waited_for < 3 * WAITING_MAX, "waited for {waited_for} calls");
        let taken = (CLIENTS as u64 * TAKEN_MAX).min(calls as u64);
        assert!(
            after < before + taken * TAKEN_BYTES_MAX + KEPT_BYTES_MAX,
            "from {} to {} KiB",
            before >> 10,
            after >> 10
        );
        if refused * 5 > calls {
            break;
        }
        assert!(attempt < 8, "few of what is three times too much are refused");
        // The machine did something else when the capacity was measured.
        capacity = capacity.max((calls - refused) as f64 / seconds) * 1.2;
    }
    let begun = Instant::now();
    server.call("echo", json!({"id": 1})).ok(200);
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
}
