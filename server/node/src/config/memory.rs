//! What memory may be taken, and what of it is made ready.

use anyhow::Context;
use reprise_base::{
    limits::MEMORY_MAX_BYTES_MIN,
    memory::{memory_kept_back, parse_size},
};
use reprise_database::memory_max_default;

use super::setting::settings;
use crate::output::{Failure, usage};

settings! {
    /// What memory may be taken, in bytes.
    MemorySettings from MemoryArgs under "Memory" {
        /// Memory that is made ready for what the tables grow by before calls are taken, and kept so: bytes, or a number with KiB, MiB or
        /// GiB [default: 0]
        memory_ready: u64 {
            env: "REPRISE_MEMORY_READY",
            takes: "SIZE",
            judge: parse_size,
            default: 0,
        }
        /// Memory that data, undo, remembered results, answers and modules may take together: bytes, or a number with KiB, MiB or GiB. Beyond
        /// it what would grow the data is refused; reads and deletes go on [default: 80 % of the machine's, or of the control group's]
        memory_max: u64 {
            env: "REPRISE_MEMORY_MAX",
            takes: "SIZE",
            judge: memory_max,
            default: memory_max_default(),
        }
    }
}

impl MemorySettings {
    /// Memory that is made ready must be there, and it counts: with all of it nothing could be written.
    pub fn check(&self) -> Result<(), Failure> {
        reprise_database::judge_memory(self.memory_ready.value).context("memory-ready")?;
        let max = self.memory_max.value;
        let ready_max = max - memory_kept_back(max);
        match self.memory_ready.value < ready_max {
            true => Ok(()),
            false => Err(usage(format!(
                "memory-ready leaves nothing of what memory-max ({} MiB) lets the data grow to, {} MiB",
                max >> 20,
                ready_max >> 20
            ))),
        }
    }
}

/// A size that leaves room for anything.
fn memory_max(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        bytes if bytes < MEMORY_MAX_BYTES_MIN => Err(format!(
            "the limit of memory is {} MiB at least",
            MEMORY_MAX_BYTES_MIN >> 20
        )),
        bytes => Ok(bytes),
    }
}
