//! Copies of a database's files: backups with their manifests, restores to a point, and the archive of old log and checkpoints.
//! Owns: the layout of a backup and of an archive; a new directory until it is published.
//! Does not: run procedures, take checkpoints, know an open database.
//! Invariants: a new directory appears complete or not at all; a file is copied and synced before its original is removed.
//! Called by: `upkeep` (backups of a running node, the archive), `database` (folders), `ship` (new directories), `node` (files, without a server).
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod archive;
mod backup;
mod history;
mod manifest;
mod remainder;
mod restore;
mod staging;
mod tree;
mod union;

pub use archive::{Archive, ArchiveBounds, ArchiveError, ArchiveExpiry, ArchiveSource, ArchiveStatus, FindRecord};
pub use backup::{
    VerifiedBackup, create_backup, create_backup_in, decode_all, receive_backup, seal, stage_backup, verify_backup,
    verify_backup_in,
};
pub use history::{OtherHistory, check_history, settled_id};
pub use manifest::{BackupManifest, MANIFEST_NAME, ManifestError, ManifestFile, sum_file};
pub use remainder::{partial_target, remove_remainder};
pub use restore::{Point, RestoreError, RestoreReport, RestoreSource, restore, restore_archived, restore_in};
pub use staging::{StagingDir, StagingError, copy_file};
pub use tree::{DirHandle, DirTree, RealTree};
