//! A new standby of a primary that has run for a while.

use std::sync::{Arc, Mutex};

use anyhow::{Result, anyhow};
use reprise_database::{Database, DeviceConfig};
use reprise_driver::{Around, BenchError, run_in};

use crate::{
    standby::{Began, Standby, StandbyConfig, wait_until},
    ways::{Run, options, serving},
};

/// Begins a standby once the load is over.
struct Late<'a> {
    run: &'a Run<'a>,
    began: Mutex<Option<(Began, Arc<Standby>)>>,
}

impl Late<'_> {
    fn begin(&self, primary: &Arc<Database>) -> Result<()> {
        primary.serve_standbys(serving())?;
        let config = StandbyConfig {
            dir: self.run.dir.join("standby"),
            partitions: self.run.partitions,
            sites: self.run.sites,
            device: DeviceConfig::File,
            replays: self.run.way.replays,
            acknowledges: self.run.way.acknowledges,
            readers: 0,
        };
        let (standby, began) = Standby::begin(primary, "late", &config)?;
        standby.catch_up(primary)?;
        standby.compare(primary)?;
        *self.began.lock().expect("one thread has it") = Some((began, Arc::new(standby)));
        Ok(())
    }
}

fn failed(error: anyhow::Error) -> BenchError {
    BenchError::Failed(format!("{error:#}"))
}

impl Around for Late<'_> {
    /// The checkpoint that the standby begins with: what the run writes lies behind it.
    fn filled(&self, primary: &Arc<Database>) -> Result<(), BenchError> {
        take_checkpoint(primary).map_err(failed)
    }

    fn ran(&self, primary: &Arc<Database>) -> Result<(), BenchError> {
        self.begin(primary).map_err(failed)
    }
}

fn take_checkpoint(primary: &Database) -> Result<()> {
    let checkpointer = primary.checkpointer()?;
    let begun = checkpointer.take()?;
    wait_until("a checkpoint is published", || {
        checkpointer.is_published(begun.lsn).map_err(anyhow::Error::msg)
    })
}

/// Measures the time that the standby took.
pub fn measure(run: &Run<'_>) -> Result<Began> {
    run.clear()?;
    let late = Late {
        run,
        began: Mutex::default(),
    };
    let report = run_in(&options(run, Some(run.dir.join("primary"))), &late, &|_| {});
    let began = late.began.into_inner().expect("nothing panics while it is held");
    let ended = began.map(|(began, standby)| Standby::end(standby).map(|()| began));
    run.clear()?;
    report?;
    ended.ok_or_else(|| anyhow!("no standby began"))?
}
