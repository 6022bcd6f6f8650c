//! Round trips through JSON, and refused inputs.

use expect_test::{Expect, expect};
use proptest::prelude::*;
use reprise_abi::{
    ColumnSchema, Field, Parameter, RowLayout, ScalarType, StructField, Type, key,
    value::{self, ValueReader},
};

use super::{
    ArgsError, ArgsScratch, Cbor, Format, ItemScanner, JsonSource, Packer, encode_document, encode_prefix, scalar,
    write_arguments, write_row,
};

fn encode_args(
    params: &[Parameter],
    json: &[u8],
    out: &mut Vec<u8>,
    scratch: &mut ArgsScratch,
) -> Result<(), ArgsError> {
    encode_document(Format::Json, params, json, out, scratch)
}

fn pack_arguments(params: &[Parameter], args: &[u8], out: &mut Vec<u8>) {
    let mut reader = ValueReader::new(args);
    let mut packer = Packer::new(out);
    packer.map(params.len() as u64);
    for param in params {
        packer.text(&param.name);
        packer.value(&param.ty, &mut reader).expect("valid arguments");
    }
}

/// SplitMix64: types and values grow out of one seed, so a failure shrinks to a number.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn scalar(&mut self) -> ScalarType {
        use ScalarType::*;
        let scale = self.below(39) as u8;
        let decimal = Decimal { scale };
        let all = [
            Bool, I8, I16, I32, I64, U8, U16, U32, U64, F64, decimal, Text, Bytes, Timestamp, Uuid,
        ];
        all[self.below(all.len() as u64) as usize]
    }

    fn ty(&mut self, depth: u32) -> Type {
        match if depth == 0 { 0 } else { self.below(8) } {
            0..=3 => Type::Scalar(self.scalar()),
            4 => Type::Option(Box::new(Type::Scalar(self.scalar()))),
            5 => Type::List(Box::new(self.ty(depth - 1))),
            6 => Type::Enum(vec!["first".into(), "second \"quoted\"".into(), "third".into()]),
            _ => {
                let count = 1 + self.below(4);
                let field = |at| StructField {
                    name: format!("f{at}"),
                    ty: self.ty(depth - 1),
                };
                Type::Struct((0..count).map(field).collect::<Vec<_>>().into())
            }
        }
    }

    fn params(&mut self) -> Vec<Parameter> {
        let count = self.below(5);
        (0..count)
            .map(|at| Parameter {
                name: format!("p{at}"),
                ty: self.ty(3),
            })
            .collect()
    }

    fn text(&mut self) -> String {
        let alphabet = ['a', 'Z', '"', '\\', '\n', '\u{0}', 'é', '日', '🦀', '/', '~'];
        let length = self.below(80);
        (0..length)
            .map(|_| alphabet[self.below(alphabet.len() as u64) as usize])
            .collect()
    }

    fn value(&mut self, ty: &Type, out: &mut Vec<u8>) {
        match ty {
            Type::Unit => {}
            Type::Scalar(scalar) => self.scalar_value(*scalar, out),
            Type::Option(inner) => {
                let is_some = self.below(2) == 1;
                out.push(is_some as u8);
                if is_some {
                    self.value(inner, out);
                }
            }
            Type::List(item) => {
                // Lists in lists would else grow beyond what arguments may have.
                let count = if self.below(20) == 0 && out.len() < 4096 {
                    200
                } else {
                    self.below(4)
                };
                value::push_varint(out, count as u32);
                (0..count).for_each(|_| self.value(item, out));
            }
            Type::Struct(of) => of.fields.iter().for_each(|field| self.value(&field.ty, out)),
            Type::Enum(variants) => value::push_varint(out, self.below(variants.len() as u64) as u32),
        }
    }

    fn scalar_value(&mut self, ty: ScalarType, out: &mut Vec<u8>) {
        match ty {
            ScalarType::Bool => out.push(self.below(2) as u8),
            ScalarType::Text => value::push_bytes(out, self.text().as_bytes()),
            ScalarType::Bytes => {
                let length = self.below(40);
                let bytes: Vec<_> = (0..length).map(|_| self.next() as u8).collect();
                value::push_bytes(out, &bytes);
            }
            ScalarType::F64 => {
                let special = [
                    0.0,
                    -0.0,
                    1.5,
                    f64::NAN,
                    f64::INFINITY,
                    f64::NEG_INFINITY,
                    f64::MAX,
                    5e-324,
                ];
                let float = f64::from_bits(self.next());
                let value = match self.below(3) {
                    0 => special[self.below(8) as usize],
                    1 => self.next() as i32 as f64,
                    _ if float.is_nan() => f64::NAN, // JSON has one NaN
                    _ => float,
                };
                out.extend_from_slice(&value.to_le_bytes());
            }
            fixed => {
                let edge = self.below(4);
                for at in 0..fixed.slot_bytes() {
                    out.push(match edge {
                        0 => 0xff,
                        1 if at + 1 == fixed.slot_bytes() => 0x80,
                        1 => 0,
                        _ => self.next() as u8,
                    });
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn arguments_survive_the_round_trip(seed: u64) {
        let mut dice = Dice(seed);
        let params = dice.params();
        let mut args = Vec::new();
        params.iter().for_each(|param| dice.value(&param.ty, &mut args));
        let mut json = Vec::new();
        write_arguments(&params, &args, &mut json).expect("valid arguments");
        let mut back = Vec::new();
        let mut scratch = ArgsScratch::default();
        encode_args(&params, &json, &mut back, &mut scratch).expect("what we wrote is valid");
        prop_assert_eq!(&args, &back);
        // The members in reverse order.
        let tree: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&json).expect("JSON");
        let reversed: Vec<_> = params.iter().rev()
            .map(|param| format!("{:?}:{}", param.name, raw_member(&json, &param.name)))
            .collect();
        prop_assert_eq!(tree.len(), reversed.len());
        back.clear();
        encode_args(&params, format!("{{{}}}", reversed.join(",")).as_bytes(), &mut back, &mut scratch)
            .expect("any order is valid");
        prop_assert_eq!(args, back);
    }

    #[test]
    fn arguments_survive_the_round_trip_in_cbor(seed: u64) {
        let mut dice = Dice(seed);
        let params = dice.params();
        let mut args = Vec::new();
        params.iter().for_each(|param| dice.value(&param.ty, &mut args));
        let (mut cbor, mut json) = (Vec::new(), Vec::new());
        pack_arguments(&params, &args, &mut cbor);
        let mut back = Vec::new();
        let mut scratch = ArgsScratch::default();
        encode_document(Format::Cbor, &params, &cbor, &mut back, &mut scratch).expect("what we wrote is valid");
        prop_assert_eq!(&args, &back);
        // JSON and CBOR forms of a document give the same arguments.
        write_arguments(&params, &args, &mut json).expect("valid arguments");
        let tree: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
        cbor.clear();
        back.clear();
        args.clear();
        // The tree's own text: its numbers may have lost a digit when they were read.
        encode_args(&params, tree.to_string().as_bytes(), &mut args, &mut scratch).expect("JSON");
        Packer::new(&mut cbor).json(&tree);
        encode_document(Format::Cbor, &params, &cbor, &mut back, &mut scratch).expect("as in JSON");
        prop_assert_eq!(&args, &back);
        // No prefix is whole, and the scanner finds the end wherever the bytes were cut.
        for cut in (0..cbor.len()).step_by(1 + cbor.len() / 64) {
            let mut scanner = ItemScanner::default();
            prop_assert_eq!(scanner.advance(&cbor[..cut]), Ok(None));
            prop_assert_eq!(scanner.advance(&cbor), Ok(Some(cbor.len())));
        }
    }

    #[test]
    fn arbitrary_cbor_is_refused_or_taken_but_never_panics(seed: u64, mut bytes: Vec<u8>, at: usize, byte: u8) {
        let mut dice = Dice(seed);
        let params = dice.params();
        let mut out = Vec::new();
        let _ = encode_document(Format::Cbor, &params, &bytes, &mut out, &mut ArgsScratch::default());
        let mut args = Vec::new();
        params.iter().for_each(|param| dice.value(&param.ty, &mut args));
        bytes.clear();
        pack_arguments(&params, &args, &mut bytes);
        let at = at % bytes.len();
        bytes[at] = byte;
        out.clear();
        if encode_document(Format::Cbor, &params, &bytes, &mut out, &mut ArgsScratch::default()).is_ok() {
            write_arguments(&params, &out, &mut Vec::new()).expect("what was taken is valid");
        }
    }

    /// A difference between our reader and serde_json is a bug in ours.
    #[test]
    fn json_is_read_as_others_read_it(text in r#"[ \t]?[\[{]?([\[\]{},:0-9eE.+-]|"(a|\\n|\\u00e9|\\ud83e\\udd80|é)*"|true|null|false| ){0,12}[\]}]?"#) {
        let ours = {
            use super::TokenSource;
            let mut source = super::JsonSource::new(text.as_bytes());
            source.skip().and_then(|()| source.end()).is_ok()
        };
        // The text keeps a number's form: one beyond a float's range is no mistake of the form.
        let theirs = serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok();
        prop_assert_eq!(ours, theirs, "{}", text);
    }

    #[test]
    fn strings_are_read_as_others_read_them(text: String, bytes: Vec<u8>) {
        let params = [param("a", scalar(ScalarType::Text))];
        let ascii: String = text.chars()
            .flat_map(|c| c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect::<Vec<_>>())
            .collect();
        for json in [format!("{{\"a\":{}}}", serde_json::to_string(&text).expect("JSON")), format!("{{\"a\":\"{ascii}\"}}")] {
            let mut args = Vec::new();
            encode_args(&params, json.as_bytes(), &mut args, &mut ArgsScratch::default()).expect("valid");
            prop_assert_eq!(ValueReader::new(&args).text(), Ok(&text[..]));
        }
        let mut raw = b"{\"a\":\"".to_vec();
        raw.extend_from_slice(&bytes);
        raw.extend_from_slice(b"\"}");
        let theirs = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&raw);
        let mut args = Vec::new();
        let ours = encode_args(&params, &raw, &mut args, &mut ArgsScratch::default());
        if let Ok(theirs) = &theirs && theirs.len() == 1 && theirs["a"].is_string() {
            prop_assert!(ours.is_ok());
            prop_assert_eq!(ValueReader::new(&args).text().ok(), theirs["a"].as_str());
        } else {
            prop_assert!(ours.is_err());
        }
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_taken_but_never_panic(seed: u64, bytes: Vec<u8>) {
        let mut dice = Dice(seed);
        let params = dice.params();
        let mut out = Vec::new();
        let _ = write_arguments(&params, &bytes, &mut out);
        let _ = encode_args(&params, &bytes, &mut out, &mut ArgsScratch::default());
    }

    #[test]
    fn arbitrary_text_is_no_panic_for_the_scalars(text in "[-+0-9eE.:TZ ]{0,40}", scale in 0u8..39) {
        let _ = scalar::parse_decimal(&text, scale);
        let _ = scalar::parse_timestamp(&text);
        let _ = scalar::parse_uuid(&text);
    }

    #[test]
    fn timestamps_survive_the_round_trip(unix_us: i64) {
        prop_assert_eq!(scalar::parse_timestamp(&scalar::rfc3339(unix_us)), Some(unix_us));
    }
}

fn raw_member(json: &[u8], name: &str) -> String {
    let members: std::collections::HashMap<String, Box<serde_json::value::RawValue>> =
        serde_json::from_slice(json).expect("an object");
    members[name].get().to_owned()
}

fn scalar(ty: ScalarType) -> Type {
    Type::Scalar(ty)
}

fn param(name: &str, ty: Type) -> Parameter {
    Parameter { name: name.into(), ty }
}

/// Encodes and writes back, or lists the mistakes.
fn check(params: &[Parameter], json: &str, expected: Expect) {
    let mut args = Vec::new();
    let actual = match encode_args(params, json.as_bytes(), &mut args, &mut ArgsScratch::default()) {
        Ok(()) => {
            let mut out = Vec::new();
            write_arguments(params, &args, &mut out).expect("what we encoded is valid");
            String::from_utf8(out).expect("JSON is UTF-8")
        }
        Err(ArgsError::Syntax(error)) => format!("syntax: {error}"),
        Err(ArgsError::TooLarge) => "too large".into(),
        Err(ArgsError::Invalid(errors)) => {
            let lines: Vec<_> = errors
                .iter()
                .map(|e| format!("{:?}: {}", e.pointer, e.message))
                .collect();
            lines.join("\n")
        }
    };
    expected.assert_eq(&actual);
}

#[test]
fn few_bytes_of_text_that_are_many_of_arguments_take_no_more_memory_than_arguments_may() {
    let fields = (0..200).map(|number| StructField {
        name: format!("f{number}"),
        ty: Type::Option(Box::new(scalar(ScalarType::I64))),
    });
    let wide = Type::Struct(fields.collect::<Vec<_>>().into());
    let params = [
        param("first", scalar(ScalarType::I64)),
        param("list", Type::List(Box::new(wide))),
    ];
    let items = vec!["{}"; 300_000].join(",");
    for json in [
        format!(r#"{{"first":"1","list":[{items}]}}"#),
        format!(r#"{{"list":[{items}],"first":"1"}}"#),
    ] {
        let (mut args, mut scratch) = (Vec::new(), ArgsScratch::default());
        let outcome = encode_args(&params, json.as_bytes(), &mut args, &mut scratch);
        assert!(matches!(outcome, Err(ArgsError::TooLarge)), "{outcome:?}");
        assert!(args.capacity() < 4 << 20, "{}", args.capacity());
    }
}

#[test]
fn every_mistake_is_named_with_its_place() {
    let point = Type::Struct(
        vec![
            StructField {
                name: "x".into(),
                ty: scalar(ScalarType::I8),
            },
            StructField {
                name: "y".into(),
                ty: scalar(ScalarType::Decimal { scale: 2 }),
            },
        ]
        .into(),
    );
    let params = [
        param("id", scalar(ScalarType::U64)),
        param("points", Type::List(Box::new(point))),
        param("kind", Type::Enum(vec!["a".into(), "b".into()])),
        param("note", Type::Option(Box::new(scalar(ScalarType::Text)))),
    ];
    check(
        &params,
        r#"{"id":-1,"points":[{"x":128,"y":1.005},{"x":1.5},3],"kind":"c","note":7,"a/b~":[1,{}]}"#,
        expect![[r#"
            "/id": -1 is out of the range of an unsigned 64-bit integer, as a number or a string
            "/points/0/x": 128 is out of the range of an integer from -128 to 127
            "/points/0/y": expected a decimal that fits its scale, as a string or a number, found 1.005
            "/points/1/x": expected an integer from -128 to 127, found a number that is no exact integer
            "/points/1/y": missing; expected a decimal that fits its scale, as a string or a number
            "/points/2": expected an object, found a number
            "/kind": expected one of a, b, found the string "c"
            "/note": expected a string or null, found a number
            "/a~1b~0": unknown; expected id, points, kind, note"#]],
    );
    check(
        &params,
        r#"{"id":1,"id":2,"kind":"a","points":[]}"#,
        expect![[r#""/id": given twice"#]],
    );
    check(
        &params,
        r#"[1]"#,
        expect![[r#""": expected an object of named arguments, found an array"#]],
    );
    check(&params, r#"{"id":1"#, expect!["syntax: expected , or } at byte 7"]);
    check(
        &params,
        r#"{} {}"#,
        expect!["syntax: something after the end of the value at byte 3"],
    );
    check(&[], "  ", expect!["{}"]);
    check(
        &[],
        r#"{"x":1}"#,
        expect![[r#""/x": unknown; nothing is expected here"#]],
    );
}

#[test]
fn both_forms_of_wide_integers_are_taken() {
    let params = [param("a", scalar(ScalarType::I64)), param("b", scalar(ScalarType::U64))];
    let wide = r#"{"a":"-9223372036854775808","b":"18446744073709551615"}"#;
    check(
        &params,
        wide,
        expect![[r#"{"a":"-9223372036854775808","b":"18446744073709551615"}"#]],
    );
    check(
        &params,
        r#"{"b":18446744073709551615,"a":-9223372036854775808}"#,
        expect![[r#"{"a":"-9223372036854775808","b":"18446744073709551615"}"#]],
    );
    check(&params, r#"{"a":1e3,"b":2.0}"#, expect![[r#"{"a":"1000","b":"2"}"#]]);
    check(
        &params,
        r#"{"a":"+1","b":18446744073709551616}"#,
        expect![[r#"
            "/a": expected a signed 64-bit integer, as a number or a string, found the string "+1"
            "/b": expected an unsigned 64-bit integer, as a number or a string, found a number that is no exact integer"#]],
    );
}

/// The value that an integer parameter gets from a number in this form; None: it is refused.
fn integer_of(ty: ScalarType, format: Format, document: &[u8]) -> Option<i128> {
    let (mut args, mut scratch) = (Vec::new(), ArgsScratch::default());
    match encode_document(format, &[param("x", scalar(ty))], document, &mut args, &mut scratch) {
        Ok(()) => match ty {
            ScalarType::I64 => Some(i64::from_le_bytes(args[..].try_into().expect("8 bytes")).into()),
            ScalarType::U64 => Some(u64::from_le_bytes(args[..].try_into().expect("8 bytes")).into()),
            _ => Some(i8::from_le_bytes(args[..].try_into().expect("1 byte")).into()),
        },
        Err(ArgsError::Invalid(_)) => None,
        Err(error) => panic!("{error:?}"),
    }
}

#[test]
fn integers_are_taken_exactly_or_refused() {
    let exact = [
        ("9007199254740993.0", 9_007_199_254_740_993),
        ("9.007199254740993e15", 9_007_199_254_740_993),
        ("-9007199254740993.000", -9_007_199_254_740_993),
        ("9223372036854775807.0", i64::MAX.into()),
        ("-9223372036854775808e0", i64::MIN.into()),
        ("922337203685477580700e-2", i64::MAX.into()),
        ("1.0", 1),
        ("1e3", 1_000),
        ("-0.0", 0),
    ];
    for (text, expected) in exact {
        let found = integer_of(ScalarType::I64, Format::Json, format!("{{\"x\":{text}}}").as_bytes());
        assert_eq!(found, Some(expected), "{text}");
    }
    let others = [
        "9007199254740992.5",
        "4503599627370496.2",
        "1.0000000000000000001",
        "0.99999999999999999999",
        "1e-400",
        "1e400",
        "9223372036854775807.5",
        "9223372036854775808.0",
    ];
    for text in others {
        let document = format!("{{\"x\":{text}}}");
        assert_eq!(
            integer_of(ScalarType::I64, Format::Json, document.as_bytes()),
            None,
            "{text}"
        );
    }
    let wide = integer_of(ScalarType::U64, Format::Json, b"{\"x\":18446744073709551615.0}");
    assert_eq!(wide, Some(u64::MAX.into()));
    assert_eq!(integer_of(ScalarType::I8, Format::Json, b"{\"x\":127.0}"), Some(127));
    assert_eq!(integer_of(ScalarType::I8, Format::Json, b"{\"x\":128.0}"), None);
    // Doubles of CBOR, up to the last one that is one integer alone.
    for (value, expected) in [
        (3.0, Some(3)),
        (9_007_199_254_740_991.0, Some(9_007_199_254_740_991)),
        (9_007_199_254_740_992.0, None),
        (-9_007_199_254_740_992.0, None),
        (0.5, None),
        (f64::NAN, None),
        (f64::INFINITY, None),
    ] {
        let document = [&b"\xa1\x61x\xfb"[..], &f64::to_be_bytes(value)].concat();
        assert_eq!(
            integer_of(ScalarType::I64, Format::Cbor, &document),
            expected,
            "{value}"
        );
    }
    // Values of a prefix are read in the same way.
    let column = ColumnSchema::new("id", ScalarType::I64);
    let prefix = |text| encode_prefix(&[&column], text).ok();
    let mut key = Vec::new();
    key::push_i64(&mut key, 9_007_199_254_740_993);
    assert_eq!(prefix("[9007199254740993.0]"), Some(key.clone()));
    assert_eq!(prefix("9007199254740993"), Some(key));
    assert_eq!(prefix("[9007199254740992.5]"), None);
    // An id that no double holds is answered with its digits.
    let mut id = Vec::new();
    let written = Cbor::new(b"\x3b\xff\xff\xff\xff\xff\xff\xff\xff").write_json(&mut id);
    written.expect("an integer");
    assert_eq!(id, b"\"-18446744073709551616\"");
}

#[test]
fn a_byte_order_mark_is_named() {
    let document = b"\xef\xbb\xbf{}";
    let error = encode_args(&[], document, &mut Vec::new(), &mut ArgsScratch::default()).expect_err("no JSON");
    let ArgsError::Syntax(error) = error else {
        panic!("{error:?}")
    };
    let text = error.to_string();
    assert!(
        text.starts_with("a byte order mark") && text.ends_with("at byte 0"),
        "{text}"
    );
}

#[test]
fn the_words_of_mistakes_are_bounded() {
    let params: Vec<_> = (0..200)
        .map(|at| param(&format!("{at}{}", "p".repeat(500)), scalar(ScalarType::I64)))
        .collect();
    let refused = encode_args(&params, b"{}", &mut Vec::new(), &mut ArgsScratch::default());
    let Err(ArgsError::Invalid(errors)) = refused else {
        panic!("{refused:?}")
    };
    let bytes: usize = errors
        .iter()
        .map(|error| error.pointer.len() + error.message.len())
        .sum();
    assert!(bytes <= (16 << 10) + 1_000 && errors.len() > 8, "{bytes}");
}

#[test]
fn decimals_in_texts_are_digits_and_a_point() {
    let params = [param("a", scalar(ScalarType::Decimal { scale: 2 }))];
    check(&params, r#"{"a":1e2}"#, expect![[r#"{"a":"100.00"}"#]]);
    check(&params, r#"{"a":"100"}"#, expect![[r#"{"a":"100.00"}"#]]);
    check(
        &params,
        r#"{"a":"1e2"}"#,
        expect![[r#""/a": expected a decimal that fits its scale, as a string or a number, found the string "1e2""#]],
    );
}

#[test]
fn decimals_and_times() {
    let decimal = |text, scale| scalar::parse_decimal(text, scale);
    assert_eq!(decimal("12.5", 2), Some(1250));
    assert_eq!(decimal("-0.05", 2), Some(-5));
    assert_eq!(decimal("1.25e1", 1), Some(125));
    assert_eq!(decimal("12500e-3", 1), Some(125));
    assert_eq!(decimal("1.250000000000000000000000000000000000000000", 2), Some(125));
    assert_eq!(decimal("-170141183460469231731687303715884105728", 0), Some(i128::MIN));
    assert_eq!(decimal("170141183460469231731687303715884105728", 0), None);
    for bad in ["", "-", ".5", "5.", "1.005", "1e", "0x1", "1_0", "NaN", "1e99999"] {
        assert_eq!(decimal(bad, 2), None, "{bad}");
    }
    let time = scalar::parse_timestamp;
    assert_eq!(time("1970-01-01T00:00:00Z"), Some(0));
    assert_eq!(time("2024-02-29T12:00:00.5+01:00"), Some(1_709_204_400_500_000));
    assert_eq!(time("2024-02-29t11:00:00.500000000z"), Some(1_709_204_400_500_000));
    assert_eq!(scalar::rfc3339(1_709_204_400_500_000), "2024-02-29T11:00:00.500000Z");
    assert_eq!(scalar::rfc3339(-1), "1969-12-31T23:59:59.999999Z");
    for bad in [
        "2023-02-29T00:00:00Z",
        "2024-01-01T24:00:00Z",
        "2024-01-01T00:00:00",
        "2024-01-01T00:00:00.0000001Z",
    ] {
        assert_eq!(time(bad), None, "{bad}");
    }
}

#[test]
fn rows_and_key_prefixes() {
    let column = |name: &str, ty, nullable| ColumnSchema {
        nullable,
        ..ColumnSchema::new(name, ty)
    };
    let columns = [
        column("id", ScalarType::I64, false),
        column("name", ScalarType::Text, true),
        column("born", ScalarType::Timestamp, false),
    ];
    let layout = RowLayout::new(&columns);
    let row = layout.build(&[Field::Int(-5), Field::Text("a,b"), Field::Int(0)]);
    let mut out = Vec::new();
    write_row(&columns, &layout, &row, &mut out);
    expect![[r#"{"id":"-5","name":"a,b","born":"1970-01-01T00:00:00.000000Z"}"#]]
        .assert_eq(std::str::from_utf8(&out).expect("JSON is UTF-8"));

    let all: Vec<_> = columns.iter().collect();
    let mut whole = Vec::new();
    layout.push_key(&row, &[0, 1, 2], &mut whole);
    assert_eq!(
        encode_prefix(&all, r#"["-5","a,b","1970-01-01T00:00:00Z"]"#),
        Ok(whole.clone())
    );
    assert!(whole.starts_with(&encode_prefix(&all, "-5").expect("one value")));
    let mut null = Vec::new();
    key::push_i64(&mut null, 1);
    key::push_null(&mut null);
    assert_eq!(encode_prefix(&all, "1, null"), Ok(null));
    assert!(encode_prefix(&all, "x").is_err());
    assert!(encode_prefix(&all, "1,a,1970-01-01T00:00:00Z,4").is_err());

    let mut state = column("state", ScalarType::U8, false);
    state.variants = ["free", "held"].map(String::from).into();
    for held in ["held", r#"["held"]"#, "1", "[1]"] {
        assert_eq!(encode_prefix(&[&state], held), Ok(vec![1]), "{held}");
    }
    let refused = encode_prefix(&[&state], "Held").expect_err("no such variant");
    assert_eq!(
        refused.to_string(),
        "column state: expected one of free, held, found \"Held\""
    );
}

#[test]
fn cbor_beyond_its_bounds_is_refused() {
    let params = [param("a", Type::Option(Box::new(scalar(ScalarType::I64))))];
    let check = |cbor: &[u8]| {
        let mut out = Vec::new();
        encode_document(Format::Cbor, &params, cbor, &mut out, &mut ArgsScratch::default())
    };
    assert!(check(b"\xa1\x61a\x05").is_ok());
    assert!(check(b"\xbf\x61a\xd8\x64\x05\xff").is_ok(), "indefinite, with a tag");
    assert!(check(b"").is_ok(), "nothing stands for no arguments");
    let deep = [&b"\xa1\x61b"[..], &[0x81; 1000], &[0]].concat();
    let tags = [&b"\xa1\x61a"[..], &[0xc1; 100_000], &[5]].concat();
    assert!(check(&tags).is_ok(), "tags take no stack");
    for malformed in [
        &b"\xa1\x61a"[..],
        b"\xa1\x61a\x1c",
        b"\xa1\x61a\xff",
        b"\xa1\x01\x05",
        b"\xa1\x61\xff\x05",
        b"\xa1\x61a\x05\x05",
        b"\xbb\xff\xff\xff\xff\xff\xff\xff\xff\x61a\x05",
        b"\xa1\x61b\x9f",
        b"\xa1\x61b\xbf\x61a\xff",
        &deep,
    ] {
        let error = check(malformed).expect_err("malformed");
        assert!(matches!(error, ArgsError::Syntax(_)), "{error:?}");
    }
    let deep_json = format!("{{\"b\":{}1{}}}", "[".repeat(1000), "]".repeat(1000));
    let error = encode_args(
        &params,
        deep_json.as_bytes(),
        &mut Vec::new(),
        &mut ArgsScratch::default(),
    );
    assert!(matches!(error, Err(ArgsError::Syntax(_))));
}

#[test]
fn forged_results_are_refused() {
    let ty = Type::Enum(vec!["a".into()]);
    assert!(super::write_value(&ty, &mut ValueReader::new(&[1]), &mut Vec::new()).is_err());
    assert!(write_arguments(&[param("a", scalar(ScalarType::I32))], &[1, 2, 3], &mut Vec::new()).is_err());
    assert!(write_arguments(&[], &[0], &mut Vec::new()).is_err());
}

/// The id of a call in a batch is answered in another format than it came in.
#[test]
fn numbers_of_a_document_are_exact_or_texts_in_cbor() {
    let through_cbor = |json: &str| {
        let (mut cbor, mut back) = (Vec::new(), Vec::new());
        let packed = Packer::new(&mut cbor).document(&mut JsonSource::new(json.as_bytes()));
        packed.expect("JSON");
        Cbor::new(&cbor).write_json(&mut back).expect("as in JSON");
        String::from_utf8(back).expect("text")
    };
    for exact in [
        "18446744073709551615",
        "-9223372036854775808",
        "1.5",
        "-0.0",
        r#"[1,{"a":[null,true,"x"]}]"#,
    ] {
        assert_eq!(through_cbor(exact), exact);
    }
    for wide in [
        "18446744073709551616",
        "-9223372036854775809",
        "340282366920938463463374607431768211456000",
        "1e400",
    ] {
        assert_eq!(through_cbor(wide), format!("\"{wide}\""));
        assert_eq!(through_cbor(&format!("[{wide}]")), format!("[\"{wide}\"]"));
    }
    assert_eq!(through_cbor("-0"), "-0.0");
}

/// The id of a call in a batch of CBOR is answered in JSON.
#[test]
fn item_of_cbor_is_exact_in_json_or_refused() {
    let as_json = |cbor: &[u8]| {
        let mut out = Vec::new();
        let written = Cbor::new(cbor).write_json(&mut out);
        written.ok().map(|()| String::from_utf8(out).expect("text"))
    };
    for (cbor, json) in [
        (&b"\x44\x00\xff\x10\x20"[..], "\"AP8QIA==\""),
        (b"\x5f\x41a\x41b\xff", "\"YWI=\""),
        (b"\xf9\x7e\x00", "\"NaN\""),
        (b"\xfb\x7f\xf8\0\0\0\0\0\x01", "\"NaN\""),
        (b"\xf9\x7c\x00", "\"Infinity\""),
        (b"\xf9\xfc\x00", "\"-Infinity\""),
        (b"\x82\xf9\x7e\x00\xa1\x61a\x41x", "[\"NaN\",{\"a\":\"eA==\"}]"),
        // Names that are given twice stay so, as in the text of a JSON document.
        (b"\xa2\x61a\x01\x61a\x02", "{\"a\":1,\"a\":2}"),
        (b"\xc0\xf6", "null"),
    ] {
        assert_eq!(as_json(cbor).as_deref(), Some(json), "{cbor:02x?}");
    }
    let deep = [&[0x81; 1000][..], &[0]].concat();
    for refused in [
        &b"\xf7"[..],
        b"\xe0",
        b"\x81\xf7",
        b"\xa1\x01\x02",
        b"\xa1\x41a\x02",
        b"\xa1\xf9\x7e\x00\x02",
        b"\x61\xff",
        &deep,
    ] {
        assert_eq!(as_json(refused), None, "{refused:02x?}");
    }
}
