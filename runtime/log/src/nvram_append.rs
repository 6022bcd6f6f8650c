//! Appends a standby's groups to NVRAM (Query Fresh, section 3.1): they are persistent in a ring before they are acknowledged. The
//! destage thread copies them to the log's files, as on a primary.

use std::{sync::MutexGuard, time::Duration};

use reprise_base::{Epoch, Lsn};
use reprise_nvram::{RingFull, RingWriter};
use reprise_wire::{RawRecords, RecordBatch};

use crate::{
    error::{LogError, UnavailableKind},
    group::{Group, Position},
    group_append::{AppendError, GroupAppender, promoted},
    nvram_buffer::NvramBuffer,
    state::{Extent, RecordSource},
};

/// Whole records of a group: as many as a ring takes at once, or one longer unit that can't be divided.
struct GroupPart<'a> {
    bytes: &'a [u8],
    count: u32,
}

/// The parts of a group, divided between records that were validated.
///
/// A command and the changes behind it stay together. Replay applies one of the two, and a crash between them would leave a command
/// without its changes.
fn parts<'a>(group: &Group<'a>, bytes_max: usize) -> Result<Vec<GroupPart<'a>>, AppendError> {
    let first = group.first;
    let (mut parts, mut begins, mut ends, mut count) = (Vec::new(), 0, 0, 0);
    let mut records = RawRecords::new(group.records).peekable();
    while let Some(record) = records.next() {
        let record = record.map_err(|error| AppendError::Malformed { first, error })?;
        let beside = records.next_if(|next| next.as_ref().is_ok_and(|next| next.is_beside(&record)));
        let (end, taken) = match beside {
            Some(Ok(changes)) => (changes.end, 2),
            _ => (record.end, 1),
        };
        if count > 0 && end - begins > bytes_max {
            let bytes = &group.records[begins..ends];
            parts.push(GroupPart { bytes, count });
            (begins, count) = (ends, 0);
        }
        (ends, count) = (end, count + taken);
    }
    let bytes = &group.records[begins..ends];
    parts.push(GroupPart { bytes, count });
    Ok(parts)
}

type Writers<'a> = MutexGuard<'a, Vec<Option<RingWriter>>>;

impl<P: Send + 'static> GroupAppender<P> {
    /// Appends a validated group that follows the received records. Persistent when it returns. Err: the parts appended before the
    /// error are received.
    pub(crate) fn append_to_rings(
        &self,
        nvram: &NvramBuffer,
        group: &Group<'_>,
        received: Position,
    ) -> Result<(), AppendError> {
        // Locked for the whole group: a promotion waits.
        let mut writers = nvram.writers();
        self.begin_epoch(nvram, received, group.end.epoch)?;
        let bytes_max = writers
            .iter()
            .flatten()
            .map(NvramBuffer::bytes_max)
            .min()
            .unwrap_or_default();
        let mut done = received;
        for part in parts(group, bytes_max)? {
            match part.bytes.len() > bytes_max {
                false => self.append_to_ring(nvram, &mut writers, done.lsn, &part)?,
                true => self.append_to_files(nvram, done.lsn, &part)?,
            }
            done = Position {
                epoch: group.end.epoch,
                lsn: Lsn(done.lsn.0 + u64::from(part.count)),
                history: done.history.then(part.bytes),
            };
            self.appender.0.lock().received = Some(done);
        }
        assert_eq!(done, group.end, "the group was validated");
        Ok(())
    }

    /// Begins the epoch of the next records: a region holds records of one epoch, as a block does.
    fn begin_epoch(&self, nvram: &NvramBuffer, received: Position, epoch: Epoch) -> Result<(), LogError> {
        let shared = &*self.appender.0;
        let check = || {
            let state = shared.lock();
            match &state.stopped {
                Some(error) => Err(error.clone()),
                None if state.is_closing => Err(LogError::unavailable(UnavailableKind::Closed, "it is closed")),
                None if state.received != Some(received) => Err(promoted()),
                None => Ok(state),
            }
        };
        if check()?.epoch == epoch {
            return Ok(());
        }
        nvram.destage_to(shared, nvram.filled(), shared.config.append_wait_max)?;
        nvram.marks.set_epoch(epoch);
        let mut state = check()?;
        assert_eq!(
            state.fill_records, 0,
            "all of it is durable, and nothing else was appended"
        );
        state.epoch = epoch;
        Ok(())
    }

    /// Appends a part to the emptiest ring.
    fn append_to_ring(
        &self,
        nvram: &NvramBuffer,
        writers: &mut Writers<'_>,
        lsn: Lsn,
        part: &GroupPart<'_>,
    ) -> Result<(), LogError> {
        let check = || {
            let rings = writers.iter().flatten().enumerate();
            let emptiest = rings.min_by_key(|(_, writer)| writer.fill().bytes);
            let (ring, writer) = emptiest.ok_or_else(promoted)?;
            match writer.check_room(part.bytes.len(), &[]) {
                Ok(()) => Ok(Some(ring)),
                Err(RingFull::ForNow) => Ok(None),
                Err(RingFull::Forever { .. }) => Err(LogError::TooLong {
                    bytes: part.bytes.len(),
                    max: NvramBuffer::bytes_max(writer),
                }),
            }
        };
        let ring = match check()? {
            Some(ring) => ring,
            None => nvram.wait_for_room(&self.appender.0, check)?,
        };
        let writer = writers[ring].as_mut().expect("no site has taken one");
        let start = nvram
            .lsns
            .reserve(0, part.count.into())
            .expect("a primary alone closes it");
        assert_eq!(start, lsn, "the rings have all that was received");
        let written = writer.records(lsn, part.count, part.bytes, &[]);
        written.expect("it was checked, and what was free stays free");
        writer.persist();
        nvram.filled.raise(start.0 + u64::from(part.count));
        nvram.lsns.persisted(0);
        nvram.wake_if_due(writer.fill());
        Ok(())
    }

    /// Appends a part that no ring takes to the files: durable when it returns, with all before it.
    fn append_to_files(&self, nvram: &NvramBuffer, lsn: Lsn, part: &GroupPart<'_>) -> Result<(), LogError> {
        let shared = &*self.appender.0;
        let wait_max = shared.config.append_wait_max;
        nvram.destage_to(shared, lsn, wait_max)?;
        let mut batch = RecordBatch::default();
        batch.push_encoded(part.bytes).expect("its records were validated");
        let state = self
            .appender
            .admit(Extent::of_bytes(part.bytes.len()), RecordSource::NvramBuffer)?;
        let start = nvram
            .lsns
            .reserve(0, part.count.into())
            .expect("a primary alone closes it");
        assert_eq!(start, lsn, "the rings have all that was received");
        self.appender.put(state, &batch, None, Duration::ZERO);
        let end = Lsn(start.0 + u64::from(part.count));
        if !shared.wait_durable(end, wait_max) {
            return Err(self.stop_stalled(wait_max));
        }
        nvram.marks.set_copied(end);
        nvram.filled.raise(end.0);
        // This order leaves nothing to do for the destage thread.
        nvram.record_copied(end);
        nvram.lsns.persisted(0);
        Ok(())
    }

    /// Stops a log whose disk hangs with a record that has its LSN. A promotion waits behind that record and gets the error now. The
    /// next opening shows whether the record is there.
    fn stop_stalled(&self, waited: Duration) -> LogError {
        let shared = &*self.appender.0;
        let reason = format!("the disk did not take a block within {} s", waited.as_secs_f64());
        let error = LogError::unavailable(UnavailableKind::Failed, reason);
        // Another error may have stopped it before.
        shared.stop(error.clone(), error.clone());
        shared.refusal_of_stop().unwrap_or(error)
    }
}
