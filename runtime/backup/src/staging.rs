//! A new directory that appears whole or not at all.

use std::{path::PathBuf, sync::Arc};

use reprise_env::{Disk, DiskError, DiskErrorKind, DiskLock};

use crate::tree::{Place, Tree};

/// A directory on its way, beside the place where it will be. Dropped unpublished, nothing of it stays.
pub struct Staging {
    place: Place,
    target: String,
    /// Two makers of one directory would write into each other's.
    lock: Option<DiskLock>,
}

/// Why a new directory can't be made there.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum StagingError {
    #[error("{0} is not empty: name a directory that does not exist yet, or an empty one")]
    NotEmpty(PathBuf),
    #[error("{0} can't be the name of a new directory")]
    Name(PathBuf),
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl Staging {
    /// Begins a directory that will be `target`, which must not hold anything.
    pub fn begin(target: &Place) -> Result<Self, StagingError> {
        let (tree, name) = (target.tree(), target.name());
        if name.is_empty() {
            return Err(StagingError::Name(target.path()));
        }
        check_free(&**tree, name)?;
        let partial = format!(".{name}.partial");
        let lock = take_place(&**tree, &partial)?;
        Ok(Self {
            place: Place::new(tree.clone(), &partial),
            target: name.to_owned(),
            lock: Some(lock),
        })
    }

    /// A folder of the new directory.
    pub fn folder(&self, name: &str) -> Result<Arc<dyn Disk>, StagingError> {
        Ok(self.place.folder_or_new(name)?)
    }

    /// Where the directory lies until it is published.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Gives the directory its name. Its files were synced before.
    pub fn publish(mut self) -> Result<(), StagingError> {
        let tree = self.place.tree().clone();
        self.place.root()?.sync_dir()?;
        check_free(&*tree, &self.target)?;
        tree.rename(self.place.name(), &self.target)?;
        self.lock = None;
        Ok(tree.sync()?)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.lock.is_some() {
            // What can't be removed is removed by the next that makes the same directory.
            let _ = self.place.tree().remove(self.place.name());
        }
    }
}

fn check_free(tree: &dyn Tree, name: &str) -> Result<(), StagingError> {
    match tree.is_free(name)? {
        true => Ok(()),
        false => Err(StagingError::NotEmpty(tree.path(name))),
    }
}

/// Makes the directory, in place of one that a crash left behind.
fn take_place(tree: &dyn Tree, name: &str) -> Result<DiskLock, StagingError> {
    let made = match tree.make(name) {
        Err(error) if error.kind == DiskErrorKind::Exists => {
            // Held by whoever still writes it.
            drop(tree.open(name)?.lock()?);
            tree.remove(name)?;
            tree.make(name)
        }
        made => made,
    };
    Ok(made?.lock()?)
}

/// Copies a file from one folder to another, and makes it durable; its bytes.
pub fn copy_file(
    source: &dyn Disk,
    target: &dyn Disk,
    name: &str,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<u64, DiskError> {
    copy_as(source, target, (name, name), goes_on)
}

/// The same, the copy under the other name.
pub(crate) fn copy_as(
    source: &dyn Disk,
    target: &dyn Disk,
    (name, copy_name): (&str, &str),
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<u64, DiskError> {
    const PIECE_BYTES: usize = 1 << 20;
    let (from, to) = (source.open_read(name)?, target.create(copy_name)?);
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
