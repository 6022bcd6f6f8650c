//! The threads of backups: one makes a backup step by step, and one removes the directories that a killed server left.

use std::{sync::Arc, time::Duration};

use reprise_backup::{DirHandle, RestoreError, StagingDir};
use reprise_base::Lsn;
use reprise_env::{Step, Work};

use crate::{
    backups::{Backups, PREFIX},
    checkpointer::GROWN_BYTES_MIN,
    retention::RetentionGuard,
};

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Removes the directories that a killed server left.
pub(crate) struct CleaningJob(pub Arc<Backups>);

impl Work for CleaningJob {
    fn run(mut self: Box<Self>) {
        self.step();
    }

    fn step(&mut self) -> Step {
        self.0.remove_remainders();
        Step::Over
    }
}

/// A backup on its way.
pub(crate) struct BackupJob {
    backups: Arc<Backups>,
    id: String,
    with_earlier: bool,
    at: BackupStage,
}

/// The next step of a backup. The guard keeps the checkpoint and the log behind it until they are copied.
enum BackupStage {
    Begin,
    /// A checkpoint of now, or one that is as good.
    Choose(StagingDir, RetentionGuard),
    /// Waits until this checkpoint is published.
    Wait(StagingDir, RetentionGuard, Lsn),
    Over,
}

impl BackupJob {
    pub fn new(backups: Arc<Backups>, id: String, with_earlier: bool) -> Self {
        let at = BackupStage::Begin;
        Self {
            backups,
            id,
            with_earlier,
            at,
        }
    }

    fn go_on(&mut self) -> Result<Step, RestoreError> {
        let backups = &self.backups;
        if !backups.goes_on() {
            // The stop may have left this thread behind, and the database may be closed.
            return Err(RestoreError::GivenUp("the node stops".into()));
        }
        match std::mem::replace(&mut self.at, BackupStage::Over) {
            BackupStage::Begin => {
                backups.tree.prepare()?;
                backups.remove_remainders();
                let kept = backups.checkpointer.keep_all();
                let place = DirHandle::new(backups.tree.clone(), &format!("{PREFIX}{}", self.id));
                self.at = BackupStage::Choose(StagingDir::begin(&place)?, kept);
            }
            BackupStage::Choose(staging, kept) => {
                if let Some(lsn) = backups.checkpointer.history.newest_within(GROWN_BYTES_MIN)
                    && let Some(bytes) = backups.copy_checkpoint(&staging, lsn)?
                {
                    return self.finish(staging, lsn, bytes);
                }
                match backups.new_checkpoint()? {
                    Some(lsn) => self.at = BackupStage::Wait(staging, kept, lsn),
                    None => {
                        self.at = BackupStage::Choose(staging, kept);
                        return Ok(Step::Idle);
                    }
                }
            }
            BackupStage::Wait(staging, kept, awaited) => {
                if !backups.is_published(awaited)? {
                    self.at = BackupStage::Wait(staging, kept, awaited);
                    return Ok(Step::Idle);
                }
                let Some(bytes) = backups.copy_checkpoint(&staging, awaited)? else {
                    return Err(RestoreError::GivenUp(
                        "the server can't read any checkpoint back".into(),
                    ));
                };
                return self.finish(staging, awaited, bytes);
            }
            BackupStage::Over => return Ok(Step::Over),
        }
        Ok(Step::Done)
    }

    fn finish(&self, staging: StagingDir, lsn: Lsn, bytes: u64) -> Result<Step, RestoreError> {
        let manifest = self.backups.make(staging, lsn, bytes, self.with_earlier)?;
        self.backups.record_end(Ok(manifest));
        Ok(Step::Over)
    }
}

impl Work for BackupJob {
    fn run(mut self: Box<Self>) {
        loop {
            match self.step() {
                Step::Done => {}
                Step::Idle => self.backups.engine().shared.threads.sleep(POLL_INTERVAL),
                Step::Over => return,
            }
        }
    }

    fn step(&mut self) -> Step {
        self.go_on().unwrap_or_else(|error| {
            self.backups.record_end(Err(error));
            Step::Over
        })
    }
}
