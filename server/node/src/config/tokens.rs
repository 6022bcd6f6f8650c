//! The file's `[[tokens]]`: who may do what. None of it is a flag.

use reprise_http::{AllowedOrigins, Auth, Token};
use serde::Deserialize;

use super::setting::{Layers, SettingEntry, Source};
use crate::output::VerbFailure;

/// A table of the list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenEntry {
    pub name: String,
    /// `read`, `write` or `admin`.
    pub role: String,
    /// Scope of its idempotency keys, if it is not the name.
    pub scope: Option<String>,
    /// Modules, procedures and tables to which it is restricted. None: all of them.
    pub grants: Option<Vec<String>>,
    /// Hash of the token, in 64 hexadecimal digits.
    pub sha256: String,
}

impl TokenEntry {
    /// Within which its idempotency keys count.
    pub fn scope(&self) -> &str {
        self.scope.as_deref().unwrap_or(&self.name)
    }
}

/// The tokens of a configuration file's text. Err: why a server would refuse them.
pub fn check_tokens(text: &str) -> Result<Vec<TokenEntry>, String> {
    #[derive(Deserialize)]
    struct File {
        #[serde(default)]
        tokens: Vec<TokenEntry>,
    }
    let file: File = toml::from_str(text).map_err(|error| error.message().to_owned())?;
    read(&file.tokens)?;
    Ok(file.tokens)
}

/// A token as the report names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenNote {
    pub name: String,
    /// Role and grants.
    pub rights: String,
    /// Scope of its idempotency keys.
    pub scope: String,
    pub digest: [u8; 32],
}

impl TokenNote {
    /// Returns name, role and grants, and the scope if it is not the name.
    pub fn describe(&self) -> String {
        let Self {
            name, rights, scope, ..
        } = self;
        match scope == name {
            true => format!("{name} ({rights})"),
            false => format!("{name} ({rights}, scope {scope})"),
        }
    }
}

/// The permissions of all tokens.
pub struct TokenSettings {
    pub auth: Auth,
    pub notes: Vec<TokenNote>,
}

impl TokenSettings {
    /// `origins`: of pages that may ask.
    pub fn pick(layers: &mut Layers<'_>, origins: AllowedOrigins) -> Result<Self, VerbFailure> {
        let entries: Vec<TokenEntry> = match layers.take("tokens") {
            None => Vec::new(),
            Some(list) => Vec::deserialize(list).map_err(|e| layers.refused("tokens", e.message()))?,
        };
        let (auth, notes) = read(&entries).map_err(|error| layers.refused("tokens", error))?;
        Ok(Self {
            auth: auth.with_origins(origins),
            notes,
        })
    }

    /// Returns the tokens in words.
    pub fn entries(&self) -> Vec<SettingEntry> {
        let mut names: Vec<_> = self.notes.iter().map(TokenNote::describe).collect();
        names.dedup();
        let (tokens, source) = match names.is_empty() {
            true => ("none: loopback only".to_owned(), Source::Default),
            false => (names.join(", "), Source::File),
        };
        vec![SettingEntry::new("tokens", tokens, source).live()]
    }
}

/// Several tokens may have one name, so that a new one is let in before the old one is withdrawn. They are one principal then.
fn check_beside(token: &Token, others: &[Token]) -> Result<(), String> {
    let name = &token.name;
    for other in others {
        if other.digest == token.digest {
            return Err(format!("the tokens {} and {name} have the same sha256", other.name));
        }
        if other.name == *name && !other.is_like(token) {
            return Err(format!("the tokens named {name} differ in role, scope or grants"));
        }
    }
    Ok(())
}

fn read(entries: &[TokenEntry]) -> Result<(Auth, Vec<TokenNote>), String> {
    let mut tokens = Vec::new();
    let mut notes = Vec::new();
    for entry in entries {
        let token = Token::new(&entry.name, &entry.role, entry.scope.as_deref(), &entry.sha256);
        let token = match &entry.grants {
            None => token,
            Some(grants) => token.and_then(|token| token.with_grants(grants)),
        };
        let token = token.map_err(|error| error.to_string())?;
        check_beside(&token, &tokens)?;
        let restriction = entry.grants.as_ref().map(|grants| format!(" on {}", grants.join(", ")));
        notes.push(TokenNote {
            name: entry.name.clone(),
            rights: format!("{}{}", entry.role, restriction.unwrap_or_default()),
            scope: entry.scope().to_owned(),
            digest: token.digest,
        });
        tokens.push(token);
    }
    let auth = match tokens.is_empty() {
        true => Auth::open(),
        false => Auth::with_tokens(tokens),
    };
    Ok((auth, notes))
}
