//! One call from its arguments to its outcome, on one partition or on several.

use std::sync::Arc;

use reprise_abi::EndReason;
use reprise_base::{PartitionId, TxnId};
use reprise_host::{Fault, FaultKind, GuestExit};
use reprise_storage::{Store, result_digest};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::{
    module::{Executor, Module},
    scratch::TxnScratch,
    store_set::{One, Several, StoreSet},
    store_txn::StoreTxn,
};

/// The parts of one call.
pub struct TxnInput<'a> {
    /// The id of the transaction. It begins with the time that the call sees.
    pub txn_id: TxnId,
    /// The secret of the database: random numbers depend on it.
    pub secret: [u64; 2],
    /// The number of the database's partitions.
    pub partitions_count: u16,
    /// The version of the module that runs.
    pub module: &'a Arc<Module>,
    /// Position in the module's schema. The position behind all procedures names the migration.
    pub procedure: usize,
    /// The arguments, encoded (`reprise_abi::value`).
    pub args: &'a [u8],
    /// Name of the caller. None if the server has no tokens.
    pub caller: Option<&'a str>,
}

impl TxnInput<'_> {
    /// True for the call that runs when the module is deployed, over tables that are not in service yet.
    #[inline]
    pub fn is_migration(&self) -> bool {
        self.procedure == self.module.schema.migration()
    }

    #[inline]
    pub(crate) fn is_read_only(&self) -> bool {
        let procedure = self.module.schema.procedures.get(self.procedure);
        procedure.is_some_and(|procedure| procedure.read_only)
    }

    /// Returns the fuel that the procedure declares for its calls.
    pub(crate) fn fuel_max(&self) -> Option<u64> {
        let procedure = self.module.schema.procedures.get(self.procedure);
        procedure.and_then(|procedure| procedure.fuel_max)
    }

    /// Checks the type of the result, so that a later reader always decodes a value of the declared type. A replay does not check, because
    /// a committed call stays committed.
    #[inline(always)]
    pub(crate) fn check_result(
        &self,
        kind: Result<GuestExit, Box<Fault>>,
        frame: &TxnScratch,
    ) -> Result<GuestExit, Box<Fault>> {
        match (&kind, self.module.results.get(self.procedure)) {
            (Ok(GuestExit::Returned), Some(shape)) if !frame.is_replay() && !shape.holds(frame.result()) => {
                Err(wrong_result(frame.result().len()))
            }
            _ => kind,
        }
    }
}

#[cold]
fn wrong_result(bytes: usize) -> Box<Fault> {
    Fault::guest(format!(
        "the result, {bytes} bytes, is not a value of the declared type"
    ))
}

/// A committed transaction. Its result is in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Digest of the write set, in the order of writing, and of the result. Replay must find the same digest.
    pub digest: u64,
    /// Rows written. A row that was written twice counts twice.
    pub rows_written: u32,
    /// Bytes of the rows and columns that were written.
    pub bytes_written: u64,
}

/// Why a call left nothing behind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields have the names that the API gives them")]
pub enum Failure {
    /// The procedure decided to abort.
    Aborted { code: String, message: String },
    /// The call reached a limit of one transaction. `limit` is its name.
    Limit { limit: String, max: u64, message: String },
    /// The procedure trapped, or broke the contract with its host.
    Trapped {
        trap: String,
        message: String,
        backtrace: Vec<String>,
    },
    /// An operator ended the call, or its client stopped waiting, before it began or while it ran.
    Ended(EndReason),
}

/// Says in words how a call fails now that had committed once.
pub fn failure_text(failure: &Failure) -> String {
    match failure {
        Failure::Aborted { code, message } => format!("aborts now ({code}: {message})"),
        Failure::Limit { limit, message, .. } => format!("reaches limit {limit} now ({message})"),
        Failure::Trapped { trap, message, .. } => format!("traps now ({trap}: {message})"),
        Failure::Ended(ended) => format!("is ended now ({ended:?})"),
    }
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The store has the call's writes.
    Commit(Commit),
    /// The call left nothing behind.
    Fail(Failure),
}

/// Runs one call on one partition's store. If the outcome is not `Commit`, the store is as before.
pub fn run_single(
    store: &mut Store,
    partition: PartitionId,
    input: &TxnInput<'_>,
    executor: &mut dyn Executor,
    frame: &mut TxnScratch,
) -> Outcome {
    run(One { store, partition }, input, executor, frame)
}

/// Runs one call over the stores of several partitions, ascending by id. Either all of them commit, or all are as before.
pub fn run_multi(
    stores: &mut [(PartitionId, &mut Store)],
    input: &TxnInput<'_>,
    executor: &mut dyn Executor,
    frame: &mut TxnScratch,
) -> Outcome {
    run(Several::new(stores), input, executor, frame)
}

#[inline(always)]
fn run<S: StoreSet>(
    mut stores: S,
    input: &TxnInput<'_>,
    executor: &mut dyn Executor,
    frame: &mut TxnScratch,
) -> Outcome {
    frame.clear();
    for at in 0..stores.count() {
        let store = stores.store_mut(at);
        store.begin();
        if let Some(images) = frame.capture() {
            store.capture(images);
        }
    }
    frame.inserting.begin(stores.count());
    let mut txn = StoreTxn::new(stores, input, frame);
    let ended = executor.call(input.procedure, &mut txn);
    let StoreTxn { stores, frame, .. } = txn;
    frame.end_call();
    frame.record_fuel(ended.fuel_used);
    match input.check_result(ended.kind, frame) {
        Ok(GuestExit::Returned) => commit(stores, frame),
        kind => fail(stores, kind, frame),
    }
}

#[inline(always)]
fn commit<S: StoreSet>(mut stores: S, frame: &mut TxnScratch) -> Outcome {
    if let Some(images) = frame.capture() {
        stores.take_changes(images, frame);
    }
    let mut digest = result_digest(frame.result());
    let (mut rows_written, mut bytes_written) = (0, 0);
    for at in 0..stores.count() {
        let written = stores.store_mut(at).commit();
        fold_partition(&mut digest, written.digest);
        rows_written += written.rows_written;
        bytes_written += written.bytes_written as u64;
    }
    Outcome::Commit(Commit {
        digest,
        rows_written,
        bytes_written,
    })
}

#[cold]
fn fail<S: StoreSet>(mut stores: S, kind: Result<GuestExit, Box<Fault>>, frame: &mut TxnScratch) -> Outcome {
    let failure = call_failure(kind, frame).expect("it did not return");
    frame.inserting.cancel();
    let all = 0..stores.count();
    let writes = all.clone().map(|at| stores.store(at).undo_count()).sum();
    frame
        .watch
        .time_take_back(writes, || all.for_each(|at| stores.store_mut(at).rollback()));
    Outcome::Fail(failure)
}

/// Runs the migration of `input`'s module on one partition's store, whose changed tables are already in place (`AppliedPlan`). Returns the
/// digest of its writes. No undo of it stays. If it fails, the caller takes the deployment back.
pub fn run_migration(
    store: &mut Store,
    partition: PartitionId,
    input: &TxnInput<'_>,
    executor: &mut dyn Executor,
    frame: &mut TxnScratch,
) -> Result<u64, Failure> {
    frame.begin_migration();
    frame.set_capture(None);
    match run_single(store, partition, input, executor, frame) {
        Outcome::Commit(commit) => {
            store.forget_unsealed();
            Ok(commit.digest)
        }
        Outcome::Fail(failure) => Err(failure),
    }
}

/// Returns the hash of a call's procedure and arguments. A repeat under the same idempotency key must have the same hash.
pub fn call_hash(module: &str, procedure: &str, args: &[u8]) -> u128 {
    let parts = [module.as_bytes(), procedure.as_bytes(), args];
    let bytes: usize = parts.iter().map(|part| 8 + part.len()).sum();
    // Bytes in one piece take a tenth of the instructions of a hash that is fed by pieces.
    let mut small = [0; SMALL_CALL_BYTES];
    let Some(whole) = small.get_mut(..bytes) else {
        return hash_of_parts(parts);
    };
    let mut at = 0;
    for part in parts {
        whole[at..at + 8].copy_from_slice(&(part.len() as u64).to_le_bytes());
        whole[at + 8..at + 8 + part.len()].copy_from_slice(part);
        at += 8 + part.len();
    }
    xxh3_128(whole)
}

/// Bytes of names and arguments that are hashed in one piece.
const SMALL_CALL_BYTES: usize = 256;

fn hash_of_parts(parts: [&[u8]; 3]) -> u128 {
    let mut hash = Xxh3::new();
    for part in parts {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.digest128()
}

/// Returns the failure of a call, or None if it is to commit.
pub(crate) fn call_failure(kind: Result<GuestExit, Box<Fault>>, frame: &mut TxnScratch) -> Option<Failure> {
    let fault = match kind {
        Ok(GuestExit::Returned) => return None,
        Ok(GuestExit::Aborted) => {
            let (code, message) = frame.take_abort().unwrap_or_default();
            return Some(Failure::Aborted { code, message });
        }
        Err(fault) => fault,
    };
    Some(match fault.kind {
        FaultKind::Limit => Failure::Limit {
            limit: fault.limit.unwrap_or("limit").to_owned(),
            max: fault.max,
            message: fault.message,
        },
        FaultKind::Ended(ended) => Failure::Ended(ended),
        FaultKind::Trap | FaultKind::Guest => Failure::Trapped {
            trap: fault.trap.unwrap_or_else(|| "contract".into()),
            message: fault.message,
            backtrace: fault.backtrace,
        },
    })
}

/// Folds the digest of one partition's writes into the whole. The function is frozen, because the log holds digests.
#[inline(always)]
fn fold_partition(digest: &mut u64, written: u64) {
    *digest = digest.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ written;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logs hold these hashes.
    #[test]
    fn hash_of_a_call_is_the_same_in_one_piece_and_in_parts() {
        let args: Vec<u8> = (0..SMALL_CALL_BYTES).map(|at| at as u8).collect();
        for bytes in 0..args.len() {
            let parts = [&b"bank"[..], b"transfer", &args[..bytes]];
            assert_eq!(call_hash("bank", "transfer", parts[2]), hash_of_parts(parts), "{bytes}");
        }
    }
}
