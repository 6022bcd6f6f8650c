//! The sender of a request, and what it may do.

use std::sync::Arc;

use axum::{
    extract::FromRequestParts,
    http::{Method, request::Parts},
};
use reprise_api::ProblemKind;
use reprise_router::Router;

use crate::{
    auth::{Judgement, Token},
    grants::Grants,
    refusal::Refusal,
    roles::TokenRole,
    target::shortened,
};

/// The actor of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// Name and scope of the token that it showed.
    token: Option<(Arc<str>, Arc<str>)>,
    /// The role of the token. None: the sender may see only the public paths.
    role: Option<TokenRole>,
    /// Modules, procedures and tables to which the token is restricted.
    grants: Option<Arc<Grants>>,
}

impl Principal {
    /// The sender of a request that needs no token.
    pub const ANYBODY: Self = Self {
        token: None,
        role: None,
        grants: None,
    };
    /// Everybody who reaches a server without tokens.
    pub const ANONYMOUS: Self = Self {
        token: None,
        role: Some(TokenRole::Admin),
        grants: None,
    };

    /// Returns the sender that showed this token.
    pub fn of(token: &Token) -> Self {
        Self {
            token: Some((token.name.clone(), token.scope.clone())),
            role: Some(token.role),
            grants: token.grants.clone(),
        }
    }

    /// That of the token; `anonymous` without one.
    pub fn name(&self) -> &str {
        self.token.as_ref().map_or("anonymous", |(name, _)| name)
    }

    /// Within what its idempotency keys count; None without a token.
    pub fn scope(&self) -> Option<&Arc<str>> {
        self.token.as_ref().map(|(_, scope)| scope)
    }

    /// Returns the caller for the router; None without a token.
    pub fn caller(&self, router: &Router) -> Option<reprise_router::Caller> {
        let (name, scope) = self.token.as_ref()?;
        Some(router.caller(name, scope))
    }

    /// Returns whether its role is `needed` or above.
    pub fn may(&self, needed: TokenRole) -> bool {
        self.role >= Some(needed)
    }

    /// Refuses it where its role is below `needed`.
    pub fn require(&self, needed: TokenRole) -> Result<(), Refusal> {
        match self.may(needed) {
            true => Ok(()),
            false => Err(Refusal::new(
                ProblemKind::Forbidden,
                format!(
                    "the request needs a token with the role {}; {} has the role {}",
                    needed.name(),
                    self.name(),
                    self.role.map_or("none", TokenRole::name)
                ),
            )),
        }
    }
}

impl Principal {
    /// Refuses a procedure or a table of a module that is not granted.
    pub fn require_grant(&self, module: &str, name: &str) -> Result<(), Refusal> {
        match self.grants.as_ref().is_none_or(|grants| grants.has(module, name)) {
            true => Ok(()),
            false => Err(self.not_granted(&format!("{:?}", shortened(&format!("{module}.{name}"))))),
        }
    }

    /// Refuses a request to a path that is not granted.
    pub fn require_path(&self, method: &Method, path: &str) -> Result<(), Refusal> {
        match self.grants.as_ref().is_none_or(|grants| grants.allow(method, path)) {
            true => Ok(()),
            false => Err(self.not_granted("this request")),
        }
    }

    fn not_granted(&self, what: &str) -> Refusal {
        let detail = format!(
            "{what} is not among the grants of {}; its entry in the server's configuration lists them",
            self.name()
        );
        Refusal::new(ProblemKind::Forbidden, detail)
    }
}

/// That of a request which was let in.
impl<S: Send + Sync> FromRequestParts<S> for Principal {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Refusal> {
        let judged = parts.extensions.get::<Judgement>();
        let own = judged.map(|judged| judged.principal.clone());
        own.ok_or_else(|| Refusal::internal("a request came here that was not judged"))
    }
}
