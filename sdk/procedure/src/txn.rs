//! The transaction that a procedure runs in.

use std::cell::Cell;

use reprise_abi::LogLevel;

use crate::{
    ops::Ops,
    sequence::{self, Sequence},
    types::{Timestamp, Uuid},
};

/// The running transaction; handed to every table operation. Nothing of it outlives the call.
pub struct Txn<'h> {
    pub(crate) ops: Ops<'h>,
    /// The random part of the UUID that was made last; 0 before the first.
    last_uuid: Cell<u64>,
}

/// Bytes of the longest name of a token.
const CALLER_BYTES_MAX: usize = 255;

/// Bits of a UUID of version 7 behind time, version and variant.
const UUID_RANDOM_BITS: u32 = 62;

/// A point of the transaction to which its writes can be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint(u32);

impl<'h> Txn<'h> {
    pub(crate) fn new(ops: Ops<'h>) -> Self {
        Self {
            ops,
            last_uuid: Cell::new(0),
        }
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

    /// A new UUID of version 7 (RFC 9562): the time of the transaction in 60 bits, then random bits. Each is greater than the
    /// transaction's earlier ones.
    pub fn new_uuid(&self) -> Uuid {
        let us = self.now().0.max(0) as u64;
        let last = self.last_uuid.get();
        // The next one of the same time lies a random step behind, and the first so low that there is room for all steps.
        let random = match last {
            0 => self.random() >> (64 - UUID_RANDOM_BITS + 1) | 1,
            last => last
                .saturating_add(1 + (self.random() >> 32))
                .min((1 << UUID_RANDOM_BITS) - 1),
        };
        self.last_uuid.set(random);
        let fraction = us % 1_000 * 4_096 / 1_000;
        let high = us / 1_000 << 16 | 7 << 12 | fraction;
        let low = 1 << 63 | random;
        Uuid(((u128::from(high) << 64) | u128::from(low)).to_be_bytes())
    }

    /// Returns the next number of a sequence, greater than 0. It is unique in the database, because its low ten bits are the number of the
    /// partition that counted it. On each partition it grows by 1,024. Numbers of a transaction that did not commit, or that rolled back to
    /// an earlier savepoint, are used again. It is only for calls of one partition: it ends a call of several.
    pub fn next<S: Sequence>(&self) -> i64 {
        sequence::next::<S>(self)
    }

    /// Grows along the serial order of each partition; unique in the database.
    pub fn txn_id(&self) -> u64 {
        self.ops.txn_id()
    }

    /// Name of the token that the client called with; none on a server without tokens, and in what runs at a deployment. It is in the log,
    /// so a replay and a standby see the same.
    pub fn caller(&self) -> Option<String> {
        let mut name = [0; CALLER_BYTES_MAX];
        let bytes = self.ops.caller(&mut name);
        let name = name.get(..bytes).filter(|name| !name.is_empty())?;
        str::from_utf8(name).ok().map(str::to_owned)
    }

    /// Writes a line to the procedure's log. It stays there also when the transaction aborts.
    pub fn log(&self, level: LogLevel, text: &str) {
        self.ops.log(level, text);
    }

    /// Logs a line like `log`, at level `info`.
    pub fn info(&self, text: &str) {
        self.log(LogLevel::Info, text);
    }

    /// Logs a line like `log`, at level `warn`.
    pub fn warn(&self, text: &str) {
        self.log(LogLevel::Warn, text);
    }

    /// A point to which `rollback_to` takes writes back.
    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.ops.savepoint())
    }

    /// Takes back every write since `savepoint`, which stays usable. Rows whose writes are taken back have to be read again before an
    /// `update`. Open scans go on with the rows with which they began.
    pub fn rollback_to(&self, savepoint: Savepoint) {
        self.ops.rollback_to(savepoint.0);
    }
}
