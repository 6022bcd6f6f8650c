//! The requests.

use std::{
    io::{BufReader, Read},
    time::Duration,
};

use reprise_api::{
    Backup, BackupList, BatchCall, CallList, Checkpoint, CheckpointList, GroupsPage, KeptOutcome, LogPage, LogRecord,
    ModuleDetail, ModuleInstalled, ModulePlanned, NDJSON_MEDIA_TYPE, ProcedureLog, Readiness, RowsPage, RowsQuery,
    RunningCall, Status, TableInfo, U64, headers,
};
use reqwest::{
    StatusCode, Url,
    blocking::{RequestBuilder, Response},
    header::CONTENT_TYPE,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    answers::{ANSWER_BYTES_MAX, BatchAnswers, chain, primary_of, read, read_short, read_whole, refusal},
    error::ClientError,
    query::{CallOptions, CallResponse, LinesQuery, LogQuery, RowsText, rows_pairs},
    trust::{is_refused, tls_config},
};

const CONNECT_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest time for the whole answer to a question that changes nothing. Other requests last as long as the server works on them.
const LOOK_WAIT_MAX: Duration = Duration::from_secs(300);

/// A server, by its URL.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) http: reqwest::blocking::Client,
    url: Url,
    token: Option<String>,
    /// `LOOK_WAIT_MAX`, or less in a test.
    look_wait_max: Duration,
}

impl Client {
    /// `url` is the server's, such as `http://127.0.0.1:8080`, or `https://db.example` with a certificate that the system trusts.
    pub fn new(url: &str, token: Option<&str>) -> Result<Self, ClientError> {
        Self::trusting(url, token, None)
    }

    /// Makes a client like `new`. `ca_cert` are certificates (PEM) that may have signed the server's, besides the system's, or are the
    /// server's own.
    pub fn trusting(url: &str, token: Option<&str>, ca_cert: Option<&[u8]>) -> Result<Self, ClientError> {
        let bad = |reason: &str| ClientError::Url {
            url: url.to_owned(),
            reason: reason.to_owned(),
        };
        let parsed = Url::parse(url).map_err(|error| bad(&error.to_string()))?;
        if !matches!(parsed.scheme(), "http" | "https") || parsed.cannot_be_a_base() {
            return Err(bad("it must begin with http:// or https://"));
        }
        let trusted = tls_config(parsed.scheme() == "https", ca_cert, None).map_err(ClientError::Trust)?;
        let http = reqwest::blocking::Client::builder()
            .connect_timeout(CONNECT_WAIT_MAX)
            .timeout(None) // a deployment or a batch may take any time
            .tcp_nodelay(true)
            .tls_backend_preconfigured(trusted)
            .build()
            .map_err(|error| ClientError::Http(chain(&error)))?;
        Ok(Self {
            http,
            url: parsed,
            token: token.map(str::to_owned),
            look_wait_max: LOOK_WAIT_MAX,
        })
    }

    /// Puts a module into service; the same bytes again change nothing. `allow`: consents to the things that it would destroy.
    pub fn deploy_module(&self, module: &str, wasm: Vec<u8>, allow: &[String]) -> Result<ModuleInstalled, ClientError> {
        let request = self.http.put(allowing(self.at(&["v1", "modules", module]), allow));
        self.json(request.header(CONTENT_TYPE, "application/wasm").body(wasm))
    }

    /// The plan of `deploy_module`; nothing is installed.
    pub fn plan_module(&self, module: &str, wasm: Vec<u8>, allow: &[String]) -> Result<ModulePlanned, ClientError> {
        let url = planning(allowing(self.at(&["v1", "modules", module]), allow));
        self.json(self.http.put(url).header(CONTENT_TYPE, "application/wasm").body(wasm))
    }

    /// Puts the bytes of a former version into service again: of the one before that in service, or of this one.
    pub fn rollback_module(
        &self,
        module: &str,
        version: Option<u32>,
        allow: &[String],
    ) -> Result<ModuleInstalled, ClientError> {
        self.json(self.http.post(self.rollback_url(module, version, allow)))
    }

    /// The plan of `rollback_module`; nothing is installed.
    pub fn plan_rollback(
        &self,
        module: &str,
        version: Option<u32>,
        allow: &[String],
    ) -> Result<ModulePlanned, ClientError> {
        self.json(self.http.post(planning(self.rollback_url(module, version, allow))))
    }

    fn rollback_url(&self, module: &str, version: Option<u32>, allow: &[String]) -> Url {
        let mut url = self.at(&["v1", "modules", module, "rollback"]);
        if let Some(version) = version {
            url.query_pairs_mut().append_pair("version", &version.to_string());
        }
        allowing(url, allow)
    }

    /// Drops a table that no module in service declares, with its rows.
    pub fn drop_table(&self, table: &str) -> Result<(), ClientError> {
        self.send(self.http.delete(self.at(&["v1", "tables", table]))).map(drop)
    }

    /// A module with its versions, procedures and tables.
    pub fn module(&self, module: &str) -> Result<ModuleDetail, ClientError> {
        self.get(&["v1", "modules", module])
    }

    /// Takes a module out of service. `allow`: consents to the things that this would destroy.
    pub fn remove_module(&self, module: &str, allow: &[String]) -> Result<(), ClientError> {
        let url = allowing(self.at(&["v1", "modules", module]), allow);
        self.send(self.http.delete(url)).map(drop)
    }

    /// Runs one transaction; `args` serializes to an object of named arguments.
    pub fn call(
        &self,
        module: &str,
        procedure: &str,
        args: &(impl Serialize + ?Sized),
    ) -> Result<CallResponse, ClientError> {
        self.call_with(module, procedure, args, &CallOptions::default())
    }

    /// Calls like `call`, with a key, a position to wait for, a time limit, or a safety level.
    pub fn call_with(
        &self,
        module: &str,
        procedure: &str,
        args: &(impl Serialize + ?Sized),
        options: &CallOptions<'_>,
    ) -> Result<CallResponse, ClientError> {
        let mut request = self.http.post(self.at(&["v1", "call", module, procedure])).json(args);
        if let Some(key) = options.idempotency_key {
            request = request.header(headers::IDEMPOTENCY_KEY, key);
        }
        if let Some(lsn) = options.min_lsn {
            request = request.header(headers::MIN_LSN, lsn);
        }
        if let Some(wait) = options.max_wait_ms {
            request = request.header(headers::MAX_WAIT_MS, wait);
        }
        if let Some(level) = options.safety {
            request = request.header(headers::SAFETY, level);
        }
        let response = self.send(request)?;
        let replayed = response
            .headers()
            .get(headers::IDEMPOTENT_REPLAYED)
            .is_some_and(|value| value == "true");
        let safety = response.headers().get(headers::SAFETY);
        let safety = safety.and_then(|level| level.to_str().ok()).map(str::to_owned);
        let answer = read(response)?;
        Ok(CallResponse {
            answer,
            replayed,
            safety,
        })
    }

    /// Runs many calls; the answers come in their order, each `Ok` one with its own outcome.
    pub fn batch(&self, calls: &[BatchCall]) -> Result<BatchAnswers, ClientError> {
        let body = lines_of(calls)?;
        let request = self.http.post(self.at(&["v1", "batch"]));
        let response = self.send(request.header(CONTENT_TYPE, NDJSON_MEDIA_TYPE).body(body))?;
        Ok(BatchAnswers {
            lines: BufReader::new(response),
            left: calls.len(),
        })
    }

    /// The outcome kept under an idempotency key of this token.
    pub fn idempotency(&self, key: &str) -> Result<KeptOutcome, ClientError> {
        self.get(&["v1", "idempotency", key])
    }

    /// A table's columns, indexes and sizes.
    pub fn table(&self, table: &str) -> Result<TableInfo, ClientError> {
        self.get(&["v1", "tables", table])
    }

    /// A page of durable rows.
    pub fn rows(&self, table: &str, query: &RowsQuery) -> Result<RowsPage, ClientError> {
        let url = self.at_with(&["v1", "tables", table, "rows"], &rows_pairs(query));
        self.json(self.look(url))
    }

    /// A page of rows as the media type says: lines of JSON, or CSV.
    pub fn rows_text(&self, table: &str, query: &RowsQuery, media_type: &str) -> Result<RowsText, ClientError> {
        let url = self.at_with(&["v1", "tables", table, "rows"], &rows_pairs(query));
        let response = self.send(self.look(url).header("accept", media_type))?;
        let cursor = response
            .headers()
            .get(headers::NEXT_CURSOR)
            .and_then(|value| value.to_str().ok());
        let next_cursor = cursor.map(str::to_owned);
        let text = read_whole(response, ANSWER_BYTES_MAX)?;
        let text = String::from_utf8(text).map_err(|error| ClientError::Protocol(error.to_string()))?;
        Ok(RowsText { text, next_cursor })
    }

    /// Counts and sums of rows by the leading `by` columns of an index; `sum` are names of columns, separated by commas.
    pub fn groups(
        &self,
        table: &str,
        query: &RowsQuery,
        by: u32,
        sum: Option<&str>,
    ) -> Result<GroupsPage, ClientError> {
        let mut pairs = rows_pairs(query);
        pairs.push(("by", by.to_string()));
        pairs.extend(sum.map(|sum| ("sum", sum.to_owned())));
        let url = self.at_with(&["v1", "tables", table, "groups"], &pairs);
        self.json(self.look(url))
    }

    /// A page of the log's records.
    pub fn log(&self, query: &LogQuery) -> Result<LogPage, ClientError> {
        let mut pairs = vec![
            ("from", query.from.map(|from| from.to_string())),
            ("limit", query.limit.map(|limit| limit.to_string())),
            ("partition", query.partition.map(|partition| partition.to_string())),
            ("kind", query.kind.clone()),
            ("transaction", query.transaction.map(|id| id.to_string())),
            ("module", query.module.clone()),
            ("procedure", query.procedure.clone()),
            ("key", query.key.clone()),
            ("since", query.since.clone()),
            ("until", query.until.clone()),
            ("order", query.newest.then(|| "newest".to_owned())),
        ];
        pairs.extend(
            query
                .arguments
                .iter()
                .map(|argument| ("argument", Some(argument.clone()))),
        );
        self.get_with(&["v1", "log"], &pairs)
    }

    /// The record at this position.
    pub fn log_record(&self, lsn: u64) -> Result<LogRecord, ClientError> {
        self.get(&["v1", "log", &U64(lsn).to_string()])
    }

    /// Lines that procedures logged, newest first.
    pub fn procedure_log(&self, query: &LinesQuery) -> Result<ProcedureLog, ClientError> {
        let pairs = [
            ("limit", query.limit.map(|limit| limit.to_string())),
            ("module", query.module.clone()),
            ("procedure", query.procedure.clone()),
            ("level", query.level.clone()),
            ("transaction", query.transaction.map(|id| id.to_string())),
            ("since", query.since.map(|since| since.to_string())),
        ];
        self.get_with(&["v1", "procedure-log"], &pairs)
    }

    /// Kind and progress of the server.
    pub fn status(&self) -> Result<Status, ClientError> {
        self.get(&["v1", "status"])
    }

    /// Begins a checkpoint, or finds the one under way.
    pub fn take_checkpoint(&self) -> Result<Checkpoint, ClientError> {
        self.json(self.http.post(self.at(&["v1", "checkpoints"])))
    }

    /// A checkpoint, or its progress.
    pub fn checkpoint(&self, id: &str) -> Result<Checkpoint, ClientError> {
        self.get(&["v1", "checkpoints", id])
    }

    /// Calls that run or wait, the oldest first.
    pub fn calls(&self, limit: usize) -> Result<CallList, ClientError> {
        self.get_with(&["v1", "calls"], &[("limit", Some(limit.to_string()))])
    }

    /// Ends a call by its own id or its transaction's. Returns its phase before.
    pub fn cancel_call(&self, id: &str) -> Result<RunningCall, ClientError> {
        self.json(self.http.delete(self.at(&["v1", "calls", id])))
    }

    /// Returns the checkpoints, and the cost of a restart with them.
    pub fn checkpoints(&self) -> Result<CheckpointList, ClientError> {
        self.get(&["v1", "checkpoints"])
    }

    /// Begins a backup on the server, or returns the one under way, which has more than 0 seconds. `with_earlier`: it also holds the log
    /// before its checkpoint, if there is any.
    pub fn create_backup(&self, with_earlier: bool) -> Result<Backup, ClientError> {
        let asked = with_earlier.then(|| ("earlier", "true".to_owned()));
        self.json(self.http.post(self.at_with(&["v1", "backups"], asked.as_slice())))
    }

    /// A backup, or its progress.
    pub fn backup(&self, id: &str) -> Result<Backup, ClientError> {
        self.get(&["v1", "backups", id])
    }

    /// The backups, newest first.
    pub fn backups(&self) -> Result<BackupList, ClientError> {
        self.get(&["v1", "backups"])
    }

    /// Removes a backup from the server's disk.
    pub fn remove_backup(&self, id: &str) -> Result<(), ClientError> {
        self.send(self.http.delete(self.at(&["v1", "backups", id]))).map(drop)
    }

    /// The bytes of a backup's file, as they come.
    pub fn backup_file(&self, id: &str, name: &str) -> Result<impl Read + use<>, ClientError> {
        self.send(self.http.get(self.at(&["v1", "backups", id, "files", name])))
    }

    /// Whether calls are taken; also answers with the progress while they are not.
    pub fn readiness(&self) -> Result<Readiness, ClientError> {
        let response = self.exchange(self.look(self.at(&["readyz"])))?;
        match response.status() {
            StatusCode::OK | StatusCode::SERVICE_UNAVAILABLE => read_short(response),
            _ => Err(refusal(response)),
        }
    }

    pub(crate) fn at(&self, segments: &[&str]) -> Url {
        let mut url = self.url.clone();
        url.path_segments_mut()
            .expect("checked when the client was made")
            .pop_if_empty()
            .extend(segments);
        url
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, segments: &[&str]) -> Result<T, ClientError> {
        self.get_with(segments, &[])
    }

    /// A path with a query.
    fn at_with(&self, segments: &[&str], pairs: &[(&'static str, String)]) -> Url {
        let mut url = self.at(segments);
        if !pairs.is_empty() {
            url.query_pairs_mut().extend_pairs(pairs);
        }
        url
    }

    pub(crate) fn get_with<T: DeserializeOwned>(
        &self,
        segments: &[&str],
        pairs: &[(&str, Option<String>)],
    ) -> Result<T, ClientError> {
        let mut url = self.at(segments);
        for (name, value) in pairs {
            if let Some(value) = value {
                url.query_pairs_mut().append_pair(name, value);
            }
        }
        self.json(self.look(url))
    }

    /// Makes a question that changes nothing. A server that accepts it and says nothing holds its caller for a bounded time.
    fn look(&self, url: Url) -> RequestBuilder {
        self.http.get(url).timeout(self.look_wait_max)
    }

    pub(crate) fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, ClientError> {
        read(self.send(request)?)
    }

    /// Sends a request. If a standby refuses it because it writes, sends it once more to the primary that the standby names, encrypted
    /// or not as before.
    pub(crate) fn send(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        let again = request.try_clone();
        let response = self.exchange(request)?;
        if response.status().is_success() {
            return Ok(response);
        }
        let refused = refusal(response);
        let primary = primary_of(&refused).filter(|primary| primary.scheme() == self.url.scheme());
        let Some((again, primary)) = again.zip(primary) else {
            return Err(refused);
        };
        let response = self.exchange(self.moved(again, &primary)?)?;
        match response.status().is_success() {
            true => Ok(response),
            false => Err(refusal(response)),
        }
    }

    /// Copies a request for another server.
    fn moved(&self, request: RequestBuilder, server: &Url) -> Result<RequestBuilder, ClientError> {
        let (client, request) = request.build_split();
        let mut request = request.map_err(|error| ClientError::Http(chain(&error)))?;
        let mut url = server.clone();
        url.set_path(request.url().path());
        url.set_query(request.url().query());
        *request.url_mut() = url;
        Ok(RequestBuilder::from_parts(client, request))
    }

    fn exchange(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        let request = match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        request.send().map_err(|error| match is_refused(&error) {
            true => ClientError::Trust(format!(
                "this machine does not trust the certificate of {}; name the certificate that signed it: {}",
                self.server_of(&error),
                chain(&error)
            )),
            false if error.is_connect() => ClientError::Connect {
                url: self.server_of(&error).to_string(),
                error: chain(&error),
            },
            false if error.is_timeout() => ClientError::Http("it does not answer in time".to_owned()),
            false => ClientError::Http(chain(&error)),
        })
    }

    /// Returns the server that a request went to. It is another than the client's after `moved`.
    fn server_of(&self, error: &reqwest::Error) -> Url {
        let mut url = error.url().unwrap_or(&self.url).clone();
        url.set_path("");
        url.set_query(None);
        url
    }
}

/// Adds consents to a URL.
fn allowing(mut url: Url, allow: &[String]) -> Url {
    if !allow.is_empty() {
        url.query_pairs_mut()
            .extend_pairs(allow.iter().map(|consent| ("allow", consent)));
    }
    url
}

/// The URL for a plan only.
fn planning(mut url: Url) -> Url {
    url.query_pairs_mut().append_pair("dry_run", "true");
    url
}

/// Returns the body of a batch: a line for each call.
fn lines_of(calls: &[BatchCall]) -> Result<Vec<u8>, ClientError> {
    let mut body = Vec::with_capacity(calls.len() * 128);
    for call in calls {
        let begin = body.len();
        serde_json::to_writer(&mut body, call).map_err(|error| ClientError::Protocol(error.to_string()))?;
        // Arguments may come from an indented text, and a line is one call. No string of JSON has a line break of its own.
        let is_break = |byte: &&mut u8| matches!(**byte, b'\n' | b'\r');
        body[begin..].iter_mut().filter(is_break).for_each(|byte| *byte = b' ');
        body.push(b'\n');
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpListener,
        sync::mpsc,
        thread,
    };

    use reprise_api::{JoinRequest, ProblemKind};

    use super::*;
    use crate::answers::read_within;

    /// A server that gives one answer, whatever it is asked; returns its URL and the request's first line.
    fn one_answer(answer: impl Into<String>) -> (String, thread::JoinHandle<String>) {
        let answer = answer.into();
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let url = format!("http://{}/", listener.local_addr().expect("address"));
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accept");
            let mut request = [0; 4096];
            let length = stream.read(&mut request).expect("read");
            stream.write_all(answer.as_bytes()).expect("write");
            let text = String::from_utf8_lossy(&request[..length]).into_owned();
            text.lines().next().unwrap_or_default().to_owned()
        });
        (url, server)
    }

    #[test]
    fn problems_keep_their_members() {
        let (url, server) = one_answer(
            "HTTP/1.1 422 Unprocessable Entity\r\ncontent-type: application/problem+json\r\nconnection: close\r\n\r\n\
             {\"type\":\"/problems/procedure-aborted\",\"title\":\"t\",\"status\":422,\"detail\":\"d\",\
             \"code\":\"insufficient_funds\",\"message\":\"too little\"}",
        );
        let client = Client::new(&url, None).expect("client");
        let error = client
            .call("bank", "transfer", &serde_json::json!({"from": 1}))
            .expect_err("aborted");
        assert_eq!(error.kind(), Some(ProblemKind::ProcedureAborted));
        let ClientError::Problem(problem) = error else {
            panic!("a problem")
        };
        assert_eq!(problem.code.as_deref(), Some("insufficient_funds"));
        assert_eq!(server.join().expect("server"), "POST /v1/call/bank/transfer HTTP/1.1");
    }

    #[test]
    fn answers_are_typed_and_queries_encoded() {
        let (url, server) = one_answer(
            "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"rows\":[{\"b\":1,\"a\":\"2\"}],\"next_cursor\":null,\"lsn\":\"18446744073709551615\"}",
        );
        let query = RowsQuery {
            prefix: Some("[\"a&b\"]".into()),
            ..RowsQuery::default()
        };
        let page = Client::new(&url, None)
            .expect("client")
            .rows("votes", &query)
            .expect("page");
        assert_eq!(page.lsn, U64(u64::MAX));
        assert_eq!(page.rows[0].get(), "{\"b\":1,\"a\":\"2\"}");
        let asked = server.join().expect("server");
        assert_eq!(asked, "GET /v1/tables/votes/rows?prefix=%5B%22a%26b%22%5D HTTP/1.1");
    }

    /// A server that answers with spaces until its peer has enough.
    fn endless_answer(head: &'static str) -> (String, thread::JoinHandle<u64>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let url = format!("http://{}/", listener.local_addr().expect("address"));
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accept");
            let _ = stream.read(&mut [0; 4096]).expect("read");
            stream.write_all(head.as_bytes()).expect("write");
            let (spaces, mut sent) = (vec![b' '; 64 << 10], 0);
            // Bounded, so that a client that reads on fails the test and not the machine.
            while sent < 64 << 20 && stream.write_all(&spaces).is_ok() {
                sent += spaces.len() as u64;
            }
            sent
        });
        (url, server)
    }

    #[test]
    fn an_endless_answer_is_refused_when_nodes_ask_each_other() {
        for head in ["HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 409 Conflict\r\n\r\n"] {
            let (url, server) = endless_answer(head);
            let refused = Client::new(&url, None).expect("client").join(&JoinRequest {
                name: "s1".into(),
                process: None,
                url: None,
            });
            assert!(refused.is_err(), "{head}");
            drop(refused);
            let sent = server.join().expect("server");
            assert!(sent < 32 << 20, "{head}: {sent} bytes were taken");
        }
    }

    #[test]
    fn answer_that_stops_within_its_body_holds_no_caller() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let url = format!("http://{}/", listener.local_addr().expect("address"));
        let (release, released) = mpsc::channel::<()>();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accept");
            let _ = stream.read(&mut [0; 4096]).expect("read");
            let begun = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{";
            stream.write_all(begun).expect("write");
            let _ = released.recv(); // the connection stays open until the test has its outcome
        });
        let client = Client::new(&url, None).expect("client");
        // A request that has no time limit of its own.
        let request = client.http.post(client.at(&["v1", "replication", "promote"]));
        let answer = client.send(request).expect("a head");
        let refused = read_within(answer, 1 << 10, Duration::from_millis(100)).expect_err("the body has no end");
        assert!(refused.to_string().contains("did not end within"), "{refused}");
        drop(release);
        server.join().expect("server");
    }

    #[test]
    fn server_that_says_nothing_holds_no_caller_that_changes_nothing() {
        // The system accepts the connections, and nothing answers them.
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let url = format!("http://{}", listener.local_addr().expect("address"));
        let mut client = Client::new(&url, None).expect("client");
        client.look_wait_max = Duration::from_millis(100);
        let query = RowsQuery::default();
        let outcomes = [
            ("rows", client.rows("t", &query).map(drop)),
            (
                "rows as text",
                client.rows_text("t", &query, NDJSON_MEDIA_TYPE).map(drop),
            ),
            ("groups", client.groups("t", &query, 1, None).map(drop)),
            ("status", client.status().map(drop)),
            ("readiness", client.readiness().map(drop)),
        ];
        for (asked, outcome) in outcomes {
            let refused = outcome.expect_err(asked).to_string();
            assert_eq!(refused, "talk to the server: it does not answer in time", "{asked}");
        }
    }

    #[test]
    fn call_of_a_batch_is_one_line_also_with_indented_arguments() {
        let raw = |text: &str| serde_json::value::RawValue::from_string(text.to_owned()).expect("JSON");
        let call = BatchCall {
            module: "m".into(),
            procedure: "p".into(),
            args: Some(raw("{\n  \"text\": \"a\\nb\"\r\n}")),
            id: None,
            idempotency_key: None,
        };
        let body = String::from_utf8(lines_of(&[call.clone(), call]).expect("lines")).expect("text");
        assert_eq!(body.lines().count(), 2);
        for line in body.lines() {
            let call: serde_json::Value = serde_json::from_str(line).expect("JSON");
            assert_eq!(call["args"]["text"], "a\nb");
        }
    }

    #[test]
    fn a_broken_batch_says_how_much_is_missing() {
        let (url, server) = one_answer(
            "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"result\":1,\"txn_id\":\"5\",\"lsn\":\"6\",\"partition\":null}\n",
        );
        let call = |id: &str| BatchCall {
            module: "m".into(),
            procedure: "p".into(),
            args: None,
            id: Some(serde_json::value::to_raw_value(id).expect("JSON")),
            idempotency_key: None,
        };
        let client = Client::new(&url, None).expect("client");
        let mut answers = client.batch(&[call("a"), call("b")]).expect("answers");
        let first = answers.next().expect("first").expect("committed");
        assert_eq!((first.txn_id, first.partition), (Some(U64(5)), None));
        assert!(matches!(answers.next(), Some(Err(ClientError::Http(_)))));
        assert!(answers.next().is_none());
        server.join().expect("server");
    }

    #[test]
    fn refused_write_goes_from_the_standby_to_its_primary_and_no_further() {
        let refuse = |primary: &str| {
            let body = format!(
                r#"{{"type": "/problems/not-primary", "title": "", "status": 421, "detail": "no", "primary": "{primary}"}}"#
            );
            format!(
                "HTTP/1.1 421 Misdirected Request\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            )
        };
        let answer = r#"{"result": 1, "txn_id": "7", "lsn": "8", "partition": 0}"#;
        let length = answer.len();
        let (primary, first) = one_answer(format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{answer}"
        ));
        let (standby, second) = one_answer(refuse(&primary));
        let client = Client::new(&standby, None).expect("client");
        let called = client
            .call("bank", "open", &serde_json::json!({"account": 1}))
            .expect("it followed");
        assert_eq!(called.answer.lsn.0, 8);
        first.join().expect("server");
        second.join().expect("server");
        // A primary that refuses as well is not asked on.
        let (far, third) = one_answer(refuse("http://127.0.0.1:1"));
        let (near, fourth) = one_answer(refuse(&far));
        let refused = Client::new(&near, None)
            .expect("client")
            .remove_module("bank", &[])
            .expect_err("refused twice");
        assert_eq!(refused.kind(), Some(ProblemKind::NotPrimary));
        // Nor is one by another scheme: a token that came by TLS would go out in plain, or the other way round.
        let (near, fifth) = one_answer(refuse("https://127.0.0.1:1"));
        let refused = Client::new(&near, None).expect("client").remove_module("bank", &[]);
        assert_eq!(refused.expect_err("refused").kind(), Some(ProblemKind::NotPrimary));
        fifth.join().expect("server");
        third.join().expect("server");
        fourth.join().expect("server");
    }

    #[test]
    fn absent_server_and_invalid_answer_are_distinct_errors() {
        assert!(matches!(Client::new("ftp://x", None), Err(ClientError::Url { .. })));
        for garbage in [
            "",
            "no PEM",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            let refused = Client::trusting("https://x", None, Some(garbage.as_bytes()));
            assert!(matches!(refused, Err(ClientError::Trust(_))), "{garbage:?}");
        }
        assert!(matches!(Client::new("nonsense", None), Err(ClientError::Url { .. })));
        let free = TcpListener::bind("127.0.0.1:0")
            .expect("bind")
            .local_addr()
            .expect("address");
        let client = Client::new(&format!("http://{free}"), None).expect("client");
        assert!(matches!(client.status(), Err(ClientError::Connect { .. })));
        let (url, server) = one_answer("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n<html>");
        let client = Client::new(&url, None).expect("client");
        assert!(matches!(client.status(), Err(ClientError::Protocol(_))));
        server.join().expect("server");
        // A standby names a primary that is gone. The error names the primary, because the standby was reached.
        let body = r#"{"type": "/problems/not-primary", "title": "", "status": 421, "detail": "no", "primary": "http://127.0.0.1:1"}"#;
        let (standby, server) = one_answer(format!(
            "HTTP/1.1 421 Misdirected Request\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        ));
        let client = Client::new(&standby, None).expect("client");
        match client.remove_module("bank", &[]) {
            Err(ClientError::Connect { url, .. }) => assert_eq!(url, "http://127.0.0.1:1/"),
            other => panic!("{other:?}"),
        }
        server.join().expect("server");
    }
}
