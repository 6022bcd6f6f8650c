//! The clients' view of the module `registers`: random calls, their histories, and a model as simple as a map.
//! Owns: the calls (`Op`), their encodings, what came back (`Ret`), the model, the clients.
//! Does not: judge; the tests do, by the model and by a checker that was not written here.
//! Invariants: a seed makes the same calls; `invoked` and `returned` count events of all clients in real time.
//! Called by: the tests beside it.
#![forbid(unsafe_code)]

mod client;
mod http;
mod model;
mod op;

pub use client::{Client, Local, deploy, history_of, open, registers_wasm};
pub use http::Http;
pub use model::Model;
pub use op::{Mix, Op, Ret};

use reprise_base::TxnId;

/// A call that has returned.
#[derive(Clone, Debug)]
pub struct Done {
    pub client: usize,
    pub op: Op,
    pub ret: Ret,
    pub txn_id: TxnId,
    /// Events of all clients, counted in one sequence.
    pub invoked: u64,
    pub returned: u64,
}
