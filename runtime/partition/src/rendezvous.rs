//! A transaction over several partitions, and the rendezvous at which one thread gets all of them.
//!
//! Each site hands over its touched partitions when it reaches the rendezvous. The site that brings the last one runs the jobs and sends
//! the partitions home. No thread waits in here. Live transactions are prepared first, so that sites hand partitions over late and for many
//! transactions at once (`coordinator`). A replay knows the log's order, and has its sites meet in that order.

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use reprise_base::{PartitionId, SiteId};

use crate::{partition_table::Handoff, site::ExclusivePartitions};

/// A job that runs once every touched partition is held.
pub type Job = Box<dyn FnOnce(&mut ExclusivePartitions<'_>) + Send>;

/// The stream of one client. Its messages must not overtake each other if one of them is a transaction over several partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stream(pub u64);

/// The partitions that a transaction needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxnPartitions {
    /// Every partition of the database.
    All,
    /// These partitions, ascending.
    Some(Vec<PartitionId>),
}

impl TxnPartitions {
    /// True if the partition is one of them.
    pub fn contains(&self, id: PartitionId) -> bool {
        match self {
            Self::All => true,
            Self::Some(list) => list.binary_search(&id).is_ok(),
        }
    }

    /// Returns how many they are, out of all.
    pub fn len(&self, partitions_count: u16) -> usize {
        match self {
            Self::All => partitions_count as usize,
            Self::Some(list) => list.len(),
        }
    }

    /// Returns their sites, ascending.
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

/// A transaction over several partitions, or several of one client in a row, on its way through the inboxes.
pub struct MultiPartitionTxn {
    pub(crate) touched: TxnPartitions,
    /// The stream whose order it keeps. None: it is a barrier for all messages.
    pub(crate) stream: Option<Stream>,
    /// Time of the node's clock at which it was sent.
    pub(crate) sent_ns: u64,
    partitions_count: u16,
    /// Number of partitions that are prepared for it.
    prepared: AtomicUsize,
    job: Mutex<Option<Job>>,
}

impl MultiPartitionTxn {
    /// Makes a barrier at each touched partition. Each message that arrived before it is done before it, and no message that arrived after
    /// it.
    pub fn barrier(touched: TxnPartitions, partitions_count: u16, job: Job) -> Self {
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

    /// Makes a transaction that keeps its place among the messages of `stream` alone.
    pub fn in_stream(touched: TxnPartitions, partitions_count: u16, stream: Stream, sent_ns: u64, job: Job) -> Self {
        Self {
            stream: Some(stream),
            sent_ns,
            ..Self::barrier(touched, partitions_count, job)
        }
    }

    /// Returns the partitions that it needs.
    pub fn touched(&self) -> &TxnPartitions {
        &self.touched
    }

    /// Records that one more partition is prepared for it. True: it was the last one.
    pub(crate) fn prepare(&self) -> bool {
        let prepared = self.prepared.fetch_add(1, Ordering::AcqRel) + 1;
        prepared == self.touched.len(self.partitions_count)
    }

    pub(crate) fn take_job(&self) -> Job {
        let job = self.job.lock().expect("held for a short time").take();
        job.expect("it runs once")
    }
}

/// A meeting of partitions. See the module's header.
pub struct Rendezvous {
    pub(crate) touched: TxnPartitions,
    /// Its jobs. None: it runs the ready transactions of the coordinator once all partitions are here.
    jobs: Option<Mutex<Vec<Job>>>,
    /// The site that brings its partitions last. It does other work until the other sites have brought theirs.
    pub(crate) leader: Option<SiteId>,
    count: usize,
    here: AtomicUsize,
    handoffs: Mutex<Vec<Handoff>>,
}

impl Rendezvous {
    /// Makes a rendezvous for the ready transactions of the coordinator. This site leads it if possible.
    pub(crate) fn called(touched: TxnPartitions, partitions_count: u16, leader: SiteId) -> Self {
        Self {
            leader: Some(leader),
            jobs: None,
            ..Self::in_log_order(touched, partitions_count)
        }
    }

    /// Makes a rendezvous that all touched sites reach in one order with all others: that of the log. The caller adds its jobs before any
    /// site reaches it.
    pub fn in_log_order(touched: TxnPartitions, partitions_count: u16) -> Self {
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

    /// Returns the partitions that the sites hand over.
    pub fn touched(&self) -> &TxnPartitions {
        &self.touched
    }

    /// Adds a job behind those that it has.
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

    /// Returns the number of partitions that are not here yet.
    pub(crate) fn lacks(&self) -> usize {
        self.count - self.here.load(Ordering::Acquire)
    }

    /// Brings a partition. Returns all partitions, ascending, if it is the last one.
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
