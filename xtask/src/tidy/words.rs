//! The glossary: short, a meaning and a "not" for each word, and what it names exists. A type that three crates export stands there or on
//! a page of the architecture.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Source,
    architecture::{pages, quoted},
    without_tests,
};

const GLOSSARY: &str = "docs/GLOSSARY.md";
/// Crates that export a type of one name before a page must explain it.
const EXPORTED_BY: usize = 3;
const ENTRIES_MAX: usize = 60;

pub fn check(sources: &[Source]) -> Vec<String> {
    let glossary = sources.iter().find(|source| source.path == GLOSSARY);
    let glossary = glossary.map_or("", |source| source.text.as_str());
    let mut complaints = entries(glossary);

    let own = types_named(glossary);
    let explained: BTreeSet<&str> = pages(sources).flat_map(|page| types_named(&page.text)).collect();
    for (name, crates) in exports(sources) {
        if crates.len() >= EXPORTED_BY && !own.contains(name) && !explained.contains(name) {
            let crates = crates.into_iter().collect::<Vec<_>>().join(", ");
            complaints.push(format!(
                "{GLOSSARY}: neither it nor a walk names `{name}`, which {crates} export"
            ));
        }
    }
    let declared = declared(sources);
    let gone = own.into_iter().filter(|name| !declared.contains(name));
    complaints.extend(gone.map(|name| format!("{GLOSSARY}: `{name}` does not exist")));
    complaints
}

/// Complaints of the table: too many rows, or one without three cells.
fn entries(glossary: &str) -> Vec<String> {
    let rows: Vec<&str> = glossary.lines().filter(|line| line.starts_with("| **")).collect();
    let cells = |row: &str| {
        row.split(" | ")
            .filter(|cell| !cell.trim_matches(['|', ' ']).is_empty())
            .count()
    };
    let mut complaints: Vec<_> = rows
        .iter()
        .filter(|row| cells(row) != 3)
        .map(|row| format!("{GLOSSARY}: no word, meaning and \"not\": {row}"))
        .collect();
    if rows.len() > ENTRIES_MAX {
        complaints.push(format!("{GLOSSARY}: {} words; at most {ENTRIES_MAX}", rows.len()));
    }
    complaints
}

fn types_named(page: &str) -> BTreeSet<&str> {
    quoted(page).into_iter().filter(|word| is_type(word)).collect()
}

fn is_type(word: &str) -> bool {
    let mut chars = word.chars();
    chars.next().is_some_and(|first| first.is_ascii_uppercase())
        && word.chars().any(|c| c.is_ascii_lowercase())
        && chars.all(|c| c.is_ascii_alphanumeric())
}

/// Types that the roots of the product's crates declare or hand on, each with these crates.
fn exports(sources: &[Source]) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut exports: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for source in sources {
        let Some(folder) = source.path.strip_suffix("/src/lib.rs") else {
            continue;
        };
        if !["runtime/", "server/", "sdk/"]
            .iter()
            .any(|part| folder.starts_with(part))
        {
            continue;
        }
        let text = without_tests(&source.text);
        let handed_on = text.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next());
        let names = handed_on.flat_map(|list| list.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
        for name in names
            .filter(|word| is_type(word))
            .chain(text.lines().filter_map(declaration))
        {
            exports.entry(name).or_default().insert(folder);
        }
    }
    exports
}

/// Names of all types of the tree.
fn declared(sources: &[Source]) -> BTreeSet<&str> {
    let rust = sources.iter().filter(|source| source.path.ends_with(".rs"));
    rust.flat_map(|source| source.text.lines().filter_map(declaration))
        .collect()
}

/// The type that this line declares.
pub(super) fn declaration(line: &str) -> Option<&str> {
    let mut words = line.trim_start().split(' ').skip_while(|word| word.starts_with("pub"));
    let is_type = ["struct", "enum", "trait", "type"].contains(&words.next()?);
    let rest = words.next().filter(|_| is_type)?;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
    (end > 0).then_some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source;

    #[test]
    fn exported_types_are_explained_and_entries_have_a_type() {
        let own = "pub struct Batch<'a> {\n}\npub(crate) enum Turn {\n}\n";
        let complaints = |page: &str, glossary: &str| {
            check(&[
                source("runtime/a/src/lib.rs", own),
                source("runtime/b/src/lib.rs", "pub use a::{Batch, batch_of};\n"),
                source("server/c/src/lib.rs", "pub use reprise_b::Batch;\n"),
                source("procedures/d/src/lib.rs", "pub use reprise_b::Turn;\n"),
                source("docs/walks/call.md", page),
                source(GLOSSARY, glossary),
            ])
        };
        assert_eq!(complaints("a `Turn` of `a <= b`, `LSN`", "`Batch`"), [""; 0]);
        assert_eq!(complaints("a `Batch`", ""), [""; 0]);
        assert_eq!(
            complaints("", ""),
            ["docs/GLOSSARY.md: neither it nor a walk names `Batch`, which runtime/a, runtime/b, server/c export"]
        );
        assert_eq!(
            complaints("", "`Batch`, `Gone`"),
            ["docs/GLOSSARY.md: `Gone` does not exist"]
        );
    }

    #[test]
    fn entries_are_few_and_have_three_cells() {
        assert_eq!(entries(&"| **a** | b | c |\n".repeat(60)), [""; 0]);
        assert_eq!(entries(&"| **a** | b | c |\n".repeat(61)).len(), 1);
        assert_eq!(entries("| **a** | b | |\n| **a** | b |\n").len(), 2);
    }
}
