//! Why the tables could not be made.

use reprise_checkpoint::CheckpointError;
use reprise_log::LogError;
use reprise_replay::ReplayError;

/// Why the tables could not be made from the files.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum RecoveryError {
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Log(#[from] LogError),
}
