//! A new directory that appears complete or not at all. An existing directory, such as a mounted volume, is filled in place: the file that
//! makes it a database or a backup comes last.

use std::{path::PathBuf, sync::Arc};

use reprise_env::{Disk, DiskError, DiskErrorKind, DiskLock};

use crate::{
    manifest::MANIFEST_NAME,
    remainder::partial_name,
    tree::{DirHandle, DirTree, PARTIAL},
};

/// An unpublished directory, beside its target or inside it. Dropping it removes it.
pub struct StagingDir {
    place: DirHandle,
    /// The target's name in the tree; None: the tree is the target, which existed before.
    target: Option<String>,
    /// Excludes a second process that makes the same directory.
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

impl StagingDir {
    /// Begins a directory that will be `target`, which must not hold anything.
    pub fn begin(target: &DirHandle) -> Result<Self, StagingError> {
        let (tree, name) = (target.tree(), target.name());
        if name.is_empty() {
            return Err(StagingError::Name(target.path()));
        }
        check_free(&**tree, name)?;
        // A rename can't replace a mount point, and the folder beside it is on another file system.
        let (tree, partial, target) = match tree.within(name) {
            Some(within) => (within, PARTIAL.to_owned(), None),
            None => (tree.clone(), partial_name(name), Some(name.to_owned())),
        };
        let lock = claim_dir(&*tree, &partial)?;
        Ok(Self {
            place: DirHandle::new(tree, &partial),
            target,
            lock: Some(lock),
        })
    }

    /// A folder of the new directory.
    pub fn folder(&self, name: &str) -> Result<Arc<dyn Disk>, StagingError> {
        Ok(self.place.folder_or_new(name)?)
    }

    /// The directory before it is published.
    pub fn place(&self) -> &DirHandle {
        &self.place
    }

    /// Gives the directory its name. Its files were synced before.
    pub fn publish(mut self) -> Result<(), StagingError> {
        let tree = self.place.tree().clone();
        self.place.root()?.sync_dir()?;
        match &self.target {
            Some(target) => {
                check_free(&*tree, target)?;
                tree.rename(self.place.name(), target)?;
            }
            None => {
                check_free(&*tree, "")?;
                move_out(&*tree, self.place.name())?;
            }
        }
        self.lock = None;
        Ok(tree.sync()?)
    }
}

/// Moves all entries of a directory of the tree into the tree's own. A crash before the last one leaves neither a database nor a backup.
fn move_out(tree: &dyn DirTree, partial: &str) -> Result<(), DiskError> {
    let mut names = tree
        .within(partial)
        .map_or_else(|| Ok(Vec::new()), |partial| partial.list())?;
    names.sort_by_key(|name| (name == MANIFEST_NAME, name == "log"));
    let last = names.pop();
    for name in &names {
        tree.rename(&format!("{partial}/{name}"), name)?;
    }
    tree.sync()?;
    if let Some(last) = last {
        tree.rename(&format!("{partial}/{last}"), &last)?;
    }
    tree.remove(partial)
}

impl Drop for StagingDir {
    fn drop(&mut self) {
        if self.lock.is_some() {
            // If it can't be removed, the next attempt for the same directory removes it, and on a server the next backup.
            let _ = self.place.tree().remove(self.place.name());
        }
    }
}

fn check_free(tree: &dyn DirTree, name: &str) -> Result<(), StagingError> {
    match tree.is_free(name)? {
        true => Ok(()),
        false => Err(StagingError::NotEmpty(tree.path(name))),
    }
}

/// Makes the directory, in place of one that a crash left behind.
fn claim_dir(tree: &dyn DirTree, name: &str) -> Result<DiskLock, StagingError> {
    let made = match tree.make(name) {
        Err(error) if error.kind == DiskErrorKind::Exists => {
            // The lock fails while another process still writes the directory.
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
    copy_as(source, target, name, name, goes_on)
}

/// Copies a file under another name.
pub(crate) fn copy_as(
    source: &dyn Disk,
    target: &dyn Disk,
    name: &str,
    copy_name: &str,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<u64, DiskError> {
    const PIECE_BYTES: usize = 1 << 20;
    let (from, to) = (source.open_read(name)?, target.create(copy_name)?);
    let mut piece = vec![0; PIECE_BYTES];
    let mut done = 0;
    loop {
        if !goes_on() {
            let reason = "it was given up: the server is stopping";
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

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn staged(target: &Path) -> Result<StagingDir, StagingError> {
        let staging = StagingDir::begin(&DirHandle::beside(target).expect("a name"))?;
        for (folder, file) in [("log", "a.seg"), ("checkpoints", "b")] {
            staging.folder(folder)?.create(file)?.write_at(0, b"x")?;
        }
        staging.place().root()?.create(MANIFEST_NAME)?;
        Ok(staging)
    }

    fn entries(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).expect("a directory");
        let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text"));
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn an_empty_directory_is_filled_in_place_and_a_new_one_is_renamed() {
        let dir = tempfile::tempdir().expect("a directory");
        let (volume, new) = (dir.path().join("volume"), dir.path().join("new"));
        fs::create_dir_all(volume.join("lost+found")).expect("made");
        // Held open as a mount holds it: another directory in its place would be another file.
        let before = fs::metadata(&volume).expect("there");
        for target in [&volume, &new] {
            let staging = staged(target).expect("staged");
            assert!(!target.join("log").exists());
            staging.publish().expect("published");
            assert!(target.join("log/a.seg").exists() && target.join("checkpoints/b").exists());
        }
        let inode = |of: &fs::Metadata| std::os::unix::fs::MetadataExt::ino(of);
        assert_eq!(inode(&before), inode(&fs::metadata(&volume).expect("there")));
        assert_eq!(entries(&volume), ["checkpoints", "log", "lost+found", MANIFEST_NAME]);
        assert_eq!(entries(dir.path()), ["new", "volume"]);
        assert!(
            matches!(staged(&volume), Err(StagingError::NotEmpty(_))),
            "it holds something now"
        );
    }

    #[test]
    fn an_attempt_that_was_cut_off_leaves_a_volume_free() {
        let dir = tempfile::tempdir().expect("a directory");
        let volume = dir.path().join("volume");
        fs::create_dir(&volume).expect("made");
        drop(staged(&volume).expect("staged"));
        assert_eq!(entries(&volume), [""; 0]);
        // A process that died removed nothing.
        fs::create_dir_all(volume.join(PARTIAL).join("log")).expect("made");
        staged(&volume).expect("staged").publish().expect("published");
        assert!(volume.join("log/a.seg").exists() && !volume.join(PARTIAL).exists());
    }
}
