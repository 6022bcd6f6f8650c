//! The engine, its log, checkpoints and recovery in one thread, on a disk that fails, crashes and rots, by a seed.
//! Owns: the module that is called, the model of its tables, what clients may rely on, the schedule of a seed.
//! Does not: replace any part of the product; what it runs is handed another clock, disk, compiler and other threads.
//! Invariants: a seed does the same each time; whatever is found is printed with the command that repeats it.
//! Called by: the tests beside it, `cargo xtask sim`, `cargo xtask schemas`.
#![forbid(unsafe_code)]

mod damage;
mod failover;
mod ledger;
mod model;
mod module;
mod mutant;
mod op;
mod region;
mod run;
mod schemas;
mod tree;
mod world;

pub use failover::{FailoverMutant, FailoverOptions, FailoverStats, run_failovers};
pub use mutant::Mutant;
pub use run::{Found, Options, Stats, run};
pub use schemas::{ChainStats, run_chain};
