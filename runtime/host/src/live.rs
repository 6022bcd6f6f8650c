//! A started instance: its watched memory, its entries, its meters.

use std::sync::Arc;

use reprise_abi::{
    ARGS_BUFFER_EXPORT, DESCRIBE_EXPORT, Plans, RESULT_BUFFER_EXPORT, RowLayout, calls::BUFFER_BYTES_MAX,
};
use reprise_base::Budget;
use reprise_pages::Mappings;
use wasmtime::{Caller, Extern, Func, ModuleExport, Ref, Store, TypedFunc, unix::StoreExt};

use crate::{
    calls::stop,
    describe::DESCRIPTION_BYTES_MAX,
    faults::{Meters, fault},
    hot::{HotSet, PageWatch},
    inspect::MEMORY_EXPORT,
    instance::HostError,
    module::{CompiledModule, ModuleCode},
    rewrite::{ASK_EXPORT, Allowance, START_EXPORT},
    start::{StartDeadline, StartFor},
    state::{GuestMemory, GuestStop, HostState, unpack},
};

/// A started instance.
pub(crate) struct LiveInstance {
    pub store: Store<HostState>,
    instance: wasmtime::Instance,
    /// Entries in the order of the description's procedures. They return the remaining fuel beside the result.
    pub entries: Vec<TypedFunc<i32, (i32, i64)>>,
    /// The hot set. None for an instance that is not reused.
    pub hot: Option<HotSet>,
    /// The watch that counts the memory of an instance that is not reused.
    watch: Option<Arc<PageWatch>>,
    /// True if its memory belongs to the pool, which gives it to another instance later.
    is_pooled: bool,
    /// The place of arguments before a call; a slice of no bytes if there is none.
    args_buffer: u64,
    pub meters: Meters,
    /// Mappings of the memory and of its parts, taken before it is made.
    _mappings: Mappings,
}

/// Links the function that grants fuel to the guest's import.
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

/// Returns the error of a failed start. The module's imports were checked before, so a trap is its own fault; anything else is a lack of
/// memory or mappings.
fn failed(error: wasmtime::Error) -> HostError {
    match error.is::<wasmtime::Trap>() {
        true => HostError::Instantiate(format!("{error:#}")),
        false => HostError::Room(format!("{error:#}")),
    }
}

impl LiveInstance {
    /// Instantiates a module and runs its start-up, in the time of a call or of a deployment. With `kept`, it can be restored after each
    /// call.
    pub fn start(
        code: &ModuleCode,
        time: StartFor<'_>,
        mappings: Mappings,
        is_kept: bool,
        guests: Option<Arc<Budget>>,
    ) -> Result<Self, HostError> {
        // An engine that charges nothing grants everything.
        let allowance = code.engine.allowance().unwrap_or(Allowance {
            fuel_max: u64::MAX,
            stack_bytes: 0,
        });
        let mut store = Store::new(code.pre.module().engine(), HostState::new(allowance));
        // SAFETY: what `time` borrows stays borrowed by this function; `end_call` follows before it returns a store, and a dropped store
        // uses the borrow no more.
        unsafe { store.data_mut().begin_start(time) };
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
        let meters =
            Meters::of(&instance, &mut store).ok_or_else(|| HostError::Instantiate("fuel is missing".to_owned()))?;
        answer_asks(&instance, &mut store).map_err(failed)?;
        let watch = PageWatch::new(bytes, guests);
        // SAFETY: the handler is async-signal-safe (`PageWatch::on_fault`); `info` is what the kernel gave the real handler.
        unsafe {
            let watch = watch.clone();
            store.set_signal_handler(move |signal, info, _| {
                signal == libc::SIGSEGV && watch.on_fault((*info).si_addr() as usize)
            });
        }
        // SAFETY: the memory lives as long as the store, and only the thread that runs that touches it. A pool's memory is made writable again
        // before the store goes (`drop`); nothing can fail in between.
        let (hot, watch) = unsafe {
            match is_kept && !code.fresh {
                true => (Some(HotSet::watch_start(&watch, base, bytes, &code.data_ranges)?), None),
                false => {
                    watch.watch_once(base, bytes);
                    (None, Some(watch))
                }
            }
        };
        let mut live = Self {
            watch,
            is_pooled: code.fresh,
            store,
            instance,
            entries: Vec::new(),
            hot,
            args_buffer: 0,
            meters,
            _mappings: mappings,
        };
        live.run_start(code)?;
        live.store.data_mut().end_call();
        Ok(live)
    }

    /// Runs the start-up code of a module.
    fn run_start(&mut self, code: &ModuleCode) -> Result<(), HostError> {
        let start = self
            .instance
            .get_typed_func::<(), ()>(&mut self.store, START_EXPORT)
            .map_err(failed)?;
        start
            .call(&mut self.store, ())
            .map_err(|error| HostError::Start(fault(code, &mut self.store, self.meters, &error)))?;
        self.args_buffer = self.ask_buffer(code, ARGS_BUFFER_EXPORT)?;
        self.store.data_mut().result_buffer = self.ask_buffer(code, RESULT_BUFFER_EXPORT)?;
        if let Some(hot) = &mut self.hot {
            let (pointer, length) = unpack(self.args_buffer);
            hot.take_image((pointer as usize, length as usize))?;
        }
        Ok(())
    }

    /// Returns the buffer that a module offers under this export: a slice of its memory, of no bytes if it offers none.
    fn ask_buffer(&mut self, code: &ModuleCode, export: &str) -> Result<u64, HostError> {
        let store = &mut self.store;
        let Ok(ask) = self.instance.get_typed_func::<(), u64>(&mut *store, export) else {
            return Ok(0);
        };
        let asked = ask.call(&mut *store, ()).and_then(|packed| {
            let (pointer, length) = unpack(packed);
            let state = store.data_mut();
            let refusal = match state.memory.check(pointer, length) {
                Ok(_) if length as usize <= BUFFER_BYTES_MAX => return Ok(packed),
                Ok(_) => GuestStop::Limit {
                    limit: "buffer_bytes",
                    max: BUFFER_BYTES_MAX as u64,
                },
                Err(_) => GuestStop::Range { pointer, length },
            };
            Err(stop(state, export, refusal))
        });
        asked.map_err(|error| HostError::Start(fault(code, store, self.meters, &error)))
    }

    /// Turns an instance that was to be kept into one for a single call: gives up the copy of its memory.
    pub fn serve_once(&mut self) {
        if let Some(hot) = self.hot.take() {
            self.watch = Some(hot.serve_once());
        }
    }

    /// Puts arguments where the guest expects them, if they fit there. Err: the memory can't be written, and is unusable.
    #[inline]
    pub fn offer_args(&mut self, args: &[u8]) -> Result<(), std::io::Error> {
        let (pointer, room) = unpack(self.args_buffer);
        if room == 0 || args.len() > room as usize {
            return Ok(());
        }
        match &mut self.hot {
            Some(hot) => hot.write_kept(args),
            None => {
                let end = pointer as usize + args.len();
                if self.watch.as_ref().is_some_and(|watch| !watch.open_for_host(end)) {
                    return Err(std::io::Error::last_os_error());
                }
                let written = self.store.data().memory.write_at(pointer, args);
                written.expect("the buffer was checked at the start");
                Ok(())
            }
        }
    }

    /// Sets the layouts of the module's tables. Without them, every host call that moves columns fails.
    pub fn set_layouts(&mut self, layouts: Arc<[RowLayout]>) {
        let state = self.store.data_mut();
        state.plans = layouts.iter().map(|_| Plans::default()).collect();
        state.layouts = layouts;
    }

    pub fn find_entries(&mut self, module: &CompiledModule) -> Result<(), HostError> {
        module.entries().iter().try_for_each(|export| self.find_entry(export))
    }

    pub fn find_entry(&mut self, export: &ModuleExport) -> Result<(), HostError> {
        let missing = || HostError::Instantiate("an entry is missing".to_owned());
        let found = self.instance.get_module_export(&mut self.store, export);
        let function = found.and_then(Extern::into_func).ok_or_else(missing)?;
        let entry = function
            .typed(&self.store)
            .map_err(|error| HostError::Instantiate(format!("{error:#}")))?;
        self.entries.push(entry);
        Ok(())
    }

    /// Asks the module for its description, in the time of its deployment.
    pub fn describe(&mut self, code: &ModuleCode, deadline: &StartDeadline) -> Result<Vec<u8>, HostError> {
        let failed = |error: wasmtime::Error| HostError::Describe(format!("{error:#}"));
        let store = &mut self.store;
        // SAFETY: a deployment's deadline is not borrowed.
        unsafe { store.data_mut().begin_start(StartFor::Deployment(deadline)) };
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
        // SAFETY: the bytes are copied before the guest continues.
        let bytes = unsafe { store.data().memory.read(packed) };
        let bytes = bytes.map_err(|_| HostError::Describe("lies outside of the memory".to_owned()))?;
        Ok(bytes.to_vec())
    }
}

impl Drop for LiveInstance {
    /// Makes the memory writable, because the pool clears a memory that it takes back.
    fn drop(&mut self) {
        if let Some(watch) = self.watch.as_ref().filter(|_| self.is_pooled) {
            assert!(watch.end(), "making memory writable only merges mappings");
        }
    }
}
