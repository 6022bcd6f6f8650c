//! Whole blocks read into the caller's memory: the same records as block by block, whatever room there is.

use std::sync::Arc;

use crate::common::{WAIT_MAX, append, encode, open, segments, word};
use reprise_base::{Lsn, PartitionId, TxnId};
use reprise_env::SimDisk;
use reprise_log::{LogError, LogReader, StretchEnd};
use reprise_wire::{ChangesRef, PartitionSet, RecordBatch, RecordRef, Records, RemoveRef};

/// Blocks of many sizes over several segments; one of each is larger than small rooms.
fn written() -> SimDisk {
    let disk = SimDisk::new();
    let (log, _, _) = open(&disk).expect("open new log");
    for number in 0..40 {
        let word = format!("w{number}*{}", number * 97 % 4_000);
        append(&log, &[&word, "a", "b"]);
    }
    log.close().expect("close");
    disk
}

fn reader(disk: &SimDisk) -> LogReader {
    LogReader::open(Arc::new(disk.clone()), Lsn(0)).expect("scan").0
}

/// Positions and words of a block.
fn told(lsn: Lsn, records: &[u8]) -> (u64, Vec<String>) {
    let words = Records::new(records).map(|record| word(&record.expect("a record").1));
    (lsn.0, words.collect())
}

fn block_by_block(disk: &SimDisk) -> Vec<(u64, Vec<String>)> {
    let (mut reader, mut blocks) = (reader(disk), Vec::new());
    while let Some(block) = reader.next_block().expect("read") {
        blocks.push(told(block.lsn, block.records));
    }
    blocks
}

#[test]
fn stretches_are_what_blocks_are() {
    let disk = written();
    assert!(segments(&disk).len() > 2);
    let expected = block_by_block(&disk);
    for room in [512, 1_536, 6_144, 1 << 20] {
        let (mut reader, mut buffer, mut found) = (reader(&disk), Vec::new(), Vec::new());
        let mut largest = 0;
        loop {
            let mut blocks = Vec::new();
            let end = reader.read_blocks(&mut buffer, room, |block| {
                blocks.push((block.place.clone(), block.records.to_vec()));
                found.push(told(block.lsn, block.records));
                assert_eq!(block.changes, None);
                true
            });
            largest = largest.max(blocks.len());
            for (place, records) in blocks {
                assert_eq!(buffer[place], records);
            }
            if end.expect("read") == StretchEnd::Log {
                break;
            }
        }
        assert_eq!(found, expected, "{room} bytes of room");
        assert!(largest > 1 || room == 512, "{room} bytes of room");
        assert_eq!(reader.position(), reader.end());
    }
}

#[test]
fn refused_stretch_is_next() {
    let disk = written();
    let expected = block_by_block(&disk);
    let (mut reader, mut buffer, mut found) = (reader(&disk), Vec::new(), Vec::new());
    for turn in 0.. {
        let mut left = turn % 4;
        let end = reader.read_blocks(&mut buffer, 1 << 20, |block| {
            left -= 1;
            if left >= 0 {
                found.push(told(block.lsn, block.records));
            }
            left >= 0
        });
        if end.expect("read") == StretchEnd::Log {
            break;
        }
        if let Some(block) = reader.next_block().expect("read") {
            found.push(told(block.lsn, block.records));
        }
    }
    assert_eq!(found, expected);
}

#[test]
fn damage_is_told_as_by_blocks() {
    for (offset, bit) in [(700, 1), (5_000, 4), (9_001, 0x80)] {
        let disk = written();
        let mut blocks = reader(&disk);
        let mut stretches = reader(&disk);
        let name = segments(&disk)[1].clone();
        disk.damage(&name, |bytes| bytes[offset] ^= bit);
        let expected = loop {
            match blocks.next_block() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("damage is found"),
                Err(error) => break error,
            }
        };
        let mut buffer = Vec::new();
        let error = loop {
            match stretches.read_blocks(&mut buffer, 1 << 20, |_| true) {
                Ok(StretchEnd::Log) => panic!("damage is found"),
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(error, LogError::Corrupt(_)), "{error}");
        assert_eq!(error, expected);
        assert_eq!(stretches.position(), blocks.position());
    }
}

/// `count` changes of nothing.
fn changes(count: usize) -> RecordBatch {
    let mut records = RecordBatch::default();
    for number in 0..count {
        let changes = ChangesRef {
            module_id: 1,
            procedure: 1,
            ..ChangesRef::new(TxnId::new(number as u64, 0), PartitionSet::One(PartitionId(0)), &[])
        };
        records.push_changes(&changes);
    }
    records
}

#[test]
fn blocks_of_changes_alone_are_known_from_the_opening() {
    let disk = SimDisk::new();
    let (log, _, _) = open(&disk).expect("open new log");
    let put = |records: &RecordBatch| {
        let start = log.appender().append(records, None);
        let start = start.map_err(|error| error.0).expect("append");
        assert!(log.wait_durable(Lsn(start.0 + u64::from(records.count())), WAIT_MAX));
    };
    let word = encode(&["word"]);
    let remove = RecordRef::Remove(RemoveRef {
        txn_id: TxnId::new(0, 0),
        name: "word",
        destroyed: Default::default(),
    });
    let mut expected = Vec::new();
    for turn in 1..60 {
        put(&changes(turn));
        expected.push(Some(turn as u32));
        if turn % 3 == 0 {
            put(&word);
            let mut mixed = changes(turn);
            mixed.push(&remove);
            put(&mixed);
            expected.extend([None, None]);
        }
    }
    log.close().expect("close");
    let (mut reader, mut buffer, mut found) = (reader(&disk), Vec::new(), Vec::new());
    let end = loop {
        let end = reader.read_blocks(&mut buffer, 1 << 20, |block| {
            found.push(block.changes);
            true
        });
        match end.expect("read") {
            StretchEnd::Full => {}
            end => break end,
        }
    };
    assert_eq!((end, found), (StretchEnd::Log, expected));
}
