//! A log on files, without a server: its contents, and whether it is whole.

use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use reprise_base::Lsn;
use reprise_checkpoint::{CheckpointError, CheckpointReader, Checkpoints, checkpoint_name};
use reprise_codec::hex;
use reprise_env::{Disk, RealDisk};
use reprise_host::{CompiledModule, Engine, Limits, described};
use reprise_http::log_record;
use reprise_log::{LogReader, ReadRecord, VerifyReport};
use reprise_recovery::{Description, LogSchemas};
use reprise_router::{Deployed, decode_entry};
use reprise_wire::{BlockKind, DeployRef};
use serde::Serialize;

use crate::{
    cli::Output,
    output::{VerbFailure, VerbResult, bytes, grouped, print_json, print_json_line, print_line, print_pairs},
    records,
    region::{self, AloneRegion, FoundRegion},
    standby::CUTS,
};

const SEGMENT_PREFIX: &str = "log-";
const SEGMENT_SUFFIX: &str = ".seg";

fn is_segment(name: &str) -> bool {
    name.starts_with(SEGMENT_PREFIX) && name.ends_with(SEGMENT_SUFFIX)
}

/// The log's own directory: `dir`, or `dir/log` of a data directory.
fn log_dir(dir: &Path) -> PathBuf {
    let inner = dir.join("log");
    if inner.is_dir() { inner } else { dir.to_owned() }
}

fn open(dir: &Path) -> Result<Arc<dyn Disk>, VerbFailure> {
    let log = log_dir(dir);
    let disk = RealDisk::open(&log).with_context(|| format!("open {}", log.display()))?;
    let names = disk.list().with_context(|| format!("list {}", log.display()))?;
    if !names.iter().any(|name| is_segment(name)) {
        return Err(VerbFailure::Other(anyhow::anyhow!(
            "there is no log under {}",
            dir.display()
        )));
    }
    Ok(Arc::new(disk))
}

/// The folder of checkpoints of a data directory, if there is one.
pub fn checkpoints(dir: &Path) -> Option<Checkpoints> {
    let disk = RealDisk::open(dir.join("checkpoints")).ok()?;
    Some(Checkpoints::new(Arc::new(disk)))
}

#[derive(Serialize)]
struct LogCheck {
    whole: bool,
    database_id: Option<String>,
    start: u64,
    end: u64,
    /// Bytes of all whole blocks.
    bytes: u64,
    segments: usize,
    blocks: u64,
    records: u64,
    /// True if the last process closed the log in order.
    closed: bool,
    /// Bytes that a crash cut off; an opening removes them.
    torn_bytes: u64,
    damage: Option<LogDamage>,
    /// Oldest first.
    checkpoints: Vec<VerifiedCheckpoint>,
    /// NVRAM that may have records which the files do not have. Null if they have all.
    nvram: Option<FoundRegion>,
    /// The outcome of the next opening.
    opening: String,
}

#[derive(Serialize)]
struct VerifiedCheckpoint {
    file: String,
    lsn: u64,
    rows: u64,
    row_bytes: u64,
    file_bytes: u64,
    tables: usize,
    modules: usize,
    idempotency_keys: u64,
    /// Null where every block is whole.
    error: Option<String>,
}

#[derive(Serialize)]
struct LogDamage {
    file: String,
    offset: u64,
    lsn: u64,
    what: String,
}

impl LogCheck {
    fn of(
        report: &VerifyReport,
        reader: &LogReader,
        checkpoints: Vec<VerifiedCheckpoint>,
        nvram: Option<FoundRegion>,
    ) -> Self {
        let opening = opening(report, reader, &checkpoints);
        let checkpoints_are_whole = checkpoints.iter().all(|found| found.error.is_none());
        Self {
            checkpoints,
            opening,
            whole: report.damage.is_none()
                && checkpoints_are_whole
                && nvram.as_ref().is_none_or(FoundRegion::is_readable),
            nvram,
            database_id: report.database_id.map(|id| hex(&id)),
            start: report.start.0,
            end: report.end.0,
            bytes: report.bytes,
            segments: report.segments.len(),
            blocks: report.blocks,
            records: report.records,
            closed: report.last_block == Some(BlockKind::Close),
            torn_bytes: report.torn.as_ref().map_or(0, |torn| torn.bytes),
            damage: report.damage.as_ref().map(|damage| LogDamage {
                file: damage.file.clone(),
                offset: damage.offset,
                lsn: damage.lsn.0,
                what: damage.what.clone(),
            }),
        }
    }
}

pub fn verify(dir: &Path, output: Output) -> VerbResult {
    if region::is_alone(dir) {
        return AloneRegion::of(dir)?.print(output);
    }
    let disk = open(dir)?;
    let (reader, report) = LogReader::open(disk, Lsn(0)).context("verify the log")?;
    let checkpoints = verify_checkpoints(dir).context("verify the checkpoints")?;
    let nvram = FoundRegion::of(dir, report.end)?;
    let verified = LogCheck::of(&report, &reader, checkpoints, nvram);
    match output {
        Output::Json => print_json(&verified)?,
        Output::Text => print_verified(&verified, &report)?,
    }
    if verified.whole { Ok(()) } else { Err(VerbFailure::No) }
}

fn print_verified(verified: &LogCheck, report: &VerifyReport) -> std::io::Result<()> {
    let ending = match (verified.closed, verified.torn_bytes) {
        (true, _) => "closed normally".to_owned(),
        (false, 0) => "not closed: the process was killed, or still runs".to_owned(),
        (false, torn) => format!(
            "not closed: the next start removes {} of a write that a crash cut off",
            bytes(torn)
        ),
    };
    let verdict = match &report.damage {
        None => "whole".to_owned(),
        Some(damage) => damage.to_string(),
    };
    print_pairs(&[
        ("log", verdict),
        ("database", verified.database_id.clone().unwrap_or_default()),
        ("LSN", format!("{} to {}", verified.start, verified.end)),
        ("files", verified.segments.to_string()),
        ("blocks", grouped(verified.blocks)),
        ("records", grouped(verified.records)),
        ("ending", ending),
    ])?;
    for found in &verified.checkpoints {
        let verdict = match &found.error {
            Some(error) => error.clone(),
            None => format!(
                "whole: {} rows of {} tables, {} in {}, {} modules, {} keys",
                grouped(found.rows),
                found.tables,
                bytes(found.row_bytes),
                bytes(found.file_bytes),
                found.modules,
                grouped(found.idempotency_keys)
            ),
        };
        print_pairs(&[("checkpoint", format!("{}, {verdict}", found.lsn))])?;
    }
    if let Some(nvram) = &verified.nvram {
        print_pairs(&[("NVRAM", nvram.describe())])?;
    }
    print_pairs(&[("opening", verified.opening.clone())])
}

fn verify_checkpoints(dir: &Path) -> Result<Vec<VerifiedCheckpoint>, CheckpointError> {
    let Some(files) = checkpoints(dir) else {
        return Ok(Vec::new());
    };
    let stored = files.list()?.into_iter();
    let found = stored.map(|lsn| {
        let mut verified = VerifiedCheckpoint {
            file: checkpoint_name(lsn),
            lsn: lsn.0,
            rows: 0,
            row_bytes: 0,
            file_bytes: files.bytes(lsn).unwrap_or_default(),
            tables: 0,
            modules: 0,
            idempotency_keys: 0,
            error: None,
        };
        let looked_at = files.open(lsn).and_then(|reader| {
            let size = reader.size();
            (verified.rows, verified.row_bytes) = (size.rows, size.row_bytes);
            verified.tables = reader.tables().len();
            verified.modules = reader.modules().len();
            verified.idempotency_keys = reader.database().keys;
            reader.verify()
        });
        verified.error = looked_at.err().map(|error| error.to_string());
        verified
    });
    Ok(found.collect())
}

/// Returns the outcome that an opening by a server would have.
fn opening(report: &VerifyReport, reader: &LogReader, checkpoints: &[VerifiedCheckpoint]) -> String {
    if report.damage.is_some() {
        return "refused: the log is damaged".into();
    }
    let (start, end) = (report.start.0, report.end.0);
    let usable = |found: &&VerifiedCheckpoint| found.error.is_none() && (start..=end).contains(&found.lsn);
    let newest = checkpoints.iter().rev().find(usable);
    let from = newest.map_or(report.start, |found| Lsn(found.lsn));
    match newest {
        Some(found) => format!(
            "loads checkpoint {} and replays {} of log",
            found.lsn,
            bytes(reader.bytes_behind(from))
        ),
        None if start == 0 => format!("replays {} of log", bytes(report.bytes)),
        None => "refused: the beginning of the log is gone, and no checkpoint is whole".into(),
    }
}

/// The schemas that a log's records are decoded with.
struct Schemas {
    engine: Engine,
    known: LogSchemas,
}

impl Schemas {
    /// Returns the schemas at the beginning of a log under `dir`. If that beginning was released, its oldest checkpoint has them.
    fn at(dir: &Path, start: Lsn) -> Self {
        let known = match start {
            Lsn(0) => LogSchemas::default(),
            start => {
                let oldest = first_checkpoint(dir, start).map(|reader| LogSchemas::of_checkpoint(&reader));
                oldest.and_then(Result::ok).unwrap_or_else(LogSchemas::unknown)
            }
        };
        let engine = Engine::new(Limits::default());
        Self { engine, known }
    }

    fn record(&mut self, record: &ReadRecord<'_>) {
        let engine = &self.engine;
        self.known.add_record(&record.record, |deploy| describe(engine, deploy));
    }

    /// Returns the schemas of a data directory at `until`, or at its log's end if that is earlier.
    fn of_data_dir(data_dir: &Path, until: Lsn) -> Self {
        let opened = open(data_dir).ok().and_then(|disk| LogReader::open(disk, Lsn(0)).ok());
        let Some((mut reader, report)) = opened.filter(|(_, report)| report.start <= until) else {
            return Self::at(data_dir, until);
        };
        let mut schemas = Self::at(data_dir, report.start);
        while let Ok(Some(record)) = reader.next_record() {
            if record.lsn >= until {
                break;
            }
            schemas.record(&record);
        }
        schemas
    }
}

/// None for wasm that this version can't read.
fn describe(engine: &Engine, deploy: &DeployRef<'_>) -> Option<Description> {
    if let Ok(Some(described)) = described(deploy.wasm) {
        return Some(described);
    }
    let compiled = CompiledModule::compile_again(engine, deploy.wasm);
    compiled.ok().map(|module| module.described())
}

pub fn dump(dir: &Path, from: Option<u64>, limit: Option<u64>, output: Output) -> VerbResult {
    let (from, limit) = (from.unwrap_or(0), limit.unwrap_or(u64::MAX));
    print_asked(dir, from..u64::MAX, limit, output).map(drop)
}

/// Prints one record of the files under `dir`, or of a region.
pub fn show(dir: &Path, lsn: u64, output: Output) -> VerbResult {
    match print_asked(dir, lsn..lsn.saturating_add(1), 1, output)? {
        0 => Err(VerbFailure::Other(anyhow::anyhow!(
            "{} has no record with LSN {lsn}",
            dir.display()
        ))),
        _ => Ok(()),
    }
}

/// Prints the records of these LSNs, at most `limit`. Returns their number.
fn print_asked(dir: &Path, lsns: Range<u64>, limit: u64, output: Output) -> Result<u64, VerbFailure> {
    if region::is_alone(dir) {
        let mut schemas = Schemas::at(dir, Lsn(0));
        return print_walked(
            |each| region::each_alone(dir, each),
            &mut schemas,
            (&lsns, limit),
            output,
        );
    }
    let disk = open(dir)?;
    let (mut reader, report) = LogReader::open(disk, Lsn(0)).context("open the log")?;
    let mut schemas = match data_dir_of_cut(dir) {
        Some(data_dir) => Schemas::of_data_dir(&data_dir, report.start),
        None => Schemas::at(dir, report.start),
    };
    let mut shown = 0;
    while shown < limit {
        let next = reader.next_record().context("read the log")?;
        let Some(record) = next.filter(|record| record.lsn.0 < lsns.end) else {
            break;
        };
        schemas.record(&record);
        if lsns.contains(&record.lsn.0) {
            shown += 1;
            print_record(&record, &schemas.known, output)?;
        }
    }
    // A data directory's region may have what its files do not have yet.
    if shown < limit && report.damage.is_none() && log_dir(dir) != dir {
        let walk = |each: &mut dyn FnMut(&ReadRecord<'_>) -> bool| region::each_record(dir, report.end, each);
        shown += print_walked(walk, &mut schemas, (&lsns, limit - shown), output)?;
    }
    match &report.damage {
        Some(damage) if shown < limit => Err(VerbFailure::Other(anyhow::anyhow!("{damage}"))),
        _ => Ok(shown),
    }
}

/// The data directory in whose `cuts` this one lies.
fn data_dir_of_cut(dir: &Path) -> Option<PathBuf> {
    let dir = dir.canonicalize().ok()?;
    let cuts = dir
        .parent()
        .filter(|parent| parent.file_name().is_some_and(|name| name == CUTS))?;
    Some(cuts.parent()?.to_owned())
}

/// Prints the records of these LSNs that `walk` shows, at most `limit`. Returns their number.
fn print_walked(
    walk: impl FnOnce(&mut dyn FnMut(&ReadRecord<'_>) -> bool) -> VerbResult,
    schemas: &mut Schemas,
    (lsns, limit): (&Range<u64>, u64),
    output: Output,
) -> Result<u64, VerbFailure> {
    let (mut shown, mut printed) = (0, Ok(()));
    walk(&mut |record| {
        schemas.record(record);
        if shown < limit && lsns.contains(&record.lsn.0) {
            shown += 1;
            printed = print_record(record, &schemas.known, output);
        }
        printed.is_ok() && shown < limit && record.lsn.0 < lsns.end
    })?;
    printed?;
    Ok(shown)
}

/// The oldest readable checkpoint of a log whose beginning was released.
fn first_checkpoint(dir: &Path, start: Lsn) -> Option<CheckpointReader> {
    let files = checkpoints(dir)?;
    let stored = files.list().ok()?;
    let mut placed = stored.iter().filter(|lsn| **lsn >= start);
    placed.find_map(|lsn| files.open(*lsn).ok())
}

fn print_record(record: &ReadRecord<'_>, known: &LogSchemas, output: Output) -> std::io::Result<()> {
    let (deployed, principals) = (known.deployed(), known.principals());
    // A command that does not fit its module is still a record: it is shown by number.
    let shown = log_record(decode_entry(record, deployed, principals))
        .or_else(|_| log_record(decode_entry(record, &Deployed::default(), principals)))
        .map_err(|error| std::io::Error::other(error.to_string()))?;
    match output {
        Output::Json => print_json_line(&shown),
        Output::Text => print_line(&records::line(&shown)),
    }
}
