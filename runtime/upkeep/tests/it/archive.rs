//! The archive: files that the data directory released are restored, damaged, in the way, and expired.

use crate::common;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::common::{
    Moment, close, config, digest_of, files, fill, fill_bank, moment, snapshot, take, transfer, wait_until, wasm,
};
use reprise_backup::{
    ArchiveBounds, ArchiveError, DirHandle, DirTree, Point, RealTree, RestoreError, restore, restore_archived,
};
use reprise_database::{Database, DatabaseConfig};
use reprise_env::{Clock, Disk, DiskError, DiskFile, DiskFilter, FilteredDisk, RealClock};
use reprise_observe::Notice;
use reprise_upkeep::{ArchiveStatus, BackupError, BackupPhase, Backups};

const WAIT_MAX: Duration = Duration::from_secs(120);

fn open_with(dir: &Path, archive: &Path, keep: Option<Duration>) -> Result<Database, ArchiveError> {
    let held_bytes_max = u64::MAX;
    let bounds = ArchiveBounds {
        keep,
        held_bytes_max,
        open_max: ArchiveBounds::OPEN_MAX,
    };
    open_within(dir, archive, bounds)
}

fn open_within(dir: &Path, archive: &Path, bounds: ArchiveBounds) -> Result<Database, ArchiveError> {
    let database = Database::open(config(dir, 2)).expect("open");
    database.archive_to(&DirHandle::at(archive), bounds)?;
    database.recover().expect("recover");
    Ok(database)
}

fn status(database: &Database) -> ArchiveStatus {
    common::checkpointer(database).archive().expect("an archive")
}

/// Waits until the archive took the files that the last checkpoint replaced. At most two checkpoints are left, as they are kept.
fn wait_taken(dir: &Path) {
    wait_until("the archive took it", || files(dir, "checkpoints").len() <= 2);
    thread::sleep(Duration::from_millis(5));
}

/// Rounds of calls, each ended by a checkpoint, so that all but the last two are in the archive.
fn history(database: &Database, dir: &Path, from: i64, rounds: i64) -> Vec<Moment> {
    let mut moments = Vec::new();
    for round in from..from + rounds {
        fill(database, round * 10_000, 600);
        moments.push(moment(database));
        transfer(database, round);
        take(database);
        wait_taken(dir);
        moments.push(moment(database));
    }
    moments
}

fn begin(dir: &Path, archive: &Path, keep: Option<Duration>) -> Database {
    let database = open_with(dir, archive, keep).expect("an archive");
    fill_bank(&database, 200);
    database
}

struct Dirs {
    root: tempfile::TempDir,
    data: PathBuf,
    archive: PathBuf,
}

fn dirs() -> Dirs {
    let root = tempfile::tempdir().expect("a directory");
    let (data, archive) = (root.path().join("data"), root.path().join("archive"));
    Dirs { root, data, archive }
}

#[test]
fn every_moment_comes_back_from_a_live_directory_and_its_archive() {
    let Dirs { root, data, archive } = dirs();
    let database = begin(&data, &archive, None);
    let moments = history(&database, &data, 1, 6);
    assert!(files(&data, "log")[0].to_str() > data.join("log/log-0000000000000000.seg").to_str());
    wait_until("the log is in the archive", || status(&database).files >= 7);
    let told = status(&database);
    assert!(told.failure.is_none() && told.bytes > 0, "{told:?}");
    let early = restore(&data, &root.path().join("early"), Point::Lsn(moments[0].lsn));
    assert!(matches!(early, Err(RestoreError::TooEarly { .. })));
    // While it runs.
    let all = moments.iter().enumerate().map(|(at, found)| {
        (
            at,
            found,
            match at % 3 {
                0 => Point::Lsn(found.lsn),
                1 => Point::Txn(found.txn_id),
                _ => Point::Time(found.txn_id.time_us()),
            },
        )
    });
    for (at, found, point) in all {
        let target = root.path().join(format!("live-{at}"));
        let report = restore_archived(&data, &archive, &target, point).expect("restored");
        assert_eq!(report.last.map(|last| last.1), Some(found.txn_id), "{point:?}");
        assert_eq!(digest_of(&target), found.digest, "{point:?}");
    }
    // The archive restores without the data directory up to its own end.
    database.close().expect("close");
    let target = root.path().join("alone");
    restore(&archive, &target, Point::Lsn(moments[2].lsn)).expect("restored");
    assert_eq!(digest_of(&target), moments[2].digest);
}

#[test]
fn a_live_directory_is_read_while_it_is_written() {
    let Dirs { root, data, archive } = dirs();
    let database = begin(&data, &archive, None);
    let found = moment(&database);
    let until = Instant::now() + Duration::from_secs(3);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 1;
            while Instant::now() < until {
                fill(&database, round * 10_000, 500);
                take(&database);
                round += 1;
            }
        });
        let mut at = 0;
        while Instant::now() < until {
            let target = root.path().join(at.to_string());
            restore_archived(&data, &archive, &target, Point::Lsn(found.lsn)).expect("restored");
            assert_eq!(digest_of(&target), found.digest);
            let target = root.path().join(format!("{at}-end"));
            restore_archived(&data, &archive, &target, Point::End).expect("restored");
            at += 1;
        }
    });
}

#[test]
fn a_damaged_file_of_the_archive_is_refused_by_name_and_what_lies_behind_needs_it_not() {
    let Dirs { root, data, archive } = dirs();
    let database = begin(&data, &archive, None);
    let moments = history(&database, &data, 1, 5);
    close(database);
    let damage = |path: &Path| {
        let mut bytes = fs::read(path).expect("a file");
        let at = bytes.len() / 3;
        bytes[at..at + 64].iter_mut().for_each(|byte| *byte ^= 0x5a);
        fs::write(path, bytes).expect("written");
    };
    let checkpoints = files(&archive, "checkpoints");
    damage(&checkpoints[1]);
    let target = root.path().join("passed-over");
    let found = &moments[3];
    let report = restore_archived(&data, &archive, &target, Point::Lsn(found.lsn)).expect("by the one before");
    let name = checkpoints[1]
        .file_name()
        .and_then(|name| name.to_str())
        .expect("a name");
    assert!(
        report.passed_over.iter().any(|reason| reason.contains(name)),
        "{:?}",
        report.passed_over
    );
    assert_eq!(digest_of(&target), found.digest);
    let segments = files(&archive, "log");
    // A copy of the log may begin within a segment: the one that the copy's beginning lies in.
    let copied = report.log.files.first().expect("log was read").as_str();
    let is_needed = |path: &&PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name <= copied)
    };
    let needed = segments
        .iter()
        .rfind(is_needed)
        .expect("the restore read the archive's log");
    damage(needed);
    let error = restore_archived(&data, &archive, &root.path().join("x"), Point::Lsn(found.lsn)).expect_err("refused");
    assert!(error.to_string().contains(needed.to_str().expect("UTF-8")), "{error}");
    assert!(!root.path().join("x").exists());
}

#[test]
fn expired_archive_is_deleted_and_the_rest_is_whole() {
    let Dirs { root, data, archive } = dirs();
    let keep = Duration::from_millis(1_500);
    let database = begin(&data, &archive, Some(keep));
    let old = history(&database, &data, 1, 4);
    thread::sleep(keep + Duration::from_millis(300));
    let young = history(&database, &data, 10, 4);
    let begun = young.first().expect("some").txn_id.time_us();
    // The last files may expire until the archive's thread has ended.
    close(database);
    let past = SystemTime::now() - keep;
    let past_us = past.duration_since(UNIX_EPOCH).expect("later").as_micros() as i64;
    let error = restore_archived(&data, &archive, &root.path().join("x"), Point::Lsn(old[0].lsn)).expect_err("past");
    assert!(matches!(error, RestoreError::TooEarly { .. }), "{error}");
    // Files that were young enough when the last checkpoint was archived are still there.
    for (at, found) in young.iter().enumerate() {
        if found.txn_id.time_us() < past_us {
            continue;
        }
        let target = root.path().join(at.to_string());
        restore_archived(&data, &archive, &target, Point::Txn(found.txn_id)).expect("restored");
        assert_eq!(digest_of(&target), found.digest, "{begun}");
    }
}

/// The system's clocks, of which each is moved by itself.
struct MovedClock {
    real: RealClock,
    wall_us: AtomicI64,
    passed_us: AtomicU64,
}

impl Clock for MovedClock {
    fn now_us(&self) -> i64 {
        self.real.now_us() + self.wall_us.load(Ordering::Relaxed)
    }
    fn monotonic_ns(&self) -> u64 {
        self.real.monotonic_ns() + 1_000 * self.passed_us.load(Ordering::Relaxed)
    }
}

const DAY_US: u64 = 86_400_000_000;

#[test]
fn archive_expires_when_time_has_passed_and_not_when_the_wall_clock_jumps() {
    let Dirs { root, data, archive } = dirs();
    let clock = Arc::new(MovedClock {
        real: RealClock::new(),
        wall_us: AtomicI64::new(0),
        passed_us: AtomicU64::new(0),
    });
    let moved = clock.clone();
    let opened = Database::open_changed(config(&data, 2), |around| around.clock = moved);
    let database = opened.expect("open");
    let bounds = ArchiveBounds {
        keep: Some(Duration::from_micros(14 * DAY_US)),
        held_bytes_max: u64::MAX,
        open_max: ArchiveBounds::OPEN_MAX,
    };
    database
        .archive_to(&DirHandle::at(&archive), bounds)
        .expect("an archive");
    database.recover().expect("recover");
    fill_bank(&database, 200);
    let jump = |days: i64| clock.wall_us.fetch_add(days * DAY_US as i64, Ordering::Relaxed);
    let expiries = || {
        let taken = database.router().notices().take().notices;
        let subjects = taken.into_iter().filter_map(|notice| match notice {
            Notice::Controlled {
                operation: "expire-archive",
                subject,
                ..
            } => Some(subject),
            _ => None,
        });
        subjects.collect::<Vec<_>>()
    };
    let moments = history(&database, &data, 1, 4);
    jump(15);
    history(&database, &data, 10, 2);
    jump(-15);
    history(&database, &data, 12, 1);
    assert_eq!(expiries(), [""; 0]);
    let first = Point::Lsn(moments[0].lsn);
    let target = root.path().join("kept");
    restore_archived(&data, &archive, &target, first).expect("a jump removes nothing");
    assert_eq!(digest_of(&target), moments[0].digest);
    jump(15);
    clock.passed_us.fetch_add(15 * DAY_US, Ordering::Relaxed);
    history(&database, &data, 20, 2);
    let mut told = Vec::new();
    wait_until("the expiry is told", || {
        told.extend(expiries());
        !told.is_empty()
    });
    assert!(told[0].contains("files removed, oldest point left: LSN "), "{told:?}");
    let error = restore_archived(&data, &archive, &root.path().join("x"), first).expect_err("it is expired");
    assert!(matches!(error, RestoreError::TooEarly { .. }), "{error}");
    close(database);
}

#[test]
fn an_archive_that_takes_nothing_stops_nothing_and_is_made_up_for() {
    let Dirs { root, data, archive } = dirs();
    let database = begin(&data, &archive, None);
    let mut moments = history(&database, &data, 1, 3);
    // Directories have the places of the files that are to be written.
    let in_the_way = ["log/archive.tmp", "checkpoints/archive.tmp"].map(|name| archive.join(name));
    in_the_way
        .iter()
        .for_each(|folder| fs::create_dir_all(folder.join("x")).expect("made"));
    fill(&database, 90_000, 1_000);
    moments.push(moment(&database));
    take(&database);
    wait_until("the failure is told", || status(&database).failure.is_some());
    fill(&database, 95_000, 1_000);
    take(&database);
    assert!(files(&data, "checkpoints").len() > 2, "nothing goes that was not taken");
    assert!(database.router().status().log_error.is_none());
    in_the_way
        .iter()
        .for_each(|folder| fs::remove_dir_all(folder).expect("removed"));
    moments.extend(history(&database, &data, 20, 2));
    wait_until("the archive takes files again", || status(&database).failure.is_none());
    let told = status(&database);
    assert!(told.failure.is_none() && told.failures >= 1, "{told:?}");
    for (at, found) in moments.iter().enumerate() {
        let target = root.path().join(at.to_string());
        restore_archived(&data, &archive, &target, Point::Lsn(found.lsn)).expect("restored");
        assert_eq!(digest_of(&target), found.digest);
    }
}

/// Files that wait for a stuck archive have a limit. Beyond it they are released, the archive ends there, and this is reported.
#[test]
fn an_archive_that_takes_nothing_for_too_long_is_given_up() {
    let Dirs { root, data, archive } = dirs();
    let held_bytes_max = 400 << 10;
    let bounds = ArchiveBounds {
        keep: None,
        held_bytes_max,
        open_max: ArchiveBounds::OPEN_MAX,
    };
    let database = open_within(&data, &archive, bounds).expect("an archive");
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    let moments = history(&database, &data, 1, 4);
    let in_the_way = ["log/archive.tmp", "checkpoints/archive.tmp"].map(|name| archive.join(name));
    in_the_way
        .iter()
        .for_each(|folder| fs::create_dir_all(folder.join("x")).expect("made"));
    let round = |number: i64| {
        fill(&database, 1_000_000 + number * 10_000, 4_000);
        let before = status(&database);
        take(&database);
        wait_until("the failure is told", || {
            status(&database).failures > before.failures || before.ends_at.is_some()
        });
        status(&database)
    };
    let first = round(0);
    assert!(
        first.held_bytes > 0 && first.held_bytes <= held_bytes_max && first.ends_at.is_none(),
        "{first:?}"
    );
    let mut rounds = 1..100;
    let last = loop {
        let told = round(rounds.next().expect("it has an end"));
        assert!(told.held_bytes <= held_bytes_max, "{told:?}");
        if told.ends_at.is_some() {
            break told;
        }
    };
    let end = last.ends_at.expect("it is told");
    let (_, reason) = last.failure.expect("it is told");
    assert!(reason.contains("--archive-hold-max"), "{reason}");
    wait_taken(&data);
    round(200);
    wait_taken(&data);
    assert!(status(&database).failure.is_some(), "it stays told");
    assert!(database.router().status().log_error.is_none());
    close(database);
    // The archive is whole up to its end. No restore reaches the points behind it, whose files are gone.
    assert!(moments.iter().any(|found| found.lsn < end) && moments.iter().any(|found| found.lsn >= end));
    for (at, found) in moments.iter().enumerate() {
        let target = root.path().join(at.to_string());
        let restored = restore_archived(&data, &archive, &target, Point::Lsn(found.lsn));
        match found.lsn < end {
            true => {
                restored.expect("restored");
                assert_eq!(digest_of(&target), found.digest);
            }
            false => assert!(restored.is_err() && !target.exists(), "{:?} of {end:?}", found.lsn),
        }
    }
    in_the_way
        .iter()
        .for_each(|folder| fs::remove_dir_all(folder).expect("removed"));
    let gap = open_within(&data, &archive, bounds).err().expect("refused");
    assert!(matches!(gap, ArchiveError::Gap { .. }), "{gap}");
    open_within(&data, &root.path().join("next"), bounds).expect("another directory");
}

#[test]
fn archive_belongs_to_one_database_continues_at_its_end_and_is_no_data_directory() {
    let Dirs { root, data, archive } = dirs();
    let database = begin(&data, &archive, None);
    history(&database, &data, 1, 4);
    // More than one file of the log: the first is one that is not written any more.
    for round in 0..10 {
        fill(&database, 5_000_000 + round * 1_000, 1_000);
    }
    assert!(files(&data, "log").len() > 3);
    close(database);
    // A crash left a part of a file, and a file that was taken while its original was not yet removed.
    fs::write(archive.join("log/archive.tmp"), b"half").expect("written");
    let live = files(&data, "log").remove(0);
    fs::copy(&live, archive.join("log").join(live.file_name().expect("a name"))).expect("copied");
    let database = open_with(&data, &archive, None).expect("goes on");
    assert!(!archive.join("log/archive.tmp").exists());
    history(&database, &data, 20, 2);
    assert!(status(&database).failure.is_none(), "{:?}", status(&database));
    let other = root.path().join("other");
    let in_use = open_with(&other, &archive, None).err().expect("refused");
    assert!(matches!(in_use, ArchiveError::InUse(_)), "{in_use}");
    let own = open_with(&other, &other, None).err().expect("refused");
    assert!(matches!(own, ArchiveError::InUse(_)), "{own}");
    close(database);
    let foreign = open_with(&other, &archive, None).err().expect("refused");
    assert!(matches!(foreign, ArchiveError::OtherDatabase { .. }), "{foreign}");
    // A server that ran without the archive for a while leaves a gap, and the gap is reported.
    let (database, _) = common::open(&data, 2);
    for round in 40..44 {
        fill(&database, round * 10_000, 2_000);
        take(&database);
    }
    close(database);
    let gap = open_with(&data, &archive, None).err().expect("refused");
    assert!(matches!(gap, ArchiveError::Gap { .. }), "{gap}");
}

/// The path of a disk that is not mounted would otherwise fill the disk below it.
#[test]
fn archive_below_missing_directory_is_refused_and_makes_nothing() {
    let Dirs { root, data, .. } = dirs();
    let mount = root.path().join("mount");
    let archive = mount.join("archive");
    let refused = open_with(&data, &archive, None).err().expect("refused").to_string();
    assert!(
        refused.contains(&format!("{} is missing: mount its disk", mount.display())),
        "{refused}"
    );
    assert!(!mount.exists());
    fs::create_dir(&mount).expect("mounted");
    let database = open_with(&data, &archive, None).expect("an archive");
    assert!(archive.is_dir());
    close(database);
}

/// A tree whose files take nothing while they hang, as those of a network disk whose server is gone.
struct HangingTree(RealTree, Arc<Hanging>);

#[derive(Default)]
struct Hanging(AtomicBool);

impl DirTree for HangingTree {
    fn open(&self, path: &str) -> Result<Arc<dyn Disk>, DiskError> {
        self.hang(self.0.open(path))
    }
    fn make(&self, path: &str) -> Result<Arc<dyn Disk>, DiskError> {
        self.hang(self.0.make(path))
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
        self.0.prepare()
    }
    fn list(&self) -> Result<Vec<String>, DiskError> {
        self.0.list()
    }
    fn path(&self, path: &str) -> PathBuf {
        self.0.path(path)
    }
}

impl HangingTree {
    fn hang(&self, disk: Result<Arc<dyn Disk>, DiskError>) -> Result<Arc<dyn Disk>, DiskError> {
        Ok(Arc::new(FilteredDisk::new(disk?, self.1.clone())))
    }
}

impl Hanging {
    fn wait(&self) {
        while self.0.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl DiskFilter for Hanging {
    fn list(&self, disk: &dyn Disk) -> Result<Vec<String>, DiskError> {
        self.wait();
        disk.list()
    }

    fn write_at(&self, file: &dyn DiskFile, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.wait();
        file.write_at(offset, bytes)
    }
}

#[test]
fn archive_on_a_hanging_disk_is_abandoned_and_delays_no_thread() {
    let Dirs { root, data, archive } = dirs();
    let hangs = Arc::new(Hanging::default());
    let bounds = ArchiveBounds {
        keep: None,
        held_bytes_max: 400 << 10,
        open_max: ArchiveBounds::OPEN_MAX,
    };
    let database = Database::open(config(&data, 2)).expect("open");
    let tree = HangingTree(RealTree(archive.clone()), hangs.clone());
    database
        .archive_to(&DirHandle::new(Arc::new(tree), ""), bounds)
        .expect("an archive");
    database.recover().expect("recover");
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    let moments = history(&database, &data, 1, 3);
    hangs.0.store(true, Ordering::Relaxed);
    let end = (0..100).find_map(|round| {
        fill(&database, 1_000_000 + round * 10_000, 4_000);
        take(&database);
        // Backups and the list of checkpoints do not wait either.
        assert!(database.router().status().log_error.is_none());
        status(&database).ends_at
    });
    let end = end.expect("it was given up");
    wait_until("the failure is told", || status(&database).failure.is_some());
    let (_, reason) = status(&database).failure.expect("it stays told");
    assert!(reason.contains("--archive-hold-max"), "{reason}");
    // Later files are released as without an archive.
    fill(&database, 3_000_000, 4_000);
    take(&database);
    wait_taken(&data);
    let begun = Instant::now();
    database.close().expect("close");
    assert!(
        begun.elapsed() < WAIT_MAX / 2,
        "a stop waits for it no longer than it must"
    );
    hangs.0.store(false, Ordering::Relaxed);
    drop(database);
    for (at, found) in moments.iter().enumerate().filter(|(_, found)| found.lsn < end) {
        let target = root.path().join(format!("restored-{at}"));
        restore_archived(&data, &archive, &target, Point::Lsn(found.lsn)).expect("restored");
        assert_eq!(digest_of(&target), found.digest);
    }
}

#[test]
fn archive_on_a_hanging_disk_at_the_start_is_reported() {
    let Dirs { data, archive, .. } = dirs();
    let hangs = Arc::new(Hanging(AtomicBool::new(true)));
    let bounds = ArchiveBounds {
        keep: None,
        held_bytes_max: 1 << 20,
        open_max: Duration::from_millis(50),
    };
    let database = Database::open(config(&data, 2)).expect("open");
    let place = DirHandle::new(Arc::new(HangingTree(RealTree(archive.clone()), hangs.clone())), "");
    let begun = Instant::now();
    let told = database.archive_to(&place, bounds).expect_err("it does not answer");
    assert!(begun.elapsed() < WAIT_MAX / 2);
    let ArchiveError::Hangs {
        archive: named,
        seconds,
    } = &told
    else {
        panic!("{told}");
    };
    assert_eq!((named, *seconds), (&archive, 0.05));
    assert!(told.to_string().contains("did not answer within 0.05 s"), "{told}");
    // The operator continues without it and has a complete database; the archive may be back at the next start.
    database.recover().expect("recover");
    close(database);
    hangs.0.store(false, Ordering::Relaxed);
    wait_until("what hung has ended", || match open_with(&data, &archive, None) {
        Err(ArchiveError::InUse(_)) => false,
        opened => opened.expect("an archive").close().is_ok(),
    });
}

#[test]
fn backups_that_would_be_too_much_are_refused_before_they_begin() {
    let Dirs { root, data, .. } = dirs();
    let database = Database::open(config(&data, 2)).expect("open");
    let place = root.path().join("backups");
    database.serve_backups(Arc::new(RealTree(place.clone())), 1 << 20);
    database.recover().expect("recover");
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    let backups = database.backups().expect("served");
    let mut made = 0;
    let refused = loop {
        fill(&database, made * 10_000, 2_000);
        take(&database);
        match backups.create(false) {
            Ok(info) => wait_made(backups, &info.id),
            Err(refused) => break refused,
        }
        made += 1;
        assert!(made < 100, "there is an end");
    };
    assert!(matches!(&refused, BackupError::Full(_)) && made > 0, "{refused}");
    assert!(refused.to_string().contains("--backup-max"), "{refused}");
    assert_eq!(
        fs::read_dir(&place).expect("read").count() as i64,
        made,
        "nothing is left behind"
    );
    let first = backups.list().pop().expect("one");
    for backup in backups.list() {
        backups.remove(&backup.id).expect("removed");
    }
    assert!(backups.find(&first.id).is_none());
    backups.create(false).expect("there is room again");
}

#[test]
fn server_keeps_nothing_of_a_backup_that_was_removed() {
    let Dirs { root, data, .. } = dirs();
    let database = Database::open(config(&data, 2)).expect("open");
    let place = root.path().join("backups");
    database.serve_backups(Arc::new(RealTree(place.clone())), 1 << 30);
    database.recover().expect("recover");
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    fill(&database, 0, 100);
    take(&database);
    let backups = database.backups().expect("served");
    let made = backups.create(false).expect("begun");
    wait_made(backups, &made.id);
    let seconds = || backups.find(&made.id).expect("it is listed").seconds;
    assert!(seconds().is_some());
    let dir = files(&place, "").pop().expect("the backup's directory");
    let mut held = snapshot(&dir);
    for path in files(&dir, "").into_iter().filter(|path| path.is_file()) {
        let bytes = fs::read(&path).expect("a file");
        held.insert(path, bytes);
    }
    backups.remove(&made.id).expect("removed");
    // The operator puts a copy of it back. A manifest does not say how long the backup took.
    for (path, bytes) in held {
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, bytes).expect("written");
    }
    assert_eq!(seconds(), None);
}

fn wait_made(backups: &Backups, id: &str) {
    let found = || backups.find(id).expect("it is listed");
    wait_until("it is made", || found().state != BackupPhase::Running);
    assert_eq!(found().error, None);
}

/// Its log has other files from the point on. Among those of its source no restore would find its way.
#[test]
fn a_restored_directory_does_not_continue_the_archive_of_its_source() {
    let Dirs { root, data, archive } = dirs();
    let database = begin(&data, &archive, None);
    let moments = history(&database, &data, 1, 6);
    wait_until("the log is in the archive", || status(&database).files >= 7);
    close(database);
    let restored = root.path().join("restored");
    restore_archived(&data, &archive, &restored, Point::Lsn(moments[2].lsn)).expect("restored");
    let refused = open_with(&restored, &archive, None).map(drop);
    assert!(matches!(refused, Err(ArchiveError::OtherFile { .. })), "{refused:?}");
    close(open_with(&data, &archive, None).expect("its own archive"));
}

/// Makes a directory whose log was rewound and then grew by `accounts` records. Its archive has a checkpoint of the lost history, and no
/// log yet. Returns the file of that checkpoint, and the digest of the directory's tables.
fn rewound(data: &Path, archive: &Path, accounts: i64) -> (String, u64) {
    let (database, _) = common::open(data, 2);
    fill_bank(&database, 100);
    close(database);
    let fork = common::copy_log(data);
    let (database, _) = common::open(data, 2);
    fill(&database, 1_000, 100);
    let lost = take(&database).file;
    close(database);
    for folder in ["log", "checkpoints"] {
        fs::create_dir_all(archive.join(folder)).expect("made");
    }
    let file = Path::new("checkpoints").join(&lost);
    fs::rename(data.join(&file), archive.join(&file)).expect("archived");
    common::put_log(data, &fork);
    let (database, _) = common::open(data, 2);
    fill(&database, 2_000, accounts);
    let digest = common::digest_now(&database);
    close(database);
    (lost, digest)
}

#[test]
fn archived_checkpoint_of_a_lost_history_is_passed_over_by_a_restore_and_refused_at_a_start() {
    // The log ends before the checkpoint, or went beyond it since.
    for accounts in [10, 300] {
        let Dirs { root, data, archive } = dirs();
        let (lost, digest) = rewound(&data, &archive, accounts);
        let target = root.path().join("restored");
        let report = restore_archived(&data, &archive, &target, Point::End).expect("restored");
        assert_eq!(report.checkpoint, None);
        let is_told = report.passed_over.iter().any(|reason| reason.contains(&lost));
        assert_eq!(is_told, accounts == 300, "{:?}", report.passed_over);
        assert_eq!(digest_of(&target), digest);
        let refused = open_with(&data, &archive, None).map(drop);
        assert!(
            matches!(&refused, Err(ArchiveError::OtherFile { name, .. }) if *name == lost),
            "{refused:?}"
        );
    }
}

#[test]
fn archive_without_log_goes_on_when_its_checkpoint_is_of_the_live_log() {
    let Dirs { root, data, archive } = dirs();
    let open = |dir: &Path| {
        let settings = DatabaseConfig {
            segment_bytes: 4 << 20, // one file of the log has all of it
            ..config(dir, 2)
        };
        let bounds = ArchiveBounds {
            keep: None,
            held_bytes_max: u64::MAX,
            open_max: ArchiveBounds::OPEN_MAX,
        };
        let database = Database::open(settings).expect("open");
        database.archive_to(&DirHandle::at(&archive), bounds)?;
        database.recover().expect("recover");
        Ok::<_, ArchiveError>(database)
    };
    let database = open(&data).expect("an archive");
    fill_bank(&database, 200);
    for round in 0..3 {
        transfer(&database, round);
        take(&database);
        wait_taken(&data);
    }
    wait_until("the first one is in the archive", || status(&database).files == 1);
    assert!(files(&archive, "log").is_empty());
    close(database);
    close(open(&data).expect("its own archive"));
    let foreign = open(&root.path().join("other")).map(drop);
    assert!(
        matches!(foreign, Err(ArchiveError::OtherDatabase { .. })),
        "{foreign:?}"
    );
}
