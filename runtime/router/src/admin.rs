//! Deployment and removal of modules: one step on all partitions at once.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use reprise_abi::schema::{ModuleSchema, is_valid_name};
use reprise_base::{
    Grant, Lsn, MemoryKind, TxnId,
    limits::{COMPILE_BYTES_EACH, MODULE_BYTES_MAX, QUARANTINED_MAX},
};
use reprise_log::Log;
use reprise_observe::{Notice, NoticeKind};
use reprise_partition::{
    Caller, ExclusivePartitions, InstallBounds, InstallError, InstallRules, Installation, LogRefusal, MigrationDigests,
    Partition, ReplyOutcome, Shared, check_consents, install,
};
use reprise_storage::Store;
use reprise_txn::{
    Candidate, Consent, DestroyedItem, HeldCounts, Module, ModuleId, PlanSummary, Quarantine, StartTime, apply_drop,
    check_drop, outline_removal, remove,
};
use reprise_wire::{
    DeployRef, DestroyedList, DropTableRef, MigrationRef, PLAN_BYTES_MAX, PrincipalRef, QUARANTINE_TEXT_BYTES_MAX,
    QuarantineRef, RecordBatch, RecordRef, RemoveRef, SourceList,
};

use crate::{
    plans::{Lists, check_texts, names_of},
    router::{Router, Unavailable},
    standby::NotPrimary,
};

/// A deployment that is durable.
#[derive(Clone)]
pub struct Deployment {
    pub module: Arc<Module>,
    /// Version that was in service before, if any.
    pub replaced: Option<u32>,
    /// True when the same bytes were in service already; nothing was done.
    pub unchanged: bool,
    /// True when no module of this name was in service.
    pub created: bool,
    /// Things that the deployment destroyed, with consent.
    pub destroyed: Vec<DestroyedItem>,
    pub lsn: Lsn,
}

/// A module that is out of service, durably.
#[derive(Clone, Debug)]
pub struct Removal {
    pub lsn: Lsn,
    /// Things that the removal destroyed, with consent.
    pub destroyed: Vec<DestroyedItem>,
}

/// A module that was checked and not installed.
#[derive(Clone, Debug)]
pub struct PlannedModule {
    pub schema: ModuleSchema,
    pub summary: PlanSummary,
}

#[derive(Debug, thiserror::Error)]
pub enum DeployError {
    #[error("not a module that this host can run: {reason}")]
    Invalid { reason: String, offset: Option<u64> },
    #[error(transparent)]
    Install(#[from] InstallError),
    #[error("a module has at most {max} bytes")]
    TooLarge { max: usize },
    /// The record is longer than the log can take, however empty it is.
    #[error("its record in the log has up to {bytes} bytes, and the log takes {max} at once")]
    RecordTooLong { bytes: usize, max: usize },
    #[error("no such module is in service")]
    NotFound,
    #[error("no such table is stored")]
    NoTable,
    #[error("{0}")]
    BadName(String),
    #[error(transparent)]
    Log(LogRefusal),
    #[error(transparent)]
    NotPrimary(#[from] NotPrimary),
    /// The log failed while it wrote the record: whether that is kept shows after a restart.
    #[error("{reason}")]
    OutcomeUnknown { reason: Arc<str>, txn_id: TxnId, lsn: Lsn },
    #[error("{0}")]
    Unavailable(Arc<str>),
    /// There is no memory to compile it now, under a limit of `max` bytes.
    #[error("compilation needs about {bytes} bytes more than the limit of {max} leaves")]
    CompileMemory { bytes: u64, max: u64 },
}

impl Router {
    /// Deploys as `deploy_with` does, with consent to destroy nothing.
    pub fn deploy(&self, name: &str, wasm: &[u8]) -> Result<Deployment, DeployError> {
        self.deploy_with(name, wasm, &[])
    }

    /// Validates, compiles and installs a module on all partitions between two transactions. Blocks until it is durable. The destruction that it
    /// would cause is counted while the partitions are held, and needs consent.
    pub fn deploy_with(&self, name: &str, wasm: &[u8], consents: &[Consent]) -> Result<Deployment, DeployError> {
        let wasm: Arc<[u8]> = wasm.into();
        let candidate = self.compile(name, &wasm)?;
        self.deploy_candidate(candidate, &wasm, consents)
    }

    /// Plans what `deploy` would do, or returns the conflicts that would refuse it. It reads descriptions, and counts that the partitions
    /// published: no call waits for it, and nothing is made. Rows are read where tables go back to what they were, a few at a time.
    pub fn plan_deploy(&self, name: &str, wasm: &[u8]) -> Result<PlannedModule, DeployError> {
        let wasm: Arc<[u8]> = wasm.into();
        let candidate = self.compile(name, &wasm)?;
        check_record(&self.0.config.shared, &candidate, wasm.len())?;
        let deployed = self.deployed();
        let in_service = deployed.current.get(name).map(|module| module.hash);
        let summary = match in_service == Some(candidate.hash) {
            // Equal bytes change nothing, whatever happened to the tables since.
            true => PlanSummary::default(),
            false => self.outline(&deployed, &candidate)?,
        };
        Ok(PlannedModule {
            schema: candidate.schema,
            summary,
        })
    }

    fn compile(&self, name: &str, wasm: &Arc<[u8]>) -> Result<Candidate, DeployError> {
        self.check_primary()?;
        check_name(name)?;
        if wasm.len() > MODULE_BYTES_MAX {
            return Err(DeployError::TooLarge { max: MODULE_BYTES_MAX });
        }
        let _compiling = self.take_compile_memory(wasm.len())?;
        let time = StartTime::within(self.0.config.shared.clock.clone(), self.deploy_time_max_s());
        let compiled = self.0.config.compiler.compile(name, wasm, &time);
        let candidate = compiled.map_err(|error| match error.lacks_room {
            true => {
                DeployError::Unavailable(format!("{}: try again when the machine has more memory", error.reason).into())
            }
            false => DeployError::Invalid {
                reason: error.reason,
                offset: error.offset,
            },
        })?;
        check_texts(&candidate.schema)?;
        Ok(candidate)
    }

    /// Counts what the compiler takes for as long as it works.
    fn take_compile_memory(&self, wasm_bytes: usize) -> Result<Grant, DeployError> {
        let memory = &self.0.config.shared.memory;
        let bytes = wasm_bytes as u64 * COMPILE_BYTES_EACH;
        let taken = memory.kind(MemoryKind::Modules).try_take(bytes);
        taken.ok_or(DeployError::CompileMemory {
            bytes,
            max: memory.max_bytes(),
        })
    }

    /// Installs code that need not be wasm (native procedures, for comparison). `wasm` is what the log keeps for replay.
    pub fn deploy_candidate(
        &self,
        candidate: Candidate,
        wasm: &Arc<[u8]>,
        consents: &[Consent],
    ) -> Result<Deployment, DeployError> {
        self.check_primary()?;
        let _deploying = self.0.deploying.lock().expect("a deployment never panics");
        let before = self.deployed().current.get(&candidate.name).cloned();
        if let Some(module) = &before
            && module.hash == candidate.hash
        {
            return Ok(Deployment {
                module: module.clone(),
                replaced: None,
                unchanged: true,
                created: false,
                destroyed: Vec::new(),
                // A read that waits for it sees the version: the record of that lies at it or before it.
                lsn: Lsn(self.view().0.saturating_sub(1)),
            });
        }
        let name = candidate.name.clone();
        let wasm = wasm.clone();
        let max_s = self.deploy_time_max_s();
        let consents = consents.to_vec();
        let (lsn, destroyed) = self.run_on_all(move |held| deploy(held, candidate, wasm, consents, max_s))??;
        self.request_stats(Duration::ZERO);
        let module = self.deployed().current.get(&name).cloned();
        let module = module.ok_or(DeployError::NotFound)?;
        self.wait_committed(lsn, module.installed_by)?;
        let replaced = before.as_ref().map(|module| module.version);
        self.notices().publish(NoticeKind::Schema, || Notice::Deployed {
            txn_id: module.installed_by,
            module: name,
            version: module.version,
            replaced,
            destroyed: names_of(&destroyed),
        });
        Ok(Deployment {
            module,
            replaced,
            unchanged: false,
            created: before.is_none(),
            destroyed,
            lsn,
        })
    }

    /// Returns the caller with a token of this name, whose idempotency keys count within this scope.
    pub fn caller(&self, name: &Arc<str>, scope: &Arc<str>) -> Caller {
        Caller {
            name: name.clone(),
            number: self.0.config.shared.principals.number(name).unwrap_or(0),
            scope: scope.clone(),
        }
    }

    /// Gives a caller's name its number in the log, unless it has one. Blocks until that is durable.
    pub fn define_principal(&self, name: &str) -> Result<(), DeployError> {
        self.check_primary()?;
        if let Some(reason) = self.log_refusal() {
            return Err(DeployError::Log(LogRefusal::Unavailable(reason)));
        }
        let name = name.to_owned();
        self.run_on_all(move |held| define_principal(held, &name))?
    }

    fn log_refusal(&self) -> Option<Arc<str>> {
        self.0.config.log.as_deref().and_then(Log::refusal)
    }

    /// The answer to a write by a name that could not be put into the log.
    pub(crate) fn unnamed(&self) -> ReplyOutcome {
        match self.log_refusal() {
            Some(reason) => ReplyOutcome::LogUnavailable(reason),
            None => ReplyOutcome::Unavailable("the log does not have the name of the token yet; try again".into()),
        }
    }

    /// Takes a module out of service. Its versions stay known to the log, its tables stay stored. That its procedures go, and that tables
    /// with rows lose their owner, needs consent.
    pub fn remove(&self, name: &str, consents: &[Consent]) -> Result<Removal, DeployError> {
        self.check_primary()?;
        let _deploying = self.0.deploying.lock().expect("a deployment never panics");
        let (name, module, consents) = (name.to_owned(), name.to_owned(), consents.to_vec());
        let (lsn, txn_id, destroyed) = self.run_on_all(move |held| uninstall(held, &name, &consents))??;
        self.request_stats(Duration::ZERO);
        self.wait_committed(lsn, txn_id)?;
        self.notices().publish(NoticeKind::Schema, || Notice::Removed {
            module,
            destroyed: names_of(&destroyed),
        });
        Ok(Removal { lsn, destroyed })
    }

    /// Drops a table and its rows, unless a module in service declares it. `name` is `module.table`, or the table's name alone where one
    /// module has it. Blocks until it is durable.
    pub fn drop_table(&self, name: &str) -> Result<Lsn, DeployError> {
        self.check_primary()?;
        let _deploying = self.0.deploying.lock().expect("a deployment never panics");
        let (name, table) = (name.to_owned(), name.to_owned());
        let (lsn, txn_id) = self.run_on_all(move |held| drop_table(held, &name))??;
        self.wait_committed(lsn, txn_id)?;
        self.notices()
            .publish(NoticeKind::Schema, || Notice::TableDropped { table });
        Ok(lsn)
    }

    /// Keeps a procedure of one module version from running, for good. Blocks until that is durable.
    pub fn quarantine(&self, module: ModuleId, procedure: u16, why: Quarantine) -> Result<Lsn, DeployError> {
        self.check_primary()?;
        let _deploying = self.0.deploying.lock().expect("a deployment never panics");
        let (lsn, txn_id) = self.run_on_all(move |held| quarantine(held, module, procedure, why))??;
        self.wait_committed(lsn, txn_id)?;
        Ok(lsn)
    }

    /// Waits until a record that is durable here is where the server's safety level wants it. The partitions work meanwhile.
    fn wait_committed(&self, lsn: Lsn, txn_id: TxnId) -> Result<(), DeployError> {
        let shared = &self.0.config.shared;
        let (sender, receiver) = crossbeam_channel::bounded(1);
        shared.gate.when_committed(Lsn(lsn.0 + 1), move |outcome| {
            let _ = sender.send(outcome); // the receiver below waits for it
        });
        let outcome = shared.threads.receive(&receiver);
        let outcome = outcome.unwrap_or_else(|_| Err("the server stops".into()));
        outcome.map_err(|reason| DeployError::OutcomeUnknown { reason, txn_id, lsn })
    }
}

fn check_name(name: &str) -> Result<(), DeployError> {
    if is_valid_name(name) {
        return Ok(());
    }
    Err(DeployError::BadName(format!(
        "{name:?} is not a name for a module. A name has at most 63 of a to z, 0 to 9 and _, and begins with a letter"
    )))
}

impl From<Unavailable> for DeployError {
    fn from(unavailable: Unavailable) -> Self {
        Self::Unavailable(unavailable.0)
    }
}

/// A deployment that begins now; `max_s` 0: it takes as long as it likes.
fn bounds(held: &ExclusivePartitions<'_>, max_s: u32) -> InstallBounds {
    let now_ns = held.tools.shared.clock.monotonic_ns();
    InstallBounds {
        until_ns: (max_s > 0).then(|| now_ns + u64::from(max_s) * 1_000_000_000),
        max_s,
    }
}

/// Bytes of a deployment's record beside the module, its name, and what it ran.
const DEPLOY_HEAD_BYTES_MAX: usize = 128;

/// Checks whether the log takes the deployment's record, before anything of it runs: a site's ring in NVRAM may be too small for it. `Lists::of`
/// counts the changes and the destruction of the deployment.
fn check_record(shared: &Shared, candidate: &Candidate, wasm_bytes: usize) -> Result<(), DeployError> {
    let ran = match candidate.schema.on_deploy {
        Some(_) => PLAN_BYTES_MAX + 8 * usize::from(shared.partitions_count),
        None => 0,
    };
    let bytes = DEPLOY_HEAD_BYTES_MAX + candidate.name.len() + ran + wasm_bytes;
    let max = shared.records_max.load(Ordering::Relaxed);
    match bytes <= max {
        true => Ok(()),
        false => Err(DeployError::RecordTooLong { bytes, max }),
    }
}

fn deploy(
    held: &mut ExclusivePartitions<'_>,
    candidate: Candidate,
    wasm: Arc<[u8]>,
    consents: Vec<Consent>,
    max_s: u32,
) -> Result<(Lsn, Vec<DestroyedItem>), DeployError> {
    // The log must take the record at the end. Otherwise the server would copy tables and run the migration for nothing.
    if let Some(reason) = held.tools.refusal() {
        return Err(DeployError::Log(reason));
    }
    let shared = held.tools.shared.clone();
    check_record(&shared, &candidate, wasm.len())?;
    let _underway = shared.underway.begin(&candidate.name, max_s, &*shared.clock);
    let txn_id = held.tools.next_multi_id(held.partitions);
    let deployed = held.tools.deployed().clone();
    let of_name = |module: &&Arc<Module>| module.name == candidate.name;
    let version = deployed.versions.iter().filter(of_name).count() as u32 + 1;
    let (name, hash) = (candidate.name.clone(), candidate.hash);
    let bytes = wasm.clone();
    // The record last, and durable: should the log refuse it, the tables are still as they were.
    let log = |held: &mut ExclusivePartitions<'_>,
               plan: &PlanSummary,
               migrated: &MigrationDigests|
     -> Result<_, DeployError> {
        let digests: Vec<u8> = migrated
            .digests
            .iter()
            .flat_map(|digest| digest.to_le_bytes())
            .collect();
        let lists = Lists::of(plan, held.tools.sink.records_max())?;
        let text = plan.to_text(PLAN_BYTES_MAX);
        let migration = plan.migration.as_deref().unwrap_or_default();
        let record = RecordBatch::of(&RecordRef::Deploy(DeployRef {
            txn_id,
            module_id: deployed.versions.len() as u32,
            version,
            name: &name,
            hash,
            wasm: &bytes,
            tables: SourceList::new(&lists.sources),
            destroyed: DestroyedList::new(&lists.destroyed),
            migration: (!digests.is_empty()).then(|| MigrationRef::new(migration, &text, &digests)),
        }));
        Ok((append(held, &record, txn_id)?, plan.destroyed.clone()))
    };
    let installation = Installation {
        candidate,
        wasm,
        txn_id,
        rules: InstallRules::Asked {
            consents,
            bounds: bounds(held, max_s),
        },
    };
    install(held, installation, log)?
}

fn uninstall(
    held: &mut ExclusivePartitions<'_>,
    name: &str,
    consents: &[Consent],
) -> Result<(Lsn, TxnId, Vec<DestroyedItem>), DeployError> {
    let next = remove(held.tools.deployed(), name).ok_or(DeployError::NotFound)?;
    let stores: Vec<&Store> = held.partitions.iter().map(|part| &part.store).collect();
    let plan = outline_removal(held.tools.deployed(), name, &HeldCounts(&stores)).ok_or(DeployError::NotFound)?;
    check_consents(&plan, consents)?;
    let lists = Lists::of(&plan, held.tools.sink.records_max())?;
    let txn_id = held.tools.next_multi_id(held.partitions);
    let record = RecordBatch::of(&RecordRef::Remove(RemoveRef {
        txn_id,
        name,
        destroyed: DestroyedList::new(&lists.destroyed),
    }));
    let lsn = append(held, &record, txn_id)?;
    held.tools.install(next);
    held.tools.shared.count_binaries();
    Ok((lsn, txn_id, plan.destroyed))
}

fn drop_table(held: &mut ExclusivePartitions<'_>, name: &str) -> Result<(Lsn, TxnId), DeployError> {
    let deployed = held.tools.deployed().clone();
    let (id, table) = deployed.table(name).ok_or(DeployError::NoTable)?;
    check_drop(&deployed, id).map_err(|error| InstallError::Conflicts(error.conflicts))?;
    let txn_id = held.tools.next_multi_id(held.partitions);
    let full = table.full_name();
    let record = RecordBatch::of(&RecordRef::DropTable(DropTableRef { txn_id, table: &full }));
    let lsn = append(held, &record, txn_id)?;
    let mut stores: Vec<&mut Store> = held.partitions.iter_mut().map(|part| &mut part.store).collect();
    let next = apply_drop(&deployed, id, txn_id, &mut stores);
    held.tools.install(next);
    Ok((lsn, txn_id))
}

fn quarantine(
    held: &mut ExclusivePartitions<'_>,
    module: ModuleId,
    procedure: u16,
    mut why: Quarantine,
) -> Result<(Lsn, TxnId), DeployError> {
    why.what
        .truncate(why.what.floor_char_boundary(QUARANTINE_TEXT_BYTES_MAX));
    let deployed = held.tools.deployed().clone();
    if deployed.quarantine.len() >= QUARANTINED_MAX {
        let reason = format!("{QUARANTINED_MAX} procedures, the largest number, are in quarantine already");
        return Err(DeployError::Unavailable(reason.into()));
    }
    let next = deployed.with_quarantined(module, procedure, why.clone());
    let next = next.map_err(|_| DeployError::NotFound)?;
    let txn_id = held.tools.next_multi_id(held.partitions);
    let record = RecordBatch::of(&RecordRef::Quarantine(QuarantineRef {
        txn_id,
        module_id: module.0,
        procedure,
        diverged: why.diverged,
        what: &why.what,
    }));
    let lsn = append(held, &record, txn_id)?;
    held.tools.install(next);
    Ok((lsn, txn_id))
}

/// All partitions are held, so no other name gets the number meanwhile.
fn define_principal(held: &mut ExclusivePartitions<'_>, name: &str) -> Result<(), DeployError> {
    let shared = held.tools.shared.clone();
    if shared.principals.number(name).is_some() {
        return Ok(());
    }
    let number = shared.principals.next_number();
    let txn_id = held.tools.next_multi_id(held.partitions);
    let record = RecordBatch::of(&RecordRef::Principal(PrincipalRef { txn_id, number, name }));
    append(held, &record, txn_id)?;
    let defined = shared.principals.define(number, name);
    defined.map_err(|_| DeployError::Unavailable("another name took the number".into()))
}

fn append(held: &mut ExclusivePartitions<'_>, record: &RecordBatch, txn_id: TxnId) -> Result<Lsn, DeployError> {
    let refused = |reason, lsn| match reason {
        LogRefusal::Unknown(reason) => DeployError::OutcomeUnknown { reason, txn_id, lsn },
        reason => DeployError::Log(reason),
    };
    let mut partitions: Vec<&mut Partition> = held.partitions.iter_mut().map(|part| &mut **part).collect();
    if let Some(reason) = held.tools.refusal() {
        return Err(refused(reason, Lsn(0)));
    }
    let appended = held.tools.sink.append_durable(record, &mut partitions);
    let lsn = appended.map_err(|(reason, lsn)| refused(reason, lsn))?;
    // All that was committed before is durable now: no undo refers to rows that the new schema moves.
    for partition in &mut partitions {
        partition.release_undo(&*held.tools.sink, &held.tools.shared.gate);
        partition.store.forget_waiting(partition.last_end.0);
    }
    Ok(lsn)
}
