//! A standby's log: it takes groups of its primary, with the LSNs and epochs of the primary's log.

use std::{sync::Arc, time::Duration};

use reprise_base::{Epoch, Lsn};
use reprise_wire::{RecordCounts, WireError};

use crate::{
    append::Appender,
    error::{LogError, UnavailableKind},
    group::{Group, Position},
    log::Log,
    nvram_buffer::NvramBuffer,
    pause::epoch_behind,
    state::{Extent, RecordSource},
};

/// The result of appending a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendOutcome {
    /// The group is on its way to the disk.
    New,
    /// The group was received before.
    Known,
}

/// The reason why a group was not appended; the log is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum AppendError {
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
    #[error("the group of LSN {first} holds {found} records, and tells of {expected}")]
    Count { first: Lsn, found: u32, expected: u64 },
    #[error(transparent)]
    Log(#[from] LogError),
}

/// Appends groups of a primary. A standby's log takes no other appends.
pub struct GroupAppender<P> {
    pub(crate) appender: Appender<P>,
    /// The NVRAM buffer, if any: appended groups are persistent there.
    nvram: Option<Arc<NvramBuffer>>,
}

impl<P: Send + 'static> Log<P> {
    /// The standby's end of a log that was opened as a standby's, until it is promoted.
    pub fn group_appender(&self) -> GroupAppender<P> {
        GroupAppender {
            appender: self.appender(),
            nvram: self.nvram.get().cloned(),
        }
    }

    /// Bytes of groups for which the NVRAM has room; none without NVRAM.
    pub fn receive_room(&self) -> Option<u64> {
        self.nvram.get().map(|nvram| nvram.room_bytes())
    }

    /// Progress of a standby's log; none on a primary.
    pub fn received(&self) -> Option<Position> {
        self.shared.lock().received
    }

    /// Makes a standby's log a primary's, in a new epoch, `at_least` this one and of its writer: it takes appends, and no more groups. All received
    /// records are durable then. None: it is no standby's log.
    pub fn promote(&self, at_least: Epoch) -> Result<Option<Epoch>, LogError> {
        let Some(received) = self.received() else {
            return Ok(None);
        };
        let wait_max = self.shared.config.append_wait_max;
        let stalled = || LogError::unavailable(UnavailableKind::Stalled, "what was received is not durable yet");
        if let Some(nvram) = self.nvram.get() {
            // A region holds records of one epoch.
            nvram.destage_to(&self.shared, received.lsn, wait_max)?;
        }
        // No group is appended to the rings meanwhile.
        let rings = self.nvram.get().map(|nvram| (nvram, nvram.writers()));
        if rings.as_ref().is_some_and(|(nvram, _)| nvram.copied() < nvram.filled()) {
            return Err(stalled());
        }
        if !self.wait_durable(received.lsn, wait_max) {
            return Err(self.shared.refusal_of_stop().unwrap_or_else(stalled));
        }
        let mut state = self.shared.lock();
        if let Some(error) = &state.stopped {
            return Err(error.clone());
        }
        let epoch = epoch_behind(state.epoch, at_least)?;
        (state.received, state.epoch) = (None, epoch);
        if let Some((nvram, _)) = &rings {
            nvram.marks.set_epoch(state.epoch);
        }
        self.shared.clear_refusal(&state);
        Ok(Some(state.epoch))
    }
}

impl<P: Send + 'static> GroupAppender<P> {
    /// Validates and appends a group that follows the received records. It is durable once the log is; with NVRAM, when this returns.
    /// Waits, within bounds, while the buffers, or the rings, are full. Err: with NVRAM the records at the group's beginning may be
    /// received.
    pub fn append(&self, group: &Group<'_>) -> Result<AppendOutcome, AppendError> {
        let shared = &*self.appender.0;
        let received = shared.lock().received;
        let received = received.ok_or_else(|| LogError::unavailable(UnavailableKind::Closed, "it is no standby's"))?;
        if is_known(group, &received)? {
            return Ok(AppendOutcome::Known);
        }
        let counts = validate_records(group, &received)?;
        if let Some(nvram) = &self.nvram {
            self.append_to_rings(nvram, group, received)?;
            return Ok(AppendOutcome::New);
        }
        let mut state = self.appender.admit(
            Extent::of_bytes(group.records.len()),
            RecordSource::Group(group.end.epoch),
        )?;
        // No other thread appends, and a promotion does not wait for this group.
        if state.received != Some(received) {
            return Err(promoted().into());
        }
        state.fill.extend_from_slice(group.records);
        state.fill_records += counts.all;
        state.fill_changes += counts.changes;
        state.fill_stand_ins += counts.stand_ins;
        state.epoch = group.end.epoch;
        state.received = Some(group.end);
        // The primary may wait for this disk, although no caller does here: the group never waits for others.
        shared.record_joined(&mut state, Duration::ZERO);
        self.appender.record_filled(&mut state);
        Ok(AppendOutcome::New)
    }
}

pub(crate) fn promoted() -> LogError {
    LogError::unavailable(UnavailableKind::Closed, "it was promoted meanwhile")
}

/// True for a group that was received before.
fn is_known(group: &Group<'_>, received: &Position) -> Result<bool, AppendError> {
    let (first, end) = (group.first, group.end.lsn);
    if received.epoch.is_after(group.end.epoch) {
        return Err(AppendError::OldEpoch {
            found: group.end.epoch,
            expected: received.epoch,
        });
    }
    if first < end && end <= received.lsn {
        return Ok(true);
    }
    match first == received.lsn && first < end {
        true => Ok(false),
        false => Err(AppendError::Gap {
            first,
            end,
            expected: received.lsn,
        }),
    }
}

/// Validates a group's records and counts them.
fn validate_records(group: &Group<'_>, received: &Position) -> Result<RecordCounts, AppendError> {
    let (first, end) = (group.first, group.end.lsn);
    if received.history.then(group.records) != group.end.history {
        return Err(AppendError::OtherHistory { first, end });
    }
    let counts = RecordCounts::of(group.records);
    let counts = counts.map_err(|error| AppendError::Malformed { first, error })?;
    match u64::from(counts.all) == end.0 - first.0 {
        true => Ok(counts),
        false => Err(AppendError::Count {
            first,
            found: counts.all,
            expected: end.0 - first.0,
        }),
    }
}
