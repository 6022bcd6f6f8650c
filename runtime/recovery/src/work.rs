//! What travels to a site together: commands to run and changes to apply, in the order of the log.

use std::sync::Arc;

use reprise_base::PartitionId;
use reprise_pages::prefetch_line;
use reprise_partition::Site;
use reprise_replay::{Command, Divergence, IdempotentOutcome, Redo, redo, remember, replay_single};
use reprise_storage::{PrefetchStep, Store};
use reprise_txn::{Deployed, LookAhead, NextCalls, PrefetchRow};
use reprise_wire::{Change, Changes};

use crate::{Outcome, RecoveryError, joint::Joint};

/// Records whose changes are decoded ahead, and their indexes and rows prefetched.
const LOOK_AHEAD: usize = 16;
/// Changes of so many records, usually: more make the list longer.
const AHEAD_CHANGES: usize = 1_024;
/// Records that travel together.
const WORKS_MAX: usize = 512;
/// Bytes of memory of a command's arguments that are kept for another's.
const SPARE_ARGS_MAX: usize = 512;
/// Bytes of changes from which on they are sent, however few.
const BYTES_MAX: usize = 256 << 10;

enum Work {
    /// The next of `Batch::commands`.
    Command,
    Changes(Part),
    /// A command of several sites, which is with all of them.
    Joint(Arc<Joint>),
}

/// One partition's part of a physiological record.
pub(crate) struct Part {
    pub partition: PartitionId,
    pub redo: Redo,
    /// Where the changes lie in `Batch::bytes`.
    pub at: usize,
    pub len: usize,
    /// The first part of its record, which counts it.
    pub counts: bool,
    /// True for a part of a record that touches several partitions.
    pub is_multi: bool,
    pub keyed: Option<Box<IdempotentOutcome>>,
}

/// What one site is to do. Its memory is used again.
#[derive(Default)]
pub(crate) struct Batch {
    works: Vec<Work>,
    /// Commands of several sites that are in none of `works` of their own.
    joined: usize,
    /// In the order in which they run, each with its partition.
    commands: Vec<(PartitionId, Command)>,
    bytes: Vec<u8>,
    /// Of commands that were run.
    spare_args: Vec<Vec<u8>>,
}

impl Batch {
    pub fn is_full(&self) -> bool {
        self.works.len() + self.joined >= WORKS_MAX || self.bytes.len() >= BYTES_MAX
    }

    pub fn is_empty(&self) -> bool {
        self.works.is_empty()
    }

    /// An empty vector for a command's arguments, with the memory of an earlier one's if there is any.
    pub fn args(&mut self) -> Vec<u8> {
        self.spare_args.pop().unwrap_or_default()
    }

    pub fn push_command(&mut self, partition: PartitionId, command: Command) {
        self.works.push(Work::Command);
        self.commands.push((partition, command));
    }

    /// Adds a part whose changes are copied.
    pub fn push_part(&mut self, mut part: Part, changes: &[u8]) {
        part.at = self.bytes.len();
        part.len = changes.len();
        self.bytes.extend_from_slice(changes);
        self.works.push(Work::Changes(part));
    }

    pub fn push_joint(&mut self, joint: Arc<Joint>) {
        self.works.push(Work::Joint(joint));
    }

    /// One more command was added to the last ones of several sites.
    pub fn note_joined(&mut self) {
        self.joined += 1;
    }

    /// The commands of several sites behind which nothing else was pushed yet.
    pub fn last_joint(&self) -> Option<&Arc<Joint>> {
        match self.works.last() {
            Some(Work::Joint(joint)) => Some(joint),
            _ => None,
        }
    }

    /// Does all of it, until something fails anywhere.
    pub fn run(&mut self, site: &mut Site, outcome: &Outcome) {
        let mut ahead = Ahead {
            changes: Vec::with_capacity(AHEAD_CHANGES),
            ends: Vec::with_capacity(LOOK_AHEAD),
        };
        let deployed = site.deployed().clone();
        let (mut replayed, mut run) = (0, 0);
        let commands = Commands {
            site,
            deployed: &deployed,
            commands: &self.commands,
        };
        let mut look_ahead = LookAhead::begin(0, &commands);
        for works in self.works.chunks_mut(LOOK_AHEAD) {
            if outcome.has_failed() {
                break;
            }
            ahead.read(site, works, &self.bytes);
            fetch_commands(&self.commands[run..]);
            let mut ends = ahead.ends.iter();
            let mut start = 0;
            for work in works {
                match work {
                    Work::Command => {
                        let commands = Commands {
                            site,
                            deployed: &deployed,
                            commands: &self.commands,
                        };
                        look_ahead.step(run, &commands);
                        let (id, command) = &mut self.commands[run];
                        run += 1;
                        replayed += 1;
                        let (partition, tools) = site.split(*id);
                        outcome.note(replay_single(partition, tools, &deployed, command));
                    }
                    Work::Changes(part) => {
                        let end = *ends.next().expect("one for each such work");
                        replayed += part.counts as u64;
                        let applied = apply(site, part, &ahead.changes[start..end], outcome);
                        if let Err(divergence) = applied {
                            outcome.fail(RecoveryError::Diverged(divergence));
                        }
                        start = end;
                    }
                    Work::Joint(joint) => joint.join(site, outcome),
                }
                if outcome.has_failed() {
                    break;
                }
            }
        }
        outcome.count(replayed);
        self.works.clear();
        self.joined = 0;
        self.bytes.clear();
        for (_, command) in self.commands.drain(..) {
            let mut args = command.args;
            args.clear();
            if args.capacity() <= SPARE_ARGS_MAX {
                self.spare_args.push(args);
            }
        }
    }
}

/// Asks for the memory of commands, which another core wrote: of the next ones' arguments, and of those that follow themselves.
fn fetch_commands(commands: &[(PartitionId, Command)]) {
    for (_, command) in commands.iter().skip(2 * LOOK_AHEAD).take(LOOK_AHEAD) {
        prefetch_line(&command.args);
        prefetch_line(&command.digest);
    }
    for (_, command) in commands.iter().skip(LOOK_AHEAD).take(LOOK_AHEAD) {
        command.args.first().inspect(|first| prefetch_line(*first));
    }
}

/// Commands of one batch, whose rows are prefetched as the engine does it for the calls that follow in a batch.
struct Commands<'d, 'a> {
    site: &'a Site,
    deployed: &'d Deployed,
    commands: &'a [(PartitionId, Command)],
}

impl<'d> NextCalls<'d> for Commands<'d, '_> {
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

/// Changes of the records that come next.
struct Ahead<'a> {
    changes: Vec<Change<'a>>,
    /// Of each record with changes, where they end in `changes`.
    ends: Vec<usize>,
}

impl<'a> Ahead<'a> {
    /// Decodes the changes and looks up what they will touch, so that the misses of the caches overlap.
    fn read(&mut self, site: &mut Site, works: &[Work], bytes: &'a [u8]) {
        self.changes.clear();
        self.ends.clear();
        for prefetch in [PrefetchStep::Index, PrefetchStep::Place, PrefetchStep::Row] {
            let mut ends = 0;
            for work in works {
                let Work::Changes(part) = work else { continue };
                let store = &site.partition(part.partition).store;
                if prefetch == PrefetchStep::Index {
                    // Checked when the record was decoded: there is no error among them.
                    let found = Changes::new(&bytes[part.at..part.at + part.len]).flatten();
                    self.changes.extend(found);
                    self.ends.push(self.changes.len());
                }
                let start = if ends == 0 { 0 } else { self.ends[ends - 1] };
                let changes = &self.changes[start..self.ends[ends]];
                changes.iter().for_each(|change| store.touch_change(change, prefetch));
                ends += 1;
            }
        }
    }
}

#[inline]
fn apply(site: &mut Site, part: &mut Part, changes: &[Change<'_>], outcome: &Outcome) -> Result<(), Box<Divergence>> {
    let (partition, tools) = site.split(part.partition);
    redo(partition, tools, &part.redo, changes)?;
    if let Some(keyed) = part.keyed.take() {
        let partition = (!part.is_multi).then_some(part.partition);
        outcome.remember(remember(tools, &part.redo, *keyed, partition)?);
    }
    Ok(())
}
