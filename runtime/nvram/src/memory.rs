//! The boundary to persistent memory: everything above it runs on libpmem, and on a fake that records each call.

use std::{path::Path, sync::Arc};

use crate::PmemError;

/// How what was written becomes persistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// By cache lines: memory on a DAX file system, or a DAX device.
    Fence,
    /// By cache lines, since we were told to: the file is not on persistent memory, and what the file system has not written is lost when the
    /// machine loses power.
    Assumed,
    /// By `msync`: an ordinary file, as safe and as slow as its disk.
    Msync,
}

impl Persistence {
    /// As status and metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fence => "fence",
            Self::Assumed => "assumed",
            Self::Msync => "msync",
        }
    }

    /// What is slow, or lost when the machine loses power; None where nothing is.
    pub fn warning(self) -> Option<&'static str> {
        match self {
            Self::Fence => None,
            Self::Assumed => Some(
                "the NVRAM region is in an ordinary file, which the server treats as persistent memory. A power failure loses every \
                 acknowledged commit that the system has not written to the file's disk",
            ),
            Self::Msync => Some(
                "the NVRAM region is in an ordinary file, and not in persistent memory: each commit waits for msync. A power failure \
                 loses what the file's disk or file system loses; in memory (tmpfs) it loses everything",
            ),
        }
    }
}

/// Where regions come from.
pub trait OpenMemory: Send + Sync {
    /// The memory at `path`, of `bytes`, made where there is none; without `bytes` what is there, whatever its size. Nobody else gets it
    /// until it is dropped.
    fn open(&self, path: &Path, bytes: Option<u64>) -> Result<Arc<dyn Memory>, PmemError>;
}

/// A region of memory that outlives the process. Places are byte offsets.
///
/// What was written is persistent once [`Memory::drain`] has returned on the thread that wrote it. Before that any part of it may
/// be, in any order, by pieces of 8 bytes (NV-Logging, section 5.2).
pub trait Memory: Send + Sync {
    /// Bytes of the region.
    fn bytes(&self) -> usize;

    /// Writes `bytes` to `at`. Who writes a place is its only writer, and nobody reads it meanwhile. Panics beyond the region.
    fn write(&self, at: usize, bytes: &[u8]);

    /// Writes 8 bytes at once, in little-endian order: a reader and a crash see all of them or none. `at` is a multiple of 8. Whoever
    /// loads the word sees all that this thread wrote before it.
    fn store(&self, at: usize, word: u64);

    /// As [`Memory::store`] of each of `words`, one behind the other, in their order.
    fn store_all(&self, at: usize, words: &[u64]);

    /// The word at `at`, a multiple of 8.
    fn load(&self, at: usize) -> u64;

    /// Copies bytes out. Nobody writes them meanwhile, or the caller judges what it read by a checksum.
    fn read(&self, at: usize, into: &mut [u8]);

    /// Waits until all that this thread wrote is persistent.
    fn drain(&self);

    /// What makes it so.
    fn persistence(&self) -> Persistence;

    /// Somebody else may open it from here on, though this still is somewhere: nothing is written any more.
    fn let_go(&self) {}
}
