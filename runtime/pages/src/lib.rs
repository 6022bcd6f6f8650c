//! Arrays on memory straight from the operating system, in huge pages on request; words compared side by side; prefetches.
//! Owns: the mapping under one array, from its making to its drop; the count of the process's mappings (`Mappings`).
//! Does not: grow, move or share an array; know its contents. Its threads touch pages that no array uses yet (`spare_mapping`) or any more
//! (`drop_aside`).
//! Invariants: the first `len` elements are initialised; a page that was never written costs no memory; without huge pages, everything
//! works the same, only slower.
//! Called by: `storage` (rows, indexes), `host` (mappings of guests), `partition`, `replay`, `database`, `http` (memory made ready ahead).
#![deny(missing_docs)]

mod array;
mod drop_aside;
mod mappings;
mod prefetch;
mod simd;
mod spare_mapping;

pub use array::{HUGE_BYTES, PAGE_BYTES, Pages, Zeroed};
pub use drop_aside::drop_aside;
pub use mappings::{Mappings, has_room as has_mappings, mappings_max};
pub use prefetch::{prefetch, prefetch_line};
pub use simd::equal;
pub use spare_mapping::{NotReady, keep_ready, ready_bytes};
