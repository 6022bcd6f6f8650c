//! Readers of a standby: threads that run read-only calls at views, while the sites replay.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use reprise_base::limits::FUEL_MAX;
use reprise_env::{Step, ThreadHandle, Work};
use reprise_partition::{ReadQueue, Reader, SiteMessage, StoreCheckout, ViewLimits};
use reprise_router::ReadPath;

use crate::{database::Database, error::OpenError, standby::StandbyParts};

/// The settings of reads on a standby, beside its replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadersConfig {
    /// Number of reader threads, at least 1.
    pub threads: u16,
    /// Longest time for which a view is held.
    pub view_time_max: Duration,
    /// Fuel that a read burns at most if its procedure declares none.
    pub view_fuel_max: u64,
    /// Bytes of rows that all partitions together keep for views.
    pub view_bytes_max: u64,
}

impl Default for ReadersConfig {
    fn default() -> Self {
        Self {
            threads: 2,
            view_time_max: Duration::from_secs(10),
            view_fuel_max: FUEL_MAX,
            view_bytes_max: 1 << 30,
        }
    }
}

/// The readers of a standby.
#[derive(Default)]
pub(crate) struct Readers {
    config: ReadersConfig,
    running: Option<RunningReaders>,
}

struct RunningReaders {
    lending: Arc<StoreCheckout>,
    threads: Vec<Box<dyn ThreadHandle>>,
}

struct ReaderWork(Reader);

impl Work for ReaderWork {
    fn run(self: Box<Self>) {
        let read = AssertUnwindSafe(|| self.0.run());
        if catch_unwind(read).is_err() {
            // A panic here breaks an invariant, like a panic of a site. It has printed its message already.
            std::process::abort();
        }
    }

    fn step(&mut self) -> Step {
        self.0.step()
    }
}

impl Database {
    /// Configures the readers of a standby, before it is recovered. It does nothing on a primary.
    pub fn set_readers(&self, config: ReadersConfig) {
        assert!(config.threads > 0, "a standby without readers answers no reads");
        if let Some(standby) = &self.upkeep.standby {
            standby.readers().config = config;
        }
    }

    /// Lets read-only calls run at views, on threads of their own, until the standby becomes the primary.
    pub(crate) fn start_readers(&self, standby: &StandbyParts) -> Result<(), OpenError> {
        let mut readers = standby.readers();
        let config = readers.config;
        let partitions = self.shared.partitions_count;
        let (lending, (asked, queue)) = (StoreCheckout::new(partitions), ReadQueue::new());
        let mut threads = Vec::new();
        for number in 0..config.threads {
            let (shared, recorder) = (self.shared.clone(), self.router.recorder());
            let (around, queue) = ((lending.clone(), Arc::new(self.router.clone()) as _), queue.clone());
            let limits = ViewLimits {
                time_max: config.view_time_max,
                fuel_max: config.view_fuel_max,
            };
            let make = Box::new(move || {
                let tools = Reader::tools(shared, recorder);
                Box::new(ReaderWork(Reader::new(tools, around, queue, limits))) as Box<dyn Work>
            });
            let started = self.shared.threads.start(&format!("reader-{number}"), make);
            threads.push(started.map_err(OpenError::Thread)?);
        }
        for inbox in &self.inboxes {
            let lending = lending.clone();
            let begin = SiteMessage::Job(Box::new(move |site| site.begin_lending(lending)));
            let _ = inbox.send(begin); // the engine may have stopped
        }
        let bytes_max = config.view_bytes_max / u64::from(partitions);
        self.router.set_read_path(ReadPath::Readers(asked), bytes_max);
        readers.running = Some(RunningReaders { lending, threads });
        Ok(())
    }

    /// Ends the reads that run at views, and waits for them. Further reads are refused.
    pub(crate) fn stop_readers(&self) {
        let standby = self.upkeep.standby.as_ref();
        let running = standby.and_then(|standby| standby.readers().running.take());
        let Some(readers) = running else { return };
        self.router.set_read_path(ReadPath::Closed, 0);
        readers.lending.end();
        readers.threads.into_iter().for_each(|thread| thread.join());
    }
}
