//! The catalog: which modules were installed, and under which names. On sled, and never the only copy: their bytes lie in the log and
//! the checkpoints.
//! Owns: the catalog's directory.
//! Does not: decide what is in service (the log does), compile, validate.
//! Invariants: what `record` returned from is on disk; a catalog that can't be read is set aside, not repaired.
//! Called by: `http` (records deployments), `node` (opens, compares with what recovery found, rebuilds).
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod catalog;

pub use catalog::{Catalog, CatalogEntry, CatalogError, OpenedCatalog};
