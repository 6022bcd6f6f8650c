//! Changes of the log, put in place on their partition's own site: demultiplexed by table, and applied when a command of the same
//! partition follows, or at the batch's end.

use reprise_base::{Lsn, PartitionId};
use reprise_pages::prefetch_line;
use reprise_partition::{ExecContext, Site};
use reprise_storage::{ApplyError, LastWrites, PartitionRedo, RedoError};
use reprise_wire::{PartitionSet, WireError};

use crate::{
    command::{misfit, remember},
    error::ReplayError,
    outcome::Outcome,
    window::Window,
};

/// Parts after which it is looked whether something failed.
const CHECK_EVERY: usize = 256;
/// Parts ahead of which the bytes are prefetched: another core read them.
const FETCH_AHEAD: usize = 16;

/// One partition's part of a record of changes: where it lies in its window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Where the record begins.
    pub record: u32,
    /// Where the part's changes lie.
    pub at: u32,
    pub len: u32,
    pub partition: PartitionId,
    /// The first part of a record that carries an idempotency key.
    pub is_keyed: bool,
}

/// One for each record: what is written by one core and read by another is to be little.
const _: () = assert!(size_of::<Part>() == 16);

/// What a partition has seen at the end of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// Of the last transaction.
    pub tick: u64,
    /// Behind its record.
    pub end: Lsn,
}

/// What a site keeps from one batch to the next: memory, but for what is pending within a batch.
#[derive(Default)]
pub(crate) struct SiteRedo {
    last: LastWrites,
    /// By partition.
    pending: Vec<Pending>,
}

/// A partition's changes that were not applied yet.
#[derive(Default)]
struct Pending {
    redo: PartitionRedo,
    /// A part that can't be read.
    failure: Option<RedoError>,
}

impl SiteRedo {
    /// A batch comes whose changes lie in this window.
    pub fn begin(&mut self, window: &Window) {
        self.last.begin(window.bytes().len());
    }

    /// Takes parts, up to the first record behind one that failed: what lies before that is applied.
    pub fn push_all(&mut self, site: &Site, window: &Window, parts: &[Part], outcome: &Outcome) {
        for (at, part) in parts.iter().enumerate() {
            if at % CHECK_EVERY == 0 && outcome.has_failed_before(window.block_lsn(part.record as usize)) {
                break;
            }
            if let Some(next) = parts.get(at + FETCH_AHEAD) {
                window.bytes().get(next.at as usize).into_iter().for_each(prefetch_line);
            }
            self.push(site, window, part, outcome);
        }
    }

    #[inline]
    fn push(&mut self, site: &Site, window: &Window, part: &Part, outcome: &Outcome) {
        let at = part.partition.index();
        if self.pending.len() <= at {
            self.pending.resize_with(at + 1, Pending::default);
        }
        let pending = &mut self.pending[at];
        if pending.failure.is_some() {
            return;
        }
        let (store, place) = (
            site.store(part.partition),
            part.at as usize..(part.at + part.len) as usize,
        );
        let pushed = pending
            .redo
            .push(store, window.bytes(), part.record, place, &mut self.last);
        pending.failure = pushed.err();
        if part.is_keyed {
            note_key(&site.tools, window, part, outcome);
        }
    }

    /// Applies what is pending of a partition.
    #[inline]
    pub fn flush(&mut self, site: &mut Site, id: PartitionId, window: &Window, growth_times: f64, outcome: &Outcome) {
        let Some(pending) = self.pending.get_mut(id.index()) else {
            return;
        };
        if pending.redo.is_empty() && pending.failure.is_none() {
            return;
        }
        let (partition, tools) = site.split(id);
        let applied = pending.redo.apply(&mut partition.store, window.bytes(), growth_times);
        // What could not be read lies behind all that could.
        if let Some(failed) = applied.err().or(pending.failure.take()) {
            outcome.fail(error_of(tools, window, failed));
        }
    }

    /// Applies what is pending of any partition.
    pub fn flush_all(&mut self, site: &mut Site, window: &Window, growth_times: f64, outcome: &Outcome) {
        for at in 0..self.pending.len() {
            self.flush(site, PartitionId(at as u16), window, growth_times, outcome);
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
fn note_key(tools: &ExecContext, window: &Window, part: &Part, outcome: &Outcome) {
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
