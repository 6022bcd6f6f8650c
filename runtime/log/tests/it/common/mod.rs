//! A log on a simulated disk whose records are words.
#![allow(dead_code)]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use reprise_base::{Lsn, Role, TxnId};
use reprise_env::{RealClock, SimDisk};
use reprise_log::{Group, GroupSink, Log, LogConfig, LogError, LogReader, OpenReport, Position, UnavailableKind};
use reprise_nvram::{RecordingMemory, Region};
use reprise_wire::{DeployRef, RecordBatch, RecordRef, RemoveRef};

/// Outcomes, in the order in which callers got them.
pub type Told = Arc<Mutex<Vec<(Result<Lsn, LogError>, String)>>>;

/// A wait that ends only by a mistake.
pub const WAIT_MAX: Duration = Duration::from_secs(120);

pub fn config() -> LogConfig {
    let mut config = LogConfig::new(*b"a log in a test!");
    config.segment_bytes = 16 << 10;
    config.new_block_key = 0x5eed_c0de;
    config.seal_after = Duration::ZERO;
    config.append_wait_max = Duration::from_secs(30);
    config
}

pub fn open_with(disk: &SimDisk, config: LogConfig) -> Result<(Log<String>, OpenReport, Told), LogError> {
    let told = Told::default();
    let teller = Arc::clone(&told);
    let complete = Box::new(move |end: Lsn, outcome: Result<(), &LogError>, word: String| {
        let mut told = teller.lock().expect("test");
        told.push((outcome.map(|()| end).map_err(Clone::clone), word));
    });
    let disk = Arc::new(disk.clone());
    let (log, report) = Log::open(disk, Arc::new(RealClock::new()), config, complete)?;
    Ok((log, report, told))
}

pub fn open(disk: &SimDisk) -> Result<(Log<String>, OpenReport, Told), LogError> {
    open_with(disk, config())
}

/// A record that carries a word; `word*N` is followed by N bytes more.
pub fn encode(words: &[&str]) -> RecordBatch {
    let mut records = RecordBatch::default();
    for (number, word) in words.iter().enumerate() {
        let txn_id = TxnId::new(number as u64, 0);
        match word.split_once('*') {
            None => records.push(&RecordRef::Remove(RemoveRef {
                txn_id,
                name: word,
                destroyed: Default::default(),
            })),
            Some((name, bytes)) => {
                let wasm = vec![0xee; bytes.parse().expect("number of bytes")];
                records.push(&RecordRef::Deploy(DeployRef {
                    txn_id,
                    module_id: 1,
                    version: 1,
                    name,
                    hash: [0; 32],
                    wasm: &wasm,
                    tables: Default::default(),
                    destroyed: Default::default(),
                    migration: None,
                }));
            }
        }
    }
    records
}

pub fn word(record: &RecordRef<'_>) -> String {
    match record {
        RecordRef::Remove(remove) => remove.name.to_owned(),
        RecordRef::Deploy(deploy) => {
            assert!(deploy.wasm.iter().all(|byte| *byte == 0xee));
            format!("{}*{}", deploy.name, deploy.wasm.len())
        }
        other => panic!("nobody wrote {other:?}"),
    }
}

/// Appends words as one group, waits until they are durable, and returns their end.
pub fn append(log: &Log<String>, words: &[&str]) -> Lsn {
    let records = encode(words);
    let start = log.appender().append(&records, Some(words.join(" "))).map_err(|e| e.0);
    let end = Lsn(start.expect("append").0 + u64::from(records.count()));
    assert!(log.wait_durable(end, WAIT_MAX));
    end
}

pub fn words_in(reader: &mut LogReader) -> Vec<String> {
    let mut words = Vec::new();
    while let Some(record) = reader.next_record().expect("read record") {
        words.push(word(&record.record));
    }
    words
}

/// All words of a directory that no process writes.
pub fn words_on(disk: &SimDisk) -> Vec<String> {
    let (mut reader, report) = LogReader::open(Arc::new(disk.clone()), Lsn(0)).expect("scan");
    assert_eq!(report.damage, None);
    words_in(&mut reader)
}

pub fn segments(disk: &SimDisk) -> Vec<String> {
    use reprise_env::Disk;
    let names = disk.list().expect("list").into_iter();
    names.filter(|name| name.starts_with("log-")).collect()
}

/// Closes a log, and drops its files.
pub fn close(log: Log<String>) {
    log.close().expect("close");
}

pub fn standby_config() -> LogConfig {
    LogConfig {
        role: Role::Standby,
        ..config()
    }
}

/// A group that outlives its block.
#[derive(Clone, Debug)]
pub struct Kept {
    pub first: Lsn,
    pub end: Position,
    pub records: Vec<u8>,
}

impl Kept {
    pub fn get(&self) -> Group<'_> {
        Group {
            first: self.first,
            end: self.end,
            records: &self.records,
        }
    }
}

#[derive(Default)]
pub struct KeepAll(pub Mutex<Vec<Kept>>);

impl GroupSink for KeepAll {
    fn take(&self, group: &Group<'_>) {
        self.0.lock().expect("test").push(Kept {
            first: group.first,
            end: group.end,
            records: group.records.to_vec(),
        });
    }
}

/// Opens the log after a crash that left this image of its region, and copies the region's records to the files.
pub fn drain_image(disk: &SimDisk, image: Vec<u8>, config: LogConfig) {
    let region = Region::open(Arc::new(RecordingMemory::from_image(image)))
        .expect("a region")
        .expect("made");
    let (log, _, _) = open_with(disk, config).expect("open");
    log.drain(&region.recover().expect("whole")).expect("drained");
    close(log);
}

pub fn assert_full(error: &LogError) {
    let is_full = matches!(
        error,
        LogError::Unavailable {
            kind: UnavailableKind::Full,
            ..
        }
    );
    assert!(is_full, "{error}");
}
