//! The cost of a group commit for the primary beside the log's own write. It is the frame's head with its checksum, one copy into the
//! memory that is sent from, and one work request for each standby. The card does nothing, so all of it is this program's.
//!
//! `commits [STANDBYS] [BYTES] [COMMITS]`; exact counts by
//! `valgrind --tool=callgrind --toggle-collect='*commit_once*' target/release/reprise-bench-engine commits 1 4096 10000`.

use std::{
    collections::VecDeque,
    error::Error,
    hint::black_box,
    net::IpAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use reprise_base::{Epoch, Lsn};
use reprise_env::{Connection, FrameBuffer, FrameMemory, FramePoster, Net, NetLimits};
use reprise_net_rdma::{
    Ask, Card, Completion, CompletionQueue, PairAddress, QueuePair, RdmaNet, RemoteMemory, VerbsError, Write,
};
use reprise_wire::{GroupFrame, History};

use crate::Args;

const SECOND: Duration = Duration::from_secs(1);
const BUFFER_BYTES: usize = 20 << 20;
const LIMITS: NetLimits = NetLimits {
    frame_bytes: 1 << 20,
    sent_bytes: 8 << 20,
    frames_waiting: 4,
    send_time: SECOND,
};

/// Counts work requests, and says at once that all of them are done and taken.
#[derive(Default)]
struct IdleCard {
    requests: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
}

struct IdlePair {
    requests: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
    pieces: AtomicU64,
    done: Mutex<VecDeque<u64>>,
}

struct PlainMemory(Mutex<Box<[u8]>>);

impl FrameMemory for PlainMemory {
    fn bytes(&self) -> usize {
        self.0.lock().expect("whole").len()
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        self.0.lock().expect("whole")[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Card for IdleCard {
    fn describe(&self, local: IpAddr) -> Result<String, VerbsError> {
        Ok(format!("an idle card at {local}"))
    }

    fn pair(&self, _: &Ask) -> Result<Box<dyn QueuePair>, VerbsError> {
        Ok(Box::new(IdlePair {
            requests: self.requests.clone(),
            bytes: self.bytes.clone(),
            pieces: AtomicU64::new(0),
            done: Mutex::new(VecDeque::with_capacity(64)),
        }))
    }

    fn memory(&self, bytes: usize) -> Result<Arc<dyn FrameMemory>, VerbsError> {
        Ok(Arc::new(PlainMemory(Mutex::new(vec![0; bytes].into()))))
    }
}

impl QueuePair for IdlePair {
    fn address(&self) -> PairAddress {
        PairAddress {
            queue_pair: 1,
            mtu: 3,
            ..PairAddress::default()
        }
    }

    fn inbound(&self) -> RemoteMemory {
        RemoteMemory { address: 0, key: 0 }
    }

    fn connect(&mut self, _: &PairAddress, _: usize) -> Result<(), VerbsError> {
        Ok(())
    }

    fn attach(&self, _: &Arc<dyn FrameMemory>) -> Result<(), VerbsError> {
        Ok(())
    }

    fn put(&self, _: usize, _: &[u8]) {}

    fn get(&self, _: usize, _: &mut [u8]) {}

    fn word(&self, _: usize) -> u64 {
        self.pieces.load(Ordering::Relaxed)
    }

    fn post_write(&self, write: &Write) -> Result<(), VerbsError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(write.bytes() as u64, Ordering::Relaxed);
        self.pieces
            .fetch_add(u64::from(write.immediate.is_some()), Ordering::Relaxed);
        if write.is_signalled {
            self.done.lock().expect("whole").push_back(write.number);
        }
        Ok(())
    }

    fn post_receive(&self) -> Result<(), VerbsError> {
        Ok(())
    }

    fn poll(&self, queue: CompletionQueue, completions: &mut [Completion]) -> Result<usize, VerbsError> {
        let mut done = self.done.lock().expect("whole");
        let found = match queue {
            CompletionQueue::Sent => done.len().min(completions.len()),
            CompletionQueue::Received => 0,
        };
        for (place, number) in completions.iter_mut().zip(done.drain(..found)) {
            *place = Completion {
                number,
                ..Completion::default()
            };
        }
        Ok(found)
    }

    fn arm(&self) -> Result<(), VerbsError> {
        Ok(())
    }

    fn wait(&self, time: Duration) -> Result<(), VerbsError> {
        std::thread::sleep(time);
        Ok(())
    }
}

/// Commits a group, as the shipper's sink does.
#[inline(never)]
fn commit_once(buffer: &Arc<FrameBuffer>, posters: &[Arc<dyn FramePoster>], number: u64, records: &[u8]) {
    let frame = GroupFrame {
        epoch: Epoch::new(1, 0),
        first: Lsn(number),
        end: Lsn(number + 1),
        history: History(7),
        records,
    };
    let laid = buffer.lay(&[&frame.head(), records]).expect("all of it is free");
    for poster in posters {
        assert!(poster.try_post(&laid).expect("it goes on"), "there is room");
    }
}

pub fn run(mut args: Args) -> Result<(), Box<dyn Error>> {
    let mut number = |default: usize| args.next().map_or(default, |text| text.parse().expect("a number"));
    let (standbys, bytes, commits) = (number(1), number(4096), number(200_000) as u64);
    let card = IdleCard::default();
    let (requests, sent) = (card.requests.clone(), card.bytes.clone());
    let net = RdmaNet::new(Arc::new(card));
    let listener = net.listen("127.0.0.1:0", LIMITS).expect("a port is free");
    let memory = net.frame_memory(BUFFER_BYTES).expect("memory").expect("RDMA has it");
    let buffer = Arc::new(FrameBuffer::new(memory));
    let mut ends: Vec<(Connection, Connection)> = Vec::new();
    for _ in 0..standbys {
        let far = net
            .connect(&listener.address, SECOND, LIMITS)
            .expect("somebody listens");
        ends.push((listener.accepted.recv_timeout(SECOND).expect("accepted"), far));
    }
    let shared = ends.iter_mut().map(|(near, _)| near.sender.share(&buffer));
    let posters: Vec<_> = shared.map(|poster| poster.expect("it shares")).collect();
    let records = vec![0x5a; bytes];
    let begun = Instant::now();
    for number in 0..commits {
        commit_once(&buffer, &posters, number, black_box(&records));
    }
    let each = begun.elapsed().as_nanos() as f64 / commits as f64;
    println!(
        "{standbys} standbys, groups of {bytes} bytes: {each:.0} ns, {:.3} work requests and {:.0} bytes a commit",
        requests.load(Ordering::Relaxed) as f64 / commits as f64,
        sent.load(Ordering::Relaxed) as f64 / commits as f64,
    );
    Ok(())
}
