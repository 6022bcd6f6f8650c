//! Trees of names and versions, and what to do about a catalog that can't be read.

use std::{
    collections::BTreeMap,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use reprise_txn::Module;
use serde::{Deserialize, Serialize};
use sled::{Batch, Db, Tree};

/// Written under `FORMAT_KEY`; a catalog of another format is rebuilt.
const FORMAT: &[u8] = b"reprise catalog 2";
const FORMAT_KEY: &[u8] = b"format";
/// The catalog is read at the start and written at deployments: a small cache is plenty.
const CACHE_BYTES: u64 = 4 << 20;

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

/// Why the catalog can't be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum CatalogError {
    #[error("the catalog at {0} is in use by another process")]
    InUse(PathBuf),
    #[error("set the unreadable catalog aside, to {to}: {error}")]
    SetAside { to: PathBuf, error: io::Error },
    #[error("open catalog: {0}")]
    Open(String),
    #[error("catalog: {0}")]
    Store(#[from] sled::Error),
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

/// A handle; cheap to clone.
#[derive(Clone)]
pub struct Catalog {
    db: Db,
    /// Module id, big-endian -> entry as JSON.
    versions: Tree,
    /// Name -> id of the version in service, big-endian.
    in_service: Tree,
}

impl Catalog {
    /// Opens the catalog in `dir`, or makes one if there is none. One that can't be read is renamed, and an empty one made.
    pub fn open(dir: &Path) -> Result<OpenedCatalog, CatalogError> {
        let reason = match Self::try_open(dir) {
            Ok(catalog) => {
                let set_aside = None;
                return Ok(OpenedCatalog { catalog, set_aside });
            }
            Err(CatalogError::Open(reason)) => reason,
            Err(other) => return Err(other),
        };
        let to = free_name(dir);
        if let Err(error) = std::fs::rename(dir, &to) {
            return Err(CatalogError::SetAside { to, error });
        }
        let catalog = Self::try_open(dir).map_err(|second| match second {
            CatalogError::Open(again) => CatalogError::Open(format!("{again} (first: {reason})")),
            other => other,
        })?;
        let set_aside = Some(to);
        Ok(OpenedCatalog { catalog, set_aside })
    }

    fn try_open(dir: &Path) -> Result<Self, CatalogError> {
        let config = sled::Config::new()
            .path(dir)
            .cache_capacity(CACHE_BYTES)
            .mode(sled::Mode::LowSpace)
            .flush_every_ms(None);
        // sled panics on some of the damage that it finds.
        let opened = catch_unwind(AssertUnwindSafe(|| Self::open_trees(&config)));
        match opened {
            Ok(Ok(catalog)) => Ok(catalog),
            Ok(Err(error)) if is_in_use(&error) => Err(CatalogError::InUse(dir.to_owned())),
            Ok(Err(error)) => Err(CatalogError::Open(error.to_string())),
            Err(_) => Err(CatalogError::Open("the store's files are damaged".into())),
        }
    }

    fn open_trees(config: &sled::Config) -> sled::Result<Self> {
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
        let catalog = Self {
            versions: db.open_tree("versions")?,
            in_service: db.open_tree("in_service")?,
            db,
        };
        let readable = catalog.versions().is_ok() && catalog.in_service().is_ok();
        if !readable {
            return Err(sled::Error::Unsupported("entries that can't be read".into()));
        }
        Ok(catalog)
    }

    /// Records a version and puts it into service. On disk when this returns.
    pub fn record(&self, entry: &CatalogEntry) -> Result<(), CatalogError> {
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

    /// Takes a name out of service; its versions stay.
    pub fn remove(&self, name: &str) -> Result<(), CatalogError> {
        self.in_service.remove(name.as_bytes())?;
        self.flush()
    }

    /// Every version, by module id.
    pub fn versions(&self) -> Result<Vec<CatalogEntry>, CatalogError> {
        let mut entries = Vec::new();
        for pair in &self.versions {
            let (key, text) = pair?;
            let module_id = number(&key);
            let entry = serde_json::from_slice(&text).map_err(|error| CatalogError::Entry { module_id, error })?;
            entries.push(entry);
        }
        Ok(entries)
    }

    /// The names in service, each with the id of its version.
    pub fn in_service(&self) -> Result<BTreeMap<String, u32>, CatalogError> {
        let mut names = BTreeMap::new();
        for pair in &self.in_service {
            let (name, id) = pair?;
            names.insert(String::from_utf8_lossy(&name).into_owned(), number(&id));
        }
        Ok(names)
    }

    /// How the catalog differs from what recovery found; empty when it does not. `expected` is by module id.
    pub fn differences(
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

    /// Replaces everything by these versions; those in `in_service` are in service. On disk when this returns.
    pub fn rebuild(&self, versions: &[CatalogEntry], in_service: &BTreeMap<String, u32>) -> Result<(), CatalogError> {
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
}
