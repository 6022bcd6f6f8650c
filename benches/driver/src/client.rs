//! A server, for the requests that the driver does not measure: status, deployment, filling, checks.

use std::rc::Rc;

use serde_json::Value;
use tokio::runtime::Runtime;

use crate::{
    BenchError,
    control::{Control, ManyCalls, NamedArg, RowVisitor, integer, to_json},
    failed,
    http1::{Answer, Connection},
    options::{Options, RemoteOptions},
    process::read_module,
    workload::push_i64,
};

const LOAD_BATCH: u64 = 256;
const PAGE_ROWS: u32 = 1_000;

/// The server's address, and the caller's token.
pub(crate) struct Session {
    /// `HOST:PORT`
    pub address: String,
    authorization: String,
}

impl Session {
    pub(crate) fn new(remote: &RemoteOptions) -> Result<Self, BenchError> {
        let usage = || {
            BenchError::Usage(format!(
                "{:?} is no address of a server: write http://HOST:PORT",
                remote.url
            ))
        };
        let rest = remote.url.strip_prefix("http://").ok_or_else(usage)?;
        let host = rest.trim_end_matches('/');
        if host.is_empty() || host.contains(['/', '@', '?', ' ', '\r', '\n']) {
            return Err(usage());
        }
        let has_port = host
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authorization = match &remote.token {
            Some(token) if token.bytes().all(|byte| byte.is_ascii_graphic()) => {
                format!("Authorization: Bearer {token}\r\n")
            }
            Some(_) => {
                return Err(BenchError::Usage("the token has characters that no token has".into()));
            }
            None => String::new(),
        };
        Ok(Self {
            address: if has_port {
                host.to_owned()
            } else {
                format!("{host}:80")
            },
            authorization,
        })
    }

    /// The part of a request that is the same for all of its kind: everything up to the length.
    pub(crate) fn head(&self, method: &str, path: &str, media_type: &str) -> Vec<u8> {
        format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\n{}Content-Type: {media_type}\r\nContent-Length: ",
            self.address, self.authorization
        )
        .into_bytes()
    }
}

/// Appends a request, with the header lines that `push_lines` appends.
pub(crate) fn push_body(request: &mut Vec<u8>, head: &[u8], body: &[u8], push_lines: impl FnOnce(&mut Vec<u8>)) {
    request.extend_from_slice(head);
    push_i64(request, body.len() as i64);
    request.extend_from_slice(b"\r\n");
    push_lines(request);
    request.extend_from_slice(b"\r\n");
    request.extend_from_slice(body);
}

/// The way to the server that is not measured.
pub(crate) struct Client<'a> {
    runtime: &'a Runtime,
    session: Rc<Session>,
    module: &'static str,
    connection: Option<Connection>,
    pub partitions: u16,
}

impl<'a> Client<'a> {
    pub(crate) fn new(runtime: &'a Runtime, session: Rc<Session>, module: &'static str) -> Self {
        Self {
            runtime,
            session,
            module,
            connection: None,
            partitions: 1,
        }
    }

    /// One request on a connection that is opened where there is none.
    fn exchange(
        &mut self,
        method: &str,
        path: &str,
        media_type: &str,
        body: &[u8],
    ) -> Result<(u16, Vec<u8>), BenchError> {
        let mut request = Vec::new();
        push_body(&mut request, &self.session.head(method, path, media_type), body, |_| {});
        let connection = &mut self.connection;
        let address = &self.session.address;
        let outcome = self.runtime.block_on(async {
            if connection.as_ref().is_none_or(Connection::is_closing) {
                *connection = Some(Connection::open(address).await?);
            }
            let open = connection.as_mut().expect("opened above");
            let Answer { status, body } = open.exchange(&request).await?;
            Ok::<_, std::io::Error>((status, body.to_vec()))
        });
        outcome.map_err(|error| {
            self.connection = None;
            failed(&format!("ask http://{}{path}", self.session.address), error)
        })
    }

    /// A request whose answer is to be 2xx with JSON.
    fn json(&mut self, method: &str, path: &str, media_type: &str, body: &[u8]) -> Result<Value, BenchError> {
        let (status, body) = self.exchange(method, path, media_type, body)?;
        if !(200..300).contains(&status) {
            return Err(BenchError::Failed(format!(
                "{method} {path}: {}",
                problem(status, &body)
            )));
        }
        serde_json::from_slice(&body).map_err(|error| failed(&format!("read the answer to {method} {path}"), error))
    }

    pub(crate) fn get(&mut self, path: &str) -> Result<Value, BenchError> {
        self.json("GET", path, "application/json", b"")
    }

    /// Installs the module, or takes the one in service where its file is not at hand.
    pub(crate) fn deploy(&mut self, options: &Options) -> Result<(), BenchError> {
        let path = format!("/v1/modules/{}", self.module);
        match read_module(self.module, options.modules.as_deref()) {
            Ok(wasm) => self.json("PUT", &path, "application/wasm", &wasm).map(drop),
            Err(missing) => match self.exchange("GET", &path, "application/json", b"")? {
                (200, _) => Ok(()),
                _ => Err(missing),
            },
        }
    }
}

impl Control for Client<'_> {
    fn call(&mut self, procedure: &str, args: &[NamedArg]) -> Result<Value, BenchError> {
        let path = format!("/v1/call/{}/{procedure}", self.module);
        let body = to_json(args).to_string();
        let mut answer = self.json("POST", &path, "application/json", body.as_bytes())?;
        Ok(answer["result"].take())
    }

    fn call_many(&mut self, calls: &ManyCalls<'_>) -> Result<(), BenchError> {
        let mut done = 0;
        while done < calls.count {
            let end = calls.count.min(done + LOAD_BATCH);
            let mut body = String::new();
            for at in done..end {
                let line = serde_json::json!({
                    "module": self.module, "procedure": calls.procedure, "args": to_json(&(calls.args)(at)),
                });
                body.push_str(&line.to_string());
                body.push('\n');
            }
            let (status, answer) = self.exchange("POST", "/v1/batch", "application/x-ndjson", body.as_bytes())?;
            if status != 200 {
                return Err(BenchError::Failed(format!(
                    "POST /v1/batch: {}",
                    problem(status, &answer)
                )));
            }
            for line in answer.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                let answer: Value =
                    serde_json::from_slice(line).map_err(|error| failed("read a line of a batch", error))?;
                let problem = &answer["problem"];
                if !problem.is_null() && problem["code"] != calls.tolerated {
                    return Err(BenchError::Failed(format!("{}: {problem}", calls.procedure)));
                }
            }
            done = end;
            (calls.on_done)(done);
        }
        Ok(())
    }

    fn visit_rows(&mut self, table: &str, visit: &mut dyn FnMut(&Value)) -> Result<(), BenchError> {
        let first = format!("/v1/tables/{table}/rows?limit={PAGE_ROWS}");
        let mut path = first.clone();
        loop {
            let page = self.get(&path)?;
            page["rows"].as_array().into_iter().flatten().for_each(&mut *visit);
            match page["next_cursor"].as_str() {
                Some(cursor) => path = format!("{first}&cursor={}", percent_encoded(cursor)),
                None => return Ok(()),
            }
        }
    }

    fn visit_integers(&mut self, table: &str, columns: &[&str], visit: &mut RowVisitor<'_>) -> Result<(), BenchError> {
        let mut bad = None;
        let mut values = Vec::new();
        self.visit_rows(table, &mut |row| {
            values.clear();
            for column in columns {
                match integer(row, column) {
                    Ok(value) => values.push(value),
                    Err(error) => return bad = Some(error),
                }
            }
            visit(&values);
        })?;
        bad.map_or(Ok(()), Err)
    }

    fn published_rows(&mut self, table: &str) -> Result<u64, BenchError> {
        let info = self.get(&format!("/v1/tables/{table}"))?;
        Ok(integer(&info, "rows")? as u64)
    }

    fn partitions(&self) -> u16 {
        self.partitions
    }
}

fn percent_encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(byte as char),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// A refusal in words.
pub(crate) fn problem(status: u16, body: &[u8]) -> String {
    let parsed: Value = serde_json::from_slice(body).unwrap_or_default();
    match (parsed["title"].as_str(), parsed["detail"].as_str()) {
        (Some(title), Some(detail)) => format!("{status} {title}: {detail}"),
        _ => format!("{status} {}", String::from_utf8_lossy(&body[..body.len().min(200)])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Via;

    fn check_url(url: &str) -> Option<String> {
        let remote = RemoteOptions {
            url: url.into(),
            token: None,
            via: Via::Single,
            connections: 1,
            batch: 1,
            pipeline: 1,
            keyed: false,
            timeout_ms: None,
        };
        Session::new(&remote).ok().map(|session| session.address)
    }

    #[test]
    fn addresses_are_taken_or_refused() {
        assert_eq!(check_url("http://127.0.0.1:8080/").as_deref(), Some("127.0.0.1:8080"));
        assert_eq!(check_url("http://localhost").as_deref(), Some("localhost:80"));
        for bad in ["https://a", "127.0.0.1:1", "http://", "http://a/b", "http://a\r\nX: y"] {
            assert_eq!(check_url(bad), None, "{bad}");
        }
    }
}
