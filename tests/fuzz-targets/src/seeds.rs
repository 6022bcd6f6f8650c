//! Inputs that are good, made by the encoders: where changing them begins.

use std::{sync::Arc, time::Duration};

use reprise_abi::Field;
use reprise_base::{Epoch, Lsn, PartitionId, Safety, TxnId};
use reprise_checkpoint::Checkpoints;
use reprise_env::{Disk, RealClock, SimDisk};
use reprise_log::{Log, LogConfig};
use reprise_wire::{
    Change, ChangesRef, CheckpointBlockKind, CheckpointDatabase, CheckpointHeader, CheckpointKeyRef, CheckpointMark,
    CheckpointModuleRef, CheckpointPartition, CheckpointPrincipals, CheckpointQuarantine, CommandRef, ComparePoint,
    ComparedTable, ComparisonOutcome, ComparisonResult, ControlRef, DeployRef, DropTableRef, FORMAT_VERSION, FileChunk,
    FilesEnd, Frame, Genesis, GroupFrame, Heartbeat, Hello, History, KeyRef, KeyedRef, MemberSeen, PartRef,
    PartitionList, PartitionSet, PatchWriter, PrincipalRef, Progress, QuarantineRef, RecordBatch, RecordRef,
    RefusalMessage, RemoveRef, SHIP_PROTOCOL, SetPart, StandbyRefusal, SyncUpdate, TableDigests, TwoForms, Wants,
    Welcome, push_checkpoint_row,
};

use crate::values::{LAYOUTS, SCALARS};

const TXN: TxnId = TxnId(376_281_619_409_944_580);

/// Good inputs of a target. None if only the kept inputs are known.
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    match target {
        "segment" => vec![segment()],
        "blocks" => {
            let payload = records().concat();
            let length = (payload.len() as u16).to_le_bytes();
            vec![[&length[..], &payload, &length, &payload].concat()]
        }
        "block" => {
            let file = segment();
            vec![file[..512].to_vec(), file[512..].to_vec()]
        }
        "records" => [records(), vec![records().concat()]].concat(),
        "changes" => vec![changes()],
        "frame" => frames(),
        "checkpoint" => vec![checkpoint()],
        "checkpoint_parts" => checkpoint_parts(),
        "row" => rows(),
        "columns" => vec![[&[2, 1, 17][..], &rows()[2][1..], &7i64.to_le_bytes()].concat()],
        "key" => keys(),
        "value" => values(),
        #[cfg(feature = "engine")]
        _ => requests(target),
        #[cfg(not(feature = "engine"))]
        _ => Vec::new(),
    }
}

/// One of each kind.
fn frames() -> Vec<Vec<u8>> {
    let hello = Hello {
        protocol: SHIP_PROTOCOL,
        wants: Wants::Log,
        format: FORMAT_VERSION,
        database_id: [7; 16],
        partitions: 8,
        position: (Epoch::new(1, 0), Lsn(9), History(3)),
        ticket: [9; 16],
        name: "s1",
    };
    let welcome = Welcome {
        epoch: Epoch::new(1, 0),
        durable: Lsn(9),
        safety: Safety::TwoSafe,
        primary: "http://p",
    };
    let refused = RefusalMessage {
        refusal: StandbyRefusal::Gone,
        reason: "why",
    };
    let file = FileChunk {
        path: "log/a",
        offset: 3,
        sum: Some([5; 32]),
        bytes: b"part",
    };
    let end = FilesEnd {
        count: 2,
        epoch: Epoch::new(1, 0),
        lsn: Lsn(9),
    };
    let group = GroupFrame {
        epoch: Epoch::new(1, 0),
        first: Lsn(9),
        end: Lsn(11),
        history: History(3),
        records: b"\x03ab\x03cd",
    };
    let laggards = SyncUpdate::pack([("s2", 9), ("s3", 0)].into_iter().map(|(name, from)| MemberSeen {
        name,
        url: "http://s:1",
        from: Lsn(from),
        is_in_sync: from > 1,
        set: SetPart {
            is_in: true,
            is_in_next: from > 1,
        },
    }));
    let tables = TableDigests::pack(&[ComparedTable {
        partition: PartitionId(1),
        table: 2,
        schema: 3,
        rows: 4,
        digest: 6,
    }]);
    let all = [
        Frame::Hello(hello),
        Frame::Welcome(welcome),
        Frame::Refused(refused),
        Frame::File(file),
        Frame::FilesEnd(end),
        Frame::Group(group),
        Frame::Heartbeat(Heartbeat::default()),
        Frame::Progress(Progress::default()),
        Frame::Standing(SyncUpdate::new(2, true, SetPart::default(), &laggards)),
        Frame::Named(ComparePoint { number: 1, lsn: Lsn(9) }),
        Frame::Digests(TableDigests::new(1, true, &tables)),
        Frame::Compared(ComparisonResult {
            number: 1,
            lsn: Lsn(9),
            outcome: ComparisonOutcome::Differs,
            what: "a table",
        }),
    ];
    all.iter().map(Frame::encode).collect()
}

fn changes() -> Vec<u8> {
    let mut out = Vec::new();
    let row = b"a row of bytes".as_slice();
    let (table, number) = (1, 9);
    Change::Insert { table, number: 3, row }.encode(&mut out);
    Change::Replace {
        table,
        number: 1 << 30,
        row,
    }
    .encode(&mut out);
    let mut patch = PatchWriter::begin(&mut out, 2, number, 2);
    patch.column(0, Some(&[1; 8]));
    patch.column(3, None);
    patch.finish();
    Change::Delete { table, number }.encode(&mut out);
    out
}

fn records() -> Vec<Vec<u8>> {
    let (several, changes) = ([PartitionId(1), PartitionId(4)], changes());
    let call = KeyRef {
        key: b"key",
        scope: b"token",
        fingerprint: 1 << 100,
    };
    let command = |partitions, keyed: Option<KeyRef<'static>>| CommandRef {
        txn_id: TXN,
        partitions,
        module_id: 3,
        procedure: 2,
        digest: 7,
        principal: keyed.map_or(0, |_| 3),
        keyed,
        args: b"arguments",
    };
    let called = command(PartitionSet::Several(PartitionList::new(&several)), None);
    let keyed = KeyedRef {
        call: KeyRef { scope: b"", ..call },
        args_hash: 1 << 99,
        result: b"result",
    };
    let changed = ChangesRef {
        module_id: 1,
        procedure: 1,
        digest: 5,
        keyed: Some(keyed),
        ..ChangesRef::new(TXN, PartitionSet::One(PartitionId(2)), &changes)
    };
    let records = [
        RecordRef::Genesis(Genesis {
            database_id: *b"sixteen bytes id",
            secret: [1, 2],
            partitions: 5,
            created_us: 1_750_000_000_000_000,
        }),
        RecordRef::Deploy(DeployRef {
            txn_id: TXN,
            module_id: 0,
            version: 1,
            name: "module",
            hash: [7; 32],
            wasm: b"\0asm\x01\0\0\0",
            tables: Default::default(),
            destroyed: Default::default(),
            migration: None,
        }),
        RecordRef::Remove(RemoveRef {
            txn_id: TXN,
            name: "module",
            destroyed: Default::default(),
        }),
        RecordRef::Checkpoint(CheckpointMark {
            txn_id: TXN,
            key_clock_us: 5,
        }),
        RecordRef::DropTable(DropTableRef {
            txn_id: TXN,
            table: "module.table",
        }),
        RecordRef::Quarantine(QuarantineRef {
            txn_id: TXN,
            module_id: 300,
            procedure: 1,
            diverged: Lsn(9),
            what: "it did more",
        }),
        RecordRef::Principal(PrincipalRef {
            txn_id: TXN,
            number: 3,
            name: "token",
        }),
        RecordRef::Control(ControlRef {
            txn_id: TXN,
            took_us: 9,
            principal: "token",
            operation: "forget-standby",
            outcome: "not-found",
            subject: "b",
        }),
        RecordRef::Void,
        RecordRef::Part(PartRef {
            txn_id: TXN,
            partitions: PartitionSet::One(PartitionId(9)),
            module_id: 1,
            procedure: 1,
            number: 300,
            changes: &changes,
        }),
        RecordRef::Changes(ChangesRef {
            module_id: 1,
            procedure: 1,
            digest: 5,
            parts: 301,
            ..ChangesRef::new(TXN, PartitionSet::All, &[])
        }),
        RecordRef::Command(command(PartitionSet::All, None)),
        RecordRef::Command(command(PartitionSet::One(PartitionId(9)), Some(call))),
        RecordRef::Command(called),
        RecordRef::Changes(changed),
    ];
    let encode = |record: &RecordRef<'_>| {
        let mut out = Vec::new();
        record.encode(&mut out);
        out
    };
    // Either form in place of the other.
    let apart = [TwoForms::CommandHere, TwoForms::ChangesHere].map(|forms| {
        let mut batch = RecordBatch::default();
        batch.push_forms(Some(&called), &changed, Some(forms));
        batch.shipped().expect("another form").to_vec()
    });
    records.iter().map(encode).chain(apart).collect()
}

/// A closed log of three blocks.
fn segment() -> Vec<u8> {
    let disk = SimDisk::new();
    let mut config = LogConfig::new(*b"sixteen bytes id");
    config.segment_bytes = 8 << 10;
    let complete = Box::new(|_: Lsn, _: Result<(), &_>, (): ()| {});
    let opened = Log::open(Arc::new(disk.clone()), Arc::new(RealClock::new()), config, complete);
    let (log, _) = opened.expect("an empty disk");
    for half in records().chunks(4) {
        let mut batch = RecordBatch::default();
        for bytes in half {
            batch.push(&RecordRef::decode(bytes).expect("encoded above"));
        }
        let appended = log.appender().append(&batch, None).map_err(|(error, _)| error);
        let start = appended.expect("there is room");
        assert!(log.wait_durable(Lsn(start.0 + u64::from(batch.count())), Duration::from_secs(60)));
    }
    log.close().expect("close");
    let mut file = disk.bytes("log-0000000000000000.seg").expect("the first segment");
    let end = file.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    file.truncate(end.next_multiple_of(512) + 512);
    file
}

fn checkpoint_rows() -> Vec<u8> {
    let mut raw = Vec::new();
    (0..20).for_each(|at| push_checkpoint_row(&mut raw, format!("row {at}").as_bytes(), at));
    raw
}

fn checkpoint_keys() -> Vec<u8> {
    let mut raw = Vec::new();
    for partition in [None, Some(PartitionId(1))] {
        CheckpointKeyRef {
            key: b"key",
            scope: b"token",
            fingerprint: 3,
            args_hash: 4,
            kept_us: 5,
            module_id: 0,
            procedure: 1,
            txn_id: TXN,
            lsn: Lsn(100),
            partition,
            result: b"result",
        }
        .encode(&mut raw);
    }
    raw
}

fn descriptions() -> [Vec<u8>; 3] {
    let mut parts = [const { Vec::new() }; 3];
    CheckpointModuleRef {
        module_id: 0,
        version: 1,
        name: "module",
        in_service: true,
        installed_by: TXN,
        hash: [7; 32],
        migrations: b"\x05split",
        origins: &[],
        wasm_bytes: 8,
        description: b"{}",
        wasm: b"\0asm\x01\0\0\0",
    }
    .encode(&mut parts[0]);
    CheckpointPartition {
        last_tick: 9,
        last_end: Lsn(4_000),
        tables: vec![(20, 21)],
    }
    .encode(&mut parts[1]);
    CheckpointDatabase {
        genesis: Genesis {
            database_id: *b"sixteen bytes id",
            secret: [1, 2],
            partitions: 1,
            created_us: 1,
        },
        multi_tick: 7,
        modules: 1,
        tables: 1,
        keys: 2,
        key_clock_us: 6,
    }
    .encode(&mut parts[2]);
    parts
}

fn quarantine() -> Vec<u8> {
    let mut raw = Vec::new();
    for procedure in 1..3 {
        CheckpointQuarantine {
            module_id: 300,
            procedure,
            diverged: Lsn(9),
            what: "it did more".to_owned(),
        }
        .encode(&mut raw);
    }
    raw
}

fn principals() -> Vec<u8> {
    let mut raw = Vec::new();
    CheckpointPrincipals::push(&mut raw, 1, "ci");
    CheckpointPrincipals::push(&mut raw, 300, "app");
    raw
}

fn checkpoint_parts() -> Vec<Vec<u8>> {
    let with = |which: u8, bytes: &[u8]| [&[which], bytes].concat();
    let [module, partition, database] = descriptions();
    let file = checkpoint();
    vec![
        with(0, &checkpoint_rows()),
        with(2, &checkpoint_keys()),
        with(3, &module),
        with(8, &quarantine()),
        with(9, &principals()),
        with(4, &partition),
        with(5, &database),
        with(7, &file),
        with(8, &file[file.len().saturating_sub(64)..]),
    ]
}

fn checkpoint() -> Vec<u8> {
    let disk = SimDisk::new();
    let files = Checkpoints::new(Arc::new(disk.clone()));
    let header = CheckpointHeader {
        database_id: *b"sixteen bytes id",
        lsn: Lsn(4_000),
        settings_hash: 1,
        txn_id: TXN,
        memory_bytes: 0,
    };
    let [module, partition, database] = descriptions();
    let mut writer = files.begin(header).expect("an empty disk");
    let (rows, keys) = (checkpoint_rows(), checkpoint_keys());
    for (kind, items, raw) in [
        (CheckpointBlockKind::Module, 1, &module),
        (CheckpointBlockKind::Table, 1, &b"{}".to_vec()),
        (CheckpointBlockKind::Partition, 1, &partition),
        (CheckpointBlockKind::Rows, 20, &rows),
        (CheckpointBlockKind::Keys, 2, &keys),
        (CheckpointBlockKind::Database, 1, &database),
    ] {
        writer
            .block(kind, PartitionId(0), 0, items, raw)
            .expect("no fault is planned");
    }
    writer.finish().expect("no fault is planned");
    writer.publish().expect("no fault is planned");
    let name = disk.list().expect("list").pop().expect("one file");
    disk.bytes(&name).expect("listed")
}

/// One of each layout, the layout's number before it.
fn rows() -> Vec<Vec<u8>> {
    let every: Vec<Field<'_>> = vec![
        Field::Bool(true),
        Field::Int(-1),
        Field::Int(2),
        Field::Null,
        Field::Int(-4),
        Field::Uint(5),
        Field::Uint(6),
        Field::Uint(7),
        Field::Uint(8),
        Field::Null,
        Field::Decimal(-10),
        Field::Text("text"),
        Field::Null,
        Field::Int(13),
        Field::Uuid([14; 16]),
    ];
    assert_eq!(every.len(), SCALARS.len());
    let rows = [
        LAYOUTS[0].build(&every),
        LAYOUTS[1].build(&[Field::Text("a\0b"), Field::Null, Field::Bytes(b"bytes")]),
        LAYOUTS[2].build(&[Field::Int(7), Field::F64(1.5), Field::Null]),
    ];
    let numbered = rows.iter().enumerate();
    numbered.map(|(at, row)| [&[at as u8], &row[..]].concat()).collect()
}

fn keys() -> Vec<Vec<u8>> {
    let numbered = rows().into_iter().enumerate();
    let key = |(at, row): (usize, Vec<u8>)| {
        let mut key = vec![0];
        let columns = [SCALARS.len(), 3, 3][at] as u16;
        LAYOUTS[at].push_key(&row[1..], &(0..columns).collect::<Vec<_>>(), &mut key);
        key
    };
    numbered.map(key).collect()
}

fn values() -> Vec<Vec<u8>> {
    let list = [&[15, 2][..], b"\x01a\x01", &[0; 8], b"\x00\x00"].concat();
    let option = [&[16, 1, 1][..], &[0; 8]].concat();
    vec![
        list,
        option,
        vec![17, 2],
        [&[18][..], b"\x04text\x00"].concat(),
        b"\x0b\x04text".to_vec(),
        [&[4][..], &[9; 8]].concat(),
    ]
}

#[cfg(feature = "engine")]
fn requests(target: &str) -> Vec<Vec<u8>> {
    const ARGS: &str = r#"{"p0":true,"p1":-1,"p2":2,"p3":3,"p4":"4","p5":5,"p6":6,"p7":7,"p8":"8","p9":1.5e3,"p10":"-1.25",
        "p11":"t\u00e9xt\n","p12":"AAEC","p13":"2026-01-02T03:04:05.000006Z","p14":"00010203-0405-0607-0809-0a0b0c0d0e0f",
        "p15":[{"left":"a","right":null},{"left":"b","right":1}],"p16":[1,2.5],"p17":"two","p18":{"left":"","right":-1}}"#;
    match target {
        "arguments_json" => vec![ARGS.into()],
        "arguments_cbor" => vec![cbor(ARGS), b"\xbf\x62p0\xf5\xff".to_vec()],
        "batch_json" => {
            let line = format!(r#"{{"module":"m","procedure":"p","args":{ARGS},"id":[1]}}"#);
            let keyed = r#"{"id":1,"idempotency_key":"k","args":{},"procedure":"p","module":"m"}"#;
            vec![line.replace('\n', "").into(), keyed.into()]
        }
        "batch_cbor" => {
            let line = format!(r#"{{"module":"m","procedure":"p","args":{ARGS},"id":1}}"#);
            vec![cbor(&line)]
        }
        "description" => {
            let table = r#"{"abi":1,"tables":[{"name":"t","columns":[{"name":"id","type":"i64","nullable":false},{"name":"n","type":"text","nullable":true}],"primary_key":["id"],"indexes":[{"name":"i","columns":["n"],"unique":false}],"placement":{"by":"id"}}],"procedures":[]}"#;
            let schema = reprise_host::describe::to_json(&crate::engine::SCHEMA);
            vec![schema.into(), table.into()]
        }
        "request" => {
            let request = |lines: &str, body: &str| {
                let length = body.len();
                format!("POST /v1/call/m/p HTTP/1.1\r\n{lines}content-length: {length}\r\n\r\n{body}").into_bytes()
            };
            let plain = request("host: localhost\r\n", "{\"id\":1}");
            let keyed = request(
                "Host: a\r\nIdempotency-Key: k-1\r\nContent-Type: application/json\r\n",
                "{}",
            );
            let token = request(
                "authorization: Bearer t\r\nconnection: keep-alive\r\norigin: http://a\r\n",
                "",
            );
            vec![[&plain[..], &plain[..]].concat(), plain, keyed, token]
        }
        "heads" => heads(),
        "manifest" => vec![manifest()],
        "module" => modules(),
        _ => Vec::new(),
    }
}

/// Requests of each way to end, in one connection: alone, behind each other, with two lengths, and longer than a head may be.
#[cfg(feature = "engine")]
fn heads() -> Vec<Vec<u8>> {
    const PLAIN: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    const SIZED: &str = "POST /v1/batch HTTP/1.1\nContent-Length: 5\n\nhello";
    const CHUNKED: &str = "POST /v1/batch HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n1F \r\n0123456789012345678901234567890\r\n0\r\nx-a: b\r\n\r\n";
    const BOTH: &str = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n";
    let long = |bytes: usize| format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n{BOTH}", "y".repeat(bytes));
    let texts = [
        PLAIN.to_owned(),
        format!("{PLAIN}{SIZED}{CHUNKED}\r\n{BOTH}"),
        format!("{BOTH}{PLAIN}"),
        format!("\r\n\n{SIZED}{}", &CHUNKED[..CHUNKED.len() - 9]),
        long(32_700),
        long(40_000),
    ];
    texts.map(String::into_bytes).into()
}

#[cfg(feature = "engine")]
fn manifest() -> Vec<u8> {
    let manifest = reprise_backup::BackupManifest {
        format: 1,
        program_version: "0.1.0".into(),
        database_id: "00".repeat(16),
        partitions: 4,
        settings_hash: "0123456789abcdef".into(),
        created_us: 1,
        checkpoint_lsn: Some(4_000),
        log_start: 0,
        log_end: 5_000,
        records: 7,
        files: vec![reprise_backup::ManifestFile {
            path: "log/log-0000000000000000.seg".into(),
            bytes: 8_192,
            sha256: "ab".repeat(32),
        }],
    };
    manifest.encode().into()
}

#[cfg(feature = "engine")]
fn modules() -> Vec<Vec<u8>> {
    let texts = [
        "(module)",
        r#"(module (memory (export "memory") 1) (global (mut i32) (i32.const 7))
            (func (export "add") (param i32 i32) (result i32) local.get 0 local.get 1 i32.add)
            (table 2 funcref) (elem (i32.const 0) 0 0) (data (i32.const 8) "some bytes")
            (func (loop br 0)))"#,
        r#"(module (import "reprise" "args" (func (param i32) (result i32)))
            (memory (export "memory") 2) (func (export "_initialize") (global.set 0 (i32.const 1)))
            (global (mut i64) (i64.const 0)))"#,
    ];
    texts.iter().filter_map(|text| wat::parse_str(text).ok()).collect()
}

/// JSON without floats beyond `f64`, as CBOR with definite lengths.
#[cfg(feature = "engine")]
fn cbor(json: &str) -> Vec<u8> {
    fn head(out: &mut Vec<u8>, major: u8, length: usize) {
        match length {
            0..24 => out.push(major << 5 | length as u8),
            24..256 => out.extend_from_slice(&[major << 5 | 24, length as u8]),
            _ => {
                out.push(major << 5 | 25);
                out.extend_from_slice(&(length as u16).to_be_bytes());
            }
        }
    }
    fn push(out: &mut Vec<u8>, value: &serde_json::Value) {
        use serde_json::Value;
        match value {
            Value::Null => out.push(0xf6),
            Value::Bool(value) => out.push(0xf4 | *value as u8),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(value), _) => head(out, 0, value as usize),
                (_, Some(value)) => head(out, 1, (-1 - value) as usize),
                _ => {
                    out.push(0xfb);
                    out.extend_from_slice(&number.as_f64().unwrap_or(0.0).to_be_bytes());
                }
            },
            Value::String(text) => {
                head(out, 3, text.len());
                out.extend_from_slice(text.as_bytes());
            }
            Value::Array(items) => {
                head(out, 4, items.len());
                items.iter().for_each(|item| push(out, item));
            }
            Value::Object(members) => {
                head(out, 5, members.len());
                for (name, value) in members {
                    head(out, 3, name.len());
                    out.extend_from_slice(name.as_bytes());
                    push(out, value);
                }
            }
        }
    }
    let mut out = Vec::new();
    push(&mut out, &serde_json::from_str(json).expect("written above"));
    out
}
