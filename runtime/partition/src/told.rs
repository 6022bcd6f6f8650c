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

/// A working partition publishes again after this time, and after `TELL_SHARE` times the time that publishing takes.
const TELL_EVERY_NS: u64 = 100_000_000;
const TELL_SHARE: u64 = 200;

/// The sizes that were published last.
pub struct Told {
    /// By partition, then by `TableId`.
    stats: Vec<ArcSwap<Vec<TableStats>>>,
    /// By site.
    asked: Vec<Asked>,
}

struct Asked {
    /// A question lies in the site's inbox.
    is_sent: AtomicBool,
    /// Questions answered.
    answered: Arc<Watermark>,
}

/// A question to a site, and the place where its answer appears.
pub struct Question<'a> {
    asked: &'a Asked,
    answer: u64,
}

/// When a partition tells next.
#[derive(Default)]
pub(crate) struct Telling {
    /// Its tables may have changed since it told last.
    is_due: bool,
    /// By the node's clock.
    not_before_ns: u64,
}

impl Told {
    /// No partition has published yet.
    pub fn new(partitions_count: u16, sites_count: u16) -> Self {
        let asked = || Asked {
            is_sent: AtomicBool::new(false),
            answered: Arc::default(),
        };
        Self {
            stats: (0..partitions_count).map(|_| ArcSwap::default()).collect(),
            asked: (0..sites_count).map(|_| asked()).collect(),
        }
    }

    /// A partition's tables by `TableId`, as it told last; tables that it has not told of are missing.
    pub fn stats(&self, partition: PartitionId) -> Arc<Vec<TableStats>> {
        self.stats[partition.index()].load_full()
    }

    /// Asks a site; the second is true where a `SiteMessage::Tell` is to be sent to it. One lies in an inbox at most, however
    /// many ask and however long the site is busy.
    pub fn ask(&self, site: SiteId) -> (Question<'_>, bool) {
        let asked = &self.asked[site.index()];
        // In this order: an answer that is under way now began after everything that was acknowledged before.
        let answer = asked.answered.get() + 1;
        let is_first = !asked.is_sent.swap(true, Ordering::AcqRel);
        (Question { asked, answer }, is_first)
    }
}

impl Question<'_> {
    /// Calls the hook once it is answered. None: it is, and the hook was not called.
    pub fn when_answered(&self, hook: OnReached) -> Option<WatermarkWaiter> {
        self.asked.answered.when(self.answer, hook)
    }
}

impl Partition {
    /// Something may have changed.
    #[inline]
    pub(crate) fn note_change(&mut self) {
        self.telling.is_due = true;
    }

    /// `now_ns` may lie a little back.
    #[inline]
    pub(crate) fn tell_if_due(&mut self, shared: &Shared, now_ns: u64) {
        if now_ns >= self.telling.not_before_ns {
            self.tell(shared);
            let took_ns = shared.clock.monotonic_ns() - now_ns;
            self.telling.not_before_ns = now_ns + TELL_EVERY_NS.max(took_ns.saturating_mul(TELL_SHARE));
        }
    }

    #[cold]
    fn tell(&mut self, shared: &Shared) {
        if std::mem::take(&mut self.telling.is_due) {
            let ids = self.store.table_ids();
            let stats = ids.map(|id| self.store.stats(id)).collect();
            shared.told.stats[self.id.index()].store(Arc::new(stats));
        }
    }
}

impl Site {
    /// Publishes the sizes of the partitions at home. A partition that is away published before it left.
    pub(crate) fn tell(&mut self) {
        let shared = self.tools.shared.clone();
        let asked = &shared.told.asked[self.id.index()];
        asked.is_sent.store(false, Ordering::Release);
        for partition in self.table.iter_mut() {
            // A write that failed may have been taken back since.
            partition.settle(&*self.tools.sink, &self.tools.shared.gate);
            partition.tell(&shared);
        }
        asked.answered.advance(asked.answered.get() + 1);
    }
}
