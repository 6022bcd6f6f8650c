//! A network in one process that delays frames, breaks connections, and parts hosts from each other, by a seed.
//!
//! A connection keeps the order of its frames, as TCP does, and loses frames only when it ends. Of two connections either may be
//! faster.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use crate::{
    clock::Clock,
    net::{Connection, FrameSender, Listener, Net, NetError, NetLimits},
    sim::FaultRandom,
    simclock::SimClock,
    threads::{Step, Work},
};

/// Accepted connections that no one has taken yet, at most.
const ACCEPTED_MAX: usize = 16;
/// Bytes on their way in one direction at most: beyond them a sender's time is over.
const BYTES_ON_THE_WAY_MAX: usize = 4 << 20;

/// How the network behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetFaults {
    /// Microseconds that a frame takes: at least, at most.
    pub delay_us: (u64, u64),
    /// Frames in a thousand that end their connection instead of arriving.
    pub breaks_per_mille: u64,
}

impl Default for NetFaults {
    fn default() -> Self {
        Self {
            delay_us: (20, 200),
            breaks_per_mille: 0,
        }
    }
}

/// Changes a frame that one host sends to another: its sender, its receiver, its bytes. A test of the tests gives a node a bug by it.
pub type FrameForger = Box<dyn FnMut(&str, &str, Vec<u8>) -> Vec<u8> + Send>;

/// The network. Clones are the same one.
#[derive(Clone)]
pub struct SimNet {
    clock: Arc<SimClock>,
    state: Arc<Mutex<SimNetState>>,
}

/// The network as one host has it.
#[derive(Clone)]
pub struct SimHost {
    net: SimNet,
    name: String,
}

struct SimNetState {
    random: FaultRandom,
    faults: NetFaults,
    listeners: BTreeMap<String, (Sender<Connection>, NetLimits)>,
    pipes: BTreeMap<u64, SimPipe>,
    next_pipe: u64,
    next_port: u16,
    /// Pairs of hosts (from, to) between which no frame arrives.
    cut: BTreeSet<(String, String)>,
    /// None: frames arrive as they were sent.
    forger: Option<FrameForger>,
}

/// Hosts at both ends of a direction, and its number.
struct PipeEnds<'a> {
    number: u64,
    /// The number of the other direction.
    back: u64,
    from: &'a str,
    to: &'a str,
}

/// One direction of a connection: frames on their way.
struct SimPipe {
    from: String,
    to: String,
    /// The connection's other direction.
    back: u64,
    frames: VecDeque<(u64, Vec<u8>)>,
    bytes: usize,
    last_due_ns: u64,
    /// None once the receiver is to notice the end.
    sender: Option<Sender<Vec<u8>>>,
    /// True when nothing more is sent. Frames on their way still arrive.
    is_closed: bool,
    frame_bytes_max: usize,
}

impl SimNet {
    /// A network without faults; `seed` decides delays and losses.
    pub fn new(seed: u64, clock: Arc<SimClock>) -> Self {
        let state = SimNetState {
            random: FaultRandom::new(seed),
            faults: NetFaults::default(),
            listeners: BTreeMap::new(),
            pipes: BTreeMap::new(),
            next_pipe: 0,
            next_port: 1,
            cut: BTreeSet::new(),
            forger: None,
        };
        Self {
            clock,
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// The network as the host of this name has it.
    pub fn host(&self, name: &str) -> SimHost {
        SimHost {
            net: self.clone(),
            name: name.to_owned(),
        }
    }

    fn state(&self) -> MutexGuard<'_, SimNetState> {
        self.state.lock().expect("nothing panics under this lock")
    }

    /// Sets the faults of later frames.
    pub fn set_faults(&self, faults: NetFaults) {
        self.state().faults = faults;
    }

    /// Has every later frame changed before it is sent.
    pub fn set_forger(&self, forger: FrameForger) {
        self.state().forger = Some(forger);
    }

    /// Blocks all frames from `from` to `to`, and neither notices: half of a partition. Frames sent meanwhile arrive once it is
    /// healed.
    pub fn cut(&self, from: &str, to: &str) {
        self.state().cut.insert((from.to_owned(), to.to_owned()));
    }

    /// Both directions at once.
    pub fn part(&self, one: &str, other: &str) {
        self.cut(one, other);
        self.cut(other, one);
    }

    /// True if frames of `from` arrive at `to`.
    pub fn reaches(&self, from: &str, to: &str) -> bool {
        !self.state().cut.contains(&(from.to_owned(), to.to_owned()))
    }

    /// Heals the way between two hosts, in both directions.
    pub fn heal(&self, one: &str, other: &str) {
        let mut state = self.state();
        state.cut.remove(&(one.to_owned(), other.to_owned()));
        state.cut.remove(&(other.to_owned(), one.to_owned()));
    }

    /// Ends all connections between two hosts. Frames on their way are lost.
    pub fn break_between(&self, one: &str, other: &str) {
        let mut state = self.state();
        let is_between =
            |pipe: &SimPipe| (pipe.from == one && pipe.to == other) || (pipe.from == other && pipe.to == one);
        state.pipes.retain(|_, pipe| !is_between(pipe));
    }

    /// The host's process is gone: its listeners and connections end.
    pub fn kill(&self, host: &str) {
        let mut state = self.state();
        state.pipes.retain(|_, pipe| pipe.from != host && pipe.to != host);
        let listeners = std::mem::take(&mut state.listeners);
        let (gone, left) = listeners.into_iter().partition(|(address, _)| host_of(address) == host);
        state.listeners = left;
        // Dropped outside the lock: connections that were never taken lock it when they end.
        drop(state);
        drop::<BTreeMap<_, _>>(gone);
    }

    /// Delivers due frames. True if there were any.
    pub fn deliver(&self) -> bool {
        let now = self.clock.monotonic_ns();
        let mut state = self.state();
        let state = &mut *state;
        let mut is_moved = false;
        let mut ended = Vec::new();
        for (number, pipe) in &mut state.pipes {
            if !state.cut.contains(&(pipe.from.clone(), pipe.to.clone())) {
                is_moved |= pipe.deliver(now);
            }
            if pipe.sender.is_none() {
                ended.push(*number);
            }
        }
        for number in ended {
            // The peer can't send to a node that is gone.
            if let Some(pipe) = state.pipes.remove(&number)
                && let Some(back) = state.pipes.get_mut(&pipe.back)
            {
                back.is_closed |= back.frames.is_empty();
            }
        }
        is_moved
    }

    /// Delivers, a step at a time.
    pub fn work(&self) -> Box<dyn Work> {
        Box::new(Delivery(self.clone()))
    }
}

struct Delivery(SimNet);

impl Work for Delivery {
    fn run(self: Box<Self>) {
        unreachable!("a simulated network is stepped");
    }

    fn step(&mut self) -> Step {
        match self.0.deliver() {
            true => Step::Done,
            false => Step::Idle,
        }
    }
}

impl SimPipe {
    fn deliver(&mut self, now: u64) -> bool {
        let mut is_moved = false;
        while let Some((due, _)) = self.frames.front()
            && *due <= now
            && let Some(sender) = &self.sender
        {
            let (due, frame) = self.frames.pop_front().expect("checked above");
            let bytes = frame.len();
            match sender.try_send(frame) {
                Ok(()) => self.bytes -= bytes,
                Err(TrySendError::Full(frame)) => {
                    self.frames.push_front((due, frame));
                    return is_moved;
                }
                Err(TrySendError::Disconnected(_)) => self.sender = None,
            }
            is_moved = true;
        }
        if self.is_closed && self.frames.is_empty() && self.sender.take().is_some() {
            is_moved = true;
        }
        is_moved
    }
}

fn host_of(address: &str) -> &str {
    address.split(':').next().unwrap_or(address)
}

/// Sends into one direction of a connection.
struct SimSender {
    net: SimNet,
    pipe: u64,
    sent_bytes: usize,
}

impl FrameSender for SimSender {
    fn send(&mut self, parts: &[&[u8]]) -> Result<(), NetError> {
        let now = self.net.clock.monotonic_ns();
        let mut state = self.net.state();
        let state = &mut *state;
        let faults = state.faults;
        let Some(pipe) = state.pipes.get_mut(&self.pipe).filter(|pipe| !pipe.is_closed) else {
            return Err(NetError::Closed);
        };
        let mut frame = parts.concat();
        if let Some(forge) = &mut state.forger {
            frame = forge(&pipe.from, &pipe.to, frame);
        }
        if frame.len() > self.sent_bytes {
            let (bytes, max) = (frame.len(), self.sent_bytes);
            return Err(NetError::TooLarge { bytes, max });
        }
        let is_refused = frame.len() > pipe.frame_bytes_max;
        let is_broken = state.random.below(1000) < faults.breaks_per_mille || is_refused;
        if is_broken || pipe.bytes + frame.len() > BYTES_ON_THE_WAY_MAX {
            let back = pipe.back;
            state.pipes.remove(&self.pipe);
            state.pipes.remove(&back);
            return Err(if is_broken {
                NetError::Closed
            } else {
                NetError::TimedOut
            });
        }
        let (least, most) = faults.delay_us;
        let delay = least + state.random.below(most.saturating_sub(least) + 1);
        pipe.last_due_ns = pipe.last_due_ns.max(now + delay * 1_000);
        pipe.bytes += frame.len();
        pipe.frames.push_back((pipe.last_due_ns, frame));
        Ok(())
    }
}

impl Drop for SimSender {
    fn drop(&mut self) {
        if let Some(pipe) = self.net.state().pipes.get_mut(&self.pipe) {
            pipe.is_closed = true;
        }
    }
}

impl Net for SimHost {
    fn listen(&self, address: &str, limits: NetLimits) -> Result<Listener, NetError> {
        let mut state = self.net.state();
        let mut address = address.to_owned();
        if address.ends_with(":0") {
            address = format!("{}:{}", self.name, state.next_port);
            state.next_port += 1;
        }
        let is_ours = host_of(&address) == self.name;
        if !is_ours || state.listeners.contains_key(&address) {
            return Err(NetError::Io(format!("{} can't listen at {address}", self.name)));
        }
        let (sender, accepted) = bounded(ACCEPTED_MAX);
        state.listeners.insert(address.clone(), (sender, limits));
        let open = SimListener {
            net: self.net.clone(),
            address: address.clone(),
        };
        Ok(Listener {
            address,
            accepted,
            _open: Box::new(open),
        })
    }

    fn connect(&self, address: &str, _: Duration, limits: NetLimits) -> Result<Connection, NetError> {
        let mut state = self.net.state();
        let host = host_of(address).to_owned();
        let is_cut = |from: &str, to: &str| state.cut.contains(&(from.to_owned(), to.to_owned()));
        if is_cut(&self.name, &host) || is_cut(&host, &self.name) {
            return Err(NetError::TimedOut);
        }
        let Some((accepting, theirs)) = state.listeners.get(address).cloned() else {
            return Err(NetError::Unreachable(format!("nobody listens at {address}")));
        };
        let (there, back) = (state.next_pipe, state.next_pipe + 1);
        state.next_pipe += 2;
        let ends = |number, back, from, to| PipeEnds { number, back, from, to };
        let frames_there = state.add_pipe(ends(there, back, &self.name, &host), theirs);
        let frames_back = state.add_pipe(ends(back, there, &host, &self.name), limits);
        let end = |pipe, peer: &str, frames, limits: NetLimits| Connection {
            peer: peer.to_owned(),
            sender: Box::new(SimSender {
                net: self.net.clone(),
                pipe,
                sent_bytes: limits.sent_bytes,
            }),
            frames,
        };
        let accepted = accepting.try_send(end(back, &self.name, frames_there, theirs));
        let mine = end(there, address, frames_back, limits);
        // Ends of connections take the lock when they go.
        drop(state);
        match accepted {
            Ok(()) => Ok(mine),
            Err(_) => Err(NetError::TimedOut),
        }
    }
}

impl SimNetState {
    /// Makes one direction of a connection, whose receiver has these limits.
    fn add_pipe(&mut self, ends: PipeEnds<'_>, limits: NetLimits) -> Receiver<Vec<u8>> {
        let (sender, frames) = bounded(limits.frames_waiting);
        let pipe = SimPipe {
            from: ends.from.to_owned(),
            to: ends.to.to_owned(),
            back: ends.back,
            frames: VecDeque::new(),
            bytes: 0,
            last_due_ns: 0,
            sender: Some(sender),
            is_closed: false,
            frame_bytes_max: limits.frame_bytes,
        };
        self.pipes.insert(ends.number, pipe);
        frames
    }
}

struct SimListener {
    net: SimNet,
    address: String,
}

impl Drop for SimListener {
    fn drop(&mut self) {
        // Dropped outside the lock: connections that were never taken lock it when they end.
        let taken = self.net.state().listeners.remove(&self.address);
        drop(taken);
    }
}
