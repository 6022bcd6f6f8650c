//! A site's way into the NVRAM buffer.

use std::sync::Arc;

use reprise_base::Lsn;
use reprise_nvram::{ObjectWriter, RingFull, RingWriter};
use reprise_wire::{ChangesRun, RecordBatch, RecordRef};

use crate::{
    error::{LogError, UnavailableKind},
    nvram_buffer::{NvramBuffer, VOID_BYTES},
    state::LogShared,
};

/// Appends a site's records to the NVRAM buffer.
pub struct NvramAppender<P> {
    nvram: Arc<NvramBuffer>,
    shared: Arc<LogShared<P>>,
    site: usize,
    writer: RingWriter,
    bytes_max: usize,
}

impl<P: Send + 'static> NvramAppender<P> {
    pub(crate) fn new(nvram: Arc<NvramBuffer>, shared: Arc<LogShared<P>>, site: usize, writer: RingWriter) -> Self {
        Self {
            nvram,
            shared,
            site,
            bytes_max: NvramBuffer::bytes_max(&writer),
            writer,
        }
    }

    /// A writer for changes of transactions before their records are appended. None if changes go to the region with their records.
    /// Called once, on this appender's thread.
    pub fn objects(&self) -> Option<ObjectWriter> {
        self.writer.objects()
    }

    /// Appends one or several encoded records, except the bytes that are in the region already. After a crash all of them are there,
    /// or none. They are persistent when it returns the LSN of the first one; the others follow without gaps. Waits, within bounds,
    /// while the ring is full. Err: nothing was appended.
    #[inline]
    pub fn append(&mut self, records: &RecordBatch) -> Result<Lsn, LogError> {
        assert!(!records.is_empty(), "append of no record");
        if let Some(error) = self.shared.refusal() {
            return Err(error);
        }
        let (bytes, placed, nvram) = (records.bytes(), records.placed(), &*self.nvram);
        if bytes.len() > self.bytes_max || self.writer.check_room(bytes.len(), placed).is_err() {
            self.wait_for_room(bytes.len(), |writer| writer.check_room(bytes.len(), placed))?;
        }
        // LSNs are taken only when there is room: the destage thread waits for each LSN that was given out.
        let start = self.reserve(u64::from(records.count()))?;
        let written = self.writer.records(start, records.count(), bytes, placed);
        written.expect("it was checked, and what was free stays free");
        self.writer.persist();
        nvram.filled.raise(start.0 + u64::from(records.count()));
        nvram.lsns.persisted(self.site);
        nvram.wake_if_due(self.writer.fill());
        Ok(start)
    }

    /// Appends a transaction in parts, each persistent before the next. They have consecutive LSNs, and the destage thread makes room
    /// for parts that do not fit. All are persistent when it returns the LSN of the first. Err: the appended parts count for nothing,
    /// and the other LSNs are void.
    pub fn append_run(&mut self, run: &ChangesRun<'_>) -> Result<Lsn, LogError> {
        if let Some(error) = self.shared.refusal() {
            return Err(error);
        }
        let bytes_needed = self.run_bytes(run);
        if bytes_needed > self.bytes_max {
            let (bytes, max) = (bytes_needed, self.bytes_max);
            return Err(LogError::TooLong { bytes, max });
        }
        let count = u64::from(run.records());
        let (mut records, mut start, mut done) = (RecordBatch::default(), Lsn(0), 0);
        for number in 0..=run.parts() {
            records.clear();
            match number < run.parts() {
                true => run.push_part(number, &mut records),
                false => run.push_last(&mut records),
            }
            // Each part leaves room for the records that would make the rest void.
            let (bytes, rest) = (records.bytes().len(), VOID_BYTES * run.records() as usize);
            let has_room = self.writer.check_room_for_two(bytes, rest).is_ok();
            let made = match has_room {
                true => Ok(()),
                false => self.wait_for_room(bytes, |writer| writer.check_room_for_two(bytes, rest)),
            };
            if let Err(error) = made {
                if done > 0 {
                    self.append_void(Lsn(start.0 + done), count - done);
                }
                return Err(error);
            }
            if number == 0 {
                start = self.reserve(count)?;
            }
            let next = done + u64::from(records.count());
            self.persist_at(Lsn(start.0 + done), &records, next == count);
            done = next;
        }
        Ok(start)
    }

    /// Takes `count` LSNs; the first. Err: none are given out during a hand-over.
    #[inline]
    fn reserve(&self, count: u64) -> Result<Lsn, LogError> {
        self.nvram.lsns.reserve(self.site, count).ok_or_else(|| {
            let reason = "this server gave its place away, or was about to";
            let paused = || LogError::unavailable(UnavailableKind::Stalled, reason);
            self.shared.refusal().unwrap_or_else(paused)
        })
    }

    /// Bytes that a run asks a ring for at once, at most.
    fn run_bytes(&self, run: &ChangesRun<'_>) -> usize {
        run.append_bytes_max() + VOID_BYTES * run.records() as usize
    }

    /// Makes LSNs of a run void that have no record.
    fn append_void(&mut self, lsn: Lsn, count: u64) {
        let mut records = RecordBatch::default();
        (0..count).for_each(|_| records.push(&RecordRef::Void));
        self.persist_at(lsn, &records, true);
    }

    /// Makes records with these LSNs persistent, for which there is room; `is_last`: the site took no others.
    fn persist_at(&mut self, lsn: Lsn, records: &RecordBatch, is_last: bool) {
        let (nvram, end) = (&*self.nvram, Lsn(lsn.0 + u64::from(records.count())));
        let written = self.writer.records(lsn, records.count(), records.bytes(), &[]);
        written.expect("it was checked, and what was free stays free");
        self.writer.persist();
        nvram.filled.raise(end.0);
        match is_last {
            true => nvram.lsns.persisted(self.site),
            false => nvram.lsns.persisted_before(self.site, end),
        }
        nvram.wake_if_due(self.writer.fill());
    }

    /// Waits until `check` finds room for this many bytes.
    #[cold]
    fn wait_for_room(&self, bytes: usize, check: impl Fn(&RingWriter) -> Result<(), RingFull>) -> Result<(), LogError> {
        let max = self.bytes_max;
        if bytes > max {
            return Err(LogError::TooLong { bytes, max });
        }
        self.nvram.wait_for_room(&self.shared, || match check(&self.writer) {
            Ok(()) => Ok(Some(())),
            Err(RingFull::ForNow) => Ok(None),
            Err(RingFull::Forever { .. }) => Err(LogError::TooLong { bytes, max }),
        })
    }

    /// Bytes of records that one append takes, at most: a quarter of the site's ring, and one block of the files.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Why appends are refused now, if they are. Costs one load while all is well.
    #[inline]
    pub fn refusal(&self) -> Option<LogError> {
        self.shared.refusal()
    }
}
