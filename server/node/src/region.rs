//! Records in a data directory's NVRAM region that its files lack; and a region without a directory.

use std::path::Path;

use anyhow::{Context, anyhow};
use reprise_base::Lsn;
use reprise_codec::hex;
use reprise_database::RegionNote;
use reprise_env::RealDisk;
use reprise_log::{ReadRecord, recovered_records};
use reprise_nvram::{MapRegions, OpenMemory, PmemError, Region, RegionContents};
use reprise_wire::{FORMAT_VERSION, RecordScope};
use serde::Serialize;

use crate::{
    cli::Output,
    output::{VerbFailure, VerbResult, grouped, print_json, print_pairs},
};

/// A region that a data directory names.
#[derive(Serialize)]
pub struct FoundRegion {
    path: String,
    /// True if a server uses it now.
    in_use: bool,
    /// Number of its records that the files lack. Null if the region can't be read.
    records: Option<u64>,
    /// LSN behind the last of them.
    end: Option<u64>,
    /// Why it can't be read. Null if it can.
    error: Option<String>,
}

impl FoundRegion {
    /// Returns the region that `dir` names, with its records behind the files' end. None: the files have all records.
    pub fn of(dir: &Path, files_end: Lsn) -> Result<Option<Self>, VerbFailure> {
        let Some(note) = recorded_region(dir)? else {
            return Ok(None);
        };
        let found = recover(&note);
        let in_use = matches!(&found, Err(error) if matches!(error.downcast_ref(), Some(PmemError::Used { .. })));
        let (found, error) = match found {
            Ok(found) => (Some(found), None),
            Err(_) if in_use => (None, None),
            Err(error) => (None, Some(format!("{error:#}"))),
        };
        let new = found.map(|found| {
            let new = found.records.into_iter().filter(|record| record.end() > files_end);
            new.fold((0, None), |(count, _), record| {
                (count + u64::from(record.count), Some(record.end().0))
            })
        });
        Ok(Some(Self {
            path: note.path.display().to_string(),
            in_use,
            records: new.map(|(count, _)| count),
            end: new.and_then(|(_, end)| end),
            error,
        }))
    }

    pub fn is_readable(&self) -> bool {
        self.error.is_none()
    }

    pub fn describe(&self) -> String {
        let path = &self.path;
        match (&self.error, self.records, self.end) {
            (Some(error), ..) => format!("{path} may have records that the files do not have: {error}"),
            (None, Some(records), Some(end)) => {
                format!("{path} has {records} records, to LSN {end}: the next opening brings them to the files")
            }
            _ if self.in_use => format!("{path} is in use"),
            _ => format!("{path} has no record that the files do not have"),
        }
    }
}

/// Visits the records behind the files' end in the region that `dir` names, one at a time, until `each` returns false.
pub fn each_record(dir: &Path, files_end: Lsn, each: &mut dyn FnMut(&ReadRecord<'_>) -> bool) -> VerbResult {
    let Some(note) = recorded_region(dir)? else {
        return Ok(());
    };
    let recovered = recover(&note).with_context(|| format!("read the NVRAM region {}", note.path.display()))?;
    recovered_records(&recovered, files_end, each).context("read the NVRAM region")?;
    Ok(())
}

/// Refuses a command that would leave out the records of a region.
pub fn check_region(dir: &Path) -> VerbResult {
    match recorded_region(dir)? {
        None => Ok(()),
        Some(note) => Err(anyhow!(
            "the NVRAM region {} may have records that the files of {} do not have. Start the server on the directory once, with --device file or \
             as before. Then stop it in order",
            note.path.display(),
            dir.display()
        )
        .into()),
    }
}

fn recorded_region(dir: &Path) -> Result<Option<RegionNote>, VerbFailure> {
    let disk = RealDisk::open(dir).with_context(|| format!("open {}", dir.display()))?;
    Ok(RegionNote::load(&disk).context("read which NVRAM region is in use")?)
}

fn recover(note: &RegionNote) -> anyhow::Result<RegionContents> {
    let memory = MapRegions::default().open(&note.path, None)?;
    let region = Region::open(memory)?.context("it is blank")?;
    let id = hex(&region.owner().region_id);
    anyhow::ensure!(id == note.region_id, "it is another region, or an older copy");
    records_of(&region)
}

/// Returns the contents of a region in this program's format.
fn records_of(region: &Region) -> anyhow::Result<RegionContents> {
    let recovered = region.recover()?;
    let format = region.owner().format;
    anyhow::ensure!(
        format == FORMAT_VERSION,
        "it holds records in format {format}, this program reads format {FORMAT_VERSION}"
    );
    Ok(recovered)
}

/// A region without a directory: its contents, and whether it is whole.
#[derive(Serialize)]
pub struct AloneRegion {
    path: String,
    whole: bool,
    /// True if it is empty and has no owner.
    blank: bool,
    database_id: Option<String>,
    region_id: Option<String>,
    rings: Option<u32>,
    /// LSN before which the log's files had everything.
    copied: Option<u64>,
    /// LSN behind the last record.
    end: Option<u64>,
    records: u64,
    /// Number of LSNs before the last record that no record has. An opening writes a void record for each.
    void: u64,
    error: Option<String>,
}

/// Returns whether the path is a file or device. A command also takes a directory.
pub fn is_alone(path: &Path) -> bool {
    path.exists() && !path.is_dir()
}

impl AloneRegion {
    /// Reads the region. Err: it can't be opened, or a server uses it.
    pub fn of(path: &Path) -> Result<Self, VerbFailure> {
        let memory = MapRegions::default().open(path, None);
        let memory = memory.context("open the NVRAM region")?;
        let mut found = Self {
            path: path.display().to_string(),
            whole: false,
            blank: false,
            database_id: None,
            region_id: None,
            rings: None,
            copied: None,
            end: None,
            records: 0,
            void: 0,
            error: None,
        };
        match Region::open(memory) {
            Ok(Some(region)) => {
                found.database_id = Some(hex(&region.owner().database_id));
                found.region_id = Some(hex(&region.owner().region_id));
                found.rings = Some(region.geometry().rings);
                found.error = found.count(&region).err().map(|error| format!("{error:#}"));
            }
            Ok(None) => found.blank = true,
            Err(error) => found.error = Some(error.to_string()),
        }
        found.whole = found.error.is_none();
        Ok(found)
    }

    fn count(&mut self, region: &Region) -> anyhow::Result<()> {
        let recovered = records_of(region)?;
        self.copied = Some(recovered.copied.0);
        self.end = Some(recovered.copied.0);
        recovered_records(&recovered, recovered.copied, &mut |record| {
            match record.record.facts().scope {
                RecordScope::Nothing => self.void += 1,
                _ => self.records += 1,
            }
            self.end = Some(record.end.0);
            true
        })?;
        Ok(())
    }

    pub fn print(&self, output: Output) -> VerbResult {
        if output == Output::Json {
            print_json(self)?;
        } else {
            let range = match (self.copied, self.end) {
                (Some(copied), Some(end)) => format!("{copied} to {end}"),
                _ => String::new(),
            };
            let verdict = match (&self.error, self.blank) {
                (Some(error), _) => error.as_str(),
                (None, true) => "blank",
                (None, false) => "whole",
            };
            print_pairs(&[
                ("region", verdict.to_owned()),
                ("database", self.database_id.clone().unwrap_or_default()),
                ("LSN", range),
                ("rings", self.rings.map_or_else(String::new, |rings| rings.to_string())),
                ("records", grouped(self.records)),
                ("void", grouped(self.void)),
            ])?;
        }
        if self.whole { Ok(()) } else { Err(VerbFailure::No) }
    }
}

/// Visits the records that such a region has behind those of the files, one at a time, until `each` returns false.
pub fn each_alone(path: &Path, each: &mut dyn FnMut(&ReadRecord<'_>) -> bool) -> VerbResult {
    let mut read = || {
        let memory = MapRegions::default().open(path, None)?;
        let Some(region) = Region::open(memory)? else {
            return Ok(());
        };
        let recovered = records_of(&region)?;
        recovered_records(&recovered, recovered.copied, each)?;
        Ok::<(), anyhow::Error>(())
    };
    Ok(read().with_context(|| format!("read the NVRAM region {}", path.display()))?)
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use reprise_base::{Epoch, TxnId};
    use reprise_nvram::{FlushPolicy, Owner, PmemError};
    use reprise_wire::{RecordBatch, RecordRef, RemoveRef};

    use super::*;

    /// Reads a region. While another test of this program starts a process, that process has the locks of all open files.
    fn when_unlocked<T>(mut read: impl FnMut() -> Result<T, VerbFailure>) -> Result<T, VerbFailure> {
        let is_used = |error: &VerbFailure| {
            let VerbFailure::Other(error) = error else { return false };
            let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
            causes.any(|cause| matches!(cause, PmemError::Used { .. }))
        };
        for _ in 0..500 {
            match read() {
                Err(error) if is_used(&error) => thread::sleep(Duration::from_millis(10)),
                other => return other,
            }
        }
        read()
    }

    #[test]
    fn numbers_that_were_lost_are_told_as_void() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("region");
        let maps = MapRegions {
            assume_persistent: true,
        };
        let memory = maps.open(&path, Some(1 << 20)).expect("a region");
        let owner = Owner {
            format: FORMAT_VERSION,
            ..Owner::default()
        };
        let region = Region::format(memory, owner, 2, 256, (Epoch::new(1, 0), Lsn(3))).expect("there is room");
        let mut rings = region.rings(FlushPolicy::OnCommit);
        let record = RecordBatch::of(&RecordRef::Remove(RemoveRef {
            txn_id: TxnId(1),
            name: "gone",
            destroyed: Default::default(),
        }));
        for (ring, lsn) in [(1, 5), (0, 6), (1, 9)] {
            let writer = &mut rings[ring].0;
            writer.records(Lsn(lsn), 1, record.bytes(), &[]).expect("there is room");
            writer.persist();
        }
        drop(rings);
        let found = when_unlocked(|| AloneRegion::of(&path)).expect("it opens");
        assert_eq!(
            (found.whole, found.copied, found.end),
            (true, Some(3), Some(10)),
            "{:?}",
            found.error
        );
        assert_eq!((found.records, found.void), (3, 4));
        let mut seen = Vec::new();
        let mut take = |record: &ReadRecord<'_>| {
            seen.push(record.lsn.0);
            seen.len() < 5
        };
        when_unlocked(|| each_alone(&path, &mut take)).expect("read");
        assert_eq!(seen, [3, 4, 5, 6, 7]);
        for (lsn, is_there) in [(2, false), (3, true), (5, true), (9, true), (10, false)] {
            match when_unlocked(|| crate::logfile::show(&path, lsn, crate::cli::Output::Json)) {
                Ok(()) => assert!(is_there, "{lsn}"),
                Err(crate::output::VerbFailure::Other(error)) if !is_there => {
                    assert!(
                        error.to_string().ends_with(&format!("has no record with LSN {lsn}")),
                        "{error}"
                    );
                }
                Err(error) => panic!("LSN {lsn} is not shown: {error:?}"),
            }
        }
    }
}
