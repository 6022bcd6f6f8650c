//! The integration tests of `reprise-storage`, in one binary.

mod bulk;
mod common;
mod give_back;
mod limit;
mod model;
mod pages;
mod redo;
mod retained;
mod returns;
mod schema;
mod snapshot;
mod views;
mod waiting;
mod writeset;
