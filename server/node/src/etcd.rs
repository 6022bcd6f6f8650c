//! A client of etcd's JSON gateway (`/v3`), for the servers of one etcd.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context;
use base64::{Engine, engine::general_purpose::STANDARD};
use percent_encoding::percent_decode_str;
use reprise_client::{ClientCertificate, tls_config};
use reprise_database::StoreError;
use reqwest::{StatusCode, Url, blocking::Client, header::AUTHORIZATION, redirect::Policy};
use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error as _};
use serde_json::{Value, json};

/// Number of characters that a message shows of an answer without JSON at most.
const TEXT_CHARS_MAX: usize = 200;

/// Number of bytes that the client reads of an answer at most. Records have some hundred.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// One server of etcd.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdEndpoint {
    /// The URL without user and password.
    url: Url,
    user: Option<EtcdUser>,
}

#[derive(Clone, PartialEq, Eq)]
struct EtcdUser {
    name: String,
    password: String,
}

impl EtcdEndpoint {
    /// Returns the parts that are never shown.
    pub fn user_and_password(&self) -> String {
        let user = self.user.as_ref();
        user.map_or_else(String::new, |user| format!("{}:{}", user.name, user.password))
    }

    /// Parses `http://HOST:PORT`, or `https://USER:PASSWORD@HOST:PORT` with `%` escapes in both. None: the text is no such URL.
    pub fn read(text: &str) -> Option<Self> {
        let mut url = Url::parse(text.trim()).ok()?;
        if !matches!(url.scheme(), "http" | "https") || url.query().is_some() || !matches!(url.path(), "" | "/") {
            return None;
        }
        let decoded = |part: &str| Some(percent_decode_str(part).decode_utf8().ok()?.into_owned());
        let user = match (url.username(), url.password()) {
            ("", None) => None,
            (name, password) => Some(EtcdUser {
                name: decoded(name)?,
                password: decoded(password.unwrap_or_default())?,
            }),
        };
        url.set_username("").ok()?;
        url.set_password(None).ok()?;
        Some(Self { url, user })
    }

    /// Returns the URL without user and password.
    pub fn address(&self) -> &str {
        self.url.as_str().trim_end_matches('/')
    }
}

/// Files that a connection over TLS needs. Each new connection reads them again.
#[derive(Clone, Debug, Default)]
pub struct EtcdFiles {
    /// Certificates that sign etcd's, beside the system's.
    pub ca_cert: Option<PathBuf>,
    /// Certificate and key that this server shows to an etcd that asks for one.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// Connections to the servers of one etcd, one at a time.
pub struct EtcdClient {
    endpoints: Vec<EtcdEndpoint>,
    files: EtcdFiles,
    /// Longest time that one lease operation takes, with all its requests.
    time_max: Duration,
    deadline: Instant,
    /// The endpoint in use.
    at: usize,
    http: Option<Client>,
    token: Option<String>,
}

/// Why a request failed.
enum EtcdRefusal {
    /// The endpoint never received it.
    NotSent(String),
    /// The token is missing, unknown, or too old.
    Token(String),
    Other(String),
}

impl EtcdClient {
    /// Makes a client. Err: a file is not usable.
    pub fn new(endpoints: &[EtcdEndpoint], files: EtcdFiles, time_max: Duration) -> anyhow::Result<Self> {
        let mut client = Self {
            endpoints: endpoints.to_vec(),
            files,
            time_max,
            deadline: Instant::now(),
            at: 0,
            http: None,
            token: None,
        };
        client.http = Some(client.connect()?);
        Ok(client)
    }

    /// Runs one lease operation within its time. After an error the next operation asks the next endpoint, over a new connection.
    pub fn run<T>(&mut self, operation: impl FnOnce(&mut Self) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.deadline = Instant::now() + self.time_max;
        let outcome = operation(self);
        if outcome.is_err() {
            self.use_next_endpoint();
        }
        outcome
    }

    /// Sends one request of an operation. Only an endpoint that never received it is replaced by the next one: the gateway may
    /// have run any other.
    pub fn ask<T: DeserializeOwned>(&mut self, path: &str, question: &Value) -> Result<T, StoreError> {
        let mut answer = self.ask_endpoint(path, question);
        for _ in 1..self.endpoints.len() {
            if !matches!(answer, Err(EtcdRefusal::NotSent(_))) {
                break;
            }
            self.use_next_endpoint();
            answer = self.ask_endpoint(path, question);
        }
        let answer = answer.map_err(|refusal| match refusal {
            EtcdRefusal::NotSent(reason) | EtcdRefusal::Token(reason) | EtcdRefusal::Other(reason) => {
                StoreError(reason.into())
            }
        })?;
        serde_json::from_value(answer).map_err(|error| StoreError(format!("{path}: {error}").into()))
    }

    fn ask_endpoint(&mut self, path: &str, question: &Value) -> Result<Value, EtcdRefusal> {
        let had_token = self.token.is_some();
        if !had_token {
            self.authenticate()?;
        }
        match self.post(path, question) {
            Err(EtcdRefusal::Token(_)) if had_token => {
                self.authenticate()?;
                self.post(path, question)
            }
            answer => answer,
        }
    }

    /// Gets a token if the endpoint's URL has a user.
    fn authenticate(&mut self) -> Result<(), EtcdRefusal> {
        self.token = None;
        let Some(EtcdUser { name, password }) = self.endpoints[self.at].user.clone() else {
            return Ok(());
        };
        let answer = self.post("v3/auth/authenticate", &json!({"name": name, "password": password}))?;
        match answer["token"].as_str() {
            Some(token) => self.token = Some(token.to_owned()),
            None => return Err(EtcdRefusal::Other("etcd answered without a token".into())),
        }
        Ok(())
    }

    fn post(&mut self, path: &str, question: &Value) -> Result<Value, EtcdRefusal> {
        let http = match self.http.clone() {
            Some(http) => http,
            None => self
                .connect()
                .map_err(|error| EtcdRefusal::NotSent(format!("{error:#}")))?,
        };
        self.http = Some(http.clone());
        let left = self.deadline.saturating_duration_since(Instant::now());
        let url = &self.endpoints[self.at].url;
        let url = url.join(path).map_err(|error| EtcdRefusal::Other(error.to_string()))?;
        let mut request = http.post(url).timeout(left).json(question);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        let refusal = |error: reqwest::Error| match (error.is_connect(), error.is_timeout()) {
            (true, _) => EtcdRefusal::NotSent(format!("{:#}", anyhow::Error::from(error))),
            (false, true) => EtcdRefusal::Other(format!("no answer within {} ms", self.time_max.as_millis())),
            (false, false) => EtcdRefusal::Other(format!("{:#}", anyhow::Error::from(error))),
        };
        let answer = request.send().map_err(refusal)?;
        let (status, mut body) = (answer.status(), Vec::new());
        let reading = answer.take(ANSWER_BYTES_MAX).read_to_end(&mut body);
        reading.map_err(|error| EtcdRefusal::Other(error.to_string()))?;
        read(status, &body)
    }

    fn use_next_endpoint(&mut self) {
        self.at = (self.at + 1) % self.endpoints.len();
        self.http = None;
        self.token = None;
    }

    fn connect(&self) -> anyhow::Result<Client> {
        let read = |path: &Path| fs::read(path).with_context(|| format!("read {}", path.display()));
        let ca_cert = self.files.ca_cert.as_deref().map(read).transpose()?;
        let certificate = self.files.certificate.as_ref();
        let certificate = certificate.map(|(chain, key)| anyhow::Ok((read(chain)?, read(key)?)));
        let certificate = certificate.transpose()?;
        let is_encrypted = self.endpoints.iter().any(|endpoint| endpoint.url.scheme() == "https");
        let certificate = certificate
            .as_ref()
            .map(|(chain, key)| ClientCertificate { chain, key });
        let tls = tls_config(is_encrypted, ca_cert.as_deref(), certificate).map_err(anyhow::Error::msg)?;
        let builder = Client::builder()
            .connect_timeout(self.time_max / self.endpoints.len() as u32)
            .no_proxy()
            .redirect(Policy::none())
            .tcp_nodelay(true)
            .tls_backend_preconfigured(tls);
        builder.build().context("set up HTTP")
    }
}

/// Reads one answer. A stream reports an error with the status 200.
fn read(status: StatusCode, body: &[u8]) -> Result<Value, EtcdRefusal> {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    let error = &answer["error"];
    if status.is_success() && answer.is_object() && error.is_null() {
        return Ok(answer);
    }
    let texts = [&answer["message"], error, &error["message"]];
    let text = texts.iter().find_map(|text| text.as_str());
    let text = text.map_or_else(
        || {
            let body = String::from_utf8_lossy(body);
            let body: String = body.trim().chars().take(TEXT_CHARS_MAX).collect();
            format!("etcd answered with HTTP status {status}: {body}")
        },
        str::to_owned,
    );
    Err(
        match status == StatusCode::UNAUTHORIZED || text.contains("revision of auth store is old") {
            true => EtcdRefusal::Token(text),
            false => EtcdRefusal::Other(text),
        },
    )
}

/// Returns bytes in the gateway's form.
pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// Reads a 64-bit number. The gateway writes it as text, and leaves zeros out.
fn int64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    STANDARD
        .decode(String::deserialize(deserializer)?)
        .map_err(D::Error::custom)
}

/// Answer of `v3/lease/grant`, and the result of `v3/lease/keepalive`.
#[derive(Debug, Deserialize)]
pub struct LeaseAnswer {
    #[serde(rename = "ID", deserialize_with = "int64")]
    pub id: i64,
    #[serde(rename = "TTL", default, deserialize_with = "int64")]
    pub ttl_s: i64,
}

/// Answer of `v3/lease/keepalive`.
#[derive(Debug, Deserialize)]
pub struct KeepAliveAnswer {
    pub result: LeaseAnswer,
}

#[derive(Debug, Deserialize)]
pub struct AnswerHeader {
    #[serde(deserialize_with = "int64")]
    pub revision: i64,
}

/// Answer of `v3/kv/txn`.
#[derive(Debug, Deserialize)]
pub struct TxnAnswer {
    header: AnswerHeader,
    #[serde(default)]
    succeeded: bool,
    #[serde(default)]
    responses: Vec<TxnResponse>,
}

#[derive(Debug, Deserialize)]
struct TxnResponse {
    response_range: Option<RangeAnswer>,
}

impl TxnAnswer {
    /// Returns the store's revision after the transaction. None: a comparison failed.
    pub fn revision(&self) -> Option<i64> {
        self.succeeded.then_some(self.header.revision)
    }

    /// Returns the entries that its ranges found.
    pub fn entries(&self) -> impl Iterator<Item = &KeyValue> {
        let ranges = self
            .responses
            .iter()
            .filter_map(|response| response.response_range.as_ref());
        ranges.flat_map(|range| &range.kvs)
    }
}

/// Answer of `v3/kv/range`.
#[derive(Debug, Deserialize)]
pub struct RangeAnswer {
    #[serde(default)]
    pub kvs: Vec<KeyValue>,
}

#[derive(Debug, Deserialize)]
pub struct KeyValue {
    #[serde(deserialize_with = "bytes")]
    pub key: Vec<u8>,
    #[serde(default, deserialize_with = "bytes")]
    pub value: Vec<u8>,
    #[serde(deserialize_with = "int64")]
    pub mod_revision: i64,
    #[serde(default, deserialize_with = "int64")]
    pub lease: i64,
}

#[cfg(test)]
mod tests;
