//! The checkpoint with which a new standby begins.

use std::sync::{Arc, Mutex};

use reprise_base::Lsn;
use reprise_checkpoint::checkpoint_name;
use reprise_env::Disk;
use reprise_router::{CheckpointService, CheckpointState};
use reprise_ship::{CheckpointSource, ChosenCheckpoint};

use crate::checkpoint::Checkpointer;

/// With more log behind it, another checkpoint is taken before a standby begins with one.
const BEHIND_BYTES_MAX: u64 = 64 << 20;

/// The database's checkpoints, for standbys to begin with.
pub(crate) struct FirstCheckpoints {
    checkpointer: Arc<Checkpointer>,
    disk: Arc<dyn Disk>,
    /// One that was begun for a standby.
    awaited: Mutex<Option<Lsn>>,
}

impl FirstCheckpoints {
    pub fn new(checkpointer: &Arc<Checkpointer>, disk: &Arc<dyn Disk>) -> Self {
        Self {
            checkpointer: checkpointer.clone(),
            disk: disk.clone(),
            awaited: Mutex::default(),
        }
    }

    /// The newest one, where not much was written since.
    fn near(&self) -> Option<Lsn> {
        let newest = self.checkpointer.newest()?;
        (self.checkpointer.log.bytes_behind(newest) <= BEHIND_BYTES_MAX).then_some(newest)
    }

    /// One that was begun for this, once it is published.
    fn awaited(&self) -> Result<Option<Lsn>, String> {
        let mut awaited = self.awaited.lock().expect("held for a look");
        let Some(lsn) = *awaited else {
            let begun = self.checkpointer.try_take();
            *awaited = begun.map_err(|error| error.to_string())?.map(|info| info.lsn);
            return Ok(None);
        };
        let all = self.checkpointer.list();
        let found = all.into_iter().find(|info| info.lsn == lsn);
        if found
            .as_ref()
            .is_some_and(|info| info.state == CheckpointState::Running)
        {
            return Ok(None);
        }
        *awaited = None;
        match found {
            Some(info) if info.state == CheckpointState::Published => Ok(Some(lsn)),
            found => {
                let error = found.and_then(|info| info.error).unwrap_or_else(|| "it is gone".into());
                Err(format!("a checkpoint is needed first: {error}"))
            }
        }
    }
}

impl CheckpointSource for FirstCheckpoints {
    fn choose(&self) -> Result<Option<ChosenCheckpoint>, String> {
        let kept = Box::new(self.checkpointer.keep_all());
        let near = self.near();
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
