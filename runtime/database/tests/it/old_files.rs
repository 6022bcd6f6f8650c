//! Files of older formats and semantics numbers (`v2-…`: format 2; `v3-…`: format 3, semantics 2; `v4-…` and `v5-…`: formats 4 and 5,
//! semantics 3), as the programs of their time wrote them (`tests/fixtures/make.sh`): what can be opened is, with all rows and keys; what
//! can't is refused with nothing changed.

use std::{fs, path::Path, sync::Arc, time::Duration};

use crate::common::{config, i64s, snapshot, submit, take};
use reprise_abi::{Field, RowLayout};
use reprise_backup::{Point, RestoreError, restore};
use reprise_base::Lsn;
use reprise_database::{Database, OpenError, inspect};
use reprise_env::RealDisk;
use reprise_log::{LogError, LogReader};
use reprise_router::{ReplyOutcome, RowsRequest};
use reprise_wire::FORMAT_VERSION;

type Rows = Vec<(i64, i64)>;

/// Unpacks a fixture to a directory of its own, with the rows that its database holds.
fn unpack(name: &str) -> (tempfile::TempDir, Rows) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures")
        .join(name);
    let dir = tempfile::tempdir().expect("a directory");
    for folder in ["log", "checkpoints", ""] {
        let Ok(listed) = fs::read_dir(from.join(folder)) else {
            continue;
        };
        fs::create_dir_all(dir.path().join(folder)).expect("a folder");
        for path in listed.map(|entry| entry.expect("an entry").path()) {
            let Some(name) = path.to_str().and_then(|path| path.strip_suffix(".zst")) else {
                continue;
            };
            let name = Path::new(name).file_name().expect("a file");
            let packed = fs::File::open(&path).expect("a fixture");
            let bytes = zstd::stream::decode_all(packed).expect("packed by zstd");
            fs::write(dir.path().join(folder).join(name), bytes).expect("written");
        }
    }
    let rows = fs::read_to_string(from.join("accounts")).expect("the rows");
    let row = |line: &str| {
        let (account, balance) = line.split_once(' ').expect("two numbers");
        (account.parse().expect("a number"), balance.parse().expect("a number"))
    };
    (dir, rows.lines().map(row).collect())
}

/// Longer than these files will be opened, by the time of their transactions.
const KEEP: Duration = Duration::from_secs(50 * 365 * 24 * 3600);

fn try_open(dir: &Path, sites: u16) -> Result<Database, OpenError> {
    let mut config = config(dir, sites);
    config.partitions = 2;
    let database = Database::open(config)?;
    // However old the files are.
    database.set_idempotency_keep(KEEP);
    database.recover()?;
    Ok(database)
}

fn rows(database: &Database) -> Rows {
    let deployed = database.router().deployed();
    let (table, schema) = deployed.table("accounts").expect("its table");
    let layout = RowLayout::of_table(schema);
    let request = RowsRequest {
        table: table.0,
        index: 0,
        limit: 100,
        cursor: None,
        prefix: Vec::new(),
        ..RowsRequest::default()
    };
    let page = database.router().table_rows(request).expect("rows");
    let int = |row: &[u8], column| match layout.field(row, column) {
        Field::Int(value) => value,
        other => panic!("{other:?}"),
    };
    let mut rows: Rows = page.rows.iter().map(|row| (int(row, 0), int(row, 1))).collect();
    rows.sort_unstable();
    rows
}

fn committed(database: &Database, key: Option<&str>, args: [i64; 3]) {
    let reply = submit(database, &[("transfer", key, i64s(&args))]);
    assert_eq!(*reply.get(0).outcome, ReplyOutcome::Committed);
}

/// Its rows are there, a repeated call under its key does nothing, and the database goes on from there.
fn check_goes_on(dir: &Path, expected: &Rows) {
    let mut expected = expected.clone();
    for sites in [1, 2] {
        let database = try_open(dir, sites).expect("opens");
        assert_eq!(rows(&database), expected);
        committed(&database, Some("key-1"), [1, 10, 500]);
        assert_eq!(rows(&database), expected, "the key is known");
        committed(&database, None, [2, 3, 1]);
        expected[1].1 -= 1;
        expected[2].1 += 1;
        database.close().expect("close");
    }
    let database = try_open(dir, 2).expect("opens");
    take(&database);
    committed(&database, None, [3, 2, 2]);
    database.close().expect("close");
    expected[1].1 += 2;
    expected[2].1 -= 2;
    assert_eq!(rows(&try_open(dir, 1).expect("opens")), expected);
    check_numbers(dir);
}

/// The first segment of this version goes on from the number at which the older ones end, and counts records from there on.
fn check_numbers(dir: &Path) {
    let disk = Arc::new(RealDisk::open(dir.join("log")).expect("its log"));
    let (mut reader, report) = LogReader::open(disk, Lsn(0)).expect("a log");
    let (older, own): (Vec<_>, Vec<_>) = report.segments.iter().partition(|found| found.version < FORMAT_VERSION);
    assert!(older.last().is_none_or(|last| last.end == own[0].start));
    let mut next = own[0].start;
    while let Some(record) = reader.next_record().expect("read") {
        if record.lsn >= own[0].start {
            assert_eq!((record.lsn, record.end), (next, Lsn(next.0 + 1)));
            next = record.end;
        }
    }
    assert_eq!(next, report.end);
}

#[test]
fn older_checkpoints_and_changes_open() {
    for name in [
        "v2-checkpoint",
        "v2-physiological",
        "v2-both",
        "v3-checkpoint",
        "v3-physiological",
        "v3-both",
        "v4-checkpoint",
        "v4-physiological",
        "v4-both",
        "v4-command",
        "v4-checkpoint-commands",
        "v5-checkpoint",
        "v5-physiological",
        "v5-both",
        "v5-command",
        "v5-checkpoint-commands",
    ] {
        println!("{name}");
        let (dir, expected) = unpack(name);
        let found = inspect(dir.path()).expect("looked at");
        assert_eq!(found.refused, [] as [String; 0], "{name}");
        check_goes_on(dir.path(), &expected);
    }
}

#[test]
fn an_older_backup_is_restored() {
    for name in ["v2-backup", "v3-backup", "v4-backup", "v5-backup"] {
        let (backup, expected) = unpack(name);
        let dir = tempfile::tempdir().expect("a directory");
        let target = dir.path().join("restored");
        restore(backup.path(), &target, Point::End).expect("restored");
        check_goes_on(&target, &expected);
    }
}

#[test]
fn older_commands_are_refused_before_anything_is_changed() {
    let of_semantics_1 = ["v2-command", "v2-checkpoint-commands"].map(|name| (name, 1));
    let of_semantics_2 = ["v3-command", "v3-checkpoint-commands"].map(|name| (name, 2));
    for (name, number) in [of_semantics_1, of_semantics_2].concat() {
        let (dir, _) = unpack(name);
        fs::create_dir_all(dir.path().join("checkpoints")).expect("a folder");
        let before = snapshot(dir.path());
        let refused = |error: &LogError| {
            let text = error.to_string();
            assert!(
                matches!(error, LogError::ForeignCommand { found, .. } if *found == number),
                "{text}"
            );
            assert!(
                text.contains("take a checkpoint") && text.contains("Nothing was changed"),
                "{text}"
            );
        };
        match try_open(dir.path(), 1) {
            Err(OpenError::Log(error)) => refused(&error),
            other => panic!("{name}: {:?}", other.err()),
        }
        let found = inspect(dir.path()).expect("looked at").refused;
        assert!(
            found
                .iter()
                .any(|reason| reason.contains(&format!("semantics number {number}"))),
            "{found:?}"
        );
        match restore(dir.path(), &dir.path().join("restored"), Point::End) {
            Err(RestoreError::Log(error)) => refused(&error),
            other => panic!("{name}: {other:?}"),
        }
        assert!(!dir.path().join("restored").exists());
        assert!(snapshot(dir.path()) == before, "{name}: files are as they were");
    }
}
