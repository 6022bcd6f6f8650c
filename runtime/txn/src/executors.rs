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
        if let Some(Idle { executor, grant: Some(grant), .. }) = last {
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

    pub fn retain(&mut self, keep: impl Fn(ModuleId) -> bool) {
        self.all.retain(|id, _| keep(*id));
        self.last = self.last.filter(|last| self.all.contains_key(last));
    }
}
