//! A disk with a filter before it, for tests and measurements: it slows down, waits, fails, or observes.

use std::sync::Arc;

use crate::disk::{Disk, DiskError, DiskFile, DiskLock};

/// Operations that replace those of a `FilteredDisk`'s disk. If a filter returns none, the disk does the operation.
#[allow(missing_docs)]
pub trait DiskFilter: Send + Sync + 'static {
    fn create(&self, disk: &dyn Disk, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        disk.create(name)
    }

    fn list(&self, disk: &dyn Disk) -> Result<Vec<String>, DiskError> {
        disk.list()
    }

    fn rename(&self, disk: &dyn Disk, from: &str, to: &str) -> Result<(), DiskError> {
        disk.rename(from, to)
    }

    fn sync_dir(&self, disk: &dyn Disk) -> Result<(), DiskError> {
        disk.sync_dir()
    }

    fn read_at(&self, file: &dyn DiskFile, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        file.read_at(offset, buffer)
    }

    fn write_at(&self, file: &dyn DiskFile, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        file.write_at(offset, bytes)
    }

    fn write_durable_at(&self, file: &dyn DiskFile, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        file.write_durable_at(offset, bytes)
    }
}

/// A disk behind a filter.
pub struct FilteredDisk {
    disk: Arc<dyn Disk>,
    filter: Arc<dyn DiskFilter>,
}

struct FilteredFile {
    file: Arc<dyn DiskFile>,
    filter: Arc<dyn DiskFilter>,
}

impl FilteredDisk {
    /// A view of `disk` through `filter`.
    pub fn new(disk: Arc<dyn Disk>, filter: Arc<dyn DiskFilter>) -> Self {
        Self { disk, filter }
    }

    fn file(&self, file: Result<Arc<dyn DiskFile>, DiskError>) -> Result<Arc<dyn DiskFile>, DiskError> {
        let (file, filter) = (file?, self.filter.clone());
        Ok(Arc::new(FilteredFile { file, filter }))
    }
}

impl Disk for FilteredDisk {
    fn create(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.file(self.filter.create(&*self.disk, name))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.file(self.disk.open(name))
    }

    fn open_read(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.file(self.disk.open_read(name))
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        self.filter.list(&*self.disk)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.filter.rename(&*self.disk, from, to)
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.disk.remove(name)
    }

    fn sync_dir(&self) -> Result<(), DiskError> {
        self.filter.sync_dir(&*self.disk)
    }

    fn lock(&self) -> Result<DiskLock, DiskError> {
        self.disk.lock()
    }

    fn describe(&self) -> String {
        self.disk.describe()
    }
}

impl DiskFile for FilteredFile {
    fn len(&self) -> Result<u64, DiskError> {
        self.file.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        self.filter.read_at(&*self.file, offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.filter.write_at(&*self.file, offset, bytes)
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.filter.write_durable_at(&*self.file, offset, bytes)
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.file.sync()
    }

    fn preallocate(&self, bytes: u64) -> Result<(), DiskError> {
        self.file.preallocate(bytes)
    }
}
