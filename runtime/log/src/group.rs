//! What one group commit writes, as other nodes get it: records with their LSNs, without the shape of this node's files.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use reprise_base::{Epoch, Lsn};
use reprise_wire::{History, RawRecords};

use crate::{cut::EpochStart, error::LogError, log::Log, reader::LogReader};

/// How far a log is, and what it holds up to there: nodes compare it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Position {
    /// The newest one that anything was written under.
    pub epoch: Epoch,
    /// Behind the last record.
    pub lsn: Lsn,
    /// Of all records before it.
    pub history: History,
}

/// Whole records that lie one behind the other, of one epoch. A record may stand for another one, which counts in the history in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    /// Of the first record.
    pub first: Lsn,
    /// Behind the last one.
    pub end: Position,
    /// Encoded, one behind the other.
    pub records: &'a [u8],
}

/// Gets each group once it is sealed, before it is written here: in order, none left out, and none taken back. Where the write fails
/// the callers are told that their outcome is not known.
pub trait GroupSink: Send + Sync {
    /// Called by the log's flusher: it must not wait for anything, and keeps no more than a bound of its own.
    fn take(&self, group: &Group<'_>);
}

/// Who gets groups.
#[derive(Default)]
pub(crate) struct Sinks {
    list: Mutex<Vec<Arc<dyn GroupSink>>>,
    /// Looked at for each group instead of the list.
    are_there: AtomicBool,
}

impl Sinks {
    fn add(&self, sink: Arc<dyn GroupSink>) {
        self.list.lock().expect("held for a push").push(sink);
        self.are_there.store(true, Ordering::Release);
    }

    /// True where anybody got it.
    pub fn hand(&self, group: &Group<'_>) -> bool {
        if !self.are_there.load(Ordering::Acquire) {
            return false;
        }
        let list = self.list.lock().expect("held while a group is copied");
        list.iter().for_each(|sink| sink.take(group));
        true
    }
}

impl<P: Send + 'static> Log<P> {
    /// From the next group on, `sink` gets all of them, for as long as the log is open.
    pub fn add_sink(&self, sink: Arc<dyn GroupSink>) {
        self.shared.sinks.add(sink);
    }

    /// Where the newest epochs begin of which records are durable in the log's files, the oldest first.
    pub fn epochs(&self) -> Vec<EpochStart> {
        self.shared.index.epochs()
    }

    /// The history at an LSN; none where the log does not hold it, or not durably. Reads up to a segment.
    pub fn history_at(&self, lsn: Lsn) -> Result<Option<History>, LogError> {
        let Some(segment) = self.shared.index.segment_with(lsn).filter(|_| lsn <= self.durable()) else {
            return Ok(None);
        };
        let mut reader = self.reader(segment.start)?;
        history_until(&mut reader, segment.history, lsn).map(Some)
    }
}

/// The history at `lsn`, where `reader` begins with `history`.
pub(crate) fn history_until(reader: &mut LogReader, mut history: History, lsn: Lsn) -> Result<History, LogError> {
    while reader.position() < lsn {
        let Some(block) = reader.next_block()? else {
            break;
        };
        if block.end <= lsn {
            history = history.then(block.records);
            continue;
        }
        let mut at = block.lsn;
        for record in RawRecords::new(block.records) {
            let record = record.map_err(|error| block.malformed(&error))?;
            if at >= lsn {
                break;
            }
            history = history.then(&block.records[record.start..record.end]);
            at = Lsn(at.0 + 1);
        }
        break;
    }
    Ok(history)
}
