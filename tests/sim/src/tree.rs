//! Directories on a simulated disk, for backups and for restores of them.
//!
//! The name of a directory is a file in the folder `names` that holds the directory's number. Its files are in folders called by that
//! number. So a new name arrives, or is lost, as a whole, and apart from the files.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use reprise_backup::DirTree;
use reprise_database::Folders;
use reprise_env::{Disk, DiskError, DiskErrorKind, SimDisk, sim::FaultRandom};

/// Directories of one disk, beside whatever else it holds.
pub struct SimTree {
    disk: SimDisk,
    names: SimDisk,
}

/// A database's own folders on its disk.
pub struct DataDir(pub SimDisk);

pub const LOG: &str = "log";
pub const CHECKPOINTS: &str = "checkpoints";
/// The files of a database's directory itself.
pub const ROOT: &str = "root";
/// Name of an empty directory, whose name arrived without its number.
const NOTHING: &str = "nothing";

/// The folders of a database on its disk.
pub fn folders(disk: &SimDisk) -> Folders {
    Folders {
        root: Arc::new(disk.folder(ROOT)),
        log: Arc::new(disk.folder(LOG)),
        checkpoints: Arc::new(disk.folder(CHECKPOINTS)),
        code: None,
    }
}

/// The secrets that a database draws at its opening.
pub fn entropy(seed: u64) -> Box<dyn Fn() -> io::Result<[u8; 16]>> {
    let random = Mutex::new(FaultRandom::new(seed));
    Box::new(move || {
        let mut random = random.lock().expect("one thread");
        let words = [random.next_u64(), random.next_u64()];
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&words[0].to_le_bytes());
        bytes[8..].copy_from_slice(&words[1].to_le_bytes());
        Ok(bytes)
    })
}

impl SimTree {
    pub fn new(disk: &SimDisk) -> Self {
        Self {
            disk: disk.clone(),
            names: disk.folder("names"),
        }
    }

    fn number(&self, name: &str) -> Result<String, DiskError> {
        let Some(bytes) = self.names.bytes(name) else {
            let kind = DiskErrorKind::NotFound;
            return Err(DiskError::new("open directory", name, kind, "no such directory"));
        };
        let number = String::from_utf8(bytes).unwrap_or_default();
        match number.is_empty() || number.contains('\0') {
            true => Ok(NOTHING.into()),
            false => Ok(number),
        }
    }

    fn folder(&self, number: &str, folder: &str) -> SimDisk {
        self.disk.folder(&format!("{number}-{folder}"))
    }

    /// A number that no file is called by, and no directory.
    fn new_number(&self) -> Result<String, DiskError> {
        let files = self.disk.list()?;
        let mut taken = Vec::new();
        for name in self.names.list()? {
            taken.push(self.number(&name)?);
        }
        let is_free = |number: &String| {
            let prefix = format!("{number}-");
            !taken.contains(number) && !files.iter().any(|file| file.starts_with(&prefix))
        };
        let mut numbers = (0..).map(|number| format!("d{number}"));
        Ok(numbers.find(is_free).expect("endless"))
    }

    /// The file of a directory, to be read or harmed.
    pub fn file(&self, path: &str) -> Option<(SimDisk, String)> {
        let mut parts = path.split('/');
        let number = self.number(parts.next()?).ok()?;
        match (parts.next()?, parts.next()) {
            (file, None) => Some((self.folder(&number, ROOT), file.into())),
            (folder, Some(file)) => Some((self.folder(&number, folder), file.into())),
        }
    }

    /// A directory's files as a disk of their own, on which a database can be opened.
    pub fn extract(&self, name: &str) -> Result<SimDisk, DiskError> {
        let number = self.number(name)?;
        let extracted = SimDisk::new();
        for folder in [ROOT, LOG, CHECKPOINTS] {
            let from = self.folder(&number, folder);
            let to = extracted.folder(folder);
            for file in from.list()? {
                let bytes = from.bytes(&file).unwrap_or_default();
                let copy = to.create(&file)?;
                copy.write_at(0, &bytes)?;
                copy.sync()?;
            }
            to.sync_dir()?;
        }
        Ok(extracted)
    }
}

impl DirTree for SimTree {
    fn open(&self, path: &str) -> Result<Arc<dyn Disk>, DiskError> {
        let (name, folder) = path.split_once('/').unwrap_or((path, ROOT));
        Ok(Arc::new(self.folder(&self.number(name)?, folder)))
    }

    fn make(&self, path: &str) -> Result<Arc<dyn Disk>, DiskError> {
        if path.contains('/') {
            return self.open(path);
        }
        let number = self.new_number()?;
        let file = self.names.create(path)?;
        file.write_at(0, number.as_bytes())?;
        file.sync()?;
        self.open(path)
    }

    fn is_free(&self, name: &str) -> Result<bool, DiskError> {
        let prefix = match self.number(name) {
            Ok(number) => format!("{number}-"),
            Err(_) => return Ok(true),
        };
        Ok(!self.disk.list()?.iter().any(|file| file.starts_with(&prefix)))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.names.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        let number = self.number(name)?;
        for folder in [ROOT, LOG, CHECKPOINTS] {
            let folder = self.folder(&number, folder);
            for file in folder.list()? {
                folder.remove(&file)?;
            }
        }
        self.names.remove(name)
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.names.sync_dir()
    }

    fn prepare(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        self.names.list()
    }

    fn path(&self, path: &str) -> PathBuf {
        PathBuf::from("simulated").join(path)
    }
}

impl DirTree for DataDir {
    fn open(&self, path: &str) -> Result<Arc<dyn Disk>, DiskError> {
        let folder = if path.is_empty() { ROOT } else { path };
        Ok(Arc::new(self.0.folder(folder)))
    }

    fn make(&self, path: &str) -> Result<Arc<dyn Disk>, DiskError> {
        self.open(path)
    }

    fn is_free(&self, _: &str) -> Result<bool, DiskError> {
        Ok(false)
    }

    fn rename(&self, _: &str, to: &str) -> Result<(), DiskError> {
        refused(to)
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        refused(name)
    }

    fn sync(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn prepare(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        Ok(Vec::new())
    }

    fn path(&self, path: &str) -> PathBuf {
        PathBuf::from("simulated data").join(path)
    }
}

fn refused(name: &str) -> Result<(), DiskError> {
    let kind = DiskErrorKind::Refused;
    Err(DiskError::new(
        "change",
        name,
        kind,
        "a database's directory is only read",
    ))
}
