//! The behaviour of the API without faults.

use std::{
    io::{Read, Write},
    time::{Duration, Instant},
};

use reprise_test_http::{Options, Server, probe, probe_grown, raw};
use reqwest::Method;
use serde_json::{Value, json};

/// A wait that ends only by a mistake.
const LONG: Duration = Duration::from_secs(120);

fn with_probe(partitions: u16) -> Server {
    Server::with_probe(Options {
        partitions: Some(partitions),
        ..Options::default()
    })
}

#[test]
fn modules_come_change_and_go() {
    let server = Server::start();
    let first = server.put_module("probe", probe());
    let installed = first.ok(201);
    assert_eq!(first.header("location"), Some("/v1/modules/probe"));
    assert_eq!(
        (installed["version"].as_u64(), &installed["replaced"]),
        (Some(1), &Value::Null)
    );
    assert_eq!(installed["tables"], json!(["probe.items"]));
    let again = server.put_module("probe", probe()).ok(200);
    assert_eq!(again["unchanged"], true);
    // A read that waits for this LSN sees the version in service, and waits for nothing else.
    let lsn = again["lsn"].as_str().expect("an LSN").to_owned();
    let number = |lsn: &str| lsn.parse::<u64>().expect("a number");
    assert!(number(&lsn) >= number(installed["lsn"].as_str().expect("an LSN")));
    server.call("put", json!({"id": 1, "amount": 5})).ok(200);
    let headers = [("reprise-min-lsn", lsn.as_str()), ("reprise-max-wait-ms", "1")];
    server.call_with("echo", json!({"id": 1}), &headers).ok(200);
    let grown = server.put_module("probe", probe_grown()).ok(200);
    assert_eq!(
        (grown["version"].as_u64(), grown["replaced"].as_u64()),
        (Some(2), Some(1))
    );
    let detail = server.get("/v1/modules/probe").ok(200);
    let in_service: Vec<_> = detail["versions"]
        .as_array()
        .expect("versions")
        .iter()
        .map(|v| &v["in_service"])
        .collect();
    assert_eq!(in_service, [&json!(false), &json!(true)]);
    let put = &detail["procedures"][0];
    assert_eq!(put["signature"], "put(id: i64, amount: i64)");
    assert_eq!(put["partitioning"], json!({"kind": "by", "parameters": ["id"]}));
    let rows = server.get("/v1/tables/items/rows").ok(200);
    assert_eq!(rows["rows"], json!([{"id": "1", "amount": "5", "note": null}]));
    wait_controls(&server, 3);
    let server = server.restart();
    assert_eq!(server.get("/v1/modules/probe").ok(200)["version"], 2);
    assert_eq!(server.consenting(Method::DELETE, "/v1/modules/probe", b"").status, 204);
    server.call("echo", json!({"id": 1})).problem("not-found", 404);
    assert_eq!(server.get("/v1/modules").ok(200)["modules"], json!([]));
    server.wait_rows("items", 1);
    wait_controls(&server, 5);
    let mut kinds: Vec<Value> = log_kinds(&server);
    // Each act of an operator leaves who did it behind: also one that changed nothing, and one that was refused.
    assert_eq!(kinds.iter().filter(|kind| *kind == "control").count(), 5);
    kinds.retain(|kind| kind != "control");
    assert_eq!(kinds, ["genesis", "deploy", "command", "deploy", "remove"]);
}

/// Waits until the log shows this many acts of operators. A record may be written a little after the answer.
fn wait_controls(server: &Server, count: usize) {
    let begun = Instant::now();
    while log_kinds(server).iter().filter(|kind| *kind == "control").count() < count {
        assert!(begun.elapsed() < LONG, "not {count} acts: {:?}", log_kinds(server));
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn log_kinds(server: &Server) -> Vec<Value> {
    let page = server.get("/v1/log").ok(200);
    page["records"]
        .as_array()
        .expect("records")
        .iter()
        .map(|record| record["kind"].clone())
        .collect()
}

#[test]
fn calls_answer_with_their_transaction() {
    let server = with_probe(3);
    let answer = server.call("echo", json!({"id": "-9223372036854775808"}));
    let body = answer.ok(200);
    assert_eq!(body["result"], "-9223372036854775808");
    assert_eq!(answer.header("reprise-txn-id"), body["txn_id"].as_str());
    assert_eq!(answer.header("reprise-lsn"), body["lsn"].as_str());
    assert!(body["partition"].is_u64());
    let everywhere = server.call("everywhere", json!({"id": 7})).ok(200);
    assert_eq!(
        (everywhere["result"].as_str(), &everywhere["partition"]),
        (Some("7"), &Value::Null)
    );
    let unit = server.call("put", json!({"id": 1, "amount": 2})).ok(200);
    assert_eq!(unit["result"], Value::Null);
    let traced = [("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")];
    let answer = server.call_with("echo", json!({"id": 1}), &traced);
    let context = answer.header("traceparent").expect("continued");
    assert!(context.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && !context.contains("b7ad6b7169203331"));
    let answer = server.call_with("echo", json!({"id": 1}), &[("traceparent", "nonsense")]);
    assert_eq!((answer.status, answer.header("traceparent")), (200, None));
}

#[test]
fn a_batch_answers_each_line_in_order() {
    let server = with_probe(4);
    let call = |procedure: &str, args: Value, id: u32| {
        json!({"module": "probe", "procedure": procedure, "args": args, "id": id}).to_string()
    };
    let mut lines = Vec::new();
    for id in 0..3_000 {
        lines.push(match id % 5 {
            0 => call("stop", json!({"id": id}), id),
            1 => call("none", json!({}), id),
            2 => call("everywhere", json!({"id": id}), id),
            _ => call("put", json!({"amount": 1, "id": id}), id),
        });
    }
    let answers = server.batch(&lines.join("\n"));
    assert_eq!(answers.len(), lines.len());
    for (id, answer) in answers.iter().enumerate() {
        assert_eq!(answer["id"], id);
        let expected = match id % 5 {
            0 => json!("/problems/procedure-aborted"),
            1 => json!("/problems/not-found"),
            _ => Value::Null,
        };
        assert_eq!(answer["problem"]["type"], expected, "{answer}");
        if id % 5 == 2 {
            assert_eq!(
                (&answer["result"], &answer["partition"]),
                (&json!(id.to_string()), &Value::Null)
            );
        }
    }
    server.wait_rows("items", 1_200);
    let odd = "\r\n\n{\"procedure\":\"echo\",\"args\":{\"id\":1},\"module\":\"probe\",\"id\":{\"a\":[1, 2]}}\r\nnonsense\n\
               {\"module\":\"probe\"}\n{\"module\":\"probe\",\"procedure\":\"put\",\"args\":{},\"other\":1}\n\
               {\"module\":\"probe\",\"procedure\":\"put\",\"args\":{\"id\":9000,\"amount\":1},\"idempotency_key\":\"b\"}\n\
               {\"module\":\"probe\",\"procedure\":\"put\",\"args\":{\"id\":9000,\"amount\":1},\"idempotency_key\":\"b\"}";
    let answers = server.batch(odd);
    assert_eq!(
        (&answers[0]["id"], &answers[0]["result"]),
        (&json!({"a": [1, 2]}), &json!("1"))
    );
    for malformed in &answers[1..4] {
        assert_eq!(
            malformed["problem"]["type"], "/problems/malformed-request",
            "{malformed}"
        );
    }
    assert_eq!(answers[4]["txn_id"], answers[5]["txn_id"]);
    assert_eq!(
        (&answers[4]["replayed"], &answers[5]["replayed"]),
        (&Value::Null, &json!(true))
    );
    assert!(server.batch("").is_empty());
}

#[test]
fn a_batch_is_a_conversation() {
    let server = with_probe(1);
    let mut stream = server.connect();
    stream
        .write_all(b"POST /v1/batch HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
        .expect("send");
    let mut seen = String::new();
    for id in 0..5 {
        let line = format!("{{\"module\":\"probe\",\"procedure\":\"echo\",\"args\":{{\"id\":{id}}}}}\n");
        stream
            .write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes())
            .expect("send");
        // The answer comes before the next call is sent.
        while !seen.contains(&format!("\"result\":\"{id}\"")) {
            let mut piece = [0; 1024];
            let length = stream.read(&mut piece).expect("an answer in time");
            assert!(length > 0, "{seen}");
            seen.push_str(&String::from_utf8_lossy(&piece[..length]));
        }
    }
}

#[test]
fn rows_are_paged_by_every_index() {
    let server = with_probe(3);
    let lines: Vec<_> = (0..250)
        .map(|id| {
            json!({"module": "probe", "procedure": "put", "args": {"id": id - 100, "amount": id % 7}}).to_string()
        })
        .collect();
    server.batch(&lines.join("\n"));
    let walk = |query: &str| {
        let (mut rows, mut cursor): (Vec<(i64, i64)>, _) = (Vec::new(), String::new());
        loop {
            let page = server
                .get(&format!("/v1/tables/items/rows?limit=40{query}{cursor}"))
                .ok(200);
            let number = |row: &Value, name: &str| row[name].as_str().expect("a string").parse().expect("a number");
            rows.extend(
                page["rows"]
                    .as_array()
                    .expect("rows")
                    .iter()
                    .map(|r| (number(r, "id"), number(r, "amount"))),
            );
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return rows,
            }
        }
    };
    let by_id = walk("");
    assert_eq!(by_id.len(), 250);
    assert!(by_id.is_sorted_by_key(|row| row.0));
    assert_eq!(walk("&index=primary"), by_id);
    let by_amount = walk("&index=by_amount");
    assert_eq!(by_amount.len(), 250);
    assert!(by_amount.is_sorted_by_key(|row| row.1));
    let fives = walk("&index=by_amount&prefix=5");
    assert_eq!(fives.len(), by_id.iter().filter(|row| row.1 == 5).count());
    assert_eq!(walk("&index=by_amount&prefix=%5B%225%22%5D"), fives);
    assert_eq!(walk("&prefix=-100"), [(-100, 0)]);
    let table = server.wait_rows("items", 250);
    assert_eq!(table["partition_column"], "id");
    assert!(table["bytes"].as_u64().is_some_and(|bytes| bytes > 250 * 16));
    assert_eq!(table["indexes"][1]["name"], "by_amount");
    let cursor = server.get("/v1/tables/items/rows?limit=1").ok(200)["next_cursor"]
        .as_str()
        .expect("more")
        .to_owned();
    server
        .get(&format!("/v1/tables/items/rows?index=by_amount&cursor={cursor}"))
        .problem("malformed-request", 400);
}

/// A server whose log ends with ten calls.
fn with_ten_rows() -> Server {
    let server = with_probe(2);
    for id in 0..10 {
        let key = format!("key {id}");
        let args = json!({"id": id, "amount": 1});
        server.call_with("put", args, &[("idempotency-key", &key)]).ok(200);
    }
    server
}

#[test]
fn the_log_tells_what_happened() {
    let server = with_ten_rows();
    let newest = server.get("/v1/log?order=newest&limit=3").ok(200);
    let records = newest["records"].as_array().expect("records");
    assert_eq!(records.len(), 3);
    assert_eq!(records[0]["args"], json!({"id": "9", "amount": "1"}));
    assert_eq!(
        (records[0]["procedure"].as_str(), records[0]["module"].as_str()),
        (Some("put"), Some("probe"))
    );
    assert_eq!(
        (records[0]["idempotency_key"].as_str(), &records[0]["durable"]),
        (Some("key 9"), &json!(true))
    );
    let lsn = records[1]["lsn"].as_str().expect("an LSN");
    assert_eq!(&server.get(&format!("/v1/log/{lsn}")).ok(200), &records[1]);
    let older = server.get(&format!("/v1/log?order=newest&limit=1&from={lsn}")).ok(200);
    assert_eq!(older["records"][0], records[2]);
}

#[test]
fn the_log_is_paged_and_filtered() {
    let server = with_ten_rows();
    let (mut all, mut from) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/log?limit=4{from}")).ok(200);
        all.extend(page["records"].as_array().expect("records").clone());
        let next = page["next"].as_str().expect("where a follower goes on");
        from = format!("&from={next}");
        if page["next"] == page["end"] {
            break;
        }
    }
    // The genesis, the deployment, the record of who deployed, and the calls.
    assert_eq!(all.len(), 13);
    let at_end = server.get(&format!("/v1/log?limit=4{from}")).ok(200);
    assert_eq!(
        (&at_end["records"], &at_end["next"], &at_end["oldest"]),
        (&json!([]), &at_end["end"], &json!("0"))
    );
    assert_eq!(
        (&all[0]["kind"], &all[1]["kind"]),
        (&json!("genesis"), &json!("deploy"))
    );
    assert_eq!(
        server.get("/v1/log?kind=deploy").ok(200)["records"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    let partition = all[11]["partitions"][0].as_u64().expect("a partition");
    let of_partition = server
        .get(&format!("/v1/log?kind=command&partition={partition}"))
        .ok(200);
    let touched = of_partition["records"].as_array().expect("records");
    assert!(!touched.is_empty() && touched.iter().all(|record| record["partitions"] == json!([partition])));
    server.call("echo", json!({"id": 3})).ok(200);
    let lines = server.get("/v1/procedure-log?limit=1").ok(200);
    assert_eq!(
        (lines["lines"][0]["text"].as_str(), lines["lines"][0]["level"].as_str()),
        (Some("duplicate"), Some("info"))
    );
}

/// Changes of rows have numbers in the log. They are told with the keys that their rows have, and found by them.
#[test]
fn changes_of_rows_are_told_and_found_by_their_keys() {
    let server = Server::start_with(Options {
        partitions: Some(2),
        settings: "[log]\nmode = \"physiological\"",
        ..Options::default()
    });
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let wasm = std::fs::read(root.join("target/procedures/registers.wasm")).expect("`cargo xtask wasm` builds it");
    server.put_module("registers", wasm).ok(201);
    let write = |id: u32, value: Option<u32>| {
        let args = json!({"ids": [id.to_string()], "values": [value.map(|value| value.to_string())], "abort": false});
        let body = args.to_string().into_bytes();
        server.send(Method::POST, "/v1/call/registers/write", &[], body).ok(200);
    };
    write(1, Some(10));
    write(2, Some(20));
    write(2, Some(21));
    write(1, Some(11));
    write(1, None);
    write(1, Some(12));
    let rows = |filter: &str| {
        let page = server.get(&format!("/v1/log?kind=changes{filter}")).ok(200);
        let records = page["records"].as_array().expect("records").clone();
        let rows = records.iter().map(|record| record["rows"][0].clone());
        rows.collect::<Vec<Value>>()
    };
    let told = |row: &Value| {
        let text = |member: &str| row[member].as_str().unwrap_or("none").to_owned();
        (
            text("change"),
            text("number"),
            row["primary_key"].clone(),
            row["columns"]["value"].clone(),
        )
    };
    let seen: Vec<_> = rows("").iter().map(told).collect();
    let expect = |change: &str, number: &str, key: Value, value: Value| (change.into(), number.into(), key, value);
    let none = Value::Null;
    assert_eq!(
        seen,
        [
            expect("insert", "0", none.clone(), json!("10")),
            expect("insert", "0", none.clone(), json!("20")),
            expect("update", "0", json!({"id": "2"}), json!("21")),
            expect("update", "0", none.clone(), json!("11")),
            expect("delete", "0", none.clone(), none.clone()),
            expect("insert", "1", none.clone(), json!("12")),
        ]
    );
    let changes = |filter: &str| {
        let rows = rows(filter);
        rows.iter().map(|row| told(row).0).collect::<Vec<_>>()
    };
    assert_eq!(changes("&key=2"), ["insert", "update"]);
    // The page tells the number that the row had, whose key another one has now.
    assert_eq!(changes("&key=1"), ["insert", "update", "delete", "insert"]);
    assert_eq!(changes("&key=3"), [] as [String; 0]);
    assert_eq!(changes("&key=2&order=newest&limit=1"), ["update"]);
}

#[test]
fn committed_lsn_can_be_read() {
    let server = with_probe(2);
    server.call("put", json!({"id": 1, "amount": 1})).ok(200);
    let committed = server.get("/v1/status").ok(200)["committed_lsn"].clone();
    let read = server.send(
        Method::POST,
        "/v1/call/probe/echo",
        &[
            ("reprise-min-lsn", committed.as_str().expect("an LSN")),
            ("reprise-max-wait-ms", "0"),
            ("content-type", "application/json"),
        ],
        json!({"id": 1}).to_string().into_bytes(),
    );
    read.ok(200);
}

#[test]
fn status_metrics_and_events() {
    let server = with_probe(2);
    server.call("put", json!({"id": 1, "amount": 1})).ok(200);
    let status = server.get("/v1/status").ok(200);
    assert_eq!(
        (status["role"].as_str(), status["partitions"].as_u64()),
        (Some("primary"), Some(2))
    );
    assert_eq!(status["phase"], json!({"name": "ready"}));
    // Both are equal except in the moment in which the log seals its blocks.
    let begun = Instant::now();
    let lsn = |status: &Value, name: &str| -> u64 {
        let text = status[name].as_str().expect("an LSN");
        text.parse().expect("digits")
    };
    let is_durable = |status: Value| lsn(&status, "committed_lsn") + 1 == lsn(&status, "durable_lsn");
    while !is_durable(server.get("/v1/status").ok(200)) {
        assert!(begun.elapsed() < LONG, "what is committed is never durable");
    }
    assert_eq!(server.get("/healthz").ok(200), json!({"status": "ok"}));
    assert_eq!(server.get("/readyz").ok(200)["ready"], true);
    let metrics = server.get("/metrics").text();
    assert!(
        metrics.contains("\nreprise_transactions_committed_total 1\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains("reprise_transaction_latency_seconds_bucket{le=\"+Inf\"}"),
        "{metrics}"
    );
    let fuel = metrics
        .lines()
        .find_map(|line| line.strip_prefix("reprise_fuel_total "));
    let fuel: f64 = fuel.expect("fuel is told").parse().expect("a number");
    assert!(fuel > 0.0, "{metrics}");
    assert!(!metrics.contains("otel_scope"), "{metrics}");
    assert_eq!(procedure_sum(&metrics, "calls", "put", "committed"), 1.0, "{metrics}");
    let mut stream = server.connect();
    stream
        .write_all(b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .expect("send");
    let mut seen = String::new();
    while seen.matches("event: metrics\n").count() < 2 || !seen.contains("event: status\n") {
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).expect("events in time");
        assert!(length > 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&piece[..length]));
    }
    assert!(
        seen.contains("text/event-stream") && seen.contains("\"committed_per_s\""),
        "{seen}"
    );
    // An open stream does not hold a stopping server back.
    assert_eq!(server.terminate(), Some(0));
}

/// Returns one series of `/metrics`, by its last label.
fn procedure_sum(metrics: &str, what: &str, procedure: &str, of: &str) -> f64 {
    let name = format!("reprise_procedure_{what}_total{{");
    let own = [format!("procedure=\"{procedure}\""), format!("\"{of}\"")];
    let mut lines = metrics.lines().filter(|line| line.starts_with(&name));
    let line = lines.find(|line| own.iter().all(|label| line.contains(label.as_str())));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("{what} of {procedure}, {of}: {metrics}"))
}

#[test]
fn each_procedure_has_its_own_counts_and_times() {
    let server = with_probe(2);
    for id in 0..3 {
        server.call("put", json!({"id": id, "amount": 1})).ok(200);
    }
    server
        .call("put", json!({"id": 0, "amount": 1}))
        .problem("procedure-aborted", 422);
    server.call("everywhere", json!({"id": 0})).ok(200);
    for procedure in ["stop", "trap", "spin"] {
        assert_ne!(server.call(procedure, json!({"id": 7})).status, 200, "{procedure}");
    }
    let lines = (0..40).map(|id| json!({"module": "probe", "procedure": "echo", "args": {"id": id}}).to_string());
    server.batch(&lines.collect::<Vec<_>>().join("\n"));
    let metrics = server.get("/metrics").text();
    let ends = [
        ("put", "committed", 3.0),
        ("put", "aborted", 1.0),
        ("put", "refused", 0.0),
        ("stop", "aborted", 1.0),
        ("trap", "trapped", 1.0),
        ("spin", "limit", 1.0),
        ("everywhere", "committed", 1.0),
        ("echo", "committed", 40.0),
    ];
    for (procedure, outcome, count) in ends {
        let own = procedure_sum(&metrics, "calls", procedure, outcome);
        assert_eq!(own, count, "{procedure}, {outcome}");
    }
    for stage in ["queued", "running", "logging"] {
        assert!(
            procedure_sum(&metrics, "seconds", "put", stage) > 0.0,
            "{stage}: {metrics}"
        );
    }
    assert!(
        procedure_sum(&metrics, "seconds", "spin", "running") > 0.001,
        "{metrics}"
    );
    assert!(!metrics.contains("procedure=\"sleepy\""), "not called: {metrics}");
    // The sums are the same for either version.
    server.put_module("probe", probe_grown()).ok(200);
    let call = server.call("put", json!({"id": 3, "amount": 1}));
    call.problem("procedure-trapped", 500);
    let module = server.get("/v1/modules/probe").ok(200);
    let procedures = module["procedures"].as_array().expect("procedures");
    let calls = |name: &str| {
        let own = procedures.iter().find(|procedure| procedure["name"] == name);
        own.map(|own| own["calls"].clone()).expect("a procedure of the probe")
    };
    assert_eq!(
        (&calls("put")["committed"], &calls("put")["trapped"]),
        (&json!(3), &json!(1))
    );
    assert_eq!(calls("sleepy")["committed"], 0);
    assert!(calls("spin")["mean_running_us"].as_u64() > Some(1_000), "{module:#}");
}

#[test]
fn the_description_and_the_pages_are_served() {
    let server = Server::start();
    let openapi = server.get("/openapi.json").ok(200);
    assert!(
        openapi["openapi"]
            .as_str()
            .is_some_and(|version| version.starts_with("3.1"))
    );
    assert!(openapi["paths"]["/v1/call/{module}/{procedure}"]["post"].is_object());
    // Relative, so that they hold below a proxy's path, too.
    for (path, to) in [
        ("/", "console/"),
        ("/console", "console/"),
        ("/docs", "docs/"),
        ("/docs/guide", "guide/"),
        ("/console/tables/items", "../"),
    ] {
        assert_eq!(server.get(path).header("location"), Some(to), "{path}");
    }
    for path in ["/console/", "/console/tables", "/docs/", "/docs/guide/"] {
        let page = server.get(path);
        assert_eq!(page.status, 200, "{path}");
        assert!(
            page.header("content-type")
                .is_some_and(|media| media.starts_with("text/html")),
            "{path}"
        );
    }
    assert_eq!(server.get("/docs/guide/none.html").status, 404);
}

#[test]
fn odd_requests_do_no_harm() {
    let server = with_probe(1);
    let head = "POST /v1/call/probe/put HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    let starts = |request: String, expected: &str| {
        let answer = raw(&server.address, request.as_bytes());
        assert!(answer.starts_with(expected), "{request:.60}: {answer}");
    };
    starts(
        format!("{head}content-length: 5\r\ncontent-length: 6\r\n\r\nhello"),
        "HTTP/1.1 400 ",
    );
    starts(
        format!("{head}transfer-encoding: chunked\r\n\r\nzz\r\n"),
        "HTTP/1.1 400 ",
    );
    starts(
        "GET /v1/log/%ff HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".into(),
        "HTTP/1.1 400 ",
    );
    // Bytes that are no HTTP get an error like all others.
    for (request, status, words) in [
        ("nonsense\r\n\r\n".to_owned(), 400, "can't read"),
        (format!("{head}x: {}\r\n\r\n", "y".repeat(100_000)), 431, "32768 bytes"),
        (format!("{head}{}\r\n", "a: b\r\n".repeat(200)), 431, "64 headers"),
    ] {
        let answer = raw(&server.address, request.as_bytes());
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(head.contains("content-type: application/problem+json"), "{answer}");
        let problem: serde_json::Value = serde_json::from_str(body).expect("a problem document");
        assert_eq!(problem["type"], "/problems/malformed-request", "{answer}");
        assert_eq!(problem["status"], status);
        assert!(
            problem["detail"].as_str().is_some_and(|detail| detail.contains(words)),
            "{answer}"
        );
    }
    // A call whose client is gone before the answer still commits.
    let args = json!({"id": 77, "amount": 1}).to_string();
    let mut stream = server.connect();
    stream
        .write_all(format!("{head}content-length: {}\r\n\r\n{args}", args.len()).as_bytes())
        .expect("send");
    drop(stream);
    let begun = Instant::now();
    while server.get("/v1/tables/items").ok(200)["rows"] != 1 {
        assert!(begun.elapsed() < LONG, "the call of a client that went away was lost");
        std::thread::sleep(Duration::from_millis(10));
    }
}
