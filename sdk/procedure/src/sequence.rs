//! Sequences: numbers that each partition counts for itself, unique over all of them.

use reprise_abi::{TXN_ORIGIN_BITS, TXN_ORIGIN_SEVERAL};

use crate::txn::Txn;

/// A sequence of a module: a partition-local table of one row. `sequence!` declares it, `tx.next` counts it.
pub trait Sequence {
    /// Counts on; the numbers given out on this partition, this one with them.
    #[doc(hidden)]
    fn count_on(tx: &Txn<'_>, partition: u16) -> i64;
}

/// The number behind the one that the call's partition gave out last: its count from 1, and the partition in the low ten bits.
pub fn next<S: Sequence>(tx: &Txn<'_>) -> i64 {
    let origin = tx.txn_id() & ((1 << TXN_ORIGIN_BITS) - 1);
    assert!(
        origin != TXN_ORIGIN_SEVERAL,
        "a sequence counts on one partition, and this call takes several"
    );
    let count = S::count_on(tx, origin as u16);
    let shifted = count.checked_mul(1 << TXN_ORIGIN_BITS);
    shifted.expect("a sequence has 2^53 numbers on each partition") | origin as i64
}

/// Declares a sequence: `sequence!(pub OrderNumbers = "order_numbers");`. It is a table of its own, which stands among the module's
/// tables; `tx.next::<OrderNumbers>()` gives its next number.
#[macro_export]
macro_rules! sequence {
    ($(#[$attribute:meta])* $visibility:vis $name:ident = $table:literal) => {
        $(#[$attribute])*
        #[$crate::table(name = $table, primary_key(partition), local)]
        $visibility struct $name {
            /// The partition that counts.
            pub partition: u16,
            /// Numbers that it has given out.
            pub count: i64,
        }

        impl $crate::sequence::Sequence for $name {
            fn count_on(tx: &$crate::txn::Txn<'_>, partition: u16) -> i64 {
                if let ::core::option::Option::Some(count) = Self::add_count(tx, partition, 1) {
                    return count;
                }
                Self::insert(tx, &Self { partition, count: 1 }).expect("the partition has no row yet");
                1
            }
        }
    };
}
