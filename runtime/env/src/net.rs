//! Connections that carry frames, in order, whole or not at all. The real ones are TCP; `simnet` has others that are late and break.
//!
//!
//! Frames arrive on a channel, so a receiver waits for them as for any other thread (`Threads::receive_for`).

use std::{
    io,
    io::{IoSlice, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::{
    shared::{FrameBuffer, FrameMemory, FramePoster, SharedFrame},
    slice::ask_for_short_slices,
    socket::{DroppedMark, OpenSocket, OpenSockets, SocketReader},
    tcp::{ACCEPT_POLL_INTERVAL, accept_on, bind_tcp, connect_tcp},
};

/// Before each frame on a stream: its length, 4 bytes, little-endian.
const PREFIX_BYTES: usize = 4;

/// Limits of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetLimits {
    /// Bytes at most of a frame that comes; a longer one ends the connection.
    pub frame_bytes: usize,
    /// Bytes at most of a frame that is sent.
    pub sent_bytes: usize,
    /// Frames that have arrived but were not received yet. Beyond them the peer waits. With the frame's bytes this bounds the memory.
    pub frames_waiting: usize,
    /// How long a frame may take to be sent before the connection is given up.
    pub send_time: Duration,
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// No listener, or no route, exists at the address.
    #[error("unreachable: {0}")]
    Unreachable(String),
    /// The connection has ended.
    #[error("the connection has ended")]
    Closed,
    /// The peer did not take it in time.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// A frame is longer than the agreed limit.
    #[error("a frame of {bytes} bytes is more than {max}")]
    TooLarge {
        /// Bytes of the frame.
        bytes: usize,
        /// Bytes that a frame may have.
        max: usize,
    },
    /// Everything else, in the system's words.
    #[error("{0}")]
    Io(String),
}

impl From<io::Error> for NetError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::TimedOut,
            io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::NotConnected => Self::Closed,
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::AddrNotAvailable => Self::Unreachable(error.to_string()),
            _ => Self::Io(error.to_string()),
        }
    }
}

/// Opens and accepts connections.
pub trait Net: Send + Sync {
    /// Its name, for people.
    fn transport(&self) -> &'static str {
        "tcp"
    }

    /// Listens at `address` (`host:port`; port 0: any that is free).
    fn listen(&self, address: &str, limits: NetLimits) -> Result<Listener, NetError>;

    /// Connects, within `time`.
    fn connect(&self, address: &str, time: Duration, limits: NetLimits) -> Result<Connection, NetError>;

    /// The path of the newest connection, for people. None: the system chooses it.
    fn path(&self) -> Option<String> {
        None
    }

    /// Memory for frames that are sent to several peers. None: this transport copies each frame per peer.
    fn frame_memory(&self, _bytes: usize) -> Result<Option<Arc<dyn FrameMemory>>, NetError> {
        Ok(None)
    }

    /// Returns the SHA-256 of the certificate that listeners show now. None: the connection is not encrypted.
    fn certificate(&self) -> Option<[u8; 32]> {
        None
    }

    /// Connects like `connect`, but encrypted, and only to the peer that shows the certificate with this SHA-256.
    fn connect_encrypted(
        &self,
        _address: &str,
        _certificate: [u8; 32],
        _time: Duration,
        _limits: NetLimits,
    ) -> Result<Connection, NetError> {
        let reason = format!("the peer asks for TLS, which {} here does not have", self.transport());
        Err(NetError::Io(reason))
    }
}

/// Listens until it is dropped.
pub struct Listener {
    /// The address that it listens on, with the port that it got.
    pub address: String,
    /// Connections as they come.
    pub accepted: Receiver<Connection>,
    pub(crate) _open: Box<dyn Send>,
}

impl Listener {
    /// A listener of another transport: it listens until `open` is dropped.
    pub fn new(address: String, accepted: Receiver<Connection>, open: Box<dyn Send>) -> Self {
        Self {
            address,
            accepted,
            _open: open,
        }
    }
}

/// One end of a connection. Its drop ends it; the peer still gets the frames sent before.
pub struct Connection {
    /// The peer's address, for people.
    pub peer: String,
    /// The way out.
    pub sender: Box<dyn FrameSender>,
    /// Frames as they come. Disconnected once the connection has ended and the last one was taken.
    pub frames: Receiver<Vec<u8>>,
}

/// The way out of a connection.
pub trait FrameSender: Send {
    /// Sends one frame, made of `parts`. Ok says that it is on its way, no more.
    fn send(&mut self, parts: &[&[u8]]) -> Result<(), NetError>;

    /// Lets this connection and the returned poster send frames of a buffer, whose memory belongs to its `Net`.
    fn share(&mut self, _buffer: &Arc<FrameBuffer>) -> Result<Arc<dyn FramePoster>, NetError> {
        Err(NetError::Io("this transport copies frames".into()))
    }

    /// Sends like `send`, from the buffer that the frame shares.
    fn send_shared(&mut self, _frame: &SharedFrame) -> Result<(), NetError> {
        Err(NetError::Io("this transport copies frames".into()))
    }
}

/// TCP of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealNet;

struct TcpSender {
    stream: TcpStream,
    is_dropped: DroppedMark,
    sent_bytes: usize,
    is_broken: bool,
}

impl Net for RealNet {
    fn listen(&self, address: &str, limits: NetLimits) -> Result<Listener, NetError> {
        accept_on(bind_tcp(address)?, "net-accept", move |listener, sender, is_closed| {
            accept_all(listener, limits, sender, is_closed);
        })
    }

    fn connect(&self, address: &str, time: Duration, limits: NetLimits) -> Result<Connection, NetError> {
        let (stream, peer) = connect_tcp(address, time)?;
        connection_of(stream, peer, limits, None)
    }
}

fn accept_all(listener: &TcpListener, limits: NetLimits, sender: &Sender<Connection>, is_closed: &AtomicBool) {
    let open = OpenSockets::default();
    while !is_closed.load(Ordering::Acquire) {
        let Some(socket) = open.take() else {
            thread::sleep(ACCEPT_POLL_INTERVAL);
            continue;
        };
        match listener.accept() {
            Ok((stream, peer)) => {
                // If this fails the connection is gone, and its opener notices.
                let connection = stream.set_nonblocking(false).map_err(NetError::from);
                let connection = connection.and_then(|()| connection_of(stream, peer, limits, Some(socket)));
                if connection.is_ok_and(|connection| sender.send(connection).is_err()) {
                    return;
                }
            }
            Err(_) => thread::sleep(ACCEPT_POLL_INTERVAL),
        }
    }
}

/// Makes a connection of a socket. `open` counts it at its listener.
fn connection_of(
    stream: TcpStream,
    peer: SocketAddr,
    limits: NetLimits,
    open: Option<OpenSocket>,
) -> Result<Connection, NetError> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(limits.send_time))?;
    let (reader, is_dropped) = SocketReader::new(&stream)?;
    let frames = start_reading("net-read", reader, limits, move |reader| {
        reader.shutdown();
        drop(open);
    })?;
    let sender = TcpSender {
        stream,
        is_dropped,
        sent_bytes: limits.sent_bytes,
        is_broken: false,
    };
    Ok(Connection {
        peer: peer.to_string(),
        sender: Box::new(sender),
        frames,
    })
}

/// Reads frames on a thread of this name until the connection ends or breaks, or the returned receiver is dropped. Then `end` closes it.
pub fn start_reading<R: Read + Send + 'static>(
    name: &str,
    mut reader: R,
    limits: NetLimits,
    end: impl FnOnce(R) + Send + 'static,
) -> Result<Receiver<Vec<u8>>, NetError> {
    let (sender, frames) = bounded(limits.frames_waiting);
    let read = move || {
        ask_for_short_slices();
        while let Ok(frame) = read_frame(&mut reader, limits.frame_bytes) {
            if sender.send(frame).is_err() {
                break;
            }
        }
        end(reader);
    };
    thread::Builder::new().name(name.into()).spawn(read)?;
    Ok(frames)
}

/// Reads a frame with its length before it from a stream of bytes. A longer one than `frame_bytes` is an error.
pub fn read_frame(stream: &mut impl Read, frame_bytes: usize) -> Result<Vec<u8>, NetError> {
    let mut prefix = [0; PREFIX_BYTES];
    stream.read_exact(&mut prefix)?;
    let bytes = u32::from_le_bytes(prefix) as usize;
    if bytes > frame_bytes {
        return Err(NetError::TooLarge {
            bytes,
            max: frame_bytes,
        });
    }
    // Memory as bytes come, not as the peer says that they will.
    let mut frame = Vec::with_capacity(bytes.min(64 << 10));
    let read = stream.take(bytes as u64).read_to_end(&mut frame)?;
    match read == bytes {
        true => Ok(frame),
        false => Err(NetError::Closed),
    }
}

/// Returns the length of a frame of these parts, if a sender that takes `max` bytes may send it.
pub fn check_frame(parts: &[&[u8]], max: usize, is_broken: bool) -> Result<usize, NetError> {
    let bytes = parts.iter().map(|part| part.len()).sum();
    match bytes > max {
        true => Err(NetError::TooLarge { bytes, max }),
        false if is_broken => Err(NetError::Closed),
        false => Ok(bytes),
    }
}

/// The prefix of a frame of this length on a stream.
pub fn frame_prefix(bytes: usize) -> [u8; PREFIX_BYTES] {
    (bytes as u32).to_le_bytes()
}

impl FrameSender for TcpSender {
    fn send(&mut self, parts: &[&[u8]]) -> Result<(), NetError> {
        let bytes = check_frame(parts, self.sent_bytes, self.is_broken)?;
        let prefix = frame_prefix(bytes);
        let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(parts.len() + 1);
        slices.push(IoSlice::new(&prefix));
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        let sent = write_all(&mut self.stream, &mut slices);
        if sent.is_err() {
            // A part of the frame may be on its way: nothing can follow it.
            self.is_broken = true;
            let _ = self.stream.shutdown(Shutdown::Both);
        }
        sent
    }
}

impl Drop for TcpSender {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
        self.is_dropped.set();
    }
}

fn write_all(stream: &mut TcpStream, mut slices: &mut [IoSlice<'_>]) -> Result<(), NetError> {
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match stream.write_vectored(slices) {
            Ok(0) => return Err(NetError::Closed),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
