//! Finds checkpoints of another history: the log was rewound since, or the file is of another copy of the database.

use reprise_base::{Lsn, TxnId};
use reprise_checkpoint::checkpoint_name;
use reprise_wire::{CheckpointHeader, RecordRef};

/// The error that a checkpoint holds records which the log does not have before the checkpoint's LSN.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name} is of another history of this database: before LSN {lsn} the log has transaction {before}, which is later than the \
     checkpoint's {taken}"
)]
pub struct OtherHistory {
    /// Name of the checkpoint's file.
    pub name: String,
    /// LSN of the checkpoint.
    pub lsn: Lsn,
    /// Transaction in the log, before that LSN.
    pub before: TxnId,
    /// Id under which the checkpoint was taken.
    pub taken: TxnId,
}

/// Returns the id of a record's transaction. None for a part, whose transaction may end behind a checkpoint of a standby.
pub fn settled_id(record: &RecordRef<'_>) -> Option<TxnId> {
    record.txn_id().filter(|_| record.facts().standalone)
}

/// Checks a checkpoint against `before`, the settled id of a record before its LSN: the newest such id, or that of any such record. A
/// primary takes the id of a checkpoint's mark behind the ids of all earlier records. A standby logs no mark, but takes the id of its
/// checkpoint in the same way. So a later id before the LSN is of another history. Err: the checkpoint must not be loaded over this log.
pub fn check_history(header: &CheckpointHeader, before: Option<TxnId>) -> Result<(), OtherHistory> {
    match before.filter(|before| *before > header.txn_id) {
        None => Ok(()),
        Some(before) => Err(OtherHistory {
            name: checkpoint_name(header.lsn),
            lsn: header.lsn,
            before,
            taken: header.txn_id,
        }),
    }
}

#[cfg(test)]
mod tests {
    use reprise_base::PartitionId;
    use reprise_wire::{CheckpointMark, CommandRef, PartitionSet};

    use super::*;

    fn taken_at(tick: u64) -> CheckpointHeader {
        CheckpointHeader {
            database_id: [1; 16],
            lsn: Lsn(7),
            settings_hash: 0,
            txn_id: TxnId::new(tick, TxnId::MULTI_PARTITION),
            memory_bytes: 0,
        }
    }

    #[test]
    fn checkpoint_is_of_another_history_when_the_log_has_a_later_transaction_before_it() {
        let mark = RecordRef::Checkpoint(CheckpointMark {
            txn_id: TxnId::new(100, TxnId::MULTI_PARTITION),
            key_clock_us: 0,
        });
        let mark = settled_id(&mark);
        assert_eq!(check_history(&taken_at(100), mark), Ok(()), "its own mark");
        assert_eq!(
            check_history(&taken_at(101), mark),
            Ok(()),
            "a standby's, behind the mark"
        );
        let call = CommandRef::new(TxnId::new(100, 0), PartitionSet::One(PartitionId(0)), &[]);
        let call = settled_id(&RecordRef::Command(call));
        assert_eq!(check_history(&taken_at(101), call), Ok(()));
        let other = check_history(&taken_at(99), call).expect_err("of another history");
        assert_eq!((other.lsn, Some(other.before)), (Lsn(7), call));
        assert!(
            other.to_string().contains("checkpoint-0000000000000007.ckpt"),
            "{other}"
        );
        assert_eq!(settled_id(&RecordRef::Void), None);
        assert_eq!(check_history(&taken_at(99), None), Ok(()), "the log does not say");
    }
}
