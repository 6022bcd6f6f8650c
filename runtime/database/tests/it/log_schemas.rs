//! Records of changes are shown with the schema that their rows were written with, whatever the tables are now.

use std::path::Path;

use crate::common::{
    Consenting, call, config, files,
    parts::{K, Parts, TABLE, module},
    records, recovered, take,
};
use reprise_abi::{Field, RowLayout};
use reprise_base::Lsn;
use reprise_database::{CheckpointConfig, Database, DatabaseConfig, LogPolicy};
use reprise_router::{LogSearch, ReplyOutcome};

/// Versions of module `m`: its table's name and columns, and the bytes of a row.
const VERSIONS: [(&str, &[&str], u64); 3] = [
    (
        "t",
        &[
            K,
            r#"{"name":"b","type":"i32","nullable":false}"#,
            r#"{"name":"gone","type":"i64","nullable":false}"#,
        ],
        20,
    ),
    (
        "t",
        &[K, r#"{"name":"wide","was":"b","type":"i64","nullable":false}"#],
        16,
    ),
    (
        "u was t",
        &[
            K,
            r#"{"name":"wide","type":"i64","nullable":false}"#,
            r#"{"name":"c","type":"i16","nullable":false,"default":"0700"}"#,
        ],
        18,
    ),
];

/// `put(k)` inserts a row with zeros behind the key.
fn version((table, columns, row_bytes): (&str, &[&str], u64)) -> Vec<u8> {
    module(&Parts {
        tables: &[(table, columns, r#""k""#)],
        row_bytes,
        ..TABLE
    })
}

fn settings(dir: &Path) -> DatabaseConfig {
    DatabaseConfig {
        log: LogPolicy::Physiological,
        segment_bytes: 16 << 10,
        checkpoints: CheckpointConfig {
            keep: 2,
            ..CheckpointConfig::BY_HAND
        },
        ..config(dir, 2)
    }
}

fn open(dir: &Path) -> Database {
    recovered(settings(dir))
}

/// Opens a directory whose log stays in one file, so that no checkpoint releases a part of it.
fn open_whole(dir: &Path) -> Database {
    recovered(DatabaseConfig {
        segment_bytes: 1 << 20,
        ..settings(dir)
    })
}

fn put(database: &Database, k: i64) {
    assert_eq!(
        call(database, "m", "put", &k.to_le_bytes()).outcome,
        ReplyOutcome::Committed
    );
}

/// Returns each change as the row's key, and its table with its columns as the log shows them. `?` stands for an unknown table.
fn shown(database: &Database) -> Vec<(i64, String)> {
    let records = records(database, None).into_iter();
    let changes = records.filter(|entry| entry.kind == "changes");
    let rows = changes.map(|entry| {
        let row = entry.rows.into_iter().next().expect("a row");
        let bytes = row.row.expect("an insertion");
        let key = i64::from_le_bytes(bytes[..8].try_into().expect("a key"));
        let Some(table) = row.table else {
            return (key, "?".to_owned());
        };
        let layout = RowLayout::of_table(&table);
        assert_eq!(layout.field(&bytes, 0), Field::Int(key));
        layout.validate(&bytes).expect("a row of this table");
        let columns: Vec<_> = table.columns.iter().map(|column| column.name.as_str()).collect();
        (key, format!("{} {}", table.full_name(), columns.join(" ")))
    });
    rows.collect()
}

fn oldest(database: &Database) -> Lsn {
    database
        .router()
        .log_records(LogSearch::default())
        .expect("a page")
        .oldest
}

const SHOWN: [&str; 3] = ["m.t k b gone", "m.t k wide", "m.u k wide c"];

fn check(database: &Database) {
    let found = shown(database);
    assert!(!found.is_empty());
    for (key, shown) in found {
        assert_eq!(shown, SHOWN[key as usize / 100], "{key}");
    }
}

#[test]
fn rows_are_shown_as_they_were_written_before_and_behind_two_deployments() {
    for checkpoints in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let database = open_whole(dir.path());
        for (at, of) in VERSIONS.iter().enumerate() {
            database
                .router()
                .deploy_consenting("m", &version(*of))
                .expect("deployed");
            (0..4).for_each(|k| put(&database, 100 * at as i64 + k));
            if checkpoints {
                take(&database);
            }
        }
        assert_eq!(shown(&database).len(), 12);
        check(&database);
        database.close().expect("closed");
        // The tables come once from the newest checkpoint, and once from the log.
        let database = open_whole(dir.path());
        assert_eq!(shown(&database).len(), 12);
        check(&database);
        database.router().remove_consenting("m").expect("removed");
        database.router().drop_table("m.u").expect("dropped");
        check(&database);
        database.close().expect("closed");
        let database = open_whole(dir.path());
        check(&database);
        // Its place is another table's from now on.
        let other = version(("x", &[K, r#"{"name":"b","type":"i8","nullable":false}"#], 9));
        database.router().deploy("other", &other).expect("deployed");
        assert_eq!(database.router().deployed().tables.len(), 1);
        check(&database);
        if checkpoints {
            take(&database);
        }
        database.close().expect("closed");
        check(&open_whole(dir.path()));
    }
}

#[test]
fn forgotten_schemas_are_not_guessed() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path());
    database
        .router()
        .deploy_consenting("m", &version(VERSIONS[0]))
        .expect("deployed");
    let early = 80;
    for k in 0..early {
        put(&database, k);
    }
    take(&database);
    (early..100).for_each(|k| put(&database, k));
    database
        .router()
        .deploy_consenting("m", &version(VERSIONS[1]))
        .expect("deployed");
    (100..140).for_each(|k| put(&database, k));
    let second = take(&database);
    (140..200).for_each(|k| put(&database, k));
    database
        .router()
        .deploy_consenting("m", &version(VERSIONS[2]))
        .expect("deployed");
    (200..240).for_each(|k| put(&database, k));
    let third = take(&database);
    check(&database);
    database.close().expect("closed");

    // The log begins behind the first deployment: its older checkpoint knows the rest.
    let database = open(dir.path());
    let start = oldest(&database);
    // A segment may begin with the checkpoint's own record.
    assert!(start > Lsn(0) && start <= second.lsn, "{start} of {}", second.lsn);
    check(&database);
    database.close().expect("closed");

    // Without that checkpoint, only the deployment between is known. The rows that it changed are not shown with the result.
    let [older, newer] = files(dir.path(), "checkpoints").try_into().expect("two");
    std::fs::remove_file(older).expect("removed");
    let database = open(dir.path());
    let found = shown(&database);
    let unknown = found.iter().filter(|(_, shown)| shown == "?").count();
    assert!(unknown > 0, "{found:?}");
    for (key, shown) in found {
        let is_right = match key {
            ..200 => shown == "?",
            _ => shown == SHOWN[2],
        };
        assert!(is_right, "{key}: {shown}");
    }
    assert!(third.lsn > second.lsn && newer.exists());
}
