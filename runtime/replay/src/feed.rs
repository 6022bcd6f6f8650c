//! Windows on their way to the sites. With snapshot points, a window is fed up to a deployment first. The feeding thread then sends a
//! point, so that readers see everything before the deployment while the module is compiled.

use std::sync::Arc;

use crossbeam_channel::Sender;
use reprise_base::Lsn;
use reprise_wire::{RawRecord, RawRecords, RecordRef};

use crate::{
    error::ReplayError,
    replayer::{FedRecord, Replayer},
    window::Window,
};

/// The rest of a window. It begins with a deployment.
pub(crate) struct WindowRest {
    window: Arc<Window>,
    until: Option<Lsn>,
    deployment: NextDeployment,
}

/// The deployment that is fed next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextDeployment {
    /// LSN of its record.
    pub lsn: Lsn,
    /// Name and version of the module.
    pub name: String,
    /// Number from 1, per name.
    pub version: u32,
}

impl NextDeployment {
    fn of(lsn: Lsn, record: &RawRecord<'_>) -> Option<Self> {
        if !record.is_deploy() {
            return None;
        }
        // One that can't be read is fed, and told then.
        match record.decode() {
            Ok(RecordRef::Deploy(deploy)) => Some(Self {
                lsn,
                name: deploy.name.to_owned(),
                version: deploy.version,
            }),
            _ => None,
        }
    }
}

impl Replayer {
    /// Takes the records of a window, which follow those that were fed before. It leaves out the records from `until` on. They are replayed
    /// in the background: `drain` waits for that. After `begin_snapshot_points`, a deployment and the records behind it wait for
    /// `feed_rest`. Err: the earliest record that could not be replayed; no more may be fed.
    pub fn feed(&mut self, window: Window, until: Option<Lsn>) -> Result<(), ReplayError> {
        assert!(self.rest.is_none(), "the rest of a window is fed before the next one");
        self.feed_from(Arc::new(window), Lsn(0), until)
    }

    /// The deployment that the rest of the last window begins with. None: all of it was fed.
    pub fn next_deployment(&self) -> Option<&NextDeployment> {
        self.rest.as_ref().map(|rest| &rest.deployment)
    }

    /// Takes the rest of the last window, up to the next deployment in it. Compiles the module that is deployed, on this thread. Err: as of
    /// `feed`.
    pub fn feed_rest(&mut self) -> Result<(), ReplayError> {
        match self.rest.take() {
            Some(rest) => self.feed_from(rest.window, rest.deployment.lsn, rest.until),
            None => Ok(()),
        }
    }

    fn feed_from(&mut self, window: Arc<Window>, from: Lsn, until: Option<Lsn>) -> Result<(), ReplayError> {
        if self.outcome.has_failed() {
            return Err(self.fail(None));
        }
        let fed = self.feed_blocks(&window, from, until);
        let sent = fed.and_then(|next| self.send_all_pending().map(|()| next));
        match sent {
            Ok(Some(deployment)) => {
                self.rest = Some(WindowRest {
                    window,
                    until,
                    deployment,
                });
                Ok(())
            }
            Ok(None) => {
                release(window, &self.windows.0);
                Ok(())
            }
            Err(error) => {
                release(window, &self.windows.0);
                Err(self.fail(Some(error)))
            }
        }
    }

    /// Takes the records from `from` on. Returns the deployment that it stopped before.
    fn feed_blocks(
        &mut self,
        window: &Arc<Window>,
        from: Lsn,
        until: Option<Lsn>,
    ) -> Result<Option<NextDeployment>, ReplayError> {
        let stops = self.points.is_some();
        for block in window.blocks() {
            let block_at = window.place_of(block.records);
            let mut records = RawRecords::new(block.records);
            let mut lsn = block.lsn;
            while let Some(record) = records.next() {
                if until.is_some_and(|until| lsn >= until) {
                    return Ok(None);
                }
                let record = record.map_err(|error| ReplayError::Malformed { lsn, error })?;
                let place = FedRecord {
                    window,
                    lsn,
                    end: Lsn(lsn.0 + 1),
                    at: block_at + record.start,
                    bytes: record.end - record.start,
                };
                lsn = place.end;
                if place.lsn < from {
                    continue;
                }
                if stops
                    && place.lsn > from
                    && let Some(deployment) = NextDeployment::of(place.lsn, &record)
                {
                    return Ok(Some(deployment));
                }
                self.feed_record(&place, &record, &records)?;
                self.fed = lsn;
            }
        }
        Ok(None)
    }
}

/// Returns a window to the free ones, if no one else has it.
pub(crate) fn release(window: Arc<Window>, windows: &Sender<Window>) {
    if let Some(mut window) = Arc::into_inner(window).filter(|window| !window.is_run()) {
        window.clear();
        let _ = windows.send(window); // the replay may have ended with an error
    }
}
