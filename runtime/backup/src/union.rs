//! Folders that are read as one, and one of which a part is read.

use std::sync::Arc;

use reprise_env::{Disk, DiskError, DiskErrorKind, DiskFile, DiskLock};

/// A folder that lets files go and the one that takes them before: what is gone from the first is in the second. Only read.
pub(crate) struct Union {
    first: Arc<dyn Disk>,
    second: Arc<dyn Disk>,
}

impl Union {
    pub fn of(first: Arc<dyn Disk>, second: Arc<dyn Disk>) -> Self {
        Self { first, second }
    }
}

fn refused(action: &'static str, file: &str) -> DiskError {
    DiskError::new(action, file, DiskErrorKind::Refused, "it is only read")
}

impl Disk for Union {
    fn create(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        Err(refused("create", name))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        Err(refused("open", name))
    }

    fn open_read(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        match self.first.open_read(name) {
            Err(error) if error.kind == DiskErrorKind::NotFound => self.second.open_read(name),
            opened => opened,
        }
    }

    /// The first folder before the second: what is moved meanwhile is seen in one of them.
    fn list(&self) -> Result<Vec<String>, DiskError> {
        let mut names = self.first.list()?;
        names.extend(self.second.list()?);
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    fn rename(&self, from: &str, _to: &str) -> Result<(), DiskError> {
        Err(refused("rename", from))
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        Err(refused("remove", name))
    }

    fn sync_dir(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn lock(&self) -> Result<DiskLock, DiskError> {
        self.first.lock()
    }

    fn describe(&self) -> String {
        format!("{} and {}", self.first.describe(), self.second.describe())
    }
}

/// A folder of which one file is seen.
pub(crate) struct Narrowed {
    disk: Arc<dyn Disk>,
    name: String,
}

impl Narrowed {
    pub fn to(disk: Arc<dyn Disk>, name: String) -> Self {
        Self { disk, name }
    }
}

impl Disk for Narrowed {
    fn create(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        Err(refused("create", name))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        Err(refused("open", name))
    }

    fn open_read(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.disk.open_read(name)
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        Ok(vec![self.name.clone()])
    }

    fn rename(&self, from: &str, _to: &str) -> Result<(), DiskError> {
        Err(refused("rename", from))
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        Err(refused("remove", name))
    }

    fn sync_dir(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn lock(&self) -> Result<DiskLock, DiskError> {
        self.disk.lock()
    }

    fn describe(&self) -> String {
        self.disk.describe()
    }
}
