//! SIGHUP: the configuration is read anew. What can change at run time changes, what can't is named, and a file with a mistake
//! changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
};

use clap::ArgMatches;
use reprise_database::Database;
use reprise_http::AppState;
use reprise_net_tls::Identity;

use crate::config::{Entry, ServeArgs, ServeConfig, TokenNote};

/// Where the running configuration came from, and what of it is in force.
pub struct Reloader {
    args: ServeArgs,
    matches: ArgMatches,
    entries: Vec<Entry>,
    tokens: Vec<TokenNote>,
    tls: Option<Arc<Identity>>,
}

/// What a configuration says, in words.
pub struct Notes {
    entries: Vec<Entry>,
    tokens: Vec<TokenNote>,
}

impl Notes {
    pub fn of(config: &ServeConfig) -> Self {
        Self {
            entries: config.entries(),
            tokens: config.tokens.notes.clone(),
        }
    }
}

impl Reloader {
    /// `running`: what is in force, and the certificate that is shown.
    pub fn new(args: ServeArgs, matches: ArgMatches, (running, tls): (Notes, Option<Arc<Identity>>)) -> Self {
        Self {
            args,
            matches,
            entries: running.entries,
            tokens: running.tokens,
            tls,
        }
    }

    /// Reads the configuration anew and puts it in force. Returns what is to be said of it, a line each.
    pub fn reload(&mut self, address: SocketAddr, state: &AppState, database: &Database) -> Vec<String> {
        let read = ServeConfig::load(self.args.clone(), &self.matches);
        let judged = read.and_then(|config| config.check_listen(address).map(|()| config));
        let config = match judged {
            Ok(config) => config,
            Err(failure) => return vec![format!("configuration read anew: nothing is changed: {failure}")],
        };
        let mut lines = self.note(config.entries(), config.tokens.notes.clone());
        lines.extend(self.reload_certificate());
        if lines.is_empty() {
            lines.push("nothing differs".into());
        }
        config.apply(database);
        state.set_auth(config.tokens.auth);
        lines
            .iter()
            .map(|line| format!("configuration read anew: {line}"))
            .collect()
    }

    /// Said where it is another one, or can't be had: connections that are made from now on meet it.
    fn reload_certificate(&self) -> Option<String> {
        match self.tls.as_ref()?.reload() {
            Ok(true) => Some("the certificate is another one".into()),
            Ok(false) => None,
            Err(error) => Some(format!("the certificate stays as it was: {error}")),
        }
    }

    /// Takes over what is live, and says what differs.
    fn note(&mut self, entries: Vec<Entry>, tokens: Vec<TokenNote>) -> Vec<String> {
        let before: BTreeMap<_, _> = self
            .entries
            .iter()
            .map(|entry| (entry.name.clone(), entry.clone()))
            .collect();
        let mut lines = Vec::new();
        for entry in &entries {
            let old = before.get(&entry.name).map_or("none", |old| old.value.as_str());
            if entry.name == "tokens" || old == entry.value {
                continue;
            }
            lines.push(match entry.is_live {
                true => format!("{} is {} (it was {})", entry.name, said(&entry.value), said(old)),
                false => format!(
                    "{} stays {}: {} needs a restart",
                    entry.name,
                    said(old),
                    said(&entry.value)
                ),
            });
        }
        lines.extend(token_changes(&self.tokens, &tokens));
        for entry in entries.into_iter().filter(|entry| entry.is_live) {
            if let Some(own) = self.entries.iter_mut().find(|own| own.name == entry.name) {
                *own = entry;
            }
        }
        self.tokens = tokens;
        lines
    }
}

fn said(value: &str) -> &str {
    match value {
        "" => "none",
        value => value,
    }
}

fn token_changes(before: &[TokenNote], after: &[TokenNote]) -> Vec<String> {
    let digests = |list: &[TokenNote], name: &str| -> BTreeSet<[u8; 32]> {
        let own = list.iter().filter(|token| token.name == name);
        own.map(|token| token.digest).collect()
    };
    let mut names: Vec<&str> = Vec::new();
    for token in before.iter().chain(after) {
        if !names.contains(&&*token.name) {
            names.push(&token.name);
        }
    }
    let change = |name: &&str| {
        let (old, new) = (digests(before, name), digests(after, name));
        let (gone, come) = (old.difference(&new).count(), new.difference(&old).count());
        Some(match (gone, come) {
            (0, 0) => return None,
            _ if old.is_empty() => format!("token {name} is let in"),
            _ if new.is_empty() => format!("token {name} is withdrawn"),
            (0, come) => format!("token {name}: {come} more beside {}", old.len()),
            (gone, 0) => format!("token {name}: {gone} withdrawn, {} left", new.len()),
            _ => format!("token {name} is another one"),
        })
    };
    names.iter().filter_map(change).collect()
}

/// What a reload needs beside the signal.
pub struct Reloading {
    pub reloader: Reloader,
    pub database: Arc<Database>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_tokens_are_named_and_their_secrets_are_not() {
        let token = |name: &str, byte: u8| TokenNote {
            name: name.into(),
            digest: [byte; 32],
        };
        let before = [token("a (read)", 1), token("b (write)", 2), token("c (admin)", 3)];
        let after = [token("a (read)", 1), token("b (write)", 9), token("c (read)", 3)];
        assert_eq!(
            token_changes(&before, &after),
            [
                "token b (write) is another one",
                "token c (admin) is withdrawn",
                "token c (read) is let in"
            ]
        );
        assert!(token_changes(&before, &before).is_empty());
        // A rotation without a gap: two of one name for a while.
        let both = [token("a (read)", 1), token("a (read)", 4)];
        assert_eq!(token_changes(&before[..1], &both), ["token a (read): 1 more beside 1"]);
        assert_eq!(
            token_changes(&both, &both[1..]),
            ["token a (read): 1 withdrawn, 1 left"]
        );
    }
}
