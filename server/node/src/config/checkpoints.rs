//! When checkpoints are taken, and how many are kept.

use std::time::Duration;

use reprise_database::CheckpointConfig;

use super::setting::{bounded, settings};

/// The interval of the paper's evaluation (A, section V).
const CHECKPOINT_EVERY_DEFAULT: u64 = 180;
const CHECKPOINT_LOG_MIB_DEFAULT: u64 = 1024;
const CHECKPOINTS_KEPT_DEFAULT: u64 = 2;

settings! {
    /// When checkpoints are taken, and how many are kept.
    CheckpointSettings from CheckpointArgs under "Checkpoints" {
        /// Seconds between checkpoints. The server skips one if the log has not grown; 0: only on request [default: 180]
        checkpoint_every: u64 {
            env: "REPRISE_CHECKPOINT_EVERY",
            takes: "SECONDS",
            check: |text: &str| bounded(text, "the seconds between checkpoints", 0, 365 * 24 * 3600),
            default: CHECKPOINT_EVERY_DEFAULT,
        }
        /// MiB of new log after which the server takes a checkpoint early; 0: only by time [default: 1024]
        checkpoint_log_mib: u64 {
            env: "REPRISE_CHECKPOINT_LOG_MIB",
            takes: "MIB",
            check: |text: &str| bounded(text, "the MiB of log between checkpoints", 0, 1 << 30),
            default: CHECKPOINT_LOG_MIB_DEFAULT,
        }
        /// Seconds that a restart may take. If a restart would take longer, the server takes a checkpoint; 0: no target [default: 0]
        recovery_target_s: u64 {
            env: "REPRISE_RECOVERY_TARGET_S",
            takes: "SECONDS",
            check: |text: &str| bounded(text, "the seconds of a restart", 0, 24 * 3600),
            default: 0,
        }
        /// Number of checkpoints to keep. The server also keeps the log since the oldest of them [default: 2]
        checkpoints_kept: u64 {
            env: "REPRISE_CHECKPOINTS_KEPT",
            takes: "N",
            check: |text: &str| bounded(text, "the number of checkpoints kept", 1, 1000),
            default: CHECKPOINTS_KEPT_DEFAULT,
        }
    }
}

impl CheckpointSettings {
    pub fn config(&self) -> CheckpointConfig {
        CheckpointConfig {
            every: Duration::from_secs(self.checkpoint_every.value),
            log_bytes: self.checkpoint_log_mib.value << 20,
            recovery_target: Duration::from_secs(self.recovery_target_s.value),
            keep: self.checkpoints_kept.value as usize,
        }
    }
}
