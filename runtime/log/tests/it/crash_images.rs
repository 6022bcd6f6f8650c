//! Every crash of a scripted workload, at each operation, with each way of losing, tearing and reordering unsynced writes. The log opens
//! with every acknowledged record, in order, and no record by half.

use crate::common;
use crate::common::{append, encode, open, segments, words_in, words_on};
use proptest::prelude::*;
use reprise_base::Lsn;
use reprise_env::{
    SimDisk,
    sim::{CrashPolicy, SECTOR_BYTES},
};
use reprise_log::LogError;

/// Appends groups one by one; with each, the operations after which it counts as acknowledged.
fn run(disk: &SimDisk, groups: &[Vec<&str>], reopen_every: usize) -> Vec<usize> {
    let mut acknowledged = Vec::new();
    let mut log = open(disk).expect("open").0;
    for (number, group) in groups.iter().enumerate() {
        append(&log, group);
        acknowledged.push(disk.ops_count());
        if (number + 1) % reopen_every == 0 {
            drop(log);
            log = open(disk).expect("open again").0;
        }
    }
    acknowledged
}

fn policies(sectors: usize) -> Vec<CrashPolicy> {
    let torn = (0..=sectors).flat_map(|n| [CrashPolicy::TornAfter(n), CrashPolicy::TornBefore(n)]);
    let random = (0..6).map(CrashPolicy::Random);
    let whole = [CrashPolicy::LoseAll, CrashPolicy::KeepAll];
    whole.into_iter().chain(torn).chain(random).collect()
}

/// Opens an image and checks it against the model: a prefix of the groups, with all that was acknowledged.
fn check_image(image: &SimDisk, groups: &[Vec<&str>], acknowledged: usize, context: &str) {
    let (log, report, _) = open(image).unwrap_or_else(|error| panic!("{context}: {error}"));
    let words = words_in(&mut log.reader(Lsn(0)).expect("reader"));
    let mut rest = &words[..];
    let mut whole = 0;
    for group in groups {
        match rest.strip_prefix(&group.iter().map(ToString::to_string).collect::<Vec<_>>()[..]) {
            Some(after) => (rest, whole) = (after, whole + 1),
            None => break,
        }
    }
    assert!(rest.is_empty(), "{context}: {words:?} are not whole groups in order");
    assert!(
        whole >= acknowledged,
        "{context}: {whole} groups of {acknowledged} acknowledged"
    );
    // The log continues, and the next records come behind the found ones.
    append(&log, &["next"]);
    drop(log);
    let reread = words_on(image);
    assert_eq!(reread[..words.len()], words[..], "{context}");
    assert_eq!(reread[words.len()..], ["next"], "{context}");
    assert_eq!(report.found.damage, None);
}

fn check_every_crash(groups: &[Vec<&str>], reopen_every: usize) {
    let disk = SimDisk::new();
    let acknowledged = run(&disk, groups, reopen_every);
    let mut images = 0;
    for ops in 0..=disk.ops_count() {
        let count = acknowledged.iter().filter(|after| **after <= ops).count();
        for policy in policies(disk.unsynced_sectors(ops).unwrap_or(0).min(40)) {
            let context = format!("crash after operation {ops}, {policy:?}");
            check_image(&disk.crash_image(ops, &policy), groups, count, &context);
            images += 1;
        }
    }
    println!("{images} images");
}

#[test]
fn every_crash_of_a_log_with_several_segments() {
    let groups = [
        vec!["a"],
        vec!["b", "c*700", "d"],
        vec!["e*5000"],
        vec!["f*9000"],
        vec!["g"],
        vec!["h*9000"],
        vec!["i", "j"],
    ];
    check_every_crash(&groups, 3);
}

#[test]
fn a_second_crash_while_the_first_is_cut() {
    let disk = SimDisk::new();
    let groups = [vec!["a"], vec!["b*3000"]];
    run(&disk, &groups, 9);
    for ops in 0..=disk.ops_count() {
        let Some(sectors) = disk.unsynced_sectors(ops).filter(|sectors| *sectors < 20) else {
            continue;
        };
        for torn in 0..=sectors {
            let first = disk.crash_image(ops, &CrashPolicy::TornBefore(torn));
            let Ok((log, _, _)) = open(&first) else {
                panic!("first opening after {ops}")
            };
            drop(log);
            let kept = words_on(&first);
            for second in 0..=first.ops_count() {
                for seed in 0..3 {
                    let image = first.crash_image(second, &CrashPolicy::Random(seed));
                    let (log, _, _) = open(&image).expect("second opening");
                    assert_eq!(words_in(&mut log.reader(Lsn(0)).expect("reader")), kept);
                }
            }
        }
    }
}

/// Flips one bit after the other; the log is refused, or nothing acknowledged is missing.
#[test]
fn every_flipped_byte_of_a_closed_log_is_refused_or_harmless() {
    let disk = SimDisk::new();
    let groups = [
        vec!["a", "b"],
        vec!["c*600"],
        vec!["d*9000"],
        vec!["e"],
        vec!["f*8000"],
        vec!["g"],
    ];
    run(&disk, &groups, 9);
    let all = words_on(&disk);
    assert!(segments(&disk).len() > 1);
    let (mut refused, mut harmless) = (0, 0);
    for name in segments(&disk) {
        let length = disk.bytes(&name).expect("segment").len();
        for at in (0..length).step_by(7) {
            let damaged = disk.copy();
            damaged.damage(&name, |bytes| bytes[at] ^= 1 << (at % 8));
            match open(&damaged) {
                Err(LogError::Corrupt(damage)) => {
                    assert_eq!(damage.file, name);
                    assert!(damage.offset <= at as u64);
                    refused += 1;
                }
                Err(other) => panic!("byte {at} of {name}: {other}"),
                Ok((log, _, _)) => {
                    let words = words_in(&mut log.reader(Lsn(0)).expect("reader"));
                    assert_eq!(words, all, "byte {at} of {name}");
                    harmless += 1;
                }
            }
        }
    }
    assert!(
        refused > harmless / 10 && refused > 2000,
        "{refused} refused, {harmless} harmless"
    );
}

#[test]
fn remains_of_other_logs_and_of_recycled_files_are_no_records() {
    let disk = SimDisk::new();
    let (log, _, _) = open(&disk).expect("open");
    append(&log, &["a"]);
    append(&log, &["b*1000"]);
    drop(log);
    let name = segments(&disk).pop().expect("segment");
    let old = disk.bytes(&name).expect("bytes");
    // A copy of the blocks further on, as a recycled file that was not zeroed would have them.
    let recycled = disk.copy();
    recycled.damage(&name, |bytes| {
        let from = 512 * 8;
        let count = bytes.len() - from;
        bytes[from..].copy_from_slice(&old[..count]);
    });
    assert_eq!(words_on(&recycled), ["a", "b*1000"]);
    // Another database's block at the very place that is next.
    let other_disk = SimDisk::new();
    let mut other = common::config();
    other.new_database_id = *b"another database";
    let (log, _, _) = common::open_with(&other_disk, other).expect("open");
    for words in [&["x"][..], &["y*1000"], &["z"], &["z"]] {
        append(&log, words);
    }
    drop(log);
    let foreign = other_disk.bytes(&segments(&other_disk)[0]).expect("bytes");
    let mixed = disk.copy();
    mixed.damage(&name, |bytes| bytes[3072..5120].copy_from_slice(&foreign[3072..5120]));
    assert_eq!(words_on(&mixed), ["a", "b*1000"]);
    // A block of an older epoch that fits in every other way.
    let (log, _, _) = open(&disk).expect("open");
    append(&log, &["c"]);
    drop(log);
    assert_eq!(words_on(&disk), ["a", "b*1000", "c"]);
}

#[test]
fn a_record_that_looks_like_a_block_does_not_make_a_torn_tail_damage() {
    let disk = SimDisk::new();
    let (log, _, _) = open(&disk).expect("open");
    append(&log, &["a"]);
    append(&log, &["b"]);
    drop(log);
    let name = segments(&disk).pop().expect("segment");
    let genuine = disk.bytes(&name).expect("bytes");
    // The block of "b" and the close block, found inside the payload of a torn block at the place of "b".
    let torn = disk.copy();
    torn.damage(&name, |bytes| {
        let header = 1024..1024 + 48;
        bytes[header.start + 16] = 0xff;
        bytes[header.start + 17] = 0x07;
        let mut block = bytes[1024..1024 + SECTOR_BYTES].to_vec();
        block[48..].fill(0);
        let payload = encode(&["b*2000"]);
        let fields = reprise_wire::BlockHeader::decode(&genuine[1024..]).expect("block").0;
        let header = reprise_wire::BlockHeader {
            payload_bytes: payload.bytes().len() as u32,
            ..fields
        };
        let mut forged = vec![0; reprise_wire::block_bytes(payload.bytes().len())];
        forged[48..48 + payload.bytes().len()].copy_from_slice(payload.bytes());
        reprise_wire::seal_block(&header, &mut forged);
        bytes[1024..1024 + forged.len()].copy_from_slice(&forged);
        // The payload is lost but for one sector. That sector has the bytes of the close block that was at its place.
        bytes[1536..1024 + forged.len()].fill(0);
        bytes[1536..2048].copy_from_slice(&genuine[1536..2048]);
    });
    assert_eq!(words_on(&torn), ["a"]);
}

/// A client can know a database's id and the position of its log.
#[test]
fn a_client_can_t_make_a_torn_tail_look_like_damage() {
    let disk = SimDisk::new();
    let (log, _, _) = open(&disk).expect("open");
    append(&log, &["a"]);
    drop(log);
    let name = segments(&disk).pop().expect("segment");
    let genuine = disk.bytes(&name).expect("bytes");
    let header = reprise_wire::SegmentHeader::decode(&genuine).expect("a segment");
    let guessed = reprise_wire::SegmentHeader { block_key: 0, ..header };
    let end = genuine
        .iter()
        .rposition(|byte| *byte != 0)
        .expect("blocks")
        .next_multiple_of(SECTOR_BYTES);
    // The first sector of a block is lost; in its second one lies what came in as arguments.
    let place = end + SECTOR_BYTES;
    for (tag, is_taken_for_a_block) in [(guessed.block_tag(), false), (header.block_tag(), true)] {
        let fields = reprise_wire::BlockHeader {
            kind: reprise_wire::BlockKind::Seal,
            lsn: Lsn(9),
            payload_bytes: 0,
            records_count: 0,
            chain: 1,
            tag: reprise_wire::tag_at(tag, (place - SECTOR_BYTES) as u64),
            epoch: reprise_base::Epoch::new(9, 0),
            payload_crc: 0,
            memory_units: 0,
        };
        let mut forged = vec![0; SECTOR_BYTES];
        reprise_wire::seal_block(&fields, &mut forged);
        let torn = disk.copy();
        torn.damage(&name, |bytes| {
            bytes[place..place + SECTOR_BYTES].copy_from_slice(&forged)
        });
        match open(&torn) {
            Ok((log, report, _)) => {
                assert!(!is_taken_for_a_block && report.found.torn.is_some());
                drop(log);
                assert_eq!(words_on(&torn), ["a"]);
            }
            Err(LogError::Corrupt(_)) => assert!(is_taken_for_a_block),
            Err(other) => panic!("{other}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn random_workloads_survive_random_crashes(
        sizes in proptest::collection::vec((1usize..4, 0usize..6000), 1..12),
        reopen_every in 1usize..6,
        cut in 0.0f64..1.0,
        seed: u64,
    ) {
        let names: Vec<Vec<String>> = sizes
            .iter()
            .enumerate()
            .map(|(group, (count, bytes))| {
                (0..*count).map(|n| format!("w{group}_{n}*{}", bytes / (n + 1))).collect()
            })
            .collect();
        let groups: Vec<Vec<&str>> = names.iter().map(|group| group.iter().map(String::as_str).collect()).collect();
        let disk = SimDisk::new();
        let acknowledged = run(&disk, &groups, reopen_every);
        let ops = (disk.ops_count() as f64 * cut) as usize;
        let count = acknowledged.iter().filter(|after| **after <= ops).count();
        let image = disk.crash_image(ops, &CrashPolicy::Random(seed));
        check_image(&image, &groups, count, &format!("operation {ops}, seed {seed}"));
    }

    /// Whatever the bytes of a segment file are, opening tells or refuses; it never panics.
    #[test]
    fn arbitrary_files_never_panic(
        noise in proptest::collection::vec(any::<u8>(), 0..3000),
        at in 0usize..3000,
        truncate: bool,
    ) {
        let disk = SimDisk::new();
        let (log, _, _) = open(&disk).expect("open");
        append(&log, &["a", "b*1000"]);
        append(&log, &["c"]);
        drop(log);
        let name = segments(&disk).pop().expect("segment");
        disk.damage(&name, |bytes| {
            let end = (at + noise.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&noise[..end - at]);
            if truncate {
                bytes.truncate(at);
            }
        });
        if let Ok((log, _, _)) = open(&disk) {
            words_in(&mut log.reader(Lsn(0)).expect("reader"));
        }
    }
}
