//! Calls that follow, and the rows that they will look at, brought near while this one runs: a look-up waits for memory two or
//! three times, and meanwhile other calls have work to do.

use reprise_pages::fetch;
use reprise_storage::{Nearing, Store};
use reprise_txn::{Module, NearRow};

use crate::batch::CallSlot;

/// How many calls ahead each step is done: farther than one miss of the caches takes, nearer than what the first-level cache
/// keeps. Each step reads what the one before it brought.
const SLOT: usize = 9;
const ARGS: usize = 6;
const INDEX: usize = 3;
const PLACE: usize = 2;
const ROW: usize = 1;

/// Calls of which it is remembered from step to step what was found, by their position in the batch.
const RING: usize = 4;
/// Rows of a call that are brought near at most.
const ROWS: usize = 3;

const _: () = assert!(RING > INDEX && RING.is_power_of_two());

/// A call that follows: the rows that it will look at, and what is known of each. None of a call of another module, and behind
/// the last one.
#[derive(Clone, Copy, Default)]
struct Coming<'m> {
    rows: &'m [NearRow],
    found: [Nearing; ROWS],
}

/// Over the calls of one module.
pub(crate) struct LookAhead<'m> {
    module: &'m Module,
    /// A procedure of the module declares rows.
    is_of_use: bool,
    ring: [Coming<'m>; RING],
}

impl<'m> LookAhead<'m> {
    /// Before the call at `first` of all `calls` runs: does the first step for those that follow soon.
    pub fn begin(
        module: &'m Module,
        store: &Store,
        calls: &[CallSlot],
        first: usize,
        args: &[u8],
    ) -> Self {
        let declares = || module.near.iter().any(|rows| !rows.is_empty());
        let mut ahead = Self {
            module,
            is_of_use: calls.len() > first + 1 && declares(),
            ring: Default::default(),
        };
        if ahead.is_of_use {
            for at in first + 1..first + INDEX {
                ahead.touch(store, at, calls, args);
            }
        }
        ahead
    }

    /// Before the call at `at` of all `calls` runs: a step of each of some that follow.
    #[inline]
    pub fn step(&mut self, store: &Store, calls: &[CallSlot], at: usize, args: &[u8]) {
        if !self.is_of_use {
            return;
        }
        if let Some(call) = calls.get(at + SLOT) {
            fetch(call);
            fetch(&call.lsn);
        }
        if let Some(call) = calls.get(at + ARGS)
            && let Some(first) = args.get(call.args.start as usize)
        {
            fetch(first);
        }
        self.touch(store, at + INDEX, calls, args);
        let Coming { rows, found } = &mut self.ring[(at + PLACE) % RING];
        for (row, found) in rows.iter().zip(found) {
            *found = row.touch_place(store, *found);
        }
        let Coming { rows, found } = &self.ring[(at + ROW) % RING];
        for (row, found) in rows.iter().zip(found) {
            row.touch_row(store, *found);
        }
    }

    #[inline]
    fn touch(&mut self, store: &Store, at: usize, calls: &[CallSlot], args: &[u8]) {
        let Coming { rows, found } = &mut self.ring[at % RING];
        *rows = &[];
        if let Some(call) = calls.get(at)
            && call.module == self.module.id
        {
            *rows = &self.module.near[call.procedure as usize];
            let args = &args[call.args.start as usize..call.args.end as usize];
            for (row, found) in rows.iter().zip(found) {
                *found = row.touch(store, args);
            }
        }
    }
}
