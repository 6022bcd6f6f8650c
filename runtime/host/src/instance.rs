//! A running module on one engine thread: calls its procedures, one at a time, and puts it back after each.

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
    live::Live,
    module::CompiledModule,
    outcome::{CallEnd, CallOutcome, Fault},
    start::StartFor,
    state::{HostState, unpack},
};

/// Why a module could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HostError {
    #[error("instantiate module: {0}")]
    Instantiate(String),
    /// Its memory can't be had from the system now.
    #[error("instantiate module: {0}")]
    Room(String),
    /// The process has nearly as many kernel mappings as it may have.
    #[error("instantiate module: the process uses nine tenths of its kernel mappings (vm.max_map_count)")]
    Mappings,
    /// It would take more memory than the limit, in bytes, leaves.
    #[error("instantiate module: its memory passes the limit of {0} bytes")]
    Memory(u64),
    #[error("start module: {0}")]
    Start(Box<Fault>),
    #[error("describe module: {0}")]
    Describe(String),
    #[error("protect guest memory: {0}")]
    Protect(#[from] std::io::Error),
}

/// Mappings of an instance, about: its memory in three parts, its tables, the copy of its memory, what the allocator makes for them.
pub(crate) const INSTANCE_MAPPINGS: usize = 8;

/// A module ready to be called, for one engine thread. It starts in the time of the first call, and of each one that finds it gone.
pub struct Instance {
    module: CompiledModule,
    /// None before the first call, after something that leaves the instance in doubt, and between the calls of an instance that is not
    /// used twice.
    live: Option<Live>,
    /// The ledger that counts its memory.
    memory: Option<Arc<MemoryLedger>>,
    /// Memory of an instance that serves a single call.
    in_use: Option<Grant>,
}

// SAFETY: what keeps `Instance` from being `Send` are addresses of its own memory, which move with it, and the pointer to
// a transaction, which is set only while `call` runs.
unsafe impl Send for Instance {}

impl Instance {
    /// An instance that nothing of has run yet.
    pub fn new(module: &CompiledModule) -> Self {
        Self {
            module: module.clone(),
            live: None,
            memory: None,
            in_use: None,
        }
    }

    /// Counts its memory in `memory` from its next start on, and asks there before.
    pub fn count_in(&mut self, memory: &Arc<MemoryLedger>) {
        self.memory = Some(Arc::clone(memory));
    }

    /// Memory that the next call takes to keep an instance; 0 where there is one, or where none is kept.
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
            // Its memory can't be written any more; another one's may.
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
        // SAFETY: `ops` stays borrowed by this function; `end_call` follows on every way, unwinding included.
        unsafe { live.store.data_mut().begin_call(ops) };
        let result = {
            // A fresh instance knows but the one entry that it was made for.
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

    /// An instance in the place of one that is gone, for a call of the procedure, and in its time; it has its arguments. It is kept
    /// for the next call where the memory for that is left.
    #[cold]
    fn restart(&mut self, procedure_index: usize, ops: &mut dyn HostOps) -> Result<Live, HostError> {
        self.in_use = None;
        let code = self.module.code();
        // A committed call must run again, and a deployment has one instance: neither is refused for lack of room.
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
        let mut live = Live::start(code, StartFor::Call(&mut *ops), mappings, is_kept, guests)?;
        if let Some(hot) = &live.hot {
            code.record_image(hot.image_bytes());
        }
        // The image of a module is known once it has started in this process, and may not fit then.
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
        match code.fresh {
            true => live.find_entry(&self.module.entries()[procedure_index])?,
            false => live.find_entries(&self.module)?,
        }
        live.offer_args(ops.args())?;
        Ok(live)
    }

    /// Memory of an instance that is kept from one call to the next. None: it serves a single call.
    fn take_kept(&self) -> Option<Grant> {
        let code = self.module.code();
        let memory = self.memory.as_ref().filter(|_| !code.fresh);
        memory.and_then(|memory| memory.kept_guests().try_take(code.kept_bytes()))
    }

    /// Memory of an instance that serves a single call.
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

/// The call was ended while its instance started, or there is no room for one. Either way the call fails, and what failed is not logged:
/// no outcome hangs on it.
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

/// Takes the result that lies in the guest's buffer; what the entry returned otherwise.
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

fn call_end(returned: i32, aborted: bool) -> Result<CallEnd, Box<Fault>> {
    match (returned, aborted) {
        (0, false) => Ok(CallEnd::Returned),
        (1, true) => Ok(CallEnd::Aborted),
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

    /// Procedure 0 answers its first four bytes of arguments; 1 writes to more pages than are watched at once.
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

    /// The machine refuses what the memory's watch asks for once its opened memory is to be closed again.
    #[test]
    fn a_memory_that_can_not_be_opened_costs_its_instance_and_no_call() {
        // Neither closed nor opened; closed, and the page of the arguments not opened, nor the whole for them.
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
