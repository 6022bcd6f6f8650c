//! Whole files, as an opening or an inspector finds them.

use std::sync::Arc;

use reprise_base::{Epoch, Lsn};
use reprise_checkpoint::{Checkpoints, checkpoint_name};
use reprise_env::{Disk, SimDisk};
use reprise_log::{LogReader, verify};
use reprise_wire::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockKind, CheckpointBlockKind, CheckpointHeader, CheckpointKeys, CheckpointRows,
    History, SegmentHeader, block_bytes, count_records, seal_block, tag_at,
};

fn disk_with(name: &str, bytes: &[u8]) -> SimDisk {
    let disk = SimDisk::new();
    let file = disk.create(name).expect("an empty disk");
    file.write_at(0, bytes).expect("no fault is planned");
    disk
}

fn read_log(disk: &SimDisk) {
    let report = verify(disk);
    let Ok((mut reader, _)) = LogReader::open(Arc::new(disk.clone()), Lsn(0)) else {
        return;
    };
    let mut records = 0;
    while let Ok(Some(record)) = reader.next_record() {
        assert!(record.end > record.lsn);
        records += 1;
    }
    if let Some(report) = report
        .ok()
        .filter(|report| report.damage.is_none() && report.start == Lsn(0))
    {
        assert_eq!(records, report.records);
    }
}

/// A segment file as it is.
pub fn segment(bytes: &[u8]) {
    let place = SegmentHeader::decode(bytes).map_or(0, |header| header.place);
    read_log(&disk_with(&format!("log-{place:016x}.seg"), bytes));
}

/// A segment file with good checksums around arbitrary payloads: each is its length in two bytes, and its bytes.
pub fn blocks(bytes: &[u8]) {
    let id = *b"sixteen bytes id";
    let header = SegmentHeader {
        database_id: id,
        start: Lsn(0),
        place: 0,
        settings_hash: 1,
        epoch: Epoch::new(1, 0),
        history: History(0),
        chain: 0,
        block_key: 9,
    };
    let tag = header.block_tag();
    let (mut file, mut chain, mut lsn, mut rest) = (header.encode().to_vec(), 0, 0, bytes);
    while let [low, high, more @ ..] = rest {
        let length = u16::from_le_bytes([*low, *high]) as usize;
        let (payload, more) = more.split_at(length.min(more.len()));
        let start = file.len();
        file.resize(start + block_bytes(payload.len()), 0);
        file[start + BLOCK_HEADER_BYTES..][..payload.len()].copy_from_slice(payload);
        let records_count = count_records(payload).unwrap_or(1);
        let header = BlockHeader {
            kind: BlockKind::Data,
            lsn: Lsn(lsn),
            payload_bytes: payload.len() as u32,
            records_count,
            chain,
            tag: tag_at(tag, (start - 512) as u64),
            epoch: Epoch::new(1, 0),
            payload_crc: 0,
            memory_units: 0,
        };
        chain = seal_block(&header, &mut file[start..]);
        lsn += u64::from(records_count);
        rest = more;
    }
    read_log(&disk_with("log-0000000000000000.seg", &file));
}

/// A checkpoint file as it is.
pub fn checkpoint(bytes: &[u8]) {
    let lsn = CheckpointHeader::decode(bytes).map_or(Lsn(0), |header| header.lsn);
    let disk = disk_with(&checkpoint_name(lsn), bytes);
    let Ok(reader) = Checkpoints::new(Arc::new(disk)).open(lsn) else {
        return;
    };
    let _ = reader.verify();
    let mut blocks = reader.blocks();
    for (number, entry) in reader.entries().iter().enumerate() {
        let Ok(raw) = blocks.read(number) else {
            continue;
        };
        match entry.kind {
            CheckpointBlockKind::Rows => {
                CheckpointRows::new(raw).take_while(Result::is_ok).for_each(drop);
            }
            CheckpointBlockKind::Keys => {
                CheckpointKeys::new(raw).take_while(Result::is_ok).for_each(drop);
            }
            _ => {}
        }
    }
}
