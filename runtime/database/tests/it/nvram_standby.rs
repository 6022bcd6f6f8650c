//! A standby that writes its log to NVRAM first. The records that it acknowledged are there after a kill at any moment, whatever comes
//! next.

use crate::common;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    close, config, digest_now, fill, fill_bank, recovered, transfer, transfer_until, wasm, with_section,
};
use crate::following::{
    ACCEPTING, Cluster, bootstrap, nvram, service, start_primary_with, start_standby_with, wait_in_sync, wait_seen,
    wait_streaming, wait_until,
};
use reprise_base::{Lsn, Role};
use reprise_database::{
    Database, DatabaseConfig, DeviceConfig, DeviceError, FlushPolicy, LogPolicy, NvramConfig, OpenError, bring_home,
};
use reprise_router::NodePhase;
use reprise_test_crash::copy_dir;

/// How long the disk may stand still.
const LATER_MAX: Duration = Duration::from_secs(60);

/// A standby's directory and region, as its machine would find them if the process ended now.
struct Killed {
    root: tempfile::TempDir,
    /// The LSN that its primary knew to be persistent on it before.
    acknowledged: Lsn,
}

impl Killed {
    fn of(cluster: &Cluster, primary: &Database, name: &str) -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let standbys = service(primary).info().standbys;
        let known = standbys.iter().find(|standby| standby.name == name);
        let killed = Self {
            root,
            acknowledged: known.map_or(Lsn(0), |standby| standby.persisted),
        };
        fs::create_dir(killed.data()).expect("a directory");
        // The region is copied first. The records that go to the files meanwhile then lie in both.
        fs::copy(cluster.region(name), killed.region()).expect("copied");
        copy_dir(&cluster.place(name), &killed.data()).expect("copied");
        let (note, old) = (killed.data().join("nvram.json"), cluster.region(name));
        let text = fs::read_to_string(&note).expect("it names the region");
        let (old, new) = (old.to_str().expect("text"), killed.region());
        fs::write(&note, text.replace(old, new.to_str().expect("text"))).expect("written");
        killed
    }

    fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    fn region(&self) -> PathBuf {
        self.root.path().join("region")
    }

    fn on_nvram(&self, sites: u16) -> DatabaseConfig {
        DatabaseConfig {
            device: nvram(self.region()),
            ..self.on_files(sites)
        }
    }

    fn on_files(&self, sites: u16) -> DatabaseConfig {
        config(&self.data(), sites)
    }
}

fn persisted(standby: &Database) -> Lsn {
    standby.standby_positions().expect("a standby").persisted
}

fn cluster(on_nvram: &[&str]) -> (Cluster, Arc<Database>, Arc<Database>) {
    let cluster = Cluster::on_nvram(on_nvram);
    let primary = cluster.start("p");
    fill_bank(&primary, 200);
    let standby = cluster.standby_of(&primary, "s1");
    (cluster, primary, standby)
}

#[test]
fn records_that_a_standby_acknowledged_survive_a_kill_with_any_settings() {
    let (cluster, primary, standby) = cluster(&["s1"]);
    let is_over = AtomicBool::new(false);
    let killed: Vec<Killed> = thread::scope(|scope| {
        scope.spawn(|| {
            transfer_until(&primary, &is_over);
        });
        let killed = (0..9).map(|_| {
            thread::sleep(Duration::from_millis(30));
            Killed::of(&cluster, &primary, "s1")
        });
        let mut killed: Vec<_> = killed.collect();
        let (first, until) = (killed[0].acknowledged, Instant::now() + LATER_MAX);
        let is_later = |killed: &[Killed]| killed.last().is_some_and(|last| last.acknowledged > first);
        while !is_later(&killed) && Instant::now() < until {
            killed[8] = Killed::of(&cluster, &primary, "s1");
        }
        is_over.store(true, Ordering::Release);
        killed
    });
    assert!(killed.last().expect("some").acknowledged > killed[0].acknowledged);
    wait_seen(&primary, &standby);
    let (end, digest) = (primary.router().view(), digest_now(&primary));
    close(standby);
    for (number, killed) in killed.iter().enumerate() {
        let other = DatabaseConfig {
            device: nvram(killed.root.path().join("other")),
            ..killed.on_files(2)
        };
        // The directory is opened with its region, on another number of sites, in files, and on another region.
        let config = match number % 4 {
            0 => killed.on_nvram(3),
            1 => killed.on_nvram(1),
            2 => killed.on_files(2),
            _ => other,
        };
        let again = match number % 2 {
            0 => start_standby_with(config, &cluster.primary, "s1"),
            _ => {
                assert!(bring_home(&killed.on_files(1)).expect("brought home").is_some());
                assert!(!killed.data().join("nvram.json").exists());
                start_standby_with(config, &cluster.primary, "s1")
            }
        };
        let found = persisted(&again);
        assert!(
            found >= killed.acknowledged,
            "{number}: {found} of {}",
            killed.acknowledged
        );
        // The standby continues from its position.
        wait_until("it has all", || again.router().view() >= end);
        assert_eq!(digest_now(&again), digest, "{number}");
        again.close().expect("close");
    }
    primary.close().expect("close");
}

#[test]
fn a_standby_goes_from_nvram_to_files_and_back() {
    let (cluster, primary, standby) = cluster(&["s1"]);
    let status = standby.router().status();
    let (device, rings) = status.nvram.expect("it tells its region");
    assert_eq!((device.persistence, rings.rings.len()), ("assumed", 3));
    let mut standby = standby;
    for round in 0..4 {
        transfer(&primary, round);
        wait_seen(&primary, &standby);
        assert!(cluster.place("s1").join("nvram.json").exists() == (round % 2 == 0));
        close(standby);
        assert!(!cluster.place("s1").join("nvram.json").exists(), "the files have all");
        transfer(&primary, 100 + round);
        let config = match round % 2 {
            0 => config(&cluster.place("s1"), 2),
            _ => cluster.config("s1", 4),
        };
        standby = start_standby_with(config, &cluster.primary, "s1");
    }
    wait_seen(&primary, &standby);
    assert_eq!(digest_now(&standby), digest_now(&primary));
    standby.close().expect("close");
    primary.close().expect("close");
}

/// The sites write to the region that the standby received into, with each policy.
#[test]
fn a_promoted_standby_writes_to_its_region() {
    for (log, flush) in [
        (LogPolicy::Command, FlushPolicy::OnCommit),
        (LogPolicy::Physiological, FlushPolicy::OnInsert),
        (LogPolicy::Both, FlushPolicy::OnInsertFence),
    ] {
        let (cluster, primary, standby) = cluster(&["s1"]);
        wait_seen(&primary, &standby);
        close(standby);
        let mut config = DatabaseConfig {
            log,
            ..cluster.config("s1", 3)
        };
        let DeviceConfig::Nvram(device) = &mut config.device else {
            unreachable!()
        };
        device.flush = flush;
        let standby = start_standby_with(config.clone(), &cluster.primary, "s1");
        wait_streaming(&primary, "s1");
        wait_in_sync(&standby);
        transfer(&primary, 1);
        wait_seen(&primary, &standby);
        primary.close().expect("close");
        let promoted = service(&standby).promote(ACCEPTING).expect("promoted");
        assert_eq!(standby.router().role(), Role::Primary);
        fill(&standby, 50_000, 100);
        transfer(&standby, 2);
        let (digest, end) = (digest_now(&standby), standby.router().status().durable_lsn);
        assert!(end > promoted.lsn);
        let killed = Killed::of(&cluster, &standby, "s1");
        standby.close().expect("close");
        let again = recovered(DatabaseConfig {
            log,
            ..killed.on_nvram(2)
        });
        assert_eq!(digest_now(&again), digest, "{flush:?}");
        assert_eq!(again.router().status().durable_lsn, end);
        transfer(&again, 3);
        again.close().expect("close");
    }
}

/// A primary that was killed with records in its region follows the one that took its place: what only it has is cut off.
#[test]
fn a_deposed_primary_brings_home_what_its_region_holds_before_it_is_cut_back() {
    let (cluster, primary, standby) = cluster(&["p"]);
    wait_seen(&primary, &standby);
    standby.close().expect("close");
    fill(&primary, 70_000, 50);
    let killed = Killed::of(&cluster, &primary, "p");
    primary.close().expect("close");
    drop((primary, standby));
    let new = cluster.open_standby("s1");
    service(&new).promote(ACCEPTING).expect("promoted");
    new.serve_standbys(cluster.serving("http://s1:1")).expect("served");
    cluster.set_primary(&new);
    transfer(&new, 5);
    // The records of the region must come home before the cut. Otherwise the opening says that the primary has another history.
    let region = fs::read(killed.region()).expect("a region");
    assert!(bring_home(&killed.on_nvram(2)).expect("brought home").is_some());
    fs::remove_dir_all(cluster.place("p")).expect("removed");
    copy_dir(&killed.data(), &cluster.place("p")).expect("copied");
    // A process may die once nothing names the region, and before it is blank. The region must then show no record that was cut off.
    fs::write(cluster.region("p"), region).expect("written");
    assert!(
        bring_home(&cluster.config("p", 2))
            .expect("nothing is to be brought")
            .is_none()
    );
    let cut = cluster.cut_back("p").expect("cut");
    assert!(matches!(cut, reprise_database::CutBack::Cut(_)), "{cut:?}");
    let old = cluster.open_standby("p");
    wait_seen(&new, &old);
    assert_eq!(digest_now(&old), digest_now(&new));
    old.close().expect("close");
    new.close().expect("close");
}

#[test]
fn invalid_nvram_settings_of_a_standby_are_reported_and_change_nothing() {
    let (cluster, primary, standby) = cluster(&["s1"]);
    transfer(&primary, 1);
    wait_seen(&primary, &standby);
    let killed = Killed::of(&cluster, &primary, "s1");
    let refusal = |config: DatabaseConfig| Database::open_standby(config).err().expect("it is refused");
    // The region is in use.
    let error = refusal(DatabaseConfig {
        device: nvram(cluster.region("s1")),
        ..killed.on_files(1)
    });
    assert!(error.to_string().contains("another process uses"), "{error}");
    standby.close().expect("close");
    let before = common::snapshot(&killed.data());
    let with = |path: &Path, bytes: u64| DatabaseConfig {
        device: DeviceConfig::Nvram(NvramConfig {
            path: path.to_owned(),
            bytes: Some(bytes),
            copy_at_entries: 1_000,
            flush: FlushPolicy::OnCommit,
            assume_persistent: true,
        }),
        ..killed.on_files(1)
    };
    let small = killed.root.path().join("small");
    let error = refusal(with(&small, 64 << 10));
    assert!(error.to_string().contains("too small"), "{error}");
    // Another database's.
    let other = recovered(DatabaseConfig {
        device: nvram(killed.root.path().join("theirs")),
        ..config(&killed.root.path().join("other"), 1)
    });
    fs::copy(killed.root.path().join("theirs"), killed.root.path().join("copy")).expect("copied");
    other.close().expect("close");
    let error = refusal(with(&killed.root.path().join("copy"), 8 << 20));
    assert!(
        matches!(error, OpenError::Device(DeviceError::OtherDatabase { .. })),
        "{error}"
    );
    // Its own is gone, or the log that it belongs to.
    let region = fs::read(killed.region()).expect("a region");
    fs::remove_file(killed.region()).expect("removed");
    for error in [
        refusal(killed.on_files(1)),
        bring_home(&killed.on_files(1)).expect_err("gone"),
    ] {
        assert!(matches!(error, OpenError::Device(DeviceError::Lost { .. })), "{error}");
    }
    assert_eq!(common::snapshot(&killed.data()), before);
    fs::write(killed.region(), region).expect("written");
    let log = killed.data().join("log");
    fs::rename(&log, killed.root.path().join("log")).expect("moved");
    let error = bring_home(&killed.on_files(1)).expect_err("there is no log");
    assert!(error.to_string().contains("nvram.json"), "{error}");
    assert!(!log.exists(), "nothing is made");
    fs::rename(killed.root.path().join("log"), &log).expect("moved");
    start_standby_with(killed.on_nvram(1), &cluster.primary, "s1")
        .close()
        .expect("close");
    primary.close().expect("close");
}

/// A region that is smaller than a module's record, and a disk that is slower than the primary: it follows all the same.
#[test]
fn a_small_region_takes_what_is_larger_than_itself() {
    let (cluster, primary, standby) = cluster(&[]);
    close(standby);
    let small = DatabaseConfig {
        device: DeviceConfig::Nvram(NvramConfig {
            path: cluster.region("s1"),
            bytes: Some(400 << 10),
            copy_at_entries: 1_000,
            flush: FlushPolicy::OnCommit,
            assume_persistent: true,
        }),
        ..config(&cluster.place("s1"), 1)
    };
    let standby = start_standby_with(small, &cluster.primary, "s1");
    wait_streaming(&primary, "s1");
    let long = with_section(&wasm("bank"), 300 << 10);
    primary.router().deploy("bank", &long).expect("deploy");
    for round in 0..20 {
        fill(&primary, 100_000 + round * 1_000, 200);
    }
    wait_seen(&primary, &standby);
    assert_eq!(digest_now(&standby), digest_now(&primary));
    standby.close().expect("close");
    primary.close().expect("close");
}

/// Replay applies one of a transaction's two forms. The two therefore stay together, wherever a group is divided for a ring and wherever a
/// kill comes.
#[test]
fn a_small_region_takes_commands_beside_their_changes() {
    let cluster = Cluster::on_nvram(&[]);
    let both = DatabaseConfig {
        log: LogPolicy::Both,
        ..config(&cluster.place("p"), 2)
    };
    let primary = start_primary_with(both, "http://p:1");
    cluster.set_primary(&primary);
    fill_bank(&primary, 200);
    bootstrap(&primary, "s1", &cluster.place("s1"));
    let small = |path: PathBuf, dir: &Path| DatabaseConfig {
        device: DeviceConfig::Nvram(NvramConfig {
            path,
            bytes: Some(128 << 10),
            copy_at_entries: 1_000,
            flush: FlushPolicy::OnCommit,
            assume_persistent: true,
        }),
        ..config(dir, 1)
    };
    let standby = start_standby_with(
        small(cluster.region("s1"), &cluster.place("s1")),
        &cluster.primary,
        "s1",
    );
    wait_streaming(&primary, "s1");
    let is_over = AtomicBool::new(false);
    let killed: Vec<Killed> = thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 1;
            while !is_over.load(Ordering::Acquire) {
                fill(&primary, round * 1_000, 1_000);
                round += 1;
            }
        });
        let killed = (0..8).map(|_| {
            thread::sleep(Duration::from_millis(40));
            Killed::of(&cluster, &primary, "s1")
        });
        let killed = killed.collect();
        is_over.store(true, Ordering::Release);
        killed
    });
    wait_seen(&primary, &standby);
    let (end, digest) = (primary.router().view(), digest_now(&primary));
    assert_eq!(digest_now(&standby), digest);
    close(standby);
    for (number, killed) in killed.iter().enumerate() {
        let config = match number % 2 {
            0 => small(killed.region(), &killed.data()),
            _ => killed.on_files(2),
        };
        let again = start_standby_with(config, &cluster.primary, "s1");
        assert!(persisted(&again) >= killed.acknowledged, "{number}");
        wait_until("it has all", || {
            let phase = again.router().phase();
            assert!(!matches!(phase, NodePhase::Failed { .. }), "{number}: {phase:?}");
            again.router().view() >= end
        });
        assert_eq!(digest_now(&again), digest, "{number}");
        again.close().expect("close");
    }
    primary.close().expect("close");
}
