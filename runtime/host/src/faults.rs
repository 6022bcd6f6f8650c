//! Turns the error of a stopped guest into a fault, with its functions by name and the counters that show which limit it reached.

use reprise_base::limits::FUNCTION_NAME_BYTES_MAX;
use wasmtime::{Global, Store, Trap, Val, WasmBacktrace};

use crate::{
    module::ModuleCode,
    outcome::{Fault, PANIC_TRAP},
    rewrite::{FUEL_EXPORT, REFUSED_EXPORT, REFUSED_MEMORY, REFUSED_TABLE, SHADOW_STACK_EXPORT, STACK_EXPORT},
    state::HostState,
};

const OUT_OF_BOUNDS: &str = "out_of_bounds";

/// The counters that a guest counts down itself.
#[derive(Clone, Copy)]
pub(crate) struct Meters {
    fuel: Global,
    stack: Global,
    /// The resource that the guest was refused last.
    refused: Global,
    /// The end of the stack in the guest's memory, if the module names it.
    shadow_stack: Option<ShadowStack>,
}

/// The stack that the guest's compiler keeps in its memory, for values that can't be locals: its end, and its greatest length.
#[derive(Clone, Copy)]
struct ShadowStack {
    end: Global,
    bytes_max: u64,
}

impl ShadowStack {
    /// Returns the stack of a fresh instance, if its module names one.
    fn of(instance: &wasmtime::Instance, store: &mut Store<HostState>) -> Option<Self> {
        let end = instance.get_global(&mut *store, SHADOW_STACK_EXPORT)?;
        let bytes_max = u64::from(end.get(store).i32()? as u32);
        Some(Self { end, bytes_max })
    }

    /// Returns the fault of a guest whose stack passed the beginning of the memory. The stack grows downwards, and a memory has less than 2
    /// GiB.
    fn overflow(self, store: &mut Store<HostState>) -> Option<Box<Fault>> {
        let is_passed = matches!(self.end.get(store), Val::I32(end) if end < 0);
        is_passed.then(|| stack_overflow(self.bytes_max))
    }
}

impl Meters {
    pub fn of(instance: &wasmtime::Instance, store: &mut Store<HostState>) -> Option<Self> {
        Some(Self {
            fuel: instance.get_global(&mut *store, FUEL_EXPORT)?,
            stack: instance.get_global(&mut *store, STACK_EXPORT)?,
            refused: instance.get_global(&mut *store, REFUSED_EXPORT)?,
            shadow_stack: ShadowStack::of(instance, store),
        })
    }

    /// Returns the fuel that is left. It is below zero if the guest asked for more in vain.
    #[inline]
    pub fn fuel_left(self, store: &mut Store<HostState>) -> i64 {
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

/// Turns the error of a stopped guest into a fault, with the guest's functions by name.
#[cold]
pub(crate) fn fault(
    code: &ModuleCode,
    store: &mut Store<HostState>,
    meters: Meters,
    error: &wasmtime::Error,
) -> Box<Fault> {
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

/// Returns the guest's functions, innermost first. For a panic, it leaves out the functions with which Rust reports it.
fn backtrace(code: &ModuleCode, trace: &WasmBacktrace, is_panic: bool) -> Vec<String> {
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

fn function_name(code: &ModuleCode, frame: &wasmtime::FrameInfo) -> String {
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

/// Returns the fault of a guest that gave up: it lacked counted stack, was refused memory, or chose to.
fn unreachable_fault(code: &ModuleCode, store: &mut Store<HostState>, meters: Meters) -> Box<Fault> {
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

fn trap_fault(code: &ModuleCode, trap: Trap) -> Box<Fault> {
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
