//! The file's `[[tokens]]`: who may do what. None of it is a flag.

use reprise_http::{Auth, Origins, Token};
use serde::Deserialize;

use super::setting::{Entry, Layers, Source};
use crate::output::Failure;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    name: String,
    role: String,
    sha256: String,
}

/// A token as the report names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenNote {
    /// Name and role.
    pub name: String,
    pub digest: [u8; 32],
}

/// Who may do what.
pub struct TokenSettings {
    pub auth: Auth,
    pub notes: Vec<TokenNote>,
}

impl TokenSettings {
    /// `origins`: of pages that may ask.
    pub fn pick(layers: &mut Layers<'_>, origins: Origins) -> Result<Self, Failure> {
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

    /// In words: of a token, name and role.
    pub fn entries(&self) -> Vec<Entry> {
        let names: Vec<_> = self.notes.iter().map(|token| token.name.as_str()).collect();
        let (tokens, source) = match names.is_empty() {
            true => ("none: loopback only".to_owned(), Source::Default),
            false => (names.join(", "), Source::File),
        };
        vec![Entry::new("tokens", tokens, source).live()]
    }
}

fn read(entries: &[TokenEntry]) -> Result<(Auth, Vec<TokenNote>), String> {
    let mut tokens = Vec::new();
    let mut notes = Vec::new();
    for entry in entries {
        if entries.iter().filter(|other| other.name == entry.name).count() > 1 {
            return Err(format!("two tokens are named {}", entry.name));
        }
        let token = Token::new(&entry.name, &entry.role, &entry.sha256);
        let token = token.map_err(|error| error.to_string())?;
        notes.push(TokenNote {
            name: format!("{} ({})", entry.name, entry.role),
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
