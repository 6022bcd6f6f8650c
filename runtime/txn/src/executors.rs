//! Executors of one engine thread: made when first needed, and let go when others were used since and they take too much.

use std::{collections::BTreeMap, sync::Arc};

use reprise_base::{Budget, Grant, limits::INSTANCES_MAX};

use crate::{
    module::{Executor, Module, ModuleId},
    run::Failure,
};

/// See the module's header.
#[derive(Default)]
pub struct Executors {
    all: BTreeMap<ModuleId, Idle>,
    /// The one that was asked for last.
    last: Option<ModuleId>,
    /// Counts how often another one was asked for.
    turn: u64,
    budget: Option<Arc<Budget>>,
}

struct Idle {
    executor: Box<dyn Executor>,
    /// When it was last asked for after another.
    used: u64,
    grant: Option<Grant>,
}

impl Executors {
    /// What they keep is counted in `budget`; beyond its limit those go that were not used for longest.
    pub fn counted_in(budget: &Arc<Budget>) -> Self {
        Self {
            budget: Some(Arc::clone(budget)),
            ..Self::default()
        }
    }

    /// The executor of `module`. Err: the code can't be instantiated here (out of memory, say).
    pub fn get(&mut self, module: &Arc<Module>) -> Result<&mut dyn Executor, Failure> {
        if self.last != Some(module.id) {
            self.turn_to(module)?;
        }
        let found = self.all.get_mut(&module.id).expect("it was turned to");
        Ok(&mut *found.executor)
    }

    #[cold]
    fn turn_to(&mut self, module: &Arc<Module>) -> Result<(), Failure> {
        self.count_last();
        self.last = None;
        self.turn += 1;
        if let Some(known) = self.all.get_mut(&module.id) {
            known.used = self.turn;
        } else {
            self.make_room();
            let made = module.code.instantiate().map_err(|message| Failure::Trapped {
                trap: "instantiation".into(),
                message,
                backtrace: Vec::new(),
            });
            let idle = Idle {
                grant: self.budget.as_ref().map(|budget| budget.take(0)),
                executor: made?,
                used: self.turn,
            };
            self.all.insert(module.id, idle);
        }
        self.last = Some(module.id);
        Ok(())
    }

    /// What the last one keeps, now that another is asked for.
    fn count_last(&mut self) {
        let last = self.last.and_then(|last| self.all.get_mut(&last));
        if let Some(Idle {
            executor,
            grant: Some(grant),
            ..
        }) = last
        {
            grant.resize(executor.memory_bytes() as u64);
        }
    }

    /// Lets go of those that were not used for longest, as long as there are too many or they take too much.
    fn make_room(&mut self) {
        let is_over = |budget: &Arc<Budget>| budget.used() > budget.limit();
        while self.all.len() >= INSTANCES_MAX || !self.all.is_empty() && self.budget.as_ref().is_some_and(is_over) {
            let oldest = self.all.iter().min_by_key(|(_, idle)| idle.used).map(|(id, _)| *id);
            let Some(oldest) = oldest else { return };
            self.all.remove(&oldest);
        }
    }

    /// Lets go of those whose version is not to be kept.
    pub fn retain(&mut self, keep: impl Fn(ModuleId) -> bool) {
        self.all.retain(|id, _| keep(*id));
        self.last = self.last.filter(|last| self.all.contains_key(last));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use reprise_abi::{HostOps, ModuleSchema};
    use reprise_base::TxnId;
    use reprise_host::CallOutcome;
    use reprise_observe::ModuleMeters;

    use super::*;
    use crate::module::Code;

    const INSTANCE_BYTES: usize = 100;

    /// Counts its instances, those that are there and all that were made.
    #[derive(Default)]
    struct Counted {
        there: Arc<AtomicUsize>,
        made: AtomicUsize,
    }

    struct Instance(Arc<AtomicUsize>);

    impl Code for Counted {
        fn instantiate(&self) -> Result<Box<dyn Executor>, String> {
            self.there.fetch_add(1, Relaxed);
            self.made.fetch_add(1, Relaxed);
            Ok(Box::new(Instance(self.there.clone())))
        }
    }

    impl Executor for Instance {
        fn call(&mut self, _: usize, _: &mut dyn HostOps) -> CallOutcome {
            unreachable!("nobody calls it")
        }

        fn memory_bytes(&self) -> usize {
            INSTANCE_BYTES
        }
    }

    impl Drop for Instance {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Relaxed);
        }
    }

    fn module(number: u32) -> (Arc<Module>, Arc<Counted>) {
        let code = Arc::new(Counted::default());
        let module = Module {
            id: ModuleId(number),
            name: format!("m{number}"),
            version: 1,
            hash: [0; 32],
            wasm_bytes: 0,
            installed_by: TxnId(1),
            schema: ModuleSchema::default(),
            description: Arc::default(),
            tables: Vec::new(),
            prefetch: Vec::new(),
            meters: ModuleMeters::new(0),
            code: code.clone(),
        };
        (Arc::new(module), code)
    }

    #[test]
    fn beyond_the_budget_those_go_that_were_not_used_for_longest() {
        let budget = Budget::new(2 * INSTANCE_BYTES as u64);
        let mut executors = Executors::counted_in(&budget);
        let modules: Vec<_> = (0..6).map(module).collect();
        for (module, _) in &modules {
            assert!(executors.get(module).is_ok());
            // What is in use counts once another is asked for: one more than fits may be there.
            assert!(
                budget.used() <= budget.limit() + INSTANCE_BYTES as u64,
                "{}",
                budget.used()
            );
        }
        let there = |at: usize| modules[at].1.there.load(Relaxed);
        let kept: Vec<_> = (0..6).filter(|at| there(*at) == 1).collect();
        assert_eq!(kept, [3, 4, 5]);
        assert!(executors.get(&modules[3].0).is_ok());
        assert_eq!(modules[3].1.made.load(Relaxed), 1, "it was kept");
        assert!(executors.get(&modules[0].0).is_ok());
        assert_eq!((there(0), there(3), modules[0].1.made.load(Relaxed)), (1, 1, 2));
        executors.retain(|id| id == ModuleId(3));
        assert_eq!((0..6).map(there).sum::<usize>(), 1);
        drop(executors);
        assert_eq!(budget.used(), 0);
    }
}
