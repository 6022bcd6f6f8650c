//! One call of a batch, and the chunk that gathers them.

use std::ops::Range;

use bytes::Bytes;
use reprise_base::Grant;
use reprise_codec::{
    ArgsError, ArgsScratch, Cbor, DocumentToken, Format, JsonSource, SyntaxError, Text, TokenSource, encode_args,
    encode_document,
};
use reprise_router::{BatchBuilder, Stream};

use crate::{
    call_text::CallText,
    calls::{bad_key, is_valid_key},
    limits::ID_BYTES_MAX,
    principal::Principal,
    refusal::Refusal,
    roles::TokenRole,
    submission::Submission,
    target::Target,
};

/// Calls that travel through the engine together.
pub struct Chunk {
    pub text: Bytes,
    pub format: Format,
    /// Each with where its `id` lies in the text: nowhere, without one.
    pub calls: Submission<Range<u32>>,
    /// Bytes of all lines, blank ones included.
    pub line_bytes: usize,
    /// Bytes of the request, if none of its calls goes to the engine.
    pub refused_grant: Option<Grant>,
}

/// Memory that is used again from call to call.
#[derive(Default)]
pub struct LineParser {
    args: Vec<u8>,
    scratch: ArgsScratch,
    opening: LinePrefix,
    /// The last id of CBOR, as JSON.
    id_text: Vec<u8>,
}

/// The beginning of the last line, up to its arguments, and the target that it names. Most lines of a chunk differ in their arguments
/// alone.
#[derive(Default)]
struct LinePrefix {
    text: Vec<u8>,
    target: Option<u16>,
}

impl LineParser {
    /// Another chunk has other targets.
    pub fn begin_chunk(&mut self) {
        self.opening.target = None;
    }
}

/// The members of a call. The arguments are encoded at once if the procedure was named before them.
#[derive(Default)]
struct CallLine<'t> {
    module: Option<Text<'t>>,
    procedure: Option<Text<'t>>,
    target: Option<u16>,
    args: LineArgs,
    /// The place of the arguments.
    args_at: Range<usize>,
    id: Option<Range<usize>>,
    idempotency_key: Option<Text<'t>>,
}

impl CallLine<'_> {
    /// Returns the module and the procedure that the call names.
    fn names(&self) -> Result<(&str, &str), Refusal> {
        match (&self.module, &self.procedure) {
            (Some(module), Some(procedure)) => Ok((module.as_str(), procedure.as_str())),
            _ => Err(Refusal::malformed("a call must name its module and its procedure")),
        }
    }
}

#[derive(Default)]
enum LineArgs {
    #[default]
    Missing,
    Encoded(Result<(), ArgsError>),
    Raw,
}

impl Chunk {
    pub fn new(text: Bytes, format: Format, order: Stream) -> Self {
        Self {
            text,
            format,
            calls: Submission::in_order(order),
            line_bytes: 0,
            refused_grant: None,
        }
    }

    /// Adds the call at `line` of the text to `batch`, or its error.
    pub fn add(&mut self, line: Range<u32>, batch: &mut BatchBuilder, parser: &mut LineParser, principal: &Principal) {
        let text = std::mem::take(&mut self.text); // the call stays readable while targets are added
        let bytes = &text[line.start as usize..line.end as usize];
        let read = match self.format {
            Format::Json => self.read_json(bytes, batch, parser),
            Format::Cbor => self
                .read_all(Cbor::new(bytes), batch, parser)
                .and_then(|line| check_cbor_id(line, bytes, &mut parser.id_text)),
        };
        match read {
            Ok(parsed) => self.add_parsed(line.start, parsed, bytes, batch, parser, principal),
            Err(error) => {
                let what = match self.format {
                    Format::Json => "the line is not a call, a JSON object in UTF-8",
                    Format::Cbor => "the item is not a call, a CBOR map",
                };
                self.calls.refuse(Refusal::malformed(format!("{what}: {error}")), 0..0);
            }
        }
        self.text = text;
    }

    fn add_parsed(
        &mut self,
        begin: u32,
        line: CallLine<'_>,
        bytes: &[u8],
        batch: &mut BatchBuilder,
        parser: &mut LineParser,
        principal: &Principal,
    ) {
        let in_text = |range: &Range<usize>| begin + range.start as u32..begin + range.end as u32;
        let id = line.id.as_ref().map_or(0..0, in_text);
        let text = CallText {
            args: in_text(&line.args_at),
            format: self.format,
            may_write: principal.may(TokenRole::Write),
        };
        match self.push(line, bytes, batch, parser, principal) {
            Ok((target, index)) => self.calls.add(target, index, text, id),
            Err(refusal) => self.calls.refuse(refusal, id),
        }
    }

    /// Puts a call into `batch`; the number of its target, and its index.
    fn push(
        &mut self,
        line: CallLine<'_>,
        bytes: &[u8],
        batch: &mut BatchBuilder,
        parser: &mut LineParser,
        principal: &Principal,
    ) -> Result<(u16, usize), Refusal> {
        if line.idempotency_key.is_some() {
            return self.push_keyed(line, bytes, batch, parser, principal);
        }
        let number = match line.target {
            Some(number) => number,
            None => {
                let (module, procedure) = line.names()?;
                principal.require_grant(module, procedure)?;
                find_target(&mut self.calls, batch, module, procedure)?
            }
        };
        let target = self.calls.target(number);
        target.check_caller(principal)?;
        if let LineArgs::Encoded(encoded) = line.args {
            encoded?;
        } else {
            let (params, scratch) = (&target.schema().params, &mut parser.scratch);
            parser.args.clear();
            encode_document(self.format, params, &bytes[line.args_at], &mut parser.args, scratch)?;
        }
        let copy = |out: &mut Vec<u8>| -> Result<(), Refusal> {
            out.extend_from_slice(&parser.args);
            Ok(())
        };
        let index = batch.push(&target.module, target.procedure, None, copy)?;
        Ok((number, index))
    }

    /// Puts a call with a key into `batch`, as `push` does. The kept outcome is looked up before anything else.
    fn push_keyed(
        &mut self,
        line: CallLine<'_>,
        bytes: &[u8],
        batch: &mut BatchBuilder,
        parser: &mut LineParser,
        principal: &Principal,
    ) -> Result<(u16, usize), Refusal> {
        let (module, procedure) = line.names()?;
        principal.require_grant(module, procedure)?;
        let key = line.idempotency_key.as_ref().map_or("", Text::as_str);
        if !is_valid_key(key) {
            return Err(bad_key());
        }
        let scoped = Some(batch.scoped(key));
        let target = Target::for_call(batch.router(), batch.deployed(), module, procedure, scoped)?;
        target.check_caller(principal)?;
        let known = self.calls.last_targets().take(8).find(|(_, known)| known.is(&target));
        let number = known.map(|(number, _)| number);
        let number = number.unwrap_or_else(|| self.calls.number_of(&target));
        let args = &bytes[line.args_at];
        let key = target.call_key(Some(key), self.format, args)?;
        let is_encoded = line.target == Some(number);
        let (format, params) = (self.format, &target.schema().params);
        let encode = |out: &mut Vec<u8>| match line.args {
            LineArgs::Encoded(encoded) if is_encoded => encoded.map(|()| out.extend_from_slice(&parser.args)),
            _ => encode_document(format, params, args, out, &mut parser.scratch),
        };
        let index = batch.push(&target.module, target.procedure, key, encode)?;
        Ok((number, index))
    }

    /// A line whose opening is that of the line before is read from its arguments on.
    fn read_json<'t>(
        &mut self,
        bytes: &'t [u8],
        batch: &BatchBuilder,
        parser: &mut LineParser,
    ) -> Result<CallLine<'t>, SyntaxError> {
        if let Some(target) = parser.opening.target
            && bytes.starts_with(&parser.opening.text)
        {
            let mut source = JsonSource::new_at(bytes, parser.opening.text.len());
            parser.args.clear();
            let params = &self.calls.target(target).schema().params;
            let encoded = encode_args(params, &mut source, &mut parser.args, &mut parser.scratch)?;
            if bytes[source.position()..] == *b"}" {
                return Ok(CallLine {
                    target: Some(target),
                    args: LineArgs::Encoded(encoded),
                    args_at: parser.opening.text.len()..bytes.len() - 1,
                    ..CallLine::default()
                });
            }
        }
        self.read_all(JsonSource::new(bytes), batch, parser)
    }

    fn read_all<'t, S: TokenSource<'t>>(
        &mut self,
        mut source: S,
        batch: &BatchBuilder,
        parser: &mut LineParser,
    ) -> Result<CallLine<'t>, SyntaxError> {
        let DocumentToken::Map(mut items) = source.token()? else {
            return wrong(&source, "expected an object with module, procedure and args");
        };
        let mut line = CallLine::default();
        while let Some(name) = source.next_name(&mut items)? {
            match name.as_bytes() {
                b"module" if line.module.is_none() => line.module = Some(text(&mut source)?),
                b"procedure" if line.procedure.is_none() => {
                    line.procedure = Some(text(&mut source)?);
                }
                b"id" if line.id.is_none() => {
                    let id = source.raw()?;
                    if id.len() > ID_BYTES_MAX {
                        return wrong(&source, "an id of more than 1024 bytes");
                    }
                    line.id = Some(id);
                }
                b"idempotency_key" if line.idempotency_key.is_none() => {
                    line.idempotency_key = match source.token()? {
                        DocumentToken::Null => None,
                        DocumentToken::Text(key) => Some(key),
                        _ => return wrong(&source, "idempotency_key must be a string"),
                    };
                }
                b"args" if matches!(line.args, LineArgs::Missing) => {
                    self.read_args(&mut line, &mut source, batch, parser)?;
                }
                b"module" | b"procedure" | b"id" | b"idempotency_key" | b"args" => {
                    return wrong(&source, "the same member twice");
                }
                _ => {
                    let what = "an unknown member; a call has module, procedure, args, id, idempotency_key";
                    return wrong(&source, what);
                }
            }
        }
        source.end()?;
        Ok(line)
    }

    fn read_args<'t, S: TokenSource<'t>>(
        &mut self,
        line: &mut CallLine<'t>,
        source: &mut S,
        batch: &BatchBuilder,
        parser: &mut LineParser,
    ) -> Result<(), SyntaxError> {
        if let (Some(module), Some(procedure)) = (&line.module, &line.procedure) {
            let (module, procedure) = (module.as_str(), procedure.as_str());
            line.target = find_target(&mut self.calls, batch, module, procedure).ok();
        }
        let Some(target) = line.target else {
            line.args_at = source.raw()?;
            line.args = LineArgs::Raw;
            return Ok(());
        };
        if line.id.is_none() && line.idempotency_key.is_none() && self.format == Format::Json {
            source.copy_read(&mut parser.opening.text);
            parser.opening.target = Some(target);
        }
        let params = &self.calls.target(target).schema().params;
        parser.args.clear();
        let begin = source.position();
        let encoded = encode_args(params, source, &mut parser.args, &mut parser.scratch)?;
        line.args_at = begin..source.position();
        line.args = LineArgs::Encoded(encoded);
        Ok(())
    }
}

/// Refuses a call whose id an answer in JSON could not name. The client could not find its answer.
fn check_cbor_id<'t>(line: CallLine<'t>, bytes: &[u8], text: &mut Vec<u8>) -> Result<CallLine<'t>, SyntaxError> {
    if let Some(id) = line.id.clone() {
        text.clear();
        Cbor::new(&bytes[id.clone()])
            .write_json(text)
            .map_err(|error| SyntaxError {
                what: "an id that JSON does not have",
                at: id.start + error.at,
            })?;
    }
    Ok(line)
}

#[cold]
fn wrong<'t, T>(source: &impl TokenSource<'t>, what: &'static str) -> Result<T, SyntaxError> {
    Err(SyntaxError {
        what,
        at: source.position(),
    })
}

fn text<'t>(source: &mut impl TokenSource<'t>) -> Result<Text<'t>, SyntaxError> {
    match source.token()? {
        DocumentToken::Text(text) => Ok(text),
        _ => wrong(source, "module and procedure must be strings"),
    }
}

fn find_target(
    calls: &mut Submission<Range<u32>>,
    batch: &BatchBuilder,
    module: &str,
    procedure: &str,
) -> Result<u16, Refusal> {
    // The last ones come first, because lines mostly name the procedure of the line before. A call with a key may have brought a former version.
    let is_it = |target: &Target| {
        let is_named = target.module.name == module && target.schema().name == procedure;
        is_named && batch.deployed().is_current(target.module.id)
    };
    let known = calls.last_targets().take(8).find(|(_, target)| is_it(target));
    match known {
        Some((number, _)) => Ok(number),
        None => Ok(calls.number_of(&Target::find(batch.deployed(), module, procedure)?)),
    }
}
