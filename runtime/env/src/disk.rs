//! Files in one flat directory, and what may go wrong with them.

use std::sync::Arc;

/// A directory of files. Names are single path components.
pub trait Disk: Send + Sync + 'static {
    /// Makes an empty file for reading and writing; fails when the name is taken.
    fn create(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError>;
    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError>;
    /// Opens an existing file for reading; writes to it fail.
    fn open_read(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError>;
    /// All file names, sorted.
    fn list(&self) -> Result<Vec<String>, DiskError>;
    /// Gives a file another name, and replaces the file that had that name. It is durable after `sync_dir`.
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError>;
    /// Durable after `sync_dir`.
    fn remove(&self, name: &str) -> Result<(), DiskError>;
    /// Makes creations, renames and removals durable.
    fn sync_dir(&self) -> Result<(), DiskError>;
    /// Takes the directory for this process; fails with `Locked` while another holder lives.
    fn lock(&self) -> Result<DiskLock, DiskError>;
    /// The location of the files, for messages.
    fn describe(&self) -> String;
}

/// An open file of a directory.
pub trait DiskFile: Send + Sync {
    /// Its length in bytes.
    fn len(&self) -> Result<u64, DiskError>;

    /// True if it has no byte.
    fn is_empty(&self) -> Result<bool, DiskError> {
        Ok(self.len()? == 0)
    }

    /// Reads up to `buffer.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError>;
    /// Writes all bytes; durable after `sync`.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError>;
    /// Writes all bytes and returns when they are durable. Fast when address, offset and length are aligned
    /// (`AlignedBuf`) and the range was written before.
    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError>;
    /// Makes the file's bytes and length durable. After an error nothing is known of the writes before it.
    fn sync(&self) -> Result<(), DiskError>;
    /// Writes zeros over `0..bytes` and syncs: later writes there need no new space and no change of metadata.
    fn preallocate(&self, bytes: u64) -> Result<(), DiskError>;
}

/// Held while the directory is in use; released when dropped.
#[must_use]
pub struct DiskLock {
    _held: Box<dyn Send + Sync>,
}

impl DiskLock {
    /// Held for as long as `held` lives.
    pub fn new(held: impl Send + Sync + 'static) -> Self {
        Self { _held: Box::new(held) }
    }
}

impl std::fmt::Debug for DiskLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DiskLock")
    }
}

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskErrorKind {
    /// There is no such file.
    NotFound,
    /// There is such a file already.
    Exists,
    /// No space, or over a quota.
    Full,
    /// Another process holds the directory.
    Locked,
    /// Permission, or a read-only file system.
    Refused,
    /// Everything else: the device failed.
    Io,
}

/// A failed file operation. Cheap to clone: many waiters get the same failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{action} {file}: {message}")]
pub struct DiskError {
    /// The operation that failed, for example `open`.
    pub action: &'static str,
    /// On which file or directory.
    pub file: Arc<str>,
    /// The kind of the failure, for callers that tell failures apart.
    pub kind: DiskErrorKind,
    /// The system's words.
    pub message: Arc<str>,
}

impl DiskError {
    /// The error of an action on a file.
    pub fn new(action: &'static str, file: &str, kind: DiskErrorKind, message: &str) -> Self {
        Self {
            action,
            file: file.into(),
            kind,
            message: message.into(),
        }
    }
}
