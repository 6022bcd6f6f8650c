//! A job over several partitions at once: each touched partition is brought by its site, the last to arrive takes the site
//! that brought it along to run the job over all, and each goes home. Ownership moves; there is no lock on data.

use std::sync::Mutex;

use reprise_base::PartitionId;

use crate::{
    home::{Luggage, Traveller},
    site::{Held, Partition},
};

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

    /// How many they are, out of all.
    pub fn len(&self, partitions_count: u16) -> usize {
        match self {
            Self::All => partitions_count as usize,
            Self::Some(list) => list.len(),
        }
    }

    /// The sites that they belong to, ascending.
    pub fn sites(&self, sites_count: u16) -> Vec<usize> {
        let mut sites: Vec<usize> = match self {
            Self::All => (0..sites_count as usize).collect(),
            Self::Some(list) => list.iter().map(|id| id.site(sites_count).index()).collect(),
        };
        sites.sort_unstable();
        sites.dedup();
        sites
    }
}

/// One multi-partition job on its way through the inboxes.
pub struct Gathering {
    pub(crate) touched: Touched,
    partitions_count: u16,
    state: Mutex<State>,
}

struct State {
    brought: Vec<Traveller>,
    job: Option<Job>,
}

/// Every partition is here. Whoever gets this runs the job and sends the partitions on.
pub(crate) struct Lead {
    pub job: Job,
    /// Ascending. Boxed, for they change hands more often than they are looked into.
    #[allow(clippy::vec_box)]
    pub partitions: Vec<Box<Partition>>,
    /// Theirs, in the same order.
    pub luggage: Vec<Luggage>,
}

impl Gathering {
    pub fn new(touched: Touched, partitions_count: u16, job: Job) -> Self {
        let count = touched.len(partitions_count);
        assert!(count > 0, "a job touches at least one partition");
        Self {
            touched,
            partitions_count,
            state: Mutex::new(State {
                brought: Vec::with_capacity(count),
                job: Some(job),
            }),
        }
    }

    /// Brings a partition. Who brings the last one leads; nobody waits here.
    pub(crate) fn bring(&self, traveller: Traveller) -> Option<Lead> {
        let mut state = self.state.lock().expect("held for a push");
        state.brought.push(traveller);
        if state.brought.len() < self.touched.len(self.partitions_count) {
            return None;
        }
        let mut all = std::mem::take(&mut state.brought);
        let job = state.job.take().expect("a job runs once");
        drop(state);
        all.sort_unstable_by_key(|traveller| traveller.partition.id);
        let split = |traveller: Traveller| (traveller.partition, traveller.luggage);
        let (partitions, luggage) = all.into_iter().map(split).unzip();
        Some(Lead {
            job,
            partitions,
            luggage,
        })
    }
}
