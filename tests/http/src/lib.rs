//! Harness of the HTTP tests: starts the real server on a free port and speaks to it as a stranger would.
//! Owns: the server's process, its temporary directory, a module written in wasm text.
//! Does not: link any crate of the server; everything goes through HTTP.
//! Invariants: a server ends with its handle; each test has a server and a directory of its own.
//! Called by: the tests beside it, and those of processes.

mod documented;
mod probe;
mod server;
mod wire;

pub use probe::{
    probe, probe_changed, probe_grown, probe_put_grown, probe_signed, probe_with, probe_without_put, table_module,
};
pub use server::{Options, Server};
pub use wire::{Answer, raw, rest};
