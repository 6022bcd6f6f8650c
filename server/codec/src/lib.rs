//! JSON and CBOR <-> the guest contract's bytes, driven by the schema: neither direction builds a tree.
//! Owns: the text form of values, rows, keys and arguments.
//! Does not: know HTTP, find procedures or tables.
//! Invariants: a value that was read is valid by its schema; a value that was written reads as the same value.
//! Called by: `http`, `node`.
//!
//! | type | JSON out | JSON in | CBOR, where it differs |
//! | --- | --- | --- | --- |
//! | bool | `true`, `false` | the same | |
//! | i8 to i32, u8 to u32 | number | exact integer, or a string of one | |
//! | i64, u64 | string | the same | out: integer |
//! | f64 | number; `"NaN"`, `"Infinity"`, `"-Infinity"` | the same | out: float |
//! | decimal | string with all digits of its scale | string or number without loss | |
//! | text | string | string | |
//! | bytes | base64 string, padded | base64 string, padded or not | out: byte string; in: that as well |
//! | timestamp | `2026-01-31T12:00:00.000000Z` | RFC 3339, at most microseconds | |
//! | uuid | hyphenated, lower case | hyphenated or 32 digits | in: 16 bytes as well |
//! | option | the value or `null` | the same; a member may be left out | |
//! | list, struct, enum | array, object, string | the same | |
//! | unit | `null` | `null`, or left out | |
//!
//! Tags of CBOR are passed over: the schema says what a value means.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod canonical;
mod cbor;
mod decode;
mod document;
mod encode;
mod key;
mod names;
mod pack;
mod rows;
mod scalar;
mod source;
#[cfg(test)]
mod tests;
mod text;

pub use canonical::push_canonical;
pub use cbor::{Cbor, ItemScanner};
pub use decode::{ArgsError, ArgsScratch, encode_args};
pub use document::{Format, encode_document};
pub use encode::{read_scalar, write_arguments, write_column, write_columns, write_row, write_value};
pub use key::{count_prefix, encode_column, encode_prefix};
pub use names::first_names;
pub use pack::Packer;
pub use rows::{columns_json, raw_json, row_json};
pub use scalar::{decimal, hex, parse_timestamp, rfc3339};
pub use source::{DocumentToken, SyntaxError, Text, TokenSource};
pub use text::JsonSource;
