//! The package: one binary, optimised as a whole (`lto = "fat"`) and by a profile of the sample workloads.
//!
//! A first build counts which way its branches go while it runs votes, TPC-C, TPC-B, TATP and transfers in process, under each
//! kind of log, restarts from a log, and answers calls over HTTP. A second build is optimised by these counts, and where LLVM's
//! BOLT is installed its code is laid out by counts of itself. Profiles are made anew each time and kept nowhere.

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
    tasks::{cargo, run},
};

/// Runs of `reprise bench` that the profile is made of. Short: the counts need the right branches, not many of them.
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

/// The same over HTTP, against one server.
const OVER_HTTP: [&str; 3] = [
    "voter --via single --connections 128 --seconds 3",
    "voter --via batch --connections 4 --seconds 3",
    "voter --via single --pipeline 16 --connections 8 --seconds 3",
];

/// Builds `target/package/reprise`.
///
/// # Errors
/// Names the missing tool where LLVM's `llvm-profdata` is not here in rustc's own version, or the step that failed.
pub fn build(root: &Path, has_profile: bool) -> Result<PathBuf> {
    let rustc = Rustc::ask()?;
    let work = root.join("target/package");
    fs::create_dir_all(&work)?;
    let built = match has_profile {
        false => compile(root, &rustc, &[], "final")?,
        true => optimise(root, &rustc, &work)?,
    };
    let package = work.join("reprise");
    // Beside and then into its place: the one that is there may be running.
    let new = work.join("reprise.new");
    fs::copy(&built, &new).with_context(|| format!("copy {}", built.display()))?;
    fs::rename(&new, &package).with_context(|| format!("make {}", package.display()))?;
    Ok(package)
}

fn optimise(root: &Path, rustc: &Rustc, work: &Path) -> Result<PathBuf> {
    let merger = rustc.profdata()?;
    let counts = emptied(work.join("counts"))?;
    eprintln!("building the binary that counts");
    let counting = compile(root, rustc, &[flag("profile-generate", &counts)], "counting")?;
    train(root, &counting, work)?;
    let profile = work.join("merged.profdata");
    let mut merge = Command::new(merger);
    run(merge.arg("merge").arg("-o").arg(&profile).arg(&counts))?;
    let mut flags = vec![flag("profile-use", &profile)];
    let bolt = Bolt::find(rustc.llvm);
    flags.extend(bolt.is_some().then(|| bolt::LINK.into()));
    eprintln!("building the binary that is optimised by the counts");
    let built = compile(root, rustc, &flags, "final")?;
    let Some(bolt) = bolt else {
        let llvm = rustc.llvm;
        eprintln!("llvm-bolt is not here (the package bolt-{llvm}): the code stays where the linker laid it");
        return Ok(built);
    };
    eprintln!("laying its code out by what it runs");
    let (counting, laid_out) = (work.join("counting-layout"), work.join("laid-out"));
    let counts = emptied(work.join("layout"))?;
    bolt.instrument(&built, &counts, &counting)?;
    train(root, &counting, work)?;
    bolt.lay_out(&built, &counts, &laid_out)?;
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

/// Builds with flags for the crates of the binary; with `--target`, build scripts and macros don't get them.
fn compile(root: &Path, rustc: &Rustc, flags: &[OsString], name: &str) -> Result<PathBuf> {
    let target_dir = root.join("target/package").join(name);
    let mut command = cargo(root);
    command.args(["build", "--profile", "dist", "--package", "reprise-node"]);
    command.args(["--target", &rustc.host]).arg("--target-dir");
    command.arg(&target_dir);
    if !flags.is_empty() {
        command.env("CARGO_ENCODED_RUSTFLAGS", flags.join(OsStr::new("\x1f")));
    }
    run(&mut command)?;
    Ok(target_dir.join(&rustc.host).join("dist/reprise"))
}

/// Runs the workloads. What they print is no measurement: counting is slow.
fn train(root: &Path, binary: &Path, work: &Path) -> Result<()> {
    let bench = |words: &str, more: &[&str]| {
        eprintln!("running {words}");
        let mut command = Command::new(binary);
        command.arg("bench").args(words.split(' ')).args(more);
        run(command.current_dir(root).stdout(Stdio::null()))
    };
    for words in IN_PROCESS {
        bench(words, &["--warmup", "0.5"])?;
    }
    let data = work.join("data");
    remove(&data)?;
    let mut server = Server::start(binary, &data)?;
    let url = server.url()?;
    let voter = root.join("target/procedures/voter.wasm");
    run(Command::new(binary)
        .args(["module", "deploy", "--url", &url])
        .arg(voter)
        .stdout(Stdio::null()))?;
    for words in OVER_HTTP {
        bench(words, &["--url", &url])?;
    }
    server.stop()?;
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
    /// Held to its end: a server whose output nobody holds can't print.
    output: BufReader<ChildStdout>,
}

impl Server {
    fn start(binary: &Path, data: &Path) -> Result<Self> {
        let mut command = Command::new(binary);
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]);
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

/// What `rustc -vV` says of itself.
#[derive(Debug, PartialEq, Eq)]
struct Rustc {
    host: String,
    /// Major version of its LLVM: profiles are read by the version that wrote them.
    llvm: u32,
}

impl Rustc {
    fn ask() -> Result<Self> {
        let output = Command::new("rustc").arg("-vV").output();
        let output = output.context("start rustc: https://rustup.rs")?;
        Self::parse(&String::from_utf8_lossy(&output.stdout)).context("rustc -vV names no host or no LLVM version")
    }

    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let llvm = field("LLVM version: ")?.split('.').next()?;
        Some(Self {
            host: field("host: ")?.to_owned(),
            llvm: llvm.parse().ok()?,
        })
    }

    /// `llvm-profdata`: rustup's component first, then the system's of the same version.
    fn profdata(&self) -> Result<PathBuf> {
        let output = Command::new("rustc").args(["--print", "sysroot"]).output()?;
        let sysroot = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let component = Path::new(&sysroot).join("lib/rustlib").join(&self.host);
        let candidates = [
            component.join("bin/llvm-profdata"),
            format!("llvm-profdata-{}", self.llvm).into(),
            "llvm-profdata".into(),
        ];
        candidates
            .into_iter()
            .find(|program| self.is_of_its_version(program))
            .with_context(|| {
                let llvm = self.llvm;
                format!("missing: llvm-profdata of LLVM {llvm} (rustup component add llvm-tools, or the package llvm-{llvm}); --without-profile builds without it")
            })
    }

    fn is_of_its_version(&self, program: &Path) -> bool {
        let output = Command::new(program).arg("--version").output();
        output.is_ok_and(|output| {
            let text = String::from_utf8_lossy(&output.stdout);
            version_in(&text) == Some(self.llvm)
        })
    }
}

/// The major version in what an LLVM tool prints with `--version`.
fn version_in(text: &str) -> Option<u32> {
    let (_, after) = text.split_once("LLVM version ")?;
    after.split('.').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_merged_by_the_compilers_own_version() {
        let text = "rustc 1.95.0\nhost: x86_64-unknown-linux-gnu\nrelease: 1.95.0\nLLVM version: 22.1.2\n";
        let rustc = Rustc {
            host: "x86_64-unknown-linux-gnu".into(),
            llvm: 22,
        };
        assert_eq!(Rustc::parse(text), Some(rustc));
        assert_eq!(Rustc::parse("rustc 1.95.0\n"), None);
        let tool = "Debian LLVM version 22.1.8\n  Optimized build.";
        assert_eq!(version_in(tool), Some(22));
        assert_eq!(version_in("LLVM version 14.0.6"), Some(14));
        assert_eq!(version_in("no such"), None);
    }

    #[test]
    fn a_missing_merger_is_named_with_the_way_on() {
        let rustc = Rustc {
            host: "none".into(),
            llvm: 9_999,
        };
        let error = rustc.profdata().expect_err("there is no such version");
        assert!(error.to_string().contains("llvm-9999"), "{error}");
        assert!(error.to_string().contains("--without-profile"), "{error}");
    }
}
