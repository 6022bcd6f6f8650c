//! Views of a standby's tables, and the reads that run at them on threads of their own.
//!
//! A message to all sites opens a view. It is sent under the same lock as the windows of the log (`RouterInner::order`). So, on every partition,
//! the view shows all windows that were sent before and none of the later ones. Reads that arrive before the next window share it. After
//! that window, the last of these reads closes the view. Without such a read, the window closes it.

use std::{
    sync::{
        Arc, Condvar, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crossbeam_channel::Sender;
use reprise_base::Lsn;
use reprise_partition::{OpenViews, OpenedView, ReadTask, ReadWork, ReplyOutcome, Site, SiteMessage};
use reprise_storage::ViewId;

use crate::router::Router;

/// Interval at which a thread that waits for a view checks whether it will get one.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The views that are open.
#[derive(Default)]
pub(crate) struct ViewRegistry {
    newest: AtomicU64,
    state: Mutex<ViewsState>,
    changed: Condvar,
    /// Bytes that one partition keeps for its views at most.
    bytes_max: AtomicU64,
}

#[derive(Default)]
struct ViewsState {
    /// The newest view, while a read holds it.
    newest: Weak<ViewGuard>,
    /// A view that stays open until the next window is sent. Reads that arrive one by one then need no view each, and no version is kept
    /// for it.
    kept: Option<Arc<ViewGuard>>,
    open: usize,
    /// True while a thread waits until no view is open.
    is_shut: bool,
    reads: ReadPath,
}

/// The way of a standby's reads.
#[derive(Clone, Default)]
pub enum ReadPath {
    /// The engine threads run them, as on a primary, because nothing is replayed here. A primary that stepped down has this path.
    #[default]
    Sites,
    /// The readers take them from this queue.
    Readers(Sender<ReadTask>),
    /// Reads are refused, because the standby becomes the primary, or stops.
    Closed,
}

/// The readers' queue. None: reads are refused.
pub(crate) struct ReadAside(Option<Sender<ReadTask>>);

/// Why there are no views any more.
const OVER: &str = "this standby closed its views, because it becomes the primary or stops; try again";

/// A view, open until it is dropped.
struct ViewGuard {
    id: ViewId,
    /// The end of the records that it shows.
    end: Lsn,
    router: Router,
}

impl Drop for ViewGuard {
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

    /// Sets the way of reads on this standby. Each partition may keep `bytes_max` for their views.
    pub fn set_read_path(&self, reads: ReadPath, bytes_max: u64) {
        let views = &self.0.part.views;
        views.bytes_max.store(bytes_max, Ordering::Relaxed);
        views.state.lock().expect("held for a store").reads = reads;
        self.release_view();
        views.changed.notify_all();
    }

    /// Drops the kept view, so that later reads get another one.
    pub(crate) fn release_view(&self) {
        let kept = self.0.part.views.state.lock().expect("held for a store").kept.take();
        drop(kept); // the drop takes the lock
    }

    /// Returns the way of reads on a standby. None: the sites run them.
    #[cold]
    pub(crate) fn read_aside(&self) -> Option<ReadAside> {
        match self.0.part.views.state.lock().expect("held for a copy").reads.clone() {
            ReadPath::Sites => None,
            ReadPath::Readers(queue) => Some(ReadAside(Some(queue))),
            ReadPath::Closed => Some(ReadAside(None)),
        }
    }

    /// Hands a read to the readers, or refuses it.
    pub(crate) fn read(&self, aside: &ReadAside, reading: ReadTask) {
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

    /// Stops the opening of views until `reopen_views`. True once none is open.
    pub fn shut_views(&self) -> bool {
        self.0.part.views.state.lock().expect("held for a store").is_shut = true;
        self.release_view();
        self.open_views() == 0
    }

    pub fn reopen_views(&self) {
        let views = &self.0.part.views;
        let was_shut = std::mem::take(&mut views.state.lock().expect("held for a store").is_shut);
        if was_shut {
            views.changed.notify_all();
        }
    }

    /// Returns the number of open views.
    pub fn open_views(&self) -> usize {
        self.0.part.views.state.lock().expect("held for a short time").open
    }

    /// Opens a view, or shares the newest one. None while views are shut.
    fn lease(&self) -> Result<Option<Arc<ViewGuard>>, Arc<str>> {
        let views = &self.0.part.views;
        let order = self.in_order();
        let mut state = views.state.lock().expect("held for a short time");
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
        let lease = Arc::new(ViewGuard {
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
        // If this was the last holder of the view before, its end locks the state.
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
            let state = views.state.lock().expect("held for a short time");
            let waited = views
                .changed
                .wait_timeout_while(state, POLL_INTERVAL, |state| state.is_shut);
            drop(waited.expect("nothing panics under this lock"));
        }
    }
}
