//! The pages of the architecture: the index and one page for each walk. They stay short, and what they name exists.

use std::path::Path;

use super::{Source, text::is_rust};

const INDEX: &str = "docs/ARCHITECTURE.md";
const WALKS: &str = "docs/walks/";
const DECISIONS: &str = "docs/decisions.md";
/// Lines of the index and of a walk at most.
const INDEX_LINES_MAX: usize = 150;
const WALK_LINES_MAX: usize = 120;

/// The index, the walks and the decisions.
pub fn pages(sources: &[Source]) -> impl Iterator<Item = &Source> {
    sources.iter().filter(|source| {
        let path = source.path.as_str();
        path == INDEX || path == DECISIONS || is_walk(path)
    })
}

fn is_walk(path: &str) -> bool {
    path.starts_with(WALKS) && path.ends_with(".md")
}

/// Every crate, path and type in back ticks on these pages exists, and no page is longer than a reader takes in at once.
pub fn check(root: &Path, sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for page in pages(sources) {
        let missing = quoted(&page.text)
            .into_iter()
            .filter(|word| !exists(root, sources, word));
        complaints.extend(missing.map(|word| format!("{}: `{word}` does not exist", page.path)));
        complaints.extend(length(page));
    }
    if !pages(sources).any(|page| page.path == INDEX) {
        complaints.push(format!("{INDEX} is missing"));
    }
    complaints
}

fn length(page: &Source) -> Option<String> {
    let max = match page.path.as_str() {
        INDEX => INDEX_LINES_MAX,
        path if is_walk(path) => WALK_LINES_MAX,
        _ => return None,
    };
    let lines = page.text.lines().count();
    (lines > max).then(|| format!("{}: {lines} lines; at most {max}", page.path))
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
    // Paths below `/` are the HTTP API's, paths below `target/` are built.
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
    use crate::tidy::source;

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

    #[test]
    fn long_and_wrong_pages_are_found() {
        let lines = |count: usize| "x\n".repeat(count);
        let sources = [
            source(INDEX, &lines(INDEX_LINES_MAX)),
            source(DECISIONS, &lines(500)),
            source("docs/walks/call.md", &format!("`GoneType`\n{}", lines(WALK_LINES_MAX))),
            source("docs/other.md", "`GoneType`\n"),
        ];
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(
            check(root, &sources),
            [
                "docs/walks/call.md: `GoneType` does not exist",
                "docs/walks/call.md: 121 lines; at most 120"
            ]
        );
        assert_eq!(check(root, &[]), ["docs/ARCHITECTURE.md is missing"]);
    }
}
