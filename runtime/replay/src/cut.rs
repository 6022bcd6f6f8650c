//! Cuts: places of the log at which all sites are at once, for whoever sends them messages in one order with the cuts. What is fed between
//! two cuts goes to the sites together, so no message gets between its parts, and what reads over several partitions sees one
//! prefix of the log.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crossbeam_channel::{Receiver, Sender};
use reprise_base::Lsn;
use reprise_partition::SiteMessage;

use crate::{error::ReplayError, outcome::Outcome, replayer::Replayer};

/// Cuts that were sent and are not reached yet, at most: a read waits for what was sent before it.
const CUTS_IN_FLIGHT: usize = 4;

/// Told of each cut once all sites are there, on the thread of one of them: it must only hand over. `Err`: something before it could
/// not be replayed.
pub type OnCut = Arc<dyn Fn(Result<Lsn, ()>) + Send + Sync>;

/// What a replayer has that sends at cuts alone.
pub(crate) struct Cuts {
    /// What goes to the sites at the next cut, in order.
    pub held_back: Vec<(usize, SiteMessage)>,
    on_cut: OnCut,
    /// A token per cut that may yet be sent.
    tokens: (Sender<()>, Receiver<()>),
}

/// What each site comes to behind everything before a cut.
struct Mark {
    end: Lsn,
    sites_left: AtomicUsize,
    outcome: Arc<Outcome>,
    on_cut: OnCut,
    token: Sender<()>,
}

impl Mark {
    fn arrive(&self) {
        if self.sites_left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let _ = self.token.send(()); // whoever feeds may have gone
        (self.on_cut)(match self.outcome.has_failed_before(self.end) {
            true => Err(()),
            false => Ok(self.end),
        });
    }
}

impl Replayer {
    /// From now on what is fed goes to the sites at the next `cut`.
    pub fn begin_cuts(&mut self, on_cut: OnCut) {
        let tokens = crossbeam_channel::unbounded();
        for _ in 0..CUTS_IN_FLIGHT {
            let _ = tokens.0.send(()); // the receiver is beside it
        }
        self.cuts = Some(Cuts {
            held_back: Vec::new(),
            on_cut,
            tokens,
        });
    }

    /// Ends what was fed since the last cut. `in_order` is given where the cut lies, and what sends everything; it keeps others from sending
    /// meanwhile, and that takes no longer than to send. Waits before it, while many cuts are on their way. Err: as of `feed`.
    pub fn cut(&mut self, in_order: impl FnOnce(Lsn, &mut dyn FnMut())) -> Result<(), ReplayError> {
        let gathered = self.release_held().and_then(|()| self.send_all_pending());
        gathered.map_err(|error| self.fail(Some(error)))?;
        // What was demultiplexed is with its site or done.
        self.aheads.retain(|ahead| Arc::strong_count(ahead) > 1);
        let end = self.whole_end();
        let cuts = self.cuts.as_mut().expect("cuts were begun");
        let token = self.assist.receive(&cuts.tokens.1);
        token.ok_or(ReplayError::Stopped)?;
        let mark = Arc::new(Mark {
            end,
            sites_left: AtomicUsize::new(self.sites.len()),
            outcome: self.outcome.clone(),
            on_cut: cuts.on_cut.clone(),
            token: cuts.tokens.0.clone(),
        });
        for site in 0..self.sites.len() {
            let mark = mark.clone();
            let arrive = SiteMessage::Job(Box::new(move |_| mark.arrive()));
            cuts.held_back.push((site, arrive));
        }
        self.has_barrier = false;
        let mut sent = Ok(());
        in_order(end, &mut || sent = self.send_held_back());
        sent
    }

    /// True where what goes to the sites at the next cut changes tables or modules: nothing that began before may read beside it.
    pub fn has_barrier(&self) -> bool {
        self.has_barrier
    }

    /// What the sites did not get yet.
    pub(crate) fn send_held_back(&mut self) -> Result<(), ReplayError> {
        let held_back = self.cuts.as_mut().map(|cuts| std::mem::take(&mut cuts.held_back));
        let mut held_back = held_back.into_iter().flatten();
        held_back.try_for_each(|(site, message)| self.send_now(site, message))
    }

    /// Err: the earliest record that could not be replayed, once what lies before it is.
    pub fn check(&mut self) -> Result<(), ReplayError> {
        match self.outcome.has_failed() {
            true => Err(self.fail(None)),
            false => Ok(()),
        }
    }
}
