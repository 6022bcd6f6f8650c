//! Where backups and what the data directory lets go of lie.

use std::{path::Path, time::Duration};

use anyhow::Context;
use reprise_backup::ArchiveBounds;
use reprise_database::Database;

use super::{memory::size, place::nearest_directory, setting::settings};
use crate::output::{Outcome, bytes};

const DAY_S: u64 = 24 * 3600;

settings! {
    /// Where backups and archive lie.
    BackupSettings from BackupArgs under "Backup" {
        /// Where backups of the running server are made [default: backups in the data directory]
        backup_dir: std::path::PathBuf {
            env: "REPRISE_BACKUP_DIR",
            takes: "DIR",
            show: |dir: &Option<std::path::PathBuf>| match dir {
                None => "backups in the data directory".to_owned(),
                Some(dir) => dir.display().to_string(),
            },
        }
        /// What all backups may have together: beyond it the next one is refused [default: half of the file system they lie on]
        backup_max: u64 {
            env: "REPRISE_BACKUP_MAX",
            takes: "SIZE",
            judge: size,
            show: |size: &Option<u64>| size.map_or_else(|| "half of the file system".to_owned(), bytes),
        }
        /// Where checkpoints and log go that the data directory lets go of, so that the database can be restored to any point of the last
        /// days [default: nowhere]
        archive: std::path::PathBuf {
            env: "REPRISE_ARCHIVE",
            takes: "DIR",
            marks: [where_said],
        }
        /// Days that can be gone back from now; what the archive holds beyond them is removed [default: for ever]
        archive_keep: u32 {
            env: "REPRISE_ARCHIVE_KEEP",
            takes: "DAYS",
            judge: archive_keep,
            show: |days: &Option<u32>| days.map_or_else(|| "for ever".to_owned(), |days| format!("{days} days")),
            marks: [where_said],
        }
        /// What the data directory keeps for an archive that takes nothing: with more the archive is given up, and what waited goes
        /// [default: 16GiB]
        archive_hold_max: u64 {
            env: "REPRISE_ARCHIVE_HOLD_MAX",
            takes: "SIZE",
            judge: size,
            default: 16 << 30,
            marks: [where_said],
        }
    }
}

impl BackupSettings {
    /// Of a database that was opened, before it recovers. Without a log there is nothing to keep, and are no backups.
    pub fn begin(&self, database: &Database, data_dir: &Path) -> Outcome {
        if let Some(archive) = &self.archive.value {
            let keep = self
                .archive_keep
                .value
                .map(|days| Duration::from_secs(u64::from(days) * DAY_S));
            let bounds = ArchiveBounds {
                keep,
                held_bytes_max: self.archive_hold_max.value,
                open_max: ArchiveBounds::OPEN_MAX,
            };
            let begun = database.archive_to(archive, bounds);
            begun.with_context(|| format!("use the archive {}", archive.display()))?;
        }
        let own = self.backup_dir.value.clone();
        let dir = own.unwrap_or_else(|| data_dir.join("backups"));
        let bytes_max = self.backup_max.value.unwrap_or_else(|| half_of_file_system(&dir));
        database.serve_backups(dir, bytes_max);
        Ok(())
    }
}

/// Where the file system does not tell, nothing bounds them.
fn half_of_file_system(dir: &Path) -> u64 {
    let told = rustix::fs::statvfs(nearest_directory(dir));
    told.map_or(u64::MAX, |told| told.f_blocks.saturating_mul(told.f_frsize) / 2)
}

/// Days for which an archive is kept.
fn archive_keep(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(days @ 1..=36_500) => Ok(days),
        _ => Err(format!(
            "an archive is kept for 1 to 36500 days; {text:?} is no such number"
        )),
    }
}
