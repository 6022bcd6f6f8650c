//! A job over several partitions at once. A *strict* one is brought its partitions by their sites, each when everything that
//! arrived there before it is done, and nothing that arrived after it is done before it. One of a *stream* keeps its place
//! among the messages of its stream alone: its partitions announce it and go on (`desk`).

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use reprise_base::PartitionId;

use crate::{
    home::{Luggage, Traveller},
    site::{ExclusivePartitions, Partition},
};

/// What runs once every touched partition is held.
pub type Job = Box<dyn FnOnce(&mut ExclusivePartitions<'_>) + Send>;

/// Messages that must not overtake each other where one of them is a job over several partitions: those of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stream(pub u64);

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
    /// None: strict.
    pub(crate) stream: Option<Stream>,
    /// When it was sent, by the node's clock.
    pub(crate) sent_ns: u64,
    partitions_count: u16,
    /// Partitions that announced it.
    announced: AtomicUsize,
    job: Mutex<Option<Job>>,
    brought: Brought,
}

/// Partitions on their way to one thread.
pub(crate) struct Brought {
    count: usize,
    here: AtomicUsize,
    travellers: Mutex<Vec<Traveller>>,
}

/// Every partition is here.
pub(crate) struct Lead {
    /// Ascending. Boxed, for they change hands more often than they are looked into.
    #[allow(clippy::vec_box)]
    pub partitions: Vec<Box<Partition>>,
    /// Theirs, in the same order.
    pub luggage: Vec<Luggage>,
}

impl Gathering {
    /// A strict one.
    pub fn new(touched: Touched, partitions_count: u16, job: Job) -> Self {
        let count = touched.len(partitions_count);
        assert!(count > 0, "a job touches at least one partition");
        Self {
            touched,
            stream: None,
            sent_ns: 0,
            partitions_count,
            announced: AtomicUsize::new(0),
            job: Mutex::new(Some(job)),
            brought: Brought::new(count),
        }
    }

    /// One that keeps its place among the messages of `stream` alone.
    pub fn in_stream(touched: Touched, partitions_count: u16, stream: Stream, sent_ns: u64, job: Job) -> Self {
        Self {
            stream: Some(stream),
            sent_ns,
            ..Self::new(touched, partitions_count, job)
        }
    }

    pub fn touched(&self) -> &Touched {
        &self.touched
    }

    /// One more partition is ready for it. True: it was the last one.
    pub(crate) fn announce(&self) -> bool {
        let announced = self.announced.fetch_add(1, Ordering::AcqRel) + 1;
        announced == self.touched.len(self.partitions_count)
    }

    pub(crate) fn take_job(&self) -> Job {
        let job = self.job.lock().expect("held for a look").take();
        job.expect("a job runs once")
    }

    /// Brings a partition to a strict gathering. Who brings the last one leads; nobody waits here.
    pub(crate) fn bring(&self, traveller: Traveller) -> Option<Lead> {
        self.brought.bring(traveller)
    }
}

impl Brought {
    pub fn new(count: usize) -> Self {
        Self {
            count,
            here: AtomicUsize::new(0),
            travellers: Mutex::new(Vec::with_capacity(count)),
        }
    }

    /// Partitions that are not here yet.
    pub fn lacks(&self) -> usize {
        self.count - self.here.load(Ordering::Acquire)
    }

    /// Everything, once the last one is here.
    pub fn bring(&self, traveller: Traveller) -> Option<Lead> {
        let mut travellers = self.travellers.lock().expect("held for a push");
        travellers.push(traveller);
        self.here.store(travellers.len(), Ordering::Release);
        if travellers.len() < self.count {
            return None;
        }
        let mut all = std::mem::take(&mut *travellers);
        drop(travellers);
        all.sort_unstable_by_key(|traveller| traveller.partition.id);
        let split = |traveller: Traveller| (traveller.partition, traveller.luggage);
        let (partitions, luggage) = all.into_iter().map(split).unzip();
        Some(Lead { partitions, luggage })
    }
}
