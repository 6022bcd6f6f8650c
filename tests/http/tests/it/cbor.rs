//! The second format: the same calls in CBOR give the same.

use minicbor::{Decoder, Encoder, data::Type};
use reprise_test_http::{Answer, Options, Server};
use reqwest::Method;
use serde_json::{Value, json};

const CBOR: &str = "application/cbor";
const SEQUENCE: &str = "application/cbor-seq";

fn encode(value: &Value, out: &mut Encoder<Vec<u8>>) {
    let sure = "memory takes every item";
    match value {
        Value::Null => drop(out.null().expect(sure)),
        Value::Bool(value) => drop(out.bool(*value).expect(sure)),
        Value::Number(number) => drop(out.i64(number.as_i64().expect("an integer")).expect(sure)),
        Value::String(text) => drop(out.str(text).expect(sure)),
        Value::Array(items) => {
            out.array(items.len() as u64).expect(sure);
            items.iter().for_each(|item| encode(item, out));
        }
        Value::Object(members) => {
            out.map(members.len() as u64).expect(sure);
            for (name, value) in members {
                out.str(name).expect(sure);
                encode(value, out);
            }
        }
    }
}

fn cbor(value: Value) -> Vec<u8> {
    let mut out = Encoder::new(Vec::new());
    encode(&value, &mut out);
    out.into_writer()
}

fn decode(from: &mut Decoder<'_>) -> Value {
    match from.datatype().expect("an item") {
        Type::Null => {
            from.null().expect("null");
            Value::Null
        }
        Type::Bool => from.bool().expect("a boolean").into(),
        Type::String => from.str().expect("a string").into(),
        Type::Array => {
            let count = from.array().expect("an array").expect("with its length");
            (0..count).map(|_| decode(from)).collect()
        }
        Type::Map => {
            let count = from.map().expect("a map").expect("with its length");
            let mut members = serde_json::Map::new();
            for _ in 0..count {
                let name = from.str().expect("a name").to_owned();
                members.insert(name, decode(from));
            }
            members.into()
        }
        _ => match i64::try_from(from.int().expect("an integer")) {
            Ok(value) => value.into(),
            Err(_) => panic!("beyond a transaction id"),
        },
    }
}

fn items(bytes: &[u8]) -> Vec<Value> {
    let mut decoder = Decoder::new(bytes);
    let mut items = Vec::new();
    while decoder.position() < bytes.len() {
        items.push(decode(&mut decoder));
    }
    items
}

fn call(server: &Server, procedure: &str, body: Vec<u8>, headers: &[(&str, &str)]) -> Answer {
    server.send(Method::POST, &format!("/v1/call/probe/{procedure}"), headers, body)
}

#[test]
fn a_call_is_the_same_in_both_formats() {
    let server = Server::with_probe(Options::default());
    let wide = 9_007_199_254_740_993i64;
    let args = json!({"id": wide});
    let in_json = server.call("echo", args.clone()).ok(200);
    assert_eq!(in_json["result"], wide.to_string());
    let answer = call(&server, "echo", cbor(args.clone()), &[("content-type", CBOR)]);
    assert_eq!((answer.status, answer.header("content-type")), (200, Some(CBOR)));
    let in_cbor = items(&answer.body).pop().expect("one item");
    assert_eq!(in_cbor["result"], wide, "64-bit integers are integers");
    assert_eq!(in_cbor["partition"], in_json["partition"]);
    assert_eq!(
        Some(in_cbor["txn_id"].to_string().as_str()),
        answer.header("reprise-txn-id")
    );
    // Each way round.
    let mixed = call(
        &server,
        "echo",
        cbor(args.clone()),
        &[("content-type", CBOR), ("accept", "application/json")],
    );
    assert_eq!(mixed.ok(200)["result"], wide.to_string());
    let mixed = call(
        &server,
        "echo",
        args.to_string().into(),
        &[("accept", "text/html, application/cbor;q=0.9")],
    );
    assert_eq!(items(&mixed.body)[0]["result"], wide);
    // No body stands for no arguments in both, and the mistakes are the same.
    let wrong = json!({"id": "x", "more": [1]});
    let in_json = call(&server, "echo", wrong.to_string().into(), &[]).problem("invalid-arguments", 400);
    let in_cbor = call(&server, "echo", cbor(wrong), &[("content-type", CBOR)]).problem("invalid-arguments", 400);
    assert_eq!(in_json["errors"], in_cbor["errors"]);
    let none = call(&server, "echo", Vec::new(), &[("content-type", CBOR)]).problem("invalid-arguments", 400);
    assert_eq!(none["errors"].as_array().map(Vec::len), Some(1));
}

#[test]
fn body_that_is_not_cbor_is_malformed() {
    let server = Server::with_probe(Options::default());
    let deep = [&b"\xa1\x61x"[..], &[0x81; 100_000], b"\x00"].concat();
    for body in [
        &b"\xa2\x62id"[..],
        b"\xff",
        b"\x1c",
        b"\xa1\x62id\x05\x00",
        br#"{"id":1}"#,
        &deep,
    ] {
        call(&server, "echo", body.to_vec(), &[("content-type", CBOR)]).problem("malformed-request", 400);
    }
}

#[test]
fn a_batch_is_a_sequence() {
    let server = Server::with_probe(Options::default());
    let line = |id: i64, tag: Value| json!({"module": "probe", "procedure": "echo", "args": {"id": id}, "id": tag});
    let calls = [
        line(1, json!({"a": [1, null]})),
        json!({"module": "probe", "procedure": "nothing"}),
        line(2, json!(7)),
        json!({"procedure": "echo"}),
        json!([1]),
        line(3, json!(null)),
    ];
    let sequence: Vec<u8> = calls.iter().flat_map(|call| cbor(call.clone())).collect();
    let send = |body: Vec<u8>| {
        let answer = server.send(Method::POST, "/v1/batch", &[("content-type", SEQUENCE)], body);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(SEQUENCE)));
        items(&answer.body)
    };
    let answers = send(sequence.clone());
    assert_eq!(answers.len(), calls.len());
    assert_eq!(
        (&answers[0]["result"], &answers[0]["id"]),
        (&json!(1), &json!({"a": [1, null]}))
    );
    assert_eq!(answers[1]["problem"]["type"], "/problems/not-found");
    assert_eq!((&answers[2]["result"], &answers[2]["id"]), (&json!(2), &json!(7)));
    assert_eq!(answers[3]["problem"]["type"], "/problems/malformed-request");
    assert_eq!(answers[4]["problem"]["type"], "/problems/malformed-request");
    assert_eq!(answers[5]["result"], 3);
    // An id is answered as it came, in either format: a long one is none.
    let many = line(4, json!(vec![0; 2_000]));
    let answers = send([cbor(many), cbor(line(5, json!("x")))].concat());
    assert_eq!(answers[0]["problem"]["type"], "/problems/malformed-request");
    assert_eq!((&answers[1]["result"], &answers[1]["id"]), (&json!(5), &json!("x")));
    // An end in the middle, and bytes that are no item. The calls before them are answered, and the end is reported.
    for tail in [&b"\xa1\x66modu"[..], b"\x1c"] {
        let answers = send([&sequence[..], tail].concat());
        assert_eq!(answers.len(), calls.len() + 1);
        assert_eq!(answers[calls.len()]["problem"]["type"], "/problems/malformed-request");
    }
    // Many calls, in their order, whatever the pieces they came in; and JSON asks for CBOR.
    let many: Vec<u8> = (0..5000).flat_map(|id| cbor(line(id, json!(id)))).collect();
    let answers = send(many);
    assert!(
        answers
            .iter()
            .enumerate()
            .all(|(at, answer)| answer["id"] == at && answer["result"] == at)
    );
    let lines = format!("{}\n{}\n", line(8, json!("x")), line(9, json!(1.5)));
    let answer = server.send(Method::POST, "/v1/batch", &[("accept", SEQUENCE)], lines.into_bytes());
    assert_eq!(answer.header("content-type"), Some(SEQUENCE));
    assert!(answer.body.windows(1).count() > 0 && answer.body[0] >> 5 == 5, "a map");
    // A number that CBOR would round is a text there.
    let wide = r#"{"module":"probe","procedure":"echo","args":{"id":1},"id":[7,{"a":18446744073709551616}]}"#;
    let answer = server.send(Method::POST, "/v1/batch", &[("accept", SEQUENCE)], wide.into());
    let id = json!([7, {"a": "18446744073709551616"}]);
    assert_eq!(items(&answer.body)[0]["id"], id);
    let answer = server.send(
        Method::POST,
        "/v1/batch",
        &[("content-type", SEQUENCE), ("accept", "application/x-ndjson")],
        sequence,
    );
    let first: Value = serde_json::from_str(answer.text().lines().next().expect("a line")).expect("JSON");
    assert_eq!(
        (&first["result"], &first["id"]),
        (&json!("1"), &json!({"a": [1, null]}))
    );
}

#[test]
fn id_of_cbor_is_answered_exactly_in_json_or_its_call_is_refused() {
    let server = Server::with_probe(Options::default());
    // The id is the last of four members.
    let line = |id: &[u8]| {
        let mut call = cbor(json!({"module": "probe", "procedure": "echo", "args": {"id": 1}}));
        call[0] += 1;
        [&call[..], b"\x62id", id].concat()
    };
    let ids: [&[u8]; 5] = [b"\x43\x00\xff\x10", b"\xf9\x7e\x00", b"\xf7", b"\xa1\x01\x02", b"\x07"];
    let sequence: Vec<u8> = ids.iter().flat_map(|id| line(id)).collect();
    let headers = [("content-type", SEQUENCE), ("accept", "application/x-ndjson")];
    let answer = server.send(Method::POST, "/v1/batch", &headers, sequence.clone());
    let lines = answer.text();
    let answers: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let ids: Vec<&Value> = answers.iter().map(|answer| &answer["id"]).collect();
    assert_eq!(
        ids,
        [&json!("AP8Q"), &json!("NaN"), &json!(null), &json!(null), &json!(7)]
    );
    for refused in &answers[2..4] {
        assert_eq!(refused["problem"]["type"], "/problems/malformed-request", "{refused}");
    }
    assert!(answers.iter().filter(|answer| answer["result"] == "1").count() == 3);
    // In CBOR the first id comes back with its own type.
    let answer = server.send(
        Method::POST,
        "/v1/batch",
        &[("content-type", SEQUENCE)],
        line(b"\x43\x00\xff\x10"),
    );
    let id = b"\x62id\x43\x00\xff\x10";
    assert!(
        answer.body.windows(id.len()).any(|bytes| bytes == id),
        "{:?}",
        answer.body
    );
}
