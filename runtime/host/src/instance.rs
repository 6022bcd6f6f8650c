//! A running module on one engine thread. It calls its procedures, one at a time, and restores the instance after each.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
};

use reprise_abi::{HostOps, calls::RETURNED_IN_BUFFER, value::ARGS_BYTES_MAX};
use reprise_base::{
    Grant, MemoryKind, MemoryLedger,
    limits::{MAPPINGS_LIMIT, MEMORY_MAX_LIMIT},
};
use reprise_pages::{Mappings, mappings_max};

use crate::{
    calls::stop,
    faults::fault,
    live::LiveInstance,
    module::CompiledModule,
    outcome::{CallOutcome, Fault, GuestExit},
    start::StartFor,
    state::{HostState, unpack},
};

/// Why a module could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HostError {
    #[error("instantiate module: {0}")]
    Instantiate(String),
    /// The system has no memory for it now.
    #[error("instantiate module: {0}")]
    Room(String),
    /// The process has nearly as many kernel mappings as it may have.
    #[error("instantiate module: the process uses nine tenths of its kernel mappings (vm.max_map_count)")]
    Mappings,
    /// It would take more memory than is left of the limit, in bytes.
    #[error("instantiate module: its memory passes the limit of {0} bytes")]
    Memory(u64),
    #[error("start module: {0}")]
    Start(Box<Fault>),
    #[error("describe module: {0}")]
    Describe(String),
    #[error("protect guest memory: {0}")]
    Protect(#[from] std::io::Error),
}

/// Estimate of an instance's mappings: its memory in three parts, its tables, the copy of its memory, and those of the allocator for them.
pub(crate) const INSTANCE_MAPPINGS: usize = 8;

/// A module ready to be called, for one engine thread. An instance starts in the time of the first call, and of each call that finds none.
pub struct Instance {
    module: CompiledModule,
    /// The instance. None before the first call, after an event that leaves it in doubt, and between the calls of an instance that is not
    /// reused.
    live: Option<LiveInstance>,
    /// The ledger that counts its memory.
    memory: Option<Arc<MemoryLedger>>,
    /// Memory of an instance that serves a single call.
    in_use: Option<Grant>,
}

// SAFETY: two things keep `Instance` from being `Send`. The addresses of its own memory move with it. The pointer to a transaction is set
// only while `call` runs.
unsafe impl Send for Instance {}

impl Instance {
    /// Makes a module that has run nothing yet.
    pub fn new(module: &CompiledModule) -> Self {
        Self {
            module: module.clone(),
            live: None,
            memory: None,
            in_use: None,
        }
    }

    /// Counts its memory in `memory` from its next start on. It asks there before it takes more.
    pub fn count_in(&mut self, memory: &Arc<MemoryLedger>) {
        self.memory = Some(Arc::clone(memory));
    }

    /// Returns the memory that the next call takes to keep an instance; 0 if there is one, or if none is kept.
    pub fn wanted_bytes(&self) -> u64 {
        match self.live.is_none() && !self.module.code().fresh {
            true => self.module.code().kept_bytes(),
            false => 0,
        }
    }

    /// Runs one procedure on a state equal to the one after start-up, whatever earlier calls did.
    ///
    /// `args_bytes` is the length of `ops.args()`. Panics in `ops` pass through; the instance stays usable.
    pub fn call(&mut self, procedure_index: usize, args_bytes: usize, ops: &mut dyn HostOps) -> CallOutcome {
        if args_bytes > ARGS_BYTES_MAX {
            return CallOutcome {
                kind: Err(Fault::limit("args_bytes", ARGS_BYTES_MAX as u64)),
                fuel_used: 0,
            };
        }
        let live = self.live.as_mut();
        let is_ready = live.is_some_and(|live| live.offer_args(ops.args()).is_ok());
        if !is_ready {
            // Its memory can't be written any more. The memory of another instance may be writable.
            self.live = None;
            match self.restart(procedure_index, ops) {
                Ok(live) => self.live = Some(live),
                Err(error) => {
                    self.in_use = None;
                    return not_restarted(error);
                }
            }
        }
        let code = self.module.code();
        let live = self.live.as_mut().expect("there, or just started");
        // SAFETY: `ops` stays borrowed by this function; `end_call` follows on every path, unwinding included.
        unsafe { live.store.data_mut().begin_call(ops) };
        let result = {
            // A fresh instance has only the entry for which it was made.
            let entry = &live.entries[if code.fresh { 0 } else { procedure_index }];
            let store = &mut live.store;
            catch_unwind(AssertUnwindSafe(|| {
                let (returned, fuel_left) = entry.call(&mut *store, args_bytes as i32)?;
                Ok((take_result(store.data_mut(), returned)?, fuel_left))
            }))
        };
        live.store.data_mut().end_call();
        let result = match result {
            Ok(result) => result,
            Err(panic) => {
                self.live = None;
                self.in_use = None;
                resume_unwind(panic)
            }
        };
        let (kind, fuel_left) = match result {
            Ok((returned, fuel_left)) => (call_end(returned, live.store.data().aborted), fuel_left),
            Err(error) => {
                let fault = fault(code, &mut live.store, live.meters, &error);
                (Err(fault), live.meters.fuel_left(&mut live.store))
            }
        };
        let fuel_given = live.store.data().fuel_given;
        let is_reset = live.hot.as_mut().is_some_and(|hot| hot.reset().is_ok());
        if !is_reset {
            self.live = None;
            self.in_use = None;
        }
        CallOutcome {
            kind,
            fuel_used: fuel_given.saturating_sub(fuel_left.max(0) as u64),
        }
    }

    /// Starts an instance with its arguments in place of one that is gone, in the time of the procedure's call. It is kept for the next
    /// call if there is memory for that.
    #[cold]
    fn restart(&mut self, procedure_index: usize, ops: &mut dyn HostOps) -> Result<LiveInstance, HostError> {
        self.in_use = None;
        let code = self.module.code();
        // A committed call must run again, and a deployment has one instance. Neither is refused for lack of room.
        let must_start = ops.limits_times() > 1;
        let mappings = match must_start {
            true => Mappings::take(INSTANCE_MAPPINGS),
            false => Mappings::try_take(INSTANCE_MAPPINGS).ok_or(HostError::Mappings)?,
        };
        let mut kept = self.take_kept();
        if kept.is_none() && self.memory.is_some() {
            self.in_use = self.take_in_use(must_start)?;
        }
        let is_kept = kept.is_some() || self.memory.is_none();
        let guests = self
            .memory
            .as_ref()
            .map(|memory| memory.kind(MemoryKind::Guests).clone());
        let mut live = LiveInstance::start(code, StartFor::Call(&mut *ops), mappings, is_kept, guests)?;
        if let Some(hot) = &live.hot {
            code.record_image(hot.image_bytes());
        }
        // The size of a module's image is known once it has started in this process. It may not fit then.
        let is_short = |grant: &Grant| grant.bytes() < code.kept_bytes();
        if kept.as_ref().is_some_and(is_short) {
            drop(kept.take());
            kept = self.take_kept();
            if kept.is_none() {
                live.serve_once();
                self.in_use = self.take_in_use(must_start)?;
            }
        }
        if let (Some(hot), Some(grant)) = (&mut live.hot, kept) {
            hot.count_in(grant);
        }
        live.set_layouts(self.module.layouts());
        match code.fresh {
            true => live.find_entry(&self.module.entries()[procedure_index])?,
            false => live.find_entries(&self.module)?,
        }
        live.offer_args(ops.args())?;
        Ok(live)
    }

    /// Takes memory for an instance that is kept from one call to the next. None: the instance serves a single call.
    fn take_kept(&self) -> Option<Grant> {
        let code = self.module.code();
        let memory = self.memory.as_ref().filter(|_| !code.fresh);
        memory.and_then(|memory| memory.kept_guests().try_take(code.kept_bytes()))
    }

    /// Takes memory for an instance that serves a single call.
    fn take_in_use(&self, must_start: bool) -> Result<Option<Grant>, HostError> {
        let Some(memory) = &self.memory else {
            return Ok(None);
        };
        let (guests, bytes) = (memory.kind(MemoryKind::Guests), self.module.code().started_bytes());
        match guests.try_take(bytes) {
            Some(grant) => Ok(Some(grant)),
            None if must_start => Ok(Some(guests.take(bytes))),
            None => Err(HostError::Memory(memory.max_bytes())),
        }
    }
}

/// Returns the outcome of a call that was ended while its instance started, or that found no room for one. The call fails and is not
/// logged, so no outcome depends on it.
#[cold]
fn not_restarted(error: HostError) -> CallOutcome {
    let fault = match error {
        HostError::Start(mut fault) => {
            fault.message = format!("while the module started: {}", fault.message);
            fault
        }
        HostError::Memory(max) => Fault::limit(MEMORY_MAX_LIMIT, max),
        HostError::Mappings => out_of_mappings("the process uses nine tenths of its kernel mappings".to_owned()),
        HostError::Room(reason) => out_of_mappings(reason),
        HostError::Protect(error) => out_of_mappings(error.to_string()),
        error @ (HostError::Instantiate(_) | HostError::Describe(_)) => Fault::trap("instantiation", error.to_string()),
    };
    CallOutcome {
        kind: Err(fault),
        fuel_used: 0,
    }
}

fn out_of_mappings(reason: String) -> Box<Fault> {
    let mut fault = Fault::limit(MAPPINGS_LIMIT, mappings_max() as u64);
    fault.message = format!("no room for an instance of the module: {reason}");
    fault
}

/// Takes the result from the guest's buffer, or else the value that the entry returned.
#[inline]
fn take_result(state: &mut HostState, returned: i32) -> wasmtime::Result<i32> {
    if returned < RETURNED_IN_BUFFER || state.aborted || unpack(state.result_buffer).1 == 0 {
        return Ok(returned);
    }
    match state.result_from_buffer((returned - RETURNED_IN_BUFFER) as u32) {
        Ok(()) => Ok(0),
        Err(refusal) => Err(stop(state, "result buffer", refusal)),
    }
}

fn call_end(returned: i32, aborted: bool) -> Result<GuestExit, Box<Fault>> {
    match (returned, aborted) {
        (0, false) => Ok(GuestExit::Returned),
        (1, true) => Ok(GuestExit::Aborted),
        (0, true) => Err(Fault::guest("procedure returned 0 after abort")),
        (1, false) => Err(Fault::guest("procedure returned 1 without abort")),
        (code, _) => Err(Fault::guest(format!("procedure returned the unknown code {code}"))),
    }
}

#[cfg(test)]
#[path = "../tests/it/support/mod.rs"]
mod support;

#[cfg(test)]
mod tests {
    use super::support::{faulted, returned, start};
    use reprise_base::limits::MAPPINGS_LIMIT;

    use crate::{FaultKind, memory::tests::refuse};

    /// Procedure 0 answers its first four bytes of arguments. Procedure 1 writes to more pages than are watched at once.
    const MODULE: &str = r#"(module
      (import "reprise1" "result_write" (func $result_write (param i64)))
      (memory (export "memory") 16 16)
      (func (export "reprise_args_buffer") (result i64) (i64.const 0x100_0000_2000))
      (func (export "reprise_call_echo") (param i32) (result i32)
        (call $result_write (i64.const 0x4_0000_2000))
        (i32.const 0))
      (func (export "reprise_call_spill") (param i32) (result i32)
        (local $page i32)
        (local.set $page (i32.const 100))
        (loop $again
          (i32.store (i32.shl (local.get $page) (i32.const 12)) (i32.const -1))
          (local.set $page (i32.sub (local.get $page) (i32.const 1)))
          (br_if $again (i32.gt_u (local.get $page) (i32.const 3))))
        (i32.const 0)))"#;

    /// The machine refuses the calls of the memory's watch when its opened memory must be closed again.
    #[test]
    fn a_memory_that_can_not_be_opened_costs_its_instance_and_no_call() {
        // First the machine can neither close nor open the memory. Then it can close it, and can open neither the arguments' page nor the
        // whole.
        for (granted, refused) in [(0, 2), (1, 3)] {
            let mut instance = start(MODULE, &["echo", "spill"]);
            returned(&mut instance, 1, b"");
            for call in 0..200_u32 {
                if call == 62 {
                    assert!(instance.live.is_some());
                    refuse(granted, refused);
                }
                assert_eq!(returned(&mut instance, 0, &call.to_le_bytes()), call.to_le_bytes());
            }
            assert!(!crate::memory::tests::is_refused(), "all refusals were met");
        }
    }

    #[test]
    fn without_memory_for_an_instance_the_call_fails_and_the_next_one_starts_anew() {
        let mut instance = start(MODULE, &["echo", "spill"]);
        returned(&mut instance, 1, b"");
        (0..62).for_each(|_| _ = returned(&mut instance, 0, b"abcd"));
        refuse(0, u32::MAX);
        returned(&mut instance, 0, b"abcd");
        let fault = faulted(&mut instance, 0, b"abcd");
        assert_eq!((fault.kind, fault.limit), (FaultKind::Limit, Some(MAPPINGS_LIMIT)));
        assert!(instance.live.is_none());
        refuse(0, 0);
        assert_eq!(returned(&mut instance, 0, b"efgh"), b"efgh");
    }
}
