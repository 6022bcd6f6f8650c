//! The form of log records, the time at which they are durable, and their use in a recovery.

use reprise_database::{AfterImage, CommitMode, LogPolicy, RedoConfig};

use super::setting::{bounded, settings};

/// Longest wait for more commits.
const GROUP_COMMIT_US_MAX: u64 = 1_000_000;

settings! {
    /// The settings of the log. In the file they are the section `[log]`; `log = KIND` is short for its `mode` alone.
    LogSettings from LogArgs under "Log" {
        /// Form in which the log records a transaction: command, physiological (changed rows), auto (the cheaper form of each procedure),
        /// both (to compare them), or none (data ends with the process). A procedure's own declaration overrides it [default: command]
        log: LogPolicy {
            env: "REPRISE_LOG",
            takes: "KIND",
            default: LogPolicy::Command,
            key: "log.mode",
        }
        /// For an updated row, log the changed columns only (true), or the whole row (false) [default: true]
        log_differential: AfterImage {
            env: "REPRISE_LOG_DIFFERENTIAL",
            takes: "BOOL",
            check: log_differential,
            default: AfterImage::default(),
            key: "log.differential",
            show: |images: &AfterImage| (*images == AfterImage::Changed).to_string(),
            marks: [where_said],
        }
        /// Acknowledge a write when it is durable (sync), or before (async) [default: sync]
        commit: CommitMode {
            env: "REPRISE_COMMIT",
            takes: "MODE",
            default: CommitMode::Sync,
        }
        /// Microseconds that the log waits for more commits before it writes [default: 0]
        group_commit_us: u64 {
            env: "REPRISE_GROUP_COMMIT_US",
            takes: "N",
            check: group_commit_us,
            default: 0,
        }
    }
}

impl LogSettings {
    pub fn redo(&self) -> RedoConfig {
        RedoConfig {
            images: self.log_differential.value,
            ..RedoConfig::default()
        }
    }
}

pub fn log_differential(text: &str) -> Result<AfterImage, String> {
    match text {
        "true" => Ok(AfterImage::Changed),
        "false" => Ok(AfterImage::Whole),
        _ => Err("take true (changed columns) or false (whole rows)".into()),
    }
}

pub fn group_commit_us(text: &str) -> Result<u64, String> {
    match bounded(text, "", 0, GROUP_COMMIT_US_MAX) {
        Ok(us) => Ok(us),
        Err(_) => Err(format!("take 0 to {GROUP_COMMIT_US_MAX} microseconds")),
    }
}
