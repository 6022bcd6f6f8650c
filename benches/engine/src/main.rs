//! Micro-benchmarks of the engine's parts.
//! Owns: the command line; each part lies in a module of its own, whose first lines say what it takes and prints.
//! Does not: decide whether a number is good; the goals stand in `docs/PERFORMANCE.md`.
//! Invariants: a part runs alone; without its name nothing runs.
//! Called by: people.

mod commits;
mod group_commit;
mod host;
mod load;
mod measure;
mod meet;
mod nvram_insertion;
mod ops;
mod persist;
mod receives;
mod redo;
mod reports;

use std::{env, error::Error, iter::Skip};

/// Arguments behind the part's name.
type Args = Skip<env::Args>;

type Part = (&'static str, fn(Args) -> Result<(), Box<dyn Error>>);

const PARTS: [Part; 11] = [
    ("commits", commits::run),
    ("group-commit", group_commit::run),
    ("host", host::run),
    ("load", load::run),
    ("meet", meet::run),
    ("nvram-insertion", nvram_insertion::run),
    ("ops", ops::run),
    ("persist", persist::run),
    ("receives", receives::run),
    ("redo", redo::run),
    ("reports", reports::run),
];

fn main() -> Result<(), Box<dyn Error>> {
    let name = env::args().nth(1).unwrap_or_default();
    match PARTS.iter().find(|(known, _)| *known == name) {
        Some((_, run)) => run(env::args().skip(2)),
        None => {
            let names: Vec<_> = PARTS.iter().map(|(name, _)| *name).collect();
            Err(format!("usage: reprise-bench-engine {} [ARGUMENT...]", names.join("|")).into())
        }
    }
}
