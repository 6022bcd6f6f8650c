//! The package: the server and the load driver, optimised as a whole (`lto = "fat"`) and by a profile of the sample workloads.
//!
//! A first build of both programs counts which way its branches go while the driver runs votes, TPC-C, TPC-B, TATP and transfers in
//! process, under each kind of log, restarts from a log, and loads a server over HTTP. The counts of both are merged, since both have
//! the engine's code. A second build is optimised by these counts. If LLVM's BOLT is installed, it lays out the code of each program
//! by counts of that program itself, so each runs every workload. Profiles are made anew each time and kept nowhere.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::{
    bolt::{self, Bolt},
    rustc::Rustc,
    tasks::{cargo, run},
};

const PROGRAMS: [&str; 2] = ["reprise", "reprise-bench"];

/// Runs of `reprise-bench` that the profile is made of. Short: the counts need the right branches, not many of them.
const IN_PROCESS: [&str; 11] = [
    "voter --prepared --log none --partitions 1 --seconds 1.5",
    "voter --prepared --log command --partitions 1 --seconds 1.5",
    "voter --prepared --log physiological --partitions 1 --seconds 1.5",
    "tpcc --log command --partitions 2 --sites 2 --seconds 3",
    "tpcc --prepared --log none --partitions 1 --seconds 2",
    "voter --prepared --log physiological --partitions 1 --seconds 1 --restart",
    "tpcc --prepared --log physiological --partitions 1 --seconds 1 --restart",
    "tpcc --prepared --log command --partitions 1 --seconds 1 --restart",
    "tpcb --log none --seconds 1.5",
    "tatp --log none --seconds 1.5",
    "bank --log none --partitions 2 --seconds 1.5",
];

/// Kinds of log that a server is loaded with over HTTP, and recovered from.
const SERVER_LOGS: [&str; 2] = ["command", "physiological"];

/// Workloads over HTTP, against one server.
const OVER_HTTP: [&str; 7] = [
    "voter --via single --connections 128 --seconds 3",
    "voter --via batch --connections 4 --seconds 3",
    "voter --via single --pipeline 16 --connections 8 --seconds 3",
    "tpcc --via batch --seconds 3",
    "tpcb --via batch --seconds 1.5",
    "tatp --via batch --seconds 1.5",
    "bank --via batch --seconds 1.5",
];

/// Builds both programs in `target/package`.
///
/// # Errors
/// Names the missing tool where LLVM's `llvm-profdata` is not here in rustc's own version, or the step that failed.
pub fn build(root: &Path, has_profile: bool) -> Result<[PathBuf; 2]> {
    let rustc = Rustc::ask()?;
    let work = root.join("target/package");
    fs::create_dir_all(&work)?;
    let built = match has_profile {
        false => compile(root, &rustc, &[], "final")?,
        true => optimise(root, &rustc, &work)?,
    };
    for name in PROGRAMS {
        // Beside and then into its place: the one that is there may be running.
        let (built, new, package) = (built.join(name), work.join("new"), work.join(name));
        fs::copy(&built, &new).with_context(|| format!("copy {}", built.display()))?;
        fs::rename(&new, &package).with_context(|| format!("make {}", package.display()))?;
    }
    Ok(PROGRAMS.map(|name| work.join(name)))
}

/// The directory of the optimised programs.
fn optimise(root: &Path, rustc: &Rustc, work: &Path) -> Result<PathBuf> {
    let merger = rustc.tool("llvm-profdata", "; --without-profile builds without it")?;
    let counts = emptied(work.join("counts"))?;
    eprintln!("building the programs that count");
    let counting = compile(root, rustc, &[flag("profile-generate", &counts)], "counting")?;
    train(root, &counting, work)?;
    let profile = work.join("merged.profdata");
    let mut merge = Command::new(merger);
    run(merge.arg("merge").arg("-o").arg(&profile).arg(&counts))?;
    let mut flags = vec![flag("profile-use", &profile)];
    let bolt = Bolt::find(rustc.llvm);
    flags.extend(bolt.is_some().then(|| bolt::LINK.into()));
    eprintln!("building the programs that are optimised by the counts");
    let built = compile(root, rustc, &flags, "final")?;
    let Some(bolt) = bolt else {
        let llvm = rustc.llvm;
        eprintln!("llvm-bolt is not here (the package bolt-{llvm}): the code stays where the linker laid it");
        return Ok(built);
    };
    eprintln!("laying their code out by what they run");
    let (counting, laid_out) = (emptied(work.join("counting-layout"))?, emptied(work.join("laid-out"))?);
    let counts = PROGRAMS.map(|name| work.join(format!("layout-{name}")));
    for (name, counts) in PROGRAMS.iter().zip(&counts) {
        let counts = emptied(counts.clone())?;
        bolt.instrument(&built.join(name), &counts, &counting.join(name))?;
    }
    train(root, &counting, work)?;
    for (name, counts) in PROGRAMS.iter().zip(&counts) {
        bolt.lay_out(&built.join(name), counts, &laid_out.join(name))?;
    }
    Ok(laid_out)
}

fn emptied(directory: PathBuf) -> Result<PathBuf> {
    remove(&directory)?;
    fs::create_dir_all(&directory)?;
    Ok(directory)
}

fn flag(name: &str, path: &Path) -> OsString {
    let mut flag = OsString::from(format!("-C{name}="));
    flag.push(path);
    flag
}

/// Builds with flags for the crates of the programs; with `--target`, build scripts and macros don't get them. Returns the
/// directory of the programs.
fn compile(root: &Path, rustc: &Rustc, flags: &[OsString], name: &str) -> Result<PathBuf> {
    let target_dir = root.join("target/package").join(name);
    let mut command = cargo(root);
    command.args(["build", "--profile", "dist", "--package", "reprise-node"]);
    command.args(["--package", "reprise-driver", "--target", &rustc.host]);
    command.arg("--target-dir").arg(&target_dir);
    if !flags.is_empty() {
        command.env("CARGO_ENCODED_RUSTFLAGS", flags.join(OsStr::new("\x1f")));
    }
    run(&mut command)?;
    Ok(target_dir.join(&rustc.host).join("dist"))
}

/// Runs the workloads by the programs in this directory. Their figures are no measurement: counting is slow.
fn train(root: &Path, programs: &Path, work: &Path) -> Result<()> {
    let modules = root.join("target/procedures");
    let bench = |words: &str, more: &[&str]| {
        eprintln!("running {words}");
        let mut command = Command::new(programs.join("reprise-bench"));
        command.args(words.split(' ')).args(more);
        command.args(["--warmup", "0.5", "--modules"]).arg(&modules);
        run(command.stdout(Stdio::null()))
    };
    for words in IN_PROCESS {
        bench(words, &[])?;
    }
    let (reprise, data) = (programs.join("reprise"), work.join("data"));
    for log in SERVER_LOGS {
        remove(&data)?;
        let mut server = Server::start(&reprise, &data, log)?;
        let url = server.url()?;
        for words in OVER_HTTP {
            bench(words, &["--url", &url])?;
        }
        server.stop()?;
        eprintln!("recovering from the log of kind {log}");
        let mut recover = Command::new(&reprise);
        run(recover.args(["recover", "--data-dir"]).arg(&data).stdout(Stdio::null()))?;
    }
    remove(&data)
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// A server on a free port, ended with this value.
struct Server {
    child: Child,
    /// Held to its end: a server whose output has no reader can't print.
    output: BufReader<ChildStdout>,
}

impl Server {
    fn start(binary: &Path, data: &Path, log: &str) -> Result<Self> {
        let mut command = Command::new(binary);
        command.args(["serve", "--listen", "127.0.0.1:0", "--log", log, "--data-dir"]);
        command.arg(data).stdout(Stdio::piped());
        let mut child = command.spawn().context("start the server")?;
        let output = child.stdout.take().context("the server's output")?;
        let output = BufReader::new(output);
        Ok(Self { child, output })
    }

    /// Reads what it prints until it serves.
    fn url(&mut self) -> Result<String> {
        for line in self.output.by_ref().lines() {
            if let Some(url) = line?.strip_prefix("listening on ") {
                return Ok(url.to_owned());
            }
        }
        bail!("the server ended before it listened");
    }

    /// An orderly stop, which writes the counts.
    fn stop(mut self) -> Result<()> {
        let id = self.child.id().to_string();
        run(Command::new("kill").args(["-TERM", &id]))?;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("the server ended with {status}");
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}
