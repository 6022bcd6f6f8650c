use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    thread::{self, JoinHandle},
};

use super::*;

const TOKEN_REFUSED: &str =
    r#"{"error":"etcdserver: invalid auth token","message":"etcdserver: invalid auth token","code":16}"#;
const GRANTED: &str = r#"{"header":{"cluster_id":"324952591200643719","member_id":"3319814642761637952","revision":"1","raft_term":"2"},"ID":"2324035660902326277","TTL":"5"}"#;

fn parsed<T: DeserializeOwned>(answer: &str) -> T {
    match read(StatusCode::OK, answer.as_bytes()) {
        Ok(answer) => serde_json::from_value(answer).expect("an answer of etcd"),
        Err(refusal) => panic!("{}", text(refusal)),
    }
}

fn text(refusal: EtcdRefusal) -> String {
    match refusal {
        EtcdRefusal::NotSent(text) => format!("not sent: {text}"),
        EtcdRefusal::Token(text) => format!("token: {text}"),
        EtcdRefusal::Other(text) => text,
    }
}

#[test]
fn answers_of_etcd_3_4_are_read() {
    let granted: LeaseAnswer = parsed(GRANTED);
    assert_eq!((granted.id, granted.ttl_s), (2324035660902326277, 5));
    let done = r#"{"header":{"revision":"2","raft_term":"2"},"succeeded":true,"responses":[{"response_put":{"header":{"revision":"2"}}}]}"#;
    assert_eq!(parsed::<TxnAnswer>(done).revision(), Some(2));
    assert_eq!(parsed::<TxnAnswer>(r#"{"header":{"revision":"2"}}"#).revision(), None);
    let found = r#"{"header":{"revision":"2"},"succeeded":true,"responses":[{"response_range":{"header":{"revision":"2"},"kvs":[{"key":"L3JlcHJpc2UvMS9wcmltYXJ5","create_revision":"2","mod_revision":"2","version":"1","value":"aGk=","lease":"2324035660902326279"}],"count":"1"}},{"response_range":{"header":{"revision":"2"}}}]}"#;
    let found: TxnAnswer = parsed(found);
    let entries: Vec<_> = found.entries().collect();
    assert_eq!(entries.len(), 1);
    assert_eq!(
        (&*entries[0].key, &*entries[0].value),
        (&b"/reprise/1/primary"[..], &b"hi"[..])
    );
    assert_eq!((entries[0].mod_revision, entries[0].lease), (2, 2324035660902326279));
    assert!(parsed::<RangeAnswer>(r#"{"header":{"revision":"3"}}"#).kvs.is_empty());
    let kept = "{\"result\":{\"header\":{\"revision\":\"3\"},\"ID\":\"2324035660902326279\",\"TTL\":\"5\"}}\n";
    assert_eq!(parsed::<KeepAliveAnswer>(kept).result.ttl_s, 5);
    // etcd leaves out the time of a lease that has ended.
    let over = "{\"result\":{\"header\":{\"revision\":\"3\"},\"ID\":\"77\"}}\n";
    assert_eq!(parsed::<KeepAliveAnswer>(over).result.ttl_s, 0);
}

#[test]
fn refusals_are_read_in_each_of_their_shapes() {
    let refused = |status: u16, body: &str| {
        let status = StatusCode::from_u16(status).expect("a status");
        read(status, body.as_bytes()).map_or_else(text, |answer| panic!("{answer}"))
    };
    let lost = r#"{"error":"etcdserver: requested lease not found","message":"etcdserver: requested lease not found","code":5}"#;
    assert_eq!(refused(404, lost), "etcdserver: requested lease not found");
    let in_stream = r#"{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}}"#;
    assert_eq!(refused(200, in_stream), "etcdserver: no leader");
    assert_eq!(refused(401, TOKEN_REFUSED), "token: etcdserver: invalid auth token");
    let old = r#"{"code":3,"message":"etcdserver: revision of auth store is old"}"#;
    assert_eq!(refused(400, old), "token: etcdserver: revision of auth store is old");
    let plain = refused(400, "CommonName of client will be ignored\n");
    assert_eq!(
        plain,
        "etcd answered with HTTP status 400 Bad Request: CommonName of client will be ignored"
    );
    assert!(refused(200, "pong").contains("200"));
}

#[test]
fn an_endpoint_keeps_user_and_password_apart_from_its_address() {
    let endpoint = EtcdEndpoint::read("https://a%40b:p%2Fw%3Aord@h:2379").expect("a URL");
    assert_eq!(endpoint.address(), "https://h:2379");
    let user = endpoint.user.expect("a user");
    assert_eq!((&*user.name, &*user.password), ("a@b", "p/w:ord"));
    assert!(EtcdEndpoint::read("http://h:2379/").is_some_and(|endpoint| endpoint.user.is_none()));
    for text in [
        "",
        "h:2379",
        "ftp://h",
        "http://",
        "http://h:1/v3",
        "http://h?x",
        "http://h:x",
    ] {
        assert!(EtcdEndpoint::read(text).is_none(), "{text}");
    }
}

/// Starts a server that answers one request after the other, each on a connection of its own. It returns the requests' paths and tokens.
fn server(answers: Vec<(u16, &'static str)>) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let serve = move || {
        let answer = |(status, body)| answer_one(listener.accept().expect("a client").0, status, body);
        answers.into_iter().map(answer).collect()
    };
    (address.to_string(), thread::spawn(serve))
}

fn answer_one(stream: TcpStream, status: u16, body: &str) -> String {
    let mut stream = BufReader::new(stream);
    let (mut asked, mut token, mut length) = (String::new(), String::new(), 0);
    stream.read_line(&mut asked).expect("a request");
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).expect("a header");
        let line = line.trim().to_ascii_lowercase();
        match line.split_once(": ") {
            Some(("content-length", value)) => length = value.parse().expect("a length"),
            Some(("authorization", value)) => token = value.to_owned(),
            Some(_) => {}
            None => break,
        }
    }
    stream.read_exact(&mut vec![0; length]).expect("a body");
    let (size, mut stream) = (body.len(), stream.into_inner());
    let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: {size}\r\nconnection: close\r\n\r\n{body}");
    stream.write_all(answer.as_bytes()).expect("the client reads");
    let path = asked.split(' ').nth(1).unwrap_or_default();
    format!("{path} {token}").trim().to_owned()
}

fn client(urls: &[String]) -> EtcdClient {
    let endpoints: Vec<_> = urls.iter().map(|url| EtcdEndpoint::read(url).expect("a URL")).collect();
    EtcdClient::new(&endpoints, EtcdFiles::default(), Duration::from_secs(30)).expect("a client")
}

fn grant(client: &mut EtcdClient) -> Result<i64, StoreError> {
    client.run(|etcd| {
        etcd.ask::<LeaseAnswer>("v3/lease/grant", &json!({"TTL": "5"}))
            .map(|answer| answer.id)
    })
}

#[test]
fn a_refused_token_is_replaced_once() {
    let (address, served) = server(vec![
        (200, r#"{"token":"one"}"#),
        (200, GRANTED),
        (401, TOKEN_REFUSED),
        (200, r#"{"token":"two"}"#),
        (200, GRANTED),
        (401, TOKEN_REFUSED),
        (200, r#"{"token":"three"}"#),
        (401, TOKEN_REFUSED),
    ]);
    let mut client = client(&[format!("http://user:password@{address}")]);
    assert!(grant(&mut client).is_ok() && grant(&mut client).is_ok());
    let refused = grant(&mut client).expect_err("it was refused twice");
    assert_eq!(&*refused.0, "etcdserver: invalid auth token");
    let (ask, login) = ("/v3/lease/grant", "/v3/auth/authenticate");
    let with = |token: &str| format!("{ask} {token}");
    let expected = [
        login.into(),
        with("one"),
        with("one"),
        login.into(),
        with("two"),
        with("two"),
        login.into(),
        with("three"),
    ];
    assert_eq!(served.join().expect("it served"), expected);
}

#[test]
fn only_a_request_that_was_not_sent_is_repeated_at_the_next_endpoint() {
    let unused = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let unused = format!("http://{}", unused.expect("a port"));
    let (first, first_served) = server(vec![(503, r#"{"error":"etcdserver: request timed out"}"#)]);
    let (second, second_served) = server(vec![(200, GRANTED)]);
    let mut client = client(&[unused, format!("http://{first}"), format!("http://{second}")]);
    let refused = grant(&mut client).expect_err("etcd may have run it");
    assert_eq!(&*refused.0, "etcdserver: request timed out");
    assert_eq!(first_served.join().expect("it served").len(), 1);
    assert!(grant(&mut client).is_ok(), "the next operation asks the next endpoint");
    assert_eq!(second_served.join().expect("it served").len(), 1);
}
