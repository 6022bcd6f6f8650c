//! The kill -9 test: the real server under load, killed at random moments, and every promise checked after each restart.
//! Owns: the server's process (`Server`), a small HTTP client (`Connection`), the clients' model of the rows that must exist, the count of
//! skipped tests (`skip`), free ports (`free_address`).
//! Does not: link any crate of the server; everything goes through HTTP, files and signals.
//! Invariants: only processes that were started here are signalled, by their id; a failure names the seed and the directory.
//! Called by: the binary `crash` (`cargo xtask crash`), the test beside it, the process tests.

mod calls;
mod client;
mod etcd;
mod failover;
mod http;
mod log;
mod model;
mod ports;
mod program;
mod rng;
mod run;
mod schemas;
mod server;
mod shifting;
mod skip;
mod verify;
mod workload;

pub use etcd::{Etcd, has_etcd};
pub use failover::{
    By, FailoverConfig, FailoverReport, ForcedReport, Witness, run_failovers, run_failovers_before, run_forced,
};
pub use http::{Answer, Connection, Cut};
pub use ports::free_address;
pub use program::{exit_code, told_seed};
pub use rng::Rng;
pub use run::{Config, MIXED, Report, run};
pub use schemas::{SCHEMAS, SchemasReport, run_schemas};
pub use server::{Launch, Server, Spawned, binary, copy_dir, procedure_wasm, run_bench, run_verb};
pub use skip::skip;
pub use workload::{WORKLOADS, WorkloadConfig, WorkloadReport, run_workload};
