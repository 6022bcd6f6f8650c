//! One partition's tables: rows, indexes, undo.
//! Owns: row bytes behind the indirection array, primary and secondary indexes, the running transaction's undo and digest, the versions
//! that open views still see.
//! Does not: log, lock, know time or partitions; interpret a procedure; hold anything of a module but its table schemas.
//! Invariants: an index names live rows only, and each row once; a refused change leaves nothing; what callers observe depends on the
//! committed changes and their order alone, never on record ids, slots or node shapes.
//! Called by: `txn`, `partition`, `replay`, `recovery`, `router`, `upkeep`, `database`.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod apply;
mod arena;
mod arrays;
mod at_view;
mod bulk;
mod changelog;
mod charge;
mod chunked;
mod compare;
mod convert;
mod dense;
mod difference;
mod digest;
mod evolve;
mod growth;
mod hash;
mod index;
mod index_order;
mod indirection;
mod insert;
mod intkey;
mod journal;
mod keyplan;
mod keytext;
mod lookups;
mod misfits;
mod numbers;
mod patch;
mod project;
mod redo;
mod retained_turns;
mod rows;
mod schema;
mod snapshot;
mod store;
mod table;
mod tag;
mod tree;
mod treekey;
mod vacant;
mod views;
mod waiting_turns;
mod watchers;

pub use apply::{ApplyError, PrefetchStep, RedoScratch};
pub use at_view::{ShownRow, StoreAtView};
pub use bulk::{IndexLoad, LoadError, TableLoad};
pub use changelog::AfterImage;
pub use compare::TableDigest;
pub use convert::{ConvertError, GoOn, PreparedTable};
pub use difference::RowDifference;
pub use digest::result_digest;
pub use evolve::{
    ChangeAction, ChangeStep, TableChange, as_stored, plan_change, plan_change_of_empty, plan_logged_change,
    plan_return,
};
pub use growth::Growth;
pub use index::{NotOrdered, PrefetchState, Range, ScanPosition, Visit};
pub use indirection::Rid;
pub use journal::{StoreSavepoint, WriteSummary};
pub use misfits::Misfits;
pub use patch::Patcher;
pub use project::{DefaultError, RowProjection};
pub use redo::{LastWrites, LentTable, PartitionRedo, REDO_WINDOW_BYTES_MAX, RedoError, RedoSchema};
pub use schema::{Conflict, check_limits, stored_json};
pub use snapshot::{SnapshotPage, SnapshotTable};
pub use store::{ReplacedTable, Store, TableId};
pub use table::{ColumnProblem, TableStats, WriteError};
pub use tag::set_hash_secret;
pub use views::{ViewError, ViewId};

const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Store>();
};
