//! The tasks that only run other programs.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use reprise_build::{BuildRequest, ToolchainChoice};

/// Runs a command to its end and makes its failure ours.
pub fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("start {name}"))?;
    if !status.success() {
        bail!("{name} ended with {status}");
    }
    Ok(())
}

/// The cargo that runs us, or the one in PATH.
pub fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

pub fn check(root: &Path) -> Result<()> {
    run(cargo(root).args([
        "clippy",
        "--profile",
        "quick",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))?;
    crate::tidy::run(root, false)
}

/// Builds the sample modules that are named (all of them where none is), or the crate of this manifest.
pub fn wasm(
    root: &Path,
    manifest: Option<&Path>,
    names: Vec<String>,
    out: Option<&Path>,
    choice: Option<ToolchainChoice>,
) -> Result<()> {
    let request = match manifest {
        Some(manifest) => BuildRequest::Crate(manifest),
        None => BuildRequest::Tree { root, names },
    };
    for built in reprise_build::build(&request, out, choice)? {
        println!("{} ({} bytes)", built.path.display(), built.bytes);
    }
    Ok(())
}

/// The kill -9 test with as many cycles as asked for; the tests of the workspace run a short one.
pub fn crash(root: &Path, cycles: u32, seed: Option<u64>, further: &[(&str, Option<String>)]) -> Result<()> {
    build_server(root)?;
    let mut command = program(root, "reprise-test-crash", "crash");
    command.args(["--cycles", &cycles.to_string()]);
    if let Some(seed) = seed {
        command.args(["--seed", &seed.to_string()]);
    }
    for (flag, value) in further {
        if let Some(value) = value {
            command.args([flag, value.as_str()]);
        }
    }
    run(&mut command)
}

/// Builds and runs a program of a package; its flags follow.
fn program(root: &Path, package: &str, name: &str) -> Command {
    let mut command = cargo(root);
    command.args(["run", "--release", "--quiet", "--package", package, "--bin", name, "--"]);
    command
}

/// Failovers between three servers, with `--rdma` in a virtual machine; the tests of the workspace run some.
pub fn failover(root: &Path, args: &[String]) -> Result<()> {
    if let Some(at) = args.iter().position(|arg| arg == "--rdma") {
        let others = [&args[..at], &args[at + 1..]].concat();
        return hardware(root, "rdma-failover", &others);
    }
    build_server(root)?;
    run(program(root, "reprise-test-crash", "failover").args(args))
}

/// Builds what the tests of the real binary start.
fn build_server(root: &Path) -> Result<()> {
    let mut build = cargo(root);
    build.args(["build", "--release", "--quiet", "--package", "reprise-node"]);
    run(build.args(["--package", "reprise-driver"]))?;
    if root.join("target/procedures/bank.wasm").exists() {
        return Ok(());
    }
    wasm(root, None, Vec::new(), None, None)
}

/// Power failures in a virtual machine, by the binary of this name; the tests of the workspace run short ones.
pub fn hardware(root: &Path, binary: &str, args: &[String]) -> Result<()> {
    build_server(root)?;
    run(program(root, "reprise-test-hardware", binary).args(args))
}

pub fn full(root: &Path, mib: u64) -> Result<()> {
    build_server(root)?;
    run(program(root, "reprise-test-process", "full").arg(mib.to_string()))
}

/// Calls beside plans of a deployment.
pub fn plans(root: &Path) -> Result<()> {
    build_server(root)?;
    run(&mut program(root, "reprise-test-process", "plans"))
}

/// Ordinary life at speed, with its use of memory, descriptors and threads.
pub fn life(root: &Path, seconds: u64) -> Result<()> {
    build_server(root)?;
    run(program(root, "reprise-test-process", "life").arg(seconds.to_string()))
}

/// Lists the tests that the last run left out, and why. With `CI=true` such a test fails by itself.
pub fn skipped(root: &Path) {
    let list = root.join("target/skipped-tests.txt");
    let lines = std::fs::read_to_string(list).unwrap_or_default();
    lines.lines().for_each(|line| println!("skipped: {line}"));
    println!("{} tests skipped", lines.lines().count());
}

/// Seeds of the simulation, or of another binary of it; the tests of the workspace run some of them.
pub fn sim(root: &Path, bin: &str, args: &[String]) -> Result<()> {
    run(program(root, "reprise-test-sim", bin).args(args))
}

/// Query Fresh's figures 6 and 11 over TCP and over RDMA, measured in a virtual machine. `args` may begin with the seconds of each measurement;
/// the others go to the program that draws.
fn rdma_figures(root: &Path, args: &[String]) -> Result<()> {
    build_server(root)?;
    let reprise = root.join("target/release/reprise");
    let bench = root.join("target/release/reprise-bench");
    let (seconds, args) = match args.split_first() {
        Some((seconds, args)) if seconds.parse::<u32>().is_ok() => (seconds.as_str(), args),
        _ => (
            if args.iter().any(|arg| arg == "--short") {
                "1"
            } else {
                "5"
            },
            args,
        ),
    };
    let tools = root.join("tests/hardware");
    let dir = root.join("target/tmp");
    std::fs::create_dir_all(&dir).context("create target/tmp")?;
    let (image, found) = (dir.join("rdma-figures.img"), dir.join("rdma-figures.csv"));
    let output = std::fs::File::create(&found).with_context(|| format!("create {}", found.display()))?;
    let mut vm = Command::new(tools.join("boot-vm"));
    vm.args(["--timeout", "1800", "--mem", "4G", "--rdma", "--pmem"]);
    vm.arg(format!("{}:256M", image.display()));
    vm.arg("--").arg(tools.join("rdma-figures")).arg(reprise).arg(bench);
    vm.arg(root.join("target/procedures")).arg(seconds);
    let done = run(vm.stdin(Stdio::null()).stdout(output));
    std::fs::remove_file(&image).context("remove the image")?;
    print!("{}", std::fs::read_to_string(&found).context("read the measurements")?);
    done?;
    let mut draw = program(root, "reprise-bench-query-fresh", "reprise-bench-query-fresh");
    draw.args(["--seconds", seconds, "--build"])
        .arg(built(root))
        .arg("--rdma")
        .arg(found);
    run(draw.args(args))
}

/// Measures and draws the figures of a paper: CSV and SVG under target/figures, or the folder of `--out`.
pub fn figures(root: &Path, paper: &str, args: &[String]) -> Result<()> {
    if !root.join("target/procedures/tpcc.wasm").exists() {
        wasm(root, None, Vec::new(), None, None)?;
    }
    match paper {
        "rdma" => return rdma_figures(root, args),
        // Our server is one of the peers.
        "peers" => build_server(root)?,
        _ => {}
    }
    let package = format!("reprise-bench-{paper}");
    let mut command = program(root, &package, &package);
    // A build in increments is divided into more units, which changes counts of instructions by more than a tenth.
    command.env("CARGO_INCREMENTAL", "0");
    let modules = root.join("target/procedures");
    command.arg("--modules").arg(modules).arg("--build").arg(built(root));
    run(command.args(args))
}

/// The version that is built: the commit, whether anything was changed since, and the date.
fn built(root: &Path) -> String {
    let mut describe = Command::new("git");
    let described = describe
        .args(["describe", "--always", "--dirty"])
        .current_dir(root)
        .output();
    let commit = described.ok().filter(|output| output.status.success());
    let commit = commit.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let commit = commit.unwrap_or_else(|| "no commit".into());
    format!("release build of {commit}, {}", today())
}

/// The date of today, as `date` has it.
fn today() -> String {
    let output = Command::new("date").args(["-u", "+%F"]).output();
    let date = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    date.unwrap_or_else(|_| "no date".into())
}

pub fn bench(root: &Path, args: &[String]) -> Result<()> {
    run(program(root, "reprise-driver", "reprise-bench").args(args))
}

pub fn console(root: &Path) -> Result<()> {
    let console = root.join("web-console");
    if !console.join("package.json").exists() {
        eprintln!("there is no web-console to build");
        return Ok(());
    }
    let has_npm = Command::new("npm")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !has_npm.is_ok_and(|status| status.success()) {
        bail!("npm is missing: install Node.js 20.19 or newer");
    }
    if is_installed(&console) {
        eprintln!("web-console/node_modules is up to date");
    } else {
        run(Command::new("npm")
            .args(["ci", "--no-audit", "--no-fund"])
            .current_dir(&console))?;
    }
    run(Command::new("npm").args(["run", "build"]).current_dir(&console))
}

/// npm leaves a copy of the lock file in what it installed; as long as it is newer than ours, nothing is to be done.
fn is_installed(console: &Path) -> bool {
    let changed = |path: &str| console.join(path).metadata().and_then(|meta| meta.modified());
    match (changed("package-lock.json"), changed("node_modules/.package-lock.json")) {
        (Ok(lock), Ok(installed)) => installed >= lock,
        _ => false,
    }
}
