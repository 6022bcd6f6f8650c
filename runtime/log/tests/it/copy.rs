//! Parts of a log on another disk: whole, from the middle, and cut behind every record.

use crate::common;
use std::sync::Arc;

use crate::common::{append, open, segments, words_on};
use reprise_base::Lsn;
use reprise_env::{Disk, SimDisk};
use reprise_log::{CopyRange, LogCopy, LogError, LogReader, verify};
use reprise_wire::BlockKind;

/// Groups of one to three words over several segments; the end of each word's record.
fn filled(disk: &SimDisk) -> Vec<(String, Lsn, Lsn)> {
    let (log, _, _) = open(disk).expect("open");
    for number in 0..40 {
        let words: Vec<_> = (0..number % 3 + 1).map(|i| format!("w{number}_{i}*600")).collect();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        append(&log, &words);
    }
    log.close().expect("close");
    let (mut reader, _) = LogReader::open(Arc::new(disk.clone()), Lsn(0)).expect("scan");
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().expect("read") {
        records.push((common::word(&record.record), record.lsn, record.end));
    }
    assert!(segments(disk).len() > 3);
    records
}

fn copied(source: &SimDisk, range: CopyRange) -> Result<(SimDisk, LogCopy), LogError> {
    let target = SimDisk::new();
    let (reader, _) = LogReader::open(Arc::new(source.clone()), Lsn(0)).expect("scan");
    let copy = reader.copy(range, &target, &mut |_| true)?;
    Ok((target, copy))
}

#[test]
fn a_copy_cut_behind_any_record_holds_what_lies_before() {
    let source = SimDisk::new();
    let records = filled(&source);
    for (at, (_, lsn, end)) in records.iter().enumerate() {
        // Behind the record, and at the next one's first byte: the same.
        for until in [*end, Lsn(lsn.0 + 1)] {
            let (target, copy) = copied(&source, CopyRange { from: Lsn(0), until }).expect("copied");
            let expected: Vec<_> = records[..=at].iter().map(|(word, ..)| word.clone()).collect();
            assert_eq!(words_on(&target), expected);
            let report = verify(&target).expect("verified");
            assert_eq!((report.records, report.end), (copy.records, copy.end));
            assert_eq!((report.last_block, report.torn), (Some(BlockKind::Close), None));
        }
    }
    let refused = copied(
        &source,
        CopyRange {
            from: Lsn(0),
            until: Lsn(0),
        },
    );
    assert!(matches!(refused, Err(LogError::OutOfRange { .. })));
}

#[test]
fn a_copy_from_the_middle_goes_on_where_the_log_did() {
    let source = SimDisk::new();
    let records = filled(&source);
    let end = verify(&source).expect("verified").end;
    for (at, (_, _, from)) in records.iter().enumerate() {
        let range = CopyRange {
            from: *from,
            until: end,
        };
        let (target, copy) = copied(&source, range).expect("copied");
        let (mut reader, report) = LogReader::open(Arc::new(target.clone()), *from).expect("scan");
        assert_eq!(report.damage, None);
        assert!(copy.start < *from && *from <= copy.end, "{copy:?} of {from}");
        let expected: Vec<_> = records[at + 1..].iter().map(|(word, ..)| word.clone()).collect();
        assert_eq!(common::words_in(&mut reader), expected);
        // And it takes more.
        let (log, found, _) = open(&target).expect("open");
        assert_eq!(found.found.damage, None);
        append(&log, &["more"]);
        log.close().expect("close");
        assert_eq!(words_on(&target).last().map(String::as_str), Some("more"));
    }
}

#[test]
fn a_running_log_is_copied_as_far_as_it_is_durable() {
    let source = SimDisk::new();
    let (log, _, _) = open(&source).expect("open");
    let end = append(&log, &["a", "b*9000", "c"]);
    let target = SimDisk::new();
    let range = CopyRange {
        from: Lsn(0),
        until: log.durable(),
    };
    let reader = log.reader(Lsn(0)).expect("reader");
    let copy = reader.copy(range, &target, &mut |_| true).expect("copied");
    assert!(copy.end >= end);
    assert_eq!(words_on(&target), ["a", "b*9000", "c"]);
    let given_up = reader.copy(range, &SimDisk::new(), &mut |_| false);
    assert!(matches!(
        given_up,
        Err(LogError::OutOfRange { .. } | LogError::Unavailable { .. })
    ));
}

#[test]
fn a_place_where_a_log_lies_is_refused() {
    let source = SimDisk::new();
    let end = filled(&source).last().expect("records").2;
    let (reader, _) = LogReader::open(Arc::new(source.clone()), Lsn(0)).expect("scan");
    let range = CopyRange {
        from: Lsn(0),
        until: end,
    };
    let refused = reader.copy(range, &source, &mut |_| true);
    assert!(matches!(refused, Err(LogError::Disk(_))), "{refused:?}");
    assert!(source.list().expect("list").len() > 3);
}
