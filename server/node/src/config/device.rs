//! The device that the log is written to first: its files, or NVRAM before them.

use std::path::PathBuf;

use reprise_base::{memory::parse_size, named_enum};
use reprise_database::{COPY_AT_ENTRIES_DEFAULT, DeviceConfig, FlushPolicy, NvramConfig};

use super::setting::settings;
use crate::output::{VerbFailure, usage};

named_enum! {
    /// The device that the log is written to first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum DeviceKind {
        File => "file",
        Nvram => "nvram",
    }
}

settings! {
    /// The settings of the device that the log is written to first.
    DeviceSettings from DeviceArgs under "Device" {
        /// Device on which a commit becomes durable: the log's files (file), or an NVRAM buffer in front of them (nvram) [default: file]
        device: DeviceKind {
            env: "REPRISE_DEVICE",
            takes: "KIND",
            default: DeviceKind::File,
            marks: [where_said],
        }
        /// NVRAM region: a file on a DAX file system, or a DAX device [default: none]
        nvram: std::path::PathBuf {
            env: "REPRISE_NVRAM",
            takes: "PATH",
            marks: [where_said],
        }
        /// Size of the region: bytes, or a number with KiB, MiB or GiB. The server creates a missing file with this size
        /// [default: size of the device, or of the existing file]
        nvram_size: u64 {
            env: "REPRISE_NVRAM_SIZE",
            takes: "BYTES",
            check: parse_size,
            marks: [where_said],
        }
        /// Number of entries in all rings together at which the server begins to copy them to the log's files [default: 80000]
        nvram_copy_at: u64 {
            env: "REPRISE_NVRAM_COPY_AT",
            takes: "ENTRIES",
            check: copy_at,
            default: COPY_AT_ENTRIES_DEFAULT,
            marks: [where_said],
        }
        /// When a transaction writes its changes to the region. commit: all at the commit. insert: each at once, and the commit waits
        /// for all. insert-fence: each at once, and the transaction waits for each [default: commit]
        nvram_flush: FlushPolicy {
            env: "REPRISE_NVRAM_FLUSH",
            takes: "POLICY",
            default: FlushPolicy::OnCommit,
            marks: [where_said],
        }
        /// Treat an ordinary file as persistent memory (true). For tests and measurements only, because a power failure then loses
        /// acknowledged commits [default: false]
        nvram_assume_persistent: bool {
            env: "REPRISE_NVRAM_ASSUME_PERSISTENT",
            takes: "BOOL",
            check: assume_persistent,
            default: false,
            show: ToString::to_string,
            marks: [where_said],
        }
    }
}

impl DeviceSettings {
    /// Settings that do not go together are refused.
    pub fn config(&self) -> Result<DeviceConfig, VerbFailure> {
        match (self.device.value, &self.nvram.value, self.nvram_size.value) {
            (DeviceKind::File, _, _) if self.nvram_flush.value.is_on_insert() => {
                Err(usage("nvram-flush needs device nvram"))
            }
            (DeviceKind::File, None, None) => Ok(DeviceConfig::File),
            (DeviceKind::File, _, _) => Err(usage("nvram and nvram-size need device nvram")),
            (DeviceKind::Nvram, Some(path), None) if matches!(path.try_exists(), Ok(false)) => Err(usage(format!(
                "device nvram needs --nvram-size BYTES to make {}, which is not there",
                path.display()
            ))),
            (DeviceKind::Nvram, Some(path), bytes) => Ok(DeviceConfig::Nvram(NvramConfig {
                path: absolute(path)?,
                bytes,
                copy_at_entries: self.nvram_copy_at.value,
                flush: self.nvram_flush.value,
                assume_persistent: self.nvram_assume_persistent.value,
            })),
            (DeviceKind::Nvram, None, _) => Err(usage(
                "device nvram needs --nvram PATH, where the region lies or is made",
            )),
        }
    }
}

/// The data directory keeps the path: it must mean the same from everywhere.
pub fn absolute(path: &std::path::Path) -> Result<PathBuf, VerbFailure> {
    std::path::absolute(path).map_err(|error| usage(format!("nvram: {}: {error}", path.display())))
}

fn copy_at(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(entries) if entries > 0 => Ok(entries),
        _ => Err(format!("{text:?} is not a number of entries; take 1 or more")),
    }
}

fn assume_persistent(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| "take true or false".into())
}
