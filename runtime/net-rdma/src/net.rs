//! The source of connections: a greeting over TCP at the address that the servers know each other by, then RDMA.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use crossbeam_channel::bounded;
use reprise_env::{
    Connection, FrameMemory, Listener, Net, NetError, NetLimits, OpenSocket, bind_tcp, connect_tcp, entropy, greet_on,
};

use crate::{
    greeting::{self, Greeting, GreetingError},
    layout::{PIECES_MAX, PeerRing, RING_AT, ring_bytes},
    reader::FrameReceiver,
    sender::RdmaSender,
    shared::{Around, GreetedSocket, SharedPair, WRITES_MAX},
    verbs::{Ask, Card, QueuePair, VerbsError},
};

/// Longest time for a greeting that comes in.
const GREETING_TIME: Duration = Duration::from_secs(3);
/// Number of posted receives, with some to spare: one is posted again before its piece is reported as taken.
const RECEIVES_MAX: u32 = PIECES_MAX + 8;

/// Connections over a card.
#[derive(Clone)]
pub struct RdmaNet {
    card: Arc<dyn Card>,
    /// Path of the newest connection.
    path: Arc<Mutex<Option<String>>>,
}

impl RdmaNet {
    pub fn new(card: Arc<dyn Card>) -> Self {
        Self {
            card,
            path: Arc::default(),
        }
    }

    /// Makes the transport over the cards of this machine, or over the named one (`NAME`, or `NAME:INDEX` with the index of its GID).
    /// Returns a description, for people.
    pub fn of_this_machine(named: Option<&str>) -> Result<(Self, String), VerbsError> {
        let card = crate::cards::RealCard::new(named)?;
        let found = card.describe(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED))?;
        Ok((Self::new(Arc::new(card)), found))
    }

    /// Greets, and connects the queue pairs.
    fn connection_of(
        &self,
        mut stream: TcpStream,
        peer: SocketAddr,
        (limits, time): (NetLimits, Duration),
        place: Option<OpenSocket>,
    ) -> Result<Connection, NetError> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(time))?;
        let (local, own_ring_bytes) = (stream.local_addr()?.ip(), ring_bytes(limits.frame_bytes));
        let mut pair = match open_pair(&*self.card, local, own_ring_bytes) {
            Ok(pair) => pair,
            Err(error) => {
                // The peer is not to wait for it.
                let _ = stream.write_all(&greeting::refusal(&error.to_string()));
                return Err(NetError::Io(format!("RDMA: {error}")));
            }
        };
        let own = Greeting {
            pair: pair.address(),
            memory: pair.inbound(),
            ring_bytes: own_ring_bytes as u32,
            pieces_max: PIECES_MAX,
        };
        let mut timed = TimedStream {
            stream: &stream,
            until: Instant::now() + time,
        };
        let theirs = exchange(&mut timed, &mut *pair, &own).map_err(|error| greeting_failure(peer, &error))?;
        stream.set_nonblocking(true)?;
        *self.path.lock().expect("nothing panics under this lock") = self.card.describe(local).ok();
        let socket = GreetedSocket { stream, _place: place };
        let shared = SharedPair::new(pair, theirs.memory, Box::new(socket), Around::default());
        connection(shared, peer.to_string(), (own_ring_bytes, &theirs), limits)
    }
}

/// Returns both halves of a connected pair, with a ring of this many bytes.
pub(crate) fn connection(
    shared: SharedPair,
    peer: String,
    (own_ring_bytes, theirs): (usize, &Greeting),
    limits: NetLimits,
) -> Result<Connection, NetError> {
    let threads = shared.around.threads.clone();
    let shared = Arc::new(shared);
    let (frames_in, frames) = bounded(limits.frames_waiting);
    let sizes = (own_ring_bytes, limits.frame_bytes);
    let reader = FrameReceiver::new(shared.clone(), frames_in, sizes);
    threads.start_prompt("rdma-read", Box::new(move || Box::new(reader)))?;
    let theirs_bytes = theirs.ring_bytes as usize;
    let ring = PeerRing::new(theirs_bytes, theirs.pieces_max);
    let sender = RdmaSender::new(shared, ring, theirs_bytes, (limits.sent_bytes, limits.send_time));
    Ok(Connection {
        peer,
        sender: Box::new(sender),
        frames,
    })
}

impl Net for RdmaNet {
    fn transport(&self) -> &'static str {
        "rdma"
    }

    fn path(&self) -> Option<String> {
        self.path.lock().expect("nothing panics under this lock").clone()
    }

    fn frame_memory(&self, bytes: usize) -> Result<Option<Arc<dyn FrameMemory>>, NetError> {
        let memory = self.card.memory(bytes);
        memory.map(Some).map_err(|error| NetError::Io(format!("RDMA: {error}")))
    }

    fn listen(&self, address: &str, limits: NetLimits) -> Result<Listener, NetError> {
        let listener = bind_tcp(address)?;
        let found = self.card.describe(listener.local_addr()?.ip());
        let found = found.map_err(|error| NetError::Io(format!("RDMA: {error}")))?;
        *self.path.lock().expect("nothing panics under this lock") = Some(found);
        let own = self.clone();
        greet_on(listener, "rdma", move |stream, peer, place| {
            own.connection_of(stream, peer, (limits, GREETING_TIME), Some(place))
        })
    }

    fn connect(&self, address: &str, time: Duration, limits: NetLimits) -> Result<Connection, NetError> {
        let (stream, peer) = connect_tcp(address, time)?;
        self.connection_of(stream, peer, (limits, time), None)
    }
}

/// A stream whose reads together may take a limited time.
struct TimedStream<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl Read for TimedStream<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(bytes)
    }
}

impl Write for TimedStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn open_pair(
    card: &dyn Card,
    local: IpAddr,
    own_ring_bytes: usize,
) -> Result<Box<dyn QueuePair>, VerbsError> {
    let pair = card.pair(&Ask {
        local,
        inbound_bytes: RING_AT + own_ring_bytes,
        writes: WRITES_MAX,
        receives: RECEIVES_MAX,
    })?;
    for _ in 0..PIECES_MAX {
        pair.post_receive()?;
    }
    Ok(pair)
}

fn exchange(stream: &mut TimedStream<'_>, pair: &mut dyn QueuePair, own: &Greeting) -> Result<Greeting, GreetingError> {
    stream.write_all(&own.encode())?;
    let theirs = greeting::read(stream)?;
    let connected = pair.connect(&theirs.pair, RING_AT + theirs.ring_bytes as usize);
    connected.map_err(|error| GreetingError::Refused(error.to_string()))?;
    greeting::make_ready(stream)?;
    Ok(theirs)
}

fn greeting_failure(peer: SocketAddr, error: &GreetingError) -> NetError {
    match error {
        GreetingError::Refused(reason) => NetError::Io(format!("RDMA with {peer}: {reason}")),
        error => NetError::Io(format!("RDMA with {peer}: {error}")),
    }
}

/// Numbers of first packets differ, so that a late packet of an earlier connection is none of this one.
pub(crate) fn first_packet() -> Result<u32, VerbsError> {
    let drawn = entropy::<4>().map_err(|error| VerbsError::Failed {
        what: "draw a packet number",
        reason: error.to_string(),
    })?;
    Ok(u32::from_le_bytes(drawn) >> 8)
}
