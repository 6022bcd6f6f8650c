//! The catalog: which modules were installed, and under which names. It lies on sled, and is never the only copy: the log and the checkpoints have
//! the bytes of the modules.
//! Owns: the catalog's directory.
//! Does not: decide what is in service (the log does), compile, validate.
//! Invariants: what `record` returned from is on disk; a damaged catalog is set aside, not repaired; one without room stays as it is; the store's
//! panics become errors.
//! Called by: `http` (records deployments), `node` (opens, compares with what recovery found, rebuilds).
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod catalog;

pub use catalog::{Catalog, CatalogEntry, CatalogError, OpenedCatalog};
