//! The facts that clients rely on: acknowledged writes, and rows that reads have shown. A new primary must have all of them, except those
//! that its safety level, or a forced promotion, gives up.

use super::history::{Histories, Path, Place};

/// A fact that a client was told.
#[derive(Clone, Debug)]
pub struct Mark {
    pub place: Place,
    /// Epoch in which the client was told. It is that of the record, or a later one. A fact of the newest primary has that one's epoch.
    pub epoch: u32,
    /// The node that was the primary when the client was told. Others may show on its word the records that it takes for committed.
    pub by: Option<usize>,
    /// True if the client was told under a level that has a standby have it.
    pub is_safe: bool,
    pub what: String,
}

/// How a node became the primary, and what may be lost by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The last primary again, a switch-over, or a lease. Nothing may be lost.
    Whole,
    /// A promotion by force, as the runbook says. The facts that the primary told alone may be lost.
    Forced,
    /// A promotion by force, without a look at the other nodes, or although another one had lost its disk. Every missing fact may be lost.
    Blindly,
    /// The product has named the first LSN that may be lost of the writes acknowledged by the primary of an epoch. The epoch is the last
    /// one that it heard. Facts of a later epoch may be lost at any LSN.
    Accepted { from: u64, epoch: u32 },
}

/// A primary, from its beginning.
struct Reign {
    how: How,
    epoch: u32,
    begun: Path,
    /// The path to its present end.
    path: Path,
}

#[derive(Default)]
pub struct Marks {
    list: Vec<Mark>,
    /// Marks that were given up, with the promotion that did so.
    lost: Vec<(Mark, How)>,
    /// The newest primary's is the last one.
    reigns: Vec<Reign>,
    /// Highest epoch of which anything was acknowledged.
    epoch: u32,
}

impl How {
    fn gives_up(self, mark: &Mark) -> bool {
        match self {
            Self::Whole => false,
            Self::Forced => !mark.is_safe,
            Self::Blindly => true,
            Self::Accepted { from, epoch } => mark.place.lsn >= from || mark.epoch > epoch,
        }
    }
}

impl Reign {
    /// True if this primary gave up a mark that its log lacked at its beginning.
    fn gives_up(&self, mark: &Mark) -> bool {
        self.how.gives_up(mark) && !self.begun.has(mark.place)
    }
}

impl Marks {
    /// A node is the primary from here on, with this log.
    pub fn begin(&mut self, how: How, epoch: u32, path: Path) -> Result<(), String> {
        for mark in std::mem::take(&mut self.list) {
            match path.has(mark.place) {
                true => self.list.push(mark),
                false if how.gives_up(&mark) => self.lost.push((mark, how)),
                false => {
                    let (what, place, end) = (&mark.what, mark.place, path.end());
                    return Err(format!(
                        "lost: {what} at {place:?}; the new primary ({how:?}) begins at LSN {end}"
                    ));
                }
            }
        }
        if matches!(how, How::Accepted { .. }) {
            // Its epoch may be a former one: the lost record may have been that of a primary which no node here has heard of.
            self.epoch = 0;
        }
        let begun = path.clone();
        self.reigns.push(Reign {
            how,
            epoch,
            begun,
            path,
        });
        Ok(())
    }

    /// The newest primary's log has grown.
    pub fn grow(&mut self, path: Path) {
        if let Some(reign) = self.reigns.last_mut() {
            reign.path = path;
        }
    }

    /// Returns whether the newest primary's log has the place.
    pub fn has(&self, place: Place) -> bool {
        self.reigns.last().is_some_and(|reign| reign.path.has(place))
    }

    /// Returns whether the newest primary's log had the place at its beginning.
    pub fn began_with(&self, place: Place) -> bool {
        self.reigns.last().is_some_and(|reign| reign.begun.has(place))
    }

    /// Records that a primary of this epoch acknowledged a write. No primary of an older epoch may do so any more, unless there
    /// `may_be_two`.
    pub fn acknowledged(&mut self, mark: Mark, epoch: u32, may_be_two: bool) -> Result<(), String> {
        if epoch < self.epoch && !may_be_two {
            let Mark { what, place, .. } = &mark;
            return Err(format!(
                "two primaries at one time: {what} at {place:?} in epoch {epoch}, and epoch {} has acknowledged before",
                self.epoch
            ));
        }
        self.epoch = self.epoch.max(epoch);
        self.shown(mark)
    }

    /// A client knows of it from here on.
    pub fn shown(&mut self, mark: Mark) -> Result<(), String> {
        if let Some(reign) = self.reigns.last().filter(|reign| reign.path.has(mark.place)) {
            let epoch = mark.epoch.max(reign.epoch);
            self.list.push(Mark { epoch, ..mark });
            return Ok(());
        }
        match self.given_up_by(&mark) {
            Some(how) => {
                self.lost.push((mark, how));
                Ok(())
            }
            None => Err(format!(
                "{} at {:?} is not in the log of the newest primary",
                mark.what, mark.place
            )),
        }
    }

    /// A node that still has it may report it after a primary began without it.
    fn given_up_by(&self, mark: &Mark) -> Option<How> {
        let mut since = self.reigns.iter().rev().take_while(|reign| !reign.path.has(mark.place));
        let found = since.find(|reign| reign.gives_up(mark)).map(|reign| reign.how);
        found.or((!mark.is_safe).then_some(How::Forced))
    }

    /// True if a primary began without it, and its promotion gave something up. The facts of clients were checked when it began. This one
    /// was written in that epoch, so it is none of these.
    pub fn is_given_up(&self, place: Place, epoch: u32) -> bool {
        let mark = Mark {
            place,
            epoch,
            by: None,
            is_safe: false,
            what: String::new(),
        };
        let mut since = self.reigns.iter().rev().take_while(|reign| !reign.path.has(place));
        since.any(|reign| reign.gives_up(&mark))
    }

    /// Returns whether a client can't rely on the place any more.
    pub fn is_lost(&self, histories: &Histories, place: Place) -> bool {
        let is_behind = |(lost, _): &(Mark, How)| lost.place == place || histories.is_before(lost.place, place);
        !self.has(place) && self.lost.iter().any(is_behind)
    }

    /// Marks in this node's log from `from` on that it alone acknowledged, that no standby had to have, and that the runbook gave up.
    pub fn lost_in<'a>(&'a self, node: usize, path: &'a Path, from: u64) -> impl Iterator<Item = &'a Mark> {
        let by_the_book = self.lost.iter().filter(|(_, how)| *how == How::Forced);
        by_the_book
            .map(|(mark, _)| mark)
            .filter(move |mark| mark.by == Some(node) && !mark.is_safe)
            .filter(move |mark| mark.place.lsn >= from && path.has(mark.place))
    }

    pub fn lost(&self) -> usize {
        self.lost.len()
    }
}
