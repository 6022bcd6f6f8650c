//! Single calls of many connections with keys, time limits and safety levels, which travel together: each has the answer that it
//! would have alone.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::TcpStream,
    sync::Barrier,
    thread,
};

use reprise_test_http::{Options, Server, probe, probe_put_grown};
use reqwest::Method;
use serde_json::{Value, json};

use crate::running::{ENDLESS, NO_LIMIT, cancel, listed, with_module};

/// A connection of a client that sends its requests byte by byte as the tests say.
struct Client {
    stream: TcpStream,
    read: String,
}

struct Told {
    status: u16,
    is_replayed: bool,
    body: Value,
}

impl Told {
    /// The status, and the problem if there is one.
    fn outcome(&self) -> (u16, &str) {
        (self.status, self.body["type"].as_str().unwrap_or("none"))
    }
}

impl Client {
    fn of(server: &Server) -> Self {
        let (stream, read) = (server.connect(), String::new());
        Self { stream, read }
    }

    fn send(&mut self, path: &str, args: &Value, lines: &str) {
        let body = args.to_string();
        let request = format!(
            "POST /v1/call/{path} HTTP/1.1\r\nhost: localhost\r\n{lines}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.write_all(request.as_bytes()).expect("send");
    }

    fn receive(&mut self) -> Told {
        let mut buffer = [0; 4096];
        loop {
            if let Some(told) = self.take() {
                return told;
            }
            let bytes = self.stream.read(&mut buffer).expect("an answer");
            assert!(bytes > 0, "the server closed: {}", self.read);
            self.read += &String::from_utf8_lossy(&buffer[..bytes]);
        }
    }

    fn take(&mut self) -> Option<Told> {
        let (head, tail) = self.read.split_once("\r\n\r\n")?;
        let length = head.split("content-length: ").nth(1)?.lines().next()?;
        let length: usize = length.parse().expect("a number");
        let body = tail.get(..length)?;
        let told = Told {
            status: head.get(9..12)?.parse().expect("a status"),
            is_replayed: head.contains("\r\nidempotent-replayed: true"),
            body: serde_json::from_str(body).expect("JSON"),
        };
        let end = head.len() + 4 + length;
        self.read = self.read.split_off(end);
        Some(told)
    }

    fn call(&mut self, path: &str, args: &Value, lines: &str) -> Told {
        self.send(path, args, lines);
        self.receive()
    }
}

fn key(key: &str) -> String {
    format!("Idempotency-Key: {key}\r\n")
}

/// Answers to calls that clients send at once, each on its connection.
fn at_once(server: &Server, calls: &[(Value, String)]) -> Vec<Told> {
    let barrier = Barrier::new(calls.len());
    thread::scope(|scope| {
        let begin = |(args, lines): &(Value, String)| {
            let (args, lines, barrier) = (args.clone(), lines.clone(), &barrier);
            scope.spawn(move || {
                let mut client = Client::of(server);
                client.call("probe/echo", &json!({"id": 1}), "");
                barrier.wait();
                client.call("probe/put", &args, &lines)
            })
        };
        let clients: Vec<_> = calls.iter().map(begin).collect();
        clients
            .into_iter()
            .map(|client| client.join().expect("no panic"))
            .collect()
    })
}

const CLIENTS: usize = 24;
const ROUNDS: i64 = 20;
const CONFLICT: (u16, &str) = (409, "/problems/idempotency-conflict");

#[test]
fn repeats_of_a_key_that_arrive_together_run_once() {
    let server = Server::with_probe(Options::default());
    for id in 0..ROUNDS {
        // A second run would be told that the row is there.
        let calls = vec![(json!({"id": id, "amount": 5}), key(&format!("order {id}"))); CLIENTS];
        let told = at_once(&server, &calls);
        assert!(told.iter().all(|told| told.status == 200));
        let ids: BTreeSet<_> = told.iter().map(|told| told.body["txn_id"].to_string()).collect();
        assert_eq!(ids.len(), 1, "all have the outcome of one transaction");
        assert_eq!(told.iter().filter(|told| !told.is_replayed).count(), 1);
    }
    server.wait_rows("items", ROUNDS as u64);
}

#[test]
fn other_arguments_under_a_key_that_arrive_together_are_a_conflict() {
    let server = Server::with_probe(Options::default());
    for id in 0..ROUNDS {
        let keyed = key(&format!("order {id}"));
        let call = |at: usize| (json!({"id": id, "amount": at % 3}), keyed.clone());
        let calls: Vec<_> = (0..CLIENTS).map(call).collect();
        let all = at_once(&server, &calls);
        let first = all.iter().position(|told| told.status == 200).expect("one ran");
        for (told, (args, _)) in all.iter().zip(&calls) {
            match args == &calls[first].0 {
                true => assert_eq!(told.body, all[first].body),
                false => assert_eq!(told.outcome(), CONFLICT),
            }
        }
    }
    server.wait_rows("items", ROUNDS as u64);
}

/// Keys, time limits and levels of all kinds, behind a call that holds the only partition.
#[test]
fn each_call_of_a_mixed_group_has_its_own_deadline_key_and_level() {
    const SOON: &str = "Reprise-Timeout-Ms: 100\r\n";
    const LATE: &str = "Reprise-Timeout-Ms: 600000\r\n";
    let server = with_module(NO_LIMIT);
    let steps = |id: usize| json!({"id": id, "turns": 1});
    let endless = json!({"id": 999, "turns": ENDLESS});
    let mut holder = Client::of(&server);
    holder.send("long/steps", &endless, "");
    let is_held = |calls: &[Value]| calls.iter().any(|call| call["phase"] == "running");
    let running = listed(&server, is_held);
    let lines = |at: usize| {
        let keyed = key(&format!("step {at}"));
        match at % 8 {
            0 => String::new(),
            1 => keyed,
            2 => SOON.into(),
            3 => keyed + SOON,
            4 => keyed + LATE,
            5 => "Reprise-Safety: local-async\r\n".into(),
            6 => "Reprise-Safety: 2-safe\r\n".into(),
            _ => key(&"k".repeat(256)),
        }
    };
    let mut clients: Vec<_> = (0..48).map(|_| Client::of(&server)).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        client.send("long/steps", &steps(at), &lines(at));
    }
    let refused = |kind: usize| match kind {
        2 | 3 => Some((504, "/problems/deadline-exceeded")),
        6 => Some((503, "/problems/standby-unavailable")),
        7 => Some((400, "/problems/malformed-request")),
        _ => None,
    };
    for (at, client) in clients.iter_mut().enumerate() {
        if let Some(outcome) = refused(at % 8) {
            assert_eq!(client.receive().outcome(), outcome, "{at}");
        }
    }
    assert!(
        is_held(&listed(&server, |_| true)),
        "these were answered while the partition was held"
    );
    // The server runs the call of a client that is gone, and answers the calls that travel with it.
    drop(clients.swap_remove(1));
    cancel(&server, &running[0]["call_id"]).ok(200);
    assert_eq!(holder.receive().status, 422);
    let ran: Vec<_> = (0..47)
        .filter(|at| *at != 1)
        .filter(|at| refused(*at % 8).is_none())
        .collect();
    for at in &ran {
        assert_eq!(clients[*at].receive().status, 200, "{at}");
    }
    server.wait_rows("marks", ran.len() as u64 + 1);
    let mut client = Client::of(&server);
    // Its connection was closed.
    let gone = client.call("long/steps", &steps(1), &lines(1));
    assert!(gone.status == 200 && gone.is_replayed);
    let again = client.call("long/steps", &steps(4), &lines(4));
    assert!(again.status == 200 && again.is_replayed);
    // A call that never ran leaves its key free.
    let free = client.call("long/steps", &steps(3), &key("step 3"));
    assert!(free.status == 200 && !free.is_replayed);
    let server = server.restart();
    server.wait_rows("marks", ran.len() as u64 + 2);
}

#[test]
fn key_is_looked_up_first_on_a_connection_that_repeats_its_head() {
    let server = Server::start_with(Options {
        tokens: true,
        ..Options::default()
    });
    let admin = [("authorization", "Bearer secret-admin")];
    let deploy = |wasm: Vec<u8>| server.send(Method::PUT, "/v1/modules/probe", &admin, wasm);
    deploy(probe()).ok(201);
    // A token's first write leaves its connection to hyper, because its name goes into the log first.
    for (id, token) in [(1, "Bearer secret-write"), (2, "Bearer secret-admin")] {
        let body = json!({"id": id, "amount": 5}).to_string().into_bytes();
        let headers = [("authorization", token)];
        server.send(Method::POST, "/v1/call/probe/put", &headers, body).ok(200);
    }
    let mut client = Client::of(&server);
    let mut put = |token: &str, name: &str, id: i64| {
        let lines = format!("Authorization: Bearer {token}\r\n{}", key(name));
        client.call("probe/put", &json!({"id": id, "amount": 5}), &lines)
    };
    for id in 10..20 {
        let name = format!("order {id}");
        let first = put("secret-write", &name, id);
        assert!(first.status == 200 && !first.is_replayed);
        let again = put("secret-write", &name, id);
        assert!(again.is_replayed && again.body == first.body);
        assert_eq!(put("secret-write", &name, id + 50).outcome(), CONFLICT);
        // Another token has keys of its own.
        assert_eq!(put("secret-admin", &name, id).status, 422);
        assert_eq!(put("secret-read", &name, id).status, 403);
    }
    deploy(probe_put_grown()).ok(200);
    assert!(!put("secret-write", "order 60", 60).is_replayed);
    for id in 10..20 {
        assert!(put("secret-write", &format!("order {id}"), id).is_replayed);
    }
}
