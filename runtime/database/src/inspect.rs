//! Predicts the outcome of opening a data directory. It changes nothing and runs nothing.

use std::{path::Path, sync::Arc};

use reprise_backup::{DirHandle, MANIFEST_NAME, RestoreError, RestoreSource, decode_all};
use reprise_base::{Lsn, PartitionId, TxnId};
use reprise_checkpoint::{CheckpointError, CheckpointReader, Checkpoints, checkpoint_name};
use reprise_env::{Disk, DiskErrorKind, RealDisk};
use reprise_host::{CompiledModule, Engine, Limits};
use reprise_log::{LogReader, VerifyReport};
use reprise_wire::{Genesis, PairWalk, PartitionSet, RecordEffect, RecordRef, RecordScope};

use crate::error::OpenError;

/// Bytes a second, of loaded rows and of replayed log, that any machine reaches.
const MODEST_LOAD: f64 = 200e6;
const MODEST_REPLAY: f64 = 30e6;
/// Bytes a second of changes, which all cores put in place.
const MODEST_REDO: f64 = 150e6;
/// Number of reasons that are listed at most.
const REFUSALS_MAX: usize = 16;

/// The fate of a checkpoint at an opening.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointFate {
    /// The checkpoint would be loaded.
    Taken,
    /// The checkpoint would not be loaded, for this reason.
    PassedOver(String),
    /// The checkpoint is whole, and a newer one would be loaded.
    Kept,
}

/// A checkpoint of the directory.
#[derive(Clone, Debug)]
pub struct FoundCheckpoint {
    pub lsn: Lsn,
    pub file: String,
    pub verdict: CheckpointFate,
    pub rows: u64,
    pub row_bytes: u64,
    pub file_bytes: u64,
}

/// The predicted outcome of an opening.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    pub log: VerifyReport,
    pub database_id: Option<[u8; 16]>,
    pub partitions: Option<u16>,
    /// The newest first.
    pub checkpoints: Vec<FoundCheckpoint>,
    /// LSN at which the replay would begin.
    pub replay_from: Lsn,
    /// Records that the replay would read, by the names of the kinds that occur.
    pub records: Vec<(&'static str, u64)>,
    pub transactions: u64,
    /// Bytes of these records.
    pub replay_bytes: u64,
    /// Bytes of those records of changes whose transactions were not logged by their commands too.
    pub changes_bytes: u64,
    pub last_txn: Option<TxnId>,
    /// Settings hash of the log's newest part, if it is not this program's. The replay compares every outcome all the same.
    pub other_settings_hash: Option<u64>,
    /// Seconds that loading and replay would take at modest speeds. None was measured on this machine.
    pub seconds: f64,
    /// Reasons for which the opening would be refused. Empty: it would succeed.
    pub refused: Vec<String>,
}

/// Reads a data directory as a server that opens it would.
pub fn inspect(dir: &Path) -> Result<Inspection, RestoreError> {
    let place = RestoreSource::open(&DirHandle::at(dir))?;
    let mut found = Inspection::default();
    if dir.join(MANIFEST_NAME).exists() {
        found
            .refused
            .push("it is a backup: `reprise backup restore` makes a data directory of it".into());
    }
    let held = match place.lock() {
        Ok(held) => Some(held),
        Err(error @ RestoreError::Running(_)) => {
            found.refused.push(error.to_string());
            return Ok(found);
        }
        Err(error) => return Err(error),
    };
    let log: Arc<dyn Disk> = Arc::new(RealDisk::open(dir.join("log"))?);
    let (mut reader, report) = LogReader::open(log, Lsn(0))?;
    found.log = report;
    found.database_id = found.log.database_id;
    if let Some(damage) = &found.log.damage {
        found.refused.push(damage.to_string());
    }
    let engine = Engine::new(Limits::default());
    let settings_hash = found.log.segments.last().map(|segment| segment.settings_hash);
    found.other_settings_hash = settings_hash.filter(|hash| *hash != engine.settings_hash());
    inspect_checkpoints(dir, &engine, &mut found)?;
    inspect_log(&mut reader, &engine, &mut found)?;
    found.estimate();
    drop(held);
    Ok(found)
}

impl Inspection {
    /// Returns the checkpoint that would be loaded.
    pub fn taken(&self) -> Option<&FoundCheckpoint> {
        self.checkpoints
            .iter()
            .find(|found| found.verdict == CheckpointFate::Taken)
    }

    /// Returns why a checkpoint can't be loaded. No opening passes over a checkpoint of a program with other format numbers.
    fn reason_of(&mut self, error: &CheckpointError) -> String {
        let reason = error.to_string();
        if error.is_foreign() {
            self.refused.push(reason.clone());
        }
        reason
    }

    fn estimate(&mut self) {
        let loaded = self.taken().map_or(0, |found| found.row_bytes) as f64;
        let changes = self.changes_bytes.min(self.replay_bytes);
        let commands = (self.replay_bytes - changes) as f64;
        self.seconds = loaded / MODEST_LOAD + commands / MODEST_REPLAY + changes as f64 / MODEST_REDO;
    }
}

fn inspect_checkpoints(dir: &Path, engine: &Engine, found: &mut Inspection) -> Result<(), RestoreError> {
    let disk = match RealDisk::open(dir.join("checkpoints")) {
        Ok(disk) => disk,
        Err(error) if error.kind == DiskErrorKind::NotFound => return no_checkpoint(found),
        Err(error) => return Err(error.into()),
    };
    let files = Checkpoints::new(Arc::new(disk));
    let (start, end) = (found.log.start, found.log.end);
    let mut is_taken = false;
    for lsn in files.list()?.into_iter().rev() {
        let mut checkpoint = FoundCheckpoint {
            lsn,
            file: checkpoint_name(lsn),
            verdict: CheckpointFate::Kept,
            rows: 0,
            row_bytes: 0,
            file_bytes: files.bytes(lsn).unwrap_or_default(),
        };
        if lsn > end {
            let name = checkpoint.file.clone();
            found.refused.push(OpenError::BeyondLog { name, lsn, end }.to_string());
        }
        let checked = match lsn < start || lsn > end {
            true => Err(format!("it has no place in the log, which holds LSN {start} to {end}")),
            false => files
                .open(lsn)
                .map_err(|error| found.reason_of(&error))
                .and_then(|reader| {
                    let size = reader.size();
                    (checkpoint.rows, checkpoint.row_bytes) = (size.rows, size.row_bytes);
                    check_checkpoint(&reader, engine, found)?;
                    Ok(reader.database().genesis)
                }),
        };
        match checked {
            Ok(genesis) if !is_taken => {
                is_taken = true;
                checkpoint.verdict = CheckpointFate::Taken;
                found.replay_from = lsn;
                found.record_genesis(&genesis);
            }
            Ok(_) => {}
            Err(reason) => checkpoint.verdict = CheckpointFate::PassedOver(reason),
        }
        found.checkpoints.push(checkpoint);
    }
    match is_taken {
        true => Ok(()),
        false => no_checkpoint(found),
    }
}

fn no_checkpoint(found: &mut Inspection) -> Result<(), RestoreError> {
    if found.log.start > Lsn(0) {
        let start = found.log.start;
        found.refused.push(format!(
            "the log begins at LSN {start}, and no checkpoint can be loaded"
        ));
    }
    Ok(())
}

/// Checks everything that could fail a load, except the rows' contents.
fn check_checkpoint(reader: &CheckpointReader, engine: &Engine, found: &Inspection) -> Result<(), String> {
    let id = reader.header().database_id;
    if found.log.database_id.is_some_and(|known| known != id) {
        return Err("it is another database's".into());
    }
    decode_all(reader).map_err(|error| error.to_string())?;
    for module in reader.modules().iter().map(|module| module.get()) {
        if module.in_service {
            let compiled = CompiledModule::compile(engine, module.wasm);
            compiled.map_err(|error| format!("module {}: {error}", module.name))?;
        }
    }
    Ok(())
}

impl Inspection {
    fn record_genesis(&mut self, genesis: &Genesis) {
        self.partitions = Some(genesis.partitions);
        self.database_id = Some(genesis.database_id);
    }
}

fn inspect_log(reader: &mut LogReader, engine: &Engine, found: &mut Inspection) -> Result<(), RestoreError> {
    let (mut is_first, mut pairs) = (true, PairWalk::default());
    while let Some(record) = reader.next_record()? {
        let (facts, is_beside) = (record.record.facts(), pairs.is_beside(&record.record));
        let kind = facts.shown_as;
        if is_first && found.log.start == Lsn(0) {
            match record.record.genesis() {
                Some(genesis) => found.record_genesis(&genesis),
                None => found.refused.push(format!(
                    "the log begins with a record of kind {kind}, not with its genesis"
                )),
            }
        }
        is_first = false;
        if record.lsn < found.replay_from {
            continue;
        }
        match found.records.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += 1,
            None => found.records.push((kind, 1)),
        }
        found.replay_bytes += record.bytes.len() as u64;
        if facts.effect == RecordEffect::Rows && !is_beside {
            found.changes_bytes += record.bytes.len() as u64;
        }
        found.last_txn = record.record.txn_id().or(found.last_txn);
        let checked = inspect_record(&record.record, engine, found);
        if let (Err(reason), true) = (checked, found.refused.len() < REFUSALS_MAX) {
            found
                .refused
                .push(format!("the record at LSN {}: {reason}", record.lsn));
        }
    }
    Ok(())
}

fn inspect_record(record: &RecordRef<'_>, engine: &Engine, found: &mut Inspection) -> Result<(), String> {
    if let RecordRef::Deploy(deploy) = record {
        let compiled = CompiledModule::compile(engine, deploy.wasm);
        let compiled = compiled.map_err(|error| format!("module {}: {error}", deploy.name))?;
        if compiled.hash() != deploy.hash {
            return Err(format!("module {}: its bytes do not have the logged hash", deploy.name));
        }
    }
    let facts = record.facts();
    let RecordScope::Partitions(partitions) = facts.scope else {
        return Ok(());
    };
    found.transactions += u64::from(facts.standalone);
    let count = found.partitions.unwrap_or(u16::MAX);
    let is_known = |partition: PartitionId| partition.0 < count;
    let are_known = match partitions {
        PartitionSet::One(partition) => is_known(partition),
        PartitionSet::Several(list) => list.iter().all(is_known),
        PartitionSet::All => true,
    };
    match are_known {
        true => Ok(()),
        false => Err("it names a partition that the database does not have".into()),
    }
}
