//! A job over several partitions at once: each touched site brings its partitions, one of them runs the job over all, and
//! each takes its own back. Ownership moves; there is no lock on data.

use std::sync::{Condvar, Mutex};

use reprise_base::PartitionId;

use crate::site::{Held, Partition};

/// What runs once every touched partition is held.
pub type Job = Box<dyn FnOnce(&mut Held<'_>) + Send>;

/// Which partitions a job needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    All,
    /// Ascending.
    Some(Vec<PartitionId>),
}

impl Touched {
    pub fn contains(&self, id: PartitionId) -> bool {
        match self {
            Self::All => true,
            Self::Some(list) => list.binary_search(&id).is_ok(),
        }
    }
}

/// One multi-partition job on its way through the inboxes.
pub struct Gathering {
    pub touched: Touched,
    /// Sites that bring partitions.
    sites_count: usize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    arrived: usize,
    parts: Vec<Box<Partition>>,
    job: Option<Job>,
    finished: bool,
}

/// What a site does after it has brought its partitions.
pub(crate) enum Turn {
    /// Runs the job over these, ascending by id, then calls [`Gathering::give_back`].
    Lead(Job, Vec<Box<Partition>>),
    /// Its own partitions, the job being done.
    Done(Vec<Box<Partition>>),
}

impl Gathering {
    pub fn new(touched: Touched, sites_count: usize, job: Job) -> Self {
        assert!(sites_count > 0, "a job touches at least one site");
        Self {
            touched,
            sites_count,
            state: Mutex::new(State {
                arrived: 0,
                parts: Vec::new(),
                job: Some(job),
                finished: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Brings a site's partitions. The last site to arrive leads: it alone need not wait.
    pub(crate) fn bring(&self, parts: Vec<Box<Partition>>, own: &dyn Fn(PartitionId) -> bool) -> Turn {
        let mut state = self.lock();
        state.parts.extend(parts);
        state.arrived += 1;
        if state.arrived == self.sites_count {
            let job = state.job.take().expect("a job runs once");
            let mut parts = std::mem::take(&mut state.parts);
            parts.sort_unstable_by_key(|part| part.id);
            return Turn::Lead(job, parts);
        }
        while !state.finished {
            state = self
                .changed
                .wait(state)
                .expect("a site that panics ends the process");
        }
        Turn::Done(Self::take_own(&mut state, own))
    }

    /// Ends the job: the leader gets its own partitions, the others are woken for theirs.
    pub(crate) fn give_back(
        &self,
        parts: Vec<Box<Partition>>,
        own: &dyn Fn(PartitionId) -> bool,
    ) -> Vec<Box<Partition>> {
        let mut state = self.lock();
        state.parts = parts;
        state.finished = true;
        self.changed.notify_all();
        Self::take_own(&mut state, own)
    }

    fn take_own(state: &mut State, own: &dyn Fn(PartitionId) -> bool) -> Vec<Box<Partition>> {
        let (mine, others) = std::mem::take(&mut state.parts)
            .into_iter()
            .partition(|part| own(part.id));
        state.parts = others;
        mine
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("a site that panics ends the process")
    }
}
