//! An uploaded module on its way into service: it is checked, rewritten, compiled, started once, and described.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use reprise_abi::{CALL_EXPORT_PREFIX, DESCRIBE_EXPORT, DESCRIBE_SECTION, ModuleSchema, ON_DEPLOY_EXPORT, RowLayout};
use reprise_base::{Grant, MemoryKind, MemoryLedger};
use reprise_pages::Mappings;
use sha2::{Digest, Sha256};
use wasmparser::{Parser, Payload};
use wasmtime::{InstancePre, ModuleExport};

use crate::{
    describe,
    engine::{Engine, Runtime},
    inspect::{ModuleParts, Strictness, inspect},
    instance::{HostError, INSTANCE_MAPPINGS},
    kept_code::name_of,
    live::LiveInstance,
    rewrite::{rewrite, table_elements_max},
    start::{StartDeadline, StartFor, StartTime},
    state::HostState,
    stored_descriptions::read_module,
};

/// Why a module is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}{}", .offset.map(|at| format!(" (at byte {at})")).unwrap_or_default())]
pub struct InvalidModule {
    pub reason: String,
    /// Byte in the uploaded module, if the reason has a place.
    pub offset: Option<u64>,
    /// True if the machine, or the limit of memory, has no room for an instance of it now. A later upload may succeed.
    pub lacks_room: bool,
}

impl InvalidModule {
    pub fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            offset: None,
            lacks_room: false,
        }
    }
}

impl From<HostError> for InvalidModule {
    fn from(error: HostError) -> Self {
        Self {
            lacks_room: matches!(
                error,
                HostError::Room(_) | HostError::Protect(_) | HostError::Mappings | HostError::Memory(_)
            ),
            ..Self::new(error.to_string())
        }
    }
}

/// A module that can be run. Cheap to clone.
#[derive(Clone)]
pub struct CompiledModule {
    inner: Arc<ModuleInner>,
}

struct ModuleInner {
    code: ModuleCode,
    schema: ModuleSchema,
    /// The JSON from which `schema` was made.
    description: Arc<[u8]>,
    /// The entry of each of the schema's procedures, and behind them the entry of the migration, if there is one.
    entries: Vec<ModuleExport>,
    /// Layouts of the schema's tables, in its order. Those of retiring tables, which a migration reads, follow.
    layouts: Arc<[RowLayout]>,
    hash: [u8; 32],
}

/// The compiled module, from which instances are made.
pub(crate) struct ModuleCode {
    pub engine: Engine,
    pub pre: InstancePre<HostState>,
    pub memory_bytes: usize,
    /// Number of elements that the largest of the module's tables may have.
    pub table_elements_max: u64,
    pub data_ranges: Vec<(u32, u32)>,
    /// True if instances of this module are not reused.
    pub fresh: bool,
    /// Number of the first of the host's functions, which backtraces leave out.
    pub guest_functions: u32,
    /// Names for functions that the name section does not name.
    pub exported_names: BTreeMap<u32, String>,
    /// Bytes of memory that an instance holds after its start, which are the same each time. They come from its data, or were measured.
    image_bytes: AtomicU64,
    /// Mappings of the machine code.
    _mappings: Mappings,
}

/// Estimate of the bytes of an instance beside its memory: the store, its tables, the watch.
const INSTANCE_BYTES: u64 = 96 << 10;
/// Mappings of a module's machine code: its read-only part, its executable part, and the rest.
const CODE_MAPPINGS: usize = 4;

impl CompiledModule {
    /// Checks and compiles a module on the calling thread. It starts and describes itself in the time of a deployment.
    pub fn compile(engine: &Engine, wasm: &[u8]) -> Result<Self, InvalidModule> {
        Self::compile_within(engine, wasm, &StartTime::default())
    }

    /// The `compile` variant within the time of a deployment.
    pub fn compile_within(engine: &Engine, wasm: &[u8], time: &StartTime) -> Result<Self, InvalidModule> {
        Self::make(engine, wasm, Strictness::Upload, time)
    }

    /// The `compile` variant for a module accepted earlier, which skips the bounds on the compiler's work. Those may be lowered, but a
    /// module that was in service must load again.
    pub fn compile_again(engine: &Engine, wasm: &[u8]) -> Result<Self, InvalidModule> {
        let _compiling = engine.take_compile_memory(wasm.len());
        Self::make(engine, wasm, Strictness::Known, &StartTime::again())
    }

    fn make(engine: &Engine, wasm: &[u8], mode: Strictness, time: &StartTime) -> Result<Self, InvalidModule> {
        let found = inspect(wasm, engine.limits(), mode)?;
        let described = match found.description {
            Some((json, offset)) => {
                let schema = parse_description(json, mode).map_err(|reason| InvalidModule {
                    offset: Some(offset),
                    ..InvalidModule::new(format!("section {DESCRIBE_SECTION}: {reason}"))
                })?;
                Some((schema, json.to_vec()))
            }
            None if found.describe.is_none() => {
                return Err(InvalidModule::new(format!(
                    "module has neither a section {DESCRIBE_SECTION} nor an export {DESCRIBE_EXPORT}"
                )));
            }
            None => None,
        };
        if let Some((schema, _)) = &described {
            check_procedures(&found, schema)?;
        }
        let code = ModuleCode::build(engine, &found)?;
        let (schema, description) = match (described, mode) {
            // The module started when it was accepted.
            (Some(described), Strictness::Known) => described,
            (described, _) => {
                let deadline = time.begin();
                let (mut live, _counted) = code.try_start(&deadline, mode)?;
                match described {
                    Some(described) => described,
                    None => {
                        let described = describe_by_export(&code, &mut live, &deadline, mode)?;
                        check_procedures(&found, &described.0)?;
                        described
                    }
                }
            }
        };
        let entry = |name: String| {
            let export = code.pre.module().get_export_index(&name);
            export.expect("each described procedure is exported")
        };
        let entries = entries_of(&schema).map(entry).collect();
        Ok(Self {
            inner: Arc::new(ModuleInner {
                code,
                layouts: layouts_of(&schema),
                schema,
                description: description.into(),
                entries,
                hash: hash_of(wasm),
            }),
        })
    }

    /// Returns the module's description of itself.
    pub fn schema(&self) -> &ModuleSchema {
        &self.inner.schema
    }

    /// Returns the module's description with its encoded bytes.
    pub fn described(&self) -> (ModuleSchema, Arc<[u8]>) {
        (self.inner.schema.clone(), self.inner.description.clone())
    }

    /// Returns the SHA-256 of the uploaded bytes.
    pub fn hash(&self) -> [u8; 32] {
        self.inner.hash
    }

    /// Returns the memory of the machine code and of its parts.
    pub fn code_bytes(&self) -> usize {
        let image = self.inner.code.pre.module().image_range();
        image.end.addr() - image.start.addr()
    }

    pub(crate) fn layouts(&self) -> Arc<[RowLayout]> {
        self.inner.layouts.clone()
    }

    pub(crate) fn code(&self) -> &ModuleCode {
        &self.inner.code
    }

    pub(crate) fn entries(&self) -> &[ModuleExport] {
        &self.inner.entries
    }
}

impl ModuleCode {
    /// Starts an instance that no call needs, to check that it starts, and to measure its memory. Returns the grant that counts this memory
    /// in the engine's ledger, if there is one. The instance's watch counts the memory that the guest writes meanwhile.
    fn try_start(
        &self,
        deadline: &StartDeadline,
        mode: Strictness,
    ) -> Result<(LiveInstance, Option<Grant>), HostError> {
        let mappings = Mappings::try_take(INSTANCE_MAPPINGS).ok_or(HostError::Mappings)?;
        let memory = self.engine.memory();
        let guests = memory.map(|memory| memory.kind(MemoryKind::Guests).clone());
        let mut counted = guests.as_ref().map(|guests| guests.take(0));
        self.count_start(memory, counted.as_mut(), mode)?;
        let live = LiveInstance::start(self, StartFor::Deployment(deadline), mappings, true, guests)?;
        if let Some(hot) = &live.hot {
            self.record_image(hot.image_bytes());
            // The size of the image is known only now.
            self.count_start(memory, counted.as_mut(), mode)?;
        }
        Ok((live, counted))
    }

    /// Raises `counted` to the memory of an instance that is checked. Err: an upload would pass the limit. A module that was accepted earlier
    /// must load again, so it is counted whatever the limit is.
    fn count_start(
        &self,
        memory: Option<&Arc<MemoryLedger>>,
        counted: Option<&mut Grant>,
        mode: Strictness,
    ) -> Result<(), HostError> {
        let (Some(memory), Some(counted)) = (memory, counted) else {
            return Ok(());
        };
        let bytes = match self.fresh {
            true => self.started_bytes(),
            false => self.kept_bytes(),
        };
        let more = bytes.saturating_sub(counted.bytes());
        if mode == Strictness::Known {
            counted.grow(more);
        } else if more > 0 && !counted.try_grow(more) {
            return Err(HostError::Memory(memory.max_bytes()));
        }
        Ok(())
    }

    /// Records the memory of a started instance.
    pub fn record_image(&self, bytes: usize) {
        self.image_bytes.store(bytes as u64, Relaxed);
    }

    /// Estimates the memory of an instance that serves a single call.
    pub fn started_bytes(&self) -> u64 {
        INSTANCE_BYTES + self.image_bytes.load(Relaxed)
    }

    /// Returns the memory of an instance that is kept from one call to the next, the copy of its memory included.
    pub fn kept_bytes(&self) -> u64 {
        INSTANCE_BYTES + 2 * self.image_bytes.load(Relaxed)
    }

    fn build(engine: &Engine, found: &ModuleParts<'_>) -> Result<Self, InvalidModule> {
        let mappings = Mappings::try_take(CODE_MAPPINGS).ok_or(HostError::Mappings)?;
        let (wasm, guest_functions) = rewrite(found, engine.allowance())?;
        let compile = |runtime: &Runtime| {
            let module = machine_code(engine, &runtime.wasmtime, &wasm)?;
            runtime.linker.instantiate_pre(&module)
        };
        let pooled = match found.needs_fresh_instance {
            // A module that is larger than the pool's slots has no pooled code.
            true => engine.pooled().and_then(|runtime| compile(runtime).ok()),
            false => None,
        };
        let pre = match pooled {
            Some(pre) => pre,
            None => compile(engine.reused()).map_err(|error| InvalidModule::new(format!("{error:#}")))?,
        };
        let names = found.exported_names.iter();
        Ok(Self {
            engine: engine.clone(),
            pre,
            memory_bytes: (found.memory_pages.1 * crate::inspect::WASM_PAGE_BYTES) as usize,
            table_elements_max: found.tables.iter().map(table_elements_max).max().unwrap_or(0),
            data_ranges: found.data_ranges.clone(),
            fresh: found.needs_fresh_instance,
            guest_functions,
            exported_names: names.map(|(function, name)| (*function, (*name).to_owned())).collect(),
            image_bytes: AtomicU64::new(
                found
                    .data_ranges
                    .iter()
                    .map(|(start, end)| u64::from(end - start))
                    .sum(),
            ),
            _mappings: mappings,
        })
    }
}

/// Returns the machine code of a rewritten module: the kept code, or code that is compiled now and kept.
fn machine_code(engine: &Engine, wasmtime: &wasmtime::Engine, rewritten: &[u8]) -> wasmtime::Result<wasmtime::Module> {
    let Some(kept) = engine.kept() else {
        return wasmtime::Module::new(wasmtime, rewritten);
    };
    let name = name_of(wasmtime, rewritten);
    if let Some(code) = kept.get(&name) {
        // SAFETY: the keyed checksum holds over these very bytes, so `serialize` below made them. It made them of this module, by this
        // version of the compiler, with these settings.
        if let Ok(module) = unsafe { wasmtime::Module::deserialize(wasmtime, &code) } {
            return Ok(module);
        }
    }
    let module = wasmtime::Module::new(wasmtime, rewritten)?;
    kept.put(&name, &module.serialize()?);
    Ok(module)
}

/// SHA-256 of a module's bytes.
pub fn hash_of(wasm: &[u8]) -> [u8; 32] {
    Sha256::digest(wasm).into()
}

/// Reads the description of a module that was accepted earlier, without its code. None if only its code can return the description.
pub fn described(wasm: &[u8]) -> Result<Option<(ModuleSchema, Arc<[u8]>)>, InvalidModule> {
    for payload in Parser::new(0).parse_all(wasm) {
        if let Payload::CustomSection(section) = payload?
            && section.name() == DESCRIBE_SECTION
        {
            let schema = parse_description(section.data(), Strictness::Known).map_err(InvalidModule::new)?;
            return Ok(Some((schema, section.data().into())));
        }
    }
    Ok(None)
}

/// Parses a description. The lenient reader takes modules accepted earlier, because the rules for uploads may have become stricter.
fn parse_description(json: &[u8], mode: Strictness) -> Result<ModuleSchema, String> {
    match mode {
        Strictness::Upload => describe::from_json(json).map_err(|error| error.to_string()),
        Strictness::Known => read_module(json),
    }
}

fn describe_by_export(
    code: &ModuleCode,
    live: &mut LiveInstance,
    deadline: &StartDeadline,
    mode: Strictness,
) -> Result<(ModuleSchema, Vec<u8>), InvalidModule> {
    let refuse = |reason: String| InvalidModule::new(format!("export {DESCRIBE_EXPORT}: {reason}"));
    let json = live
        .describe(code, deadline)
        .map_err(|error: HostError| refuse(error.to_string()))?;
    let schema = parse_description(&json, mode).map_err(refuse)?;
    Ok((schema, json))
}

/// Returns the layouts of all tables in the order of their numbers.
fn layouts_of(schema: &ModuleSchema) -> Arc<[RowLayout]> {
    let tables = schema.tables.iter().chain(&schema.retiring);
    tables.map(RowLayout::of_table).collect()
}

/// Returns the exports of the described procedures, in the order of their numbers.
fn entries_of(schema: &ModuleSchema) -> impl Iterator<Item = String> {
    let procedures = schema.procedures.iter();
    let calls = procedures.map(|procedure| format!("{CALL_EXPORT_PREFIX}{}", procedure.name));
    calls.chain(schema.on_deploy.iter().map(|_| ON_DEPLOY_EXPORT.to_owned()))
}

/// Checks that each described procedure is exported, and each exported one described.
fn check_procedures(found: &ModuleParts<'_>, schema: &ModuleSchema) -> Result<(), InvalidModule> {
    let is_exported = |name: &str| found.entries.iter().any(|(entry, _)| *entry == name);
    if let Some(export) = entries_of(schema).find(|export| !is_exported(export)) {
        let what = match export.strip_prefix(CALL_EXPORT_PREFIX) {
            Some(name) => format!("procedure {name}"),
            None => "on_deploy".to_owned(),
        };
        return Err(InvalidModule::new(format!(
            "{what} is described, but {export} is not exported"
        )));
    }
    for (export, _) in &found.entries {
        let what = match export.strip_prefix(CALL_EXPORT_PREFIX) {
            Some(name) if schema.procedures.iter().any(|procedure| procedure.name == name) => continue,
            None if schema.on_deploy.is_some() => continue,
            Some(name) => format!("procedure {name}"),
            None => "on_deploy".to_owned(),
        };
        return Err(InvalidModule::new(format!(
            "{export} is exported, but {what} is not described"
        )));
    }
    Ok(())
}
