//! Connections over TLS, as `env`'s `Net`, and the certificate that a server shows.
//! Owns: the certificate and its key, also while they are replaced; handshakes, and the bytes on the wire.
//! Does not: know what a frame says, retry a connection, say who a client is: whoever is let in shows a token or a ticket.
//! Invariants: a peer that does not show the expected certificate gets nothing; a key is never told; a handshake has a bound in time.
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
