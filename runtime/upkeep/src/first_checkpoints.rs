//! The checkpoint with which a new standby begins.

use std::sync::{Arc, Mutex};

use reprise_base::Lsn;
use reprise_checkpoint::checkpoint_name;
use reprise_env::Disk;
use reprise_ship::{CheckpointSource, ChosenCheckpoint};

use crate::checkpointer::Checkpointer;

/// Bytes of log behind a checkpoint beyond which another one is taken before a standby begins with it.
const BEHIND_BYTES_MAX: u64 = 64 << 20;

/// The database's checkpoints, for standbys to begin with.
pub struct FirstCheckpoints {
    checkpointer: Arc<Checkpointer>,
    disk: Arc<dyn Disk>,
    /// One that was begun for a standby.
    awaited: Mutex<Option<Lsn>>,
}

impl FirstCheckpoints {
    /// Reads their files from `disk`.
    pub fn new(checkpointer: &Arc<Checkpointer>, disk: &Arc<dyn Disk>) -> Self {
        Self {
            checkpointer: checkpointer.clone(),
            disk: disk.clone(),
            awaited: Mutex::default(),
        }
    }

    /// The one that was begun for this, once it is published.
    fn awaited(&self) -> Result<Option<Lsn>, String> {
        let mut awaited = self.awaited.lock().expect("held for a short time");
        let Some(lsn) = *awaited else {
            let begun = self.checkpointer.try_take();
            *awaited = begun.map_err(|error| error.to_string())?.map(|info| info.lsn);
            return Ok(None);
        };
        let is_published = self.checkpointer.is_published(lsn);
        if is_published != Ok(false) {
            *awaited = None;
        }
        let is_published = is_published.map_err(|reason| {
            format!(
                "the server could not take the checkpoint that it needs first: \
         {reason}"
            )
        })?;
        Ok(is_published.then_some(lsn))
    }
}

impl CheckpointSource for FirstCheckpoints {
    fn choose(&self) -> Result<Option<ChosenCheckpoint>, String> {
        let kept = Box::new(self.checkpointer.keep_all());
        let near = self.checkpointer.history.newest_within(BEHIND_BYTES_MAX);
        if near.is_some() {
            *self.awaited.lock().expect("held for a store") = None;
        }
        let Some(lsn) = near.map_or_else(|| self.awaited(), |near| Ok(Some(near)))? else {
            return Ok(None);
        };
        let name = checkpoint_name(lsn);
        let file = self.disk.open_read(&name).map_err(|error| error.to_string())?;
        Ok(Some(ChosenCheckpoint { lsn, name, file, kept }))
    }
}
