//! Connections over RDMA: the card writes frames into a ring in the peer's memory. The module implements `env`'s `Net`.
//! Owns: queue pairs and registered memory, from the greeting over TCP to the last write; which bytes of a ring are whose.
//! Does not: link rdma-core, which it loads at run time; know the contents of a frame, retry a connection, make anything durable.
//! Invariants: a sender overwrites only bytes that the peer has reported as taken; bytes of a peer are copied before they are checked;
//! every end of a connection releases its queue pair and memory.
//! Called by: `node` (the transport that was asked for).
#![deny(unsafe_code)]

mod cards;
pub mod fake;
mod greeting;
mod layout;
mod library;
mod net;
mod reader;
mod real;
mod sender;
mod shared;
mod stepped_net;
mod verbs;

pub use cards::{RealCard, cards_seen};
pub use greeting::{GREETING_BYTES, Greeting, GreetingError, make_ready, read, refusal};
pub use layout::{
    PIECE_HEAD_BYTES, PIECES_MAX, PeerRing, PieceHead, RING_AT, RING_BYTES_MAX, RING_BYTES_MIN, piece_bytes_max,
    ring_bytes, span,
};
pub use net::RdmaNet;
pub use stepped_net::SteppedNet;
pub use verbs::{
    Ask, Card, CardSeen, Completion, CompletionQueue, MemorySpan, PairAddress, QueuePair, RemoteMemory, VerbsError,
    Write,
};
