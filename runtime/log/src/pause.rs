//! A primary that gives its place away: its log takes no more records, and may take some again where nobody took the place.

use reprise_base::{Epoch, Lsn};

use crate::{
    error::{LogError, UnavailableKind},
    log::Log,
};

impl<P: Send + 'static> Log<P> {
    /// Takes no more appends, for this reason, until `resume`. Returns where the log ends then: what was appended before is written, and
    /// reading goes on. With a front, all of it is persistent there. Err: it takes none already, or a site does not get done.
    pub fn pause(&self, reason: &str) -> Result<Lsn, LogError> {
        let mut state = self.shared.lock();
        if let Some(error) = state.refusal_of_appends() {
            return Err(error);
        }
        state.paused = Some(LogError::unavailable(UnavailableKind::Stalled, reason));
        self.shared.may_refuse.store(true, std::sync::atomic::Ordering::Release);
        let end = state.filled();
        drop(state);
        // Whoever waits for room is refused now.
        self.shared.wake_all();
        let Some(front) = self.front.get() else {
            return Ok(end);
        };
        front.pause(&self.shared).inspect_err(|_| {
            let mut state = self.shared.lock();
            state.paused = None;
            self.shared.clear_refusal(&state);
        })
    }

    /// Takes appends again after `pause`; in a new epoch, where somebody may have written under another one meanwhile. Everything that
    /// was appended is durable then. Returns the epoch.
    pub fn resume(&self, is_new_epoch: bool) -> Result<Epoch, LogError> {
        let front = self.front.get();
        if let Some(front) = front.filter(|_| is_new_epoch) {
            // A region holds records of one epoch.
            front.copy_to(&self.shared, front.filled(), self.shared.config.append_wait_max)?;
        }
        if !self.wait_durable(self.filled(), self.shared.config.append_wait_max) {
            let stalled = || LogError::unavailable(UnavailableKind::Stalled, "what was appended is not durable yet");
            return Err(self.shared.refusal_of_stop().unwrap_or_else(stalled));
        }
        let mut state = self.shared.lock();
        if let Some(error) = &state.stopped {
            return Err(error.clone());
        }
        if is_new_epoch && state.paused.is_some() {
            state.epoch = state.epoch.next();
            front.iter().for_each(|front| front.marks.set_epoch(state.epoch));
        }
        state.paused = None;
        self.shared.clear_refusal(&state);
        front.iter().for_each(|front| front.resume());
        Ok(state.epoch)
    }
}
