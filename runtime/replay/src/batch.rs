//! A batch: commands and changes that travel to a site together, in log order. It ends at the end of a transaction. Between two batches the
//! site serves other messages.

use std::sync::Arc;

use reprise_base::{Lsn, PartitionId};
use reprise_pages::prefetch_line;
use reprise_partition::{Rendezvous, Site};
use reprise_storage::{PrefetchStep, Store};
use reprise_txn::{Deployed, LookAhead, NextCalls, PrefetchRow};
use reprise_wire::{Change, Changes};

use crate::{
    assist::{AHEAD_MIN, Assist, EarlyRedo},
    command::{LoggedCommand, replay_single},
    outcome::ReplayOutcome,
    redo::{ApplyContext, BatchRedo, PartitionProgress, RedoPart},
    window::Window,
};

/// Records whose changes are decoded ahead, and their indexes and rows prefetched, where commands lie among them; and those whose
/// bytes are prefetched.
const LOOK_AHEAD: usize = 16;
/// Commands that travel together.
const COMMANDS_MAX: usize = 512;
/// Bytes of memory of a command's arguments that are kept for another's.
const SPARE_ARGS_MAX: usize = 512;

enum BatchWork {
    /// The next of `ReplayBatch::commands`.
    Command,
    /// This many of the batch's parts.
    Parts(u32),
    /// Commands over the same partitions of several sites, which are with all of them.
    Rendezvous(Arc<Rendezvous>),
}

/// Work for one site. Its memory is used again.
#[derive(Default)]
pub(crate) struct ReplayBatch {
    works: Vec<BatchWork>,
    /// Commands of several sites.
    joined: usize,
    /// The commands in the order in which they run, each with its partition.
    commands: Vec<(PartitionId, LoggedCommand)>,
    redo: BatchRedo,
    /// Holds the changes instead of `redo`, so that a waiting thread can demultiplex them before the site does.
    ahead: Option<Arc<EarlyRedo>>,
    /// Jobs over several sites that were fed before.
    jobs: u64,
    /// Progress of changes, by partition.
    seen: Vec<PartitionProgress>,
    /// Records of which the first part is among `works`.
    records: u64,
    done: BatchProgress,
    /// Probable end of the log; 0: not known.
    pub log_end: Lsn,
    /// Argument buffers of commands that were run.
    spare_args: Vec<Vec<u8>>,
}

/// How much of a batch is done.
#[derive(Clone, Copy, Default)]
struct BatchProgress {
    works: usize,
    commands: usize,
    parts: usize,
    /// Something failed before the rest of this batch. The rest only brings partitions where others wait for them. Everything before a
    /// failure is replayed: it may fail, too, and the earliest failure is reported.
    has_failed: bool,
}

impl ReplayBatch {
    pub fn is_full(&self) -> bool {
        self.commands.len() + self.joined >= COMMANDS_MAX
    }

    pub fn is_empty(&self) -> bool {
        self.works.is_empty()
    }

    /// An empty vector for a command's arguments, with the memory of an earlier one's if there is any.
    pub fn args(&mut self) -> Vec<u8> {
        self.spare_args.pop().unwrap_or_default()
    }

    pub fn push_command(&mut self, partition: PartitionId, command: LoggedCommand) {
        self.works.push(BatchWork::Command);
        self.commands.push((partition, command));
    }

    /// Adds a part of a record in `window`, which is that of all other parts; `counts`: the record's first one.
    #[inline]
    pub fn push_part(&mut self, part: RedoPart, counts: bool, seen: PartitionProgress, window: &Arc<Window>) {
        match self.works.last_mut() {
            Some(BatchWork::Parts(count)) => *count += 1,
            _ => self.works.push(BatchWork::Parts(1)),
        }
        self.records += counts as u64;
        let at = part.partition.index();
        if self.seen.len() <= at {
            self.seen.resize(at + 1, PartitionProgress::default());
        }
        self.seen[at].tick = self.seen[at].tick.max(seen.tick);
        self.seen[at].end = seen.end;
        self.redo.push(part, window);
    }

    /// Ends the batch, behind `jobs` jobs over several sites. If it holds many changes and nothing else, another thread may
    /// demultiplex the result.
    pub fn close(&mut self, jobs: u64) -> Option<Arc<EarlyRedo>> {
        self.jobs = jobs;
        if self.is_alone() && self.redo.parts().len() >= AHEAD_MIN {
            self.ahead = Some(Arc::new(EarlyRedo::new(std::mem::take(&mut self.redo), jobs)));
        }
        self.ahead.clone()
    }

    /// True if the batch has only changes.
    fn is_alone(&self) -> bool {
        self.commands.is_empty() && self.joined == 0
    }

    pub fn push_rendezvous(&mut self, rendezvous: Arc<Rendezvous>) {
        self.works.push(BatchWork::Rendezvous(rendezvous));
        self.joined += 1;
    }

    /// Records that one more command was added to the last ones of several sites.
    pub fn record_joined(&mut self) {
        self.joined += 1;
    }

    /// The commands of several sites behind which nothing else was pushed yet.
    pub fn last_rendezvous(&self) -> Option<&Arc<Rendezvous>> {
        match self.works.last() {
            Some(BatchWork::Rendezvous(rendezvous)) => Some(rendezvous),
            _ => None,
        }
    }

    /// Runs everything before the earliest failure. False: partitions of the site are at a rendezvous; the batch continues when they
    /// return.
    pub fn run(&mut self, site: &mut Site, assist: &Assist, outcome: &ReplayOutcome) -> bool {
        if let Some(ahead) = self.ahead.take() {
            self.redo = ahead.take();
        }
        let window = self.redo.window().cloned().unwrap_or_default();
        let growth_times = match self.is_alone() {
            true => 1.0 + window.windows_behind(self.log_end),
            false => 0.0,
        };
        let how = ApplyContext {
            window: &window,
            growth_times,
            outcome,
            assist,
        };
        if !self.run_works(site, how) {
            return false;
        }
        self.record_progress(site);
        self.works.clear();
        self.done = BatchProgress::default();
        self.seen.clear();
        (self.joined, self.records) = (0, 0);
        for (_, command) in self.commands.drain(..) {
            let mut args = command.args;
            args.clear();
            if args.capacity() <= SPARE_ARGS_MAX {
                self.spare_args.push(args);
            }
        }
        true
    }

    /// The window of a batch that was run, which has no changes after that.
    pub fn take_window(&mut self) -> Option<Arc<Window>> {
        self.redo.clear()
    }

    /// Prefetches the memory of the next works.
    fn prefetch(&self, site: &Site, done: BatchProgress, window: &Window) {
        let (works, parts) = (&self.works[done.works..], &self.redo.parts()[done.parts..]);
        prefetch_parts(site, works, parts, window.bytes());
        fetch_commands(&self.commands[done.commands..]);
    }

    fn run_works(&mut self, site: &mut Site, how: ApplyContext<'_>) -> bool {
        let (window, outcome) = (how.window, how.outcome);
        let deployed = site.deployed().clone();
        let mut replayed = std::mem::take(&mut self.records);
        let mut done = self.done;
        let is_alone = self.is_alone();
        let commands = CommandPrefetch {
            site,
            deployed: &deployed,
            commands: &self.commands,
        };
        let mut look_ahead = LookAhead::begin(done.commands, &commands);
        while let Some(work) = self.works.get(done.works) {
            if done.works.is_multiple_of(LOOK_AHEAD) && !is_alone {
                self.prefetch(site, done, window);
            }
            done.works += 1;
            site.serve_readers();
            match work {
                BatchWork::Rendezvous(rendezvous) => {
                    self.redo.flush_all(site, how);
                    site.join(rendezvous);
                    if site.has_away() {
                        break;
                    }
                }
                _ if done.has_failed => {}
                BatchWork::Command => {
                    let commands = CommandPrefetch {
                        site,
                        deployed: &deployed,
                        commands: &self.commands,
                    };
                    look_ahead.step(done.commands, &commands);
                    let (id, command) = &mut self.commands[done.commands];
                    self.redo.flush(site, *id, how);
                    if outcome.has_failed_before(command.end) {
                        done.has_failed = true;
                        continue;
                    }
                    done.commands += 1;
                    replayed += 1;
                    let (partition, tools) = site.split(*id);
                    outcome.record(replay_single(partition, tools, &deployed, command));
                }
                BatchWork::Parts(count) => {
                    let first = self.redo.parts()[done.parts].partition;
                    done.parts += *count as usize;
                    let schema = how.assist.schema(self.jobs, site.store(first));
                    self.redo.demultiplex(done.parts, &schema, how.assist, outcome);
                }
            }
        }
        self.done = done;
        outcome.count(replayed);
        if site.has_away() {
            return false;
        }
        self.redo.flush_all(site, how);
        true
    }

    fn record_progress(&self, site: &mut Site) {
        for (id, seen) in (0..).map(PartitionId).zip(&self.seen) {
            if seen.end > Lsn(0) {
                let partition = site.partition(id);
                partition.clock.advance_past(seen.tick);
                partition.last_end = partition.last_end.max(seen.end);
            }
        }
    }
}

/// Prefetches commands, which another core wrote: arguments of the next ones, and the ones behind those.
fn fetch_commands(commands: &[(PartitionId, LoggedCommand)]) {
    for (_, command) in commands.iter().skip(2 * LOOK_AHEAD).take(LOOK_AHEAD) {
        prefetch_line(&command.args);
        prefetch_line(&command.digest);
    }
    for (_, command) in commands.iter().skip(LOOK_AHEAD).take(LOOK_AHEAD) {
        command.args.first().inspect(|first| prefetch_line(*first));
    }
}

/// Commands of one batch, whose rows are prefetched as the engine does it for the calls that follow in a batch.
struct CommandPrefetch<'d, 'a> {
    site: &'a Site,
    deployed: &'d Deployed,
    commands: &'a [(PartitionId, LoggedCommand)],
}

impl<'d> NextCalls<'d> for CommandPrefetch<'d, '_> {
    #[inline(always)]
    fn call(&self, at: usize) -> Option<(&'d [PrefetchRow], &[u8])> {
        let (_, command) = self.commands.get(at)?;
        let module = self.deployed.module(command.module_id)?;
        let rows = module.prefetch.get(command.procedure as usize)?;
        Some((rows, &command.args))
    }

    #[inline(always)]
    fn store(&self, at: usize) -> &Store {
        self.site.store(self.commands[at].0)
    }
}

/// Decodes the changes of the next works and looks up their rows, so that cache misses overlap: among commands, few changes are applied
/// together.
fn prefetch_parts(site: &Site, works: &[BatchWork], parts: &[RedoPart], window: &[u8]) {
    let counts = works.iter().take(LOOK_AHEAD).map(|work| match work {
        BatchWork::Parts(count) => *count as usize,
        BatchWork::Command | BatchWork::Rendezvous(_) => 0,
    });
    let count = counts.sum::<usize>().min(LOOK_AHEAD);
    let mut changes: Vec<(PartitionId, Change<'_>)> = Vec::new();
    for part in &parts[..count] {
        // A part that can't be read is reported when it is applied.
        let found = Changes::new(&window[part.at as usize..(part.at + part.len) as usize]).flatten();
        changes.extend(found.map(|change| (part.partition, change)));
    }
    for prefetch in [PrefetchStep::Index, PrefetchStep::Place, PrefetchStep::Row] {
        for (id, change) in &changes {
            site.store(*id).touch_change(change, prefetch);
        }
    }
}
