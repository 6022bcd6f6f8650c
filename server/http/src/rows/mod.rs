//! `/v1/tables/{table}/rows` and `…/groups`: the choice of rows, their text, and sums by group.

mod ask;
mod csv;
mod cursor;
pub mod groups;
pub mod page;
