//! `cargo xtask evaluation`: draws the papers' figures into `docs/figures`, and writes `docs/EVALUATION.md` from the files that lie there.

mod headline;
mod page;
mod papers;

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

pub use self::page::page;
use self::papers::{Group, PAPERS, Paper};
use crate::tasks;

/// Folder of the drawn figures, and the page that shows them.
pub const FIGURES: &str = "docs/figures";
pub const PAGE: &str = "docs/EVALUATION.md";
/// Time that a group of figures that share their runs may take at full length. A longer one is named.
const FIGURE_TIME_MAX: Duration = Duration::from_mins(10);
/// A quick run shows that everything works. Its figures say nothing, so it leaves `docs/` alone.
const QUICK_FIGURES: &str = "target/figures";
const QUICK_PAGE: &str = "target/EVALUATION.md";

/// Draws the figures of these names, a paper's or a figure's each (all where there is none), and writes the page.
///
/// # Errors
/// A name that no figure has, or figures that could not be drawn. The others are drawn, and on the page.
pub fn draw(root: &Path, names: &[String], is_quick: bool) -> Result<()> {
    check_names(names)?;
    let (begun_all, mut failed) = (Instant::now(), Vec::new());
    for (paper, group) in PAPERS
        .iter()
        .flat_map(|paper| paper.groups.iter().map(move |group| (paper, group)))
    {
        let asked: Vec<_> = group.asked(paper, names).collect();
        if asked.is_empty() {
            continue;
        }
        let begun = Instant::now();
        println!("{}: {}", paper.name, asked.join(", "));
        let program = group.program.unwrap_or(paper.program);
        let drawn = tasks::figures(root, program, &arguments(paper, group, &asked, is_quick));
        let (asked, took) = (format!("{} {}", paper.name, asked.join(", ")), begun.elapsed());
        match drawn {
            Ok(()) => println!("{asked}: {} s", took.as_secs()),
            Err(error) => {
                println!("{asked}: not drawn: {error:#}");
                failed.push(asked.clone());
            }
        }
        if took > FIGURE_TIME_MAX {
            println!("{asked}: longer than {} minutes", FIGURE_TIME_MAX.as_secs() / 60);
        }
    }
    println!("all: {} s", begun_all.elapsed().as_secs());
    write_page(root, is_quick)?;
    ensure!(failed.is_empty(), "not drawn: {}", failed.join("; "));
    Ok(())
}

/// Writes the page from the figures that were drawn, and prints how old each is.
///
/// # Errors
/// A file that cannot be read or written.
pub fn write_page(root: &Path, is_quick: bool) -> Result<()> {
    let (folder, path) = match is_quick {
        true => (QUICK_FIGURES, QUICK_PAGE),
        false => (FIGURES, PAGE),
    };
    let text = page(&root.join(folder))?;
    fs::write(root.join(path), text).with_context(|| format!("write {path}"))?;
    println!("{path}");
    if !is_quick {
        headline::write(root)?;
    }
    print_ages(root, &root.join(folder))
}

fn check_names(names: &[String]) -> Result<()> {
    for name in names {
        let is_known = |paper: &Paper| paper.name == name || paper.groups.iter().any(|group| group.has(paper, name));
        let known: Vec<_> = PAPERS.iter().map(|paper| paper.name).collect();
        ensure!(
            PAPERS.iter().any(is_known),
            "there is no figure {name}: take a paper ({}), or PAPER-NUMBER such as looking-glass-5",
            known.join(", ")
        );
    }
    Ok(())
}

/// The program's flags. A program of another paper knows a figure by its whole name.
fn arguments(paper: &Paper, group: &Group, asked: &[&str], is_quick: bool) -> Vec<String> {
    let folder = if is_quick { QUICK_FIGURES } else { FIGURES };
    let mut arguments = vec!["--out".to_owned(), folder.to_owned()];
    for number in asked {
        let name = match group.program {
            Some(_) => format!("{}-{number}", paper.name),
            None => (*number).to_owned(),
        };
        arguments.extend(["--figure".to_owned(), name]);
    }
    match is_quick {
        true => arguments.push("--short".to_owned()),
        false => arguments.extend(group.length.iter().map(|word| (*word).to_owned())),
    }
    arguments
}

/// Prints how many commits were made since each figure was drawn.
fn print_ages(root: &Path, folder: &Path) -> Result<()> {
    for (name, text) in page::tables(folder)? {
        let age = page::commit_of(&text).and_then(|commit| commits_since(root, commit));
        match age {
            Some(age) => println!("{name}: drawn {age} commits ago"),
            None => println!("{name}: drawn at a commit that git does not know"),
        }
    }
    Ok(())
}

fn commits_since(root: &Path, commit: &str) -> Option<u64> {
    let range = format!("{commit}..HEAD");
    let mut git = Command::new("git");
    let output = git
        .args(["rev-list", "--count", &range])
        .current_dir(root)
        .output()
        .ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

impl Group {
    fn has(&self, paper: &Paper, name: &str) -> bool {
        self.figures
            .iter()
            .any(|figure| name == format!("{}-{}", paper.name, figure.number))
    }

    /// The numbers of its figures that these names ask for.
    fn asked<'a>(&'a self, paper: &'a Paper, names: &'a [String]) -> impl Iterator<Item = &'a str> {
        let is_whole = names.is_empty() || names.iter().any(|name| name == paper.name);
        let numbers = self.figures.iter().map(|figure| figure.number);
        numbers.filter(move |number| is_whole || names.contains(&format!("{}-{number}", paper.name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_choose_a_paper_or_a_figure_of_it() {
        let asked = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            check_names(&names).map(|()| {
                let groups = PAPERS
                    .iter()
                    .flat_map(|paper| paper.groups.iter().map(move |group| (paper, group)));
                let of = |(paper, group): (&Paper, &Group)| group.asked(paper, &names).count();
                groups.map(of).sum::<usize>()
            })
        };
        assert_eq!(asked(&["looking-glass-5", "query-fresh-7"]).ok(), Some(2));
        assert_eq!(asked(&["looking-glass"]).ok(), Some(6));
        assert!(asked(&[]).is_ok_and(|count| count > 20));
        let refused = asked(&["looking-glass-2"]).expect_err("no such figure").to_string();
        assert!(refused.contains("there is no figure looking-glass-2"), "{refused}");
    }

    #[test]
    fn a_quick_run_is_short_and_leaves_the_length_out() {
        let paper = &PAPERS[1];
        let group = &paper.groups[0];
        let quick = arguments(paper, group, &["3"], true);
        assert_eq!(quick, ["--out", QUICK_FIGURES, "--figure", "3", "--short"]);
        assert!(!arguments(paper, group, &["3"], false).contains(&"--short".to_owned()));
    }

    #[test]
    fn a_program_of_another_paper_gets_the_whole_name() {
        let paper = &PAPERS[1];
        let group = paper
            .groups
            .iter()
            .find(|group| group.program.is_some())
            .expect("figure 10");
        let arguments = arguments(paper, group, &["10"], true);
        assert!(arguments.contains(&"command-logging-10".to_owned()), "{arguments:?}");
    }
}
