//! Sizes of tables, which partitions publish without being held. A working partition publishes now and then. A site publishes all of its partitions
//! between two messages when a caller asks.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use arc_swap::ArcSwap;
use reprise_base::{OnReached, PartitionId, SiteId, Watermark, WatermarkWaiter};
use reprise_storage::TableStats;

use crate::{
    shared::Shared,
    site::{Partition, Site},
};

/// A working partition publishes again after this time, and after `PUBLISH_SHARE` times the time that publishing takes.
const PUBLISH_INTERVAL_NS: u64 = 100_000_000;
const PUBLISH_SHARE: u64 = 200;

/// The sizes that were published last.
pub struct PublishedStats {
    /// By partition, then by `TableId`.
    stats: Vec<ArcSwap<Vec<TableStats>>>,
    /// The questions by site.
    asked: Vec<StatsRequest>,
}

struct StatsRequest {
    /// A question lies in the site's inbox.
    is_sent: AtomicBool,
    /// Number of answered questions.
    answered: Arc<Watermark>,
}

/// A question to a site, and the place where its answer appears.
pub struct Question<'a> {
    asked: &'a StatsRequest,
    answer: u64,
}

/// The time at which a partition publishes next.
#[derive(Default)]
pub(crate) struct PublishTimer {
    /// Its tables may have changed since it published last.
    is_due: bool,
    /// The earliest time, by the node's clock.
    not_before_ns: u64,
}

impl PublishedStats {
    /// Makes it, with nothing published.
    pub fn new(partitions_count: u16, sites_count: u16) -> Self {
        let asked = || StatsRequest {
            is_sent: AtomicBool::new(false),
            answered: Arc::default(),
        };
        Self {
            stats: (0..partitions_count).map(|_| ArcSwap::default()).collect(),
            asked: (0..sites_count).map(|_| asked()).collect(),
        }
    }

    /// Returns the sizes of a partition's tables by `TableId`, as it published them last. Tables that it has not published are missing.
    pub fn stats(&self, partition: PartitionId) -> Arc<Vec<TableStats>> {
        self.stats[partition.index()].load_full()
    }

    /// Asks a site. True: the caller has to send it a `SiteMessage::Tell`. An inbox holds at most one, however many callers ask and however long the
    /// site is busy.
    pub fn ask(&self, site: SiteId) -> (Question<'_>, bool) {
        let asked = &self.asked[site.index()];
        // The order matters: an answer that is under way now began after everything that was acknowledged before.
        let answer = asked.answered.get() + 1;
        let is_first = !asked.is_sent.swap(true, Ordering::AcqRel);
        (Question { asked, answer }, is_first)
    }
}

impl Question<'_> {
    /// Has the hook called once the question is answered. None: it is answered, and the hook was not called.
    pub fn when_answered(&self, hook: OnReached) -> Option<WatermarkWaiter> {
        self.asked.answered.when(self.answer, hook)
    }
}

impl Partition {
    /// Records that the tables may have changed.
    #[inline]
    pub(crate) fn record_change(&mut self) {
        self.publish_timer.is_due = true;
    }

    /// Publishes if it is time. `now_ns` may lie a little back.
    #[inline]
    pub(crate) fn publish_if_due(&mut self, shared: &Shared, now_ns: u64) {
        if now_ns >= self.publish_timer.not_before_ns {
            self.publish(shared);
            let took_ns = shared.clock.monotonic_ns() - now_ns;
            self.publish_timer.not_before_ns = now_ns + PUBLISH_INTERVAL_NS.max(took_ns.saturating_mul(PUBLISH_SHARE));
        }
    }

    #[cold]
    fn publish(&mut self, shared: &Shared) {
        if std::mem::take(&mut self.publish_timer.is_due) {
            let ids = self.store.table_ids();
            let stats = ids.map(|id| self.store.stats(id)).collect();
            shared.published.stats[self.id.index()].store(Arc::new(stats));
        }
    }
}

impl Site {
    /// Publishes the sizes of the partitions at home. A partition that is away published before it left.
    pub(crate) fn publish(&mut self) {
        let shared = self.tools.shared.clone();
        let asked = &shared.published.asked[self.id.index()];
        asked.is_sent.store(false, Ordering::Release);
        for partition in self.table.iter_mut() {
            // A write that failed may have been taken back since.
            partition.release_undo(&*self.tools.sink, &self.tools.shared.gate);
            partition.publish(&shared);
        }
        asked.answered.advance(asked.answered.get() + 1);
    }
}
