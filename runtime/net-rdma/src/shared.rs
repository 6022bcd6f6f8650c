//! The shared state of the two halves of one connection: the queue pair, the writes in flight, and the reason of its end.

use std::{
    collections::VecDeque,
    net::{Shutdown, TcpStream},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use reprise_env::{Clock, NetError, OpenSocket, RealClock, RealThreads, SharedFrame, Threads};

use crate::{
    layout::{PIECES_MAX, RING_BYTES_MAX},
    verbs::{Completion, CompletionQueue, QueuePair, RemoteMemory, Write},
};

/// Number of writes that may be in flight: two for each piece, because a ring wraps, and some that report taken pieces.
pub(crate) const WRITES_MAX: u32 = 2 * PIECES_MAX + 64;
/// One of this many writes is signalled. Its completion counts for those before it.
const SIGNALLED_EVERY: u64 = 16;
/// Number of bytes after which a write is signalled, too. The memory that was sent from is held until then.
const SIGNALLED_BYTES: usize = 1 << 20;
/// Bytes of shared frames that may be on their way. A ring and the late signals are less. A peer reaches the limit if it reports pieces
/// taken that its card does not confirm.
const HELD_BYTES_MAX: usize = 2 * RING_BYTES_MAX;
/// The sender is there.
const NOT_GONE: u64 = u64::MAX;

/// The threads and the clock of a connection.
#[derive(Clone)]
pub(crate) struct Around {
    pub clock: Arc<dyn Clock>,
    pub threads: Arc<dyn Threads>,
    /// The time for sent bytes to arrive after the end.
    pub last_time: Duration,
}

impl Default for Around {
    fn default() -> Self {
        Self {
            clock: Arc::new(RealClock::new()),
            threads: Arc::new(RealThreads),
            last_time: Duration::from_millis(500),
        }
    }
}

/// The peer's state beside the card.
pub(crate) trait Beside: Send + Sync {
    /// The peer learns that the connection is over.
    fn end(&self);
    /// False once the peer has closed the connection.
    fn is_peer_there(&self) -> bool;
}

/// The socket over which the peer was greeted. No byte follows on it: it ends when the peer is gone.
pub(crate) struct GreetedSocket {
    pub stream: TcpStream,
    /// The place at the listener. None for a socket that connected.
    pub _place: Option<OpenSocket>,
}

impl Beside for GreetedSocket {
    fn end(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn is_peer_there(&self) -> bool {
        let peeked = self.stream.peek(&mut [0]);
        peeked.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }
}

/// The pair is given back before the frames that it may read: the order of the fields.
pub(crate) struct SharedPair {
    pub pair: Box<dyn QueuePair>,
    /// The peer's memory that this end may write.
    pub peer: RemoteMemory,
    writes: Mutex<Writes>,
    over: OnceLock<NetError>,
    /// Time of the connection's clock.
    sender_gone_ns: AtomicU64,
    beside: Box<dyn Beside>,
    pub around: Around,
}

struct Writes {
    next: u64,
    done: u64,
    /// Since the last one that is signalled.
    unsignalled_bytes: usize,
    /// Memory that the card may still read.
    held: VecDeque<SentFrame>,
    held_bytes: usize,
}

/// A frame that was sent from.
struct SentFrame {
    /// The number of the last write.
    last: u64,
    /// That were sent from it.
    bytes: usize,
    _frame: SharedFrame,
}

impl Writes {
    fn has_room(&self, needed: u64, held_bytes: usize) -> bool {
        let is_short = self.next - self.done + needed <= u64::from(WRITES_MAX);
        is_short && (held_bytes == 0 || self.held_bytes + held_bytes <= HELD_BYTES_MAX)
    }
}

impl SharedPair {
    pub fn new(pair: Box<dyn QueuePair>, peer: RemoteMemory, beside: Box<dyn Beside>, around: Around) -> Self {
        Self {
            pair,
            peer,
            writes: Mutex::new(Writes {
                next: 0,
                done: 0,
                unsignalled_bytes: 0,
                held: VecDeque::with_capacity(WRITES_MAX as usize),
                held_bytes: 0,
            }),
            over: OnceLock::new(),
            sender_gone_ns: AtomicU64::new(NOT_GONE),
            beside,
            around,
        }
    }

    /// Checks that the connection has not ended. Err: why it has.
    pub fn check(&self) -> Result<(), NetError> {
        match self.over.get() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// The connection is over; the first reason stays. The peer learns it, too.
    pub fn end(&self, error: NetError) -> NetError {
        let error = self.over.get_or_init(|| error).clone();
        self.beside.end();
        error
    }

    pub fn fail(&self, reason: impl std::fmt::Display) -> NetError {
        self.end(NetError::Io(format!("RDMA: {reason}")))
    }

    pub fn sender_is_gone(&self) {
        let now_ns = self.around.clock.monotonic_ns();
        self.sender_gone_ns.store(now_ns, Ordering::Release);
    }

    /// Since when, by the connection's clock; None: it is there.
    pub fn sender_gone_ns(&self) -> Option<u64> {
        let gone_ns = self.sender_gone_ns.load(Ordering::Acquire);
        (gone_ns != NOT_GONE).then_some(gone_ns)
    }

    /// False once the peer has closed the connection.
    pub fn is_peer_there(&self) -> bool {
        self.beside.is_peer_there()
    }

    /// Posts all of these, in order; a frame that they send from is held until they are done. False: too many are on their way, or too
    /// much of frames, and nothing was posted.
    pub fn post(&self, writes: &[Write], is_last: bool, frame: Option<&SharedFrame>) -> Result<bool, NetError> {
        let mut queue = self.writes.lock().expect("nothing panics under this lock");
        let needed = writes.len() as u64;
        let bytes = writes.iter().map(|write| write.shared.bytes).sum();
        if !queue.has_room(needed, bytes) {
            self.poll_into(&mut queue)?;
            if !queue.has_room(needed, bytes) {
                return Ok(false);
            }
        }
        if let Some(frame) = frame {
            // Before the first write: whatever comes of them, the card may read it.
            let last = queue.next + needed - 1;
            queue.held.push_back(SentFrame {
                last,
                bytes,
                _frame: frame.clone(),
            });
            queue.held_bytes += bytes;
        }
        for (at, write) in writes.iter().enumerate() {
            let number = queue.next;
            queue.unsignalled_bytes += write.bytes();
            let is_due = (number + 1).is_multiple_of(SIGNALLED_EVERY) || queue.unsignalled_bytes >= SIGNALLED_BYTES;
            let is_signalled = is_due || is_last && at + 1 == writes.len();
            if is_signalled {
                queue.unsignalled_bytes = 0;
            }
            let write = Write {
                number,
                is_signalled,
                ..*write
            };
            self.pair.post_write(&write).map_err(|error| self.fail(error))?;
            queue.next += 1;
        }
        Ok(true)
    }

    /// Reads the completions of own writes. True: by these, none is in flight. The other half may have found a failure just before, which a
    /// later `check` reports.
    pub fn poll_sent(&self) -> Result<bool, NetError> {
        let mut queue = self.writes.lock().expect("nothing panics under this lock");
        self.poll_into(&mut queue)?;
        Ok(queue.done == queue.next)
    }

    fn poll_into(&self, queue: &mut Writes) -> Result<(), NetError> {
        let mut completions = [Completion::default(); 16];
        loop {
            let found = self.pair.poll(CompletionQueue::Sent, &mut completions);
            let found = found.map_err(|error| self.fail(error))?;
            for completion in &completions[..found] {
                if let Some(failure) = completion.failure {
                    return Err(self.fail(format_args!("a write to the peer failed: {failure}")));
                }
                if completion.number >= queue.next {
                    return Err(self.fail("the card completed a write that was not posted"));
                }
                queue.done = queue.done.max(completion.number + 1);
            }
            while let Some(done) = queue.held.pop_front_if(|held| held.last < queue.done) {
                queue.held_bytes -= done.bytes;
            }
            if found < completions.len() {
                return Ok(());
            }
        }
    }
}
