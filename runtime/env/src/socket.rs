//! The reading side of a socket, which ends with its connection here whatever the peer does, and how many of them a listener has.

use std::{
    io::{self, Read},
    net::{Shutdown, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Time for which a dropped connection is still read, so that the peer gets the last frames. A reader checks at the same interval
/// whether it was dropped.
const LINGER: Duration = Duration::from_secs(1);
/// Sockets of a listener at most, also those whose connection was dropped; further peers wait in the kernel.
const OPEN_MAX: usize = 128;

/// Set once a connection was dropped here.
#[derive(Clone, Debug, Default)]
pub struct DroppedMark(Arc<AtomicBool>);

impl DroppedMark {
    /// Its reader ends soon.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Reads a socket until its connection is dropped here, and `LINGER` longer.
pub struct SocketReader {
    socket: TcpStream,
    is_dropped: DroppedMark,
    until: Option<Instant>,
}

impl SocketReader {
    /// A reader of this socket. The mark shows whether its connection was dropped.
    pub fn new(socket: &TcpStream) -> io::Result<(Self, DroppedMark)> {
        let socket = socket.try_clone()?;
        socket.set_read_timeout(Some(LINGER))?;
        let is_dropped = DroppedMark::default();
        let mark = is_dropped.clone();
        let until = None;
        Ok((
            Self {
                socket,
                is_dropped,
                until,
            },
            mark,
        ))
    }

    /// Nothing more is read: the peer is to notice rather than to fill the kernel's buffers.
    pub fn shutdown(&self) {
        let _ = self.socket.shutdown(Shutdown::Both); // an error means that the connection has ended already
    }
}

impl Read for SocketReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.is_dropped.0.load(Ordering::Acquire) {
                let until = *self.until.get_or_insert_with(|| Instant::now() + LINGER);
                if Instant::now() >= until {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
            }
            match self.socket.read(buffer) {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                read => return read,
            }
        }
    }
}

/// The sockets that a listener has.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenSockets(Arc<AtomicUsize>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub struct OpenSocket(Arc<AtomicUsize>);

impl OpenSockets {
    /// Takes a place for one more socket. None: the limit is reached.
    pub fn take(&self) -> Option<OpenSocket> {
        let taken = OpenSocket(self.0.clone());
        (self.0.fetch_add(1, Ordering::AcqRel) < OPEN_MAX).then_some(taken)
    }
}

impl Drop for OpenSocket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
