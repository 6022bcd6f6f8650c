//! The glossary: a type that the architecture page names, or that three crates export, has an entry; what the glossary names exists.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use super::{
    Source,
    text::{PAGE, quoted},
    without_tests,
};

const GLOSSARY: &str = "docs/GLOSSARY.md";
/// Crates that export a type of one name before it needs an entry.
const EXPORTED_BY: usize = 3;

pub fn check(root: &Path, sources: &[Source]) -> Vec<String> {
    let read = |page: &str| fs::read_to_string(root.join(page)).unwrap_or_default();
    complaints(&read(PAGE), &read(GLOSSARY), sources)
}

fn complaints(page: &str, glossary: &str, sources: &[Source]) -> Vec<String> {
    let entries: BTreeSet<&str> = quoted(glossary).into_iter().filter(|word| is_type(word)).collect();
    let exports = exports(sources);
    let mut complaints = Vec::new();
    for name in quoted(page).into_iter().filter(|word| is_type(word)) {
        if !entries.contains(name) {
            complaints.push(format!("{GLOSSARY}: no entry names `{name}`, which {PAGE} does"));
        }
    }
    for (name, crates) in exports.iter().filter(|(_, crates)| crates.len() >= EXPORTED_BY) {
        if !entries.contains(name) {
            let crates = crates.iter().copied().collect::<Vec<_>>().join(", ");
            complaints.push(format!("{GLOSSARY}: no entry names `{name}`, which {crates} export"));
        }
    }
    let declared = declared(sources);
    for name in entries.iter().filter(|name| !declared.contains(*name)) {
        complaints.push(format!("{GLOSSARY}: `{name}` does not exist"));
    }
    complaints
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
    fn named_types_have_an_entry_and_entries_a_type() {
        let own = "pub struct Batch<'a> {\n}\npub(crate) enum Turn {\n}\n";
        let sources = [
            source("runtime/a/src/lib.rs", own),
            source("runtime/b/src/lib.rs", "pub use a::{Batch, batch_of};\n"),
            source("server/c/src/lib.rs", "pub use reprise_b::Batch;\n"),
            source("procedures/d/src/lib.rs", "pub use reprise_b::Turn;\n"),
        ];
        let judge = |page: &str, glossary: &str| complaints(page, glossary, &sources);
        assert_eq!(judge("a `Turn` of `a <= b`, `LSN`", "`Turn` and `Batch`"), [""; 0]);
        assert_eq!(
            judge("a `Turn`", "| **batch** | `Batch` |"),
            ["docs/GLOSSARY.md: no entry names `Turn`, which docs/ARCHITECTURE.md does"]
        );
        assert_eq!(
            judge("", ""),
            ["docs/GLOSSARY.md: no entry names `Batch`, which runtime/a, runtime/b, server/c export"]
        );
        assert_eq!(
            judge("", "`Batch`, `Gone`"),
            ["docs/GLOSSARY.md: `Gone` does not exist"]
        );
    }
}
