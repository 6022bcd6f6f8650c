//! Readers of a standby: threads that run read-only calls at views, while the sites replay.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
    time::Duration,
};

use reprise_base::Role;
use reprise_env::{Started, Step, Work};
use reprise_partition::{Lending, ReadQueue, Reader, SiteMessage};

use crate::{database::Database, error::OpenError};

/// How a standby reads beside its replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadersConfig {
    /// 0: reads run on the engine threads, between two windows of the replay, which waits for them.
    pub threads: u16,
    /// For so long a view is held at most.
    pub view_time_max: Duration,
    /// Bytes of rows that all partitions together keep for views.
    pub view_bytes_max: u64,
}

/// The readers of a standby.
pub(crate) struct Readers {
    lending: Arc<Lending>,
    threads: Vec<Box<dyn Started>>,
}

struct ReaderWork(Reader);

impl Work for ReaderWork {
    fn run(self: Box<Self>) {
        let read = AssertUnwindSafe(|| self.0.run());
        if catch_unwind(read).is_err() {
            // As of a site: a broken invariant. The panic's message is out already.
            std::process::abort();
        }
    }

    fn step(&mut self) -> Step {
        self.0.step()
    }
}

impl Database {
    /// From now on read-only calls run at views, on threads of their own, until the standby becomes the primary. Nothing on a primary. Once it is
    /// recovered.
    pub fn start_readers(&self, config: &ReadersConfig) -> Result<(), OpenError> {
        let Some(standby) = self.upkeep.standby.as_ref().filter(|_| config.threads > 0) else {
            return Ok(());
        };
        if self.router.role() != Role::Standby {
            return Ok(());
        }
        let mut readers = standby.readers();
        assert!(readers.is_none(), "readers are started once");
        let partitions = self.shared.partitions_count;
        let (lending, (asked, queue)) = (Lending::new(partitions), ReadQueue::new());
        let mut threads = Vec::new();
        for number in 0..config.threads {
            let (shared, recorder) = (self.shared.clone(), self.router.recorder());
            let (around, queue) = ((lending.clone(), Arc::new(self.router.clone()) as _), queue.clone());
            let view_time_max = config.view_time_max;
            let make = Box::new(move || {
                let tools = Reader::tools(shared, recorder);
                Box::new(ReaderWork(Reader::new(tools, around, queue, view_time_max))) as Box<dyn Work>
            });
            let started = self.shared.threads.start(&format!("reader-{number}"), make);
            threads.push(started.map_err(OpenError::Thread)?);
        }
        for inbox in &self.inboxes {
            let lending = lending.clone();
            let begin = SiteMessage::Job(Box::new(move |site| site.begin_lending(lending)));
            let _ = inbox.send(begin); // the engine may have stopped
        }
        self.router
            .set_readers(Some(asked), config.view_bytes_max / u64::from(partitions));
        *readers = Some(Readers { lending, threads });
        Ok(())
    }

    /// Ends the reads that run at views, and waits for that. Further ones go to the engine threads.
    pub(crate) fn stop_readers(&self) {
        let readers = self
            .upkeep
            .standby
            .as_ref()
            .and_then(|standby| standby.readers().take());
        let Some(readers) = readers else { return };
        self.router.set_readers(None, 0);
        readers.lending.end();
        readers.threads.into_iter().for_each(|thread| thread.join());
    }
}

/// Where a standby keeps its readers.
pub(crate) type ReadersSlot = Mutex<Option<Readers>>;
