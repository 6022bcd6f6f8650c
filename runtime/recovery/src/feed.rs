//! The walk over the log: its reader, from the position at which recovery begins to the log's end.
//!
//! Where the log holds changes alone for a while, the reader goes to those who apply them (`lane`) and comes back when something
//! else follows.

use std::{sync::Arc, time::Duration};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use reprise_base::Lsn;
use reprise_log::{LogBlock, LogReader};
use reprise_partition::Touched;
use reprise_wire::Records;

use crate::{
    Recovery, RecoveryError,
    parallel_redo::{Left, ParallelRedo, Source},
    window::{Window, changes_count},
};

/// Bytes of changes, and of nothing else, from which on a stretch of the log is applied by all cores at once.
pub const WINDOW_BYTES: usize = 1 << 20;
/// The same once there is a lane: the longer a window, the more writes are overwritten within it, and the more memory it takes.
pub(crate) const LANE_WINDOW_BYTES: usize = 2 << 20;

/// How often it is shown how far all cores have come.
const SHOW_EVERY: Duration = Duration::from_millis(20);

impl Recovery {
    /// Takes what `reader` reads; records from `until` on are left out. `show` is told now and then which position was reached.
    /// Err: something failed, here or in the log.
    pub fn feed(
        &mut self,
        mut reader: LogReader,
        until: Option<Lsn>,
        mut show: impl FnMut(&Self, Lsn),
    ) -> Result<(), RecoveryError> {
        let full = self.window_bytes;
        loop {
            if self.window.bytes().len() >= full {
                let source = Source {
                    reader,
                    until,
                    from: self.from,
                    room: LANE_WINDOW_BYTES / WINDOW_BYTES * full,
                    log_end: self.log_end,
                };
                reader = self.run_lane(source, &mut show)?;
            }
            let Some(block) = reader.next_block()? else {
                break;
            };
            if until.is_some_and(|until| block.lsn >= until) {
                break;
            }
            self.feed_block(&block, until)?;
            show(self, block.end());
        }
        self.leave_window()
    }

    fn feed_block(&mut self, block: &LogBlock<'_>, until: Option<Lsn>) -> Result<(), RecoveryError> {
        let is_whole = until.is_none_or(|until| until >= block.end());
        match changes_count(block.records, block.version, self.from) {
            Some(count) if is_whole && self.held.is_none() => {
                self.window.push(block, count);
                Ok(())
            }
            _ => {
                self.leave_window()?;
                self.feed_each(block, until)
            }
        }
    }

    fn feed_each(&mut self, block: &LogBlock<'_>, until: Option<Lsn>) -> Result<(), RecoveryError> {
        let mut lsn = block.lsn;
        for record in Records::new(block.records, block.version) {
            if until.is_some_and(|until| lsn >= until) {
                break;
            }
            let record = record.map_err(|error| RecoveryError::Malformed { lsn, error });
            let (_, record, bytes) = record?;
            let end = Lsn(lsn.0 + bytes.len() as u64);
            self.feed_record(lsn, end, record)?;
            lsn = end;
        }
        Ok(())
    }

    /// Sends on what was gathered for a lane and is too little to hold all partitions for it.
    fn leave_window(&mut self) -> Result<(), RecoveryError> {
        if self.window.is_empty() {
            return Ok(());
        }
        let mut window = std::mem::take(&mut self.window);
        let fed = window.blocks().try_for_each(|block| self.feed_each(&block, None));
        window.clear();
        self.window = window;
        fed
    }

    /// Has all cores apply the window, and what follows it as long as that is of its kind; the reader behind that.
    fn run_lane(&mut self, source: Source, show: &mut impl FnMut(&Self, Lsn)) -> Result<LogReader, RecoveryError> {
        if self.outcome.has_failed() {
            return Err(self.take_error());
        }
        let threads = self.shared.threads.cores();
        let mut spares = std::mem::take(&mut self.spare_windows);
        let next = spares.pop().map_or(Window::default(), |sorted| sorted.window);
        let first = std::mem::replace(&mut self.window, next);
        let parallel_redo = Arc::new(ParallelRedo::new(first, source, spares));
        // Nothing is sent: the job's end, wherever that is, is the channel's.
        let (running, over) = crossbeam_channel::bounded::<()>(0);
        let (outcome, runner) = (self.outcome.clone(), parallel_redo.clone());
        self.gather(
            Touched::All,
            Box::new(move |held| {
                if !outcome.has_failed() {
                    runner.run(held, &outcome, threads);
                }
                drop(running);
            }),
        )?;
        self.wait_for(&parallel_redo, &over, show);
        let Some(left) = parallel_redo.leave() else {
            return Err(self.take_error());
        };
        let Left {
            reader,
            records,
            spares,
            error,
        } = left;
        self.commands += records;
        self.spare_windows = spares;
        match error {
            _ if self.outcome.has_failed() => Err(self.take_error()),
            Some(error) => Err(error.into()),
            None => Ok(reader),
        }
    }

    fn wait_for(&self, parallel_redo: &ParallelRedo, over: &Receiver<()>, show: &mut impl FnMut(&Self, Lsn)) {
        while self.shared.threads.receive_for(over, SHOW_EVERY) == Err(RecvTimeoutError::Timeout) {
            show(self, parallel_redo.position());
        }
    }
}
