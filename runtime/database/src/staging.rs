//! A new directory that appears whole or not at all.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use reprise_env::{Disk, DiskError, DiskErrorKind, DiskLock, RealDisk};

/// A directory on its way, beside the place where it will be. Dropped unpublished, nothing of it stays.
pub(crate) struct Staging {
    path: PathBuf,
    target: PathBuf,
    /// Two makers of one directory would write into each other's.
    lock: Option<DiskLock>,
}

/// Why a new directory can't be made there.
#[derive(Debug, thiserror::Error)]
pub enum StagingError {
    #[error("{0} is not empty: name a directory that does not exist yet, or an empty one")]
    NotEmpty(PathBuf),
    #[error("{0} can't be the name of a new directory")]
    Name(PathBuf),
    #[error("{action} {}: {error}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        error: io::Error,
    },
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl StagingError {
    fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io {
            action,
            path,
            error,
        }
    }
}

impl Staging {
    /// Begins a directory that will be `target`, which must not hold anything.
    pub fn begin(target: &Path) -> Result<Self, StagingError> {
        check_free(target)?;
        let name = target.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| StagingError::Name(target.to_owned()))?;
        let path = target.with_file_name(format!(".{name}.partial"));
        let lock = take_place(&path)?;
        Ok(Self {
            path,
            target: target.to_owned(),
            lock: Some(lock),
        })
    }

    /// A folder of the new directory.
    pub fn folder(&self, name: &str) -> Result<Arc<dyn Disk>, StagingError> {
        Ok(Arc::new(RealDisk::create(self.path.join(name))?))
    }

    pub fn root(&self) -> Result<RealDisk, StagingError> {
        Ok(RealDisk::open(&self.path)?)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the directory its name. Its files were synced before.
    pub fn publish(mut self) -> Result<(), StagingError> {
        self.root()?.sync_dir()?;
        check_free(&self.target)?;
        let renamed = fs::rename(&self.path, &self.target);
        renamed.map_err(StagingError::at("name the new directory", &self.target))?;
        self.lock = None;
        let parent = parent(&self.target);
        Ok(RealDisk::open(parent)?.sync_dir()?)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.lock.is_some() {
            // What can't be removed is removed by the next that makes the same directory.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn check_free(target: &Path) -> Result<(), StagingError> {
    match fs::read_dir(target) {
        Ok(mut entries) => match entries.next() {
            Some(_) => Err(StagingError::NotEmpty(target.to_owned())),
            None => Ok(()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(StagingError::at("look into", target)(error)),
    }
}

/// Makes the directory, in place of one that a crash left behind.
fn take_place(path: &Path) -> Result<DiskLock, StagingError> {
    let create = || fs::create_dir(path).map_err(StagingError::at("create", path));
    match create() {
        Err(StagingError::Io { error, .. }) if error.kind() == io::ErrorKind::AlreadyExists => {
            // Held by whoever still writes it.
            drop(RealDisk::open(path)?.lock()?);
            fs::remove_dir_all(path).map_err(StagingError::at("remove", path))?;
            create()?;
        }
        created => created?,
    }
    Ok(RealDisk::open(path)?.lock()?)
}

/// Copies a file from one folder to another, and makes it durable; its bytes.
pub(crate) fn copy_file(
    source: &dyn Disk,
    target: &dyn Disk,
    name: &str,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<u64, DiskError> {
    const PIECE_BYTES: usize = 1 << 20;
    let (from, to) = (source.open_read(name)?, target.create(name)?);
    let mut piece = vec![0; PIECE_BYTES];
    let mut done = 0;
    loop {
        if !goes_on() {
            let reason = "it was given up: the node stops";
            return Err(DiskError::new("copy", name, DiskErrorKind::Io, reason));
        }
        let read = from.read_at(done, &mut piece)?;
        if read == 0 {
            break;
        }
        to.write_at(done, &piece[..read])?;
        done += read as u64;
    }
    to.sync()?;
    target.sync_dir()?;
    Ok(done)
}
