//! Permissions: bearer tokens with roles, and the guard of a server without tokens.

use std::{net::IpAddr, sync::Arc};

use axum::http::{HeaderMap, Method, Version, header, request::Parts};
use reprise_api::ProblemKind;
use reprise_base::limits::IDEMPOTENCY_SCOPE_BYTES_MAX;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::{
    grants::Grants,
    pages::{AllowedOrigins, check_host},
    principal::Principal,
    refusal::Refusal,
    roles::{TokenRole, needed_role},
};

/// A token as configured: never the token itself.
#[derive(Clone, Debug)]
pub struct Token {
    /// Name of the token's user: a principal.
    pub name: Arc<str>,
    /// Role of the token.
    pub role: TokenRole,
    /// Within which its idempotency keys count: its name, unless the configuration names another scope.
    pub scope: Arc<str>,
    /// Modules, procedures and tables to which it is restricted. None: all of them.
    pub grants: Option<Arc<Grants>>,
    /// SHA-256 of the token.
    pub digest: [u8; 32],
}

/// Why a token can't be configured.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum AuthError {
    #[error("token {name}: sha256 must be the SHA-256 of the token, in 64 hexadecimal digits")]
    Digest { name: String },
    #[error("the name of a token must have 1 to {IDEMPOTENCY_SCOPE_BYTES_MAX} bytes; this one has {bytes}")]
    Name { bytes: usize },
    #[error("token {name}: a scope must have 1 to {IDEMPOTENCY_SCOPE_BYTES_MAX} bytes; this one has {bytes}")]
    Scope { name: String, bytes: usize },
    #[error(
        "token {name}: a grant must be MODULE, MODULE.PROCEDURE or MODULE.TABLE, not {grant:?}; without grants, leave out the list"
    )]
    Grant { name: String, grant: String },
    #[error("token {name}: the role must be read, write or admin, not {role:?}")]
    Role { name: String, role: String },
}

impl Token {
    /// Makes a token from the words of a configuration file.
    pub fn new(name: &str, role: &str, scope: Option<&str>, sha256_hex: &str) -> Result<Self, AuthError> {
        if !(1..=IDEMPOTENCY_SCOPE_BYTES_MAX).contains(&name.len()) {
            return Err(AuthError::Name { bytes: name.len() });
        }
        let scope = scope.unwrap_or(name);
        if !(1..=IDEMPOTENCY_SCOPE_BYTES_MAX).contains(&scope.len()) {
            return Err(AuthError::Scope {
                name: name.into(),
                bytes: scope.len(),
            });
        }
        let digest = parse_digest(sha256_hex).ok_or_else(|| AuthError::Digest { name: name.into() })?;
        let role = TokenRole::from_name(role).ok_or_else(|| AuthError::Role {
            name: name.into(),
            role: role.into(),
        })?;
        Ok(Self {
            name: name.into(),
            role,
            scope: scope.into(),
            grants: None,
            digest,
        })
    }

    /// Restricts the token to these modules, procedures and tables: `module` or `module.name`.
    pub fn with_grants(mut self, grants: &[String]) -> Result<Self, AuthError> {
        let grants = Grants::new(grants).map_err(|grant| AuthError::Grant {
            name: self.name.to_string(),
            grant,
        })?;
        self.grants = Some(Arc::new(grants));
        Ok(self)
    }

    /// Whether both tokens have the same rights and the same idempotency keys.
    pub fn is_like(&self, other: &Self) -> bool {
        (self.role, &self.scope, &self.grants) == (other.role, &other.scope, &other.grants)
    }
}

fn parse_digest(hex: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    let bytes = hex.as_bytes();
    if bytes.len() != 64 {
        return None;
    }
    for (slot, pair) in digest.iter_mut().zip(bytes.chunks(2)) {
        let high = (pair[0] as char).to_digit(16)?;
        let low = (pair[1] as char).to_digit(16)?;
        *slot = (high << 4 | low) as u8;
    }
    Some(digest)
}

/// The tokens. Without any, everybody who reaches the server may do everything; the binary then listens on loopback only.
#[derive(Clone, Debug, Default)]
pub struct Auth {
    tokens: Vec<Token>,
    origins: AllowedOrigins,
}

impl Auth {
    /// Everybody may do everything.
    pub fn open() -> Self {
        Self::default()
    }

    /// Makes the guard of a server with tokens, each with its role.
    pub fn with_tokens(tokens: Vec<Token>) -> Self {
        Self {
            tokens,
            origins: AllowedOrigins::default(),
        }
    }

    /// Pages of these sites may ask, too.
    pub fn with_origins(mut self, origins: AllowedOrigins) -> Self {
        self.origins = origins;
        self
    }

    /// Whether this server's own pages come by https.
    pub fn encrypted(mut self, is_encrypted: bool) -> Self {
        self.origins = self.origins.encrypted(is_encrypted);
        self
    }

    /// Sites whose pages may ask.
    pub fn origins(&self) -> &AllowedOrigins {
        &self.origins
    }

    /// True without tokens.
    pub fn is_open(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Checks a request before its path is examined any further. Returns its sender.
    pub fn check(
        &self,
        version: Version,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Principal, Refusal> {
        check_host(version, headers)?;
        if self.is_open() {
            check_local(headers)?;
        }
        let needed = needed_role(method, path);
        self.origins.check(headers, needed.is_none())?;
        match needed {
            None => Ok(Principal::ANYBODY),
            Some(needed) => {
                let principal = self.require(headers, needed)?;
                principal.require_path(method, path)?;
                Ok(principal)
            }
        }
    }

    /// Returns the sender of a request with these headers. Refuses a caller whose role is below `needed`.
    pub fn require(&self, headers: &HeaderMap, needed: TokenRole) -> Result<Principal, Refusal> {
        if self.is_open() {
            return Ok(Principal::ANONYMOUS);
        }
        let principal = Principal::of(self.find(headers)?);
        principal.require(needed).map(|()| principal)
    }

    /// Returns the sender, whatever its role allows. None without tokens, or without one that is configured.
    pub fn named(&self, headers: &HeaderMap) -> Option<Principal> {
        let token = self.find(headers).ok()?;
        Some(Principal::of(token))
    }

    fn find(&self, headers: &HeaderMap) -> Result<&Token, Refusal> {
        let unauthorized = |detail: &str| Refusal::new(ProblemKind::Unauthorized, detail);
        let mut values = headers.get_all(header::AUTHORIZATION).iter();
        let value = values
            .next()
            .ok_or_else(|| unauthorized("send the header Authorization: Bearer TOKEN"))?;
        // A proxy may have checked the other one.
        if values.next().is_some() {
            return Err(Refusal::malformed("send the header Authorization only once"));
        }
        let (scheme, secret) = value
            .to_str()
            .ok()
            .and_then(|text| text.split_once(' '))
            .ok_or_else(|| unauthorized("send the header as Authorization: Bearer TOKEN"))?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(unauthorized("the server knows the scheme Bearer only"));
        }
        let digest: [u8; 32] = Sha256::digest(secret.trim().as_bytes()).into();
        // Every token is compared, and each in constant time: the time says nothing about how close a guess was.
        let mut found = None;
        for token in &self.tokens {
            if bool::from(token.digest.ct_eq(&digest)) {
                found = Some(token);
            }
        }
        found.ok_or_else(|| unauthorized("the server's configuration does not have this token"))
    }
}

/// The sender of a request that was let in, and the tokens by which it was judged.
#[derive(Clone)]
pub struct Judgement {
    pub auth: Arc<Auth>,
    pub principal: Principal,
}

impl Judgement {
    /// Judges the request once more if there are other tokens by now. Err: its sender may not do it any more, or may do something else.
    pub fn check_again(auth: &Arc<Auth>, head: &Parts) -> Result<(), Refusal> {
        let judged = head.extensions.get::<Self>();
        if judged.is_some_and(|judged| Arc::ptr_eq(&judged.auth, auth)) {
            return Ok(());
        }
        let now = auth.check(head.version, &head.method, head.uri.path(), &head.headers)?;
        match judged.is_some_and(|judged| judged.principal == now) {
            true => Ok(()),
            false => Err(Refusal::new(
                ProblemKind::Forbidden,
                "the rights of the token changed while the request came; send it again",
            )),
        }
    }
}

/// The sender of a long request. It is checked again after each change of the tokens.
pub struct CallerSession {
    pub principal: Principal,
    /// The header `Authorization` alone.
    headers: HeaderMap,
    checked_by: Arc<Auth>,
}

impl CallerSession {
    pub fn of(auth: &Arc<Auth>, headers: &HeaderMap) -> Result<Self, Refusal> {
        let own = headers.get_all(header::AUTHORIZATION).iter();
        Ok(Self {
            principal: auth.require(headers, TokenRole::Read)?,
            headers: own.map(|value| (header::AUTHORIZATION, value.clone())).collect(),
            checked_by: auth.clone(),
        })
    }

    /// Checks the sender again. Err: its token is not configured any more.
    pub fn check_again(&mut self, auth: &Arc<Auth>) -> Result<(), Refusal> {
        if Arc::ptr_eq(&self.checked_by, auth) {
            return Ok(());
        }
        self.principal = auth.require(&self.headers, TokenRole::Read)?;
        self.checked_by = auth.clone();
        Ok(())
    }
}

/// An open server is meant for programs on this machine. A browser on this machine also runs pages of strangers. A name of theirs may point
/// here, and they would then be pages of this server.
fn check_local(headers: &HeaderMap) -> Result<(), Refusal> {
    let host = headers.get(header::HOST).map(|value| value.to_str().unwrap_or(""));
    match host.is_none_or(is_local) {
        true => Ok(()),
        false => Err(Refusal::new(
            ProblemKind::Forbidden,
            "the host name is not a name of this machine, and a server without tokens answers local programs only; configure tokens to open it",
        )),
    }
}

/// True for loopback names and for addresses: neither can be pointed here by a stranger's name server.
fn is_local(authority: &str) -> bool {
    let name = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(""),
        None => authority.rsplit_once(':').map_or(authority, |(name, _)| name),
    };
    // Host names have no case, and may end with the dot of the root.
    let name = name.strip_suffix('.').unwrap_or(name);
    let last = name.rsplit('.').next().unwrap_or(name);
    last.eq_ignore_ascii_case("localhost") && !name.starts_with('.') || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(header::HeaderName, &str)]) -> HeaderMap {
        let value = |text: &str| text.parse().expect("header value");
        pairs.iter().map(|(name, text)| (name.clone(), value(text))).collect()
    }

    fn status(result: Result<Principal, Refusal>) -> u16 {
        result.map_or_else(|refusal| refusal.problem.status, |_| 200)
    }

    #[test]
    fn roles_allow_what_they_say() {
        let token = |name: &str, secret: &str| Token {
            name: name.into(),
            role: TokenRole::from_name(name).expect("role"),
            scope: format!("{name}rs").into(),
            grants: None,
            digest: Sha256::digest(secret.as_bytes()).into(),
        };
        let auth = Auth::with_tokens(vec![token("read", "r"), token("write", "w"), token("admin", "a")]);
        let check = |method: Method, path: &str, secret: Option<&str>| {
            let bearer = secret.map(|secret| format!("Bearer {secret}"));
            let mut pairs = vec![(header::HOST, "db.example")];
            pairs.extend(bearer.iter().map(|b| (header::AUTHORIZATION, b.as_str())));
            status(auth.check(Version::HTTP_11, &method, path, &headers(&pairs)))
        };
        assert_eq!(check(Method::GET, "/healthz", None), 200);
        assert_eq!(check(Method::GET, "/console/x.js", None), 200);
        assert_eq!(check(Method::GET, "/metrics", None), 401);
        assert_eq!(check(Method::GET, "/v1/tables", Some("r")), 200);
        assert_eq!(check(Method::GET, "/v1/tables", Some("x")), 401);
        assert_eq!(check(Method::POST, "/v1/call/m/p", Some("r")), 200);
        assert_eq!(check(Method::PUT, "/v1/modules/m", Some("w")), 403);
        assert_eq!(check(Method::DELETE, "/v1/modules/m", Some("a")), 200);
        assert_eq!(check(Method::POST, "/unheard/of", Some("w")), 403);
        assert_eq!(check(Method::GET, "/v1/backups", Some("w")), 403);
        assert_eq!(check(Method::GET, "/v1/backups/1/files/manifest.json", Some("r")), 403);
        assert_eq!(check(Method::POST, "/v1/backups", Some("a")), 200);
        assert_eq!(check(Method::GET, "/v1/audit", Some("w")), 403);
        assert_eq!(check(Method::GET, "/v1/audit", Some("a")), 200);
        let write = headers(&[(header::AUTHORIZATION, "bearer w")]);
        let (auth, without) = (Arc::new(auth), Arc::new(Auth::with_tokens(vec![token("read", "r")])));
        let mut caller = CallerSession::of(&auth, &write).expect("let in");
        assert!(caller.check_again(&auth).is_ok());
        assert!(caller.check_again(&without).is_err());
        assert!(caller.check_again(&without).is_err(), "and stays out");
        assert!(caller.check_again(&auth).is_ok() && caller.principal.may(TokenRole::Write));
        let principal = auth.require(&write, TokenRole::Write).expect("let in");
        assert_eq!(
            (principal.name(), principal.scope().map(|name| &**name)),
            ("write", Some("writers"))
        );
        assert_eq!(auth.named(&write), Some(principal.clone()));
        assert_eq!((auth.named(&headers(&[])), Auth::open().named(&write)), (None, None));
        assert_eq!(status(principal.require(TokenRole::Admin).map(|()| principal)), 403);
        assert!(!Principal::ANYBODY.may(TokenRole::Read) && Principal::ANONYMOUS.may(TokenRole::Admin));
        assert_eq!(
            (Principal::ANONYMOUS.name(), Principal::ANONYMOUS.scope()),
            ("anonymous", None)
        );
        let basic = headers(&[(header::AUTHORIZATION, "Basic w")]);
        assert_eq!(status(auth.require(&basic, TokenRole::Read)), 401);
        for second in ["Bearer w", "Bearer a", "Basic w"] {
            let mut twice = write.clone();
            twice.append(header::AUTHORIZATION, second.parse().expect("a value"));
            assert_eq!(status(auth.require(&twice, TokenRole::Read)), 400, "{second}");
        }
    }

    #[test]
    fn an_open_server_answers_no_strangers_page() {
        let check = |pairs: &[(header::HeaderName, &str)]| {
            status(Auth::open().check(Version::HTTP_11, &Method::POST, "/v1/batch", &headers(pairs)))
        };
        use header::{HOST, ORIGIN};
        assert_eq!(check(&[]), 400);
        for host in [
            "localhost:8080",
            "127.0.0.1:1",
            "[::1]:80",
            "db.localhost",
            "10.0.0.7:8080",
            "LOCALHOST:8080",
            "localhost.",
            "Db.LocalHost.:80",
        ] {
            assert_eq!(check(&[(HOST, host)]), 200, "{host}");
        }
        assert_eq!(check(&[(HOST, "evil.example:8080")]), 403);
        for host in [
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "notlocalhost",
            "localhost..",
            ".",
            "",
        ] {
            assert_eq!(check(&[(HOST, host)]), 403, "{host}");
        }
        let local = (HOST, "127.0.0.1:8080");
        assert_eq!(check(&[local.clone(), (ORIGIN, "http://127.0.0.1:8080")]), 200);
        for other in ["http://localhost:8080", "http://127.0.0.1:5173", "http://203.0.113.5"] {
            assert_eq!(check(&[local.clone(), (ORIGIN, other)]), 403, "{other}");
        }
        assert_eq!(check(&[local.clone(), (ORIGIN, "https://evil.example")]), 403);
        assert_eq!(check(&[local, (ORIGIN, "null")]), 403);
    }

    #[test]
    fn configured_tokens_are_checked() {
        let digest = "0f".repeat(32);
        assert_eq!(
            Token::new("ci", "write", None, &digest).expect("valid").digest,
            [0x0f; 32]
        );
        assert!(matches!(
            Token::new("ci", "root", None, &digest),
            Err(AuthError::Role { .. })
        ));
        assert!(matches!(
            Token::new("ci", "read", None, "abc"),
            Err(AuthError::Digest { .. })
        ));
        let scoped = Token::new("ci", "read", Some("app"), &digest).expect("valid");
        assert_eq!((&*scoped.name, &*scoped.scope), ("ci", "app"));
        let too_long = "s".repeat(256);
        for scope in ["", &too_long] {
            let refused = Token::new("ci", "read", Some(scope), &digest);
            assert!(matches!(refused, Err(AuthError::Scope { .. })));
        }
    }
}
