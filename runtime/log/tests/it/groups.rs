//! Groups that a primary's log hands out and a standby's takes: the same records under the same numbers, or nothing.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    KeepAll, Kept, WAIT_MAX, append, encode, open, open_with, segments, standby_config, words_in, words_on,
};
use reprise_base::{Epoch, Lsn};
use reprise_env::{
    SimDisk,
    sim::{CrashPolicy, FaultPlan},
};
use reprise_log::{
    AppendError, AppendOutcome, EpochStart, Group, Log, LogConfig, LogError, LogOutline, Position, UnavailableKind,
    verify,
};
use reprise_wire::History;

fn standby(disk: &SimDisk) -> Log<String> {
    open_with(disk, standby_config()).expect("open").0
}

/// Groups of a primary that was opened several times, its words, and its disk.
fn primary(openings: usize) -> (SimDisk, Vec<Kept>, Vec<String>) {
    let (disk, sink) = (SimDisk::new(), Arc::new(KeepAll::default()));
    for opening in 0..openings {
        let (log, _, _) = open(&disk).expect("open");
        log.add_sink(sink.clone());
        append(&log, &[&format!("a{opening}")]);
        append(&log, &["b", &format!("c{opening}*5000"), "d"]);
        append(&log, &["e*2000"]);
        log.close().expect("close");
    }
    let groups = sink.0.lock().expect("test").clone();
    let words = words_on(&disk);
    (disk, groups, words)
}

fn place_all(log: &Log<String>, groups: &[Kept]) {
    for group in groups {
        assert_eq!(log.group_appender().append(&group.get()), Ok(AppendOutcome::New));
    }
    let end = groups.last().expect("some").end;
    assert!(log.wait_durable(end.lsn, WAIT_MAX));
    assert_eq!(log.received(), Some(end));
}

#[test]
fn sinks_get_every_group_in_order_and_nothing_else() {
    let (disk, groups, words) = primary(3);
    let mut before = Position::default();
    for group in &groups {
        assert_eq!(group.first, before.lsn);
        assert_eq!(group.end.history, before.history.then(&group.records));
        assert!(!before.epoch.is_after(group.end.epoch));
        before = group.end;
    }
    assert_eq!(before.lsn, Lsn(words.len() as u64));
    let epochs: Vec<_> = groups.iter().map(|group| group.end.epoch.count()).collect();
    assert_eq!(epochs, [1, 1, 1, 2, 2, 2, 3, 3, 3]);
    // The history can be looked up, behind each group and within one.
    let (log, _, _) = open(&disk).expect("open");
    for group in &groups {
        assert_eq!(log.history_at(group.end.lsn), Ok(Some(group.end.history)));
    }
    let [first, second] = [&groups[0], &groups[1]];
    let b = encode(&["b"]);
    let within = log.history_at(Lsn(second.first.0 + 1));
    assert_eq!(within, Ok(Some(first.end.history.then(b.bytes()))));
    assert_eq!(log.history_at(Lsn(before.lsn.0 + 1)), Ok(None));
}

#[test]
fn a_standby_holds_what_its_primary_does_in_files_of_its_own() {
    let (disk, groups, words) = primary(3);
    let own = SimDisk::new();
    // Its files may be of another length, and it may be stopped at any time.
    for part in groups.chunks(2) {
        let config = LogConfig {
            segment_bytes: 32 << 10,
            ..standby_config()
        };
        let (log, report, _) = open_with(&own, config).expect("open");
        assert!(report.epoch.count() <= 3);
        place_all(&log, part);
        log.close().expect("close");
    }
    assert_eq!(words_on(&own), words);
    assert_ne!(segments(&own), segments(&disk));
    let report = verify(&own).expect("verify");
    assert_eq!((report.damage, report.epoch), (None, Epoch::new(3, 0)));
    let log = standby(&own);
    let end = groups.last().expect("some").end;
    assert_eq!(log.received(), Some(end));
    assert_eq!((log.durable(), log.epoch()), (end.lsn, Epoch::new(3, 0)));
    assert_eq!(log.history_at(groups[4].end.lsn), Ok(Some(groups[4].end.history)));
}

#[test]
fn appended_group_becomes_durable_without_a_waiter() {
    let (_, groups, _) = primary(2);
    let log = standby(&SimDisk::new());
    for group in &groups {
        assert_eq!(log.group_appender().append(&group.get()), Ok(AppendOutcome::New));
        let until = Instant::now() + WAIT_MAX;
        // The test does not call `wait_durable`, which would hurry the flusher.
        while log.durable() < group.end.lsn {
            assert!(Instant::now() < until, "the flusher keeps it");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn group_that_does_not_follow_is_refused_and_changes_nothing() {
    let (_, groups, words) = primary(2);
    let own = SimDisk::new();
    let log = standby(&own);
    place_all(&log, &groups[..4]);
    let group_appender = log.group_appender();
    // Again is nothing new.
    for group in &groups[..4] {
        let placed = group_appender.append(&group.get());
        match group.end.epoch == Epoch::new(2, 0) {
            true => assert_eq!(placed, Ok(AppendOutcome::Known)),
            false => assert!(matches!(placed, Err(AppendError::OldEpoch { .. })), "{placed:?}"),
        }
    }
    let good = groups[4].get();
    let flipped = {
        let mut records = good.records.to_vec();
        records[7] ^= 1;
        records
    };
    let with_end = |end: Position| Group { end, ..good };
    let refused = [
        (groups[5].get(), "does not follow LSN"),
        (
            Group {
                first: Lsn(good.first.0 - 1),
                ..good
            },
            "does not follow LSN",
        ),
        (
            Group {
                records: &flipped,
                ..good
            },
            "are not those that were sent",
        ),
        (
            Group {
                records: &good.records[..good.records.len() - 1],
                ..good
            },
            "are not those that were sent",
        ),
        (
            with_end(Position {
                history: History(good.end.history.0 ^ 1),
                ..good.end
            }),
            "are not those that were sent",
        ),
        (
            with_end(Position {
                epoch: Epoch::new(1, 0),
                ..good.end
            }),
            "was deposed",
        ),
        (
            with_end(Position {
                lsn: Lsn(good.end.lsn.0 + 1),
                ..good.end
            }),
            "and tells of",
        ),
    ];
    for (group, what) in refused {
        let error = group_appender.append(&group).expect_err("refused");
        assert!(error.to_string().contains(what), "{error}");
    }
    // Bytes that are no records, though their checksum is right.
    let (noise, before) = ([0xff; 20], groups[3].end);
    let error = group_appender.append(&Group {
        records: &noise,
        end: Position {
            history: before.history.then(&noise),
            ..good.end
        },
        ..good
    });
    assert!(matches!(error, Err(AppendError::Malformed { .. })), "{error:?}");
    assert_eq!(log.received(), Some(before));
    place_all(&log, &groups[4..]);
    log.close().expect("close");
    assert_eq!(words_on(&own), words);
}

#[test]
fn a_standby_takes_no_appends_until_it_is_promoted() {
    let (_, groups, words) = primary(1);
    let own = SimDisk::new();
    let log = standby(&own);
    place_all(&log, &groups);
    let (refused, given_back) = log
        .appender()
        .append(&encode(&["x"]), Some("x".into()))
        .expect_err("refused");
    assert!(refused.to_string().contains("standby"), "{refused}");
    assert_eq!(given_back.as_deref(), Some("x"));
    assert!(log.refusal().is_some());
    assert_eq!(log.promote(Epoch::new(2, 0)), Ok(Some(Epoch::new(2, 0))));
    assert_eq!(
        (log.promote(Epoch::new(5, 0)), log.received(), log.refusal()),
        (Ok(None), None, None)
    );
    append(&log, &["own"]);
    let late = log.group_appender().append(&groups[0].get());
    assert!(
        matches!(late, Err(AppendError::Log(LogError::Unavailable { .. }))),
        "{late:?}"
    );
    log.close().expect("close");
    assert_eq!(words_on(&own), [&words[..], &["own".to_owned()]].concat());
    assert_eq!(verify(&own).expect("verify").epoch, Epoch::new(2, 0));
    // A log that has seen the new primary refuses the old primary's records of the epoch before.
    let log = standby(&own);
    let late = log.group_appender().append(&groups[2].get());
    assert!(matches!(late, Err(AppendError::OldEpoch { .. })), "{late:?}");
}

#[test]
fn group_that_others_have_is_not_taken_back() {
    let disk = SimDisk::new();
    let (log, _, told) = open(&disk).expect("open");
    let sink = Arc::new(KeepAll::default());
    log.add_sink(sink.clone());
    append(&log, &["a"]);
    let until = Instant::now() + WAIT_MAX;
    use reprise_env::Disk;
    // The preparer has its own writes.
    while disk.crash(&CrashPolicy::LoseAll).list().expect("list").len() < 2 {
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(1));
    }
    disk.set_faults(FaultPlan {
        sync_error_in: Some(0),
        fails_once: true,
        ..FaultPlan::default()
    });
    log.appender()
        .append(&encode(&["b"]), Some("b".into()))
        .map_err(|e| e.0)
        .expect("taken");
    while told.lock().expect("test").len() < 2 {
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(1));
    }
    let outcome = told.lock().expect("test")[1].0.clone().expect_err("not durable");
    let is_doubtful = matches!(
        outcome,
        LogError::Unavailable {
            kind: UnavailableKind::Doubtful,
            ..
        }
    );
    assert!(is_doubtful, "{outcome}");
    assert_eq!(sink.0.lock().expect("test").len(), 2);
    drop(log);
    // The block was not erased: the part that the disk kept is there.
    assert_eq!(words_on(&disk), ["a", "b"]);
    let (log, _, _) = open(&disk).expect("open");
    assert_eq!(words_in(&mut log.reader(Lsn(0)).expect("reader")), ["a", "b"]);
}

/// The words before an LSN, whichever process wrote them.
fn first_words(words: &[String], lsn: u64) -> Vec<String> {
    words[..lsn as usize].to_vec()
}

#[test]
fn a_log_is_cut_behind_any_record_and_goes_on_from_there() {
    let (disk, groups, words) = primary(3);
    let all: Arc<dyn reprise_env::Disk> = Arc::new(disk.copy());
    let outline = LogOutline::of(&all).expect("read").expect("a log");
    let last = groups.last().expect("some");
    assert_eq!(outline.end, last.end);
    // Every third group begins an epoch.
    let starts = groups.iter().step_by(3).map(|group| EpochStart {
        epoch: group.end.epoch,
        start: group.first,
        history: outline.history_at(group.first).expect("read").expect("held"),
    });
    assert_eq!(outline.epochs(), starts.collect::<Vec<_>>());
    assert_eq!(outline.history_at(last.end.lsn), Ok(Some(last.end.history)));
    assert_eq!(outline.history_at(Lsn(last.end.lsn.0 + 1)), Ok(None));
    for lsn in 1..=words.len() as u64 {
        let disk = disk.copy();
        let shared: Arc<dyn reprise_env::Disk> = Arc::new(disk.clone());
        let outline = LogOutline::of(&shared).expect("read").expect("a log");
        let history = outline.history_at(Lsn(lsn)).expect("read").expect("held");
        // The part that was rewound can be read by itself.
        let kept = SimDisk::new();
        if lsn < words.len() as u64 {
            let copy = outline.copy_from(Lsn(lsn), &kept).expect("copied");
            assert!(copy.start <= Lsn(lsn) && copy.end == outline.end.lsn, "{copy:?}");
        }
        outline.rewind_to(Lsn(lsn)).expect("cut");
        assert_eq!(words_on(&disk), first_words(&words, lsn), "before {lsn}");
        let log = standby(&disk);
        let position = log.received().expect("a standby's");
        assert_eq!((position.lsn, position.history), (Lsn(lsn), history));
        // The standby takes the rest again, or another one.
        for group in groups.iter().filter(|group| group.first >= Lsn(lsn)) {
            assert!(matches!(
                log.group_appender().append(&group.get()),
                Ok(_) | Err(AppendError::Gap { .. })
            ));
        }
        log.close().expect("close");
    }
}

#[test]
fn a_cut_that_is_interrupted_leaves_a_whole_log() {
    let (disk, _, words) = primary(3);
    let disk = disk.copy();
    let before = disk.ops_count();
    let shared: Arc<dyn reprise_env::Disk> = Arc::new(disk.clone());
    let cut = |shared: &Arc<dyn reprise_env::Disk>| {
        let outline = LogOutline::of(shared).expect("read").expect("a log");
        outline.rewind_to(Lsn(3)).expect("cut");
    };
    cut(&shared);
    for ops in before..=disk.ops_count() {
        for policy in [
            CrashPolicy::LoseAll,
            CrashPolicy::KeepAll,
            CrashPolicy::Random(ops as u64),
        ] {
            let image = disk.crash_image(ops, &policy);
            let left = words_on(&image);
            assert!(left.len() >= 3 && left[..] == words[..left.len()], "{ops}: {left:?}");
            cut(&(Arc::new(image.clone()) as Arc<dyn reprise_env::Disk>));
            assert_eq!(words_on(&image), first_words(&words, 3), "{ops}");
        }
    }
}

/// A primary may begin an epoch and write no record of it. A standby then takes those of another epoch of that count, whichever writer is greater.
#[test]
fn epochs_of_one_count_follow_each_other() {
    let (_, groups, _) = primary(1);
    let own = SimDisk::new();
    let log = standby(&own);
    for (kept, writer) in groups.iter().zip([9, 3, 3]) {
        let mut group = kept.get();
        group.end.epoch = Epoch::new(1, writer);
        assert_eq!(log.group_appender().append(&group), Ok(AppendOutcome::New));
        assert!(log.wait_durable(group.end.lsn, WAIT_MAX));
    }
    log.close().expect("close");
    let reopened = standby(&own);
    let writers: Vec<_> = reopened.epochs().iter().map(|start| start.epoch.writer()).collect();
    assert_eq!(writers, [9, 3]);
    reopened.close().expect("close");
}

#[test]
fn no_epoch_is_later_than_the_last_one() {
    let (_, groups, _) = primary(1);
    let own = SimDisk::new();
    let log = standby(&own);
    let mut group = groups[0].get();
    group.end.epoch = Epoch::new(u32::MAX, 9);
    assert_eq!(log.group_appender().append(&group), Ok(AppendOutcome::New));
    let promoted = log.promote(Epoch::new(2, 3));
    assert!(matches!(promoted, Err(LogError::Unavailable { .. })), "{promoted:?}");
    log.close().expect("close");
    standby(&own).close().expect("it opens all the same");
}
