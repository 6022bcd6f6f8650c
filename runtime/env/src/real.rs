//! The disk of the operating system.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{
    aligned::{AlignedBuf, DIRECT_ALIGN_BYTES},
    descriptors::{with_descriptor, with_descriptor_or_none},
    disk::{Disk, DiskError, DiskErrorKind, DiskFile, DiskLock},
};

/// Direct writes are multiples of this; a device with larger sectors refuses and is then written through the page cache.
const SECTOR_BYTES: usize = 512;
/// Bytes of a piece in which zeros are written. Each piece is durable before the next, because one large sync would delay other writes to
/// the device for many milliseconds.
const ZERO_CHUNK_BYTES: usize = 4 << 20;

const NOT_REGULAR: &str = "it is no regular file";

/// Mode of files: only the database's own user may read rows, arguments, keys, and the secret of random numbers.
pub const PRIVATE_FILE_MODE: u32 = 0o600;
const PRIVATE_DIR_MODE: u32 = 0o700;

/// Makes a directory that only its owner may read, with missing parents, and makes their names durable. An existing directory stays as
/// it is.
pub fn make_private_dirs(path: &Path) -> io::Result<()> {
    let missing = missing_of(path);
    fs::DirBuilder::new()
        .recursive(true)
        .mode(PRIVATE_DIR_MODE)
        .create(path)?;
    missing.into_iter().try_for_each(sync_entry)
}

/// Which directories of `path` are not there, the innermost first.
fn missing_of(path: &Path) -> Vec<&Path> {
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    path.ancestors().take_while(is_missing).collect()
}

/// Makes a directory like `make_private_dirs`, but it must not exist yet.
pub fn make_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(PRIVATE_DIR_MODE).create(path)
}

/// Files in one directory of the file system.
#[derive(Clone, Debug)]
pub struct RealDisk {
    root: PathBuf,
    /// The directory, held open: making a name in it durable needs no descriptor that may be lacking by then.
    directory: Arc<File>,
}

impl RealDisk {
    /// Uses `root`, making it (and its parents) where missing.
    pub fn create(root: impl Into<PathBuf>) -> Result<Self, DiskError> {
        let root = root.into();
        make_private_dirs(&root).map_err(|e| error("create directory", &root, &e))?;
        Self::open(root)
    }

    /// Uses an existing directory; nothing is written.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, DiskError> {
        let root = root.into();
        let open = || {
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(libc::O_DIRECTORY).open(&root)
        };
        let directory = with_descriptor(open).map_err(|e| error("open directory", &root, &e))?;
        Ok(Self {
            root,
            directory: Arc::new(directory),
        })
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn path(&self, name: &str) -> PathBuf {
        assert!(
            !name.is_empty() && !name.contains('/') && name != "..",
            "{name:?} is not a file name"
        );
        self.root.join(name)
    }

    fn wrap(&self, path: PathBuf, file: File, direct: Option<File>) -> Arc<dyn DiskFile> {
        Arc::new(RealFile {
            path,
            file,
            direct_refused: AtomicBool::new(direct.is_none()),
            direct,
        })
    }
}

/// Opens a regular file of the directory itself. Strangers hand over backups: a named pipe would hold its reader for ever, and a
/// link would have files read that are not the backup's.
fn open_regular(path: &Path, options: &mut OpenOptions) -> Result<File, DiskError> {
    let refused = |what: &str| DiskError::new("open", &path.display().to_string(), DiskErrorKind::Refused, what);
    options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
    let opened = with_descriptor(|| options.open(path));
    let file = opened.map_err(|e| match e.raw_os_error() {
        Some(libc::ELOOP) => refused("it is a link; put the file itself there"),
        Some(libc::ENXIO) => refused(NOT_REGULAR),
        _ => error("open", path, &e),
    })?;
    match file.metadata().map_err(|e| error("open", path, &e))?.is_file() {
        true => Ok(file),
        false => Err(refused(NOT_REGULAR)),
    }
}

/// Opens a file that strangers may have made for reading; a named pipe or a link is refused.
pub fn open_regular_file(path: &Path) -> Result<File, DiskError> {
    open_regular(path, OpenOptions::new().read(true))
}

/// Opens a file past the page cache. None: the file system does not support that.
fn open_direct(path: &Path) -> io::Result<Option<File>> {
    with_descriptor_or_none(|| {
        let mut options = OpenOptions::new();
        options
            .write(true)
            .custom_flags(libc::O_DIRECT | libc::O_DSYNC)
            .open(path)
    })
}

/// Makes the name of a new directory durable. Otherwise synced files in it could be lost with it.
fn sync_entry(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    with_descriptor(|| File::open(parent.unwrap_or(Path::new("."))))?.sync_all()
}

impl Disk for RealDisk {
    fn create(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        let path = self.path(name);
        let create = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(PRIVATE_FILE_MODE);
            options.open(&path)
        };
        let file = with_descriptor(create).map_err(|e| error("create", &path, &e))?;
        match open_direct(&path) {
            Ok(direct) => Ok(self.wrap(path, file, direct)),
            Err(e) => {
                let _ = fs::remove_file(&path); // an empty file of that name would prevent the next attempt
                Err(error("create", &path, &e))
            }
        }
    }

    fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        let path = self.path(name);
        let file = open_regular(&path, OpenOptions::new().read(true).write(true))?;
        let direct = open_direct(&path).map_err(|e| error("open", &path, &e))?;
        Ok(self.wrap(path, file, direct))
    }

    fn open_read(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        let path = self.path(name);
        let file = open_regular(&path, OpenOptions::new().read(true))?;
        Ok(self.wrap(path, file, None))
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        let failed = |e| error("list", &self.root, &e);
        let mut names = Vec::new();
        for entry in with_descriptor(|| fs::read_dir(&self.root)).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_type().map_err(failed)?.is_file() {
                names.extend(entry.file_name().into_string());
            }
        }
        names.sort();
        Ok(names)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let from = self.path(from);
        fs::rename(&from, self.path(to)).map_err(|e| error("rename", &from, &e))
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        let path = self.path(name);
        fs::remove_file(&path).map_err(|e| error("remove", &path, &e))
    }

    fn sync_dir(&self) -> Result<(), DiskError> {
        let synced = self.directory.sync_all();
        synced.map_err(|e| error("sync directory", &self.root, &e))
    }

    fn lock(&self) -> Result<DiskLock, DiskError> {
        let directory = with_descriptor(|| File::open(&self.root)).map_err(|e| error("lock", &self.root, &e))?;
        match directory.try_lock() {
            Ok(()) => Ok(DiskLock::new(LockedDirectory(directory))),
            Err(TryLockError::WouldBlock) => Err(DiskError::new(
                "lock",
                &self.root.display().to_string(),
                DiskErrorKind::Locked,
                "another process uses this directory",
            )),
            Err(TryLockError::Error(e)) => Err(error("lock", &self.root, &e)),
        }
    }

    fn describe(&self) -> String {
        self.root.display().to_string()
    }
}

/// A locked directory, whose lock ends with this value. A process that another thread starts has a copy of the descriptor until it runs its program.
/// The end of the lock does not wait for the last copy.
struct LockedDirectory(File);

impl Drop for LockedDirectory {
    fn drop(&mut self) {
        let _ = self.0.unlock(); // the lock then ends with the last copy
    }
}

struct RealFile {
    path: PathBuf,
    file: File,
    /// A second handle of the file, past the page cache.
    direct: Option<File>,
    direct_refused: AtomicBool,
}

impl RealFile {
    /// Some(result) when the write could go past the page cache.
    fn write_direct(&self, offset: u64, bytes: &[u8]) -> Option<io::Result<()>> {
        let direct = self.direct.as_ref()?;
        let is_aligned = bytes.as_ptr().align_offset(DIRECT_ALIGN_BYTES) == 0
            && bytes.len().is_multiple_of(SECTOR_BYTES)
            && offset.is_multiple_of(SECTOR_BYTES as u64);
        if !is_aligned || self.direct_refused.load(Ordering::Relaxed) {
            return None;
        }
        match direct.write_all_at(bytes, offset) {
            // The device has larger sectors; it checks the request before it writes any of it.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                self.direct_refused.store(true, Ordering::Relaxed);
                None
            }
            result => Some(result),
        }
    }
}

impl DiskFile for RealFile {
    fn len(&self) -> Result<u64, DiskError> {
        let metadata = self.file.metadata();
        metadata
            .map(|m| m.len())
            .map_err(|e| error("read length of", &self.path, &e))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        let mut done = 0;
        while done < buffer.len() {
            match self.file.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(error("read", &self.path, &e)),
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(|e| error("write", &self.path, &e))
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        if let Some(result) = self.write_direct(offset, bytes) {
            return result.map_err(|e| error("write", &self.path, &e));
        }
        self.write_at(offset, bytes)?;
        self.file.sync_data().map_err(|e| error("sync", &self.path, &e))
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.file.sync_all().map_err(|e| error("sync", &self.path, &e))
    }

    fn preallocate(&self, bytes: u64) -> Result<(), DiskError> {
        let mut zeros = AlignedBuf::with_capacity(ZERO_CHUNK_BYTES);
        zeros.resize((ZERO_CHUNK_BYTES as u64).min(bytes) as usize);
        let mut offset = 0;
        while offset < bytes {
            let count = (bytes - offset).min(zeros.len() as u64) as usize;
            self.write_at(offset, &zeros[..count])?;
            self.file.sync_data().map_err(|e| error("sync", &self.path, &e))?;
            offset += count as u64;
        }
        self.sync()
    }
}

fn error(action: &'static str, path: &Path, error: &io::Error) -> DiskError {
    let kind = match error.kind() {
        ErrorKind::NotFound => DiskErrorKind::NotFound,
        ErrorKind::AlreadyExists => DiskErrorKind::Exists,
        // A file that is too large is a limit of the process: it does not pass when others make room.
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => DiskErrorKind::Full,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => DiskErrorKind::Refused,
        _ => DiskErrorKind::Io,
    };
    DiskError::new(action, &path.display().to_string(), kind, &error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of them is synced in the one that it lies in.
    #[test]
    fn missing_folders_of_a_path_are_made_private() {
        let directory = tempfile::tempdir().expect("make directory");
        let (outer, inner) = (directory.path().join("outer"), directory.path().join("outer/inner"));
        assert_eq!(missing_of(&inner), [inner.as_path(), outer.as_path()]);
        make_private_dirs(&inner).expect("made");
        assert_eq!(missing_of(&inner), Vec::<&Path>::new());
        let mode =
            |path: &Path| std::os::unix::fs::PermissionsExt::mode(&path.metadata().expect("there").permissions());
        assert_eq!([mode(&outer) & 0o777, mode(&inner) & 0o777], [0o700, 0o700]);
        make_private_dirs(&inner).expect("it is there");
    }

    /// No descriptor may be left by then, so none is opened: the directory has no name any more.
    #[test]
    fn directory_is_synced_by_the_descriptor_that_is_held() {
        let directory = tempfile::tempdir().expect("make directory");
        let (before, after) = (directory.path().join("before"), directory.path().join("after"));
        let disk = RealDisk::create(&before).expect("open disk");
        disk.create("a").expect("created");
        fs::rename(&before, &after).expect("renamed");
        disk.sync_dir().expect("synced");
    }

    #[test]
    fn durable_writes_of_every_alignment_read_back() {
        let directory = tempfile::tempdir().expect("make directory");
        let disk = RealDisk::create(directory.path().join("log")).expect("open disk");
        let file = disk.create("a").expect("create");
        file.preallocate(8192).expect("preallocate");
        let mut block = AlignedBuf::with_capacity(1024);
        block.extend_from_slice(&[7; 1024]);
        file.write_durable_at(512, &block).expect("aligned write");
        file.write_durable_at(4000, &block[..3]).expect("unaligned write");
        let mut read = vec![9; 10_000];
        assert_eq!(file.read_at(0, &mut read).expect("read"), 8192);
        assert!(read[512..1536].iter().all(|b| *b == 7) && read[1536] == 0);
        assert_eq!(read[3999..4004], [0, 7, 7, 7, 0]);
    }

    #[test]
    fn pipes_links_and_directories_are_refused_at_once() {
        let directory = tempfile::tempdir().expect("make directory");
        let disk = RealDisk::create(directory.path()).expect("open disk");
        disk.create("file").expect("create");
        std::os::unix::fs::symlink(disk.path("file"), disk.path("link")).expect("link");
        fs::create_dir(disk.path("folder")).expect("make directory");
        let made = std::process::Command::new("mkfifo").arg(disk.path("pipe")).status();
        assert!(made.expect("mkfifo runs").success());
        for name in ["pipe", "link", "folder"] {
            for opened in [disk.open_read(name), disk.open(name)] {
                let refused = opened.err().expect("it is no file of the directory");
                assert!(refused.to_string().contains(name), "{refused}");
            }
        }
        assert_eq!(disk.list().expect("list"), ["file"]);
        assert!(disk.open_read("file").is_ok() && disk.open("file").is_ok());
    }

    #[test]
    fn a_directory_has_one_holder_and_names_its_files() {
        let directory = tempfile::tempdir().expect("make directory");
        let disk = RealDisk::create(directory.path()).expect("open disk");
        let lock = disk.lock().expect("lock");
        assert_eq!(disk.lock().expect_err("held").kind, DiskErrorKind::Locked);
        drop(lock);
        let _again = disk.lock().expect("lock again");
        disk.create("b").expect("create");
        disk.create("a").expect("create");
        assert_eq!(disk.create("a").err().map(|e| e.kind), Some(DiskErrorKind::Exists));
        disk.rename("b", "c").expect("rename");
        disk.sync_dir().expect("sync");
        assert_eq!(disk.list().expect("list"), ["a", "c"]);
        disk.remove("a").expect("remove");
        assert_eq!(disk.open("a").err().map(|e| e.kind), Some(DiskErrorKind::NotFound));
        let read_only = disk.open_read("c").expect("open");
        assert!(read_only.write_at(0, b"x").is_err());
    }

    #[test]
    fn a_lock_ends_although_a_starting_process_has_a_copy_of_its_descriptor() {
        let directory = tempfile::tempdir().expect("make directory");
        let locked = File::open(directory.path()).expect("open");
        locked.try_lock().expect("lock");
        let copy = locked.try_clone().expect("copy");
        drop(LockedDirectory(locked));
        let disk = RealDisk::create(directory.path()).expect("open disk");
        let _lock = disk.lock().expect("lock");
        drop(copy);
    }
}
