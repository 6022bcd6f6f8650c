//! Connections over TLS, as `env`'s `Net`, and the certificate of a server.
//! Owns: the certificate and its key, also while they are replaced; handshakes, and the bytes on the wire.
//! Does not: know the contents of a frame, retry a connection, identify a client: a client shows a token or a ticket.
//! Invariants: a peer without the expected certificate gets nothing; a key is never shown; a handshake has a bound in time.
//! Called by: `http` (what it listens with), `node` (the files, the transport that was asked for).
#![deny(unsafe_code)]
#![deny(missing_docs)]

mod identity;
mod net;
mod pin;
mod stream;
mod validity;

pub use identity::{Identity, IdentityError, use_ring};
pub use net::TlsNet;
pub use validity::Validity;
