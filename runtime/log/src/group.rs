//! The records of one group commit, as other nodes get them: with LSNs, without the layout of this node's files.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use reprise_base::{Epoch, Lsn};
use reprise_wire::{History, RawRecords};

use crate::{error::LogError, log::Log, reader::LogReader, rewind::EpochStart};

/// Progress of a log, and its contents up to there: nodes compare it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Position {
    /// The newest epoch in the log.
    pub epoch: Epoch,
    /// Behind the last record.
    pub lsn: Lsn,
    /// History of all records before it.
    pub history: History,
}

/// Whole records of one epoch, one behind the other. A record may stand for another one, which counts in the history in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    /// LSN of the first record.
    pub first: Lsn,
    /// Behind the last one.
    pub end: Position,
    /// Encoded, one behind the other.
    pub records: &'a [u8],
}

/// Receives each group once it is sealed, before it is written here: in order, without gaps, and never withdrawn. If the write fails,
/// the callers' outcome is unknown.
pub trait GroupSink: Send + Sync {
    /// Takes a group. The log's flusher calls it, so it must not wait for anything. It keeps no more than a bound of its own.
    fn take(&self, group: &Group<'_>);
}

/// The receivers of groups.
#[derive(Default)]
pub(crate) struct Sinks {
    list: Mutex<Vec<Arc<dyn GroupSink>>>,
    /// Read for each group instead of the list.
    are_there: AtomicBool,
}

impl Sinks {
    fn add(&self, sink: Arc<dyn GroupSink>) {
        self.list.lock().expect("held for a push").push(sink);
        self.are_there.store(true, Ordering::Release);
    }

    /// Passes the group to all sinks; false if there is none.
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
    /// Gives `sink` all groups from the next one on, while the log is open.
    pub fn add_sink(&self, sink: Arc<dyn GroupSink>) {
        self.shared.sinks.add(sink);
    }

    /// First records of the newest epochs with durable records in the log's files, the oldest first.
    pub fn epochs(&self) -> Vec<EpochStart> {
        self.shared.index.epochs()
    }

    /// Returns the history at an LSN. None if the log's files do not hold everything before it. It reads up to a segment.
    pub fn history_at(&self, lsn: Lsn) -> Result<Option<History>, LogError> {
        let Some(segment) = self.shared.index.segment_with(lsn).filter(|_| lsn <= self.durable()) else {
            return Ok(None);
        };
        let mut reader = self.reader(segment.start)?; // copies records that are in NVRAM alone, if the disk takes them
        if self.copied() < lsn {
            return Ok(None);
        }
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
