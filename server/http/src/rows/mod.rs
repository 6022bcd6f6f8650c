//! `/v1/tables/{table}/rows` and `…/groups`: which rows are asked for, how they are written, and what they come to group by group.

mod ask;
mod csv;
mod cursor;
pub mod groups;
pub mod page;
