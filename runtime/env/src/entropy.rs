//! Randomness from the operating system: for identities and secrets that are then logged, never for outcomes.

use std::{fs::File, io::Read};

/// `N` bytes that an attacker can't guess. Err: the system has no source of randomness.
pub fn entropy<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
