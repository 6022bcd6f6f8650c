//! The project's own commands: one per task, each thin over cargo, npm or git.
//! Owns: the rules that `tidy` holds the tree to, the order of the steps of a task.
//! Does not: contain anything that the product needs at run time.
//! Invariants: every command has `--help`; a failure names the one thing that is missing.
//! Called by: `cargo xtask`, the Makefile, continuous integration.
#![forbid(unsafe_code)]

mod bolt;
pub mod cost;
pub mod coverage;
pub mod evaluation;
pub mod fuzz;
pub mod lines;
pub mod package;
mod programs;
pub mod quick;
mod rustc;
pub mod stages;
pub mod tasks;
pub mod tidy;
pub mod words;
mod workspace;

use std::path::{Path, PathBuf};

/// The root of the workspace.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    // When the tree was moved after the build, the current directory is the better guess.
    match manifest.parent() {
        Some(root) if root.join("Cargo.toml").exists() => root.to_owned(),
        _ => PathBuf::from("."),
    }
}
