//! Callgrind from outside: runs a program under it, and reads its files.

use std::{ffi::OsStr, fs, path::Path, process::Command};

use anyhow::{Context, Result, bail, ensure};

use crate::work::Kind;

/// The calls of a function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Function {
    /// Callgrind's name for it.
    pub name: String,
    /// How often it was called.
    pub calls: u64,
    /// Instructions of these calls, with all below.
    pub instructions: u64,
}

/// Callgrind's counts of one kind of transaction: instructions, in all and below some functions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallgrindCounts {
    /// Instructions of all transactions.
    pub total: u64,
    /// By name as callgrind has it.
    pub functions: Vec<Function>,
}

impl CallgrindCounts {
    /// The calls of functions whose names end so, but for the hash that the compiler adds to them.
    pub fn of(&self, end: &str) -> Function {
        let hashed = format!("{end}::h");
        let is_named = |name: &str| name.ends_with(end) || name.contains(&hashed);
        let mut sum = Function::default();
        for found in self.functions.iter().filter(|found| is_named(&found.name)) {
            sum.calls += found.calls;
            sum.instructions += found.instructions;
        }
        sum
    }
}

/// Runs a program under callgrind, which collects within `measured_transaction` alone; what the program printed, and what
/// was counted of each kind.
///
/// # Errors
/// Valgrind is missing, or the program fails.
pub fn count(program: &Path, args: &[&OsStr], folder: &Path) -> Result<(String, [CallgrindCounts; 2])> {
    let out = folder.join("callgrind");
    let mut option = std::ffi::OsString::from("--callgrind-out-file=");
    option.push(&out);
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no"])
        .args([
            "--toggle-collect=*measured_transaction*",
            "--compress-strings=no",
            "--compress-pos=no",
        ])
        .arg(option)
        .arg(program)
        .args(args);
    let output = command.output().context("start valgrind (apt-get install valgrind)")?;
    if !output.status.success() {
        bail!("under callgrind: {}", String::from_utf8_lossy(&output.stderr));
    }
    let mut counted: [CallgrindCounts; 2] = Default::default();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        for kind in Kind::ALL {
            let trigger = format!("desc: Trigger: Client Request: {}\n", kind.name());
            if text.contains(&trigger) {
                take_in(&text, &mut counted[kind as usize])?;
            }
        }
        fs::remove_file(&path)?;
    }
    ensure!(
        counted.iter().all(|counted| counted.total > 0),
        "callgrind counted nothing of a kind"
    );
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), counted))
}

/// Adds a file of callgrind's: its totals, and the inclusive cost of each call.
fn take_in(text: &str, counted: &mut CallgrindCounts) -> Result<()> {
    let number = |line: &str| -> Option<u64> { line.rsplit(' ').next()?.parse().ok() };
    let (mut callee, mut lines) = ("", text.lines());
    while let Some(line) = lines.next() {
        if let Some(total) = line.strip_prefix("totals: ") {
            counted.total += total.parse::<u64>().context("totals of callgrind")?;
        } else if let Some(name) = line.strip_prefix("cfn=") {
            callee = name;
        } else if let Some(calls) = line.strip_prefix("calls=") {
            let calls = calls
                .split(' ')
                .next()
                .and_then(number)
                .context("a call without its number")?;
            let instructions = lines.next().and_then(number).context("a call without its cost")?;
            let at = counted.functions.iter().position(|found| found.name == callee);
            let at = at.unwrap_or_else(|| {
                counted.functions.push(Function {
                    name: callee.to_owned(),
                    ..Function::default()
                });
                counted.functions.len() - 1
            });
            counted.functions[at].calls += calls;
            counted.functions[at].instructions += instructions;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_with_its_totals_and_the_costs_of_its_calls() {
        let text = "version: 1\nevents: Ir\n\nfn=run\n3 10\ncfn=a::begin::h12\ncalls=2 0 \n5 70\ncfn=a::commit\ncalls=1 0 \n6 20\n\
                    fn=other\ncfn=a::begin\ncalls=1 0 \n9 5\n\ntotals: 105\n";
        let mut counted = CallgrindCounts::default();
        take_in(text, &mut counted).expect("a file");
        take_in(text, &mut counted).expect("a file");
        let of = |end| (counted.of(end).calls, counted.of(end).instructions);
        assert_eq!((counted.total, of("::begin")), (210, (6, 150)));
        assert_eq!((of("::commit"), of("::none")), ((2, 40), (0, 0)));
    }
}
