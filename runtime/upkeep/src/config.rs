//! When checkpoints are taken, and how many are kept.

use std::time::Duration;

/// When checkpoints are taken, and how many are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointConfig {
    /// Time from the beginning of one checkpoint to the next. Zero: not by time.
    pub every: Duration,
    /// Bytes of log after which the next checkpoint is taken; 0: not by length.
    pub log_bytes: u64,
    /// Longest time that a restart should take; a checkpoint is taken when it would take longer. Zero: not by that.
    pub recovery_target: Duration,
    /// Number of newest checkpoints that are kept, with the log from the oldest of them on.
    pub keep: usize,
}

impl CheckpointConfig {
    /// Only when asked for.
    pub const BY_HAND: Self = Self {
        every: Duration::ZERO,
        log_bytes: 0,
        recovery_target: Duration::ZERO,
        keep: 2,
    };
}
