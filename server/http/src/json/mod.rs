//! JSON <-> the guest contract's bytes, driven by the schema: no tree is built on either way.
//!
//! | type | out | in |
//! | --- | --- | --- |
//! | bool | `true`, `false` | the same |
//! | i8 to i32, u8 to u32 | number | exact integer, or a string of one |
//! | i64, u64 | string | the same |
//! | f64 | number; `"NaN"`, `"Infinity"`, `"-Infinity"` | the same |
//! | decimal | string with all digits of its scale | string or number without loss |
//! | text | string | string |
//! | bytes | base64 string, padded | base64 string, padded or not |
//! | timestamp | `2026-01-31T12:00:00.000000Z` | RFC 3339, at most microseconds |
//! | uuid | hyphenated, lower case | hyphenated or 32 digits |
//! | option | the value or `null` | the same; a member may be left out |
//! | list, struct, enum | array, object, string | the same |
//! | unit | `null` | `null`, or left out |

mod decode;
mod encode;
mod key;
mod scalar;
#[cfg(test)]
mod tests;

pub use decode::{ArgsError, ArgsSeed, Scratch, encode_args};
pub use encode::{write_arguments, write_row, write_value};
pub use key::encode_prefix;
pub use scalar::{hex, rfc3339};
