//! The way of a finished batch: to the log and then to its caller, or to its caller at once.

use std::{cell::RefCell, sync::Arc, time::Duration};

use reprise_base::Lsn;
use reprise_log::{Appender, LogError, NvramAppender, UnavailableKind};
use reprise_nvram::ObjectWriter;
use reprise_wire::{ChangesRun, RecordBatch};

use crate::{batch::CallBatch, gate::CommitGate, site::Partition};

/// Why the log does not keep a write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogRefusal {
    /// The log can't write it. No part of it is kept.
    #[error("the log can't be written: {0}")]
    Unavailable(Arc<str>),
    /// The log is open for reading alone.
    #[error("{0}")]
    ReadOnly(Arc<str>),
    /// Too few standbys are connected for the server's safety level.
    #[error("{0}")]
    StandbyUnavailable(Arc<str>),
    /// This primary's lease is over.
    #[error("{0}")]
    LeaseLost(Arc<str>),
    /// The primary is handing over to a standby.
    #[error("{0}")]
    Paused(Arc<str>),
    /// The log failed while it wrote the records. They may be kept or lost.
    #[error("{0}")]
    Unknown(Arc<str>),
}

impl From<&LogError> for LogRefusal {
    fn from(error: &LogError) -> Self {
        match error {
            LogError::Unavailable {
                kind: UnavailableKind::ReadOnly,
                reason,
            } => Self::ReadOnly(reason.clone()),
            LogError::Unavailable {
                kind: UnavailableKind::Doubtful,
                ..
            } => Self::Unknown(error.to_string().into()),
            LogError::Unavailable {
                kind: UnavailableKind::Paused,
                reason,
            } => Self::Paused(reason.clone()),
            _ => Self::Unavailable(error.to_string().into()),
        }
    }
}

/// The records of a batch.
#[derive(Clone, Copy)]
pub enum NewRecords<'a> {
    /// Records of any number of calls.
    Whole(&'a RecordBatch),
    /// Records of one write, which is logged in parts.
    InParts(&'a ChangesRun<'a>),
}

impl NewRecords<'_> {
    #[inline]
    fn count(self) -> u32 {
        match self {
            Self::Whole(records) => records.count(),
            Self::InParts(run) => run.records(),
        }
    }

    #[inline]
    fn is_empty(self) -> bool {
        self.count() == 0
    }

    /// Returns the end of the records when they begin at `start`.
    #[inline]
    fn end_behind(self, start: Lsn) -> Lsn {
        Lsn(start.0 + u64::from(self.count()))
    }

    #[inline]
    fn append(
        self,
        appender: &Appender<Box<CallBatch>>,
        batch: Option<Box<CallBatch>>,
        busy: Duration,
    ) -> Result<Lsn, (LogError, Option<Box<CallBatch>>)> {
        match self {
            Self::Whole(records) => appender.append_while_busy(records, batch, busy),
            Self::InParts(run) => appender.append_run(run, batch, busy),
        }
    }

    #[inline]
    fn append_to_front(self, appender: &mut NvramAppender<Box<CallBatch>>) -> Result<Lsn, LogError> {
        match self {
            Self::Whole(records) => appender.append(records),
            Self::InParts(run) => appender.append_run(run),
        }
    }
}

/// The end of an engine thread's turn. One type per durability mode, chosen at wiring.
pub trait Sink: Send {
    /// Returns why the log takes no writes now, if there is a reason.
    fn refusal(&self) -> Option<LogRefusal>;

    /// Bytes of records that one batch may have.
    fn records_max(&self) -> usize {
        usize::MAX
    }

    /// Returns the writer for changes before their transactions commit, if there is one. The site calls it once, before the first batch.
    fn objects(&self) -> Option<ObjectWriter> {
        None
    }

    /// Takes over a run batch with the records of its committed writes. `partitions` are those on which it ran. Err: appended records of it
    /// have no effect, and the caller's tables still have the batch's transactions.
    fn publish(
        &self,
        records: NewRecords<'_>,
        partitions: &mut [&mut Partition],
        batch: Box<CallBatch>,
    ) -> Result<(), (LogRefusal, Box<CallBatch>)>;

    /// Appends a record and waits until it and all before it are durable. Returns its position. It serves deployments, which hold every
    /// partition anyway. Err: why it is not durable, and the position that it was to have, if it got one.
    fn append_durable(&self, record: &RecordBatch, partitions: &mut [&mut Partition])
    -> Result<Lsn, (LogRefusal, Lsn)>;

    /// Waits until all records that these partitions appended are durable, if tables may not be ahead of the log. Err: they never will be.
    fn wait_durable(&self, _partitions: &mut [&mut Partition]) -> Result<(), LogRefusal> {
        Ok(())
    }

    /// Returns the LSN up to which the log is durable. None if tables may be ahead of the log, so that no write is ever rolled back.
    fn durable_lsn(&self) -> Option<Lsn>;

    /// True once the log has failed for good. Records that are not durable by then never will be.
    fn is_stopped(&self) -> bool;
}

/// Durable before reply: the default.
pub struct SyncSink(pub Appender<Box<CallBatch>>);
/// Logged, but acknowledged at once.
pub struct AsyncSink(pub Appender<Box<CallBatch>>);
/// Durable before reply, in NVRAM. The engine thread persists the records and answers the callers itself, unless the gate has them wait for
/// standbys.
pub struct NvramSink {
    appender: RefCell<NvramAppender<Box<CallBatch>>>,
    gate: Arc<CommitGate>,
}
/// No log at all.
pub struct NoLog;

impl NvramSink {
    /// Makes the sink of one site.
    pub fn new(appender: NvramAppender<Box<CallBatch>>, gate: Arc<CommitGate>) -> Self {
        let appender = RefCell::new(appender);
        Self { appender, gate }
    }
}

/// Completes a batch whose records are durable, or never will be. The log's flusher calls it.
pub fn complete(end: Lsn, outcome: Result<(), LogRefusal>, mut batch: Box<CallBatch>) {
    if let Err(reason) = outcome {
        batch.refuse(&reason);
    }
    place(&mut batch, end);
    batch.finish();
}

/// Gives each slot its LSN; the batch's records end at `end`. It is that of the slot's first record. Without a record, it is the last LSN
/// that the call may have seen.
fn place(batch: &mut CallBatch, end: Lsn) {
    let base = end.0 - u64::from(batch.records);
    let mut next = u64::from(batch.records);
    for slot in batch.calls.iter_mut().rev() {
        let number = slot.lsn.0;
        slot.lsn = match number < next {
            true => Lsn(base + number),
            false => Lsn((base + number).saturating_sub(1)),
        };
        next = number;
    }
}

/// Interval at which a deployment that waits for its record checks that the log still runs.
const DURABLE_POLL_INTERVAL: Duration = Duration::from_secs(1);

fn end_of(partitions: &[&mut Partition]) -> Lsn {
    partitions
        .iter()
        .map(|partition| partition.last_end)
        .max()
        .unwrap_or_default()
}

fn record_end(partitions: &mut [&mut Partition], end: Lsn) {
    for partition in partitions {
        partition.last_end = end;
    }
}

impl Sink for SyncSink {
    fn refusal(&self) -> Option<LogRefusal> {
        self.0.refusal().as_ref().map(LogRefusal::from)
    }

    fn publish(
        &self,
        records: NewRecords<'_>,
        partitions: &mut [&mut Partition],
        mut batch: Box<CallBatch>,
    ) -> Result<(), (LogRefusal, Box<CallBatch>)> {
        batch.records = records.count();
        if records.is_empty() {
            // A read waits for the writes that it saw. Otherwise its answer could show a transaction that a crash still takes back.
            let busy = batch.busy;
            self.0.pend(end_of(partitions), batch, busy);
            return Ok(());
        }
        let busy = batch.busy;
        match records.append(&self.0, Some(batch), busy) {
            Ok(start) => {
                record_end(partitions, records.end_behind(start));
                Ok(())
            }
            Err((error, batch)) => Err(((&error).into(), batch.expect("the batch that was handed in"))),
        }
    }

    fn append_durable(
        &self,
        record: &RecordBatch,
        partitions: &mut [&mut Partition],
    ) -> Result<Lsn, (LogRefusal, Lsn)> {
        append_and_wait(&self.0, record, partitions)
    }

    fn wait_durable(&self, partitions: &mut [&mut Partition]) -> Result<(), LogRefusal> {
        let end = end_of(partitions);
        wait_for(&self.0, end)
            .map_err(|loss| loss.unwrap_or_else(|| LogRefusal::Unavailable("the log has stopped".into())))
    }

    fn durable_lsn(&self) -> Option<Lsn> {
        Some(self.0.durable())
    }

    fn is_stopped(&self) -> bool {
        self.0.is_stopped()
    }
}

impl Sink for AsyncSink {
    fn refusal(&self) -> Option<LogRefusal> {
        self.0.refusal().as_ref().map(LogRefusal::from)
    }

    fn publish(
        &self,
        records: NewRecords<'_>,
        partitions: &mut [&mut Partition],
        mut batch: Box<CallBatch>,
    ) -> Result<(), (LogRefusal, Box<CallBatch>)> {
        batch.records = records.count();
        if !records.is_empty() {
            match records.append(&self.0, None, Duration::ZERO) {
                Ok(start) => record_end(partitions, records.end_behind(start)),
                Err((error, _)) => return Err(((&error).into(), batch)),
            }
        }
        place(&mut batch, end_of(partitions));
        batch.finish();
        Ok(())
    }

    fn append_durable(
        &self,
        record: &RecordBatch,
        partitions: &mut [&mut Partition],
    ) -> Result<Lsn, (LogRefusal, Lsn)> {
        append_and_wait(&self.0, record, partitions)
    }

    fn durable_lsn(&self) -> Option<Lsn> {
        None
    }

    fn is_stopped(&self) -> bool {
        self.0.is_stopped()
    }
}

impl Sink for NvramSink {
    fn refusal(&self) -> Option<LogRefusal> {
        self.appender.borrow().refusal().as_ref().map(LogRefusal::from)
    }

    fn records_max(&self) -> usize {
        self.appender.borrow().bytes_max()
    }

    fn objects(&self) -> Option<ObjectWriter> {
        self.appender.borrow().objects()
    }

    fn publish(
        &self,
        records: NewRecords<'_>,
        partitions: &mut [&mut Partition],
        mut batch: Box<CallBatch>,
    ) -> Result<(), (LogRefusal, Box<CallBatch>)> {
        batch.records = records.count();
        if !records.is_empty() {
            match records.append_to_front(&mut self.appender.borrow_mut()) {
                Ok(start) => record_end(partitions, records.end_behind(start)),
                Err(error) => return Err(((&error).into(), batch)),
            }
        }
        // Each row that a partition shows is persistent, because its earlier batches were when their turns ended.
        self.gate.complete(end_of(partitions), Ok(()), batch);
        Ok(())
    }

    fn append_durable(
        &self,
        record: &RecordBatch,
        partitions: &mut [&mut Partition],
    ) -> Result<Lsn, (LogRefusal, Lsn)> {
        let appended = self.appender.borrow_mut().append(record);
        let start = appended.map_err(|error| (LogRefusal::from(&error), Lsn(0)))?;
        record_end(partitions, NewRecords::Whole(record).end_behind(start));
        Ok(start)
    }

    /// Returns the end of all published records.
    fn durable_lsn(&self) -> Option<Lsn> {
        Some(Lsn(u64::MAX))
    }

    fn is_stopped(&self) -> bool {
        false
    }
}

fn append_and_wait(
    appender: &Appender<Box<CallBatch>>,
    record: &RecordBatch,
    partitions: &mut [&mut Partition],
) -> Result<Lsn, (LogRefusal, Lsn)> {
    let appended = appender.append(record, None);
    let start = appended.map_err(|(error, _)| (LogRefusal::from(&error), Lsn(0)))?;
    let end = NewRecords::Whole(record).end_behind(start);
    // The wait has no limit. If a record became durable after its deployment was given up, it would name a module number that the next
    // deployment uses again.
    let waited = wait_for(appender, end);
    waited.map_err(|loss| {
        (
            loss.unwrap_or_else(|| LogRefusal::Unknown("the log has stopped".into())),
            start,
        )
    })?;
    record_end(partitions, end);
    Ok(start)
}

/// Waits until the log is durable up to `end`. Err: the log stopped before, with the reason if it is known.
fn wait_for(appender: &Appender<Box<CallBatch>>, end: Lsn) -> Result<(), Option<LogRefusal>> {
    while !appender.wait_durable(end, DURABLE_POLL_INTERVAL) {
        // The record may have become durable between the two checks.
        if appender.is_stopped() && !appender.wait_durable(end, Duration::ZERO) {
            return Err(appender.loss(end).as_ref().map(LogRefusal::from));
        }
    }
    Ok(())
}

impl Sink for NoLog {
    fn refusal(&self) -> Option<LogRefusal> {
        None
    }

    fn publish(
        &self,
        records: NewRecords<'_>,
        _: &mut [&mut Partition],
        mut batch: Box<CallBatch>,
    ) -> Result<(), (LogRefusal, Box<CallBatch>)> {
        // Every number is 0 already if there are no records.
        if !records.is_empty() {
            batch.calls.iter_mut().for_each(|slot| slot.lsn = Lsn(0));
        }
        batch.finish();
        Ok(())
    }

    fn append_durable(&self, _: &RecordBatch, _: &mut [&mut Partition]) -> Result<Lsn, (LogRefusal, Lsn)> {
        Ok(Lsn(0))
    }

    fn durable_lsn(&self) -> Option<Lsn> {
        None
    }

    fn is_stopped(&self) -> bool {
        false
    }
}
