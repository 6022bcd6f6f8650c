//! Openings over checkpoints: damaged ones, ones beyond the log, ones without a log, and openings to read alone.

use crate::common::{
    bank, close, config, copy_log, digest_now, files_below, fill, open, put_log, take, transfer, wasm,
};
use reprise_database::{Database, OpenError, inspect};
use reprise_upkeep::CheckpointInfo;

#[test]
fn a_log_that_ends_before_a_checkpoint_was_taken_is_not_gone_on_with() {
    let (dir, database) = bank(2, 100);
    let digest = digest_now(&database);
    close(database);
    let older = copy_log(dir.path());
    let (database, _) = open(dir.path(), 2);
    fill(&database, 100, 100);
    let taken = take(&database);
    close(database);
    assert_eq!(inspect(dir.path()).expect("whole").refused, Vec::<String>::new());
    put_log(dir.path(), &older);
    let refused = inspect(dir.path()).expect("whole").refused;
    assert!(refused.len() == 1 && refused[0].contains(&taken.file), "{refused:?}");
    for _ in 0..2 {
        let database = Database::open(config(dir.path(), 2)).expect("open");
        let error = database.recover().expect_err("refused");
        assert!(
            matches!(&error, OpenError::BeyondLog { lsn, end, .. } if *lsn == taken.lsn && end < lsn),
            "{error}"
        );
    }
    let database = Database::open(config(dir.path(), 2)).expect("open");
    let found = database.recover_read_only().expect("read alone");
    assert!(
        found.report.passed_over[0].contains(&taken.file),
        "{:?}",
        found.report.passed_over
    );
    assert_eq!(digest_now(&database), digest);
    drop(database);
    std::fs::remove_file(dir.path().join("checkpoints").join(&taken.file)).expect("removed");
    let (database, _) = open(dir.path(), 2);
    assert_eq!(digest_now(&database), digest);
}

/// A server that died left a spare segment and perhaps a torn tail: an opening that writes would clear both away.
#[test]
fn an_opening_to_read_alone_changes_no_byte_of_the_directory() {
    let (dir, database) = bank(2, 200);
    take(&database);
    transfer(&database, 1);
    let digest = digest_now(&database);
    let died = tempfile::tempdir().expect("a directory");
    for (path, bytes) in files_below(dir.path()) {
        let to = died.path().join(path.strip_prefix(dir.path()).expect("below it"));
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("made");
        std::fs::write(to, bytes).expect("written");
    }
    close(database);
    let spare = died.path().join("log").join("spare.seg");
    std::fs::write(spare, [0; 4096]).expect("written");
    let before = files_below(died.path());
    let database = Database::open_read_only(config(died.path(), 2)).expect("open");
    database.recover_read_only().expect("read alone");
    assert_eq!(digest_now(&database), digest);
    database.close().expect("close");
    drop(database);
    let after = files_below(died.path());
    assert!(before == after, "{:?} became {:?}", before.keys(), after.keys());
    // An opening for reading does not create a directory.
    let nothing = died.path().join("nothing");
    assert!(Database::open_read_only(config(&nothing, 2)).is_err() && !nothing.exists());
    let (database, _) = open(died.path(), 2);
    assert_eq!(digest_now(&database), digest);
    close(database);
}

#[test]
fn a_damaged_checkpoint_is_passed_over_and_said_so() {
    let (dir, database) = bank(2, 200);
    let older = take(&database);
    transfer(&database, 1);
    let newer = take(&database);
    transfer(&database, 2);
    let digest = digest_now(&database);
    close(database);
    let damage = |info: &CheckpointInfo, at: usize| {
        let path = dir.path().join("checkpoints").join(&info.file);
        let mut bytes = std::fs::read(&path).expect("a checkpoint");
        let at = at % bytes.len();
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).expect("written");
    };
    let whole = std::fs::read(dir.path().join("checkpoints").join(&newer.file)).expect("whole");
    // Header, descriptions, rows, index, trailer: wherever it is hit, the one before it is taken.
    for at in [20, 600, whole.len() / 2, whole.len() - 100, whole.len() - 10] {
        damage(&newer, at);
        let (database, report) = open(dir.path(), 2);
        let loaded = report.checkpoint.expect("the older one");
        assert_eq!(loaded.lsn, older.lsn, "byte {at}");
        assert!(report.passed_over[0].contains(&newer.file), "{:?}", report.passed_over);
        assert_eq!(digest_now(&database), digest);
        close(database);
        std::fs::write(dir.path().join("checkpoints").join(&newer.file), &whole).expect("whole again");
    }
    damage(&newer, 700);
    damage(&older, 700);
    match Database::open(config(dir.path(), 2)).and_then(|database| database.recover().map(drop)) {
        Err(OpenError::NoCheckpoint { reasons, .. }) => assert_eq!(reasons.len(), 2),
        Ok(()) => {} // the log was still whole from its beginning
        Err(other) => panic!("{other}"),
    }
}

/// The operator put a checkpoint of one copy of the database beside the log of another.
#[test]
fn checkpoint_of_another_history_is_passed_over_at_an_opening() {
    let (dir, database) = bank(2, 100);
    close(database);
    let fork = copy_log(dir.path());
    let (database, _) = open(dir.path(), 2);
    fill(&database, 1_000, 100);
    let other = take(&database).file;
    close(database);
    let path = dir.path().join("checkpoints").join(&other);
    let bytes = std::fs::read(&path).expect("a checkpoint");
    std::fs::remove_file(&path).expect("removed");
    put_log(dir.path(), &fork);
    let (database, _) = open(dir.path(), 2);
    fill(&database, 2_000, 300);
    let digest = digest_now(&database);
    close(database);
    std::fs::write(&path, bytes).expect("written");
    let (database, report) = open(dir.path(), 2);
    assert!(report.checkpoint.is_none(), "its tables are not those of the log");
    assert!(report.passed_over[0].contains(&other), "{:?}", report.passed_over);
    assert_eq!(digest_now(&database), digest);
    close(database);
}

#[test]
fn a_lost_log_beside_checkpoints_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let (database, _) = open(dir.path(), 1);
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    take(&database);
    close(database);
    std::fs::remove_dir_all(dir.path().join("log")).expect("removed");
    let refused = Database::open(config(dir.path(), 1))
        .err()
        .expect("refused")
        .to_string();
    assert!(refused.contains("an empty directory"), "{refused}");
}

#[test]
fn a_checkpoint_that_was_passed_over_does_not_count_as_kept() {
    let (dir, database) = bank(2, 200);
    let older = take(&database);
    transfer(&database, 1);
    let newer = take(&database);
    close(database);
    let damage = |info: &CheckpointInfo| {
        let path = dir.path().join("checkpoints").join(&info.file);
        let mut bytes = std::fs::read(&path).expect("a checkpoint");
        bytes[700] ^= 1;
        std::fs::write(&path, bytes).expect("written");
    };
    damage(&newer);
    let (database, report) = open(dir.path(), 2);
    assert_eq!(report.passed_over.len(), 1);
    let listed = crate::common::checkpointer(&database).list();
    assert!(
        listed.iter().all(|info| info.lsn != newer.lsn),
        "no standby begins with it"
    );
    transfer(&database, 2);
    let digest = digest_now(&database);
    let third = take(&database);
    crate::common::wait_until("one is removed", || {
        std::fs::read_dir(dir.path().join("checkpoints"))
            .expect("there")
            .count()
            == 2
    });
    close(database);
    damage(&third);
    let (database, report) = open(dir.path(), 2);
    assert_eq!(report.checkpoint.expect("the oldest one").lsn, older.lsn);
    assert_eq!(digest_now(&database), digest);
}
