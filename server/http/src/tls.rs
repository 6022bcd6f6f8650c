//! Sockets of clients, plain or with TLS.

use std::{io, sync::Arc, time::Duration};

use reprise_net_tls::Identity;
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::either::Either;

use crate::{pipeline::answer::last_answer, refusal::Refusal};

/// The first byte of a TLS greeting (RFC 8446, section 5.1: a record of the kind handshake).
const HANDSHAKE: u8 = 0x16;

/// A client's: plain, or with TLS.
pub type Socket = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Completes a client's handshake within `wait_max`. None: there was no handshake. A client that speaks plain HTTP gets an answer that says
/// so.
pub async fn greet(socket: TcpStream, own: Option<&Arc<Identity>>, wait_max: Duration) -> Option<Socket> {
    let Some(own) = own else {
        return Some(Either::Left(socket));
    };
    let greeted = timeout(wait_max, async {
        let mut first = [0];
        match socket.peek(&mut first).await {
            Ok(1) if first[0] == HANDSHAKE => TlsAcceptor::from(own.http()).accept(socket).await,
            Ok(1) => Err(answer_plain(socket).await),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => Err(error),
        }
    });
    match greeted.await {
        Ok(Ok(stream)) => Some(Either::Right(Box::new(stream))),
        Ok(Err(error)) => {
            tracing::debug!(%error, "greet a client");
            None
        }
        Err(_) => None,
    }
}

async fn answer_plain(mut socket: TcpStream) -> io::Error {
    let refusal = Refusal::malformed("this server takes TLS connections only: use https://");
    let _ = socket.write_all(&last_answer(&refusal)).await; // the peer may have gone
    let _ = socket.shutdown().await;
    // The client's bytes must be read, or the kernel drops the answer with the connection.
    let _ = tokio::io::copy(
        &mut tokio::io::AsyncReadExt::take(socket, 1 << 20),
        &mut tokio::io::sink(),
    )
    .await;
    io::Error::new(io::ErrorKind::InvalidData, "it speaks no TLS")
}
