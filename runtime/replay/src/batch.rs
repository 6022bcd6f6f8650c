//! What travels to a site together: commands to run and changes to apply, in the order of the log. A batch ends where a transaction
//! does, and between two of them the site serves whatever else has arrived.

use std::sync::Arc;

use reprise_base::{Lsn, PartitionId};
use reprise_pages::prefetch_line;
use reprise_partition::Site;
use reprise_storage::{PrefetchStep, Store};
use reprise_txn::{Deployed, LookAhead, NextCalls, PrefetchRow};
use reprise_wire::{Change, Changes};

use crate::{
    command::{Command, replay_single},
    joint::Joint,
    outcome::Outcome,
    redo::{Part, SiteRedo},
    window::Window,
};

/// Records whose changes are decoded ahead, and their indexes and rows prefetched, where commands lie among them; and those whose
/// bytes are prefetched.
const LOOK_AHEAD: usize = 16;
/// Commands that travel together.
const COMMANDS_MAX: usize = 512;
/// Bytes of memory of a command's arguments that are kept for another's.
const SPARE_ARGS_MAX: usize = 512;

enum Work {
    /// The next of `Batch::commands`.
    Command,
    Changes(Part),
    /// A command of several sites, which is with all of them.
    Joint(Arc<Joint>),
}

/// What one site is to do. Its memory is used again.
#[derive(Default)]
pub(crate) struct Batch {
    works: Vec<Work>,
    /// Commands of several sites.
    joined: usize,
    /// In the order in which they run, each with its partition.
    commands: Vec<(PartitionId, Command)>,
    /// Where the changes lie.
    window: Option<Arc<Window>>,
    /// Records of which the first part is among `works`.
    records: u64,
    /// Where the log probably ends; 0: not known.
    pub log_end: Lsn,
    /// Of commands that were run.
    spare_args: Vec<Vec<u8>>,
}

impl Batch {
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

    pub fn push_command(&mut self, partition: PartitionId, command: Command) {
        self.works.push(Work::Command);
        self.commands.push((partition, command));
    }

    /// Adds a part of a record in `window`, which is that of all other parts; `counts`: the record's first one.
    #[inline]
    pub fn push_part(&mut self, part: Part, counts: bool, window: &Arc<Window>) {
        if self.window.is_none() {
            self.window = Some(window.clone());
        }
        self.records += counts as u64;
        self.works.push(Work::Changes(part));
    }

    pub fn push_joint(&mut self, joint: Arc<Joint>) {
        self.works.push(Work::Joint(joint));
        self.joined += 1;
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

    /// Does all of it, until something fails anywhere. Returns the window.
    pub fn run(&mut self, site: &mut Site, redo: &mut SiteRedo, outcome: &Outcome) -> Option<Arc<Window>> {
        let window = self.window.take();
        let none = Window::default();
        self.run_works(site, redo, window.as_deref().unwrap_or(&none), outcome);
        self.works.clear();
        (self.joined, self.records) = (0, 0);
        for (_, command) in self.commands.drain(..) {
            let mut args = command.args;
            args.clear();
            if args.capacity() <= SPARE_ARGS_MAX {
                self.spare_args.push(args);
            }
        }
        window
    }

    fn run_works(&mut self, site: &mut Site, redo: &mut SiteRedo, window: &Window, outcome: &Outcome) {
        let deployed = site.deployed().clone();
        let (mut replayed, mut run) = (self.records, 0);
        let is_alone = self.commands.is_empty() && self.joined == 0;
        let growth_times = match is_alone {
            true => 1.0 + window.windows_behind(self.log_end),
            false => 0.0,
        };
        let commands = Commands {
            site,
            deployed: &deployed,
            commands: &self.commands,
        };
        let mut look_ahead = LookAhead::begin(0, &commands);
        let mut ahead = Vec::new();
        redo.begin(window);
        for at in 0..self.works.len() {
            if at % LOOK_AHEAD == 0 {
                let works = &self.works[at..self.works.len().min(at + LOOK_AHEAD)];
                if outcome.has_failed() && !works.iter().any(is_changes) {
                    break;
                }
                if !is_alone {
                    prefetch_changes(site, works, window.bytes(), &mut ahead);
                    fetch_commands(&self.commands[run..]);
                }
            }
            match &self.works[at] {
                Work::Command => {
                    let commands = Commands {
                        site,
                        deployed: &deployed,
                        commands: &self.commands,
                    };
                    look_ahead.step(run, &commands);
                    let (id, command) = &mut self.commands[run];
                    redo.flush(site, *id, window, growth_times, outcome);
                    if outcome.has_failed_before(command.end) {
                        break;
                    }
                    run += 1;
                    replayed += 1;
                    let (partition, tools) = site.split(*id);
                    outcome.note(replay_single(partition, tools, &deployed, command));
                }
                Work::Changes(part) => {
                    if outcome.has_failed_before(part.end) {
                        break;
                    }
                    if let Some(Work::Changes(next)) = self.works.get(at + LOOK_AHEAD) {
                        window.bytes().get(next.at as usize).into_iter().for_each(prefetch_line);
                    }
                    redo.push(site, window, part, outcome);
                }
                Work::Joint(joint) => {
                    redo.flush_all(site, window, growth_times, outcome);
                    joint.join(site, outcome);
                    if outcome.has_failed() {
                        break;
                    }
                }
            }
        }
        redo.flush_all(site, window, growth_times, outcome);
        outcome.count(replayed);
    }
}

fn is_changes(work: &Work) -> bool {
    matches!(work, Work::Changes(_))
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

/// Decodes the changes and looks up what they will touch, so that the misses of the caches overlap: among commands few changes are
/// applied together.
fn prefetch_changes<'w>(site: &Site, works: &[Work], window: &'w [u8], changes: &mut Vec<(PartitionId, Change<'w>)>) {
    changes.clear();
    for work in works {
        if let Work::Changes(part) = work {
            // What can't be read is told when it is applied.
            let found = Changes::new(&window[part.at as usize..(part.at + part.len) as usize]).flatten();
            changes.extend(found.map(|change| (part.partition, change)));
        }
    }
    for prefetch in [PrefetchStep::Index, PrefetchStep::Place, PrefetchStep::Row] {
        for (id, change) in &*changes {
            site.store(*id).touch_change(change, prefetch);
        }
    }
}
