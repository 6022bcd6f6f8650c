//! Dependencies from outside: licences, sources, unwanted crates, versions side by side, and dependencies that no crate uses. It reads
//! only the lock file and the manifests, without a network.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Source, ratchet::Finding};
use crate::workspace::metadata;

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// Target platform of the server.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Licences that ask for no more than to be named.
const LICENCES: [&str; 10] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "BlueOak-1.0.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// (crate, why not).
const BANNED: [(&str, &str); 6] = [
    (
        "openssl-sys",
        "a library of the system: the binary would need it where it is installed",
    ),
    ("native-tls", "as openssl-sys"),
    ("aws-lc-sys", "C that nobody here reads"),
    (
        "wasmtime-wasi",
        "guests see the host's own few calls of WASI, which are deterministic",
    ),
    ("wasmtime-cache", "it loads compiled code without a keyed checksum"),
    ("chrono", "time comes from env's Clock"),
];

/// Names no crate uses, but for their features (`runtime/unify`).
const FEATURES_ALONE: &str = "reprise-unify";

pub fn check(root: &Path, sources: &[Source]) -> Result<Vec<String>> {
    let metadata = metadata(root, &["--filter-platform", PLATFORM])?;
    let packages = packages(&metadata)?;
    let manifest = fs::read_to_string(root.join("Cargo.toml")).context("read Cargo.toml")?;
    let mut complaints = from_outside(&packages);
    complaints.extend(unused(&packages, sources));
    complaints.extend(unused_by_all(&packages, &manifest));
    Ok(complaints)
}

struct Package {
    name: String,
    version: String,
    licence: String,
    /// None: a crate of ours.
    source: Option<String>,
    /// From the root, of a crate of ours.
    folder: String,
    dependencies: BTreeSet<String>,
}

fn packages(metadata: &Value) -> Result<Vec<Package>> {
    let root = metadata["workspace_root"]
        .as_str()
        .context("metadata without its root")?;
    let packages = metadata["packages"].as_array().context("metadata without packages")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let package = |package: &Value| {
        let manifest = text(&package["manifest_path"]);
        let folder = Path::new(&manifest)
            .parent()
            .and_then(|folder| folder.strip_prefix(root).ok());
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        Package {
            name: text(&package["name"]),
            version: text(&package["version"]),
            licence: text(&package["license"]),
            source: package["source"].as_str().map(str::to_owned),
            folder: folder.unwrap_or(Path::new("")).to_string_lossy().into_owned(),
            dependencies: dependencies.map(|dependency| text(&dependency["name"])).collect(),
        }
    };
    Ok(packages.iter().map(package).collect())
}

fn from_outside(packages: &[Package]) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in packages {
        let Some(source) = &package.source else { continue };
        let at = format!("{} {}", package.name, package.version);
        if source != REGISTRY {
            complaints.push(format!("{at} comes from {source}, not from the registry"));
        }
        if !is_allowed(&package.licence) {
            complaints.push(format!(
                "{at} has the licence {:?}, which is not on the list",
                package.licence
            ));
        }
        let banned = BANNED.iter().find(|(name, _)| *name == package.name);
        complaints.extend(banned.map(|(_, why)| format!("{at} is not wanted: {why}")));
    }
    complaints
}

/// Some choice of an SPDX expression is on the list. Older crates write `/` for OR.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<_> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    any_of(&mut rest) && rest.is_empty()
}

fn any_of(words: &mut &[&str]) -> bool {
    let mut is_allowed = all_of(words);
    while let Some(rest) = words.strip_prefix(&["OR"]) {
        *words = rest;
        is_allowed |= all_of(words);
    }
    is_allowed
}

fn all_of(words: &mut &[&str]) -> bool {
    let mut is_allowed = one_of(words);
    while let Some(rest) = words.strip_prefix(&["AND"]) {
        *words = rest;
        is_allowed &= one_of(words);
    }
    is_allowed
}

fn one_of(words: &mut &[&str]) -> bool {
    match **words {
        ["(", ..] => {
            *words = &words[1..];
            let is_allowed = any_of(words);
            let closed = words.strip_prefix(&[")"]);
            *words = closed.unwrap_or(words);
            is_allowed && closed.is_some()
        }
        [licence, "WITH", exception, ..] => {
            *words = &words[3..];
            LICENCES.contains(&format!("{licence} WITH {exception}").as_str())
        }
        [licence, ..] => {
            *words = &words[1..];
            LICENCES.contains(&licence)
        }
        [] => false,
    }
}

/// Crates of which several versions are built.
pub fn duplicates(root: &Path) -> Result<Vec<Finding>> {
    Ok(versions(&packages(&metadata(root, &["--filter-platform", PLATFORM])?)?))
}

fn versions(packages: &[Package]) -> Vec<Finding> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().insert(&package.version);
    }
    versions.retain(|_, versions| versions.len() > 1);
    let finding = |(name, versions): (&str, BTreeSet<&str>)| Finding {
        rule: "versions",
        place: name.to_owned(),
        count: versions.len(),
        limit: "versions are built; at most 1",
    };
    versions.into_iter().map(finding).collect()
}

/// Dependencies of ours whose name stands nowhere in the crate that asks for them.
fn unused(packages: &[Package], sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    let ours = packages.iter().filter(|package| package.source.is_none());
    for package in ours.filter(|package| package.name != FEATURES_ALONE) {
        let folder = format!("{}/", package.folder);
        let own: Vec<_> = sources
            .iter()
            .filter(|source| source.path.starts_with(&folder) && source.path.ends_with(".rs"))
            .collect();
        for dependency in package.dependencies.iter().filter(|name| *name != FEATURES_ALONE) {
            let name = dependency.replace('-', "_");
            if !own.iter().any(|source| has_word(&source.text, &name)) {
                complaints.push(format!("{}/Cargo.toml: nothing uses {dependency}", package.folder));
            }
        }
    }
    complaints
}

fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// Entries of the workspace's list that no crate takes.
fn unused_by_all(packages: &[Package], manifest: &str) -> Vec<String> {
    let ours = packages.iter().filter(|package| package.source.is_none());
    let taken: BTreeSet<_> = ours
        .flat_map(|package| &package.dependencies)
        .map(String::as_str)
        .collect();
    let lines = manifest
        .lines()
        .skip_while(|line| *line != "[workspace.dependencies]")
        .skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    let names = lines
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, _)| name.trim());
    let unused = names.filter(|name| !taken.contains(name));
    unused
        .map(|name| format!("Cargo.toml: no crate takes {name}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_checked_by_their_choices() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "(MIT OR GPL-2.0-only) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(is_allowed(good), "{good}");
        }
        for bad in [
            "",
            "GPL-3.0-only",
            "MIT AND GPL-2.0-only",
            "MIT WITH Nonsense",
            "(MIT",
            "MIT)",
            "MIT MIT",
        ] {
            assert!(!is_allowed(bad), "{bad}");
        }
    }

    fn package(name: &str, version: &str, source: Option<&str>) -> Package {
        Package {
            name: name.into(),
            version: version.into(),
            licence: "MIT".into(),
            source: source.map(str::to_owned),
            folder: format!("runtime/{name}"),
            dependencies: BTreeSet::new(),
        }
    }

    #[test]
    fn foreign_or_unwanted_dependency_is_named() {
        let found = from_outside(&[
            package("good", "1.0.0", Some(REGISTRY)),
            package("forked", "1.0.0", Some("git+https://example.com/forked")),
            package("openssl-sys", "1.0.0", Some(REGISTRY)),
            package("ours", "0.1.0", None),
        ]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("forked") && found[1].starts_with("openssl-sys"),
            "{found:?}"
        );
    }

    #[test]
    fn crates_in_two_versions_are_found() {
        let found = versions(&[
            package("a", "1.0.0", None),
            package("a", "2.0.0", None),
            package("b", "1.0.0", None),
        ]);
        assert_eq!((found.len(), found[0].place.as_str(), found[0].count), (1, "a", 2));
    }

    #[test]
    fn a_dependency_is_used_where_its_name_is_a_word() {
        let source = |text: &str| Source {
            path: "runtime/x/src/lib.rs".into(),
            text: text.into(),
        };
        let mut x = package("x", "0.1.0", None);
        x.dependencies.insert("serde-json".into());
        let packages = [x];
        assert_eq!(unused(&packages, &[source("use serde_json::Value;")]), [""; 0]);
        let missing = ["runtime/x/Cargo.toml: nothing uses serde-json"];
        assert_eq!(unused(&packages, &[source("use serde_json5::Value;")]), missing);
        let manifest = "[workspace.dependencies]\nserde-json = \"1\"\nother = \"1\"\n\n[profile.release]\nlto = true\n";
        assert_eq!(unused_by_all(&packages, manifest), ["Cargo.toml: no crate takes other"]);
    }
}
