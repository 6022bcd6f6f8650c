//! Folders that are read as one, and one of which a part is read.

use std::sync::Arc;

use reprise_env::{Disk, DiskError, DiskErrorKind, DiskFile, DiskLock};

/// A folder that releases files, and the folder that takes them before: files gone from the first are in the second. Or one file of a
/// folder. It is only read.
pub(crate) enum UnionDisk {
    Both(Arc<dyn Disk>, Arc<dyn Disk>),
    Narrowed(Arc<dyn Disk>, String),
}

impl UnionDisk {
    fn first(&self) -> &dyn Disk {
        let (Self::Both(first, _) | Self::Narrowed(first, _)) = self;
        &**first
    }
}

fn refused(action: &'static str, file: &str) -> DiskError {
    DiskError::new(action, file, DiskErrorKind::Refused, "it is only read")
}

impl Disk for UnionDisk {
    fn create(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        Err(refused("create", name))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        Err(refused("open", name))
    }

    fn open_read(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        match (self.first().open_read(name), self) {
            (Err(error), Self::Both(_, second)) if error.kind == DiskErrorKind::NotFound => second.open_read(name),
            (opened, _) => opened,
        }
    }

    /// Lists the first folder before the second, so that a file that moves meanwhile is seen in one of them.
    fn list(&self) -> Result<Vec<String>, DiskError> {
        let (first, second) = match self {
            Self::Both(first, second) => (first, second),
            Self::Narrowed(_, name) => return Ok(vec![name.clone()]),
        };
        let mut names = first.list()?;
        names.extend(second.list()?);
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
        self.first().lock()
    }

    fn describe(&self) -> String {
        match self {
            Self::Both(first, second) => format!("{} and {}", first.describe(), second.describe()),
            Self::Narrowed(disk, _) => disk.describe(),
        }
    }
}
