//! Harm to files at rest: what a good opening finds; and forgeries that no checksum can find, for tests of the checkers.

use std::sync::Arc;

use reprise_abi::{Field, RowLayout};
use reprise_base::Lsn;
use reprise_checkpoint::{Checkpoints, checkpoint_name};
use reprise_env::{Disk, SimClock, SimDisk, Stepper, sim::FaultRandom};
use reprise_host::describe;
use reprise_log::{Log, LogConfig, LogReader};
use reprise_wire::{
    BlockHeader, BlockKind, Change, Changes, ChangesRef, CheckpointBlockKind, CheckpointRows, CommandRef, PartitionSet,
    RecordBatch, RecordEffect, RecordRef, SEGMENT_HEADER_BYTES,
};

/// A damage, and the reaction that an opening must show.
#[derive(Clone, Debug)]
pub struct Harm {
    pub file: String,
    pub what: String,
    /// The opening must refuse: the log was harmed where nothing can be cut.
    pub must_refuse: bool,
    /// This checkpoint must not be used.
    pub checkpoint: Option<Lsn>,
}

/// A stretch of a log file: its header, or a block.
struct Stretch {
    file: String,
    from: usize,
    bytes: usize,
    /// None for a segment's header.
    kind: Option<BlockKind>,
}

fn stretches(log: &SimDisk) -> Vec<Stretch> {
    let mut found = Vec::new();
    for file in log.list().expect("list") {
        let bytes = log.bytes(&file).expect("listed");
        if !file.starts_with("log-") {
            continue;
        }
        found.push(Stretch {
            file: file.clone(),
            from: 0,
            bytes: SEGMENT_HEADER_BYTES,
            kind: None,
        });
        let mut from = SEGMENT_HEADER_BYTES;
        while let Some((header, _)) = bytes.get(from..).and_then(|rest| BlockHeader::decode(rest).ok()) {
            let length = header.block_bytes();
            let Some(block) = bytes.get(from..from + length) else {
                break;
            };
            if header.payload(block).is_err() {
                break;
            }
            found.push(Stretch {
                file: file.clone(),
                from,
                bytes: length,
                kind: Some(header.kind),
            });
            from += length;
        }
    }
    found
}

/// Harms one place of the log or of a checkpoint. It never harms the last block of records if no other block follows. That can't be told
/// from a write that a crash cut off.
pub fn harm(disk: &SimDisk, random: &mut FaultRandom) -> Option<Harm> {
    let files = Checkpoints::new(Arc::new(disk.folder("checkpoints")));
    let checkpoints = files.list().expect("list");
    if !checkpoints.is_empty() && random.below(2) == 0 {
        let lsn = checkpoints[checkpoints.len() - 1 - (random.below(4) == 0) as usize % checkpoints.len()];
        let file = checkpoint_name(lsn);
        let folder = disk.folder("checkpoints");
        let bytes = folder.bytes(&file).expect("listed").len();
        let what = change(&folder, &file, 0, bytes, random)?;
        return Some(Harm {
            file,
            what,
            must_refuse: false,
            checkpoint: Some(lsn),
        });
    }
    let log = disk.folder("log");
    let mut stretches = stretches(&log);
    let last = stretches.iter().rposition(|stretch| stretch.kind.is_some())?;
    let is_last_of_all = last + 1 == stretches.len();
    let last_kind = stretches[last].kind;
    if is_last_of_all && last_kind == Some(BlockKind::Data) {
        stretches.pop();
    }
    if stretches.is_empty() {
        return None;
    }
    let at = random.below(stretches.len() as u64) as usize;
    let stretch = &stretches[at];
    let what = change(&log, &stretch.file, stretch.from, stretch.bytes, random)?;
    let is_cut = is_last_of_all && at == last;
    Some(Harm {
        file: stretch.file.clone(),
        what: format!("{what} of {:?}", stretch.kind),
        must_refuse: !is_cut,
        checkpoint: None,
    })
}

fn change(folder: &SimDisk, file: &str, from: usize, count: usize, random: &mut FaultRandom) -> Option<String> {
    let at = from + random.below(count as u64) as usize;
    let bytes = folder.bytes(file).expect("there");
    if random.below(3) == 0 {
        let start = at / 512 * 512;
        let end = (start + 512).min(bytes.len());
        if bytes[start..end].iter().all(|byte| *byte == 0) {
            return None;
        }
        folder.damage(file, |bytes| bytes[start..end].fill(0));
        return Some(format!("sector at {start} is zero"));
    }
    let bit = random.below(8);
    folder.damage(file, |bytes| bytes[at] ^= 1 << bit);
    Some(format!("bit {bit} of byte {at} is flipped"))
}

/// Forgeries of a log record, under checksums that hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogForgery {
    /// The record is there this many times.
    Copies(usize),
    /// The record behind it stands before it.
    Swaps,
    /// The log ends before the record.
    EndsBefore,
    Arguments,
    Digest,
    /// A row that it changed.
    Change,
}

/// Writes the log anew, with the `number`-th record of a call from the end forged.
pub fn rewrite_log(disk: &SimDisk, number: usize, forgery: LogForgery) -> Option<SimDisk> {
    let old = disk.folder("log");
    let (mut reader, report) = LogReader::open(Arc::new(old), Lsn(0)).ok()?;
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().ok()? {
        let facts = record.record.facts();
        let is_call = match forgery {
            LogForgery::Arguments | LogForgery::Digest => facts.effect == RecordEffect::Call,
            LogForgery::Change => facts.effect == RecordEffect::Rows && facts.standalone,
            _ => [RecordEffect::Call, RecordEffect::Rows].contains(&facts.effect) && facts.standalone,
        };
        let forged = is_call.then(|| forged(&record.record, forgery)).flatten();
        records.push((is_call, RecordBatch::of(&record.record), forged));
    }
    let calls: Vec<_> = (0..records.len()).filter(|at| records[*at].0).collect();
    let chosen = *calls.get(calls.len().checked_sub(number + 1)?)?;
    match forgery {
        LogForgery::Copies(0) => drop(records.remove(chosen)),
        LogForgery::Copies(count) => (1..count).for_each(|_| {
            let again = records[chosen].1.clone();
            records.insert(chosen, (true, again, None));
        }),
        LogForgery::Swaps => {
            let next = *calls.iter().find(|at| **at > chosen)?;
            records.swap(chosen, next);
        }
        LogForgery::EndsBefore => records.truncate(chosen),
        _ => records[chosen].1 = records[chosen].2.take()?,
    }
    let fresh = SimDisk::new();
    let clock = Arc::new(SimClock::at_us(0));
    let stepper = Stepper::new(1, clock.clone());
    let mut config = LogConfig::new(report.database_id?);
    config.settings_hash = report.segments.last()?.settings_hash;
    config.segment_bytes = 1 << 20;
    let folder = Arc::new(fresh.folder("log"));
    let complete = Box::new(|_: Lsn, _: Result<(), &_>, (): ()| {});
    let opened = Log::open_on(folder, clock, Arc::new(stepper.clone()), config, complete);
    let (log, _) = opened.expect("a fresh log");
    for (_, record, _) in &records {
        drop(log.appender().append(record, None));
    }
    log.close().expect("close");
    drop(log);
    stepper.kill();
    stepper.forget();
    Some(fresh)
}

/// Makes a record with another content. None: the record has nothing of the kind.
fn forged(record: &RecordRef<'_>, forgery: LogForgery) -> Option<RecordBatch> {
    match (record, forgery) {
        (RecordRef::Command(command), LogForgery::Arguments) => {
            let mut args = command.args.to_vec();
            *args.last_mut()? ^= 1;
            let command = CommandRef {
                args: &args,
                ..*command
            };
            Some(RecordBatch::of(&RecordRef::Command(command)))
        }
        (RecordRef::Command(command), LogForgery::Digest) => {
            let digest = command.digest ^ 1;
            let command = CommandRef { digest, ..*command };
            Some(RecordBatch::of(&RecordRef::Command(command)))
        }
        (RecordRef::Changes(found), LogForgery::Change) => {
            let mut bytes = found.changes.to_vec();
            let PartitionSet::One(_) = found.partitions else {
                return None;
            };
            let mut walk = Changes::new(found.changes);
            let row = walk.find_map(|change| match change.ok()? {
                Change::Insert { row, .. } => Some(row),
                _ => None,
            })?;
            let at = row.as_ptr() as usize - found.changes.as_ptr() as usize;
            bytes[at] ^= 1;
            let changes = ChangesRef {
                changes: &bytes,
                ..*found
            };
            Some(RecordBatch::of(&RecordRef::Changes(changes)))
        }
        _ => None,
    }
}

/// Forgeries of a checkpoint, under checksums that hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointForgery {
    /// An item has another value.
    Row,
    /// A block of items is left out.
    WithoutRows,
    /// All idempotency keys are left out.
    WithoutKeys,
}

/// Writes the newest checkpoint anew.
pub fn forge_checkpoint(disk: &SimDisk, forgery: CheckpointForgery) -> Option<()> {
    let folder = disk.folder("checkpoints");
    let files = Checkpoints::new(Arc::new(folder.clone()));
    let lsn = *files.list().ok()?.last()?;
    let reader = files.open(lsn).ok()?;
    let tables = reader.tables().iter();
    let items = tables
        .map(|json| describe::from_json(json).expect("whole").tables.remove(0))
        .position(|table| table.name == "items")?;
    let schema = describe::from_json(&reader.tables()[items]).ok()?.tables.remove(0);
    let layout = RowLayout::of_table(&schema);
    let mut is_forged = false;
    let mut blocks = reader.blocks();
    let mut writer = files.begin(*reader.header()).ok()?;
    for (number, entry) in reader.entries().iter().enumerate() {
        let mut raw = blocks.read(number).ok()?.to_vec();
        let is_items = entry.kind == CheckpointBlockKind::Rows && entry.table as usize == items;
        let is_left_out = match (entry.kind, forgery) {
            (CheckpointBlockKind::Index, _) => continue,
            (CheckpointBlockKind::Keys, CheckpointForgery::WithoutKeys) => true,
            (_, CheckpointForgery::WithoutRows) => is_items && !is_forged,
            _ => false,
        };
        is_forged |= is_left_out;
        if is_left_out {
            continue;
        }
        if forgery == CheckpointForgery::Row && is_items && !is_forged {
            is_forged = forge_row(&mut raw, &layout);
        }
        writer
            .block(entry.kind, entry.partition, entry.table, entry.items_count, &raw)
            .ok()?;
    }
    drop(blocks);
    writer.finish().ok()?;
    writer.publish().ok()?;
    is_forged.then_some(())
}

fn forge_row(raw: &mut [u8], layout: &RowLayout) -> bool {
    let Some(Ok((row, _))) = CheckpointRows::new(raw).next() else {
        return false;
    };
    let Field::Int(value) = layout.field(row, 1) else {
        return false;
    };
    let from = row.as_ptr() as usize - raw.as_ptr() as usize;
    let old = value.to_le_bytes();
    let found = row.windows(8).rposition(|window| window == old);
    let Some(at) = found else { return false };
    raw[from + at] ^= 1;
    true
}
