//! Changes of any size, logged in parts, in the requested form. They exist as a whole or not at all wherever a log ends, on either device.

use crate::common;
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::common::{Line, Sent, close, config, i64s, records, submit_to};
use reprise_abi::{Field, RowLayout, ScalarType};
use reprise_backup::{Point, restore};
use reprise_base::{Lsn, limits::PART_BYTES};
use reprise_database::{
    AppendOutcome, Database, DatabaseConfig, DeviceConfig, FlushPolicy, LogPolicy, NvramConfig, RecoverFrom, ShipForm,
};
use reprise_router::{BatchReply, Failure, LogBody, ReplyOutcome};
use reprise_test_crash::copy_dir;

const WAIT_MAX: Duration = Duration::from_secs(120);
/// Columns of a row of 800 bytes.
const COLUMNS: usize = 100;
const ROW_BYTES: usize = 8 * COLUMNS;

/// A module with a table of wide rows. `put(a, b, from, count)` inserts rows with keys from (a, from) on, those of odd numbers at b, and
/// returns the count. A key that exists ends it.
fn module() -> Vec<u8> {
    let names: Vec<_> = (0..COLUMNS)
        .map(|at| format!(r#"{{"name":"c{at}","type":"i64"}}"#))
        .collect();
    let params: Vec<_> = ["a", "b", "from", "count"]
        .iter()
        .map(|name| format!(r#"{{"name":"{name}","type":"i64"}}"#))
        .collect();
    let description = format!(
        r#"{{"abi":1,"tables":[{{"name":"wide","columns":[{}],"primary_key":["c0","c1"],"placement":{{"by":"c0"}}}}],
            "procedures":[{{"name":"put","params":[{}],"returns":"i64","read_only":false,"partitioning":{{"by":["a","b"]}},
            "time_max_ms":100000}}]}}"#,
        names.join(","),
        params.join(",")
    );
    let layout = RowLayout::from_types(std::iter::repeat_n((ScalarType::I64, false), COLUMNS));
    let row = layout.build(&vec![Field::Int(0); COLUMNS]);
    assert_eq!(row.len(), ROW_BYTES);
    let section: String = description.bytes().map(|byte| format!("\\{byte:02x}")).collect();
    let text = format!(
        r#"(module (import "reprise1" "args_read" (func $args_read (param i32)))
            (import "reprise1" "insert" (func $insert (param i32 i64) (result i64)))
            (import "reprise1" "result_write" (func $result_write (param i64)))
            (memory (export "memory") 1)
            (func (export "reprise_call_put") (param i32) (result i32) (local $n i64)
                (call $args_read (i32.const 4096))
                (loop $again
                    (i64.store (i32.const 0) (i64.load
                        (select (i32.const 4104) (i32.const 4096) (i32.wrap_i64 (i64.and (local.get $n) (i64.const 1))))))
                    (i64.store (i32.const 8) (i64.add (i64.load (i32.const 4112)) (local.get $n)))
                    (i64.store (i32.const 16) (local.get $n))
                    (if (i64.lt_s (call $insert (i32.const 0) (i64.const {})) (i64.const 0)) (then unreachable))
                    (local.set $n (i64.add (local.get $n) (i64.const 1)))
                    (br_if $again (i64.lt_u (local.get $n) (i64.load (i32.const 4120)))))
                (call $result_write (i64.const {}))
                i32.const 0)
            (@custom "reprise.describe" "{section}"))"#,
        (ROW_BYTES as u64) << 32,
        8u64 << 32 | 4120
    );
    wat::parse_str(text).expect("valid")
}

fn settings(dir: &Path, sites: u16, log: LogPolicy) -> DatabaseConfig {
    let mut settings = config(dir, sites);
    (settings.log, settings.segment_bytes) = (log, 64 << 20);
    settings
}

fn open_with(settings: DatabaseConfig, part_bytes: usize) -> Database {
    let database = Database::open_changed(settings, |around| around.part_bytes = part_bytes).expect("open");
    database.recover().expect("recover");
    database
}

fn deployed(settings: DatabaseConfig, part_bytes: usize) -> Database {
    let database = open_with(settings, part_bytes);
    database.router().deploy("m", &module()).expect("deployed");
    database
}

/// Calls of `put` in one batch.
fn put(database: &Database, calls: &[([i64; 4], Option<&str>)]) -> BatchReply {
    let calls = calls.iter().map(|(args, key)| ("m", "put", *key, i64s(args)));
    submit_to(database, &calls.collect::<Vec<_>>())
}

/// A call that commits; its LSN.
fn put_one(database: &Database, args: [i64; 4]) -> Lsn {
    let reply = put(database, &[(args, None)]);
    assert_eq!(*reply.get(0).outcome, ReplyOutcome::Committed, "{args:?}");
    assert_eq!(reply.get(0).result, args[3].to_le_bytes());
    reply.get(0).lsn
}

/// Returns the number of rows. It does not wait for a busy partition, whose earlier number counts. So two numbers in turn have to agree.
fn rows(database: &Database) -> u64 {
    let deployed = database.router().deployed();
    let Some((id, _)) = deployed.table("m.wide") else {
        return 0;
    };
    let told = || database.router().table_stats(WAIT_MAX).expect("ready")[usize::from(id.0)].rows;
    let mut last = told();
    loop {
        std::thread::sleep(Duration::from_millis(120));
        let next = told();
        if next == last {
            return next;
        }
        last = next;
    }
}

fn digest(database: &Database) -> u64 {
    database.router().digest().expect("ready")
}

/// Reads the log: rows of each transaction that counts, and the number of its records that are parts.
fn logged(database: &Database) -> (Vec<usize>, usize) {
    let (mut txns, mut parts, mut open) = (Vec::new(), 0, Vec::new());
    for entry in records(database, None) {
        assert!(entry.bytes as usize <= PART_BYTES + 200, "{} bytes", entry.bytes);
        match entry.body {
            LogBody::Part { number } => {
                if number == 0 {
                    open.clear();
                }
                assert_eq!(number as usize, open.len());
                parts += 1;
                open.push(entry.rows.len());
            }
            LogBody::Changes { parts, .. } => {
                let before = std::mem::take(&mut open);
                assert_eq!(parts as usize, before.len());
                txns.push(before.iter().sum::<usize>() + entry.rows.len());
            }
            _ => {}
        }
    }
    (txns, parts)
}

fn kinds(database: &Database, kind: &str) -> usize {
    records(database, None)
        .iter()
        .filter(|entry| entry.kind == kind)
        .count()
}

#[test]
fn changes_of_any_size_are_logged_in_the_form_that_was_asked_for() {
    // The sizes are from just below one record's bytes to the most that a call may write, of one partition and of two.
    let counts = [
        10,
        PART_BYTES / (ROW_BYTES + 8),
        PART_BYTES / ROW_BYTES + 1,
        20_000,
        80_000,
    ];
    for log in [LogPolicy::Physiological, LogPolicy::Both] {
        let dir = tempfile::tempdir().expect("a directory");
        let database = deployed(settings(dir.path(), 2, log), PART_BYTES);
        let mut expected = Vec::new();
        for (at, count) in counts.iter().enumerate() {
            let count = *count as i64;
            let (a, b) = (at as i64, at as i64 + 100 * (at as i64 % 2));
            put_one(&database, [a, b, 0, count]);
            expected.push(count as usize);
        }
        let (txns, parts) = logged(&database);
        assert_eq!(txns, expected);
        assert!(parts > 40, "{parts}");
        let commands = kinds(&database, "command");
        assert_eq!(commands, if log == LogPolicy::Both { counts.len() } else { 0 });
        let (before, all) = (digest(&database), rows(&database));
        assert_eq!(all as usize, expected.iter().sum::<usize>());
        // One that is not whole ends with a trap, and leaves nothing.
        let reply = put(&database, &[([0, 0, 5, 30_000], None)]);
        assert!(matches!(reply.get(0).outcome, ReplyOutcome::Failed(_)));
        database.close().expect("closed");
        for (sites, from) in [(1, RecoverFrom::Changes), (3, RecoverFrom::Command)] {
            let mut again = settings(dir.path(), sites, LogPolicy::Command);
            again.redo.from = from;
            let database = open_with(again, PART_BYTES);
            assert_eq!((digest(&database), rows(&database)), (before, all), "{log:?}, {from:?}");
            database.close().expect("closed");
        }
    }
}

#[test]
fn a_batch_goes_to_the_log_in_pieces_and_is_answered_as_one() {
    for (log, part_bytes) in [
        (LogPolicy::Physiological, PART_BYTES),
        (LogPolicy::Both, 50_000),
        (LogPolicy::Physiological, 1),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let database = deployed(settings(dir.path(), 2, log), part_bytes);
        let large = if part_bytes == 1 { 300 } else { 5_000 };
        // All of one partition; some twice, which traps.
        let calls: Vec<_> = (0..40)
            .map(|at| match at % 4 {
                0 => [7, 7, at * 10_000, 1],
                1 => [7, 7, (at - 1) * 10_000, 1],
                2 => [7, 7, at * 10_000, large / 3],
                _ => [7, 7, at * 10_000, large],
            })
            .collect();
        let keys: Vec<_> = (0..calls.len()).map(|at| format!("key {at}")).collect();
        let keyed: Vec<_> = calls
            .iter()
            .zip(&keys)
            .map(|(args, key)| (*args, Some(key.as_str())))
            .collect();
        let reply = put(&database, &keyed);
        let mut last = Lsn(0);
        for (at, args) in calls.iter().enumerate() {
            let found = reply.get(at);
            if at % 4 == 1 {
                assert!(matches!(found.outcome, ReplyOutcome::Failed(_)), "call {at}");
                continue;
            }
            assert_eq!(*found.outcome, ReplyOutcome::Committed, "call {at}");
            assert_eq!(found.result, args[3].to_le_bytes(), "call {at}");
            assert!(found.lsn > last, "call {at}");
            last = found.lsn;
            let entry = database
                .router()
                .log_record(found.lsn)
                .expect("a log")
                .expect("a record");
            assert!(
                ["changes", "command"].contains(&entry.kind),
                "a {} is no call",
                entry.kind
            );
            assert_eq!(entry.txn_id, Some(found.txn_id));
        }
        let expected: usize = calls
            .iter()
            .enumerate()
            .filter(|(at, _)| at % 4 != 1)
            .map(|(_, args)| args[3] as usize)
            .sum();
        assert_eq!(rows(&database) as usize, expected);
        let before = digest(&database);
        database.close().expect("closed");
        let database = open_with(settings(dir.path(), 1, log), part_bytes);
        assert_eq!(digest(&database), before);
        // The keys are known, with their answers and their positions in the log.
        let again = put(&database, &keyed);
        for at in (0..calls.len()).filter(|at| at % 4 != 1) {
            let (first, second) = (reply.get(at), again.get(at));
            assert_eq!(
                (first.lsn, first.txn_id, first.result),
                (second.lsn, second.txn_id, second.result),
                "call {at}"
            );
        }
        assert_eq!(digest(&database), before);
        database.close().expect("closed");
    }
}

#[test]
fn a_log_cut_off_between_two_parts_has_nothing_of_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = deployed(settings(dir.path(), 2, LogPolicy::Physiological), 100_000);
    let count = 3_000;
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let (mut copies, mut between) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for call in 0..40 {
                // Transactions of one partition, and of two.
                put_one(&database, [1, 1 + call % 2, call * 10_000, count]);
            }
            is_over.store(true, std::sync::atomic::Ordering::Release);
        });
        while !is_over.load(std::sync::atomic::Ordering::Acquire) {
            let copy = tempfile::tempdir().expect("a directory");
            let place = copy.path().join("data");
            // The copy is as kill -9 would leave it; a file may be gone or half there meanwhile, which no crash does.
            if copy_dir(&dir.path().join("log"), &place.join("log")).is_err() {
                continue;
            }
            let opened = Database::open_changed(settings(&place, 1, LogPolicy::Physiological), |around| {
                around.part_bytes = 7_000
            });
            let Ok(opened) = opened else { continue };
            opened.recover().expect("recover");
            let found = rows(&opened) as i64;
            assert_eq!(found % count, 0, "whole transactions alone");
            let parts = records(&opened, None).last().is_some_and(|last| last.kind == "part");
            (copies, between) = (copies + 1, between + usize::from(parts));
            // The database continues.
            if opened.router().deployed().current.contains_key("m") {
                put_one(&opened, [1, 2, 9_000_000, 50]);
                let before = digest(&opened);
                opened.close().expect("closed");
                let again = open_with(settings(&place, 2, LogPolicy::Physiological), 7_000);
                assert_eq!((rows(&again) as i64, digest(&again)), (found + 50, before));
                again.close().expect("closed");
            }
        }
    });
    assert!(copies > 0, "no copy could be opened");
    println!("{copies} copies, {between} between two parts");
    database.close().expect("closed");
}

fn place(standby: &Database, sent: &Sent) {
    assert_eq!(standby.place(&sent.get()), Ok(AppendOutcome::New));
}

/// A standby gets parts group by group; it is killed, opened again, asked and promoted between any two of them.
#[test]
fn a_standby_shows_all_parts_or_none_and_a_promotion_between_two_drops_them() {
    // More than one group each.
    let count = 8_000;
    for (log, ship) in [
        (LogPolicy::Physiological, ShipForm::AsLogged),
        (LogPolicy::Both, ShipForm::AsLogged),
        (LogPolicy::Command, ShipForm::Changes),
        (LogPolicy::Physiological, ShipForm::Command),
    ] {
        let (dir, line) = (tempfile::tempdir().expect("a directory"), Arc::new(Line::default()));
        let open_primary = || {
            let opened = Database::open_changed(settings(&dir.path().join("a"), 2, log), |around| {
                around.part_bytes = 300_000
            });
            opened.expect("open")
        };
        let primary = open_primary();
        primary.recover().expect("recover");
        close(primary);
        let seed = dir.path().join("seed");
        copy_dir(&dir.path().join("a"), &seed).expect("copied");
        let primary = open_primary();
        primary.add_group_sink(line.clone());
        primary.ship_as(ship).expect("a form that goes with the log");
        primary.recover().expect("recover");
        primary.router().deploy("m", &module()).expect("deployed");
        for call in 0..3 {
            put_one(&primary, [1, 1 + call % 2, call * 10_000, count]);
        }
        let (own, all) = (digest(&primary), rows(&primary));
        primary.close().expect("closed");
        // Its own log says the same.
        let again = open_with(settings(&dir.path().join("a"), 1, log), 5_000);
        assert_eq!((digest(&again), rows(&again)), (own, all), "{log:?}, {ship:?}");
        again.close().expect("closed");
        let sent: Vec<_> = line.0.lock().expect("the line").drain(..).collect();
        assert!(sent.len() > 4, "{} groups", sent.len());
        let open_standby = |place: &Path| {
            let standby = Database::open_standby(settings(place, 3, log)).expect("open");
            standby.recover().expect("recover");
            standby
        };
        let mut between = 0;
        for until in 1..=sent.len() {
            let home = dir.path().join(format!("s{until}"));
            copy_dir(&seed, &home).expect("copied");
            let standby = open_standby(&home);
            sent[..until / 2].iter().for_each(|sent| place(&standby, sent));
            standby.close().expect("closed");
            // Killed, and back.
            let standby = open_standby(&home);
            sent[until / 2..until].iter().for_each(|sent| place(&standby, sent));
            let received = sent[until - 1].end.lsn;
            let began = Instant::now();
            let whole = loop {
                let view = standby.router().view();
                let found = records(&standby, None);
                let last = found
                    .iter()
                    .rposition(|entry| entry.kind != "part")
                    .map_or(Lsn(0), |at| Lsn(found[at].lsn.0 + 1));
                if found.last().is_some_and(|last| last.lsn.0 + 1 == received.0) && view == last {
                    break last < received;
                }
                assert!(began.elapsed() < WAIT_MAX, "view {view} of {received}");
                std::thread::sleep(Duration::from_millis(1));
            };
            between += usize::from(whole);
            let found = rows(&standby) as i64;
            assert_eq!(found % count, 0, "behind group {until}");
            if standby.router().deployed().current.is_empty() {
                continue;
            }
            if until % 2 == 0 {
                // The checkpoint is of a place between two transactions.
                common::take(&standby);
            }
            if until == sent.len() {
                assert_eq!((digest(&standby), rows(&standby)), (own, all), "{log:?}, {ship:?}");
            }
            standby.promote().expect("promoted");
            assert_eq!(rows(&standby) as i64, found, "parts that nothing ends are nobody's");
            put_one(&standby, [1, 2, 9_000_000, count]);
            let before = digest(&standby);
            standby.close().expect("closed");
            let again = open_with(settings(&home, 1, log), 5_000);
            assert_eq!((rows(&again) as i64, digest(&again)), (found + count, before));
            again.close().expect("closed");
        }
        assert!(between > 0, "some ends lie between two parts");
    }
}

#[test]
fn a_restore_to_a_place_between_two_parts_has_what_lies_before_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let database = deployed(settings(&data, 1, LogPolicy::Both), 10_000);
    let (first, second) = (
        put_one(&database, [1, 2, 0, 100]),
        put_one(&database, [1, 2, 1_000, 100]),
    );
    let called = database.router().log_record(second).expect("a log").expect("a record");
    assert_eq!(called.kind, "command");
    let txn_id = called.txn_id.expect("a transaction");
    database.close().expect("closed");
    assert!(second.0 > first.0 + 8);
    let points = [
        (Point::Lsn(first), 100),
        (Point::Lsn(Lsn(first.0 + 4)), 100),
        (Point::Lsn(Lsn(second.0 - 1)), 100),
        (Point::Lsn(second), 200),
        (Point::Txn(txn_id), 200),
        (Point::End, 200),
    ];
    for (at, (point, expected)) in points.into_iter().enumerate() {
        let target = dir.path().join(format!("restored{at}"));
        restore(&data, &target, point).unwrap_or_else(|error| panic!("{point:?}: {error}"));
        let restored = open_with(settings(&target, 2, LogPolicy::Both), 10_000);
        assert_eq!(rows(&restored), expected, "{point:?}");
        assert!(
            records(&restored, None).last().is_some_and(|last| last.kind != "part"),
            "{point:?}"
        );
        restored.close().expect("closed");
    }
}

#[test]
fn a_ring_of_nvram_takes_more_than_it_holds_and_refuses_what_no_part_of_it_can_hold() {
    for flush in [FlushPolicy::OnCommit, FlushPolicy::OnInsert, FlushPolicy::OnInsertFence] {
        for log in [LogPolicy::Physiological, LogPolicy::Both] {
            let dir = tempfile::tempdir().expect("a directory");
            let mut on_nvram = settings(&dir.path().join("data"), 2, log);
            on_nvram.device = DeviceConfig::Nvram(NvramConfig {
                path: dir.path().join("region"),
                bytes: Some(8 << 20),
                copy_at_entries: 80_000,
                flush,
                assume_persistent: true,
            });
            let database = deployed(on_nvram.clone(), PART_BYTES);
            // Transactions of one partition and of two, small ones before and behind in one batch.
            let calls = [
                [1, 1, 0, 3],
                [1, 1, 10, 20_000],
                [1, 1, 100_000, 900],
                [1, 1, 200_000, 900],
                [1, 1, 300_000, 4],
                [1, 2, 400_000, 9_000],
            ];
            let reply = put(&database, &calls.map(|args| (args, None)));
            for (at, args) in calls.iter().enumerate() {
                assert_eq!(
                    *reply.get(at).outcome,
                    ReplyOutcome::Committed,
                    "{args:?}, {flush:?}, {log:?}"
                );
            }
            let expected: i64 = calls.iter().map(|args| args[3]).sum();
            assert_eq!(rows(&database) as i64, expected);
            let before = digest(&database);
            close(database);
            let database = open_with(on_nvram, PART_BYTES);
            assert_eq!(digest(&database), before);
            let (txns, parts) = logged(&database);
            assert_eq!(txns.len(), calls.len());
            assert!(parts > 30);
            database.close().expect("closed");
        }
    }
    // A ring whose part has no room for one row.
    let dir = tempfile::tempdir().expect("a directory");
    let mut small = settings(&dir.path().join("data"), 4, LogPolicy::Physiological);
    small.device = DeviceConfig::Nvram(NvramConfig {
        path: dir.path().join("region"),
        bytes: Some(1 << 20),
        copy_at_entries: 80_000,
        flush: FlushPolicy::OnCommit,
        assume_persistent: true,
    });
    let database = deployed(small.clone(), PART_BYTES);
    put_one(&database, [1, 1, 0, 20]);
    let reply = put(
        &database,
        &[([1, 1, 1_000, 80_000], None), ([1, 1, 2_000_000, 5], None)],
    );
    match reply.get(0).outcome {
        ReplyOutcome::Committed => {}
        ReplyOutcome::Failed(failure) => assert!(matches!(**failure, Failure::Limit { .. }), "{failure:?}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(*reply.get(1).outcome, ReplyOutcome::Committed);
    let (before, all) = (digest(&database), rows(&database));
    close(database);
    let database = open_with(small, PART_BYTES);
    assert_eq!((digest(&database), rows(&database)), (before, all));
    database.close().expect("closed");
}
