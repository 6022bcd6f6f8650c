//! A TLS connection as two ends that are used by two threads: one reads, one writes, and neither waits for the other's socket call.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    sync::{Arc, Mutex, MutexGuard},
    time::Instant,
};

use reprise_env::{DroppedMark, SocketReader};
use rustls::Connection;

/// Bytes read from the socket, and encrypted, at once.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;

struct TlsEnds {
    /// The socket, to which encrypted bytes go in their order: it is locked before `state`, and held until they are sent.
    out: Mutex<TcpStream>,
    state: Mutex<Connection>,
}

impl TlsEnds {
    /// Held for computing alone.
    fn state(&self) -> MutexGuard<'_, Connection> {
        self.state.lock().expect("no code panics under this lock")
    }

    /// Encrypts and sends it, with what else there is to send.
    fn send(&self, plain: &[u8]) -> io::Result<()> {
        let mut out = self.out.lock().expect("no code panics under this lock");
        let mut encrypted = Vec::with_capacity(plain.len() + 1024);
        {
            let mut state = self.state();
            state.writer().write_all(plain)?;
            while state.wants_write() {
                state.write_tls(&mut encrypted)?;
            }
        }
        out.write_all(&encrypted)
    }
}

/// Runs the handshake. Err with `TimedOut`: it took too long.
pub(crate) fn shake(
    mut socket: &TcpStream,
    mut state: Connection,
    until: Instant,
) -> io::Result<(TlsReader, TlsWriter)> {
    state.set_buffer_limit(None); // each write is at most one chunk
    while state.is_handshaking() || state.wants_write() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        socket.set_write_timeout(Some(left))?;
        if state.wants_write() {
            state.write_tls(&mut socket)?;
            continue;
        }
        if state.read_tls(&mut socket)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if let Err(error) = state.process_new_packets() {
            let _ = state.write_tls(&mut socket); // the peer's operator sees the alert
            return Err(io::Error::new(ErrorKind::InvalidData, error));
        }
    }
    let (reader, is_dropped) = SocketReader::new(socket)?;
    let ends = Arc::new(TlsEnds {
        out: Mutex::new(socket.try_clone()?),
        state: Mutex::new(state),
    });
    let reader = TlsReader {
        socket: reader,
        ends: ends.clone(),
        raw: vec![0; CHUNK_BYTES],
        left: 0..0,
    };
    Ok((reader, TlsWriter { ends, is_dropped }))
}

pub(crate) struct TlsReader {
    socket: SocketReader,
    ends: Arc<TlsEnds>,
    raw: Vec<u8>,
    /// The part of `raw` that was not decrypted yet.
    left: std::ops::Range<usize>,
}

impl TlsReader {
    pub fn shutdown(&self) {
        self.socket.shutdown();
    }

    /// Takes decrypted bytes. None: there are none yet.
    fn take(&mut self, plain: &mut [u8]) -> io::Result<Option<usize>> {
        let mut state = self.ends.state();
        loop {
            match state.reader().read(plain) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read.map(Some),
            }
            if self.left.is_empty() {
                return Ok(None);
            }
            let mut raw = &self.raw[self.left.clone()];
            let taken = state.read_tls(&mut raw)?;
            self.left.start += taken;
            let processed = state.process_new_packets();
            processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        }
    }
}

impl Read for TlsReader {
    fn read(&mut self, plain: &mut [u8]) -> io::Result<usize> {
        loop {
            let taken = self.take(plain)?;
            // An answer of the protocol, such as to new keys.
            let is_answer = self.ends.state().wants_write();
            if is_answer {
                self.ends.send(&[])?;
            }
            if let Some(taken) = taken {
                return Ok(taken);
            }
            let read = self.socket.read(&mut self.raw)?;
            if read == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.left = 0..read;
        }
    }
}

pub(crate) struct TlsWriter {
    ends: Arc<TlsEnds>,
    is_dropped: DroppedMark,
}

impl TlsWriter {
    /// Sends a chunk, within the write time-out of the socket for each part that the peer takes.
    pub fn send(&self, plain: &[u8]) -> io::Result<()> {
        self.ends.send(plain)
    }

    pub fn shutdown(&self, how: Shutdown) {
        if how == Shutdown::Write {
            self.ends.state().send_close_notify();
            let _ = self.ends.send(&[]); // the peer may be gone
        }
        let out = self.ends.out.lock().expect("no code panics under this lock");
        let _ = out.shutdown(how); // an error means that the connection has ended already
        self.is_dropped.set();
    }
}
