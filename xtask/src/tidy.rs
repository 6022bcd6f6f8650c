//! The rules of the tree: each a function from files to complaints, run by `cargo xtask tidy` and by the tests.

mod architecture;
mod callers;
mod dependencies;
mod functions;
pub(crate) mod language;
mod layers;
mod links;
mod parameters;
pub(crate) mod prose;
mod questions;
mod ratchet;
mod settings;
mod text;
mod words;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use self::ratchet::Finding;
use crate::{tasks, workspace::packages};

/// A file of the tree, by its path from the root.
pub struct Source {
    pub path: String,
    pub text: String,
}

#[cfg(test)]
pub(crate) fn source(path: &str, text: &str) -> Source {
    Source {
        path: path.into(),
        text: text.into(),
    }
}

/// Everything that breaks a rule, one line each.
pub fn complaints(root: &Path) -> Result<Vec<String>> {
    let sources = sources(root)?;
    let packages = packages(root)?;
    let mut complaints = layers::complaints(&packages);
    complaints.extend(format(root)?);
    complaints.extend(callers::check(&packages, &sources));
    complaints.extend(words::check(&sources));
    complaints.extend(dependencies::check(root, &sources)?);
    complaints.extend(ratchet::check(&findings(root, &sources)?, &listed(root)?));
    complaints.extend(text::tests_that_never_run(&packages, &sources));
    complaints.extend(text::file_lengths(&sources));
    complaints.extend(text::crate_headers(&sources));
    complaints.extend(text::banned_calls_of_guests(&sources));
    complaints.extend(text::prints(&sources));
    complaints.extend(text::machine_paths(&sources));
    complaints.extend(architecture::check(root, &sources));
    complaints.extend(settings::check(&sources));
    complaints.extend(links::check(root, &sources));
    complaints.extend(questions::check(&sources));
    Ok(complaints)
}

/// The places that break a rule which the tree does not keep everywhere yet.
fn findings(root: &Path, sources: &[Source]) -> Result<Vec<Finding>> {
    let mut findings = functions::check(sources);
    findings.extend(parameters::check(sources));
    findings.extend(language::findings(sources));
    findings.extend(text::long_files(sources));
    findings.extend(text::banned_calls(sources));
    findings.extend(dependencies::duplicates(root)?);
    Ok(findings)
}

fn listed(root: &Path) -> Result<String> {
    fs::read_to_string(root.join(ratchet::LIST)).with_context(|| format!("read {}", ratchet::LIST))
}

/// The files that `cargo fmt` would change.
fn format(root: &Path) -> Result<Vec<String>> {
    let mut command = tasks::cargo(root);
    command.args(["fmt", "--all", "--", "--check", "--files-with-diff"]);
    let output = command.output().context("start cargo fmt")?;
    let files = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut complaints: Vec<String> = files
        .lines()
        .map(|file| {
            let path = Path::new(file);
            let path = path.strip_prefix(root).unwrap_or(path);
            format!("{}: is not formatted; run `cargo fmt`", path.display())
        })
        .collect();
    if complaints.is_empty() && !output.status.success() {
        complaints.push(format!("cargo fmt: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(complaints)
}

pub fn run(root: &Path, bless: bool) -> Result<()> {
    if bless {
        let new = ratchet::shrunk(&findings(root, &sources(root)?)?, &listed(root)?);
        fs::write(root.join(ratchet::LIST), new).with_context(|| format!("write {}", ratchet::LIST))?;
    }
    let complaints = complaints(root)?;
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    if !complaints.is_empty() {
        bail!("{} rules of the tree are broken", complaints.len());
    }
    println!("tidy");
    Ok(())
}

/// The text files of the tree, without built and installed ones, sorted.
pub(crate) fn sources(root: &Path) -> Result<Vec<Source>> {
    let mut files = Vec::new();
    collect(root, &mut files)?;
    files.sort();
    let mut sources = Vec::new();
    for file in files {
        // A file may vanish between the listing and the reading, when an editor saves.
        if let Ok(text) = fs::read_to_string(&file) {
            let path = file.strip_prefix(root).unwrap_or(&file);
            sources.push(Source {
                path: path.to_string_lossy().into_owned(),
                text,
            });
        }
    }
    Ok(sources)
}

const SKIPPED: [&str; 6] = ["target", "node_modules", ".git", "dist", "reprise-data", "corpus"];
const EXTENSIONS: [&str; 12] = [
    "rs", "toml", "md", "ts", "tsx", "css", "html", "sh", "yml", "yaml", "json", "service",
];

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| format!("list {}", directory.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !SKIPPED.contains(&name.as_str()) {
                collect(&path, files)?;
            }
            continue;
        }
        let extension = path.extension().unwrap_or_default().to_string_lossy().into_owned();
        let is_ours = EXTENSIONS.contains(&extension.as_str()) || name == "Makefile" || name == "run";
        if is_ours && name != "package-lock.json" {
            files.push(path);
        }
    }
    Ok(())
}

/// The text before the tests at the end of a source file.
fn without_tests(text: &str) -> &str {
    let tests = text
        .find("\n#[cfg(test)]\nmod ")
        .or_else(|| text.find("\n#[cfg(all(test"));
    tests.map_or(text, |start| &text[..start + 1])
}

/// The Rust files of the product and its tools, by path, without their tests.
fn product(sources: &[Source]) -> impl Iterator<Item = (&str, &str)> {
    let rust = sources.iter().filter(|source| source.path.ends_with(".rs"));
    rust.filter(|source| !is_test_file(&source.path))
        .map(|source| (source.path.as_str(), without_tests(&source.text)))
}

fn is_test_file(path: &str) -> bool {
    path.starts_with("tests/")
        || ["/tests/", "/benches/", "/tests.rs"]
            .iter()
            .any(|part| path.contains(part))
}
