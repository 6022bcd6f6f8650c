//! SIGHUP: the server reads the configuration and the certificate anew. It changes the settings that can change at run time, and names the
//! others. A file with a mistake changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
};

use clap::ArgMatches;
use reprise_database::Database;
use reprise_http::AppState;
use reprise_net_tls::Identity;

use crate::{
    config::{ServeArgs, ServeConfig, SettingEntry, TokenNote},
    output::usage,
    server_output::{self, Level, Line},
};

/// The source of the running configuration, and the part of it that is in force.
pub struct Reloader {
    args: ServeArgs,
    matches: ArgMatches,
    running: Notes,
    tls: Option<Arc<Identity>>,
}

/// The texts of a configuration.
pub struct Notes {
    entries: Vec<SettingEntry>,
    tokens: Vec<TokenNote>,
    /// The file that was read.
    file: Option<PathBuf>,
}

impl Notes {
    pub fn of(config: &ServeConfig) -> Self {
        Self {
            entries: config.entries(),
            tokens: config.tokens.notes.clone(),
            file: config.file.clone(),
        }
    }

    /// Returns why `new` may not come into force in place of this.
    fn refusal(&self, new: &ServeConfig) -> Option<String> {
        if let (Some(file), None) = (&self.file, &new.file) {
            return Some(format!("{} is missing", file.display()));
        }
        (!self.tokens.is_empty() && new.tokens.auth.is_open()).then(|| {
            "the file has no tokens, and without tokens everyone may do everything. If you want that, restart the server"
                .to_owned()
        })
    }
}

impl Reloader {
    /// Makes the reloader. `running`: the configuration in force, and the server's certificate.
    pub fn new(args: ServeArgs, matches: ArgMatches, (running, tls): (Notes, Option<Arc<Identity>>)) -> Self {
        Self {
            args,
            matches,
            running,
            tls,
        }
    }

    /// Reads the configuration anew, puts it in force, and prints the results, one a line.
    pub fn reload(&mut self, address: SocketAddr, state: &AppState, database: &Database) {
        let read = ServeConfig::load(self.args.clone(), &self.matches);
        let checked = read.and_then(|config| match self.running.refusal(&config) {
            Some(reason) => Err(usage(reason)),
            None => config.check_listen(address).map(|()| config),
        });
        let config = match checked {
            Ok(config) => config,
            Err(failure) => return say(Level::Warning, &format!("nothing changed: {failure}")),
        };
        // The certificate's files are the last check. Behind it nothing fails, so a reload comes into force whole or not at all.
        let has_new_certificate = match self.tls.as_ref().map_or(Ok(false), |tls| tls.reload()) {
            Ok(is_new) => is_new,
            Err(error) => {
                let text = format!("nothing changed: the server keeps its certificate: {error}");
                return say(Level::Warning, &text);
            }
        };
        let lines = self.apply(config.entries(), config.tokens.notes.clone());
        self.running.file.clone_from(&config.file);
        config.apply(database);
        state.set_auth(config.tokens.auth);
        lines.iter().for_each(|line| say(Level::Info, line));
        match has_new_certificate {
            true => say(Level::Info, "new connections get the new certificate"),
            false if lines.is_empty() => say(Level::Info, "no setting differs"),
            false => {}
        }
    }

    /// Applies the live settings, and returns the differences.
    fn apply(&mut self, entries: Vec<SettingEntry>, tokens: Vec<TokenNote>) -> Vec<String> {
        let before: BTreeMap<_, _> = self
            .running
            .entries
            .iter()
            .map(|entry| (entry.name.clone(), entry.clone()))
            .collect();
        let mut lines = Vec::new();
        for entry in &entries {
            let old = before.get(&entry.name);
            let is_hidden_alike = old.is_none_or(|old| old.hidden == entry.hidden);
            let old = old.map_or("none", |old| old.value.as_str());
            if entry.name == "tokens" || (old == entry.value && is_hidden_alike) {
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
        lines.extend(token_changes(&self.running.tokens, &tokens));
        for entry in entries.into_iter().filter(|entry| entry.is_live) {
            if let Some(own) = self.running.entries.iter_mut().find(|own| own.name == entry.name) {
                *own = entry;
            }
        }
        self.running.tokens = tokens;
        lines
    }
}

fn say(level: Level, text: &str) {
    let line_text = format!("configuration reload: {text}");
    server_output::say(Line::new(level, "reload", line_text));
}

fn said(value: &str) -> &str {
    match value {
        "" => "none",
        value => value,
    }
}

fn token_changes(before: &[TokenNote], after: &[TokenNote]) -> Vec<String> {
    // The scope is not part of this: a token that has another one is the token from before.
    let is_alike = |one: &TokenNote, other: &TokenNote| (&one.name, &one.rights) == (&other.name, &other.rights);
    let digests = |list: &[TokenNote], token: &TokenNote| -> BTreeSet<[u8; 32]> {
        let own = list.iter().filter(|other| is_alike(other, token));
        own.map(|token| token.digest).collect()
    };
    let mut kinds: Vec<&TokenNote> = Vec::new();
    for token in after.iter().chain(before) {
        if !kinds.iter().any(|kind| is_alike(kind, token)) {
            kinds.push(token);
        }
    }
    kinds.sort_by_key(|kind| {
        before
            .iter()
            .position(|token| is_alike(token, kind))
            .unwrap_or(usize::MAX)
    });
    let change = |token: &&TokenNote| {
        let (old, new) = (digests(before, token), digests(after, token));
        let (gone, come) = (old.difference(&new).count(), new.difference(&old).count());
        let name = token.describe();
        Some(match (gone, come) {
            (0, 0) => return None,
            _ if old.is_empty() => format!("token {name} is now valid"),
            _ if new.is_empty() => format!("token {name} is no longer valid"),
            (0, come) => format!("token {name}: {come} added, {} in all", new.len()),
            (gone, 0) => format!("token {name}: {gone} removed, {} left", new.len()),
            _ => format!("token {name} was replaced"),
        })
    };
    let changes: Vec<String> = kinds.iter().filter_map(change).collect();
    [changes, scope_changes(before, after)].concat()
}

/// Names the tokens whose idempotency keys count in another scope from now on, once each. Tokens of one name have one scope.
fn scope_changes(before: &[TokenNote], after: &[TokenNote]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for token in after {
        let is_former = |old: &&TokenNote| old.name == token.name;
        let Some(old) = before.iter().find(is_former).filter(|old| old.scope != token.scope) else {
            continue;
        };
        let line = format!(
            "token {}: its idempotency keys count in scope {} (it was {}), so a retry under a key of the old scope runs anew",
            token.name, token.scope, old.scope
        );
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// The parts that a reload needs beside the signal.
pub struct ReloadContext {
    pub reloader: Reloader,
    pub database: Arc<Database>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note((name, rights, scope): (&str, &str, &str), byte: u8) -> TokenNote {
        TokenNote {
            name: name.into(),
            rights: rights.into(),
            scope: scope.into(),
            digest: [byte; 32],
        }
    }

    #[test]
    fn changed_scope_of_a_token_is_named_once_with_its_effect_on_retries() {
        let before = [note(("app", "write", "app"), 1), note(("app", "write", "app"), 2)];
        let after = [note(("app", "write", "shop"), 1), note(("app", "write", "shop"), 2)];
        let told = "token app: its idempotency keys count in scope shop (it was app), so a retry under a key of the old scope runs anew";
        assert_eq!(token_changes(&before, &after), [told]);
        // Its role changes, too.
        let read = [note(("app", "read", "shop"), 1)];
        assert_eq!(
            token_changes(&before[..1], &read),
            [
                "token app (write) is no longer valid",
                "token app (read, scope shop) is now valid",
                told
            ]
        );
        assert!(token_changes(&after, &after).is_empty());
    }

    #[test]
    fn changed_tokens_are_named_and_their_secrets_are_not() {
        let token = |name: &str, rights: &str, byte: u8| note((name, rights, name), byte);
        let before = [token("a", "read", 1), token("b", "write", 2), token("c", "admin", 3)];
        let after = [token("a", "read", 1), token("b", "write", 9), token("c", "read", 3)];
        assert_eq!(
            token_changes(&before, &after),
            [
                "token b (write) was replaced",
                "token c (admin) is no longer valid",
                "token c (read) is now valid"
            ]
        );
        assert!(token_changes(&before, &before).is_empty());
        // A rotation without a gap has two tokens of one name for a while.
        let both = [token("a", "read", 1), token("a", "read", 4)];
        assert_eq!(
            token_changes(&before[..1], &both),
            ["token a (read): 1 added, 2 in all"]
        );
        assert_eq!(token_changes(&both, &both[1..]), ["token a (read): 1 removed, 1 left"]);
    }
}
