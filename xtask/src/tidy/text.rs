//! Rules that a look at the text decides: lengths, headers, banned calls, machine paths, the architecture page.

use std::{fs, path::Path};

use super::{FILE_LINES_MAX, Source, is_test_file, without_tests};

fn is_rust(source: &Source) -> bool {
    source.path.ends_with(".rs")
}

pub fn file_lengths(sources: &[Source]) -> Vec<String> {
    let rust = sources
        .iter()
        .filter(|source| is_rust(source) && !is_test_file(&source.path));
    let too_long = rust.filter_map(|source| {
        let lines = without_tests(&source.text).lines().count();
        let complaint = || format!("{}: {lines} lines without tests; at most {FILE_LINES_MAX}", source.path);
        (lines > FILE_LINES_MAX).then(complaint)
    });
    too_long.collect()
}

const HEADER: [&str; 5] = [
    "//! ",
    "//! Owns: ",
    "//! Does not: ",
    "//! Invariants: ",
    "//! Called by: ",
];

/// The root file of every crate begins with five statements.
pub fn crate_headers(sources: &[Source]) -> Vec<String> {
    let roots = sources
        .iter()
        .filter(|source| source.path.ends_with("src/lib.rs") || source.path.ends_with("src/main.rs"));
    let headless = roots.filter_map(|source| {
        let mut lines = source.text.lines().take_while(|line| line.starts_with("//!"));
        let missing = HEADER
            .iter()
            .find(|start| !lines.any(|line| line.starts_with(*start)))?;
        Some(format!(
            "{}: its header lacks the line `{}…`, in this order",
            source.path, missing
        ))
    });
    headless.collect()
}

/// The engine and guests have no effect but through `env`: (what, instead).
const BANNED: &[(&str, &str)] = &[
    ("Instant::now", "env's Clock"),
    ("SystemTime::now", "env's Clock"),
    ("rand::", "reprise_abi::random"),
    (
        "std::collections::HashMap",
        "BTreeMap, or hashbrown with a fixed hasher",
    ),
    (
        "std::collections::HashSet",
        "BTreeSet, or hashbrown with a fixed hasher",
    ),
    ("collections::{HashMap", "BTreeMap, or hashbrown with a fixed hasher"),
    ("thread::spawn", "env's Threads"),
    ("thread::Builder", "env's Threads"),
    ("thread::scope", "env's Threads"),
    ("thread::sleep", "env's Threads"),
    ("std::fs", "env's Disk"),
    ("std::net", "env's Net"),
];

/// Crates of `runtime/` that are the effects themselves.
const EFFECTS: [&str; 3] = ["env", "net-rdma", "net-tls"];

/// Crates of `runtime/` that use one all the same, each with its reason in `docs/determinism.md`. Entries leave it.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("database", "Instant::now"),
    ("database", "thread::sleep"),
    ("host", "thread::Builder"),
    ("host", "thread::scope"),
    ("pages", "std::fs"),
    ("pages", "thread::Builder"),
    ("pages", "thread::scope"),
    ("recovery", "thread::scope"),
    ("router", "Instant::now"),
];

/// The crate of `runtime/` that a file belongs to.
fn engine_crate(path: &str) -> Option<&str> {
    let (name, rest) = path.strip_prefix("runtime/")?.split_once('/')?;
    rest.starts_with("src/").then_some(name)
}

/// Each banned call of a file: its line, what it is, and what is to be used instead.
fn banned_in(source: &Source) -> Vec<(usize, &'static str, &'static str)> {
    let mut found = Vec::new();
    for (number, line) in without_tests(&source.text).lines().enumerate() {
        let code = line.split("//").next().unwrap_or("");
        let banned = BANNED.iter().filter(|(banned, _)| code.contains(banned));
        found.extend(banned.map(|(banned, instead)| (number + 1, *banned, *instead)));
    }
    found
}

pub fn banned_calls(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in sources
        .iter()
        .filter(|source| is_rust(source) && !is_test_file(&source.path))
    {
        let engine = engine_crate(&source.path).filter(|name| !EFFECTS.contains(name));
        let is_guest = source.path.starts_with("sdk/procedure/src/") || source.path.starts_with("procedures/");
        if engine.is_none() && !is_guest {
            continue;
        }
        for (line, banned, instead) in banned_in(source) {
            if !engine.is_some_and(|name| EXCEPTIONS.contains(&(name, banned))) {
                complaints.push(format!("{}:{line}: {banned}; use {instead}", source.path));
            }
        }
    }
    complaints
}

/// Exceptions that no crate has need of any more.
pub fn unused_exceptions(sources: &[Source]) -> Vec<String> {
    let is_used = |(name, banned): &(&str, &str)| {
        let own = sources
            .iter()
            .filter(|source| is_rust(source) && engine_crate(&source.path) == Some(*name));
        own.flat_map(banned_in).any(|(_, found, _)| found == *banned)
    };
    let unused = EXCEPTIONS.iter().filter(|exception| !is_used(exception));
    unused
        .map(|(name, banned)| format!("runtime/{name} has no {banned}: take it off the list of exceptions"))
        .collect()
}

/// Paths of somebody's machine, put together so that this file does not contain them.
const MACHINE_PATHS: [&str; 3] = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

pub fn machine_paths(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in sources {
        for (number, line) in source.text.lines().enumerate() {
            if MACHINE_PATHS.iter().any(|path| line.contains(path)) {
                complaints.push(format!("{}:{}: a path of one machine", source.path, number + 1));
            }
        }
    }
    complaints
}

pub const PAGE: &str = "docs/ARCHITECTURE.md";

/// Every crate, path and type in back ticks on the architecture page exists.
pub fn architecture_page(root: &Path, sources: &[Source]) -> Vec<String> {
    let Ok(page) = fs::read_to_string(root.join(PAGE)) else {
        return vec![format!("{PAGE} is missing")];
    };
    let missing = quoted(&page).into_iter().filter(|word| !exists(root, sources, word));
    missing.map(|word| format!("{PAGE}: `{word}` does not exist")).collect()
}

/// The text between single back ticks, outside of code blocks.
pub fn quoted(page: &str) -> Vec<&str> {
    let prose = page.split("```").step_by(2);
    let lines = prose.flat_map(str::lines);
    let mut words: Vec<_> = lines.flat_map(|line| line.split('`').skip(1).step_by(2)).collect();
    words.sort_unstable();
    words.dedup();
    words
}

/// True when the word names something that is there, or is not of a kind that is checked.
fn exists(root: &Path, sources: &[Source], word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    if word.is_empty() || !word.chars().all(is_plain) {
        return true;
    }
    if let Some(name) = word.strip_prefix("reprise-") {
        return sources.iter().any(|source| {
            source.path.ends_with("Cargo.toml") && source.text.contains(&format!("name = \"reprise-{name}\""))
        });
    }
    // Below `/` lies the HTTP API, below `target/` what is built.
    let is_path = word.contains('/') && !word.starts_with('/') && !word.starts_with("target/");
    if is_path {
        return root.join(word).exists()
            || ["runtime", "server"]
                .iter()
                .any(|top| root.join(top).join(word).exists());
    }
    let is_type = word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.chars().all(|c| c.is_ascii_alphanumeric())
        && word.chars().any(|c| c.is_ascii_lowercase());
    if !is_type {
        return true;
    }
    let declares = |text: &str| {
        ["struct ", "enum ", "trait ", "type ", "union "].iter().any(|keyword| {
            text.match_indices(&format!("{keyword}{word}")).any(|(at, found)| {
                !text[at + found.len()..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            })
        }) || is_variant(text, word)
    };
    sources.iter().any(|source| is_rust(source) && declares(&source.text))
}

/// A variant of an enum counts as a type of the page: a line that begins with its name.
fn is_variant(text: &str, word: &str) -> bool {
    text.lines().any(|line| {
        let rest = line.trim_start().strip_prefix(word);
        rest.is_some_and(|rest| rest.starts_with([',', '(', ' ']) && !rest.starts_with(" ="))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source {
            path: path.into(),
            text: text.into(),
        }
    }

    #[test]
    fn banned_calls_are_found_in_engine_and_guests_only() {
        let text = "fn f() { let t = Instant::now(); }\n// Instant::now is fine here\n#[cfg(test)]\nmod tests { use std::thread::spawn; }\n";
        for banned in [
            "runtime/storage/src/lib.rs",
            "runtime/log/src/flush.rs",
            "procedures/bank/src/lib.rs",
        ] {
            assert_eq!(banned_calls(&[source(banned, text)]).len(), 1, "{banned}");
        }
        for elsewhere in [
            "runtime/env/src/real.rs",
            "runtime/router/src/lib.rs",
            "server/http/src/lib.rs",
        ] {
            assert_eq!(banned_calls(&[source(elsewhere, text)]), [""; 0], "{elsewhere}");
        }
        let unused = unused_exceptions(&[source("runtime/router/src/lib.rs", text)]);
        assert_eq!(unused.len(), EXCEPTIONS.len() - 1, "{unused:?}");
    }

    #[test]
    fn headers_have_five_statements_in_order() {
        let good = "//! It is.\n//! Owns: a.\n//! Does not: b,\n//! and c.\n//! Invariants: d.\n//! Called by: e.\n";
        assert_eq!(crate_headers(&[source("a/src/lib.rs", good)]), [""; 0]);
        for bad in [
            "",
            "//! It is.\n",
            "//! Owns: a.\n//! Does not: b.\n//! Invariants: d.\n//! Called by: e.\n",
        ] {
            assert_eq!(crate_headers(&[source("a/src/lib.rs", bad)]).len(), 1, "{bad}");
        }
    }

    #[test]
    fn long_files_are_found_and_their_tests_are_not_counted() {
        let lines = "x\n".repeat(FILE_LINES_MAX);
        let tested = format!("{lines}#[cfg(test)]\nmod tests {{\n{lines}}}\n");
        assert_eq!(file_lengths(&[source("a.rs", &tested)]), [""; 0]);
        assert_eq!(file_lengths(&[source("a.rs", &format!("{lines}x\n"))]).len(), 1);
    }

    #[test]
    fn paths_of_a_machine_are_found() {
        let line = format!("see {}me", MACHINE_PATHS[2]);
        assert_eq!(machine_paths(&[source("README.md", &line)]).len(), 1);
        assert_eq!(machine_paths(&[source("README.md", "see docs/me")]), [""; 0]);
    }

    #[test]
    fn the_page_names_what_exists() {
        let sources = [
            source("runtime/base/Cargo.toml", "name = \"reprise-base\""),
            source("a.rs", "pub struct TxnId(u64);\nenum E {\n    Reject,\n}\n"),
        ];
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let exists = |word| exists(root, &sources, word);
        assert!(exists("reprise-base") && !exists("reprise-gone"));
        assert!(exists("TxnId") && exists("Reject") && !exists("Txn") && !exists("GoneType"));
        assert!(exists("src/lib.rs") && !exists("src/gone.rs"));
        assert!(exists("/v1/status") && exists("a <= b") && exists("durable") && exists("NVRAM"));
        assert_eq!(quoted("a `b` c `d`\n```\nx `y`\n```\n`e`"), ["b", "d", "e"]);
    }
}
