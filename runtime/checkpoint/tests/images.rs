//! Every crash of a checkpoint, and every damaged byte: the set before it or the one with it, never half of one.

use std::sync::Arc;

use proptest::prelude::*;
use reprise_base::{Lsn, PartitionId, TxnId};
use reprise_checkpoint::{CheckpointError, CheckpointReader, Checkpoints, checkpoint_name};
use reprise_env::{SimDisk, sim::CrashPolicy};
use reprise_wire::{
    CheckpointBlockKind as Kind, CheckpointDatabase, CheckpointHeader, CheckpointKeyRef, CheckpointModuleRef,
    CheckpointPartition, CheckpointRows, Genesis, push_checkpoint_row,
};

const ID: [u8; 16] = *b"a test database!";

fn files(disk: &SimDisk) -> Checkpoints {
    Checkpoints::new(Arc::new(disk.clone()))
}

/// A checkpoint of two partitions and one table with so many rows a partition.
fn write(files: &Checkpoints, lsn: u64, rows: u32) -> Result<(), CheckpointError> {
    let header = CheckpointHeader {
        database_id: ID,
        lsn: Lsn(lsn),
        settings_hash: 7,
        txn_id: TxnId(9),
        memory_bytes: 0,
    };
    let mut writer = files.begin(header)?;
    let mut raw = Vec::new();
    CheckpointModuleRef {
        module_id: 0,
        version: 1,
        name: "bank",
        in_service: true,
        installed_by: TxnId(3),
        hash: [4; 32],
        migrations: b"\x05split",
        description: b"{}",
        wasm: b"\0asm",
    }
    .encode(&mut raw);
    let none = PartitionId(0);
    writer.block(Kind::Module, none, 0, 1, &raw)?;
    writer.block(Kind::Table, none, 0, 1, b"{\"a\":1}")?;
    for partition in [0, 1].map(PartitionId) {
        let mut raw = Vec::new();
        CheckpointPartition {
            last_tick: lsn,
            last_end: Lsn(lsn),
            tables: vec![(rows as u64, 0)],
        }
        .encode(&mut raw);
        writer.block(Kind::Partition, partition, 0, 1, &raw)?;
        let mut raw = Vec::new();
        for row in 0..rows {
            push_checkpoint_row(&mut raw, format!("row {row} of {lsn}").as_bytes(), u64::from(row));
        }
        writer.block(Kind::Rows, partition, 0, rows, &raw)?;
    }
    let mut raw = Vec::new();
    CheckpointKeyRef {
        key: b"k",
        scope: b"",
        fingerprint: 5,
        args_hash: 6,
        kept_us: 7,
        module_id: 0,
        procedure: 0,
        txn_id: TxnId(8),
        lsn: Lsn(1),
        partition: None,
        result: b"ok",
    }
    .encode(&mut raw);
    writer.block(Kind::Keys, none, 0, 1, &raw)?;
    let mut raw = Vec::new();
    CheckpointDatabase {
        genesis: Genesis {
            database_id: ID,
            secret: [1, 2],
            partitions: 2,
            created_us: 0,
        },
        multi_tick: 1,
        modules: 1,
        tables: 1,
        keys: 1,
        key_clock_us: 0,
    }
    .encode(&mut raw);
    writer.block(Kind::Database, none, 0, 1, &raw)?;
    let size = writer.finish()?;
    let back = writer.read_back()?;
    assert_eq!(back.check_stored(0, usize::MAX)?, back.entries().len());
    writer.publish()?;
    assert_eq!(size.rows, 2 * rows as u64);
    Ok(())
}

/// All rows, decoded. Err: something is not what was written.
fn read(reader: &CheckpointReader) -> Result<Vec<String>, CheckpointError> {
    let mut blocks = reader.blocks();
    let mut found = Vec::new();
    for (number, entry) in reader.entries().iter().enumerate() {
        let raw = blocks.read(number)?;
        if entry.kind == Kind::Rows {
            for row in CheckpointRows::new(raw) {
                let (row, _) = row.map_err(|error| reader.corrupt(entry, error))?;
                found.push(String::from_utf8_lossy(row).into_owned());
            }
        }
    }
    Ok(found)
}

fn check_whole(files: &Checkpoints, lsn: u64, rows: u32) {
    let reader = files.open(Lsn(lsn)).unwrap_or_else(|error| panic!("{error}"));
    reader.verify().expect("whole");
    let found = read(&reader).expect("whole");
    let expected = (0..rows).map(|row| format!("row {row} of {lsn}"));
    assert_eq!(found, expected.clone().chain(expected).collect::<Vec<_>>());
    assert_eq!(reader.database().keys, 1);
    assert_eq!(reader.modules()[0].get().wasm, b"\0asm");
}

#[test]
fn every_crash_leaves_the_set_before_or_the_one_with_it() {
    let disk = SimDisk::new();
    write(&files(&disk), 4096, 30).expect("written");
    let before = disk.ops_count();
    write(&files(&disk), 8192, 400).expect("written");
    files(&disk).remove(Lsn(4096)).expect("removed");
    let mut images = 0;
    for ops in before..=disk.ops_count() {
        let sectors = disk.unsynced_sectors(ops).unwrap_or(0).min(24);
        let torn = (0..=sectors).flat_map(|n| [CrashPolicy::TornAfter(n), CrashPolicy::TornBefore(n)]);
        let random = (0..8).map(CrashPolicy::Random);
        let whole = [CrashPolicy::LoseAll, CrashPolicy::KeepAll];
        for policy in whole.into_iter().chain(torn).chain(random) {
            let image = disk.crash_image(ops, &policy);
            let files = files(&image);
            files.clean().expect("cleaned");
            let stored = files.list().expect("listed");
            assert!(!stored.is_empty(), "after {ops}, {policy:?}: none is left");
            for lsn in stored {
                check_whole(&files, lsn.0, if lsn == Lsn(4096) { 30 } else { 400 });
            }
            // And the next one finds its way free.
            write(&files, 12_288, 3).expect("written");
            check_whole(&files, 12_288, 3);
            images += 1;
        }
    }
    println!("{images} images");
}

#[test]
fn a_checkpoint_given_up_leaves_nothing() {
    let disk = SimDisk::new();
    let header = CheckpointHeader {
        database_id: ID,
        lsn: Lsn(512),
        settings_hash: 0,
        txn_id: TxnId(1),
        memory_bytes: 0,
    };
    drop(files(&disk).begin(header).expect("begun"));
    assert_eq!(files(&disk).list(), Ok(vec![]));
    assert!(disk.bytes("checkpoint.tmp").is_none());
}

#[test]
fn every_flipped_bit_is_found() {
    let disk = SimDisk::new();
    write(&files(&disk), 4096, 20).expect("written");
    let name = checkpoint_name(Lsn(4096));
    let whole = disk.bytes(&name).expect("a file");
    for bit in 0..whole.len() * 8 {
        disk.damage(&name, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
        let found = files(&disk).open(Lsn(4096)).and_then(|reader| reader.verify());
        assert!(
            found.as_ref().is_err_and(CheckpointError::is_corrupt),
            "bit {bit} of {}: {found:?}",
            whole.len() * 8
        );
        disk.damage(&name, |bytes| bytes.copy_from_slice(&whole));
    }
    check_whole(&files(&disk), 4096, 20);
}

proptest! {
    /// Cut, lengthened or overwritten with anything: an error, never a panic.
    #[test]
    fn any_bytes_are_an_error_or_the_checkpoint(
        at in any::<prop::sample::Index>(),
        patch in proptest::collection::vec(any::<u8>(), 0..80),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let disk = SimDisk::new();
        write(&files(&disk), 4096, 20).expect("written");
        let name = checkpoint_name(Lsn(4096));
        let whole = disk.bytes(&name).expect("a file");
        let mut bytes = whole.clone();
        let at = at.index(bytes.len());
        let end = (at + patch.len()).min(bytes.len());
        bytes[at..end].copy_from_slice(&patch[..end - at]);
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        disk.damage(&name, |all| *all = bytes.clone());
        let found = files(&disk).open(Lsn(4096)).and_then(|reader| read(&reader).map(drop));
        prop_assert_eq!(found.is_ok(), bytes == whole);
    }
}
