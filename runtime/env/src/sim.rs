//! A disk in memory that can fail and crash.
//!
//! The disk journals every operation. A crash image is made from the journal. It keeps writes that were synced before the crash. For each
//! other write, `CrashPolicy` says which sectors arrived. Unsynced changes of a directory arrive as a prefix, because journaling file
//! systems keep their order.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::disk::{Disk, DiskError, DiskErrorKind, DiskFile, DiskLock};

/// The unit that arrives or is lost as a whole.
pub const SECTOR_BYTES: usize = 512;

/// Numbers for faults, from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct FaultRandom(u64);

impl FaultRandom {
    /// A generator: the same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }
}

/// Which sectors of the writes that were not synced arrive; everything else of them is lost.
#[derive(Clone, Debug)]
pub enum CrashPolicy {
    /// None of them.
    LoseAll,
    /// All of them.
    KeepAll,
    /// The first `n` sectors of the last unsynced write; the writes before it arrive.
    TornAfter(usize),
    /// All but the first `n` sectors of the last unsynced write: the device reordered them.
    TornBefore(usize),
    /// Each sector of each write by a coin, and a random prefix of the directory's changes.
    Random(u64),
}

/// Failures to come, counted from now.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// Bytes of all files together above which a write or preallocation that grows a file fails.
    pub capacity_bytes: Option<u64>,
    /// The n-th write from now fails (0 = the next) without effect.
    pub write_error_in: Option<u64>,
    /// The n-th sync from now fails. It is uncertain whether its writes are kept.
    pub sync_error_in: Option<u64>,
    /// After one error all is well again, else everything after it fails, too.
    pub fails_once: bool,
    /// All writes and changes fail, as on a read-only file system.
    pub read_only: bool,
    /// Syncs are promised and not done: a disk that no program can be safe on, for tests of the tests.
    pub lies: bool,
}

#[derive(Clone, Debug)]
enum Op {
    Create {
        file: usize,
        name: String,
    },
    Rename {
        from: String,
        to: String,
    },
    Remove {
        name: String,
    },
    /// Makes names durable that begin with `folder`.
    SyncDir {
        folder: Arc<str>,
    },
    Write {
        file: usize,
        offset: u64,
        bytes: Arc<[u8]>,
    },
    /// Makes the whole file durable, or only its last write.
    Sync {
        file: usize,
        last_only: bool,
    },
    /// Changed behind the program's back.
    Damage {
        file: usize,
        bytes: Arc<[u8]>,
    },
}

/// One file, as the program sees it and as the device has it.
#[derive(Clone, Debug, Default)]
struct FileBytes {
    live: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<(u64, Arc<[u8]>)>,
}

impl FileBytes {
    /// Forgets earlier writes to a range that is durable now: they can't arrive any more.
    fn forget_unsynced(&mut self, start: u64, end: u64) {
        let mut left = Vec::new();
        for (offset, bytes) in self.unsynced.drain(..) {
            let length = bytes.len() as u64;
            if offset >= end || offset + length <= start {
                left.push((offset, bytes));
                continue;
            }
            if offset < start {
                left.push((offset, bytes[..(start - offset) as usize].into()));
            }
            if offset + length > end {
                left.push((end, bytes[(end - offset) as usize..].into()));
            }
        }
        self.unsynced = left;
    }
}

#[derive(Clone, Debug, Default)]
struct DirNames {
    live: BTreeMap<String, usize>,
    durable: BTreeMap<String, usize>,
    unsynced: Vec<Op>,
}

#[derive(Clone, Debug, Default)]
struct SimDiskState {
    files: Vec<FileBytes>,
    names: DirNames,
    plan: FaultPlan,
    journal: Vec<Op>,
    /// Files and names before the journal's first operation.
    origin: Arc<(Vec<FileBytes>, DirNames)>,
}

/// A disk in memory, or a folder of it. Clones share it.
#[derive(Clone, Default)]
pub struct SimDisk {
    state: Arc<Mutex<SimDiskState>>,
    /// The prefix of this folder's names; empty for the whole disk.
    folder: Arc<str>,
    locked: Arc<AtomicBool>,
}

/// The folder of a name.
fn folder_of(name: &str) -> &str {
    name.split_inclusive('/')
        .next()
        .filter(|first| first.len() < name.len())
        .unwrap_or("")
}

fn name_of(op: &Op) -> &str {
    match op {
        Op::Create { name, .. } | Op::Remove { name } => name,
        Op::Rename { from, .. } => from,
        _ => unreachable!("not a change of names"),
    }
}

fn put(bytes: &mut Vec<u8>, offset: u64, written: &[u8]) {
    let (start, end) = (offset as usize, offset as usize + written.len());
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[start..end].copy_from_slice(written);
}

/// Counts a planned error down.
fn is_due(error_in: &mut Option<u64>, fails_once: bool) -> bool {
    match error_in {
        None => return false,
        Some(0) if fails_once => *error_in = None,
        Some(0) => {}
        Some(left) => {
            *left -= 1;
            return false;
        }
    }
    true
}

fn change_names(names: &mut BTreeMap<String, usize>, op: &Op) {
    match op {
        Op::Create { file, name } => {
            names.insert(name.clone(), *file);
        }
        Op::Rename { from, to } => {
            let file = names.remove(from).expect("renamed file exists");
            names.insert(to.clone(), file);
        }
        Op::Remove { name } => {
            names.remove(name);
        }
        _ => unreachable!("not a change of names"),
    }
}

impl SimDiskState {
    fn apply(&mut self, op: Op) {
        match &op {
            Op::Create { file, .. } => {
                assert_eq!(*file, self.files.len(), "file numbers count up");
                self.files.push(FileBytes::default());
                change_names(&mut self.names.live, &op);
                self.names.unsynced.push(op.clone());
            }
            Op::Rename { .. } | Op::Remove { .. } => {
                change_names(&mut self.names.live, &op);
                self.names.unsynced.push(op.clone());
            }
            Op::SyncDir { folder } => {
                let DirNames { durable, unsynced, .. } = &mut self.names;
                unsynced.retain(|op| {
                    let is_synced = name_of(op).starts_with(&**folder);
                    if is_synced {
                        change_names(durable, op);
                    }
                    !is_synced
                });
            }
            Op::Write { file, offset, bytes } => {
                let file = &mut self.files[*file];
                put(&mut file.live, *offset, bytes);
                file.unsynced.push((*offset, Arc::clone(bytes)));
            }
            Op::Damage { file, bytes } => {
                let file = &mut self.files[*file];
                file.live = bytes.to_vec();
                file.durable = bytes.to_vec();
                file.unsynced.clear();
            }
            Op::Sync { file, last_only } => {
                let file = &mut self.files[*file];
                let kept_from = if *last_only { file.unsynced.len() - 1 } else { 0 };
                for (offset, bytes) in file.unsynced.split_off(kept_from) {
                    put(&mut file.durable, offset, &bytes);
                    file.forget_unsynced(offset, offset + bytes.len() as u64);
                }
            }
        }
        self.journal.push(op);
    }

    /// The state before the first operation.
    fn beginning(&self) -> SimDiskState {
        SimDiskState {
            files: self.origin.0.clone(),
            names: self.origin.1.clone(),
            origin: Arc::clone(&self.origin),
            ..SimDiskState::default()
        }
    }

    fn crash(&self, policy: &CrashPolicy) -> SimDiskState {
        let mut random = FaultRandom::new(match policy {
            CrashPolicy::Random(seed) => *seed,
            _ => 0,
        });
        let last_written = self.journal.iter().rev().find_map(|op| match op {
            Op::Write { file, .. } => Some(*file),
            _ => None,
        });
        let mut after = SimDiskState::default();
        for (number, file) in self.files.iter().enumerate() {
            let mut bytes = file.durable.clone();
            for (order, (offset, written)) in file.unsynced.iter().enumerate() {
                let is_last = Some(number) == last_written && order + 1 == file.unsynced.len();
                for (index, sector) in written.chunks(SECTOR_BYTES).enumerate() {
                    let arrives = match policy {
                        CrashPolicy::LoseAll => false,
                        CrashPolicy::KeepAll => true,
                        CrashPolicy::TornAfter(n) => !is_last || index < *n,
                        CrashPolicy::TornBefore(n) => !is_last || index >= *n,
                        CrashPolicy::Random(_) => random.below(2) == 0,
                    };
                    if arrives {
                        put(&mut bytes, offset + (index * SECTOR_BYTES) as u64, sector);
                    }
                }
            }
            after.files.push(FileBytes {
                live: bytes.clone(),
                durable: bytes,
                unsynced: Vec::new(),
            });
        }
        after.names.durable = self.names.durable.clone();
        self.change_durable_names(&mut after.names.durable, policy, &mut random);
        after.names.live = after.names.durable.clone();
        after.origin = Arc::new((after.files.clone(), after.names.clone()));
        after
    }

    /// Applies, for each folder, the unsynced changes that a crash lets arrive.
    fn change_durable_names(
        &self,
        durable: &mut BTreeMap<String, usize>,
        policy: &CrashPolicy,
        random: &mut FaultRandom,
    ) {
        let mut by_folder: BTreeMap<&str, Vec<&Op>> = BTreeMap::new();
        for op in &self.names.unsynced {
            by_folder.entry(folder_of(name_of(op))).or_default().push(op);
        }
        for changes in by_folder.values() {
            let kept = match policy {
                CrashPolicy::LoseAll => 0,
                CrashPolicy::Random(_) => random.below(changes.len() as u64 + 1) as usize,
                _ => changes.len(),
            };
            changes[..kept].iter().for_each(|op| change_names(durable, op));
        }
    }

    fn used_bytes(&self) -> u64 {
        let named = self.names.live.values();
        named.map(|file| self.files[*file].live.len() as u64).sum()
    }

    fn check_write(&mut self, name: &str, file: usize, end: u64) -> Result<(), DiskError> {
        let failed = |kind, message| Err(DiskError::new("write", name, kind, message));
        if self.plan.read_only {
            return failed(DiskErrorKind::Refused, "read-only file system");
        }
        if is_due(&mut self.plan.write_error_in, self.plan.fails_once) {
            return failed(DiskErrorKind::Io, "input/output error");
        }
        let growth = end.saturating_sub(self.files[file].live.len() as u64);
        match self.plan.capacity_bytes {
            Some(capacity) if growth > 0 && self.used_bytes() + growth > capacity => {
                failed(DiskErrorKind::Full, "no space left on device")
            }
            _ => Ok(()),
        }
    }

    fn sync(&mut self, file: usize, last_only: bool) {
        if !self.plan.lies {
            self.apply(Op::Sync { file, last_only });
        }
    }

    fn check_sync(&mut self, name: &str) -> Result<(), DiskError> {
        if is_due(&mut self.plan.sync_error_in, self.plan.fails_once) {
            let kind = DiskErrorKind::Io;
            return Err(DiskError::new("sync", name, kind, "input/output error"));
        }
        Ok(())
    }
}

impl SimDisk {
    /// An empty disk without faults.
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, SimDiskState> {
        self.state.lock().expect("simulated disk")
    }

    fn from_state(state: SimDiskState) -> Self {
        Self {
            state: Arc::new(Mutex::new(state)),
            folder: Arc::default(),
            locked: Arc::default(),
        }
    }

    /// A folder of this disk, which fails and crashes as one with it.
    pub fn folder(&self, name: &str) -> Self {
        Self {
            state: Arc::clone(&self.state),
            folder: format!("{}{name}/", self.folder).into(),
            locked: Arc::default(),
        }
    }

    fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.folder)
    }

    /// Bytes of all files that have a name.
    pub fn used_bytes(&self) -> u64 {
        self.state().used_bytes()
    }

    /// Sets the faults of later operations.
    pub fn set_faults(&self, plan: FaultPlan) {
        self.state().plan = plan;
    }

    /// Operations until now: `crash_image` takes any number up to this.
    pub fn ops_count(&self) -> usize {
        self.state().journal.len()
    }

    /// The disk that a crash after the first `ops` operations leaves.
    pub fn crash_image(&self, ops: usize, policy: &CrashPolicy) -> SimDisk {
        let recorded = self.state();
        let mut state = recorded.beginning();
        for op in &recorded.journal[..ops] {
            state.apply(op.clone());
        }
        Self::from_state(state.crash(policy))
    }

    /// Sectors of the last write when it is not synced after the first `ops` operations, for `CrashPolicy::Torn*`.
    pub fn unsynced_sectors(&self, ops: usize) -> Option<usize> {
        match self.state().journal[..ops].last()? {
            Op::Write { bytes, .. } => Some(bytes.len().div_ceil(SECTOR_BYTES)),
            _ => None,
        }
    }

    /// The disk that a crash at this moment leaves.
    pub fn crash(&self, policy: &CrashPolicy) -> SimDisk {
        Self::from_state(self.state().crash(policy))
    }

    /// Writes to a file as to persistent memory beside the disk, which no fault of the disk concerns. Durable after `drain`.
    pub fn store(&self, name: &str, offset: u64, bytes: &[u8]) {
        let mut state = self.state();
        let file = state.names.live[&self.full_name(name)];
        let bytes = bytes.into();
        state.apply(Op::Write { file, offset, bytes });
    }

    /// See `store`.
    pub fn drain(&self, name: &str) {
        let mut state = self.state();
        let file = state.names.live[&self.full_name(name)];
        let last_only = false;
        state.apply(Op::Sync { file, last_only });
    }

    /// An independent copy of the disk as the program sees it.
    pub fn copy(&self) -> SimDisk {
        self.crash(&CrashPolicy::KeepAll)
    }

    /// The bytes of a file as the program sees them.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        let file = *state.names.live.get(&self.full_name(name))?;
        Some(state.files[file].live.clone())
    }

    /// Changes bytes behind the program's back: bit rot, garbage, a forged file.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let named = state.names.live.get(&self.full_name(name));
        let file = *named.expect("file to damage exists");
        let mut bytes = state.files[file].live.clone();
        change(&mut bytes);
        state.apply(Op::Damage {
            file,
            bytes: bytes.into(),
        });
    }

    fn file(&self, name: &str, writable: bool) -> Result<Arc<dyn DiskFile>, DiskError> {
        let number = self.state().names.live.get(&self.full_name(name)).copied();
        let number = number.ok_or_else(|| DiskError::new("open", name, DiskErrorKind::NotFound, "no such file"))?;
        Ok(Arc::new(SimFile {
            disk: self.clone(),
            number,
            name: name.to_string(),
            writable,
        }))
    }

    fn change(&self, action: &'static str, name: &str, op: Op) -> Result<(), DiskError> {
        let mut state = self.state();
        if state.plan.read_only {
            return Err(DiskError::new(
                action,
                name,
                DiskErrorKind::Refused,
                "read-only file system",
            ));
        }
        if !state.names.live.contains_key(&self.full_name(name)) {
            return Err(DiskError::new(action, name, DiskErrorKind::NotFound, "no such file"));
        }
        state.apply(op);
        Ok(())
    }
}

impl Disk for SimDisk {
    fn create(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        {
            let mut state = self.state();
            if state.plan.read_only {
                return Err(DiskError::new(
                    "create",
                    name,
                    DiskErrorKind::Refused,
                    "read-only file system",
                ));
            }
            if state.names.live.contains_key(&self.full_name(name)) {
                return Err(DiskError::new("create", name, DiskErrorKind::Exists, "file exists"));
            }
            let file = state.files.len();
            state.apply(Op::Create {
                file,
                name: self.full_name(name),
            });
        }
        self.file(name, true)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.file(name, true)
    }

    fn open_read(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.file(name, false)
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        let state = self.state();
        let own = state
            .names
            .live
            .keys()
            .filter_map(|name| name.strip_prefix(&*self.folder));
        Ok(own.map(str::to_owned).collect())
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let op = Op::Rename {
            from: self.full_name(from),
            to: self.full_name(to),
        };
        self.change("rename", from, op)
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        let op = Op::Remove {
            name: self.full_name(name),
        };
        self.change("remove", name, op)
    }

    fn sync_dir(&self) -> Result<(), DiskError> {
        let mut state = self.state();
        state.check_sync("directory")?;
        if !state.plan.lies {
            state.apply(Op::SyncDir {
                folder: Arc::clone(&self.folder),
            });
        }
        Ok(())
    }

    fn lock(&self) -> Result<DiskLock, DiskError> {
        struct LockGuard(Arc<AtomicBool>);
        impl Drop for LockGuard {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Release);
            }
        }
        if self.locked.swap(true, Ordering::Acquire) {
            return Err(DiskError::new("lock", "directory", DiskErrorKind::Locked, "in use"));
        }
        Ok(DiskLock::new(LockGuard(Arc::clone(&self.locked))))
    }

    fn describe(&self) -> String {
        "simulated disk".to_string()
    }
}

struct SimFile {
    disk: SimDisk,
    number: usize,
    name: String,
    writable: bool,
}

impl SimFile {
    fn write(&self, offset: u64, bytes: &[u8], durable: bool) -> Result<(), DiskError> {
        if !self.writable {
            return Err(DiskError::new(
                "write",
                &self.name,
                DiskErrorKind::Refused,
                "opened for reading",
            ));
        }
        let mut state = self.disk.state();
        state.check_write(&self.name, self.number, offset + bytes.len() as u64)?;
        state.apply(Op::Write {
            file: self.number,
            offset,
            bytes: bytes.into(),
        });
        if durable {
            state.check_sync(&self.name)?;
            state.sync(self.number, true);
        }
        Ok(())
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> Result<u64, DiskError> {
        Ok(self.disk.state().files[self.number].live.len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        let state = self.disk.state();
        let bytes = &state.files[self.number].live;
        let start = (offset as usize).min(bytes.len());
        let count = buffer.len().min(bytes.len() - start);
        buffer[..count].copy_from_slice(&bytes[start..start + count]);
        Ok(count)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.write(offset, bytes, false)
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.write(offset, bytes, true)
    }

    fn sync(&self) -> Result<(), DiskError> {
        let mut state = self.disk.state();
        state.check_sync(&self.name)?;
        state.sync(self.number, false);
        Ok(())
    }

    fn preallocate(&self, bytes: u64) -> Result<(), DiskError> {
        self.write(0, &vec![0; bytes as usize], false)?;
        self.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_keeps_what_was_synced_and_tears_what_was_not() {
        let disk = SimDisk::new();
        let file = disk.create("a").expect("create");
        disk.sync_dir().expect("sync");
        file.write_durable_at(0, &[1; 1024]).expect("write");
        file.write_at(0, &[2; 1536]).expect("write");
        let image = |policy| disk.crash(&policy).bytes("a").expect("file is there");
        assert_eq!(image(CrashPolicy::LoseAll), [1; 1024]);
        assert_eq!(image(CrashPolicy::KeepAll), [2; 1536]);
        assert_eq!(image(CrashPolicy::TornAfter(1)), [[2; 512], [1; 512]].concat());
        assert_eq!(image(CrashPolicy::TornBefore(1))[..1024], [[1; 512], [2; 512]].concat());
        assert_eq!(disk.unsynced_sectors(disk.ops_count()), Some(3));
    }

    #[test]
    fn names_are_lost_until_the_directory_is_synced() {
        let disk = SimDisk::new();
        disk.create("a").expect("create");
        assert_eq!(disk.crash(&CrashPolicy::LoseAll).list().expect("list"), [""; 0]);
        disk.sync_dir().expect("sync");
        disk.rename("a", "b").expect("rename");
        assert_eq!(disk.crash(&CrashPolicy::LoseAll).list().expect("list"), ["a"]);
        assert_eq!(disk.crash(&CrashPolicy::KeepAll).list().expect("list"), ["b"]);
    }

    #[test]
    fn folders_are_apart_and_crash_as_one_disk() {
        let disk = SimDisk::new();
        let (a, b) = (disk.folder("a"), disk.folder("b"));
        a.create("x").expect("create");
        b.create("x").expect("create");
        a.sync_dir().expect("sync");
        assert_eq!(a.list().expect("list"), ["x"]);
        let image = disk.crash(&CrashPolicy::LoseAll);
        assert_eq!(image.list().expect("list"), ["a/x"]);
        assert_eq!(image.folder("b").list().expect("list"), [""; 0]);
        let file = image.folder("a").open("x").expect("open");
        image.set_faults(FaultPlan {
            lies: true,
            ..FaultPlan::default()
        });
        file.write_durable_at(0, b"promised").expect("write");
        let lost = image.crash(&CrashPolicy::LoseAll).folder("a").bytes("x");
        assert_eq!(lost, Some(Vec::new()));
    }

    #[test]
    fn planned_faults_happen_when_they_are_due() {
        let disk = SimDisk::new();
        let file = disk.create("a").expect("create");
        disk.set_faults(FaultPlan {
            capacity_bytes: Some(1000),
            sync_error_in: Some(1),
            ..FaultPlan::default()
        });
        file.preallocate(900).expect("fits");
        assert_eq!(
            file.write_at(900, &[0; 101]).err().map(|e| e.kind),
            Some(DiskErrorKind::Full)
        );
        file.write_at(0, &[0; 900]).expect("no growth needs no space");
        assert_eq!(file.sync().err().map(|e| e.kind), Some(DiskErrorKind::Io));
    }
}
