//! Whatever bytes come to whatever endpoint: an answer of the contract, and the server lives.

use proptest::{prelude::*, test_runner::TestRunner};
use reprise_test_http::{Options, Server};
use reqwest::Method;

const PATHS: &[&str] = &[
    "/v1/call/probe/echo",
    "/v1/call/probe/put",
    "/v1/call/probe/everywhere",
    "/v1/call/x/y",
    "/v1/call/",
    "/v1/batch",
    "/v1/modules",
    "/v1/modules/probe",
    "/v1/modules/other",
    "/v1/tables",
    "/v1/tables/items",
    "/v1/tables/items/rows",
    "/v1/log",
    "/v1/log/0",
    "/v1/log/99999999999999999999",
    "/v1/status",
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/docs",
    "/console/",
    "/problems/x",
    "/",
    "//",
    "/v1",
    "/%00",
    "/v1/tables/%ff",
];
const TYPES: &[&str] = &[
    "application/json",
    "application/cbor",
    "application/cbor-seq",
    "application/x-ndjson",
    "text/plain",
];

fn body() -> impl Strategy<Value = Vec<u8>> {
    let json = prop::sample::select(vec![
        r#"{"id":1}"#,
        r#"{"id":1,"count":2}"#,
        r#"{"id":"x","count":null,"more":[{}]}"#,
        "[[[[",
        "{\"id\":1e999}",
        "null",
        r#"{"module":"probe","procedure":"echo","args":{"id":1,"count":1}}"#,
        "{\"module\":\"probe\"}\n\n{}\n[]\n\"",
    ]);
    let mutated = (json, any::<prop::sample::Index>(), any::<u8>()).prop_map(|(text, at, byte)| {
        let mut bytes = text.as_bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes
    });
    let cbor = prop::collection::vec(
        prop::sample::select(b"\xa1\xa2\x62id\x05\x9f\xbf\xff\x81\x1b\xfb\xf6\xc2\x7f\x5f\xd8".to_vec()),
        0..40,
    );
    prop_oneof![prop::collection::vec(any::<u8>(), 0..300), mutated, cbor]
}

#[test]
fn no_bytes_bring_an_answer_that_the_contract_does_not_know() {
    let server = Server::with_probe(Options::default());
    let methods = vec![
        Method::GET,
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::PATCH,
        Method::OPTIONS,
    ];
    let request = (
        prop::sample::select(PATHS),
        prop_oneof![3 => Just(String::new()), 1 => "\\?[a-z]{1,6}=[a-zA-Z0-9%&=,\\[\\]-]{0,20}", 1 => "\\?(limit|from|cursor|index|prefix|partition|kind)=[a-z0-9,\\[-]{0,12}"],
        prop::sample::select(methods),
        prop::sample::select(TYPES),
        prop_oneof![2 => Just(None), 1 => "[ -~]{0,40}".prop_map(Some)],
        body(),
    );
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 1500,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let outcome = runner.run(&request, |(path, query, method, media_type, header, body)| {
        // The sample module stays in service, and a stream of events never ends.
        prop_assume!(!(method == Method::DELETE && path.ends_with("/probe")));
        let mut headers = vec![("content-type", media_type)];
        for name in [
            "idempotency-key",
            "reprise-min-lsn",
            "accept",
            "traceparent",
            "authorization",
        ] {
            if let Some(value) = &header
                && value.len() % 5 == name.len() % 5
            {
                headers.push((name, value));
            }
        }
        let answer = server.send(method.clone(), &format!("{path}{query}"), &headers, body);
        let status = answer.status;
        // `too-stale` is the answer to a `reprise-min-lsn` of the future.
        prop_assert!(
            status < 500 || status == 503 && answer.text().contains("too-stale"),
            "{method} {path}{query}: {status} {}",
            answer.text()
        );
        if status >= 400 {
            let media_type = answer.header("content-type").unwrap_or_default();
            prop_assert_eq!(
                media_type,
                "application/problem+json",
                "{} {}: {}",
                method,
                path,
                answer.text()
            );
        }
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    server.get("/v1/status").ok(200);
}
