//! A recovery without a server (`reprise recover`): the files that it keeps, and the part of a directory in its cluster.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use crate::common::{
    bank, close, config, digest_now, digest_of, files, files_below, fill, fill_bank, moment, open, take, transfer,
    wait_until,
};
use crate::deposed::{end_with_a_waiting_write, open_at_quorum};
use crate::following::{Cluster, service, wait_seen};
use reprise_backup::{ArchiveBounds, DirHandle, Point, restore_archived};
use reprise_database::{CheckpointConfig, Database, DatabaseConfig, MemberAddress, OpenError};
use reprise_router::NodePhase;
use serde_json::json;

/// Does what `reprise recover` does. Returns the digest of the tables.
fn recover(dir: &Path) -> u64 {
    let database = Database::open_to_recover(config(dir, 2)).expect("open");
    database.recover_with_quarantine(&[]).expect("recover");
    take(&database);
    let digest = digest_now(&database);
    close(database);
    digest
}

/// The checkpoints of a directory, and the segments of its log.
fn kept(dir: &Path) -> BTreeSet<PathBuf> {
    let is_segment = |path: &PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy();
        name.starts_with("log-")
    };
    let segments = files(dir, "log").into_iter().filter(is_segment);
    files(dir, "checkpoints").into_iter().chain(segments).collect()
}

/// Opens accounts whose records take several segments of the log.
fn fill_segments(database: &Database, round: i64) {
    (0..8).for_each(|n| fill(database, 10_000 * (round + 1) + 1_000 * n, 500));
}

#[test]
fn recovery_keeps_all_checkpoints_and_the_whole_log_until_a_server_releases_them() {
    let (dir, database) = bank(2, 200);
    for round in 0..3 {
        fill_segments(&database, round);
        take(&database);
    }
    close(database);
    let before = kept(dir.path());
    for _ in 0..2 {
        recover(dir.path());
    }
    let after = kept(dir.path());
    assert!(after.is_superset(&before), "{before:?} became {after:?}");
    assert_eq!(files(dir.path(), "checkpoints").len(), 4);
    let (database, _) = open(dir.path(), 2);
    take(&database);
    assert_eq!(
        files(dir.path(), "checkpoints").len(),
        2,
        "the server keeps the configured number"
    );
    assert!(!kept(dir.path()).is_superset(&before));
    close(database);
}

/// Opens a primary that keeps three checkpoints, and puts earlier files into the archive.
fn serve_archived(dir: &Path, archive: &Path) -> Database {
    let database = Database::open(DatabaseConfig {
        checkpoints: CheckpointConfig {
            keep: 3,
            ..CheckpointConfig::BY_HAND
        },
        ..config(dir, 2)
    });
    let database = database.expect("open");
    let bounds = ArchiveBounds {
        keep: None,
        held_bytes_max: u64::MAX,
        open_max: ArchiveBounds::OPEN_MAX,
    };
    let opened = database.archive_to(&DirHandle::at(archive), bounds);
    opened.expect("its own archive, without a gap");
    database.recover().expect("recover");
    database
}

#[test]
fn archive_has_no_gap_after_a_recovery() {
    let (dir, to) = (
        tempfile::tempdir().expect("a directory"),
        tempfile::tempdir().expect("a directory"),
    );
    let archive = to.path().join("archive");
    let wait_archived = || {
        wait_until("earlier files are in the archive", || {
            files(dir.path(), "checkpoints").len() == 3
        });
    };
    let database = serve_archived(dir.path(), &archive);
    fill_bank(&database, 200);
    let early = moment(&database);
    for round in 0..5 {
        fill_segments(&database, round);
        take(&database);
    }
    wait_archived();
    close(database);
    assert!(!files(&archive, "log").is_empty(), "nothing would be tested");
    let digest = recover(dir.path());
    let database = serve_archived(dir.path(), &archive);
    assert_eq!(digest_now(&database), digest);
    take(&database);
    wait_archived();
    close(database);
    let restored = to.path().join("early");
    restore_archived(dir.path(), &archive, &restored, Point::Lsn(early.lsn)).expect("restored");
    assert_eq!(digest_of(&restored), early.digest);
}

#[test]
fn recovery_of_a_standby_s_directory_is_refused_and_changes_nothing() {
    let (cluster, primary) = Cluster::with_bank(50);
    let standby = cluster.standby_of(&primary, "s1");
    wait_seen(&primary, &standby);
    cluster.no_primary();
    close(standby);
    close(primary);
    let dir = cluster.place("s1");
    let before = files_below(&dir);
    for name in ["node.json", "view"] {
        assert!(before.contains_key(&dir.join(name)), "{name} is missing");
    }
    let refused = Database::open_to_recover(config(&dir, 2)).err().expect("refused");
    assert!(matches!(refused, OpenError::RecoverStandby), "{refused}");
    let text = refused.to_string();
    for way in ["`reprise standby reset DIR`", "`reprise node lead DIR --accept-loss`"] {
        assert!(text.contains(way), "{text}");
    }
    assert!(files_below(&dir) == before, "a file was changed");
    // An operator has it lead.
    cluster.node("s1").make_primary().expect("saved");
    recover(&dir);
}

/// A lease would decide whether the server leads. Without one, nothing says so.
#[test]
fn directory_that_is_opened_without_its_lease_keeps_its_part() {
    let (cluster, primary) = Cluster::with_bank(50);
    let standby = cluster.standby_of(&primary, "s1");
    wait_seen(&primary, &standby);
    cluster.no_primary();
    close(standby);
    close(primary);
    let before = cluster.document("s1");
    assert!(before["follows"] == true && before["status"].is_object(), "{before}");
    let opened = Database::open_any(config(&cluster.place("s1"), 2)).expect("open");
    opened.recover().expect("recover");
    close(opened);
    assert_eq!(cluster.document("s1"), before);
    assert!(cluster.place("s1").join("view").exists());
}

#[test]
fn recovery_of_a_primary_keeps_its_standbys_and_its_promises() {
    let (cluster, primary) = Cluster::with_bank(50);
    let standby = cluster.standby_of(&primary, "s1");
    transfer(&primary, 1);
    wait_seen(&primary, &standby);
    cluster.no_primary();
    close(standby);
    close(primary);
    let mut before = cluster.document("p");
    before["members"] = json!([{
        "name": "s1", "lsn": 3, "persisted": 3, "in_sync": true, "counted": true, "was_in_sync": true,
        "url": "http://s1:1", "node": "00000000000000ab"
    }]);
    before["promises"] = json!([{ "epoch": 1, "writer": 9, "name": "s2", "url": "http://s2:1" }]);
    cluster.set_document("p", &before);
    recover(&cluster.place("p"));
    let after = cluster.document("p");
    // The epoch of the checkpoint's record is this primary's, too.
    let epoch = before["led"]["last_epoch"].as_u64().expect("it led");
    before["led"]["last_epoch"] = (epoch + 1).into();
    before["version"] = after["version"].clone();
    assert_eq!(after, before);
    let asked = MemberAddress {
        name: "s1".into(),
        url: "http://s1:1".into(),
    };
    assert_eq!(cluster.node("p").document().members_to_ask(), [asked]);
}

/// No standby may have the primary's last write. The checkpoint of the recovery has it.
#[test]
fn recovery_of_a_primary_commits_nothing_that_waited_for_others() {
    for leads in [true, false] {
        let cluster = Cluster::new();
        let acknowledged = end_with_a_waiting_write(&cluster, false);
        for _ in 0..2 {
            recover(&cluster.place("p"));
        }
        if leads {
            let again = open_at_quorum(&cluster);
            let info = service(&again).info();
            assert!(info.durable > acknowledged, "{info:?}");
            assert_eq!(info.committed, acknowledged);
            continue;
        }
        let again = cluster.open_standby("p");
        let phase = again.router().phase();
        assert!(matches!(phase, NodePhase::Recovering { .. }), "{phase:?}");
        assert_eq!(again.router().view(), acknowledged);
    }
}
