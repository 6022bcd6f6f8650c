//! The sample configuration `docs/reprise.toml`: it has each key that the server reads, and no other one.

use std::collections::BTreeSet;

use super::{Source, without_tests};

const SAMPLE: &str = "docs/reprise.toml";
const SETTINGS: &str = "server/node/src/config/";
/// A setting names its environment variable, which is its key in capitals.
const VARIABLE: &str = "env: \"REPRISE_";
/// A setting of a section names its key as well, in one of the lines behind its variable.
const KEY: &str = "key: \"";
/// The members of the section `[http]`, which is read as a whole.
const HTTP: &str = "struct HttpEntry {";

pub fn check(sources: &[Source]) -> Vec<String> {
    let Some(sample) = sources.iter().find(|source| source.path == SAMPLE) else {
        return vec![format!("{SAMPLE} is missing")];
    };
    let files = sources.iter().filter(|source| source.path.starts_with(SETTINGS));
    let known: BTreeSet<String> = files
        .filter(|source| !source.path.ends_with("/tests.rs"))
        .flat_map(|source| declared(without_tests(&source.text)))
        .collect();
    let shown = shown(&sample.text);
    let missing = known
        .difference(&shown)
        .map(|key| format!("{SAMPLE}: lacks the key {key}"));
    let unknown = shown
        .difference(&known)
        .map(|key| format!("{SAMPLE}: no setting has the key {key}"));
    missing.chain(unknown).collect()
}

/// The keys that a file of settings declares.
fn declared(text: &str) -> Vec<String> {
    let mut keys: Vec<String> = text.split(VARIABLE).skip(1).filter_map(key).collect();
    let http = text.split_once(HTTP).and_then(|(_, rest)| rest.split_once("\n}"));
    let members = http.iter().flat_map(|(members, _)| members.lines());
    let names = members.filter_map(|line| line.trim().split_once(": "));
    keys.extend(names.map(|(name, _)| format!("http.{name}")));
    keys
}

/// The key of the setting whose variable's name this text begins with.
fn key(text: &str) -> Option<String> {
    let (variable, rest) = text.split_once('"')?;
    let own = rest.split("\n        }").next()?;
    let named = own.split_once(KEY).and_then(|(_, rest)| rest.split('"').next());
    Some(named.map_or_else(|| variable.to_lowercase(), str::to_owned))
}

/// The keys of the sample: `# KEY = …`, with the section before them. Those of tokens are no settings.
fn shown(sample: &str) -> BTreeSet<String> {
    let (mut keys, mut section) = (BTreeSet::new(), String::new());
    for line in sample.lines().take_while(|line| *line != "# [[tokens]]") {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = format!("{name}.");
        }
        let key = line.strip_prefix("# ").and_then(|rest| rest.split_once(" = "));
        keys.extend(
            key.filter(|(key, _)| !key.contains(' '))
                .map(|(key, _)| format!("{section}{key}")),
        );
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source;

    fn complaints(sample: &str) -> Vec<String> {
        let log = "settings! {\n        a_b: u32 {\n            env: \"REPRISE_A_B\",\n        }\n        log: Kind {\n            \
                   env: \"REPRISE_LOG\",\n            key: \"log.mode\",\n        }\n}\n";
        let http = "struct HttpEntry {\n    wait_s: Option<u32>,\n}\nstruct Other {\n    no: u32,\n}\n";
        check(&[
            source(SAMPLE, sample),
            source("server/node/src/config/log.rs", log),
            source("server/node/src/config/http.rs", http),
            source("server/node/src/config/tests.rs", "env: \"REPRISE_TEST\","),
        ])
    }

    #[test]
    fn sample_has_each_key_and_no_other_one() {
        let good = "# A sample: `log = 1` is short.\n# a_b = 1  # why\n[log]\n# mode = \"x\"\n[http]\n# wait_s = 1\n# [[tokens]]\n# name = 1\n";
        assert_eq!(complaints(good), [""; 0]);
        assert_eq!(
            complaints("# a_b = 1\n# mode = 1\n[http]\n# wait_s = 1\n"),
            [
                "docs/reprise.toml: lacks the key log.mode",
                "docs/reprise.toml: no setting has the key mode"
            ]
        );
    }
}
