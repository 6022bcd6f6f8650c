//! The limit of memory, and the part of it that is made ready.

use anyhow::Context;
use reprise_base::{
    limits::MEMORY_MAX_BYTES_MIN,
    memory::{memory_kept_back, parse_size},
};
use reprise_database::memory_max_default;

use super::setting::settings;
use crate::output::{VerbFailure, usage};

settings! {
    /// The settings of memory, in bytes.
    MemorySettings from MemoryArgs under "Memory" {
        /// Memory that the server prepares for growing tables before it takes calls, and then keeps ready: bytes, or a number with KiB,
        /// MiB or GiB [default: 0]
        memory_ready: u64 {
            env: "REPRISE_MEMORY_READY",
            takes: "SIZE",
            check: parse_size,
            default: 0,
        }
        /// Largest memory of data, undo, remembered results, answers and modules together: bytes, or a number with KiB, MiB or GiB. At the
        /// limit the server refuses calls that would grow the data, and still takes reads and deletes
        /// [default: 80 % of the memory of the machine or control group]
        memory_max: u64 {
            env: "REPRISE_MEMORY_MAX",
            takes: "SIZE",
            check: memory_max,
            default: memory_max_default(),
        }
    }
}

impl MemorySettings {
    /// Memory that is made ready must be there, and it counts: with all of it nothing could be written.
    pub fn check(&self) -> Result<(), VerbFailure> {
        reprise_database::check_memory(self.memory_ready.value).context("memory-ready")?;
        let max = self.memory_max.value;
        let ready_max = max - memory_kept_back(max);
        match self.memory_ready.value < ready_max {
            true => Ok(()),
            false => Err(usage(format!(
                "memory-ready must be less than {1} MiB, which memory-max ({0} MiB) leaves for the data",
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
            "the smallest memory limit is {} MiB",
            MEMORY_MAX_BYTES_MIN >> 20
        )),
        bytes => Ok(bytes),
    }
}
