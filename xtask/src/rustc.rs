//! The compiler, and the tools of its LLVM.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

/// Versions that `rustc -vV` prints.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rustc {
    pub host: String,
    /// Major version of its LLVM: profiles are read by the version that wrote them.
    pub llvm: u32,
}

impl Rustc {
    pub fn ask() -> Result<Self> {
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

    /// A tool of LLVM: rustup's component first, then the system's of the same version. Err: the missing tool, and `way_on`.
    pub fn tool(&self, name: &str, way_on: &str) -> Result<PathBuf> {
        let output = Command::new("rustc").args(["--print", "sysroot"]).output()?;
        let sysroot = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let component = Path::new(&sysroot).join("lib/rustlib").join(&self.host);
        let candidates = [
            component.join("bin").join(name),
            format!("{name}-{}", self.llvm).into(),
            name.into(),
        ];
        let found = candidates.into_iter().find(|program| self.is_of_its_version(program));
        found.with_context(|| {
            let llvm = self.llvm;
            format!(
                "missing: {name} of LLVM {llvm} (rustup component add llvm-tools, or the package llvm-{llvm}){way_on}"
            )
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

/// The folder of the compiler's own libraries, which tests of procedural macros are linked to.
pub(crate) fn target_libraries() -> Result<PathBuf> {
    let output = Command::new("rustc").args(["--print", "target-libdir"]).output();
    let output = output.context("start rustc: https://rustup.rs")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().into())
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
    fn tools_are_of_the_compilers_own_version() {
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
    fn a_missing_tool_is_named_with_the_way_on() {
        let rustc = Rustc {
            host: "none".into(),
            llvm: 9_999,
        };
        let error = rustc.tool("llvm-cov", "; or so").expect_err("there is no such version");
        assert!(error.to_string().contains("llvm-9999"), "{error}");
        assert!(error.to_string().ends_with("; or so"), "{error}");
    }
}
