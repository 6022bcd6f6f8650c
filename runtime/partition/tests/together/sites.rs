//! Sites on threads of their own, and what happened on them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use crossbeam_channel::Sender;
use reprise_base::{MemoryLedger, PartitionId, SiteId};
use reprise_env::{RealClock, RealThreads};
use reprise_observe::{RecentLines, Registry};
use reprise_partition::{
    CallBatch, ExclusivePartitions, ExecContext, MultiPartitionTxn, NoLog, Shared, Site, SiteMessage, Stream,
    TxnPartitions,
};
use reprise_txn::ModuleId;

/// Sites over four partitions, and the events until now, a word each.
pub struct Sites {
    pub shared: Arc<Shared>,
    inboxes: Vec<Sender<SiteMessage>>,
    pub threads: Vec<JoinHandle<()>>,
    happened: Arc<Mutex<Vec<String>>>,
}

impl Sites {
    pub fn start(sites_count: u16) -> Self {
        let shared = Arc::new(Shared {
            deployed: Default::default(),
            generation: AtomicU64::new(0),
            memory: MemoryLedger::unlimited(),
            clock: Arc::new(RealClock::new()),
            threads: Arc::new(RealThreads),
            secret: [1, 2],
            partitions_count: 4,
            sites_count,
            waiting: (0..4).map(|_| AtomicUsize::new(0)).collect(),
            waiting_max: usize::MAX,
            multi_tick: AtomicU64::new(0),
            replay_failed: Default::default(),
            copying: AtomicUsize::new(0),
            binaries: Mutex::default(),
            records_max: AtomicUsize::new(usize::MAX),
            lines: Arc::new(RecentLines::new()),
            notices: Default::default(),
            logging: reprise_partition::LogSettings::default(),
            calls: Arc::default(),
            gate: Arc::default(),
            coordinator: reprise_partition::Coordinator::new(4, sites_count),
            published: reprise_partition::PublishedStats::new(4, sites_count),
            underway: Default::default(),
            key_clock: reprise_partition::KeyClock::new(Arc::new(RealClock::new())),
            principals: Default::default(),
        });
        let (mut inboxes, mut threads) = (Vec::new(), Vec::new());
        for id in 0..sites_count {
            let (sender, inbox) = crossbeam_channel::unbounded();
            let shared = shared.clone();
            threads.push(std::thread::spawn(move || {
                let tools = ExecContext::new(shared, Box::new(NoLog), Registry::new().recorder());
                Site::new(SiteId(id), tools, inbox).run();
            }));
            inboxes.push(sender);
        }
        Self {
            shared,
            inboxes,
            threads,
            happened: Arc::default(),
        }
    }

    pub fn note(&self, word: &str) -> impl FnOnce() + Send + use<> {
        let (happened, word) = (self.happened.clone(), word.to_owned());
        move || happened.lock().expect("held for a push").push(word)
    }

    /// A batch of one call; its module is unknown, so it ends as soon as it runs.
    pub fn batch(&self, partition: u16, word: &str) {
        self.batch_of(None, partition, word);
    }

    pub fn batch_of(&self, stream: Option<Stream>, partition: u16, word: &str) {
        let mut batch = CallBatch::new(Some(PartitionId(partition)));
        batch.stream = stream;
        batch.push(ModuleId(0), 0, &[], None);
        let note = self.note(word);
        batch.done = Some(Box::new(move |_| note()));
        self.shared.waiting[partition as usize].fetch_add(1, Ordering::Relaxed);
        self.send(partition % self.shared.sites_count, SiteMessage::Batch(Box::new(batch)));
    }

    /// A strict one.
    pub fn gathering(&self, partitions: &[u16], word: &str) -> Arc<MultiPartitionTxn> {
        let (touched, job) = (touched(partitions), self.job(partitions, self.note(word)));
        Arc::new(MultiPartitionTxn::barrier(touched, 4, job))
    }

    pub fn gathering_of(
        &self,
        stream: Stream,
        partitions: &[u16],
        note: impl FnOnce() + Send + 'static,
    ) -> Arc<MultiPartitionTxn> {
        let (touched, job) = (touched(partitions), self.job(partitions, note));
        Arc::new(MultiPartitionTxn::in_stream(touched, 4, stream, 0, job))
    }

    pub fn job(&self, partitions: &[u16], note: impl FnOnce() + Send + 'static) -> reprise_partition::Job {
        let expected = partitions.to_vec();
        Box::new(move |held: &mut ExclusivePartitions<'_>| {
            let ids: Vec<u16> = held.partitions.iter().map(|partition| partition.id.0).collect();
            assert_eq!(ids, expected);
            note();
        })
    }

    /// To each touched site.
    pub fn send_gathering(&self, gathering: &Arc<MultiPartitionTxn>) {
        for site in gathering.touched().sites(self.shared.sites_count) {
            self.gather(site as u16, gathering);
        }
    }

    pub fn send(&self, site: u16, message: SiteMessage) {
        self.inboxes[site as usize].send(message).expect("the site runs");
    }

    pub fn gather(&self, site: u16, gathering: &Arc<MultiPartitionTxn>) {
        self.send(site, SiteMessage::Multi(gathering.clone()));
    }

    /// Waits until `count` events have happened, and returns them.
    pub fn after(&self, count: usize) -> Vec<String> {
        for _ in 0..24_000 {
            let happened = self.happened.lock().expect("held for a push").clone();
            if happened.len() >= count {
                return happened;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("only {:?} happened", self.happened.lock().expect("held for a push"));
    }

    pub fn stop(self) {
        for site in 0..self.inboxes.len() as u16 {
            self.send(site, SiteMessage::Stop);
        }
        for thread in self.threads {
            thread.join().expect("no site panics");
        }
        for waiting in &self.shared.waiting {
            assert_eq!(waiting.load(Ordering::Relaxed), 0);
        }
    }
}

fn touched(partitions: &[u16]) -> TxnPartitions {
    TxnPartitions::Some(partitions.iter().copied().map(PartitionId).collect())
}
