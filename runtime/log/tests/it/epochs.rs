//! Epochs count the openings that write. The history names the written records, in whatever files they lie.

use crate::common::{append, close, encode, open, segments, words_on};
use reprise_base::{Epoch, Lsn};
use reprise_env::{SimDisk, sim::CrashPolicy};
use reprise_log::{LogError, verify};
use reprise_wire::{BlockHeader, BlockKind, History, SEGMENT_HEADER_BYTES, SegmentHeader};

fn header_of(disk: &SimDisk, name: &str) -> SegmentHeader {
    SegmentHeader::decode(&disk.bytes(name).expect("bytes")).expect("a segment")
}

fn set_header(disk: &SimDisk, name: &str, header: &SegmentHeader) {
    disk.damage(name, |bytes| {
        bytes[..SEGMENT_HEADER_BYTES].copy_from_slice(&header.encode())
    });
}

#[test]
fn each_opening_that_writes_is_an_epoch_and_no_segment_of_its_own() {
    let disk = SimDisk::new();
    let (log, report, _) = open(&disk).expect("open");
    assert_eq!((report.epoch, log.epoch()), (Epoch::new(1, 0), Epoch::new(1, 0)));
    append(&log, &["a"]);
    drop(log);
    // Neither of these writes anything.
    for _ in 0..2 {
        let (log, report, _) = open(&disk).expect("open");
        assert_eq!((report.epoch, report.found.epoch), (Epoch::new(2, 0), Epoch::new(1, 0)));
        drop(log);
    }
    let (log, _, _) = open(&disk).expect("open");
    append(&log, &["b"]);
    drop(log);
    let (log, report, _) = open(&disk).expect("open");
    assert_eq!((log.epoch(), report.found.epoch), (Epoch::new(3, 0), Epoch::new(2, 0)));
    drop(log);
    assert_eq!(segments(&disk).len(), 1);
    assert_eq!(words_on(&disk), ["a", "b"]);
}

/// A server that is not let be the primary after all changes nothing: what closes the log in order belongs to the epoch before.
#[test]
fn an_opening_that_writes_no_record_is_no_epoch() {
    let disk = SimDisk::new();
    let (log, _, _) = open(&disk).expect("open");
    append(&log, &["a"]);
    let disk = disk.crash(&CrashPolicy::LoseAll);
    drop(log);
    let (log, report, _) = open(&disk).expect("open");
    assert_eq!(
        (report.epoch, report.found.last_block),
        (Epoch::new(2, 0), Some(BlockKind::Data))
    );
    close(log);
    let (log, report, _) = open(&disk).expect("open");
    assert_eq!(
        (report.found.epoch, report.found.last_block),
        (Epoch::new(1, 0), Some(BlockKind::Close))
    );
    assert_eq!(log.epoch(), Epoch::new(2, 0));
    append(&log, &["b"]);
    drop(log);
    let found = verify(&disk).expect("verify");
    assert_eq!(
        (found.epoch, found.last_block),
        (Epoch::new(2, 0), Some(BlockKind::Close))
    );
}

#[test]
fn a_segment_tells_the_epoch_of_its_first_block_and_the_history_before_it() {
    let disk = SimDisk::new();
    let mut history = History::default();
    let mut histories = vec![(Lsn(0), history)];
    for round in 0..3 {
        let (log, _, _) = open(&disk).expect("open");
        for number in 0..6 {
            let words = [&*format!("r{round}_{number}*3000"), "next"];
            history = history.then(encode(&words).bytes());
            histories.push((append(&log, &words), history));
        }
        drop(log);
    }
    let names = segments(&disk);
    assert!(names.len() > 2, "{names:?}");
    for name in &names {
        let (bytes, header) = (disk.bytes(name).expect("bytes"), header_of(&disk, name));
        let (first, _) = BlockHeader::decode(&bytes[SEGMENT_HEADER_BYTES..]).expect("a block");
        assert_eq!(header.epoch, first.epoch);
        assert!(histories.contains(&(header.start, header.history)), "{header:?}");
    }
    assert!(
        header_of(&disk, names.last().expect("one"))
            .epoch
            .is_after(Epoch::new(1, 0))
    );
    // Records that are others than those it tells of, whole as they are.
    let last = names.last().expect("one");
    let own = header_of(&disk, last);
    for (other, what) in [
        (
            SegmentHeader {
                history: History(own.history.0 ^ 1),
                ..own
            },
            "the records before it",
        ),
        (
            SegmentHeader {
                epoch: Epoch::new(0, 0),
                ..own
            },
            "of epoch",
        ),
        (
            SegmentHeader {
                epoch: Epoch::new(9, 0),
                ..own
            },
            "epoch of the block",
        ),
    ] {
        let damaged = disk.copy();
        set_header(&damaged, last, &other);
        match open(&damaged).map(|(_, report, _)| report) {
            Err(LogError::Corrupt(damage)) => assert!(damage.what.contains(what), "{damage}"),
            other => panic!("{other:?}"),
        }
    }
}
