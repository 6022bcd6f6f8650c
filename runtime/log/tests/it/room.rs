//! Room for the next segment, on a small disk, and on a disk that makes no file for a while.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::common::{WAIT_MAX, append, config, encode, open_with, segments, words_on};
use reprise_base::Lsn;
use reprise_env::{
    Disk, DiskError, DiskErrorKind, DiskFile, DiskFilter, FilteredDisk, RealClock, SimDisk, sim::FaultPlan,
};
use reprise_log::{Log, LogConfig, LogError, UnavailableKind};

const MIB: u64 = 1 << 20;

fn wait_until(mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + WAIT_MAX;
    while !holds() {
        assert!(Instant::now() < until, "waited in vain");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The log wishes for a segment of 8 MiB behind its first one of 4 MiB.
fn large_segments() -> LogConfig {
    LogConfig {
        segment_bytes: 8 * MIB,
        ..config()
    }
}

fn with_capacity(bytes: u64) -> SimDisk {
    let disk = SimDisk::new();
    disk.set_faults(FaultPlan {
        capacity_bytes: Some(bytes),
        ..FaultPlan::default()
    });
    disk
}

#[test]
fn a_disk_of_less_than_two_segments_gives_small_ones_and_is_no_error() {
    let disk = with_capacity(7 * MIB);
    let (log, _, _) = open_with(&disk, large_segments()).expect("open");
    let mut words = Vec::new();
    for number in 0..45 {
        let word = format!("w{number}*100000");
        append(&log, &[&word]);
        assert_eq!((log.refusal(), log.trouble()), (None, None), "after {word}");
        words.push(word);
    }
    assert!(segments(&disk).len() > 1, "4.5 MB take more than the first segment");
    // The log refuses a record that the disk has no room for, and says why. It takes shorter ones.
    let long = log.appender().append(&encode(&["long*3000000"]), None);
    let kind = UnavailableKind::Full;
    assert!(
        matches!(&long, Err((LogError::Unavailable { kind: found, .. }, _)) if *found == kind),
        "{long:?}"
    );
    assert!(log.trouble().expect("says why").contains("no space"));
    for number in 45..50 {
        let word = format!("w{number}*100000");
        append(&log, &[&word]);
        words.push(word);
    }
    disk.set_faults(FaultPlan::default());
    wait_until(|| log.trouble().is_none());
    append(&log, &["long*3000000"]);
    words.push("long*3000000".into());
    log.close().expect("close");
    drop(log);
    assert_eq!(words_on(&disk), words);
}

/// A process without a descriptor left, while told so.
#[derive(Default)]
struct NoDescriptor(AtomicBool);

impl DiskFilter for NoDescriptor {
    fn create(&self, disk: &dyn Disk, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        match self.0.load(Ordering::Acquire) {
            true => Err(DiskError::new("create", name, DiskErrorKind::Io, "Too many open files")),
            false => disk.create(name),
        }
    }
}

/// Nothing of a segment was written if its file could not be made: it is made later, and the log continues without a restart.
#[test]
fn a_segment_whose_open_failed_is_opened_again() {
    let (disk, filter) = (SimDisk::new(), Arc::new(NoDescriptor::default()));
    let filtered = Arc::new(FilteredDisk::new(Arc::new(disk.clone()), filter.clone()));
    let no_callback = Box::new(|_: Lsn, _: Result<(), &LogError>, _: String| {});
    let (log, _) = Log::open(filtered, Arc::new(RealClock::new()), config(), no_callback).expect("open");
    filter.0.store(true, Ordering::Release);
    let mut words = Vec::new();
    let refused = loop {
        let word = format!("w{}*3000", words.len());
        match log.appender().append(&encode(&[&word]), None) {
            Ok(_) => words.push(word),
            Err((refused, _)) => break refused,
        }
        assert!(words.len() < 100, "no further segment can be made");
    };
    assert!(refused.to_string().contains("Too many open files"), "{refused}");
    assert!(log.trouble().is_some() && !log.is_stopped());
    filter.0.store(false, Ordering::Release);
    wait_until(|| log.refusal().is_none());
    append(&log, &["again"]);
    words.push("again".into());
    assert_eq!(log.trouble(), None);
    log.close().expect("close");
    drop(log);
    assert_eq!(words_on(&disk), words);
}
