//! Executors of one engine thread. Each is made at its first use. An unused one is dropped when its memory is needed.

use std::{collections::BTreeMap, sync::Arc};

use reprise_base::{MemoryLedger, limits::INSTANCES_MAX};

use crate::{
    module::{Executor, Module, ModuleId},
    run::Failure,
};

/// See the module's header.
#[derive(Default)]
pub struct Executors {
    /// The executor that was used last.
    last: Option<(ModuleId, Idle)>,
    others: BTreeMap<ModuleId, Idle>,
    /// Counts the changes from one executor to another.
    turn: u64,
    memory: Option<Arc<MemoryLedger>>,
}

struct Idle {
    executor: Box<dyn Executor>,
    /// Turn of its last use after another one.
    used: u64,
}

impl Executors {
    /// Makes the set. Each executor counts its memory in `memory`. If there is no room for the next one, the set drops those that were
    /// unused for longest.
    pub fn counted_in(memory: &Arc<MemoryLedger>) -> Self {
        Self {
            memory: Some(Arc::clone(memory)),
            ..Self::default()
        }
    }

    /// Returns the executor of `module`. Err: there is no code to run.
    pub fn get(&mut self, module: &Arc<Module>) -> Result<&mut dyn Executor, Failure> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != module.id) {
            self.turn_to(module)?;
        }
        let (_, last) = self.last.as_mut().expect("it was turned to");
        Ok(&mut *last.executor)
    }

    #[cold]
    fn turn_to(&mut self, module: &Arc<Module>) -> Result<(), Failure> {
        self.others.extend(self.last.take());
        self.turn += 1;
        let mut idle = match self.others.remove(&module.id) {
            Some(known) => known,
            None => Idle {
                executor: self.instantiate(module)?,
                used: 0,
            },
        };
        idle.used = self.turn;
        self.make_room(idle.executor.wanted_bytes());
        self.last = Some((module.id, idle));
        Ok(())
    }

    fn instantiate(&self, module: &Module) -> Result<Box<dyn Executor>, Failure> {
        let made = module.code.instantiate().map_err(|message| Failure::Trapped {
            trap: "instantiation".into(),
            message,
            backtrace: Vec::new(),
        });
        let mut executor = made?;
        if let Some(memory) = &self.memory {
            executor.count_in(memory);
        }
        Ok(executor)
    }

    /// Drops executors, the longest unused first, until their number is within its limit and `wanted` bytes have room. If `wanted` is more
    /// than all executors may have, it drops none.
    fn make_room(&mut self, wanted: u64) {
        let lacks_room = |memory: &Arc<MemoryLedger>| {
            let kept = memory.kept_guests();
            wanted > 0 && wanted <= kept.limit() && !kept.has_room(wanted)
        };
        while self.others.len() >= INSTANCES_MAX || self.memory.as_ref().is_some_and(lacks_room) {
            let oldest = self.others.iter().min_by_key(|(_, idle)| idle.used).map(|(id, _)| *id);
            let Some(oldest) = oldest else { return };
            self.others.remove(&oldest);
        }
    }

    /// Drops the executors whose versions are not kept.
    pub fn retain(&mut self, keep: impl Fn(ModuleId) -> bool) {
        self.others.retain(|id, _| keep(*id));
        self.last.take_if(|(id, _)| !keep(*id));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use reprise_abi::HostOps;
    use reprise_base::{Grant, TxnId, limits::GUESTS_BYTES_PART};
    use reprise_host::CallOutcome;
    use reprise_observe::ModuleMeters;

    use super::*;
    use crate::module::Code;

    const INSTANCE_BYTES: u64 = 100;

    /// Code that counts its instances: those that exist and all that were made.
    #[derive(Default)]
    struct Counted {
        there: Arc<AtomicUsize>,
        made: AtomicUsize,
        kept: Arc<Mutex<Option<Grant>>>,
    }

    impl Counted {
        /// Allocates as much memory as a call of the instance would.
        fn start(&self, memory: &MemoryLedger) -> bool {
            let mut kept = self.kept.lock().expect("held for a short time");
            *kept = kept.take().or_else(|| memory.kept_guests().try_take(INSTANCE_BYTES));
            kept.is_some()
        }
    }

    struct Instance {
        there: Arc<AtomicUsize>,
        kept: Arc<Mutex<Option<Grant>>>,
    }

    impl Code for Counted {
        fn instantiate(&self) -> Result<Box<dyn Executor>, String> {
            self.there.fetch_add(1, Relaxed);
            self.made.fetch_add(1, Relaxed);
            Ok(Box::new(Instance {
                there: self.there.clone(),
                kept: self.kept.clone(),
            }))
        }
    }

    impl Executor for Instance {
        fn call(&mut self, _: usize, _: &mut dyn HostOps) -> CallOutcome {
            unreachable!("no test calls it")
        }

        fn wanted_bytes(&self) -> u64 {
            match *self.kept.lock().expect("held for a short time") {
                Some(_) => 0,
                None => INSTANCE_BYTES,
            }
        }
    }

    impl Drop for Instance {
        fn drop(&mut self) {
            self.there.fetch_sub(1, Relaxed);
            drop(self.kept.lock().expect("held for a short time").take());
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
            schema: Arc::default(),
            description: Arc::default(),
            tables: Vec::new(),
            prefetch: Vec::new(),
            results: Vec::new(),
            meters: ModuleMeters::new(0),
            code: code.clone(),
        };
        (Arc::new(module), code)
    }

    /// Makes a ledger with room for a number of instances.
    fn room_for(instances: u64) -> Arc<MemoryLedger> {
        MemoryLedger::new(GUESTS_BYTES_PART * instances * INSTANCE_BYTES)
    }

    #[test]
    fn executors_not_used_for_longest_go_when_the_next_one_has_no_room() {
        let memory = room_for(2);
        let mut executors = Executors::counted_in(&memory);
        let modules: Vec<_> = (0..6).map(module).collect();
        for (module, code) in &modules {
            assert!(executors.get(module).is_ok());
            assert!(code.start(&memory), "room was made before the call");
        }
        let there = |at: usize| modules[at].1.there.load(Relaxed);
        let kept: Vec<_> = (0..6).filter(|at| there(*at) == 1).collect();
        assert_eq!(kept, [4, 5]);
        assert!(executors.get(&modules[4].0).is_ok());
        assert_eq!(modules[4].1.made.load(Relaxed), 1, "it was kept");
        assert!(executors.get(&modules[0].0).is_ok());
        assert_eq!((there(0), there(5), modules[0].1.made.load(Relaxed)), (1, 0, 2));
        executors.retain(|id| id == ModuleId(4));
        assert_eq!((0..6).map(there).sum::<usize>(), 1);
        drop(executors);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn executor_that_is_never_kept_drops_no_other() {
        let memory = MemoryLedger::new(GUESTS_BYTES_PART * (INSTANCE_BYTES - 1));
        let mut executors = Executors::counted_in(&memory);
        let (small, large) = (module(0), module(1));
        assert!(executors.get(&small.0).is_ok() && executors.get(&large.0).is_ok());
        assert_eq!(small.1.there.load(Relaxed), 1);
        assert!(!large.1.start(&memory));
    }
}
