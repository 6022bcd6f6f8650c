//! A log at work: the order of outcomes, a full or failing disk, and reading while it is written.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    WAIT_MAX, append, assert_full, config, encode, open, open_with, segments, word, words_in, words_on,
};
use reprise_base::Lsn;
use reprise_env::{
    Disk, DiskError, DiskErrorKind, DiskFile, DiskFilter, FilteredDisk, RealClock, RealDisk, SimClock, SimDisk,
    Stepper,
    sim::{CrashPolicy, FaultPlan},
};
use reprise_log::{Log, LogError, PageBounds, UnavailableKind, verify};
use reprise_wire::{BlockKind, SEGMENT_HEADER_BYTES, SegmentHeader};

fn wait_until(mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + WAIT_MAX;
    while Instant::now() < until {
        if holds() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("waited in vain");
}

/// The preparer is done with the next segment: the last thing that it does makes its name durable. Whatever fails from now on
/// is not its own.
fn wait_prepared(disk: &SimDisk) {
    wait_until(|| disk.crash(&CrashPolicy::LoseAll).list().expect("list").len() == 2);
}

#[test]
fn each_caller_is_acknowledged_once_and_in_order() {
    let disk = SimDisk::new();
    let (log, _, told) = open_with(
        &disk,
        reprise_log::LogConfig {
            segment_bytes: 1 << 20,
            ..config()
        },
    )
    .expect("open");
    thread::scope(|scope| {
        for thread in 0..4 {
            let appender = log.appender();
            scope.spawn(move || {
                for number in 0..500 {
                    let word = format!("t{thread}_{number}");
                    let records = encode(&[&word]);
                    appender.append(&records, Some(word)).map_err(|e| e.0).expect("append");
                }
            });
        }
    });
    let filled = log.filled();
    log.close().expect("close");
    assert!(log.durable() >= filled);
    let told = told.lock().expect("test");
    assert!(
        told.windows(2)
            .all(|pair| pair[0].0.as_ref().expect("durable") < pair[1].0.as_ref().expect("durable"))
    );
    let order: Vec<_> = told.iter().map(|(_, word)| word.clone()).collect();
    assert_eq!(order.len(), 2000);
    assert_eq!(words_in(&mut log.reader(Lsn(0)).expect("reader")), order);
    let refused = log.appender().append(&encode(&["late"]), Some("late".into()));
    let (error, pending) = refused.expect_err("closed");
    assert!(matches!(
        error,
        LogError::Unavailable {
            kind: UnavailableKind::Closed,
            ..
        }
    ));
    assert_eq!(pending.as_deref(), Some("late"));
    assert!(log.refusal().is_some());
}

/// Appends a word while busy for `busy`; returns the end of its record.
fn append_while_busy(log: &Log<String>, word: &str, busy: Duration) -> Lsn {
    let records = encode(&[word]);
    let appended = log.appender().append_while_busy(&records, Some(word.into()), busy);
    Lsn(appended.map_err(|e| e.0).expect("append").0 + 1)
}

#[test]
fn group_is_kept_until_a_caller_is_urgent() {
    const HOUR: Duration = Duration::from_secs(3600);
    let mut patient = config();
    patient.patience_max = HOUR;
    let (log, _, told) = open_with(&SimDisk::new(), patient).expect("open");
    let all_told = |count: usize| wait_until(|| told.lock().expect("test").len() == count);
    let hurries: [&dyn Fn(&Log<String>, Lsn); 4] = [
        &|log, _| assert!(append_while_busy(log, "hurry", Duration::ZERO).0 > 0),
        &|log, end| log.appender().pend(end, "read".into(), Duration::ZERO),
        &|log, end| assert!(log.wait_durable(end, HOUR)),
        &|log, _| log.close().expect("close"),
    ];
    let mut count = 0;
    for (at, hurry) in hurries.iter().enumerate() {
        append_while_busy(&log, "before", Duration::ZERO);
        count += 1;
        all_told(count);
        let flushes = log.stats().flushes.get();
        append_while_busy(&log, "a", 4 * HOUR);
        let end = append_while_busy(&log, "b", 4 * HOUR);
        assert!(log.durable() < end, "nobody is in a hurry");
        hurry(&log, end);
        count += 2 + usize::from(at < 2);
        all_told(count);
        // The last one is the log's end.
        assert_eq!(log.stats().flushes.get() - flushes, 1 + u64::from(at == 3));
    }
}

#[test]
fn groups_are_kept_no_longer_than_they_may() {
    let (log, _, told) = open(&SimDisk::new()).expect("open");
    for round in 0..60 {
        append_while_busy(&log, "kept", Duration::from_micros(1_600 * (round % 3)));
        // Now and then while the flusher expects another one, now and then while it sleeps.
        if round % 7 == 0 {
            wait_until(|| told.lock().expect("test").len() as u64 == round + 1);
        }
    }
    wait_until(|| told.lock().expect("test").len() == 60);
}

#[test]
fn readers_of_others_writes_wait_for_them() {
    let disk = SimDisk::new();
    let mut slow = config();
    slow.group_commit_delay = Duration::from_secs(2);
    let (log, _, told) = open_with(&disk, slow).expect("open");
    let appender = log.appender();
    let records = encode(&["a"]);
    let began = Instant::now();
    let start = appender.append(&records, None).map_err(|e| e.0).expect("append");
    let end = Lsn(start.0 + 1);
    appender.pend(Lsn(0), "early".into(), Duration::ZERO);
    appender.pend(end, "reader".into(), Duration::ZERO);
    let told_count = told.lock().expect("test").len();
    let is_durable = log.wait_durable(end, Duration::ZERO);
    // A slow machine may get here when the delay of the group is over.
    let is_late = began.elapsed() >= Duration::from_secs(1);
    assert!(told_count == 1 || is_late, "only what was durable already");
    assert!(!is_durable || is_late);
    assert!(log.wait_durable(end, WAIT_MAX));
    wait_until(|| told.lock().expect("test").len() == 2);
    appender.pend(end, "late".into(), Duration::ZERO);
    let words: Vec<_> = told
        .lock()
        .expect("test")
        .iter()
        .map(|(_, word)| word.clone())
        .collect();
    assert_eq!(words, ["early", "reader", "late"]);
    let positions = log.positions();
    assert!(positions.durable <= positions.written && positions.written <= positions.filled);
}

#[test]
fn group_with_enough_callers_does_not_wait_for_its_delay() {
    let disk = SimDisk::new();
    let mut slow = config();
    (slow.group_commit_delay, slow.group_calls_max) = (2 * WAIT_MAX, 2);
    let (log, _, told) = open_with(&disk, slow).expect("open");
    for (word, count) in [("first", 0), ("second", 2)] {
        let end = Lsn(log.positions().filled.0 + 1);
        log.appender()
            .append(&encode(&[word]), Some(word.into()))
            .map_err(|e| e.0)
            .expect("append");
        let is_written = log.wait_durable(end, Duration::ZERO);
        assert!(!is_written || count == 2, "one caller waits for more");
        wait_until(|| told.lock().expect("test").len() >= count);
    }
}

#[test]
fn a_quiet_log_seals_its_last_records_once() {
    let disk = SimDisk::new();
    let mut sealing = config();
    sealing.seal_after = Duration::from_millis(1);
    let (log, _, _) = open_with(&disk, sealing).expect("open");
    let end = append(&log, &["a"]);
    wait_until(|| verify(&disk).expect("verify").blocks == 2);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(log.durable(), end, "a seal holds no record");
    let image = disk.crash(&CrashPolicy::LoseAll);
    let report = verify(&image).expect("verify");
    assert_eq!((report.blocks, report.last_block), (2, Some(BlockKind::Seal)));
    // From now on the log distinguishes damage of the last records from a torn tail.
    image.damage(&segments(&image)[0], |bytes| bytes[562] ^= 4);
    assert!(matches!(open(&image).err(), Some(LogError::Corrupt(_))));
}

#[test]
fn a_failed_write_or_sync_stops_the_log_for_good() {
    let faults = [
        FaultPlan {
            write_error_in: Some(0),
            ..FaultPlan::default()
        },
        FaultPlan {
            sync_error_in: Some(0),
            ..FaultPlan::default()
        },
    ];
    for fault in faults {
        let disk = SimDisk::new();
        let (log, _, told) = open(&disk).expect("open");
        append(&log, &["a"]);
        // The preparer has its own writes.
        wait_prepared(&disk);
        disk.set_faults(fault);
        let records = encode(&["b"]);
        log.appender()
            .append(&records, Some("b".into()))
            .map_err(|e| e.0)
            .expect("taken");
        wait_until(|| told.lock().expect("test").len() == 2);
        let outcome = told.lock().expect("test")[1].0.clone().expect_err("not durable");
        assert!(
            matches!(
                outcome,
                LogError::Unavailable {
                    // Doubtful if the log could not take the block back, either.
                    kind: UnavailableKind::Failed | UnavailableKind::Doubtful,
                    ..
                }
            ),
            "{outcome}"
        );
        disk.set_faults(FaultPlan::default());
        let refused = log.appender().append(&records, None).expect_err("never tried again").0;
        // A later caller gets the same error, without the doubt about records in flight.
        assert!(outcome.to_string().starts_with(&refused.to_string()), "{refused}");
        assert!(log.refusal().is_some());
        assert_eq!(words_in(&mut log.reader(Lsn(0)).expect("reads go on")), ["a"]);
        assert_eq!(log.close().expect_err("says why"), refused);
        drop(log);
        let found = words_on(&disk.crash(&CrashPolicy::LoseAll));
        assert_eq!(found, ["a"]);
    }
}

#[test]
fn a_full_disk_refuses_loses_nothing_and_works_again() {
    let disk = SimDisk::new();
    let (log, _, told) = open(&disk).expect("open");
    wait_prepared(&disk);
    disk.set_faults(FaultPlan {
        capacity_bytes: Some(0),
        ..FaultPlan::default()
    });
    let mut words = Vec::new();
    let error = loop {
        let name = format!("w{}*3000", words.len());
        match log.appender().append(&encode(&[&name]), Some(name.clone())) {
            Ok(_) => words.push(name),
            Err((error, pending)) => {
                assert_eq!(pending, Some(name));
                break error;
            }
        }
        assert!(words.len() < 100, "the disk is full");
    };
    assert_full(&error);
    assert!(words.len() >= 6, "both segments are used up: {}", words.len());
    assert!(log.refusal().expect("says why").contains("no space"));
    assert!(log.trouble().expect("says why").contains("no space"));
    wait_until(|| told.lock().expect("test").len() == words.len());
    assert!(told.lock().expect("test").iter().all(|(outcome, _)| outcome.is_ok()));
    assert_eq!(words_in(&mut log.reader(Lsn(0)).expect("reader")), words);
    disk.set_faults(FaultPlan::default());
    wait_until(|| log.refusal().is_none());
    append(&log, &["again"]);
    drop(log);
    words.push("again".into());
    assert_eq!(words_on(&disk), words);
}

/// Opens a log on a disk with a filter. Returns it with the outcomes that its callers got: whether it committed, and the word.
fn open_filtered(disk: &SimDisk, filter: Arc<dyn DiskFilter>) -> (Log<String>, Arc<Mutex<Vec<(bool, String)>>>) {
    let filtered = Arc::new(FilteredDisk::new(Arc::new(disk.clone()), filter));
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&outcomes);
    let complete = Box::new(move |_: Lsn, outcome: Result<(), &LogError>, word: String| {
        recorded.lock().expect("test").push((outcome.is_ok(), word));
    });
    let (log, _) = Log::open(filtered, Arc::new(RealClock::new()), config(), complete).expect("open");
    (log, outcomes)
}

/// A disk that has space for no block, while told so: as a file system that takes new space for each write.
#[derive(Default)]
struct FullBlocks(AtomicBool);

impl DiskFilter for FullBlocks {
    fn write_durable_at(&self, file: &dyn DiskFile, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        match self.0.load(Ordering::Acquire) {
            true => Err(DiskError::new(
                "write",
                "a segment",
                DiskErrorKind::Full,
                "No space left on device",
            )),
            false => file.write_durable_at(offset, bytes),
        }
    }
}

#[test]
fn a_disk_that_gets_full_inside_a_segment_loses_nothing_and_works_again() {
    let (disk, full) = (SimDisk::new(), Arc::new(FullBlocks::default()));
    let (log, told) = open_filtered(&disk, full.clone());
    append(&log, &["a"]);
    wait_prepared(&disk);
    full.0.store(true, Ordering::Release);
    let taken = log.appender().append(&encode(&["b"]), Some("b".into()));
    taken.map_err(|refused| refused.0).expect("it has its place");
    wait_until(|| log.refusal().is_some_and(|reason| reason.contains("No space left")));
    let refused = log.appender().append(&encode(&["c"]), None).expect_err("no space").0;
    let kind = UnavailableKind::Full;
    assert!(
        matches!(&refused, LogError::Unavailable { kind: found, .. } if *found == kind),
        "{refused}"
    );
    assert!(log.trouble().is_some() && !log.is_stopped());
    assert!(
        !told.lock().expect("test").iter().any(|(_, word)| word == "b"),
        "nobody knows yet"
    );
    full.0.store(false, Ordering::Release);
    wait_until(|| {
        told.lock()
            .expect("test")
            .iter()
            .any(|told| *told == (true, "b".to_owned()))
    });
    wait_until(|| log.refusal().is_none());
    append(&log, &["d"]);
    log.close().expect("close");
    drop(log);
    assert_eq!(words_on(&disk), ["a", "b", "d"]);
    // A log that is closed while its disk is full ends, and says why.
    let filtered = Arc::new(FilteredDisk::new(Arc::new(disk.clone()), full.clone()));
    let no_callback = Box::new(|_: Lsn, _: Result<(), &LogError>, _: String| {});
    let (log, _) = Log::open(filtered, Arc::new(RealClock::new()), config(), no_callback).expect("open");
    full.0.store(true, Ordering::Release);
    let taken = log.appender().append(&encode(&["e"]), None);
    taken.map_err(|refused| refused.0).expect("it has its place");
    wait_until(|| log.refusal().is_some());
    assert!(
        log.close()
            .expect_err("it failed")
            .to_string()
            .contains("No space left")
    );
}

/// The step of a new segment for which the disk has no space.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SegmentStep {
    Header,
    Rename,
    DirectorySync,
}

/// A disk that has no space for one step of a new segment, while told so.
struct FullAtStep {
    step: SegmentStep,
    is_full: AtomicBool,
}

impl FullAtStep {
    fn check(&self, step: SegmentStep) -> Result<(), DiskError> {
        let is_refused = step == self.step && self.is_full.load(Ordering::Acquire);
        let full = || DiskError::new("write", "a segment", DiskErrorKind::Full, "No space left on device");
        is_refused.then(full).map_or(Ok(()), Err)
    }
}

impl DiskFilter for FullAtStep {
    fn rename(&self, disk: &dyn Disk, from: &str, to: &str) -> Result<(), DiskError> {
        self.check(SegmentStep::Rename)?;
        disk.rename(from, to)
    }

    fn sync_dir(&self, disk: &dyn Disk) -> Result<(), DiskError> {
        self.check(SegmentStep::DirectorySync)?;
        disk.sync_dir()
    }

    fn write_durable_at(&self, file: &dyn DiskFile, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        if offset == 0 {
            self.check(SegmentStep::Header)?;
        }
        file.write_durable_at(offset, bytes)
    }
}

/// Nothing of a new segment counts before its first block: the flusher tries each of its steps again, and needs no restart.
#[test]
fn disk_that_gets_full_where_a_segment_begins_loses_nothing_and_works_again() {
    for step in [SegmentStep::Header, SegmentStep::Rename, SegmentStep::DirectorySync] {
        let disk = SimDisk::new();
        let filter = Arc::new(FullAtStep {
            step,
            is_full: AtomicBool::new(false),
        });
        let (log, outcomes) = open_filtered(&disk, filter.clone());
        append(&log, &["a*9000"]);
        wait_prepared(&disk);
        filter.is_full.store(true, Ordering::Release);
        // More than is left in the first segment.
        let taken = log.appender().append(&encode(&["b*9000"]), Some("b".into()));
        taken.map_err(|refused| refused.0).expect("it has its place");
        wait_until(|| log.refusal().is_some_and(|reason| reason.contains("No space left")));
        let refused = log.appender().append(&encode(&["c"]), None).expect_err("no space").0;
        let kind = UnavailableKind::Full;
        assert!(
            matches!(&refused, LogError::Unavailable { kind: found, .. } if *found == kind),
            "{step:?}: {refused}"
        );
        assert!(log.trouble().is_some() && !log.is_stopped(), "{step:?}");
        // More than one try fails.
        thread::sleep(Duration::from_millis(1200));
        assert!(!log.is_stopped(), "{step:?}");
        assert_eq!(outcomes.lock().expect("test").len(), 1, "{step:?}: the caller waits");
        filter.is_full.store(false, Ordering::Release);
        wait_until(|| outcomes.lock().expect("test").contains(&(true, "b".to_owned())));
        wait_until(|| log.refusal().is_none());
        append(&log, &["d"]);
        log.close().expect("close");
        drop(log);
        assert_eq!(words_on(&disk), ["a*9000", "b*9000", "d"], "{step:?}");
        let crashed = disk.crash(&CrashPolicy::LoseAll);
        assert_eq!(words_on(&crashed), ["a*9000", "b*9000", "d"], "{step:?}");
    }
}

#[test]
fn records_larger_than_a_buffer_and_a_segment_find_room() {
    let disk = SimDisk::new();
    let (log, _, told) = open(&disk).expect("open");
    thread::scope(|scope| {
        for thread in 0..2 {
            let appender = log.appender();
            scope.spawn(move || {
                for number in 0..40 {
                    let records = encode(&[&format!("s{thread}_{number}")]);
                    appender.append(&records, None).map_err(|e| e.0).expect("append");
                }
            });
        }
        append(&log, &["big*6000000"]);
    });
    append(&log, &["after"]);
    let mut large = Vec::new();
    large.resize_with(34, || "x*1000000");
    let refused = log
        .appender()
        .append(&encode(&large), None)
        .expect_err("more than a block")
        .0;
    assert!(matches!(refused, LogError::TooLong { .. }));
    drop(log);
    let words = words_on(&disk);
    assert_eq!((words.len(), told.lock().expect("test").len()), (82, 2));
    assert!(words.contains(&"big*6000000".to_owned()));
}

#[test]
fn reading_from_anywhere_and_backwards() {
    let disk = SimDisk::new();
    let mut roomy = config();
    roomy.segment_bytes = 1 << 20;
    let (log, _, _) = open_with(&disk, roomy).expect("open");
    let mut positions = Vec::new();
    for number in 0..300 {
        let words = [format!("w{number}*{}", number * 37 % 9000), format!("v{number}")];
        let end = append(&log, &[&words[0], &words[1]]);
        assert_eq!(end, Lsn(positions.len() as u64 + 2), "LSNs are dense");
        positions.push((Lsn(end.0 - 2), words[0].clone()));
        positions.push((Lsn(end.0 - 1), words[1].clone()));
    }
    assert!(segments(&disk).len() > 1);
    let all: Vec<_> = positions.iter().map(|(_, word)| word.clone()).collect();
    for index in (0..600).step_by(7) {
        let (lsn, name) = &positions[index];
        assert_eq!(words_in(&mut log.reader(*lsn).expect("reader")), all[index..]);
        assert_eq!(
            words_in(&mut log.reader(Lsn(lsn.0 + 1)).expect("reader")),
            all[index + 1..]
        );
        let record = log.record(*lsn).expect("read").expect("a record begins there");
        assert_eq!(word(&record.get().record), *name);
        assert_eq!(log.record(Lsn(600)).expect("read"), None);
    }
    for (records, bytes_max) in [(47, usize::MAX), (1_000, 20_000)] {
        let bounds = PageBounds {
            records,
            bytes: bytes_max,
        };
        let (mut back, mut before) = (Vec::new(), None);
        loop {
            let page = log.newest(before, bounds, |_| true).expect("page");
            let mut bytes = page.records.iter().map(|record| record.bytes().len());
            let (all_bytes, oldest) = (bytes.clone().sum::<usize>(), bytes.next_back().unwrap_or_default());
            assert!(all_bytes - oldest < bytes_max, "it ends with the record that fills it");
            back.extend(page.records.iter().map(|record| word(&record.get().record)));
            before = page.next;
            if before.is_none() || page.records.is_empty() {
                break;
            }
        }
        back.reverse();
        assert_eq!(back, all, "{bounds:?}");
    }
    let some = log
        .newest(
            None,
            PageBounds {
                records: 3,
                bytes: usize::MAX,
            },
            |record| word(&record.record).starts_with('v'),
        )
        .expect("page");
    assert_eq!(
        some.records.iter().map(|r| word(&r.get().record)).collect::<Vec<_>>(),
        ["v299", "v298", "v297"]
    );
    assert!(matches!(
        log.reader(Lsn(1 << 40)).err(),
        Some(LogError::OutOfRange { .. })
    ));
}

#[test]
fn a_reader_follows_a_log_that_is_written() {
    let disk = SimDisk::new();
    let (log, _, _) = open(&disk).expect("open");
    let mut reader = log.reader(Lsn(0)).expect("reader");
    for number in 0..200 {
        let name = format!("w{number}*500");
        append(&log, &[&name]);
        assert_eq!(words_in(&mut reader), [name]);
    }
    assert_eq!(reader.position(), log.durable());
}

#[test]
fn unneeded_segments_are_released_and_used_again() {
    let disk = SimDisk::new();
    let (log, _, _) = open(&disk).expect("open");
    let mut last = Lsn(0);
    for number in 0..20 {
        last = append(&log, &[&format!("w{number}*5000")]);
        wait_until(|| disk.list().expect("list").iter().any(|name| name == "spare.seg"));
    }
    let before = segments(&disk).len();
    let released = log.release_before(Lsn(last.0 - 6)).expect("release");
    assert!(released > 1 && segments(&disk).len() == before - released);
    assert!(matches!(log.reader(Lsn(1)).err(), Some(LogError::OutOfRange { .. })));
    for number in 20..30 {
        append(&log, &[&format!("w{number}*5000")]);
    }
    let start = log.start();
    let expected = words_in(&mut log.reader(start).expect("reader"));
    drop(log);
    // Also after a crash at any moment of this the log has no gap.
    for ops in 0..=disk.ops_count() {
        for policy in [
            CrashPolicy::LoseAll,
            CrashPolicy::KeepAll,
            CrashPolicy::Random(ops as u64),
        ] {
            let report = verify(&disk.crash_image(ops, &policy)).expect("verify");
            assert_eq!(report.damage, None, "operation {ops}, {policy:?}");
        }
    }
    let (log, _, _) = open(&disk).expect("open");
    assert_eq!(log.start(), start);
    assert_eq!(words_in(&mut log.reader(start).expect("reader")), expected);
}

/// A log of 20 segments or so, its end, and the first LSN of each segment.
fn long_log(disk: &SimDisk) -> (Log<String>, Lsn, Vec<Lsn>) {
    let (log, _, _) = open(disk).expect("open");
    let mut last = Lsn(0);
    for number in 0..20 {
        last = append(&log, &[&format!("w{number}*5000")]);
        wait_until(|| disk.list().expect("list").iter().any(|name| name == "spare.seg"));
    }
    let starts = segments(disk).into_iter().map(|name| {
        let file = disk.open_read(&name).expect("open");
        let mut header = [0; SEGMENT_HEADER_BYTES];
        file.read_at(0, &mut header).expect("read");
        SegmentHeader::decode(&header).expect("a header").start
    });
    let starts = starts.collect();
    (log, last, starts)
}

#[test]
fn held_log_is_kept_until_the_hold_advances() {
    let disk = SimDisk::new();
    let (log, last, starts) = long_log(&disk);
    let (first, second) = (starts[2], starts[4]);
    let hold = log.create_slot("s1", first).expect("it is there");
    let behind = log.create_slot("s2", second).expect("it is there");
    assert_eq!(log.release_before(last), Ok(2));
    assert_eq!(log.start(), first);
    // Files to be released are named once, kept or not: an archive takes them before they go.
    let named = log.releasable_before(last);
    assert!(named.is_empty(), "{named:?}");
    let names: Vec<_> = log.slots().iter().map(|slot| slot.name.to_string()).collect();
    assert_eq!(names, ["s1", "s2"]);
    assert!(log.slots()[0].bytes > log.slots()[1].bytes && log.slots()[1].bytes > 0);
    // Within a segment nothing goes, and never is anything taken back.
    assert_eq!(hold.advance(Lsn(starts[3].0 - 1)), Ok(0));
    assert_eq!(hold.advance(Lsn(0)), Ok(0));
    assert_eq!((hold.advance(last), log.start()), (Ok(2), second));
    assert_eq!(
        words_in(&mut log.reader(second).expect("kept")).len() as u64,
        last.0 - second.0
    );
    let refused = log.create_slot("late", first).err();
    assert!(matches!(refused, Some(LogError::OutOfRange { .. })), "{refused:?}");
    drop(behind);
    assert!(log.start() > second && log.start() <= last);
    assert!(!hold.is_released());
    // No process removes files of a directory that belongs to another now.
    let behind = log.create_slot("s3", log.start()).expect("it is there");
    log.close().expect("close");
    let before = segments(&disk);
    drop((behind, hold));
    assert_eq!(segments(&disk), before);
    assert_eq!(verify(&disk).expect("verify").damage, None);
}

#[test]
fn a_segment_that_could_not_go_goes_before_those_behind_it() {
    let disk = SimDisk::new();
    let (log, last, starts) = long_log(&disk);
    disk.set_faults(FaultPlan {
        read_only: true,
        ..FaultPlan::default()
    });
    log.release_before(starts[2]).expect_err("nothing can be removed");
    disk.set_faults(FaultPlan::default());
    log.release_before(starts[3]).expect("both go");
    assert_eq!(log.start(), starts[3]);
    log.close().expect("close");
    assert_eq!(
        verify(&disk).expect("verify").damage,
        None,
        "what is left follows each other"
    );
    let (log, ..) = open(&disk).expect("what is left follows each other");
    assert_eq!((log.start(), log.durable()), (starts[3], last));
}

/// A standby's replay waits at the log's end, where a checkpoint releases everything before it.
#[test]
fn a_reader_that_has_read_nothing_yet_outlives_a_release_of_what_lies_before() {
    let disk = SimDisk::new();
    let (log, mut end, _) = long_log(&disk);
    for number in 20..40 {
        let mut reader = log.reader(end).expect("reader");
        let mut gone = log.reader(Lsn(end.0 - 1)).expect("reader");
        let word = format!("w{number}*5000");
        let next = append(&log, &[&word]);
        log.release_before(end).expect("release");
        // A segment begins there, so the record that the reader was to pass over is gone.
        if log.start() == end {
            assert_eq!(words_in(&mut reader), [word]);
            let refused = gone.next_record().err();
            assert!(matches!(refused, Some(LogError::OutOfRange { .. })), "{refused:?}");
            return;
        }
        end = next;
    }
    panic!("no segment began with a record");
}

#[test]
fn a_hold_that_keeps_more_than_it_may_is_released() {
    let disk = SimDisk::new();
    let (log, last, starts) = long_log(&disk);
    let lost = log.create_slot("lost", starts[1]).expect("it is there");
    let near = log.create_slot("near", starts[starts.len() - 3]).expect("it is there");
    log.set_slot_bytes_max(60_000).expect("nothing is released");
    // Nothing is to be released yet: the slots cost nothing.
    assert!(!lost.is_released());
    log.release_before(last).expect("release");
    assert!(lost.is_released() && !near.is_released());
    assert_eq!(log.start(), starts[starts.len() - 3]);
    assert_eq!((lost.advance(last), lost.name()), (Ok(0), "lost"));
    append(&log, &["goes on"]);
    let names: Vec<_> = log.slots().iter().map(|slot| slot.name.to_string()).collect();
    assert_eq!(names, ["near"]);
    log.set_slot_bytes_max(0).expect("release");
    assert!(near.is_released() && log.slots().is_empty());
}

#[test]
fn a_real_directory_holds_what_was_told() {
    let directory = tempfile::tempdir().expect("make directory");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::create(directory.path()).expect("open disk"));
    let mut roomy = config();
    roomy.segment_bytes = 256 << 10;
    let clock = Arc::new(RealClock::new());
    let open = || Log::<()>::open(disk.clone(), clock.clone(), roomy.clone(), Box::new(|_, _, ()| {}));
    let mut expected = Vec::new();
    for round in 0..3 {
        let (log, report) = open().expect("open");
        assert_eq!(report.found.records, expected.len() as u64);
        for number in 0..100 {
            let name = format!("r{round}_{number}*3000");
            let records = encode(&[&name]);
            let start = log
                .appender()
                .append(&records, Some(()))
                .map_err(|e| e.0)
                .expect("append");
            assert!(log.wait_durable(Lsn(start.0 + 1), WAIT_MAX));
            expected.push(name);
        }
        assert_eq!(words_in(&mut log.reader(Lsn(0)).expect("reader")), expected);
        assert!(open().is_err(), "one at a time");
    }
    assert_eq!(verify(&*disk).expect("verify").last_block, Some(BlockKind::Close));
}

/// The process dies, or gives up, when a block is written and not durable; the next one reads it from the page cache.
#[test]
fn block_is_not_kept_without_the_block_before_it() {
    let disk = SimDisk::new();
    let (log, _, _) = open(&disk).expect("open");
    append(&log, &["a"]);
    drop(log);
    disk.set_faults(FaultPlan {
        sync_error_in: Some(0),
        ..FaultPlan::default()
    });
    // Opening writes nothing that it could do without.
    assert!(open(&disk).is_err());
    disk.set_faults(FaultPlan::default());
    let (log, _, told) = open(&disk).expect("open");
    wait_prepared(&disk);
    disk.set_faults(FaultPlan {
        sync_error_in: Some(0),
        ..FaultPlan::default()
    });
    let appended = log.appender().append(&encode(&["b"]), Some("b".into()));
    appended.map_err(|e| e.0).expect("taken");
    wait_until(|| !told.lock().expect("test").is_empty());
    drop(log);
    // Zeros were written over it, which are not durable either; whatever the next process sees, it builds upon.
    disk.set_faults(FaultPlan::default());
    let (log, _, _) = open(&disk).expect("open");
    append(&log, &["c"]);
    for policy in [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Random(1)] {
        assert_eq!(words_on(&disk.crash(&policy)), ["a", "c"]);
    }
}

/// A block that was written, but not synced, by a process that was killed.
#[test]
fn a_block_that_only_the_page_cache_holds_is_written_again() {
    let disk = SimDisk::new();
    let (log, _, _) = open(&disk).expect("open");
    append(&log, &["a"]);
    drop(log);
    let clock = Arc::new(SimClock::at_us(0));
    let stepper = Stepper::new(1, clock.clone());
    let threads = Arc::new(stepper.clone());
    let complete = Box::new(|_: Lsn, _: Result<(), &LogError>, _: String| {});
    let opened = Log::open_on(Arc::new(disk.clone()), clock, threads, config(), complete);
    let (log, _) = opened.expect("open");
    disk.set_faults(FaultPlan {
        lies: true,
        ..FaultPlan::default()
    });
    append(&log, &["b"]);
    stepper.kill();
    drop(log);
    stepper.forget();
    assert_eq!(words_on(&disk.crash(&CrashPolicy::LoseAll)), ["a"]);
    disk.set_faults(FaultPlan::default());
    let (log, _, _) = open(&disk).expect("open");
    append(&log, &["c"]);
    for policy in [CrashPolicy::LoseAll, CrashPolicy::KeepAll] {
        let image = disk.crash(&policy);
        assert_eq!(verify(&image).expect("verify").damage, None);
        assert_eq!(words_on(&image), ["a", "b", "c"]);
    }
}

#[test]
fn records_refused_by_a_failed_write_do_not_return() {
    for (fails_once, is_known) in [(true, true), (false, false)] {
        let disk = SimDisk::new();
        let (log, _, told) = open(&disk).expect("open");
        append(&log, &["a"]);
        wait_prepared(&disk);
        disk.set_faults(FaultPlan {
            sync_error_in: Some(0),
            fails_once,
            ..FaultPlan::default()
        });
        let appended = log.appender().append(&encode(&["b"]), Some("b".into()));
        appended.map_err(|e| e.0).expect("taken");
        wait_until(|| told.lock().expect("test").len() == 2);
        let error = told.lock().expect("test")[1].0.clone().expect_err("not durable");
        let is_doubtful = error.to_string().contains("Only a restart shows");
        assert_eq!(is_doubtful, !is_known, "{error}");
        if is_known {
            for policy in [CrashPolicy::LoseAll, CrashPolicy::KeepAll] {
                assert_eq!(words_on(&disk.crash(&policy)), ["a"], "{policy:?}");
            }
        }
    }
}

/// A crash between the name of a segment and its first block leaves it empty; the next block may be too long for it.
#[test]
fn an_empty_segment_gives_way_to_a_larger_one() {
    let disk = SimDisk::new();
    let (log, _, _) = open(&disk).expect("open");
    for number in 0..12 {
        append(&log, &[&format!("w{number}*5000")]);
    }
    drop(log);
    let mut seen = 0;
    for ops in 0..=disk.ops_count() {
        let image = disk.crash_image(ops, &CrashPolicy::KeepAll);
        let report = verify(&image).expect("verify");
        let newest = report.segments.last().filter(|newest| newest.start == newest.end);
        if newest.is_none() || report.blocks == 0 {
            continue;
        }
        seen += 1;
        let before = words_on(&image);
        let (log, _, _) = open(&image).expect("open");
        append(&log, &["long*40000"]);
        drop(log);
        let words = words_on(&image.crash(&CrashPolicy::LoseAll));
        assert_eq!(words, [before, vec!["long*40000".into()]].concat(), "operation {ops}");
    }
    assert!(seen > 0, "no crash leaves an empty segment");
}
