//! One command, run again and compared, and the report if it did something else.

use std::sync::{Arc, atomic::Ordering};

use reprise_base::{Lsn, PartitionId, TxnId};
use reprise_partition::{ExclusivePartitions, ExecContext, Partition};
use reprise_txn::{
    Commit, Deployed, Module, ModuleId, Outcome, TxnInput, call_hash, failure_text, run_multi, run_single,
};
use reprise_wire::{ChangesRef, KeyRef, KeyedRef, PartitionSet};

/// A command as the log holds it.
#[derive(Clone, Debug)]
pub(crate) struct LoggedCommand {
    pub lsn: Lsn,
    /// First position behind the record.
    pub end: Lsn,
    pub txn_id: TxnId,
    pub module_id: ModuleId,
    pub procedure: u16,
    pub digest: u64,
    pub args: Vec<u8>,
    /// Number of the caller's name; 0 without tokens.
    pub principal: u32,
    pub keyed: Option<CommandKey>,
    /// The changes that were logged beside it: where digests differ they say in what.
    pub twin: Option<LoggedChanges>,
}

/// The idempotency key of a command.
#[derive(Clone, Debug)]
pub(crate) struct CommandKey {
    /// The client's idempotency key.
    pub key: Box<[u8]>,
    /// Within which the key counts.
    pub scope: Box<[u8]>,
    /// Digests of the call under the key.
    pub fingerprint: u128,
}

impl CommandKey {
    pub fn of(keyed: &KeyRef<'_>) -> Self {
        Self {
            key: keyed.key.into(),
            scope: keyed.scope.into(),
            fingerprint: keyed.fingerprint,
        }
    }
}

impl LoggedCommand {
    fn place(&self) -> Redo {
        Redo {
            lsn: self.lsn,
            txn_id: self.txn_id,
            module_id: self.module_id,
            procedure: self.procedure,
        }
    }
}

/// The changes of a transaction whose command is replayed: by partition, each as `reprise_wire::Changes`.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoggedChanges {
    pub groups: Vec<(PartitionId, Box<[u8]>)>,
}

impl LoggedChanges {
    fn part(&self, id: PartitionId) -> &[u8] {
        let part = self.groups.iter().find(|(partition, _)| *partition == id);
        part.map_or(&[], |(_, changes)| changes)
    }
}

/// The transaction of a record, and the record's place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Redo {
    pub lsn: Lsn,
    pub txn_id: TxnId,
    pub module_id: ModuleId,
    pub procedure: u16,
}

/// A record whose replay differs from its first run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "replay diverges at LSN {lsn}, transaction {txn_id}: {module} version {version} (sha256 {hash}), procedure {procedure}: {what}{}. \
     The tables are not served. Compare the program version and the settings hash in the log's header with those of the program that wrote it. \
     Continue with a standby, or with a copy of the log that that program opens",
    difference.as_ref().map_or_else(String::new, |difference| format!(". The first difference: {difference}"))
)]
pub struct Divergence {
    /// LSN of the record.
    pub lsn: Lsn,
    /// Transaction of the call.
    pub txn_id: TxnId,
    /// Its name.
    pub module: String,
    /// Version of the module.
    pub version: u32,
    /// SHA-256 of the module's bytes, in hexadecimal digits.
    pub hash: String,
    /// Its name.
    pub procedure: String,
    /// Number of the version in the log.
    pub module_id: ModuleId,
    /// Number of the procedure in the module.
    pub procedure_number: u16,
    /// Description of the difference.
    pub what: String,
    /// The first row in which they differ, if the log holds the transaction's changes, too.
    pub difference: Option<String>,
}

/// The outcome of a call that carried an idempotency key, as the log or a checkpoint tells it.
#[derive(Clone)]
pub struct KeyedOutcome {
    /// LSN of the record.
    pub lsn: Lsn,
    /// Transaction of the call.
    pub txn_id: TxnId,
    /// The version that ran it.
    pub module_id: ModuleId,
    /// Its number in the module.
    pub procedure: u16,
    /// Within which the key counts.
    pub scope: Box<[u8]>,
    /// The client's idempotency key.
    pub key: Box<[u8]>,
    /// Digest of module, procedure and arguments as the client sent them.
    pub fingerprint: u128,
    /// Digest of the same as they were encoded (`reprise_txn::call_hash`).
    pub args_hash: u128,
    /// Reading of the key clock when the outcome was kept. In replay, the next mark dates it (`KeyClock::date_of`).
    pub kept_us: u64,
    /// Encoded.
    pub result: Vec<u8>,
    /// None for a multi-partition call.
    pub partition: Option<PartitionId>,
}

/// Replays a command of one partition, whose modules are `deployed`. If the command has a key, its outcome is returned to be kept, and the
/// key is taken.
pub(crate) fn replay_single(
    partition: &mut Partition,
    tools: &mut ExecContext,
    deployed: &Deployed,
    command: &mut LoggedCommand,
) -> Result<Option<KeyedOutcome>, Box<Divergence>> {
    let module = module_of(deployed, command)?;
    let caller = tools.shared.principals.name(command.principal);
    let input = input_of(tools, module, command, caller.as_deref());
    let executor = match tools.executors.get(module) {
        Ok(executor) => executor,
        Err(failure) => return Err(diverge(command, module, &format!("{failure:?}"))),
    };
    let images = tools.shared.logging.images;
    tools.frame.begin_replay();
    tools.frame.set_capture(command.twin.is_some().then_some(images));
    let outcome = run_single(&mut partition.store, partition.id, &input, executor, &mut tools.frame);
    if let Err(what) = compare(outcome, command) {
        let difference = command.twin.as_ref().and_then(|twin| {
            let (logged, replayed) = (twin.part(partition.id), tools.frame.changes());
            partition.store.first_difference(logged, replayed)
        });
        let difference = difference.map(|difference| difference.to_string());
        return Err(Box::new(Divergence {
            difference,
            ..*diverge(command, module, &what)
        }));
    }
    partition.clock.advance_past(command.txn_id.tick());
    partition.last_end = command.end;
    let id = partition.id;
    Ok(remembered(tools, command, module, Some(id)))
}

/// Replays a command over several partitions, all held.
pub(crate) fn replay_multi(
    held: &mut ExclusivePartitions<'_>,
    mut command: LoggedCommand,
) -> Result<Option<KeyedOutcome>, Box<Divergence>> {
    let deployed = held.tools.deployed().clone();
    let module = module_of(&deployed, &command)?;
    let caller = held.tools.shared.principals.name(command.principal);
    let input = input_of(held.tools, module, &command, caller.as_deref());
    let executor = match held.tools.executors.get(module) {
        Ok(executor) => executor,
        Err(failure) => return Err(diverge(&command, module, &format!("{failure:?}"))),
    };
    let images = held.tools.shared.logging.images;
    held.tools.frame.begin_replay();
    held.tools.frame.set_capture(command.twin.is_some().then_some(images));
    let mut stores: Vec<_> = held
        .partitions
        .iter_mut()
        .map(|part| (part.id, &mut part.store))
        .collect();
    let outcome = run_multi(&mut stores, &input, executor, &mut held.tools.frame);
    if let Err(what) = compare(outcome, &command) {
        let difference = multi_difference(held, &command);
        return Err(Box::new(Divergence {
            difference,
            ..*diverge(&command, module, &what)
        }));
    }
    for partition in held.partitions.iter_mut() {
        partition.clock.advance_past(command.txn_id.tick());
        partition.last_end = command.end;
    }
    let multi_tick = &held.tools.shared.multi_tick;
    multi_tick.fetch_max(command.txn_id.tick(), Ordering::AcqRel);
    Ok(remembered(held.tools, &mut command, module, None))
}

/// The outcome to remember of a physiological record with an idempotency key. `partition` is none for a multi-partition call.
pub(crate) fn remember(
    tools: &ExecContext,
    redo: &Redo,
    keyed: &KeyedRef<'_>,
    partition: Option<PartitionId>,
) -> Result<KeyedOutcome, Box<Divergence>> {
    if known_module(tools.deployed(), redo.module_id, redo.procedure).is_none() {
        return Err(misfit(tools, redo, NO_MODULE));
    }
    Ok(KeyedOutcome {
        lsn: redo.lsn,
        txn_id: redo.txn_id,
        module_id: redo.module_id,
        procedure: redo.procedure,
        scope: keyed.call.scope.into(),
        key: keyed.call.key.into(),
        fingerprint: keyed.call.fingerprint,
        args_hash: keyed.args_hash,
        kept_us: tools.shared.key_clock.replay_reading_us(),
        result: keyed.result.into(),
        partition,
    })
}

const NO_MODULE: &str = "the log holds no such module or procedure before this record";

/// Changes that do not fit the tables to which they are applied.
#[cold]
pub(crate) fn misfit(tools: &ExecContext, redo: &Redo, what: &str) -> Box<Divergence> {
    let module = known_module(tools.deployed(), redo.module_id, redo.procedure);
    let what = format!("its changes can't be applied: {what}");
    divergence(redo, module.map(|module| &**module), what)
}

/// The report of a divergent record; no module if the log holds none of its number.
#[cold]
fn divergence(record: &Redo, module: Option<&Module>, what: String) -> Box<Divergence> {
    let (number, procedure) = (record.module_id.0, record.procedure as usize);
    let hash = module.map_or(&[][..], |module| &module.hash);
    Box::new(Divergence {
        lsn: record.lsn,
        txn_id: record.txn_id,
        module: module.map_or_else(|| format!("module number {number}"), |module| module.name.clone()),
        version: module.map_or(0, |module| module.version),
        hash: hash.iter().map(|byte| format!("{byte:02x}")).collect(),
        procedure: module.map_or_else(
            || format!("number {procedure}"),
            |module| module.schema.procedures[procedure].name.clone(),
        ),
        module_id: record.module_id,
        procedure_number: record.procedure,
        what,
        difference: None,
    })
}

/// The first row of any partition in which a replayed command and the changes logged beside it differ.
fn multi_difference(held: &ExclusivePartitions<'_>, command: &LoggedCommand) -> Option<String> {
    let logged = command.twin.as_ref()?;
    let replayed = ChangesRef {
        txn_id: command.txn_id,
        partitions: PartitionSet::All,
        module_id: command.module_id.0,
        procedure: command.procedure,
        digest: command.digest,
        principal: 0,
        parts: 0,
        keyed: None,
        changes: held.tools.frame.changes(),
    };
    held.partitions.iter().find_map(|part| {
        let mut groups = replayed.groups();
        let found = groups.find(|(partition, _)| *partition == part.id);
        let replayed = found.map_or(&[][..], |(_, changes)| changes);
        let difference = part.store.first_difference(logged.part(part.id), replayed)?;
        Some(format!("on partition {}, {difference}", part.id.0))
    })
}

fn known_module(deployed: &Deployed, id: ModuleId, procedure: u16) -> Option<&Arc<Module>> {
    let module = deployed.module(id)?;
    ((procedure as usize) < module.schema.procedures.len()).then_some(module)
}

fn module_of<'d>(deployed: &'d Deployed, command: &LoggedCommand) -> Result<&'d Arc<Module>, Box<Divergence>> {
    let known = known_module(deployed, command.module_id, command.procedure);
    known.ok_or_else(|| divergence(&command.place(), None, NO_MODULE.to_owned()))
}

fn input_of<'a>(
    tools: &ExecContext,
    module: &'a Arc<Module>,
    command: &'a LoggedCommand,
    caller: Option<&'a str>,
) -> TxnInput<'a> {
    TxnInput {
        txn_id: command.txn_id,
        secret: tools.shared.secret,
        partitions_count: tools.shared.partitions_count,
        module,
        procedure: command.procedure as usize,
        args: &command.args,
        caller,
    }
}

/// A committed outcome with the digest of the record, or how they differ.
fn compare(outcome: Outcome, command: &LoggedCommand) -> Result<(), String> {
    Err(match outcome {
        Outcome::Commit(commit) if commit.digest == command.digest => return Ok(()),
        Outcome::Commit(commit) => other_digest(&commit, command),
        Outcome::Fail(failure) => format!("it committed when logged and {}", failure_text(&failure)),
    })
}

fn other_digest(commit: &Commit, command: &LoggedCommand) -> String {
    format!(
        "it wrote or answered something else (digest {:016x}, logged {:016x}; {} rows, {} bytes written)",
        commit.digest, command.digest, commit.rows_written, commit.bytes_written
    )
}

fn diverge(command: &LoggedCommand, module: &Arc<Module>, what: &str) -> Box<Divergence> {
    divergence(&command.place(), Some(module), what.to_owned())
}

#[inline]
fn remembered(
    tools: &ExecContext,
    command: &mut LoggedCommand,
    module: &Arc<Module>,
    partition: Option<PartitionId>,
) -> Option<KeyedOutcome> {
    let CommandKey {
        key,
        scope,
        fingerprint,
    } = command.keyed.take()?;
    let procedure = &module.schema.procedures[command.procedure as usize];
    Some(KeyedOutcome {
        lsn: command.lsn,
        txn_id: command.txn_id,
        procedure: command.procedure,
        scope,
        key,
        fingerprint,
        kept_us: tools.shared.key_clock.replay_reading_us(),
        args_hash: call_hash(&module.name, &procedure.name, &command.args),
        result: tools.frame.result().to_vec(),
        partition,
        module_id: command.module_id,
    })
}
