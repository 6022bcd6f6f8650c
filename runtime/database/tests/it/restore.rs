//! Restores to every kind of point, compared with the database at that point.

use crate::common;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::common::{Moment, close, config, digest_of, files, fill, fill_bank, moment, open, take, transfer, wasm};
use crate::following::{Cluster, wait_seen};
use reprise_backup::{ArchiveBounds, DirHandle, Point, RestoreError, StagingError, restore};
use reprise_base::{Lsn, TxnId};
use reprise_database::Database;
use reprise_env::RealDisk;
use reprise_log::LogReader;

/// Moments before, between and behind checkpoints.
fn history(dir: &Path, checkpoints: usize) -> Vec<Moment> {
    let (database, _) = open(dir, 2);
    fill_bank(&database, 200);
    let mut moments = vec![moment(&database)];
    for round in 0..4 {
        transfer(&database, round);
        moments.push(moment(&database));
        if (round as usize) < checkpoints {
            take(&database);
            transfer(&database, round + 100);
            moments.push(moment(&database));
        }
    }
    database.close().expect("close");
    moments
}

/// Opens the directory with the compiled code of `source`, so that no opening compiles again.
fn digest_with_code(dir: &Path, source: &Path) -> u64 {
    let code = dir.join("code");
    std::fs::create_dir_all(&code).expect("a folder");
    for path in files(source, "code") {
        std::fs::copy(&path, code.join(path.file_name().expect("a file"))).expect("copied");
    }
    digest_of(dir)
}

#[test]
fn every_moment_comes_back_by_position_transaction_and_time() {
    let source = tempfile::tempdir().expect("a directory");
    let to = tempfile::tempdir().expect("a directory");
    for checkpoints in [0, 1] {
        let dir = source.path().join(checkpoints.to_string());
        let moments = history(&dir, checkpoints);
        let before = common::snapshot(&dir);
        for (at, found) in moments.iter().enumerate() {
            let points = [
                Point::Lsn(found.lsn),
                Point::Txn(found.txn_id),
                Point::Time(found.txn_id.time_us()),
            ];
            for (kind, point) in points.into_iter().enumerate() {
                let target = to.path().join(format!("{checkpoints}-{at}-{kind}"));
                let report = restore(&dir, &target, point).expect("restored");
                assert_eq!(report.last.map(|last| last.1), Some(found.txn_id));
                assert_eq!(report.checkpoint.is_some(), checkpoints == 1 && at >= 2, "{at}");
                assert_eq!(report.left_out == 0, at + 1 == moments.len());
                assert_eq!(digest_with_code(&target, &dir), found.digest, "{point:?}");
            }
        }
        let target = to.path().join(format!("{checkpoints}-end"));
        restore(&dir, &target, Point::End).expect("restored");
        assert_eq!(digest_with_code(&target, &dir), moments.last().expect("some").digest);
        assert_eq!(common::snapshot(&dir), before, "the source is only read");
    }
}

#[test]
fn points_that_are_not_there_are_refused_and_leave_nothing() {
    let source = tempfile::tempdir().expect("a directory");
    let to = tempfile::tempdir().expect("a directory");
    let moments = history(source.path(), 0);
    let last = moments.last().expect("some");
    let try_it = |point| restore(source.path(), &to.path().join("new"), point);
    type Judge = fn(&RestoreError) -> bool;
    let late: Judge = |error| matches!(error, RestoreError::TooLate { .. });
    let early: Judge = |error| matches!(error, RestoreError::TooEarly { .. });
    let unknown: Judge = |error| matches!(error, RestoreError::UnknownTxn { .. });
    let refused: [(Point, Judge); 7] = [
        (Point::Lsn(Lsn(u64::MAX)), late),
        (Point::Lsn(Lsn(last.lsn.0 + (1 << 20))), late),
        (Point::Txn(TxnId(u64::MAX)), late),
        (Point::Txn(TxnId(1)), early),
        (Point::Txn(TxnId(last.txn_id.0 - (1 << 10))), unknown),
        (Point::Time(0), early),
        (Point::Time(i64::MAX), late),
    ];
    for (point, is_right) in refused {
        let error = try_it(point).expect_err("refused");
        assert!(is_right(&error), "{point:?}: {error}");
        assert_eq!(std::fs::read_dir(to.path()).expect("listed").count(), 0, "{point:?}");
    }
    // A target that is taken, a source that is none.
    std::fs::create_dir(to.path().join("new")).expect("made");
    std::fs::write(to.path().join("new/file"), b"mine").expect("written");
    assert!(matches!(
        try_it(Point::End),
        Err(RestoreError::Staging(StagingError::NotEmpty(_)))
    ));
    std::fs::remove_file(to.path().join("new/file")).expect("removed");
    let empty = to.path().join("new");
    assert!(matches!(
        restore(to.path(), &empty, Point::End),
        Err(RestoreError::NoDatabase(_))
    ));
    // An empty directory is as good as none, and so are the remains of a restore that was cut off.
    std::fs::create_dir(to.path().join(".new.partial")).expect("made");
    std::fs::write(to.path().join(".new.partial/file"), b"half").expect("written");
    try_it(Point::End).expect("restored");
    assert_eq!(digest_with_code(&empty, source.path()), last.digest);
}

/// The file in which a record lies, and where.
fn place_of(dir: &Path, lsn: Lsn) -> (PathBuf, usize) {
    let log = dir.join("log");
    let disk = Arc::new(RealDisk::open(&log).expect("its log"));
    let (mut reader, _) = LogReader::open(disk, lsn).expect("a log");
    let record = reader.next_record().expect("read").expect("it is in the log");
    assert_eq!(record.lsn, lsn);
    (log.join(record.place.file()), record.place.offset as usize)
}

#[test]
fn damaged_files_are_passed_over_and_reported() {
    let source = tempfile::tempdir().expect("a directory");
    let to = tempfile::tempdir().expect("a directory");
    let moments = history(source.path(), 1);
    // The checkpoint: the log is still whole from its beginning.
    let checkpoint = &files(source.path(), "checkpoints")[0];
    let mut bytes = std::fs::read(checkpoint).expect("a checkpoint");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(checkpoint, bytes).expect("written");
    let last = moments.last().expect("some");
    let target = to.path().join("around");
    let report = restore(source.path(), &target, Point::Txn(last.txn_id)).expect("restored");
    assert_eq!((report.checkpoint, report.passed_over.len()), (None, 1));
    assert_eq!(files(&target, "checkpoints").len(), 0);
    assert_eq!(digest_with_code(&target, source.path()), last.digest);
    // The log: points before the damage are as good as ever.
    let found = &moments[2];
    // The damage is in the record behind that moment. Later records lie in other blocks behind it, so it is no torn tail.
    let (segment, offset) = place_of(source.path(), moments[3].lsn);
    let mut bytes = std::fs::read(&segment).expect("a segment");
    bytes[offset + 4] ^= 1;
    std::fs::write(&segment, bytes).expect("written");
    let error = restore(source.path(), &to.path().join("all"), Point::End).expect_err("refused");
    assert!(matches!(&error, RestoreError::Damaged { .. }), "{error}");
    let target = to.path().join("before");
    let report = restore(source.path(), &target, Point::Lsn(found.lsn)).expect("restored");
    assert!(report.damage.is_some());
    assert_eq!(digest_with_code(&target, source.path()), found.digest);
}

#[test]
fn a_log_whose_beginning_is_gone_is_restored_from_its_checkpoints_on() {
    let source = tempfile::tempdir().expect("a directory");
    let to = tempfile::tempdir().expect("a directory");
    let (database, _) = open(source.path(), 2);
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    let early = moment(&database);
    let mut kept = Vec::new();
    for round in 0..4 {
        fill(&database, 1000 + round * 1000, 500);
        for i in 0..40 {
            transfer(&database, i);
        }
        take(&database);
        transfer(&database, round);
        kept.push(moment(&database));
    }
    let oldest = common::checkpointer(&database).list().pop().expect("two").lsn;
    close(database);
    let first = files(source.path(), "log")[0].clone();
    assert!(!first.ends_with("log-0000000000000000.seg"));
    for point in [
        Point::Lsn(early.lsn),
        Point::Txn(early.txn_id),
        Point::Time(early.txn_id.time_us()),
        Point::Lsn(Lsn(oldest.0 - 30)),
    ] {
        let error = restore(source.path(), &to.path().join("new"), point).expect_err("refused");
        assert!(matches!(error, RestoreError::TooEarly { .. }), "{error}");
        assert!(error.to_string().contains(&oldest.to_string()) || matches!(point, Point::Txn(_)));
    }
    for (at, found) in kept.iter().enumerate().skip(2) {
        let target = to.path().join(at.to_string());
        let report = restore(source.path(), &target, Point::Txn(found.txn_id)).expect("restored");
        // The mark itself lies in the checkpoint.
        assert!(report.checkpoint.is_some() && report.records < 100, "{report:?}");
        assert_eq!(digest_with_code(&target, source.path()), found.digest);
    }
}

/// A standby logs no mark for its checkpoint.
#[test]
fn checkpoint_of_a_standby_is_of_its_log_when_it_is_restored_and_archived() {
    let (cluster, primary) = Cluster::with_bank(200);
    let standby = cluster.standby_of(&primary, "s1");
    transfer(&primary, 1);
    wait_seen(&primary, &standby);
    let taken = take(&standby);
    (2..5).for_each(|round| transfer(&primary, round));
    wait_seen(&primary, &standby);
    close(standby);
    close(primary);
    let (place, to) = (cluster.place("s1"), tempfile::tempdir().expect("a directory"));
    let report = restore(&place, &to.path().join("restored"), Point::End).expect("restored");
    assert_eq!(report.passed_over, Vec::<String>::new());
    assert_eq!(report.checkpoint, Some(taken.lsn));
    assert_eq!(
        report.records,
        report.cut.0 - taken.lsn.0,
        "each LSN behind the checkpoint has a record"
    );
    let archive = to.path().join("archive");
    for folder in ["log", "checkpoints"] {
        std::fs::create_dir_all(archive.join(folder)).expect("made");
    }
    let file = Path::new("checkpoints").join(&taken.file);
    std::fs::copy(place.join(&file), archive.join(&file)).expect("copied");
    let standby = Database::open_standby(config(&place, 3)).expect("open");
    let bounds = ArchiveBounds {
        keep: None,
        held_bytes_max: u64::MAX,
        open_max: ArchiveBounds::OPEN_MAX,
    };
    standby
        .archive_to(&DirHandle::at(&archive), bounds)
        .expect("its own archive");
}
