//! Views of a standby's tables, and the reads that run at them on threads of their own.
//!
//! A view is opened by a message to all sites, sent under the lock under which windows of the log are (`Inner::order`): so it is of all windows that
//! were sent before and of nothing of later ones, on every partition. Reads that come before the next window share it. Behind that the last one of
//! them closes it, and without one the window does.

use std::{
    sync::{
        Arc, Condvar, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crossbeam_channel::Sender;
use reprise_base::Lsn;
use reprise_partition::{OpenViews, OpenedView, ReadWork, Reading, ReplyOutcome, Site, SiteMessage};
use reprise_storage::ViewId;

use crate::router::Router;

/// How often who waits for a view looks whether there will be one.
const LOOK: Duration = Duration::from_millis(10);

/// The views that are open.
#[derive(Default)]
pub(crate) struct Views {
    newest: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
    /// Bytes that one partition keeps for its views at most.
    bytes_max: AtomicU64,
}

#[derive(Default)]
struct State {
    /// The newest one, as long as anybody holds it.
    newest: Weak<Lease>,
    /// A view that stays open until the next window is sent. Reads that come one by one then need no view each, and nothing is kept for it.
    kept: Option<Arc<Lease>>,
    open: usize,
    /// Something waits until none is open.
    is_shut: bool,
    reads: ReadPath,
}

/// The way of a standby's reads.
#[derive(Clone, Default)]
pub enum ReadPath {
    /// The engine threads run them, as on a primary: nothing is replayed here. A primary that stepped down has this path.
    #[default]
    Sites,
    /// The readers take them from this queue.
    Readers(Sender<Reading>),
    /// They are refused: the standby becomes the primary, or stops.
    Closed,
}

/// The readers' queue; none: reads are refused.
pub(crate) struct ReadAside(Option<Sender<Reading>>);

/// Why there are no views any more.
const OVER: &str = "this standby closed its views, because it becomes the primary or stops; try again";

/// A view, open until it is dropped.
struct Lease {
    id: ViewId,
    /// Behind all that it shows.
    end: Lsn,
    router: Router,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let id = self.id;
        self.router.send_to_all(move |site| {
            let held = site.partitions_at_home();
            held.for_each(|partition| partition.store.close_view(id));
        });
        let views = &self.router.0.part.views;
        views.state.lock().expect("held for a count").open -= 1;
        views.changed.notify_all();
    }
}

impl Router {
    fn send_to_all(&self, job: impl Fn(&mut Site) + Copy + Send + 'static) {
        for site in 0..self.0.config.inboxes.len() {
            self.send(site, SiteMessage::Job(Box::new(job)));
        }
    }

    /// Sets the way of reads, for as long as this is a standby. What a partition keeps for their views may take `bytes_max`.
    pub fn set_read_path(&self, reads: ReadPath, bytes_max: u64) {
        let views = &self.0.part.views;
        views.bytes_max.store(bytes_max, Ordering::Relaxed);
        views.state.lock().expect("held for a store").reads = reads;
        self.let_view_go();
        views.changed.notify_all();
    }

    /// Nobody who comes from now on reads at the newest view.
    pub(crate) fn let_view_go(&self) {
        let kept = self.0.part.views.state.lock().expect("held for a store").kept.take();
        drop(kept); // its end takes the lock
    }

    /// The way of reads on a standby; none: the sites run them.
    #[cold]
    pub(crate) fn read_aside(&self) -> Option<ReadAside> {
        match self.0.part.views.state.lock().expect("held for a copy").reads.clone() {
            ReadPath::Sites => None,
            ReadPath::Readers(queue) => Some(ReadAside(Some(queue))),
            ReadPath::Closed => Some(ReadAside(None)),
        }
    }

    /// Hands a read to the readers, or refuses it.
    pub(crate) fn read(&self, aside: &ReadAside, reading: Reading) {
        let unsent = match &aside.0 {
            Some(queue) => queue.send(reading).err().map(|unsent| unsent.0),
            None => Some(reading),
        };
        let Some(unsent) = unsent else { return };
        if let ReadWork::Calls(batch) = &unsent.work {
            for id in &unsent.partitions {
                self.0.config.shared.waiting[id.index()].fetch_sub(batch.count_on(*id), Ordering::Relaxed);
            }
        }
        unsent.turn_away(&ReplyOutcome::Unavailable(OVER.into()));
    }

    /// Lets no view be opened; true once none is open. Until `reopen_views`.
    pub fn shut_views(&self) -> bool {
        self.0.part.views.state.lock().expect("held for a store").is_shut = true;
        self.let_view_go();
        self.open_views() == 0
    }

    pub fn reopen_views(&self) {
        let views = &self.0.part.views;
        let was_shut = std::mem::take(&mut views.state.lock().expect("held for a store").is_shut);
        if was_shut {
            views.changed.notify_all();
        }
    }

    /// Views that are open now.
    pub fn open_views(&self) -> usize {
        self.0.part.views.state.lock().expect("held for a look").open
    }

    /// None while views are shut.
    fn lease(&self) -> Result<Option<Arc<Lease>>, Arc<str>> {
        let views = &self.0.part.views;
        let order = self.in_order();
        let mut state = views.state.lock().expect("held for a look");
        if !matches!(state.reads, ReadPath::Readers(_)) {
            return Err(OVER.into());
        }
        if state.is_shut {
            return Ok(None);
        }
        let end = Lsn(self.0.part.sent());
        let before = state.newest.upgrade();
        if let Some(lease) = before.as_ref().filter(|lease| lease.end == end) {
            return Ok(Some(lease.clone()));
        }
        let lease = Arc::new(Lease {
            id: ViewId(views.newest.fetch_add(1, Ordering::Relaxed) + 1),
            end,
            router: self.clone(),
        });
        state.open += 1;
        state.newest = Arc::downgrade(&lease);
        let kept = state.kept.replace(lease.clone());
        drop(state);
        let (id, bytes_max) = (lease.id, views.bytes_max.load(Ordering::Relaxed) as usize);
        self.send_to_all(move |site| {
            let held = site.partitions_at_home();
            held.for_each(|partition| partition.store.open_view(id, partition.last_end.0, bytes_max));
        });
        drop(order);
        // Should it be the last one that held the view before, its end takes the lock of the state.
        drop((before, kept));
        Ok(Some(lease))
    }
}

impl OpenViews for Router {
    fn try_open(&self) -> Result<Option<OpenedView>, Arc<str>> {
        let lease = self.lease()?;
        Ok(lease.map(|lease| OpenedView { id: lease.id, lease }))
    }

    fn open(&self) -> Result<OpenedView, Arc<str>> {
        let views = &self.0.part.views;
        loop {
            if let Some(opened) = self.try_open()? {
                return Ok(opened);
            }
            let state = views.state.lock().expect("held for a look");
            let waited = views.changed.wait_timeout_while(state, LOOK, |state| state.is_shut);
            drop(waited.expect("nothing panics under this lock"));
        }
    }
}
