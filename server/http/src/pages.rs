//! The site on whose behalf a browser sends a request. A page of another site must not act for the person who reads it. A browser marks
//! such requests with `Origin` and `Sec-Fetch-Site`; programs send neither.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header},
    response::Response,
};
use reprise_api::{ProblemKind, headers};

use crate::refusal::Refusal;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Sites whose pages may send requests, beside the server's own: most likely the name of a proxy in front.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedOrigins {
    named: Vec<String>,
    /// The server's own pages come by https.
    is_encrypted: bool,
}

/// A text that is no origin.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an origin: write https://host or http://host:port, without a path")]
pub struct OriginError(String);

impl AllowedOrigins {
    /// Makes the list of the origins that the configuration names.
    pub fn new(names: &[String]) -> Result<Self, OriginError> {
        let is_origin = |name: &str| {
            let host = name.strip_prefix("https://").or_else(|| name.strip_prefix("http://"));
            let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"/?#@*\"".contains(&byte);
            host.is_some_and(|host| !host.is_empty() && host.bytes().all(is_plain))
        };
        let lower: Vec<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        match lower.iter().position(|name| !is_origin(name)) {
            Some(at) => Err(OriginError(names[at].clone())),
            None => Ok(Self {
                named: lower,
                is_encrypted: false,
            }),
        }
    }

    /// Whether the server's own pages come by https.
    pub fn encrypted(mut self, is_encrypted: bool) -> Self {
        self.is_encrypted = is_encrypted;
        self
    }

    /// True if no site is named.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    /// Returns the origin of a request, if it is one that may ask. The answer is then allowed to it.
    pub fn named<'h>(&self, headers: &'h HeaderMap) -> Option<&'h HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        let text = origin.to_str().ok()?.to_ascii_lowercase();
        self.named.contains(&text).then_some(origin)
    }

    /// Refuses a request of another site's page. `is_public`: the path is public, so a link that leads here does no harm.
    pub fn check(&self, headers: &HeaderMap, is_public: bool) -> Result<(), Refusal> {
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let (origin, more) = (origins.next(), origins.next());
        let text = origin.map(|value| value.to_str().unwrap_or("").to_ascii_lowercase());
        if more.is_none()
            && let Some(origin) = &text
            && self.named.contains(origin)
        {
            return Ok(());
        }
        let site = headers.get(SEC_FETCH_SITE).map(|value| value.as_bytes());
        let is_others = matches!(site, Some(b"cross-site" | b"same-site")) && !is_public;
        let is_own = text.is_none_or(|origin| self.is_server(&origin, headers));
        if is_own && !is_others && more.is_none() {
            return Ok(());
        }
        Err(Refusal::new(
            ProblemKind::Forbidden,
            "the request comes from a page of another site. The server answers its own pages under the address of the request. It also answers \
             pages of the sites in its configuration (origins in [http])",
        ))
    }

    /// True if an origin is this server's scheme, host and port, as the request names them.
    fn is_server(&self, origin: &str, headers: &HeaderMap) -> bool {
        let (scheme, port) = match self.is_encrypted {
            false => ("http://", ":80"),
            true => ("https://", ":443"),
        };
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let plain = |text: &str| {
            let text = text.strip_suffix(port).unwrap_or(text).to_ascii_lowercase();
            // A name may end with the dot of the root, before its port.
            let (name, port) = text.split_at(text.rfind(':').unwrap_or(text.len()));
            format!("{}{port}", name.strip_suffix('.').unwrap_or(name))
        };
        match (origin.strip_prefix(scheme), host) {
            (Some(origin), Some(host)) => plain(origin) == plain(host),
            _ => false,
        }
    }
}

/// Methods and headers that a page of another site may send, and headers that it may read of an answer.
const ALLOWED_METHODS: &str = "GET, HEAD, PUT, POST, DELETE";
const ALLOWED_HEADERS: [&str; 11] = [
    "authorization",
    "content-type",
    "accept",
    headers::IDEMPOTENCY_KEY,
    headers::TRACEPARENT,
    headers::TIMEOUT_MS,
    headers::MIN_LSN,
    headers::MAX_LAG_MS,
    headers::MAX_WAIT_MS,
    headers::SAFETY,
    headers::INTEGERS,
];
const EXPOSED_HEADERS: [&str; 12] = [
    headers::TXN_ID,
    headers::LSN,
    headers::NEXT_CURSOR,
    headers::SAFETY,
    headers::VIEW_LSN,
    headers::LAG_MS,
    headers::LAG_KNOWN,
    headers::FRESHNESS,
    headers::IDEMPOTENT_REPLAYED,
    "location",
    "retry-after",
    headers::TRACEPARENT,
];
/// Seconds for which a browser remembers the answer to its question.
const ALLOWED_S: &str = "600";

/// Answers a browser's question whether a page of another site may send a request (CORS). The question has no token, so only the origin
/// decides. None: it is no such question, or the origin is not allowed.
pub fn preflight(origins: &AllowedOrigins, method: &Method, headers: &HeaderMap) -> Option<Response> {
    if method != Method::OPTIONS || !headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) {
        return None;
    }
    let origin = origins.named(headers)?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let own = response.headers_mut();
    own.insert(
        header::ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static(ALLOWED_METHODS),
    );
    own.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, list_of(&ALLOWED_HEADERS));
    own.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(ALLOWED_S));
    allow(origin.clone(), own);
    Some(response)
}

fn list_of(names: &[&str]) -> HeaderValue {
    HeaderValue::try_from(names.join(", ")).expect("names of headers are ASCII")
}

/// Lets the page read the answer. Tokens are sent by the page itself, so cookies and the like are never allowed.
pub fn allow(origin: HeaderValue, answer: &mut HeaderMap) {
    answer.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    answer.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, list_of(&EXPOSED_HEADERS));
    answer.append(header::VARY, HeaderValue::from_static("origin"));
}

/// Checks that an HTTP/1.1 request names its host, once. With two hosts, a proxy before this server may have checked the other.
pub fn check_host(version: Version, headers: &HeaderMap) -> Result<(), Refusal> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let is_right = match (hosts.next(), hosts.next()) {
        (Some(_), None) => true,
        (None, _) => version < Version::HTTP_11,
        (Some(_), Some(_)) => false,
    };
    match is_right {
        true => Ok(()),
        false => Err(Refusal::malformed("a request must have the header Host exactly once")),
    }
}

/// True for requests that a browser marks.
pub fn is_of_browser(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN) || headers.contains_key(SEC_FETCH_SITE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docs;

    /// A header that an operation takes is of no use to a page that may not send it.
    #[test]
    fn pages_of_other_sites_may_send_each_header_that_the_api_takes() {
        let document = serde_json::to_value(docs::openapi()).expect("a document");
        let paths = document["paths"].as_object().expect("paths");
        let operations = paths.values().filter_map(|path| path.as_object());
        let operations = operations.flat_map(|path| path.values());
        let parameters = operations.filter_map(|operation| operation["parameters"].as_array());
        let headers = parameters.flatten().filter(|parameter| parameter["in"] == "header");
        let names: Vec<_> = headers.filter_map(|header| header["name"].as_str()).collect();
        assert!(names.len() >= 5, "{names:?}");
        for name in names {
            assert!(ALLOWED_HEADERS.contains(&&*name.to_ascii_lowercase()), "{name}");
        }
    }

    fn headers_of(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let name = HeaderName::from_static;
        let pairs = pairs
            .iter()
            .map(|(key, value)| (name(key), value.parse().expect("a value")));
        let mut map = HeaderMap::new();
        pairs.for_each(|(key, value)| _ = map.append(key, value));
        map
    }

    #[test]
    fn only_the_servers_own_pages_and_named_ones_may_ask() {
        let origins = AllowedOrigins::new(&["https://DB.example".into()]).expect("an origin");
        let may = |pairs: &[(&'static str, &str)]| {
            let host = [("host", "10.0.0.7:8080")];
            origins.check(&headers_of(&[&host, pairs].concat()), false).is_ok()
        };
        assert!(may(&[]));
        assert!(may(&[("origin", "http://10.0.0.7:8080")]));
        assert!(may(&[
            ("origin", "https://db.example"),
            ("sec-fetch-site", "cross-site")
        ]));
        assert!(may(&[("sec-fetch-site", "same-origin")]));
        assert!(may(&[("sec-fetch-site", "none")]));
        for origin in [
            "null",
            "",
            "http://203.0.113.5",
            "http://10.0.0.7",
            "http://10.0.0.7:8081",
            "https://10.0.0.7:8080",
            "http://10.0.0.7:8080/",
            "http://localhost:8080",
            "http://db.example",
        ] {
            assert!(!may(&[("origin", origin)]), "{origin}");
        }
        let own = ("origin", "http://10.0.0.7:8080");
        assert!(!may(&[own, ("origin", "http://203.0.113.5")]));
        assert!(!may(&[own, ("sec-fetch-site", "cross-site")]));
        assert!(!may(&[("sec-fetch-site", "same-site")]));
        let link = headers_of(&[("host", "a"), ("sec-fetch-site", "cross-site")]);
        assert!(AllowedOrigins::default().check(&link, true).is_ok());
        let standard = headers_of(&[("host", "db.example:80"), ("origin", "http://db.example")]);
        assert!(AllowedOrigins::default().check(&standard, false).is_ok());
        let spelled = headers_of(&[("host", "DB.Example.:8080"), ("origin", "http://db.example:8080")]);
        assert!(AllowedOrigins::default().check(&spelled, false).is_ok());
        // Only the server's own pages by https are allowed with TLS.
        let encrypted = AllowedOrigins::default().encrypted(true);
        assert!(encrypted.check(&standard, false).is_err());
        let own = headers_of(&[("host", "db.example"), ("origin", "https://db.example:443")]);
        assert!(encrypted.check(&own, false).is_ok());
        assert!(AllowedOrigins::default().check(&own, false).is_err());
    }

    #[test]
    fn invalid_origin_is_refused_at_the_start() {
        for bad in [
            "null",
            "*",
            "https://",
            "db.example",
            "https://a/b",
            "ftp://a",
            "https://a b",
        ] {
            assert!(AllowedOrigins::new(&[bad.into()]).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_request_names_its_host_once() {
        let is_accepted = |version, pairs: &[(&'static str, &str)]| check_host(version, &headers_of(pairs)).is_ok();
        assert!(is_accepted(Version::HTTP_11, &[("host", "a")]));
        assert!(is_accepted(Version::HTTP_10, &[]));
        assert!(!is_accepted(Version::HTTP_11, &[]));
        assert!(!is_accepted(Version::HTTP_11, &[("host", "a"), ("host", "a")]));
    }
}
