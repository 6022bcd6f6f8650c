//! How pages and comments are written, and how types are named. `cargo xtask words` prints these counts, `tidy` lets them fall alone.

use std::collections::BTreeMap;

use super::{Source, product, prose::Page, ratchet::Finding, words::declaration};
use crate::lines::crate_of;

/// Words that begin a comment without its subject.
const FIRST_WORDS: [&str; 11] = [
    "What",
    "Who",
    "Whoever",
    "Whose",
    "Those",
    "Of",
    "As",
    "Where",
    "So",
    "From here on",
    "The same",
];

/// Participles that no ending shows.
const PARTICIPLES: [&str; 24] = [
    "Begun", "Bound", "Built", "Chosen", "Cut", "Done", "Drawn", "Found", "Given", "Gone", "Held", "Hidden", "Kept",
    "Known", "Left", "Lent", "Made", "Seen", "Sent", "Shown", "Sought", "Taken", "Told", "Written",
];

/// Nouns with the ending of a participle.
const NOUNS: [&str; 10] = [
    "Embed", "Encoding", "Feed", "Finding", "Mapping", "Ring", "Rounding", "Seed", "Setting", "String",
];

/// The pages of the tree, each with its measures.
pub fn pages(sources: &[Source]) -> Vec<(&str, Page)> {
    let pages = sources.iter().filter(|source| source.path.ends_with(".md"));
    pages
        .map(|source| (source.path.as_str(), Page::of(&source.text)))
        .collect()
}

/// Comment lines of a crate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Comments {
    pub lines: usize,
    /// Lines that begin with one of `FIRST_WORDS`.
    pub banned: usize,
}

/// The comment lines of each crate.
pub fn comments(sources: &[Source]) -> BTreeMap<String, Comments> {
    let mut crates: BTreeMap<String, Comments> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.path.ends_with(".rs")) {
        let count = crates.entry(crate_of(&source.path)).or_default();
        for comment in source.text.lines().filter_map(comment) {
            count.lines += 1;
            count.banned += usize::from(FIRST_WORDS.iter().any(|word| begins_with(comment, word)));
        }
    }
    crates
}

/// The text of a line that is a comment.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    let text = text.trim_start_matches(['/', '!']).trim_start();
    (!text.is_empty()).then_some(text)
}

fn begins_with(text: &str, word: &str) -> bool {
    let rest = text.strip_prefix(word);
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
}

/// Names that two or more types of the product have.
pub fn types_defined_twice(sources: &[Source]) -> Vec<&str> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    types(sources).for_each(|name| *counts.entry(name).or_default() += 1);
    let twice = counts.into_iter().filter(|(_, count)| *count > 1);
    twice.map(|(name, _)| name).collect()
}

/// Types of the product whose whole name is a participle, one entry for each definition.
pub fn participles(sources: &[Source]) -> Vec<&str> {
    let mut names: Vec<_> = types(sources).filter(|name| is_participle(name)).collect();
    names.sort_unstable();
    names
}

/// The name of each type that the product defines. Types of traits and their implementations are indented, and left out.
fn types(sources: &[Source]) -> impl Iterator<Item = &str> {
    let is_product = |path: &str| ["runtime/", "server/", "sdk/"].iter().any(|top| path.starts_with(top));
    let texts = product(sources).filter(move |(path, _)| is_product(path));
    let lines = texts.flat_map(|(_, text)| text.lines());
    lines
        .filter(|line| !line.trim_start().starts_with("type ") || line.starts_with("type "))
        .filter_map(declaration)
}

fn is_participle(name: &str) -> bool {
    let is_one_word = name.chars().filter(char::is_ascii_uppercase).count() == 1;
    let has_ending = (name.ends_with("ed") || name.ends_with("ing")) && !NOUNS.contains(&name);
    is_one_word && (has_ending || PARTICIPLES.contains(&name))
}

/// The counts that may only fall.
pub fn findings(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |rule, place: &str, count, limit| {
        if count > 0 {
            let place = place.to_owned();
            findings.push(Finding {
                rule,
                place,
                count,
                limit,
            });
        }
    };
    for (path, page) in pages(sources) {
        add(
            "banned-word",
            path,
            page.banned_words,
            "words that hide an actor; name it",
        );
        add("long-line", path, page.long_lines, "lines of prose over 100 columns");
        add("long-row", path, page.long_rows, "table rows over 240 columns");
        add("long-sentence", path, page.long_sentences(), "sentences over 25 words");
    }
    for (folder, comments) in comments(sources) {
        let limit = "comment lines that begin with a word like `What` or `Of`; begin with a noun or a verb";
        add("first-word", &folder, comments.banned, limit);
    }
    let twice = types_defined_twice(sources).len();
    add(
        "type-defined-twice",
        "product",
        twice,
        "names of two types; see `cargo xtask words`",
    );
    let participles = participles(sources).len();
    add(
        "participle-type",
        "product",
        participles,
        "types named by a participle; see `cargo xtask words`",
    );
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source;

    #[test]
    fn comment_lines_are_counted_by_their_first_word() {
        let text = "//! What it is.\n//! The samen.\n//!\n/// Of a row.\nlet a = 1; // So it is.\n    // The same, again.\n// Offers.\n";
        let sources = [source("runtime/a/src/lib.rs", text)];
        let expected = Comments { lines: 5, banned: 3 };
        assert_eq!(comments(&sources)["runtime/a"], expected);
    }

    #[test]
    fn types_are_checked_by_their_names() {
        let sources = [
            source(
                "runtime/a/src/lib.rs",
                "pub struct Held;\nstruct Ring<T>(T);\nimpl X for Y {\n    type Error = E;\n}\n",
            ),
            source(
                "server/b/src/lib.rs",
                "enum Held {\n}\npub(crate) type Error = E;\nstruct HeldRow;\ntrait Placing {\n}\n",
            ),
            source("benches/c/src/lib.rs", "struct Held;\nstruct HeldRow;\n"),
        ];
        assert_eq!(types_defined_twice(&sources), ["Held"]);
        assert_eq!(participles(&sources), ["Held", "Held", "Placing"]);
    }

    #[test]
    fn counts_of_pages_and_crates_are_findings() {
        let sources = [
            source("docs/a.md", "Nobody.\n"),
            source("docs/b.md", "It is.\n"),
            source("runtime/a/src/lib.rs", "/// Where it lies.\n"),
        ];
        let found: Vec<_> = findings(&sources)
            .into_iter()
            .map(|finding| (finding.rule, finding.place, finding.count))
            .collect();
        let one = |rule, place: &str| (rule, place.to_owned(), 1);
        assert_eq!(found, [one("banned-word", "docs/a.md"), one("first-word", "runtime/a")]);
    }
}
