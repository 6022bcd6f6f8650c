//! What travels to a site together: commands to run and changes to apply, in the order of the log.

use reprise_base::PartitionId;
use reprise_partition::Site;
use reprise_replay::{Command, Keyed, Redo, redo, remember, replay_single};

use crate::{Outcome, RecoveryError};

/// Records ahead of the one being applied whose indexes and rows are brought near.
const LOOK_AHEAD: usize = 12;
/// Records that travel together.
const WORKS_MAX: usize = 512;
/// Bytes of changes from which on they are sent, however few.
const BYTES_MAX: usize = 256 << 10;

pub(crate) enum Work {
    Command(PartitionId, Command),
    Changes(Part),
}

/// One partition's part of a physiological record.
pub(crate) struct Part {
    pub partition: PartitionId,
    /// Everything but the changes.
    pub redo: Redo<'static>,
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
    pub works: Vec<Work>,
    bytes: Vec<u8>,
}

impl Batch {
    pub fn is_full(&self) -> bool {
        self.works.len() >= WORKS_MAX || self.bytes.len() >= BYTES_MAX
    }

    pub fn is_empty(&self) -> bool {
        self.works.is_empty()
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
        let Self { works, bytes } = self;
        let mut left = works.drain(..);
        let (mut near, mut replayed) = (0, 0);
        while !outcome.has_failed() {
            if near == 0 {
                let ahead = left.as_slice();
                near = bring_near(site, &ahead[..ahead.len().min(LOOK_AHEAD)], bytes);
            }
            let Some(work) = left.next() else { break };
            near -= 1;
            match work {
                Work::Command(id, command) => {
                    let (partition, tools) = site.split(id);
                    outcome.note(replay_single(partition, tools, command));
                }
                Work::Changes(part) => {
                    replayed += part.counts as u64;
                    let changes = &bytes[part.at..part.at + part.len];
                    apply(site, part, changes, outcome);
                }
            }
        }
        drop(left);
        outcome.count(replayed);
        self.bytes.clear();
    }
}

/// Looks up what these records will change, so that their misses of the caches overlap. Returns how many they are.
fn bring_near(site: &mut Site, works: &[Work], bytes: &[u8]) -> usize {
    for rows in [false, true] {
        for work in works {
            if let Work::Changes(part) = work {
                let changes = &bytes[part.at..part.at + part.len];
                site.partition(part.partition)
                    .store
                    .touch_changes(changes, rows);
            }
        }
    }
    works.len()
}

#[inline]
fn apply(site: &mut Site, part: Part, changes: &[u8], outcome: &Outcome) {
    let (partition, tools) = site.split(part.partition);
    let found = Redo {
        changes,
        ..part.redo
    };
    if let Err(divergence) = redo(partition, tools, &found) {
        return outcome.fail(RecoveryError::Diverged(divergence));
    }
    let Some(keyed) = part.keyed else {
        return;
    };
    let partition = (!part.is_multi).then_some(part.partition);
    match remember(tools, &found, *keyed, partition) {
        Ok(replayed) => outcome.remember(replayed),
        Err(divergence) => outcome.fail(RecoveryError::Diverged(divergence)),
    }
}
