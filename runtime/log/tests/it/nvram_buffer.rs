//! The rings before the files: in the order of LSNs, never over uncopied records, whole after a crash wherever it comes.

use crate::common;
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crate::common::{WAIT_MAX, close, config, drain_image, encode, open, open_with, standby_config};
use reprise_base::{Epoch, Lsn, PartitionId, PlacedBytes, TxnId};
use reprise_env::{
    SimClock, SimDisk, Stepper,
    sim::{CrashPolicy, FaultPlan},
};
use reprise_log::{Log, LogConfig, LogError, LogReader, NvramAppender, NvramBufferConfig, UnavailableKind, verify};
use reprise_nvram::{FlushPolicy, ObjectWriter, Owner, RecordingMemory, Region};
use reprise_wire::{Change, ChangesRef, PartitionSet, RecordBatch, RecordEffect, RecordRef};

const REGION_BYTES: usize = 1 << 20;
const ENTRIES: u32 = 256;

fn region(memory: &Arc<RecordingMemory>, rings: u32) -> Region {
    Region::format(
        memory.clone(),
        Owner::default(),
        rings,
        ENTRIES,
        (Epoch::new(1, 0), Lsn(0)),
    )
    .expect("there is room")
}

/// Appends a transaction of this many deletions. Some of them may have found room in the ring before its commit. Returns whether they
/// did.
fn append_changes(
    site: &mut NvramAppender<String>,
    objects: &mut ObjectWriter,
    number: u64,
    rows: u32,
) -> (Result<Lsn, LogError>, String, bool) {
    objects.begin_batch();
    let (begun_at, mut has_room) = (objects.place(), true);
    let (mut changes, mut pieces) = (Vec::new(), Vec::new());
    for row in 0..rows {
        let at = changes.len();
        let number = u64::from(row);
        Change::Delete { table: 1, number }.encode(&mut changes);
        let place = has_room.then(|| objects.insert(&changes[at..])).flatten();
        has_room = place.is_some();
        let bytes = (changes.len() - at) as u32;
        pieces.extend(place.map(|place| PlacedBytes {
            at: at as u32,
            bytes,
            place,
        }));
    }
    if !has_room {
        objects.take_back(begun_at);
        pieces.clear();
    }
    let mut records = RecordBatch::default();
    let record = ChangesRef {
        digest: number,
        ..ChangesRef::new(TxnId::new(number + 1, 0), PartitionSet::One(PartitionId(0)), &changes)
    };
    records.push_placed(&record, &pieces);
    (site.append(&records), word(&RecordRef::Changes(record)), has_room)
}

fn front_config(copy_at_entries: u64) -> NvramBufferConfig {
    NvramBufferConfig {
        copy_at_entries,
        flush: FlushPolicy::OnCommit,
    }
}

/// A log with an NVRAM buffer of `sites` sites.
fn fronted(disk: &SimDisk, memory: &Arc<RecordingMemory>, sites: u32, copy_at_entries: u64) -> Log<String> {
    let (log, _, _) = open(disk).expect("open");
    log.attach_nvram(region(memory, sites), front_config(copy_at_entries))
        .expect("a nvram");
    log
}

fn appenders(log: &Log<String>, sites: usize) -> Vec<NvramAppender<String>> {
    (0..sites)
        .map(|site| log.nvram_appender(site).expect("a nvram"))
        .collect()
}

fn word(record: &RecordRef<'_>) -> String {
    match record.facts().effect {
        RecordEffect::Nothing => "void".to_owned(),
        RecordEffect::Rows => {
            let bytes: usize = record.groups().map(|(_, changes)| changes.len()).sum();
            format!("{:?} in {bytes} bytes", record.txn_id())
        }
        _ => common::word(record),
    }
}

fn words(mut reader: LogReader) -> Vec<String> {
    let mut words = Vec::new();
    while let Some(record) = reader.next_record().expect("read record") {
        assert_eq!(record.lsn, Lsn(words.len() as u64), "LSNs have no gaps");
        words.push(word(&record.record));
    }
    words
}

fn words_on(disk: &SimDisk) -> Vec<String> {
    let (reader, report) = LogReader::open(Arc::new(disk.clone()), Lsn(0)).expect("scan");
    assert_eq!(report.damage, None);
    words(reader)
}

/// Records on `disk` and in `image` of the region, opened as after a crash.
fn opened(disk: &SimDisk, image: Vec<u8>) -> Vec<String> {
    drain_image(disk, image, standby_config());
    words_on(disk)
}

#[test]
fn the_rings_come_to_the_files_in_the_order_of_lsns() {
    let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
    let log = fronted(&disk, &memory, 3, u64::MAX);
    let mut sites = appenders(&log, 3);
    // Entries are copied after a second alone, and a slow machine may take as long for the rounds.
    let began = Instant::now();
    let may_be_copied = || began.elapsed() > Duration::from_millis(500);
    let mut expected = Vec::new();
    for round in 0..40 {
        let site = (round * 7) % 3;
        let group = [format!("w{round}"), format!("x{round}")];
        let group: Vec<&str> = group[..1 + round % 2].iter().map(String::as_str).collect();
        let start = sites[site].append(&encode(&group)).expect("append");
        assert_eq!(start, Lsn(expected.len() as u64));
        expected.extend(group.iter().map(|word| (*word).to_owned()));
        // Durable when it returns, and the files have nothing of it.
        assert_eq!(log.durable(), Lsn(expected.len() as u64));
        assert_eq!(log.filled(), log.durable());
        assert!(log.copied() == Lsn(0) || may_be_copied());
    }
    let status = log.nvram_status().expect("a nvram");
    let entries = status.rings.iter().map(|ring| ring.entries).sum::<u64>();
    assert!((status.records_waiting, entries) == (expected.len() as u64, 40) || may_be_copied());
    // A reader has them copied first.
    assert_eq!(words(log.reader(Lsn(0)).expect("read")), expected);
    assert_eq!(log.copied(), log.durable());
    let status = log.nvram_status().expect("a nvram");
    assert!(status.records_waiting == 0 && status.rings.iter().all(|ring| ring.entries == 0 && ring.bytes == 0));
    sites[1].append(&encode(&["last"])).expect("append");
    expected.push("last".into());
    log.close().expect("close");
    assert_eq!(words_on(&disk), expected);
    let refused = sites[0].append(&encode(&["late"])).expect_err("it is closed");
    assert!(
        matches!(
            refused,
            LogError::Unavailable {
                kind: UnavailableKind::Closed,
                ..
            }
        ),
        "{refused}"
    );
}

#[test]
fn entries_for_a_sender_are_copied_at_once() {
    const ROUNDS: u64 = 20;
    let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
    let log = fronted(&disk, &memory, 2, u64::MAX);
    let mut sites = appenders(&log, 2);
    sites[0].append(&encode(&["before"])).expect("append");
    let followings = [log.follow(), log.follow()].map(|following| following.expect("a nvram"));
    let began = Instant::now();
    for round in 0..ROUNDS {
        sites[round as usize % 2].append(&encode(&["w"])).expect("append");
        while log.copied() < log.durable() {
            thread::sleep(Duration::from_micros(100));
        }
    }
    // Left alone, each would have waited for a second.
    assert!(
        began.elapsed() < Duration::from_secs(ROUNDS / 2),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(log.copied(), Lsn(ROUNDS + 1));
    drop(followings);
    let began = Instant::now();
    sites[1].append(&encode(&["after"])).expect("append");
    thread::sleep(Duration::from_millis(50));
    assert!(log.copied() < log.durable() || began.elapsed() > Duration::from_millis(500));
    log.close().expect("close");
}

#[test]
fn a_ring_that_gets_full_is_copied_and_gone_around() {
    let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
    let log = fronted(&disk, &memory, 2, 10);
    let mut sites = appenders(&log, 2);
    let count = 2_000;
    thread::scope(|scope| {
        for (site, appender) in sites.iter_mut().enumerate() {
            scope.spawn(move || {
                for n in 0..count {
                    let word = format!("s{site}n{n}*{}", (n * 37) % 900);
                    appender.append(&encode(&[&word])).expect("append");
                }
            });
        }
    });
    assert_eq!(log.durable(), Lsn(2 * count));
    log.close().expect("close");
    let found = words_on(&disk);
    for site in 0..2 {
        let own: Vec<_> = found
            .iter()
            .filter(|word| word.starts_with(&format!("s{site}")))
            .collect();
        assert_eq!(own.len() as u64, count);
        for (n, word) in own.into_iter().enumerate() {
            assert_eq!(*word, format!("s{site}n{n}*{}", (n * 37) % 900));
        }
    }
}

#[test]
fn a_full_ring_waits_for_the_disk_and_then_refuses() {
    let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
    let mut short = config();
    short.append_wait_max = Duration::from_millis(50);
    let (log, _, _) = open_with(&disk, short).expect("open");
    log.attach_nvram(region(&memory, 1), front_config(u64::MAX))
        .expect("a nvram");
    let mut site = log.nvram_appender(0).expect("a nvram");
    disk.set_faults(FaultPlan {
        capacity_bytes: Some(disk.used_bytes()),
        ..FaultPlan::default()
    });
    let mut taken = 0;
    let refused = loop {
        match site.append(&encode(&[&format!("w{taken}*500")])) {
            Ok(start) => assert_eq!(start, Lsn(taken)),
            Err(error) => break error,
        }
        taken += 1;
        assert!(taken <= u64::from(ENTRIES) * 40, "the disk has no room for so many");
    };
    assert!(matches!(refused, LogError::Unavailable { .. }), "{refused}");
    assert_eq!(log.durable(), Lsn(taken), "what was refused has no number");
    // There is room again: all that was taken gets there, in order, and more is taken.
    disk.set_faults(FaultPlan::default());
    let began = std::time::Instant::now();
    while let Err(error) = site.append(&encode(&["again"])) {
        assert!(began.elapsed() < WAIT_MAX, "{error}");
        thread::sleep(Duration::from_millis(5));
    }
    log.close().expect("close");
    let expected: Vec<_> = (0..taken)
        .map(|n| format!("w{n}*500"))
        .chain(["again".to_owned()])
        .collect();
    assert_eq!(words_on(&disk), expected);
}

/// A log whose works step only while a thread waits.
fn open_stepped(disk: &SimDisk, config: LogConfig) -> (Log<String>, Stepper) {
    let clock = Arc::new(SimClock::at_us(0));
    let stepper = Stepper::new(7, clock.clone());
    let no_callback = Box::new(|_: Lsn, _: Result<(), &LogError>, _: String| {});
    let (disk, threads) = (Arc::new(disk.clone()), Arc::new(stepper.clone()));
    let (log, _) = Log::open_on(disk, clock, threads, config, no_callback).expect("open");
    (log, stepper)
}

/// The room ends in the middle of a transaction: it goes to the ring as a whole, or not at all. The copier takes no step before a ring is full.
#[test]
fn a_ring_that_is_full_before_a_commit_keeps_what_was_told() {
    let mut whole_in_all = 0;
    for (flush, rows) in [
        (FlushPolicy::OnInsert, 100),
        (FlushPolicy::OnInsertFence, 100),
        (FlushPolicy::OnInsert, 3_000),
    ] {
        let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
        let mut short = config();
        short.append_wait_max = Duration::from_millis(50);
        let (log, stepper) = open_stepped(&disk, short);
        let nvram = NvramBufferConfig {
            flush,
            ..front_config(u64::MAX)
        };
        log.attach_nvram(region(&memory, 1), nvram).expect("a nvram");
        let mut site = log.nvram_appender(0).expect("a nvram");
        let mut objects = site.objects().expect("on insert");
        disk.set_faults(FaultPlan {
            capacity_bytes: Some(disk.used_bytes()),
            ..FaultPlan::default()
        });
        let (mut expected, mut whole) = (Vec::new(), 0);
        loop {
            let number = expected.len() as u64;
            let (appended, word, has_room) = append_changes(&mut site, &mut objects, number, rows);
            whole += u64::from(!has_room);
            match appended {
                Ok(start) => assert_eq!(start, Lsn(number)),
                Err(error) => {
                    assert!(matches!(error, LogError::Unavailable { .. }), "{error}");
                    break;
                }
            }
            expected.push(word);
            assert!(expected.len() < 10_000, "the disk has no room for so many");
        }
        whole_in_all += whole;
        assert!(expected.len() >= 3, "{flush:?}, {rows} rows: {}", expected.len());
        assert_eq!(
            log.durable(),
            Lsn(expected.len() as u64),
            "what was refused has no number"
        );
        assert_eq!(
            opened(&disk.crash(&CrashPolicy::LoseAll), memory.image(|| false)),
            expected
        );
        // There is room again: all that was taken gets there, in order, and more is taken.
        disk.set_faults(FaultPlan::default());
        loop {
            let number = expected.len() as u64;
            let (appended, word, _) = append_changes(&mut site, &mut objects, number, rows);
            if appended.is_ok() {
                break expected.push(word);
            }
            stepper.help();
        }
        log.close().expect("close");
        assert_eq!(words_on(&disk), expected, "{flush:?}, {rows} rows");
    }
    assert!(whole_in_all > 0, "all found room before their commits");
}

#[test]
fn records_that_no_ring_takes_are_refused_and_leave_nothing() {
    let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
    let log = fronted(&disk, &memory, 2, u64::MAX);
    let mut site = appenders(&log, 2).remove(0);
    let error = site
        .append(&encode(&["huge*200000"]))
        .expect_err("more than a quarter of a ring");
    assert!(
        matches!(error, LogError::TooLong { max, .. } if max > 100_000),
        "{error}"
    );
    assert_eq!(site.append(&encode(&["small"])).expect("append"), Lsn(0));
    log.close().expect("close");
    assert_eq!(words_on(&disk), ["small"]);
}

#[test]
fn a_crash_wherever_it_comes_keeps_what_was_told() {
    let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
    let log = fronted(&disk, &memory, 2, u64::MAX);
    let mut sites = appenders(&log, 2);
    let mut expected = Vec::new();
    for n in 0..30 {
        let word = format!("w{n}");
        sites[n % 2].append(&encode(&[&word])).expect("append");
        expected.push(word);
        if n == 20 {
            log.wait_copied(Lsn(15), WAIT_MAX).expect("copied");
        }
        // The disk as it was before the copy, in its middle, behind it; the region as it is at the least.
        if n % 5 == 0 {
            let image = memory.image(|| false);
            assert_eq!(opened(&disk.crash(&CrashPolicy::LoseAll), image.clone()), expected);
            assert_eq!(opened(&disk.crash(&CrashPolicy::KeepAll), image), expected);
        }
    }
}

#[test]
fn a_drain_that_a_crash_cuts_off_goes_on() {
    let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
    let log = fronted(&disk, &memory, 2, u64::MAX);
    let mut sites = appenders(&log, 2);
    let words: Vec<_> = (0..12).map(|n| format!("w{n}*3000")).collect();
    for (n, word) in words.iter().enumerate() {
        sites[n % 2].append(&encode(&[word])).expect("append");
    }
    let (image, left) = (memory.image(|| false), disk.crash(&CrashPolicy::LoseAll));
    let torn = left.copy();
    assert_eq!(opened(&torn, image.clone()), words);
    for ops in 0..=torn.ops_count() {
        for seed in 0..3 {
            let cut = torn.crash_image(ops, &CrashPolicy::Random(seed));
            assert_eq!(
                opened(&cut, image.clone()),
                words,
                "after {ops} operations, seed {seed}"
            );
        }
    }
}

#[test]
fn numbers_that_were_lost_are_void() {
    let disk = SimDisk::new();
    let (log, _, _) = open(&disk).expect("open");
    common::append(&log, &["first"]);
    close(log);
    let memory = Arc::new(RecordingMemory::new(REGION_BYTES));
    let mut rings = region(&memory, 2).rings(FlushPolicy::OnCommit);
    // Already on disk; 1 and 4 were taken by a site that did not live to persist them.
    for (ring, lsn, words) in [(0, 0, vec!["first"]), (1, 2, vec!["a", "b"]), (0, 5, vec!["c"])] {
        let records = encode(&words);
        let written = rings[ring].0.records(Lsn(lsn), records.count(), records.bytes(), &[]);
        written.expect("there is room");
        rings[ring].0.persist();
    }
    let expected = ["first", "void", "a", "b", "void", "c"];
    for _ in 0..2 {
        assert_eq!(opened(&disk, memory.image(|| false)), expected);
    }
}

/// More of them than are appended at once; and more than a region could have lost.
#[test]
fn many_lost_numbers_are_void_and_too_many_are_damage() {
    const LOST: usize = 600_000;
    let found = |lsn| {
        let memory = Arc::new(RecordingMemory::new(4 << 20));
        let mut rings = region(&memory, 1).rings(FlushPolicy::OnCommit);
        let written = rings[0].0.records(Lsn(lsn), 1, encode(&["a"]).bytes(), &[]);
        written.expect("there is room");
        rings[0].0.persist();
        memory.image(|| false)
    };
    let words = opened(&SimDisk::new(), found(LOST as u64));
    assert_eq!(words.len(), LOST + 1);
    assert!(words[..LOST].iter().all(|word| word == "void") && words[LOST] == "a");
    let image = Arc::new(RecordingMemory::from_image(found(1 << 47)));
    let recovered = Region::open(image).expect("a region").expect("made").recover();
    let recovered = recovered.expect("whole");
    let (log, _, _) = open(&SimDisk::new()).expect("open");
    let shown = reprise_log::recovered_records(&recovered, Lsn(0), &mut |_| panic!("nothing is shown"));
    for refused in [log.drain(&recovered).map(drop), shown] {
        let error = refused.expect_err("refused").to_string();
        assert!(error.contains("it is damaged: 140737488355328 numbers"), "{error}");
    }
    assert_eq!(log.filled(), Lsn(0));
}

#[test]
fn a_region_that_does_not_go_with_the_log_is_refused() {
    let disk = SimDisk::new();
    let (log, _, _) = open(&disk).expect("open");
    common::append(&log, &["a", "b"]);
    for (lsn, bytes) in [(1, encode(&["b", "c"])), (2, encode(&["c", "d"]))] {
        let memory = Arc::new(RecordingMemory::new(REGION_BYTES));
        let mut rings = region(&memory, 1).rings(FlushPolicy::OnCommit);
        let count = if lsn == 2 { 3 } else { 2 };
        rings[0]
            .0
            .records(Lsn(lsn), count, bytes.bytes(), &[])
            .expect("there is room");
        rings[0].0.persist();
        let region = Region::open(memory).expect("a region").expect("made");
        let error = log.drain(&region.recover().expect("whole")).expect_err("refused");
        assert!(matches!(error, LogError::Region { .. }), "{error}");
        assert_eq!(log.filled(), Lsn(2));
    }
    // The files once had more than they have.
    let memory = Arc::new(RecordingMemory::new(REGION_BYTES));
    let region =
        Region::format(memory, Owner::default(), 1, ENTRIES, (Epoch::new(1, 0), Lsn(5))).expect("there is room");
    let error = log.drain(&region.recover().expect("whole")).expect_err("refused");
    assert!(error.to_string().contains("had everything before LSN 5"), "{error}");
}

/// Sites append until they are refused. All records that callers learned of lie before the end, and nothing behind it.
#[test]
fn a_primary_that_gives_its_place_away_ends_at_one_lsn_and_may_go_on_in_a_new_epoch() {
    let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
    let log = fronted(&disk, &memory, 3, 10);
    let mut sites = appenders(&log, 3);
    let mut told = 0;
    for round in 0..5 {
        let (end, ends) = thread::scope(|scope| {
            let appending = sites.iter_mut().map(|site| {
                scope.spawn(|| {
                    let mut end = 0;
                    loop {
                        match site.append(&encode(&["w", "x"])) {
                            Ok(start) => end = start.0 + 2,
                            Err(error) => return (end, error.to_string()),
                        }
                    }
                })
            });
            let appending: Vec<_> = appending.collect();
            thread::sleep(Duration::from_millis(5));
            let end = log.pause("it goes to s1").expect("paused");
            assert_eq!(log.filled(), end);
            let ends: Vec<_> = appending
                .into_iter()
                .map(|site| site.join().expect("it ends"))
                .collect();
            (end, ends)
        });
        assert!(
            ends.iter().all(|(_, error)| error.contains("it goes to s1")),
            "{ends:?}"
        );
        let last = ends.iter().map(|(last, _)| *last).max();
        assert_eq!(last.map(|last| last.max(told)), Some(end.0));
        told = end.0;
        log.wait_copied(end, WAIT_MAX).expect("copied");
        assert_eq!((log.durable(), log.copied(), log.filled()), (end, end, end));
        assert!(log.pause("again").is_err(), "it is paused");
        let epoch = log
            .resume((round % 2 == 0).then_some(Epoch::new(0, 0)))
            .expect("it goes on");
        assert_eq!(epoch, Epoch::new(2 + round / 2, 0), "round {round}");
    }
    sites[0].append(&encode(&["last"])).expect("append");
    let (image, left) = (memory.image(|| false), disk.crash(&CrashPolicy::LoseAll));
    assert_eq!(opened(&left, image).len() as u64, told + 1);
    assert_eq!(
        verify(&left).expect("verify").epoch,
        Epoch::new(4, 0),
        "it was appended under that"
    );
    log.close().expect("close");
}

/// An appender that waits for room is refused, and leaves nothing.
#[test]
fn a_primary_gives_its_place_away_while_its_rings_are_full() {
    let (disk, memory) = (SimDisk::new(), Arc::new(RecordingMemory::new(REGION_BYTES)));
    let log = fronted(&disk, &memory, 1, u64::MAX);
    let mut site = appenders(&log, 1).remove(0);
    disk.set_faults(FaultPlan {
        capacity_bytes: Some(disk.used_bytes()),
        ..FaultPlan::default()
    });
    let taken = std::sync::atomic::AtomicU64::new(0);
    thread::scope(|scope| {
        let refused = scope.spawn(|| {
            loop {
                match site.append(&encode(&["w*500"])) {
                    Ok(_) => taken.fetch_add(1, std::sync::atomic::Ordering::SeqCst),
                    Err(error) => return error.to_string(),
                };
            }
        });
        let mut before = 0;
        loop {
            thread::sleep(Duration::from_millis(100));
            let now = taken.load(std::sync::atomic::Ordering::SeqCst);
            if now == before && now > 0 {
                break;
            }
            before = now;
        }
        let end = log.pause("it goes to s1").expect("paused");
        let told = refused.join().expect("it ends");
        assert!(told.contains("it goes to s1") || told.contains("no space"), "{told}");
        assert_eq!(end, Lsn(taken.load(std::sync::atomic::Ordering::SeqCst)));
        assert!(
            log.wait_copied(end, Duration::from_millis(50)).is_err(),
            "the disk is full"
        );
        disk.set_faults(FaultPlan::default());
        log.wait_copied(end, WAIT_MAX).expect("there is room again");
    });
    log.close().expect("close");
    assert_eq!(words_on(&disk).len() as u64, taken.into_inner());
}
