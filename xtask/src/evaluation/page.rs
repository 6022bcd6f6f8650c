//! The page of the evaluation, from the tables of the figures.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result};

use super::papers::{Figure, PAPERS, Paper};

/// Columns of a line of the page.
const COLUMNS: usize = 100;
const HEAD: &str = "# Evaluation: the papers' figures, drawn anew\n\n\
    This page shows the figures of four papers as this system draws them, beside the papers' readings.\n\
    It is for readers who ask whether the papers' claims hold here. The last part shows this system\n\
    beside other databases.\n\n\
    `cargo xtask evaluation` draws the figures and writes this page. Do not edit it.\n\n\
    ```sh\n\
    make figures                                          # all of them; needs an idle machine\n\
    make figures NAMES=\"looking-glass query-fresh-7\"      # a paper, or a figure\n\
    make figures QUICK=1                                  # whether it works, and no figure\n\
    ```\n\n\
    Each figure has its data as CSV beside it in `docs/figures`, with machine, commit, date and seed.\n\
    \"Here\" is the least and the most of our points. A dash stands where a text has no number.\n";

/// The tables of a folder, by their names without `.csv`. A folder that does not exist has none.
pub fn tables(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut tables = BTreeMap::new();
    if !folder.exists() {
        return Ok(tables);
    }
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(name) = name.strip_suffix(".csv") {
            let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            tables.insert(name.to_owned(), text);
        }
    }
    Ok(tables)
}

/// The commit of the build that a table was measured with.
pub fn commit_of(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("build of ")?;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-')?;
    Some(rest[..end].trim_end_matches("-dirty"))
}

/// The page that shows the figures of a folder.
///
/// # Errors
/// A table that cannot be read.
pub fn page(folder: &Path) -> Result<String> {
    let tables = tables(folder)?;
    let mut page = HEAD.to_owned();
    let mut missing = Vec::new();
    for paper in PAPERS {
        let figures = paper.groups.iter().flat_map(|group| group.figures);
        let mut parts = String::new();
        for figure in figures {
            let name = format!("{}-{}", paper.name, figure.number);
            let of_figure: Vec<_> = tables
                .iter()
                .filter(|(table, _)| is_of(table, &name) && !is_of_longer(table, &name, paper))
                .collect();
            if of_figure.is_empty() {
                missing.push(format!("`{name}`"));
                continue;
            }
            add_figure(&mut parts, figure, &of_figure);
        }
        if !parts.is_empty() {
            add_paper(&mut page, paper);
            page += &parts;
        }
    }
    if !missing.is_empty() {
        page += "\n## Not drawn yet\n\nNo run at full length has drawn these figures:\n\n";
        missing.iter().for_each(|name| page += &format!("- {name}\n"));
    }
    Ok(page)
}

/// `nv-logging-12-sites-1` belongs to `nv-logging-12`.
fn is_of(table: &str, name: &str) -> bool {
    let rest = table.strip_prefix(name);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Whether the table is that of a figure whose name goes on behind this one: `query-fresh-11-rdma` is none of `query-fresh-11`.
fn is_of_longer(table: &str, name: &str, paper: &Paper) -> bool {
    let figures = paper.groups.iter().flat_map(|group| group.figures);
    let mut names = figures.map(|figure| format!("{}-{}", paper.name, figure.number));
    names.any(|other| other.len() > name.len() && is_of(&other, name) && is_of(table, &other))
}

fn add_paper(page: &mut String, paper: &Paper) {
    let _ = write!(page, "\n## {}\n\n{}", paper.title, wrapped(paper.about)); // a string takes all
}

fn add_figure(page: &mut String, figure: &Figure, tables: &[(&String, &String)]) {
    for (at, (name, text)) in tables.iter().enumerate() {
        let mut comments = text.lines().map_while(|line| line.strip_prefix("# "));
        let (title, conditions) = (comments.next().unwrap_or(name), comments.next().unwrap_or_default());
        let _ = write!(page, "\n### {title}\n\n![{title}](figures/{name}.svg)\n"); // a string takes all
        if at == 0 {
            let _ = write!(page, "\n{}\n{}", wrapped(figure.paper), wrapped(figure.difference));
        }
        let claims: Vec<_> = claims(text).collect();
        if !claims.is_empty() {
            *page += "\n| number | paper | here |\n| --- | --- | --- |\n";
        }
        for [claim, paper, ours] in claims {
            let _ = writeln!(page, "| {claim} | {paper} | {ours} |");
        }
        let conditions = sentences(conditions);
        let _ = write!(
            page,
            "\n{}",
            wrapped(&format!("[Data](figures/{name}.csv). {conditions}"))
        );
    }
}

/// The numbers of a table that the paper has, too: text, paper, ours.
fn claims(text: &str) -> impl Iterator<Item = [String; 3]> {
    let lines = text.lines().skip_while(|line| !line.starts_with("claim,")).skip(1);
    lines.filter_map(|line| {
        let (claim, rest) = line.strip_prefix('"')?.split_once("\",")?;
        let cells: Vec<_> = rest.split(',').collect();
        let [paper_least, paper_most, least, most] = cells[..] else {
            return None;
        };
        Some([claim.to_owned(), range(paper_least, paper_most), range(least, most)])
    })
}

fn range(least: &str, most: &str) -> String {
    match (number(least), number(most)) {
        (None, _) | (_, None) => "-".into(),
        (Some(least), Some(most)) if least == most => least,
        (Some(least), Some(most)) => format!("{least} to {most}"),
    }
}

/// With three digits at least, and none behind the point that says nothing.
fn number(text: &str) -> Option<String> {
    let value: f64 = text.parse().ok()?;
    let text = match value.abs() {
        at_least if at_least >= 100.0 => format!("{value:.0}"),
        at_least if at_least >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    };
    let has_point = text.contains('.');
    Some(if has_point {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    })
}

/// The parts of a caption, a sentence each.
fn sentences(caption: &str) -> String {
    let parts = caption.trim_end_matches('.').split("; ").map(|part| {
        let mut letters = part.chars();
        let first = letters.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(letters).chain(['.']).collect::<String>()
    });
    parts.collect::<Vec<_>>().join(" ")
}

/// A paragraph in lines of the page.
fn wrapped(text: &str) -> String {
    let (mut lines, mut line) = (String::new(), String::new());
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines += &line;
            lines.push('\n');
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    lines + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# Figure 12: TPC-C on 1 sites\n# a machine; release build of 12ab34c-dirty, 2026-01-02; seed 1.\n# a note\n\
        series,x,y,runs\na,1,2.000,2.000\n\nclaim,paper least,paper most,ours least,ours most\n\
        \"one to other, times\",1.62,2.72,3.004,123.40\n\"no number\",,,7.00,7.00\n\"not run\",1,1,,\n";

    #[test]
    fn figures_are_shown_with_the_papers_reading_and_ours() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("nv-logging-12-sites-1.csv"), TABLE).expect("a file");
        let page = page(folder.path()).expect("a page");
        let in_one_line = page.replace('\n', " ");
        for expected in [
            "### Figure 12: TPC-C on 1 sites\n",
            "](figures/nv-logging-12-sites-1.svg)",
            "| one to other, times | 1.62 to 2.72 | 3 to 123 |\n",
            "| no number | - | 7 |\n",
            "| not run | 1 | - |\n",
            "A machine. Release build of 12ab34c-dirty, 2026-01-02. Seed 1.",
            "## NV-Logging",
        ] {
            assert!(
                page.contains(expected) || in_one_line.contains(expected),
                "{expected}: {page}"
            );
        }
        assert!(
            page.contains("`looking-glass-5`") && !page.contains("`nv-logging-12`"),
            "{page}"
        );
        assert!(
            page.lines()
                .all(|line| line.starts_with('!') || line.chars().count() <= 120),
            "{page}"
        );
        assert_eq!(commit_of(TABLE), Some("12ab34c"));
    }

    #[test]
    fn a_table_belongs_to_one_figure() {
        assert!(is_of("nv-logging-12-sites-1", "nv-logging-12") && is_of("looking-glass-1", "looking-glass-1"));
        assert!(!is_of("query-fresh-11", "query-fresh-1") && !is_of("query-fresh-7", "query-fresh-8"));
    }

    #[test]
    fn page_of_the_tree_is_what_its_figures_say() {
        let root = crate::root();
        let written = fs::read_to_string(root.join(super::super::PAGE)).expect("the page");
        let page = page(&root.join(super::super::FIGURES)).expect("a page");
        assert!(
            written == page,
            "docs/EVALUATION.md is not what docs/figures say: run `cargo xtask evaluation --page`"
        );
    }
}
