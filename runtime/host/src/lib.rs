//! The wasmtime embedding: checks, rewrites, compiles and runs guest modules, isolated, metered and deterministic.
//! Owns: every wasmtime setting, the guests' memory, the import table, the parser of module descriptions, compiled code on disk.
//! Does not: know storage, transactions or the log; rows go through `reprise_abi::HostOps`.
//! Invariants: no guest state survives a call; the same call on the same rows has the same result on every machine with the same
//! `Engine::settings_hash`; nothing that a guest or an uploader sends panics or leaves its memory.
//! Called by: `txn` (calls), `recovery`, `database` (modules), `node` (listing), `fuel` (tests of modules), the benchmarks' driver.

// Unit tests use the integration tests' helpers by this name.
#[cfg(test)]
extern crate self as reprise_host;

mod calls;
mod columns;
mod depth;
pub mod describe;
mod effort;
mod engine;
mod faults;
mod features;
mod hot;
mod inspect;
mod instance;
mod kept_code;
mod live;
mod memory;
mod module;
mod outcome;
mod page;
mod price;
mod quiet;
mod rewrite;
mod start;
mod state;
pub mod stored_descriptions;
mod wasi;

pub use engine::{Engine, Limits};
pub use instance::Instance;
pub use module::{CompiledModule, InvalidModule, described, hash_of};
pub use outcome::{CallOutcome, Fault, FaultKind, GuestExit};
pub use start::StartTime;
