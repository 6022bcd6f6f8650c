//! The integration tests of `reprise-upkeep`, in one binary. They inspect whole databases with checkpoints, backups and archive.

mod archive;
mod backups;
mod checkpoint;
// One set of helpers makes databases, for these tests and for the database's own.
#[path = "../../../database/tests/it/common/mod.rs"]
mod common;
mod read_back;
