//! Micro-benchmarks of the engine's parts, each printed as one table.
//! Owns: the command line and the way of measuring (`measure`); each part lies in a module of its own.
//! Does not: decide whether a number is good; the goals stand in `docs/PERFORMANCE.md`.
//! Invariants: numbers are per operation, least and median over batches, from one thread.
//! Called by: people and `xtask bench`.

mod host;
mod measure;

use anyhow::bail;

const USAGE: &str = "usage: reprise-bench-engine host";

fn main() -> anyhow::Result<()> {
    let name = std::env::args().nth(1).unwrap_or_default();
    match name.as_str() {
        "host" => host::run(),
        "--help" | "-h" => {
            println!("{USAGE}");
            Ok(())
        }
        other => bail!("no benchmark {other:?}\n{USAGE}"),
    }
}
