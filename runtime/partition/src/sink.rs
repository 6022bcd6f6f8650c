//! The way of a finished batch: to the log and then to its caller, or to its caller at once.

use std::{cell::RefCell, sync::Arc, time::Duration};

use reprise_base::Lsn;
use reprise_log::{Appender, LogError, NvramAppender, UnavailableKind};
use reprise_nvram::ObjectWriter;
use reprise_wire::{ChangesRun, RecordBatch};

use crate::{batch::CallBatch, gate::CommitGate, site::Partition};

/// Why the log does not keep what was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unlogged {
    /// It can't be written: nothing of it is kept.
    #[error("the log can't be written: {0}")]
    Unavailable(Arc<str>),
    /// The log is read alone.
    #[error("{0}")]
    ReadOnly(Arc<str>),
    /// Standbys are missing that the server's safety level asks for.
    #[error("{0}")]
    StandbyUnavailable(Arc<str>),
    /// This primary's lease is over.
    #[error("{0}")]
    LeaseLost(Arc<str>),
    /// The primary gives its place away.
    #[error("{0}")]
    Paused(Arc<str>),
    /// The log failed while it wrote this: it may be kept.
    #[error("{0}")]
    Unknown(Arc<str>),
}

impl From<&LogError> for Unlogged {
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
    /// Why writes can't be taken now, if so.
    fn refusal(&self) -> Option<Unlogged>;

    /// Bytes of records that one batch may have.
    fn records_max(&self) -> usize {
        usize::MAX
    }

    /// Takes the writer for changes before their transactions commit, if any. Once, before the first batch.
    fn objects(&self) -> Option<ObjectWriter> {
        None
    }

    /// Takes over a run batch with the records of its committed writes. `partitions` are those it ran on.
    /// Err: what was appended of them counts for nothing, and the caller still has the batch's transactions in its tables.
    fn publish(
        &self,
        records: NewRecords<'_>,
        partitions: &mut [&mut Partition],
        batch: Box<CallBatch>,
    ) -> Result<(), (Unlogged, Box<CallBatch>)>;

    /// Appends a record and waits until it and all before it are durable; its position. For deployments, which hold every
    /// partition anyway. Err: why it is not durable, and where it was to lie, if it got that far.
    fn append_durable(&self, record: &RecordBatch, partitions: &mut [&mut Partition]) -> Result<Lsn, (Unlogged, Lsn)>;

    /// Waits until all that these partitions appended is durable, where tables may not be ahead of the log. Err: it will not be.
    fn wait_durable(&self, _partitions: &mut [&mut Partition]) -> Result<(), Unlogged> {
        Ok(())
    }

    /// How far the log is durable; None where tables may be ahead of the log, so that nothing is ever taken back.
    fn settled(&self) -> Option<Lsn>;

    /// True once the log has failed for good: what is not durable now never will be.
    fn is_stopped(&self) -> bool;
}

/// Durable before reply: the default.
pub struct SyncSink(pub Appender<Box<CallBatch>>);
/// Logged, but acknowledged at once.
pub struct AsyncSink(pub Appender<Box<CallBatch>>);
/// Durable before reply, in NVRAM: the engine thread persists the records and answers the callers itself, unless the gate has them wait
/// for standbys.
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

/// Called by the log's flusher for each batch whose records are durable, or never will be.
pub fn complete(end: Lsn, outcome: Result<(), Unlogged>, mut batch: Box<CallBatch>) {
    if let Err(reason) = outcome {
        batch.refuse(&reason);
    }
    place(&mut batch, end);
    batch.finish();
}

/// Gives each slot its LSN, the batch's records ending at `end`: of its first record; without one, of the last one that it may
/// have seen.
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

/// How often a deployment that waits for its record looks whether the log still runs.
const DURABLE_LOOK: Duration = Duration::from_secs(1);

fn end_of(partitions: &[&mut Partition]) -> Lsn {
    partitions
        .iter()
        .map(|partition| partition.last_end)
        .max()
        .unwrap_or_default()
}

fn note_end(partitions: &mut [&mut Partition], end: Lsn) {
    for partition in partitions {
        partition.last_end = end;
    }
}

impl Sink for SyncSink {
    fn refusal(&self) -> Option<Unlogged> {
        self.0.refusal().as_ref().map(Unlogged::from)
    }

    fn publish(
        &self,
        records: NewRecords<'_>,
        partitions: &mut [&mut Partition],
        mut batch: Box<CallBatch>,
    ) -> Result<(), (Unlogged, Box<CallBatch>)> {
        batch.records = records.count();
        if records.is_empty() {
            // A read waits for the writes that it saw: it must not tell of a transaction that a crash could still take back.
            let busy = batch.busy;
            self.0.pend(end_of(partitions), batch, busy);
            return Ok(());
        }
        let busy = batch.busy;
        match records.append(&self.0, Some(batch), busy) {
            Ok(start) => {
                note_end(partitions, records.end_behind(start));
                Ok(())
            }
            Err((error, batch)) => Err(((&error).into(), batch.expect("the batch that was handed in"))),
        }
    }

    fn append_durable(&self, record: &RecordBatch, partitions: &mut [&mut Partition]) -> Result<Lsn, (Unlogged, Lsn)> {
        append_and_wait(&self.0, record, partitions)
    }

    fn wait_durable(&self, partitions: &mut [&mut Partition]) -> Result<(), Unlogged> {
        let end = end_of(partitions);
        wait_for(&self.0, end)
            .map_err(|loss| loss.unwrap_or_else(|| Unlogged::Unavailable("the log has stopped".into())))
    }

    fn settled(&self) -> Option<Lsn> {
        Some(self.0.durable())
    }

    fn is_stopped(&self) -> bool {
        self.0.is_stopped()
    }
}

impl Sink for AsyncSink {
    fn refusal(&self) -> Option<Unlogged> {
        self.0.refusal().as_ref().map(Unlogged::from)
    }

    fn publish(
        &self,
        records: NewRecords<'_>,
        partitions: &mut [&mut Partition],
        mut batch: Box<CallBatch>,
    ) -> Result<(), (Unlogged, Box<CallBatch>)> {
        batch.records = records.count();
        if !records.is_empty() {
            match records.append(&self.0, None, Duration::ZERO) {
                Ok(start) => note_end(partitions, records.end_behind(start)),
                Err((error, _)) => return Err(((&error).into(), batch)),
            }
        }
        place(&mut batch, end_of(partitions));
        batch.finish();
        Ok(())
    }

    fn append_durable(&self, record: &RecordBatch, partitions: &mut [&mut Partition]) -> Result<Lsn, (Unlogged, Lsn)> {
        append_and_wait(&self.0, record, partitions)
    }

    fn settled(&self) -> Option<Lsn> {
        None
    }

    fn is_stopped(&self) -> bool {
        self.0.is_stopped()
    }
}

impl Sink for NvramSink {
    fn refusal(&self) -> Option<Unlogged> {
        self.appender.borrow().refusal().as_ref().map(Unlogged::from)
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
    ) -> Result<(), (Unlogged, Box<CallBatch>)> {
        batch.records = records.count();
        if !records.is_empty() {
            match records.append_to_front(&mut self.appender.borrow_mut()) {
                Ok(start) => note_end(partitions, records.end_behind(start)),
                Err(error) => return Err(((&error).into(), batch)),
            }
        }
        // Whatever a partition shows is persistent, since what it ran before was when its turn ended.
        self.gate.complete(end_of(partitions), Ok(()), batch);
        Ok(())
    }

    fn append_durable(&self, record: &RecordBatch, partitions: &mut [&mut Partition]) -> Result<Lsn, (Unlogged, Lsn)> {
        let appended = self.appender.borrow_mut().append(record);
        let start = appended.map_err(|error| (Unlogged::from(&error), Lsn(0)))?;
        note_end(partitions, NewRecords::Whole(record).end_behind(start));
        Ok(start)
    }

    /// All that was published.
    fn settled(&self) -> Option<Lsn> {
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
) -> Result<Lsn, (Unlogged, Lsn)> {
    let appended = appender.append(record, None);
    let start = appended.map_err(|(error, _)| (Unlogged::from(&error), Lsn(0)))?;
    let end = NewRecords::Whole(record).end_behind(start);
    // However long it takes: a record that becomes durable after its deployment was given up would name a module that the
    // next deployment names, too.
    let waited = wait_for(appender, end);
    waited.map_err(|loss| {
        (
            loss.unwrap_or_else(|| Unlogged::Unknown("the log has stopped".into())),
            start,
        )
    })?;
    note_end(partitions, end);
    Ok(start)
}

/// Waits until the log is durable up to `end`. Err: the log has stopped before, and why if that is known.
fn wait_for(appender: &Appender<Box<CallBatch>>, end: Lsn) -> Result<(), Option<Unlogged>> {
    while !appender.wait_durable(end, DURABLE_LOOK) {
        // It may have become durable between the two looks.
        if appender.is_stopped() && !appender.wait_durable(end, Duration::ZERO) {
            return Err(appender.loss(end).as_ref().map(Unlogged::from));
        }
    }
    Ok(())
}

impl Sink for NoLog {
    fn refusal(&self) -> Option<Unlogged> {
        None
    }

    fn publish(
        &self,
        records: NewRecords<'_>,
        _: &mut [&mut Partition],
        mut batch: Box<CallBatch>,
    ) -> Result<(), (Unlogged, Box<CallBatch>)> {
        // Without records every number is 0 already.
        if !records.is_empty() {
            batch.calls.iter_mut().for_each(|slot| slot.lsn = Lsn(0));
        }
        batch.finish();
        Ok(())
    }

    fn append_durable(&self, _: &RecordBatch, _: &mut [&mut Partition]) -> Result<Lsn, (Unlogged, Lsn)> {
        Ok(Lsn(0))
    }

    fn settled(&self) -> Option<Lsn> {
        None
    }

    fn is_stopped(&self) -> bool {
        false
    }
}
