//! Rules that the text alone decides: lengths, headers, banned calls, machine paths.

use std::collections::BTreeMap;

use super::{Source, is_test_file, product, ratchet::Finding, without_tests};
use crate::workspace::Package;

pub fn is_rust(source: &Source) -> bool {
    source.path.ends_with(".rs")
}

/// Lines of a source file at most, without its tests.
const LINES_MAX: usize = 800;
/// Lines from which a file is listed; no further file may reach them.
const LINES_LISTED: usize = 500;
/// Counts of lines are listed as multiples of this: small changes to a long file need no other list.
const LINES_STEP: usize = 50;

/// Files that are too long.
pub fn file_lengths(sources: &[Source]) -> Vec<String> {
    let lines = product(sources).map(|(path, text)| (path, text.lines().count()));
    let long = lines.filter(|(_, lines)| *lines > LINES_MAX);
    long.map(|(path, lines)| format!("{path}: {lines} lines without tests; at most {LINES_MAX}"))
        .collect()
}

/// Files that are long.
pub fn long_files(sources: &[Source]) -> Vec<Finding> {
    let lines = product(sources).map(|(path, text)| (path, text.lines().count()));
    let long = lines.filter(|(_, lines)| *lines >= LINES_LISTED);
    let finding = |(path, lines): (&str, usize)| Finding {
        rule: "long-file",
        place: path.to_owned(),
        count: lines.next_multiple_of(LINES_STEP),
        limit: "lines without tests, rounded up to fifty; less than 500",
    };
    long.map(finding).collect()
}

/// Unit tests of packages whose manifest says `test = false`.
pub fn tests_that_never_run(packages: &[Package], sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in packages.iter().filter(|package| !package.has_unit_tests) {
        let folder = format!("{}/src/", package.folder);
        let own = sources.iter().filter(|source| source.path.starts_with(&folder));
        let tested = own.filter(|source| is_rust(source) && source.text.contains("#[test]"));
        complaints.extend(tested.map(|source| {
            format!(
                "{}: its tests never run, since {}/Cargo.toml says `test = false`",
                source.path, package.folder
            )
        }));
    }
    complaints
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

/// The crate of `runtime/` that a file belongs to.
fn engine_crate(path: &str) -> Option<&str> {
    let (name, rest) = path.strip_prefix("runtime/")?.split_once('/')?;
    rest.starts_with("src/").then_some(name)
}

/// Each banned call of a file: its line, its text, and its replacement.
fn banned_in(source: &Source) -> Vec<(usize, &'static str, &'static str)> {
    let mut found = Vec::new();
    for (number, line) in without_tests(&source.text).lines().enumerate() {
        let code = line.split("//").next().unwrap_or("");
        let banned = BANNED.iter().filter(|(banned, _)| code.contains(banned));
        found.extend(banned.map(|(banned, instead)| (number + 1, *banned, *instead)));
    }
    found
}

/// Banned calls of guests.
pub fn banned_calls_of_guests(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    let is_guest = |path: &str| path.starts_with("sdk/procedure/src/") || path.starts_with("procedures/");
    for source in sources
        .iter()
        .filter(|source| is_rust(source) && is_guest(&source.path))
    {
        if !is_test_file(&source.path) {
            let found = banned_in(source).into_iter();
            complaints.extend(
                found.map(|(line, banned, instead)| format!("{}:{line}: {banned}; use {instead}", source.path)),
            );
        }
    }
    complaints
}

/// Banned calls of the engine, by crate. `docs/determinism.md` has the reason of each that is listed.
pub fn banned_calls(sources: &[Source]) -> Vec<Finding> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for source in sources.iter().filter(|source| is_rust(source)) {
        let engine = engine_crate(&source.path).filter(|name| !EFFECTS.contains(name));
        for (_, banned, _) in engine.iter().flat_map(|_| banned_in(source)) {
            let place = format!("runtime/{} {banned}", engine.unwrap_or_default());
            *counts.entry(place).or_default() += 1;
        }
    }
    let finding = |(place, count)| Finding {
        rule: "banned-call",
        place,
        count,
        limit: "calls; use what `env` or `abi` has in their place",
    };
    counts.into_iter().map(finding).collect()
}

/// The files of the product that write to the process's own streams: what verbs print, and what the server says.
const PRINTERS: [&str; 2] = ["server/node/src/output.rs", "server/node/src/server_output/mod.rs"];
/// Each of them waits for a reader that is slow, or panics where it is gone, and shows texts of others as they are.
const PRINTS: [&str; 5] = ["print!(", "println!(", "dbg!(", "stdout()", "stderr()"];

/// Prints in the product beside its printers.
pub fn prints(sources: &[Source]) -> Vec<String> {
    let is_product = |path: &str| ["runtime/", "server/", "sdk/"].iter().any(|top| path.starts_with(top));
    let own = product(sources).filter(|(path, _)| is_product(path) && path.contains("/src/"));
    let mut complaints = Vec::new();
    for (path, text) in own.filter(|(path, _)| !PRINTERS.contains(path)) {
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            if PRINTS.iter().any(|print| code.contains(print)) {
                complaints.push(format!(
                    "{path}:{}: prints; use `server_output` in the server, `output` in a verb",
                    number + 1
                ));
            }
        }
    }
    complaints
}

/// Paths of one machine, composed so that this file does not contain them.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source;

    #[test]
    fn prints_are_found_in_the_product_beside_its_printers() {
        let text = "fn f() { eprintln!(\"x\"); }\n// println!(\n#[cfg(test)]\nmod tests { fn g() { println!(); } }\n";
        let count = |path: &str| prints(&[source(path, text)]).len();
        for found in [
            "server/node/src/serve.rs",
            "runtime/log/src/flush.rs",
            "sdk/client/src/client.rs",
        ] {
            assert_eq!(count(found), 1, "{found}");
        }
        for left in [
            PRINTERS[0],
            PRINTERS[1],
            "benches/cost/src/main.rs",
            "server/http/build.rs",
            "tests/sim/src/run.rs",
        ] {
            assert_eq!(count(left), 0, "{left}");
        }
        let streams = [source(
            "server/http/src/x.rs",
            "let a = io::stderr().lock();\nprint!(\"\");\n",
        )];
        assert_eq!(prints(&streams).len(), 2);
    }

    #[test]
    fn banned_calls_are_found_in_engine_and_guests_only() {
        let text = "fn f() { let t = Instant::now(); }\n// Instant::now is fine here\n#[cfg(test)]\nmod tests { use std::thread::spawn; }\n";
        let count = |path: &str| {
            let sources = [source(path, text)];
            banned_calls(&sources).len() + banned_calls_of_guests(&sources).len()
        };
        for banned in ["runtime/log/src/flush.rs", "procedures/bank/src/lib.rs"] {
            assert_eq!(count(banned), 1, "{banned}");
        }
        for elsewhere in ["runtime/env/src/real.rs", "server/http/src/lib.rs"] {
            assert_eq!(count(elsewhere), 0, "{elsewhere}");
        }
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
        let lines = |count: usize| "x\n".repeat(count);
        let tested = format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", lines(LINES_MAX), lines(9));
        assert_eq!(file_lengths(&[source("a.rs", &tested)]), [""; 0]);
        assert_eq!(file_lengths(&[source("a.rs", &lines(LINES_MAX + 1))]).len(), 1);
        assert_eq!(long_files(&[source("a.rs", &lines(499))]).len(), 0);
        assert_eq!(long_files(&[source("a.rs", &lines(501))])[0].count, 550);
    }

    #[test]
    fn tests_that_cargo_does_not_build_are_found() {
        let sources = [source("a/src/b.rs", "#[test]\nfn f() {}\n")];
        let package = |has_unit_tests| Package {
            folder: "a".into(),
            has_unit_tests,
            ..Package::default()
        };
        assert_eq!(tests_that_never_run(&[package(true)], &sources), [""; 0]);
        assert_eq!(tests_that_never_run(&[package(false)], &sources).len(), 1);
    }

    #[test]
    fn paths_of_a_machine_are_found() {
        let line = format!("see {}me", MACHINE_PATHS[2]);
        assert_eq!(machine_paths(&[source("README.md", &line)]).len(), 1);
        assert_eq!(machine_paths(&[source("README.md", "see docs/me")]), [""; 0]);
    }
}
