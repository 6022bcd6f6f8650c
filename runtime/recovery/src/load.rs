//! From a checkpoint to partitions: the descriptions on all of them, then rows and indexes (`fill`), and the kept outcomes.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use reprise_abi::{ModuleSchema, TableSchema};
use reprise_base::MemoryLedger;
use reprise_checkpoint::{CheckpointError, CheckpointReader};
use reprise_host::stored_descriptions::{read_module, read_stored_table};
use reprise_partition::{ExclusivePartitions, ModuleBytes, TxnPartitions, put_in_service};
use reprise_replay::{KeyedOutcome, ReplayError, Replayer};
use reprise_storage::{Store, TableId};
use reprise_txn::{
    Code, Compiler, Deployed, Executor, ModuleId, Origin, Quarantine, RestoredModule, TablePast, restore,
};
use reprise_wire::{CheckpointBlockKind, CheckpointKeys, CheckpointModuleRef, CheckpointOrigin, corrupt};

use crate::{RecoveryError, fill::fill, ready::make_ready};

/// The code of a version that is out of service: no record behind the checkpoint names it.
pub(crate) struct RetiredCode;

impl Code for RetiredCode {
    fn instantiate(&self) -> Result<Box<dyn Executor>, String> {
        Err("this version was out of service when the checkpoint was taken".into())
    }

    fn is_ready(&self) -> bool {
        false
    }
}

/// The contents of a checkpoint other than the tables.
pub struct LoadReport {
    /// The outcomes under idempotency keys that are still remembered.
    pub keys: Vec<KeyedOutcome>,
    /// Seconds for compiling its modules.
    pub compile_seconds: f64,
}

/// Makes every partition as it was at the checkpoint; its former contents are dropped. `past` is that of the checkpoint's tables. `loaded`
/// counts the bytes of loaded rows on the way. Err: no loaded part may be used.
pub fn load(
    replayer: &mut Replayer,
    reader: &Arc<CheckpointReader>,
    past: TablePast,
    loaded: &Arc<AtomicU64>,
) -> Result<LoadReport, RecoveryError> {
    let shared = replayer.shared().clone();
    let found = reader.database().genesis.partitions;
    if found != shared.partitions_count {
        let asked = shared.partitions_count;
        return Err(broken(reader, "partitions", &asked.to_string(), &found.to_string()).into());
    }
    let outcome = Arc::new(LoadOutcome::new(shared.memory.clone()));
    let compile_seconds = describe(replayer, reader, past, &outcome)?;
    let (from, bytes, filled) = (reader.clone(), loaded.clone(), outcome.clone());
    replayer.gather(
        TxnPartitions::All,
        Box::new(move |held| {
            // After an error in the descriptions there is nothing to fill.
            if !filled.has_failed() {
                let cores = held.tools.shared.threads.cores();
                fill(held.partitions, &from, &bytes, &filled, cores);
            }
        }),
    )?;
    let keys = read_keys(reader)?;
    replayer.drain()?;
    outcome
        .take_error()
        .map_or(Ok(LoadReport { keys, compile_seconds }), Err)
}

/// Empties every partition and forgets every module, after a load or a replay that failed.
pub fn reset(replayer: &mut Replayer) -> Result<(), RecoveryError> {
    replayer.gather(
        TxnPartitions::All,
        Box::new(|held| {
            held.tools.shared.principals.clear();
            for partition in held.partitions.iter_mut() {
                partition.store = Store::counted_in(&held.tools.shared.memory);
            }
            let generation = held.tools.deployed().generation + 1;
            let empty = restore(generation, Vec::new(), TablePast::default(), Vec::new());
            put_in_service(held, empty.expect("nothing fits together"), Vec::clear);
        }),
    )?;
    Ok(replayer.drain()?)
}

/// Errors of the threads that fill tables.
pub(crate) struct LoadOutcome {
    memory: Arc<MemoryLedger>,
    error: Mutex<Option<RecoveryError>>,
}

impl LoadOutcome {
    pub fn new(memory: Arc<MemoryLedger>) -> Self {
        Self {
            memory,
            error: Mutex::default(),
        }
    }

    /// Keeps the first error.
    pub fn fail(&self, error: RecoveryError) {
        let mut kept = self.error.lock().expect("held for a store");
        kept.get_or_insert(error);
    }

    /// Also where more memory is held than there may be: the process would be killed for it.
    pub fn has_failed(&self) -> bool {
        if self.memory.is_over() {
            let max = self.memory.max_bytes();
            self.fail(ReplayError::Memory { max }.into());
        }
        self.error.lock().expect("held for a short time").is_some()
    }

    fn take_error(&self) -> Option<RecoveryError> {
        self.error.lock().expect("held for a short time").take()
    }
}

/// Tables and modules, on all partitions at once. Returns the seconds that compiling took.
fn describe(
    replayer: &mut Replayer,
    reader: &Arc<CheckpointReader>,
    past: TablePast,
    outcome: &Arc<LoadOutcome>,
) -> Result<f64, RecoveryError> {
    let tables = reader.tables().iter();
    let tables: Result<Vec<_>, _> = tables.map(|json| table_of(reader, json)).collect();
    let tables = tables?;
    let shared = replayer.shared().clone();
    let begun_ns = shared.clock.monotonic_ns();
    let compiler = replayer.compiler().clone();
    let modules = reader.modules().iter();
    let modules: Result<Vec<_>, _> = modules
        .map(|module| module_of(&*compiler, reader, &module.get()))
        .collect();
    let modules = modules?;
    let codes: Vec<&dyn Code> = modules.iter().map(|module| &*module.code).collect();
    make_ready(&codes, &*shared.threads)
        .map_err(|(number, reason)| broken(reader, "module", &modules[number].name, &reason))?;
    let compiled_ns = shared.clock.monotonic_ns() - begun_ns;
    let (reader, outcome) = (reader.clone(), outcome.clone());
    replayer.gather(
        TxnPartitions::All,
        Box::new(move |held| {
            if let Err(reason) = install(held, &reader, tables, past, modules) {
                outcome.fail(broken(&reader, "tables and modules", "that fit", &reason).into());
            }
        }),
    )?;
    Ok(compiled_ns as f64 / 1e9)
}

fn module_of(
    compiler: &dyn Compiler,
    reader: &CheckpointReader,
    module: &CheckpointModuleRef<'_>,
) -> Result<RestoredModule, RecoveryError> {
    let what = |reason: String| broken(reader, "module", module.name, &reason);
    let (schema, code): (_, Arc<dyn Code>) = if module.in_service {
        let compiled = compiler.restore(module.name, &module.wasm.into());
        let compiled = compiled.map_err(|error| what(error.to_string()))?;
        if compiled.hash != module.hash {
            return Err(what("bytes of another hash".into()).into());
        }
        (compiled.schema, compiled.code)
    } else {
        let schema = read_module(module.description).map_err(what)?;
        (schema, Arc::new(RetiredCode))
    };
    Ok(restored(module, schema, code))
}

pub(crate) fn broken(reader: &CheckpointReader, what: &str, expected: &str, found: &str) -> CheckpointError {
    CheckpointError::Corrupt {
        file: reader.name().to_owned(),
        offset: 0,
        what: what.to_owned(),
        expected: expected.to_owned(),
        found: found.to_owned(),
    }
}

fn table_of(reader: &CheckpointReader, json: &[u8]) -> Result<TableSchema, CheckpointError> {
    let unfit = |found: &str| broken(reader, "description of a table", "one table", found);
    let table = read_stored_table(json).map_err(|error| unfit(&error))?;
    Ok(table.unwrap_or_else(TableSchema::dropped))
}

fn install(
    held: &mut ExclusivePartitions<'_>,
    reader: &CheckpointReader,
    tables: Vec<TableSchema>,
    past: TablePast,
    modules: Vec<RestoredModule>,
) -> Result<(), String> {
    let generation = held.tools.deployed().generation + 1;
    let mut deployed = restore(generation, tables, past, modules)?;
    for found in reader.quarantine() {
        let why = Quarantine {
            diverged: found.diverged,
            what: found.what.clone(),
        };
        deployed = deployed.with_quarantined(ModuleId(found.module_id), found.procedure, why)?;
    }
    for partition in held.partitions.iter_mut() {
        partition.store = Store::counted_in(&held.tools.shared.memory);
        for table in &deployed.tables {
            partition
                .store
                .push_table(TableSchema::clone(table))
                .map_err(|conflicts| {
                    let texts: Vec<_> = conflicts.iter().map(ToString::to_string).collect();
                    texts.join("; ")
                })?;
        }
        let state = reader.partition(partition.id);
        partition.clock.advance_past(state.last_tick);
        partition.last_end = state.last_end.min(reader.lsn());
    }
    let found = reader.modules().iter().map(|module| ModuleBytes {
        wasm: module.get().wasm.into(),
        logged_at: None,
    });
    put_in_service(held, deployed, |binaries| *binaries = found.collect());
    let shared = &held.tools.shared;
    shared.principals.clear();
    for (number, name) in reader.principals() {
        let defined = shared.principals.define(*number, name);
        defined.map_err(|next| format!("principal {number} in place of {next}"))?;
    }
    shared.key_clock.raise(reader.database().key_clock_us);
    let tick = reader.database().multi_tick;
    held.tools.shared.multi_tick.fetch_max(tick, Ordering::AcqRel);
    Ok(())
}

/// Checks that a checkpoint's descriptions of tables and modules can be read, and fit together, as `load` needs them. It reads no
/// code, and no row.
pub fn check_descriptions(reader: &CheckpointReader) -> Result<(), CheckpointError> {
    let deployed = descriptions(reader)?;
    let mut store = Store::new();
    for table in &deployed.tables {
        let created = store.push_table(TableSchema::clone(table));
        created.map_err(|_| broken(reader, "table", "that fit", &table.full_name()))?;
    }
    Ok(())
}

/// Reads a checkpoint's descriptions of tables and modules, without code.
pub(crate) fn descriptions(reader: &CheckpointReader) -> Result<Deployed, CheckpointError> {
    let tables = reader.tables().iter().map(|json| table_of(reader, json));
    let tables = tables.collect::<Result<Vec<_>, _>>()?;
    let unfit = |what: &str, reason: &str| broken(reader, what, "that fit", reason);
    // Each version is read when the one before is in its place. A list of all of them would take kilobytes of memory for each version since
    // the log begins, at each checkpoint.
    let mut unread = None;
    let modules = reader.modules().iter().map_while(|module| {
        let module = module.get();
        match read_module(module.description) {
            Ok(schema) => Some(restored(&module, schema, Arc::new(RetiredCode))),
            Err(reason) => {
                unread = Some(unfit("module", &reason));
                None
            }
        }
    });
    let past = TablePast::unknown_before(reader.header().txn_id);
    let deployed = restore(0, tables, past, modules);
    match unread {
        Some(error) => Err(error),
        None => deployed.map_err(|reason| unfit("tables and modules", &reason)),
    }
}

fn origin(found: CheckpointOrigin) -> Option<Origin> {
    found.map(|(table, columns)| Origin {
        table: TableId(table),
        columns,
    })
}

fn restored(module: &CheckpointModuleRef<'_>, schema: ModuleSchema, code: Arc<dyn Code>) -> RestoredModule {
    RestoredModule {
        name: module.name.to_owned(),
        version: module.version,
        hash: module.hash,
        wasm_bytes: u64::from(module.wasm_bytes),
        installed_by: module.installed_by,
        in_service: module.in_service,
        migrations: module.migration_names().map(str::to_owned).collect(),
        origins: (!module.origins.is_empty()).then(|| module.table_origins().map(origin).collect()),
        schema,
        description: module.description.into(),
        code,
    }
}

fn read_keys(reader: &CheckpointReader) -> Result<Vec<KeyedOutcome>, CheckpointError> {
    let mut keys = Vec::new();
    let mut blocks = reader.blocks();
    for (number, entry) in reader.entries().iter().enumerate() {
        if entry.kind != CheckpointBlockKind::Keys {
            continue;
        }
        for found in CheckpointKeys::new(blocks.read(number)?) {
            let found = found.map_err(|error| reader.corrupt(entry, error))?;
            let module = reader.modules().get(found.module_id as usize);
            if module.is_none() {
                let error = corrupt("module of a key", "a known one", "an unknown one");
                return Err(reader.corrupt(entry, error));
            }
            keys.push(KeyedOutcome {
                lsn: found.lsn,
                txn_id: found.txn_id,
                module_id: ModuleId(found.module_id),
                procedure: found.procedure,
                scope: found.scope.into(),
                key: found.key.into(),
                fingerprint: found.fingerprint,
                args_hash: found.args_hash,
                kept_us: found.kept_us,
                result: found.result.to_vec(),
                partition: found.partition,
            });
        }
    }
    Ok(keys)
}
