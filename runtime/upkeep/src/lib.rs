//! Upkeep of an open database: takes checkpoints and backups beside the engine, removes the files that they replace, fills the archive, and
//! estimates the time of a restart.
//! Owns: the list of checkpoints, when the next one is begun, how many stay, the guards that keep files, one backup at a time.
//! Threads: one for the schedule, one for each checkpoint and backup, one for the archive. Disks of backups and of the archive may hang: a stop
//! waits for their threads for a bounded time. Engine threads wait for none.
//! Failure: a checkpoint, backup or archive that fails is recorded and reported; it stops no call, and the files before it stay.
//! Does not: choose the rows that are copied (`router`), write the format of a file (`checkpoint`, `backup`), load any (`recovery`).
//! Invariants: a file is removed only after its replacement was read back, and after the archive has it; while a guard lives, none is
//! removed.
//! Called by: `database`, `http` (what an operator asks for).
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod backup_info;
mod backup_job;
mod backups;
mod bounded_join;
mod checkpoint_history;
mod checkpoint_info;
mod checkpoint_job;
mod checkpointer;
mod config;
mod engine;
mod first_checkpoints;
mod module_bytes;
mod restart;
mod retention;
mod schedule;

pub use backup_info::{BackupError, BackupInfo, BackupPhase};
pub use backups::Backups;
pub use checkpoint_info::{CheckpointInfo, CheckpointPhase, FailedCheckpoint, LogMissing, TakeError};
pub use checkpointer::Checkpointer;
pub use config::CheckpointConfig;
pub use engine::EngineHandles;
pub use first_checkpoints::FirstCheckpoints;
pub use module_bytes::BytesError;
pub use restart::{OpeningPart, OpeningSpeeds, RestartCost};
pub use retention::RetentionGuard;

pub use reprise_backup::ArchiveStatus;
