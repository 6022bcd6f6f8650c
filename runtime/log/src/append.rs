//! The engine threads' side: records in, position out.

use std::{
    sync::{Arc, MutexGuard, atomic::Ordering},
    time::Duration,
};

use reprise_base::Lsn;
use reprise_wire::{ChangesRun, RecordBatch};

use crate::{
    error::{LogError, UnavailableKind},
    state::{Admission, Extent, LogShared, LogState, RecordSource, is_large},
};

/// An engine thread's hand on the log. `P` is whatever waits for durability; it is given back by the `complete` function
/// that the log was opened with.
pub struct Appender<P>(pub(crate) Arc<LogShared<P>>);

impl<P> Clone for Appender<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<P: Send + 'static> Appender<P> {
    /// Appends encoded records, one or several, which will be in one block: after a crash all of them are there or none.
    /// Returns the LSN of the first one; the others follow without gaps.
    ///
    /// `pending` is completed with the LSN behind these records once they are durable, or with the error that stopped the log.
    /// Waits, within bounds, while both buffers are full. An error gives `pending` back: nothing was appended.
    pub fn append(&self, records: &RecordBatch, pending: Option<P>) -> Result<Lsn, (LogError, Option<P>)> {
        self.append_while_busy(records, pending, Duration::ZERO)
    }

    /// The `append` variant for a caller that is busy for `busy` with waiting calls. These records may wait for others that share their
    /// write.
    pub fn append_while_busy(
        &self,
        records: &RecordBatch,
        pending: Option<P>,
        busy: Duration,
    ) -> Result<Lsn, (LogError, Option<P>)> {
        match self.admit(Extent::of(records), RecordSource::Own) {
            Ok(state) => Ok(self.put(state, records, pending, busy)),
            Err(error) => Err((error, pending)),
        }
    }

    /// Appends records that have their LSNs from the NVRAM buffer: also on a standby, and on a primary during a hand-over.
    pub(crate) fn append_copied(&self, records: &RecordBatch) -> Result<Lsn, LogError> {
        let state = self.admit(Extent::of(records), RecordSource::NvramBuffer)?;
        Ok(self.put(state, records, None, Duration::ZERO))
    }

    /// Puts records that were admitted into the block being filled.
    pub(crate) fn put(
        &self,
        mut state: MutexGuard<'_, LogState<P>>,
        records: &RecordBatch,
        pending: Option<P>,
        busy: Duration,
    ) -> Lsn {
        assert!(!records.is_empty(), "append of no record");
        let start = state.filled();
        state.fill_extend(records);
        let end = state.filled();
        if let Some(waiting) = pending {
            state.fill_pending.push((end, waiting));
        }
        self.0.record_joined(&mut state, busy);
        self.record_filled(&mut state);
        start
    }

    /// Appends a transaction in parts, of which each, and what ends them, is in one block: no record of others comes between. Returns the LSN
    /// of the first part; `pending` and `busy` are as of `append_while_busy`. An error gives `pending` back: parts may have been
    /// appended, which count for nothing.
    pub fn append_run(
        &self,
        run: &ChangesRun<'_>,
        pending: Option<P>,
        busy: Duration,
    ) -> Result<Lsn, (LogError, Option<P>)> {
        match self.append_parts(run) {
            Ok((start, mut state)) => {
                let end = state.filled();
                if let Some(waiting) = pending {
                    state.fill_pending.push((end, waiting));
                }
                self.0.record_joined(&mut state, busy);
                self.end_run(state);
                Ok(start)
            }
            Err((error, is_begun)) => {
                if is_begun {
                    self.end_run(self.0.lock());
                }
                Err((error, pending))
            }
        }
    }

    /// Appends all records of the run. Returns their beginning, and the lock under which the last one was appended. Err: also whether any
    /// was appended.
    fn append_parts(&self, run: &ChangesRun<'_>) -> Result<(Lsn, MutexGuard<'_, LogState<P>>), (LogError, bool)> {
        let (mut records, mut start, mut source) = (RecordBatch::default(), None, RecordSource::Own);
        for number in 0..=run.parts() {
            records.clear();
            match number < run.parts() {
                true => run.push_part(number, &mut records),
                false => run.push_last(&mut records),
            }
            let admitted = self.admit(Extent::of(&records), source);
            let mut state = admitted.map_err(|error| (error, source == RecordSource::Run))?;
            (state.is_run_open, source) = (true, RecordSource::Run);
            let start = *start.get_or_insert(state.filled());
            state.fill_extend(&records);
            self.record_filled(&mut state);
            if number == run.parts() {
                return Ok((start, state));
            }
        }
        unreachable!("the record behind the parts is the last one")
    }

    /// Lets other threads append again.
    fn end_run(&self, mut state: MutexGuard<'_, LogState<P>>) {
        state.is_run_open = false;
        drop(state);
        self.0.space.notify_all();
    }

    /// Records that records were put into the block being filled.
    pub(crate) fn record_filled(&self, state: &mut LogState<P>) {
        self.0.filled.advance(state.filled().0);
        if state.flusher_sleeps {
            state.flusher_sleeps = false;
            self.0.work.notify_one();
        }
    }

    /// Waits until there is room for the records, and returns with the lock held.
    pub(crate) fn admit(&self, extent: Extent, source: RecordSource) -> Result<MutexGuard<'_, LogState<P>>, LogError> {
        let mut state = self.0.lock();
        match state.admit(extent, source) {
            Admission::Now => return Ok(state),
            Admission::Refuse(error) => {
                self.0.may_refuse.store(true, Ordering::Release);
                return Err(error);
            }
            Admission::Wait => {}
        }
        let large = u32::from(is_large(extent.max()));
        state.appenders_wait += 1;
        state.large_wait += large;
        let (mut state, admission) = self.wait_for_room(state, extent, source);
        state.appenders_wait -= 1;
        state.large_wait -= large;
        if large > 0 {
            self.0.space.notify_all();
        }
        match admission {
            Ok(()) => Ok(state),
            Err(error) => {
                self.0.may_refuse.store(true, Ordering::Release);
                Err(error)
            }
        }
    }

    fn wait_for_room<'a>(
        &'a self,
        mut state: MutexGuard<'a, LogState<P>>,
        extent: Extent,
        source: RecordSource,
    ) -> (MutexGuard<'a, LogState<P>>, Result<(), LogError>) {
        let shared = &*self.0;
        let wait_max = shared.config.append_wait_max;
        let (mut began_ns, mut begun_at) = (shared.clock.monotonic_ns(), state.fill_start);
        loop {
            shared.work.notify_one();
            shared.prepare.notify_one();
            let is_over;
            (state, is_over) = shared.wait_for_space(state, wait_max);
            match state.admit(extent, source) {
                Admission::Now => return (state, Ok(())),
                Admission::Refuse(error) => return (state, Err(error)),
                Admission::Wait => {}
            }
            let now_ns = shared.clock.monotonic_ns();
            if state.is_run_open && state.fill_start > begun_at {
                // The parts of one transaction are written as fast as the disk takes them.
                (began_ns, begun_at) = (now_ns, state.fill_start);
                continue;
            }
            let waited_ns = now_ns - began_ns;
            if is_over || waited_ns as u128 > wait_max.as_nanos() {
                let reason = format!("the disk took nothing for {wait_max:?}");
                return (state, Err(LogError::unavailable(UnavailableKind::Stalled, reason)));
            }
        }
    }

    /// Completes `pending` when everything before `end` is durable, or at once on this thread if it already is. It serves answers that show
    /// records of other appenders. `busy` is as in `append_while_busy`.
    pub fn pend(&self, end: Lsn, pending: P, busy: Duration) {
        let shared = &*self.0;
        if shared.is_durable(end) {
            return (shared.complete)(end, Ok(()), pending);
        }
        let mut state = shared.lock();
        let error = match &state.stopped {
            _ if shared.is_durable(end) => None,
            Some(error) => Some(error.clone()),
            None if end <= state.fill_start => {
                return state.flight_pending.push((end, pending));
            }
            None => {
                assert!(end <= state.filled(), "wait for LSN {end}, which nobody appended");
                state.fill_pending.push((end, pending));
                return shared.record_joined(&mut state, busy);
            }
        };
        drop(state);
        match &error {
            None => (shared.complete)(end, Ok(()), pending),
            Some(error) => (shared.complete)(end, Err(error), pending),
        }
    }

    /// Returns why appends are refused now, if they are. It costs one load if there is no error.
    #[inline]
    pub fn refusal(&self) -> Option<LogError> {
        self.0.refusal()
    }

    /// Returns why records that end at `end` did not become durable, once the log has stopped: certainly not, or perhaps.
    pub fn loss(&self, end: Lsn) -> Option<LogError> {
        self.0.lock().loss(end)
    }

    /// True once a write has failed. Records that are not durable by then never will be. It costs one load if there is no error.
    #[inline]
    pub fn is_stopped(&self) -> bool {
        self.0.may_refuse.load(Ordering::Acquire) && self.0.lock().stopped.is_some()
    }

    /// Waits until everything before `end` is durable. False if the time is over or the log stopped first.
    pub fn wait_durable(&self, end: Lsn, timeout: std::time::Duration) -> bool {
        self.0.wait_durable(end, timeout)
    }

    /// Returns the LSN before which everything is durable.
    #[inline]
    pub fn durable(&self) -> Lsn {
        Lsn(self.0.durable.lsn.get())
    }
}
