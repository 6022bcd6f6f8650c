//! What memory may be taken, and what of it is made ready.

use anyhow::Context;
use reprise_base::{limits::MEMORY_MAX_BYTES_MIN, memory::memory_kept_back};
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
            judge: size,
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
    match size(text)? {
        bytes if bytes < MEMORY_MAX_BYTES_MIN => Err(format!(
            "the limit of memory is {} MiB at least",
            MEMORY_MAX_BYTES_MIN >> 20
        )),
        bytes => Ok(bytes),
    }
}

/// Bytes, or a number of KiB, MiB, GiB or TiB.
pub fn size(text: &str) -> Result<u64, String> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let with_unit = units
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (number, shift) = with_unit.unwrap_or((text, 0));
    let number: Option<u64> = number.trim_end().parse().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| {
        format!("{text:?} is no size: write bytes, or a whole number with KiB, MiB, GiB or TiB behind it")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_have_a_unit() {
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("2GiB"), Ok(2 << 30));
        assert_eq!(size("512 MiB"), Ok(512 << 20));
        for text in ["", "GiB", "1.5GiB", "-1", "2GB", "99999999TiB"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
