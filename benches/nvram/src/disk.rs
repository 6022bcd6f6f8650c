//! A folder on the file system of the NVRAM, whose lines take longer to be written (NV-Disk).

use std::{sync::Arc, time::Duration};

use reprise_driver::spin_for_lines;
use reprise_env::{Disk, DiskError, DiskFile, DiskLock};

pub struct SlowDisk {
    pub disk: Arc<dyn Disk>,
    pub line: Duration,
}

struct SlowFile {
    file: Arc<dyn DiskFile>,
    line: Duration,
}

impl SlowDisk {
    fn slow(&self, file: Result<Arc<dyn DiskFile>, DiskError>) -> Result<Arc<dyn DiskFile>, DiskError> {
        let line = self.line;
        file.map(|file| Arc::new(SlowFile { file, line }) as Arc<dyn DiskFile>)
    }
}

impl Disk for SlowDisk {
    fn create(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.slow(self.disk.create(name))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.slow(self.disk.open(name))
    }

    fn open_read(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.disk.open_read(name)
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        self.disk.list()
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.disk.remove(name)
    }

    fn sync_dir(&self) -> Result<(), DiskError> {
        self.disk.sync_dir()
    }

    fn lock(&self) -> Result<DiskLock, DiskError> {
        self.disk.lock()
    }

    fn describe(&self) -> String {
        self.disk.describe()
    }
}

impl DiskFile for SlowFile {
    fn len(&self) -> Result<u64, DiskError> {
        self.file.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        self.file.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.file.write_at(offset, bytes)?;
        spin_for_lines(self.line, offset, bytes.len() as u64);
        Ok(())
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.file.write_durable_at(offset, bytes)?;
        spin_for_lines(self.line, offset, bytes.len() as u64);
        Ok(())
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.file.sync()
    }

    fn preallocate(&self, bytes: u64) -> Result<(), DiskError> {
        self.file.preallocate(bytes)
    }
}
