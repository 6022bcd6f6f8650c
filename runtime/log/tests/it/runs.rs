//! Transactions in parts: no record comes between two parts, and wherever the log ends, what makes the parts count is there or not.

use crate::common;
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crate::common::{WAIT_MAX, assert_full, config, drain_image, encode, open, open_with};
use reprise_base::{Epoch, Lsn, PartitionId, TxnId};
use reprise_env::{
    SimDisk,
    sim::{CrashPolicy, FaultPlan},
};
use reprise_log::{Log, LogError, LogReader, NvramAppender, NvramBufferConfig};
use reprise_nvram::{FlushPolicy, Owner, RecordingMemory, Region};
use reprise_wire::{Change, ChangesRef, ChangesRun, PartitionSet, RecordRef};

/// This many insertions of `row_bytes` each.
fn changes(rows: u64, row_bytes: usize) -> Vec<u8> {
    let (row, mut out) = (vec![7; row_bytes], Vec::new());
    for number in 0..rows {
        let (table, number, row) = (1, number, &row[..]);
        Change::Insert { table, number, row }.encode(&mut out);
    }
    out
}

/// The transaction of this number over the changes, in parts of `part_bytes` bytes.
fn run(number: u64, changes: &[u8], part_bytes: usize) -> ChangesRun<'_> {
    let whole = ChangesRef {
        digest: number,
        ..ChangesRef::new(TxnId::new(number, 0), PartitionSet::One(PartitionId(0)), changes)
    };
    ChangesRun::new(whole, None, None, part_bytes)
}

/// Returns the valid transactions in the order of the log, and the number of parts without effect. It detects anything between two parts of
/// one transaction.
fn read(mut reader: LogReader) -> (Vec<u64>, u64) {
    let (mut counting, mut lost, mut open): (Vec<u64>, u64, Option<(u64, u32)>) = (Vec::new(), 0, None);
    let mut next = Lsn(0);
    while let Some(found) = reader.next_record().expect("read record") {
        assert_eq!(found.lsn, next, "LSNs have no gaps");
        next = found.end;
        let before = open.take();
        match found.record {
            RecordRef::Part(part) => {
                let number = part.txn_id.tick();
                match before {
                    Some((of, count)) if of == number && part.number > 0 => assert_eq!(part.number, count),
                    other => {
                        assert_eq!(part.number, 0, "transaction {number}");
                        lost += u64::from(other.map_or(0, |(_, count)| count));
                    }
                }
                open = Some((number, part.number + 1));
            }
            RecordRef::Changes(record) => {
                let number = record.txn_id.tick();
                assert_eq!(before, Some((number, record.parts)));
                counting.push(number);
            }
            _ => lost += u64::from(before.map_or(0, |(_, count)| count)),
        }
    }
    (counting, lost + u64::from(open.map_or(0, |(_, count)| count)))
}

fn read_on(disk: &SimDisk) -> (Vec<u64>, u64) {
    let (reader, report) = LogReader::open(Arc::new(disk.clone()), Lsn(0)).expect("scan");
    assert_eq!(report.damage, None);
    read(reader)
}

#[test]
fn others_wait_until_the_last_part_is_appended() {
    let disk = SimDisk::new();
    let (log, _, told) = open(&disk).expect("open");
    let all = changes(200, 50);
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let (appender, all) = (log.appender(), &all);
            scope.spawn(move || {
                for turn in 0..40 {
                    let number = thread * 100 + turn;
                    if turn % 3 == 0 {
                        let large = ["w", "x*40000"][turn as usize % 2];
                        appender.append(&encode(&[large, "y"]), None).expect("append");
                        continue;
                    }
                    let run = run(number, all, 100 + 700 * thread as usize);
                    let pending = Some(number.to_string());
                    let start = appender.append_run(&run, pending, Duration::ZERO);
                    assert!(start.is_ok());
                }
            });
        }
    });
    assert!(log.wait_durable(log.filled(), WAIT_MAX));
    log.close().expect("close");
    let (counting, lost) = read_on(&disk);
    assert_eq!((counting.len(), lost), (4 * 26, 0));
    let told = told.lock().expect("test");
    let told: Vec<_> = told
        .iter()
        .map(|(end, word)| (end.clone().expect("durable"), word.parse().expect("a number")))
        .collect();
    let numbers: Vec<u64> = told.iter().map(|(_, number)| *number).collect();
    assert_eq!(numbers, counting, "told in the order of the log, each once");
    assert!(told.is_sorted_by_key(|(end, _)| *end));
}

#[test]
fn every_crash_leaves_all_parts_that_count_or_none() {
    let disk = SimDisk::new();
    let (log, _, _) = open(&disk).expect("open");
    let all = changes(40, 700);
    let mut acknowledged = Vec::new();
    for number in 1..5 {
        common::append(&log, &["between"]);
        let run = run(number, &all, [900, 6_000, 14_000, 100_000][number as usize - 1]);
        let start = log
            .appender()
            .append_run(&run, None, Duration::ZERO)
            .map_err(|(error, _)| error);
        let end = Lsn(start.expect("append").0 + u64::from(run.records()));
        assert!(log.wait_durable(end, WAIT_MAX));
        acknowledged.push((disk.ops_count(), number));
    }
    drop(log);
    let (mut images, mut cut) = (0, 0);
    for ops in 0..=disk.ops_count() {
        let sectors = disk.unsynced_sectors(ops).unwrap_or(0).min(6);
        let torn = (0..=sectors).flat_map(|n| [CrashPolicy::TornAfter(n), CrashPolicy::TornBefore(n)]);
        for policy in torn.chain([
            CrashPolicy::LoseAll,
            CrashPolicy::KeepAll,
            CrashPolicy::Random(ops as u64),
        ]) {
            let image = disk.crash_image(ops, &policy);
            let (log, _, _) = open(&image).expect("open");
            let own = log.reader(Lsn(0)).expect("read");
            let (counting, lost) = read(own);
            let least = acknowledged.iter().filter(|(after, _)| *after <= ops).count();
            assert!(counting.len() >= least, "after {ops}, {policy:?}");
            assert!(counting.is_sorted() && counting.len() <= 4);
            (images, cut) = (images + 1, cut + usize::from(lost > 0));
            // The log continues behind parts without an end.
            let again = run(9, &all, 900);
            let appended = log
                .appender()
                .append_run(&again, None, Duration::ZERO)
                .map_err(|(error, _)| error);
            let end = Lsn(appended.expect("append").0 + u64::from(again.records()));
            assert!(log.wait_durable(end, WAIT_MAX));
            drop(log);
            let (after, still_lost) = read_on(&image);
            assert_eq!((after.split_last(), still_lost), (Some((&9, &counting[..])), lost));
        }
    }
    assert!(cut > 20, "of {images} images {cut} ended between two parts");
}

#[test]
fn a_disk_that_gets_full_between_two_parts_takes_none_that_counts() {
    let disk = SimDisk::new();
    let mut short = config();
    short.append_wait_max = Duration::from_millis(200);
    let (log, _, _) = open_with(&disk, short).expect("open");
    common::append(&log, &["before"]);
    disk.set_faults(FaultPlan {
        capacity_bytes: Some(disk.used_bytes() + (20 << 10)),
        ..FaultPlan::default()
    });
    let all = changes(100, 1_000);
    let refused = log
        .appender()
        .append_run(&run(1, &all, 2_000), Some("refused".into()), Duration::ZERO);
    let (error, pending) = refused.expect_err("there is no room");
    assert_full(&error);
    assert_eq!(pending.as_deref(), Some("refused"), "it is nobody's to complete");
    disk.set_faults(FaultPlan::default());
    let began = Instant::now();
    while let Err((error, _)) = log.appender().append_run(&run(2, &all, 2_000), None, Duration::ZERO) {
        assert!(began.elapsed() < WAIT_MAX, "{error}");
        thread::sleep(Duration::from_millis(5));
    }
    common::append(&log, &["after"]);
    log.close().expect("close");
    let (counting, lost) = read_on(&disk);
    assert_eq!(counting, [2]);
    assert!(lost > 0, "some parts of what was refused are there");
}

const REGION_BYTES: usize = 1 << 20;

/// A log with an NVRAM buffer of `sites` sites.
fn fronted(
    disk: &SimDisk,
    memory: &Arc<RecordingMemory>,
    sites: u32,
    wait_max: Duration,
) -> (Log<String>, Vec<NvramAppender<String>>) {
    let mut short = config();
    short.append_wait_max = wait_max;
    let (log, _, _) = open_with(disk, short).expect("open");
    let region = Region::format(memory.clone(), Owner::default(), sites, 256, (Epoch::new(1, 0), Lsn(0)))
        .expect("there is room");
    let nvram = NvramBufferConfig {
        copy_at_entries: u64::MAX,
        flush: FlushPolicy::OnCommit,
    };
    log.attach_nvram(region, nvram).expect("a nvram");
    let appenders = (0..sites as usize).map(|site| log.nvram_appender(site).expect("a nvram"));
    let appenders = appenders.collect();
    (log, appenders)
}

/// Records on `disk` and in `image` of the region, opened as after a crash.
fn opened(disk: &SimDisk, image: Vec<u8>) -> (Vec<u64>, u64) {
    drain_image(disk, image, config());
    read_on(disk)
}

#[test]
fn a_ring_takes_many_times_its_size_in_parts() {
    let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
    let (log, mut sites) = fronted(&disk, &memory, 3, WAIT_MAX);
    // Ten times the region.
    let all = changes(1_000, 10_000);
    thread::scope(|scope| {
        for (thread, site) in sites.iter_mut().enumerate() {
            let all = &all;
            scope.spawn(move || {
                for turn in 0..4u64 {
                    let rows = &all[..[all.len(), all.len() / 1_000][turn as usize % 2]];
                    let run = run(thread as u64 * 10 + turn, rows, 20_000);
                    site.append(&encode(&["w"])).expect("append");
                    site.append_run(&run).expect("append");
                }
            });
        }
    });
    assert_eq!(log.durable(), log.filled());
    log.close().expect("close");
    let (counting, lost) = read_on(&disk);
    assert_eq!((counting.len(), lost), (12, 0));
}

#[test]
fn a_crash_between_two_parts_in_a_ring_leaves_none_that_counts() {
    let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
    let (log, mut sites) = fronted(&disk, &memory, 2, WAIT_MAX);
    sites[1].append(&encode(&["w"])).expect("append");
    memory.keep_drain_points();
    let all = changes(30, 500);
    sites[0].append_run(&run(1, &all, 1_000)).expect("append");
    let (mut word, mut whole, mut cut) = (7u64, 0, 0);
    let mut coin = || {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        word >> 40 & 1 == 1
    };
    for drain in 0.. {
        let Some(image) = memory.image_before_drain(drain, &mut coin) else {
            break;
        };
        match opened(&SimDisk::new(), image) {
            (counting, 0) if counting == [1] => whole += 1,
            (counting, lost) if counting.is_empty() => cut += usize::from(lost > 0),
            other => panic!("{other:?}"),
        }
    }
    log.close().expect("close");
    assert!(cut > 10 && whole > 0, "{whole} whole, {cut} cut");
}

#[test]
fn a_ring_whose_disk_is_full_makes_the_rest_of_the_parts_void() {
    let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
    let (log, mut sites) = fronted(&disk, &memory, 1, Duration::from_millis(50));
    disk.set_faults(FaultPlan {
        capacity_bytes: Some(disk.used_bytes()),
        ..FaultPlan::default()
    });
    let all = changes(1_000, 10_000);
    let run = run(1, &all, 20_000);
    let refused = sites[0].append_run(&run).expect_err("neither takes it");
    assert!(matches!(refused, LogError::Unavailable { .. }), "{refused}");
    assert_eq!(
        log.durable(),
        Lsn(run.records().into()),
        "its numbers are not waited for"
    );
    let (counting, lost) = opened(&SimDisk::new(), memory.image(|| false));
    assert!(counting.is_empty() && lost > 0);
    disk.set_faults(FaultPlan::default());
    let began = Instant::now();
    while let Err(error) = sites[0].append_run(&run) {
        assert!(began.elapsed() < WAIT_MAX, "{error}");
        thread::sleep(Duration::from_millis(5));
    }
    sites[0].append(&encode(&["after"])).expect("append");
    log.close().expect("close");
    let (counting, lost) = read_on(&disk);
    assert_eq!(counting, [1]);
    assert!(lost > 0);
}

#[test]
fn run_larger_than_the_ring_is_refused_before_any_write() {
    let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
    let (log, mut sites) = fronted(&disk, &memory, 3, WAIT_MAX);
    let (mut all, large) = (Vec::new(), vec![1; 200_000]);
    Change::Replace {
        table: 1,
        number: 1,
        row: &large,
    }
    .encode(&mut all);
    let refused = sites[0]
        .append_run(&run(1, &all, 1_000))
        .expect_err("one change is longer than a quarter of a ring");
    assert!(matches!(refused, LogError::TooLong { .. }), "{refused}");
    assert_eq!(log.filled(), Lsn(0));
    log.close().expect("close");
    assert_eq!(read_on(&disk), (Vec::new(), 0));
}
