//! CBOR (RFC 8949) as a [`TokenSource`], and where an item of a sequence (RFC 8742) ends.

use std::{borrow::Cow, ops::Range};

use minicbor::{Decoder, data::Type};

use super::{
    encode::{push_integer, quoted, write_f64, write_member_name, write_string},
    scalar,
    source::{DEPTH_MAX, DocumentToken, ItemsLeft, SyntaxError, Text, TokenSource},
};

/// A CBOR document.
pub struct Cbor<'t> {
    decoder: Decoder<'t>,
}

impl<'t> Cbor<'t> {
    /// The whole of a document.
    pub fn new(bytes: &'t [u8]) -> Self {
        Self {
            decoder: Decoder::new(bytes),
        }
    }

    #[cold]
    fn error<T>(&self, what: &'static str) -> Result<T, SyntaxError> {
        let at = self.decoder.position();
        Err(SyntaxError { what, at })
    }

    fn text(&mut self) -> Result<Text<'t>, SyntaxError> {
        let at = self.decoder.position();
        let read = match self.decoder.datatype() {
            Ok(Type::StringIndef) => self.decoder.str_iter().and_then(|pieces| {
                let joined: Result<String, _> = pieces.collect();
                Ok(Cow::Owned(joined?.into_bytes()))
            }),
            _ => self.decoder.str().map(|text| Cow::Borrowed(text.as_bytes())),
        };
        let what = "a text string that is cut off or not UTF-8";
        read.map(Text).map_err(|_| SyntaxError { what, at })
    }

    fn bytes(&mut self) -> Result<Cow<'t, [u8]>, SyntaxError> {
        let at = self.decoder.position();
        let read = match self.decoder.datatype() {
            Ok(Type::BytesIndef) => self.decoder.bytes_iter().and_then(|pieces| {
                let joined: Result<Vec<&[u8]>, _> = pieces.collect();
                Ok(Cow::Owned(joined?.concat()))
            }),
            _ => self.decoder.bytes().map(Cow::Borrowed),
        };
        let what = "a byte string that is cut off";
        read.map_err(|_| SyntaxError { what, at })
    }

    /// True at a list's or map's end.
    fn is_over(&mut self, items: &mut ItemsLeft) -> Result<bool, SyntaxError> {
        match &mut items.left {
            Some(0) => Ok(true),
            Some(left) => {
                *left -= 1;
                Ok(false)
            }
            None if matches!(self.decoder.datatype(), Ok(Type::Break)) => {
                self.decoder.set_position(self.decoder.position() + 1);
                Ok(true)
            }
            None => Ok(false),
        }
    }
}

impl Cbor<'_> {
    /// Writes the next item as JSON. Byte strings, NaN and the infinities become the strings that their types have in JSON.
    ///
    /// # Errors
    /// JSON has no such item: undefined, a simple value, or a map whose keys are no text. The caller must throw away the bytes written.
    pub fn write_json(&mut self, out: &mut Vec<u8>) -> Result<(), SyntaxError> {
        self.write_item(out, 0)
    }

    fn write_item(&mut self, out: &mut Vec<u8>, depth: usize) -> Result<(), SyntaxError> {
        if depth > DEPTH_MAX {
            return self.error("items inside items, deeper than any schema");
        }
        match self.token()? {
            DocumentToken::Null => out.extend_from_slice(b"null"),
            DocumentToken::Bool(value) => out.extend_from_slice(if value { b"true" } else { b"false" }),
            DocumentToken::Integer(value) => {
                // Many readers of JSON would make such a number a double, which is another number.
                let is_wide = u64::try_from(value).is_err() && i64::try_from(value).is_err();
                match is_wide {
                    true => quoted(out, |out| push_integer(out, value)),
                    false => push_integer(out, value),
                }
            }
            DocumentToken::Float(value) => write_f64(value, out),
            DocumentToken::Text(text) => write_string(text.as_str(), out),
            DocumentToken::Bytes(bytes) => quoted(out, |out| scalar::push_base64(out, &bytes)),
            DocumentToken::List(mut items) => {
                out.push(b'[');
                for index in 0.. {
                    if !self.next_item(&mut items)? {
                        break;
                    }
                    if index > 0 {
                        out.push(b',');
                    }
                    self.write_item(out, depth + 1)?;
                }
                out.push(b']');
            }
            DocumentToken::Map(mut items) => {
                out.push(b'{');
                for index in 0.. {
                    let Some(name) = self.next_name(&mut items)? else {
                        break;
                    };
                    write_member_name(index, name.as_str(), out);
                    self.write_item(out, depth + 1)?;
                }
                out.push(b'}');
            }
            DocumentToken::Number(_) | DocumentToken::Other(_) => return self.error("a value that JSON does not have"),
        }
        Ok(())
    }
}

fn begun(left: Option<u64>) -> ItemsLeft {
    ItemsLeft { left, is_first: true }
}

impl<'t> TokenSource<'t> for Cbor<'t> {
    fn token(&mut self) -> Result<DocumentToken<'t>, SyntaxError> {
        let at = self.decoder.position();
        let decoder = &mut self.decoder;
        let token = loop {
            break match decoder.datatype() {
                // A tag says how a value is meant; the schema says it already.
                Ok(Type::Tag) => match decoder.tag() {
                    Ok(_) => continue,
                    Err(error) => Err(error),
                },
                Ok(Type::Bool) => decoder.bool().map(DocumentToken::Bool),
                Ok(Type::Null) => decoder.null().map(|()| DocumentToken::Null),
                Ok(Type::Undefined) => decoder.undefined().map(|()| DocumentToken::Other("undefined")),
                Ok(Type::F16 | Type::F32 | Type::F64) => decoder.f64().map(DocumentToken::Float),
                Ok(Type::Simple) => decoder.simple().map(|_| DocumentToken::Other("a simple value")),
                Ok(Type::Array | Type::ArrayIndef) => decoder.array().map(|left| DocumentToken::List(begun(left))),
                Ok(Type::Map | Type::MapIndef) => decoder.map().map(|left| DocumentToken::Map(begun(left))),
                Ok(Type::String | Type::StringIndef) => return Ok(DocumentToken::Text(self.text()?)),
                Ok(Type::Bytes | Type::BytesIndef) => return Ok(DocumentToken::Bytes(self.bytes()?)),
                Ok(Type::Break | Type::Unknown(_)) => return self.error("no CBOR data item"),
                Ok(_) => decoder.int().map(|int| DocumentToken::Integer(int.into())),
                Err(error) => Err(error),
            };
        };
        token.map_err(|error| {
            let what = match error.is_end_of_input() {
                true => "the data ends inside an item",
                false => "no CBOR data item",
            };
            SyntaxError { what, at }
        })
    }

    fn next_item(&mut self, items: &mut ItemsLeft) -> Result<bool, SyntaxError> {
        Ok(!self.is_over(items)?)
    }

    fn next_name(&mut self, items: &mut ItemsLeft) -> Result<Option<Text<'t>>, SyntaxError> {
        if self.is_over(items)? {
            return Ok(None);
        }
        match self.decoder.datatype() {
            Ok(Type::String | Type::StringIndef) => self.text().map(Some),
            _ => self.error("a map's key that is no text string"),
        }
    }

    fn next_name_is(&mut self, _: &mut ItemsLeft, _: &str) -> bool {
        false
    }

    fn skip(&mut self) -> Result<(), SyntaxError> {
        self.raw().map(drop)
    }

    fn raw(&mut self) -> Result<Range<usize>, SyntaxError> {
        let start = self.decoder.position();
        let mut scanner = ItemScanner::at(start);
        match scanner.advance(self.decoder.input())? {
            Some(end) => {
                self.decoder.set_position(end);
                Ok(start..end)
            }
            None => self.error("the data ends inside an item"),
        }
    }

    fn end(&mut self) -> Result<(), SyntaxError> {
        if self.decoder.position() < self.decoder.input().len() {
            return self.error("something after the end of the item");
        }
        Ok(())
    }

    fn position(&self) -> usize {
        self.decoder.position()
    }

    fn copy_read(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.decoder.input()[..self.decoder.position()]);
    }
}

/// The container of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inside {
    /// Items still to come.
    Counted(u64),
    List,
    /// True while a value is due.
    Map(bool),
    /// Pieces of a string of this major type.
    Pieces(u8),
}

/// Finds the end of an item, and continues there when more bytes arrive: no byte is read twice.
#[derive(Debug, Default)]
pub struct ItemScanner {
    at: usize,
    inside: Vec<Inside>,
    after_tag: bool,
}

const BREAK: u8 = 0xff;

impl ItemScanner {
    fn at(at: usize) -> Self {
        Self { at, ..Self::default() }
    }

    /// Returns the end of the item in `bytes`, which begin as they did before. None: the item has no end yet. After an end the scanner
    /// stands at the next item.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<Option<usize>, SyntaxError> {
        loop {
            let Some((first, argument, head)) = self.head(bytes)? else {
                return Ok(None);
            };
            let is_whole = if first == BREAK {
                self.end_inside()?;
                true
            } else {
                let (major, is_open) = (first >> 5, first & 31 == 31);
                if let Some(Inside::Pieces(of)) = self.inside.last()
                    && (major != *of || is_open)
                {
                    return self.error("a string in pieces of another type");
                }
                match major {
                    2 | 3 if is_open => self.enter(Inside::Pieces(major))?,
                    2 | 3 => {
                        let length = usize::try_from(argument).unwrap_or(usize::MAX);
                        if bytes.len() - self.at - head < length {
                            return Ok(None);
                        }
                        self.at += length;
                        true
                    }
                    4 if is_open => self.enter(Inside::List)?,
                    5 if is_open => self.enter(Inside::Map(false))?,
                    4 | 5 if argument == 0 => true,
                    4 => self.enter(Inside::Counted(argument))?,
                    5 => self.enter(Inside::Counted(argument.saturating_mul(2)))?,
                    6 => false,
                    _ => true,
                }
            };
            self.after_tag = first >> 5 == 6;
            self.at += head;
            if is_whole && self.leave_whole() {
                return Ok(Some(self.at));
            }
        }
    }

    /// The first `count` bytes are gone from what `advance` is given.
    pub fn forget(&mut self, count: usize) {
        self.at -= count;
    }

    #[cold]
    fn error<T>(&self, what: &'static str) -> Result<T, SyntaxError> {
        Err(SyntaxError { what, at: self.at })
    }

    /// First byte, argument and length of the next head; None while it is not there whole.
    fn head(&self, bytes: &[u8]) -> Result<Option<(u8, u64, usize)>, SyntaxError> {
        let rest = &bytes[self.at..];
        let Some(&first) = rest.first() else {
            return Ok(None);
        };
        let info = first & 31;
        let width = match info {
            0..=23 => return Ok(Some((first, info as u64, 1))),
            24..=27 => 1 << (info - 24),
            31 if matches!(first >> 5, 2..=5 | 7) => return Ok(Some((first, 0, 1))),
            _ => return self.error("no CBOR data item"),
        };
        let Some(argument) = rest.get(1..1 + width) else {
            return Ok(None);
        };
        let argument = argument.iter().fold(0, |value, byte| value << 8 | *byte as u64);
        if first == 0xf8 && argument < 32 {
            return self.error("no CBOR data item");
        }
        Ok(Some((first, argument, 1 + width)))
    }

    fn enter(&mut self, inside: Inside) -> Result<bool, SyntaxError> {
        if self.inside.len() >= DEPTH_MAX {
            return self.error("items inside items, deeper than any schema");
        }
        self.inside.push(inside);
        Ok(false)
    }

    fn end_inside(&mut self) -> Result<(), SyntaxError> {
        match self.inside.last() {
            Some(Inside::List | Inside::Map(false) | Inside::Pieces(_)) if !self.after_tag => {
                self.inside.pop();
                Ok(())
            }
            _ => self.error("an end of nothing"),
        }
    }

    /// Counts an item; true when nothing is open any more.
    fn leave_whole(&mut self) -> bool {
        loop {
            match self.inside.last_mut() {
                None => return true,
                Some(Inside::Counted(1)) => {
                    self.inside.pop();
                }
                Some(Inside::Counted(left)) => {
                    *left -= 1;
                    return false;
                }
                Some(Inside::Map(is_value_due)) => {
                    *is_value_due = !*is_value_due;
                    return false;
                }
                Some(Inside::List | Inside::Pieces(_)) => return false,
            }
        }
    }
}
