//! JSON (RFC 8259) as a [`TokenSource`].

use std::{borrow::Cow, ops::Range};

use super::source::{DEPTH_MAX, DocumentToken, ItemsLeft, SyntaxError, Text, TokenSource};

/// The form in UTF-8, with which some editors and shells begin each file.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Digits that a `u64` surely holds.
const SHORT_DIGITS_MAX: usize = 18;

/// A JSON document.
pub struct JsonSource<'t> {
    text: &'t [u8],
    at: usize,
}

impl<'t> JsonSource<'t> {
    /// The whole of a document.
    pub fn new(text: &'t [u8]) -> Self {
        Self { text, at: 0 }
    }

    /// Begins in the middle. The caller knows the text before.
    pub fn new_at(text: &'t [u8], at: usize) -> Self {
        Self { text, at }
    }

    #[cold]
    fn error<T>(&self, what: &'static str) -> Result<T, SyntaxError> {
        Err(SyntaxError { what, at: self.at })
    }

    /// The first byte that is no white space; 0, which no JSON has, at the end.
    #[inline]
    fn peek(&mut self) -> u8 {
        while let Some(&byte) = self.text.get(self.at) {
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return byte;
            }
            self.at += 1;
        }
        0
    }

    #[inline]
    fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), SyntaxError> {
        if self.peek() != byte {
            return self.error(what);
        }
        self.at += 1;
        Ok(())
    }

    fn literal(&mut self, word: &'static str) -> Result<(), SyntaxError> {
        if !self.text[self.at..].starts_with(word.as_bytes()) {
            return self.error("expected a value");
        }
        self.at += word.len();
        Ok(())
    }

    /// A string whose opening quote is next.
    #[inline]
    fn string(&mut self) -> Result<Text<'t>, SyntaxError> {
        let start = self.at + 1;
        let mut at = start;
        let mut high = 0;
        while let Some(&byte) = self.text.get(at) {
            if byte == b'"' {
                let bytes = &self.text[start..at];
                if high >= 0x80 && std::str::from_utf8(bytes).is_err() {
                    return self.error("a string that is not UTF-8");
                }
                self.at = at + 1;
                return Ok(Text(Cow::Borrowed(bytes)));
            }
            if byte == b'\\' {
                return self.escaped_string(start, at);
            }
            if byte < 0x20 {
                self.at = at;
                return self.error("a control character in a string");
            }
            high |= byte;
            at += 1;
        }
        self.error("a string without end")
    }

    /// The rest of a string that has its first escape at `escape`.
    #[cold]
    fn escaped_string(&mut self, start: usize, escape: usize) -> Result<Text<'t>, SyntaxError> {
        let mut out = self.text[start..escape].to_vec();
        self.at = escape;
        loop {
            let Some(&byte) = self.text.get(self.at) else {
                return self.error("a string without end");
            };
            match byte {
                b'"' => break,
                b'\\' => self.escape(&mut out)?,
                0..0x20 => return self.error("a control character in a string"),
                _ => {
                    out.push(byte);
                    self.at += 1;
                }
            }
        }
        if std::str::from_utf8(&out).is_err() {
            return self.error("a string that is not UTF-8");
        }
        self.at += 1;
        Ok(Text(Cow::Owned(out)))
    }

    fn escape(&mut self, out: &mut Vec<u8>) -> Result<(), SyntaxError> {
        let plain = match self.text.get(self.at + 1) {
            Some(byte @ (b'"' | b'\\' | b'/')) => *byte,
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'u') => return self.unicode_escape(out),
            _ => return self.error("an unknown escape in a string"),
        };
        out.push(plain);
        self.at += 2;
        Ok(())
    }

    fn unicode_escape(&mut self, out: &mut Vec<u8>) -> Result<(), SyntaxError> {
        let mut unit = self.hex4(self.at + 2)?;
        let mut length = 6;
        if (0xd800..0xdc00).contains(&unit) && self.text[self.at + 6..].starts_with(b"\\u") {
            let low = self.hex4(self.at + 8)?;
            if (0xdc00..0xe000).contains(&low) {
                unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
                length = 12;
            }
        }
        let Some(character) = char::from_u32(unit) else {
            return self.error("half of a surrogate pair in a string");
        };
        out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        self.at += length;
        Ok(())
    }

    fn hex4(&self, at: usize) -> Result<u32, SyntaxError> {
        let digits = self.text.get(at..at + 4).unwrap_or_default();
        let value = digits
            .iter()
            .try_fold(0, |value, byte| Some(value << 4 | (*byte as char).to_digit(16)?));
        match value {
            Some(value) if digits.len() == 4 => Ok(value),
            _ => self.error("an escape without four hexadecimal digits"),
        }
    }

    #[inline]
    fn number(&mut self) -> Result<DocumentToken<'t>, SyntaxError> {
        let start = self.at;
        let is_negative = self.text[start] == b'-';
        let digits_start = start + is_negative as usize;
        let mut at = digits_start;
        let mut value = 0u64;
        while let Some(byte) = self.text.get(at)
            && byte.is_ascii_digit()
        {
            value = value.wrapping_mul(10).wrapping_add((byte - b'0') as u64);
            at += 1;
        }
        let digits = at - digits_start;
        self.at = at;
        let begins_with_zero = self.text.get(digits_start) == Some(&b'0');
        if digits == 0 || begins_with_zero && digits > 1 {
            return self.error("a number that is none");
        }
        let goes_on = matches!(self.text.get(at), Some(b'.' | b'e' | b'E'));
        // Minus zero is another number than zero, for a float.
        if goes_on || digits > SHORT_DIGITS_MAX || is_negative && value == 0 {
            return self.long_number(start);
        }
        let value = value as i64;
        Ok(DocumentToken::Integer(if is_negative { -value } else { value } as i128))
    }

    /// Fraction and exponent of a number whose whole digits were read.
    fn long_number(&mut self, start: usize) -> Result<DocumentToken<'t>, SyntaxError> {
        if self.text.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.text.get(self.at) {
            self.at += 1;
            if let Some(b'+' | b'-') = self.text.get(self.at) {
                self.at += 1;
            }
            self.digits()?;
        }
        let text = std::str::from_utf8(&self.text[start..self.at]);
        Ok(DocumentToken::Number(text.expect("digits and signs")))
    }

    fn digits(&mut self) -> Result<(), SyntaxError> {
        let rest = &self.text[self.at..];
        let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if count == 0 {
            return self.error("a number that is none");
        }
        self.at += count;
        Ok(())
    }

    fn skip_value(&mut self, depth: usize) -> Result<(), SyntaxError> {
        if depth > DEPTH_MAX {
            return self.error("values inside values, deeper than any schema");
        }
        match self.token()? {
            DocumentToken::List(mut items) => {
                while self.next_item(&mut items)? {
                    self.skip_value(depth + 1)?;
                }
            }
            DocumentToken::Map(mut items) => {
                while self.next_name(&mut items)?.is_some() {
                    self.skip_value(depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

const BEGUN: ItemsLeft = ItemsLeft {
    left: None,
    is_first: true,
};

impl<'t> TokenSource<'t> for JsonSource<'t> {
    #[inline]
    fn token(&mut self) -> Result<DocumentToken<'t>, SyntaxError> {
        Ok(match self.peek() {
            b'"' => DocumentToken::Text(self.string()?),
            b'-' | b'0'..=b'9' => self.number()?,
            b'{' => {
                self.at += 1;
                DocumentToken::Map(BEGUN)
            }
            b'[' => {
                self.at += 1;
                DocumentToken::List(BEGUN)
            }
            b'n' => {
                self.literal("null")?;
                DocumentToken::Null
            }
            b't' => {
                self.literal("true")?;
                DocumentToken::Bool(true)
            }
            b'f' => {
                self.literal("false")?;
                DocumentToken::Bool(false)
            }
            0 if self.at == self.text.len() => {
                return self.error("the text ends where a value is due");
            }
            _ if self.text[self.at..].starts_with(BYTE_ORDER_MARK) => {
                return self.error("a byte order mark, which JSON does not have (send UTF-8 without a BOM),");
            }
            _ => return self.error("expected a value"),
        })
    }

    fn next_item(&mut self, items: &mut ItemsLeft) -> Result<bool, SyntaxError> {
        let next = self.peek();
        if next == b']' {
            self.at += 1;
            return Ok(false);
        }
        if !std::mem::take(&mut items.is_first) {
            self.expect(b',', "expected , or ]")?;
            if self.peek() == b']' {
                return self.error("a comma before ]");
            }
        }
        Ok(true)
    }

    fn next_name(&mut self, items: &mut ItemsLeft) -> Result<Option<Text<'t>>, SyntaxError> {
        let mut next = self.peek();
        if next == b'}' {
            self.at += 1;
            return Ok(None);
        }
        if !std::mem::take(&mut items.is_first) {
            self.expect(b',', "expected , or }")?;
            next = self.peek();
        }
        if next != b'"' {
            return self.error("expected a member's name");
        }
        let name = self.string()?;
        self.expect(b':', "expected : after a member's name")?;
        Ok(Some(name))
    }

    /// Only in the densest form, which programs write.
    #[inline]
    fn next_name_is(&mut self, items: &mut ItemsLeft, name: &str) -> bool {
        let mut at = self.at;
        if !items.is_first {
            if self.text.get(at) != Some(&b',') {
                return false;
            }
            at += 1;
        }
        let Some(after) = self.text[at..]
            .strip_prefix(b"\"")
            .and_then(|rest| rest.strip_prefix(name.as_bytes()))
            .and_then(|rest| rest.strip_prefix(b"\":"))
        else {
            return false;
        };
        self.at = self.text.len() - after.len();
        items.is_first = false;
        true
    }

    fn skip(&mut self) -> Result<(), SyntaxError> {
        self.skip_value(0)
    }

    fn raw(&mut self) -> Result<Range<usize>, SyntaxError> {
        self.peek();
        let start = self.at;
        self.skip()?;
        Ok(start..self.at)
    }

    fn end(&mut self) -> Result<(), SyntaxError> {
        self.peek();
        if self.at < self.text.len() {
            return self.error("something after the end of the value");
        }
        Ok(())
    }

    fn position(&self) -> usize {
        self.at
    }

    fn copy_read(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.text[..self.at]);
    }
}
