//! Backups: a checkpoint, the log behind it and a manifest with the checksum of every byte, in a directory of their own.

use std::{
    io::{self, Read},
    path::Path,
    sync::Arc,
};

use reprise_base::{Lsn, hex};
use reprise_checkpoint::{CheckpointReader, Checkpoints};
use reprise_env::{Clock, Disk, RealClock};
use reprise_log::{LogReader, VerifyReport};
use reprise_wire::{CheckpointBlockKind, CheckpointFormerRef, CheckpointKeys, CheckpointRows, Genesis, WireError};
use sha2::{Digest, Sha256};

use crate::{
    manifest::{BackupManifest, MANIFEST_NAME, ManifestError, ManifestFile, describe_files, is_place},
    restore::{Point, RestoreError, RestoreReport, RestoreSource, new_place},
    staging::{StagingDir, StagingError},
    tree::DirHandle,
};

/// The contents of a verified backup.
#[derive(Clone, Debug)]
pub struct VerifiedBackup {
    /// The manifest in its directory.
    pub manifest: BackupManifest,
    /// The log's contents.
    pub log: VerifyReport,
    /// Rows of the checkpoint.
    pub rows: u64,
    /// Tables of the checkpoint.
    pub tables: usize,
    /// Modules of the checkpoint that are in service.
    pub modules: usize,
    /// Idempotency keys of the checkpoint.
    pub idempotency_keys: u64,
}

/// Makes a backup of a data directory on which no server runs: its newest whole checkpoint and the log behind it.
pub fn create_backup(source: &Path, target: &Path) -> Result<BackupManifest, RestoreError> {
    create_backup_in(&DirHandle::at(source), &new_place(target)?, RealClock::new().now_us())
}

/// Creates a backup in any tree; `now_us` since 1970.
pub fn create_backup_in(source: &DirHandle, target: &DirHandle, now_us: i64) -> Result<BackupManifest, RestoreError> {
    let place = RestoreSource::open(source)?;
    let _held = place.lock()?;
    if source.holds(MANIFEST_NAME) {
        return Err(RestoreError::NoDatabase(source.path()));
    }
    let staging = StagingDir::begin(target)?;
    let report = place.write_to(&staging, Point::End, now_us)?;
    seal(staging, &report, now_us, &mut |_| true)
}

/// Writes the manifest of the files in the new directory, and gives the directory its name.
pub fn seal(
    staging: StagingDir,
    report: &RestoreReport,
    created_us: i64,
    goes_on: &mut dyn FnMut(u64) -> bool,
) -> Result<BackupManifest, RestoreError> {
    let (log, checkpoints) = (staging.folder("log")?, staging.folder("checkpoints")?);
    let folders = [("checkpoints", checkpoints.clone()), ("log", log.clone())];
    let files = describe_files(staging.place(), &folders, goes_on)?;
    // Read as a restore reads it: a backup that can't be read back is none.
    let (_, found) = LogReader::open(log.clone(), Lsn(0))?;
    let genesis = genesis_of(&Checkpoints::new(checkpoints.clone()), &log, report.checkpoint)?;
    let newest = found.segments.last();
    let manifest = BackupManifest {
        format: BackupManifest::FORMAT,
        program_version: env!("CARGO_PKG_VERSION").to_owned(),
        database_id: hex(&genesis.database_id),
        partitions: genesis.partitions,
        settings_hash: format!("{:016x}", newest.map_or(0, |segment| segment.settings_hash)),
        created_us,
        checkpoint_lsn: report.checkpoint.map(|lsn| lsn.0),
        log_start: report.log.start.0,
        log_end: report.cut.0,
        records: report.records,
        files,
    };
    let root = staging.place().root()?;
    let file = root.create(MANIFEST_NAME)?;
    file.write_at(0, manifest.encode().as_bytes())?;
    file.sync()?;
    log.sync_dir()?;
    checkpoints.sync_dir()?;
    staging.publish()?;
    Ok(manifest)
}

fn genesis_of(
    checkpoints: &Checkpoints,
    log: &Arc<dyn Disk>,
    checkpoint: Option<Lsn>,
) -> Result<Genesis, RestoreError> {
    if let Some(lsn) = checkpoint {
        return Ok(checkpoints.open(lsn)?.database().genesis);
    }
    let (mut reader, report) = LogReader::open(log.clone(), Lsn(0))?;
    let genesis = reader.next_record()?.and_then(|first| first.record.genesis());
    genesis.ok_or_else(|| RestoreError::TooEarly {
        point: format!("LSN {}", report.end),
        oldest: "the database's first record".into(),
    })
}

/// Begins the directory of a backup that `receive_backup` fills. Fails if `target` holds anything, or can't be made.
pub fn stage_backup(target: &Path) -> Result<StagingDir, StagingError> {
    StagingDir::begin(&new_place(target)?)
}

/// Fills and publishes a directory of `stage_backup` with a backup's files, its manifest among them. `open` gives each by its name, and each
/// must match its checksum.
pub fn receive_backup(
    staging: StagingDir,
    files: &[ManifestFile],
    open: &mut dyn FnMut(&str) -> io::Result<Box<dyn Read>>,
) -> Result<BackupManifest, RestoreError> {
    for file in files {
        let is_manifest = file.path == MANIFEST_NAME;
        if !is_manifest && !is_place(&file.path) {
            let what = "it is not a file of a backup".to_owned();
            let file = file.path.clone();
            return Err(ManifestError::File { file, what }.into());
        }
        let folder: Arc<dyn Disk> = match file.path.split_once('/') {
            Some((folder, _)) => staging.folder(folder)?,
            None => staging.place().root()?,
        };
        let failed = |error| ManifestError::Io {
            file: file.path.clone(),
            error,
        };
        receive_file(&*folder, file, open(file.name()).map_err(failed)?)?;
    }
    let manifest = BackupManifest::read_in(staging.place())?;
    manifest.check_files(staging.place(), &mut |_| true)?;
    staging.publish()?;
    Ok(manifest)
}

fn receive_file(folder: &dyn Disk, described: &ManifestFile, mut from: Box<dyn Read>) -> Result<(), RestoreError> {
    let to = folder.create(described.name())?;
    let (mut piece, mut at) = (vec![0; 256 << 10], 0);
    // Keeps no byte beyond the announced number.
    while at <= described.bytes {
        let read = from.read(&mut piece).map_err(|error| ManifestError::Io {
            file: described.path.clone(),
            error,
        })?;
        if read == 0 {
            break;
        }
        to.write_at(at, &piece[..read])?;
        at += read as u64;
    }
    to.sync()?;
    folder.sync_dir()?;
    Ok(())
}

/// Checks every checksum of a backup, and decodes all that it holds.
pub fn verify_backup(dir: &Path, goes_on: &mut dyn FnMut(u64) -> bool) -> Result<VerifiedBackup, RestoreError> {
    verify_backup_in(&DirHandle::at(dir), goes_on)
}

/// Verifies a backup in any tree.
pub fn verify_backup_in(
    place: &DirHandle,
    goes_on: &mut dyn FnMut(u64) -> bool,
) -> Result<VerifiedBackup, RestoreError> {
    let manifest = BackupManifest::read_in(place)?;
    manifest.check_files(place, goes_on)?;
    let wrong = |file: &str, what: String| {
        let file = file.to_owned();
        RestoreError::Manifest(ManifestError::File { file, what })
    };
    let (_, log) = LogReader::open(place.folder("log")?, Lsn(0))?;
    if let Some(damage) = &log.damage {
        let damage = Box::new(damage.clone());
        return Err(RestoreError::Damaged { damage });
    }
    let id = log.database_id.map(|id| hex(&id));
    let is_right = (log.start.0, log.torn.is_none()) == (manifest.log_start, true)
        && log.end.0 >= manifest.log_end
        && id.as_deref() == Some(&*manifest.database_id);
    if !is_right {
        let what = format!("another log: LSN {} to {}", log.start, log.end);
        return Err(wrong("log", what));
    }
    let mut verified = VerifiedBackup {
        manifest,
        log,
        rows: 0,
        tables: 0,
        modules: 0,
        idempotency_keys: 0,
    };
    if let Some(lsn) = verified.manifest.checkpoint_lsn {
        let reader = Checkpoints::new(place.folder("checkpoints")?).open(Lsn(lsn))?;
        if hex(&reader.header().database_id) != verified.manifest.database_id {
            return Err(wrong(reader.name(), "it is another database's".into()));
        }
        decode_all(&reader)?;
        verified.rows = reader.size().rows;
        verified.tables = reader.tables().len();
        verified.modules = reader.modules().len();
        verified.idempotency_keys = reader.database().keys;
    }
    Ok(verified)
}

fn check_former(raw: &[u8]) -> Result<(), WireError> {
    let former = CheckpointFormerRef::decode(raw)?;
    let found: [u8; 32] = Sha256::digest(former.wasm).into();
    match found == former.hash {
        true => Ok(()),
        false => Err(WireError {
            what: "SHA-256 of a module",
            expected: hex(&former.hash),
            found: hex(&found),
        }),
    }
}

/// Every block of a checkpoint, and every row, key and former module in it.
pub fn decode_all(reader: &CheckpointReader) -> Result<(), reprise_checkpoint::CheckpointError> {
    let mut blocks = reader.blocks();
    for (number, entry) in reader.entries().iter().enumerate() {
        let raw = blocks.read(number)?;
        let found = match entry.kind {
            CheckpointBlockKind::Rows => CheckpointRows::new(raw).try_fold(0, |count, row| row.map(|_| count + 1)),
            CheckpointBlockKind::Keys => CheckpointKeys::new(raw).try_fold(0, |count, key| key.map(|_| count + 1)),
            CheckpointBlockKind::Former => check_former(raw).map(|()| 1),
            _ => Ok(entry.items_count),
        };
        let checked = found.and_then(|found| match found == entry.items_count {
            true => Ok(()),
            false => Err(WireError {
                what: "items of the block",
                expected: entry.items_count.to_string(),
                found: found.to_string(),
            }),
        });
        checked.map_err(|error| reader.corrupt(entry, error))?;
    }
    Ok(())
}
