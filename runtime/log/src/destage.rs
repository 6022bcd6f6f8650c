//! The destage thread: copies the records of all rings to the log's files, in LSN order, and frees their room. No transaction waits
//! for it.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use reprise_base::Lsn;
use reprise_env::{Step, Work};
use reprise_nvram::{RegionMarks, RingReader, RingRecord};
use reprise_wire::RecordBatch;

use crate::{
    append::Appender,
    error::{LogError, UnavailableKind},
    nvram_buffer::{NvramBuffer, NvramBufferState},
    state::LogShared,
};

/// Bytes appended to the files at once, unless one record is longer.
const BATCH_BYTES: usize = 1 << 20;
/// Time without a new record after which all remaining records are copied.
const QUIET: Duration = Duration::from_secs(1);
/// After the disk took nothing, time until the next try.
const RETRY_AFTER: Duration = Duration::from_millis(100);

pub(crate) struct Destager<P> {
    shared: Arc<LogShared<P>>,
    nvram: Arc<NvramBuffer>,
    lanes: Vec<RingLane>,
    marks: RegionMarks,
    /// Taken from the rings and not appended yet.
    batch: RecordBatch,
    /// The LSN up to which the buffer was persistent when last checked, and the time of that check.
    seen: (Lsn, u64),
}

/// A ring that is merged with the others.
struct RingLane {
    reader: RingReader,
    /// The next record of the ring, as of the last read.
    next: Option<RingRecord>,
    /// The last record that the thread took from it.
    taken: Option<RingRecord>,
}

/// The next action of the destage thread.
enum DestageAction {
    Copy,
    Wait,
    Over,
}

/// Stops the log and wakes all waiting threads if the destage thread panics.
struct StopOnDestagePanic<P>(Arc<LogShared<P>>, Arc<NvramBuffer>);

impl<P> Drop for StopOnDestagePanic<P> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = LogError::unavailable(UnavailableKind::Failed, "its copier panicked");
            self.0.stop(error.clone(), error);
            self.1.record_end();
        }
    }
}

impl<P: Send + 'static> Work for Destager<P> {
    fn run(mut self: Box<Self>) {
        let _guard = StopOnDestagePanic(Arc::clone(&self.shared), Arc::clone(&self.nvram));
        let nvram = Arc::clone(&self.nvram);
        loop {
            let state = nvram.lock();
            let (state, wait) = match self.next(&state) {
                DestageAction::Over => break,
                DestageAction::Wait => (state, QUIET),
                DestageAction::Copy => {
                    drop(state);
                    match self.copy() {
                        Ok(()) => continue,
                        Err(_) if self.is_given_up() => break,
                        Err(_) => (nvram.lock(), RETRY_AFTER),
                    }
                }
            };
            let waited = nvram.work.wait_timeout(state, wait);
            drop(waited.expect("the nvram's state is whole"));
        }
        nvram.record_end();
    }

    fn step(&mut self) -> Step {
        let nvram = Arc::clone(&self.nvram);
        let state = nvram.lock();
        let next = self.next(&state);
        drop(state);
        match next {
            DestageAction::Wait => return Step::Idle,
            DestageAction::Copy if self.copy().is_ok() => return Step::Done,
            DestageAction::Copy if !self.is_given_up() => return Step::Idle,
            DestageAction::Copy | DestageAction::Over => {}
        }
        nvram.record_end();
        Step::Over
    }
}

impl<P: Send + 'static> Destager<P> {
    pub fn new(
        shared: Arc<LogShared<P>>,
        nvram: Arc<NvramBuffer>,
        readers: Vec<RingReader>,
        marks: RegionMarks,
    ) -> Self {
        let lane = |reader| RingLane {
            reader,
            next: None,
            taken: None,
        };
        Self {
            shared,
            nvram,
            marks,
            lanes: readers.into_iter().map(lane).collect(),
            batch: RecordBatch::default(),
            seen: (Lsn(0), 0),
        }
    }

    /// True if the thread must end after the files took nothing. A close does not wait for a disk without room: the region keeps
    /// its records for the next opening.
    fn is_given_up(&self) -> bool {
        self.nvram.lock().is_closing || self.shared.lock().stopped.is_some()
    }

    fn next(&mut self, state: &NvramBufferState) -> DestageAction {
        // Cleared before the rings are read: a site that makes a record persistent later sets it again.
        let is_due = self.nvram.is_due.swap(false, Ordering::SeqCst);
        let (copied, durable) = (self.nvram.copied(), self.nvram.lsns.durable());
        // The durable LSN may seem to fall, because a site announces LSNs before it takes them.
        if copied >= durable {
            // Records that a stopped log did not take never become durable.
            let has_all = || self.nvram.lsns.next() == copied || self.shared.lock().stopped.is_some();
            return match state.is_closing && has_all() {
                true => DestageAction::Over,
                false => DestageAction::Wait,
            };
        }
        let is_wanted = state.is_closing || state.wanted > copied || is_due || self.nvram.is_followed();
        match is_wanted || self.is_quiet(durable) {
            true => DestageAction::Copy,
            false => DestageAction::Wait,
        }
    }

    fn is_quiet(&mut self, durable: Lsn) -> bool {
        let now_ns = self.shared.clock.monotonic_ns();
        if self.seen.0 != durable {
            self.seen = (durable, now_ns);
        }
        (now_ns - self.seen.1) as u128 >= QUIET.as_nanos()
    }

    /// Copies all records that are persistent now. Err: the files did not take them; records that were not copied are still in the rings.
    fn copy(&mut self) -> Result<(), LogError> {
        // Cleared before the rings are read: a site that finds its ring full later sets it again.
        self.nvram.is_due.store(false, Ordering::SeqCst);
        let until = self.nvram.lsns.durable();
        let appender = Appender(Arc::clone(&self.shared));
        while self.nvram.copied() < until {
            if self.batch.is_empty() {
                self.fill(until)
                    .inspect_err(|error| self.shared.stop(error.clone(), error.clone()))?;
            }
            let start = appender.append_copied(&self.batch)?;
            assert_eq!(
                start,
                self.nvram.copied(),
                "the files and the rings count records alike"
            );
            let end = Lsn(start.0 + u64::from(self.batch.count()));
            self.batch.clear();
            while !self.shared.wait_durable(end, self.shared.config.append_wait_max) {
                if let Some(error) = self.shared.lock().stopped.clone() {
                    return Err(error);
                }
            }
            self.marks.set_copied(end);
            for lane in &mut self.lanes {
                if let Some(taken) = lane.taken.take() {
                    lane.reader.free(&taken);
                }
            }
            self.nvram.record_copied(end);
        }
        Ok(())
    }

    /// Takes the next records before `until` from the rings.
    fn fill(&mut self, until: Lsn) -> Result<(), LogError> {
        let mut at = self.nvram.copied();
        while at < until {
            let lane = lane_of(&mut self.lanes, at)?;
            let next = lane.next.as_ref().expect("it was found there");
            let (bytes, count) = (&next.bytes, next.count);
            if !self.batch.is_empty() && self.batch.bytes().len() + bytes.len() > BATCH_BYTES {
                break;
            }
            let before = self.batch.count();
            let pushed = self.batch.push_encoded(bytes);
            if pushed.is_err() || self.batch.count() - before != count {
                return Err(damaged(format!("what lies at LSN {at} is no record")));
            }
            at = Lsn(at.0 + u64::from(count));
            lane.taken = lane.next.take();
        }
        Ok(())
    }
}

/// The ring whose next record is the one at `at`, which is persistent.
fn lane_of(lanes: &mut [RingLane], at: Lsn) -> Result<&mut RingLane, LogError> {
    for (ring, lane) in lanes.iter_mut().enumerate() {
        if lane.next.is_none() {
            let next = lane.reader.next_record();
            lane.next = next.map_err(|entry| damaged(format!("ring {ring}, entry {entry}")))?;
        }
    }
    let is_at = |lane: &&mut RingLane| lane.next.as_ref().is_some_and(|next| next.lsn == at);
    let found = lanes.iter_mut().find(is_at);
    found.ok_or_else(|| damaged(format!("no ring has the record at LSN {at}")))
}

fn damaged(what: String) -> LogError {
    let reason = format!("its NVRAM region is damaged: {what}");
    LogError::unavailable(UnavailableKind::Failed, reason)
}
