//! Every crash of a checkpoint, and every damaged byte: the set before it or the one with it, never half of one.

use std::sync::Arc;

use proptest::prelude::*;
use reprise_base::{Lsn, PartitionId, TxnId};
use reprise_checkpoint::{CheckpointError, CheckpointReader, Checkpoints, checkpoint_name};
use reprise_env::{SimDisk, sim::CrashPolicy};
use reprise_wire::{
    CHECKPOINT_TRAILER_BYTES, CheckpointBlockKind as Kind, CheckpointDatabase, CheckpointFormerRef, CheckpointHeader,
    CheckpointKeyRef, CheckpointModuleRef, CheckpointPartition, CheckpointRows, CheckpointTrailer, Genesis,
    INDEX_BLOCK_ENTRIES, push_checkpoint_row,
};

const ID: [u8; 16] = *b"a test database!";

fn files(disk: &SimDisk) -> Checkpoints {
    Checkpoints::new(Arc::new(disk.clone()))
}

/// Writes a checkpoint of two partitions and one table with `rows` rows per partition.
fn write(files: &Checkpoints, lsn: u64, rows: u32) -> Result<(), CheckpointError> {
    write_in(files, lsn, rows, rows.max(1))
}

/// Writes it with `rows_a_block` rows in each block.
fn write_in(files: &Checkpoints, lsn: u64, rows: u32, rows_a_block: u32) -> Result<(), CheckpointError> {
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
        origins: &[],
        wasm_bytes: 4,
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
        for first in (0..rows).step_by(rows_a_block as usize) {
            let mut raw = Vec::new();
            let count = rows_a_block.min(rows - first);
            for row in first..first + count {
                push_checkpoint_row(&mut raw, format!("row {row} of {lsn}").as_bytes(), u64::from(row));
            }
            writer.block(Kind::Rows, partition, 0, count, &raw)?;
        }
    }
    let mut raw = Vec::new();
    CheckpointFormerRef {
        hash: [5; 32],
        wasm: b"\0asm of before",
    }
    .encode(&mut raw);
    writer.block(Kind::Former, none, 0, 1, &raw)?;
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

/// Returns all rows, decoded. Err: a part of the file differs from the written one.
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
    let bytes = |hash| reader.module_bytes(&[hash; 32]).expect("whole");
    assert_eq!(bytes(4).as_deref(), Some(&b"\0asm"[..]));
    assert_eq!(bytes(5).as_deref(), Some(&b"\0asm of before"[..]));
    assert_eq!(bytes(6), None);
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

#[test]
fn an_index_of_many_blocks_is_read_whole_or_refused_by_name() {
    let disk = SimDisk::new();
    let rows = INDEX_BLOCK_ENTRIES as u32;
    write_in(&files(&disk), 4096, rows, 1).expect("written");
    let reader = files(&disk).open(Lsn(4096)).expect("whole");
    assert!(
        reader.entries().len() > 2 * INDEX_BLOCK_ENTRIES,
        "three blocks of the index"
    );
    drop(reader);
    check_whole(&files(&disk), 4096, rows);

    let name = checkpoint_name(Lsn(4096));
    let whole = disk.bytes(&name).expect("a file");
    let end = whole.len() - CHECKPOINT_TRAILER_BYTES;
    let trailer = CheckpointTrailer::decode(&whole[end..]).expect("a trailer");
    let index = trailer.index_offset as usize;
    // Offsets of the index blocks: each head of 48 bytes says how many bytes follow it.
    let mut starts = vec![index];
    while let Some(at) = starts.last().filter(|at| **at < end).copied() {
        let stored = u32::from_le_bytes(whole[at + 36..at + 40].try_into().expect("4 bytes"));
        starts.push(at + 48 + stored as usize);
    }
    assert_eq!((starts.len(), starts[3]), (4, end));
    let refused = |index_offset: usize, before: &[u8]| {
        let trailer = CheckpointTrailer {
            index_offset: index_offset as u64,
            file_bytes: (before.len() + CHECKPOINT_TRAILER_BYTES) as u64,
            ..trailer
        };
        let bytes = [before, &trailer.encode()].concat();
        disk.damage(&name, |old| *old = bytes);
        let error = files(&disk).open(Lsn(4096)).expect_err("damaged");
        assert!(error.is_corrupt() && error.to_string().contains(&name), "{error}");
        error.to_string()
    };
    // Each block of the index left out, or none left.
    let first = [&whole[..index], &whole[starts[1]..end]].concat();
    assert!(refused(index, &first).contains("blocks before the index"));
    let middle = [&whole[..starts[1]], &whole[starts[2]..end]].concat();
    assert!(refused(index, &middle).contains("number of a block of the index"));
    assert!(refused(index, &whole[..starts[2]]).contains("blocks before the index"));
    assert!(refused(index, &whole[..index]).contains("block of the database"));
    // The index begins elsewhere.
    assert!(refused(starts[1], &whole[..end]).contains("blocks before the index"));
    assert!(refused(end + 1, &whole[..end]).contains("end of the index"));
    let before = refused(index - 1, &whole[..end]);
    assert!(before.contains("block magic"), "{before}");
    // The file ends in the middle of a block, or has bytes behind it.
    refused(index, &whole[..end - 1]);
    refused(index, &[&whole[..end], &[0; 8]].concat());
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
