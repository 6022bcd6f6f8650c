//! Connections over one card in the caller's thread, for simulations. Their work is stepped, and there is no greeting over TCP.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crossbeam_channel::{Sender, bounded};
use reprise_env::{Clock, Connection, FrameMemory, Listener, Net, NetError, NetLimits, Threads};

use crate::{
    greeting::Greeting,
    layout::{PIECES_MAX, RING_AT, ring_bytes},
    net::{connection, open_pair},
    shared::{Around, Beside, SharedPair},
    verbs::{Card, QueuePair, VerbsError},
};

/// Number of accepted connections that wait for their taker at most.
const ACCEPTED_MAX: usize = 16;
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Connections between ends that share a card. Clones are the same.
#[derive(Clone)]
pub struct SteppedNet {
    card: Arc<dyn Card>,
    around: Around,
    state: Arc<Mutex<SteppedNetState>>,
}

#[derive(Default)]
struct SteppedNetState {
    listeners: BTreeMap<String, (Sender<Connection>, NetLimits)>,
    /// The flag of each connection that may not have ended.
    joined: Vec<Arc<AtomicBool>>,
}

/// A word that both ends of a connection have: it is over.
struct OverFlag(Arc<AtomicBool>);

impl Beside for OverFlag {
    fn end(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_peer_there(&self) -> bool {
        !self.0.load(Ordering::Acquire)
    }
}

impl Drop for OverFlag {
    fn drop(&mut self) {
        self.end();
    }
}

/// Closes a listener when it is dropped.
struct Open(SteppedNet, String);

impl Drop for Open {
    fn drop(&mut self) {
        // Connections without a taker end outside of the lock.
        let closed = self.0.state().listeners.remove(&self.1);
        drop(closed);
    }
}

impl SteppedNet {
    /// `threads` share the caller's, as those of a `Stepper` do.
    pub fn new(card: Arc<dyn Card>, clock: Arc<dyn Clock>, threads: Arc<dyn Threads>) -> Self {
        Self {
            card,
            around: Around {
                clock,
                threads,
                // A process that is killed has no time.
                last_time: Duration::ZERO,
            },
            state: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, SteppedNetState> {
        self.state.lock().expect("nothing panics under this lock")
    }

    /// Each end of each connection sees that the other one is gone.
    pub fn break_all(&self) {
        for joined in self.state().joined.drain(..) {
            joined.store(true, Ordering::Release);
        }
    }

    /// Makes an end without a peer, and the greeting by which its peer finds it.
    fn end(&self, limits: &NetLimits) -> Result<(Box<dyn QueuePair>, Greeting), VerbsError> {
        let ring_bytes = ring_bytes(limits.frame_bytes);
        let pair = open_pair(&*self.card, HERE, ring_bytes)?;
        let greeting = Greeting {
            pair: pair.address(),
            memory: pair.inbound(),
            ring_bytes: ring_bytes as u32,
            pieces_max: PIECES_MAX,
        };
        Ok((pair, greeting))
    }

    /// Both ends, connected.
    fn join(&self, near: NetLimits, far: NetLimits) -> Result<(Connection, Connection), NetError> {
        let failed = |error: VerbsError| NetError::Io(format!("RDMA: {error}"));
        let (mut one, at_one) = self.end(&near).map_err(failed)?;
        let (mut other, at_other) = self.end(&far).map_err(failed)?;
        let bytes = |of: &Greeting| RING_AT + of.ring_bytes as usize;
        one.connect(&at_other.pair, bytes(&at_other)).map_err(failed)?;
        other.connect(&at_one.pair, bytes(&at_one)).map_err(failed)?;
        let is_over = Arc::<AtomicBool>::default();
        let mut state = self.state();
        state.joined.retain(|joined| !joined.load(Ordering::Acquire));
        state.joined.push(is_over.clone());
        drop(state);
        let shared = |pair, peer: &Greeting| {
            let beside = Box::new(OverFlag(is_over.clone()));
            SharedPair::new(pair, peer.memory, beside, self.around.clone())
        };
        let name = || "the other end".to_owned();
        let sizes = (at_one.ring_bytes as usize, &at_other);
        let one = connection(shared(one, &at_other), name(), sizes, near)?;
        let sizes = (at_other.ring_bytes as usize, &at_one);
        let other = connection(shared(other, &at_one), name(), sizes, far)?;
        Ok((one, other))
    }
}

impl Net for SteppedNet {
    fn transport(&self) -> &'static str {
        "rdma"
    }

    fn frame_memory(&self, bytes: usize) -> Result<Option<Arc<dyn FrameMemory>>, NetError> {
        let memory = self.card.memory(bytes);
        memory.map(Some).map_err(|error| NetError::Io(format!("RDMA: {error}")))
    }

    fn listen(&self, address: &str, limits: NetLimits) -> Result<Listener, NetError> {
        let (sender, accepted) = bounded(ACCEPTED_MAX);
        let mut state = self.state();
        if state.listeners.contains_key(address) {
            return Err(NetError::Io(format!("somebody listens at {address}")));
        }
        state.listeners.insert(address.to_owned(), (sender, limits));
        let open = Open(self.clone(), address.to_owned());
        Ok(Listener::new(address.to_owned(), accepted, Box::new(open)))
    }

    fn connect(&self, address: &str, _: Duration, limits: NetLimits) -> Result<Connection, NetError> {
        let listener = self.state().listeners.get(address).cloned();
        let Some((accepting, theirs)) = listener else {
            return Err(NetError::Unreachable(format!("nobody listens at {address}")));
        };
        let (own, accepted) = self.join(limits, theirs)?;
        match accepting.try_send(accepted) {
            Ok(()) => Ok(own),
            Err(_) => Err(NetError::Unreachable(format!("nobody accepts at {address}"))),
        }
    }
}
