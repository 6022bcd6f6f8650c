//! The interface of a shipper to the database whose log it sends.

use std::sync::Arc;

use reprise_base::{Epoch, Lsn};
use reprise_env::DiskFile;
use reprise_log::{DestageDemand, EpochStart, GroupSink, Log, LogError, LogReader, ReplicationSlot};
use reprise_wire::History;

/// The primary's log, without the type of its waiting callers.
pub trait ShippedLog: Send + Sync {
    fn database_id(&self) -> [u8; 16];
    fn epoch(&self) -> Epoch;
    /// Everything before it is durable.
    fn durable(&self) -> Lsn;
    /// Everything before it is in the log's files. It is less than `durable` if the log lies in NVRAM first.
    fn copied(&self) -> Lsn;
    /// Behind the last record that was appended.
    fn filled(&self) -> Lsn;
    /// No caller has an answer for a record from here on. This is beyond `durable` if sites write logs of their own.
    fn answered_max(&self) -> Lsn;
    /// None if the log does not hold it.
    fn history_at(&self, lsn: Lsn) -> Result<Option<History>, LogError>;
    /// Beginnings of its newest epochs, the oldest first.
    fn epochs(&self) -> Vec<EpochStart>;
    fn reader(&self, from: Lsn) -> Result<LogReader, LogError>;
    fn hold(&self, name: &str, from: Lsn) -> Result<ReplicationSlot, LogError>;
    fn bytes_between(&self, from: Lsn, to: Lsn) -> u64;
    fn add_sink(&self, sink: Arc<dyn GroupSink>);
    /// Has records reach the log's files, and so its sinks, as soon as they are durable, while the returned value lives.
    fn follow(&self) -> Option<DestageDemand>;
}

impl<P: Send + 'static> ShippedLog for Log<P> {
    fn database_id(&self) -> [u8; 16] {
        Log::database_id(self)
    }

    fn epoch(&self) -> Epoch {
        Log::epoch(self)
    }

    fn durable(&self) -> Lsn {
        Log::durable(self)
    }

    fn copied(&self) -> Lsn {
        Log::copied(self)
    }

    fn filled(&self) -> Lsn {
        Log::filled(self)
    }

    fn answered_max(&self) -> Lsn {
        Log::answered_max(self)
    }

    fn history_at(&self, lsn: Lsn) -> Result<Option<History>, LogError> {
        Log::history_at(self, lsn)
    }

    fn epochs(&self) -> Vec<EpochStart> {
        Log::epochs(self)
    }

    fn reader(&self, from: Lsn) -> Result<LogReader, LogError> {
        Log::reader(self, from)
    }

    fn hold(&self, name: &str, from: Lsn) -> Result<ReplicationSlot, LogError> {
        Log::create_slot(self, name, from)
    }

    fn bytes_between(&self, from: Lsn, to: Lsn) -> u64 {
        Log::bytes_between(self, from, to)
    }

    fn add_sink(&self, sink: Arc<dyn GroupSink>) {
        Log::add_sink(self, sink);
    }

    fn follow(&self) -> Option<DestageDemand> {
        Log::follow(self)
    }
}

/// A checkpoint that a standby begins with. The log behind it is kept until `kept` is dropped.
pub struct ChosenCheckpoint {
    pub lsn: Lsn,
    /// Name of its file.
    pub name: String,
    pub file: Arc<dyn DiskFile>,
    pub kept: Box<dyn Send>,
}

/// The source of a standby's first checkpoint.
pub trait CheckpointSource: Send + Sync {
    /// Returns a checkpoint that is nearly as new as the log. If there is none, it begins one, or waits for one. None: not yet, ask again. Never
    /// blocks for long.
    fn choose(&self) -> Result<Option<ChosenCheckpoint>, String>;
}
