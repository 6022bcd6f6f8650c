//! `cargo xtask words`: how long the sentences of each page are, how comments begin, and which types have unclear names.

use std::path::Path;

use anyhow::Result;

use crate::tidy::{self, language, prose::Page};

/// Prints the measures of each page and of each crate's comments, then the names of types that two definitions share or that are
/// participles.
///
/// # Errors
/// The tree can't be read.
pub fn print(root: &Path) -> Result<()> {
    print!("{}", report(&tidy::sources(root)?));
    Ok(())
}

fn report(sources: &[tidy::Source]) -> String {
    let mut out = format!("{:44}{:>10}{:>9}{:>6}{:>6}", "", "sentences", "over 25", "%", "p90");
    out.push_str(&format!("{:>12}{:>11}{:>8}\n", "long lines", "long rows", "banned"));
    let (mut all, mut docs) = (Page::default(), Page::default());
    for (path, page) in language::pages(sources) {
        out.push_str(&line(path, &page));
        if path.starts_with("docs/") {
            add(&mut docs, &page);
        }
        add(&mut all, &page);
    }
    out.push_str(&line("docs/", &docs));
    out.push_str(&line("all", &all));

    out.push_str(&format!("\n{:44}{:>10}{:>9}{:>6}\n", "", "comments", "banned", "%"));
    let (mut lines, mut banned) = (0, 0);
    for (folder, comments) in language::comments(sources) {
        out.push_str(&comments_line(&folder, comments.lines, comments.banned));
        lines += comments.lines;
        banned += comments.banned;
    }
    out.push_str(&comments_line("all", lines, banned));

    let twice = language::types_defined_twice(sources);
    let participles = language::participles(sources);
    out.push_str(&format!("\nnames of two types: {}\n{}\n", twice.len(), twice.join(" ")));
    let (count, names) = (participles.len(), participles.join(" "));
    out.push_str(&format!("\ntypes named by a participle: {count}\n{names}\n"));
    out
}

fn add(total: &mut Page, page: &Page) {
    total.sentences.extend(&page.sentences);
    total.long_lines += page.long_lines;
    total.long_rows += page.long_rows;
    total.banned_words += page.banned_words;
}

fn line(name: &str, page: &Page) -> String {
    let (sentences, long) = (page.sentences.len(), page.long_sentences());
    let mut sorted = page.sentences.clone();
    sorted.sort_unstable();
    let p90 = sorted.get(sentences * 9 / 10).copied().unwrap_or(0);
    let share = percent(long, sentences);
    format!(
        "{name:44}{sentences:10}{long:9}{share:6.1}{p90:6}{:12}{:11}{:8}\n",
        page.long_lines, page.long_rows, page.banned_words
    )
}

fn comments_line(name: &str, lines: usize, banned: usize) -> String {
    format!("{name:44}{lines:10}{banned:9}{:6.1}\n", percent(banned, lines))
}

fn percent(part: usize, all: usize) -> f64 {
    100.0 * part as f64 / all.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source;

    #[test]
    fn report_has_pages_crates_and_types() {
        let long = vec!["word"; 26].join(" ");
        let report = report(&[
            source("docs/a.md", &format!("{long}.\n\nShort.\n")),
            source("runtime/a/src/lib.rs", "/// Of it.\nstruct Held;\n"),
        ]);
        let has = |words: &[&str]| {
            report
                .lines()
                .any(|line| line.split_whitespace().eq(words.iter().copied()))
        };
        assert!(has(&["docs/a.md", "2", "1", "50.0", "26", "1", "0", "0"]), "{report}");
        assert!(has(&["runtime/a", "1", "1", "100.0"]), "{report}");
        assert!(report.ends_with("types named by a participle: 1\nHeld\n"), "{report}");
    }
}
