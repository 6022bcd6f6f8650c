//! What the files of a data directory lack: records that lie in its NVRAM region alone.

use std::path::Path;

use anyhow::{Context, anyhow};
use reprise_base::Lsn;
use reprise_database::RegionNote;
use reprise_env::RealDisk;
use reprise_log::{LogRecord, recovered_records};
use reprise_nvram::{MapRegions, OpenMemory, PmemError, Recovered, Region};
use reprise_wire::FORMAT_VERSION;
use serde::Serialize;

use crate::output::{Failure, Outcome};

/// A region that a data directory names.
#[derive(Serialize)]
pub struct FoundRegion {
    path: String,
    /// A server uses it now.
    in_use: bool,
    /// That the files do not have; null where the region can't be read.
    records: Option<u64>,
    /// Behind the last of them.
    end: Option<u64>,
    /// Why it can't be read; null where it can.
    error: Option<String>,
}

impl FoundRegion {
    /// The one that `dir` names, with what it has behind the files' end. None: the files have all.
    pub fn of(dir: &Path, files_end: Lsn) -> Result<Option<Self>, Failure> {
        let Some(note) = noted(dir)? else {
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

/// What the region that `dir` names has behind the files' end, a record at a time, until `each` says false.
pub fn each_record(dir: &Path, files_end: Lsn, each: &mut dyn FnMut(&LogRecord<'_>) -> bool) -> Outcome {
    let Some(note) = noted(dir)? else {
        return Ok(());
    };
    let recovered = recover(&note).with_context(|| format!("read the NVRAM region {}", note.path.display()))?;
    recovered_records(&recovered, files_end, each).context("read the NVRAM region")?;
    Ok(())
}

/// Refuses what would leave out what a region has.
pub fn judge(dir: &Path) -> Outcome {
    match noted(dir)? {
        None => Ok(()),
        Some(note) => Err(anyhow!(
            "the NVRAM region {} may have records that the files of {} do not have: start the server on it once, with --device file or as it \
             was, and stop it in order",
            note.path.display(),
            dir.display()
        )
        .into()),
    }
}

fn noted(dir: &Path) -> Result<Option<RegionNote>, Failure> {
    let disk = RealDisk::open(dir).with_context(|| format!("open {}", dir.display()))?;
    Ok(RegionNote::load(&disk).context("read which NVRAM region is in use")?)
}

fn recover(note: &RegionNote) -> anyhow::Result<Recovered> {
    let memory = MapRegions::default().open(&note.path, None)?;
    let region = Region::open(memory)?.context("it is blank")?;
    let id: String = region
        .owner()
        .region_id
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    anyhow::ensure!(id == note.region_id, "it is another region, or an older copy");
    let recovered = region.recover()?;
    let format = region.owner().format;
    anyhow::ensure!(
        format == FORMAT_VERSION || recovered.records.is_empty(),
        "it holds records in format {format}, this program reads format {FORMAT_VERSION}"
    );
    Ok(recovered)
}
