//! The last step of a package: LLVM's BOLT moves the code that runs together to one place, by counts of the linked program.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

/// Linker option that keeps relocations, so that the program can be laid out again.
pub const LINK: &str = "-Clink-arg=-Wl,--emit-relocs";

/// How code is laid out: blocks by the way that is mostly taken, functions by who calls whom, what never ran apart from the rest.
const LAYOUT: [&str; 6] = [
    "-reorder-blocks=ext-tsp",
    "-reorder-functions=cdsort",
    "-split-functions",
    "-split-all-cold",
    "-split-eh",
    "-icf=1",
];

/// The two programs of one version.
#[derive(Debug)]
pub struct Bolt {
    optimiser: PathBuf,
    merger: PathBuf,
}

impl Bolt {
    /// The system's, of any version from this one on: a program's layout is not bound to its compiler's version.
    pub fn find(llvm: u32) -> Option<Self> {
        let versions = (llvm..llvm + 4).map(|version| format!("-{version}"));
        let mut names = versions.chain([String::new()]);
        let name = names.find(|suffix| answers(&format!("llvm-bolt{suffix}")))?;
        Some(Self {
            optimiser: format!("llvm-bolt{name}").into(),
            merger: format!("merge-fdata{name}").into(),
        })
    }

    /// Makes `counting` of the program: each process that runs it leaves its counts as a file of its own in `counts`.
    ///
    /// # Errors
    /// The optimiser's error.
    pub fn instrument(&self, program: &Path, counts: &Path, counting: &Path) -> Result<()> {
        let file = format!("-instrumentation-file={}", counts.join("counts").display());
        let mut command = Command::new(&self.optimiser);
        command.arg(program).args(["-instrument", &file]);
        command.arg("-instrumentation-file-append-pid").arg("-o").arg(counting);
        quiet(&mut command)
    }

    /// Makes `laid_out` of the program by the counts.
    ///
    /// # Errors
    /// There are no counts, or what the optimiser says.
    pub fn lay_out(&self, program: &Path, counts: &Path, laid_out: &Path) -> Result<()> {
        let files = fs::read_dir(counts).context("read the counts")?;
        let files = files.map(|file| Ok(file?.path())).collect::<Result<Vec<_>>>()?;
        if files.is_empty() {
            bail!("the counting program left no counts in {}", counts.display());
        }
        let merged = counts.with_extension("fdata");
        let mut merge = Command::new(&self.merger);
        quiet(merge.args(&files).arg("-o").arg(&merged))?;
        let mut command = Command::new(&self.optimiser);
        command.arg(program).arg("-data").arg(&merged).args(LAYOUT);
        command.arg("-o").arg(laid_out);
        quiet(&mut command)
    }
}

/// Runs a program that says much; what it says last, where it fails.
fn quiet(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("start {name}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.trim_end().lines().next_back().unwrap_or("nothing");
    bail!("{name} ended with {}: {last}", output.status)
}

fn answers(program: &str) -> bool {
    let output = Command::new(program).arg("--version").output();
    output.is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_counts_is_not_laid_out() {
        let counts = std::env::temp_dir().join(format!("reprise-bolt-{}", std::process::id()));
        fs::create_dir_all(&counts).expect("a directory");
        let bolt = Bolt {
            optimiser: "no-such-optimiser".into(),
            merger: "no-such-merger".into(),
        };
        let error = bolt.lay_out(Path::new("program"), &counts, Path::new("out"));
        let error = error.expect_err("there are no counts");
        assert!(error.to_string().contains("left no counts"), "{error}");
        fs::remove_dir_all(&counts).expect("it is there");
    }
}
