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

/// Appends the canonical form of a whole document. Err: it is no document of its format.
pub fn push_canonical(format: Format, document: &[u8], out: &mut Vec<u8>) -> Result<(), SyntaxError> {
    match format {
        Format::Json if document.trim_ascii().is_empty() => push_whole(JsonSource::new(b"{}"), out),
        Format::Json => push_whole(JsonSource::new(document), out),
        Format::Cbor if document.is_empty() => push_whole(JsonSource::new(b"{}"), out),
        Format::Cbor => push_whole(Cbor::new(document), out),
    }
}

fn push_whole<'t>(mut source: impl TokenSource<'t>, out: &mut Vec<u8>) -> Result<(), SyntaxError> {
    let token = source.token()?;
    push_value(token, &mut source, out, 0)?;
    source.end()
}

fn push_value<'t, S: TokenSource<'t>>(
    token: DocumentToken<'t>,
    source: &mut S,
    out: &mut Vec<u8>,
    depth: usize,
) -> Result<(), SyntaxError> {
    if depth > DEPTH_MAX {
        return Err(SyntaxError {
            what: "values inside values, deeper than any schema",
            at: source.position(),
        });
    }
    match token {
        DocumentToken::Null => out.push(NULL),
        DocumentToken::Bool(value) => out.push(if value { TRUE } else { FALSE }),
        DocumentToken::Integer(value) => push_number(&value.to_string(), out),
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
                push_value(token, source, out, depth + 1)?;
                count += 1;
            }
            end(at, count, out);
        }
        DocumentToken::Map(mut items) => {
            let mut members: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
            while let Some(name) = source.next_name(&mut items)? {
                let name = name.as_bytes().to_vec();
                let token = source.token()?;
                if let DocumentToken::Null = token {
                    continue;
                }
                let mut value = Vec::new();
                push_value(token, source, &mut value, depth + 1)?;
                members.push((name, value));
            }
            members.sort_unstable();
            let at = begin(MAP, out);
            for (name, value) in &members {
                push_bytes(TEXT, name, out);
                out.extend_from_slice(value);
            }
            end(at, members.len(), out);
        }
        DocumentToken::Other(_) => out.push(NULL),
    }
    Ok(())
}

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

/// Sign, digits without zeros at their ends, and the power of ten behind them: one form for one value.
fn push_number(text: &str, out: &mut Vec<u8>) {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (sign, digits) = match mantissa.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", mantissa),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all = [whole, fraction].concat();
    let shown = all.trim_start_matches('0');
    let significant = shown.trim_end_matches('0');
    if significant.is_empty() {
        return push_bytes(NUMBER, format!("{sign}0").as_bytes(), out);
    }
    let zeros = (shown.len() - significant.len()) as i128;
    // An exponent that no integer holds stays as it is written: no parameter takes such a number.
    let form = match exponent.parse::<i128>() {
        Ok(exponent) => {
            let power = exponent.saturating_add(zeros).saturating_sub(fraction.len() as i128);
            format!("{sign}{significant}e{power}")
        }
        Err(_) => text.to_owned(),
    };
    push_bytes(NUMBER, form.as_bytes(), out);
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
    fn text_that_is_no_document_has_no_form() {
        for text in ["{", "{\"a\":01}", "1 2", "nul", &"[".repeat(200)] {
            assert!(
                push_canonical(Format::Json, text.as_bytes(), &mut Vec::new()).is_err(),
                "{text}"
            );
        }
    }
}
