//! The reader's test: each page for users has five questions with answers in `docs/questions/`, and the hash of the page that a reader
//! answered them from.

use super::{
    Source,
    links::{INDEX, links, resolve},
};

const DOCS: &str = "docs/";
const QUESTIONS: &str = "docs/questions/";
/// The sections of the index that list pages for users.
const SECTIONS: [&str; 3] = ["Write procedures", "Call procedures", "Run a server"];
const QUESTIONS_MIN: usize = 5;

pub fn check(sources: &[Source]) -> Vec<String> {
    let find = |path: &str| sources.iter().find(|source| source.path == path);
    let index = find(INDEX).map_or("", |index| index.text.as_str());
    let mut complaints = Vec::new();
    for page in user_pages(index).iter().filter_map(|path| find(path)) {
        let path = format!("{QUESTIONS}{}", page.path.trim_start_matches(DOCS));
        match find(&path) {
            Some(questions) => complaints.extend(check_page(questions, page)),
            None => complaints.push(format!("{path} is missing: five questions that {} answers", page.path)),
        }
    }
    complaints
}

/// The Markdown pages that the sections for users link to.
fn user_pages(index: &str) -> Vec<String> {
    let sections = index.split("\n## ").skip(1);
    let for_users = sections.filter(|section| SECTIONS.iter().any(|title| section.starts_with(title)));
    let links = for_users.flat_map(links).map(|link| resolve(INDEX, link));
    links.filter(|path| path.ends_with(".md")).collect()
}

fn check_page(questions: &Source, page: &Source) -> Option<String> {
    let asked = questions
        .text
        .lines()
        .filter(|line| line.starts_with("**") && line.contains('?'))
        .count();
    if asked < QUESTIONS_MIN {
        return Some(format!(
            "{}: {asked} questions; at least {QUESTIONS_MIN}",
            questions.path
        ));
    }
    let line = format!("<!-- answered from {:016x} -->", hash(&page.text));
    let is_current = questions.text.lines().any(|known| known == line);
    (!is_current).then(|| {
        format!(
            "{}: {} has changed; answer its questions from the page alone, mend what fails, then write `{line}`",
            questions.path, page.path
        )
    })
}

/// FNV-1a, 64 bits.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source;

    #[test]
    fn pages_for_users_have_questions_from_their_current_text() {
        assert_eq!(hash("a"), 0xaf63_dc4c_8601_ec8c);
        let index = source(
            INDEX,
            "# All\n\n## Run a server\n\n[a](guide/a.md) [c](a.toml)\n\n## Change it\n\n[b](b.md)\n",
        );
        let page = source("docs/guide/a.md", "a");
        let at = "docs/questions/guide/a.md";
        let questions = |count: usize, hash: &str| {
            let text = format!("# Questions\n\n<!-- answered from {hash} -->\n\n");
            source(at, &(text + &"**What is it?** A page.\n\n".repeat(count)))
        };
        let complaints = |questions: &[Source]| {
            let mut sources = vec![
                source(INDEX, &index.text),
                source("docs/b.md", "b"),
                source(&page.path, &page.text),
            ];
            sources.extend(questions.iter().map(|one| source(&one.path, &one.text)));
            check(&sources)
        };
        assert_eq!(complaints(&[questions(5, "af63dc4c8601ec8c")]), [""; 0]);
        assert_eq!(
            complaints(&[questions(4, "af63dc4c8601ec8c")]),
            [format!("{at}: 4 questions; at least 5")]
        );
        assert!(complaints(&[questions(5, "af63dc4c8601ec8d")])[0].contains("docs/guide/a.md has changed"));
        assert!(complaints(&[])[0].starts_with(&format!("{at} is missing")));
    }
}
