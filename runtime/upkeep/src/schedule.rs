//! When the next checkpoint is begun: by time, by the length of the log, or by how long a restart would take.

use std::{sync::Arc, time::Duration};

use reprise_env::{Step, Work};

use crate::checkpointer::{Checkpointer, GROWN_BYTES_MIN};

/// Interval at which the schedule is checked.
const SCHEDULE_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Share of the recovery target: with less log to replay another checkpoint would not help.
const REPLAY_SHARE_MIN: f64 = 0.1;

impl Checkpointer {
    /// Begins to take checkpoints by the schedule, if there is one.
    pub fn start_schedule(self: &Arc<Self>) {
        let config = &self.config;
        if config.every.is_zero() && config.log_bytes == 0 && config.recovery_target.is_zero() {
            return;
        }
        let schedule = CheckpointSchedule::new(self.clone());
        self.start("checkpoint-schedule", Box::new(move || Box::new(schedule)));
    }

    /// Returns the time since the newest checkpoint was begun, or since the database was created. A server that is often restarted takes
    /// checkpoints by time all the same. If the clock went back, the time counts from now on.
    fn newest_age(&self) -> Duration {
        let newest = self.history.published().last().map(|(_, began_us)| *began_us);
        let since_us = newest.unwrap_or(self.engine().genesis.created_us);
        let age_us = self.engine().shared.clock.now_us().saturating_sub(since_us);
        Duration::from_micros(u64::try_from(age_us).unwrap_or_default())
    }

    /// Returns true if another checkpoint is due, `since_last` after the last one was begun.
    fn is_due(&self, since_last: Duration) -> bool {
        let (config, log) = (&self.config, &self.engine().log);
        let behind = self.history.newest().unwrap_or(log.start());
        let grown = log.bytes_behind(behind);
        let is_time = !config.every.is_zero() && since_last >= config.every;
        let is_long = config.log_bytes > 0 && grown >= config.log_bytes;
        grown >= GROWN_BYTES_MIN && (is_time || is_long || self.is_beyond_target())
    }

    /// Returns true if the parts of a restart that are known take longer than the target, and a checkpoint would help. It does not help
    /// if loading alone takes that long.
    fn is_beyond_target(&self) -> bool {
        let target = self.config.recovery_target.as_secs_f64();
        if target == 0.0 {
            return false;
        }
        let estimate = self.restart();
        let replay_seconds = estimate.replay_seconds.unwrap_or(0.0);
        estimate.known_seconds() > target && replay_seconds > target * REPLAY_SHARE_MIN
    }
}

/// Takes checkpoints when they are due.
struct CheckpointSchedule {
    checkpointer: Arc<Checkpointer>,
    /// When the last one was begun, by the node's clock. At first, when the schedule began.
    last_ns: u64,
    /// Age of the newest checkpoint when the schedule began; zero once this run has begun one.
    found_age: Duration,
    checked_ns: u64,
}

impl CheckpointSchedule {
    fn new(checkpointer: Arc<Checkpointer>) -> Self {
        let now_ns = checkpointer.engine().shared.clock.monotonic_ns();
        Self {
            found_age: checkpointer.newest_age(),
            checkpointer,
            last_ns: now_ns,
            checked_ns: now_ns,
        }
    }
}

impl Work for CheckpointSchedule {
    fn run(mut self: Box<Self>) {
        while self.step() != Step::Over {
            self.checkpointer.history.wait_stop(SCHEDULE_POLL_INTERVAL);
        }
    }

    fn step(&mut self) -> Step {
        let checkpointer = &self.checkpointer;
        if checkpointer.history.is_stopping() {
            return Step::Over;
        }
        let now_ns = checkpointer.engine().shared.clock.monotonic_ns();
        if Duration::from_nanos(now_ns - self.checked_ns) < SCHEDULE_POLL_INTERVAL {
            return Step::Idle;
        }
        self.checked_ns = now_ns;
        let since_last = Duration::from_nanos(now_ns - self.last_ns).saturating_add(self.found_age);
        if !checkpointer.is_due(since_last) {
            return Step::Idle;
        }
        (self.last_ns, self.found_age) = (now_ns, Duration::ZERO);
        // The next time comes.
        if let Err(error) = checkpointer.try_take() {
            checkpointer.history.record_failure(error.to_string());
        }
        Step::Done
    }
}
