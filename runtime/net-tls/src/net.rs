//! Where connections come from: TCP, and TLS in it where this node has a certificate, or the peer says that it has one.

use std::{
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Sender, bounded};
use reprise_env::{
    Connection, FrameSender, Listener, Net, NetError, NetLimits, OpenSocket, OpenSockets, RealNet,
    ask_for_short_slices, frame_prefix, read_frame,
};
use rustls::{ClientConnection, ServerConnection, pki_types::ServerName};

use crate::{
    identity::Identity,
    pin::pinned,
    stream::{CHUNK_BYTES, TlsReader, TlsWriter, shake},
};

/// How often a listener looks whether it was dropped.
const ACCEPT_LOOK: Duration = Duration::from_millis(20);
/// Connections that were accepted and that nobody has taken yet, and handshakes under way, at most.
const ACCEPTED_MAX: usize = 16;
/// Longest time for a handshake that comes in.
const HANDSHAKE_TIME: Duration = Duration::from_secs(3);
/// The certificate is known by its sum: no name in it matters.
const NAME: &str = "reprise";

/// TCP, with TLS. Without a certificate it listens unencrypted, and connects to whoever is named either way.
#[derive(Clone, Debug, Default)]
pub struct TlsNet {
    own: Option<Arc<Identity>>,
}

struct Open(Arc<AtomicBool>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What handshakes at a listener share.
struct Accepting {
    own: Arc<Identity>,
    limits: NetLimits,
    accepted: Sender<Connection>,
    under_way: AtomicUsize,
}

impl TlsNet {
    /// Listens with this certificate.
    pub fn new(own: Option<Arc<Identity>>) -> Self {
        Self { own }
    }
}

impl Net for TlsNet {
    fn listen(&self, address: &str, limits: NetLimits) -> Result<Listener, NetError> {
        let Some(own) = self.own.clone() else {
            return RealNet.listen(address, limits);
        };
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let bound = listener.local_addr()?;
        let (sender, accepted) = bounded(ACCEPTED_MAX);
        let is_closed = Arc::new(AtomicBool::new(false));
        let closed = is_closed.clone();
        let accepting = Arc::new(Accepting {
            own,
            limits,
            accepted: sender,
            under_way: AtomicUsize::new(0),
        });
        let accept = move || accept_all(&listener, &accepting, &closed);
        thread::Builder::new().name("tls-accept".into()).spawn(accept)?;
        Ok(Listener::new(bound.to_string(), accepted, Box::new(Open(is_closed))))
    }

    fn connect(&self, address: &str, time: Duration, limits: NetLimits) -> Result<Connection, NetError> {
        RealNet.connect(address, time, limits)
    }

    fn certificate(&self) -> Option<[u8; 32]> {
        self.own.as_ref().map(|own| own.fingerprint())
    }

    fn connect_encrypted(
        &self,
        address: &str,
        certificate: [u8; 32],
        time: Duration,
        limits: NetLimits,
    ) -> Result<Connection, NetError> {
        let until = Instant::now() + time;
        let unreachable = |reason: String| NetError::Unreachable(format!("{address}: {reason}"));
        let addresses = address
            .to_socket_addrs()
            .map_err(|error| unreachable(error.to_string()))?;
        let mut last = unreachable("no such name".into());
        for address in addresses {
            match TcpStream::connect_timeout(&address, time) {
                Ok(socket) => return greet(&socket, address, certificate, (until, limits)),
                Err(error) => last = unreachable(error.to_string()),
            }
        }
        Err(last)
    }
}

fn greet(
    socket: &TcpStream,
    peer: SocketAddr,
    certificate: [u8; 32],
    (until, limits): (Instant, NetLimits),
) -> Result<Connection, NetError> {
    let failed = |what: &dyn std::fmt::Display| NetError::Io(format!("TLS with {peer}: {what}"));
    let name = ServerName::try_from(NAME).map_err(|error| failed(&error))?;
    let config = pinned(certificate).map_err(|error| failed(&error))?;
    let state = ClientConnection::new(config, name).map_err(|error| failed(&error))?;
    let ends = shake(socket, state.into(), until).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => failed(&format!(
            "{error}; the certificate that it was to show is the one of the primary's answer to POST /v1/replication/join"
        )),
        _ => NetError::from(error),
    })?;
    connection_of(ends, socket, peer, (limits, None))
}

fn accept_all(listener: &TcpListener, accepting: &Arc<Accepting>, is_closed: &AtomicBool) {
    let open = OpenSockets::default();
    while !is_closed.load(Ordering::Acquire) {
        let Ok((socket, peer)) = listener.accept() else {
            thread::sleep(ACCEPT_LOOK);
            continue;
        };
        let Some(place) = open.take() else {
            thread::sleep(ACCEPT_LOOK);
            continue; // dropped, it ends
        };
        if accepting.under_way.fetch_add(1, Ordering::AcqRel) >= ACCEPTED_MAX {
            accepting.under_way.fetch_sub(1, Ordering::AcqRel);
            continue; // dropped, it ends
        }
        let own = accepting.clone();
        let take = move || {
            own.take(&socket, peer, place);
            own.under_way.fetch_sub(1, Ordering::AcqRel);
        };
        // Without a thread it ends; whoever connected notices.
        if thread::Builder::new().name("tls-greet".into()).spawn(take).is_err() {
            accepting.under_way.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Accepting {
    /// One that can't be set up is gone; whoever connected notices.
    fn take(&self, socket: &TcpStream, peer: SocketAddr, place: OpenSocket) {
        let until = Instant::now() + HANDSHAKE_TIME;
        let Ok(state) = ServerConnection::new(self.own.frames()) else {
            return;
        };
        let ends = socket
            .set_nonblocking(false)
            .and_then(|()| shake(socket, state.into(), until));
        let connection = ends
            .map_err(NetError::from)
            .and_then(|ends| connection_of(ends, socket, peer, (self.limits, Some(place))));
        if let Ok(connection) = connection {
            let _ = self.accepted.send(connection); // nobody listens any more
        }
    }
}

fn connection_of(
    (reader, writer): (TlsReader, TlsWriter),
    socket: &TcpStream,
    peer: SocketAddr,
    (limits, place): (NetLimits, Option<OpenSocket>),
) -> Result<Connection, NetError> {
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(limits.send_time))?;
    let (sender, frames) = bounded(limits.frames_waiting);
    let read = move || {
        ask_for_short_slices();
        read_frames(reader, limits.frame_bytes, &sender);
        drop(place);
    };
    thread::Builder::new().name("tls-read".into()).spawn(read)?;
    Ok(Connection {
        peer: peer.to_string(),
        sender: Box::new(TlsSender {
            writer,
            sent_bytes: limits.sent_bytes,
            is_broken: false,
            chunk: Vec::with_capacity(CHUNK_BYTES),
        }),
        frames,
    })
}

/// Until the connection ends, breaks, or nobody wants more of it.
fn read_frames(mut reader: TlsReader, frame_bytes: usize, sender: &Sender<Vec<u8>>) {
    while let Ok(frame) = read_frame(&mut reader, frame_bytes) {
        if sender.send(frame).is_err() {
            break;
        }
    }
    reader.shutdown();
}

struct TlsSender {
    writer: TlsWriter,
    sent_bytes: usize,
    is_broken: bool,
    /// Unsent; of constant capacity.
    chunk: Vec<u8>,
}

impl TlsSender {
    fn send_all(&mut self, parts: &[&[u8]], bytes: usize) -> std::io::Result<()> {
        self.chunk.clear();
        let prefix = frame_prefix(bytes);
        for mut part in std::iter::once(&prefix[..]).chain(parts.iter().copied()) {
            while !part.is_empty() {
                let (now, later) = part.split_at(part.len().min(CHUNK_BYTES - self.chunk.len()));
                self.chunk.extend_from_slice(now);
                part = later;
                if self.chunk.len() == CHUNK_BYTES {
                    self.writer.send(&self.chunk)?;
                    self.chunk.clear();
                }
            }
        }
        match self.chunk.is_empty() {
            true => Ok(()),
            false => self.writer.send(&self.chunk),
        }
    }
}

impl FrameSender for TlsSender {
    fn send(&mut self, parts: &[&[u8]]) -> Result<(), NetError> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes > self.sent_bytes {
            let max = self.sent_bytes;
            return Err(NetError::TooLarge { bytes, max });
        }
        if self.is_broken {
            return Err(NetError::Closed);
        }
        let sent = self.send_all(parts, bytes);
        if sent.is_err() {
            // A part of the frame may be on its way: nothing can follow it.
            self.is_broken = true;
            self.writer.shutdown(Shutdown::Both);
        }
        Ok(sent?)
    }
}

impl Drop for TlsSender {
    fn drop(&mut self) {
        self.writer.shutdown(Shutdown::Write);
    }
}
