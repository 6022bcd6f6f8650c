//! Programs with tests: cargo builds them, the task runs each as cargo does, and times it.

use std::{
    fmt,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{rustc::target_libraries, stages::Stage};

/// A program with tests.
pub(crate) struct Program {
    /// Folder of its package, from the root.
    pub folder: String,
    target: String,
    path: PathBuf,
}

/// A step, how long it took and how it ended.
pub(crate) struct Step {
    pub name: String,
    pub time: Duration,
    /// Why it failed.
    pub failure: Option<String>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = if self.is_done() { "" } else { "  FAILED" };
        write!(f, "{:8.1} s  {}{failed}", self.time.as_secs_f64(), self.name)
    }
}

impl Step {
    /// Runs a step, prints its name before and its failure behind it.
    pub fn run(name: impl Into<String>, work: impl FnOnce() -> Result<()>) -> Self {
        let name = name.into();
        println!("\n== {name}");
        let begun = Instant::now();
        let result = work();
        if let Err(error) = &result {
            // The summary has all of it.
            let text = format!("{error:#}");
            eprintln!("error: {name}: {}", text.lines().next().unwrap_or_default());
        }
        let time = begun.elapsed();
        Self {
            name,
            time,
            failure: result.err().map(|error| format!("{error:#}")),
        }
    }

    pub fn is_done(&self) -> bool {
        self.failure.is_none()
    }
}

/// Runs a cargo command that builds, and returns the programs with tests that it built.
///
/// # Errors
/// The build fails.
pub(crate) fn build(root: &Path, command: &mut Command) -> Result<Vec<Program>> {
    command.arg("--message-format=json-render-diagnostics");
    let output = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).output();
    let output = output.context("start cargo")?;
    if !output.status.success() {
        bail!("the build ended with {}", output.status);
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let mut programs: Vec<_> = messages.lines().filter_map(|line| parse(root, line)).collect();
    programs.sort_by_key(Program::name);
    Ok(programs)
}

/// The program that a message of cargo tells of.
fn parse(root: &Path, message: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let folder = manifest.parent()?.strip_prefix(root).ok()?;
    let target = &message["target"];
    Some(Program {
        folder: folder.to_string_lossy().into_owned(),
        target: match target["kind"][0].as_str()? {
            "test" => target["name"].as_str()?.to_owned(),
            _ => "unit tests".into(),
        },
        path: message["executable"].as_str()?.into(),
    })
}

impl Program {
    pub fn name(&self) -> String {
        format!("{} {}", self.folder, self.target)
    }

    /// Runs it in its package's folder, with the compiler's libraries, which tests of macros are linked to.
    pub fn run(&self, root: &Path) -> Result<()> {
        let folder = root.join(&self.folder);
        let mut command = Command::new(&self.path);
        command.current_dir(&folder).env("CARGO_MANIFEST_DIR", &folder);
        command.env(
            "RUST_TEST_THREADS",
            Stage::of(&self.folder).tests_at_a_time().to_string(),
        );
        command.env("LD_LIBRARY_PATH", target_libraries()?);
        let mut child = command.stdout(Stdio::piped()).spawn().context("start it")?;
        let printed = child.stdout.take().context("a program without its output")?;
        let mut failures = Failures::default();
        for line in BufReader::new(printed).split(b'\n') {
            let line = line.context("read what it prints")?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            failures.read(&line);
        }
        let status = child.wait().context("wait for its end")?;
        ensure!(status.success(), "it ended with {status}\n{}", failures.text);
        Ok(())
    }
}

/// The output of a program behind its last test: what its failed tests printed, and their names.
#[derive(Default)]
struct Failures {
    is_behind: bool,
    text: String,
}

/// Longest text of one program's failures, in bytes.
const FAILURES_MAX: usize = 16 << 10;

impl Failures {
    fn read(&mut self, line: &str) {
        self.is_behind |= line == "failures:";
        if self.is_behind && self.text.len() + line.len() < FAILURES_MAX {
            self.text.push_str(line);
            self.text.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_tests_printed_is_kept() {
        let mut failures = Failures::default();
        let printed = "test a::b ... FAILED\n\nfailures:\n\n---- a::b stdout ----\nleft: 1\n\nfailures:\n    a::b";
        printed.lines().for_each(|line| failures.read(line));
        assert_eq!(failures.text, format!("{}\n", &printed[22..]));
        (0..FAILURES_MAX).for_each(|_| failures.read("more"));
        assert!(failures.text.len() <= FAILURES_MAX + 8, "{}", failures.text.len());
    }

    #[test]
    fn programs_with_tests_are_read_from_what_cargo_builds() {
        let message = |kind: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/tree/runtime/log/Cargo.toml",
                "target":{{"kind":["{kind}"],"name":"it"}},"profile":{{"test":{test}}},"executable":"/tree/target/it-1"}}"#
            )
        };
        let name = |message: &str| parse(Path::new("/tree"), message).map(|program| program.name());
        assert_eq!(name(&message("test", true)).as_deref(), Some("runtime/log it"));
        assert_eq!(name(&message("lib", true)).as_deref(), Some("runtime/log unit tests"));
        assert_eq!(name(&message("bin", false)), None);
        assert_eq!(name("no message"), None);
    }
}
