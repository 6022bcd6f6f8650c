//! The way into a standby's log: groups of its primary, with the LSNs and epochs that they have there.

use std::{sync::Arc, time::Duration};

use reprise_base::{Epoch, Lsn};
use reprise_wire::{RecordCounts, WireError};

use crate::{
    append::Appender,
    error::{LogError, UnavailableKind},
    front::Front,
    group::{Group, Position},
    log::Log,
    state::{Extent, Source},
};

/// What became of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// It is on its way to the disk.
    New,
    /// It was here before.
    Known,
}

/// Why a group is not placed; the log is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum PlaceError {
    #[error("a group of LSN {first} to {end} does not follow LSN {expected}")]
    Gap { first: Lsn, end: Lsn, expected: Lsn },
    #[error("a group of epoch {found} comes behind epoch {expected}: its sender was deposed")]
    OldEpoch { found: Epoch, expected: Epoch },
    #[error(
        "the records of LSN {first} to {end} are not those that were sent, or another history lies before them here"
    )]
    OtherHistory { first: Lsn, end: Lsn },
    #[error("the group of LSN {first}: {error}")]
    Malformed { first: Lsn, error: WireError },
    #[error("the group of LSN {first} holds {found} records, and tells of {told}")]
    Count { first: Lsn, found: u32, told: u64 },
    #[error(transparent)]
    Log(#[from] LogError),
}

/// Places groups of a primary. There is one way in: a standby's log takes no appends.
pub struct Receiver<P> {
    pub(crate) appender: Appender<P>,
    /// Where there is NVRAM: what is placed is persistent there.
    front: Option<Arc<Front>>,
}

impl<P: Send + 'static> Log<P> {
    /// For a log that was opened as a standby's, and until it is promoted.
    pub fn receiver(&self) -> Receiver<P> {
        Receiver {
            appender: self.appender(),
            front: self.front.get().cloned(),
        }
    }

    /// Bytes of groups for which the NVRAM has room; none where there is none.
    pub fn receive_room(&self) -> Option<u64> {
        self.front.get().map(|front| front.room_bytes())
    }

    /// How far a standby's log has received; none where it is none.
    pub fn received(&self) -> Option<Position> {
        self.shared.lock().received
    }

    /// Makes a standby's log a primary's, in a new epoch, which is this one at least: it takes appends from here on, and no more groups.
    /// Everything that was received is durable then. None: it is no standby's.
    pub fn promote(&self, at_least: Epoch) -> Result<Option<Epoch>, LogError> {
        let Some(received) = self.received() else {
            return Ok(None);
        };
        let wait_max = self.shared.config.append_wait_max;
        let stalled = || LogError::unavailable(UnavailableKind::Stalled, "what was received is not durable yet");
        if let Some(front) = self.front.get() {
            // A region holds records of one epoch.
            front.copy_to(&self.shared, received.lsn, wait_max)?;
        }
        // Nobody places into the rings meanwhile.
        let rings = self.front.get().map(|front| (front, front.writers()));
        if rings.as_ref().is_some_and(|(front, _)| front.copied() < front.filled()) {
            return Err(stalled());
        }
        if !self.wait_durable(received.lsn, wait_max) {
            return Err(self.shared.refusal_of_stop().unwrap_or_else(stalled));
        }
        let mut state = self.shared.lock();
        if let Some(error) = &state.stopped {
            return Err(error.clone());
        }
        state.received = None;
        state.epoch = state.epoch.next().max(at_least);
        if let Some((front, _)) = &rings {
            front.marks.set_epoch(state.epoch);
        }
        self.shared.clear_refusal(&state);
        Ok(Some(state.epoch))
    }
}

impl<P: Send + 'static> Receiver<P> {
    /// Takes a group that follows what was received, checked; it is durable once the log is: with NVRAM when this returns. Waits, within
    /// bounds, while the buffers, or the rings, are full. Err: with NVRAM the records at the group's beginning may be received.
    pub fn place(&self, group: &Group<'_>) -> Result<Placed, PlaceError> {
        let shared = &*self.appender.0;
        let received = shared.lock().received;
        let received = received.ok_or_else(|| LogError::unavailable(UnavailableKind::Closed, "it is no standby's"))?;
        if is_known(group, &received)? {
            return Ok(Placed::Known);
        }
        let counts = judge_records(group, &received)?;
        if let Some(front) = &self.front {
            self.place_in_front(front, group, received)?;
            return Ok(Placed::New);
        }
        let mut state = self
            .appender
            .admit(Extent::of_bytes(group.records.len()), Source::Group(group.end.epoch))?;
        // Nobody else places, and a promotion waits for nothing that is not there.
        if state.received != Some(received) {
            return Err(promoted().into());
        }
        state.fill.extend_from_slice(group.records);
        state.fill_records += counts.all;
        state.fill_changes += counts.changes;
        state.fill_stand_ins += counts.stand_ins;
        state.epoch = group.end.epoch;
        state.received = Some(group.end);
        // Its primary may wait for this disk, though nobody does here: it is kept for no company.
        shared.note_joined(&mut state, Duration::ZERO);
        self.appender.note_filled(&mut state);
        Ok(Placed::New)
    }
}

pub(crate) fn promoted() -> LogError {
    LogError::unavailable(UnavailableKind::Closed, "it was promoted meanwhile")
}

/// True for a group that was received before.
fn is_known(group: &Group<'_>, received: &Position) -> Result<bool, PlaceError> {
    let (first, end) = (group.first, group.end.lsn);
    if group.end.epoch < received.epoch {
        return Err(PlaceError::OldEpoch {
            found: group.end.epoch,
            expected: received.epoch,
        });
    }
    if first < end && end <= received.lsn {
        return Ok(true);
    }
    match first == received.lsn && first < end {
        true => Ok(false),
        false => Err(PlaceError::Gap {
            first,
            end,
            expected: received.lsn,
        }),
    }
}

/// How many records there are.
fn judge_records(group: &Group<'_>, received: &Position) -> Result<RecordCounts, PlaceError> {
    let (first, end) = (group.first, group.end.lsn);
    if received.history.then(group.records) != group.end.history {
        return Err(PlaceError::OtherHistory { first, end });
    }
    let counts = RecordCounts::of(group.records);
    let counts = counts.map_err(|error| PlaceError::Malformed { first, error })?;
    match u64::from(counts.all) == end.0 - first.0 {
        true => Ok(counts),
        false => Err(PlaceError::Count {
            first,
            found: counts.all,
            told: end.0 - first.0,
        }),
    }
}
