//! The formats are frozen (golden bytes), have one form each, and no bytes make a decoder panic.

use expect_test::{Expect, expect};
use proptest::prelude::*;
use reprise_base::{Epoch, Lsn, PartitionId, TxnId};
use reprise_wire::*;

fn hex(bytes: &[u8]) -> String {
    let lines = bytes.chunks(16).map(|line| {
        let pairs: Vec<_> = line.iter().map(|b| format!("{b:02x}")).collect();
        pairs.join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn encode(record: &RecordRef<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    record.encode(&mut out);
    out
}

fn check_golden(record: RecordRef<'_>, golden: Expect) {
    let bytes = encode(&record);
    golden.assert_eq(&hex(&bytes));
    assert_eq!(RecordRef::decode(&bytes), Ok(record));
}

fn command(partitions: PartitionSet<'_>) -> CommandRef<'_> {
    CommandRef {
        module_id: 300,
        procedure: 2,
        digest: 0x0102_0304_0506_0708,
        ..CommandRef::new(TxnId::new(0x1122_3344_5566, 7), partitions, b"args")
    }
}

#[test]
fn golden_records() {
    check_golden(
        RecordRef::Genesis(Genesis {
            database_id: *b"0123456789abcdef",
            secret: [1, u64::MAX],
            partitions: 8,
            created_us: 1_700_000_000_000_000,
        }),
        expect![[r#"
            2b 01 30 31 32 33 34 35 36 37 38 39 61 62 63 64
            65 66 01 00 00 00 00 00 00 00 ff ff ff ff ff ff
            ff ff 08 00 00 40 1e 18 24 0a 06 00"#]],
    );
    check_golden(
        RecordRef::Deploy(DeployRef {
            txn_id: TxnId::new(5, TxnId::MULTI_PARTITION),
            module_id: 1,
            version: 200,
            name: "voter",
            hash: [0xaa; 32],
            wasm: b"\0asm",
            tables: Default::default(),
            destroyed: Default::default(),
            migration: None,
        }),
        expect![[r#"
            39 08 ff 17 00 00 00 00 00 00 03 01 c8 01 05 76
            6f 74 65 72 aa aa aa aa aa aa aa aa aa aa aa aa
            aa aa aa aa aa aa aa aa aa aa aa aa aa aa aa aa
            aa aa aa aa 00 00 00 61 73 6d"#]],
    );
    check_golden(
        RecordRef::DropTable(DropTableRef {
            txn_id: TxnId::new(6, TxnId::MULTI_PARTITION),
            table: "a.votes",
        }),
        expect![[r#"
            11 07 ff 1b 00 00 00 00 00 00 07 61 2e 76 6f 74
            65 73"#]],
    );
    check_golden(
        RecordRef::Remove(RemoveRef {
            txn_id: TxnId::new(6, TxnId::MULTI_PARTITION),
            name: "voter",
            destroyed: Default::default(),
        }),
        expect![[r#"
            10 03 ff 1b 00 00 00 00 00 00 05 76 6f 74 65 72
            00"#]],
    );
    check_golden(RecordRef::Void, expect!["01 0a"]);
    check_golden(
        RecordRef::Principal(PrincipalRef {
            txn_id: TxnId::new(6, TxnId::MULTI_PARTITION),
            number: 1,
            name: "ci",
        }),
        expect!["0d 0e ff 1b 00 00 00 00 00 00 01 02 63 69"],
    );
    check_golden(
        RecordRef::Control(ControlRef {
            txn_id: TxnId::new(6, TxnId::MULTI_PARTITION),
            took_us: 300,
            principal: "ci",
            operation: "drop-table",
            outcome: "done",
            subject: "m.t",
        }),
        expect![[r#"
            21 0f ff 1b 00 00 00 00 00 00 ac 02 02 63 69 0a
            64 72 6f 70 2d 74 61 62 6c 65 04 64 6f 6e 65 6d
            2e 74"#]],
    );
    check_golden(
        RecordRef::Quarantine(QuarantineRef {
            txn_id: TxnId::new(6, TxnId::MULTI_PARTITION),
            module_id: 300,
            procedure: 2,
            diverged: Lsn(77),
            what: "it did more",
        }),
        expect![[r#"
            1f 0b ff 1b 00 00 00 00 00 00 ac 02 02 4d 00 00
            00 00 00 00 00 69 74 20 64 69 64 20 6d 6f 72 65"#]],
    );
    check_golden(
        RecordRef::Command(command(PartitionSet::One(PartitionId(7)))),
        expect![[r#"
        19 04 00 07 98 55 11 cd 88 44 00 08 07 06 05 04
        03 02 01 ac 02 02 61 72 67 73"#]],
    );
    check_golden(
        RecordRef::Command(command(PartitionSet::One(PartitionId(200)))),
        expect![[r#"
        1b 04 01 07 98 55 11 cd 88 44 00 08 07 06 05 04
        03 02 01 c8 01 ac 02 02 61 72 67 73"#]],
    );
    check_golden(
        RecordRef::Command(command(PartitionSet::All)),
        expect![[r#"
        19 04 03 07 98 55 11 cd 88 44 00 08 07 06 05 04
        03 02 01 ac 02 02 61 72 67 73"#]],
    );
    let several = [PartitionId(1), PartitionId(999)];
    let mut multi = command(PartitionSet::Several(PartitionList::new(&several)));
    let mut keyed = KeyRef {
        key: b"key-1",
        scope: b"",
        fingerprint: 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100,
    };
    multi.keyed = Some(keyed);
    check_golden(
        RecordRef::Command(multi),
        expect![[r#"
            34 04 06 07 98 55 11 cd 88 44 00 08 07 06 05 04
            03 02 01 02 01 00 e7 03 ac 02 02 05 6b 65 79 2d
            31 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e
            0f 61 72 67 73"#]],
    );
    keyed.scope = b"ci";
    (multi.keyed, multi.principal) = (Some(keyed), 5);
    check_golden(
        RecordRef::Command(multi),
        expect![[r#"
            38 04 2e 07 98 55 11 cd 88 44 00 08 07 06 05 04
            03 02 01 02 01 00 e7 03 ac 02 02 05 05 6b 65 79
            2d 31 02 63 69 00 01 02 03 04 05 06 07 08 09 0a
            0b 0c 0d 0e 0f 61 72 67 73"#]],
    );
}

#[test]
fn golden_segment_and_block() {
    let segment = SegmentHeader {
        database_id: *b"0123456789abcdef",
        start: Lsn(0x1000),
        place: 0x2_0000,
        settings_hash: 0x1122_3344_5566_7788,
        epoch: Epoch::new(3, 0x41a7),
        history: History(0x0a0b_0c0d),
        chain: 0xdead_beef,
        block_key: 0x0506_0708,
    };
    let bytes = segment.encode();
    expect![[r#"
        52 50 52 53 4c 4f 47 0a 09 00 00 00 03 00 00 00
        30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66
        00 10 00 00 00 00 00 00 88 77 66 55 44 33 22 11
        03 00 00 00 ef be ad de 08 07 06 05 00 00 02 00"#]]
    .assert_eq(&hex(&bytes[..64]));
    expect!["00 00 00 00 00 00 00 00 00 00 00 00 e3 bc a9 da"].assert_eq(&hex(&bytes[496..]));
    assert_eq!(SegmentHeader::decode(&bytes), Ok(segment));
    let (header, block, chain) = sample_block();
    expect![[r#"
        52 50 42 4b 2c eb 34 8a 00 20 00 00 00 00 00 00
        1a 00 00 00 01 00 00 00 3f 79 12 3a 0d 0c 0b 0a
        22 22 11 11 04 00 00 00 00 00 a7 41 02 03 00 00
        19 04 03 07 98 55 11 cd 88 44 00 08 07 06 05 04"#]]
    .assert_eq(&hex(&block[..64]));
    assert_eq!(BlockHeader::decode(&block), Ok((header, chain)));
}

fn sample_block() -> (BlockHeader, Vec<u8>, u32) {
    let records = encode(&RecordRef::Command(command(PartitionSet::All)));
    let mut block = vec![0; block_bytes(records.len())];
    block[BLOCK_HEADER_BYTES..][..records.len()].copy_from_slice(&records);
    let header = BlockHeader {
        kind: BlockKind::Data,
        lsn: Lsn(0x2000),
        payload_bytes: records.len() as u32,
        records_count: 1,
        chain: 0x0a0b_0c0d,
        tag: 0x1111_2222,
        epoch: Epoch::new(4, 0x41a7),
        payload_crc: 0,
        memory_units: 0x0302,
    };
    let chain = seal_block(&header, &mut block);
    let (sealed, _) = BlockHeader::decode(&block).expect("own block");
    (sealed, block, chain)
}

#[test]
fn a_command_with_twenty_bytes_of_arguments_is_small() {
    let mut vote = command(PartitionSet::One(PartitionId(7)));
    // Values from the log of a vote: numbers below 128, and one of the first 127 callers.
    (vote.module_id, vote.args) = (3, &[0; 20]);
    assert_eq!(encode(&RecordRef::Command(vote)).len(), 41);
    for (principal, bytes) in [(1, 42), (127, 42), (128, 43)] {
        vote.principal = principal;
        assert_eq!(encode(&RecordRef::Command(vote)).len(), bytes, "principal {principal}");
    }
}

#[test]
fn every_flipped_bit_of_a_block_or_segment_header_is_found() {
    let (_, block, _) = sample_block();
    let is_good = |block: &[u8]| BlockHeader::decode(block).is_ok_and(|(header, _)| header.payload(block).is_ok());
    assert!(is_good(&block));
    let segment = SegmentHeader {
        database_id: [1; 16],
        start: Lsn(0),
        place: 0,
        settings_hash: 0,
        epoch: Epoch::new(1, 0x41a7),
        history: History(7),
        chain: 0,
        block_key: 5,
    };
    for bit in 0..512 * 8 {
        let mut damaged = block.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(!is_good(&damaged), "bit {bit} of the block");
        let mut damaged = segment.encode();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(
            SegmentHeader::decode(&damaged).is_err(),
            "bit {bit} of the segment header"
        );
    }
}

fn arbitrary_partitions() -> impl Strategy<Value = Option<Vec<PartitionId>>> {
    let ids = proptest::collection::btree_set(0u16..1000, 1..9);
    let ids = ids.prop_map(|ids| ids.into_iter().map(PartitionId).collect());
    proptest::option::of(ids)
}

#[test]
fn deployment_tells_sources_and_what_was_destroyed() {
    let (mut tables, mut lost) = (Vec::new(), Vec::new());
    SourceList::push(&mut tables, "payouts", "payments", &[Some(0), None, Some(u16::MAX)]);
    SourceList::push(&mut tables, "holds", "holds", &[]);
    let column = DestroyedRef {
        kind: 1,
        name: "ledger.payouts.bank_reference",
        count: 20,
    };
    let procedure = DestroyedRef {
        kind: 3,
        name: "ledger.settle",
        count: 0,
    };
    for found in [column, procedure] {
        DestroyedList::push(&mut lost, found);
    }
    let deploy = DeployRef {
        txn_id: TxnId::new(5, TxnId::MULTI_PARTITION),
        module_id: 1,
        version: 2,
        name: "ledger",
        hash: [7; 32],
        wasm: b"\0asm",
        tables: SourceList::new(&tables),
        destroyed: DestroyedList::new(&lost),
        migration: Some(MigrationRef::new("split-name", "", &[1; 8])),
    };
    let bytes = encode(&RecordRef::Deploy(deploy));
    assert_eq!(RecordRef::decode(&bytes), Ok(RecordRef::Deploy(deploy)));
    let sources: Vec<_> = deploy.tables.tables().collect();
    let expected = [
        ("payouts", "payments", vec![Some(0), None, Some(u16::MAX)]),
        ("holds", "holds", Vec::new()),
    ];
    assert_eq!(sources, expected);
    assert_eq!(deploy.destroyed.iter().collect::<Vec<_>>(), [column, procedure]);
    // A reader refuses an unknown kind when it reads the entry.
    let name = bytes.windows(8).position(|found| found == b"ledger.p");
    let kind = name.expect("the first entry's name") - 2;
    let mut other = bytes.clone();
    assert_eq!(other[kind], 1);
    other[kind] = 9;
    assert!(RecordRef::decode(&other).is_err());
}

proptest! {
    #[test]
    fn commands_round_trip(
        tick in 0u64..1 << 54,
        origin in 0u16..1000,
        partitions in arbitrary_partitions(),
        module_id: u32,
        procedure: u16,
        digest: u64,
        principal in prop_oneof![Just(0), any::<u32>()],
        key in proptest::option::of((
            proptest::collection::vec(any::<u8>(), 1..=255),
            proptest::collection::vec(any::<u8>(), 0..=255),
            any::<u128>(),
        )),
        args in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let record = RecordRef::Command(CommandRef {
            txn_id: TxnId::new(tick, origin),
            partitions: match &partitions {
                None => PartitionSet::All,
                Some(ids) if ids.len() == 1 => PartitionSet::One(ids[0]),
                Some(ids) => PartitionSet::Several(PartitionList::new(ids)),
            },
            module_id,
            procedure,
            digest,
            principal,
            keyed: key.as_ref().map(|(key, scope, fingerprint)| KeyRef {
                key,
                scope,
                fingerprint: *fingerprint,
            }),
            args: &args,
        });
        let bytes = encode(&record);
        prop_assert_eq!(RecordRef::decode(&bytes), Ok(record));
        prop_assert_eq!(count_records(&[&bytes[..], &bytes[..]].concat()), Ok(2));
    }

    #[test]
    fn deployments_round_trip(
        txn_id: u64,
        numbers in (any::<u32>(), any::<u32>()),
        name in "[a-z][a-z0-9_]{0,62}",
        plan in "[a-z \n]{0,300}",
        digests in proptest::collection::vec(any::<u64>(), 1..20),
        migrates: bool,
        wasm in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let digests: Vec<u8> = digests.iter().flat_map(|digest| digest.to_le_bytes()).collect();
        let record = RecordRef::Deploy(DeployRef {
            txn_id: TxnId(txn_id),
            module_id: numbers.0,
            version: numbers.1,
            name: &name,
            hash: [9; 32],
            wasm: &wasm,
            tables: Default::default(),
            destroyed: Default::default(),
            migration: migrates.then(|| MigrationRef::new("split-name", &plan, &digests)),
        });
        let bytes = encode(&record);
        prop_assert_eq!(RecordRef::decode(&bytes), Ok(record));
    }

    /// Whatever decodes was the one encoding of its value.
    #[test]
    fn arbitrary_bytes_never_panic_and_have_one_form(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..80),
        kind in 0u8..16,
        framed: bool,
    ) {
        if framed && bytes.len() > 2 {
            bytes[0] = bytes.len() as u8 - 1;
            bytes[1] = kind;
            bytes[2] &= 47;
        }
        for item in Records::new(&bytes) {
            let Ok((_, record, raw)) = item else { break };
            prop_assert_eq!(encode(&record), raw);
        }
        let _ = (BlockHeader::decode(&bytes), SegmentHeader::decode(&bytes), count_records(&bytes));
    }

    #[test]
    fn mutated_records_never_panic_and_have_one_form(
        at in 0usize..60,
        value: u8,
        cut in 0usize..60,
        several: bool,
    ) {
        let ids = [PartitionId(3), PartitionId(9)];
        let mut sample = command(PartitionSet::One(PartitionId(8)));
        if several {
            sample.partitions = PartitionSet::Several(PartitionList::new(&ids));
            sample.principal = 9;
            sample.keyed = Some(KeyRef {
                key: b"k",
                scope: b"s",
                fingerprint: 1,
            });
        }
        let mut bytes = encode(&RecordRef::Command(sample));
        let at = at % bytes.len();
        bytes[at] = value;
        bytes.truncate(bytes.len().saturating_sub(cut / 4));
        if let Ok(record) = RecordRef::decode(&bytes) {
            prop_assert_eq!(encode(&record), bytes);
        }
    }
}
