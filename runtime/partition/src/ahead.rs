//! Calls that follow, and the rows that they will look at, brought near while this one runs: a look-up waits for memory two or
//! three times, and meanwhile other calls have work to do.

use reprise_pages::fetch;
use reprise_storage::{IntKeyBits, Rid, Store};
use reprise_txn::{Module, NearRow};

use crate::batch::CallSlot;

/// How many calls ahead each step is done: farther than one miss of the caches takes, nearer than what the first-level cache
/// keeps. Each step reads what the one before it brought.
const SLOT: usize = 12;
const ARGS: usize = 9;
const WAY: usize = 6;
const INDEX: usize = 3;
const PLACE: usize = 2;
const ROW: usize = 1;

/// Calls whose keys are remembered from step to step, by their position in the batch.
const RING: usize = 8;
/// Rows of a call that are brought near at most.
const ROWS: usize = 3;

const _: () = assert!(RING > WAY && RING.is_power_of_two());

/// What is known of a row that a call will look at.
#[derive(Clone, Copy, Default)]
struct Nearing {
    key: Option<IntKeyBits>,
    rid: Option<Rid>,
}

/// Over the calls of one module.
pub(crate) struct LookAhead<'m> {
    module: &'m Module,
    /// A procedure of the module declares rows.
    is_of_use: bool,
    ring: [[Nearing; ROWS]; RING],
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
            for (at, call) in calls.iter().enumerate().take(first + WAY).skip(first + 1) {
                ahead.touch_way(store, at, call, args);
                if at < first + INDEX {
                    ahead.touch(store, at, call);
                }
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
        if let Some(call) = calls.get(at + WAY) {
            self.touch_way(store, at + WAY, call, args);
        }
        if let Some(call) = calls.get(at + INDEX) {
            self.touch(store, at + INDEX, call);
        }
        if let Some(call) = calls.get(at + PLACE) {
            let rows = rows_of(self.module, call);
            for (row, nearing) in rows.iter().zip(&mut self.ring[(at + PLACE) % RING]) {
                nearing.rid = nearing.key.and_then(|key| row.touch_place(store, key));
            }
        }
        if let Some(call) = calls.get(at + ROW) {
            let rows = rows_of(self.module, call);
            for (row, nearing) in rows.iter().zip(&self.ring[(at + ROW) % RING]) {
                nearing.rid.iter().for_each(|rid| row.touch_row(store, *rid));
            }
        }
    }

    #[inline]
    fn touch_way(&mut self, store: &Store, at: usize, call: &CallSlot, args: &[u8]) {
        let nearing = &mut self.ring[at % RING];
        *nearing = Default::default();
        let args = &args[call.args.start as usize..call.args.end as usize];
        for (row, nearing) in rows_of(self.module, call).iter().zip(nearing) {
            nearing.key = row.touch_way(store, args);
        }
    }

    #[inline]
    fn touch(&self, store: &Store, at: usize, call: &CallSlot) {
        let rows = rows_of(self.module, call);
        for (row, nearing) in rows.iter().zip(&self.ring[at % RING]) {
            nearing.key.iter().for_each(|key| row.touch(store, *key));
        }
    }
}

/// What the call's procedure declares, if it is of the module.
#[inline]
fn rows_of<'m>(module: &'m Module, call: &CallSlot) -> &'m [NearRow] {
    match call.module == module.id {
        true => &module.near[call.procedure as usize],
        false => &[],
    }
}
