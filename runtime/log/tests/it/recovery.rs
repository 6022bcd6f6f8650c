//! Opening a log: text in, text out.

use crate::common;
use std::sync::Arc;

use crate::common::{append, open, open_with, segments, words_in, words_on};
use expect_test::{Expect, expect};
use reprise_base::Lsn;
use reprise_env::{Disk, SimDisk, sim::CrashPolicy};
use reprise_log::{LogError, LogReader, verify};

/// Runs a script on a fresh disk, opens the remains, and compares the findings. Words name records.
///
/// - `append W…`: one block, durable
/// - `close`
/// - `reopen`
/// - `crash`: the last write is lost
/// - `tear N`: only its first N sectors arrive
/// - `flip OFFSET`: a bit of the newest file
/// - `remove N`: the n-th segment file
/// - `garbage OFFSET`: 512 bytes of noise
fn check_recovery(script: &str, expected: Expect) {
    let mut disk = SimDisk::new();
    let mut log = Some(open(&disk).expect("open new log").0);
    for line in script.lines().map(str::trim) {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        if matches!(verb, "append") {
            let words: Vec<_> = rest.split(' ').collect();
            append(log.as_ref().expect("log is open"), &words);
            continue;
        }
        if matches!(verb, "crash" | "tear") {
            let ops = last_block_write(&disk);
            let policy = match verb {
                "crash" => CrashPolicy::LoseAll,
                _ => CrashPolicy::TornAfter(rest.parse().expect("sectors")),
            };
            let image = disk.crash_image(ops, &policy);
            log = None;
            disk = image;
            continue;
        }
        if let Some(log) = log.take() {
            log.close().expect("close");
        }
        change(&disk, verb, rest, &mut log);
    }
    drop(log);
    expected.assert_eq(&describe(&disk));
}

fn change(disk: &SimDisk, verb: &str, rest: &str, log: &mut Option<reprise_log::Log<String>>) {
    let newest = segments(disk).pop().expect("a segment");
    let number = || rest.parse::<usize>().expect("number");
    match verb {
        "close" => {}
        "reopen" => *log = Some(open(disk).expect("open again").0),
        "flip" => disk.damage(&newest, |bytes| bytes[number()] ^= 1),
        "garbage" => disk.damage(&newest, |bytes| {
            let noise = &mut bytes[number()..][..512];
            noise
                .iter_mut()
                .enumerate()
                .for_each(|(i, byte)| *byte = (i * 37 + 11) as u8);
        }),
        "remove" => disk.remove(&segments(disk)[number()]).expect("remove"),
        other => panic!("unknown verb {other}"),
    }
}

/// Operations up to the last write of a block that holds records.
fn last_block_write(disk: &SimDisk) -> usize {
    let count = disk.ops_count();
    let is_write = |ops: &usize| disk.unsynced_sectors(*ops).is_some();
    let written = (1..=count).rev().filter(is_write).find(|ops| {
        let before = words_on_quietly(&disk.crash_image(*ops, &CrashPolicy::LoseAll));
        let after = words_on_quietly(&disk.crash_image(*ops, &CrashPolicy::KeepAll));
        before != after
    });
    written.expect("a block was written")
}

fn words_on_quietly(disk: &SimDisk) -> Vec<String> {
    let (mut reader, _) = LogReader::open(Arc::new(disk.clone()), Lsn(0)).expect("scan");
    words_in(&mut reader)
}

fn describe(disk: &SimDisk) -> String {
    let before = disk.copy();
    match open(disk) {
        Ok((log, report, _)) => {
            let words = words_in(&mut log.reader(Lsn(0)).expect("reader")).join(" ");
            let torn = report
                .found
                .torn
                .map(|torn| format!("; cut {} bytes at LSN {}", torn.bytes, torn.lsn));
            let last = report
                .found
                .last_block
                .map_or("none".to_owned(), |kind| format!("{kind:?}"));
            format!(
                "words: {words}; end {}; last {last}{}",
                report.found.end,
                torn.unwrap_or_default()
            )
        }
        Err(error) => {
            let names = before.list().expect("list");
            let unchanged = names.iter().all(|name| before.bytes(name) == disk.bytes(name));
            assert!(unchanged, "a refused log is left as it was");
            error.to_string()
        }
    }
}

#[test]
fn a_closed_log_holds_everything() {
    check_recovery("", expect!["words: ; end 0; last none"]);
    check_recovery(
        "append a b
         append c
         close",
        expect!["words: a b c; end 3; last Close"],
    );
    check_recovery(
        "append a
         reopen
         append b
         reopen
         append c",
        expect!["words: a b c; end 3; last Close"],
    );
}

#[test]
fn a_torn_tail_is_cut_and_earlier_commits_survive() {
    check_recovery(
        "append a
         append b
         crash",
        expect!["words: a; end 1; last Data"],
    );
    check_recovery(
        "append a
         append b*3000
         tear 1",
        expect!["words: a; end 1; last Data; cut 512 bytes at LSN 1"],
    );
    check_recovery(
        "append a
         append b*3000
         tear 6",
        expect!["words: a; end 1; last Data; cut 3072 bytes at LSN 1"],
    );
    check_recovery(
        "append a
         append b*3000
         tear 7",
        expect!["words: a b*3000; end 2; last Data"],
    );
    check_recovery(
        "append a
         append b*3000
         tear 3
         reopen
         append c",
        expect!["words: a c; end 2; last Close"],
    );
}

#[test]
fn damage_is_refused_with_its_place() {
    // The first block lies at 512, its payload at 560.
    check_recovery(
        "append a
         append b
         flip 565",
        expect![
            "the log is damaged in log-0000000000000000.seg at byte 512 (LSN 0): block checksum: expected 2575540982, found 3502235601; the block at LSN 1 shows that it was whole. Everything before that LSN is whole. Nothing was changed. Restore this file from a copy or a standby, or read what is whole with `reprise log dump`"
        ],
    );
    check_recovery(
        "append a
         append b
         flip 1030",
        expect![
            "the log is damaged in log-0000000000000000.seg at byte 1024 (LSN 1): block header checksum: expected 217387461, found 217321925; the block at LSN 2 shows that it was whole. Everything before that LSN is whole. Nothing was changed. Restore this file from a copy or a standby, or read what is whole with `reprise log dump`"
        ],
    );
    check_recovery(
        "append a
         flip 40",
        expect![
            "the log is damaged in log-0000000000000000.seg at byte 0 (LSN 0): segment header checksum: expected 1109281431, found 306950202. Everything before that LSN is whole. Nothing was changed. Restore this file from a copy or a standby, or read what is whole with `reprise log dump`"
        ],
    );
    check_recovery(
        "append a
         append b
         garbage 512",
        expect![
            "the log is damaged in log-0000000000000000.seg at byte 512 (LSN 0): block magic: expected 1262637138, found 2052403211; the block at LSN 1 shows that it was whole. Everything before that LSN is whole. Nothing was changed. Restore this file from a copy or a standby, or read what is whole with `reprise log dump`"
        ],
    );
}

#[test]
fn damage_to_the_last_mark_alone_loses_nothing() {
    check_recovery(
        "append a
         append b
         flip 1540",
        expect!["words: a b; end 2; last Data; cut 512 bytes at LSN 2"],
    );
    check_recovery(
        "append a
         close
         garbage 4096",
        expect!["words: a; end 1; last Close; cut 3072 bytes at LSN 1"],
    );
}

#[test]
fn segments_follow_each_other_without_gaps() {
    check_recovery(
        "append a*9000
         append b*9000
         append c*9000
         append d",
        expect!["words: a*9000 b*9000 c*9000 d; end 4; last Close"],
    );
    check_recovery(
        "append a*9000
         append b*9000
         append c*9000
         remove 1",
        expect![
            "the log is damaged in log-0000000000000000.seg at byte 9728 (LSN 1): block magic: expected 1262637138, found 0; the segment that follows shows that it was whole. Everything before that LSN is whole. Nothing was changed. Restore this file from a copy or a standby, or read what is whole with `reprise log dump`"
        ],
    );
    check_recovery(
        "append a*9000
         append b*9000
         append c*9000
         flip 600",
        expect![
            "the log is damaged in log-0000000000004800.seg at byte 512 (LSN 2): block checksum: expected 3860944731, found 2939707186; the block at LSN 3 shows that it was whole. Everything before that LSN is whole. Nothing was changed. Restore this file from a copy or a standby, or read what is whole with `reprise log dump`"
        ],
    );
}

#[test]
fn another_version_or_database_is_told() {
    let disk = SimDisk::new();
    let (log, _, _) = open(&disk).expect("open");
    append(&log, &["a"]);
    drop(log);
    let mut other = common::config();
    other.expected_database_id = Some([9; 16]);
    let refused = open_with(&disk, other.clone()).err().expect("another database");
    assert!(matches!(refused, LogError::WrongDatabase { .. }));
    let refused = open_with(&SimDisk::new(), other).err().expect("nothing there");
    assert!(matches!(refused, LogError::WrongDatabase { .. }));
}

#[test]
fn other_settings_are_told_and_begin_a_segment() {
    let disk = SimDisk::new();
    let (log, _, _) = open(&disk).expect("open");
    append(&log, &["a"]);
    drop(log);
    let mut changed = common::config();
    changed.settings_hash = 77;
    let (log, report, _) = open_with(&disk, changed).expect("open");
    assert_eq!(report.other_settings_hash, Some(0));
    append(&log, &["b"]);
    drop(log);
    let report = verify(&disk).expect("verify");
    assert_eq!(
        report.segments.iter().map(|s| s.settings_hash).collect::<Vec<_>>(),
        [0, 77]
    );
    assert_eq!(words_on(&disk), ["a", "b"]);
}

#[test]
fn one_process_at_a_time() {
    let disk = SimDisk::new();
    let (_log, _, _) = open(&disk).expect("open");
    assert!(matches!(open(&disk).err(), Some(LogError::Disk(_))));
}
