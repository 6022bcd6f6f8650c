//! What travels to a site together: commands to run and changes to apply, in the order of the log.

use reprise_base::PartitionId;
use reprise_partition::Site;
use reprise_replay::{Command, Divergence, Keyed, Redo, redo, remember, replay_single};
use reprise_storage::Near;
use reprise_wire::{Change, Changes};

use crate::{Outcome, RecoveryError};

/// Records that are decoded ahead, and whose indexes and rows are brought near.
const LOOK_AHEAD: usize = 16;
/// Changes of so many records, usually: more make the list longer.
const AHEAD_CHANGES: usize = 1_024;
/// Records that travel together.
const WORKS_MAX: usize = 512;
/// Bytes of changes from which on they are sent, however few.
const BYTES_MAX: usize = 256 << 10;

enum Work {
    /// The next of `Batch::commands`.
    Command(PartitionId),
    Changes(Part),
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
    pub keyed: Option<Box<Keyed>>,
}

/// What one site is to do. Its memory is used again.
#[derive(Default)]
pub(crate) struct Batch {
    works: Vec<Work>,
    commands: Vec<Command>,
    bytes: Vec<u8>,
}

impl Batch {
    pub fn is_full(&self) -> bool {
        self.works.len() >= WORKS_MAX || self.bytes.len() >= BYTES_MAX
    }

    pub fn is_empty(&self) -> bool {
        self.works.is_empty()
    }

    pub fn push_command(&mut self, partition: PartitionId, command: Command) {
        self.works.push(Work::Command(partition));
        self.commands.push(command);
    }

    /// Adds a part whose changes are copied.
    pub fn push_part(&mut self, mut part: Part, changes: &[u8]) {
        part.at = self.bytes.len();
        part.len = changes.len();
        self.bytes.extend_from_slice(changes);
        self.works.push(Work::Changes(part));
    }

    /// Does all of it, until something fails anywhere.
    pub fn run(&mut self, site: &mut Site, outcome: &Outcome) {
        let mut commands = self.commands.drain(..);
        let mut ahead = Ahead {
            changes: Vec::with_capacity(AHEAD_CHANGES),
            ends: Vec::with_capacity(LOOK_AHEAD),
        };
        let mut replayed = 0;
        for works in self.works.chunks_mut(LOOK_AHEAD) {
            if outcome.has_failed() {
                break;
            }
            ahead.read(site, works, &self.bytes);
            let mut ends = ahead.ends.iter();
            let mut start = 0;
            for work in works {
                match work {
                    Work::Command(id) => {
                        let command = commands.next().expect("one for each such work");
                        let (partition, tools) = site.split(*id);
                        outcome.note(replay_single(partition, tools, command));
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
                }
                if outcome.has_failed() {
                    break;
                }
            }
        }
        drop(commands);
        outcome.count(replayed);
        self.works.clear();
        self.bytes.clear();
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
        for near in [Near::Index, Near::Place, Near::Row] {
            let mut ends = 0;
            for work in works {
                let Work::Changes(part) = work else { continue };
                let store = &site.partition(part.partition).store;
                if near == Near::Index {
                    // Checked when the record was decoded: there is no error among them.
                    let found = Changes::new(&bytes[part.at..part.at + part.len]).flatten();
                    self.changes.extend(found);
                    self.ends.push(self.changes.len());
                }
                let start = if ends == 0 { 0 } else { self.ends[ends - 1] };
                let changes = &self.changes[start..self.ends[ends]];
                changes.iter().for_each(|change| store.touch_change(change, near));
                ends += 1;
            }
        }
    }
}

#[inline]
fn apply(
    site: &mut Site,
    part: &mut Part,
    changes: &[Change<'_>],
    outcome: &Outcome,
) -> Result<(), Box<Divergence>> {
    let (partition, tools) = site.split(part.partition);
    redo(partition, tools, &part.redo, changes)?;
    if let Some(keyed) = part.keyed.take() {
        let partition = (!part.is_multi).then_some(part.partition);
        outcome.remember(remember(tools, &part.redo, *keyed, partition)?);
    }
    Ok(())
}
