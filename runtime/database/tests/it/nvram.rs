//! NVRAM before the log's files. The answered rows are there again, however the process ended and on whatever device the next one is
//! started.

use crate::common;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    close, config, digest_now, fill, fill_bank, i64s, recovered, submit, take, transfer, transfer_until, wasm,
    with_section,
};
use reprise_base::{Epoch, Lsn};
use reprise_database::{
    AfterImage, CommitMode, Database, DatabaseConfig, DeviceConfig, DeviceError, Environment, FlushPolicy, LogPolicy,
    NvramConfig, OpenError, RegionNote, bring_home_in,
};
use reprise_env::{Disk, DiskError, DiskFilter, FilteredDisk, RealDisk};
use reprise_nvram::{MapRegions, OpenMemory, Owner, Region};
use reprise_router::{DeployError, LogSearch, ReplyOutcome};
use reprise_test_crash::copy_dir;

const REGION_BYTES: u64 = 8 << 20;

fn nvram(path: &Path) -> DeviceConfig {
    DeviceConfig::Nvram(NvramConfig {
        path: path.to_owned(),
        bytes: Some(REGION_BYTES),
        copy_at_entries: 80_000,
        flush: FlushPolicy::OnCommit,
        assume_persistent: true,
    })
}

fn nvram_of(config: &mut DatabaseConfig) -> &mut NvramConfig {
    match &mut config.device {
        DeviceConfig::Nvram(nvram) => nvram,
        DeviceConfig::File => unreachable!(),
    }
}

/// Forms of the log, and the times at which changes go to the region.
const WAYS: [(LogPolicy, FlushPolicy); 7] = [
    (LogPolicy::Command, FlushPolicy::OnCommit),
    (LogPolicy::Physiological, FlushPolicy::OnCommit),
    (LogPolicy::Both, FlushPolicy::OnCommit),
    (LogPolicy::Physiological, FlushPolicy::OnInsert),
    (LogPolicy::Both, FlushPolicy::OnInsert),
    (LogPolicy::Auto, FlushPolicy::OnInsert),
    (LogPolicy::Physiological, FlushPolicy::OnInsertFence),
];

/// A data directory, and a region beside it.
struct Place {
    root: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a directory");
        fs::create_dir(root.path().join("data")).expect("a directory");
        Self { root }
    }

    fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    fn region(&self) -> PathBuf {
        self.root.path().join("region")
    }

    fn on_nvram(&self, sites: u16) -> DatabaseConfig {
        DatabaseConfig {
            device: nvram(&self.region()),
            ..config(&self.data(), sites)
        }
    }

    /// The configuration whose changes go to the region as `flush` says.
    fn flushed(&self, sites: u16, log: LogPolicy, flush: FlushPolicy) -> DatabaseConfig {
        let mut config = self.on_nvram(sites);
        nvram_of(&mut config).flush = flush;
        DatabaseConfig { log, ..config }
    }

    fn on_files(&self, sites: u16) -> DatabaseConfig {
        config(&self.data(), sites)
    }

    /// The files that a machine would find if its process died now.
    fn killed(&self) -> Self {
        let other = Self::new();
        // The region is copied first. The records that go to the files meanwhile then lie in both.
        fs::copy(self.region(), other.region()).expect("copied");
        copy_dir(&self.data(), &other.data()).expect("copied");
        let note = other.data().join("nvram.json");
        if note.exists() {
            let text = fs::read_to_string(&note).expect("a note");
            let (old, new) = (self.region(), other.region());
            fs::write(
                &note,
                text.replace(old.to_str().expect("text"), new.to_str().expect("text")),
            )
            .expect("written");
        }
        other
    }
}

fn refusal(config: DatabaseConfig) -> OpenError {
    Database::open(config).err().expect("it is refused")
}

fn has_note(place: &Place) -> bool {
    place.data().join("nvram.json").exists()
}

#[test]
fn acknowledged_writes_survive_a_kill_with_any_settings() {
    // Records in a region alone. On a slow disk one region may have been emptied before it was copied.
    let mut drained = 0;
    for (log, flush) in WAYS {
        let place = Place::new();
        let database = recovered(place.flushed(2, log, flush));
        fill_bank(&database, 200);
        (0..10).for_each(|round| transfer(&database, round));
        let (digest, durable) = (digest_now(&database), database.router().status().durable_lsn);
        let killed = [place.killed(), place.killed(), place.killed(), place.killed()];
        database.close().expect("close");
        // Other sites, the files alone, another region.
        let again = [
            killed[0].on_nvram(2),
            killed[1].flushed(4, log, flush),
            killed[2].on_files(3),
            DatabaseConfig {
                device: nvram(&killed[3].root.path().join("other")),
                ..killed[3].on_files(1)
            },
        ];
        for (number, config) in again.into_iter().enumerate() {
            let is_on_files = config.device == DeviceConfig::File;
            let database = recovered(DatabaseConfig { log, ..config });
            drained += database.drained().records;
            assert_eq!(database.drained().void, 0, "{log:?}, {number}");
            assert_eq!(digest_now(&database), digest, "{log:?}, {number}");
            assert_eq!(database.router().status().durable_lsn, durable);
            assert_ne!(has_note(&killed[number]), is_on_files);
            transfer(&database, 77);
            database.close().expect("close");
            assert!(!has_note(&killed[number]), "the files have all");
        }
    }
    assert!(drained > 0);
}

#[test]
fn between_files_and_nvram_a_database_goes_back_and_forth() {
    let place = Place::new();
    let database = recovered(place.on_files(2));
    fill_bank(&database, 200);
    let mut digest = digest_of(database);
    for round in 0..4 {
        let config = match round % 2 {
            0 => place.on_nvram(1 + round),
            _ => place.on_files(2),
        };
        let database = recovered(config);
        assert_eq!(digest_now(&database), digest, "round {round}");
        assert_eq!(database.drained().records, 0, "it was closed in order");
        transfer(&database, i64::from(round));
        digest = digest_of(database);
    }
}

fn digest_of(database: Database) -> u64 {
    let digest = digest_now(&database);
    database.close().expect("close");
    digest
}

#[test]
fn the_log_is_read_as_with_files() {
    let place = Place::new();
    let database = recovered(place.on_nvram(2));
    fill_bank(&database, 200);
    let end = database.router().status().durable_lsn;
    assert_eq!(common::records(&database, Some(Lsn(0))).len() as u64, end.0);
    let newest = LogSearch {
        newest: true,
        limit: 1,
        ..LogSearch::default()
    };
    let reply = submit(&database, &[("open", None, i64s(&[9_999, 5]))]);
    assert_eq!(*reply.get(0).outcome, ReplyOutcome::Committed);
    let lsn = reply.get(0).lsn;
    assert_eq!(lsn, end);
    let newest = database.router().log_records(newest).expect("read");
    assert_eq!(newest.records[0].lsn, lsn);
    assert!(database.router().log_record(lsn).expect("read").is_some());
    database.close().expect("close");
}

#[test]
fn checkpoints_go_with_it_under_load() {
    let place = Place::new();
    let database = recovered(place.on_nvram(2));
    fill_bank(&database, 200);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            transfer_until(&database, &is_over);
        });
        for batch in 1..4 {
            fill(&database, batch * 1000, 100);
            take(&database);
        }
        is_over.store(true, Ordering::Release);
    });
    let digest = digest_now(&database);
    let killed = place.killed();
    database.close().expect("close");
    let reopened = Database::open(killed.on_nvram(3)).expect("open");
    let report = reopened.recover().expect("recover");
    assert!(report.checkpoint.is_some());
    assert_eq!(digest_now(&reopened), digest);
    reopened.close().expect("close");
}

#[test]
fn a_region_that_is_gone_or_older_is_told_and_nothing_is_changed() {
    let place = Place::new();
    let database = recovered(place.on_nvram(1));
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    let older = place.killed();
    close(database);
    let database = recovered(place.on_nvram(1));
    fill(&database, 0, 50);
    let killed = place.killed();
    let digest = digest_of(database);
    // Gone; another making of it; blank.
    let region = fs::read(killed.region()).expect("a region");
    let before = common::snapshot(&killed.data());
    let harms: [&dyn Fn(); 3] = [
        &|| fs::remove_file(killed.region()).expect("removed"),
        &|| assert!(fs::copy(older.region(), killed.region()).is_ok()),
        &|| fs::write(killed.region(), vec![0; REGION_BYTES as usize]).expect("written"),
    ];
    for harm in harms {
        harm();
        for config in [killed.on_nvram(1), killed.on_files(2)] {
            let error = refusal(config);
            assert!(matches!(error, OpenError::Device(DeviceError::Lost { .. })), "{error}");
            assert!(error.to_string().contains("nvram.json"), "{error}");
            assert_eq!(common::snapshot(&killed.data()), before);
        }
    }
    // A flipped bit is damage, and told as such.
    let mut damaged = region.clone();
    damaged[20_480 + 3] ^= 1;
    fs::write(killed.region(), &damaged).expect("written");
    let error = refusal(killed.on_nvram(1));
    assert!(error.to_string().contains("damaged"), "{error}");
    fs::write(killed.region(), &region).expect("written");
    let database = recovered(killed.on_nvram(1));
    assert_eq!(digest_now(&database), digest);
    database.close().expect("close");
}

#[test]
fn others_regions_are_refused_and_left_alone() {
    let (one, two) = (Place::new(), Place::new());
    let theirs = recovered(two.on_nvram(1));
    // The region is in use.
    let error = refusal(DatabaseConfig {
        device: nvram(&two.region()),
        ..one.on_files(1)
    });
    assert!(error.to_string().contains("another process uses"), "{error}");
    let left = two.killed();
    theirs.close().expect("close");
    let before = fs::read(left.region()).expect("a region");
    let on_theirs = |place: &Place| DatabaseConfig {
        device: nvram(&left.region()),
        ..place.on_files(1)
    };
    // A new database, and one that has a log.
    let error = refusal(on_theirs(&one));
    assert!(
        matches!(error, OpenError::Device(DeviceError::OtherDatabase { .. })),
        "{error}"
    );
    recovered(one.on_files(1)).close().expect("close");
    let error = refusal(on_theirs(&one));
    assert!(
        matches!(error, OpenError::Device(DeviceError::OtherDatabase { .. })),
        "{error}"
    );
    // An equal database, without the note that says so.
    fs::remove_file(left.data().join("nvram.json")).expect("removed");
    fs::copy(left.region(), one.root.path().join("copy")).expect("copied");
    assert_eq!(fs::read(left.region()).expect("a region"), before);
    for (bytes, what) in [
        (vec![1; REGION_BYTES as usize], "something else"),
        (vec![1; 4096], "4096 bytes"),
    ] {
        fs::write(left.region(), bytes).expect("written");
        let error = refusal(on_theirs(&one)).to_string();
        assert!(error.contains(what), "{error}");
    }
    assert!(
        RegionNote::load(&reprise_env::RealDisk::open(one.data()).expect("a disk"))
            .expect("read")
            .is_none()
    );
}

/// The layout of another program, older or newer. If the data directory names the region, it may hold acknowledged records, so it is kept.
/// Otherwise it is no region of ours.
#[test]
fn a_region_with_another_layout_version_is_refused_and_left_alone() {
    [2, 4].into_iter().for_each(is_refused_with_version);
}

fn is_refused_with_version(other: u32) {
    let place = Place::new();
    let database = recovered(place.on_nvram(1));
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    let killed = place.killed();
    database.close().expect("close");
    let mut region = fs::read(killed.region()).expect("a region");
    let version = 8..12; // behind the magic
    assert_eq!(region[version.clone()], 3_u32.to_le_bytes());
    region[version].copy_from_slice(&other.to_le_bytes());
    fs::write(killed.region(), &region).expect("written");
    let before = common::snapshot(&killed.data());
    for config in [killed.on_nvram(1), killed.on_files(1)] {
        let error = refusal(config);
        assert!(matches!(error, OpenError::Device(DeviceError::Lost { .. })), "{error}");
        assert!(
            error.to_string().contains(&format!("layout version {other}")),
            "{error}"
        );
    }
    assert_eq!(common::snapshot(&killed.data()), before);
    let error = refusal(DatabaseConfig {
        device: nvram(&killed.region()),
        ..Place::new().on_files(1)
    });
    assert!(
        matches!(error, OpenError::Device(DeviceError::Region { .. })),
        "{error}"
    );
    assert!(
        error.to_string().contains(&format!("layout version {other}")),
        "{error}"
    );
    assert_eq!(fs::read(killed.region()).expect("a region"), region);
}

/// The server checks the module before it makes its tables and runs its migration, also if nothing is to be changed.
#[test]
fn a_module_whose_record_no_ring_takes_is_refused_before_it_is_installed() {
    let place = Place::new();
    let mut config = place.on_nvram(1);
    let DeviceConfig::Nvram(nvram) = &mut config.device else {
        unreachable!()
    };
    nvram.bytes = Some(384 << 10);
    let database = recovered(config);
    let long = with_section(&wasm("bank"), 100 << 10);
    let (deployed, planned) = (
        database.router().deploy("bank", &long).err(),
        database.router().plan_deploy("bank", &long).err(),
    );
    for error in [deployed, planned] {
        let Some(DeployError::RecordTooLong { bytes, max }) = error else {
            panic!("{error:?}");
        };
        assert!(bytes > long.len() && max < long.len() && max > 60_000, "{bytes}, {max}");
    }
    assert_eq!(
        database.router().status().durable_lsn,
        Lsn(1),
        "the log has its first record alone"
    );
    fill_bank(&database, 10);
    database.close().expect("close");
}

#[test]
fn a_copy_of_a_region_without_its_note_is_not_overwritten() {
    let place = Place::new();
    let database = recovered(place.on_nvram(1));
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    // Copied before it was emptied, which it is when nothing came for a second.
    let mut round = 0;
    let killed = loop {
        let begun = Instant::now();
        fill(&database, 10_000 * round, 1);
        let killed = place.killed();
        if begun.elapsed() < Duration::from_millis(700) || round == 50 {
            break killed;
        }
        round += 1;
    };
    database.close().expect("close");
    fs::remove_file(killed.data().join("nvram.json")).expect("removed");
    let before = fs::read(killed.region()).expect("a region");
    let error = refusal(killed.on_nvram(1));
    assert!(
        matches!(error, OpenError::Device(DeviceError::NotOurs { records: 1.., .. })),
        "{error}"
    );
    assert_eq!(fs::read(killed.region()).expect("a region"), before);
}

/// Its records lie before the log's end, and are others than the log has there.
#[test]
fn a_region_of_another_epoch_that_is_not_named_is_not_overwritten() {
    let place = Place::new();
    let database = recovered(place.on_files(1));
    fill_bank(&database, 10);
    database.close().expect("close");
    let disk = RealDisk::open(place.data().join("log")).expect("a disk");
    let database_id = reprise_log::database_id(&disk).expect("read").expect("it has one");
    let outline = reprise_log::LogOutline::of(&(Arc::new(disk) as Arc<dyn Disk>)).expect("read");
    let epoch = outline.expect("a log").epochs()[0].epoch;
    for (epoch, is_refused) in [(Epoch::new(epoch.count() + 1, epoch.writer()), true), (epoch, false)] {
        fs::remove_file(place.region()).ok();
        let regions = MapRegions {
            assume_persistent: true,
        };
        let memory = regions.open(&place.region(), Some(REGION_BYTES)).expect("libpmem");
        let owner = Owner {
            database_id,
            ..Owner::default()
        };
        let region = Region::format(memory, owner, 1, 64, (epoch, Lsn(0))).expect("there is room");
        let (mut writer, reader) = region.rings(FlushPolicy::OnCommit).remove(0);
        writer.records(Lsn(0), 1, b"another", &[]).expect("there is room");
        writer.persist();
        drop((writer, reader));
        match is_refused {
            true => {
                let before = fs::read(place.region()).expect("a region");
                let error = refusal(place.on_nvram(1));
                assert!(
                    matches!(error, OpenError::Device(DeviceError::NotOurs { records: 1, .. })),
                    "{error}"
                );
                assert_eq!(fs::read(place.region()).expect("a region"), before);
            }
            false => recovered(place.on_nvram(1)).close().expect("close"),
        }
    }
}

/// A batch whose records are more than a quarter of a ring. The records that fill the ring go there before the rest runs.
#[test]
fn a_batch_that_no_ring_takes_at_once_goes_there_in_pieces() {
    for (log, flush) in WAYS {
        let place = Place::new();
        let config = |place: &Place| {
            let mut config = place.flushed(1, log, flush);
            nvram_of(&mut config).bytes = Some(384 << 10);
            config
        };
        let database = recovered(config(&place));
        database.router().deploy("bank", &wasm("bank")).expect("deploy");
        let keys: Vec<String> = (0..4_000).map(|call| format!("{call:0>250}")).collect();
        let calls = keys
            .iter()
            .zip(0..)
            .map(|(key, account)| ("open", Some(key.as_str()), i64s(&[account * 4, 100])));
        let reply = submit(&database, &calls.collect::<Vec<_>>());
        let kept = reply.len() as u64;
        for index in 0..reply.len() {
            assert_eq!(*reply.get(index).outcome, ReplyOutcome::Committed, "{log:?}: {index}");
        }
        assert_eq!(accounts(&database), kept, "{log:?}");
        // The next batch finds room.
        fill(&database, 100_000, 100);
        let digest = digest_now(&database);
        let killed = place.killed();
        database.close().expect("close");
        let database = recovered(config(&killed));
        assert_eq!(digest_now(&database), digest, "{log:?}");
        assert_eq!(accounts(&database), kept + 100, "{log:?}");
        database.close().expect("close");
    }
}

fn accounts(database: &Database) -> u64 {
    let reply = submit(database, &[("total", None, Vec::new())]);
    assert_eq!(*reply.get(0).outcome, ReplyOutcome::Committed);
    u64::from_le_bytes(*reply.get(0).result.first_chunk().expect("a count"))
}

#[test]
fn invalid_nvram_settings_are_reported() {
    let place = Place::new();
    let bad = |change: &dyn Fn(&mut DatabaseConfig)| {
        let mut config = place.on_nvram(1);
        change(&mut config);
        refusal(config).to_string()
    };
    let error = bad(&|config| config.commit = CommitMode::Async);
    assert!(error.contains("asynchronous commit"), "{error}");
    let error = bad(&|config| config.log = LogPolicy::None);
    assert!(error.contains("without a log"), "{error}");
    let small = |bytes| {
        move |config: &mut DatabaseConfig| {
            let DeviceConfig::Nvram(nvram) = &mut config.device else {
                unreachable!()
            };
            nvram.bytes = Some(bytes);
        }
    };
    for flush in [FlushPolicy::OnInsert, FlushPolicy::OnInsertFence] {
        let error = bad(&|config| nvram_of(config).flush = flush);
        assert!(
            error.contains(&format!(
                "NVRAM flush {} is about a transaction's changes",
                flush.name()
            )),
            "{error}"
        );
        let error = bad(&|config| {
            nvram_of(config).flush = flush;
            (config.log, config.redo.images) = (LogPolicy::Physiological, AfterImage::Whole);
        });
        assert!(error.contains("take log-differential true"), "{error}");
    }
    let error = bad(&small(64 << 10));
    assert!(error.contains("too small"), "{error}");
}

/// The contents of a region at each sync of a folder.
struct Watched {
    region: PathBuf,
    held: Mutex<Vec<Vec<u8>>>,
}

impl DiskFilter for Watched {
    fn sync_dir(&self, disk: &dyn Disk) -> Result<(), DiskError> {
        let held = fs::read(&self.region).expect("a region");
        self.held.lock().expect("held").push(held);
        disk.sync_dir()
    }
}

/// A process may die between the removal of the note and its sync. A power failure then brings the note back, and it must find its region.
#[test]
fn a_region_is_overwritten_only_once_the_removal_of_its_note_is_durable() {
    let place = Place::new();
    let database = recovered(place.on_nvram(1));
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    let killed = place.killed();
    database.close().expect("close");
    // The files are of the end, and the region is of the middle. Its records are in the files, and the directory does not name it.
    fs::copy(killed.region(), place.region()).expect("copied");
    assert!(!has_note(&place));
    let region = fs::read(place.region()).expect("a region");
    for brings_home in [true, false] {
        fs::write(place.region(), &region).expect("written");
        let config = place.on_nvram(1);
        let mut around = Environment::real(&config).expect("surroundings");
        let folders = around.folders.as_mut().expect("folders");
        let watched = Arc::new(Watched {
            region: place.region(),
            held: Mutex::default(),
        });
        let root = RealDisk::create(place.data()).expect("a folder");
        folders.root = Arc::new(FilteredDisk::new(Arc::new(root), watched.clone()));
        match brings_home {
            true => drop(bring_home_in(&config, &around).expect("brought home")),
            false => Database::open_in(config, around).expect("open").close().expect("close"),
        }
        let held = watched.held.lock().expect("held");
        assert!(held.first().is_some_and(|held| *held == region));
        assert_ne!(fs::read(place.region()).expect("a region"), region);
    }
}

#[test]
fn reading_alone_shows_what_only_the_region_has_and_changes_nothing() {
    let place = Place::new();
    let database = recovered(place.on_nvram(2));
    fill_bank(&database, 200);
    (0..20).for_each(|round| transfer(&database, round));
    let digest = digest_now(&database);
    let killed = place.killed();
    close(database);
    let found = || {
        (
            common::snapshot(&killed.data()),
            fs::read(killed.region()).expect("a region"),
            has_note(&killed),
        )
    };
    let before = found();
    for config in [killed.on_nvram(2), killed.on_files(2)] {
        let database = Database::open_read_only(config).expect("open");
        database.recover_read_only().expect("read alone");
        assert_eq!(digest_now(&database), digest);
        let refused = submit(&database, &[("open", None, i64s(&[9_999, 5]))]);
        assert!(matches!(refused.get(0).outcome, ReplyOutcome::ReadOnly(_)));
        database.close().expect("close");
        assert!(found() == before, "a file has changed, or the region");
    }
    // The next server finds all of it.
    assert_eq!(digest_of(recovered(killed.on_nvram(2))), digest);
}
