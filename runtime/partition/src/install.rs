//! The one way of a module into service: judged, its tables changed beside the stored ones, what it runs at its deployment run over
//! them, confirmed, exchanged. A deployment confirms by a durable record, a replay by comparing with the one that it reads.

use std::sync::Arc;

use reprise_base::{Lsn, PartitionId, TxnId};
use reprise_storage::{Conflict, Growth, Store};
use reprise_txn::{
    Applied, Candidate, Deployed, Failure, Judge, Module, Plan, PlanError, PlanSummary, TxnInput, apply, plan,
    run_migration,
};

use crate::{
    sink::Unlogged,
    site::{ExclusivePartitions, ExecContext, Partition},
};

/// A module version on its way into service.
pub struct Installation {
    /// Judged and compiled.
    pub candidate: Candidate,
    /// As uploaded.
    pub wasm: Arc<[u8]>,
    /// Of the deployment.
    pub txn_id: TxnId,
    /// By which rules, and until when.
    pub bounds: InstallBounds,
}

/// What judges an installation.
#[derive(Clone, Copy, Debug)]
pub struct InstallBounds {
    /// By which rules.
    pub judge: Judge,
    /// When it must have made its tables and run what it runs, by the node's clock in nanoseconds. None: however long it takes.
    pub until_ns: Option<u64>,
}

/// What a module ran at its deployment; nothing where it runs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migrated {
    /// Digests of what was written, by partition.
    pub digests: Vec<u64>,
}

/// Why a module was not installed. All tables are as they were, and the version before is in service.
#[derive(Debug)]
pub enum InstallError<E> {
    /// The tables can't become what it declares.
    Conflicts(Vec<Conflict>),
    /// The tables would take so many bytes more than there are.
    Memory {
        /// That it would take.
        bytes: u64,
        /// Of the database.
        max: u64,
    },
    /// The changed tables were not made in time.
    Time,
    /// What it runs at its deployment did not come to its end on this partition.
    Migration {
        /// The first one on which it failed.
        partition: PartitionId,
        /// How it ended.
        failure: Failure,
    },
    /// What it ran left the partitions with different rows of this replicated table.
    Replicated {
        /// Its name.
        table: String,
    },
    /// The log is not durable as far as it was filled.
    Log(Unlogged),
    /// It was not confirmed.
    Unconfirmed(E),
}

impl<E> From<PlanError> for InstallError<E> {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Conflicts(conflicts) => Self::Conflicts(conflicts),
            PlanError::Ended => Self::Time,
        }
    }
}

/// Installs a module on all partitions. `confirm` is shown what it ran and what was planned; its error leaves everything as it was, and
/// nothing fails behind it.
pub fn install<T, E>(
    held: &mut ExclusivePartitions<'_>,
    installation: Installation,
    confirm: impl FnOnce(&mut ExclusivePartitions<'_>, &PlanSummary, &Migrated) -> Result<T, E>,
) -> Result<T, InstallError<E>> {
    let Installation {
        candidate,
        wasm,
        txn_id,
        bounds,
    } = installation;
    let deployed = held.tools.deployed().clone();
    let plan = judge(held, &candidate, bounds)?;
    let summary = plan.summary.clone();
    if !candidate.schema.on_deploy {
        let confirmed = confirm(held, &summary, &Migrated::default()).map_err(InstallError::Unconfirmed)?;
        let applied = apply(&deployed, candidate, plan, txn_id, &mut stores_of(held));
        put_in_service(held, applied.next, |binaries| binaries.push(wasm));
        return Ok(confirmed);
    }
    wait_settled(held)?;
    let mut applied = apply(&deployed, candidate, plan, txn_id, &mut stores_of(held));
    let migrated = migrate(held, &applied, txn_id, bounds);
    applied.retire(&mut stores_of(held));
    let confirmed = migrated.and_then(|migrated| confirm(held, &summary, &migrated).map_err(InstallError::Unconfirmed));
    match confirmed {
        Ok(confirmed) => {
            put_in_service(held, applied.next, |binaries| binaries.push(wasm));
            Ok(confirmed)
        }
        Err(error) => {
            applied.take_back(&mut stores_of(held));
            Err(error)
        }
    }
}

/// What an installation would do: the changed tables are made. Nothing is changed.
pub fn judge<E>(
    held: &ExclusivePartitions<'_>,
    candidate: &Candidate,
    bounds: InstallBounds,
) -> Result<Plan, InstallError<E>> {
    if bounds.judge == Judge::Deployment {
        judge_memory(held, candidate)?;
    }
    let clock = &held.tools.shared.clock;
    let go_on = |rows| {
        held.tools.shared.underway.note_rows(rows);
        bounds.until_ns.is_none_or(|until_ns| clock.monotonic_ns() < until_ns)
    };
    let stores: Vec<&Store> = held.partitions.iter().map(|part| &part.store).collect();
    Ok(plan(held.tools.deployed(), candidate, &stores, bounds.judge, &go_on)?)
}

/// Puts modules into service whose tables the partitions' stores hold. `note` has the bytes of all versions.
pub fn put_in_service(held: &mut ExclusivePartitions<'_>, deployed: Deployed, note: impl FnOnce(&mut Vec<Arc<[u8]>>)) {
    held.tools.install(deployed);
    let shared = &held.tools.shared;
    note(&mut shared.binaries.lock().expect("held for a store"));
    shared.count_binaries();
}

fn stores_of<'h>(held: &'h mut ExclusivePartitions<'_>) -> Vec<&'h mut Store> {
    held.partitions.iter_mut().map(|part| &mut part.store).collect()
}

/// Refuses what takes more memory than there is, before anything of it is made.
fn judge_memory<E>(held: &ExclusivePartitions<'_>, candidate: &Candidate) -> Result<(), InstallError<E>> {
    let memory = &held.tools.shared.memory;
    let (name, schema) = (&candidate.name, &candidate.schema);
    let mut growth = Growth::default();
    for partition in held.partitions.iter() {
        let tables = schema.tables.iter();
        growth.add(partition.store.growth_to_serve(name, tables, schema.on_deploy));
        let retiring = schema.retiring.iter();
        growth.add(partition.store.growth_to_serve(name, retiring, true));
    }
    match growth.fits(memory) {
        true => Ok(()),
        false => Err(InstallError::Memory {
            bytes: growth.bytes,
            max: memory.max_bytes(),
        }),
    }
}

/// Waits until nothing that was committed may have to be taken back: no undo refers to rows that are about to stand aside.
fn wait_settled<E>(held: &mut ExclusivePartitions<'_>) -> Result<(), InstallError<E>> {
    let mut partitions: Vec<&mut Partition> = held.partitions.iter_mut().map(|part| &mut **part).collect();
    let sink = &*held.tools.sink;
    sink.wait_durable(&mut partitions).map_err(InstallError::Log)?;
    partitions.iter_mut().for_each(|partition| partition.settle(sink));
    Ok(())
}

/// Runs what the module runs at its deployment on each partition in turn.
fn migrate<E>(
    held: &mut ExclusivePartitions<'_>,
    applied: &Applied,
    txn_id: TxnId,
    bounds: InstallBounds,
) -> Result<Migrated, InstallError<E>> {
    let module = &applied.migration;
    let mut executor = module.code.instantiate().map_err(|reason| InstallError::Migration {
        partition: PartitionId(0),
        failure: Failure::Trapped {
            trap: "instantiation".to_owned(),
            message: reason,
            backtrace: Vec::new(),
        },
    })?;
    // Versions of one name follow each other: the tables are as the one before left them.
    let args = (module.version - 1).to_le_bytes();
    let mut migrated = Migrated::default();
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
        };
        match bounds.until_ns {
            None => frame.watch.forget(),
            Some(until_ns) => {
                frame.watch.begin_batch(&shared.clock, None);
                frame.watch.begin_call(0, 0, until_ns);
            }
        }
        let digest = run_migration(&mut partition.store, partition.id, &input, &mut *executor, frame);
        if bounds.judge == Judge::Deployment && frame.has_lines() {
            let lines = frame.take_lines().map(|line| (line.level as u8, line.text));
            let name = module.schema.entry_name(input.procedure);
            shared.lines.push(input.txn_id, &module.name, name, lines);
        }
        let digest = digest.map_err(|failure| InstallError::Migration {
            partition: partition.id,
            failure,
        })?;
        migrated.digests.push(digest);
        shared.underway.note_partition();
    }
    check_replicated(held, module)?;
    Ok(migrated)
}

/// Each partition ran for itself: of a replicated table they must have come to the same rows.
fn check_replicated<E>(held: &ExclusivePartitions<'_>, module: &Module) -> Result<(), InstallError<E>> {
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

/// Notes on all partitions that a job's record ends there, and its transaction.
pub fn note_position(held: &mut ExclusivePartitions<'_>, txn_id: TxnId, end: Lsn) {
    for partition in held.partitions.iter_mut() {
        partition.clock.advance_past(txn_id.tick());
        partition.last_end = end;
    }
    let shared = &held.tools.shared;
    shared
        .multi_tick
        .fetch_max(txn_id.tick(), std::sync::atomic::Ordering::AcqRel);
}
