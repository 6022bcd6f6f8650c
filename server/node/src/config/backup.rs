//! The directories of backups, and of files that the data directory releases.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Context;
use reprise_backup::{ArchiveBounds, DirHandle, RealTree};
use reprise_base::memory::parse_size;
use reprise_database::Database;
use reprise_env::{RealThreads, Threads};

use super::{place::nearest_directory, setting::settings};
use crate::output::{VerbResult, bytes};

const DAY_S: u64 = 24 * 3600;

settings! {
    /// The directories of backups and archive.
    BackupSettings from BackupArgs under "Backup" {
        /// Directory for backups of the running server [default: backups in the data directory]
        backup_dir: std::path::PathBuf {
            env: "REPRISE_BACKUP_DIR",
            takes: "DIR",
            show: |dir: &Option<std::path::PathBuf>| match dir {
                None => "backups in the data directory".to_owned(),
                Some(dir) => dir.display().to_string(),
            },
        }
        /// Largest size of all backups together. Beyond it the server refuses the next backup [default: half of their file system]
        backup_max: u64 {
            env: "REPRISE_BACKUP_MAX",
            takes: "SIZE",
            check: parse_size,
            show: |size: &Option<u64>| size.map_or_else(|| "half of the file system".to_owned(), bytes),
        }
        /// Directory that receives old checkpoints and log from the data directory. With it you can restore the database to any point of
        /// the last days [default: none]
        archive: std::path::PathBuf {
            env: "REPRISE_ARCHIVE",
            takes: "DIR",
            marks: [where_said],
        }
        /// Days for which the archive can restore any point. The server removes older files from it [default: for ever]
        archive_keep: u32 {
            env: "REPRISE_ARCHIVE_KEEP",
            takes: "DAYS",
            check: archive_keep,
            show: |days: &Option<u32>| days.map_or_else(|| "for ever".to_owned(), |days| format!("{days} days")),
            marks: [where_said],
        }
        /// Largest size of files that the data directory keeps for an archive that fails. Beyond it the server gives the archive up, and
        /// removes these files [default: 16GiB]
        archive_hold_max: u64 {
            env: "REPRISE_ARCHIVE_HOLD_MAX",
            takes: "SIZE",
            check: parse_size,
            default: 16 << 30,
            marks: [where_said],
        }
    }
}

impl BackupSettings {
    /// Begins backups and archive of an opened database, before it recovers. Without a log there is nothing to keep, and no backups.
    pub fn begin(&self, database: &Database, data_dir: &Path, keeps_archive: bool) -> VerbResult {
        if let Some(archive) = self.archive.value.as_ref().filter(|_| keeps_archive) {
            let keep = self
                .archive_keep
                .value
                .map(|days| Duration::from_secs(u64::from(days) * DAY_S));
            let bounds = ArchiveBounds {
                keep,
                held_bytes_max: self.archive_hold_max.value,
                open_max: ArchiveBounds::OPEN_MAX,
            };
            let begun = database.archive_to(&DirHandle::at(archive), bounds);
            begun.with_context(|| format!("use the archive {}", archive.display()))?;
        }
        let own = self.backup_dir.value.clone();
        let dir = own.unwrap_or_else(|| data_dir.join("backups"));
        let bytes_max = match self.backup_max.value {
            Some(bytes_max) => bytes_max,
            None => half_of_file_system(&dir, ArchiveBounds::OPEN_MAX, file_system_bytes)?,
        };
        database.serve_backups(Arc::new(RealTree(dir)), bytes_max);
        Ok(())
    }
}

/// Returns half of the file system's bytes; without a limit if it does not report its size. Err: it did not answer `ask` within `time`, as
/// with a disk that hangs.
fn half_of_file_system(
    dir: &Path,
    time: Duration,
    ask: impl FnOnce(&Path) -> Option<u64> + Send + 'static,
) -> Result<u64, anyhow::Error> {
    let (threads, asked): (&dyn Threads, _) = (&RealThreads, dir.to_owned());
    let answer = threads.within("backup-dir", time, move || ask(&asked));
    let answer = answer.context("start a thread that looks at the folder of backups")?;
    let answer = answer.with_context(|| {
        format!(
            "the file system of the backup directory {} does not answer within {} s. Repair it, name another directory with --backup-dir, or set \
             the size of all backups with --backup-max",
            dir.display(),
            time.as_secs_f64()
        )
    })?;
    Ok(answer.map_or(u64::MAX, |bytes| bytes / 2))
}

/// Returns the bytes of the file system that holds a folder, or would hold it.
fn file_system_bytes(dir: &Path) -> Option<u64> {
    let stats = rustix::fs::statvfs(nearest_directory(dir)).ok()?;
    Some(stats.f_blocks.saturating_mul(stats.f_frsize))
}

/// Days for which an archive is kept.
fn archive_keep(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(days @ 1..=36_500) => Ok(days),
        _ => Err(format!("{text:?} is not a number of days; take 1 to 36500")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_hangs_is_waited_for_no_longer_than_told() {
        let dir = Path::new("/mnt/backups");
        let half = half_of_file_system(dir, ArchiveBounds::OPEN_MAX, |_| Some(7)).expect("told");
        assert_eq!(half, 3);
        assert_eq!(
            half_of_file_system(dir, ArchiveBounds::OPEN_MAX, |_| None).ok(),
            Some(u64::MAX)
        );
        let (held, until_over) = std::sync::mpsc::channel::<()>();
        let hang = move |_: &Path| {
            let _ = until_over.recv(); // until the test ends
            None
        };
        let error = half_of_file_system(dir, Duration::from_millis(20), hang).expect_err("it hangs");
        let text = error.to_string();
        for words in ["/mnt/backups", "does not answer", "--backup-dir", "--backup-max"] {
            assert!(text.contains(words), "{text}");
        }
        drop(held);
    }
}
