//! Snapshot points: places of the log that all sites reach together, for a thread that orders its messages among them. Everything
//! between two points goes to the sites together. No message gets between its parts, and a read over several partitions sees one
//! prefix of the log.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crossbeam_channel::{Receiver, Sender};
use reprise_base::Lsn;
use reprise_partition::SiteMessage;

use crate::{error::ReplayError, outcome::ReplayOutcome, replayer::Replayer};

/// Number of points that are sent and not reached yet, at most: a read waits for everything sent before it.
const POINTS_IN_FLIGHT: usize = 4;

/// Called at each point once all sites have reached it, on the thread of one of them: it must only hand over. `Err`: a record before
/// it could not be replayed.
pub type OnSnapshotPoint = Arc<dyn Fn(Result<Lsn, ()>) + Send + Sync>;

/// State of a replayer that sends only at snapshot points.
pub(crate) struct SnapshotPoints {
    /// Messages for the sites at the next point, in order.
    pub held_back: Vec<(usize, SiteMessage)>,
    on_point: OnSnapshotPoint,
    /// A token per point that may yet be sent.
    tokens: (Sender<()>, Receiver<()>),
}

/// A point that each site reaches behind everything before it.
struct PointArrival {
    end: Lsn,
    sites_left: AtomicUsize,
    outcome: Arc<ReplayOutcome>,
    on_point: OnSnapshotPoint,
    token: Sender<()>,
}

impl PointArrival {
    fn arrive(&self) {
        if self.sites_left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let _ = self.token.send(()); // the feeder may have gone
        (self.on_point)(match self.outcome.has_failed_before(self.end) {
            true => Err(()),
            false => Ok(self.end),
        });
    }
}

impl Replayer {
    /// Holds fed records back from now on, until the next `snapshot_point`.
    pub fn begin_snapshot_points(&mut self, on_point: OnSnapshotPoint) {
        let tokens = crossbeam_channel::unbounded();
        for _ in 0..POINTS_IN_FLIGHT {
            let _ = tokens.0.send(()); // cannot fail: `tokens` holds the receiver
        }
        self.points = Some(SnapshotPoints {
            held_back: Vec::new(),
            on_point,
            tokens,
        });
    }

    /// Ends the records fed since the last point. `in_order` receives the point and a function that sends everything. It keeps other
    /// messages back meanwhile, and must take no longer than to send. Waits first, while many points are in flight. Err: as for `feed`.
    pub fn snapshot_point(&mut self, in_order: impl FnOnce(Lsn, &mut dyn FnMut())) -> Result<(), ReplayError> {
        let gathered = self.release_held().and_then(|()| self.send_all_pending());
        gathered.map_err(|error| self.fail(Some(error)))?;
        // Demultiplexed changes are with their sites, or done.
        self.aheads.retain(|ahead| Arc::strong_count(ahead) > 1);
        let end = self.whole_end();
        let points = self.points.as_mut().expect("points were begun");
        let token = self.assist.receive(&points.tokens.1);
        token.ok_or(ReplayError::Stopped)?;
        let arrival = Arc::new(PointArrival {
            end,
            sites_left: AtomicUsize::new(self.sites.len()),
            outcome: self.outcome.clone(),
            on_point: points.on_point.clone(),
            token: points.tokens.0.clone(),
        });
        for site in 0..self.sites.len() {
            let arrival = arrival.clone();
            let arrive = SiteMessage::Job(Box::new(move |_| arrival.arrive()));
            points.held_back.push((site, arrive));
        }
        self.has_barrier = false;
        let mut sent = Ok(());
        in_order(end, &mut || sent = self.send_held_back());
        sent
    }

    /// True if messages for the next point change tables or modules: no earlier read may run beside them.
    pub fn has_barrier(&self) -> bool {
        self.has_barrier
    }

    /// Sends the messages that the sites did not get yet.
    pub(crate) fn send_held_back(&mut self) -> Result<(), ReplayError> {
        let held_back = self.points.as_mut().map(|points| std::mem::take(&mut points.held_back));
        let mut held_back = held_back.into_iter().flatten();
        held_back.try_for_each(|(site, message)| self.send_now(site, message))
    }

    /// Checks for a failure. Err: the earliest record that could not be replayed, once everything before it is.
    pub fn check(&mut self) -> Result<(), ReplayError> {
        match self.outcome.has_failed() {
            true => Err(self.fail(None)),
            false => Ok(()),
        }
    }
}
