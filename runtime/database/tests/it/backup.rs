//! Backups of a directory that no server serves: made, checked, restored, damaged.

use crate::common::{close, config, digest_now, files, fill, fill_bank, open, take, transfer};
use reprise_backup::{BackupManifest, MANIFEST_NAME, Point, RestoreError, create_backup, restore, verify_backup};
use reprise_database::{Database, OpenError};

#[test]
fn a_backup_is_checked_and_restored() {
    let source = tempfile::tempdir().expect("a directory");
    let to = tempfile::tempdir().expect("a directory");
    let (database, _) = open(source.path(), 2);
    fill_bank(&database, 200);
    let early = digest_now(&database);
    take(&database);
    transfer(&database, 1);
    let digest = digest_now(&database);
    let refused = create_backup(source.path(), &to.path().join("backup"));
    assert!(matches!(refused, Err(RestoreError::Running(_))));
    close(database);

    let backup = to.path().join("backup");
    let manifest = create_backup(source.path(), &backup).expect("made");
    assert_eq!(BackupManifest::read(&backup).expect("read"), manifest);
    let verified = verify_backup(&backup, &mut |_| true).expect("whole");
    assert_eq!((verified.rows, verified.modules), (200, 1));
    assert!(manifest.checkpoint_lsn.is_some() && manifest.records > 0);
    // A backup is no data directory, and two processes may read it at once.
    let refused = Database::open(config(&backup, 1)).err().expect("refused");
    assert!(matches!(refused, OpenError::IsBackup(_)));
    let restored = to.path().join("restored");
    restore(&backup, &restored, Point::End).expect("restored");
    let (database, report) = open(&restored, 1);
    assert_eq!(digest_now(&database), digest);
    assert!(report.checkpoint.is_some());
    database.close().expect("close");
    // A point before the beginning of the backup's log.
    let point = Point::Lsn(reprise_base::Lsn(1));
    let error = restore(&backup, &to.path().join("early"), point).expect_err("refused");
    assert!(matches!(error, RestoreError::TooEarly { .. }), "{error} {early}");
    let later = Point::Time(manifest.created_us + 1);
    let error = restore(&backup, &to.path().join("later"), later).expect_err("refused");
    assert!(matches!(error, RestoreError::TooLate { .. }), "{error}");
    let error = create_backup(&backup, &to.path().join("again")).expect_err("refused");
    assert!(matches!(error, RestoreError::NoDatabase(_)), "{error}");
}

#[test]
fn every_damage_of_a_backup_is_found() {
    let source = tempfile::tempdir().expect("a directory");
    let to = tempfile::tempdir().expect("a directory");
    let (database, _) = open(source.path(), 1);
    fill_bank(&database, 200);
    take(&database);
    fill(&database, 1000, 200);
    close(database);
    let backup = to.path().join("backup");
    create_backup(source.path(), &backup).expect("made");
    let mut all = files(&backup, "log");
    all.extend(files(&backup, "checkpoints"));
    all.push(backup.join(MANIFEST_NAME));
    let verify = || verify_backup(&backup, &mut |_| true);
    for path in &all {
        let whole = std::fs::read(path).expect("a file");
        for at in [0, whole.len() / 3, whole.len() / 2, whole.len() - 1] {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            std::fs::write(path, &bytes).expect("written");
            let error = verify().expect_err("found");
            assert!(
                matches!(error, RestoreError::Manifest(_)),
                "{}: {error}",
                path.display()
            );
            let target = to.path().join("restored");
            restore(&backup, &target, Point::End).expect_err("refused");
            assert!(!target.exists());
        }
        std::fs::write(path, &whole[..whole.len() - 1]).expect("written");
        verify().expect_err("cut");
        std::fs::remove_file(path).expect("removed");
        verify().expect_err("missing");
        std::fs::write(path, &whole).expect("written");
    }
    let stranger = backup.join("log/log-00000000000f0000.seg");
    std::fs::write(&stranger, b"x").expect("written");
    verify().expect_err("a file that nobody named");
    std::fs::remove_file(&stranger).expect("removed");
    verify().expect("whole again");
}
