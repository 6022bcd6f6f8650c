//! The first step of an opening: appends a region's records to the log's files if they are missing there.

use std::{ops::Range, time::Duration};

use reprise_base::Lsn;
use reprise_nvram::{RecoveredRecord, RegionContents};
use reprise_wire::{RecordBatch, RecordRef, Records};

use crate::{
    error::LogError,
    log::Log,
    nvram_buffer::VOID_BYTES,
    reader::{ReadRecord, RecordHolder, RecordPlace},
};

/// Bytes appended to the files at once, unless one record is longer.
const BATCH_BYTES: usize = 1 << 20;
/// Interval at which a thread that waits for the disk checks whether the log still runs.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The result of a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainReport {
    /// That were appended.
    pub records: u64,
    /// Numbers without a record.
    pub void: u64,
}

impl<P: Send + 'static> Log<P> {
    /// Appends the recovered records that are not in the files yet, in LSN order and under their epoch. A lost number becomes a void
    /// record. Everything is durable at the end. After a crash in the middle, the next drain continues behind the durable records.
    /// Requires a log opened as a standby's, so that it has begun no epoch of its own.
    pub fn drain(&self, recovered: &RegionContents) -> Result<DrainReport, LogError> {
        let mut drained = DrainReport::default();
        let mut batch = RecordBatch::default();
        let mut at = self.filled();
        if at < recovered.copied {
            let had = recovered.copied;
            return Err(unfit(format!(
                "the log ends at LSN {at}, and had everything before LSN {had}"
            )));
        }
        for record in &recovered.records {
            if record.end() <= at {
                continue;
            }
            if record.lsn < at {
                return Err(unfit(format!(
                    "its record at LSN {} begins before the log's end, {at}",
                    record.lsn
                )));
            }
            if drained == DrainReport::default() {
                self.continue_epoch(recovered)?;
            }
            drained.void = count_lost(recovered, drained.void, at..record.lsn)?;
            for void in at.0..record.lsn.0 {
                if batch.bytes().len() >= BATCH_BYTES {
                    self.append_drained(&mut batch, Lsn(void))?;
                }
                batch.push(&RecordRef::Void);
            }
            let before = batch.count();
            let pushed = batch.push_encoded(&record.bytes);
            if pushed.is_err() || batch.count() - before != record.count {
                return Err(unfit(format!("what lies at LSN {} is no record", record.lsn)));
            }
            drained.records += u64::from(record.count);
            at = record.end();
            if batch.bytes().len() >= BATCH_BYTES {
                self.append_drained(&mut batch, at)?;
            }
        }
        if !batch.is_empty() {
            self.append_drained(&mut batch, at)?;
        }
        while !self.wait_durable(at, POLL_INTERVAL) {
            if let Some(error) = self.shared.lock().stopped.clone() {
                return Err(error);
            }
        }
        Ok(drained)
    }

    /// Continues under the region's epoch.
    fn continue_epoch(&self, recovered: &RegionContents) -> Result<(), LogError> {
        let mut state = self.shared.lock();
        if state.epoch.is_after(recovered.epoch) {
            let (region, files) = (recovered.epoch, state.epoch);
            return Err(unfit(format!(
                "its records are of epoch {region}, and the log has gone on to epoch {files}"
            )));
        }
        state.epoch = recovered.epoch;
        Ok(())
    }

    fn append_drained(&self, batch: &mut RecordBatch, end: Lsn) -> Result<(), LogError> {
        let start = self.appender().append_copied(batch)?;
        assert_eq!(start.0 + u64::from(batch.count()), end.0, "records keep their numbers");
        batch.clear();
        Ok(())
    }
}

/// Counts numbers that no ring has, together with the `so_far` lost before. Err: more are lost than the sites can have taken without
/// making them persistent.
fn count_lost(recovered: &RegionContents, so_far: u64, numbers: Range<Lsn>) -> Result<u64, LogError> {
    let void = so_far.saturating_add(numbers.end.0.saturating_sub(numbers.start.0));
    match void <= recovered.objects_bytes / VOID_BYTES as u64 {
        true => Ok(void),
        false => Err(unfit(format!(
            "it is damaged: {void} numbers before its record at LSN {} have no record, more than its rings could have lost",
            numbers.end
        ))),
    }
}

/// Shows the records that an opening would append to files that end at `end`, one at a time, until `each` returns false. A lost number
/// is a void record. The region has this program's format. Err: the region holds bytes that are no record.
pub fn recovered_records(
    recovered: &RegionContents,
    end: Lsn,
    each: &mut dyn FnMut(&ReadRecord<'_>) -> bool,
) -> Result<(), LogError> {
    let void = RecordBatch::of(&RecordRef::Void);
    let (mut at, mut lost) = (end, 0);
    for found in recovered.records.iter().filter(|found| found.end() > end) {
        if found.lsn < at {
            return Err(unfit(format!(
                "its record at LSN {} begins before the log's end, {at}",
                found.lsn
            )));
        }
        lost = count_lost(recovered, lost, at..found.lsn)?;
        while at < found.lsn {
            let void_record = ReadRecord {
                lsn: at,
                end: Lsn(at.0 + 1),
                record: RecordRef::Void,
                bytes: void.bytes(),
                place: place_of(found, 0),
            };
            if !each(&void_record) {
                return Ok(());
            }
            at = void_record.end;
        }
        for decoded in Records::new(&found.bytes) {
            let (offset, record, bytes) =
                decoded.map_err(|error| unfit(format!("what lies at LSN {at} is no record: {error}")))?;
            let record = ReadRecord {
                lsn: at,
                end: Lsn(at.0 + 1),
                record,
                bytes,
                place: place_of(found, offset),
            };
            if !each(&record) {
                return Ok(());
            }
            at = record.end;
        }
        if at != found.end() {
            return Err(unfit(format!(
                "what lies at LSN {} are not {} records",
                found.lsn, found.count
            )));
        }
    }
    Ok(())
}

fn place_of(found: &RecoveredRecord, offset: usize) -> RecordPlace {
    RecordPlace {
        holder: RecordHolder::Ring(found.ring),
        offset: offset as u64,
    }
}

fn unfit(reason: String) -> LogError {
    LogError::Region { reason: reason.into() }
}
