//! Row numbers. The log names rows by them, they are the same in every replay, and answers name the keys all the same.

use crate::common;
use std::{collections::BTreeSet, path::Path, sync::Arc};

use crate::common::{config, digest_now, i64s, recovered, take, wasm};
use reprise_database::{Database, DatabaseConfig, LogPolicy, RecoverFrom, RedoConfig};
use reprise_env::RealDisk;
use reprise_log::LogReader;
use reprise_router::{ChangedRow, NumberedRow, ReplyOutcome, TableId};
use reprise_wire::Changes;

fn open(dir: &Path, sites: u16, log: LogPolicy, from: RecoverFrom) -> Database {
    recovered(DatabaseConfig {
        log,
        redo: RedoConfig {
            from,
            ..RedoConfig::default()
        },
        ..config(dir, sites)
    })
}

fn push_varint(out: &mut Vec<u8>, count: usize) {
    assert!(count < 128);
    out.push(count as u8);
}

/// Calls `registers.write`, or `rotate` without values.
fn call(database: &Database, ids: &[i64], values: Option<(&[Option<i64>], bool)>) -> bool {
    let name = if values.is_some() { "write" } else { "rotate" };
    let mut args = Vec::new();
    push_varint(&mut args, ids.len());
    args.extend(i64s(ids));
    if let Some((values, abort)) = values {
        push_varint(&mut args, values.len());
        for value in values {
            args.push(value.is_some() as u8);
            args.extend(value.iter().flat_map(|value| value.to_le_bytes()));
        }
        args.push(abort as u8);
    }
    common::call(database, "registers", name, &args).outcome == ReplyOutcome::Committed
}

/// Rows come, change, go and come back, on one partition and on several, with savepoints taken back and transactions that fail.
fn work(database: &Database, rounds: i64) {
    for round in 0..rounds {
        let at = |step: i64| (round * 7 + step * 13) % 23;
        let value = |id: i64| (id % 3 != round % 3).then_some(round * 100 + id);
        call(database, &[at(0)], Some((&[value(at(0))], false)));
        let ids = [at(1), at(2), at(3)];
        call(database, &ids, Some((&ids.map(value), round % 5 == 0)));
        if at(4) != at(5) {
            call(database, &[at(4), at(5), at(6)], None);
        }
    }
}

#[test]
fn rows_have_the_same_numbers_in_every_replay() {
    for log in [LogPolicy::Physiological, LogPolicy::Both, LogPolicy::Command] {
        let dir = tempfile::tempdir().expect("a directory");
        let database = open(dir.path(), 2, log, RecoverFrom::Command);
        database
            .router()
            .deploy("registers", &wasm("registers"))
            .expect("deploy");
        work(&database, 120);
        take(&database);
        work(&database, 120);
        let digest = digest_now(&database);
        database.close().expect("close");
        for from in [RecoverFrom::Command, RecoverFrom::Changes] {
            for sites in [1, 3] {
                for has_checkpoint in [true, false] {
                    let copy = tempfile::tempdir().expect("a directory");
                    copy_dir(dir.path(), copy.path(), has_checkpoint);
                    let database = open(copy.path(), sites, log, from);
                    let found = digest_now(&database);
                    assert_eq!(found, digest, "{log:?}, {from:?}, {sites} sites, {has_checkpoint}");
                    database.close().expect("close");
                }
            }
        }
        check_changes(dir.path(), log != LogPolicy::Command);
    }
}

fn copy_dir(from: &Path, to: &Path, has_checkpoint: bool) {
    // The compiled code is copied, too, so that no opening compiles again.
    for folder in ["log", "checkpoints", "code"] {
        std::fs::create_dir_all(to.join(folder)).expect("a folder");
        if folder == "checkpoints" && !has_checkpoint {
            continue;
        }
        for path in common::files(from, folder) {
            std::fs::copy(&path, to.join(folder).join(path.file_name().expect("a file"))).expect("copied");
        }
    }
}

/// Checks whether the log has records of changes.
fn check_changes(dir: &Path, has_changes: bool) {
    let disk = Arc::new(RealDisk::open(dir.join("log")).expect("its log"));
    let (mut reader, _) = LogReader::open(disk, reprise_base::Lsn(0)).expect("a log");
    let mut found = 0;
    while let Some(record) = reader.next_record().expect("read") {
        for change in record.record.groups().flat_map(|(_, changes)| Changes::new(changes)) {
            change.expect("whole");
            found += 1;
        }
    }
    assert_eq!(found > 100, has_changes, "{found} changes");
}

/// The rows that a log's records of changes are of, oldest first.
fn logged(database: &Database) -> Vec<ChangedRow> {
    let records = common::records(database, None).into_iter();
    let changes = records.filter(|record| record.kind == "changes");
    changes.flat_map(|record| record.rows).collect()
}

#[test]
fn a_change_by_number_is_told_with_the_key_that_its_row_has() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path(), 2, LogPolicy::Physiological, RecoverFrom::Command);
    database
        .router()
        .deploy("registers", &wasm("registers"))
        .expect("deploy");
    let write = |id: i64, value: Option<i64>| assert!(call(&database, &[id], Some((&[value], false))));
    write(5, Some(1));
    write(6, Some(1));
    write(5, Some(2));
    write(6, Some(2));
    write(6, None);
    write(6, Some(3));
    let key = |id: i64| Some((id as u64 ^ 1 << 63).to_be_bytes().to_vec());
    // A page waits for a busy partition no longer than 200 ms, and then shows its rows without keys.
    let mut rows = Vec::new();
    common::wait_until("the partition tells the key", || {
        rows = logged(&database);
        rows.get(2).is_some_and(|row: &ChangedRow| row.key.is_some())
    });
    let seen: Vec<_> = rows
        .iter()
        .map(|row| (row.change, row.number, row.key.clone()))
        .collect();
    let expected = [
        ("insert", 0, None),
        ("insert", 0, None),
        ("update", 0, key(5)),
        ("update", 0, None), // the row is gone
        ("delete", 0, None),
        ("insert", 1, None),
    ];
    assert_eq!(seen, expected);
    assert_ne!(rows[0].partition, rows[1].partition);

    // Finds the present number of a key's row, and none for a row that is not there.
    let router = database.router();
    let deployed = router.deployed();
    let (table, schema) = deployed.table("registers").expect("its table");
    let asked = |id: i64| (table, schema.clone(), key(id).expect("a key"));
    let mut found = BTreeSet::new();
    common::wait_until("the partitions tell the numbers", || {
        let told = router.numbered_rows(vec![asked(5), asked(6), asked(7)]);
        told.map(|told| found = told).is_ok()
    });
    let row = |at: usize, number: u64| NumberedRow {
        partition: Some(reprise_base::PartitionId(rows[at].partition)),
        table: TableId(rows[at].table_id),
        number,
    };
    assert_eq!(found, [row(0, 0), row(1, 1)].into());
    assert_eq!(NumberedRow::of(&rows[2]), Some(row(0, 0)));
}
