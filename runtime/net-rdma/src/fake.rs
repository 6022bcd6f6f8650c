//! Simulated cards for tests. They follow the verbs' rules, record the posts, and lose, swap or refuse on request.

use std::{
    any::Any,
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use reprise_env::{FrameMemory, NetLimits};

use crate::verbs::{
    Ask, Card, Completion, CompletionQueue, MemorySpan, PairAddress, QueuePair, RemoteMemory, VerbsError, Write,
};

/// Limits of an end that gets short frames.
pub const LIMITS: NetLimits = NetLimits {
    frame_bytes: 1 << 10,
    sent_bytes: 8 << 20,
    frames_waiting: 4,
    send_time: Duration::from_millis(400),
};

/// Faults, each at the write with an immediate value of this number, counted from 0 over all pairs of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardFault {
    /// Its completion never comes at the receiver.
    LoseReceived(u64),
    /// Its completion comes behind the next one.
    SwapReceived(u64),
    /// The card has another key by then.
    WrongKey(u64),
    /// This write and all later ones get no answer.
    Unanswered(u64),
}

/// A write as it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostedWrite {
    pub queue_pair: u32,
    pub write: Write,
}

/// Memory of a card, which any of its pairs may send from.
struct FakeMemory(Mutex<Vec<u8>>);

impl FakeMemory {
    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().expect("a test failed under this lock")
    }
}

impl FrameMemory for FakeMemory {
    fn bytes(&self) -> usize {
        self.lock().len()
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        self.lock()[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// Several ends of one fabric are clones.
#[derive(Clone, Default)]
pub struct FakeCard {
    fabric: Arc<Fabric>,
}

#[derive(Default)]
struct Fabric {
    state: Mutex<FakeCardState>,
    changed: Condvar,
}

#[derive(Default)]
struct FakeCardState {
    pairs: BTreeMap<u32, FakeState>,
    next: u32,
    faults: Vec<CardFault>,
    posted: Vec<PostedWrite>,
    immediates: u64,
    loses_sent: bool,
    refusal: Option<VerbsError>,
}

#[derive(Default)]
struct FakeState {
    inbound: Vec<u8>,
    outbound: Vec<u8>,
    attached: Option<Arc<FakeMemory>>,
    base: u64,
    key: u32,
    peer: Option<u32>,
    receives: u32,
    receives_max: u32,
    /// Posted and not polled.
    writes: u32,
    writes_max: u32,
    sent: VecDeque<Completion>,
    received: VecDeque<Completion>,
    /// Comes behind the next one.
    late: Option<Completion>,
    is_broken: bool,
}

impl FakeCard {
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, FakeCardState> {
        self.fabric.state.lock().expect("a test failed under this lock")
    }

    pub fn fault(&self, fault: CardFault) {
        self.lock().faults.push(fault);
    }

    /// Completions of own writes come no more.
    pub fn lose_sent(&self) {
        self.lock().loses_sent = true;
    }

    /// No pair is given out any more.
    pub fn refuse(&self, error: VerbsError) {
        self.lock().refusal = Some(error);
    }

    /// Takes the writes posted since the last call.
    pub fn take_posted(&self) -> Vec<PostedWrite> {
        std::mem::take(&mut self.lock().posted)
    }

    /// Reserves room to record more writes without an allocation.
    pub fn reserve(&self, writes: usize) {
        self.lock().posted.reserve(writes);
    }

    /// Returns the number of writes with an immediate value, which is that of the next one.
    pub fn immediates(&self) -> u64 {
        self.lock().immediates
    }

    /// Pairs that were not given back.
    pub fn open(&self) -> usize {
        self.lock().pairs.len()
    }
}

impl Card for FakeCard {
    fn describe(&self, local: IpAddr) -> Result<String, VerbsError> {
        match self.lock().refusal.clone() {
            Some(error) => Err(error),
            None => Ok(format!("a fake card at {local}")),
        }
    }

    fn pair(&self, ask: &Ask) -> Result<Box<dyn QueuePair>, VerbsError> {
        let mut state = self.lock();
        if let Some(error) = state.refusal.clone() {
            return Err(error);
        }
        state.next += 1;
        let number = state.next;
        let pair = FakeState {
            inbound: vec![0; ask.inbound_bytes],
            base: u64::from(number) << 32,
            key: number.wrapping_mul(0x9e37_79b9),
            receives_max: ask.receives,
            writes_max: ask.writes,
            sent: VecDeque::with_capacity(ask.writes as usize + 1),
            received: VecDeque::with_capacity(ask.receives as usize + 1),
            ..FakeState::default()
        };
        state.pairs.insert(number, pair);
        Ok(Box::new(FakePair {
            fabric: self.fabric.clone(),
            number,
        }))
    }

    fn memory(&self, bytes: usize) -> Result<Arc<dyn FrameMemory>, VerbsError> {
        match self.lock().refusal.clone() {
            Some(error) => Err(error),
            None => Ok(Arc::new(FakeMemory(Mutex::new(vec![0; bytes])))),
        }
    }
}

struct FakePair {
    fabric: Arc<Fabric>,
    number: u32,
}

impl FakePair {
    fn with<R>(&self, act: impl FnOnce(&mut FakeState) -> R) -> R {
        let mut state = self.fabric.state.lock().expect("a test failed under this lock");
        act(state
            .pairs
            .get_mut(&self.number)
            .expect("it is there until it is dropped"))
    }
}

impl Drop for FakePair {
    fn drop(&mut self) {
        if let Ok(mut state) = self.fabric.state.lock() {
            state.pairs.remove(&self.number);
        }
    }
}

impl QueuePair for FakePair {
    fn address(&self) -> PairAddress {
        PairAddress {
            queue_pair: self.number,
            mtu: 3,
            ..PairAddress::default()
        }
    }

    fn inbound(&self) -> RemoteMemory {
        self.with(|own| RemoteMemory {
            address: own.base,
            key: own.key,
        })
    }

    fn connect(&mut self, peer: &PairAddress, outbound_bytes: usize) -> Result<(), VerbsError> {
        self.with(|own| {
            own.peer = Some(peer.queue_pair);
            own.outbound = vec![0; outbound_bytes];
        });
        Ok(())
    }

    fn attach(&self, memory: &Arc<dyn FrameMemory>) -> Result<(), VerbsError> {
        let memory = (memory.clone() as Arc<dyn Any + Send + Sync>).downcast::<FakeMemory>();
        let memory = memory.map_err(|_| failed("register memory", "it is not of this card"))?;
        self.with(|own| match own.attached.replace(memory) {
            None => Ok(()),
            Some(_) => Err(failed("register memory", "the pair has one")),
        })
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        self.with(|own| own.outbound[at..at + bytes.len()].copy_from_slice(bytes));
    }

    fn get(&self, at: usize, bytes: &mut [u8]) {
        self.with(|own| bytes.copy_from_slice(&own.inbound[at..at + bytes.len()]));
    }

    fn word(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        self.get(at, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn post_write(&self, write: &Write) -> Result<(), VerbsError> {
        let mut state = self.fabric.state.lock().expect("a test failed under this lock");
        let done = state.write(self.number, write);
        drop(state);
        self.fabric.changed.notify_all();
        done
    }

    fn post_receive(&self) -> Result<(), VerbsError> {
        self.with(|own| match own.receives < own.receives_max {
            true => {
                own.receives += 1;
                Ok(())
            }
            false => Err(failed("post a receive", "the queue is full")),
        })
    }

    fn poll(&self, queue: CompletionQueue, completions: &mut [Completion]) -> Result<usize, VerbsError> {
        self.with(|own| {
            let queue = match queue {
                CompletionQueue::Sent => &mut own.sent,
                CompletionQueue::Received => &mut own.received,
            };
            let found = queue.len().min(completions.len());
            for (place, completion) in completions.iter_mut().zip(queue.drain(..found)) {
                *place = completion;
            }
            Ok(found)
        })
    }

    fn arm(&self) -> Result<(), VerbsError> {
        Ok(())
    }

    fn wait(&self, time: Duration) -> Result<(), VerbsError> {
        let until = Instant::now() + time;
        let mut state = self.fabric.state.lock().expect("a test failed under this lock");
        while state.pairs[&self.number].received.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.fabric.changed.wait_timeout(state, left);
            state = waited.expect("a test failed under this lock").0;
        }
        Ok(())
    }
}

impl FakeCardState {
    fn write(&mut self, from: u32, write: &Write) -> Result<(), VerbsError> {
        self.posted.push(PostedWrite {
            queue_pair: from,
            write: *write,
        });
        let number = self.immediates;
        self.immediates += u64::from(write.immediate.is_some());
        let is_fault = |fault: CardFault| write.immediate.is_some() && self.faults.contains(&fault);
        let faults = [
            is_fault(CardFault::WrongKey(number)),
            is_fault(CardFault::Unanswered(number)),
            is_fault(CardFault::LoseReceived(number)),
            is_fault(CardFault::SwapReceived(number)),
        ];
        let loses_sent = self.loses_sent;
        let own = self.pairs.get_mut(&from).expect("it posts");
        if own.writes == own.writes_max {
            return Err(failed("post a write", "the queue is full"));
        }
        own.writes += 1;
        let peer = own.peer.ok_or_else(|| failed("post a write", "it is not connected"))?;
        let outcome = match own.is_broken {
            true => Err("Work Request Flushed Error"),
            false => self.place(from, peer, write, faults),
        };
        let own = self.pairs.get_mut(&from).expect("it posts");
        if write.is_signalled && outcome.is_ok() && !loses_sent {
            // The completion counts for the writes before it.
            own.writes = 0;
            own.sent.push_back(Completion {
                number: write.number,
                ..Completion::default()
            });
        }
        if let Err(failure) = outcome {
            own.is_broken = true;
            own.sent.push_back(Completion {
                number: write.number,
                immediate: None,
                failure: Some(failure),
            });
            own.flush();
        }
        Ok(())
    }

    fn place(&mut self, from: u32, to: u32, write: &Write, faults: [bool; 4]) -> Result<(), &'static str> {
        let [wrong_key, unanswered, lost, swapped] = faults;
        let own = self.pairs.get_mut(&from).expect("it posts");
        let (outbound, attached) = (std::mem::take(&mut own.outbound), own.attached.clone());
        let peer = self.pairs.get_mut(&to);
        let placed = match peer.filter(|peer| !peer.is_broken && !unanswered) {
            None => Err("transport retry counter exceeded"),
            Some(peer) => peer.place(write, wrong_key, (&outbound, attached.as_deref())),
        };
        self.pairs.get_mut(&from).expect("it posts").outbound = outbound;
        placed?;
        let peer = self.pairs.get_mut(&to).expect("it was there");
        if write.immediate.is_none() {
            return Ok(());
        }
        if peer.receives == 0 {
            return Err("RNR retry counter exceeded");
        }
        peer.receives -= 1;
        let completion = Completion {
            number: 0,
            immediate: write.immediate,
            failure: None,
        };
        match (lost, swapped) {
            (true, _) => {}
            (_, true) => peer.late = Some(completion),
            _ => {
                peer.received.push_back(completion);
                peer.received.extend(peer.late.take());
            }
        }
        Ok(())
    }
}

impl FakeState {
    /// Writes into the peer's memory, if the peer allows it.
    fn place(
        &mut self,
        write: &Write,
        wrong_key: bool,
        (outbound, attached): (&[u8], Option<&FakeMemory>),
    ) -> Result<(), &'static str> {
        let at = write.to.address.wrapping_sub(self.base) as usize;
        let (middle, end) = (at.saturating_add(write.own.bytes), at.saturating_add(write.bytes()));
        if write.to.key != self.key || wrong_key || end > self.inbound.len() {
            self.is_broken = true;
            self.flush();
            return Err("remote access error");
        }
        let of = |span: MemorySpan| span.at..span.at + span.bytes;
        self.inbound[at..middle].copy_from_slice(&outbound[of(write.own)]);
        if write.shared.bytes > 0 {
            let attached = attached.expect("what is sent from was registered before");
            self.inbound[middle..end].copy_from_slice(&attached.lock()[of(write.shared)]);
        }
        Ok(())
    }

    /// Receives that were posted come back unused.
    fn flush(&mut self) {
        self.received.push_back(Completion {
            number: 0,
            immediate: None,
            failure: Some("Work Request Flushed Error"),
        });
    }
}

fn failed(what: &'static str, reason: &str) -> VerbsError {
    VerbsError::Failed {
        what,
        reason: reason.into(),
    }
}
