//! The log: groups of commits, records from memory and from the file, and what they repeat.

use std::collections::BTreeMap;

use reprise_bench_looking_glass::{
    log::{Chain, Log, LogProgress, Record, RecordKind, Site},
    page::Page,
    parts::{ALL, DISK_LOG, LSNS, MAIN_LOG, page_bytes},
    redo::redo,
    txn::{TxnEnd, Worker},
    work::Scale,
};

use crate::{engine, run, tiny};

const DISK: u32 = DISK_LOG | MAIN_LOG | LSNS;

fn site(kind: RecordKind, page: u32) -> Site {
    Site {
        kind,
        page,
        slot: 1,
        extra: 2,
    }
}

fn all<const P: u32>(log: &Log<P>) -> Vec<Record> {
    let next = |record: &Record| log.next(Some(record));
    std::iter::successors(log.next(None), next).collect()
}

#[test]
fn commits_are_written_in_groups_and_before_they_are_forced() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = Log::<DISK>::create(folder.path(), 4).expect("a log");
    let mut chain = Chain::default();
    for commit in 1..=10 {
        log.append(&mut chain, site(RecordKind::Commit, 0), &[], &[]);
        log.end_of_commit();
        let LogProgress { next, durable, writes } = log.progress();
        assert_eq!(writes, commit / 4);
        assert_eq!(durable == next, commit % 4 == 0);
    }
    let last = chain.last;
    log.force(last);
    let LogProgress { next, durable, writes } = log.progress();
    assert_eq!((durable, writes), (next, 3));
    log.force(last);
    assert_eq!(log.progress().writes, 3, "it is in the file");
    let bytes = std::fs::metadata(folder.path().join("log")).expect("a file").len();
    assert_eq!(bytes, next);
}

#[test]
fn records_are_read_back_in_order_from_the_file_and_from_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = Log::<DISK>::create(folder.path(), 1).expect("a log");
    let mut chains = [1, 2].map(|txn| Chain {
        txn,
        ..Chain::default()
    });
    let mut written = Vec::new();
    for number in 0..4_000_u32 {
        let chain = &mut chains[number as usize % 2];
        let (before, after) = (vec![number as u8; number as usize % 700], vec![7; number as usize % 50]);
        let previous = chain.last;
        let lsn = log.append(chain, site(RecordKind::Change, number), &before, &after);
        written.push((lsn, previous, before, after));
        if number == 3_000 {
            log.force(lsn);
        }
    }
    let read = all(&log);
    assert_eq!(read.len(), written.len());
    for (record, (lsn, previous, before, after)) in read.iter().zip(&written) {
        assert_eq!((record.lsn, record.previous), (*lsn, *previous));
        assert_eq!((&record.before, &record.after), (before, after));
    }
    assert!(log.read(log.progress().next).is_none(), "there is nothing yet");
}

#[test]
fn the_log_repeats_every_page() {
    let calls = tiny();
    let engine = engine::<ALL>(Scale::TINY.frames(), 8);
    let mut worker = Worker::new(&engine);
    for call in calls.all() {
        assert_eq!(run(&mut worker, call), TxnEnd::Committed);
    }
    let mut pages: BTreeMap<u32, Page> = BTreeMap::new();
    let mut commits = 0;
    for record in all(&engine.pool.log) {
        commits += (record.site.kind == RecordKind::Commit) as usize;
        if record.site.page != 0 {
            let page = pages
                .entry(record.site.page)
                .or_insert_with(|| Page::new(page_bytes(ALL)));
            assert!(redo(page, &record), "{record:?}");
        }
    }
    assert_eq!(commits, calls.all().count());
    assert_eq!(pages.len() as u32, engine.pool.pages());
    for (number, repeated) in &pages {
        let page = engine.pool.read(*number);
        assert_eq!(
            (repeated.kind(), repeated.level(), repeated.count()),
            (page.kind(), page.level(), page.count())
        );
        assert_eq!(
            (repeated.lsn(), repeated.next()),
            (page.lsn(), page.next()),
            "page {number}"
        );
        for slot in page.taken() {
            assert_eq!(repeated.record(slot), page.record(slot), "page {number}, slot {slot}");
            assert_eq!(repeated.is_hidden(slot), page.is_hidden(slot));
        }
    }
}
