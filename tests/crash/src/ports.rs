//! Ports of this machine that a test picks before a server listens on them.

use std::{
    net::TcpListener,
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Result, bail};

/// First port. All are below the ports that the system gives to connections, so no connection takes one between its pick and its use.
const FIRST: u16 = 20_000;
const COUNT: u32 = 12_000;
/// Between the first picks of processes with neighbouring numbers.
const APART: u32 = 97;

static PICKED: AtomicU32 = AtomicU32::new(0);

/// Returns a port of 127.0.0.1 on which no process listens.
pub fn free_port() -> Result<u16> {
    let begin = process::id().wrapping_mul(APART);
    for _ in 0..COUNT {
        let at = begin.wrapping_add(PICKED.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = FIRST + at as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port from {FIRST} on is free")
}

/// Returns an address with such a port.
pub fn free_address() -> Result<String> {
    Ok(format!("127.0.0.1:{}", free_port()?))
}
