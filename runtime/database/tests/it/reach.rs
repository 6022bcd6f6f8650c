//! The rows that a call of a module without the SDK sees: those of its own partitions. Rows beyond them lead to an error. A scan shows the
//! rows that existed when it began.

use std::path::Path;

use crate::common::{call_i64, config, digest_now, recovered};
use reprise_database::{Database, DatabaseConfig, LogPolicy};

/// A procedure of each way to read. The partition is that of its first argument, and the second argument is an encoded key. Each answers
/// with the integer that the host call returned.
const READS: [(&str, &str); 12] = [
    ("get", "(call $get (i32.const 0) (global.get $key) (global.get $out))"),
    (
        "get_columns",
        "(call $get_columns (i32.const 0) (global.get $key) (i64.const 2) (global.get $out))",
    ),
    (
        "exists",
        "(i64.extend_i32_u (call $exists (i32.const 0) (global.get $key)))",
    ),
    (
        "multi_get",
        "(call $multi_get (i32.const 0) (global.get $packed) (i32.const 1) (global.get $out))",
    ),
    (
        "multi_get_columns",
        "(call $multi_get_columns (i32.const 0) (global.get $packed) (i64.const 2) (global.get $out))",
    ),
    // One key, in one slot.
    (
        "multi_get_slots",
        "(call $multi_get_slots (i64.const 0x100000000) (global.get $key) (i64.const 2) (global.get $out))",
    ),
    (
        "add_by_key",
        "(i64.extend_i32_u (call $add_by_key (i64.const 0x200000000) (global.get $key) (i64.const 0) (global.get $out)))",
    ),
    (
        "get_by_b",
        "(call $get (i32.const 1) (global.get $key) (global.get $out))",
    ),
    ("scan_key", "(call $scan (i32.const 64) (global.get $out))"),
    ("count_key", "(call $count (i32.const 64))"),
    ("scan", "(call $scan (i32.const 96) (global.get $out))"),
    ("count", "(call $count (i32.const 96))"),
];
/// Scans and counts of the call's own rows.
const LOCAL: [(&str, &str); 2] = [("scan_local", "scan"), ("count_local", "count")];

/// `raise` adds its second argument to column b of each row, in the order of b, by buffers of two rows. It returns the number of turns.
/// `alias` reads a row twice and writes both copies back.
const LOOPS: &str = r#"
    (func (export "reprise_call_raise") (param i32) (result i32)
        (local $got i64) (local $at i32) (local $end i32) (local $turns i64)
        (call $begin (i32.const 8))
        (i32.store (i32.const 96) (i32.const 1))
        (local.set $got (call $scan (i32.const 96) (i64.const 0x4600000400)))
        (loop $batches
            (local.set $at (i32.const 1024))
            (local.set $end (i32.add (i32.const 1024) (i32.wrap_i64 (local.get $got))))
            (block $done (loop $rows
                (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
                (i64.store offset=16 (local.get $at)
                    (i64.add (i64.load offset=16 (local.get $at)) (i64.load (i32.const 8))))
                (drop (call $update (i32.load (local.get $at))
                    (i64.or (i64.extend_i32_u (i32.add (local.get $at) (i32.const 8))) (i64.const 0x1800000000))))
                (local.set $turns (i64.add (local.get $turns) (i64.const 1)))
                (local.set $at (i32.add (local.get $at) (i32.const 32)))
                (br $rows)))
            (if (i64.ne (i64.shr_u (local.get $got) (i64.const 32)) (i64.const 0)) (then
                (local.set $got (call $scan_next (i32.wrap_i64 (i64.shr_u (local.get $got) (i64.const 32)))
                    (i64.const 0x4600000400)))
                (br $batches))))
        (i64.store (i32.const 32) (local.get $turns))
        (call $result_write (global.get $answer))
        (i32.const 0))
    (func (export "reprise_call_alias") (param i32) (result i32)
        (local $one i32) (local $other i32)
        (call $begin (i32.const 0))
        (local.set $one (i32.wrap_i64 (i64.shr_u (call $get (i32.const 0) (global.get $key) (global.get $out)) (i64.const 32))))
        (local.set $other (i32.wrap_i64 (i64.shr_u (call $get (i32.const 0) (global.get $key) (global.get $out)) (i64.const 32))))
        (drop (call $update (local.get $one) (i64.const 0x1800000400)))
        (drop (call $update (local.get $one) (i64.const 0x1800000400)))
        (drop (call $update (local.get $other) (i64.const 0x1800000400)))
        (i32.const 0))"#;

fn module() -> Vec<u8> {
    let params = r#"[{"name":"k","type":"i64"},{"name":"key","type":"i64"}]"#;
    let declared = |name: &str| {
        format!(
            r#"{{"name":"{name}","params":{params},"returns":"i64","read_only":false,"partitioning":{{"by":["k"]}}}}"#
        )
    };
    let names = READS
        .iter()
        .chain(&LOCAL)
        .map(|(name, _)| *name)
        .chain(["put", "raise", "alias"]);
    let procedures: Vec<String> = names.map(declared).collect();
    let description = format!(
        r#"{{"abi":1,"tables":[{{"name":"t","columns":[{{"name":"k","type":"i64"}},{{"name":"b","type":"i64"}},{{"name":"c","type":"i64"}}],
        "primary_key":["k"],"primary_kind":"ordered","indexes":[{{"name":"by_b","columns":["b"],"unique":false}}],
        "placement":{{"by":"k"}}}}],"procedures":[{}]}}"#,
        procedures.join(",")
    );
    let section: String = description.bytes().map(|byte| format!("\\{byte:02x}")).collect();
    let entry = |name: &str, flags: u32, body: &str| {
        format!(
            r#"(func (export "reprise_call_{name}") (param i32) (result i32)
                (call $begin (i32.const {flags}))
                (i64.store (i32.const 32) {body})
                (call $result_write (global.get $answer))
                (i32.const 0))"#
        )
    };
    let of = |name: &str| READS.iter().find(|(read, _)| *read == name).expect("a way to read").1;
    let reads = READS.iter().map(|(name, body)| entry(name, 0, body));
    let local = LOCAL.iter().map(|(name, read)| entry(name, 8, of(read)));
    let put = entry("put", 0, "(call $insert (i32.const 0) (i64.const 0x1800000000))");
    let entries: String = reads.chain(local).chain([put, LOOPS.to_owned()]).collect();
    let text = format!(
        r#"(module
            (import "reprise1" "args_read" (func $args_read (param i32)))
            (import "reprise1" "result_write" (func $result_write (param i64)))
            (import "reprise1" "insert" (func $insert (param i32 i64) (result i64)))
            (import "reprise1" "get" (func $get (param i32 i64 i64) (result i64)))
            (import "reprise1" "get_columns" (func $get_columns (param i32 i64 i64 i64) (result i64)))
            (import "reprise1" "exists" (func $exists (param i32 i64) (result i32)))
            (import "reprise1" "multi_get" (func $multi_get (param i32 i64 i32 i64) (result i64)))
            (import "reprise1" "multi_get_columns" (func $multi_get_columns (param i32 i64 i64 i64) (result i64)))
            (import "reprise1" "multi_get_slots" (func $multi_get_slots (param i64 i64 i64 i64) (result i64)))
            (import "reprise1" "add_by_key" (func $add_by_key (param i64 i64 i64 i64) (result i32)))
            (import "reprise1" "scan" (func $scan (param i32 i64) (result i64)))
            (import "reprise1" "scan_next" (func $scan_next (param i32 i64) (result i64)))
            (import "reprise1" "update" (func $update (param i32 i64) (result i64)))
            (import "reprise1" "count" (func $count (param i32) (result i64)))
            (memory (export "memory") 1)
            ;; pointer and length of the key, of the key behind its length, of a buffer of 4 KiB, of the answer
            (global $key i64 (i64.const 0x800000008))
            (global $packed i64 (i64.const 0xc00000014))
            (global $out i64 (i64.const 0x100000000400))
            (global $answer i64 (i64.const 0x800000020))
            ;; at 64 a request from the key to the key, at 96 one of everything
            (func $begin (param $flags i32)
                (call $args_read (i32.const 0))
                (i32.store (i32.const 20) (i32.const 8))
                (i64.store (i32.const 24) (i64.load (i32.const 8)))
                (i32.store (i32.const 68) (local.get $flags))
                (i32.store (i32.const 76) (i32.const 8)) (i32.store (i32.const 80) (i32.const 8))
                (i32.store (i32.const 84) (i32.const 8)) (i32.store (i32.const 88) (i32.const 8))
                (i32.store (i32.const 100) (local.get $flags)))
            {entries}
            (@custom "reprise.describe" "{section}"))"#
    );
    wat::parse_str(text).expect("a module")
}

fn open(dir: &Path, partitions: u16) -> Database {
    open_under(dir, partitions, LogPolicy::Command)
}

fn open_under(dir: &Path, partitions: u16, log: LogPolicy) -> Database {
    recovered(DatabaseConfig {
        partitions,
        log,
        segment_bytes: 1 << 20,
        ..config(dir, 1)
    })
}

fn call(database: &Database, procedure: &str, args: [i64; 2]) -> Result<i64, String> {
    call_i64(database, "m", procedure, &args)
}

/// A key as it is encoded, read as an argument is.
fn key(value: i64) -> i64 {
    (value ^ i64::MIN).swap_bytes()
}

#[test]
fn a_call_reads_its_own_partition_and_is_told_of_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path(), 3);
    database.router().deploy("m", &module()).expect("deployed");
    for k in 0..9 {
        call(&database, "put", [k, 7]).expect("inserted");
    }
    let whole = READS
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| !matches!(*name, "scan" | "count" | "get_by_b"));
    for name in whole {
        // Rows 4 and 1 lie on partition 1, row 5 on partition 2.
        let near = call(&database, name, [4, key(1)]);
        assert!(near.is_ok_and(|found| found >= 0), "{name}");
        assert!(call(&database, name, [4, key(301)]).is_ok(), "{name}: nothing there");
        let far = call(&database, name, [4, key(5)]).expect_err(name);
        let told = "the row of t belongs to partition 2, the call runs on partition 1 alone";
        assert!(far.contains(told), "{name}: {far}");
    }
    for name in ["scan", "count", "get_by_b"] {
        let refused = call(&database, name, [4, key(7)]).expect_err(name);
        assert!(
            refused.contains("does not hold k, by which the rows of t are placed"),
            "{name}: {refused}"
        );
        assert!(
            refused.contains("the call runs on partition 1 alone"),
            "{name}: {refused}"
        );
    }
    assert_eq!(call(&database, "count_local", [4, 0]), Ok(3));
    assert_eq!(call(&database, "scan_local", [4, 0]), Ok(3 * 32));
    let digest = digest_now(&database);
    database.close().expect("close");
    let database = open(dir.path(), 3);
    assert_eq!(digest_now(&database), digest, "replayed");
}

#[test]
fn a_loop_over_an_index_turns_once_for_each_row_in_every_kind_of_log() {
    let mut digests = Vec::new();
    for log in [LogPolicy::Command, LogPolicy::Physiological, LogPolicy::Both] {
        let dir = tempfile::tempdir().expect("a directory");
        let database = open_under(dir.path(), 3, log);
        database.router().deploy("m", &module()).expect("deployed");
        for k in 0..90 {
            call(&database, "put", [k, 7]).expect("inserted");
        }
        for round in 0..4 {
            assert_eq!(call(&database, "raise", [round, 2 - round]), Ok(30), "{log:?}");
        }
        let refused = call(&database, "alias", [4, key(1)]).expect_err("an older copy");
        assert!(
            refused.contains("the row of t was changed by this call after it was read"),
            "{refused}"
        );
        digests.push(digest_now(&database));
        database.close().expect("close");
        let database = open_under(dir.path(), 3, log);
        digests.push(digest_now(&database));
    }
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
}

#[test]
fn one_partition_holds_all_there_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = open(dir.path(), 1);
    database.router().deploy("m", &module()).expect("deployed");
    for k in 0..9 {
        call(&database, "put", [k, 7]).expect("inserted");
    }
    for (name, _) in READS {
        assert!(call(&database, name, [4, key(5)]).is_ok(), "{name}");
    }
    for name in ["count", "count_local"] {
        assert_eq!(call(&database, name, [4, 0]), Ok(9), "{name}");
    }
}
