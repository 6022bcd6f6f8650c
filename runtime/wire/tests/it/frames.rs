//! Frames between nodes: golden bytes, one form for each value, and no bytes that make the decoder panic.

use expect_test::{Expect, expect};
use proptest::{collection::vec, prelude::*};
use reprise_base::{Epoch, Lsn, PartitionId, Safety};
use reprise_wire::*;

fn hex(bytes: &[u8]) -> String {
    let lines = bytes.chunks(16).map(|line| {
        let pairs: Vec<_> = line.iter().map(|b| format!("{b:02x}")).collect();
        pairs.join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn check_golden(frame: Frame<'_>, golden: Expect) {
    let bytes = frame.encode();
    golden.assert_eq(&hex(&bytes));
    assert_eq!(Frame::decode(&bytes), Ok(frame));
}

const IN: SetPart = SetPart {
    is_in: true,
    is_in_next: true,
};

fn hello(name: &str) -> Hello<'_> {
    Hello {
        protocol: SHIP_PROTOCOL,
        wants: Wants::Log,
        format: FORMAT_VERSION,
        database_id: *b"0123456789abcdef",
        partitions: 0x0102,
        position: (Epoch::new(3, 0x41a7), Lsn(0x1122_3344_5566), History(0xa1a2_a3a4)),
        ticket: [0xee; 16],
        name,
    }
}

fn group(records: &[u8]) -> GroupFrame<'_> {
    GroupFrame {
        epoch: Epoch::new(3, 0x41a7),
        first: Lsn(7),
        end: Lsn(9),
        history: History(0xa1a2_a3a4),
        records,
    }
}

fn progress() -> Progress {
    Progress {
        sent_ns: 1,
        received: Lsn(100),
        persisted: Lsn(90),
        replayed: Lsn(80),
        view: Lsn(70),
        room_bytes: 4 << 20,
        epoch: Epoch::new(3, 0x41a7),
        saved_status: 6,
    }
}

#[test]
fn golden_greetings() {
    check_golden(
        Frame::Hello(hello("s1")),
        expect![[r#"
            84 da fd ea 01 00 00 00 08 00 00 00 09 00 00 00
            30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66
            ee ee ee ee ee ee ee ee ee ee ee ee ee ee ee ee
            03 00 00 00 a7 41 a4 a3 a2 a1 66 55 44 33 22 11
            00 00 02 01 00 02 73 31"#]],
    );
    check_golden(
        Frame::Welcome(Welcome {
            epoch: Epoch::new(3, 0x41a7),
            durable: Lsn(0x1122),
            safety: Safety::Quorum,
            primary: "http://p",
        }),
        expect![[r#"
            49 08 32 12 02 00 00 00 03 00 00 00 a7 41 22 11
            00 00 00 00 00 00 04 00 08 00 68 74 74 70 3a 2f
            2f 70"#]],
    );
    check_golden(
        Frame::Refused(RefusalMessage {
            refusal: StandbyRefusal::Diverged,
            reason: "why",
        }),
        expect!["66 d3 a8 75 03 00 00 00 07 00 03 00 77 68 79"],
    );
}

fn compared_table() -> ComparedTable {
    ComparedTable {
        partition: PartitionId(1),
        table: 2,
        schema: 3,
        rows: 4,
        digest: 0x1122_3344_5566_7788,
    }
}

#[test]
fn golden_comparisons() {
    let named = ComparePoint {
        number: 7,
        lsn: Lsn(0x1122),
    };
    check_golden(
        Frame::Named(named),
        expect![[r#"
        41 00 2e e4 0b 00 00 00 07 00 00 00 00 00 00 00
        22 11 00 00 00 00 00 00"#]],
    );
    let tables = TableDigests::pack(&[compared_table()]);
    check_golden(
        Frame::Digests(TableDigests::new(7, true, &tables)),
        expect![[r#"
        3f 77 26 32 0c 00 00 00 07 00 00 00 00 00 00 00
        01 00 01 00 00 00 00 00 01 00 02 00 00 00 00 00
        03 00 00 00 00 00 00 00 04 00 00 00 00 00 00 00
        88 77 66 55 44 33 22 11"#]],
    );
    let compared = ComparisonResult {
        number: 7,
        lsn: Lsn(0x1122),
        outcome: ComparisonOutcome::Differs,
        what: "why",
    };
    check_golden(
        Frame::Compared(compared),
        expect![[r#"
        0d a3 a9 65 0d 00 00 00 07 00 00 00 00 00 00 00
        22 11 00 00 00 00 00 00 01 00 03 00 77 68 79"#]],
    );
}

fn crc32c(bytes: &[u8]) -> u32 {
    let crc = bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 * (crc & 1)))
    });
    !crc
}

/// A frame whose bytes were changed and sealed again.
fn forged(frame: Frame<'_>, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = frame.encode();
    change(&mut bytes);
    let crc = crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn comparisons_that_no_encoder_writes_are_refused() {
    let named = Frame::Named(ComparePoint { number: 7, lsn: Lsn(1) });
    let tables = TableDigests::pack(&[compared_table()]);
    let digests = Frame::Digests(TableDigests::new(7, true, &tables));
    let equal = Frame::Compared(ComparisonResult {
        number: 7,
        lsn: Lsn(1),
        outcome: ComparisonOutcome::Equal,
        what: "",
    });
    let refused = [
        forged(named, |bytes| bytes.push(0)),
        forged(digests, |bytes| bytes[16] = 2),
        forged(digests, |bytes| bytes[18] = 2),
        forged(digests, |bytes| bytes[28] = 1),
        forged(equal, |bytes| bytes[24] = 2),
        forged(equal, |bytes| {
            bytes[26] = 1;
            bytes.push(b'x'); // a difference of equal tables
        }),
    ];
    for (number, bytes) in refused.iter().enumerate() {
        assert!(Frame::decode(bytes).is_err(), "{number}");
    }
}

#[test]
fn golden_files() {
    let chunk = FileChunk {
        path: "log/a",
        offset: 0x1122,
        sum: None,
        bytes: b"part",
    };
    check_golden(
        Frame::File(chunk),
        expect![[r#"
        c2 c8 ed be 04 00 00 00 22 11 00 00 00 00 00 00
        00 00 05 00 00 00 00 00 00 00 00 00 00 00 00 00
        00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
        00 00 00 00 6c 6f 67 2f 61 70 61 72 74"#]],
    );
    let sum = Some([0xaa; 32]);
    check_golden(
        Frame::File(FileChunk { sum, ..chunk }),
        expect![[r#"
        c3 0d f4 fd 04 00 00 00 22 11 00 00 00 00 00 00
        01 00 05 00 aa aa aa aa aa aa aa aa aa aa aa aa
        aa aa aa aa aa aa aa aa aa aa aa aa aa aa aa aa
        aa aa aa aa 6c 6f 67 2f 61 70 61 72 74"#]],
    );
    check_golden(
        Frame::FilesEnd(FilesEnd {
            count: 2,
            epoch: Epoch::new(3, 0x41a7),
            lsn: Lsn(0x1122),
        }),
        expect![[r#"
            24 37 3a a8 05 00 00 00 02 00 00 00 03 00 00 00
            a7 41 22 11 00 00 00 00 00 00"#]],
    );
}

#[test]
fn golden_streams() {
    check_golden(
        Frame::Group(group(b"\x03ab\x03cd")),
        expect![[r#"
            a9 83 00 9e 06 00 00 00 03 00 00 00 a4 a3 a2 a1
            07 00 00 00 00 00 00 00 09 00 00 00 00 00 00 00
            09 00 a7 41 06 00 00 00 03 61 62 03 63 64"#]],
    );
    check_golden(
        Frame::Heartbeat(Heartbeat {
            echo_ns: 1,
            durable: Lsn(3),
            committed: Lsn(2),
            behind_bytes: 5,
        }),
        expect![[r#"
            09 77 0e 1e 07 00 00 00 01 00 00 00 00 00 00 00
            03 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00
            05 00 00 00 00 00 00 00"#]],
    );
    let packed = packed_epochs(&[(1, 0), (3, 9)]);
    check_golden(
        Frame::Epochs(Epochs::new(true, Lsn(10), &packed)),
        expect![[r#"
            97 21 2d 8d 09 00 00 00 0a 00 00 00 00 00 00 00
            01 00 02 00 00 00 00 00 01 00 00 00 05 00 07 00
            00 00 00 00 00 00 00 00 00 00 03 00 00 00 05 00
            07 00 00 00 09 00 00 00 00 00 00 00"#]],
    );
    let packed = packed_laggards(&[("s2", 9), ("s3", 0x1122)]);
    check_golden(
        Frame::Standing(SyncUpdate::new(6, true, IN, &packed)),
        expect![[r#"
            b5 2c f3 75 0a 00 00 00 06 00 00 00 00 00 00 00
            07 00 02 00 00 00 00 00 09 00 00 00 00 00 00 00
            01 02 00 00 73 32 22 11 00 00 00 00 00 00 04 02
            00 00 73 33"#]],
    );
    check_golden(
        Frame::Progress(progress()),
        expect![[r#"
            28 aa c9 4e 08 00 00 00 01 00 00 00 00 00 00 00
            64 00 00 00 00 00 00 00 5a 00 00 00 00 00 00 00
            50 00 00 00 00 00 00 00 46 00 00 00 00 00 00 00
            00 00 40 00 00 00 00 00 03 00 00 00 a7 41 00 00
            06 00 00 00 00 00 00 00"#]],
    );
}

#[test]
fn frames_that_no_encoder_writes_are_refused() {
    let refused = |mut bytes: Vec<u8>, what: &str| {
        // The checksum is right, so the sender meant these bytes.
        let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes[4..]) as u32;
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        let error = Frame::decode(&bytes).expect_err(what);
        assert!(error.to_string().contains(what), "{error}");
    };
    let with = |frame: Frame<'_>, at: usize, byte: u8| {
        let mut bytes = frame.encode();
        bytes[at] = byte;
        bytes
    };
    refused(with(Frame::Progress(progress()), 4, 99), "kind of a frame");
    refused(with(Frame::Progress(progress()), 6, 1), "behind a frame's kind");
    refused(with(Frame::Progress(progress()), 24, 101), "a standby's progress");
    refused(with(Frame::Hello(hello("s1")), 10, 3), "what a standby wants");
    let welcome = Welcome {
        epoch: Epoch::new(3, 0x41a7),
        durable: Lsn(7),
        safety: Safety::VerySafe,
        primary: "",
    };
    refused(with(Frame::Welcome(welcome), 22, 6), "safety level in a welcome");
    refused(with(Frame::Hello(hello("s1")), 69, 3), "length of a name");
    refused(with(Frame::Hello(hello("s1")), 70, 0xff), "text of a frame");
    refused(with(Frame::Group(group(b"ab")), 24, 7), "end of a group");
    refused(with(Frame::Group(group(b"ab")), 36, 1), "bytes of a group's records");
    let refusal = RefusalMessage {
        refusal: StandbyRefusal::Name,
        reason: "",
    };
    refused(with(Frame::Refused(refusal), 8, 0), "kind of a refusal");
    refused(
        Frame::Heartbeat(Heartbeat::default()).encode()[..39].to_vec(),
        "length of a heartbeat",
    );
    let packed = packed_epochs(&[(1, 0), (3, 9)]);
    let epochs = Frame::Epochs(Epochs::new(true, Lsn(10), &packed));
    refused(with(epochs, 16, 2), "head of epochs");
    refused(with(epochs, 18, 1), "length of epochs");
    refused(with(epochs, 20, 1), "bytes before epochs");
    refused(with(epochs, 24, 3), "a list of epochs");
    refused(with(Frame::Progress(progress()), 62, 1), "behind a progress's epoch");
    let packed = packed_laggards(&[("s2", 9)]);
    let standing = Frame::Standing(SyncUpdate::new(6, true, IN, &packed));
    refused(with(standing, 16, 8), "flags of a standing");
    refused(with(standing, 18, 2), "number of a standing's standbys");
    refused(with(standing, 20, 1), "bytes before a standing's standbys");
    refused(with(standing, 32, 8), "flags of a standing's standby");
    refused(with(standing, 33, 0), "length of a name");
    refused(with(standing, 33, 3), "length of a standing's standby");
    refused(with(standing, 35, 3), "length of a URL");
    let many = packed_laggards(&[("s2", 9); 17]).repeat(2);
    refused(
        with(Frame::Standing(SyncUpdate::new(6, true, IN, &many)), 18, 17),
        "at most 16",
    );
    let chunk = FileChunk {
        path: "a",
        offset: 0,
        sum: None,
        bytes: b"",
    };
    refused(with(Frame::File(chunk), 20, 1), "checksum of an unfinished file");
    refused(with(Frame::File(chunk), 18, 0), "length of a path");
    assert!(Frame::decode(&[]).is_err());
}

fn packed_laggards(laggards: &[(&str, u64)]) -> Vec<u8> {
    SyncUpdate::pack(laggards.iter().map(|(name, from)| MemberSeen {
        name,
        url: "",
        from: Lsn(*from),
        is_in_sync: from % 2 == 1,
        set: SetPart {
            is_in: from % 3 == 1,
            is_in_next: from % 5 == 1,
        },
    }))
}

#[test]
fn members_come_back_in_their_order() {
    let packed = packed_laggards(&[("s2", 9), ("s1", 0)]);
    let bytes = Frame::Standing(SyncUpdate::new(1, false, IN, &packed)).encode();
    let Ok(Frame::Standing(read)) = Frame::decode(&bytes) else {
        panic!("it is a standing");
    };
    let laggards: Vec<_> = read.members().map(|seen| (seen.name, seen.from)).collect();
    assert!(!read.in_sync && read.set == IN);
    assert_eq!(laggards, [("s2", Lsn(9)), ("s1", Lsn(0))]);
}

fn packed_epochs(starts: &[(u32, u64)]) -> Vec<u8> {
    Epochs::pack(starts.iter().map(|(epoch, start)| EpochSeen {
        epoch: Epoch::new(*epoch, 5),
        start: Lsn(*start),
        history: History(7),
    }))
}

#[test]
fn the_newest_epochs_fit_into_a_frame() {
    let all: Vec<_> = (1..2_000).map(|epoch| (epoch, u64::from(epoch))).collect();
    let packed = packed_epochs(&all);
    let bytes = Frame::Epochs(Epochs::new(false, Lsn(5_000), &packed)).encode();
    let Ok(Frame::Epochs(read)) = Frame::decode(&bytes) else {
        panic!("it is a list of epochs");
    };
    let epochs: Vec<_> = read.epochs().map(|seen| (seen.epoch.count(), seen.start.0)).collect();
    assert_eq!(epochs, all[all.len() - 1024..]);
    assert!(!read.is_same && read.durable == Lsn(5_000));
}

/// Parts of frames, from which one of each kind is made.
#[derive(Debug)]
struct Parts {
    numbers: [u64; 8],
    /// Packed.
    laggards: Vec<u8>,
    text: String,
    bytes: Vec<u8>,
}

fn parts() -> impl Strategy<Value = Parts> {
    (any::<[u64; 8]>(), "[a-zé/]{0,32}", vec(any::<u8>(), 1..200)).prop_map(|(mut numbers, text, bytes)| {
        numbers.sort_unstable();
        let laggards = numbers.map(|from| (&*text, from));
        let count = if text.is_empty() { 0 } else { numbers[0] as usize % 8 };
        Parts {
            numbers,
            laggards: packed_laggards(&laggards[..count]),
            text,
            bytes,
        }
    })
}

fn epoch(number: u64) -> Epoch {
    Epoch::new(number as u32, (number >> 32) as u16)
}

fn frames(parts: &Parts) -> Vec<Frame<'_>> {
    let n = &parts.numbers;
    let ids: [u8; 16] = std::array::from_fn(|at| n[at % 8] as u8);
    let hello = Hello {
        protocol: n[0] as u16,
        wants: if n[1].is_multiple_of(2) {
            Wants::Log
        } else {
            Wants::Files
        },
        format: n[2] as u32,
        database_id: ids,
        partitions: n[3] as u16,
        position: (epoch(n[4]), Lsn(n[5]), History(n[6] as u32)),
        ticket: ids,
        name: &parts.text,
    };
    let mut all = vec![
        Frame::Hello(hello),
        Frame::Welcome(Welcome {
            epoch: epoch(n[0]),
            durable: Lsn(n[1]),
            safety: Safety::ALL[(n[2] % 6) as usize],
            primary: &parts.text,
        }),
        Frame::Refused(RefusalMessage {
            refusal: StandbyRefusal::Gone,
            reason: &parts.text,
        }),
        Frame::File(FileChunk {
            path: if parts.text.is_empty() { "a" } else { &parts.text },
            offset: n[0],
            sum: n[1].is_multiple_of(2).then_some([n[2] as u8; 32]),
            bytes: &parts.bytes,
        }),
        Frame::FilesEnd(FilesEnd {
            count: n[0] as u32,
            epoch: epoch(n[1]),
            lsn: Lsn(n[2]),
        }),
        Frame::Heartbeat(Heartbeat {
            echo_ns: n[0],
            durable: Lsn(n[2]),
            committed: Lsn(n[3]),
            behind_bytes: n[4],
        }),
        Frame::Standing(SyncUpdate::new(n[0], n[1].is_multiple_of(2), IN, &parts.laggards)),
        Frame::Progress(Progress {
            sent_ns: n[6],
            received: Lsn(n[3]),
            persisted: Lsn(n[2]),
            replayed: Lsn(n[1]),
            view: Lsn(n[0]),
            room_bytes: n[4],
            epoch: epoch(n[5]),
            saved_status: n[6],
        }),
    ];
    if n[0] < n[1] {
        all.push(Frame::Group(GroupFrame {
            epoch: epoch(n[2]),
            first: Lsn(n[0]),
            end: Lsn(n[1]),
            history: History(n[3] as u32),
            records: &parts.bytes,
        }));
    }
    all
}

proptest! {
    #[test]
    fn frames_come_back_as_they_were_and_no_other_way(parts in parts(), at in any::<usize>(), bit in 0..8u8) {
        for frame in frames(&parts) {
            let mut bytes = frame.encode();
            prop_assert_eq!(Frame::decode(&bytes), Ok(frame));
            prop_assert!(Frame::decode(&bytes[..bytes.len() - 1]).is_err());
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            prop_assert!(Frame::decode(&bytes).is_err(), "bit {} of byte {}", bit, at);
        }
    }

    #[test]
    fn any_bytes_decode_or_are_refused(bytes in vec(any::<u8>(), 0..200)) {
        let _ = Frame::decode(&bytes);
    }
}

#[test]
fn a_text_that_is_too_long_is_cut() {
    let reason = "é".repeat(FRAME_TEXT_BYTES_MAX);
    let refused = RefusalMessage {
        refusal: StandbyRefusal::Gone,
        reason: &reason,
    };
    let bytes = Frame::Refused(refused).encode();
    let Ok(Frame::Refused(found)) = Frame::decode(&bytes) else {
        panic!("a refusal");
    };
    assert_eq!(found.reason, &reason[..FRAME_TEXT_BYTES_MAX]);
}
