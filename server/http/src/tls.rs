//! Sockets of clients, plain or with TLS.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use reprise_net_tls::Identity;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::{pipeline::answer::Answers, refusal::Refusal};

/// What a greeting of TLS begins with (RFC 8446, section 5.1: a record of the kind handshake).
const HANDSHAKE: u8 = 0x16;

/// A client's.
pub enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Greets a client within `wait_max`. None: it did not come to that; who speaks plain HTTP is told.
pub async fn greet(socket: TcpStream, own: Option<&Arc<Identity>>, wait_max: Duration) -> Option<Socket> {
    let Some(own) = own else {
        return Some(Socket::Plain(socket));
    };
    let greeted = timeout(wait_max, async {
        let mut first = [0];
        match socket.peek(&mut first).await {
            Ok(1) if first[0] == HANDSHAKE => TlsAcceptor::from(own.http()).accept(socket).await,
            Ok(1) => Err(tell_plain(socket).await),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => Err(error),
        }
    });
    match greeted.await {
        Ok(Ok(stream)) => Some(Socket::Tls(Box::new(stream))),
        Ok(Err(error)) => {
            tracing::debug!(%error, "greet a client");
            None
        }
        Err(_) => None,
    }
}

async fn tell_plain(mut socket: TcpStream) -> io::Error {
    let refusal = Refusal::malformed("this server speaks TLS alone: ask it by https://");
    let (mut out, mut body) = (Vec::new(), Vec::new());
    let mut answers = Answers {
        out: &mut out,
        body: &mut body,
        room: &mut None,
        staleness: None,
        safety: None,
    };
    answers.push_answer(refusal.answer(), true);
    let _ = socket.write_all(&out).await; // it may be gone
    let _ = socket.shutdown().await;
    // What it sent is read, or the kernel takes back the answer with the connection.
    let _ = tokio::io::copy(
        &mut tokio::io::AsyncReadExt::take(socket, 1 << 20),
        &mut tokio::io::sink(),
    )
    .await;
    io::Error::new(io::ErrorKind::InvalidData, "it speaks no TLS")
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }
}
