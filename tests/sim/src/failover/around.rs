//! The surroundings that three nodes share: the network, the clock, the store of leases, the processes that others can ask. Also a process
//! among others, which can stand still and die at any step.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use reprise_base::Role;
use reprise_database::{Database, LeaseStore, SimLeases, VIEW_NAME};
use reprise_env::{
    Clock, MakeWork, SimClock, SimDisk, SimNet, Step, Stepper, ThreadHandle, Threads, Work,
    sim::{CrashPolicy, FaultPlan, FaultRandom},
};
use reprise_router::{PromiseQuestion, ReplicationError, ReplicationService};

use super::{
    calls::Arrived,
    forge::forge_frame,
    forged_store::{ForgedStore, RecordBefore},
    history::lock,
    mutant::FailoverMutant,
};
use crate::tree::ROOT;

pub const NAMES: [&str; 3] = ["a", "b", "c"];
/// Nodes by their places in `NAMES`.
pub const NODES: [usize; 3] = [0, 1, 2];

/// Operations of a disk that a crash takes, where a mutant has it take synced ones.
const OPS_LOST: usize = 12;
/// The thread that writes the log, and the longest time for which a slow disk keeps it, in nanoseconds.
const LOG_WRITER: &str = "log-flusher";
const SLOW_NS: u64 = 1_000_000_000;
/// Longest time for which the network keeps a withdrawal of promises, in nanoseconds.
const LATE_NS_MAX: u64 = 20_000_000_000;
/// The network keeps one withdrawal of this many.
const LATE_RARENESS: u64 = 3;
/// LSN behind every log.
const VIEW_OVERSTATED: u64 = 1 << 40;

/// A process from its start to its end.
pub struct Life {
    pub number: u64,
    pub node: usize,
    is_dead: AtomicBool,
    /// Time until which the process stands still.
    paused_until_ns: AtomicU64,
}

/// The view that others have of a node's process.
#[derive(Clone)]
pub struct Peer {
    pub life: Arc<Life>,
    pub database: Weak<Database>,
    disk: SimDisk,
    /// The disk that a crash left.
    image: Option<SimDisk>,
}

/// A withdrawal of promises that comes when its sender waits no longer.
struct LateWithdrawal {
    due_ns: u64,
    from: usize,
    to: usize,
    question: PromiseQuestion,
}

/// Withdrawals on their way.
struct LateWithdrawals {
    random: FaultRandom,
    kept: Vec<LateWithdrawal>,
}

pub struct Around {
    pub net: SimNet,
    pub clock: Arc<SimClock>,
    pub stepper: Stepper,
    pub leases: Arc<SimLeases>,
    pub arrived: Mutex<Vec<Arrived>>,
    pub mutant: Option<FailoverMutant>,
    /// The record of leases before the present holder's, for a mutant.
    record_before: RecordBefore,
    peers: Mutex<BTreeMap<usize, Peer>>,
    late: Mutex<LateWithdrawals>,
    /// Things may go wrong by themselves.
    pub is_fateful: AtomicBool,
}

impl Life {
    pub fn new(number: u64, node: usize) -> Arc<Self> {
        Arc::new(Self {
            number,
            node,
            is_dead: AtomicBool::new(false),
            paused_until_ns: AtomicU64::new(0),
        })
    }

    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    pub fn pause_until(&self, ns: u64) {
        self.paused_until_ns.store(ns, Ordering::Relaxed);
    }

    /// Returns the key by which the store of leases knows the process.
    pub fn key(&self) -> String {
        format!("{}-{}", NAMES[self.node], self.number)
    }
}

impl Peer {
    /// Returns the disk that a crash leaves.
    fn crash(&self, mutant: Option<FailoverMutant>, policy: &CrashPolicy) -> SimDisk {
        let image = self.disk.crash(policy);
        let Some(mutant) = mutant else { return image };
        let role = self.database.upgrade().map(|database| database.router().role());
        let is_primary = role == Some(Role::Primary);
        let root = image.folder(ROOT);
        match mutant {
            FailoverMutant::StandbyLosesSyncs if !is_primary => self.crash_early(policy),
            FailoverMutant::PrimaryLosesSyncs if is_primary => self.crash_early(policy),
            FailoverMutant::OverstatesView if root.bytes(VIEW_NAME).is_some() => {
                let words = [VIEW_OVERSTATED, !VIEW_OVERSTATED].map(u64::to_le_bytes);
                root.damage(VIEW_NAME, |bytes| *bytes = words.concat());
                image
            }
            _ => image,
        }
    }

    /// Returns the disk without its last operations, also if they were synced.
    fn crash_early(&self, policy: &CrashPolicy) -> SimDisk {
        let ops = self.disk.ops_count().saturating_sub(OPS_LOST);
        self.disk.crash_image(ops, policy)
    }
}

impl Around {
    pub fn new(seed: u64, mutant: Option<FailoverMutant>) -> Arc<Self> {
        let clock = Arc::new(SimClock::at_us(1_750_000_000_000_000));
        let stepper = Stepper::new(seed, clock.clone());
        let net = SimNet::new(seed, clock.clone());
        if let Some(mutant) = mutant {
            net.set_forger(Box::new(move |_, _, bytes| forge_frame(mutant, bytes)));
        }
        Arc::new(Self {
            net,
            leases: SimLeases::new(clock.clone()),
            clock,
            stepper,
            arrived: Mutex::default(),
            mutant,
            record_before: RecordBefore::default(),
            peers: Mutex::default(),
            late: Mutex::new(LateWithdrawals {
                random: FaultRandom::new(seed ^ 0x1a7e),
                kept: Vec::new(),
            }),
            is_fateful: AtomicBool::new(false),
        })
    }

    pub fn now_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }

    pub fn is_paused(&self, life: &Life) -> bool {
        life.paused_until_ns.load(Ordering::Relaxed) > self.now_ns()
    }

    pub fn set_peer(&self, life: &Arc<Life>, database: &Arc<Database>, disk: &SimDisk) {
        let peer = Peer {
            life: life.clone(),
            database: Arc::downgrade(database),
            disk: disk.clone(),
            image: None,
        };
        lock(&self.peers).insert(life.node, peer);
    }

    pub fn peer(&self, node: usize) -> Option<Peer> {
        lock(&self.peers).get(&node).cloned()
    }

    /// Takes the disk that the node's last process left, once that is over.
    pub fn take_image(&self, node: usize) -> Option<SimDisk> {
        lock(&self.peers).get_mut(&node)?.image.take()
    }

    /// Ends the process of a node, whatever it does. Its later acts reach no other node.
    pub fn kill(&self, node: usize, random: &mut FaultRandom) {
        let mut peers = lock(&self.peers);
        let Some(peer) = peers.get_mut(&node).filter(|peer| !peer.life.is_dead()) else {
            return;
        };
        peer.image = Some(peer.crash(self.mutant, &CrashPolicy::Random(random.next_u64())));
        peer.life.is_dead.store(true, Ordering::Relaxed);
        peer.life.pause_until(0);
        peer.disk.set_faults(FaultPlan::default());
        self.leases.set_away(&peer.life.key(), true);
        drop(peers);
        self.net.kill(NAMES[node]);
    }

    /// Returns the store of leases, as a process reaches it.
    pub fn store(&self, life: &Life) -> Box<dyn LeaseStore> {
        let store = self.leases.store(&life.key());
        match self.mutant {
            Some(mutant) => Box::new(ForgedStore {
                store,
                mutant,
                before: self.record_before.clone(),
                ttl: Duration::ZERO,
            }),
            None => store,
        }
    }

    /// Asks a node about replication, as another one reaches it now.
    pub fn ask<T>(
        &self,
        (from, to): (usize, usize),
        question: impl Fn(&dyn ReplicationService) -> Result<T, ReplicationError>,
    ) -> Result<T, Refused> {
        let away = || Refused::Away("it can't be reached".into());
        let reaches = || self.net.reaches(NAMES[from], NAMES[to]) && self.net.reaches(NAMES[to], NAMES[from]);
        let peer = self.peer(to).filter(|peer| !peer.life.is_dead() && reaches());
        let peer = peer.filter(|peer| !self.is_paused(&peer.life)).ok_or_else(away)?;
        let database = peer.database.upgrade().ok_or_else(away)?;
        let service = database.router().replication().ok_or_else(away)?;
        let told = question(&*service);
        // The answer has to come back.
        match peer.life.is_dead() || !reaches() {
            true => Err(away()),
            false => told.map_err(Refused::Says),
        }
    }
}

impl Around {
    /// Keeps some withdrawals back, as a network does that is slow for one request. True: it comes later, and its sender no longer waits.
    pub fn comes_late(&self, (from, to): (usize, usize), question: &PromiseQuestion) -> bool {
        let mut late = lock(&self.late);
        let is_kept =
            question.is_withdrawn && self.is_fateful.load(Ordering::Relaxed) && late.random.below(LATE_RARENESS) == 0;
        if is_kept {
            let due_ns = self.now_ns() + late.random.below(LATE_NS_MAX);
            late.kept.push(LateWithdrawal {
                due_ns,
                from,
                to,
                question: question.clone(),
            });
        }
        is_kept
    }

    /// Delivers the withdrawals that are due.
    pub fn deliver_late(&self) {
        let now_ns = self.now_ns();
        let due: Vec<_> = lock(&self.late)
            .kept
            .extract_if(.., |late| late.due_ns <= now_ns)
            .collect();
        for LateWithdrawal { from, to, question, .. } in due {
            // The sender no longer waits for the answer.
            let _ = self.ask((from, to), |service| service.promise(&question));
        }
    }
}

pub enum Refused {
    Away(String),
    Says(ReplicationError),
}

impl Refused {
    pub fn text(&self) -> String {
        match self {
            Self::Away(reason) => reason.clone(),
            Self::Says(error) => error.to_string(),
        }
    }
}

/// The node that a URL names.
pub fn node_of(url: &str) -> Option<usize> {
    NAMES.iter().position(|name| url_of(name) == url)
}

pub fn url_of(name: &str) -> String {
    format!("http://{name}:1")
}

/// The threads of one process: they stand still together.
pub struct NodeThreads {
    pub around: Arc<Around>,
    pub life: Arc<Life>,
    /// True if the log waits for its disk.
    pub has_slow_disk: bool,
}

/// The thread that writes the log to a slow disk.
struct SlowWriter {
    work: Box<dyn Work>,
    clock: Arc<SimClock>,
    random: FaultRandom,
    until_ns: u64,
}

impl Work for SlowWriter {
    fn run(self: Box<Self>) {
        unreachable!("a simulated process is stepped");
    }

    fn step(&mut self) -> Step {
        let now_ns = self.clock.monotonic_ns();
        if now_ns < self.until_ns {
            return Step::Idle;
        }
        let step = self.work.step();
        if matches!(step, Step::Done) {
            self.until_ns = now_ns + self.random.below(SLOW_NS);
        }
        step
    }
}

struct Pausable {
    work: Box<dyn Work>,
    around: Arc<Around>,
    life: Arc<Life>,
}

impl Work for Pausable {
    fn run(self: Box<Self>) {
        unreachable!("a simulated process is stepped");
    }

    fn step(&mut self) -> Step {
        match self.around.is_paused(&self.life) {
            true => Step::Idle,
            false => self.work.step(),
        }
    }
}

impl Threads for NodeThreads {
    fn start(&self, name: &str, make: MakeWork) -> io::Result<Box<dyn ThreadHandle>> {
        let (around, life) = (self.around.clone(), self.life.clone());
        let is_slow = self.has_slow_disk && name == LOG_WRITER;
        let make = Box::new(move || {
            let mut work = make();
            if is_slow {
                let (clock, random) = (around.clock.clone(), FaultRandom::new(life.number));
                work = Box::new(SlowWriter {
                    work,
                    clock,
                    random,
                    until_ns: 0,
                });
            }
            Box::new(Pausable { work, around, life }) as Box<dyn Work>
        });
        let name = format!("{}-{name}", NAMES[self.life.node]);
        self.around.stepper.start(&name, make)
    }

    fn cores(&self) -> usize {
        1
    }

    fn give_way(&self, let_go: &mut dyn FnMut()) -> bool {
        self.around.stepper.give_way(let_go)
    }

    fn poll(&self, look: Duration, is_there: &dyn Fn() -> bool) -> bool {
        self.around.stepper.poll(look, is_there)
    }

    fn beside(&self, every: Duration, show: &(dyn Fn() + Sync), work: &mut dyn FnMut()) {
        self.around.stepper.beside(every, show, work);
    }
}

/// Breaks things between any two steps, also while an operator waits for the end of a promotion.
pub struct Fate {
    pub around: Arc<Around>,
    pub random: FaultRandom,
    /// One of this many looks breaks something.
    pub rareness: u64,
}

impl Work for Fate {
    fn run(self: Box<Self>) {
        unreachable!("fate is stepped");
    }

    fn step(&mut self) -> Step {
        if self.around.is_fateful.load(Ordering::Relaxed) && self.random.below(self.rareness) == 0 {
            let (one, other) = (self.random.below(3) as usize, self.random.below(3) as usize);
            let (net, names) = (&self.around.net, (NAMES[one], NAMES[other]));
            match self.random.below(4) {
                0 => {
                    let others = (0..3).filter(|node| *node != one);
                    let living = others.filter_map(|node| self.around.peer(node));
                    if living.filter(|peer| !peer.life.is_dead()).count() == 2 {
                        self.around.kill(one, &mut self.random);
                    }
                }
                1 => net.cut(names.0, names.1),
                2 => net.break_between(names.0, names.1),
                _ => net.heal(names.0, names.1),
            }
        }
        Step::Idle
    }
}
