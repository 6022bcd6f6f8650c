//! The rules of the tree: each a function from files to complaints, run by `cargo xtask tidy` and by the tests.

mod callers;
mod dependencies;
mod functions;
mod layers;
mod text;
mod words;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::tasks;

/// Lines of a source file at most, without its tests.
pub const FILE_LINES_MAX: usize = 800;
/// Lines of a function at most.
pub const FUNCTION_LINES_MAX: usize = 70;
/// The functions that are longer. Entries leave it, none enters.
pub const OFFENDERS: &str = "xtask/long-functions.txt";

/// A file of the tree, by its path from the root.
pub struct Source {
    pub path: String,
    pub text: String,
}

/// Everything that breaks a rule, one line each.
pub fn complaints(root: &Path) -> Result<Vec<String>> {
    let sources = sources(root)?;
    let packages = layers::packages(root)?;
    let mut complaints = layers::complaints(&packages);
    complaints.extend(format(root)?);
    complaints.extend(callers::check(&packages, &sources));
    complaints.extend(words::check(root, &sources));
    complaints.extend(dependencies::check(root, &sources)?);
    complaints.extend(text::file_lengths(&sources));
    complaints.extend(text::crate_headers(&sources));
    complaints.extend(text::banned_calls(&sources));
    complaints.extend(text::unused_exceptions(&sources));
    complaints.extend(text::machine_paths(&sources));
    complaints.extend(text::architecture_page(root, &sources));
    let offenders = fs::read_to_string(root.join(OFFENDERS)).with_context(|| format!("read {OFFENDERS}"))?;
    complaints.extend(functions::check(&sources, &offenders));
    Ok(complaints)
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
        let path = root.join(OFFENDERS);
        let old = fs::read_to_string(&path).unwrap_or_default();
        let new = functions::shrunk(&sources(root)?, &old);
        fs::write(&path, new).with_context(|| format!("write {OFFENDERS}"))?;
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

/// The text files of the tree, without what is built or installed, sorted.
fn sources(root: &Path) -> Result<Vec<Source>> {
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

fn is_test_file(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/") || path.contains("/benches/")
}
