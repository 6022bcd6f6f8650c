//! Integers wider than JSON's readers agree on.

use std::{cell::Cell, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr,
        schema::{ObjectBuilder, Schema, Type},
    },
};

thread_local! {
    static ARE_NUMBERS: Cell<bool> = const { Cell::new(false) };
}

/// Whether integers of 64 bits are written as numbers on this thread now, for a reader that has such integers.
#[inline]
pub fn integers_are_numbers() -> bool {
    ARE_NUMBERS.get()
}

/// Runs `write`; integers of 64 bits that it writes are numbers, or strings.
pub fn with_integers<T>(are_numbers: bool, write: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            ARE_NUMBERS.set(self.0);
        }
    }
    let _before = Before(ARE_NUMBERS.replace(are_numbers));
    write()
}

/// An unsigned 64-bit integer as a decimal string in JSON. Requests may also have an exact integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct U64(pub u64);

impl fmt::Display for U64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<u64> for U64 {
    fn from(value: u64) -> Self {
        Self(value)
    }
}

impl Serialize for U64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match integers_are_numbers() {
            true => serializer.serialize_u64(self.0),
            false => serializer.collect_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for U64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(U64Visitor)
    }
}

struct U64Visitor;

impl de::Visitor<'_> for U64Visitor {
    type Value = U64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an unsigned integer below 2^64, as a string or a number")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<U64, E> {
        Ok(U64(value))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<U64, E> {
        let is_plain = text.bytes().all(|b| b.is_ascii_digit());
        match text.parse() {
            Ok(value) if is_plain => Ok(U64(value)),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }
}

impl PartialSchema for U64 {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .pattern(Some("^[0-9]{1,20}$"))
            .description(Some(
                "An unsigned 64-bit integer as a decimal string. Requests may also have an exact integer.",
            ))
            .examples(["123456789012345678"])
            .into()
    }
}

impl ToSchema for U64 {
    fn name() -> std::borrow::Cow<'static, str> {
        "U64".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_out_both_in() {
        let wide = U64(u64::MAX);
        let text = serde_json::to_string(&wide).expect("serializes");
        assert_eq!(text, "\"18446744073709551615\"");
        let number = with_integers(true, || serde_json::to_string(&wide));
        assert_eq!(number.expect("serializes"), "18446744073709551615");
        assert!(!integers_are_numbers());
        for json in [text.as_str(), "18446744073709551615"] {
            assert_eq!(serde_json::from_str::<U64>(json).expect("reads"), wide);
        }
        for bad in ["-1", "1.5", "\"+1\"", "\"\"", "\"18446744073709551616\"", "null"] {
            assert!(serde_json::from_str::<U64>(bad).is_err(), "{bad}");
        }
    }
}
