//! The place where transactions over several partitions wait until a meeting of their sites is worth its cost.
//!
//! When a partition reaches such a transaction, it is prepared for it and continues with messages of other streams. Once every touched
//! partition is prepared, the transaction is ready. Ready transactions over the same partitions run at one rendezvous, one after the other.
//! The coordinator calls a rendezvous:
//! - when its oldest transaction has been ready for a while (`READY_NS_MAX` at most);
//! - when as many are ready as one rendezvous runs;
//! - sooner when one of its sites has nothing else to do, and at once when none has;
//! - at once for a barrier, behind which its partitions do nothing.
//!
//! One lock reserves all partitions of a rendezvous at once, so no two rendezvous wait for each other. An older rendezvous that is due
//! keeps its partitions from younger ones, so none waits for ever.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use crossbeam_channel::{Receiver, Sender, unbounded};
use reprise_base::{PartitionId, SiteId};

use crate::{
    partition_table::Handoff,
    rendezvous::{MultiPartitionTxn, Rendezvous, TxnPartitions},
};

/// Bounds of the time that a ready transaction waits for others while its sites have other calls to run. Between them, it waits as long as
/// it has waited until then. The lower bound is a few times the cost of a rendezvous. The upper bound keeps that cost to a twentieth.
const READY_NS_MIN: u64 = 50_000;
const READY_NS_MAX: u64 = 1_000_000;
/// Divisor of that wait while one of the sites has nothing to do.
const IDLE_DIVISOR: u64 = 4;
/// Limit of the transactions that a rendezvous runs.
pub(crate) const RENDEZVOUS_TXNS_MAX: usize = 64;

/// The coordinator of a node. All its sites share it.
pub struct Coordinator {
    state: Mutex<CoordinatorState>,
    /// Transactions in `CoordinatorState::groups`.
    ready_count: AtomicUsize,
    /// True for a site that has nothing to do but the transactions that wait here.
    idle: Vec<AtomicBool>,
    /// The sender of each site's arrivals.
    doors: Vec<Sender<Arrival>>,
    /// The receiver of each site's arrivals, until the site takes it.
    receivers: Mutex<Vec<Option<Receiver<Arrival>>>>,
    partitions_count: u16,
    rendezvous: AtomicU64,
    txns: AtomicU64,
    barriers: AtomicU64,
    wait_ns_max: AtomicU64,
    /// Fuel that a call of each partition's last batch burned.
    fuel: Vec<AtomicU64>,
}

/// Counts of the work over several partitions since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RendezvousStats {
    /// Rendezvous that were called.
    pub rendezvous: u64,
    /// Transactions that they ran.
    pub txns: u64,
    /// Transactions behind which the partitions did nothing else: deployments, marks of checkpoints.
    pub barriers: u64,
    /// The longest time from ready to the beginning of the rendezvous.
    pub wait_ns_max: u64,
}

/// Messages that reach a site beside its inbox.
pub(crate) enum Arrival {
    /// One of its partitions comes home.
    Home(Handoff),
    /// A rendezvous has reserved partitions of this site.
    Called(Arc<Rendezvous>),
}

struct CoordinatorState {
    /// Oldest first.
    groups: Vec<ReadyGroup>,
    /// True for a partition that was called to a rendezvous that has not ended.
    reserved: Vec<bool>,
}

/// Ready transactions over the same partitions.
struct ReadyGroup {
    touched: TxnPartitions,
    /// Sites of the touched partitions.
    sites: Vec<usize>,
    /// The transactions, each with the moment at which it became ready.
    txns: VecDeque<(Arc<MultiPartitionTxn>, u64)>,
}

impl ReadyGroup {
    fn since_ns(&self) -> u64 {
        self.txns.front().map_or(u64::MAX, |(_, since_ns)| *since_ns)
    }

    /// Returns how long the oldest transaction waits for others.
    fn wait_ns(&self) -> u64 {
        match self.txns.front() {
            Some((txn, since_ns)) if txn.stream.is_some() => {
                since_ns.saturating_sub(txn.sent_ns).clamp(READY_NS_MIN, READY_NS_MAX)
            }
            _ => 0,
        }
    }
}

impl Coordinator {
    /// Makes the coordinator of partitions that are all at home.
    pub fn new(partitions_count: u16, sites_count: u16) -> Self {
        let (doors, receivers) = (0..sites_count).map(|_| unbounded()).unzip::<_, _, Vec<_>, Vec<_>>();
        Self {
            state: Mutex::new(CoordinatorState {
                groups: Vec::new(),
                reserved: vec![false; partitions_count as usize],
            }),
            ready_count: AtomicUsize::new(0),
            idle: (0..sites_count).map(|_| AtomicBool::new(false)).collect(),
            doors,
            receivers: Mutex::new(receivers.into_iter().map(Some).collect()),
            partitions_count,
            rendezvous: AtomicU64::new(0),
            txns: AtomicU64::new(0),
            barriers: AtomicU64::new(0),
            wait_ns_max: AtomicU64::new(0),
            fuel: (0..partitions_count).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Returns the counts since the start.
    pub fn stats(&self) -> RendezvousStats {
        RendezvousStats {
            rendezvous: self.rendezvous.load(Ordering::Relaxed),
            txns: self.txns.load(Ordering::Relaxed),
            barriers: self.barriers.load(Ordering::Relaxed),
            wait_ns_max: self.wait_ns_max.load(Ordering::Relaxed),
        }
    }

    fn state(&self) -> MutexGuard<'_, CoordinatorState> {
        self.state.lock().expect("no code panics under this lock")
    }

    /// Takes the receiver of a site's arrivals. Once.
    pub(crate) fn take_door(&self, site: SiteId) -> Receiver<Arrival> {
        let mut receivers = self.receivers.lock().expect("held for a short time");
        receivers[site.index()].take().expect("a site takes its door once")
    }

    pub(crate) fn send(&self, site: SiteId, arrival: Arrival) {
        // A site that has ended waits for no partition; one that was killed needs none.
        let _ = self.doors[site.index()].send(arrival);
    }

    fn sites_count(&self) -> u16 {
        self.doors.len() as u16
    }

    /// Records the fuel that a call burned in the last batch of a partition.
    #[inline]
    pub(crate) fn record_fuel(&self, partition: PartitionId, fuel: u64) {
        self.fuel[partition.index()].store(fuel, Ordering::Relaxed);
    }

    /// Returns the fuel that a call of this partition burned lately: a measure of calls that does not depend on the machine's other work.
    pub fn fuel(&self, partition: PartitionId) -> u64 {
        self.fuel[partition.index()].load(Ordering::Relaxed)
    }

    /// Records that a partition is prepared for the transaction.
    pub(crate) fn prepare(&self, txn: &Arc<MultiPartitionTxn>, now_ns: u64) {
        let mut state = self.state();
        if !txn.prepare() {
            return;
        }
        let ready = (txn.clone(), now_ns);
        let mut groups = state.groups.iter_mut();
        match groups.find(|group| group.touched == txn.touched) {
            Some(group) => group.txns.push_back(ready),
            None => state.groups.push(ReadyGroup {
                touched: txn.touched.clone(),
                sites: txn.touched.sites(self.sites_count()),
                txns: [ready].into(),
            }),
        }
        self.ready_count.fetch_add(1, Ordering::Release);
    }

    /// Records whether a site has anything else to do. The site calls it before `call_if_due`, which reads it.
    pub(crate) fn set_idle(&self, site: SiteId, is_idle: bool) {
        self.idle[site.index()].store(is_idle, Ordering::Release);
    }

    /// Calls the rendezvous that are due. `caller` is preferred as the leader of each.
    pub(crate) fn call_if_due(&self, caller: SiteId, now_ns: impl FnOnce() -> u64) {
        if self.ready_count.load(Ordering::Acquire) > 0 {
            self.call(&mut self.state(), caller, now_ns());
        }
    }

    fn call(&self, state: &mut CoordinatorState, caller: SiteId, now_ns: u64) {
        let CoordinatorState { groups, reserved } = state;
        // Partitions that a due rendezvous needs, also if it still waits for some of them.
        let mut taken: Option<Vec<bool>> = None;
        for group in groups.iter().filter(|group| !group.txns.is_empty()) {
            let sites = &group.sites;
            let is_idle = |site: usize| self.idle[site].load(Ordering::Acquire);
            let idle = sites.iter().filter(|site| is_idle(**site)).count();
            let wait_ns = match idle {
                0 => group.wait_ns(),
                _ if idle < sites.len() => group.wait_ns() / IDLE_DIVISOR,
                _ => 0,
            };
            let is_due = now_ns.saturating_sub(group.since_ns()) >= wait_ns
                || group.txns.len() >= RENDEZVOUS_TXNS_MAX
                || sites.len() == 1;
            if !is_due {
                continue;
            }
            let wanted = || (0..self.partitions_count).filter(|id| group.touched.contains(PartitionId(*id)));
            if wanted().any(|id| taken.as_ref().unwrap_or(reserved)[id as usize]) {
                let taken = taken.get_or_insert_with(|| reserved.clone());
                wanted().for_each(|id| taken[id as usize] = true);
                continue;
            }
            for id in wanted() {
                reserved[id as usize] = true;
                if let Some(taken) = &mut taken {
                    taken[id as usize] = true;
                }
            }
            let busy = sites.iter().copied().find(|site| !is_idle(*site));
            let leader = match sites.contains(&caller.index()) && !is_idle(caller.index()) {
                true => caller.index(),
                false => busy.unwrap_or(sites[0]),
            };
            let leader = SiteId(leader as u16);
            let called = Arc::new(Rendezvous::called(group.touched.clone(), self.partitions_count, leader));
            for site in sites {
                self.send(SiteId(*site as u16), Arrival::Called(called.clone()));
            }
        }
    }

    /// Takes the transactions that a beginning rendezvous runs.
    pub(crate) fn take_ready(&self, touched: &TxnPartitions, now_ns: u64) -> Vec<Arc<MultiPartitionTxn>> {
        let mut state = self.state();
        let place = state.groups.iter().position(|group| group.touched == *touched);
        let at = place.expect("a rendezvous is called for ready transactions");
        let mut group = state.groups.remove(at);
        let count = group.txns.len().min(RENDEZVOUS_TXNS_MAX);
        self.ready_count.fetch_sub(count, Ordering::Release);
        let wait_ns = now_ns.saturating_sub(group.since_ns());
        self.wait_ns_max.fetch_max(wait_ns, Ordering::Relaxed);
        self.rendezvous.fetch_add(1, Ordering::Relaxed);
        self.txns.fetch_add(count as u64, Ordering::Relaxed);
        let taken: Vec<_> = group.txns.drain(..count).map(|(txn, _)| txn).collect();
        let barriers = taken.iter().filter(|txn| txn.stream.is_none()).count();
        self.barriers.fetch_add(barriers as u64, Ordering::Relaxed);
        if !group.txns.is_empty() {
            let since_ns = group.since_ns();
            let at = state.groups.partition_point(|other| other.since_ns() <= since_ns);
            state.groups.insert(at, group);
        }
        taken
    }

    /// Ends a rendezvous whose partitions are on their way home. Others may have waited for them.
    pub(crate) fn release(&self, touched: &TxnPartitions, caller: SiteId, now_ns: u64) {
        let mut state = self.state();
        for (id, reserved) in state.reserved.iter_mut().enumerate() {
            if touched.contains(PartitionId(id as u16)) {
                *reserved = false;
            }
        }
        self.call(&mut state, caller, now_ns);
    }

    /// Ends a site. The transactions that wait for its partitions never run, because a simulation killed its process.
    pub(crate) fn forget(&self, site: SiteId) {
        let is_its = |group: &mut ReadyGroup| group.sites.contains(&site.index());
        let mut state = self.state();
        let lost: Vec<ReadyGroup> = state.groups.extract_if(.., is_its).collect();
        let left: usize = state.groups.iter().map(|group| group.txns.len()).sum();
        self.ready_count.store(left, Ordering::Release);
        // Dropping the transactions may call back into this coordinator.
        drop(state);
        drop(lost);
    }
}
