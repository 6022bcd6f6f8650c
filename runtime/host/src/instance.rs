//! A running module on one engine thread: calls its procedures, one at a time, and puts it back after each.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use reprise_abi::{
    ARGS_BUFFER_EXPORT, DESCRIBE_EXPORT, HostOps, Plans, RESULT_BUFFER_EXPORT,
    calls::{BUFFER_BYTES_MAX, RETURNED_IN_BUFFER},
    value::ARGS_BYTES_MAX,
};
use reprise_base::limits::FUNCTION_NAME_BYTES_MAX;
use wasmtime::{
    Caller, Extern, Func, Global, ModuleExport, Ref, Store, Trap, TypedFunc, Val, WasmBacktrace, unix::StoreExt,
};

use crate::{
    calls::stop,
    describe::DESCRIPTION_BYTES_MAX,
    hot::{HotSet, Watch},
    inspect::MEMORY_EXPORT,
    module::{Code, CompiledModule},
    outcome::{CallEnd, CallOutcome, Fault, FaultKind, PANIC_TRAP},
    rewrite::{
        ASK_EXPORT, Allowance, FUEL_EXPORT, REFUSED_EXPORT, REFUSED_MEMORY, REFUSED_TABLE, SHADOW_STACK_EXPORT,
        STACK_EXPORT, START_EXPORT,
    },
    state::{GuestMemory, HostState, Refusal, unpack},
};

const OUT_OF_BOUNDS: &str = "out_of_bounds";

/// Why a module could not be started.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("instantiate module: {0}")]
    Instantiate(String),
    /// Its memory can't be had from the system now.
    #[error("instantiate module: {0}")]
    Room(String),
    #[error("start module: {0}")]
    Start(Box<Fault>),
    #[error("describe module: {0}")]
    Describe(String),
    #[error("protect guest memory: {0}")]
    Protect(#[from] std::io::Error),
}

/// What an instance takes beside its memory, about: the store, its tables, the watch.
const INSTANCE_BYTES: usize = 64 << 10;

/// A module ready to be called, for one engine thread.
pub struct Instance {
    module: CompiledModule,
    /// None after something that leaves the instance in doubt, and between the calls of a module whose instances are not
    /// used twice.
    live: Option<Live>,
}

// SAFETY: what keeps `Instance` from being `Send` are addresses of its own memory, which move with it, and the pointer to
// a transaction, which is set only while `call` runs.
unsafe impl Send for Instance {}

impl Instance {
    pub fn new(module: &CompiledModule) -> Result<Self, HostError> {
        let mut live = Live::start(module.code(), None)?;
        live.find_entries(module)?;
        Ok(Self {
            module: module.clone(),
            // An instance that serves one call only would hold a place of the pool until that call comes.
            live: (!module.code().fresh).then_some(live),
        })
    }

    /// Memory that it keeps between calls, about.
    pub fn memory_bytes(&self) -> usize {
        let Some(live) = &self.live else {
            return 0;
        };
        let hot_bytes = live.hot.as_ref().map_or(0, HotSet::memory_bytes);
        INSTANCE_BYTES + hot_bytes + live.store.data().kept_bytes()
    }

    pub fn module(&self) -> &CompiledModule {
        &self.module
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
        let code = self.module.code();
        let live = self.live.as_mut();
        let is_ready = live.is_some_and(|live| live.offer_args(ops.args()).is_ok());
        if !is_ready {
            // Its memory can't be written any more; another one's may.
            self.live = None;
            match restart(&self.module, procedure_index, ops) {
                Ok(live) => self.live = Some(live),
                Err(error) => return not_restarted(error),
            }
        }
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
        }
        CallOutcome {
            kind,
            fuel_used: fuel_given.saturating_sub(fuel_left.max(0) as u64),
        }
    }
}

/// A new instance in the place of one that was dropped, for a call of the procedure, and in its time; it has its arguments.
#[cold]
fn restart(module: &CompiledModule, procedure_index: usize, ops: &mut dyn HostOps) -> Result<Live, HostError> {
    let mut live = Live::start(module.code(), Some(ops))?;
    match module.code().fresh {
        true => live.find_entry(&module.entries()[procedure_index])?,
        false => live.find_entries(module)?,
    }
    live.offer_args(ops.args())?;
    Ok(live)
}

/// The call was ended while its instance started. Else only the machine's memory can be missing, as the module has been started before,
/// and start-up is deterministic. Either way the call fails, and what failed is not logged: no outcome hangs on it.
#[cold]
fn not_restarted(error: HostError) -> CallOutcome {
    let fault = match error {
        HostError::Start(fault) if matches!(fault.kind, FaultKind::Limit | FaultKind::Ended(_)) => fault,
        error => Fault::trap("instantiation", error.to_string()),
    };
    CallOutcome {
        kind: Err(fault),
        fuel_used: 0,
    }
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

/// A started instance.
pub(crate) struct Live {
    store: Store<HostState>,
    instance: wasmtime::Instance,
    /// Entries in the order of the description's procedures. They return the fuel that is left beside the result.
    entries: Vec<TypedFunc<i32, (i32, i64)>>,
    /// None for a module whose instances are not used twice.
    hot: Option<HotSet>,
    /// Where arguments are put before a call; a slice of no bytes for nowhere.
    args_buffer: u64,
    meters: Meters,
}

/// What a guest counts down itself.
#[derive(Clone, Copy)]
struct Meters {
    fuel: Global,
    stack: Global,
    /// What the guest was refused.
    refused: Global,
    /// Where the stack in the guest's memory ends, if the module names it.
    shadow_stack: Option<ShadowStack>,
}

/// The stack that the guest's compiler keeps in its memory, for what can't lie in locals: where it ends, and how long it may be.
#[derive(Clone, Copy)]
struct ShadowStack {
    end: Global,
    bytes_max: u64,
}

impl ShadowStack {
    /// Of an instance in which nothing has run yet.
    fn of(instance: &wasmtime::Instance, store: &mut Store<HostState>) -> Option<Self> {
        let end = instance.get_global(&mut *store, SHADOW_STACK_EXPORT)?;
        let bytes_max = u64::from(end.get(store).i32()? as u32);
        Some(Self { end, bytes_max })
    }

    /// The fault of a guest whose stack passed the memory's begin. It grows downwards, and a memory has less than 2 GiB.
    fn overflow(self, store: &mut Store<HostState>) -> Option<Box<Fault>> {
        let is_passed = matches!(self.end.get(store), Val::I32(end) if end < 0);
        is_passed.then(|| stack_overflow(self.bytes_max))
    }
}

impl Meters {
    fn of(instance: &wasmtime::Instance, store: &mut Store<HostState>) -> Option<Self> {
        Some(Self {
            fuel: instance.get_global(&mut *store, FUEL_EXPORT)?,
            stack: instance.get_global(&mut *store, STACK_EXPORT)?,
            refused: instance.get_global(&mut *store, REFUSED_EXPORT)?,
            shadow_stack: ShadowStack::of(instance, store),
        })
    }

    /// What is left of the fuel that was given; below zero where more was asked for in vain.
    #[inline]
    fn fuel_left(self, store: &mut Store<HostState>) -> i64 {
        match self.fuel.get(store) {
            Val::I64(left) => left,
            _ => unreachable!("fuel is counted in an i64"),
        }
    }

    fn is_out_of_stack(self, store: &mut Store<HostState>) -> bool {
        matches!(self.stack.get(store), Val::I32(left) if left < 0)
    }

    fn refused(self, store: &mut Store<HostState>) -> i32 {
        match self.refused.get(store) {
            Val::I32(what) => what,
            _ => unreachable!("what is refused is kept in an i32"),
        }
    }
}

/// Puts the function that is asked for fuel where the guest calls it.
fn answer_asks(instance: &wasmtime::Instance, store: &mut Store<HostState>) -> wasmtime::Result<()> {
    let refuel = |mut caller: Caller<'_, HostState>, left: i64| -> wasmtime::Result<i64> {
        let state = caller.data_mut();
        state.refuel(left).map_err(|refusal| stop(state, "fuel", refusal))
    };
    let refuel = Func::wrap(&mut *store, refuel);
    let table = instance.get_table(&mut *store, ASK_EXPORT);
    let table = table.ok_or_else(|| wasmtime::Error::msg("the table for questions is missing"))?;
    table.set(store, 0, Ref::Func(Some(refuel)))
}

impl Live {
    /// Instantiates a module and runs its start-up, in the time of a call where it is for one.
    pub fn start(code: &Code, ops: Option<&mut dyn HostOps>) -> Result<Self, HostError> {
        // What it imports was judged before: a module's own doing is a trap.
        let failed = |error: wasmtime::Error| match error.is::<wasmtime::Trap>() {
            true => HostError::Instantiate(format!("{error:#}")),
            false => HostError::Room(format!("{error:#}")),
        };
        // What is charged for nothing may as well have all of it.
        let allowance = code.engine.allowance().unwrap_or(Allowance {
            fuel_max: u64::MAX,
            stack_bytes: 0,
        });
        let mut store = Store::new(code.pre.module().engine(), HostState::new(allowance));
        if let Some(ops) = ops {
            // SAFETY: `ops` stays borrowed by this function; `end_call` follows before it returns a store, and one that is
            // dropped asks nobody.
            unsafe { store.data_mut().begin_start(ops) };
        }
        let instance = code.pre.instantiate(&mut store).map_err(failed)?;
        let memory = instance
            .get_memory(&mut store, MEMORY_EXPORT)
            .ok_or_else(|| HostError::Instantiate("memory is missing".to_owned()))?;
        let (base, bytes) = (memory.data_ptr(&store), memory.data_size(&store));
        assert!(
            bytes == code.memory_bytes,
            "memory has another size than it was rewritten to"
        );
        // SAFETY: the memory never moves or changes its size (`memory`), and lives as long as the store.
        store.data_mut().memory = unsafe { GuestMemory::new(base, bytes) };
        let mut hot = match code.fresh {
            true => None,
            // SAFETY: as above; only the thread that runs the store touches the memory.
            false => Some(unsafe { watched(&mut store, base, bytes, &code.data_ranges) }?),
        };
        let meters =
            Meters::of(&instance, &mut store).ok_or_else(|| HostError::Instantiate("fuel is missing".to_owned()))?;
        answer_asks(&instance, &mut store).map_err(failed)?;
        let start = instance
            .get_typed_func::<(), ()>(&mut store, START_EXPORT)
            .map_err(failed)?;
        start
            .call(&mut store, ())
            .map_err(|error| HostError::Start(fault(code, &mut store, meters, &error)))?;
        let ask = |store: &mut Store<HostState>, export| ask_buffer(code, store, &instance, meters, export);
        let args_buffer = ask(&mut store, ARGS_BUFFER_EXPORT)?;
        store.data_mut().result_buffer = ask(&mut store, RESULT_BUFFER_EXPORT)?;
        if let Some(hot) = &mut hot {
            let (pointer, length) = unpack(args_buffer);
            hot.take_image((pointer as usize, length as usize))?;
        }
        store.data_mut().end_call();
        Ok(Self {
            store,
            instance,
            entries: Vec::new(),
            hot,
            args_buffer,
            meters,
        })
    }

    /// Puts arguments where the guest looks for them, if they fit there. Err: the memory can't be written, and is of no use any more.
    #[inline]
    fn offer_args(&mut self, args: &[u8]) -> Result<(), std::io::Error> {
        let (pointer, room) = unpack(self.args_buffer);
        if room == 0 || args.len() > room as usize {
            return Ok(());
        }
        match &mut self.hot {
            Some(hot) => hot.write_kept(args),
            None => {
                let written = self.store.data().memory.write_at(pointer, args);
                written.expect("the buffer was checked at the start");
                Ok(())
            }
        }
    }

    fn find_entries(&mut self, module: &CompiledModule) -> Result<(), HostError> {
        let state = self.store.data_mut();
        state.layouts = module.layouts();
        state.plans = state.layouts.iter().map(|_| Plans::default()).collect();
        module.entries().iter().try_for_each(|export| self.find_entry(export))
    }

    fn find_entry(&mut self, export: &ModuleExport) -> Result<(), HostError> {
        let missing = || HostError::Instantiate("an entry is missing".to_owned());
        let found = self.instance.get_module_export(&mut self.store, export);
        let function = found.and_then(Extern::into_func).ok_or_else(missing)?;
        let entry = function
            .typed(&self.store)
            .map_err(|error| HostError::Instantiate(format!("{error:#}")))?;
        self.entries.push(entry);
        Ok(())
    }

    /// Asks the module for its description.
    pub fn describe(&mut self, code: &Code) -> Result<Vec<u8>, HostError> {
        let failed = |error: wasmtime::Error| HostError::Describe(format!("{error:#}"));
        let store = &mut self.store;
        let describe = self
            .instance
            .get_typed_func::<(), u64>(&mut *store, DESCRIBE_EXPORT)
            .map_err(failed)?;
        let packed = describe
            .call(&mut *store, ())
            .map_err(|error| HostError::Describe(fault(code, &mut *store, self.meters, &error).to_string()))?;
        let (_, length) = unpack(packed);
        if length as usize > DESCRIPTION_BYTES_MAX {
            return Err(HostError::Describe(format!(
                "longer than {DESCRIPTION_BYTES_MAX} bytes"
            )));
        }
        // SAFETY: copied before the guest goes on.
        let bytes = unsafe { store.data().memory.read(packed) };
        let bytes = bytes.map_err(|_| HostError::Describe("lies outside of the memory".to_owned()))?;
        Ok(bytes.to_vec())
    }
}

/// The buffer that a module offers under this export: a slice in its memory, of no bytes where it offers none.
fn ask_buffer(
    code: &Code,
    store: &mut Store<HostState>,
    instance: &wasmtime::Instance,
    meters: Meters,
    export: &str,
) -> Result<u64, HostError> {
    let Ok(ask) = instance.get_typed_func::<(), u64>(&mut *store, export) else {
        return Ok(0);
    };
    let asked = ask.call(&mut *store, ()).and_then(|packed| {
        let (pointer, length) = unpack(packed);
        let state = store.data_mut();
        let refusal = match state.memory.check(pointer, length) {
            Ok(_) if length as usize <= BUFFER_BYTES_MAX => return Ok(packed),
            Ok(_) => Refusal::Limit {
                limit: "buffer_bytes",
                max: BUFFER_BYTES_MAX as u64,
            },
            Err(_) => Refusal::Range { pointer, length },
        };
        Err(stop(state, export, refusal))
    });
    asked.map_err(|error| HostError::Start(fault(code, store, meters, &error)))
}

/// Puts the memory of a new instance under watch.
///
/// # Safety
/// That of `HotSet::watch_start`.
unsafe fn watched(
    store: &mut Store<HostState>,
    base: *mut u8,
    bytes: usize,
    data: &[(u32, u32)],
) -> Result<HotSet, HostError> {
    let watch = Watch::new(bytes);
    // SAFETY: passed on.
    let hot = unsafe { HotSet::watch_start(&watch, base, bytes, data) }?;
    // SAFETY: the handler is async-signal-safe (`Watch::on_fault`); `info` is what the kernel gave the real handler.
    unsafe {
        store.set_signal_handler(move |signal, info, _| {
            signal == libc::SIGSEGV && watch.on_fault((*info).si_addr() as usize)
        });
    }
    Ok(hot)
}

/// Turns the error of a stopped guest into a fault, with the guest's functions by name.
#[cold]
fn fault(code: &Code, store: &mut Store<HostState>, meters: Meters, error: &wasmtime::Error) -> Box<Fault> {
    let noted = store.data_mut().fault.take();
    let is_out_of_bounds = match &noted {
        Some(fault) => fault.trap.as_deref() == Some(OUT_OF_BOUNDS),
        None => matches!(error.downcast_ref(), Some(Trap::MemoryOutOfBounds)),
    };
    let shadow_stack = meters.shadow_stack.filter(|_| is_out_of_bounds);
    let overflow = shadow_stack.and_then(|stack| stack.overflow(store));
    let mut fault = match (overflow.or(noted), error.downcast_ref::<Trap>()) {
        (Some(fault), _) => fault,
        (None, Some(Trap::UnreachableCodeReached)) => unreachable_fault(code, store, meters),
        (None, Some(trap)) => trap_fault(code, *trap),
        (None, None) => Fault::trap("unknown", format!("{error:#}")),
    };
    if let Some(trace) = error.downcast_ref::<WasmBacktrace>() {
        fault.backtrace = backtrace(code, trace, fault.trap.as_deref() == Some(PANIC_TRAP));
    }
    fault
}

/// The guest's functions, innermost first. Of a panic, what Rust does to tell it is left out.
fn backtrace(code: &Code, trace: &WasmBacktrace, is_panic: bool) -> Vec<String> {
    let frames = trace.frames().iter();
    let mut names: Vec<String> = frames
        .filter(|frame| frame.func_index() < code.guest_functions)
        .map(|frame| function_name(code, frame))
        .collect();
    let tells = |name: &String| name.starts_with("core::panicking::") || name.starts_with("std::panicking::");
    if is_panic && let Some(last) = names.iter().rposition(tells) {
        names.drain(..=last);
    }
    names
}

fn function_name(code: &Code, frame: &wasmtime::FrameInfo) -> String {
    let index = frame.func_index();
    let mut name = match (frame.func_name(), code.exported_names.get(&index)) {
        // The alternate form leaves out the hash that the compiler appends.
        (Some(name), _) => format!("{:#}", rustc_demangle::demangle(name)),
        (None, Some(name)) => name.clone(),
        (None, None) => format!("function {index}"),
    };
    name.truncate(name.floor_char_boundary(FUNCTION_NAME_BYTES_MAX));
    name
}

/// What the guest does when it can't go on: for lack of the stack that is counted, or of memory that it was refused, or on its own.
fn unreachable_fault(code: &Code, store: &mut Store<HostState>, meters: Meters) -> Box<Fault> {
    let refused = match meters.is_out_of_stack(store) {
        true => return trap_fault(code, Trap::StackOverflow),
        false => meters.refused(store),
    };
    match refused {
        REFUSED_MEMORY => Fault::used_up("out of memory", "unreachable", "memory_bytes", code.memory_bytes as u64),
        REFUSED_TABLE => Fault::used_up(
            "a table is full",
            "unreachable",
            "table_elements",
            code.table_elements_max,
        ),
        _ => trap_fault(code, Trap::UnreachableCodeReached),
    }
}

fn stack_overflow(bytes_max: u64) -> Box<Fault> {
    Fault::used_up(
        "stack overflow, by a recursion or by large variables",
        "stack_overflow",
        "stack_bytes",
        bytes_max,
    )
}

fn trap_fault(code: &Code, trap: Trap) -> Box<Fault> {
    let name = match trap {
        Trap::StackOverflow => {
            return stack_overflow(code.engine.limits().guest_stack_bytes_max as u64);
        }
        Trap::UnreachableCodeReached => "unreachable",
        Trap::MemoryOutOfBounds => OUT_OF_BOUNDS,
        Trap::TableOutOfBounds => "undefined_element",
        Trap::IndirectCallToNull => "uninitialized_element",
        Trap::BadSignature => "indirect_call_type_mismatch",
        Trap::IntegerOverflow => "integer_overflow",
        Trap::IntegerDivisionByZero => "integer_divide_by_zero",
        Trap::BadConversionToInteger => "invalid_conversion_to_integer",
        Trap::NullReference => "null_reference",
        _ => "unknown",
    };
    let text = trap.to_string();
    Fault::trap(name, text.strip_prefix("wasm trap: ").unwrap_or(&text))
}

#[cfg(test)]
#[path = "../tests/it/support/mod.rs"]
mod support;

#[cfg(test)]
mod tests {
    use super::support::{faulted, returned, start};
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
                    assert!(instance.memory_bytes() > 0);
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
        assert_eq!(
            (fault.kind, fault.trap.as_deref()),
            (FaultKind::Trap, Some("instantiation"))
        );
        assert_eq!(instance.memory_bytes(), 0);
        refuse(0, 0);
        assert_eq!(returned(&mut instance, 0, b"efgh"), b"efgh");
    }
}
