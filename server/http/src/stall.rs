//! The socket of a connection. It disconnects a peer that takes nothing of its answer, and returns bytes that were read too far to the next
//! read. A stream with TLS accepts up to 64 KiB that it has not sent. So a flush and the end of the stream have the limit of a write.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

use crate::{limits::WRITE_BYTES_PER_S_MIN, tls::Socket};

/// Bytes that a stream with TLS accepts at most and has not sent.
const HELD_BYTES_MAX: usize = 64 << 10;

/// Time for which a peer may still keep the output waiting. The bytes that it takes earn it more time, up to a limit.
struct Patience {
    max: Duration,
    left: Duration,
    /// Begin of the wait of a write, a flush or a shutdown.
    since: Option<Instant>,
    /// Bytes that writes handed over without a wait since the last flush. A stream with TLS may not have sent them yet.
    unflushed: usize,
}

impl Patience {
    fn new(max: Duration) -> Self {
        Self {
            max,
            left: max,
            since: None,
            unflushed: 0,
        }
    }

    /// Records that the output waits. Returns how long it may: the time that is left, and the time for bytes that no flush has sent yet.
    fn wait(&mut self, now: Instant) -> Duration {
        self.since.get_or_insert(now);
        self.left + time_of(self.unflushed.min(HELD_BYTES_MAX))
    }

    /// Records that a write handed over this many bytes. They earn time now if the output had to wait, and otherwise with the next flush.
    /// No byte earns time twice.
    fn record_write(&mut self, bytes: usize, now: impl FnOnce() -> Instant) {
        match self.since.take() {
            Some(since) => self.earn(bytes, now().duration_since(since)),
            None => self.unflushed += bytes,
        }
    }

    /// Records that the stream has sent all that writes handed over. A flush that had nothing to send earns no time.
    fn record_flush(&mut self, now: impl FnOnce() -> Instant) {
        let bytes = std::mem::take(&mut self.unflushed);
        if let Some(since) = self.since.take() {
            self.earn(bytes, now().duration_since(since));
        }
    }

    /// Counts a wait that ended, and the bytes that the peer took for it.
    fn earn(&mut self, bytes: usize, waited: Duration) {
        let left = (self.left + time_of(bytes)).saturating_sub(waited);
        self.left = left.min(self.max);
    }
}

/// Returns the time that the slowest permitted peer needs for so many bytes.
fn time_of(bytes: usize) -> Duration {
    Duration::from_millis(bytes as u64 * 1000 / WRITE_BYTES_PER_S_MIN)
}

/// A stream whose writes, flushes and shutdown fail with `TimedOut` once they have waited for `wait_max`, and for the time that taken bytes
/// have earned.
pub struct StallGuard<S = Socket> {
    stream: S,
    patience: Patience,
    /// Bytes that come before the stream's.
    unread: Vec<u8>,
    /// Set while a write, a flush or a shutdown waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> StallGuard<S> {
    pub fn new(stream: S, wait_max: Duration) -> Self {
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

    /// Records the progress of the output. Fails with `TimedOut` if there is none and the peer has no time left.
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        progress: Poll<io::Result<T>>,
        record: impl FnOnce(&mut Patience, &T),
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(done) = &progress {
            if let Ok(done) = done {
                record(&mut self.patience, done);
            }
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

impl<S: AsyncWrite + Unpin> StallGuard<S> {
    /// Writes `bytes` from `written` on, then flushes the stream. Ready: the stream has sent them all. A stream with TLS may accept bytes and
    /// send them in a flush alone, so accepted bytes are not sent bytes. Err: the stream is broken, or the peer has no time left.
    pub fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8], written: &mut usize) -> Poll<io::Result<()>> {
        while *written < bytes.len() {
            match ready!(Pin::new(&mut *self).poll_write(cx, &bytes[*written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                accepted => *written += accepted,
            }
        }
        Pin::new(self).poll_flush(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
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

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, progress, |patience, bytes| {
            patience.record_write(*bytes, Instant::now)
        })
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.watch(cx, progress, |patience, bytes| {
            patience.record_write(*bytes, Instant::now)
        })
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch(cx, progress, |patience, ()| patience.record_flush(Instant::now))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.watch(cx, progress, |patience, ()| patience.record_flush(Instant::now))
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::{io::AsyncWriteExt, time::timeout};

    use super::*;

    /// A stream that buffers as TLS does: a write may succeed although the peer takes nothing.
    #[derive(Default)]
    struct BufferingStream {
        /// Bytes that were accepted and not sent.
        buffered: usize,
        /// Bytes that the peer still takes.
        room: usize,
        sent: usize,
    }

    const BUFFER_BYTES: usize = 8;

    impl BufferingStream {
        fn send_buffered(&mut self) {
            let bytes = self.buffered.min(self.room);
            self.buffered -= bytes;
            self.room -= bytes;
            self.sent += bytes;
        }
    }

    impl AsyncWrite for BufferingStream {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.send_buffered();
            let accepted = bytes.len().min(BUFFER_BYTES - self.buffered);
            self.buffered += accepted;
            match accepted {
                0 => Poll::Pending,
                _ => Poll::Ready(Ok(accepted)),
            }
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.send_buffered();
            match self.buffered {
                0 => Poll::Ready(Ok(())),
                _ => Poll::Pending,
            }
        }

        fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.poll_flush(cx)
        }
    }

    /// A wait that ends only by a mistake.
    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn bytes_count_as_sent_when_the_flush_has_ended() {
        let mut guard = StallGuard::new(BufferingStream::default(), LONG);
        let cx = &mut Context::from_waker(Waker::noop());
        let (bytes, mut written) = (b"an answer", 0);
        assert!(guard.poll_send(cx, bytes, &mut written).is_pending());
        assert_eq!((written, guard.stream.sent), (8, 0), "the buffer is full");
        guard.stream.room = 4;
        assert!(guard.poll_send(cx, bytes, &mut written).is_pending());
        assert_eq!(
            (written, guard.stream.sent),
            (9, 4),
            "all is accepted, and not all is sent"
        );
        assert!(guard.stalled.is_some(), "the flush is under watch");
        guard.stream.room = 5;
        assert!(matches!(guard.poll_send(cx, bytes, &mut written), Poll::Ready(Ok(()))));
        assert_eq!(guard.stream.sent, 9);
        assert!(guard.stalled.is_none());
    }

    #[tokio::test]
    async fn flush_and_shutdown_fail_when_the_peer_takes_nothing() {
        let mut guard = StallGuard::new(BufferingStream::default(), SHORT);
        guard.write_all(b"answer").await.expect("the buffer has room");
        let flushed = timeout(LONG, guard.flush()).await.expect("an end of the flush");
        assert_eq!(flushed.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));

        let mut guard = StallGuard::new(BufferingStream::default(), SHORT);
        guard.write_all(b"answer").await.expect("the buffer has room");
        let ended = timeout(LONG, guard.shutdown()).await.expect("an end of the shutdown");
        assert_eq!(ended.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
    }

    #[tokio::test]
    async fn shutdown_succeeds_when_the_peer_takes_the_rest() {
        let mut guard = StallGuard::new(BufferingStream::default(), LONG);
        guard.write_all(b"answer").await.expect("the buffer has room");
        guard.stream.room = 6;
        guard.shutdown().await.expect("all is sent");
        assert_eq!(guard.stream.sent, 6);
    }

    #[test]
    fn flush_earns_time_when_it_waited_for_bytes_that_a_write_handed_over() {
        let (mut patience, mut now) = (Patience::new(Duration::from_secs(60)), Instant::now());
        for _ in 0..1_000 {
            patience.record_write(30 * WRITE_BYTES_PER_S_MIN as usize, || now);
            assert!(patience.wait(now) >= Duration::from_secs(30));
            now += Duration::from_secs(30);
            patience.record_flush(|| now);
        }
        // A flush without bytes ends the wait and earns nothing.
        for left in [60, 30, 0] {
            assert_eq!(patience.wait(now), Duration::from_secs(left));
            now += Duration::from_secs(30);
            patience.record_flush(|| now);
        }
    }

    #[test]
    fn flush_may_take_the_time_of_its_bytes() {
        let (mut patience, now) = (Patience::new(Duration::from_secs(2)), Instant::now());
        patience.record_write(10 * WRITE_BYTES_PER_S_MIN as usize, || now);
        assert_eq!(patience.wait(now), Duration::from_secs(12));
        patience.record_flush(|| now + Duration::from_secs(11));
        assert_eq!(patience.wait(now), Duration::from_secs(1));
        // The socket has taken all but the last 64 KiB, which take 16 s.
        patience.record_flush(|| now);
        patience.record_write(1 << 20, || now);
        assert_eq!(patience.wait(now), Duration::from_secs(17));
    }

    #[test]
    fn a_byte_now_and_then_earns_no_time() {
        let begun = Instant::now();
        let (mut patience, mut now) = (Patience::new(Duration::from_secs(60)), begun);
        while !patience.wait(now).is_zero() {
            now += Duration::from_secs(5);
            patience.record_write(1, || now);
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
            patience.record_write(30 * WRITE_BYTES_PER_S_MIN as usize, || now);
        }
        // However much it took at once, it earned no more than it began with.
        patience.wait(now);
        patience.record_write(1 << 30, || now);
        assert_eq!(patience.wait(now), Duration::from_secs(60));
    }
}
