//! Applies records of the log to tables: the path of running, once more.
//! Owns: the comparison of digests, and the report of a divergence.
//! Does not: read files, start threads, decide the order (`recovery`, and later the standby, hand records over in it).
//! Invariants: a command is run by the same `txn` functions as when it was logged; a mismatch is never passed over.
//! Called by: `recovery`.
#![forbid(unsafe_code)]

use std::sync::{Arc, atomic::Ordering};

use reprise_base::{Lsn, TxnId};
use reprise_partition::{Held, Partition, Tools};
use reprise_txn::{Failure, Module, ModuleId, Outcome, TxnInput, run_multi, run_single};

/// A command as the log holds it.
#[derive(Clone, Debug)]
pub struct Command {
    pub lsn: Lsn,
    /// First position behind the record.
    pub end: Lsn,
    pub txn_id: TxnId,
    pub module_id: ModuleId,
    pub procedure: u16,
    pub digest: u64,
    pub args: Vec<u8>,
    /// As sent by the client.
    pub idempotency_key: Option<Box<[u8]>>,
}

/// A record that did not do again what it did when it was logged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "replay diverges at LSN {lsn}, transaction {txn_id}: {module} version {version} (sha256 {hash}), procedure {procedure}: {what}. \
     The tables are not served. Compare the program version and the settings hash in the log's header with those of the \
     program that wrote it; a standby or a copy of the log opened by that program is the way on"
)]
pub struct Divergence {
    pub lsn: Lsn,
    pub txn_id: TxnId,
    pub module: String,
    pub version: u32,
    pub hash: String,
    pub procedure: String,
    pub what: String,
}

/// The outcome of a replayed call that carried an idempotency key.
#[derive(Clone)]
pub struct Replayed {
    pub command: Command,
    pub module: Arc<Module>,
    pub result: Vec<u8>,
    /// None for a multi-partition call.
    pub partition: Option<reprise_base::PartitionId>,
}

/// Replays a command of one partition. Returns what has to be remembered of it, if it carried a key.
pub fn replay_single(
    partition: &mut Partition,
    tools: &mut Tools,
    command: Command,
) -> Result<Option<Replayed>, Box<Divergence>> {
    let module = module_of(tools, &command)?;
    let input = input_of(tools, &module, &command);
    let executor = match tools.executors.get(&module) {
        Ok(executor) => executor,
        Err(failure) => return Err(diverge(&command, &module, &format!("{failure:?}"))),
    };
    let outcome = run_single(
        &mut partition.store,
        partition.id,
        &input,
        executor,
        &mut tools.frame,
    );
    compare(outcome, &command, &module)?;
    partition.clock.advance_past(command.txn_id.tick());
    partition.last_end = command.end;
    let id = partition.id;
    Ok(remembered(tools, command, module, Some(id)))
}

/// Replays a command over several partitions, all held.
pub fn replay_multi(
    held: &mut Held<'_>,
    command: Command,
) -> Result<Option<Replayed>, Box<Divergence>> {
    let module = module_of(held.tools, &command)?;
    let input = input_of(held.tools, &module, &command);
    let executor = match held.tools.executors.get(&module) {
        Ok(executor) => executor,
        Err(failure) => return Err(diverge(&command, &module, &format!("{failure:?}"))),
    };
    let mut stores: Vec<_> = held
        .partitions
        .iter_mut()
        .map(|part| (part.id, &mut part.store))
        .collect();
    let outcome = run_multi(&mut stores, &input, executor, &mut held.tools.frame);
    compare(outcome, &command, &module)?;
    for partition in held.partitions.iter_mut() {
        partition.clock.advance_past(command.txn_id.tick());
        partition.last_end = command.end;
    }
    let multi_tick = &held.tools.shared.multi_tick;
    multi_tick.fetch_max(command.txn_id.tick(), Ordering::AcqRel);
    Ok(remembered(held.tools, command, module, None))
}

fn module_of(tools: &Tools, command: &Command) -> Result<Arc<Module>, Box<Divergence>> {
    tools
        .deployed()
        .module(command.module_id)
        .filter(|module| (command.procedure as usize) < module.schema.procedures.len())
        .cloned()
        .ok_or_else(|| {
            Box::new(Divergence {
                lsn: command.lsn,
                txn_id: command.txn_id,
                module: format!("module number {}", command.module_id.0),
                version: 0,
                hash: String::new(),
                procedure: format!("number {}", command.procedure),
                what: "the log holds no such module or procedure before this record".into(),
            })
        })
}

fn input_of<'a>(tools: &Tools, module: &'a Arc<Module>, command: &'a Command) -> TxnInput<'a> {
    TxnInput {
        txn_id: command.txn_id,
        secret: tools.shared.secret,
        partitions_count: tools.shared.partitions_count,
        module,
        procedure: command.procedure as usize,
        args: &command.args,
    }
}

/// A committed outcome with the digest of the record, or where and how they differ.
fn compare(
    outcome: Outcome,
    command: &Command,
    module: &Arc<Module>,
) -> Result<(), Box<Divergence>> {
    let what = match outcome {
        Outcome::Commit(commit) if commit.digest == command.digest => return Ok(()),
        Outcome::Commit(commit) => format!(
            "it wrote or answered something else (digest {:016x}, logged {:016x}; {} rows, {} bytes written)",
            commit.digest, command.digest, commit.rows_written, commit.bytes_written
        ),
        Outcome::Fail(Failure::Aborted { code, message }) => {
            format!("it committed when logged and aborts now ({code}: {message})")
        }
        Outcome::Fail(Failure::Limit { limit, message, .. }) => {
            format!("it committed when logged and reaches limit {limit} now ({message})")
        }
        Outcome::Fail(Failure::Trapped { trap, message, .. }) => {
            format!("it committed when logged and traps now ({trap}: {message})")
        }
    };
    Err(diverge(command, module, &what))
}

fn diverge(command: &Command, module: &Arc<Module>, what: &str) -> Box<Divergence> {
    Box::new(Divergence {
        lsn: command.lsn,
        txn_id: command.txn_id,
        module: module.name.clone(),
        version: module.version,
        hash: module.hash.iter().map(|byte| format!("{byte:02x}")).collect(),
        procedure: module.schema.procedures[command.procedure as usize].name.clone(),
        what: what.to_owned(),
    })
}

fn remembered(
    tools: &Tools,
    command: Command,
    module: Arc<Module>,
    partition: Option<reprise_base::PartitionId>,
) -> Option<Replayed> {
    command.idempotency_key.as_ref()?;
    Some(Replayed {
        result: tools.frame.result().to_vec(),
        command,
        module,
        partition,
    })
}
