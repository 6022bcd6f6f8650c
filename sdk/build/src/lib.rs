//! Builds guest crates for `wasm32-unknown-unknown` with the first toolchain of this machine that can. The current one can if it has the
//! target, and rustup may add it. Debian's `rustc-web` builds std from its own source package and links with the linker of rustup's
//! toolchain or of LLVM.
//! Owns: the choice of the toolchain, the settings and the memory layout with which every guest is built.
//! Does not: make crates (`reprise new`), print, or know a server.
//! Invariants: a failure names the one thing that is missing; a result replaces an older one in one step.
//! Called by: `node` (`reprise build`), `cargo xtask wasm`.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

const TARGET: &str = "wasm32-unknown-unknown";
/// The guest's shadow stack. Small, so that an instance is few pages; at the bottom of memory, so that overflow traps.
const STACK_BYTES: u32 = DATA_START - BUFFER_BYTES;
/// Address of the guest's data.
const DATA_START: u32 = 128 << 10;
/// Left between stack and data for arguments and results. On one page with the first 3 KiB of the stack, so that small calls
/// dirty that page alone.
const BUFFER_BYTES: u32 = 1 << 10;
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_CARGO: &str = "/usr/bin/cargo";

/// A way to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ToolchainChoice {
    /// The current toolchain, which has the wasm target or gets it from rustup
    Rustup,
    /// Debian's rustc-web with its own std sources
    Debian,
}

/// The crate to build.
pub enum BuildRequest<'a> {
    /// Crates of the source tree at `root`: all of procedures/ where none is named.
    Tree {
        /// The tree's folder.
        root: &'a Path,
        /// Names of crates in its `procedures`.
        names: Vec<String>,
    },
    /// The crate in this folder, or of this manifest.
    Crate(&'a Path),
}

/// A module that was built.
pub struct BuiltModule {
    /// Path of the result.
    pub path: PathBuf,
    /// Its length.
    pub bytes: usize,
}

/// A toolchain that can build for wasm.
enum Toolchain {
    Current,
    Debian { linker: PathBuf },
}

/// The crates of one build.
struct BuildPlan {
    /// Directory in which cargo runs.
    directory: PathBuf,
    target_dir: PathBuf,
    out: PathBuf,
    packages: Vec<String>,
    in_workspace: bool,
}

/// Builds the requested module to `NAME.wasm` in the folder `out`, or in `target/procedures`.
pub fn build(
    request: &BuildRequest<'_>,
    out: Option<&Path>,
    choice: Option<ToolchainChoice>,
) -> Result<Vec<BuiltModule>> {
    let toolchain = toolchain(choice)?;
    let mut plan = plan(request, &toolchain)?;
    if let Some(out) = out {
        plan.out = out.to_owned();
    }
    let status = command(&plan, &toolchain).status().context("start cargo")?;
    if !status.success() {
        bail!("cargo ended with {status}");
    }
    fs::create_dir_all(&plan.out).with_context(|| format!("create {}", plan.out.display()))?;
    plan.packages.iter().map(|package| collect(&plan, package)).collect()
}

fn collect(plan: &BuildPlan, package: &str) -> Result<BuiltModule> {
    let file = format!("{}.wasm", package.replace('-', "_"));
    let built = plan.target_dir.join(TARGET).join("release").join(&file);
    let bytes = fs::read(&built).with_context(|| {
        format!(
            "read {} (does its Cargo.toml say `crate-type = [\"cdylib\", \"rlib\"]`?)",
            built.display()
        )
    })?;
    let path = plan.out.join(format!("{package}.wasm"));
    put(&path, &bytes)?;
    Ok(BuiltModule {
        path,
        bytes: bytes.len(),
    })
}

/// Replaces a file in one step: a server may be reading the old one.
fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let new = path.with_extension(format!("{}.tmp", std::process::id()));
    fs::write(&new, bytes).with_context(|| format!("write {}", new.display()))?;
    fs::rename(&new, path).with_context(|| format!("rename to {}", path.display()))
}

fn plan(request: &BuildRequest<'_>, toolchain: &Toolchain) -> Result<BuildPlan> {
    let manifest = match request {
        BuildRequest::Crate(path) => path,
        BuildRequest::Tree { root, names } => {
            let root = root.canonicalize().context("find the source tree")?;
            return Ok(BuildPlan {
                packages: match names.is_empty() {
                    true => procedures(&root)?,
                    false => names.clone(),
                },
                target_dir: root.join("target/wasm"),
                out: root.join("target/procedures"),
                directory: root,
                in_workspace: true,
            });
        }
    };
    let directory = match manifest.is_dir() {
        true => manifest.to_path_buf(),
        false => manifest.parent().context("the manifest has no directory")?.to_owned(),
    };
    let directory = directory
        .canonicalize()
        .with_context(|| format!("find {}", manifest.display()))?;
    if !directory.join("Cargo.toml").is_file() {
        bail!(
            "{} holds no Cargo.toml: `reprise new NAME` makes a crate",
            directory.display()
        );
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    Ok(BuildPlan {
        packages: vec![package_name(&directory, toolchain)?],
        target_dir: target.unwrap_or_else(|| directory.join("target")).join("wasm"),
        out: directory.join("target/procedures"),
        directory,
        in_workspace: false,
    })
}

/// The crates under procedures/, sorted.
fn procedures(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join("procedures")).context("list procedures/")? {
        let path = entry?.path();
        if path.join("Cargo.toml").exists()
            && let Some(name) = path.file_name()
        {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn package_name(directory: &Path, toolchain: &Toolchain) -> Result<String> {
    let mut command = toolchain.cargo();
    command.args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"]);
    let output = command
        .arg(directory.join("Cargo.toml"))
        .stderr(Stdio::inherit())
        .output()
        .context("start cargo")?;
    if !output.status.success() {
        bail!("cargo can't read {}", directory.join("Cargo.toml").display());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).context("read cargo metadata")?;
    let manifest = directory.join("Cargo.toml");
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata without packages")?;
    let ours = packages
        .iter()
        .find(|package| package["manifest_path"].as_str().map(Path::new) == Some(&manifest));
    let name = ours.and_then(|package| package["name"].as_str());
    Ok(name
        .with_context(|| format!("no package at {}", directory.display()))?
        .to_owned())
}

fn toolchain(choice: Option<ToolchainChoice>) -> Result<Toolchain> {
    if choice != Some(ToolchainChoice::Debian) && is_there("cargo") {
        if has_target("rustc") || (add_target() && has_target("rustc")) {
            return Ok(Toolchain::Current);
        }
        if choice == Some(ToolchainChoice::Rustup) {
            bail!("the current toolchain has no target {TARGET} and rustup could not add it");
        }
    }
    debian()
}

fn is_there(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn sysroot(rustc: &str) -> Option<PathBuf> {
    let output = Command::new(rustc)
        .args(["--print", "sysroot"])
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| PathBuf::from(path.trim()))
}

fn has_target(rustc: &str) -> bool {
    let lib = sysroot(rustc).map(|sysroot| sysroot.join("lib/rustlib").join(TARGET).join("lib"));
    let has_core = |lib: PathBuf| {
        let files = fs::read_dir(lib).into_iter().flatten().flatten();
        files
            .map(|file| file.file_name())
            .any(|name| name.to_string_lossy().starts_with("libcore-"))
    };
    lib.is_some_and(has_core)
}

fn add_target() -> bool {
    let mut command = Command::new("rustup");
    command
        .args(["target", "add", TARGET])
        .env("RUSTUP_MAX_RETRIES", "1")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Debian's toolchain, or the one thing that it lacks.
fn debian() -> Result<Toolchain> {
    let sources = sysroot(DEBIAN_RUSTC).map(|sysroot| sysroot.join("lib/rustlib/src/rust/library/Cargo.lock"));
    match sources {
        None => bail!(
            "no Rust toolchain here can build for {TARGET}: run `rustup target add {TARGET}` (https://rustup.rs), or on Debian \
             `apt-get install rustc-web cargo-web rust-web-src`"
        ),
        Some(path) if !path.exists() => {
            bail!("the source of std is missing: on Debian `apt-get install rust-web-src`")
        }
        Some(_) => {}
    }
    if !Path::new(DEBIAN_CARGO).exists() {
        bail!("{DEBIAN_CARGO} is missing: `apt-get install cargo-web`");
    }
    let linker = linker().context("a linker for wasm is missing: on Debian `apt-get install lld`")?;
    Ok(Toolchain::Debian { linker })
}

/// rust-lld of any toolchain here, else LLVM's wasm-ld.
fn linker() -> Option<PathBuf> {
    let roots = [sysroot("rustc"), sysroot(DEBIAN_RUSTC)];
    let toolchains = roots
        .into_iter()
        .flatten()
        .flat_map(|root| list(&root.join("lib/rustlib")));
    let mut found = toolchains
        .map(|target| target.join("bin/rust-lld"))
        .find(|path| path.exists());
    if found.is_none() {
        let mut linkers = list(Path::new("/usr/bin"));
        linkers.retain(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("wasm-ld"))
        });
        linkers.sort();
        found = linkers.pop();
    }
    found
}

fn list(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect()
}

impl Toolchain {
    fn cargo(&self) -> Command {
        match self {
            Self::Current => Command::new("cargo"),
            Self::Debian { linker } => {
                let mut command = Command::new(DEBIAN_CARGO);
                command.env("RUSTC", DEBIAN_RUSTC);
                // Lets a stable compiler build std from source (`-Zbuild-std`).
                command.env("RUSTC_BOOTSTRAP", "1");
                command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
                command
            }
        }
    }
}

fn command(plan: &BuildPlan, toolchain: &Toolchain) -> Command {
    let mut command = toolchain.cargo();
    command
        .current_dir(&plan.directory)
        .args(["build", "--release", "--target", TARGET]);
    command.arg("--target-dir").arg(&plan.target_dir);
    if matches!(toolchain, Toolchain::Debian { .. }) {
        command.arg("-Zbuild-std=std,panic_abort");
    }
    for setting in profile(plan) {
        command.arg("--config").arg(setting);
    }
    for package in &plan.packages {
        command.args(["--package", package]);
    }
    // Above any RUSTFLAGS of the caller's, which are meant for its own machine.
    command.env("CARGO_ENCODED_RUSTFLAGS", flags(plan).join("\x1f"));
    command.env_remove("RUSTC_WRAPPER").env_remove("CARGO_BUILD_TARGET");
    command
}

/// Returns the build settings: speed for the crates themselves, size for their dependencies. Names stay, so that a backtrace has them.
fn profile(plan: &BuildPlan) -> Vec<String> {
    let mut settings = vec![
        "profile.release.panic='abort'",
        "profile.release.lto='fat'",
        "profile.release.codegen-units=1",
        "profile.release.debug=false",
        "profile.release.strip='debuginfo'",
        "profile.release.opt-level=3",
        // Overflow checks, as in a test: a number that does not fit ends the call. The SDK's own arithmetic marks where overflow is
        // allowed.
        "profile.release.overflow-checks=true",
        "profile.release.package.reprise-abi.overflow-checks=false",
        "profile.release.package.reprise-procedure.overflow-checks=false",
        "profile.release.package.'*'.opt-level='s'",
    ];
    if plan.in_workspace {
        settings.push("profile.release.package.reprise-abi.opt-level='s'");
    }
    settings.into_iter().map(str::to_owned).collect()
}

fn flags(plan: &BuildPlan) -> Vec<String> {
    let mut flags = vec![
        format!("-Clink-arg=-zstack-size={STACK_BYTES}"),
        format!("-Clink-arg=--global-base={DATA_START}"),
    ];
    // Panic messages carry paths: the same bytes should come out of every checkout.
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let own = if plan.in_workspace { "reprise" } else { "." };
    for (path, name) in [(Some(plan.directory.clone()), own), (home, "cargo")] {
        if let Some(path) = path {
            flags.push(format!("--remap-path-prefix={}={name}", path.display()));
        }
    }
    flags
}
