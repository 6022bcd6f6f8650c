//! `cargo xtask quick`: builds and tests what a change in one crate most likely breaks.
//!
//! Cargo gives a shared dependency other features where it builds other packages, and would then build the crates above it twice. So each
//! command here also selects the server, whose dependencies are those of all others.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    programs::{Program, Step, build},
    tasks::{cargo, run},
    tidy,
    workspace::{Package, packages},
};

const SERVER: &str = "reprise-node";
const SIMULATOR: &str = "reprise-test-sim";
/// Seeds of single nodes, then of failovers: a few seconds of each.
const SEEDS: &str = "30";
const FAILOVER_SEEDS: &str = "4";
/// If two packages have one short name, the first one is meant.
const PARTS: [&str; 6] = ["runtime/", "server/", "sdk/", "procedures/", "benches/", "tests/"];

/// Tests these crates, or the crates that differ from the main branch.
///
/// # Errors
/// A name that no crate has, or a step that fails.
pub fn quick(root: &Path, names: &[String]) -> Result<()> {
    let packages = packages(root)?;
    let own = match names {
        [] => changed(root, &packages)?,
        names => names.iter().map(|name| named(name, &packages)).collect::<Result<_>>()?,
    };
    let list = own.iter().map(|package| package.folder.as_str()).collect::<Vec<_>>();
    println!(
        "crates: {}",
        if list.is_empty() {
            "none".into()
        } else {
            list.join(", ")
        }
    );
    let mut steps = vec![Step::run("tidy", || tidy::run(root, false))];
    if !own.is_empty() {
        test(root, &own, &packages, &mut steps);
    }
    println!("\nsteps:");
    steps.iter().for_each(|step| println!("{step}"));
    ensure!(steps.iter().all(|step| step.is_done()), "failed");
    Ok(())
}

fn test(root: &Path, own: &[&Package], packages: &[Package], steps: &mut Vec<Step>) {
    let dependants = packages.iter().filter(|package| is_tested_dependant(package, own));
    let units: Vec<_> = own.iter().copied().chain(dependants).collect();
    let mut commands = vec![("unit tests", units_of(root, &units))];
    if own.iter().any(|package| package.has_integration_tests) {
        let mut command = test_command(root, own);
        command.args(["--test", "*"]);
        commands.push(("integration tests", command));
    }
    for (what, mut command) in commands {
        let mut programs = Vec::new();
        steps.push(Step::run(format!("build {what}"), || {
            programs = build(root, &mut command)?;
            Ok(())
        }));
        let run = |program: &Program| Step::run(program.name(), || program.run(root));
        steps.extend(programs.iter().map(run));
    }
    if steps.iter().all(|step| step.is_done()) && own.iter().any(|package| is_simulated(package, packages)) {
        steps.push(Step::run("build the simulator", || {
            let mut command = cargo(root);
            command.args(["build", "--profile", "quick", "--bin", "sim"]);
            run(command.args(["--package", SIMULATOR, "--package", SERVER]))
        }));
        let simulator = root.join("target/quick/sim");
        let seeds = |seeds: &[&str]| run(Command::new(&simulator).args(["--threads", "2", "--seeds"]).args(seeds));
        steps.push(Step::run("seeds", || seeds(&[SEEDS])));
        steps.push(Step::run("seeds of failovers", || {
            seeds(&[FAILOVER_SEEDS, "--failovers"])
        }));
    }
}

/// Builds tests of these packages and of no other, with the dependencies of the server.
fn test_command(root: &Path, packages: &[&Package]) -> Command {
    let mut command = cargo(root);
    command.args(["test", "--profile", "quick", "--no-run", "--package", SERVER]);
    for package in packages.iter().filter(|package| package.name != SERVER) {
        command.args(["--package", &package.name]);
    }
    command
}

fn units_of(root: &Path, packages: &[&Package]) -> Command {
    let mut command = test_command(root, packages);
    if packages.iter().any(|package| package.has_library) {
        command.arg("--lib");
    }
    for program in packages.iter().flat_map(|package| &package.tested_programs) {
        command.args(["--bin", program]);
    }
    command
}

/// Whether the package is of the product, has unit tests, and is built with one of these.
fn is_tested_dependant(package: &Package, own: &[&Package]) -> bool {
    let is_own = own.iter().any(|other| other.name == package.name);
    let depends = own.iter().any(|other| package.depends_on(&other.name));
    depends && !is_own && package.is_product() && package.has_unit_tests
}

/// Whether the simulator is built with the package, be it through others.
fn is_simulated(package: &Package, packages: &[Package]) -> bool {
    let mut names = vec![SIMULATOR];
    let mut at = 0;
    while let Some(name) = names.get(at) {
        let package = packages.iter().find(|package| package.name == *name);
        for dependency in package.iter().flat_map(|package| &package.dependencies) {
            if !names.contains(&dependency.as_str()) {
                names.push(dependency);
            }
        }
        at += 1;
    }
    names.contains(&package.name.as_str())
}

/// The package of this name, of this folder, or whose folder ends so.
fn named<'a>(name: &str, packages: &'a [Package]) -> Result<&'a Package> {
    let name = name.trim_end_matches('/');
    let exact = packages
        .iter()
        .find(|package| package.name == name || package.folder == name);
    let short = || {
        let of_part = |part: &&str| {
            packages
                .iter()
                .find(|package| package.folder == format!("{part}{name}"))
        };
        PARTS.iter().find_map(of_part)
    };
    exact
        .or_else(short)
        .with_context(|| format!("no crate has the name {name}"))
}

/// The packages with files that differ from the main branch as this branch left it, committed or not.
fn changed<'a>(root: &Path, packages: &'a [Package]) -> Result<Vec<&'a Package>> {
    let base = git(root, &["merge-base", "HEAD", "main"]).unwrap_or_else(|_| "HEAD".into());
    let changed = git(root, &["diff", "--name-only", base.trim()])?;
    let new = git(root, &["ls-files", "--others", "--exclude-standard"])?;
    let files: Vec<_> = changed.lines().chain(new.lines()).map(PathBuf::from).collect();
    let own = packages
        .iter()
        .filter(|package| files.iter().any(|file| file.starts_with(&package.folder)));
    Ok(own.collect())
}

fn git(root: &Path, args: &[&str]) -> Result<String> {
    let output = Command::new("git").args(args).current_dir(root).output();
    let output = output.context("start git")?;
    if !output.status.success() {
        bail!("git {args:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, folder: &str, dependencies: &[&str]) -> Package {
        Package {
            name: name.into(),
            folder: folder.into(),
            dependencies: dependencies.iter().map(|name| (*name).to_owned()).collect(),
            has_unit_tests: true,
            ..Package::default()
        }
    }

    #[test]
    fn a_crate_is_named_by_package_folder_or_short_name() {
        let packages = [
            package("reprise-test-http", "tests/http", &[]),
            package("reprise-http", "server/http", &[]),
        ];
        let folder = |name| named(name, &packages).map(|package| package.folder.as_str()).ok();
        assert_eq!(folder("http"), Some("server/http"));
        assert_eq!(folder("tests/http/"), Some("tests/http"));
        assert_eq!(folder("reprise-test-http"), Some("tests/http"));
        assert_eq!(folder("gone"), None);
    }

    #[test]
    fn direct_dependants_of_the_product_are_tested_and_the_simulator_is_reached_through_others() {
        let packages = [
            package("reprise-log", "runtime/log", &[]),
            package("reprise-ship", "runtime/ship", &["reprise-log"]),
            package("reprise-database", "runtime/database", &["reprise-ship"]),
            package("reprise-bench-nvram", "benches/nvram", &["reprise-log"]),
            package(SIMULATOR, "tests/sim", &["reprise-database"]),
            package(SERVER, "server/node", &["reprise-database"]),
        ];
        let own = [&packages[0]];
        let dependants = packages.iter().filter(|package| is_tested_dependant(package, &own));
        assert_eq!(
            dependants.map(|package| package.name.as_str()).collect::<Vec<_>>(),
            ["reprise-ship"]
        );
        assert!(is_simulated(&packages[0], &packages));
        assert!(!is_simulated(&packages[5], &packages));
    }
}
