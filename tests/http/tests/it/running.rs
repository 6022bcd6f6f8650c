//! Running and waiting calls: their time, their clients' deadlines, and their cancellation. Procedures that never end do so over real HTTP.

use std::{
    thread,
    time::{Duration, Instant},
};

use reprise_test_http::{Answer, Options, Server};
use reqwest::Method;
use serde_json::{Value, json};

/// Long enough for a machine that is busy with other things.
const WAIT_MAX: Duration = Duration::from_secs(120);

pub(crate) const NO_LIMIT: Options = Options {
    tokens: false,
    partitions: Some(1),
    settings: "call_time_max_ms = 0",
    survives_file_limit: false,
    is_measured: false,
};

/// Fuel for about an hour. The usual fuel lasts for some seconds, in which a busy machine may not answer.
const LASTING: &str = r#","fuel_max":100000000000"#;

/// Rows of two integers. Each procedure inserts its arguments and then works on: `fill` while its fuel lasts, some seconds, `steps` for a
/// given number of turns. The fuel of `steps` lasts longer than any test.
fn module() -> Vec<u8> {
    let procedure = |name: &str, partitioning: &str, more: &str| {
        format!(
            r#"{{"name":"{name}","params":[{{"name":"id","type":"i64"}},{{"name":"turns","type":"i64"}}],
            "partitioning":{partitioning}{more}}}"#
        )
    };
    let by_id = r#"{"by":["id"]}"#;
    let procedures = [
        procedure("steps", by_id, LASTING),
        procedure("brief", by_id, r#","time_max_ms":1"#),
        procedure("steps_everywhere", "\"all\"", LASTING),
        procedure("fill", by_id, ""),
    ];
    let description = format!(
        r#"{{"abi":1,"tables":[{{"name":"marks","columns":[{{"name":"id","type":"i64"}},{{"name":"turns","type":"i64"}}],
        "primary_key":["id"],"placement":{{"by":"id"}}}}],"procedures":[{}]}}"#,
        procedures.join(",")
    );
    let description = description.replace('\n', " ").replace('"', "\\\"");
    // Eight divisions weigh a unit of fuel: a call takes as much time as its fuel can buy.
    let divisions = "(local.set $x (f64.div (f64.const 1.5) (local.get $x)))".repeat(64);
    let entries: String = ["steps", "brief", "steps_everywhere"]
        .map(|name| {
            format!(r#"(func (export "reprise_call_{name}") (param i32) (result i32) (call $work) (i32.const 0))"#)
        })
        .concat();
    let text = format!(
        r#"(module (@custom "reprise.describe" "{description}")
          (import "reprise1" "args_read" (func $args_read (param i32)))
          (import "reprise1" "insert" (func $insert (param i32 i64) (result i64)))
          (memory (export "memory") 1 1)
          (func $work (local $x f64) (local $left i64)
            (call $args_read (i32.const 64))
            (drop (call $insert (i32.const 0) (i64.const 0x10_0000_0040)))
            (local.set $x (f64.const 1.1))
            (local.set $left (i64.load (i32.const 72)))
            (loop $again {divisions}
              (local.set $left (i64.sub (local.get $left) (i64.const 1)))
              (br_if $again (i64.gt_s (local.get $left) (i64.const 0)))))
          (func (export "reprise_call_fill") (param i32) (result i32)
            (call $args_read (i32.const 64))
            (loop $again
              (drop (call $insert (i32.const 0) (i64.const 0x10_0000_0040)))
              (i64.store (i32.const 64) (i64.add (i64.load (i32.const 64)) (i64.const 1)))
              (br $again))
            (i32.const 0))
          {entries})"#
    );
    wat::parse_str(text).expect("valid wasm text")
}

pub(crate) fn with_module(options: Options) -> Server {
    let server = Server::start_with(options);
    server.put_module("long", module()).ok(201);
    server
}

fn call(server: &Server, procedure: &str, id: i64, turns: i64, headers: &[(&str, &str)]) -> Answer {
    let body = json!({"id": id, "turns": turns}).to_string().into_bytes();
    server.send(Method::POST, &format!("/v1/call/long/{procedure}"), headers, body)
}

pub(crate) const ENDLESS: i64 = i64::MAX;

fn rows(server: &Server) -> Value {
    server.get("/v1/tables/marks").ok(200)["rows"].clone()
}

#[track_caller]
fn wait_rows(server: &Server, rows: u64) {
    server.wait_rows("marks", rows);
}

/// The listed calls, once `are_there` says that they are all.
pub(crate) fn listed(server: &Server, are_there: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let started = Instant::now();
    loop {
        let list = server.get("/v1/calls").ok(200);
        let calls = list["calls"].as_array().expect("calls").clone();
        if are_there(&calls) {
            return calls;
        }
        assert!(started.elapsed() < WAIT_MAX, "{list}");
        thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn cancel(server: &Server, id: &Value) -> Answer {
    let id = id.as_str().expect("ids are strings");
    server.send(Method::DELETE, &format!("/v1/calls/{id}"), &[], Vec::new())
}

#[test]
fn a_call_ends_at_its_time_and_leaves_nothing() {
    let server = with_module(Options {
        settings: "call_time_max_ms = 20",
        ..NO_LIMIT
    });
    for procedure in ["steps", "steps_everywhere", "brief"] {
        let problem = call(&server, procedure, 1, ENDLESS, &[]).problem("limit-exceeded", 422);
        assert_eq!(problem["limit"], "time", "{problem}");
        assert_eq!(problem["max"], if procedure == "brief" { 1 } else { 20 });
    }
    assert_eq!(rows(&server), 0);
    // Others go on, and a key of a call that was ended is free again.
    let key = [("idempotency-key", "again")];
    call(&server, "steps", 2, ENDLESS, &key).problem("limit-exceeded", 422);
    call(&server, "steps", 2, ENDLESS, &key).problem("limit-exceeded", 422);
    call(&server, "steps", 2, 1, &[]).ok(200);
    let server = server.restart();
    wait_rows(&server, 1);
}

#[test]
fn committed_calls_are_replayed_under_a_smaller_limit() {
    let server = with_module(NO_LIMIT);
    // Turns of half a microsecond: some tens of milliseconds.
    call(&server, "steps", 1, 300_000, &[]).ok(200);
    call(&server, "steps_everywhere", 2, 300_000, &[]).ok(200);
    let server = server.restart_with(Options {
        settings: "call_time_max_ms = 1",
        ..NO_LIMIT
    });
    wait_rows(&server, 2);
    let problem = call(&server, "steps", 3, ENDLESS, &[]).problem("limit-exceeded", 422);
    assert_eq!(problem["limit"], "time");
}

#[test]
fn running_and_waiting_calls_are_listed_and_cancelled() {
    let server = with_module(NO_LIMIT);
    assert_eq!(server.get("/v1/calls").ok(200), json!({"calls": [], "total": 0}));
    thread::scope(|scope| {
        let by_call = scope.spawn(|| call(&server, "steps", 1, ENDLESS, &[]));
        let is_running = |calls: &[Value]| calls.iter().any(|call| call["phase"] == "running");
        let first = listed(&server, is_running)[0].clone();
        assert_eq!(
            (&first["module"], &first["procedure"], &first["partition"]),
            (&json!("long"), &json!("steps"), &json!(0))
        );
        assert!(first["txn_id"].is_string() && first["age_ms"].is_number(), "{first}");
        let queued = scope.spawn(|| call(&server, "steps", 2, 1, &[]));
        let after = scope.spawn(|| call(&server, "steps_everywhere", 3, 1, &[]));
        let calls = listed(&server, |calls| calls.len() == 3);
        let waiting = calls
            .iter()
            .find(|call| call["procedure"] == "steps" && call["phase"] == "queued");
        let waiting = waiting.expect("the second one waits").clone();
        assert_eq!(waiting["txn_id"], Value::Null);
        assert_eq!(
            server.get("/v1/calls?limit=1").ok(200)["calls"]
                .as_array()
                .map(Vec::len),
            Some(1)
        );
        assert_eq!(cancel(&server, &waiting["call_id"]).ok(200)["phase"], "queued");
        assert_eq!(cancel(&server, &first["txn_id"]).ok(200)["phase"], "running");
        by_call.join().expect("answered").problem("cancelled", 422);
        queued.join().expect("answered").problem("cancelled", 422);
        after.join().expect("answered").ok(200);
    });
    wait_rows(&server, 1);
    listed(&server, <[Value]>::is_empty);
    cancel(&server, &json!("4711000")).problem("not-found", 404);
    cancel(&server, &json!("x")).problem("not-found", 404);
    cancel(&server, &json!("0")).problem("not-found", 404);
    server.get("/v1/calls?limit=0").problem("malformed-request", 400);
    let server = server.restart();
    wait_rows(&server, 1);
}

#[test]
fn a_call_of_several_partitions_is_cancelled() {
    let server = with_module(Options {
        partitions: Some(3),
        ..NO_LIMIT
    });
    thread::scope(|scope| {
        let endless = scope.spawn(|| call(&server, "steps_everywhere", 1, ENDLESS, &[]));
        let calls = listed(&server, |calls| calls.iter().any(|call| call["phase"] == "running"));
        assert_eq!(calls[0]["partition"], Value::Null);
        cancel(&server, &calls[0]["call_id"]).ok(200);
        endless.join().expect("answered").problem("cancelled", 422);
    });
    assert_eq!(rows(&server), 0);
    call(&server, "steps_everywhere", 1, 1, &[]).ok(200);
}

#[test]
fn a_deadline_ends_what_runs_and_what_has_not_begun() {
    let server = with_module(NO_LIMIT);
    for name in ["reprise-timeout-ms", "Reprise-Timeout-Ms"] {
        call(&server, "steps", 1, ENDLESS, &[(name, "20")]).problem("deadline-exceeded", 504);
    }
    call(
        &server,
        "steps",
        1,
        ENDLESS,
        &[("reprise-timeout-ms", "20"), ("traceparent", "00-0-0-0")],
    )
    .problem("deadline-exceeded", 504);
    call(&server, "steps_everywhere", 1, ENDLESS, &[("reprise-timeout-ms", "20")]).problem("deadline-exceeded", 504);
    call(&server, "steps", 1, 1, &[("reprise-timeout-ms", "0")]).problem("deadline-exceeded", 504);
    call(&server, "steps", 1, 1, &[("reprise-timeout-ms", "soon")]).problem("malformed-request", 400);
    assert_eq!(rows(&server), 0);
    call(&server, "steps", 1, 1, &[("reprise-timeout-ms", "100000")]).ok(200);
    let line = |id: i64, turns: i64| {
        format!(
            "{}\n",
            json!({"module": "long", "procedure": "steps", "args": {"id": id, "turns": turns}})
        )
    };
    let lines = [line(2, 1), line(3, ENDLESS), line(4, 1)].concat().into_bytes();
    let answer = server.send(Method::POST, "/v1/batch", &[("reprise-timeout-ms", "300")], lines);
    let answers: Vec<Value> = answer
        .text()
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    // The first call may have begun too late if the machine was busy. The others can't have begun in time.
    for late in &answers[1..] {
        assert_eq!(late["problem"]["type"], "/problems/deadline-exceeded", "{answers:?}");
    }
    let bad = server.send(
        Method::POST,
        "/v1/batch",
        &[("reprise-timeout-ms", "-1")],
        line(5, 1).into_bytes(),
    );
    bad.problem("malformed-request", 400);
    let kept = 1 + u64::from(answers[0]["problem"].is_null());
    wait_rows(&server, kept);
    let server = server.restart();
    wait_rows(&server, kept);
}

/// A call with a short deadline behind one that holds the only partition. The server answers it when its deadline passes, over each path,
/// and never runs it.
#[test]
fn waiting_call_is_answered_at_its_deadline_and_never_runs() {
    let server = with_module(NO_LIMIT);
    let soon = [("reprise-timeout-ms", "50")];
    thread::scope(|scope| {
        let endless = scope.spawn(|| call(&server, "steps", 1, ENDLESS, &[]));
        listed(&server, |calls| calls.iter().any(|call| call["phase"] == "running"));
        let keyed = [soon[0], ("idempotency-key", "late")];
        call(&server, "steps", 2, 1, &soon).problem("deadline-exceeded", 504);
        call(&server, "steps", 3, 1, &keyed).problem("deadline-exceeded", 504);
        // The first one with the key waits still: this one waits for it, and not for ever.
        call(&server, "steps", 3, 1, &keyed).problem("deadline-exceeded", 504);
        call(&server, "steps_everywhere", 4, 1, &soon).problem("deadline-exceeded", 504);
        let traced = [soon[0], ("expect", "100-continue")];
        call(&server, "steps", 5, 1, &traced).problem("deadline-exceeded", 504);
        let line = |id: i64| {
            format!(
                "{}\n",
                json!({"module": "long", "procedure": "steps", "args": {"id": id, "turns": 1}})
            )
        };
        let lines = [line(6), line(7), "nonsense\n".to_owned()].concat().into_bytes();
        let answer = server.send(Method::POST, "/v1/batch", &soon, lines);
        let answers: Vec<Value> = answer
            .text()
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        let types: Vec<_> = answers
            .iter()
            .map(|answer| answer["problem"]["type"].as_str().expect("a problem"))
            .collect();
        let late = "/problems/deadline-exceeded";
        assert_eq!(types, [late, late, "/problems/malformed-request"]);
        assert!(
            !endless.is_finished(),
            "all of these were answered while the partition was held"
        );
        // Several calls are ahead on one connection. The server answers those that came in time, in their order.
        let mut stream = std::net::TcpStream::connect(&server.address).expect("connect");
        let request = |id: i64, more: &str| {
            let body = json!({"id": id, "turns": 1}).to_string();
            format!(
                "POST /v1/call/long/steps HTTP/1.1\r\nhost: localhost\r\n{more}content-length: {}\r\n\r\n{body}",
                body.len()
            )
        };
        let ahead = [
            request(8, "reprise-timeout-ms: 50\r\n"),
            request(9, "reprise-timeout-ms: 100\r\n"),
            request(10, ""),
        ];
        std::io::Write::write_all(&mut stream, ahead.concat().as_bytes()).expect("send");
        let mut told = String::new();
        while told.matches("HTTP/1.1 504").count() < 2 {
            let mut piece = [0; 4096];
            let bytes = std::io::Read::read(&mut stream, &mut piece).expect("an answer");
            assert!(bytes > 0, "{told}");
            told += &String::from_utf8_lossy(&piece[..bytes]);
        }
        assert!(!endless.is_finished() && !told.contains("HTTP/1.1 200"), "{told}");
        let running = listed(&server, |calls| calls.iter().any(|call| call["phase"] == "running"));
        let running = running
            .iter()
            .find(|call| call["phase"] == "running")
            .expect("it is there")
            .clone();
        cancel(&server, &running["call_id"]).ok(200);
        endless.join().expect("answered").problem("cancelled", 422);
        let mut piece = [0; 4096];
        let bytes = std::io::Read::read(&mut stream, &mut piece).expect("the last answer");
        assert!(
            piece[..bytes].starts_with(b"HTTP/1.1 200"),
            "{}",
            String::from_utf8_lossy(&piece[..bytes])
        );
    });
    listed(&server, <[Value]>::is_empty);
    // Only the one without a deadline ran.
    wait_rows(&server, 1);
    // The key is free again.
    call(&server, "steps", 3, 1, &[("idempotency-key", "late")]).ok(200);
    let server = server.restart();
    wait_rows(&server, 2);
}

/// Calls that write until their time is over hold the partition while they are taken back, too: that counts.
#[test]
fn no_call_holds_its_partition_for_much_longer_than_its_time() {
    const TIME_MAX: Duration = Duration::from_millis(200);
    let server = with_module(Options {
        settings: "call_time_max_ms = 200",
        ..NO_LIMIT
    });
    let mut held = Vec::new();
    for round in 0..5 {
        let begun = Instant::now();
        let problem = call(&server, "fill", round << 32, 0, &[]).problem("limit-exceeded", 422);
        assert_eq!(problem["limit"], "time", "{problem}");
        held.push(begun.elapsed());
    }
    held.sort();
    let ratio = held[2].as_secs_f64() / TIME_MAX.as_secs_f64();
    println!(
        "calls of {TIME_MAX:?} that write held their partition for {held:?}: {ratio:.2} times their time in the middle"
    );
    assert!(held[2] < TIME_MAX * 5, "{held:?}");
    assert_eq!(rows(&server), 0);
}
