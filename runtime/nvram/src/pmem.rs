//! Real persistent memory, through libpmem (PMDK). The library is loaded at run time: a machine without it runs everything else.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    fs::{File, Metadata, TryLockError},
    io,
    os::unix::{ffi::OsStrExt, fs::FileTypeExt},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use libloading::Library;

use crate::{Memory, OpenMemory, Persistence};

/// The library's name on Linux; its number is that of its interface.
const LIBRARY: &str = "libpmem.so.1";
/// The version of the interface that we were written for. `pmem_memcpy` with flags came with 1.5 of PMDK, which is 1.1 of it.
const VERSION: (c_uint, c_uint) = (1, 1);

const FILE_CREATE: c_int = 1 << 0;
const FILE_EXCL: c_int = 1 << 1;
const MEM_NODRAIN: c_uint = 1 << 0;
const MEM_NONTEMPORAL: c_uint = 1 << 1;

/// How a region is opened.
#[derive(Clone, Debug)]
pub struct PmemOptions {
    /// A file on a DAX file system, a DAX device, or an ordinary file.
    pub path: PathBuf,
    /// Bytes of the region; ignored for a device, which is taken as a whole. None: as many as there are.
    pub bytes: Option<u64>,
    /// An ordinary file is treated as persistent memory.
    pub assume_persistent: bool,
}

/// Why a region can't be opened.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum PmemError {
    #[error("can't load {LIBRARY} ({reason}): on Debian, install the package libpmem1")]
    Library { reason: String },
    #[error("{LIBRARY} has another version: {reason}")]
    Version { reason: String },
    #[error("{path}: {error}")]
    File { path: PathBuf, error: io::Error },
    #[error("{path} has {found} bytes, and you asked for {asked}; the server does not resize it")]
    Size { path: PathBuf, found: u64, asked: u64 },
    #[error("{path} is neither a file nor a DAX device")]
    Kind { path: PathBuf },
    #[error("another process uses {path}")]
    Used { path: PathBuf },
    #[error("can't map {path}: {reason}")]
    Map { path: PathBuf, reason: String },
}

type MapFile = unsafe extern "C" fn(*const c_char, usize, c_int, libc::mode_t, *mut usize, *mut c_int) -> *mut c_void;
type Unmap = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
type Memcpy = unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_uint) -> *mut c_void;
type Flush = unsafe extern "C" fn(*const c_void, usize);
type Drain = unsafe extern "C" fn();
type Msync = unsafe extern "C" fn(*const c_void, usize) -> c_int;
type Message = unsafe extern "C" fn() -> *const c_char;
type CheckVersion = unsafe extern "C" fn(c_uint, c_uint) -> *const c_char;

/// The functions of libpmem that we use.
struct PmemFunctions {
    map_file: MapFile,
    unmap: Unmap,
    memcpy: Memcpy,
    flush: Flush,
    drain: Drain,
    msync: Msync,
    message: Message,
    /// The loaded library. While it lives, the functions stay loaded.
    _library: Library,
}

/// Whether the library is there, in the right version.
pub fn library() -> Result<(), PmemError> {
    PmemFunctions::load().map(drop)
}

impl PmemFunctions {
    fn load() -> Result<Self, PmemError> {
        let missing = |error: libloading::Error| PmemError::Library {
            reason: error.to_string(),
        };
        // SAFETY: libpmem's initialisation reads the environment and the processor's features, and nothing else.
        let library = unsafe { Library::new(LIBRARY) }.map_err(missing)?;
        // SAFETY: the types are those of libpmem.h, whose major version the library's name fixes; the library is kept beside them.
        let (functions, check) = unsafe {
            let check: CheckVersion = *library.get(b"pmem_check_version\0").map_err(missing)?;
            let functions = Self {
                map_file: *library.get(b"pmem_map_file\0").map_err(missing)?,
                unmap: *library.get(b"pmem_unmap\0").map_err(missing)?,
                memcpy: *library.get(b"pmem_memcpy\0").map_err(missing)?,
                flush: *library.get(b"pmem_flush\0").map_err(missing)?,
                drain: *library.get(b"pmem_drain\0").map_err(missing)?,
                msync: *library.get(b"pmem_msync\0").map_err(missing)?,
                message: *library.get(b"pmem_errormsg\0").map_err(missing)?,
                _library: library,
            };
            (functions, check)
        };
        // SAFETY: it compares two numbers.
        let refusal = unsafe { check(VERSION.0, VERSION.1) };
        match refusal.is_null() {
            true => Ok(functions),
            false => Err(PmemError::Version { reason: text(refusal) }),
        }
    }

    fn message(&self) -> String {
        // SAFETY: it returns the calling thread's own text.
        text(unsafe { (self.message)() })
    }
}

fn text(chars: *const c_char) -> String {
    if chars.is_null() {
        return String::new();
    }
    // SAFETY: libpmem's texts end with a zero, and live until the thread's next call.
    unsafe { CStr::from_ptr(chars) }.to_string_lossy().into_owned()
}

/// A region mapped by libpmem, for this process alone.
pub struct Pmem {
    functions: PmemFunctions,
    base: *mut u8,
    bytes: usize,
    persistence: Persistence,
    dirty: Mutex<DirtyRanges>,
    /// The lock on the file, until it is released.
    lock: Mutex<Option<LockedFile>>,
}

/// The ranges written since the last `msync`, with [`Persistence::Msync`].
#[derive(Default)]
struct DirtyRanges {
    bounds: Vec<(usize, usize)>,
    /// The first failure, which stays: the kernel may have forgotten the bytes that it could not write, and counts them as written from
    /// then on.
    failure: Option<String>,
}

// SAFETY: the mapping belongs to this value until it is dropped, and `Memory` says who writes what.
unsafe impl Send for Pmem {}
// SAFETY: as above; words are loaded and stored as atomics.
unsafe impl Sync for Pmem {}

impl Pmem {
    /// Opens the region, and makes its file if there is none.
    pub fn open(options: &PmemOptions) -> Result<Self, PmemError> {
        let functions = PmemFunctions::load()?;
        let path = &options.path;
        let failed = |error| PmemError::File {
            path: path.clone(),
            error,
        };
        let found = match path.metadata() {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        let (bytes, flags) = match &found {
            None => {
                let missing = || failed(io::ErrorKind::NotFound.into());
                (options.bytes.ok_or_else(missing)? as usize, FILE_CREATE | FILE_EXCL)
            }
            Some(metadata) if metadata.file_type().is_char_device() => (0, 0),
            Some(metadata) if !metadata.is_file() => return Err(PmemError::Kind { path: path.clone() }),
            Some(metadata) if options.bytes.is_none_or(|bytes| metadata.len() == bytes) => (0, 0),
            Some(metadata) => {
                let (found, asked) = (metadata.len(), options.bytes.unwrap_or_default());
                return Err(PmemError::Size {
                    path: path.clone(),
                    found,
                    asked,
                });
            }
        };
        // An existing file is locked before it is mapped, a new one once it is there. An existing file may come from a process that
        // crashed before the file's name was durable.
        let lock_found = |found: &Metadata| match found.is_file() {
            true => lock_named(path),
            false => lock(path),
        };
        let lock = found.as_ref().map(lock_found).transpose()?;
        let (base, bytes, is_pmem) = map(&functions, path, bytes, flags)?;
        let persistence = match (is_pmem, options.assume_persistent) {
            (true, _) => Persistence::Fence,
            (false, true) => Persistence::Assumed,
            (false, false) => Persistence::Msync,
        };
        let file = match lock.map_or_else(|| lock_named(path), Ok) {
            Ok(file) => file,
            Err(error) => {
                // SAFETY: mapped above, and not used yet.
                unsafe { (functions.unmap)(base.cast(), bytes) };
                return Err(error);
            }
        };
        if persistence != Persistence::Msync {
            // Populates the pages now, so that no commit waits for one. A kernel without this call makes them one by one. SAFETY:
            // mapped above.
            unsafe { libc::madvise(base.cast(), bytes, libc::MADV_POPULATE_WRITE) };
        }
        Ok(Self {
            functions,
            base,
            bytes,
            persistence,
            dirty: Mutex::default(),
            lock: Mutex::new(Some(file)),
        })
    }

    fn check(&self, at: usize, bytes: usize) {
        assert!(
            at <= self.bytes && bytes <= self.bytes - at,
            "{bytes} bytes at {at} lie beyond the region"
        );
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8), "a word lies at a multiple of 8 bytes");
        self.check(at, 8);
        // SAFETY: within the mapping, which is aligned to pages; only words are shared, and always as atomics.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }

    fn record_dirty(&self, at: usize, bytes: usize) {
        let mut dirty = self.dirty.lock().unwrap_or_else(PoisonError::into_inner);
        match dirty.bounds.last_mut() {
            Some((_, end)) if *end == at => *end = at + bytes,
            _ => dirty.bounds.push((at, at + bytes)),
        }
    }

    /// Panics if a `msync` fails, and ever after, on any thread: the server can't tell acknowledged writes from lost ones.
    fn sync(&self) {
        // The lock is held to the end. A thread that finds nothing to write may continue only after its own writes are persistent.
        let mut dirty = self.dirty.lock().unwrap_or_else(PoisonError::into_inner);
        let DirtyRanges { bounds, failure } = &mut *dirty;
        for (start, end) in bounds.drain(..) {
            if failure.is_some() {
                break;
            }
            // SAFETY: bounds that `write` and `store` checked.
            let failed = unsafe { (self.functions.msync)(self.base.add(start).cast(), end - start) } != 0;
            if failed {
                *failure = Some(self.functions.message());
            }
        }
        if let Some(failure) = failure {
            panic!("the NVRAM region's file can't be written: {failure}");
        }
    }
}

fn map(
    functions: &PmemFunctions,
    path: &Path,
    bytes: usize,
    flags: c_int,
) -> Result<(*mut u8, usize, bool), PmemError> {
    let refused = |reason| PmemError::Map {
        path: path.to_owned(),
        reason,
    };
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| refused(error.to_string()))?;
    let (mut mapped, mut is_pmem) = (0, 0);
    // SAFETY: the name ends with a zero, and both results have a place.
    let base = unsafe { (functions.map_file)(name.as_ptr(), bytes, flags, 0o600, &mut mapped, &mut is_pmem) };
    match base.is_null() {
        true => Err(refused(functions.message())),
        false => Ok((base.cast(), mapped, is_pmem != 0)),
    }
}

/// A locked file, whose lock ends with this value. A process that another thread starts has a copy of the descriptor until it runs its program.
/// The end of the lock does not wait for the last copy.
struct LockedFile(File);

impl Drop for LockedFile {
    fn drop(&mut self) {
        let _ = self.0.unlock(); // the lock then ends with the last copy
    }
}

fn lock(path: &Path) -> Result<LockedFile, PmemError> {
    let failed = |error| PmemError::File {
        path: path.to_owned(),
        error,
    };
    let file = File::options().read(true).write(true).open(path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(LockedFile(file)),
        Err(TryLockError::WouldBlock) => Err(PmemError::Used { path: path.to_owned() }),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Locks a file, and makes its name durable.
fn lock_named(path: &Path) -> Result<LockedFile, PmemError> {
    let file = lock(path)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let synced = File::open(parent.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
    match synced {
        Ok(()) => Ok(file),
        Err(error) => Err(PmemError::File {
            path: path.to_owned(),
            error,
        }),
    }
}

impl Memory for Pmem {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.check(at, bytes.len());
        // SAFETY: checked; each place has one writer, and no reader meanwhile.
        let base = unsafe { self.base.add(at) };
        match self.persistence {
            Persistence::Fence | Persistence::Assumed => {
                // SAFETY: as above; the ranges do not overlap, one being the caller's.
                unsafe {
                    (self.functions.memcpy)(
                        base.cast(),
                        bytes.as_ptr().cast(),
                        bytes.len(),
                        MEM_NODRAIN | MEM_NONTEMPORAL,
                    );
                }
            }
            Persistence::Msync => {
                // SAFETY: as above.
                unsafe { base.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                self.record_dirty(at, bytes.len());
            }
        }
    }

    fn store(&self, at: usize, word: u64) {
        self.store_all(at, &[word]);
    }

    fn store_all(&self, at: usize, words: &[u64]) {
        for (n, word) in words.iter().enumerate() {
            self.word(at + n * 8).store(word.to_le(), Ordering::Release);
        }
        let bytes = words.len() * 8;
        self.check(at, bytes);
        match self.persistence {
            // SAFETY: checked.
            Persistence::Fence | Persistence::Assumed => unsafe {
                (self.functions.flush)(self.base.add(at).cast(), bytes)
            },
            Persistence::Msync => self.record_dirty(at, bytes),
        }
    }

    fn load(&self, at: usize) -> u64 {
        u64::from_le(self.word(at).load(Ordering::Acquire))
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        self.check(at, into.len());
        // SAFETY: checked; no thread writes the place meanwhile, or the caller checks what it read by a checksum.
        unsafe { self.base.add(at).copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
    }

    fn drain(&self) {
        match self.persistence {
            // SAFETY: a fence.
            Persistence::Fence | Persistence::Assumed => unsafe { (self.functions.drain)() },
            Persistence::Msync => self.sync(),
        }
    }

    fn persistence(&self) -> Persistence {
        self.persistence
    }

    fn release(&self) {
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Regions that libpmem maps.
#[derive(Clone, Copy, Debug, Default)]
pub struct MapRegions {
    /// Persistence assumed, as in [`PmemOptions`].
    pub assume_persistent: bool,
}

impl OpenMemory for MapRegions {
    fn open(&self, path: &Path, bytes: Option<u64>) -> Result<Arc<dyn Memory>, PmemError> {
        Ok(Arc::new(Pmem::open(&PmemOptions {
            path: path.to_owned(),
            bytes,
            assume_persistent: self.assume_persistent,
        })?))
    }
}

impl Drop for Pmem {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`, and this is the last use.
        unsafe { (self.functions.unmap)(self.base.cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::{panic::AssertUnwindSafe, sync::atomic::AtomicBool, thread};

    use super::*;

    static IS_FAILING: AtomicBool = AtomicBool::new(true);

    /// Fails once.
    unsafe extern "C" fn fails_once(_: *const c_void, _: usize) -> c_int {
        -c_int::from(IS_FAILING.swap(false, Ordering::SeqCst))
    }

    #[test]
    fn a_sync_that_failed_lets_no_other_thread_answer() {
        let path = std::env::temp_dir().join(format!("reprise-nvram-failing-{}", std::process::id()));
        let options = PmemOptions {
            path: path.clone(),
            bytes: Some(1 << 20),
            assume_persistent: false,
        };
        let mut memory = Pmem::open(&options).expect("libpmem");
        std::fs::remove_file(&path).expect("it was made");
        assert_eq!(memory.persistence(), Persistence::Msync);
        memory.functions.msync = fails_once;
        memory.store(0, 1);
        memory.store(4096, 2);
        let drains = || {
            let drain = || std::panic::catch_unwind(AssertUnwindSafe(|| memory.drain())).is_ok();
            thread::scope(|scope| scope.spawn(drain).join().expect("caught"))
        };
        assert!(!drains(), "the first one was not written");
        assert!(!drains(), "what another thread wrote was not written either");
        memory.store(8192, 3);
        assert!(!drains(), "nothing is written any more");
    }
}
