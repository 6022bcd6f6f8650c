//! Requests that a page of another site can send without a preflight: forms, plain text, links. None of them reaches the database, on a
//! server with tokens or without. And no other user can read the files on the disk.

use std::{
    io::{Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::Path,
    time::Duration,
};

use reprise_test_http::{Options, Server, raw};
use reqwest::Method;
use serde_json::json;

/// Long enough for a machine that is busy with other things.
const LONG: Duration = Duration::from_secs(180);

fn server(settings: &'static str) -> Server {
    Server::with_probe(Options {
        settings,
        ..Options::default()
    })
}

fn put(server: &Server, id: i64, headers: &[(&str, &str)]) -> (u16, String) {
    let body = json!({"id": id, "amount": 1}).to_string().into_bytes();
    let answer = server.send(Method::POST, "/v1/call/probe/put", headers, body);
    let slug = match answer.status {
        200 => String::new(),
        _ => answer.json()["type"]
            .as_str()
            .unwrap_or_default()
            .replace("/problems/", ""),
    };
    (answer.status, slug)
}

#[test]
fn a_strangers_page_reaches_nothing() {
    let server = server("");
    let own = server.url.clone();
    let json = ("content-type", "application/json");
    let text = ("content-type", "text/plain;charset=UTF-8");
    let form = ("content-type", "application/x-www-form-urlencoded");
    let forbidden = (403, "forbidden".to_owned());
    for origin in [
        "http://203.0.113.5",
        "http://127.0.0.1",
        "http://127.0.0.1:1",
        "https://a.example",
        "null",
    ] {
        for kind in [json, text, form] {
            assert_eq!(put(&server, 1, &[("origin", origin), kind]), forbidden, "{origin}");
        }
    }
    for site in ["cross-site", "same-site"] {
        assert_eq!(put(&server, 1, &[("sec-fetch-site", site), json]), forbidden, "{site}");
        let headers = [("sec-fetch-site", site)];
        let page = |path| server.send(Method::GET, path, &headers, Vec::new()).status;
        assert_eq!(page("/v1/tables"), 403, "{site}");
        assert_ne!(page("/console/"), 403, "a link may lead to the console");
    }
    let unread = (415, "unsupported-media-type".to_owned());
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json; charset=latin1",
        "x",
    ] {
        assert_eq!(put(&server, 1, &[("content-type", kind)]), unread, "{kind}");
        assert_eq!(
            put(&server, 1, &[("content-type", kind), ("origin", &own)]),
            unread,
            "{kind}"
        );
        for path in ["/v1/batch", "/v1/checkpoints", "/v1/backups"] {
            let headers = [("content-type", kind)];
            let answer = server.send(Method::POST, path, &headers, b"{}".to_vec());
            answer.problem("unsupported-media-type", 415);
        }
    }
    assert_eq!(
        put(&server, 1, &[("origin", &own)]),
        unread,
        "a page says what it sends"
    );
    assert_eq!(server.get("/v1/tables/items").ok(200)["rows"], 0);
    assert_eq!(put(&server, 1, &[("origin", &own), json]).0, 200);
    assert_eq!(put(&server, 2, &[]).0, 200, "a program need not say");
    assert_eq!(
        put(&server, 3, &[("content-type", "Application/JSON; Charset=\"UTF-8\"")]).0,
        200
    );
    assert_eq!(put(&server, 4, &[("content-type", "application/x-ndjson")]).0, 200);
}

#[test]
fn a_named_origin_may_ask_and_tokens_do_not_open_the_door_to_others() {
    let server = Server::start_with(Options {
        settings: "[http]\norigins = [\"https://db.example\"]",
        tokens: true,
        ..Options::default()
    });
    let token = ("authorization", "Bearer secret-admin");
    let get = |headers: &[(&str, &str)]| server.send(Method::GET, "/v1/tables", headers, Vec::new()).status;
    assert_eq!(get(&[token]), 200);
    assert_eq!(
        get(&[
            token,
            ("origin", "https://db.example"),
            ("sec-fetch-site", "cross-site")
        ]),
        200
    );
    assert_eq!(get(&[token, ("origin", "http://db.example")]), 403);
    assert_eq!(get(&[token, ("origin", "null")]), 403);
}

#[test]
fn a_request_names_its_host_once() {
    let server = server("");
    let body = "{\"id\":1}";
    let call = |hosts: &str| {
        format!("POST /v1/call/probe/echo HTTP/1.1\r\n{hosts}connection: close\r\ncontent-length: 8\r\n\r\n{body}")
    };
    let keeps = |hosts: &str| call(hosts).replace("close", "keep-alive");
    let twice = "host: localhost\r\nhost: localhost\r\n";
    for hosts in ["", twice] {
        let told = raw(&server.address, call(hosts).as_bytes());
        assert!(
            told.starts_with("HTTP/1.1 400 ") && told.contains("malformed-request"),
            "{told}"
        );
        // Read ahead of the answers, the request gets the same answer.
        let both = format!("{}{}", keeps(hosts), call("host: localhost\r\n"));
        let told = raw(&server.address, both.as_bytes());
        assert!(
            told.starts_with("HTTP/1.1 400 ") && told.contains("HTTP/1.1 200 "),
            "{told}"
        );
    }
    let old = raw(&server.address, b"GET /healthz HTTP/1.0\r\n\r\n");
    assert!(old.contains(" 200 "), "{old}");
}

#[test]
fn files_are_for_their_owner_alone() {
    let server = server("");
    server.call("put", json!({"id": 1, "amount": 1})).ok(200);
    let taken = server.send(Method::POST, "/v1/backups", &[], Vec::new()).ok(202);
    let backup = format!("/v1/backups/{}", taken["id"].as_str().expect("an id"));
    while server.get(&backup).ok(200)["state"] == "running" {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(server.get(&backup).ok(200)["state"], "published");
    let data = server.data_dir();
    let mut seen = 0;
    look_into(&data, &mut seen);
    assert!(seen > 5, "log, checkpoint, backup: {seen}");
}

fn look_into(dir: &Path, seen: &mut u32) {
    let mode = |path: &Path| std::fs::metadata(path).expect("metadata").permissions().mode() & 0o777;
    assert_eq!(mode(dir), 0o700, "{}", dir.display());
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            // A library makes its files; no other user can enter the folder above.
            true if path.ends_with("catalog") => assert_eq!(mode(&path), 0o700),
            true => look_into(&path, seen),
            false => {
                assert_eq!(mode(&path), 0o600, "{}", path.display());
                *seen += 1;
            }
        }
    }
}

#[test]
fn probes_come_in_where_one_client_holds_all_places() {
    let server = Server::start_with(Options {
        settings: "[http]\nconnections_max = 40\nconnections_per_peer_max = 30",
        ..Options::default()
    });
    let ask = |path: &str| {
        let mut stream = TcpStream::connect(&server.address).expect("connect");
        stream.set_read_timeout(Some(LONG)).expect("set timeout");
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let _ = stream.write_all(request.as_bytes()); // it may have been turned away
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer); // a reset is an end too
        answer
    };
    let is_full = |told: &str| told.starts_with("HTTP/1.1 503 ") && told.contains("/problems/overloaded");
    let mut held = Vec::new();
    while !is_full(&ask("/v1/tables")) {
        held.push(TcpStream::connect(&server.address).expect("connect"));
        assert!(held.len() < 40, "one address has more than its share");
    }
    // Silent connections hold none of the places for probes.
    held.extend((0..20).map(|_| TcpStream::connect(&server.address).expect("connect")));
    for path in ["/healthz", "/readyz", "/metrics", "/v1/status"] {
        let told = ask(path);
        assert!(told.starts_with("HTTP/1.1 200 "), "{path}: {told}");
    }
    drop(held);
    let begun = std::time::Instant::now();
    while !ask("/v1/tables").starts_with("HTTP/1.1 200 ") {
        assert!(begun.elapsed() < LONG, "places are not given back");
    }
}

#[test]
fn pages_of_sites_that_the_configuration_names_may_ask_and_others_are_told_nothing() {
    let server = server("[http]\norigins = [\"https://shop.example\"]");
    let shop = ("origin", "https://shop.example");
    let asks = [
        shop,
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization"),
    ];
    let preflight = server.send(Method::OPTIONS, "/v1/call/probe/put", &asks, Vec::new());
    assert_eq!(preflight.status, 204, "{}", preflight.text());
    assert_eq!(
        preflight.header("access-control-allow-origin"),
        Some("https://shop.example")
    );
    assert!(
        preflight
            .header("access-control-allow-headers")
            .is_some_and(|names| names.contains("authorization"))
    );
    assert!(
        preflight
            .header("access-control-allow-methods")
            .is_some_and(|names| names.contains("POST"))
    );
    assert_eq!(preflight.header("access-control-allow-credentials"), None);
    let json = ("content-type", "application/json");
    for (id, status) in [(1, 200), (2, 200)] {
        let body = json!({"id": id, "amount": 1}).to_string().into_bytes();
        let called = server.send(Method::POST, "/v1/call/probe/put", &[shop, json], body);
        assert_eq!(
            (called.status, called.header("access-control-allow-origin")),
            (status, Some("https://shop.example"))
        );
        assert!(
            called
                .header("access-control-expose-headers")
                .is_some_and(|names| names.contains("reprise-lsn"))
        );
    }
    let refused = server.send(Method::GET, "/v1/tables/none", &[shop], Vec::new());
    assert_eq!(
        (refused.status, refused.header("access-control-allow-origin")),
        (404, Some("https://shop.example"))
    );
    let other = [
        ("origin", "https://other.example"),
        ("access-control-request-method", "POST"),
    ];
    let refused = server.send(Method::OPTIONS, "/v1/call/probe/put", &other, Vec::new());
    assert!(
        refused.status >= 400 && refused.header("access-control-allow-origin").is_none(),
        "{}",
        refused.status
    );
    let plain = server.get("/v1/tables");
    assert_eq!(plain.header("access-control-allow-origin"), None);
}
