//! Rows of the calls that follow, brought near while this one runs: a look-up waits for memory two or three times, and meanwhile
//! other calls have work to do.

use reprise_storage::Store;
use reprise_txn::{Module, NearStep};

use crate::batch::CallSlot;

/// How many calls ahead each step is brought near: farther than one miss of the caches takes, nearer than what the first-level
/// cache keeps.
const STEPS: [(NearStep, usize); 3] = [
    (NearStep::Index, 6),
    (NearStep::Place, 4),
    (NearStep::Row, 2),
];

/// Over the calls of one module.
pub(crate) struct LookAhead<'m> {
    module: &'m Module,
    /// A procedure of the module declares rows.
    is_of_use: bool,
}

impl<'m> LookAhead<'m> {
    /// Before the first of `calls` runs: brings the first step near of those that follow soon.
    pub fn begin(module: &'m Module, store: &Store, calls: &[CallSlot], args: &[u8]) -> Self {
        let ahead = Self {
            module,
            is_of_use: module.near.iter().any(|rows| !rows.is_empty()),
        };
        if ahead.is_of_use {
            let soon = calls.iter().take(STEPS[0].1);
            soon.for_each(|call| ahead.bring(store, call, args, NearStep::Index));
        }
        ahead
    }

    /// Before each of `calls` runs, which is the first of them: a step of each of some that follow.
    #[inline]
    pub fn step(&self, store: &Store, calls: &[CallSlot], args: &[u8]) {
        if !self.is_of_use {
            return;
        }
        for (step, ahead) in STEPS {
            if let Some(call) = calls.get(ahead) {
                self.bring(store, call, args, step);
            }
        }
    }

    #[inline]
    fn bring(&self, store: &Store, call: &CallSlot, args: &[u8], step: NearStep) {
        if call.module != self.module.id {
            return;
        }
        let args = &args[call.args.start as usize..call.args.end as usize];
        for row in &self.module.near[call.procedure as usize] {
            row.bring(store, args, step);
        }
    }
}
