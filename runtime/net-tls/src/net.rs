//! The source of connections: TCP, with TLS in it if this node has a certificate or the peer says that it has one.

use std::{
    net::{Shutdown, SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use reprise_env::{
    Connection, FrameSender, Listener, Net, NetError, NetLimits, OpenSocket, RealNet, bind_tcp, check_frame,
    connect_tcp, frame_prefix, greet_on, start_reading,
};
use rustls::{ClientConnection, ServerConnection, pki_types::ServerName};

use crate::{
    identity::Identity,
    pin::pinned,
    stream::{CHUNK_BYTES, TlsReader, TlsWriter, shake},
};

/// Longest time for a handshake that comes in.
const HANDSHAKE_TIME: Duration = Duration::from_secs(3);
/// The certificate is known by its sum: no name in it matters.
const NAME: &str = "reprise";

/// TCP, with TLS. Without a certificate it listens unencrypted. It connects to the named peer either way.
#[derive(Clone, Debug, Default)]
pub struct TlsNet {
    own: Option<Arc<Identity>>,
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
        greet_on(bind_tcp(address)?, "tls", move |socket, peer, place| {
            let until = Instant::now() + HANDSHAKE_TIME;
            let state = ServerConnection::new(own.frames()).map_err(|error| NetError::Io(error.to_string()))?;
            let ends = shake(&socket, state.into(), until)?;
            connection_of(ends, &socket, peer, (limits, Some(place)))
        })
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
        let (socket, peer) = connect_tcp(address, time)?;
        greet(&socket, peer, certificate, (until, limits))
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

fn connection_of(
    (reader, writer): (TlsReader, TlsWriter),
    socket: &TcpStream,
    peer: SocketAddr,
    (limits, place): (NetLimits, Option<OpenSocket>),
) -> Result<Connection, NetError> {
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(limits.send_time))?;
    let frames = start_reading("tls-read", reader, limits, move |reader| {
        reader.shutdown();
        drop(place);
    })?;
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
        let bytes = check_frame(parts, self.sent_bytes, self.is_broken)?;
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
