//! A standby whose tables are not its primary's: it shows nothing more, is not promoted, and its directory says so from then on.

use std::sync::Arc;

use reprise_base::Role;
use reprise_env::{Disk, DiskError};
use reprise_observe::{Notice, NoticeKind};
use reprise_router::Phase;
use serde::{Deserialize, Serialize};

use crate::{
    comparing::Comparison,
    database::Database,
    error::OpenError,
    small_file::{self, DIFFERS_NAME},
};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    what: String,
}

/// Reads what differed, in the directory of a standby whose tables were not its primary's.
pub(crate) fn load(root: &dyn Disk) -> Result<Option<String>, OpenError> {
    let Some(bytes) = small_file::read(root, DIFFERS_NAME)? else {
        return Ok(None);
    };
    let note: Note = serde_json::from_slice(&bytes)
        .map_err(|error| OpenError::Config(format!("{DIFFERS_NAME} can't be read: {error}")))?;
    Ok(Some(note.what))
}

/// Err: the directory is one of a standby whose tables were not its primary's, and is not opened for reading alone.
pub(crate) fn judge(root: Option<&dyn Disk>, role: Role) -> Result<(), OpenError> {
    let differed = root.map_or(Ok(None), load)?;
    match differed.filter(|_| role != Role::ReadOnly) {
        Some(what) => Err(OpenError::Differs { what }),
        None => Ok(()),
    }
}

fn keep(root: &dyn Disk, what: &str) -> Result<(), DiskError> {
    let note = Note { what: what.to_owned() };
    let bytes = serde_json::to_vec(&note).expect("a text");
    small_file::replace(root, DIFFERS_NAME, &bytes)
}

impl Database {
    /// What is here is compared with what the primary found, as far as both are there.
    pub(crate) fn compare(&self) {
        let Some(standby) = &self.upkeep.standby else {
            return;
        };
        if self.router.role() == Role::Standby
            && let Some(difference) = standby.comparison.compare(self.router.view())
        {
            self.note_difference(&difference);
        }
    }

    pub(crate) fn comparison(&self) -> Option<Arc<Comparison>> {
        let standby = self.upkeep.standby.as_ref();
        standby.map(|standby| standby.comparison.clone())
    }

    /// Nothing of the tables is shown from now on, and nobody promotes this standby.
    fn note_difference(&self, what: &str) {
        let Some(standby) = &self.upkeep.standby else {
            return;
        };
        let report = format!(
            "this standby's tables are not its primary's: {what}. They are not served, and its replay has ended; what is received is kept in the log"
        );
        standby.keep_failure(&report.as_str().into());
        self.router.set_phase(Phase::Failed { report: report.clone() });
        let kept = self.upkeep.folders.as_ref().map(|folders| keep(&*folders.root, what));
        let told = match kept {
            Some(Err(error)) => {
                format!("{report}. {DIFFERS_NAME} can't be written, so a restart does not know: {error}")
            }
            _ => report,
        };
        let notice = || Notice::Standby {
            name: String::new(),
            what: told,
        };
        self.shared.notices.tell(NoticeKind::Standby, notice);
        standby.give_up();
    }
}

#[cfg(test)]
mod tests {
    use reprise_env::SimDisk;

    use super::*;

    #[test]
    fn a_directory_that_says_so_is_opened_for_reading_alone() {
        let disk = SimDisk::default();
        judge(None, Role::Primary).expect("no directory");
        judge(Some(&disk), Role::Standby).expect("no note");
        keep(&disk, "table t differs").expect("room");
        for role in [Role::Primary, Role::Standby] {
            let refused = judge(Some(&disk), role).expect_err("it differs").to_string();
            for part in ["table t differs", DIFFERS_NAME, "--read-only"] {
                assert!(refused.contains(part), "{refused}");
            }
        }
        judge(Some(&disk), Role::ReadOnly).expect("nothing is written");
        assert_eq!(load(&disk).expect("a note").as_deref(), Some("table t differs"));
        small_file::replace(&disk, DIFFERS_NAME, b"{").expect("room");
        let garbage = judge(Some(&disk), Role::ReadOnly).expect_err("no note").to_string();
        assert!(garbage.contains("can't be read"), "{garbage}");
        small_file::remove(&disk, DIFFERS_NAME).expect("it is there");
        judge(Some(&disk), Role::Primary).expect("it is gone");
    }
}
