//! Backups of a running server: directories that a kill left, and a backup directory that hangs.

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use crate::common::{close, config, fill_bank, take, wait_until};
use reprise_backup::{DirTree, RealTree};
use reprise_database::Database;
use reprise_env::{Disk, DiskError, RealDisk};
use reprise_upkeep::{BackupError, BackupPhase, Backups};

/// A wait that ends only by a mistake.
const WAIT_MAX: Duration = Duration::from_secs(60);
const SEGMENT: &str = "log/log-0000000000000000.seg";

/// Opens a database with accounts and a checkpoint, which has its backups in a tree.
fn open(dir: &Path, tree: impl DirTree + 'static) -> Database {
    let database = Database::open(config(dir, 2)).expect("open");
    database.serve_backups(Arc::new(tree), u64::MAX);
    database.recover().expect("recover");
    fill_bank(&database, 100);
    take(&database);
    database
}

/// Makes a backup, and waits until it is published.
fn back_up(backups: &Arc<Backups>) {
    let begun = backups.create(false).expect("begun");
    let found = || backups.find(&begun.id).expect("it is listed");
    wait_until("it is made", || found().state != BackupPhase::Running);
    assert_eq!((found().error, found().state), (None, BackupPhase::Published));
}

/// Makes a directory with these files.
fn make(dir: &Path, files: &[&str]) {
    fs::create_dir_all(dir).expect("made");
    for file in files {
        let path = dir.join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, b"x").expect("written");
    }
}

#[test]
fn directories_that_a_kill_left_are_removed_at_the_start_and_before_a_backup() {
    let root = tempfile::tempdir().expect("a directory");
    let place = root.path().join("backups");
    let remainders = [".backup-1750000000000001.partial", "backup-1750000000000002"].map(|name| place.join(name));
    let leave = || remainders.iter().for_each(|dir| make(dir, &[SEGMENT]));
    let is_clean = || remainders.iter().all(|dir| !dir.exists());
    leave();
    // These are the operator's.
    let names = [
        ".backup-20260301.partial",
        "backup-20260301",
        ".other.partial",
        "backup-1750000000000003",
    ];
    let others = names.map(|name| place.join(name));
    others.iter().for_each(|dir| make(dir, &[SEGMENT]));
    make(&others[3], &["notes"]);
    let (elsewhere, link) = (
        root.path().join("elsewhere"),
        place.join(".backup-1750000000000004.partial"),
    );
    make(&elsewhere, &[SEGMENT]);
    symlink(&elsewhere, &link).expect("linked");
    let are_there = || others.iter().chain([&link]).all(|dir| dir.join(SEGMENT).exists());
    let database = open(&root.path().join("data"), RealTree(place.clone()));
    wait_until("the start removed them", is_clean);
    assert!(are_there());
    leave();
    let backups = database.backups().expect("served");
    back_up(backups);
    assert!(is_clean() && are_there());
    // Another server that shares the directory still makes this backup.
    make(&remainders[0], &[SEGMENT]);
    let held = RealDisk::open(&remainders[0]).expect("opened").lock().expect("locked");
    back_up(backups);
    assert!(remainders[0].exists());
    drop(held);
    back_up(backups);
    assert!(is_clean() && are_there());
    let published = backups.list().into_iter();
    assert_eq!(published.filter(|info| info.state == BackupPhase::Published).count(), 3);
    close(database);
}

#[test]
fn backup_without_its_manifest_is_removed_by_its_id() {
    let root = tempfile::tempdir().expect("a directory");
    let place = root.path().join("backups");
    let earlier = place.join("backup-1750000000000001");
    make(&earlier, &[SEGMENT]);
    let database = open(&root.path().join("data"), RealTree(place.clone()));
    let backups = database.backups().expect("served");
    // The start has then listed the directory, and does not see the later ones.
    wait_until("the start removed it", || !earlier.exists());
    let remainder = place.join("backup-1750000000000002");
    make(&remainder, &[SEGMENT, "checkpoints/checkpoint-0000000000000200.ckpt"]);
    backups.remove("1750000000000002").expect("removed");
    assert!(!remainder.exists());
    let others = ["backup-1750000000000003", "backup-20260301"].map(|name| place.join(name));
    make(&others[0], &["notes"]);
    make(&others[1], &[SEGMENT]);
    for id in ["1750000000000002", "1750000000000003", "20260301"] {
        let refused = backups.remove(id);
        assert!(matches!(refused, Err(BackupError::NotFound)), "{id}: {refused:?}");
    }
    assert!(others.iter().all(|dir| dir.exists()));
    close(database);
}

/// The state of a disk whose server is gone.
#[derive(Default)]
struct StuckDisk {
    is_stuck: AtomicBool,
    /// Operations that hang.
    hanging: AtomicUsize,
}

impl StuckDisk {
    fn wait(&self) {
        self.hanging.fetch_add(1, Ordering::AcqRel);
        while self.is_stuck.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(1));
        }
        self.hanging.fetch_sub(1, Ordering::AcqRel);
    }

    /// Hangs from now on, and waits until an operation does.
    fn stick(&self, begin: impl FnOnce()) {
        self.is_stuck.store(true, Ordering::Release);
        begin();
        wait_until("an operation hangs", || self.hanging.load(Ordering::Acquire) > 0);
    }

    fn release(&self) {
        self.is_stuck.store(false, Ordering::Release);
    }
}

/// The operation of a tree that hangs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StuckOperation {
    List,
    Prepare,
}

struct StuckTree(RealTree, Arc<StuckDisk>, StuckOperation);

impl StuckTree {
    fn wait(&self, operation: StuckOperation) {
        if operation == self.2 {
            self.1.wait();
        }
    }
}

impl DirTree for StuckTree {
    fn open(&self, path: &str) -> Result<Arc<dyn Disk>, DiskError> {
        self.0.open(path)
    }
    fn make(&self, path: &str) -> Result<Arc<dyn Disk>, DiskError> {
        self.0.make(path)
    }
    fn is_free(&self, name: &str) -> Result<bool, DiskError> {
        self.0.is_free(name)
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.0.rename(from, to)
    }
    fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.0.remove(name)
    }
    fn sync(&self) -> Result<(), DiskError> {
        self.0.sync()
    }
    fn prepare(&self) -> Result<(), DiskError> {
        self.wait(StuckOperation::Prepare);
        self.0.prepare()
    }
    fn list(&self) -> Result<Vec<String>, DiskError> {
        self.wait(StuckOperation::List);
        self.0.list()
    }
    fn entries(&self, path: &str) -> Result<Option<Vec<OsString>>, DiskError> {
        self.0.entries(path)
    }
    fn path(&self, path: &str) -> PathBuf {
        self.0.path(path)
    }
}

#[test]
fn backup_that_waits_for_its_directory_delays_no_other_question() {
    let root = tempfile::tempdir().expect("a directory");
    let disk = Arc::new(StuckDisk::default());
    let tree = StuckTree(
        RealTree(root.path().join("backups")),
        disk.clone(),
        StuckOperation::List,
    );
    let database = open(&root.path().join("data"), tree);
    let backups = database.backups().expect("served").clone();
    let (sender, begun) = mpsc::channel();
    let creating = backups.clone();
    disk.stick(|| {
        thread::spawn(move || sender.send(creating.create(false).is_ok()));
    });
    let (sender, answered) = mpsc::channel();
    let asked = backups.clone();
    thread::spawn(move || sender.send(asked.find("1").is_none()));
    let answer = answered.recv_timeout(WAIT_MAX);
    disk.release();
    assert_eq!(answer, Ok(true), "it waits for the lock");
    assert_eq!(begun.recv_timeout(WAIT_MAX), Ok(true));
    close(database);
}

#[test]
fn stop_leaves_a_backup_behind_whose_directory_hangs() {
    let root = tempfile::tempdir().expect("a directory");
    let disk = Arc::new(StuckDisk::default());
    let tree = StuckTree(
        RealTree(root.path().join("backups")),
        disk.clone(),
        StuckOperation::Prepare,
    );
    let database = Arc::new(open(&root.path().join("data"), tree));
    let backups = database.backups().expect("served").clone();
    let mut begun = None;
    disk.stick(|| begun = backups.create(false).ok());
    let begun = begun.expect("begun");
    let (sender, ended) = mpsc::channel();
    let closing = database.clone();
    thread::spawn(move || sender.send(closing.close().is_ok()));
    let closed = ended.recv_timeout(WAIT_MAX);
    disk.release();
    assert_eq!(closed, Ok(true), "the stop waits for the disk");
    // The thread that was left behind makes no backup any more.
    let state = || backups.find(&begun.id).map(|info| info.state);
    wait_until("the backup is given up", || state() == Some(BackupPhase::Failed));
    let left = || fs::read_dir(root.path().join("backups")).expect("listed").count();
    wait_until("nothing is left", || left() == 0);
}
