//! JSON or CBOR -> bytes: one pass, straight into the argument bytes, every mistake collected with its place.

use reprise_abi::{
    Parameter, ScalarType, StructField, Type,
    value::{self, ARGS_BYTES_MAX},
};
use reprise_api::ArgumentError;

use super::{
    scalar,
    source::{DocumentToken, ItemsLeft, SyntaxError, TokenSource},
};
use crate::names::first_names;

/// Mistakes that one answer lists at most.
const ERRORS_MAX: usize = 64;
/// Bytes of their words at most, all together.
const ERRORS_BYTES_MAX: usize = 16 << 10;
/// Below this bound two integers never become the same double. A double at or above it may be another integer than the client had.
const EXACT_F64_END: f64 = 9_007_199_254_740_992.0;

/// Characters of an unknown member's name in its pointer.
const NAME_SHOWN_MAX: usize = 100;

/// Why arguments could not be encoded.
#[derive(Debug)]
pub enum ArgsError {
    /// The text is not a document of its format.
    Syntax(SyntaxError),
    /// The text is a document, but does not have these parameters.
    Invalid(Vec<ArgumentError>),
    /// More than arguments may have.
    TooLarge,
}

/// Memory that is used again from call to call.
#[derive(Default)]
pub struct ArgsScratch {
    members: Vec<ObjectMember>,
    sorted: Vec<u8>,
    errors: Vec<ArgumentError>,
    error_bytes: usize,
    is_too_large: bool,
}

/// Range of a member's bytes in the output.
struct ObjectMember {
    index: usize,
    from: usize,
    to: usize,
}

/// Appends the arguments in `source`, an object by parameter name, in the order of the parameters. What follows the
/// object is left unread. After an error the output's new part is to be thrown away. The inner result is about the
/// arguments, the outer about the document.
pub fn encode_args<'t, S: TokenSource<'t>>(
    params: &[Parameter],
    source: &mut S,
    out: &mut Vec<u8>,
    scratch: &mut ArgsScratch,
) -> Result<Result<(), ArgsError>, SyntaxError> {
    let start = out.len();
    scratch.members.clear();
    scratch.errors.clear();
    scratch.error_bytes = 0;
    scratch.is_too_large = false;
    let end_max = start + ARGS_BYTES_MAX;
    let mut sink = ArgsSink { out, scratch, end_max };
    match source.token()? {
        DocumentToken::Map(items) => read_members(params, source, &mut sink, &ArgPath::ROOT, items)?,
        other => {
            let found = found_word(&other);
            let message = format!("expected an object of named arguments, found {found}");
            sink.fail(&ArgPath::ROOT, message);
            skip_rest(source, other)?;
        }
    }
    Ok(if !sink.scratch.errors.is_empty() {
        Err(ArgsError::Invalid(std::mem::take(&mut sink.scratch.errors)))
    } else if sink.scratch.is_too_large || sink.out.len() > end_max {
        Err(ArgsError::TooLarge)
    } else {
        Ok(())
    })
}

/// Receives the bytes and the mistakes.
struct ArgsSink<'b> {
    out: &'b mut Vec<u8>,
    scratch: &'b mut ArgsScratch,
    /// Maximum end of the arguments.
    end_max: usize,
}

impl ArgsSink<'_> {
    /// Bounds the output of a list whose items begin at `from`. Items are dropped once all arguments are too long, because few bytes of
    /// text may be many items.
    fn bound(&mut self, from: usize) {
        if self.out.len() > self.end_max {
            self.out.truncate(from);
            self.scratch.is_too_large = true;
        }
    }

    #[cold]
    fn fail(&mut self, path: &ArgPath<'_>, message: impl Into<String>) {
        if self.scratch.errors.len() >= ERRORS_MAX || self.scratch.error_bytes >= ERRORS_BYTES_MAX {
            return;
        }
        let error = ArgumentError {
            pointer: path.pointer(),
            message: message.into(),
        };
        self.scratch.error_bytes += error.pointer.len() + error.message.len();
        self.scratch.errors.push(error);
    }
}

/// The place of a value, as a chain over the stack: costs nothing until there is a mistake to report.
struct ArgPath<'p> {
    parent: Option<&'p ArgPath<'p>>,
    segment: PathSegment<'p>,
}

enum PathSegment<'p> {
    Root,
    Name(&'p str),
    Index(usize),
}

impl ArgPath<'_> {
    const ROOT: ArgPath<'static> = ArgPath {
        parent: None,
        segment: PathSegment::Root,
    };

    fn pointer(&self) -> String {
        let mut pointer = self.parent.map(ArgPath::pointer).unwrap_or_default();
        match self.segment {
            PathSegment::Root => {}
            PathSegment::Name(name) => {
                pointer.push('/');
                pointer.push_str(&name.replace('~', "~0").replace('/', "~1"));
            }
            PathSegment::Index(index) => pointer.push_str(&format!("/{index}")),
        }
        pointer
    }
}

/// A named value: a parameter or a struct's member.
trait NamedType {
    fn name(&self) -> &str;
    fn ty(&self) -> &Type;
}

impl NamedType for Parameter {
    fn name(&self) -> &str {
        &self.name
    }
    fn ty(&self) -> &Type {
        &self.ty
    }
}

impl NamedType for StructField {
    fn name(&self) -> &str {
        &self.name
    }
    fn ty(&self) -> &Type {
        &self.ty
    }
}

/// Encodes one value of `ty`; the mistakes in it.
pub(super) fn encode_value<'t, S: TokenSource<'t>>(
    ty: &Type,
    source: &mut S,
    out: &mut Vec<u8>,
) -> Result<Vec<ArgumentError>, SyntaxError> {
    let mut scratch = ArgsScratch::default();
    let mut sink = ArgsSink {
        out,
        scratch: &mut scratch,
        end_max: usize::MAX,
    };
    read_value(ty, source, &mut sink, &ArgPath::ROOT)?;
    Ok(scratch.errors)
}

#[inline]
fn read_value<'t, S: TokenSource<'t>>(
    ty: &Type,
    source: &mut S,
    sink: &mut ArgsSink<'_>,
    path: &ArgPath<'_>,
) -> Result<(), SyntaxError> {
    let token = source.token()?;
    if let DocumentToken::Null = token {
        match ty {
            Type::Unit => {}
            Type::Option(_) => sink.out.push(0),
            _ => mismatch(ty, sink, path, "null"),
        }
        return Ok(());
    }
    let bare = push_present(ty, sink.out);
    let is_taken = match (bare, &token) {
        (Type::Scalar(scalar), DocumentToken::Integer(value)) if scalar.is_integer() => {
            let is_in_range = push_integer(*scalar, *value, sink.out);
            if !is_in_range {
                let range = describe(bare);
                sink.fail(path, format!("{value} is out of the range of {range}"));
            }
            return Ok(());
        }
        (Type::Scalar(ScalarType::Text), DocumentToken::Text(text)) => {
            value::push_bytes(sink.out, text.as_bytes());
            true
        }
        (Type::Scalar(scalar), _) => push_scalar(*scalar, &token, sink.out),
        (Type::Enum(variants), DocumentToken::Text(text)) => {
            let variant = variants
                .iter()
                .position(|variant| variant.as_bytes() == text.as_bytes());
            if let Some(variant) = variant {
                value::push_varint(sink.out, variant as u32);
            }
            variant.is_some()
        }
        _ => false,
    };
    if is_taken {
        return Ok(());
    }
    match (bare, token) {
        (Type::List(item), DocumentToken::List(items)) => read_list(item, source, sink, path, items),
        (Type::Struct(of), DocumentToken::Map(items)) => read_members(&of.fields, source, sink, path, items),
        (_, other) => {
            mismatch(ty, sink, path, &shown(bare, &other));
            skip_rest(source, other)
        }
    }
}

#[cold]
fn mismatch(ty: &Type, sink: &mut ArgsSink<'_>, path: &ArgPath<'_>, found: &str) {
    sink.fail(path, format!("expected {}, found {found}", describe(ty)));
}

/// Skips the rest of an unused token.
fn skip_rest<'t, S: TokenSource<'t>>(source: &mut S, token: DocumentToken<'t>) -> Result<(), SyntaxError> {
    match token {
        DocumentToken::List(items) => source.skip_items(items),
        DocumentToken::Map(items) => source.skip_members(items),
        _ => Ok(()),
    }
}

fn found_word(token: &DocumentToken<'_>) -> &'static str {
    match token {
        DocumentToken::Null => "null",
        DocumentToken::Bool(_) => "a boolean",
        DocumentToken::Integer(_) | DocumentToken::Number(_) | DocumentToken::Float(_) => "a number",
        DocumentToken::Text(_) => "a string",
        DocumentToken::Bytes(_) => "a byte string",
        DocumentToken::List(_) => "an array",
        DocumentToken::Map(_) => "an object",
        DocumentToken::Other(what) => what,
    }
}

/// Describes a mistaken value in words. Shows strings and numbers if that helps.
fn shown(ty: &Type, token: &DocumentToken<'_>) -> String {
    const CHARACTERS_MAX: usize = 40;
    let is_integer = matches!(ty, Type::Scalar(scalar) if scalar.is_integer());
    let is_numeric = matches!(ty, Type::Scalar(ScalarType::Decimal { .. } | ScalarType::F64));
    match token {
        DocumentToken::Text(text) => {
            let start: String = text.as_str().chars().take(CHARACTERS_MAX).collect();
            format!("the string {start:?}")
        }
        DocumentToken::Number(text) if is_numeric => text.chars().take(CHARACTERS_MAX).collect(),
        DocumentToken::Integer(value) if is_numeric => value.to_string(),
        DocumentToken::Float(value) if is_numeric => value.to_string(),
        DocumentToken::Number(_) | DocumentToken::Float(_) if is_integer => "a number that is no exact integer".into(),
        other => found_word(other).into(),
    }
}

/// A scalar that is neither text nor a plain integer in an integer's place.
fn push_scalar(ty: ScalarType, token: &DocumentToken<'_>, out: &mut Vec<u8>) -> bool {
    match (ty, token) {
        (ScalarType::Bool, DocumentToken::Bool(value)) => out.push(*value as u8),
        (ScalarType::Decimal { scale }, _) => {
            let value = match token {
                // Texts are digits and a point, as the description of the API says; numbers may have an exponent.
                DocumentToken::Text(text) if text.as_str().contains(['e', 'E']) => None,
                DocumentToken::Text(text) => scalar::parse_decimal(text.as_str(), scale),
                DocumentToken::Number(text) => scalar::parse_decimal(text, scale),
                DocumentToken::Integer(value) => scalar::parse_decimal(&value.to_string(), scale),
                DocumentToken::Float(value) => scalar::parse_decimal(&value.to_string(), scale),
                _ => None,
            };
            match value {
                Some(value) => out.extend_from_slice(&value.to_le_bytes()),
                None => return false,
            }
        }
        (ScalarType::F64, _) => match read_f64(token) {
            Some(value) => out.extend_from_slice(&value.to_le_bytes()),
            None => return false,
        },
        (integer, DocumentToken::Number(text)) if integer.is_integer() => {
            // The value comes from its digits, because a double on the way would round it.
            let value = scalar::parse_decimal(text, 0);
            return value.is_some_and(|value| push_integer(integer, value, out));
        }
        (integer, DocumentToken::Float(value)) if integer.is_integer() => {
            let value = exact_integer(*value);
            return value.is_some_and(|value| push_integer(integer, value, out));
        }
        (ScalarType::Bytes, DocumentToken::Bytes(bytes)) => value::push_bytes(out, bytes),
        (ScalarType::Uuid, DocumentToken::Bytes(bytes)) if bytes.len() == 16 => out.extend_from_slice(bytes),
        (_, DocumentToken::Text(text)) => return push_scalar_text(ty, text.as_str(), out),
        _ => return false,
    }
    true
}

fn exact_integer(value: f64) -> Option<i128> {
    let is_exact = value.fract() == 0.0 && value.abs() < EXACT_F64_END;
    is_exact.then_some(value as i128)
}

/// A number, or the three strings that stand for what JSON has no number for.
fn read_f64(token: &DocumentToken<'_>) -> Option<f64> {
    match token {
        DocumentToken::Float(value) => Some(*value),
        DocumentToken::Integer(value) => Some(*value as f64),
        DocumentToken::Number(text) => text.parse().ok().filter(|value: &f64| value.is_finite()),
        DocumentToken::Text(text) => match text.as_bytes() {
            b"NaN" => Some(f64::NAN),
            b"Infinity" => Some(f64::INFINITY),
            b"-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
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

fn read_list<'t, S: TokenSource<'t>>(
    item: &Type,
    source: &mut S,
    sink: &mut ArgsSink<'_>,
    path: &ArgPath<'_>,
    mut items: ItemsLeft,
) -> Result<(), SyntaxError> {
    let start = sink.out.len();
    sink.out.push(0); // one byte fits the count of a short list; the code below makes room for more
    let mut count = 0;
    while source.next_item(&mut items)? {
        let path = ArgPath {
            parent: Some(path),
            segment: PathSegment::Index(count),
        };
        read_value(item, source, sink, &path)?;
        sink.bound(start + 1);
        count += 1;
    }
    if count < 0x80 {
        sink.out[start] = count as u8;
    } else {
        let mut prefix = Vec::with_capacity(5);
        value::push_varint(&mut prefix, count as u32);
        sink.out.splice(start..start + 1, prefix);
    }
    Ok(())
}

/// Members in the order of the fields go straight out; in another order they are sorted at the end.
fn read_members<'t, S: TokenSource<'t>, F: NamedType>(
    fields: &[F],
    source: &mut S,
    sink: &mut ArgsSink<'_>,
    path: &ArgPath<'_>,
    mut items: ItemsLeft,
) -> Result<(), SyntaxError> {
    let start = sink.out.len();
    let base = sink.scratch.members.len();
    let (mut next, mut in_order) = (0, true);
    loop {
        let is_expected = fields
            .get(next)
            .is_some_and(|field| source.next_name_is(&mut items, field.name()));
        let index = if is_expected {
            next
        } else {
            let Some(name) = source.next_name(&mut items)? else {
                break;
            };
            let found = fields
                .iter()
                .position(|field| field.name().as_bytes() == name.as_bytes());
            let Some(index) = found else {
                let name: String = name.as_str().chars().take(NAME_SHOWN_MAX).collect();
                let segment = PathSegment::Name(&name);
                let parent = Some(path);
                sink.fail(
                    &ArgPath { parent, segment },
                    format!("unknown; {}", expected_names(fields)),
                );
                source.skip()?;
                continue;
            };
            index
        };
        let path = ArgPath {
            parent: Some(path),
            segment: PathSegment::Name(fields[index].name()),
        };
        in_order &= index == next;
        let known = &sink.scratch.members[base..];
        if !in_order && known.iter().any(|member| member.index == index) {
            sink.fail(&path, "given twice");
        }
        let from = sink.out.len();
        read_value(fields[index].ty(), source, sink, &path)?;
        let to = sink.out.len();
        sink.scratch.members.push(ObjectMember { index, from, to });
        next = index + 1;
    }
    if !in_order || next != fields.len() {
        sort_members(fields, sink, path, start, base);
    }
    sink.scratch.members.truncate(base);
    Ok(())
}

/// Puts the members' bytes in the order of the fields and fills in what may be left out.
fn sort_members<F: NamedType>(fields: &[F], sink: &mut ArgsSink<'_>, path: &ArgPath<'_>, start: usize, base: usize) {
    let mut sorted = std::mem::take(&mut sink.scratch.sorted);
    sorted.clear();
    for (index, field) in fields.iter().enumerate() {
        let member = sink.scratch.members[base..].iter().find(|member| member.index == index);
        match (member, field.ty()) {
            (Some(member), _) => sorted.extend_from_slice(&sink.out[member.from..member.to]),
            (None, Type::Option(_)) => sorted.push(0),
            (None, Type::Unit) => {}
            (None, ty) => {
                let segment = PathSegment::Name(field.name());
                let parent = Some(path);
                sink.fail(
                    &ArgPath { parent, segment },
                    format!("missing; expected {}", describe(ty)),
                );
            }
        }
    }
    sink.out.truncate(start);
    sink.out.extend_from_slice(&sorted);
    sink.scratch.sorted = sorted;
}

fn expected_names<F: NamedType>(fields: &[F]) -> String {
    if fields.is_empty() {
        return "nothing is expected here".into();
    }
    format!("expected {}", first_names(fields.iter().map(NamedType::name)))
}

/// Describes the JSON that a type requires, in words.
fn describe(ty: &Type) -> String {
    match ty {
        Type::Unit => "null".into(),
        Type::Option(inner) => format!("{} or null", describe(inner)),
        Type::List(_) => "an array".into(),
        Type::Struct(_) => "an object".into(),
        Type::Enum(variants) => format!("one of {}", first_names(variants.iter().map(String::as_str))),
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
