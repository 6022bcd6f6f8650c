//! Notices to the operator about failed calls: traps, and calls for which there was no memory.

use reprise_base::{TxnId, limits::MEMORY_MAX_LIMIT};
use reprise_observe::{Notice, NoticeKind, Notices};
use reprise_txn::Failure;

/// Reports a failed call to the operator. `name`: `MODULE.PROCEDURE`.
pub(crate) fn report_failure(notices: &Notices, txn_id: TxnId, name: impl FnOnce() -> String, failure: &Failure) {
    match failure {
        Failure::Trapped { message, .. } => notices.publish(NoticeKind::Trap, || Notice::Trapped {
            txn_id,
            procedure: name(),
            message: message.clone(),
        }),
        Failure::Limit { limit, max, .. } if limit == MEMORY_MAX_LIMIT => {
            notices.publish(NoticeKind::Memory, || Notice::MemoryExhausted {
                txn_id,
                procedure: name(),
                max: *max,
            });
        }
        _ => {}
    }
}
