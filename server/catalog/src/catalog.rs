//! Trees of names and versions, and what to do about a catalog that can't be read.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::DirBuilderExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

use reprise_txn::Module;
use serde::{Deserialize, Serialize};
use sled::{Batch, Db, Tree};

/// Written under `FORMAT_KEY`; a catalog of another format is rebuilt.
const FORMAT: &[u8] = b"reprise catalog 2";
const FORMAT_KEY: &[u8] = b"format";
/// The catalog is read at the start and written at deployments: a small cache is plenty.
const CACHE_BYTES: u64 = 4 << 20;
/// Mode of the directory. The store's files are readable for others, so only the owner may enter it.
const DIR_MODE: u32 = 0o700;

/// One version of a module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogEntry {
    /// Number of the version in the log.
    pub module_id: u32,
    /// Name of the module.
    pub name: String,
    /// Counts from 1 for each name.
    pub version: u32,
    /// SHA-256 of its bytes.
    pub hash: [u8; 32],
    /// Transaction of the deployment.
    pub txn_id: u64,
}

impl CatalogEntry {
    /// Describes a version.
    pub fn of(module: &Module) -> Self {
        Self {
            module_id: module.id.0,
            name: module.name.clone(),
            version: module.version,
            hash: module.hash,
            txn_id: module.installed_by.0,
        }
    }
}

/// Why the catalog can't be used. No server ends because of it: the log has everything that the catalog has.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum CatalogError {
    #[error("the catalog at {0} is in use by another process")]
    InUse(PathBuf),
    #[error("the catalog is damaged: {0}")]
    Damaged(String),
    #[error("set the damaged catalog aside, to {to}: {error}")]
    SetAside { to: PathBuf, error: io::Error },
    #[error("open catalog: {0}")]
    Open(String),
    #[error("catalog: {0}")]
    Store(#[from] sled::Error),
    #[error("catalog: the store panicked")]
    Panicked,
    #[error("catalog entry of module {module_id} is unreadable: {error}")]
    Entry { module_id: u32, error: serde_json::Error },
}

/// An open catalog, and the new path of a predecessor that could not be read.
pub struct OpenedCatalog {
    /// The catalog. It is empty if the predecessor was set aside.
    pub catalog: Catalog,
    /// New path of the unreadable predecessor.
    pub set_aside: Option<PathBuf>,
}

/// A handle; cheap to clone. None of its methods panics because of the disk.
#[derive(Clone)]
pub struct Catalog(Arc<CatalogStore>);

impl Catalog {
    /// Opens the catalog in `dir`, or makes one if there is none. A damaged one is renamed, and an empty one made. A catalog stays as it is if
    /// the disk or the process has no room, or the disk is read-only: that damages nothing.
    pub fn open(dir: &Path) -> Result<OpenedCatalog, CatalogError> {
        Self::open_by(dir, Self::try_open)
    }

    fn open_by(dir: &Path, open: impl Fn(&Path) -> Result<Self, CatalogError>) -> Result<OpenedCatalog, CatalogError> {
        let reason = match open(dir) {
            Ok(catalog) => {
                let set_aside = None;
                return Ok(OpenedCatalog { catalog, set_aside });
            }
            Err(CatalogError::Damaged(reason)) => reason,
            Err(other) => return Err(other),
        };
        let to = free_name(dir);
        if let Err(error) = fs::rename(dir, &to) {
            return Err(CatalogError::SetAside { to, error });
        }
        let opened = open(dir).map_err(|second| {
            // Otherwise each start on a full disk would set another copy aside.
            put_back(&to, dir);
            match second {
                CatalogError::Open(again) | CatalogError::Damaged(again) => {
                    CatalogError::Open(format!("{again} (first: {reason})"))
                }
                other => other,
            }
        });
        let catalog = opened?;
        let set_aside = Some(to);
        Ok(OpenedCatalog { catalog, set_aside })
    }

    fn try_open(dir: &Path) -> Result<Self, CatalogError> {
        // sled panics on some of the damage that it finds.
        let opened = catch_unwind(AssertUnwindSafe(|| CatalogTrees::open(dir)));
        match opened {
            Ok(Ok(trees)) => Ok(Self(Arc::new(CatalogStore(Mutex::new(Some(trees)))))),
            Ok(Err(error)) if is_in_use(&error) => Err(CatalogError::InUse(dir.to_owned())),
            Ok(Err(error)) if is_damage(&error) => Err(CatalogError::Damaged(error.to_string())),
            Ok(Err(error)) => Err(CatalogError::Open(error.to_string())),
            Err(_) => Err(CatalogError::Damaged("the store's files are damaged".into())),
        }
    }

    /// Runs one access at a time: a writer of sled that waits for another one may never learn that the other one failed. sled panics on some
    /// failures of the disk, and the caller gets an error instead.
    fn access<T>(&self, run: impl FnOnce(&CatalogTrees) -> Result<T, CatalogError>) -> Result<T, CatalogError> {
        let trees = self.0.lock();
        let trees = trees.as_ref().expect("they are taken when the last handle is dropped");
        catch_unwind(AssertUnwindSafe(|| run(trees))).unwrap_or(Err(CatalogError::Panicked))
    }

    /// Records a version and puts it into service. On disk when this returns.
    pub fn record(&self, entry: &CatalogEntry) -> Result<(), CatalogError> {
        self.access(|trees| trees.record(entry))
    }

    /// Takes a name out of service; its versions stay.
    pub fn remove(&self, name: &str) -> Result<(), CatalogError> {
        self.access(|trees| trees.remove(name))
    }

    /// Every version, by module id.
    pub fn versions(&self) -> Result<Vec<CatalogEntry>, CatalogError> {
        self.access(CatalogTrees::versions)
    }

    /// The names in service, each with the id of its version.
    pub fn in_service(&self) -> Result<BTreeMap<String, u32>, CatalogError> {
        self.access(CatalogTrees::in_service)
    }

    /// How the catalog differs from what recovery found; empty when it does not. `expected` is by module id.
    pub fn differences(
        &self,
        expected: &[CatalogEntry],
        in_service: &BTreeMap<String, u32>,
    ) -> Result<Vec<String>, CatalogError> {
        self.access(|trees| trees.differences(expected, in_service))
    }

    /// Replaces everything by these versions; those in `in_service` are in service. On disk when this returns.
    pub fn rebuild(&self, versions: &[CatalogEntry], in_service: &BTreeMap<String, u32>) -> Result<(), CatalogError> {
        self.access(|trees| trees.rebuild(versions, in_service))
    }
}

/// The trees of all handles. None only while they are dropped.
struct CatalogStore(Mutex<Option<CatalogTrees>>);

impl CatalogStore {
    fn lock(&self) -> MutexGuard<'_, Option<CatalogTrees>> {
        self.0.lock().expect("panics are caught under this lock")
    }
}

impl Drop for CatalogStore {
    /// Closes the store. sled panics if it can't sync its file then, although each change is on disk already.
    fn drop(&mut self) {
        if let Ok(trees) = self.0.get_mut() {
            let trees = trees.take();
            let _ = catch_unwind(AssertUnwindSafe(|| drop(trees)));
        }
    }
}

struct CatalogTrees {
    db: Db,
    /// Module id, big-endian -> entry as JSON.
    versions: Tree,
    /// Name -> id of the version in service, big-endian.
    in_service: Tree,
}

impl CatalogTrees {
    fn open(dir: &Path) -> sled::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir)?;
        remove_unfinished(dir);
        let config = sled::Config::new()
            .path(dir)
            .cache_capacity(CACHE_BYTES)
            .mode(sled::Mode::LowSpace)
            .flush_every_ms(None);
        let db = config.open()?;
        match db.get(FORMAT_KEY)? {
            Some(format) if format == FORMAT => {}
            None if db.is_empty() && db.tree_names().len() == 1 => {
                db.insert(FORMAT_KEY, FORMAT)?;
                db.flush()?;
            }
            _ => {
                return Err(sled::Error::Unsupported("another format of the catalog".into()));
            }
        }
        let trees = Self {
            versions: db.open_tree("versions")?,
            in_service: db.open_tree("in_service")?,
            db,
        };
        match trees.versions().and(trees.in_service()) {
            Ok(_) => Ok(trees),
            Err(CatalogError::Store(error)) => Err(error),
            Err(_) => Err(sled::Error::Unsupported("entries that can't be read".into())),
        }
    }

    fn record(&self, entry: &CatalogEntry) -> Result<(), CatalogError> {
        self.insert(entry)?;
        let id = &entry.module_id.to_be_bytes();
        self.in_service.insert(entry.name.as_bytes(), id)?;
        self.flush()
    }

    fn insert(&self, entry: &CatalogEntry) -> Result<(), CatalogError> {
        let text = serde_json::to_vec(entry).expect("an entry serializes");
        self.versions.insert(entry.module_id.to_be_bytes(), text)?;
        Ok(())
    }

    fn flush(&self) -> Result<(), CatalogError> {
        self.db.flush()?; // all trees share one log
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), CatalogError> {
        self.in_service.remove(name.as_bytes())?;
        self.flush()
    }

    fn versions(&self) -> Result<Vec<CatalogEntry>, CatalogError> {
        let mut entries = Vec::new();
        for pair in &self.versions {
            let (key, text) = pair?;
            let module_id = number(&key);
            let entry = serde_json::from_slice(&text).map_err(|error| CatalogError::Entry { module_id, error })?;
            entries.push(entry);
        }
        Ok(entries)
    }

    fn in_service(&self) -> Result<BTreeMap<String, u32>, CatalogError> {
        let mut names = BTreeMap::new();
        for pair in &self.in_service {
            let (name, id) = pair?;
            names.insert(String::from_utf8_lossy(&name).into_owned(), number(&id));
        }
        Ok(names)
    }

    fn differences(
        &self,
        expected: &[CatalogEntry],
        in_service: &BTreeMap<String, u32>,
    ) -> Result<Vec<String>, CatalogError> {
        let mut differences = Vec::new();
        let found = self.versions()?;
        for entry in expected {
            let id = entry.module_id;
            let of_name = format!("{} version {} (module {id})", entry.name, entry.version);
            match found.iter().find(|found| found.module_id == id) {
                None => differences.push(format!("{of_name} is new")),
                Some(found) if found != entry => differences.push(format!("{of_name} differs")),
                Some(_) => {}
            }
        }
        let unknown = found
            .iter()
            .filter(|f| !expected.iter().any(|e| e.module_id == f.module_id));
        differences.extend(unknown.map(|f| format!("module {} ({}) is not in the log", f.module_id, f.name)));
        if self.in_service()? != *in_service {
            differences.push("other versions are in service".into());
        }
        Ok(differences)
    }

    fn rebuild(&self, versions: &[CatalogEntry], in_service: &BTreeMap<String, u32>) -> Result<(), CatalogError> {
        self.versions.clear()?;
        self.in_service.clear()?;
        versions.iter().try_for_each(|entry| self.insert(entry))?;
        let mut names = Batch::default();
        for (name, id) in in_service {
            names.insert(name.as_bytes(), &id.to_be_bytes());
        }
        self.in_service.apply_batch(names)?;
        self.flush()
    }
}

/// A key or value of four bytes; other lengths come from damage alone and match no module.
fn number(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(u32::MAX, u32::from_be_bytes)
}

fn is_in_use(error: &sled::Error) -> bool {
    matches!(error, sled::Error::Io(error) if error.to_string().contains("could not acquire lock"))
}

/// True if the files in the catalog's place are not what the store wrote. A disk that is full, read-only or forbidden damages nothing, nor do
/// descriptors that run out.
fn is_damage(error: &sled::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, InvalidData, IsADirectory, NotADirectory, UnexpectedEof};
    match error {
        sled::Error::Io(error) => matches!(
            error.kind(),
            AlreadyExists | InvalidData | IsADirectory | NotADirectory | UnexpectedEof
        ),
        _ => true,
    }
}

/// Removes a snapshot that sled did not finish, because the disk was full or the process ended. sled would take it for its newest snapshot,
/// and find it damaged. The lock of the database keeps other processes away.
fn remove_unfinished(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("snap.") && name.ends_with(".generating") {
            let _ = fs::remove_file(entry.path()); // sled then reports what is wrong with the disk
        }
    }
}

/// Gives a catalog its name back, because its successor could not be made. If that fails, it stays aside.
fn put_back(set_aside: &Path, dir: &Path) {
    let _ = fs::remove_dir_all(dir); // the successor holds nothing
    let _ = fs::rename(set_aside, dir);
}

/// A name beside `dir` that nothing has.
fn free_name(dir: &Path) -> PathBuf {
    let base = dir.file_name().map_or("catalog".into(), |name| name.to_string_lossy());
    (1..)
        .map(|number| dir.with_file_name(format!("{base}.broken-{number}")))
        .find(|path| !path.exists())
        .expect("some number is free")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(module_id: u32, name: &str, version: u32, first: u8) -> CatalogEntry {
        CatalogEntry {
            module_id,
            name: name.into(),
            version,
            hash: [first; 32],
            txn_id: u64::from(module_id) + 7,
        }
    }

    #[test]
    fn records_survive_a_reopening() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("catalog");
        let expected = [
            entry(0, "bank", 1, b'a'),
            entry(1, "voter", 1, b'b'),
            entry(2, "bank", 2, b'a'),
        ];
        {
            let opened = Catalog::open(&path).expect("opens");
            assert_eq!(opened.set_aside, None);
            let record = |entry: &CatalogEntry| opened.catalog.record(entry).expect("records");
            expected.iter().for_each(record);
            opened.catalog.remove("voter").expect("removes");
            assert!(matches!(Catalog::open(&path), Err(CatalogError::InUse(_))));
        }
        let catalog = Catalog::open(&path).expect("opens again").catalog;
        let names = BTreeMap::from([("bank".to_owned(), 2)]);
        assert_eq!(catalog.versions().expect("reads"), expected);
        assert_eq!(
            catalog.differences(&expected, &names).expect("reads"),
            Vec::<String>::new()
        );
        let differences = catalog.differences(&expected[..2], &BTreeMap::new()).expect("reads");
        assert_eq!(
            differences,
            ["module 2 (bank) is not in the log", "other versions are in service"]
        );
    }

    #[test]
    fn a_damaged_catalog_is_set_aside_and_rebuilt() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("catalog");
        let bank = entry(0, "bank", 1, 5);
        Catalog::open(&path)
            .expect("opens")
            .catalog
            .record(&bank)
            .expect("records");
        for file in ["db", "conf"] {
            let file = path.join(file);
            let length = std::fs::metadata(&file).expect("sled's file").len() as usize;
            std::fs::write(&file, vec![0xa5; length]).expect("damage");
        }
        let opened = Catalog::open(&path).expect("opens a new one");
        assert_eq!(opened.set_aside, Some(dir.path().join("catalog.broken-1")));
        let names = BTreeMap::from([("bank".to_owned(), 0)]);
        let expected = [bank];
        assert_eq!(opened.catalog.differences(&expected, &names).expect("reads").len(), 2);
        opened.catalog.rebuild(&expected, &names).expect("rebuilds");
        assert!(opened.catalog.differences(&expected, &names).expect("reads").is_empty());
    }

    #[test]
    fn a_directory_of_something_else_is_set_aside() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("catalog");
        std::fs::write(&path, b"a file").expect("write file");
        assert!(Catalog::open(&path).expect("opens a new one").set_aside.is_some());
        let other = dir.path().join("other");
        let db = sled::open(&other).expect("opens");
        db.insert(b"somebody", b"else").expect("inserts");
        drop(db);
        assert!(Catalog::open(&other).expect("opens a new one").set_aside.is_some());
    }

    #[test]
    fn failure_of_the_disk_is_no_damage() {
        const ENOSPC: i32 = 28;
        const EROFS: i32 = 30;
        const EACCES: i32 = 13;
        const EPERM: i32 = 1;
        const EMFILE: i32 = 24;
        const ENFILE: i32 = 23;
        for code in [ENOSPC, EROFS, EACCES, EPERM, EMFILE, ENFILE] {
            let error = sled::Error::Io(io::Error::from_raw_os_error(code));
            // sled hands on a copy of an error that another thread met, and the copy has no code.
            assert!(!is_damage(&error) && !is_damage(&error.clone()), "{error}");
        }
        let short = io::Error::from(io::ErrorKind::UnexpectedEof);
        assert!(is_damage(&sled::Error::Io(short)));
        assert!(is_damage(&sled::Error::Unsupported("another version".into())));
    }

    #[test]
    fn catalog_keeps_its_name_when_there_is_no_room() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("catalog");
        let bank = entry(0, "bank", 1, 5);
        let record = |opened: OpenedCatalog| opened.catalog.record(&bank).expect("records");
        record(Catalog::open(&path).expect("opens"));
        let no_room = || CatalogError::Open("No space left on device".into());
        let damaged = || CatalogError::Damaged("checksum".into());
        // The disk is full; or the catalog is damaged, and the disk has no room for another one.
        let failures: [fn() -> CatalogError; 2] = [no_room, damaged];
        for first in failures {
            let tries = std::cell::Cell::new(0);
            let opened = Catalog::open_by(&path, |dir| {
                tries.set(tries.get() + 1);
                match tries.get() {
                    1 => Err(first()),
                    _ => {
                        std::fs::create_dir(dir).expect("half made");
                        Err(no_room())
                    }
                }
            });
            assert!(matches!(opened, Err(CatalogError::Open(_))));
            let names: Vec<_> = std::fs::read_dir(dir.path()).expect("lists").flatten().collect();
            assert_eq!(names.len(), 1, "{names:?}");
        }
        let opened = Catalog::open(&path).expect("opens again");
        assert_eq!(
            (opened.set_aside, opened.catalog.versions().expect("reads")),
            (None, vec![bank])
        );
    }

    #[test]
    fn unfinished_snapshot_of_a_full_disk_is_no_damage() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("catalog");
        let bank = entry(0, "bank", 1, 5);
        Catalog::open(&path)
            .expect("opens")
            .catalog
            .record(&bank)
            .expect("records");
        std::fs::write(path.join("snap.7FFFFFFFFFFFFFFF.generating"), b"").expect("the disk is full");
        let opened = Catalog::open(&path).expect("opens again");
        assert_eq!(
            (opened.set_aside, opened.catalog.versions().expect("reads")),
            (None, vec![bank])
        );
    }
}
