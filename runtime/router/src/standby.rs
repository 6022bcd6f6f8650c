//! The router's part on a standby: it refuses writes, and has every read see one prefix of the primary's log.
//!
//! Views (`views`) and the windows of the replayed log go into the inboxes in one order (`RouterInner::order`), each window whole. A site works
//! in that order. A read at a view therefore sees all windows that were sent before the view, and none of the later ones, on all
//! partitions.

use std::sync::{
    Arc, RwLock,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use reprise_base::{Lsn, OnReached, Role, Watermark, WatermarkWaiter};
use reprise_log::Log;
use reprise_partition::{ExclusivePartitions, Job, MultiPartitionTxn, TxnPartitions};

use crate::{
    replication::PrimaryBeside,
    router::{Router, Unavailable},
    views::ViewRegistry,
};

/// The error that a write reached a standby.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this server is a standby{}", .primary.as_deref().map(|url| format!("; its primary is {url}")).unwrap_or_default())]
pub struct NotPrimary {
    /// URL of the primary, if it is known.
    pub primary: Option<Arc<str>>,
}

/// The node's part in replication.
#[derive(Default)]
pub(crate) struct ReplicationPart {
    is_standby: AtomicBool,
    primary: RwLock<Option<Arc<str>>>,
    /// On a standby: the thing that its replay waits for.
    replay_waits_for: RwLock<Option<Arc<str>>>,
    /// The server that leads beside this primary.
    other_primary: RwLock<Option<PrimaryBeside>>,
    /// On a standby: the end of everything that was sent to the sites. It is raised under `RouterInner::order`.
    sent: AtomicU64,
    /// On a standby: the LSN before which readers see everything.
    view: Arc<Watermark>,
    /// On a standby: the views at which its readers read.
    pub views: ViewRegistry,
}

impl ReplicationPart {
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }
}

impl Router {
    pub fn role(&self) -> Role {
        if self.is_standby() {
            return Role::Standby;
        }
        match self.0.config.log.as_deref().is_some_and(Log::is_read_only) {
            true => Role::ReadOnly,
            false => Role::Primary,
        }
    }

    /// Sets the role. On a `Standby`, calls that write are refused from now on, and reads see the prefix of `raise_view`.
    pub fn set_role(&self, role: Role) {
        self.0.part.is_standby.store(role == Role::Standby, Ordering::Release);
        self.run_key_clock();
    }

    /// Lets idempotency keys age while this server is the primary and takes calls.
    pub(crate) fn run_key_clock(&self) {
        let key_clock = &self.0.config.shared.key_clock;
        match self.is_recovered() && !self.is_standby() {
            true => key_clock.run(),
            false => key_clock.stop(),
        }
    }

    #[inline]
    pub(crate) fn is_standby(&self) -> bool {
        self.0.part.is_standby.load(Ordering::Acquire)
    }

    /// Sets the URL to which clients of a standby send their writes.
    pub fn set_primary_url(&self, url: Option<Arc<str>>) {
        *self.0.part.primary.write().expect("held for a store") = url;
    }

    pub fn primary_url(&self) -> Option<Arc<str>> {
        self.0.part.primary.read().expect("held for a copy").clone()
    }

    /// Sets the thing that the replay of a standby waits for, for people. None: its primary alone.
    pub fn set_replay_waits_for(&self, what: Option<Arc<str>>) {
        *self.0.part.replay_waits_for.write().expect("held for a store") = what;
    }

    /// Records the server that leads this database beside this primary. None: none is known.
    pub fn set_other_primary(&self, other: Option<PrimaryBeside>) {
        *self.0.part.other_primary.write().expect("held for a store") = other;
    }

    pub fn other_primary(&self) -> Option<PrimaryBeside> {
        let other = self.0.part.other_primary.read().expect("held for a copy").clone();
        other.filter(|_| !self.is_standby())
    }

    pub fn replay_waits_for(&self) -> Option<Arc<str>> {
        self.0.part.replay_waits_for.read().expect("held for a copy").clone()
    }

    /// Checks that this server is no standby.
    pub fn check_primary(&self) -> Result<(), NotPrimary> {
        match self.is_standby() {
            false => Ok(()),
            true => Err(NotPrimary {
                primary: self.primary_url(),
            }),
        }
    }

    /// Has `send` put the window up to `end` into the inboxes as a whole, with no view in between. It must not wait for anything.
    pub fn send_window(&self, end: Lsn, send: &mut dyn FnMut()) {
        let _order = self.in_order();
        self.release_view();
        self.0.part.sent.store(end.0, Ordering::Release);
        send();
    }

    /// On a standby: runs `job` over all partitions at a cut, and waits for its result. The job gets the LSN of the cut.
    pub(crate) fn run_at_cut<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut ExclusivePartitions<'_>, Lsn) -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        self.check_ready()?;
        let shared = &self.0.config.shared;
        let (sender, receiver) = crossbeam_channel::bounded(1);
        {
            let order = self.in_order();
            let cut = Lsn(self.0.part.sent.load(Ordering::Acquire));
            let job: Job = Box::new(move |held| {
                let _ = sender.send(job(held, cut)); // the caller may have gone
            });
            let txn = MultiPartitionTxn::barrier(TxnPartitions::All, shared.partitions_count, job);
            self.send_multi_in(&order, txn);
        }
        let received = shared.threads.receive(&receiver);
        received.map_err(|_| Unavailable("the engine has stopped".into()))
    }

    /// Raises the LSN before which readers of a standby see everything. It never falls.
    pub fn raise_view(&self, end: Lsn) {
        self.0.part.sent.fetch_max(end.0, Ordering::AcqRel);
        self.0.part.view.raise(end.0);
    }

    /// Returns the LSN before which reads see all records; 0 without a log. On a primary that is everything committed. On a standby it is
    /// everything replayed, which is durable there.
    pub fn view(&self) -> Lsn {
        match self.is_standby() {
            true => Lsn(self.0.part.view.get()),
            false => {
                let filled = self.0.config.log.as_deref().map_or(Lsn(0), Log::filled);
                self.0.config.shared.gate.committed(filled)
            }
        }
    }

    /// True once reads see the record at `lsn`. Without a log, answers have LSN 0, which is always seen. Later reads show everything that is
    /// committed now: they show whole turns, and the record may lie within one.
    pub fn is_in_view(&self, lsn: Lsn) -> bool {
        let (end, gate) = (Lsn(lsn.0.saturating_add(1)), &self.0.config.shared.gate);
        let shown = gate.committed(self.view());
        lsn == Lsn(0) || (shown >= end && gate.shows(shown))
    }

    /// Whether answers report the age of the rows that they show. They do on a standby, and on a primary that may be deposed.
    pub fn reports_age(&self) -> bool {
        let shared = &self.0.config.shared;
        self.is_standby() || shared.gate.doubt(&*shared.clock).is_some()
    }

    /// Runs `hook` on an engine thread once the record at `lsn` is in the log of a primary, or in the view of a standby; it must only hand over. On a
    /// primary reads may see it later (`is_in_view`). Returns nothing if the record is there already, or if there is no log.
    pub fn when_in_view(&self, lsn: Lsn, hook: OnReached) -> Option<WatermarkWaiter> {
        let end = Lsn(lsn.0.saturating_add(1));
        match self.is_standby() {
            true => self.0.part.view.when(end.0, hook),
            false => self.0.config.log.as_deref()?.when_filled(end, hook),
        }
    }
}
