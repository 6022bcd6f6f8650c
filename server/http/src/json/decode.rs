//! JSON -> bytes: one pass, straight into the argument bytes, every mistake collected with its place.

use std::fmt;

use reprise_abi::{
    Parameter, ScalarType, StructField, Type,
    value::{self, ARGS_BYTES_MAX},
};
use reprise_api::ArgumentError;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;

use super::scalar;

/// Mistakes that one answer lists at most.
const ERRORS_MAX: usize = 64;
/// Integers up to here are exact in a double: readers of JSON may have turned one into the other.
const EXACT_F64_MAX: f64 = 9_007_199_254_740_992.0;

/// Why arguments could not be encoded.
#[derive(Debug)]
pub enum ArgsError {
    /// Not JSON.
    Syntax(serde_json::Error),
    /// JSON, but not these parameters.
    Invalid(Vec<ArgumentError>),
    TooLarge,
}

/// Memory that is used again from call to call.
#[derive(Default)]
pub struct Scratch {
    members: Vec<Member>,
    sorted: Vec<u8>,
    errors: Vec<ArgumentError>,
}

/// Where a member's bytes lie in the output.
struct Member {
    index: usize,
    from: usize,
    to: usize,
}

/// Appends the arguments in `json`, an object by parameter name, in the order of the parameters. Nothing but white space
/// stands for an empty object. After an error the output's new part is to be thrown away.
pub fn encode_args(
    params: &[Parameter],
    json: &[u8],
    out: &mut Vec<u8>,
    scratch: &mut Scratch,
) -> Result<(), ArgsError> {
    let json = if json.trim_ascii().is_empty() {
        b"{}"
    } else {
        json
    };
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let seed = ArgsSeed {
        params,
        out,
        scratch,
    };
    let outcome = seed
        .deserialize(&mut deserializer)
        .map_err(ArgsError::Syntax)?;
    deserializer.end().map_err(ArgsError::Syntax)?;
    outcome
}

/// Reads an arguments object out of a larger document. The inner result is about the arguments, the outer about JSON.
pub struct ArgsSeed<'a> {
    pub params: &'a [Parameter],
    pub out: &'a mut Vec<u8>,
    pub scratch: &'a mut Scratch,
}

impl<'de> DeserializeSeed<'de> for ArgsSeed<'_> {
    type Value = Result<(), ArgsError>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let start = self.out.len();
        self.scratch.members.clear();
        self.scratch.errors.clear();
        let mut sink = Sink {
            out: self.out,
            scratch: self.scratch,
        };
        deserializer.deserialize_any(ObjectVisitor {
            fields: self.params,
            sink: &mut sink,
            path: &Path::ROOT,
        })?;
        let errors = std::mem::take(&mut sink.scratch.errors);
        Ok(if !errors.is_empty() {
            Err(ArgsError::Invalid(errors))
        } else if sink.out.len() - start > ARGS_BYTES_MAX {
            Err(ArgsError::TooLarge)
        } else {
            Ok(())
        })
    }
}

/// Where the bytes and the mistakes go.
struct Sink<'b> {
    out: &'b mut Vec<u8>,
    scratch: &'b mut Scratch,
}

impl Sink<'_> {
    #[cold]
    fn fail(&mut self, path: &Path<'_>, message: impl Into<String>) {
        if self.scratch.errors.len() < ERRORS_MAX {
            self.scratch.errors.push(ArgumentError {
                pointer: path.pointer(),
                message: message.into(),
            });
        }
    }
}

/// The place of a value, as a chain over the stack: costs nothing until there is a mistake to report.
struct Path<'p> {
    parent: Option<&'p Path<'p>>,
    segment: Segment<'p>,
}

enum Segment<'p> {
    Root,
    Name(&'p str),
    Index(usize),
}

impl Path<'_> {
    const ROOT: Path<'static> = Path {
        parent: None,
        segment: Segment::Root,
    };

    fn pointer(&self) -> String {
        let mut pointer = self.parent.map(Path::pointer).unwrap_or_default();
        match self.segment {
            Segment::Root => {}
            Segment::Name(name) => {
                pointer.push('/');
                pointer.push_str(&name.replace('~', "~0").replace('/', "~1"));
            }
            Segment::Index(index) => pointer.push_str(&format!("/{index}")),
        }
        pointer
    }
}

/// A named value: a parameter or a struct's member.
trait Named {
    fn name(&self) -> &str;
    fn ty(&self) -> &Type;
}

impl Named for Parameter {
    fn name(&self) -> &str {
        &self.name
    }
    fn ty(&self) -> &Type {
        &self.ty
    }
}

impl Named for StructField {
    fn name(&self) -> &str {
        &self.name
    }
    fn ty(&self) -> &Type {
        &self.ty
    }
}

/// Encodes one value of `ty`.
pub(super) fn encode_value<'de, D: Deserializer<'de>>(
    ty: &Type,
    deserializer: D,
    out: &mut Vec<u8>,
) -> Result<Vec<ArgumentError>, D::Error> {
    let mut scratch = Scratch::default();
    let mut sink = Sink {
        out,
        scratch: &mut scratch,
    };
    let seed = ValueSeed {
        ty,
        sink: &mut sink,
        path: &Path::ROOT,
    };
    seed.deserialize(deserializer)?;
    Ok(scratch.errors)
}

struct ValueSeed<'a, 'b> {
    ty: &'a Type,
    sink: &'a mut Sink<'b>,
    path: &'a Path<'a>,
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let mut bare = self.ty;
        while let Type::Option(inner) = bare {
            bare = inner;
        }
        // A number's text is lost once it is parsed, so what may lose digits is read from the text.
        if let Type::Scalar(scalar @ (ScalarType::Decimal { .. } | ScalarType::F64)) = bare {
            let raw = <&RawValue>::deserialize(deserializer)?;
            self.push_number_text(raw.get(), *scalar);
            return Ok(());
        }
        deserializer.deserialize_any(ValueVisitor {
            ty: self.ty,
            sink: self.sink,
            path: self.path,
        })
    }
}

impl ValueSeed<'_, '_> {
    fn push_number_text(self, raw: &str, ty: ScalarType) {
        if raw == "null" && matches!(self.ty, Type::Option(_)) {
            return self.sink.out.push(0);
        }
        push_present(self.ty, self.sink.out);
        // Digits, sign, point and exponent never need an escape: a string with one is no number.
        let text = raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"'));
        let is_taken = match ty {
            ScalarType::Decimal { scale } => {
                let value = scalar::parse_decimal(text.unwrap_or(raw), scale);
                value.is_some_and(|value| {
                    self.sink.out.extend_from_slice(&value.to_le_bytes());
                    true
                })
            }
            _ => parse_f64(raw, text).is_some_and(|value| {
                self.sink.out.extend_from_slice(&value.to_le_bytes());
                true
            }),
        };
        if !is_taken {
            let shown: String = raw.chars().take(40).collect();
            self.sink.fail(
                self.path,
                format!("expected {}, found {shown}", describe(self.ty)),
            );
        }
    }
}

/// A finite number, or the three strings that stand for the others.
fn parse_f64(raw: &str, quoted: Option<&str>) -> Option<f64> {
    match quoted {
        Some("NaN") => Some(f64::NAN),
        Some("Infinity") => Some(f64::INFINITY),
        Some("-Infinity") => Some(f64::NEG_INFINITY),
        Some(_) => None,
        None if raw.starts_with(|first: char| first == '-' || first.is_ascii_digit()) => {
            raw.parse().ok().filter(|value: &f64| value.is_finite())
        }
        None => None,
    }
}

/// Marks the options around a value that is there; returns the value's own type.
fn push_present<'t>(mut ty: &'t Type, out: &mut Vec<u8>) -> &'t Type {
    while let Type::Option(inner) = ty {
        out.push(1);
        ty = inner;
    }
    ty
}

struct ValueVisitor<'a, 'b> {
    ty: &'a Type,
    sink: &'a mut Sink<'b>,
    path: &'a Path<'a>,
}

impl ValueVisitor<'_, '_> {
    #[cold]
    fn mismatch(self, found: &str) {
        self.sink.fail(
            self.path,
            format!("expected {}, found {found}", describe(self.ty)),
        );
    }

    #[inline]
    fn integer(self, value: i128) {
        let ty = push_present(self.ty, self.sink.out);
        match ty {
            Type::Scalar(scalar) if scalar.is_integer() => {
                if !push_integer(*scalar, value, self.sink.out) {
                    self.sink.fail(
                        self.path,
                        format!("{value} is out of the range of {}", describe(ty)),
                    );
                }
            }
            _ => self.mismatch("a number"),
        }
    }

    fn string(self, text: &str) {
        let ty = push_present(self.ty, self.sink.out);
        let out = &mut *self.sink.out;
        let is_taken = match ty {
            Type::Scalar(ScalarType::Text) => {
                value::push_bytes(out, text.as_bytes());
                true
            }
            Type::Scalar(scalar) => push_scalar_text(*scalar, text, out),
            Type::Enum(variants) => match variants.iter().position(|variant| variant == text) {
                Some(variant) => {
                    value::push_varint(out, variant as u32);
                    true
                }
                None => false,
            },
            _ => false,
        };
        if !is_taken {
            let shown: String = text.chars().take(40).collect();
            self.mismatch(&format!("the string {shown:?}"));
        }
    }
}

fn push_integer(ty: ScalarType, value: i128, out: &mut Vec<u8>) -> bool {
    macro_rules! push {
        ($int:ty) => {
            match <$int>::try_from(value) {
                Ok(value) => out.extend_from_slice(&value.to_le_bytes()),
                Err(_) => return false,
            }
        };
    }
    match ty {
        ScalarType::I8 => push!(i8),
        ScalarType::I16 => push!(i16),
        ScalarType::I32 => push!(i32),
        ScalarType::I64 => push!(i64),
        ScalarType::U8 => push!(u8),
        ScalarType::U16 => push!(u16),
        ScalarType::U32 => push!(u32),
        ScalarType::U64 => push!(u64),
        _ => return false,
    }
    true
}

/// A scalar other than text, from a string.
fn push_scalar_text(ty: ScalarType, text: &str, out: &mut Vec<u8>) -> bool {
    match ty {
        ScalarType::Bytes => match scalar::parse_base64(text) {
            Some(bytes) => value::push_bytes(out, &bytes),
            None => return false,
        },
        ScalarType::Timestamp => match scalar::parse_timestamp(text) {
            Some(unix_us) => out.extend_from_slice(&unix_us.to_le_bytes()),
            None => return false,
        },
        ScalarType::Uuid => match scalar::parse_uuid(text) {
            Some(uuid) => out.extend_from_slice(&uuid),
            None => return false,
        },
        integer if integer.is_integer() && !text.starts_with('+') => match text.parse() {
            Ok(value) => return push_integer(integer, value, out),
            Err(_) => return false,
        },
        _ => return false,
    }
    true
}

impl<'de> Visitor<'de> for ValueVisitor<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&describe(self.ty))
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        match push_present(self.ty, self.sink.out) {
            Type::Scalar(ScalarType::Bool) => self.sink.out.push(value as u8),
            _ => self.mismatch("a boolean"),
        }
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.integer(value as i128);
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.integer(value as i128);
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        if value.fract() == 0.0 && value.abs() <= EXACT_F64_MAX {
            self.integer(value as i128);
        } else {
            self.mismatch("a number that is no exact integer");
        }
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.string(text);
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        match self.ty {
            Type::Unit => {}
            Type::Option(_) => self.sink.out.push(0),
            _ => self.mismatch("null"),
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Type::List(item) = push_present(self.ty, self.sink.out) else {
            while items.next_element::<IgnoredAny>()?.is_some() {}
            self.mismatch("an array");
            return Ok(());
        };
        let start = self.sink.out.len();
        self.sink.out.push(0); // the count of a short list; a longer one is moved up below
        let mut count = 0;
        loop {
            let path = Path {
                parent: Some(self.path),
                segment: Segment::Index(count),
            };
            let seed = ValueSeed {
                ty: item,
                sink: &mut *self.sink,
                path: &path,
            };
            if items.next_element_seed(seed)?.is_none() {
                break;
            }
            count += 1;
        }
        if count < 0x80 {
            self.sink.out[start] = count as u8;
        } else {
            let mut prefix = Vec::with_capacity(5);
            value::push_varint(&mut prefix, count as u32);
            self.sink.out.splice(start..start + 1, prefix);
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<(), A::Error> {
        let Type::Struct(fields) = push_present(self.ty, self.sink.out) else {
            skip_members(members)?;
            self.mismatch("an object");
            return Ok(());
        };
        encode_members(fields, self.sink, self.path, members)
    }
}

/// An object that must be there: the arguments themselves.
struct ObjectVisitor<'a, 'b, F> {
    fields: &'a [F],
    sink: &'a mut Sink<'b>,
    path: &'a Path<'a>,
}

impl<F> ObjectVisitor<'_, '_, F> {
    #[cold]
    fn mismatch<E>(self, found: &str) -> Result<(), E> {
        let message = format!("expected an object of named arguments, found {found}");
        self.sink.fail(self.path, message);
        Ok(())
    }
}

impl<'de, F: Named> Visitor<'de> for ObjectVisitor<'_, '_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of named arguments")
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        self.mismatch("a boolean")
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        self.mismatch("a number")
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        self.mismatch("a number")
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        self.mismatch("a number")
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        self.mismatch("a string")
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        self.mismatch("null")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        self.mismatch("an array")
    }
    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<(), A::Error> {
        encode_members(self.fields, self.sink, self.path, members)
    }
}

fn skip_members<'de, A: MapAccess<'de>>(mut members: A) -> Result<(), A::Error> {
    while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
    Ok(())
}

/// Members in the order of the fields go straight out; in another order they are sorted at the end.
fn encode_members<'de, A: MapAccess<'de>, F: Named>(
    fields: &[F],
    sink: &mut Sink<'_>,
    path: &Path<'_>,
    mut members: A,
) -> Result<(), A::Error> {
    let start = sink.out.len();
    let base = sink.scratch.members.len();
    let (mut next, mut in_order) = (0, true);
    while let Some(key) = members.next_key_seed(KeySeed { fields, next })? {
        let name = match &key {
            Key::Known(index) => fields[*index].name(),
            Key::Unknown(name) => name.as_str(),
        };
        let path = Path {
            parent: Some(path),
            segment: Segment::Name(name),
        };
        let Key::Known(index) = key else {
            sink.fail(&path, format!("unknown; {}", expected_names(fields)));
            members.next_value::<IgnoredAny>()?;
            continue;
        };
        in_order &= index == next;
        if !in_order
            && sink.scratch.members[base..]
                .iter()
                .any(|member| member.index == index)
        {
            sink.fail(&path, "given twice");
        }
        let from = sink.out.len();
        members.next_value_seed(ValueSeed {
            ty: fields[index].ty(),
            sink: &mut *sink,
            path: &path,
        })?;
        let to = sink.out.len();
        sink.scratch.members.push(Member { index, from, to });
        next = index + 1;
    }
    if !in_order || next != fields.len() {
        sort_members(fields, sink, path, start, base);
    }
    sink.scratch.members.truncate(base);
    Ok(())
}

/// Puts the members' bytes in the order of the fields and fills in what may be left out.
fn sort_members<F: Named>(
    fields: &[F],
    sink: &mut Sink<'_>,
    path: &Path<'_>,
    start: usize,
    base: usize,
) {
    let mut sorted = std::mem::take(&mut sink.scratch.sorted);
    sorted.clear();
    for (index, field) in fields.iter().enumerate() {
        let member = sink.scratch.members[base..]
            .iter()
            .find(|member| member.index == index);
        match (member, field.ty()) {
            (Some(member), _) => sorted.extend_from_slice(&sink.out[member.from..member.to]),
            (None, Type::Option(_)) => sorted.push(0),
            (None, Type::Unit) => {}
            (None, ty) => {
                let segment = Segment::Name(field.name());
                let parent = Some(path);
                sink.fail(
                    &Path { parent, segment },
                    format!("missing; expected {}", describe(ty)),
                );
            }
        }
    }
    sink.out.truncate(start);
    sink.out.extend_from_slice(&sorted);
    sink.scratch.sorted = sorted;
}

enum Key {
    Known(usize),
    Unknown(String),
}

struct KeySeed<'a, F> {
    fields: &'a [F],
    /// The field that stands next when the members come in order.
    next: usize,
}

impl<'de, F: Named> DeserializeSeed<'de> for KeySeed<'_, F> {
    type Value = Key;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<F: Named> Visitor<'_> for KeySeed<'_, F> {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member's name")
    }

    #[inline]
    fn visit_str<E>(self, name: &str) -> Result<Key, E> {
        if self
            .fields
            .get(self.next)
            .is_some_and(|field| field.name() == name)
        {
            return Ok(Key::Known(self.next));
        }
        Ok(
            match self.fields.iter().position(|field| field.name() == name) {
                Some(index) => Key::Known(index),
                None => Key::Unknown(name.chars().take(100).collect()),
            },
        )
    }
}

fn expected_names<F: Named>(fields: &[F]) -> String {
    if fields.is_empty() {
        return "nothing is expected here".into();
    }
    let names: Vec<_> = fields.iter().map(Named::name).collect();
    format!("expected {}", names.join(", "))
}

/// What a type asks of JSON, in words.
fn describe(ty: &Type) -> String {
    match ty {
        Type::Unit => "null".into(),
        Type::Option(inner) => format!("{} or null", describe(inner)),
        Type::List(_) => "an array".into(),
        Type::Struct(_) => "an object".into(),
        Type::Enum(variants) => format!("one of {}", variants.join(", ")),
        Type::Scalar(scalar) => describe_scalar(*scalar).into(),
    }
}

fn describe_scalar(ty: ScalarType) -> &'static str {
    match ty {
        ScalarType::Bool => "a boolean",
        ScalarType::I8 => "an integer from -128 to 127",
        ScalarType::I16 => "an integer from -32768 to 32767",
        ScalarType::I32 => "a signed 32-bit integer",
        ScalarType::I64 => "a signed 64-bit integer, as a number or a string",
        ScalarType::U8 => "an integer from 0 to 255",
        ScalarType::U16 => "an integer from 0 to 65535",
        ScalarType::U32 => "an unsigned 32-bit integer",
        ScalarType::U64 => "an unsigned 64-bit integer, as a number or a string",
        ScalarType::F64 => "a number, or NaN, Infinity, -Infinity as a string",
        ScalarType::Decimal { .. } => "a decimal that fits its scale, as a string or a number",
        ScalarType::Text => "a string",
        ScalarType::Bytes => "a base64 string",
        ScalarType::Timestamp => "an RFC 3339 time with at most microseconds, as a string",
        ScalarType::Uuid => "a UUID, as a string",
    }
}
