//! The boundary to persistent memory: everything above it runs on libpmem, and on a fake that records each call.

use std::{path::Path, sync::Arc};

use reprise_base::named_enum;

use crate::PmemError;

named_enum! {
    /// The way in which writes become persistent.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Persistence {
        /// The writer flushes cache lines, on memory of a DAX file system, or on a DAX device.
        Fence => "fence",
        /// The writer flushes cache lines, because the operator said so. The file is not on persistent memory. A power failure loses everything
        /// that the file system has not written.
        Assumed => "assumed",
        /// The writer calls `msync`. The file is an ordinary one, as safe and as slow as its disk.
        Msync => "msync",
    }
}

impl Persistence {
    /// A warning about slow or unsafe persistence; None if there is none.
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

/// Opens regions.
pub trait OpenMemory: Send + Sync {
    /// Opens the memory at `path`, of `bytes`, and makes it if it is missing; without `bytes` an existing file of any size. It is
    /// exclusive until it is dropped.
    fn open(&self, path: &Path, bytes: Option<u64>) -> Result<Arc<dyn Memory>, PmemError>;
}

/// A region of memory that outlives the process. Places are byte offsets.
///
/// A write is persistent once [`Memory::drain`] has returned on the thread that wrote it. Before that any part of it may be
/// persistent, in any order, by pieces of 8 bytes (NV-Logging, section 5.2).
pub trait Memory: Send + Sync {
    /// Bytes of the region.
    fn bytes(&self) -> usize;

    /// Writes `bytes` to `at`. Each place has one writer, and no reader during the write. Panics beyond the region.
    fn write(&self, at: usize, bytes: &[u8]);

    /// Writes 8 bytes at once, in little-endian order: a reader and a crash see all of them or none. `at` is a multiple of 8. A thread
    /// that loads the word sees all earlier writes of this thread.
    fn store(&self, at: usize, word: u64);

    /// Stores each of `words` like [`Memory::store`], one behind the other, in order.
    fn store_all(&self, at: usize, words: &[u64]);

    /// The word at `at`, a multiple of 8.
    fn load(&self, at: usize) -> u64;

    /// Copies bytes out. No thread may write them meanwhile, unless the caller checks them by a checksum.
    fn read(&self, at: usize, into: &mut [u8]);

    /// Waits until all that this thread wrote is persistent.
    fn drain(&self);

    /// The means by which writes become persistent.
    fn persistence(&self) -> Persistence;

    /// Releases the exclusive lock, though this value still exists: nothing is written any more.
    fn release(&self) {}
}
