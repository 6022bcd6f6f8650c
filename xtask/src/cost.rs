//! `cargo xtask cost`: counts the instructions of a call under callgrind, and holds them to a list. Instructions are the same on a busy machine,
//! where times are not.

use std::{fmt::Write as _, fs, io::Write as _, path::Path, process::Command};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    stages::{is_ci, whole},
    tasks::run,
};

/// Instructions of one call, by its kind.
const LIST: &str = "benches/cost/instructions.txt";
/// A count may grow by so much until the list is to say so.
const GROWTH_MAX_PERCENT: u64 = 3;
/// Functions that callgrind collects of `reprise-bench-cost`.
const MEASURED: &str = "--toggle-collect=*measured*";
/// A multiple of the connections of calls over HTTP.
const CALLS: u64 = 480;
const HEAD: &str = "# Instructions of one call in the tests' profile, by `cargo xtask cost`. A change that costs more than 3 % writes its counts\n\
                    # here (`cargo xtask cost --bless`), and its commit says why.\n";

/// Builds the program that is counted, as the tests build it, and counts.
///
/// # Errors
/// A build that fails, or a kind of call that costs more than the list allows.
pub fn cost(root: &Path, bless: bool) -> Result<()> {
    let mut command = whole(root);
    run(command.args([
        "build",
        "--profile",
        "quick",
        "--workspace",
        "--bin",
        "reprise-bench-cost",
    ]))?;
    count(root, bless)
}

/// Counts with the program that is built. Without valgrind, which only CI must have, it counts nothing.
pub(crate) fn count(root: &Path, bless: bool) -> Result<()> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        ensure!(!is_ci() && !bless, "valgrind is missing");
        return skip(root);
    }
    let list = fs::read_to_string(root.join(LIST)).with_context(|| format!("read {LIST}"))?;
    let mut counts = Vec::new();
    for (kind, before) in listed(&list)? {
        let now = instructions(root, &kind)?;
        println!("{kind}: {now} instructions, {before} in the list");
        counts.push(Count { kind, before, now });
    }
    if bless {
        return fs::write(root.join(LIST), written(&counts)).with_context(|| format!("write {LIST}"));
    }
    let dearer: Vec<_> = counts.iter().filter(|count| count.is_dearer()).collect();
    let dearer: Vec<_> = dearer.iter().map(|count| count.kind.as_str()).collect();
    ensure!(
        dearer.is_empty(),
        "calls cost over {GROWTH_MAX_PERCENT} % more than {LIST} says: {}; make them cheaper, or say why and run `cargo xtask cost --bless`",
        dearer.join(", ")
    );
    Ok(())
}

/// Lists the step among the tests that lack a tool.
fn skip(root: &Path) -> Result<()> {
    let path = root.join("target/skipped-tests.txt");
    let list = fs::OpenOptions::new().append(true).create(true).open(&path);
    let written = list.and_then(|mut list| writeln!(list, "instructions of calls: valgrind is missing"));
    written.with_context(|| format!("write {}", path.display()))
}

/// A kind of call, with its instructions as the list has them and as they are.
struct Count {
    kind: String,
    before: u64,
    now: u64,
}

impl Count {
    fn is_dearer(&self) -> bool {
        self.now * 100 > self.before * (100 + GROWTH_MAX_PERCENT)
    }
}

fn listed(list: &str) -> Result<Vec<(String, u64)>> {
    let rows = list.lines().filter(|line| !line.starts_with('#'));
    let row = |row: &str| {
        let (kind, count) = row.split_once(' ')?;
        Some((kind.to_owned(), count.parse().ok()?))
    };
    rows.map(|text| row(text).with_context(|| format!("{LIST}: no kind and count: {text:?}")))
        .collect()
}

fn written(counts: &[Count]) -> String {
    let mut list = HEAD.to_owned();
    for Count { kind, now, .. } in counts {
        let _ = writeln!(list, "{kind} {now}"); // a string takes all
    }
    list
}

fn instructions(root: &Path, kind: &str) -> Result<u64> {
    let mut command = Command::new("valgrind");
    command.args([
        "--tool=callgrind",
        "--instr-atstart=no",
        MEASURED,
        "--callgrind-out-file=/dev/null",
    ]);
    let program = root.join("target/quick/reprise-bench-cost");
    let output = command.arg(program).args([kind, &CALLS.to_string()]).output();
    let output = output.context("start valgrind")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    match collected(&stderr).filter(|_| output.status.success()) {
        Some(count) => Ok(count / CALLS),
        None => bail!("{kind}: {}\n{stderr}", output.status),
    }
}

/// Reads the line of callgrind at its end, if it counted anything.
fn collected(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once("Collected : ")?;
    let count = rest.split_whitespace().next()?.parse().ok()?;
    (count > 0).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_dearer_beyond_three_percent() {
        let count = |now| Count {
            kind: "vote".into(),
            before: 1_000,
            now,
        };
        assert!(!count(900).is_dearer() && !count(1_030).is_dearer());
        assert!(count(1_031).is_dearer());
    }

    #[test]
    fn list_is_read_as_it_was_written() {
        let counts = [
            Count {
                kind: "vote".into(),
                before: 1,
                now: 4_596,
            },
            Count {
                kind: "payment".into(),
                before: 2,
                now: 23_879,
            },
        ];
        let read = listed(&written(&counts)).expect("a list");
        assert_eq!(read, [("vote".into(), 4_596), ("payment".into(), 23_879)]);
        assert!(listed("vote\n").is_err() && listed("vote many\n").is_err());
    }

    #[test]
    fn count_is_read_from_what_callgrind_says() {
        let text = "==7== Events    : Ir\n==7== Collected : 2545590\n==7== \n";
        assert_eq!(collected(text), Some(2_545_590));
        assert_eq!(collected("==7== Collected : 0\n"), None);
        assert_eq!(collected("valgrind: no such program"), None);
    }
}
