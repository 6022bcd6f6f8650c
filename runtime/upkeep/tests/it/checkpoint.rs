//! Checkpoints in one process: taken under load and by the schedule, loaded again, and the log released behind them.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    Consenting, bank, checkpointer, close, config, digest_now, files, fill, fill_bank, i64s, open, recovered, submit,
    take, transfer, transfer_until, wasm,
};
use reprise_database::{CheckpointConfig, Database};
use reprise_router::{LogSearch, ReplyOutcome};
use reprise_upkeep::{BytesError, CheckpointPhase};

/// A wait that ends only by a mistake.
const WAIT_MAX: Duration = Duration::from_secs(120);

#[test]
fn a_checkpoint_under_load_bounds_the_replay_and_the_log() {
    let (dir, database) = bank(2, 200);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            transfer_until(&database, &is_over);
        });
        for batch in 1..4 {
            thread::sleep(Duration::from_millis(50));
            fill(&database, batch * 1000, 100);
            let taken = take(&database);
            assert!(taken.rows >= 100 * batch as u64 + 200 && taken.file_bytes > 0);
        }
        is_over.store(true, Ordering::Release);
    });
    // Two are kept, and the log from the older of them on.
    let kept = checkpointer(&database).list();
    assert_eq!(kept.len(), 2);
    assert_eq!(checkpointer(&database).newest(), Some(kept[0].lsn));
    let digest = digest_now(&database);
    close(database);
    let first = files(dir.path(), "log")[0].file_name().expect("a name").to_owned();
    assert_ne!(
        first.to_str(),
        Some("log-0000000000000000.seg"),
        "the log's beginning was released"
    );
    for sites in [1, 3] {
        let (database, report) = open(dir.path(), sites);
        let loaded = report.checkpoint.expect("loaded");
        assert_eq!((loaded.lsn, report.passed_over.len()), (kept[0].lsn, 0));
        assert_eq!(digest_now(&database), digest, "{sites} sites");
        database.close().expect("close");
    }
    // The database continues behind a checkpoint as behind a log.
    let (database, _) = open(dir.path(), 2);
    transfer(&database, 3);
    fill(&database, 9000, 10);
    let digest = digest_now(&database);
    close(database);
    let (database, report) = open(dir.path(), 2);
    assert!(report.commands >= 10);
    assert_eq!(digest_now(&database), digest);
}

#[test]
fn keys_modules_and_versions_come_with_a_checkpoint() {
    let dir = tempfile::tempdir().expect("a directory");
    let (database, _) = open(dir.path(), 2);
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    database.router().deploy("voter", &wasm("voter")).expect("deploy");
    database.router().remove_consenting("voter").expect("removed");
    fill(&database, 0, 200);
    let pay = ("transfer", Some("pay-1"), i64s(&[1, 2, 30]));
    let reply = submit(&database, std::slice::from_ref(&pay));
    let first = (reply.get(0).txn_id, reply.get(0).lsn, reply.get(0).result.to_vec());
    for round in 0..3 {
        transfer(&database, round);
        fill(&database, 1000 + round * 300, 300);
        take(&database);
    }
    let deployed = database.router().deployed();
    close(database);
    let (database, report) = open(dir.path(), 1);
    assert_eq!((report.keys, report.commands), (1, 0));
    let found = database.router().deployed();
    let names = |of: &reprise_router::Deployed| -> Vec<_> {
        let versions = of.versions.iter();
        versions
            .map(|m| (m.name.clone(), m.version, m.hash, m.schema.clone()))
            .collect()
    };
    assert_eq!(names(&found), names(&deployed));
    assert_eq!(found.tables, deployed.tables);
    assert!(!found.current.contains_key("voter") && found.current.contains_key("bank"));
    let bytes = |number: usize| checkpointer(&database).module_bytes(&found.versions[number]);
    assert_eq!(bytes(0).expect("in service"), wasm("bank"));
    assert_eq!(bytes(1).expect("out of service"), wasm("voter"));
    let reply = submit(&database, &[pay, ("transfer", Some("pay-1"), i64s(&[1, 2, 31]))]);
    let again = reply.get(0);
    assert!(again.replayed);
    assert_eq!((again.txn_id, again.lsn, again.result.to_vec()), first);
    assert_eq!(*reply.get(1).outcome, ReplyOutcome::IdempotencyConflict);
    database.router().deploy("voter", &wasm("voter")).expect("again");
}

/// The sample `bank` with other bytes.
fn numbered(number: u8) -> Vec<u8> {
    let mut wasm = wasm("bank");
    wasm.extend([0, 3, 1, b'n', number]); // a custom section
    wasm
}

#[test]
fn bytes_of_the_last_versions_are_kept_when_the_log_behind_them_is_released() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut database, _) = open(dir.path(), 2);
    for number in 1..=7 {
        let deployed = database.router().deploy("bank", &numbered(number)).expect("deployed");
        if number == 3 {
            take(&database);
        }
        if number == 5 {
            // Some versions are now in a checkpoint, the others in the log.
            close(database);
            database = open(dir.path(), 2).0;
        }
        assert_eq!(deployed.module.version, u32::from(number));
    }
    let check = |database: &Database| {
        let deployed = database.router().deployed();
        for (module, number) in deployed.versions.iter().zip(1..) {
            let found = checkpointer(database).module_bytes(module);
            match number {
                1 | 2 => assert!(matches!(found, Err(BytesError::NotKept)), "{number}: {found:?}"),
                _ => assert!(found.expect("kept") == numbered(number), "{number}"),
            }
        }
    };
    check(&database);
    let last = database.router().log_records(LogSearch {
        newest: true,
        limit: 1,
        ..LogSearch::default()
    });
    let last = last.expect("read").records[0].lsn;
    fill(&database, 0, 1_000);
    let oldest = || {
        let page = database.router().log_records(LogSearch::default());
        page.expect("read").oldest
    };
    for round in 1.. {
        fill(&database, round * 1_000, 1_000);
        if round % 4 == 0 {
            take(&database);
            if oldest() > last {
                break; // released
            }
        }
        assert!(round < 1_000, "{} is kept", oldest());
    }
    check(&database);
    close(database);
    let (database, _) = open(dir.path(), 1);
    check(&database);
    // A checkpoint of which no log is left is copied on.
    for round in 1..=2 {
        fill(&database, 10_000_000 * round, 300);
        take(&database);
    }
    check(&database);
}

#[test]
fn the_schedule_takes_them_by_time_and_by_length() {
    for (every, log_bytes) in [(Duration::from_millis(100), 0), (Duration::ZERO, 20_000)] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = config(dir.path(), 2);
        config.checkpoints = CheckpointConfig {
            every,
            log_bytes,
            recovery_target: Duration::ZERO,
            keep: 1,
        };
        let database = recovered(config);
        fill_bank(&database, 200);
        let is_taken = || {
            let taken = checkpointer(&database).list();
            let estimate = checkpointer(&database).restart();
            let is_published = taken.iter().any(|info| info.state == CheckpointPhase::Published);
            // No opening of this database has loaded anything.
            is_published && estimate.load_bytes > 0 && estimate.load_seconds.is_none()
        };
        let until = Instant::now() + WAIT_MAX;
        for round in 0.. {
            if is_taken() {
                break;
            }
            let taken = checkpointer(&database).list();
            assert!(Instant::now() < until, "{taken:?}");
            transfer(&database, round);
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_server_that_is_often_restarted_takes_checkpoints_by_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = config(dir.path(), 1);
    config.checkpoints = CheckpointConfig {
        every: Duration::from_secs(2),
        ..CheckpointConfig::BY_HAND
    };
    let until = Instant::now() + WAIT_MAX;
    for round in 0.. {
        let database = recovered(config.clone());
        if round == 0 {
            fill_bank(&database, 200);
        }
        let newest = checkpointer(&database).newest();
        // Shorter than the time between checkpoints.
        thread::sleep(Duration::from_millis(500));
        close(database);
        if newest.is_some() {
            return;
        }
        assert!(Instant::now() < until, "none was taken in {round} starts");
    }
}

#[test]
fn a_checkpoint_is_begun_when_a_restart_would_take_too_long() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = config(dir.path(), 2);
    config.checkpoints.recovery_target = Duration::from_millis(2);
    let database = recovered(config);
    fill_bank(&database, 200);
    let mut round = 0;
    let until = Instant::now() + WAIT_MAX;
    while checkpointer(&database).list().is_empty() && Instant::now() < until {
        transfer(&database, round);
        round += 1;
    }
    let estimate = checkpointer(&database).restart();
    assert_eq!(estimate.target_seconds, Some(0.002));
    let taken = checkpointer(&database).list();
    assert!(!taken.is_empty(), "none was begun in {round} rounds");
}

#[test]
fn a_checkpoint_that_fails_is_told_until_long_after() {
    let (dir, database) = bank(1, 20);
    assert_eq!(checkpointer(&database).last_failure(), None);
    std::fs::remove_dir_all(dir.path().join("checkpoints")).expect("removed");
    checkpointer(&database).take().expect("begun");
    while checkpointer(&database).last_failure().is_none() {
        thread::sleep(Duration::from_millis(1));
    }
    let failure = checkpointer(&database).last_failure().expect("told");
    assert!(failure.at_unix_us > 0 && !failure.error.is_empty(), "{failure:?}");
    std::fs::create_dir(dir.path().join("checkpoints")).expect("made again");
    take(&database);
    assert_eq!(checkpointer(&database).counts(), (1, 1));
    assert_eq!(checkpointer(&database).last_failure(), Some(failure));
}

/// The machine does other things as well.
const ROUNDS_MAX: usize = 20;

/// A restart takes the time that the server estimated, with a checkpoint and commands behind it. The commands are those of the opening, and
/// those of this run. Figures: `cargo test --release -p reprise-upkeep --test it -- restart_takes --nocapture`.
#[test]
fn a_restart_takes_about_as_long_as_was_estimated() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut database, _) = open(dir.path(), 1);
    database.router().deploy("bank", &wasm("bank")).expect("deploy");
    (0..400).for_each(|round| fill(&database, round * 1_000, 1_000));
    take(&database);
    let unknown = checkpointer(&database).restart();
    assert!(
        unknown.load_seconds.is_none() && unknown.seconds().is_none(),
        "{unknown:?}"
    );
    close(database);
    (database, _) = open(dir.path(), 1);
    let mut best = f64::MAX;
    for round in 0..ROUNDS_MAX {
        (0..50).for_each(|part| fill(&database, (400 + 50 * round as i64 + part) * 1_000, 1_000));
        let estimate = checkpointer(&database).restart();
        let estimated_s = estimate.seconds().expect("measured");
        close(database);
        let begun = Instant::now();
        let report;
        (database, report) = open(dir.path(), 1);
        let taken_s = begun.elapsed().as_secs_f64();
        println!("restart {round}: {estimated_s:.3} s were estimated, and {taken_s:.3} s taken");
        best = best.min((taken_s / estimated_s).max(estimated_s / taken_s));
        // The expected work is the work that was done, except for the block that the close wrote.
        let loaded = report.checkpoint.expect("loaded").row_bytes;
        let close = |told: u64, found: u64| (told..=told + 4096).contains(&found);
        assert_eq!(estimate.load_bytes, loaded);
        assert!(
            close(estimate.replay_bytes, report.log_bytes),
            "{estimate:?}, {report:?}"
        );
        assert!(
            close(estimate.check_bytes, report.checked_bytes),
            "{estimate:?}, {report:?}"
        );
        // Everything is reported: its parts belong to that opening, and the rest remains.
        let told = checkpointer(&database).restart();
        let parts = [
            told.load_seconds,
            told.replay_seconds,
            told.check_seconds,
            told.other_seconds,
        ];
        let parts_s = parts.into_iter().sum::<Option<f64>>().expect("measured");
        assert!(
            parts_s <= taken_s && parts_s > report.seconds,
            "{told:?}, {report:?}, {taken_s} s"
        );
        if round >= 3 && best < 2.0 {
            break;
        }
    }
    assert!(best < 2.0, "{best} times");
    database.close().expect("close");
}
