//! Changes of the log, applied on their partition's own site. They are demultiplexed by table, and applied when a command of the same
//! partition follows, or at the batch's end.

use std::sync::Arc;

use reprise_base::{Lsn, PartitionId};
use reprise_pages::prefetch_line;
use reprise_partition::{ExecContext, Site};
use reprise_storage::{ApplyError, LastWrites, PartitionRedo, RedoError, RedoSchema};
use reprise_wire::{PartitionSet, WireError};

use crate::{
    assist::Assist,
    command::{misfit, remember},
    error::ReplayError,
    outcome::ReplayOutcome,
    window::Window,
};

/// Number of parts after which the replay checks whether something failed.
const CHECK_EVERY: usize = 256;
/// Parts ahead of which the bytes are prefetched: another core read them.
const FETCH_AHEAD: usize = 16;

/// The position in its window of one partition's part of a record of changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RedoPart {
    /// Offset of the record.
    pub record: u32,
    /// Offset of the part's changes.
    pub at: u32,
    pub len: u32,
    pub partition: PartitionId,
    /// The first part of a record that carries an idempotency key.
    pub is_keyed: bool,
}

impl RedoPart {
    /// A part without changes, of the record at `record`.
    pub fn none(partition: PartitionId, record: usize) -> Self {
        Self {
            record: record as u32,
            at: 0,
            len: 0,
            partition,
            is_keyed: false,
        }
    }
}

/// There is one for each record. It must be small, because one core writes it and another reads it.
const _: () = assert!(size_of::<RedoPart>() == 16);

/// Progress of a partition at the end of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PartitionProgress {
    /// Tick of the last transaction.
    pub tick: u64,
    /// Behind its record.
    pub end: Lsn,
}

/// The changes of a batch. Its memory is used again.
#[derive(Default)]
pub(crate) struct BatchRedo {
    /// The window of the parts. None if there are none.
    window: Option<Arc<Window>>,
    /// The parts in the order of the log.
    parts: Vec<RedoPart>,
    /// Parts that are demultiplexed.
    taken: usize,
    /// The latest writes, from the first part to the last.
    last: Option<LastWrites>,
    /// The pending changes of each partition.
    pending: Vec<PendingRedo>,
    /// Demultiplexed parts whose outcomes must be remembered.
    keyed: Vec<RedoPart>,
}

/// A partition's changes that were not applied yet.
#[derive(Default)]
struct PendingRedo {
    redo: PartitionRedo,
    /// A part that can't be read.
    failure: Option<RedoError>,
}

/// Context in which a site applies changes.
#[derive(Clone, Copy)]
pub(crate) struct ApplyContext<'a> {
    pub window: &'a Arc<Window>,
    /// Growth factor for `PartitionRedo::apply`.
    pub growth_times: f64,
    pub outcome: &'a ReplayOutcome,
    pub assist: &'a Assist,
}

impl BatchRedo {
    /// Adds a part, which lies in the same window as all others.
    #[inline]
    pub fn push(&mut self, part: RedoPart, window: &Arc<Window>) {
        if self.window.is_none() {
            self.window = Some(window.clone());
        }
        self.parts.push(part);
    }

    pub fn parts(&self) -> &[RedoPart] {
        &self.parts
    }

    pub fn window(&self) -> Option<&Arc<Window>> {
        self.window.as_ref()
    }

    /// Forgets all applied parts, and returns their window.
    pub fn clear(&mut self) -> Option<Arc<Window>> {
        self.parts.clear();
        (self.taken, self.last) = (0, None);
        self.window.take()
    }

    /// Sorts the parts before `until` by table, except those behind a record that failed. Everything before that record is applied.
    pub fn demultiplex(&mut self, until: usize, schema: &RedoSchema, assist: &Assist, outcome: &ReplayOutcome) {
        let from = self.taken;
        let Some(window) = self.window.clone().filter(|_| from < until) else {
            return;
        };
        let mut last = self.last.take().unwrap_or_else(|| {
            let mut last = assist.last_writes();
            last.begin(window.bytes().len());
            last
        });
        self.taken = until;
        for at in from..until {
            let part = self.parts[at];
            if at % CHECK_EVERY == 0 && outcome.has_failed_before(window.block_lsn(part.record as usize)) {
                break;
            }
            if let Some(next) = self.parts.get(at + FETCH_AHEAD) {
                window.bytes().get(next.at as usize).into_iter().for_each(prefetch_line);
            }
            self.take_part(&window, part, schema, &mut last);
        }
        match until < self.parts.len() {
            true => self.last = Some(last),
            false => assist.give_back(last),
        }
    }

    #[inline]
    fn take_part(&mut self, window: &Window, part: RedoPart, schema: &RedoSchema, last: &mut LastWrites) {
        let at = part.partition.index();
        if self.pending.len() <= at {
            self.pending.resize_with(at + 1, PendingRedo::default);
        }
        let pending = &mut self.pending[at];
        if pending.failure.is_some() {
            return;
        }
        let place = part.at as usize..(part.at + part.len) as usize;
        let pushed = pending.redo.push(schema, window.bytes(), part.record, place, last);
        pending.failure = pushed.err();
        if part.is_keyed {
            self.keyed.push(part);
        }
    }

    /// Applies the sorted changes of a partition.
    #[inline]
    pub fn flush(&mut self, site: &mut Site, id: PartitionId, how: ApplyContext<'_>) {
        for part in self.keyed.extract_if(.., |part| part.partition == id) {
            remember_key(&site.tools, how.window, &part, how.outcome);
        }
        let Some(pending) = self.pending.get_mut(id.index()) else {
            return;
        };
        if pending.redo.is_empty() && pending.failure.is_none() {
            return;
        }
        let (partition, tools) = site.split(id);
        let store = &mut partition.store;
        let applied = pending
            .redo
            .apply_lent(store, how.window.bytes(), how.growth_times, |own, others| {
                how.assist.apply(how.window, own, others)
            });
        // The part that could not be read is behind all that could.
        if let Some(failed) = applied.err().or(pending.failure.take()) {
            how.outcome.fail(error_of(tools, how.window, failed));
        }
    }

    /// Applies the sorted changes of all partitions.
    pub fn flush_all(&mut self, site: &mut Site, how: ApplyContext<'_>) {
        for at in 0..self.pending.len() {
            site.serve_readers();
            self.flush(site, PartitionId(at as u16), how);
        }
    }
}

#[cold]
fn error_of(tools: &ExecContext, window: &Window, failed: RedoError) -> ReplayError {
    let at = failed.txn as usize;
    let lsn = window.lsn_of(at);
    match (failed.error, window.changes_at(at)) {
        (ApplyError::Malformed(error), _) => ReplayError::Malformed { lsn, error },
        (error, Some((redo, _))) => misfit(tools, &redo, &error.to_string()).into(),
        (error, None) => {
            let error = WireError {
                what: "record",
                expected: "changes".into(),
                found: error.to_string(),
            };
            ReplayError::Malformed { lsn, error }
        }
    }
}

/// Remembers the outcome of a call with an idempotency key.
#[cold]
fn remember_key(tools: &ExecContext, window: &Window, part: &RedoPart, outcome: &ReplayOutcome) {
    let Some((redo, changes)) = window.changes_at(part.record as usize) else {
        return;
    };
    let Some(keyed) = &changes.keyed else {
        return;
    };
    let partition = matches!(changes.partitions, PartitionSet::One(_)).then_some(part.partition);
    match remember(tools, &redo, keyed, partition) {
        Ok(replayed) => outcome.remember(replayed),
        Err(divergence) => outcome.fail(divergence.into()),
    }
}
