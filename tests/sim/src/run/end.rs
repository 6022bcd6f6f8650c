//! An operator reads the calls on their way, and ends one. It leaves nothing, unless it had run.

use super::{Life, Run};

/// Calls that are looked at.
const LISTED_MAX: usize = 8;

impl Run {
    pub(super) fn end_call(&mut self, world: &Life) -> Result<(), String> {
        let (calls, count) = world.router().calls(LISTED_MAX);
        if calls.len() as u64 > count || calls.len() > LISTED_MAX {
            return Err(format!("{} calls of {count} are listed", calls.len()));
        }
        if calls.is_empty() {
            return Ok(());
        }
        let chosen = &calls[self.below(calls.len() as u64) as usize];
        let ended = world.router().cancel(chosen.call_id);
        self.note(|| {
            format!(
                "end call {}: {:?}",
                chosen.call_id,
                ended.as_ref().map(|call| call.phase)
            )
        });
        self.stats.ended += ended.is_some() as u64;
        Ok(())
    }
}
