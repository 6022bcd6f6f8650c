//! The one way of a module into service. The site checks the module and builds its changed tables beside the stored ones. It runs the module's
//! migration over them, has the installation confirmed, and exchanges the modules. A durable record confirms a deployment. A replay confirms by
//! comparing with the record that it reads.

use std::sync::Arc;

use reprise_base::{Lsn, PartitionId, TxnId};
use reprise_storage::{Conflict, ConvertError, Growth, Store};
use reprise_txn::{
    AppliedPlan, Candidate, Consent, Deployed, DeploymentRules, Failure, HeldCounts, Module, Outline, Plan,
    PlanSummary, TableSources, TxnInput, apply, outline, prepare, run_migration,
};

use crate::{
    shared::ModuleBytes,
    sink::LogRefusal,
    site::{ExclusivePartitions, ExecContext, Partition},
};

/// A module version on its way into service.
pub struct Installation {
    /// The checked and compiled module.
    pub candidate: Candidate,
    /// The bytes as they were uploaded.
    pub wasm: Arc<[u8]>,
    /// Id of the deployment.
    pub txn_id: TxnId,
    /// The rules of the installation, and its time.
    pub rules: InstallRules,
}

/// The rules by which a module is installed.
#[derive(Clone, Debug)]
pub enum InstallRules {
    /// A deployment that a client asks for now.
    Asked {
        /// Consents to the destruction that it may cause.
        consents: Vec<Consent>,
        /// Limit of its time.
        bounds: InstallBounds,
    },
    /// A replay of a deployment in the log, with the sources of the columns of the tables that it changed.
    Logged(Vec<TableSources>),
}

impl InstallRules {
    fn bounds(&self) -> InstallBounds {
        match self {
            Self::Asked { bounds, .. } => *bounds,
            Self::Logged(_) => InstallBounds::default(),
        }
    }

    fn is_asked(&self) -> bool {
        matches!(self, Self::Asked { .. })
    }
}

/// The time of an installation.
#[derive(Clone, Copy, Debug, Default)]
pub struct InstallBounds {
    /// Time by which it must have made its tables and run its migration, by the node's clock in nanoseconds. None: there is no limit.
    pub until_ns: Option<u64>,
    /// That limit in seconds, for people; 0: there is none.
    pub max_s: u32,
}

/// The results of a module's migration; empty if it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigrationDigests {
    /// Digests of the written rows, by partition.
    pub digests: Vec<u64>,
}

/// Why a module was not installed. All tables are as they were, and the version before is in service.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The tables can't become those that the module declares.
    #[error("the module's tables conflict with the stored tables")]
    Conflicts(Vec<Conflict>),
    /// It would destroy something without consent: all that the plan names, except `given`.
    #[error("it would destroy something without consent")]
    #[expect(missing_docs, reason = "the message says what each one is")]
    Consent {
        plan: Box<PlanSummary>,
        given: Vec<Consent>,
    },
    /// The tables would take `bytes` more than there are, of `max` of the database.
    #[error("the tables need {bytes} bytes more than the limit of {max} leaves")]
    #[expect(missing_docs, reason = "the message says what each one is")]
    Memory { bytes: u64, max: u64 },
    /// The changed tables were not made in time.
    #[error("the server did not finish the changed tables within {max_s} s")]
    #[expect(missing_docs, reason = "the message says what each one is")]
    Time { max_s: u32 },
    /// The migration failed on this partition, the first one.
    #[error("the module's migration failed on partition {partition}")]
    #[expect(missing_docs, reason = "the message says what each one is")]
    Migration {
        partition: PartitionId,
        failure: Failure,
        max_s: u32,
    },
    /// The migration left the partitions with different rows of this replicated table.
    #[error("the module's migration wrote different rows of {table} on different partitions")]
    #[expect(missing_docs, reason = "the message says what each one is")]
    Replicated { table: String },
    /// The log is not durable as far as it was filled.
    #[error(transparent)]
    Log(#[from] LogRefusal),
}

/// Installs a module on all partitions. `confirm` gets the results of the migration and the plan, and returns the LSN of the deployment's record. Its
/// error, the inner one, leaves everything as it was, and nothing fails behind it.
pub fn install<T, E>(
    held: &mut ExclusivePartitions<'_>,
    installation: Installation,
    confirm: impl FnOnce(&mut ExclusivePartitions<'_>, &PlanSummary, &MigrationDigests) -> Result<(Lsn, T), E>,
) -> Result<Result<(Lsn, T), E>, InstallError> {
    let Installation {
        candidate,
        wasm,
        txn_id,
        rules,
    } = installation;
    let deployed = held.tools.deployed().clone();
    let plan = plan_install(held, &candidate, &rules)?;
    let summary = plan.summary.clone();
    if !summary.migrates {
        let confirmed = confirm(held, &summary, &MigrationDigests::default());
        if let Ok((lsn, _)) = &confirmed {
            let applied = apply(&deployed, candidate, plan, txn_id, &mut stores_of(held));
            put_in_service(held, applied.next, |binaries| binaries.push(logged(wasm, *lsn)));
        }
        return Ok(confirmed);
    }
    wait_durable(held)?;
    let mut applied = apply(&deployed, candidate, plan, txn_id, &mut stores_of(held));
    let migrated = migrate(held, &applied, txn_id, &rules);
    applied.retire(&mut stores_of(held));
    let confirmed = migrated.map(|migrated| confirm(held, &summary, &migrated));
    match &confirmed {
        Ok(Ok((lsn, _))) => put_in_service(held, applied.next, |binaries| binaries.push(logged(wasm, *lsn))),
        Ok(Err(_)) | Err(_) => applied.take_back(&mut stores_of(held)),
    }
    confirmed
}

fn logged(wasm: Arc<[u8]>, lsn: Lsn) -> ModuleBytes {
    ModuleBytes {
        wasm,
        logged_at: Some(lsn),
    }
}

/// Checks an installation and builds the changed tables. A refused installation changes nothing and builds nothing.
fn plan_install(
    held: &ExclusivePartitions<'_>,
    candidate: &Candidate,
    rules: &InstallRules,
) -> Result<Plan, InstallError> {
    let stores: Vec<&Store> = held.partitions.iter().map(|part| &part.store).collect();
    let counts = HeldCounts(&stores);
    let install_rules = match rules {
        InstallRules::Asked { .. } => DeploymentRules::Deployment(&counts),
        InstallRules::Logged(tables) => DeploymentRules::Replay(tables),
    };
    let outline = outline(held.tools.deployed(), candidate, install_rules);
    if !outline.summary.conflicts.is_empty() {
        return Err(InstallError::Conflicts(outline.summary.conflicts));
    }
    if let InstallRules::Asked { consents, .. } = rules {
        check_consents(&outline.summary, consents)?;
        check_memory(held, candidate, &outline)?;
    }
    let (clock, bounds) = (&held.tools.shared.clock, rules.bounds());
    let go_on = |rows| {
        held.tools.shared.underway.record_rows(rows);
        bounds.until_ns.is_none_or(|until_ns| clock.monotonic_ns() < until_ns)
    };
    prepare(outline, &stores, &go_on).map_err(|error| match error {
        ConvertError::Conflicts(conflicts) => InstallError::Conflicts(conflicts),
        ConvertError::Ended => InstallError::Time { max_s: bounds.max_s },
    })
}

/// Checks the consents. Err: something would be destroyed that `given` does not consent to.
pub fn check_consents(plan: &PlanSummary, given: &[Consent]) -> Result<(), InstallError> {
    match plan.missing(given).next() {
        None => Ok(()),
        Some(_) => Err(InstallError::Consent {
            plan: Box::new(plan.clone()),
            given: given.to_vec(),
        }),
    }
}

/// Puts modules into service whose tables the partitions' stores hold. `note` has the bytes of all versions.
pub fn put_in_service(
    held: &mut ExclusivePartitions<'_>,
    deployed: Deployed,
    note: impl FnOnce(&mut Vec<ModuleBytes>),
) {
    held.tools.install(deployed);
    let shared = &held.tools.shared;
    note(&mut shared.binaries.lock().expect("held for a store"));
    shared.count_binaries();
}

fn stores_of<'h>(held: &'h mut ExclusivePartitions<'_>) -> Vec<&'h mut Store> {
    held.partitions.iter_mut().map(|part| &mut part.store).collect()
}

/// Refuses an installation that takes more memory than there is, before it builds anything.
fn check_memory(held: &ExclusivePartitions<'_>, candidate: &Candidate, outline: &Outline) -> Result<(), InstallError> {
    let memory = &held.tools.shared.memory;
    let mut growth = Growth::default();
    for partition in held.partitions.iter() {
        growth.add(outline.growth_in(&partition.store));
    }
    let described = candidate.description_bytes();
    match growth.fits(memory) && memory.has_room_to_describe(described) {
        true => Ok(()),
        false => Err(InstallError::Memory {
            bytes: growth.bytes + described,
            max: memory.max_bytes(),
        }),
    }
}

/// Waits until no committed write may have to be taken back: no undo refers to rows that are about to stand aside.
fn wait_durable(held: &mut ExclusivePartitions<'_>) -> Result<(), InstallError> {
    let mut partitions: Vec<&mut Partition> = held.partitions.iter_mut().map(|part| &mut **part).collect();
    let (sink, gate) = (&*held.tools.sink, &*held.tools.shared.gate);
    sink.wait_durable(&mut partitions)?;
    for partition in &mut partitions {
        partition.release_undo(sink, gate);
        partition.store.forget_waiting(partition.last_end.0);
    }
    Ok(())
}

/// Runs the module's migration on each partition in turn.
fn migrate(
    held: &mut ExclusivePartitions<'_>,
    applied: &AppliedPlan,
    txn_id: TxnId,
    rules: &InstallRules,
) -> Result<MigrationDigests, InstallError> {
    let (module, bounds) = (&applied.migration, rules.bounds());
    let mut executor = module.code.instantiate().map_err(|reason| InstallError::Migration {
        partition: PartitionId(0),
        failure: Failure::Trapped {
            trap: "instantiation".to_owned(),
            message: reason,
            backtrace: Vec::new(),
        },
        max_s: bounds.max_s,
    })?;
    executor.count_in(&held.tools.shared.memory);
    // Versions of one name follow each other: the tables are as the one before left them.
    let args = (module.version - 1).to_le_bytes();
    let mut migrated = MigrationDigests::default();
    let ExecContext { shared, frame, .. } = &mut *held.tools;
    for partition in held.partitions.iter_mut() {
        let input = TxnInput {
            // Below the deployment's own, so that it is this partition's: no other transaction has this tick.
            txn_id: TxnId::new(txn_id.tick(), partition.id.0),
            secret: shared.secret,
            partitions_count: shared.partitions_count,
            module,
            procedure: module.schema.migration(),
            args: &args,
            caller: None,
        };
        match bounds.until_ns {
            None => frame.watch.forget(),
            Some(until_ns) => {
                frame.watch.begin_batch(&shared.clock, None);
                frame.watch.begin_call(0, 0, until_ns);
            }
        }
        let digest = run_migration(&mut partition.store, partition.id, &input, &mut *executor, frame);
        if rules.is_asked() && frame.has_lines() {
            let lines = frame.take_lines().map(|line| (line.level as u8, line.text));
            let name = module.schema.entry_name(input.procedure);
            shared.lines.push(input.txn_id, &module.name, name, lines);
        }
        let digest = digest.map_err(|failure| InstallError::Migration {
            partition: partition.id,
            failure,
            max_s: bounds.max_s,
        })?;
        migrated.digests.push(digest);
        shared.underway.record_partition();
    }
    check_replicated(held, module)?;
    Ok(migrated)
}

/// Checks that all partitions have the same rows of a replicated table, because each partition ran for itself.
fn check_replicated(held: &ExclusivePartitions<'_>, module: &Module) -> Result<(), InstallError> {
    let tables = module.schema.tables.iter().zip(&module.tables);
    for (declared, bound) in tables.filter(|(_, bound)| bound.is_own && bound.is_replicated()) {
        let mut digests = held.partitions.iter().map(|part| part.store.rows_digest(bound.table));
        let first = digests.next();
        if digests.any(|digest| Some(digest) != first) {
            return Err(InstallError::Replicated {
                table: declared.name.clone(),
            });
        }
    }
    Ok(())
}

/// Records on all partitions that a job's record ends there, and its transaction.
pub fn record_position(held: &mut ExclusivePartitions<'_>, txn_id: TxnId, end: Lsn) {
    for partition in held.partitions.iter_mut() {
        partition.clock.advance_past(txn_id.tick());
        partition.last_end = end;
    }
    let shared = &held.tools.shared;
    shared
        .multi_tick
        .fetch_max(txn_id.tick(), std::sync::atomic::Ordering::AcqRel);
}
