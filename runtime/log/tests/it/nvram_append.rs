//! A standby's groups in NVRAM: persistent there before they are acknowledged, in the files later, whole after a crash wherever it comes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    KeepAll, Kept, WAIT_MAX, append, close, drain_image, encode, open, open_with, standby_config, words_on,
};
use reprise_base::{Epoch, Lsn, PartitionId, TxnId};
use reprise_env::{
    DiskError, DiskFile, DiskFilter, FilteredDisk, RealClock, SimDisk,
    sim::{CrashPolicy, FaultPlan},
};
use reprise_log::{
    AppendError, AppendOutcome, Group, Log, LogConfig, LogError, LogReader, NvramBufferConfig, Position, verify,
};
use reprise_nvram::{Event, FlushPolicy, Owner, RecordingMemory, Region};
use reprise_wire::{Change, ChangesRef, CommandRef, PartitionSet, RawRecords, RecordBatch, RecordEffect};

const REGION_BYTES: usize = 1 << 20;
const ENTRIES: u32 = 64;

/// Groups of a primary that was opened several times, and its words.
fn primary(openings: usize, each: &[&[&str]]) -> (Vec<Kept>, Vec<String>) {
    let (disk, sink) = (SimDisk::new(), Arc::new(KeepAll::default()));
    for _ in 0..openings {
        let (log, _, _) = open(&disk).expect("open");
        log.add_sink(sink.clone());
        each.iter().for_each(|words| _ = append(&log, words));
        log.close().expect("close");
    }
    let groups = sink.0.lock().expect("test").clone();
    (groups, words_on(&disk))
}

/// Attaches a front of two rings.
fn attach_nvram(log: &Log<String>, memory: &Arc<RecordingMemory>) {
    let begins = (log.epoch(), log.filled());
    let region = Region::format(memory.clone(), Owner::default(), 2, ENTRIES, begins).expect("there is room");
    let nvram = NvramBufferConfig {
        copy_at_entries: u64::MAX,
        flush: FlushPolicy::OnCommit,
    };
    log.attach_nvram(region, nvram).expect("a nvram");
}

/// Opens a standby with a front of two rings, on the present contents of the disk.
fn fronted(disk: &SimDisk, memory: &Arc<RecordingMemory>, config: LogConfig) -> Log<String> {
    let (log, _, _) = open_with(disk, config).expect("open");
    attach_nvram(&log, memory);
    log
}

/// Records of a standby after a crash that left these.
fn opened(disk: &SimDisk, image: Vec<u8>) -> (Position, Vec<String>) {
    drain_image(disk, image, standby_config());
    let (log, _, _) = open_with(disk, standby_config()).expect("open");
    let received = log.received().expect("a standby");
    close(log);
    (received, words_on(disk))
}

fn append_group(log: &Log<String>, group: &Kept) {
    assert_eq!(log.group_appender().append(&group.get()), Ok(AppendOutcome::New));
    // No caller waits, and no more is to come.
    assert_eq!((log.durable(), log.received()), (group.end.lsn, Some(group.end)));
}

const SMALL: &[&[&str]] = &[&["a"], &["b", "c*5000", "d"], &["e*2000"], &["f", "g"], &["h*9000"]];

#[test]
fn appended_groups_keep_their_epoch_after_a_crash() {
    let (groups, words) = primary(3, SMALL);
    let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
    let log = fronted(&disk, &memory, standby_config());
    for (number, group) in groups.iter().enumerate() {
        append_group(&log, group);
        // The region is copied first. The records that go to the files meanwhile then lie in both.
        for seed in 0..3 {
            let mut kept = 0;
            let image = memory.image(|| {
                kept += 1;
                kept % (seed + 2) == 0
            });
            let left = disk.crash(&CrashPolicy::Random(seed));
            let (received, found) = opened(&left, image);
            assert_eq!(received, group.end, "behind group {number}, seed {seed}");
            assert_eq!(found, words[..received.lsn.0 as usize]);
        }
    }
    close(log);
    assert_eq!(words_on(&disk), words);
    let (log, _, _) = open_with(&disk, standby_config()).expect("open");
    let epochs: Vec<_> = log.epochs().iter().map(|start| start.epoch.count()).collect();
    assert_eq!(
        (log.received(), epochs),
        (groups.last().map(|group| group.end), vec![1, 2, 3])
    );
}

/// Crashes before each drain, with any of the undrained words lost. Acknowledged records are there. Of those in flight, each group's part
/// is there completely or not at all.
#[test]
fn every_crash_of_the_region_keeps_what_was_acknowledged() {
    let (groups, words) = primary(1, SMALL);
    let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
    let log = fronted(&disk, &memory, standby_config());
    let empty = disk.crash(&CrashPolicy::LoseAll);
    memory.take_events();
    memory.keep_drain_points();
    // The position that was acknowledged before each drain.
    let mut acknowledged = vec![Position::default()];
    for group in &groups {
        append_group(&log, group);
        let drains = memory
            .take_events()
            .iter()
            .filter(|event| **event == Event::Drain)
            .count();
        let before = *acknowledged.last().expect("the first");
        acknowledged.extend(vec![before; drains - 1]);
        acknowledged.push(group.end);
    }
    for (cut, before) in acknowledged[..acknowledged.len() - 1].iter().enumerate() {
        for seed in 0..40_u64 {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let image = memory.image_before_drain(cut, || {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                match seed {
                    0 => false,
                    1 => true,
                    _ => random & 1 == 0,
                }
            });
            let (received, found) = opened(&empty.copy(), image.expect("it was drained"));
            assert!(
                received.lsn >= before.lsn,
                "cut {cut}, seed {seed}: {received:?} of {before:?}"
            );
            assert!(groups.iter().any(|group| group.end == received) || received.lsn == Lsn(0));
            assert_eq!(found, words[..received.lsn.0 as usize], "cut {cut}, seed {seed}");
        }
    }
    log.close().expect("close");
}

/// Records of a group that no ring takes go to the files, and are durable there when it is acknowledged.
#[test]
fn a_group_is_cut_to_what_a_ring_takes_and_longer_records_go_to_the_files() {
    let each: &[&[&str]] = &[
        &["a"],
        &["b*60000", "c*60000", "d*60000", "e"],
        &["f", "g*200000", "h"],
        &["i"],
    ];
    let (groups, words) = primary(2, each);
    let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
    let log = fronted(&disk, &memory, standby_config());
    for group in &groups {
        append_group(&log, group);
        let image = memory.image(|| false);
        let (received, found) = opened(&disk.crash(&CrashPolicy::LoseAll), image);
        assert_eq!((received, found.len() as u64), (group.end, group.end.lsn.0));
    }
    close(log);
    assert_eq!(words_on(&disk), words);
}

/// A disk that does not come back from a write, while told so.
#[derive(Default)]
struct Hanging(AtomicBool);

impl DiskFilter for Hanging {
    fn write_durable_at(&self, file: &dyn DiskFile, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        while self.0.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(5));
        }
        file.write_durable_at(offset, bytes)
    }
}

/// A promotion waits for the rings that a group is placed in: the wait for the files has an end.
#[test]
fn a_record_that_no_ring_takes_stops_a_log_whose_disk_hangs() {
    let (groups, _) = primary(1, &[&["a*200000"]]);
    let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
    let hanging = Arc::new(Hanging::default());
    let filtered = Arc::new(FilteredDisk::new(Arc::new(disk.clone()), hanging.clone()));
    let mut short = standby_config();
    short.append_wait_max = Duration::from_millis(500);
    let no_callback = Box::new(|_: Lsn, _: Result<(), &LogError>, _: String| {});
    let (log, _) = Log::open(filtered, Arc::new(RealClock::new()), short, no_callback).expect("open");
    attach_nvram(&log, &memory);
    let before = log.received();
    hanging.0.store(true, Ordering::Release);
    let begun = Instant::now();
    let refused = log.group_appender().append(&groups[0].get());
    assert!(matches!(refused, Err(AppendError::Log(_))), "{refused:?}");
    assert!(begun.elapsed() < WAIT_MAX && log.is_stopped());
    assert_eq!(log.received(), before, "what is not durable is not received");
    hanging.0.store(false, Ordering::Release);
    let why = log.close().expect_err("it was stopped").to_string();
    assert!(why.contains("did not take a block"), "{why}");
    drop(log);
    // The record was on its way: it may be there, whole, or not.
    assert!(words_on(&disk).len() <= 1);
}

#[test]
fn a_full_region_says_so_before_and_takes_more_once_the_disk_does() {
    let words: Vec<String> = (0..80).map(|n| format!("w{n}*15000")).collect();
    let each: Vec<[&str; 1]> = words.iter().map(|word| [word.as_str()]).collect();
    let each: Vec<&[&str]> = each.iter().map(|words| &words[..]).collect();
    let (groups, words) = primary(1, &each);
    let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
    let mut short = standby_config();
    short.append_wait_max = Duration::from_millis(50);
    let log = fronted(&disk, &memory, short);
    let all = log.receive_room().expect("a nvram");
    assert!(all > REGION_BYTES as u64 / 3, "{all}");
    disk.set_faults(FaultPlan {
        capacity_bytes: Some(disk.used_bytes()),
        ..FaultPlan::default()
    });
    let group_appender = log.group_appender();
    let mut taken = 0;
    let refused = loop {
        let room = log.receive_room().expect("a nvram");
        match group_appender.append(&groups[taken].get()) {
            Ok(placed) => assert_eq!(placed, AppendOutcome::New),
            Err(error) => break (room, error),
        }
        taken += 1;
    };
    assert!(
        matches!(refused, (0, AppendError::Log(LogError::Unavailable { .. }))),
        "{refused:?}"
    );
    let before = groups[taken - 1].end;
    assert_eq!((log.received(), log.durable()), (Some(before), before.lsn));
    assert!(taken > 20, "{taken}");
    disk.set_faults(FaultPlan::default());
    let until = Instant::now() + WAIT_MAX;
    for group in &groups[taken..] {
        while let Err(error) = group_appender.append(&group.get()) {
            assert!(Instant::now() < until, "{error}");
            thread::sleep(Duration::from_millis(5));
        }
    }
    log.close().expect("close");
    drop((group_appender, log));
    assert_eq!(words_on(&disk), words);
}

#[test]
fn a_standby_is_promoted_on_its_rings() {
    let (groups, mut words) = primary(2, SMALL);
    let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
    let log = fronted(&disk, &memory, standby_config());
    let refused = log.appender().append(&encode(&["own"]), None).expect_err("a standby").0;
    assert!(refused.to_string().contains("standby"), "{refused}");
    groups.iter().for_each(|group| append_group(&log, group));
    let group_appender = log.group_appender();
    assert_eq!(log.promote(Epoch::new(0, 0)), Ok(Some(Epoch::new(3, 0))));
    let end = groups.last().expect("some").end.lsn;
    assert_eq!((log.copied(), log.received()), (end, None));
    let late = group_appender.append(&groups[0].get());
    assert!(matches!(late, Err(AppendError::Log(_))), "{late:?}");
    // Nothing goes to the files beside the rings.
    let refused = log.appender().append(&encode(&["own"]), None).expect_err("beside").0;
    assert!(refused.to_string().contains("front"), "{refused}");
    let mut sites: Vec<_> = (0..2).map(|site| log.nvram_appender(site).expect("a nvram")).collect();
    for (n, site) in [0, 1, 1, 0].into_iter().enumerate() {
        let word = format!("own{n}");
        assert_eq!(sites[site].append(&encode(&[&word])), Ok(Lsn(end.0 + n as u64)));
        words.push(word);
    }
    let image = memory.image(|| false);
    let left = disk.crash(&CrashPolicy::LoseAll);
    let (received, found) = opened(&left, image);
    assert_eq!((received.epoch, found), (Epoch::new(3, 0), words.clone()));
    assert_eq!(verify(&left).expect("verify").epoch, Epoch::new(3, 0));
    close(log);
    assert_eq!(words_on(&disk), words);
}

/// Groups of another log are refused as without NVRAM, and change nothing.
#[test]
fn group_that_does_not_follow_is_refused() {
    let (groups, words) = primary(2, SMALL);
    let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
    let log = fronted(&disk, &memory, standby_config());
    groups[..6].iter().for_each(|group| append_group(&log, group));
    let group_appender = log.group_appender();
    let good = groups[6].get();
    assert_eq!(group_appender.append(&groups[5].get()), Ok(AppendOutcome::Known));
    let flipped = {
        let mut records = good.records.to_vec();
        records[7] ^= 1;
        records
    };
    let longer = Position {
        lsn: Lsn(good.end.lsn.0 + 1),
        ..good.end
    };
    let bad = [
        groups[7].get(),
        groups[1].get(),
        Group {
            records: &flipped,
            ..good
        },
        Group { end: longer, ..good },
    ];
    for group in &bad {
        let refused = group_appender.append(group);
        assert!(refused.is_err(), "{refused:?}");
        assert_eq!(
            (log.received(), log.durable()),
            (Some(groups[5].end), groups[5].end.lsn)
        );
    }
    groups[6..].iter().for_each(|group| append_group(&log, group));
    log.close().expect("close");
    drop((group_appender, log));
    assert_eq!(words_on(&disk), words);
}

/// Transactions in both forms, one behind the other in one append: by the bytes of arguments and of the changed row.
fn both_forms(sizes: &[(usize, usize)]) -> RecordBatch {
    let mut records = RecordBatch::default();
    for (number, (args, row)) in sizes.iter().enumerate() {
        let txn_id = TxnId::new(number as u64, 0);
        let (args, row, mut changes) = (vec![1; *args], vec![2; *row], Vec::new());
        let (table, number, row) = (1, number as u64, &row[..]);
        Change::Insert { table, number, row }.encode(&mut changes);
        let changes = ChangesRef {
            digest: 7,
            ..ChangesRef::new(txn_id, PartitionSet::One(PartitionId(0)), &changes)
        };
        let command = CommandRef {
            digest: 7,
            ..CommandRef::new(txn_id, changes.partitions, &args)
        };
        records.push_forms(Some(&command), &changes, None);
    }
    records
}

/// Transactions in both forms in the files; each command has its changes behind it in its block.
fn pairs_on(disk: &SimDisk) -> u64 {
    let (mut reader, report) = LogReader::open(Arc::new(disk.clone()), Lsn(0)).expect("scan");
    assert_eq!(report.damage, None);
    let mut pairs = 0;
    while let Some(block) = reader.next_block().expect("read") {
        let records = RawRecords::new(block.records);
        let all: Vec<_> = records.map(|raw| raw.expect("whole")).collect();
        let kinds = |raw: &[_]| -> Vec<RecordEffect> {
            let decoded = raw.iter().map(|raw: &reprise_wire::RawRecord<'_>| raw.decode());
            decoded.map(|record| record.expect("whole").facts().effect).collect()
        };
        for pair in all.chunks(2) {
            assert_eq!(
                kinds(pair),
                [RecordEffect::Call, RecordEffect::Rows],
                "LSN {}",
                block.lsn
            );
            assert!(pair[1].is_beside(&pair[0]) && !pair[0].is_beside(&pair[1]));
            pairs += 1;
        }
    }
    pairs
}

/// A group is cut to the size of a ring, and a crash comes before each drain. Replay runs a command without changes behind it, and would
/// then apply these as changes of their own. So no cut lies between the two.
#[test]
fn a_command_and_its_changes_are_placed_together() {
    let sizes = [
        (30_000, 30_000),
        (10, 90_000),
        (90_000, 10),
        (60_000, 60_000),
        // Longer than a ring takes, in one record, in the other, and both together.
        (100_000, 100_000),
        (10, 200_000),
        (200_000, 10),
        (1_000, 1_000),
        (50_000, 50_000),
        (5, 5),
        (5, 5),
    ];
    let (disk, sink) = (SimDisk::new(), Arc::new(KeepAll::default()));
    let (log, _, _) = open(&disk).expect("open");
    log.add_sink(sink.clone());
    log.appender().append(&both_forms(&sizes), None).expect("append");
    close(log);
    let groups = sink.0.lock().expect("test").clone();
    assert_eq!(
        (groups.len(), pairs_on(&disk)),
        (1, sizes.len() as u64),
        "one append is one group"
    );
    let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
    let log = fronted(&disk, &memory, standby_config());
    memory.keep_drain_points();
    // The disk as it is when the region is cut, and half a second later: the destage thread continues.
    let empty = disk.crash(&CrashPolicy::LoseAll);
    append_group(&log, &groups[0]);
    let full = disk.crash(&CrashPolicy::LoseAll);
    let mut found = Vec::new();
    for cut in 0.. {
        for is_there in [false, true] {
            let Some(image) = memory.image_before_drain(cut, || is_there) else {
                break;
            };
            for left in [&empty, &full] {
                // Behind what went to the files the region alone is not all.
                let region = Region::open(Arc::new(RecordingMemory::from_image(image.clone())));
                let region = region.expect("a region").expect("made");
                let left = left.copy();
                let (log, _, _) = open_with(&left, standby_config()).expect("open");
                let is_drained = log.drain(&region.recover().expect("whole")).is_ok();
                close(log);
                assert_eq!(verify(&left).expect("verify").damage, None);
                if is_drained {
                    found.push(pairs_on(&left));
                }
            }
        }
        if memory.image_before_drain(cut + 1, || true).is_none() {
            break;
        }
    }
    found.sort_unstable();
    found.dedup();
    assert!(found.len() > 4 && found[0] == 0, "{found:?}");
    close(log);
    assert_eq!(pairs_on(&disk), sizes.len() as u64);
}
