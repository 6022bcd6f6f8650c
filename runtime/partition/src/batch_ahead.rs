//! Prefetches the calls that follow in a batch while one call runs, and the rows that these calls will read.

use reprise_pages::prefetch_line;
use reprise_storage::Store;
use reprise_txn::{LookAhead, Module, NextCalls, PrefetchRow};

use crate::batch::CallSlot;

/// Distance in calls at which the slot, then the arguments, are prefetched. Both come before anything of the call is read.
const SLOT: usize = 9;
const ARGS: usize = 6;

/// The look-ahead over calls of one module.
pub(crate) struct BatchAhead<'m> {
    module: &'m Module,
    /// None if no procedure of the module declares rows.
    ahead: Option<LookAhead<'m>>,
}

/// The calls of a batch up to the first call of another module.
struct Batch<'m, 'a> {
    module: &'m Module,
    store: &'a Store,
    calls: &'a [CallSlot],
    args: &'a [u8],
}

impl<'m> NextCalls<'m> for Batch<'m, '_> {
    #[inline(always)]
    fn call(&self, at: usize) -> Option<(&'m [PrefetchRow], &[u8])> {
        let call = self.calls.get(at)?;
        if call.module != self.module.id {
            return None;
        }
        let args = &self.args[call.args.start as usize..call.args.end as usize];
        Some((&self.module.prefetch[call.procedure as usize], args))
    }

    #[inline(always)]
    fn store(&self, _: usize) -> &Store {
        self.store
    }
}

impl<'m> BatchAhead<'m> {
    /// Begins before the call at `first` of all `calls` runs.
    pub fn begin(module: &'m Module, store: &Store, calls: &[CallSlot], first: usize, args: &[u8]) -> Self {
        let declares = || module.prefetch.iter().any(|rows| !rows.is_empty());
        let is_of_use = calls.len() > first + 1 && declares();
        let batch = Batch {
            module,
            store,
            calls,
            args,
        };
        Self {
            module,
            ahead: is_of_use.then(|| LookAhead::begin(first, &batch)),
        }
    }

    /// Prefetches one step of each of some calls that follow. The caller does so before the call at `at` of all `calls` runs.
    #[inline]
    pub fn step(&mut self, store: &Store, calls: &[CallSlot], at: usize, args: &[u8]) {
        let Some(ahead) = &mut self.ahead else {
            return;
        };
        if let Some(call) = calls.get(at + SLOT) {
            prefetch_line(call);
            prefetch_line(&call.lsn);
        }
        if let Some(call) = calls.get(at + ARGS)
            && let Some(first) = args.get(call.args.start as usize)
        {
            prefetch_line(first);
        }
        let batch = Batch {
            module: self.module,
            store,
            calls,
            args,
        };
        ahead.step(at, &batch);
    }
}
