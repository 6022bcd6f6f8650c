//! The socket of a connection. It disconnects a peer that takes nothing of its answer, and returns bytes that were read too far to the next
//! read.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

use crate::{limits::WRITE_BYTES_PER_S_MIN, tls::Socket};

/// Time for which a peer may still keep writes waiting. The bytes that it takes earn it more time, up to a limit.
struct Patience {
    max: Duration,
    left: Duration,
    /// Since when a write waits.
    since: Option<Instant>,
}

impl Patience {
    fn new(max: Duration) -> Self {
        Self {
            max,
            left: max,
            since: None,
        }
    }

    /// A write waits: how long it may.
    fn wait(&mut self, now: Instant) -> Duration {
        self.since.get_or_insert(now);
        self.left
    }

    /// Records that the peer took this many bytes.
    fn earn(&mut self, bytes: usize, now: impl FnOnce() -> Instant) {
        let Some(since) = self.since.take() else {
            return;
        };
        let earned = Duration::from_millis(bytes as u64 * 1000 / WRITE_BYTES_PER_S_MIN);
        let waited = now().duration_since(since);
        self.left = self.left.saturating_sub(waited).saturating_add(earned).min(self.max);
    }
}

/// A stream whose writes fail once they have waited for `wait_max`, minus the time that taken bytes have earned.
pub struct StallGuard {
    stream: Socket,
    patience: Patience,
    /// Bytes that come before the stream's.
    unread: Vec<u8>,
    /// Set while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl StallGuard {
    pub fn new(stream: Socket, wait_max: Duration) -> Self {
        Self {
            stream,
            patience: Patience::new(wait_max),
            unread: Vec::new(),
            stalled: None,
        }
    }

    /// Puts back bytes that were read. The next read begins with them.
    pub fn put_back(&mut self, bytes: Vec<u8>) {
        assert!(self.unread.is_empty(), "what was put back is read before the stream");
        self.unread = bytes;
    }

    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        progress: Poll<io::Result<T>>,
        bytes_of: impl FnOnce(&T) -> usize,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(done) = &progress {
            let bytes = done.as_ref().map_or(0, bytes_of);
            self.patience.earn(bytes, Instant::now);
            self.stalled = None;
            return progress;
        }
        let wait_max = self.patience.wait(Instant::now());
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(wait_max)));
        match stalled.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl AsyncRead for StallGuard {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.unread.is_empty() {
            let bytes = self.unread.len().min(buffer.remaining());
            buffer.put_slice(&self.unread[..bytes]);
            match bytes == self.unread.len() {
                true => self.unread = Vec::new(),
                false => _ = self.unread.drain(..bytes),
            }
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for StallGuard {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, progress, |bytes| *bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.watch(cx, progress, |bytes| *bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch(cx, progress, |()| 0)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_now_and_then_earns_no_time() {
        let begun = Instant::now();
        let (mut patience, mut now) = (Patience::new(Duration::from_secs(60)), begun);
        while !patience.wait(now).is_zero() {
            now += Duration::from_secs(5);
            patience.earn(1, || now);
        }
        assert_eq!(now - begun, Duration::from_secs(60));
    }

    #[test]
    fn client_that_reads_enough_may_take_long() {
        let begun = Instant::now();
        let (mut patience, mut now) = (Patience::new(Duration::from_secs(60)), begun);
        for _ in 0..1_000 {
            assert!(patience.wait(now) >= Duration::from_secs(30));
            now += Duration::from_secs(30);
            patience.earn(30 * WRITE_BYTES_PER_S_MIN as usize, || now);
        }
        // However much it took at once, it earned no more than it began with.
        patience.wait(now);
        patience.earn(1 << 30, || now);
        assert_eq!(patience.wait(now), Duration::from_secs(60));
    }
}
