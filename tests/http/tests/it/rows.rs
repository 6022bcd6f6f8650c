//! Looking into tables: ranges, order, conditions, columns, counts and sums, CSV; and what procedures logged.

use std::thread;

use reprise_test_crash::procedure_wasm;
use reprise_test_http::{Options, Server};
use reqwest::Method;
use serde_json::{Value, json};

/// A hundred rows, `amount` the id modulo 7.
fn server() -> Server {
    server_with("")
}

fn server_with(settings: &'static str) -> Server {
    let server = Server::with_probe(Options {
        partitions: Some(2),
        settings,
        ..Options::default()
    });
    let line = |id: i64| {
        format!(
            "{{\"module\":\"probe\",\"procedure\":\"put\",\"args\":{{\"id\":{id},\"amount\":{}}}}}\n",
            id % 7
        )
    };
    assert_eq!(server.batch(&(0..100).map(line).collect::<String>()).len(), 100);
    server
}

fn ids(page: &Value) -> Vec<i64> {
    let rows = page["rows"].as_array().expect("rows").iter();
    rows.map(|row| row["id"].as_str().expect("an id").parse().expect("a number"))
        .collect()
}

/// All pages of a query.
fn all(server: &Server, query: &str, limit: usize) -> Vec<i64> {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server
            .get(&format!("/v1/tables/items/rows?limit={limit}&{query}{cursor}"))
            .ok(200);
        found.extend(ids(&page));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return found,
        }
    }
}

#[test]
fn ranges_order_and_conditions_give_the_rows_that_they_say_page_by_page() {
    let server = server();
    let range = |from: i64, to: i64| (from..=to).collect::<Vec<_>>();
    let back = |from: i64, to: i64| (from..=to).rev().collect::<Vec<_>>();
    for limit in [1, 7, 1000] {
        assert_eq!(all(&server, "from=10&to=20", limit), range(10, 20));
        assert_eq!(all(&server, "from=90", limit), range(90, 99));
        assert_eq!(all(&server, "to=4", limit), range(0, 4));
        assert_eq!(all(&server, "reverse=true", limit), back(0, 99));
        assert_eq!(all(&server, "reverse=true&from=10&to=20", limit), back(10, 20));
        assert!(all(&server, "from=20&to=10", limit).is_empty());
        let sevens: Vec<i64> = (0..100).filter(|id| id % 7 == 3).collect();
        assert_eq!(all(&server, "where=amount:eq:3", limit), sevens);
        let more: Vec<i64> = (0..100).filter(|id| id % 7 >= 5 && *id < 50).rev().collect();
        assert_eq!(
            all(&server, "where=amount:ge:5&where=id:lt:50&reverse=true", limit),
            more
        );
        assert_eq!(all(&server, "where=id:ne:0&where=id:le:1", limit), [1]);
    }
    let page = server.get("/v1/tables/items/rows?limit=1&columns=amount").ok(200);
    assert_eq!(page["rows"], json!([{"amount": "0"}]));
    for (query, told) in [
        ("where=amount:3", "column:op:value"),
        ("where=amount:like:3", "column:op:value"),
        ("where=nothing:eq:3", "has no column"),
        ("where=amount:eq:x", "where does not fit"),
        ("where=amount:starts:1", "starts works on text"),
        ("columns=id,nothing", "has no column"),
        ("columns=id,amount,id", "more than once"),
        ("from=x", "from does not fit"),
        ("prefix=1&from=2", "from does not fit"),
        ("reverse=maybe", "reverse must be true or false"),
        ("revers=true", "the query has no parameter"),
        ("limit=1&limit=2", "more than once"),
        ("by=1", "the query has no parameter"),
    ] {
        server
            .get(&format!("/v1/tables/items/rows?{query}"))
            .problem_with(("malformed-request", 400), told);
    }
}

#[test]
fn a_condition_that_nothing_meets_looks_at_a_bounded_number_of_rows_a_page() {
    let server = Server::with_probe(Options {
        partitions: Some(1),
        ..Options::default()
    });
    let line =
        |id: i64| format!("{{\"module\":\"probe\",\"procedure\":\"put\",\"args\":{{\"id\":{id},\"amount\":1}}}}\n");
    for part in 0..2 {
        let lines: String = (part * 25_000..(part + 1) * 25_000).map(line).collect();
        assert_eq!(server.batch(&lines).len(), 25_000);
    }
    let page = server.get("/v1/tables/items/rows?where=amount:eq:2").ok(200);
    assert_eq!(page["rows"], json!([]));
    assert!(
        page["next_cursor"].is_string(),
        "50,000 rows are not looked at for one page"
    );
    assert!(all(&server, "where=amount:eq:2", 1000).is_empty());
    assert_eq!(all(&server, "where=id:eq:49999", 1000), [49_999]);
}

/// The rows with a part of a hashed key lie anywhere, so they are no range and no group.
#[test]
fn part_of_a_key_without_order_is_refused() {
    let server = server();
    let wasm = procedure_wasm("voter").expect("`cargo xtask wasm` builds it");
    server.put_module("voter", wasm).ok(201);
    let call = |procedure: &str, args: Value| {
        let path = format!("/v1/call/voter/{procedure}");
        let json = [("content-type", "application/json")];
        server
            .send(Method::POST, &path, &json, args.to_string().into_bytes())
            .ok(200)
    };
    call("initialize", json!({"contestants": ["Ann", "Bob"]}));
    for contestant in [1, 2] {
        let vote = json!({"phone_number": "2125550123", "contestant_number": contestant, "max_votes_per_phone": "9"});
        call("vote", vote);
    }
    let votes = |query: &str| server.get(&format!("/v1/tables/votes/{query}"));
    for refused in [
        "rows?prefix=2125550123",
        "groups?prefix=2125550123",
        "groups",
        "groups?by=1",
    ] {
        votes(refused).problem_with(("malformed-request", 400), "no order");
    }
    assert_eq!(
        votes("rows?prefix=2125550123,2").ok(200)["rows"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    assert_eq!(votes("groups?by=0").ok(200)["groups"][0]["count"], "2");
    assert_eq!(votes("groups?by=2").ok(200)["groups"].as_array().map(Vec::len), Some(2));
}

#[test]
fn rows_are_counted_and_summed_group_by_group() {
    let server = server();
    let page = server
        .get("/v1/tables/items/groups?by=0&sum=amount,id&where=amount:gt:0")
        .ok(200);
    let wanted = (0..100_i64).filter(|id| id % 7 > 0);
    let (count, amounts, sum) = wanted.fold((0, 0, 0), |(count, amounts, sum), id| {
        (count + 1, amounts + id % 7, sum + id)
    });
    let sums = json!({"amount": amounts.to_string(), "id": sum.to_string()});
    assert_eq!(
        page["groups"],
        json!([{"key": {}, "count": count.to_string(), "sums": sums}])
    );
    assert_eq!(
        (&page["next_cursor"], &page["continues"]),
        (&Value::Null, &json!(false))
    );
    let page = server.get("/v1/tables/items/groups?from=5&to=6").ok(200);
    assert_eq!(
        page["groups"],
        json!([{"key": {"id": "5"}, "count": "1", "sums": {}}, {"key": {"id": "6"}, "count": "1", "sums": {}}])
    );
    server
        .get("/v1/tables/items/groups?by=2")
        .problem_with(("malformed-request", 400), "from 0 to 1");
    server
        .get("/v1/tables/items/groups?sum=nothing")
        .problem("malformed-request", 400);
    server.get("/v1/tables/nothing/groups").problem("not-found", 404);
}

#[test]
fn rows_come_as_csv_and_as_lines() {
    let server = server();
    let get = |accept: &str, query: &str| {
        server.send(
            Method::GET,
            &format!("/v1/tables/items/rows?{query}"),
            &[("accept", accept)],
            Vec::new(),
        )
    };
    let csv = get("text/csv", "limit=2&from=8");
    assert_eq!((csv.status, csv.header("content-type")), (200, Some("text/csv")));
    assert_eq!(csv.text(), "id,amount\r\n8,1\r\n9,2\r\n");
    let cursor = csv.header("reprise-next-cursor").expect("a cursor").to_owned();
    let next = get(
        "text/csv, */*",
        &format!("limit=1&columns=amount&from=8&cursor={cursor}"),
    );
    assert_eq!(next.text(), "amount\r\n3\r\n");
    let lines = get("application/x-ndjson", "to=1");
    assert_eq!(
        lines.text(),
        "{\"id\":\"0\",\"amount\":\"0\"}\n{\"id\":\"1\",\"amount\":\"1\"}\n"
    );
    assert_eq!(lines.header("reprise-next-cursor"), None);
}

#[test]
fn groups_come_as_many_as_were_asked_for_and_whole() {
    let server = server();
    let (mut keys, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/tables/items/groups?limit=7{cursor}")).ok(200);
        let groups = page["groups"].as_array().expect("groups");
        assert_eq!(page["continues"], false, "{page}");
        keys.extend(
            groups
                .iter()
                .map(|group| group["key"]["id"].as_str().expect("an id").to_owned()),
        );
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
        assert_eq!(groups.len(), 7);
    }
    assert_eq!(keys, (0..100).map(|id| id.to_string()).collect::<Vec<_>>());
}

/// A module over the table `t`, whose first version inserts the row (1, 5).
const FIRST_COLUMNS: &str = r#"{"name":"b","type":"i32"}"#;
const INSERT: &str = "(i64.store (i32.const 0) (i64.const 1)) (i64.store (i32.const 8) (i64.const 5))
    (drop (call $insert (i32.const 0) (i64.const 0xC_0000_0000)))";
/// The next version puts a column before `b` and widens `b`. Its migration takes some hundred milliseconds.
const NEXT_COLUMNS: &str = r#"{"name":"new","type":"i64","nullable":true},{"name":"b","type":"i64"}"#;
const WORK: &str = "(loop $again
    (local.set $n (i64.add (local.get $n) (i64.const 1)))
    (br_if $again (i64.lt_u (local.get $n) (i64.const 400000000))))";

fn migrating(columns: &str, body: &str) -> Vec<u8> {
    let description = format!(
        r#"{{"abi":1,"tables":[{{"name":"t","columns":[{{"name":"id","type":"i64"}},{columns}],"primary_key":["id"],
        "primary_kind":"ordered","indexes":[{{"name":"by_b","columns":["b"],"unique":false}}],"placement":{{"by":"id"}}}}],
        "procedures":[],"on_deploy":true}}"#
    );
    let section: String = description.bytes().map(|byte| format!("\\{byte:02x}")).collect();
    let text = format!(
        r#"(module
            (import "reprise1" "insert" (func $insert (param i32 i64) (result i64)))
            (memory (export "memory") 1)
            (func (export "reprise_on_deploy") (param i32) (result i32) (local $n i64)
                {body} (i32.const 0))
            (@custom "reprise.describe" "{section}"))"#
    );
    wat::parse_str(text).expect("valid wasm text")
}

/// The requests arrive under the old schema and are read under the new one: other key bytes, and another position of `b`.
#[test]
fn page_that_waits_for_a_deployment_is_read_by_the_changed_table() {
    let server = Server::start_with(Options {
        partitions: Some(1),
        ..Options::default()
    });
    server.put_module("m", migrating(FIRST_COLUMNS, INSERT)).ok(201);
    let get = |path: &str| server.get(&format!("/v1/tables/m.t/{path}"));
    let (rows, groups) = thread::scope(|scope| {
        let deploying = scope.spawn(|| server.put_module("m", migrating(NEXT_COLUMNS, WORK)).ok(200));
        while server.get("/v1/status").ok(200)["deployment"].is_null() && !deploying.is_finished() {
            thread::yield_now();
        }
        let rows = scope.spawn(|| get("rows?index=by_b&prefix=5"));
        let groups = scope.spawn(|| get("groups?by=0&sum=b"));
        deploying.join().expect("deployed");
        (rows.join().expect("an answer"), groups.join().expect("an answer"))
    });
    assert_eq!(rows.ok(200)["rows"], json!([{"id": "1", "new": null, "b": "5"}]));
    assert_eq!(
        groups.ok(200)["groups"],
        json!([{"key": {}, "count": "1", "sums": {"b": "5"}}])
    );
}

#[test]
fn the_log_is_searched_by_module_procedure_transaction_key_and_argument() {
    let server = server();
    let keyed = server.send(
        Method::POST,
        "/v1/call/probe/put",
        &[("idempotency-key", "order-17"), ("content-type", "application/json")],
        json!({"id": 1000, "amount": 5}).to_string().into_bytes(),
    );
    let txn_id = keyed.ok(200)["txn_id"].as_str().expect("an id").to_owned();
    let found = |query: &str| {
        server.get(&format!("/v1/log?limit=1000&{query}")).ok(200)["records"]
            .as_array()
            .map_or(0, Vec::len)
    };
    assert_eq!(found("argument=amount:3"), 14);
    assert_eq!(found("argument=id:1000"), 1);
    assert_eq!(found("argument=nothing:1"), 0);
    assert_eq!(found("key=order-17"), 1);
    assert_eq!(found(&format!("transaction={txn_id}")), 1);
    assert_eq!((found("procedure=put"), found("procedure=echo")), (101, 0));
    assert_eq!((found("module=probe"), found("module=other")), (102, 0));
    assert_eq!(found("order=newest&procedure=put&argument=amount:3"), 14);
    assert_eq!(found("argument=amount:3&argument=id:10"), 1);
    assert_eq!(found("argument=amount:3&argument=id:11"), 0);
    server.get("/v1/log?argument=amount").problem("malformed-request", 400);
    server
        .get("/v1/log?argument=amount:3&args=1")
        .problem("malformed-request", 400);
    let time = server.get(&format!("/v1/log?transaction={txn_id}")).ok(200)["records"][0]["time"].clone();
    let time = time.as_str().expect("a time");
    assert_eq!(found(&format!("procedure=put&until={time}")), 100);
    assert_eq!(found(&format!("procedure=put&since={time}")), 1);
    assert_eq!(
        found("procedure=put&since=2020-01-01T00:00:00Z&until=2020-01-02T00:00:00Z"),
        0
    );
    server.get("/v1/log?since=yesterday").problem("malformed-request", 400);
    server.get("/v1/log?transaction=x").problem("malformed-request", 400);
}

#[test]
fn a_search_for_a_rows_key_says_which_transactions_it_could_not_search() {
    let server = server();
    let page = |order: &str, query: &str| server.get(&format!("/v1/log?limit=1000&order={order}&{query}")).ok(200);
    // The log holds calls: whether one of them changed the row is not known.
    for order in ["oldest", "newest"] {
        let page = page(order, "key=3&procedure=put");
        assert_eq!(page["records"], json!([]));
        assert_eq!(page["unsearched"], json!("100"));
    }
    assert_eq!(page("newest", "procedure=put")["unsearched"], Value::Null);
    assert_eq!(page("newest", "argument=id:3")["unsearched"], Value::Null);
}

/// Sums `unsearched` over all pages of a search. Returns the number of records, too.
fn searched(server: &Server, query: &str) -> (usize, u64) {
    let (mut records, mut unsearched, mut from) = (0, 0, String::new());
    loop {
        let page = server.get(&format!("/v1/log?{query}{from}")).ok(200);
        records += page["records"].as_array().map_or(0, Vec::len);
        let count = page["unsearched"].as_str().map(|count| count.parse::<u64>());
        unsearched += count.map_or(0, |count| count.expect("digits"));
        match page["next"].as_str() {
            Some(next) if page["next"] != page["end"] => from = format!("&from={next}"),
            _ => return (records, unsearched),
        }
    }
}

#[test]
fn search_has_no_gap_when_the_log_has_calls_and_changed_rows() {
    let server = server_with("[log]\nmode = \"both\"");
    for order in ["oldest", "newest"] {
        for limit in [1, 2, 1000] {
            let search = |filter: &str| searched(&server, &format!("order={order}&limit={limit}&{filter}"));
            assert_eq!(search("key=3"), (1, 0), "{order} {limit}");
            assert_eq!(search("key=nothing"), (0, 0), "{order} {limit}");
            assert_eq!(search("argument=amount:3"), (14, 0), "{order} {limit}");
            assert_eq!(search("argument=amount:3&procedure=put"), (14, 0), "{order} {limit}");
        }
    }
}

#[test]
fn search_counts_each_transaction_that_it_cannot_include_once() {
    for (mode, filter) in [
        ("[log]\nmode = \"command\"", "key=3"),
        ("[log]\nmode = \"physiological\"", "argument=amount:3"),
    ] {
        let server = server_with(mode);
        for order in ["oldest", "newest"] {
            for filter in [filter.to_owned(), format!("{filter}&procedure=put")] {
                let search = format!("order={order}&{filter}");
                assert_eq!(searched(&server, &search), (0, 100), "{mode} {search}");
            }
        }
        // Pages of one transaction each, as someone sees them who follows the log.
        for id in 1000..1003 {
            let end = server.get("/v1/log?limit=1").ok(200)["end"].clone();
            server.call("put", json!({"id": id, "amount": 1})).ok(200);
            let end = end.as_str().expect("an LSN");
            let page = server.get(&format!("/v1/log?from={end}&{filter}")).ok(200);
            assert_eq!(
                (&page["records"], &page["unsearched"]),
                (&json!([]), &json!("1")),
                "{mode}"
            );
        }
    }
}

#[test]
fn log_lines_of_procedures_are_found_by_procedure_level_and_transaction() {
    let server = server();
    let txn_id = server.call("echo", json!({"id": 1})).ok(200)["txn_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    server.call("echo", json!({"id": 2})).ok(200);
    let lines = |query: &str| server.get(&format!("/v1/procedure-log?{query}")).ok(200)["lines"].clone();
    let count = |query: &str| lines(query).as_array().map_or(0, Vec::len);
    assert_eq!(
        (count("procedure=echo"), count("procedure=put"), count("module=probe")),
        (2, 0, 2)
    );
    assert_eq!(
        (count("level=info"), count("level=warn"), count("level=debug")),
        (2, 0, 2)
    );
    let of_one = lines(&format!("transaction={txn_id}"));
    assert_eq!(of_one.as_array().map(Vec::len), Some(1));
    let number = of_one[0]["number"].as_u64().expect("a number");
    assert_eq!(count(&format!("since={}", number + 1)), 1);
    server
        .get("/v1/procedure-log?level=loud")
        .problem("malformed-request", 400);
}

#[test]
fn integers_of_64_bits_are_numbers_on_request() {
    let server = server();
    let numbers = ("reprise-integers", "number");
    let json = ("content-type", "application/json");
    let post = |path: &str, kind: (&str, &str), body: String| {
        server.send(Method::POST, path, &[numbers, kind], body.into_bytes())
    };
    let called = post("/v1/call/probe/echo", json, json!({"id": i64::MAX}).to_string()).ok(200);
    assert_eq!(called["result"], json!(i64::MAX));
    assert!(called["txn_id"].is_u64() && called["lsn"].is_u64(), "{called}");
    let line = "{\"module\":\"probe\",\"procedure\":\"echo\",\"args\":{\"id\":3}}\n";
    let batch = post("/v1/batch", ("content-type", "application/x-ndjson"), line.repeat(2)).text();
    for line in batch.lines() {
        let answer: Value = serde_json::from_str(line).expect("JSON");
        assert!(answer["result"] == json!(3) && answer["txn_id"].is_u64(), "{answer}");
    }
    let get = |path: &str| server.send(Method::GET, path, &[numbers], Vec::new());
    assert_eq!(
        get("/v1/tables/items/rows?limit=1").ok(200)["rows"],
        json!([{"id": 0, "amount": 0}])
    );
    assert_eq!(
        get("/v1/tables/items/groups?to=0").ok(200)["groups"][0]["key"],
        json!({"id": 0})
    );
    let record = &get("/v1/log?kind=command&limit=1").ok(200)["records"][0];
    assert!(record["lsn"].is_u64() && record["args"]["id"].is_i64(), "{record}");
    assert!(get("/v1/status").ok(200)["durable_lsn"].is_u64());
    let plain = server.call("echo", json!({"id": 4})).ok(200);
    assert!(plain["result"] == json!("4") && plain["txn_id"].is_string(), "{plain}");
    let wrong = server.send(Method::GET, "/v1/tables", &[("reprise-integers", "float")], Vec::new());
    wrong.problem("malformed-request", 400);
}
