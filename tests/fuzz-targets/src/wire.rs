//! The contents of the log and of checkpoints, without the files.

use reprise_wire::{
    BlockHeader, Changes, CheckpointBlock, CheckpointDatabase, CheckpointEntry, CheckpointHeader, CheckpointKeys,
    CheckpointModuleRef, CheckpointPartition, CheckpointPrincipals, CheckpointQuarantine, CheckpointRows,
    CheckpointTrailer, Frame, History, RecordCounts, Records, SegmentHeader, count_records, is_stand_in,
    push_checkpoint_row,
};

pub fn block(bytes: &[u8]) {
    if let Ok(header) = SegmentHeader::decode(bytes) {
        assert_eq!(header.encode()[..], bytes[..header.encode().len()]);
    }
    let Ok((header, _)) = BlockHeader::decode(bytes) else {
        return;
    };
    if let Ok(payload) = header.payload(bytes) {
        records(payload);
    }
}

pub fn records(bytes: &[u8]) {
    let (mut whole, mut encoded) = (0, Vec::new());
    let mut walk = Records::new(bytes);
    for record in &mut walk {
        let Ok((offset, record, raw)) = record else {
            break;
        };
        assert_eq!(&bytes[offset..offset + raw.len()], raw);
        match is_stand_in(raw) {
            // An alternate record's source is absent, so its bytes are copied.
            true => encoded.extend_from_slice(raw),
            false => record.encode(&mut encoded),
        }
        assert_eq!(encoded.len(), offset + raw.len(), "{record:?}");
        let _ = (record.kind().name(), record.txn_id(), format!("{record:?}").len());
        whole += 1;
    }
    assert_eq!(encoded, bytes[..encoded.len()], "one form for one value");
    let _ = History(7).then(bytes);
    if encoded.len() == bytes.len() {
        assert_eq!(count_records(bytes), Ok(whole));
        let counts = RecordCounts::of(bytes);
        assert!(counts.is_err() || counts.is_ok_and(|counts| counts.all == whole));
    }
}

pub fn changes(bytes: &[u8]) {
    let mut encoded = Vec::new();
    for change in Changes::new(bytes) {
        let Ok(change) = change else { break };
        let _ = format!("{change:?}").len();
        change.encode(&mut encoded);
    }
    assert_eq!(encoded, bytes[..encoded.len()], "one form for one value");
}

/// The first four bytes are made the checksum of the others, or hardly any would be looked at.
pub fn frame(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    if let Some((sum, checked)) = bytes.split_first_chunk_mut::<4>() {
        *sum = (crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, checked) as u32).to_le_bytes();
    }
    if let Ok(frame) = Frame::decode(&bytes) {
        assert_eq!(frame.encode(), bytes, "one form for one value");
        let _ = format!("{frame:?}").len();
    }
}

/// The first byte chooses the part.
pub fn checkpoint_parts(bytes: &[u8]) {
    let Some((which, rest)) = bytes.split_first() else {
        return;
    };
    let mut encoded = Vec::new();
    match which % 11 {
        0 | 1 => CheckpointRows::new(rest)
            .map_while(Result::ok)
            .for_each(|(row, number)| push_checkpoint_row(&mut encoded, row, number)),
        2 => {
            let keys = CheckpointKeys::new(rest);
            keys.map_while(Result::ok).for_each(|key| key.encode(&mut encoded));
        }
        3 => CheckpointModuleRef::decode(rest)
            .into_iter()
            .for_each(|part| part.encode(&mut encoded)),
        4 => CheckpointPartition::decode(rest)
            .into_iter()
            .for_each(|part| part.encode(&mut encoded)),
        5 => CheckpointDatabase::decode(rest)
            .into_iter()
            .for_each(|part| part.encode(&mut encoded)),
        6 => {
            let entries = CheckpointEntry::decode_all(rest).unwrap_or_default();
            entries.iter().for_each(|entry| entry.encode(&mut encoded));
        }
        7 => {
            if let Ok(header) = CheckpointHeader::decode(rest) {
                encoded.extend_from_slice(&header.encode());
            }
            if let Ok(block) = CheckpointBlock::decode(rest) {
                let _ = block.check_stored(&rest[rest.len().min(48)..]);
            }
        }
        8 => CheckpointQuarantine::decode_all(rest)
            .into_iter()
            .flatten()
            .for_each(|part| part.encode(&mut encoded)),
        9 => CheckpointPrincipals::decode_all(rest)
            .into_iter()
            .flatten()
            .for_each(|(number, name)| CheckpointPrincipals::push(&mut encoded, number, name)),
        _ => {
            if let Ok(trailer) = CheckpointTrailer::decode(rest) {
                encoded.extend_from_slice(&trailer.encode());
            }
        }
    }
    assert_eq!(encoded, rest[..encoded.len()], "one form for one value");
}
