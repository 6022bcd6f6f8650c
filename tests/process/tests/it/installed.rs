//! The binary alone, away from any source tree: it makes a crate that tests itself, builds, deploys and answers.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Launch, Server, binary};

/// The target directory of the crate: its dependencies from the registry are compiled once.
fn target_dir() -> Result<PathBuf> {
    let own = env::current_exe().context("find this program")?;
    let target = own.ancestors().nth(3).context("a test lies in target/release/deps")?;
    Ok(target.join("tmp/installed"))
}

/// Runs a program in `dir`, without a network. It must succeed.
fn run(program: &Path, dir: &Path, args: &[&str]) -> Result<Output> {
    let mut command = Command::new(program);
    command.args(args).current_dir(dir);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        // Cargo's variables describe this test's own workspace, not another crate.
        if text.starts_with("CARGO_") && text != "CARGO_HOME" || text.starts_with("REPRISE_") {
            command.env_remove(&name);
        }
    }
    command
        .env("CARGO_NET_OFFLINE", "true")
        .env("CARGO_TARGET_DIR", target_dir()?);
    let output = command.output().with_context(|| format!("run {}", program.display()))?;
    ensure!(
        output.status.success(),
        "{} {args:?}: {}{}",
        program.display(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output)
}

#[test]
fn the_binary_alone_makes_tests_builds_deploys_and_calls_a_crate() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let reprise = dir.path().join("bin/reprise");
    fs::create_dir(dir.path().join("bin"))?;
    fs::copy(binary()?, &reprise)?;
    run(&reprise, dir.path(), &["new", "orders_2"])?;
    let made = dir.path().join("orders_2");
    for file in [
        "Cargo.toml",
        ".reprise/sdk/procedure/Cargo.toml",
        ".reprise/sdk/abi/src/lib.rs",
    ] {
        let text = fs::read_to_string(made.join(file)).with_context(|| file.to_owned())?;
        // Wherever it goes, it is whole: no path leads out of it.
        ensure!(!text.contains("path = \"/"), "{file}: {text}");
    }
    let tested = run(Path::new("cargo"), &made, &["test", "--quiet"])?;
    let text = String::from_utf8_lossy(&tested.stdout).into_owned();
    ensure!(text.contains("2 passed"), "{text}");

    run(&reprise, &made, &["build"])?;
    let module = made.join("target/procedures/orders_2.wasm");
    ensure!(module.is_file(), "no {}", module.display());

    let server = Server::start(&Launch::new(&dir.path().join("data")))?;
    let url = format!("http://{}", server.address);
    let module = module.to_str().context("a path in UTF-8")?;
    run(&reprise, dir.path(), &["module", "deploy", module, "--url", &url])?;
    for expected in ["2", "4"] {
        let answer = server.call("orders_2/hit", r#"{"id": 7, "times": 2}"#)?;
        ensure!(
            answer.status == 200 && answer.text().contains(expected),
            "{}",
            answer.text()
        );
    }

    // An SDK of another version is reported, and replaced on request.
    let lib = made.join(".reprise/sdk/abi/src/lib.rs");
    let ours = fs::read_to_string(&lib)?;
    fs::write(&lib, format!("{ours}\n// of an older program"))?;
    let built = run(&reprise, &made, &["build"])?;
    ensure!(String::from_utf8_lossy(&built.stderr).contains("--update-sdk"));
    let built = run(&reprise, &made, &["build", "--update-sdk"])?;
    ensure!(!String::from_utf8_lossy(&built.stderr).contains("--update-sdk"));
    ensure!(fs::read_to_string(&lib)? == ours);
    Ok(())
}

#[test]
fn unbuildable_part_is_named() -> Result<()> {
    let dir = tempfile::tempdir()?;
    for (args, path, words) in [
        (&["build"][..], None, "holds no Cargo.toml"),
        (&["build", "nowhere"], None, "is not a folder"),
        (
            &["build"],
            Some(""),
            "no Rust toolchain here can build for wasm32-unknown-unknown",
        ),
    ] {
        if path.is_some() && Path::new("/usr/bin/rustc").exists() {
            continue; // this machine can build without rustup
        }
        let mut command = Command::new(binary()?);
        command.args(args).current_dir(dir.path());
        if let Some(path) = path {
            command.env("PATH", path);
        }
        let output = command.output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(1) && errors.contains(words),
            "{args:?}: {errors}"
        );
    }
    Ok(())
}
