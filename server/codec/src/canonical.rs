//! The canonical form of a document: the same bytes for all documents of one meaning, whatever schema is in service.
//!
//! | document | form |
//! | --- | --- |
//! | object | members sorted by name; one that is null is left out, for a parameter that is null may be left out |
//! | array | its items in order, null among them |
//! | number | its exact decimal value, so that 1, 1.0, 1e0 and the CBOR float 1.0 are one; -0 is another than 0 |
//! | string | its characters without escapes; "1" is another value than 1 |
//! | byte string | its bytes, another value than a string |
//! | nothing but white space | an empty object |

use crate::{
    cbor::Cbor,
    document::Format,
    source::{DEPTH_MAX, DocumentToken, SyntaxError, TokenSource},
    text::JsonSource,
};

/// First byte of a value. A length or a count of 4 bytes follows all but the first three.
const NULL: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const NUMBER: u8 = 3;
const TEXT: u8 = 4;
const BYTES: u8 = 5;
const LIST: u8 = 6;
const MAP: u8 = 7;

/// Bytes that may be sorted for each byte of a document, and for any document. Objects inside objects sort the innermost values once for each
/// object around them that is out of order.
const SORTED_PER_BYTE: usize = 64;
const SORTED_BYTES_SURE: usize = 64 << 10;

/// Appends the canonical form of a whole document. Err: it is no document of its format, or too much of it has to be sorted.
pub fn push_canonical(format: Format, document: &[u8], out: &mut Vec<u8>) -> Result<(), SyntaxError> {
    match format {
        Format::Json if document.trim_ascii().is_empty() => push_whole(JsonSource::new(b"{}"), 0, out),
        Format::Json => push_whole(JsonSource::new(document), document.len(), out),
        Format::Cbor if document.is_empty() => push_whole(JsonSource::new(b"{}"), 0, out),
        Format::Cbor => push_whole(Cbor::new(document), document.len(), out),
    }
}

fn push_whole<'t>(mut source: impl TokenSource<'t>, bytes: usize, out: &mut Vec<u8>) -> Result<(), SyntaxError> {
    let token = source.token()?;
    let mut canonical = Canonical {
        out,
        sorted_max: SORTED_PER_BYTE * bytes + SORTED_BYTES_SURE,
    };
    canonical.push_value(token, &mut source, 0)?;
    source.end()
}

/// The form as far as it is appended, and how many bytes of it may yet be sorted.
struct Canonical<'o> {
    out: &'o mut Vec<u8>,
    sorted_max: usize,
}

impl Canonical<'_> {
    fn push_value<'t, S: TokenSource<'t>>(
        &mut self,
        token: DocumentToken<'t>,
        source: &mut S,
        depth: usize,
    ) -> Result<(), SyntaxError> {
        if depth > DEPTH_MAX {
            return Err(SyntaxError {
                what: "values inside values, deeper than any schema",
                at: source.position(),
            });
        }
        let out = &mut *self.out;
        match token {
            DocumentToken::Null => out.push(NULL),
            DocumentToken::Bool(value) => out.push(if value { TRUE } else { FALSE }),
            DocumentToken::Integer(value) => push_integer(value < 0, Digits::of(value.unsigned_abs()).as_str(), out),
            DocumentToken::Number(text) => push_number(text, out),
            DocumentToken::Float(value) if value.is_finite() => push_number(&format!("{value:e}"), out),
            // JSON has these values as strings.
            DocumentToken::Float(value) => {
                let name = match (value.is_nan(), value > 0.0) {
                    (true, _) => "NaN",
                    (false, true) => "Infinity",
                    (false, false) => "-Infinity",
                };
                push_bytes(TEXT, name.as_bytes(), out);
            }
            DocumentToken::Text(text) => push_bytes(TEXT, text.as_bytes(), out),
            DocumentToken::Bytes(bytes) => push_bytes(BYTES, &bytes, out),
            DocumentToken::List(mut items) => {
                let at = begin(LIST, out);
                let mut count = 0;
                while source.next_item(&mut items)? {
                    let token = source.token()?;
                    self.push_value(token, source, depth + 1)?;
                    count += 1;
                }
                end(at, count, self.out);
            }
            DocumentToken::Map(mut items) => {
                let at = begin(MAP, out);
                let mut members = MembersInOrder::begin(out);
                while let Some(name) = source.next_name(&mut items)? {
                    let member = self.out.len();
                    push_bytes(TEXT, name.as_bytes(), self.out);
                    let value = self.out.len();
                    let token = source.token()?;
                    if let DocumentToken::Null = token {
                        self.out.truncate(member);
                        continue;
                    }
                    self.push_value(token, source, depth + 1)?;
                    members.add(member, value, self.out);
                }
                if !members.is_sorted {
                    let left = self.sorted_max.checked_sub(self.out.len() - members.begins);
                    self.sorted_max = left.ok_or_else(|| SyntaxError {
                        what: "objects inside objects whose members are out of order: too much to sort",
                        at: source.position(),
                    })?;
                }
                let count = members.end(self.out);
                end(at, count, self.out);
            }
            DocumentToken::Other(_) => out.push(NULL),
        }
        Ok(())
    }
}

/// Bytes of a value's kind and count.
const HEAD_BYTES: usize = 5;

fn begin(kind: u8, out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&[kind, 0, 0, 0, 0]);
    out.len()
}

/// Puts the count before what began at `at`.
fn end(at: usize, count: usize, out: &mut [u8]) {
    out[at - 4..at].copy_from_slice(&(count as u32).to_le_bytes());
}

fn push_bytes(kind: u8, bytes: &[u8], out: &mut Vec<u8>) {
    let at = begin(kind, out);
    out.extend_from_slice(bytes);
    end(at, bytes.len(), out);
}

/// The members of an object, as they are appended. Clients send most objects in one order, so they are sorted at the end, and only if they must be.
struct MembersInOrder {
    begins: usize,
    count: usize,
    last: Option<MemberPlace>,
    is_sorted: bool,
}

/// Offsets of a member's name and value. The member ends where the next one begins.
#[derive(Clone, Copy)]
struct MemberPlace {
    name: usize,
    value: usize,
    end: usize,
}

impl MemberPlace {
    /// Returns name and value, by which members are sorted.
    fn key<'o>(&self, out: &'o [u8]) -> (&'o [u8], &'o [u8]) {
        let name = self.name + HEAD_BYTES..self.value;
        (&out[name], &out[self.value..self.end])
    }

    /// Returns the member at this offset of whole members.
    fn at(name: usize, out: &[u8]) -> Self {
        let value = name + whole_bytes(&out[name..]);
        let end = value + whole_bytes(&out[value..]);
        Self { name, value, end }
    }
}

/// Returns the bytes of the value in canonical form with which `bytes` begins.
fn whole_bytes(bytes: &[u8]) -> usize {
    if matches!(bytes[0], NULL | FALSE | TRUE) {
        return 1;
    }
    let count = u32::from_le_bytes(bytes[1..HEAD_BYTES].try_into().expect("four bytes")) as usize;
    let inner = match bytes[0] {
        LIST => count,
        MAP => 2 * count,
        _ => return HEAD_BYTES + count,
    };
    (0..inner).fold(HEAD_BYTES, |at, _| at + whole_bytes(&bytes[at..]))
}

impl MembersInOrder {
    fn begin(out: &[u8]) -> Self {
        Self {
            begins: out.len(),
            count: 0,
            last: None,
            is_sorted: true,
        }
    }

    /// Adds the member whose name and value were just appended.
    fn add(&mut self, name: usize, value: usize, out: &[u8]) {
        let end = out.len();
        let member = MemberPlace { name, value, end };
        let is_next = self.last.is_none_or(|last| last.key(out) <= member.key(out));
        self.is_sorted &= is_next;
        (self.count, self.last) = (self.count + 1, Some(member));
    }

    /// Sorts the members. Returns their number.
    fn end(self, out: &mut [u8]) -> usize {
        if !self.is_sorted {
            let written = out[self.begins..].to_vec();
            let mut members: Vec<MemberPlace> = Vec::with_capacity(self.count);
            while members.len() < self.count {
                members.push(MemberPlace::at(members.last().map_or(0, |last| last.end), &written));
            }
            members.sort_unstable_by(|one, other| one.key(&written).cmp(&other.key(&written)));
            let mut at = self.begins;
            for member in members {
                let bytes = &written[member.name..member.end];
                out[at..at + bytes.len()].copy_from_slice(bytes);
                at += bytes.len();
            }
        }
        self.count
    }
}

/// The decimal digits of a number.
struct Digits {
    text: [u8; 39],
    begins: usize,
}

impl Digits {
    fn of(mut value: u128) -> Self {
        let mut digits = Self {
            text: [b'0'; 39],
            begins: 39,
        };
        while value > u128::from(u64::MAX) {
            digits.push((value % 10) as u8);
            value /= 10;
        }
        let mut value = value as u64;
        while value > 0 {
            digits.push((value % 10) as u8);
            value /= 10;
        }
        digits
    }

    fn push(&mut self, digit: u8) {
        self.begins -= 1;
        self.text[self.begins] = b'0' + digit;
    }

    /// Returns the digits; none for 0.
    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text[self.begins..]).expect("digits")
    }
}

/// Sign, digits without zeros at their ends, and the power of ten behind them: one form for one value.
fn push_number(text: &str, out: &mut Vec<u8>) {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return push_integer(sign, digits, out);
    }
    let (mantissa, exponent) = digits.split_once(['e', 'E']).unwrap_or((digits, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = [whole, fraction].concat();
    // An exponent that no integer holds stays as it is written: no parameter takes such a number.
    let Ok(exponent) = exponent.parse::<i128>() else {
        if all.trim_matches('0').is_empty() {
            return push_integer(sign, "", out);
        }
        return push_bytes(NUMBER, text.as_bytes(), out);
    };
    push_decimal(sign, &all, exponent.saturating_sub(fraction.len() as i128), out);
}

fn push_integer(is_negative: bool, digits: &str, out: &mut Vec<u8>) {
    push_decimal(is_negative, digits, 0, out);
}

/// Appends the number with these digits times ten to this power.
fn push_decimal(is_negative: bool, digits: &str, power: i128, out: &mut Vec<u8>) {
    let shown = digits.trim_start_matches('0');
    let significant = shown.trim_end_matches('0');
    let power = power.saturating_add((shown.len() - significant.len()) as i128);
    let at = begin(NUMBER, out);
    if is_negative {
        out.push(b'-');
    }
    match (significant, power) {
        ("", _) => out.push(b'0'),
        (_, 0..10) => {
            out.extend_from_slice(significant.as_bytes());
            out.extend_from_slice(&[b'e', b'0' + power as u8]);
        }
        _ => out.extend_from_slice(format!("{significant}e{power}").as_bytes()),
    }
    end(at, out.len() - at, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        push_canonical(Format::Json, text.as_bytes(), &mut out).unwrap_or_else(|error| panic!("{text}: {error}"));
        out
    }

    fn of_cbor(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        push_canonical(Format::Cbor, bytes, &mut out).expect("a document");
        out
    }

    fn head(kind: u8, count: usize) -> Vec<u8> {
        [&[kind][..], &(count as u32).to_le_bytes()].concat()
    }

    fn text(text: &str) -> Vec<u8> {
        [&head(TEXT, text.len())[..], text.as_bytes()].concat()
    }

    fn number(form: &str) -> Vec<u8> {
        [&head(NUMBER, form.len())[..], form.as_bytes()].concat()
    }

    /// Logs hold digests of this form, so it is one for all versions.
    #[test]
    fn form_has_these_bytes_in_every_version() {
        for (document, form) in [
            ("-1200", "-12e2"),
            ("7", "7e0"),
            ("0", "0"),
            ("-0", "-0"),
            ("0.05", "5e-2"),
            ("12e400", "12e400"),
            ("10000000000000000000000000000000000000", "1e37"),
            (
                "1e99999999999999999999999999999999999999999",
                "1e99999999999999999999999999999999999999999",
            ),
            ("0e99999999999999999999999999999999999999999", "0"),
        ] {
            assert_eq!(canonical(document), number(form), "{document}");
        }
        let inner = [head(MAP, 2), text("y"), vec![TRUE], text("z"), number("1e0")].concat();
        let list = [head(LIST, 2), vec![NULL], text("é")].concat();
        let expected = [
            head(MAP, 4),
            [text(""), vec![FALSE]].concat(),
            [text("a"), inner].concat(),
            [text("ab"), list].concat(),
            [text("b"), text("")].concat(),
        ];
        let document = r#"{"b":"","n":null,"a":{"z":1,"y":true},"ab":[null,"\u00e9"],"":false}"#;
        assert_eq!(canonical(document), expected.concat());
    }

    #[test]
    fn members_are_sorted_by_name_and_equal_names_by_value() {
        let sorted = canonical(r#"{"a":2,"a":[{"x":1,"y":{"p":1,"q":2}}],"aa":3,"b":{},"c":"b"}"#);
        for other in [
            r#"{"b":{},"aa":3,"c":"b","a":2,"a":[{"y":{"q":2,"p":1},"x":1}]}"#,
            r#"{"c":"b","b":{},"aa":3,"a":[{"y":{"q":2,"p":1},"x":1}],"a":2}"#,
            r#"{"a":2,"aa":3,"a":[{"x":1,"y":{"q":2,"p":1}}],"b":{},"c":"b"}"#,
        ] {
            assert_eq!(canonical(other), sorted, "{other}");
        }
    }

    #[test]
    fn documents_that_ask_for_the_same_have_one_form() {
        for alike in [
            &["{}", "", "  ", "{\"a\": null}", " { } "][..],
            &[
                "{\"a\":1,\"b\":[2,null]}",
                "{ \"b\": [2.0, null], \"\\u0061\": 1e0, \"c\": null }",
            ],
            &["1", "1.0", "1e0", "10e-1", "0.1E+1", "100e-2"],
            &["-2500", "-2.5e3", "-25e2"],
            &["0", "0.0", "0e7"],
            &["-0", "-0.0"],
            &[
                "12345678901234567890",
                "12345678901234567890.0",
                "1.234567890123456789e19",
            ],
            &["\"é\"", "\"\\u00e9\""],
        ] {
            for text in alike {
                assert_eq!(canonical(text), canonical(alike[0]), "{text:?} and {:?}", alike[0]);
            }
        }
    }

    #[test]
    fn documents_that_differ_have_different_forms() {
        let all = [
            "{}",
            "{\"a\":1}",
            "{\"b\":1}",
            "{\"a\":2}",
            "{\"a\":\"1\"}",
            "{\"a\":[1]}",
            "{\"a\":[1,null]}",
            "{\"a\":[[1]]}",
            "{\"a\":{\"b\":1}}",
            "{\"a\":true}",
            "{\"a\":false}",
            "{\"a\":\"\"}",
            "{\"a\":0}",
            "{\"a\":-0}",
            "{\"a\":10}",
            "{\"a\":0.1}",
            "{\"a\":\"a\\u0000\"}",
            "{\"a\":1,\"b\":1}",
            "{\"a\":1e400}",
            "{\"a\":1e401}",
        ];
        for (at, one) in all.iter().enumerate() {
            for other in &all[..at] {
                assert_ne!(canonical(one), canonical(other), "{one} and {other}");
            }
        }
    }

    #[test]
    fn cbor_has_the_form_of_json() {
        // {"a": 1, "b": 2.5}, in either order, the integer as a float too.
        let text = canonical("{\"a\":1,\"b\":2.5}");
        assert_eq!(of_cbor(b"\xa2\x61a\x01\x61b\xf9\x41\x00"), text);
        assert_eq!(of_cbor(b"\xa2\x61b\xf9\x41\x00\x61a\xf9\x3c\x00"), text);
        assert_eq!(of_cbor(b""), canonical("{}"));
        assert_eq!(of_cbor(b"\xa1\x61a\xf9\x7e\x00"), canonical("{\"a\":\"NaN\"}"));
        assert_ne!(of_cbor(b"\xa1\x61a\x41x"), canonical("{\"a\":\"x\"}"));
    }

    #[test]
    fn what_has_to_be_sorted_again_and_again_is_bounded() {
        let nested = |depth: usize| {
            let zeros = vec!["0"; 100_000].join(",");
            format!("{}[{zeros}]{}", r#"{"b":"#.repeat(depth), r#","a":0}"#.repeat(depth))
        };
        let mut out = Vec::new();
        let push = |text: &str, out: &mut Vec<u8>| push_canonical(Format::Json, text.as_bytes(), out);
        push(&nested(3), &mut out).expect("as schemas are");
        let error = push(&nested(100), &mut out).expect_err("each object sorts all of it");
        assert!(error.what.contains("too much to sort"), "{error}");
    }

    #[test]
    fn text_that_is_no_document_has_no_form() {
        for text in ["{", "{\"a\":01}", "1 2", "nul", &"[".repeat(200)] {
            assert!(
                push_canonical(Format::Json, text.as_bytes(), &mut Vec::new()).is_err(),
                "{text}"
            );
        }
    }
}
