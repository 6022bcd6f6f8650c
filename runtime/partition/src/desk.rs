//! Where jobs over several partitions wait until it is worth while for their sites to meet.
//!
//! A partition that comes upon such a job announces it and goes on with what is not of the job's stream. Once every touched
//! partition has announced it, it is ripe; ripe jobs of the same partitions run in one meeting, one after the other. A meeting
//! is called when its oldest job has been ripe for a while (`RIPE_NS_MAX` at most), when as many are ripe as one meeting runs,
//! sooner when a site of theirs has nothing else to do, and at once when none has. All of its partitions are engaged at once, under one lock, so no two meetings wait for each
//! other; an older meeting that is due keeps its partitions from younger ones, so none waits for ever.

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
    gather::{Brought, Gathering, Touched},
    home::Traveller,
};

/// How long a ripe job waits for others while its sites have other calls to run: as long as it has waited until then, within
/// these. The first is what a meeting costs, some times; the second keeps that to a twentieth.
const RIPE_NS_MIN: u64 = 50_000;
const RIPE_NS_MAX: u64 = 1_000_000;
/// By so much it waits less while one of the sites has nothing to do.
const IDLE_DIVISOR: u64 = 4;
/// Jobs that one meeting runs at most.
pub(crate) const MEETING_JOBS_MAX: usize = 64;

/// One for all sites of a node.
pub struct Desk {
    state: Mutex<State>,
    /// Jobs in `State::groups`.
    ripe_count: AtomicUsize,
    /// By site: it has nothing to do but what waits here.
    idle: Vec<AtomicBool>,
    /// By site.
    doors: Vec<Sender<Arrival>>,
    /// By site, until it takes it.
    receivers: Mutex<Vec<Option<Receiver<Arrival>>>>,
    partitions_count: u16,
    meetings: AtomicU64,
    jobs: AtomicU64,
    wait_ns_max: AtomicU64,
}

/// What was done over several partitions so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeetingStats {
    pub meetings: u64,
    /// Jobs that they ran.
    pub jobs: u64,
    /// The longest that a job waited from when all of its partitions were ready for it until its meeting began.
    pub wait_ns_max: u64,
}

/// What comes to a site beside its inbox.
pub(crate) enum Arrival {
    /// One of its partitions comes home.
    Home(Traveller),
    /// Partitions of it are engaged.
    Called(Arc<Meeting>),
}

struct State {
    /// Oldest first.
    groups: Vec<Group>,
    /// By partition: it was called to a meeting that is not over.
    engaged: Vec<bool>,
}

/// Ripe jobs of the same partitions.
struct Group {
    touched: Touched,
    /// Of the touched partitions.
    sites: Vec<usize>,
    /// Each with the moment at which it got ripe.
    jobs: VecDeque<(Arc<Gathering>, u64)>,
}

/// One thread is about to hold these partitions.
pub(crate) struct Meeting {
    pub touched: Touched,
    /// This site brings its partitions last: it goes on until the others have brought theirs.
    pub host: SiteId,
    brought: Brought,
}

impl Meeting {
    pub fn brought(&self) -> &Brought {
        &self.brought
    }
}

impl Group {
    fn since_ns(&self) -> u64 {
        self.jobs.front().map_or(u64::MAX, |(_, since_ns)| *since_ns)
    }

    /// How long its oldest job waits for others.
    fn wait_ns(&self) -> u64 {
        let waited = |(job, since_ns): &(Arc<Gathering>, u64)| since_ns.saturating_sub(job.sent_ns);
        let waited = self.jobs.front().map_or(0, waited);
        waited.clamp(RIPE_NS_MIN, RIPE_NS_MAX)
    }
}

impl Desk {
    pub fn new(partitions_count: u16, sites_count: u16) -> Self {
        let (doors, receivers) = (0..sites_count).map(|_| unbounded()).unzip::<_, _, Vec<_>, Vec<_>>();
        Self {
            state: Mutex::new(State {
                groups: Vec::new(),
                engaged: vec![false; partitions_count as usize],
            }),
            ripe_count: AtomicUsize::new(0),
            idle: (0..sites_count).map(|_| AtomicBool::new(false)).collect(),
            doors,
            receivers: Mutex::new(receivers.into_iter().map(Some).collect()),
            partitions_count,
            meetings: AtomicU64::new(0),
            jobs: AtomicU64::new(0),
            wait_ns_max: AtomicU64::new(0),
        }
    }

    pub fn stats(&self) -> MeetingStats {
        MeetingStats {
            meetings: self.meetings.load(Ordering::Relaxed),
            jobs: self.jobs.load(Ordering::Relaxed),
            wait_ns_max: self.wait_ns_max.load(Ordering::Relaxed),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics under this lock")
    }

    /// Where arrivals of a site come out. Once.
    pub(crate) fn take_door(&self, site: SiteId) -> Receiver<Arrival> {
        let mut receivers = self.receivers.lock().expect("held for a look");
        receivers[site.index()].take().expect("a site takes its door once")
    }

    pub(crate) fn send(&self, site: SiteId, arrival: Arrival) {
        // A site that has ended waits for no partition; one that was killed needs none.
        let _ = self.doors[site.index()].send(arrival);
    }

    fn sites_count(&self) -> u16 {
        self.doors.len() as u16
    }

    /// A partition is ready for the job.
    pub(crate) fn announce(&self, gathering: &Arc<Gathering>, now_ns: u64) {
        let mut state = self.state();
        if !gathering.announce() {
            return;
        }
        let job = (gathering.clone(), now_ns);
        let mut groups = state.groups.iter_mut();
        match groups.find(|group| group.touched == gathering.touched) {
            Some(group) => group.jobs.push_back(job),
            None => state.groups.push(Group {
                touched: gathering.touched.clone(),
                sites: gathering.touched.sites(self.sites_count()),
                jobs: [job].into(),
            }),
        }
        self.ripe_count.fetch_add(1, Ordering::Release);
    }

    /// Says whether a site has anything else to do. Before `call_if_due`, which then looks at it.
    pub(crate) fn set_idle(&self, site: SiteId, is_idle: bool) {
        self.idle[site.index()].store(is_idle, Ordering::Release);
    }

    /// Calls the meetings that are due. `caller` is preferred as the host of each.
    pub(crate) fn call_if_due(&self, caller: SiteId, now_ns: impl FnOnce() -> u64) {
        if self.ripe_count.load(Ordering::Acquire) > 0 {
            self.call(&mut self.state(), caller, now_ns());
        }
    }

    fn call(&self, state: &mut State, caller: SiteId, now_ns: u64) {
        let State { groups, engaged } = state;
        let mut reserved: Option<Vec<bool>> = None;
        for group in groups.iter().filter(|group| !group.jobs.is_empty()) {
            let sites = &group.sites;
            let is_idle = |site: usize| self.idle[site].load(Ordering::Acquire);
            let idle = sites.iter().filter(|site| is_idle(**site)).count();
            let wait_ns = match idle {
                0 => group.wait_ns(),
                _ if idle < sites.len() => group.wait_ns() / IDLE_DIVISOR,
                _ => 0,
            };
            let is_due = now_ns.saturating_sub(group.since_ns()) >= wait_ns
                || group.jobs.len() >= MEETING_JOBS_MAX
                || sites.len() == 1;
            if !is_due {
                continue;
            }
            let wanted = || (0..self.partitions_count).filter(|id| group.touched.contains(PartitionId(*id)));
            let taken = reserved.as_ref().unwrap_or(engaged);
            if wanted().any(|id| taken[id as usize]) {
                let reserved = reserved.get_or_insert_with(|| engaged.clone());
                wanted().for_each(|id| reserved[id as usize] = true);
                continue;
            }
            for id in wanted() {
                engaged[id as usize] = true;
                if let Some(reserved) = &mut reserved {
                    reserved[id as usize] = true;
                }
            }
            let busy = sites.iter().copied().find(|site| !is_idle(*site));
            let host = match sites.contains(&caller.index()) && !is_idle(caller.index()) {
                true => caller.index(),
                false => busy.unwrap_or(sites[0]),
            };
            let meeting = Arc::new(Meeting {
                touched: group.touched.clone(),
                host: SiteId(host as u16),
                brought: Brought::new(group.touched.len(self.partitions_count)),
            });
            for site in sites {
                self.send(SiteId(*site as u16), Arrival::Called(meeting.clone()));
            }
        }
    }

    /// The jobs that a meeting runs, which begins now.
    pub(crate) fn take_jobs(&self, touched: &Touched, now_ns: u64) -> Vec<Arc<Gathering>> {
        let mut state = self.state();
        let place = state.groups.iter().position(|group| group.touched == *touched);
        let at = place.expect("a meeting is called for ripe jobs");
        let mut group = state.groups.remove(at);
        let count = group.jobs.len().min(MEETING_JOBS_MAX);
        self.ripe_count.fetch_sub(count, Ordering::Release);
        let wait_ns = now_ns.saturating_sub(group.since_ns());
        self.wait_ns_max.fetch_max(wait_ns, Ordering::Relaxed);
        self.meetings.fetch_add(1, Ordering::Relaxed);
        self.jobs.fetch_add(count as u64, Ordering::Relaxed);
        let taken = group.jobs.drain(..count).map(|(job, _)| job).collect();
        if !group.jobs.is_empty() {
            let since_ns = group.since_ns();
            let at = state.groups.partition_point(|other| other.since_ns() <= since_ns);
            state.groups.insert(at, group);
        }
        taken
    }

    /// A meeting is over, and its partitions are on their way home. Others may have waited for them.
    pub(crate) fn release(&self, touched: &Touched, caller: SiteId, now_ns: u64) {
        let mut state = self.state();
        for (id, engaged) in state.engaged.iter_mut().enumerate() {
            if touched.contains(PartitionId(id as u16)) {
                *engaged = false;
            }
        }
        self.call(&mut state, caller, now_ns);
    }

    /// A site ends. What is left of its partitions' jobs runs no more: its process was killed in a simulation.
    pub(crate) fn forget(&self, site: SiteId) {
        let is_its = |group: &mut Group| group.sites.contains(&site.index());
        let mut state = self.state();
        let lost: Vec<Group> = state.groups.extract_if(.., is_its).collect();
        let jobs: usize = state.groups.iter().map(|group| group.jobs.len()).sum();
        self.ripe_count.store(jobs, Ordering::Release);
        // What jobs hold may come back here when it is dropped.
        drop(state);
        drop(lost);
    }
}
