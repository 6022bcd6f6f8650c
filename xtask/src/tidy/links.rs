//! Links of Markdown pages: each leads to a file of the tree and to a heading of it, and the index of `docs/` links to every page.

use std::{collections::BTreeSet, path::Path};

use super::Source;

pub const INDEX: &str = "docs/README.md";
/// The experiments have an index of their own, and each page of questions belongs to a page that stands in the index.
const APART: [&str; 2] = ["docs/lab/", "docs/questions/"];

pub fn check(root: &Path, sources: &[Source]) -> Vec<String> {
    let pages = sources.iter().filter(|source| source.path.ends_with(".md"));
    let mut complaints = Vec::new();
    let mut indexed = BTreeSet::from([INDEX.to_owned()]);
    for page in pages.clone() {
        for link in links(&page.text) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let path = resolve(&page.path, file);
            if page.path == INDEX {
                indexed.insert(path.clone());
            }
            if !leads(root, sources, &path, heading) {
                complaints.push(format!("{}: the link {link} leads nowhere", page.path));
            }
        }
    }
    let own = pages
        .filter(|page| page.path.starts_with("docs/") && !APART.iter().any(|folder| page.path.starts_with(folder)));
    let missing = own.filter(|page| !indexed.contains(&page.path));
    complaints.extend(missing.map(|page| format!("{INDEX}: has no link to {}", page.path)));
    complaints
}

/// The targets of links within the tree, outside of code.
pub fn links(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    let targets = prose.flat_map(|part| part.split("](").skip(1));
    targets
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
        .filter(|target| !target.contains("://") && !target.starts_with('/'))
        .collect()
}

/// The path from the root that a link of this page means.
pub fn resolve(page: &str, file: &str) -> String {
    if file.is_empty() {
        return page.to_owned();
    }
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}

fn leads(root: &Path, sources: &[Source], path: &str, heading: &str) -> bool {
    let page = sources.iter().find(|source| source.path == path);
    match page {
        Some(page) if !heading.is_empty() => headings(&page.text).any(|known| known == heading),
        Some(_) => true,
        None => heading.is_empty() && root.join(path).exists(),
    }
}

/// The names under which a page's headings are linked.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let prose = text.split("```").step_by(2);
    let lines = prose.flat_map(str::lines).filter(|line| line.starts_with('#'));
    lines.map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source;

    #[test]
    fn links_lead_to_files_and_headings_and_pages_are_indexed() {
        let sources = [
            source(
                "README.md",
                "[a](docs/a.md#the-ones-words) [web](https://x.y) [b](gone.md)\n```\n[c](none.md)\n```\n",
            ),
            source(INDEX, "[a](a.md)"),
            source(
                "docs/a.md",
                "# The one's `words`\n[up](../README.md) [here](#no) [of the API](/problems)\n",
            ),
            source("docs/b.md", ""),
            source("docs/lab/c.md", ""),
            source("docs/questions/a.md", ""),
        ];
        assert_eq!(
            check(Path::new("nowhere"), &sources),
            [
                "README.md: the link gone.md leads nowhere",
                "docs/a.md: the link #no leads nowhere",
                "docs/README.md: has no link to docs/b.md"
            ]
        );
    }
}
