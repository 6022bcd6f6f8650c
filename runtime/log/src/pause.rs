//! The log of a primary during a hand-over: it takes no more records, and takes some again if no standby took over.

use std::sync::MutexGuard;

use reprise_base::{Epoch, Lsn};

use crate::{
    error::{LogError, UnavailableKind},
    log::Log,
    state::LogState,
};

/// Returns the epoch behind `current`, `at_least` this one and of its writer. Err: there is none.
pub(crate) fn epoch_behind(current: Epoch, at_least: Epoch) -> Result<Epoch, LogError> {
    let next = at_least.behind(current);
    match next.is_after(current) {
        true => Ok(next),
        false => Err(LogError::unavailable(UnavailableKind::Failed, "no later epoch is left")),
    }
}

impl<P: Send + 'static> Log<P> {
    /// Refuses appends for this reason until `resume`. Returns the log's end: records appended before are written, and reading
    /// continues. With an NVRAM buffer all of them are persistent there. Err: appends are refused already, or a site does not finish.
    pub fn pause(&self, reason: &str) -> Result<Lsn, LogError> {
        let mut state = self.shared.lock();
        if let Some(error) = state.refusal_of_appends() {
            return Err(error);
        }
        state.paused = Some(LogError::unavailable(UnavailableKind::Paused, reason));
        self.shared.may_refuse.store(true, std::sync::atomic::Ordering::Release);
        let end = state.filled();
        drop(state);
        // Threads that wait for room are refused now.
        self.shared.wake_all();
        let Some(nvram) = self.nvram.get() else {
            return Ok(end);
        };
        nvram.pause(&self.shared).inspect_err(|_| {
            let mut state = self.shared.lock();
            state.paused = None;
            self.shared.clear_refusal(&state);
        })
    }

    /// Takes appends again after `pause`, and returns their epoch. If another server may have written meanwhile, it is a new epoch,
    /// `at_least` this one and of its writer. All earlier records are durable then.
    pub fn resume(&self, at_least: Option<Epoch>) -> Result<Epoch, LogError> {
        let mut state = self.wait_until_durable(at_least.is_some())?;
        let nvram = self.nvram.get();
        if let (Some(at_least), Some(_)) = (at_least, &state.paused) {
            state.epoch = epoch_behind(state.epoch, at_least)?;
            nvram.iter().for_each(|nvram| nvram.marks.set_epoch(state.epoch));
        }
        state.paused = None;
        self.shared.clear_refusal(&state);
        nvram.iter().for_each(|nvram| nvram.resume());
        Ok(state.epoch)
    }

    /// Raises the epoch of later records to this one at least. Only while nothing is appended.
    pub fn raise_epoch(&self, at_least: Epoch) -> Result<(), LogError> {
        if !at_least.is_after(self.epoch()) {
            return Ok(());
        }
        let mut state = self.wait_until_durable(true)?;
        state.epoch = state.epoch.later(at_least);
        self.nvram
            .get()
            .iter()
            .for_each(|nvram| nvram.marks.set_epoch(state.epoch));
        Ok(())
    }

    /// Waits until all records are durable; in the files, if another epoch begins, because a region holds records of one.
    fn wait_until_durable(&self, is_new_epoch: bool) -> Result<MutexGuard<'_, LogState<P>>, LogError> {
        let wait_max = self.shared.config.append_wait_max;
        if let Some(nvram) = self.nvram.get().filter(|_| is_new_epoch) {
            nvram.destage_to(&self.shared, nvram.filled(), wait_max)?;
        }
        if !self.wait_durable(self.filled(), wait_max) {
            let stalled = || LogError::unavailable(UnavailableKind::Stalled, "what was appended is not durable yet");
            return Err(self.shared.refusal_of_stop().unwrap_or_else(stalled));
        }
        let state = self.shared.lock();
        match &state.stopped {
            Some(error) => Err(error.clone()),
            None => Ok(state),
        }
    }
}
