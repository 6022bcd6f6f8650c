//! Errors for a guest's mistakes, and numbers at the end of their range: in wasm as `procedures/edges` has them natively.
use edges::{DecimalStep, MODULE, decimals, sum};
use reprise_fuel::WasmGuest;
use reprise_procedure::{
    prelude::Decimal,
    testkit::{TestDb, TestError},
};
use reprise_test_crash::procedure_wasm;
use reprise_test_http::Server;
use serde_json::{Value, json};

fn with_edges() -> Server {
    let server = Server::start();
    server.put_module("probe", procedure_wasm("edges").unwrap()).ok(201);
    server
}

/// The problem of a call that panics: by its message and place, which stand in the procedure's log as well.
#[track_caller]
fn panics(server: &Server, procedure: &str, args: Value, message: &str) {
    let problem = server.call(procedure, args).problem("procedure-trapped", 500);
    let text = problem["message"].as_str().unwrap();
    assert!(
        text.starts_with("panicked at procedures/edges/src/lib.rs line "),
        "{problem}"
    );
    assert!(text.ends_with(message), "{problem}");
    assert!(problem["detail"].as_str().unwrap().starts_with(text), "{problem}");
    assert_eq!(problem["trap"], "panic");
    let innermost = problem["backtrace"][0].as_str().unwrap();
    assert!(
        !innermost.contains("panicking") && !innermost.contains("tell_panic"),
        "{problem}"
    );
    let log = server.get("/v1/procedure-log").ok(200).to_string();
    assert!(log.contains(message), "{log}");
}

#[test]
fn value_that_does_not_fit_ends_the_call_as_in_a_test() {
    let server = with_edges();
    panics(
        &server,
        "add",
        json!({"a": i64::MAX, "b": 1}),
        ": attempt to add with overflow",
    );
    panics(
        &server,
        "multiply",
        json!({"a": 1 << 20, "b": 1 << 11}),
        ": attempt to multiply with overflow",
    );
    // The iterator's addition stands in the standard library.
    let sum = server
        .call("sum", json!({"items": [i64::MIN, -1]}))
        .problem("procedure-trapped", 500);
    assert!(
        sum["message"]
            .as_str()
            .unwrap()
            .ends_with(": attempt to add with overflow"),
        "{sum}"
    );
    panics(
        &server,
        "divide",
        json!({"a": i64::MIN, "b": -1}),
        ": attempt to divide with overflow",
    );
    panics(
        &server,
        "divide",
        json!({"a": 1, "b": 0}),
        ": attempt to divide by zero",
    );
    panics(
        &server,
        "shift",
        json!({"a": 1, "by": 64}),
        ": attempt to shift left with overflow",
    );
    // The place is the procedure's line, not the SDK's.
    let step = json!({"what": 5, "a": "1.00", "b": "0", "whole": "0", "rounding": 0});
    panics(
        &server,
        "decimals",
        json!({"steps": [step]}),
        ": attempt to divide a decimal by zero",
    );
    let largest = "1701411834604692317316873037158841057.27";
    let step = json!({"what": 0, "a": largest, "b": "0", "whole": "0", "rounding": 0});
    panics(
        &server,
        "decimals",
        json!({"steps": [step]}),
        ": a decimal beyond what 128 bits hold",
    );
    assert_eq!(
        server.call("add", json!({"a": i64::MAX - 1, "b": 1})).ok(200)["result"],
        i64::MAX.to_string()
    );
    assert_eq!(server.call("divide", json!({"a": -7, "b": 2})).ok(200)["result"], "-3");
    assert_eq!(
        server.call("shift", json!({"a": 3, "by": 63})).ok(200)["result"],
        (1_u64 << 63).to_string()
    );
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 16
    }

    /// Returns units of any size: zero, small, and up to where products have no room.
    fn units(&mut self) -> i128 {
        let (wide, bits) = (
            i128::from(self.next()) << 64 | i128::from(self.next()),
            self.next() % 116,
        );
        let size = wide.unsigned_abs() & ((1 << bits) - 1);
        if self.next().is_multiple_of(2) {
            size as i128
        } else {
            -(size as i128)
        }
    }

    fn step(&mut self) -> DecimalStep {
        DecimalStep {
            what: self.next() as u8,
            a: Decimal::from_units(self.units()),
            b: Decimal::from_units(self.units()),
            whole: self.units() as i64,
            rounding: self.next() as u8,
        }
    }
}

fn json_of(step: &DecimalStep) -> Value {
    let DecimalStep {
        what,
        a,
        b,
        whole,
        rounding,
    } = step;
    json!({"what": what, "a": a.to_string(), "b": b.to_string(), "whole": whole.to_string(), "rounding": rounding})
}

#[test]
fn decimals_come_to_the_same_in_wasm_as_in_a_test() {
    let (server, mut db, mut random) = (with_edges(), TestDb::new(&MODULE), Random(7));
    let (mut fitting, mut traps) = (Vec::new(), 0);
    while fitting.len() < 2_000 {
        let step = random.step();
        match decimals::call(&mut db, vec![step]) {
            Ok(result) => fitting.push((step, result[0].to_string())),
            Err(TestError::Aborted(abort)) => panic!("{abort}"),
            Err(TestError::Fault(told)) => {
                traps += 1;
                // Enough of them: each is a request of its own.
                if traps <= 200 {
                    let message = told.strip_prefix("panicked: ").unwrap();
                    let problem = server.call("decimals", json!({"steps": [json_of(&step)]}));
                    let problem = problem.problem("procedure-trapped", 500);
                    assert!(
                        problem["message"].as_str().unwrap().ends_with(message),
                        "{step:?}: {problem}"
                    );
                }
            }
        }
    }
    assert!(traps > 200, "{traps}");
    let steps: Vec<_> = fitting.iter().map(|(step, _)| json_of(step)).collect();
    let found = server.call("decimals", json!({"steps": steps})).ok(200)["result"].clone();
    for (at, (step, expected)) in fitting.iter().enumerate() {
        assert_eq!(found[at], *expected, "{step:?}");
    }
}

#[test]
fn floats_become_the_nearest_integers() {
    let server = with_edges();
    let narrow = |value: f64| server.call("narrow", json!({"value": value})).ok(200)["result"].clone();
    let text = |value: i128| value.to_string();
    assert_eq!(
        narrow(1e300),
        json!({"i8": 127, "u16": 65_535, "i32": i32::MAX, "i64": text(i64::MAX.into()), "u64": text(u64::MAX.into())})
    );
    assert_eq!(
        narrow(-1e300),
        json!({"i8": -128, "u16": 0, "i32": i32::MIN, "i64": text(i64::MIN.into()), "u64": "0"})
    );
    assert_eq!(
        narrow(-2.9),
        json!({"i8": -2, "u16": 0, "i32": -2, "i64": "-2", "u64": "0"})
    );
    let nothing = server.call("narrow_nothing", json!({"zero": 0.0})).ok(200)["result"].clone();
    assert_eq!(nothing, json!({"i8": 0, "u16": 0, "i32": 0, "i64": "0", "u64": "0"}));
}

#[test]
fn panics_tell_their_words_as_far_as_they_are_kept() {
    let server = with_edges();
    panics(&server, "give_up", json!({"reason": "enough"}), ": gave up: enough");
    let long = "wörter".repeat(10_000);
    let problem = server
        .call("give_up", json!({"reason": long}))
        .problem("procedure-trapped", 500);
    let message = problem["message"].as_str().unwrap();
    assert!(
        message.contains("gave up: wörter") && message.len() > 4_000 && message.len() <= 4_096,
        "{}",
        message.len()
    );
}

#[test]
fn stack_and_memory_are_told_by_name_with_their_limits() {
    let server = with_edges();
    server.call("recurse", json!({"depth": 10})).ok(200);
    server.call("fill", json!({"bytes": 1000})).ok(200);
    for _ in 0..2 {
        let problem = server
            .call("recurse", json!({"depth": 1_000_000}))
            .problem("limit-exceeded", 422);
        assert_eq!(
            (problem["limit"].as_str(), problem["max"].as_u64()),
            (Some("stack_bytes"), Some(127 << 10)),
            "{problem}"
        );
        assert!(
            problem["detail"].as_str().unwrap().starts_with("stack overflow"),
            "{problem}"
        );
        let problem = server
            .call("fill", json!({"bytes": 100 << 20}))
            .problem("limit-exceeded", 422);
        assert_eq!(
            (problem["limit"].as_str(), problem["max"].as_u64()),
            (Some("memory_bytes"), Some(64 << 20)),
            "{problem}"
        );
        assert!(
            problem["detail"].as_str().unwrap().starts_with("out of memory"),
            "{problem}"
        );
    }
}

#[test]
fn null_has_no_order() {
    let server = with_edges();
    server.call("set_light", json!({"id": 1, "shows": "green"})).ok(200);
    let rows = |op: &str| server.get(&format!("/v1/tables/lights/rows?where=before:{op}:null"));
    assert_eq!(rows("eq").ok(200)["rows"].as_array().map(Vec::len), Some(1));
    assert_eq!(rows("ne").ok(200)["rows"], json!([]));
    for op in ["lt", "le", "gt", "ge"] {
        rows(op).problem_with(("malformed-request", 400), "null");
    }
}

#[test]
fn enums_are_shown_by_name_and_docs_travel() {
    let server = with_edges();
    server.call("set_light", json!({"id": 1, "shows": "green"})).ok(200);
    server
        .call("set_light", json!({"id": 1, "shows": "red_and_amber"}))
        .ok(200);
    server.call("set_light", json!({"id": 2, "shows": "red"})).ok(200);
    let rows = |query: &str| server.get(&format!("/v1/tables/probe.lights/rows{query}")).ok(200)["rows"].clone();
    let first = json!({"id": "1", "shows": "red_and_amber", "before": "green", "at_night": "green"});
    assert_eq!(rows("")[0], first);
    assert_eq!(rows("?index=shows&prefix=red_and_amber"), json!([first]));
    assert_eq!(rows("?index=shows&prefix=[%22red%22]")[0]["id"], "2");
    server
        .get("/v1/tables/probe.lights/rows?index=shows&prefix=blue")
        .problem("malformed-request", 400);
    let table = server.get("/v1/tables/probe.lights").ok(200);
    assert_eq!(
        table["columns"][1]["type"],
        json!({"kind": "enum", "variants": ["green", "red_and_amber", "red"]})
    );
    assert_eq!(table["columns"][3]["default"], "red");
    assert_eq!(
        table["docs"],
        "A light, placed by its id.\n\nEach shows one thing at a time."
    );
    let module = server.get("/v1/modules/probe").ok(200);
    assert_eq!(
        module["procedures"][0]["docs"],
        "Sets what a light shows; answers what it showed before."
    );
}

/// The document is one that a generator of clients can follow: each procedure is an operation, and each reference leads somewhere.
#[test]
fn procedures_are_operations_of_the_modules_own_description() {
    let server = with_edges();
    let document = server.get("/v1/modules/probe/openapi.json").ok(200);
    assert!(
        document["openapi"]
            .as_str()
            .is_some_and(|version| version.starts_with("3.1"))
    );
    let paths = document["paths"].as_object().expect("paths");
    let listed = server.get("/v1/modules/probe").ok(200);
    let procedures = listed["procedures"].as_array().expect("procedures");
    assert_eq!(paths.len(), procedures.len());
    for procedure in procedures {
        let name = procedure["name"].as_str().expect("a name");
        let operation = &paths[&format!("/v1/call/probe/{name}")]["post"];
        assert_eq!(operation["operationId"], name);
        assert_eq!(operation["description"], procedure["docs"], "{name}");
        let arguments = &operation["requestBody"]["content"]["application/json"]["schema"];
        for parameter in procedure["parameters"].as_array().expect("parameters") {
            let parameter = parameter["name"].as_str().expect("a name");
            assert!(arguments["properties"][parameter].is_object(), "{name}: {arguments}");
        }
    }
    let answer = &paths["/v1/call/probe/add"]["post"]["responses"]["200"]["content"]["application/json"]["schema"];
    assert_eq!(answer["allOf"][1]["properties"]["result"]["type"], "string");
    let text = document.to_string();
    let known = document["components"]["schemas"].as_object().expect("schemas");
    let mut used = std::collections::BTreeSet::new();
    for named in text.split("#/components/schemas/").skip(1) {
        let name = named.split('"').next().expect("an end");
        assert!(known.contains_key(name), "{name}");
        used.insert(name);
    }
    assert_eq!(
        used,
        known.keys().map(String::as_str).collect(),
        "and no other ones are there"
    );
    let steps = &paths["/v1/call/probe/decimals"]["post"]["requestBody"]["content"]["application/json"]["schema"];
    assert_eq!(
        steps["properties"]["steps"]["items"]["$ref"],
        "#/components/schemas/DecimalStepInput"
    );
    assert_eq!(known["DecimalStepInput"]["properties"]["a"]["type"], "string");
    server.get("/v1/modules/nobody/openapi.json").problem("not-found", 404);
}

#[test]
fn abort_codes_stand_in_the_modules_description_and_its_openapi() {
    let server = Server::start();
    server.put_module("bank", procedure_wasm("bank").unwrap()).ok(201);
    let module = server.get("/v1/modules/bank").ok(200);
    let procedures = module["procedures"].as_array().expect("procedures");
    let transfer = procedures.iter().find(|procedure| procedure["name"] == "transfer");
    let aborts = &transfer.expect("a procedure of the bank")["aborts"];
    assert_eq!(
        aborts[0],
        json!({"code": "insufficient_funds", "docs": "The payer has less than the amount"})
    );
    let codes: Vec<_> = aborts
        .as_array()
        .expect("a list")
        .iter()
        .map(|abort| &abort["code"])
        .collect();
    assert!(
        codes.contains(&&json!("negative_amount")),
        "found in the body: {aborts}"
    );
    let document = server.get("/v1/modules/bank/openapi.json").ok(200);
    let answer = &document["paths"]["/v1/call/bank/transfer"]["post"]["responses"]["422"];
    assert!(
        answer["description"]
            .to_string()
            .contains("`insufficient_funds`: The payer has less"),
        "{answer}"
    );
    let listed = &answer["content"]["application/problem+json"]["schema"]["allOf"][1]["properties"]["code"]["examples"];
    assert_eq!(json!(codes), *listed);
}

fn fuel_of(server: &Server) -> u64 {
    let metrics = server.get("/metrics").text();
    let mut lines = metrics.lines();
    let fuel = lines.find_map(|line| line.strip_prefix("reprise_fuel_total "));
    fuel.expect("a line of fuel").parse::<f64>().unwrap() as u64
}

#[test]
fn call_burns_the_same_fuel_as_in_a_test_that_runs_the_wasm() {
    let server = with_edges();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("edges.wasm");
    std::fs::write(&path, procedure_wasm("edges").unwrap()).unwrap();
    let mut db = TestDb::new(&MODULE).with_guest(WasmGuest::open(&path).unwrap());
    for count in [0_i64, 1_000, 100_000] {
        let items: Vec<i64> = (0..count).collect();
        let before = fuel_of(&server);
        server.call("sum", json!({"items": items})).ok(200);
        let burned = fuel_of(&server) - before;
        assert_eq!(sum::call(&mut db, items), Ok((0..count).sum()));
        assert_eq!(db.fuel(), burned, "{count} items");
        assert!(burned >= count as u64, "{burned}");
    }
}
