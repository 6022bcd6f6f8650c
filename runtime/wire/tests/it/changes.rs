//! The physiological record: golden bytes, one form, no panic.

use expect_test::expect;
use proptest::{collection::vec, prelude::*};
use reprise_base::{PartitionId, TxnId, limits::RECORD_BYTES_MAX};
use reprise_wire::*;

fn hex(bytes: &[u8]) -> String {
    let lines = bytes.chunks(16).map(|line| {
        let pairs: Vec<_> = line.iter().map(|b| format!("{b:02x}")).collect();
        pairs.join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A change in a form that owns its bytes.
#[derive(Clone, Debug)]
enum Owned {
    Insert(u16, u64, Vec<u8>),
    Replace(u16, u64, Vec<u8>),
    Patch(u16, u64, Vec<(u16, Option<Vec<u8>>)>),
    Delete(u16, u64),
}

impl Owned {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Insert(table, number, row) => Change::Insert {
                table: *table,
                number: *number,
                row,
            }
            .encode(out),
            Self::Replace(table, number, row) => Change::Replace {
                table: *table,
                number: *number,
                row,
            }
            .encode(out),
            Self::Patch(table, number, columns) => {
                let mut patch = PatchWriter::begin(out, *table, *number, columns.len() as u16);
                for (column, value) in columns {
                    patch.column(*column, value.as_deref());
                }
                patch.finish();
            }
            Self::Delete(table, number) => Change::Delete {
                table: *table,
                number: *number,
            }
            .encode(out),
        }
    }

    fn is(&self, change: &Change<'_>) -> bool {
        match (self, change) {
            (Self::Insert(t, n, r), Change::Insert { table, number, row }) => t == table && n == number && r == row,
            (Self::Replace(t, n, r), Change::Replace { table, number, row }) => t == table && n == number && r == row,
            (Self::Patch(t, n, wanted), Change::Patch { table, number, columns }) => {
                let found: Vec<_> = columns.iter().collect();
                let wanted: Vec<_> = wanted.iter().map(|(c, v)| (*c, v.as_deref())).collect();
                t == table && n == number && wanted == found && wanted.len() == columns.count()
            }
            (Self::Delete(t, n), Change::Delete { table, number }) => t == table && n == number,
            _ => false,
        }
    }
}

fn encode_all(changes: &[Owned]) -> Vec<u8> {
    let mut out = Vec::new();
    changes.iter().for_each(|change| change.encode(&mut out));
    out
}

fn samples() -> Vec<Owned> {
    vec![
        Owned::Insert(0, 0, b"row".to_vec()),
        Owned::Insert(300, 7, b"r".to_vec()),
        Owned::Replace(1, 300, b"new".to_vec()),
        Owned::Patch(130, 1 << 40, vec![(0, None), (2, Some(b"\x05\0".to_vec()))]),
        Owned::Delete(1, 255),
        Owned::Delete(2, 9),
    ]
}

fn record<'a>(partitions: PartitionSet<'a>, changes: &'a [u8]) -> ChangesRef<'a> {
    ChangesRef {
        module_id: 3,
        procedure: 2,
        digest: 0x0102_0304_0506_0708,
        ..ChangesRef::new(TxnId::new(0x1122_3344_5566, 7), partitions, changes)
    }
}

fn encode(record: &ChangesRef<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    record.encode(&mut out);
    assert_eq!(out.len(), record.record_bytes());
    out
}

#[test]
fn golden_changes() {
    let changes = encode_all(&samples());
    let one = record(PartitionSet::One(PartitionId(7)), &changes);
    let bytes = encode(&one);
    expect![[r#"
        3f 05 00 07 98 55 11 cd 88 44 00 08 07 06 05 04
        03 02 01 03 02 11 00 00 03 72 6f 77 11 ac 02 07
        01 72 22 01 2c 01 03 6e 65 77 63 82 01 00 00 00
        00 00 01 02 00 00 02 03 05 00 14 01 ff 14 02 09"#]]
    .assert_eq(&hex(&bytes));
    assert_eq!(RecordRef::decode(&bytes), Ok(RecordRef::Changes(one)));
    let found: Vec<_> = Changes::new(&changes).collect::<Result<_, _>>().expect("own bytes");
    assert!(samples().iter().zip(&found).all(|(a, b)| a.is(b)) && found.len() == samples().len());
}

#[test]
fn change_is_refused_when_its_number_is_missing_or_too_long() {
    let good = [0x21, 2, 0xff, 1, 1, b'r'];
    let change = Changes::new(&good).next().expect("bytes").expect("well-formed");
    assert_eq!((change.table(), change.number()), (2, 511));
    assert_eq!(Change::again(&good), Some(change));
    // The number is missing, of another form, of nine bytes, or of more bytes than it needs.
    for op in [0x01, 0x09, 0x1c, 0x94, 0x24] {
        let bytes = [&[op, 2, 5, 0][..], &[0; 8]].concat();
        assert!(Changes::new(&bytes).next().expect("bytes").is_err(), "{op:x}");
    }
}

#[test]
fn golden_groups_with_a_key() {
    let ids = [PartitionId(1), PartitionId(4), PartitionId(999)];
    let mut changes = Vec::new();
    for id in [ids[0], ids[2]] {
        ChangesRef::push_group(&mut changes, id, &encode_all(&samples()[4..]));
    }
    let mut several = record(PartitionSet::Several(PartitionList::new(&ids)), &changes);
    several.principal = 300;
    several.keyed = Some(KeyedRef {
        call: KeyRef {
            key: b"key-1",
            scope: b"",
            fingerprint: 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100,
        },
        args_hash: 0x1f1e_1d1c_1b1a_1918_1716_1514_1312_1110,
        result: b"ok",
    });
    let bytes = encode(&several);
    expect![[r#"
        57 05 26 07 98 55 11 cd 88 44 00 08 07 06 05 04
        03 02 01 03 01 00 04 00 e7 03 03 02 ac 02 05 6b
        65 79 2d 31 00 01 02 03 04 05 06 07 08 09 0a 0b
        0c 0d 0e 0f 10 11 12 13 14 15 16 17 18 19 1a 1b
        1c 1d 1e 1f 02 6f 6b 01 06 14 01 ff 14 02 09 e7
        07 06 14 01 ff 14 02 09"#]]
    .assert_eq(&hex(&bytes));
    assert_eq!(RecordRef::decode(&bytes), Ok(RecordRef::Changes(several)));
    let groups: Vec<_> = several.groups().map(|(id, bytes)| (id.0, bytes.len())).collect();
    assert_eq!(groups, [(1, 6), (999, 6)]);
}

#[test]
fn golden_checkpoint_mark() {
    let mark = RecordRef::Checkpoint(CheckpointMark {
        txn_id: TxnId::new(6, TxnId::MULTI_PARTITION),
        key_clock_us: 0x0102_0304,
    });
    let mut bytes = Vec::new();
    mark.encode(&mut bytes);
    expect![[r#"
        11 06 ff 1b 00 00 00 00 00 00 04 03 02 01 00 00
        00 00"#]]
    .assert_eq(&hex(&bytes));
    assert_eq!(RecordRef::decode(&bytes), Ok(mark));
}

#[test]
fn groups_grow_hold_changes_and_belong_to_the_record() {
    let ids = [PartitionId(1), PartitionId(4)];
    let delete = encode_all(&samples()[4..5]);
    let group = |id: u16| {
        let mut out = Vec::new();
        ChangesRef::push_group(&mut out, PartitionId(id), &delete);
        out
    };
    let decodes = |changes: &[u8]| {
        let set = PartitionSet::Several(PartitionList::new(&ids));
        RecordRef::decode(&encode(&record(set, changes))).is_ok()
    };
    assert!(decodes(&[group(1), group(4)].concat()) && decodes(&[]));
    assert!(!decodes(&[group(4), group(1)].concat()));
    assert!(!decodes(&[group(1), group(1)].concat()));
    assert!(!decodes(&group(3)));
    assert!(!decodes(&[1, 0]), "an empty group");
}

/// Told apart by their lengths, records are the same ones, and changes read in a hurry are the same changes.
#[test]
fn raw_records_are_those_that_are_read_whole() {
    let changes = encode_all(&samples());
    let list = [PartitionId(1), PartitionId(4)];
    let mut group = Vec::new();
    ChangesRef::push_group(&mut group, PartitionId(4), &changes);
    let several = PartitionSet::Several(PartitionList::new(&list));
    let removal = RemoveRef {
        txn_id: TxnId(9),
        name: "gone",
        destroyed: Default::default(),
    };
    let mut payload = Vec::new();
    record(PartitionSet::One(PartitionId(7)), &changes).encode(&mut payload);
    record(PartitionSet::One(PartitionId(3)), &changes).encode(&mut payload);
    record(several, &group).encode(&mut payload);
    for principal in [127, 128] {
        let changes = record(PartitionSet::One(PartitionId(7)), &changes);
        ChangesRef { principal, ..changes }.encode(&mut payload);
    }
    RecordRef::Remove(removal).encode(&mut payload);
    let mut raw = RawRecords::new(&payload);
    let mut plain = 0;
    for found in Records::new(&payload) {
        let (start, record, bytes) = found.expect("whole");
        let quick = raw.next().expect("as many").expect("whole");
        assert_eq!((quick.start, quick.end), (start, start + bytes.len()));
        assert_eq!(quick.decode().as_ref(), Ok(&record));
        match record {
            RecordRef::Changes(changes) => {
                assert_eq!(quick.changes(), Ok(changes));
                if let Some((txn_id, bytes)) = quick.plain_changes() {
                    let origin = PartitionSet::One(PartitionId(txn_id.origin()));
                    let found = (txn_id, origin, changes.keyed.is_some(), bytes);
                    let expected = (changes.txn_id, changes.partitions, false, changes.changes);
                    assert_eq!(found, expected);
                    plain += 1;
                }
            }
            _ => assert!(quick.changes().is_err() && quick.plain_changes().is_none()),
        }
    }
    // The usual form may name one of the first 127 callers.
    assert_eq!(plain, 2);
    assert_eq!(count_records(&payload), Ok(6));
    assert!(raw.next().is_none());
    let mut cut = RawRecords::new(&payload[..payload.len() - 1]);
    assert!(cut.by_ref().any(|record| record.is_err()) && cut.next().is_none());
}

/// The records of a run, decoded: parts in their order, each with whole changes, and what makes them count.
fn decoded(run: &ChangesRun<'_>) -> (Vec<Vec<u8>>, Vec<u8>) {
    let mut batch = RecordBatch::default();
    let parts = (0..run.parts()).map(|number| {
        batch.clear();
        run.push_part(number, &mut batch);
        assert!(batch.bytes().len() <= run.append_bytes_max());
        batch.bytes().to_vec()
    });
    let parts = parts.collect();
    batch.clear();
    run.push_last(&mut batch);
    assert!(batch.bytes().len() <= run.append_bytes_max());
    (parts, batch.bytes().to_vec())
}

#[test]
fn golden_parts() {
    let numbered = [
        Owned::Insert(0, 0, b"row".to_vec()),
        Owned::Delete(1, 255),
        Owned::Delete(1, 7),
    ];
    let (first, rest) = (encode_all(&numbered[..2]), encode_all(&numbered[2..]));
    let whole = [&first[..], &rest].concat();
    let one = record(PartitionSet::One(PartitionId(7)), &whole);
    let (parts, last) = decoded(&ChangesRun::new(one, None, None, first.len()));
    let golden = [
        expect![[r#"
            17 0c 00 07 98 55 11 cd 88 44 00 03 02 00 11 00
            00 03 72 6f 77 14 01 ff"#]],
        expect![[r#"
            10 0c 00 07 98 55 11 cd 88 44 00 03 02 01 14 01
            07"#]],
    ];
    assert_eq!(parts.len(), golden.len());
    golden
        .iter()
        .zip(&parts)
        .for_each(|(golden, part)| golden.assert_eq(&hex(part)));
    expect![[r#"
        15 05 10 07 98 55 11 cd 88 44 00 08 07 06 05 04
        03 02 01 03 02 02"#]]
    .assert_eq(&hex(&last));
    let part = RecordRef::decode(&parts[1]);
    let expected = PartRef {
        txn_id: one.txn_id,
        partitions: one.partitions,
        module_id: 3,
        procedure: 2,
        number: 1,
        changes: &rest,
    };
    assert_eq!(part, Ok(RecordRef::Part(expected)));
    let end = ChangesRef {
        principal: 0,
        parts: 2,
        changes: &[],
        ..one
    };
    assert_eq!(RecordRef::decode(&last), Ok(RecordRef::Changes(end)));
    // Earlier formats have neither, and no part is empty.
    let empty = [&[parts[1][0] - 3], &parts[1][1..parts[1].len() - 3]].concat();
    let refused = RecordRef::decode(&empty).expect_err("it holds nothing");
    assert_eq!(refused.what, "changes of a part");
}

fn change() -> impl Strategy<Value = Owned> {
    let row = || vec(any::<u8>(), 0..200);
    let column = proptest::option::of(vec(any::<u8>(), 0..20));
    let columns = proptest::collection::btree_map(0u16..256, column, 1..8);
    prop_oneof![
        (0u16..4096, any::<u64>(), row()).prop_map(|(t, n, r)| Owned::Insert(t, n, r)),
        (0u16..4096, any::<u64>(), row()).prop_map(|(t, n, r)| Owned::Replace(t, n, r)),
        (0u16..4096, any::<u64>(), columns).prop_map(|(t, n, c)| Owned::Patch(t, n, c.into_iter().collect())),
        (0u16..4096, any::<u64>()).prop_map(|(t, n)| Owned::Delete(t, n)),
    ]
}

proptest! {
    #[test]
    fn changes_round_trip(
        changes in vec(change(), 0..12),
        key in proptest::option::of((vec(any::<u8>(), 1..=255), any::<u128>(), vec(any::<u8>(), 0..50))),
        all: bool,
        principal in prop_oneof![Just(0), 1u32..300],
    ) {
        let mut bytes = encode_all(&changes);
        let set = if all { PartitionSet::All } else { PartitionSet::One(PartitionId(3)) };
        if all && !bytes.is_empty() {
            let mut group = Vec::new();
            ChangesRef::push_group(&mut group, PartitionId(5), &bytes);
            bytes = group;
        }
        let mut sample = record(set, &bytes);
        sample.principal = principal;
        sample.keyed = key.as_ref().map(|(key, fingerprint, result)| KeyedRef {
            call: KeyRef {
                key,
                scope: &result[..],
                fingerprint: *fingerprint,
            },
            args_hash: !fingerprint,
            result,
        });
        let encoded = encode(&sample);
        prop_assert_eq!(RecordRef::decode(&encoded), Ok(RecordRef::Changes(sample)));
        for (_, group) in sample.groups() {
            let found: Result<Vec<_>, _> = Changes::new(group).collect();
            let found = found.expect("checked");
            prop_assert_eq!(found.len(), changes.len());
            prop_assert!(changes.iter().zip(&found).all(|(a, b)| a.is(b)));
        }
    }

    /// All parts together are the changes, by partition, however they are cut.
    #[test]
    fn parts_are_the_changes_cut_between_two(
        changes in vec((0u16..3, change()), 1..40),
        one: bool,
        part_bytes in 1usize..600,
        keyed: bool,
    ) {
        let ids = [PartitionId(0), PartitionId(4), PartitionId(9)];
        let of = |at: usize| {
            let own = changes.iter().filter(|(partition, _)| one || *partition as usize == at);
            encode_all(&own.map(|(_, change)| change.clone()).collect::<Vec<_>>())
        };
        let mut bytes = Vec::new();
        match one {
            true => bytes = of(0),
            false => (0..3).for_each(|at| {
                let own = of(at);
                if !own.is_empty() {
                    ChangesRef::push_group(&mut bytes, ids[at], &own);
                }
            }),
        }
        let set = match one {
            true => PartitionSet::One(PartitionId(3)),
            false => PartitionSet::Several(PartitionList::new(&ids)),
        };
        let mut whole = record(set, &bytes);
        whole.keyed = keyed.then_some(KeyedRef {
            call: KeyRef { key: b"key", scope: b"", fingerprint: 7 },
            args_hash: 8,
            result: b"result",
        });
        let run = ChangesRun::new(whole, None, None, part_bytes);
        let (parts, last) = decoded(&run);
        prop_assert_eq!(run.records() as usize, parts.len() + 1);
        let (mut found, mut number) = (std::collections::BTreeMap::<_, Vec<u8>>::new(), 0);
        for part in &parts {
            let Ok(RecordRef::Part(part)) = RecordRef::decode(part) else {
                panic!("an own part");
            };
            prop_assert_eq!((part.number, part.txn_id, part.partitions), (number, whole.txn_id, set));
            for (id, own) in part.groups() {
                prop_assert!(found.last_key_value().is_none_or(|(last, _)| *last <= id));
                found.entry(id).or_default().extend_from_slice(own);
                let is_one = Changes::new(own).count() == 1;
                prop_assert!(own.len() <= part_bytes || is_one);
            }
            number += 1;
        }
        let expected: std::collections::BTreeMap<_, _> = whole.groups().map(|(id, own)| (id, own.to_vec())).collect();
        prop_assert_eq!(found, expected);
        let ends = ChangesRef { parts: number, changes: &[], ..whole };
        if number > 0 {
            prop_assert_eq!(RecordRef::decode(&last), Ok(RecordRef::Changes(ends)));
        }
    }

    /// Whatever decodes was the one encoding of its value.
    #[test]
    fn mutated_changes_never_panic_and_have_one_form(at in 0usize..100, value: u8, cut in 0usize..12) {
        let changes = encode_all(&samples());
        let mut bytes = encode(&record(PartitionSet::One(PartitionId(7)), &changes));
        let at = at % bytes.len();
        bytes[at] = value;
        bytes.truncate(bytes.len() - cut / 4);
        if let Ok(record) = RecordRef::decode(&bytes) {
            let mut again = Vec::new();
            record.encode(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn arbitrary_changes_have_one_form(bytes in vec(any::<u8>(), 0..60)) {
        let mut again = Vec::new();
        let mut is_whole = true;
        for change in Changes::new(&bytes) {
            match change {
                Ok(change) => change.encode(&mut again),
                Err(_) => is_whole = false,
            }
        }
        prop_assert!(!is_whole || again == bytes);
    }
}

/// A command and the changes of one transaction.
fn two_forms() -> (CommandRef<'static>, ChangesRef<'static>) {
    let changes = record(PartitionSet::One(PartitionId(7)), &[0x14, 1, 7]);
    let command = CommandRef {
        module_id: changes.module_id,
        procedure: changes.procedure,
        digest: changes.digest,
        ..CommandRef::new(changes.txn_id, changes.partitions, b"args")
    };
    (command, changes)
}

#[test]
fn golden_stand_in() {
    let (command, changes) = two_forms();
    let mut batch = RecordBatch::default();
    batch.push_forms(Some(&command), &changes, Some(TwoForms::CommandHere));
    assert_eq!(
        (batch.count(), batch.changes_count(), batch.stand_ins_count()),
        (1, 0, 0)
    );
    let own = encode_record(&RecordRef::Command(command));
    assert_eq!(batch.bytes(), own);
    let shipped = batch.shipped().expect("another form").to_vec();
    assert!(is_stand_in(&shipped) && !is_stand_in(&own));
    assert!(shipped.len() <= encode(&changes).len() + STAND_IN_HEAD_BYTES_MAX);
    expect![[r#"
        22 0d 20 cb 70 60 97 98 00 2c 19 17 05 00 07 98
        55 11 cd 88 44 00 08 07 06 05 04 03 02 01 03 02
        14 01 07"#]]
    .assert_eq(&hex(&shipped));
    // A reader takes it for the record in it, and the counts are those of the record that it stands for.
    assert_eq!(RecordRef::decode(&shipped), Ok(RecordRef::Changes(changes)));
    assert_eq!(History(9).then(&shipped), History(9).then_plain(&own));
    let counts = RecordCounts::of(&shipped);
    let expected = RecordCounts {
        all: 1,
        changes: 1,
        stand_ins: 1,
    };
    assert_eq!(counts, Ok(expected));
    // The other way round, behind and before records that are the same in both logs.
    let mut batch = RecordBatch::default();
    batch.push(&RecordRef::Void);
    batch.push_forms(Some(&command), &changes, Some(TwoForms::ChangesHere));
    batch.push_command(&command);
    let shipped = batch.shipped().expect("another form");
    assert_eq!(History(9).then(shipped), History(9).then_plain(batch.bytes()));
    let kinds: Vec<_> = RawRecords::new(shipped)
        .map(|raw| raw.expect("whole").decode().expect("whole").kind())
        .collect();
    assert_eq!(kinds, [RecordKind::Void, RecordKind::Command, RecordKind::Command]);
    batch.clear();
    assert!(batch.shipped().is_none() && batch.is_empty());
}

fn encode_record(record: &RecordRef<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    record.encode(&mut out);
    out
}

/// The decoder skips origins by their number, however long they are, so that a block of forged ones takes no time.
#[test]
fn bytes_that_a_long_origin_adds_are_found_without_it() {
    let (command, changes) = two_forms();
    for bytes in [65_400, 65_536, 65_700, 1 << 20] {
        let args = vec![bytes as u8; bytes];
        let mut batch = RecordBatch::default();
        batch.push_forms(
            Some(&CommandRef { args: &args, ..command }),
            &changes,
            Some(TwoForms::CommandHere),
        );
        let shipped = batch.shipped().expect("another form");
        assert_eq!(
            History(9).then(shipped),
            History(9).then_plain(batch.bytes()),
            "{bytes}"
        );
    }
    let mut batch = RecordBatch::default();
    batch.push_forms(Some(&command), &changes, Some(TwoForms::CommandHere));
    let good = batch.shipped().expect("another form");
    // Its origin takes 16 MiB, as it says.
    let longest = RECORD_BYTES_MAX as u32;
    let told = [
        longest as u8 | 0x80,
        (longest >> 7) as u8 | 0x80,
        (longest >> 14) as u8 | 0x80,
        (longest >> 21) as u8,
    ];
    let mut forged = good.to_vec();
    forged.splice(10..11, told);
    forged[0] += 3;
    assert_eq!(RecordCounts::of(&forged).map(|counts| counts.stand_ins), Ok(1));
    let block = forged.repeat((1 << 20) / forged.len());
    assert_ne!(
        History(0).then(&block),
        History(0).then(&good.repeat((1 << 20) / forged.len()))
    );
}

/// No bit of one can flip unseen, and only commands and changes stand for others.
#[test]
fn a_stand_in_is_held_to_what_it_stands_for_and_to_what_it_holds() {
    let (command, changes) = two_forms();
    let mut batch = RecordBatch::default();
    batch.push_forms(Some(&command), &changes, Some(TwoForms::CommandHere));
    let shipped = batch.shipped().expect("another form").to_vec();
    let history = History(1).then_plain(batch.bytes());
    for bit in 0..8 * shipped.len() {
        let mut harmed = shipped.clone();
        harmed[bit / 8] ^= 1 << (bit % 8);
        let is_seen = RecordCounts::of(&harmed).is_err() || History(1).then(&harmed) != history;
        assert!(is_seen, "bit {bit}");
    }
    for cut in 0..shipped.len() {
        assert!(RecordRef::decode(&shipped[..cut]).is_err());
    }
    // The record in it is replaced by one of another kind, also by one that stands for another itself.
    for kind in (0..=255).filter(|kind| ![4, 5].contains(kind)) {
        let mut other = shipped.clone();
        other[12] = kind;
        let refused = RecordRef::decode(&other).expect_err("it stands for nothing");
        assert_eq!(refused.what, "a record that stands for another");
        assert!(RawRecords::new(&other).next().is_some_and(|raw| raw.is_err()));
    }
}

proptest! {
    /// Histories agree whatever form each node has, for origins of any length.
    #[test]
    fn histories_agree_in_either_form(args in vec(vec(any::<u8>(), 0..3_000), 1..8), apart in vec(any::<bool>(), 8), before: u32) {
        let (command, changes) = two_forms();
        let mut batch = RecordBatch::default();
        for (args, is_apart) in args.iter().zip(apart) {
            let command = CommandRef { args, ..command };
            match is_apart {
                true => batch.push_forms(Some(&command), &changes, Some(TwoForms::CommandHere)),
                false => batch.push_command(&command),
            }
        }
        let shipped = batch.shipped().unwrap_or(batch.bytes());
        prop_assert_eq!(History(before).then(shipped), History(before).then_plain(batch.bytes()));
        let mut again = RecordBatch::default();
        prop_assert_eq!(again.push_encoded(shipped), Ok(()));
        prop_assert_eq!(again.count(), batch.count());
    }
}
