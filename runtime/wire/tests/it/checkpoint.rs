//! The checkpoint file's parts: golden bytes, one form, no panic.

use expect_test::expect;
use proptest::{collection::vec, prelude::*};
use reprise_base::{Lsn, PartitionId, TxnId};
use reprise_wire::*;

fn hex(bytes: &[u8]) -> String {
    let lines = bytes.chunks(16).map(|line| {
        let pairs: Vec<_> = line.iter().map(|b| format!("{b:02x}")).collect();
        pairs.join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn block() -> CheckpointBlock {
    CheckpointBlock {
        kind: CheckpointBlockKind::Rows,
        compressed: true,
        partition: PartitionId(3),
        table: 2,
        lsn: Lsn(0x1000),
        number: 9,
        items_count: 4,
        raw_bytes: 100,
        stored_bytes: 0,
        stored_crc: 0,
    }
}

#[test]
fn golden_header_block_and_trailer() {
    let header = CheckpointHeader {
        database_id: *b"0123456789abcdef",
        lsn: Lsn(0x1000),
        settings_hash: 0x1122_3344_5566_7788,
        txn_id: TxnId(0x99),
        memory_bytes: 0x0102_0304_0506,
    };
    let bytes = header.encode();
    expect![[r#"
        52 50 52 53 43 4b 50 0a 09 00 00 00 03 00 00 00
        30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66
        00 10 00 00 00 00 00 00 88 77 66 55 44 33 22 11
        99 00 00 00 00 00 00 00 06 05 04 03 02 01 00 00"#]]
    .assert_eq(&hex(&bytes[..64]));
    expect!["00 00 00 00 00 00 00 00 00 00 00 00 da 90 7d f9"].assert_eq(&hex(&bytes[496..]));
    assert_eq!(CheckpointHeader::decode(&bytes), Ok(header));
    let mut sealed = block();
    let bytes = sealed.seal(b"stored");
    expect![[r#"
        52 50 43 42 03 a9 ee 91 00 10 00 00 00 00 00 00
        09 00 00 00 05 01 03 00 02 00 00 00 04 00 00 00
        64 00 00 00 06 00 00 00 48 d6 37 9a 00 00 00 00"#]]
    .assert_eq(&hex(&bytes));
    assert_eq!(CheckpointBlock::decode(&bytes), Ok(sealed));
    sealed.check_stored(b"stored").expect("its bytes");
    assert!(sealed.check_stored(b"storeD").is_err());
    let trailer = CheckpointTrailer {
        lsn: Lsn(0x1000),
        index_offset: 0x2000,
        file_bytes: 0x3000,
        rows: 4,
        row_bytes: 100,
    };
    let bytes = trailer.encode();
    expect![[r#"
        52 50 43 4b 45 4e 44 0a 00 10 00 00 00 00 00 00
        00 20 00 00 00 00 00 00 00 30 00 00 00 00 00 00
        04 00 00 00 00 00 00 00 64 00 00 00 00 00 00 00
        00 00 00 00 00 00 00 00 00 00 00 00 27 f2 78 d7"#]]
    .assert_eq(&hex(&bytes));
    assert_eq!(CheckpointTrailer::decode(&bytes), Ok(trailer));
}

#[test]
fn golden_contents() {
    let mut bytes = Vec::new();
    CheckpointDatabase {
        genesis: Genesis {
            database_id: *b"0123456789abcdef",
            secret: [1, 2],
            partitions: 8,
            created_us: 3,
        },
        multi_tick: 4,
        modules: 5,
        tables: 6,
        keys: 7,
        key_clock_us: 8,
    }
    .encode(&mut bytes);
    expect![[r#"
        30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66
        01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00
        08 00 03 00 00 00 00 00 00 00 04 00 00 00 00 00
        00 00 05 00 00 00 06 00 07 00 00 00 00 00 00 00
        08 00 00 00 00 00 00 00"#]]
    .assert_eq(&hex(&bytes));
    let mut bytes = Vec::new();
    CheckpointModuleRef {
        module_id: 1,
        version: 2,
        name: "voter",
        in_service: true,
        installed_by: TxnId(3),
        hash: [0xaa; 32],
        migrations: b"\x05split",
        origins: &[2, 2, 1, 0, 0],
        wasm_bytes: 4,
        description: b"{}",
        wasm: b"\0asm",
    }
    .encode(&mut bytes);
    expect![[r#"
        01 02 03 05 76 6f 74 65 72 01 03 00 00 00 00 00
        00 00 aa aa aa aa aa aa aa aa aa aa aa aa aa aa
        aa aa aa aa aa aa aa aa aa aa aa aa aa aa aa aa
        aa aa 06 05 73 70 6c 69 74 05 02 02 01 00 00 04
        02 7b 7d 00 61 73 6d"#]]
    .assert_eq(&hex(&bytes));
    let mut bytes = Vec::new();
    CheckpointFormerRef {
        hash: [0xbb; 32],
        wasm: b"\0asm",
    }
    .encode(&mut bytes);
    expect![[r#"
        bb bb bb bb bb bb bb bb bb bb bb bb bb bb bb bb
        bb bb bb bb bb bb bb bb bb bb bb bb bb bb bb bb
        00 61 73 6d"#]]
    .assert_eq(&hex(&bytes));
    let mut bytes = Vec::new();
    let state = CheckpointPartition {
        last_tick: 1,
        last_end: Lsn(2),
        tables: vec![(3, 4)],
    };
    state.encode(&mut bytes);
    expect![[r#"
        01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00
        03 00 00 00 00 00 00 00 04 00 00 00 00 00 00 00"#]]
    .assert_eq(&hex(&bytes));
    assert_eq!(CheckpointPartition::decode(&bytes), Ok(state));
    let mut bytes = Vec::new();
    let found = CheckpointQuarantine {
        module_id: 300,
        procedure: 2,
        diverged: Lsn(77),
        what: "more".to_owned(),
    };
    found.encode(&mut bytes);
    expect!["ac 02 02 4d 00 00 00 00 00 00 00 04 6d 6f 72 65"].assert_eq(&hex(&bytes));
    assert_eq!(CheckpointQuarantine::decode_all(&bytes), Ok(vec![found]));
    assert!(
        CheckpointQuarantine::decode_all(&bytes.repeat(2)).is_err(),
        "each procedure once"
    );
    assert!(CheckpointQuarantine::decode_all(&[]).is_err());
    let mut bytes = Vec::new();
    CheckpointPrincipals::push(&mut bytes, 1, "ci");
    CheckpointPrincipals::push(&mut bytes, 300, "app");
    expect!["01 02 63 69 ac 02 03 61 70 70"].assert_eq(&hex(&bytes));
    assert_eq!(
        CheckpointPrincipals::decode_all(&bytes),
        Ok(vec![(1, "ci"), (300, "app")])
    );
    assert!(
        CheckpointPrincipals::decode_all(&bytes.repeat(2)).is_err(),
        "each number once"
    );
    assert!(CheckpointPrincipals::decode_all(&[]).is_err());
    let mut bytes = Vec::new();
    push_checkpoint_row(&mut bytes, b"row", 5);
    expect!["03 72 6f 77 05 00 00 00 00 00 00 00"].assert_eq(&hex(&bytes));
    let mut bytes = Vec::new();
    CheckpointKeyRef {
        key: b"key",
        scope: b"ci",
        fingerprint: 1,
        args_hash: 2,
        kept_us: 3,
        module_id: 2,
        procedure: 3,
        txn_id: TxnId(4),
        lsn: Lsn(5),
        partition: Some(PartitionId(6)),
        result: b"ok",
    }
    .encode(&mut bytes);
    expect![[r#"
        03 6b 65 79 02 63 69 01 00 00 00 00 00 00 00 00
        00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 00
        00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 02
        03 04 00 00 00 00 00 00 00 05 00 00 00 00 00 00
        00 07 02 6f 6b"#]]
    .assert_eq(&hex(&bytes));
    let mut bytes = Vec::new();
    CheckpointEntry {
        offset: 1,
        stored_bytes: 2,
        raw_bytes: 3,
        items_count: 4,
        kind: CheckpointBlockKind::Keys,
        partition: PartitionId(5),
        table: 6,
    }
    .encode(&mut bytes);
    expect![[r#"
        01 00 00 00 00 00 00 00 02 00 00 00 03 00 00 00
        04 00 00 00 06 00 00 00 05 00 06 00"#]]
    .assert_eq(&hex(&bytes));
}

/// Decodes bytes as everything that a checkpoint has; what decodes must encode to the same bytes.
fn check_any(bytes: &[u8]) {
    if let Ok(found) = CheckpointDatabase::decode(bytes) {
        let mut again = Vec::new();
        found.encode(&mut again);
        assert_eq!(again, bytes);
    }
    if let Ok(found) = CheckpointModuleRef::decode(bytes) {
        let mut again = Vec::new();
        found.encode(&mut again);
        assert_eq!(again, bytes);
    }
    if let Ok(found) = CheckpointFormerRef::decode(bytes) {
        let mut again = Vec::new();
        found.encode(&mut again);
        assert_eq!(again, bytes);
    }
    if let Ok(found) = CheckpointQuarantine::decode_all(bytes) {
        let mut again = Vec::new();
        found.iter().for_each(|part| part.encode(&mut again));
        assert_eq!(again, bytes);
    }
    if let Ok(found) = CheckpointPartition::decode(bytes) {
        let mut again = Vec::new();
        found.encode(&mut again);
        assert_eq!(again, bytes);
    }
    let rows: Result<Vec<_>, _> = CheckpointRows::new(bytes).collect();
    if let Ok(rows) = rows {
        let mut again = Vec::new();
        rows.iter()
            .for_each(|(row, number)| push_checkpoint_row(&mut again, row, *number));
        assert_eq!(again, bytes);
    }
    let keys: Result<Vec<_>, _> = CheckpointKeys::new(bytes).collect();
    if let Ok(keys) = keys {
        let mut again = Vec::new();
        keys.iter().for_each(|key| key.encode(&mut again));
        assert_eq!(again, bytes);
    }
    if let Ok(entries) = CheckpointEntry::decode_all(bytes) {
        let mut again = Vec::new();
        entries.iter().for_each(|entry| entry.encode(&mut again));
        assert_eq!(again, bytes);
    }
    let _ = (
        CheckpointHeader::decode(bytes),
        CheckpointBlock::decode(bytes),
        CheckpointTrailer::decode(bytes),
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic_and_have_one_form(bytes in vec(any::<u8>(), 0..200)) {
        check_any(&bytes);
    }

    #[test]
    fn small_bytes_never_panic_and_have_one_form(bytes in vec(0u8..4, 0..120)) {
        check_any(&bytes);
    }

    #[test]
    fn keys_round_trip(
        key in vec(any::<u8>(), 1..=255),
        fingerprint: u128,
        numbers: (u32, u16, u64, u64),
        partition in proptest::option::of(0u16..1000),
        result in vec(any::<u8>(), 0..100),
    ) {
        let entry = CheckpointKeyRef {
            key: &key,
            scope: &result[..result.len().min(255)],
            fingerprint,
            args_hash: !fingerprint,
            kept_us: !numbers.2,
            module_id: numbers.0,
            procedure: numbers.1,
            txn_id: TxnId(numbers.2),
            lsn: Lsn(numbers.3),
            partition: partition.map(PartitionId),
            result: &result,
        };
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        entry.encode(&mut bytes);
        let found: Vec<_> = CheckpointKeys::new(&bytes).collect();
        prop_assert_eq!(found, vec![Ok(entry), Ok(entry)]);
    }
}
