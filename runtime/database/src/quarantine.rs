//! Procedures that were taken out of service because their replay diverged: a file in the data directory.

use reprise_env::{Disk, DiskError, DiskErrorKind};
use reprise_replay::Divergence;
use serde::{Deserialize, Serialize};

use crate::small_file;

pub(crate) const QUARANTINE_NAME: &str = "quarantine.json";

/// A procedure of one module version that takes no calls; of what it did, the log's changes are believed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quarantined {
    /// Number of the version in the log.
    pub module_id: u32,
    /// Its number in the module.
    pub procedure_number: u16,
    pub module: String,
    pub version: u32,
    pub procedure: String,
    /// The record that diverged.
    pub lsn: u64,
    pub what: String,
}

impl Quarantined {
    pub(crate) fn of(found: &Divergence) -> Self {
        Self {
            module_id: found.module_id.0,
            procedure_number: found.procedure_number,
            module: found.module.clone(),
            version: found.version,
            procedure: found.procedure.clone(),
            lsn: found.lsn.0,
            what: found.what.clone(),
        }
    }

    pub fn name(&self) -> String {
        format!("{}.{}", self.module, self.procedure)
    }

    /// Why a call of it is refused.
    pub(crate) fn reason(&self) -> String {
        format!(
            "{} version {} is in quarantine, since its replay diverged at LSN {}: a new version of the module takes calls again",
            self.name(),
            self.version,
            self.lsn
        )
    }
}

/// What the file in the data directory lists; nothing where there is none.
pub(crate) fn load(root: &dyn Disk) -> Result<Vec<Quarantined>, DiskError> {
    let Some(bytes) = small_file::read(root, QUARANTINE_NAME)? else {
        return Ok(Vec::new());
    };
    serde_json::from_slice(&bytes).map_err(|error| {
        let reason = format!("{error}. Restore the file from a copy, or remove it to let go of the quarantine");
        let path = format!("{}/{QUARANTINE_NAME}", root.describe());
        DiskError::new("read", &path, DiskErrorKind::Io, &reason)
    })
}

/// Replaces the list: the old or the new one is there, whatever happens.
pub(crate) fn save(disk: &dyn Disk, list: &[Quarantined]) -> Result<(), DiskError> {
    let unfit =
        |error: serde_json::Error| DiskError::new("write", QUARANTINE_NAME, DiskErrorKind::Io, &error.to_string());
    let mut text = serde_json::to_vec_pretty(list).map_err(unfit)?;
    text.push(b'\n');
    small_file::replace(disk, QUARANTINE_NAME, &text)
}

#[cfg(test)]
mod tests {
    use reprise_env::RealDisk;

    use super::*;

    #[test]
    fn a_list_reads_back_and_garbage_is_said() {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = RealDisk::open(dir.path()).expect("opened");
        assert_eq!(load(&disk).expect("none"), []);
        let list = [Quarantined {
            module_id: 3,
            procedure_number: 1,
            module: "bank".into(),
            version: 2,
            procedure: "transfer".into(),
            lsn: 77,
            what: "it did something else".into(),
        }];
        for _ in 0..2 {
            save(&disk, &list).expect("saved");
            assert_eq!(load(&disk).expect("read"), list);
        }
        std::fs::write(dir.path().join(QUARANTINE_NAME), b"{").expect("written");
        let error = load(&disk).expect_err("garbage").to_string();
        assert!(
            error.contains(QUARANTINE_NAME) && error.contains("remove it"),
            "{error}"
        );
    }
}
