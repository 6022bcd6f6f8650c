//! Bytes -> CBOR. 64-bit integers are integers, bytes are byte strings; the rest is as in JSON.

use std::convert::Infallible;

use minicbor::{Encoder, encode};
use reprise_abi::{
    Field, ScalarType, Type,
    value::{ValueError, ValueReader},
};

use super::{
    encode::read_scalar,
    scalar,
    source::{DocumentToken, SyntaxError, TokenSource},
    text::JsonSource,
};

/// Writes CBOR to memory, which takes everything.
pub struct Packer<'o>(Encoder<&'o mut Vec<u8>>);

fn sure<T>(outcome: Result<T, encode::Error<Infallible>>) {
    assert!(outcome.is_ok(), "memory takes every item");
}

impl<'o> Packer<'o> {
    /// Appends to `out`.
    pub fn new(out: &'o mut Vec<u8>) -> Self {
        Self(Encoder::new(out))
    }

    /// Begins a map of `members` members, each a key and a value.
    pub fn map(&mut self, members: u64) {
        sure(self.0.map(members));
    }

    /// A text string.
    pub fn text(&mut self, text: &str) {
        sure(self.0.str(text));
    }

    /// An integer.
    pub fn unsigned(&mut self, value: u64) {
        sure(self.0.u64(value));
    }

    /// A truth value.
    pub fn bool(&mut self, value: bool) {
        sure(self.0.bool(value));
    }

    /// Nothing.
    pub fn null(&mut self) {
        sure(self.0.null());
    }

    /// An item that is CBOR already.
    pub fn item(&mut self, bytes: &[u8]) {
        self.0.writer_mut().extend_from_slice(bytes);
    }

    /// Packs a value of JSON.
    pub fn json(&mut self, value: &serde_json::Value) {
        use serde_json::Value;
        match value {
            Value::Null => self.null(),
            Value::Bool(value) => self.bool(*value),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(value), _) => self.unsigned(value),
                (None, Some(value)) => sure(self.0.i64(value)),
                (None, None) => sure(self.0.f64(number.as_f64().unwrap_or(f64::NAN))),
            },
            Value::String(text) => self.text(text),
            Value::Array(items) => {
                sure(self.0.array(items.len() as u64));
                items.iter().for_each(|item| self.json(item));
            }
            Value::Object(members) => {
                self.map(members.len() as u64);
                for (name, value) in members {
                    self.text(name);
                    self.json(value);
                }
            }
        }
    }

    /// Writes the next value of a JSON text. An integer that 64 bits do not hold, and a number beyond a double's range, become texts. A
    /// double would be another number.
    ///
    /// # Errors
    /// The text is no JSON, and the caller must throw away the bytes written.
    pub fn document(&mut self, source: &mut JsonSource<'_>) -> Result<(), SyntaxError> {
        match source.token()? {
            DocumentToken::Bool(value) => self.bool(value),
            DocumentToken::Integer(value) => self.integer(value),
            DocumentToken::Number(text) => self.number(text),
            DocumentToken::Text(text) => self.text(text.as_str()),
            // Their number is known behind them.
            DocumentToken::List(mut items) => {
                let (mut inner, mut count) = (Vec::new(), 0);
                while source.next_item(&mut items)? {
                    Packer::new(&mut inner).document(source)?;
                    count += 1;
                }
                sure(self.0.array(count));
                self.item(&inner);
            }
            DocumentToken::Map(mut items) => {
                let (mut inner, mut count) = (Vec::new(), 0);
                while let Some(name) = source.next_name(&mut items)? {
                    let mut packer = Packer::new(&mut inner);
                    packer.text(name.as_str());
                    packer.document(source)?;
                    count += 1;
                }
                self.map(count);
                self.item(&inner);
            }
            DocumentToken::Null | DocumentToken::Float(_) | DocumentToken::Bytes(_) | DocumentToken::Other(_) => {
                self.null()
            }
        }
        Ok(())
    }

    fn integer(&mut self, value: i128) {
        match (u64::try_from(value), i64::try_from(value)) {
            (Ok(value), _) => self.unsigned(value),
            (_, Ok(value)) => sure(self.0.i64(value)),
            _ => self.text(&value.to_string()),
        }
    }

    fn number(&mut self, text: &str) {
        let is_whole = text != "-0" && !text.contains(['.', 'e', 'E']);
        match (is_whole, text.parse::<i128>(), text.parse::<f64>()) {
            (true, Ok(value), _) => self.integer(value),
            (false, _, Ok(value)) if value.is_finite() => sure(self.0.f64(value)),
            _ => self.text(text),
        }
    }

    /// Writes one value of type `ty`. Err: the bytes are no such value, and the caller must throw away the bytes written.
    pub fn value(&mut self, ty: &Type, reader: &mut ValueReader<'_>) -> Result<(), ValueError> {
        match ty {
            Type::Unit => self.null(),
            Type::Scalar(scalar) => self.field(*scalar, &read_scalar(*scalar, reader)?),
            Type::Option(inner) => {
                if reader.flag()? {
                    return self.value(inner, reader);
                }
                self.null();
            }
            Type::List(item) => {
                let count = reader.list_len()?;
                sure(self.0.array(count as u64));
                for _ in 0..count {
                    self.value(item, reader)?;
                }
            }
            Type::Struct(of) => {
                self.map(of.fields.len() as u64);
                for field in &of.fields {
                    self.text(&field.name);
                    self.value(&field.ty, reader)?;
                }
            }
            Type::Enum(variants) => {
                let offset = reader.offset();
                let variant = reader.varint()? as usize;
                self.text(variants.get(variant).ok_or(ValueError { offset })?);
            }
        }
        Ok(())
    }

    fn field(&mut self, ty: ScalarType, field: &Field<'_>) {
        match *field {
            Field::Null => self.null(),
            Field::Bool(value) => self.bool(value),
            Field::Int(value) if ty == ScalarType::Timestamp => {
                self.written(|out| scalar::push_timestamp(out, value));
            }
            Field::Int(value) => sure(self.0.i64(value)),
            Field::Uint(value) => self.unsigned(value),
            Field::F64(value) => sure(self.0.f64(value)),
            Field::Decimal(value) => {
                let ScalarType::Decimal { scale } = ty else {
                    unreachable!("only a decimal column has decimal fields");
                };
                self.written(|out| scalar::push_decimal(out, value, scale));
            }
            Field::Text(text) => self.text(text),
            Field::Bytes(bytes) => sure(self.0.bytes(bytes)),
            Field::Uuid(uuid) => self.written(|out| scalar::push_uuid(out, &uuid)),
        }
    }

    /// A text that is written in ASCII.
    fn written(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut text = Vec::with_capacity(48);
        write(&mut text);
        self.text(std::str::from_utf8(&text).expect("ASCII"));
    }
}
