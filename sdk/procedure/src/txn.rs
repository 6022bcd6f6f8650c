//! The transaction that a procedure runs in.

use reprise_abi::LogLevel;

use crate::{ops::Ops, types::Timestamp};

/// The running transaction; handed to every table operation. Nothing of it outlives the call.
pub struct Txn<'h> {
    pub(crate) ops: Ops<'h>,
}

/// A point of the transaction to which its writes can be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint(u32);

impl<'h> Txn<'h> {
    pub(crate) fn new(ops: Ops<'h>) -> Self {
        Self { ops }
    }

    /// The transaction's time: the same whenever it is asked, and at every replay.
    pub fn now(&self) -> Timestamp {
        Timestamp(self.ops.now_us())
    }

    /// 64 random bits from the transaction's own stream, the same at every replay.
    pub fn random(&self) -> u64 {
        self.ops.random_u64()
    }

    /// A random number below `bound` (without bias); 0 when `bound` is 0.
    pub fn random_below(&self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        loop {
            // Lemire's multiply-shift; a draw in the short first stretch is thrown away.
            let product = self.random() as u128 * bound as u128;
            if product as u64 >= bound.wrapping_neg() % bound {
                return (product >> 64) as u64;
            }
        }
    }

    /// Grows along the serial order of each partition; unique in the database.
    pub fn txn_id(&self) -> u64 {
        self.ops.txn_id()
    }

    /// Writes a line to the procedure's log. It stays there also when the transaction aborts.
    pub fn log(&self, level: LogLevel, text: &str) {
        self.ops.log(level, text);
    }

    pub fn info(&self, text: &str) {
        self.log(LogLevel::Info, text);
    }

    pub fn warn(&self, text: &str) {
        self.log(LogLevel::Warn, text);
    }

    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.ops.savepoint())
    }

    /// Takes back every write since `savepoint`, which stays usable. Rows read before may be out of date afterwards.
    pub fn rollback_to(&self, savepoint: Savepoint) {
        self.ops.rollback_to(savepoint.0);
    }
}
