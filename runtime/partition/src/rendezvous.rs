//! A transaction over several partitions, and the rendezvous at which one thread gets all of them.
//!
//! Each site hands its touched partitions over where it comes upon the rendezvous; whoever brings the last one runs what there is to
//! run and sends the partitions home. Nobody waits in here. Live transactions are prepared first, so that partitions are handed
//! over late and for many of them at once (`coordinator`). A replay knows the log's order, and has its sites meet in that order.

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use reprise_base::{PartitionId, SiteId};

use crate::{partition_table::Handoff, site::ExclusivePartitions};

/// A job that runs once every touched partition is held.
pub type Job = Box<dyn FnOnce(&mut ExclusivePartitions<'_>) + Send>;

/// Messages that must not overtake each other where one of them is a transaction over several partitions: those of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stream(pub u64);

/// Which partitions a transaction needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    /// Every one of the database.
    All,
    /// Ascending.
    Some(Vec<PartitionId>),
}

impl Touched {
    /// Whether the partition is one of them.
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

/// A transaction over several partitions, or some of one client one behind the other, on its way through the inboxes.
pub struct MultiPartitionTxn {
    pub(crate) touched: Touched,
    /// The stream whose messages it must not overtake, nor they it; none: it is a barrier for all.
    pub(crate) stream: Option<Stream>,
    /// When it was sent, by the node's clock.
    pub(crate) sent_ns: u64,
    partitions_count: u16,
    /// Partitions that are prepared for it.
    prepared: AtomicUsize,
    job: Mutex<Option<Job>>,
}

impl MultiPartitionTxn {
    /// One that is a barrier at each touched partition: all that arrived there before is done before it, and nothing that
    /// arrived behind it is.
    pub fn barrier(touched: Touched, partitions_count: u16, job: Job) -> Self {
        assert!(touched.len(partitions_count) > 0, "it touches at least one partition");
        Self {
            touched,
            stream: None,
            sent_ns: 0,
            partitions_count,
            prepared: AtomicUsize::new(0),
            job: Mutex::new(Some(job)),
        }
    }

    /// One that keeps its place among the messages of `stream` alone.
    pub fn in_stream(touched: Touched, partitions_count: u16, stream: Stream, sent_ns: u64, job: Job) -> Self {
        Self {
            stream: Some(stream),
            sent_ns,
            ..Self::barrier(touched, partitions_count, job)
        }
    }

    /// The partitions that it needs.
    pub fn touched(&self) -> &Touched {
        &self.touched
    }

    /// One more partition is prepared for it. True: it was the last one.
    pub(crate) fn prepare(&self) -> bool {
        let prepared = self.prepared.fetch_add(1, Ordering::AcqRel) + 1;
        prepared == self.touched.len(self.partitions_count)
    }

    pub(crate) fn take_job(&self) -> Job {
        let job = self.job.lock().expect("held for a look").take();
        job.expect("it runs once")
    }
}

/// A meeting of partitions. See the module's header.
pub struct Rendezvous {
    pub(crate) touched: Touched,
    /// Its jobs; none: it runs the ready transactions of the coordinator once all partitions are here.
    jobs: Option<Mutex<Vec<Job>>>,
    /// This site brings its partitions last: it goes on until the others have brought theirs.
    pub(crate) leader: Option<SiteId>,
    count: usize,
    here: AtomicUsize,
    handoffs: Mutex<Vec<Handoff>>,
}

impl Rendezvous {
    /// For what is ready at the coordinator, led by this site if that may be.
    pub(crate) fn called(touched: Touched, partitions_count: u16, leader: SiteId) -> Self {
        Self {
            leader: Some(leader),
            jobs: None,
            ..Self::in_log_order(touched, partitions_count)
        }
    }

    /// One that every touched site comes upon in one order with all others: that of the log. What it runs is added before any
    /// site does.
    pub fn in_log_order(touched: Touched, partitions_count: u16) -> Self {
        let count = touched.len(partitions_count);
        Self {
            touched,
            jobs: Some(Mutex::default()),
            leader: None,
            count,
            here: AtomicUsize::new(0),
            handoffs: Mutex::new(Vec::with_capacity(count)),
        }
    }

    /// The partitions that are handed over.
    pub fn touched(&self) -> &Touched {
        &self.touched
    }

    /// Adds what it runs behind what it runs already.
    pub fn push(&self, job: Job) {
        let jobs = self
            .jobs
            .as_ref()
            .expect("what the coordinator has ready is not pushed");
        jobs.lock().expect("held for a push").push(job);
    }

    pub(crate) fn take_jobs(&self) -> Option<Vec<Job>> {
        let jobs = self.jobs.as_ref()?;
        Some(std::mem::take(&mut *jobs.lock().expect("held to take")))
    }

    /// Partitions that are not here yet.
    pub(crate) fn lacks(&self) -> usize {
        self.count - self.here.load(Ordering::Acquire)
    }

    /// Brings a partition. All of them, ascending, once it is the last one.
    pub(crate) fn bring(&self, handoff: Handoff) -> Option<Vec<Handoff>> {
        let mut handoffs = self.handoffs.lock().expect("held for a push");
        handoffs.push(handoff);
        self.here.store(handoffs.len(), Ordering::Release);
        if handoffs.len() < self.count {
            return None;
        }
        let mut all = std::mem::take(&mut *handoffs);
        drop(handoffs);
        all.sort_unstable_by_key(|handoff| handoff.partition.id);
        Some(all)
    }
}
