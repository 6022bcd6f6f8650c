//! Directories beside each other, in which databases and backups lie: the file system's, or a simulation's.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use reprise_env::{Disk, DiskError, DiskErrorKind, RealDisk, make_private_dir};

/// A set of directories, each with files and folders. A path is the name of one, or `name/folder`.
pub trait DirTree: Send + Sync {
    /// Opens the directory. `NotFound` if there is none.
    fn open(&self, path: &str) -> Result<Arc<dyn Disk>, DiskError>;
    /// Makes an empty directory. `Exists` if there is one, even an empty one.
    fn make(&self, path: &str) -> Result<Arc<dyn Disk>, DiskError>;
    /// True if nothing has that name, or only an empty directory. The remains of a file system or of an interrupted attempt do not count.
    fn is_free(&self, name: &str) -> Result<bool, DiskError>;
    /// The directory of that name as a tree of its own. None: there is none, or this tree has names of one level alone.
    fn within(&self, _name: &str) -> Option<Arc<dyn DirTree>> {
        None
    }
    /// Gives one another name, which is free, all at once. Durable after `sync`.
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError>;
    /// Removes one with all that is in it.
    fn remove(&self, name: &str) -> Result<(), DiskError>;
    /// Makes new names durable.
    fn sync(&self) -> Result<(), DiskError>;
    /// Makes the tree's own directory, if there is none. `NotFound` if the directory above it is missing, as on a disk that is not mounted.
    fn prepare(&self) -> Result<(), DiskError>;
    /// The names of all.
    fn list(&self) -> Result<Vec<String>, DiskError>;
    /// Names of everything in a directory, of files and of all else. None: the path is a link, or no directory. A tree without links and
    /// folders has files alone.
    fn entries(&self, path: &str) -> Result<Option<Vec<OsString>>, DiskError> {
        match self.open(path) {
            Ok(disk) => Ok(Some(disk.list()?.into_iter().map(OsString::from).collect())),
            Err(error) if error.kind == DiskErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
    /// The directory's path, for messages and for code that reads files of the system.
    fn path(&self, path: &str) -> PathBuf;
}

/// A new directory on its way, inside of one that was there already.
pub(crate) const PARTIAL: &str = ".reprise.partial";
/// Made by some file systems in their root: a volume with it is empty.
const LOST_AND_FOUND: &str = "lost+found";

/// The directories in a directory of the file system.
pub struct RealTree(pub PathBuf);

impl DirTree for RealTree {
    fn open(&self, path: &str) -> Result<Arc<dyn Disk>, DiskError> {
        Ok(Arc::new(RealDisk::open(self.path(path))?))
    }

    fn make(&self, path: &str) -> Result<Arc<dyn Disk>, DiskError> {
        let path = self.path(path);
        make_private_dir(&path).map_err(failed("create", &path))?;
        Ok(Arc::new(RealDisk::open(path)?))
    }

    fn is_free(&self, name: &str) -> Result<bool, DiskError> {
        let path = self.path(name);
        match fs::read_dir(&path) {
            Ok(entries) => {
                let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
                let names: io::Result<Vec<_>> = names.collect();
                let names = names.map_err(failed("look into", &path))?;
                Ok(names.iter().all(|name| name == LOST_AND_FOUND || name == PARTIAL))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(failed("look into", &path)(error)),
        }
    }

    fn within(&self, name: &str) -> Option<Arc<dyn DirTree>> {
        let path = self.path(name);
        path.is_dir().then(|| Arc::new(Self(path)) as Arc<dyn DirTree>)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let to = self.path(to);
        fs::rename(self.path(from), &to).map_err(failed("name the new directory", &to))
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        let path = self.path(name);
        fs::remove_dir_all(&path).map_err(failed("remove", &path))
    }

    fn sync(&self) -> Result<(), DiskError> {
        RealDisk::open(&self.0)?.sync_dir()
    }

    fn prepare(&self) -> Result<(), DiskError> {
        let above = self.0.parent().filter(|above| !above.as_os_str().is_empty());
        if let Some(above) = above.filter(|above| !self.0.exists() && !above.exists()) {
            let message = format!(
                "{} is missing: mount its disk, or make this directory. The server makes only the last one of a path",
                above.display()
            );
            let path = self.0.display().to_string();
            return Err(DiskError::new("create", &path, DiskErrorKind::NotFound, &message));
        }
        RealDisk::create(&self.0).map(drop)
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        let entries = fs::read_dir(&self.0).map_err(failed("list", &self.0))?;
        let names = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok());
        Ok(names.collect())
    }

    fn entries(&self, path: &str) -> Result<Option<Vec<OsString>>, DiskError> {
        let path = self.path(path);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("look at", &path)(error)),
        }
        let entries = fs::read_dir(&path).map_err(failed("look into", &path))?;
        let names: io::Result<Vec<_>> = entries.map(|entry| entry.map(|entry| entry.file_name())).collect();
        names.map(Some).map_err(failed("look into", &path))
    }

    fn path(&self, path: &str) -> PathBuf {
        match path {
            "" => self.0.clone(),
            path => self.0.join(path),
        }
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DiskError {
    let path = path.display().to_string();
    move |error| {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => DiskErrorKind::NotFound,
            io::ErrorKind::AlreadyExists => DiskErrorKind::Exists,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => DiskErrorKind::Full,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => DiskErrorKind::Refused,
            _ => DiskErrorKind::Io,
        };
        DiskError::new(action, &path, kind, &error.to_string())
    }
}

/// One directory of a tree: an existing or a future database or backup.
#[derive(Clone)]
pub struct DirHandle {
    tree: Arc<dyn DirTree>,
    /// Empty for the tree's own directory.
    name: String,
}

impl DirHandle {
    /// Makes a handle on the directory `name` of a tree, or on the tree's own if `name` is empty.
    pub fn new(tree: Arc<dyn DirTree>, name: &str) -> Self {
        let name = name.to_owned();
        Self { tree, name }
    }

    /// A directory that is there.
    pub fn at(dir: &Path) -> Self {
        Self::new(Arc::new(RealTree(dir.to_owned())), "")
    }

    /// A directory that may not be there yet; None for what can't be a name.
    pub fn beside(target: &Path) -> Option<Self> {
        let name = target.file_name()?.to_str()?;
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        Some(Self::new(Arc::new(RealTree(parent.to_owned())), name))
    }

    /// The tree that holds the directory.
    pub fn tree(&self) -> &Arc<dyn DirTree> {
        &self.tree
    }

    /// Empty for the tree's own directory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The files of the directory itself.
    pub fn root(&self) -> Result<Arc<dyn Disk>, DiskError> {
        self.tree.open(&self.name)
    }

    /// A folder of the directory, which is there.
    pub fn folder(&self, folder: &str) -> Result<Arc<dyn Disk>, DiskError> {
        self.tree.open(&join(&self.name, folder))
    }

    /// Opens a folder like `folder`, and makes it if it is missing.
    pub fn folder_or_new(&self, folder: &str) -> Result<Arc<dyn Disk>, DiskError> {
        match self.tree.make(&join(&self.name, folder)) {
            Err(error) if error.kind == DiskErrorKind::Exists => self.folder(folder),
            made => made,
        }
    }

    /// Whether a file of that name lies in the directory itself.
    pub fn holds(&self, file: &str) -> bool {
        self.root().is_ok_and(|root| root.open_read(file).is_ok())
    }

    /// The directory's path, for messages.
    pub fn path(&self) -> PathBuf {
        self.tree.path(&self.name)
    }
}

fn join(name: &str, folder: &str) -> String {
    match name {
        "" => folder.to_owned(),
        name => format!("{name}/{folder}"),
    }
}
