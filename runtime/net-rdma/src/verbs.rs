//! The interface to a card: a queue pair with two memories, one that the peer writes and one that this end sends from.

use std::{net::IpAddr, sync::Arc, time::Duration};

use reprise_env::FrameMemory;

/// Why a card refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerbsError {
    /// rdma-core is not installed.
    #[error("rdma-core can't be loaded ({reason}): install it (Debian: libibverbs1 ibverbs-providers)")]
    NoLibrary { reason: String },
    /// No card, or none that fits.
    #[error("{0}")]
    NoDevice(String),
    #[error("{what}: {reason}")]
    Failed { what: &'static str, reason: String },
}

/// A card of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardSeen {
    pub name: String,
    /// Each address of its ports that are up: port, GID, MTU and link layer, for people. Err: it can't be used.
    pub ports: Result<Vec<String>, VerbsError>,
}

/// A queue pair as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The address of this end: the card's port is the one that has it.
    pub local: IpAddr,
    /// Bytes of the memory that the peer writes.
    pub inbound_bytes: usize,
    /// Writes that may be on their way.
    pub writes: u32,
    /// Receives that may be posted.
    pub receives: u32,
}

/// A queue pair, as its peer finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairAddress {
    pub queue_pair: u32,
    /// Number of the first packet.
    pub first_packet: u32,
    /// InfiniBand's local address; 0 on Ethernet.
    pub lid: u16,
    /// The MTU in the numbers of verbs: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    pub gid: [u8; 16],
}

/// Memory that a peer may write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteMemory {
    pub address: u64,
    pub key: u32,
}

/// Bytes of a memory, from an offset on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySpan {
    pub at: usize,
    pub bytes: usize,
}

/// An RDMA Write, with an immediate value or without: bytes of the outbound memory, and behind them bytes of the shared one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Told again by its completion.
    pub number: u64,
    pub own: MemorySpan,
    pub shared: MemorySpan,
    pub to: RemoteMemory,
    /// The immediate value. With one, the write takes a receive at the peer, which gets a completion.
    pub immediate: Option<u32>,
    /// False: it completes without a word, unless it fails.
    pub is_signalled: bool,
}

impl Write {
    pub fn bytes(&self) -> usize {
        self.own.bytes + self.shared.bytes
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionQueue {
    /// Completions of own writes.
    Sent,
    /// Completions of receives.
    Received,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    pub number: u64,
    pub immediate: Option<u32>,
    /// None: it went well.
    pub failure: Option<&'static str>,
}

/// A card, or what stands for one.
pub trait Card: Send + Sync {
    /// Card, port and address that would be used from `local`, for people.
    fn describe(&self, local: IpAddr) -> Result<String, VerbsError>;

    /// Makes a queue pair that takes receives and has no peer yet.
    fn pair(&self, ask: &Ask) -> Result<Box<dyn QueuePair>, VerbsError>;

    /// Memory from which all of its pairs can send.
    fn memory(&self, bytes: usize) -> Result<Arc<dyn FrameMemory>, VerbsError>;
}

/// A reliable queue pair. Dropped, it gives back everything that it has of the card.
pub trait QueuePair: Send + Sync {
    fn address(&self) -> PairAddress;

    /// Returns the memory that the peer may write.
    fn inbound(&self) -> RemoteMemory;

    /// Connects, with so much memory to send from.
    fn connect(&mut self, peer: &PairAddress, outbound_bytes: usize) -> Result<(), VerbsError>;

    /// Registers memory of the card, to be sent from beside the outbound one. Once; the pair keeps it.
    fn attach(&self, memory: &Arc<dyn FrameMemory>) -> Result<(), VerbsError>;

    /// Puts bytes into the outbound memory. It panics if they do not fit.
    fn put(&self, at: usize, bytes: &[u8]);

    /// Reads the inbound memory, which the peer may write meanwhile. It panics if the memory is too short.
    fn get(&self, at: usize, bytes: &mut [u8]);

    /// A word of the inbound memory, whole. `at` is a multiple of 8.
    fn word(&self, at: usize) -> u64;

    fn post_write(&self, write: &Write) -> Result<(), VerbsError>;

    /// A receive without memory: for a write with an immediate value.
    fn post_receive(&self) -> Result<(), VerbsError>;

    /// Takes completions that are there; how many.
    fn poll(&self, queue: CompletionQueue, completions: &mut [Completion]) -> Result<usize, VerbsError>;

    /// The next received completion ends a `wait`. Call it before the last poll of the queue.
    fn arm(&self) -> Result<(), VerbsError>;

    /// Sleeps until a completion arrives after it was armed, for at most `time`.
    fn wait(&self, time: Duration) -> Result<(), VerbsError>;
}
