//! Types of columns, parameters and results, as the API shows them.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The type of a parameter, a result or a column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TypeInfo {
    /// No value; `null` in JSON.
    Unit,
    /// `true` or `false`.
    Bool,
    /// From -128 to 127.
    I8,
    /// From -32,768 to 32,767.
    I16,
    /// From -2,147,483,648 to 2,147,483,647.
    I32,
    /// A string on the way out; a string or an exact integer on the way in.
    I64,
    /// From 0 to 255.
    U8,
    /// From 0 to 65,535.
    U16,
    /// From 0 to 4,294,967,295.
    U32,
    /// A string on the way out; a string or an exact integer on the way in.
    U64,
    /// A number; the strings `"NaN"`, `"Infinity"` and `"-Infinity"` for what JSON has no number for.
    F64,
    /// A string with `scale` digits after the point on the way out; a string or a number without loss on the way in.
    Decimal {
        /// Digits after the point.
        scale: u8,
    },
    /// UTF-8.
    Text,
    /// Base64 (RFC 4648) in JSON.
    Bytes,
    /// RFC 3339 with microseconds, UTC on the way out. Years outside 0 to 9999 carry a sign and six digits.
    Timestamp,
    /// Hyphenated lower-case hexadecimal on the way out.
    Uuid,
    /// The item, or `null`. A parameter or member of this type may be left out.
    Option {
        /// Type of the value, if there is one.
        #[schema(no_recursion)]
        item: Box<TypeInfo>,
    },
    /// Values of one type.
    List {
        /// Type of each.
        #[schema(no_recursion)]
        item: Box<TypeInfo>,
    },
    /// An object with exactly these members.
    Struct {
        /// Name in the module's source; missing if it has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// In the order of their declaration.
        #[schema(no_recursion)]
        fields: Vec<FieldInfo>,
    },
    /// One of these strings.
    Enum {
        /// Their names.
        variants: Vec<String>,
    },
}

/// A member of a struct.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldInfo {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub ty: TypeInfo,
}

impl fmt::Display for TypeInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unit => f.write_str("()"),
            Self::Decimal { scale } => write!(f, "decimal({scale})"),
            Self::Option { item } => write!(f, "{item}?"),
            Self::List { item } => write!(f, "[{item}]"),
            Self::Struct { fields, .. } => {
                f.write_str("{")?;
                for (index, field) in fields.iter().enumerate() {
                    let comma = if index == 0 { "" } else { ", " };
                    write!(f, "{comma}{}: {}", field.name, field.ty)?;
                }
                f.write_str("}")
            }
            Self::Enum { variants } => {
                for (index, variant) in variants.iter().enumerate() {
                    let bar = if index == 0 { "" } else { " | " };
                    write!(f, "{bar}\"{variant}\"")?;
                }
                Ok(())
            }
            plain => f.write_str(plain.plain_name()),
        }
    }
}

impl TypeInfo {
    fn plain_name(&self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::F64 => "f64",
            Self::Text => "text",
            Self::Bytes => "bytes",
            Self::Timestamp => "timestamp",
            Self::Uuid => "uuid",
            _ => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_read_well() {
        let votes = TypeInfo::List {
            item: Box::new(TypeInfo::Struct {
                name: Some("Vote".into()),
                fields: vec![
                    FieldInfo {
                        name: "name".into(),
                        ty: TypeInfo::Option {
                            item: Box::new(TypeInfo::Text),
                        },
                    },
                    FieldInfo {
                        name: "price".into(),
                        ty: TypeInfo::Decimal { scale: 2 },
                    },
                ],
            }),
        };
        assert_eq!(votes.to_string(), "[{name: text?, price: decimal(2)}]");
        let text = serde_json::to_string(&votes).expect("serializes");
        assert_eq!(serde_json::from_str::<TypeInfo>(&text).expect("reads"), votes);
        assert_eq!(
            serde_json::to_string(&TypeInfo::I64).expect("serializes"),
            r#"{"kind":"i64"}"#
        );
    }
}
