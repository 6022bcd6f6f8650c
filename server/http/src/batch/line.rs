//! One call of a batch, and the chunk that gathers them.

use std::ops::Range;

use bytes::Bytes;
use reprise_api::{Problem, ProblemKind};
use reprise_router::{BatchBuilder, BatchReply};

use crate::{
    calls::{bad_key, is_valid_key},
    codec::{ArgsError, Cbor, Format, Json, Scratch, Source, SyntaxError, Text, Token, encode_args, encode_document},
    refusal::Refusal,
    submit::Target,
};

/// Calls that travel through the engine together.
pub struct Chunk {
    pub text: Bytes,
    pub format: Format,
    pub slots: Vec<Slot>,
    /// Procedures that the calls name.
    pub targets: Vec<Target>,
    /// Until then the client waits for the calls.
    pub deadline_ns: Option<u64>,
    /// The answers; a repeated call's is in a later one.
    pub replies: Vec<BatchReply>,
}

/// A call and what became of it.
pub struct Slot {
    /// In the chunk's text.
    pub line: Range<u32>,
    /// The text of `id` in the chunk's text; empty without one.
    pub id: Range<u32>,
    pub state: SlotState,
}

pub enum SlotState {
    Refused(Box<Problem>),
    /// Target, number of the reply, and index in it.
    Called {
        target: u16,
        round: u16,
        index: u32,
    },
}

/// Memory that is used again from call to call.
#[derive(Default)]
pub struct LineParser {
    args: Vec<u8>,
    scratch: Scratch,
    opening: Opening,
}

/// What the last line began with, up to its arguments, and the target that this names: most lines of a chunk differ in
/// their arguments alone.
#[derive(Default)]
struct Opening {
    text: Vec<u8>,
    target: Option<u16>,
}

impl LineParser {
    /// Another chunk has other targets.
    pub fn begin_chunk(&mut self) {
        self.opening.target = None;
    }
}

/// A call's members. The arguments are encoded on the way where the procedure was named before them.
#[derive(Default)]
struct Line<'t> {
    module: Option<Text<'t>>,
    procedure: Option<Text<'t>>,
    target: Option<u16>,
    args: Args,
    id: Option<Range<usize>>,
    idempotency_key: Option<Text<'t>>,
}

#[derive(Default)]
enum Args {
    #[default]
    Missing,
    Encoded(Result<(), ArgsError>),
    /// Where they lie.
    Raw(Range<usize>),
}

impl Chunk {
    pub fn new(text: Bytes, format: Format) -> Self {
        Self {
            text,
            format,
            slots: Vec::new(),
            targets: Vec::new(),
            deadline_ns: None,
            replies: Vec::new(),
        }
    }

    pub fn refuse(&mut self, problem: Box<Problem>) {
        self.slots.push(Slot {
            line: 0..0,
            id: 0..0,
            state: SlotState::Refused(problem),
        });
    }

    /// True where no result of a call in here can be large.
    pub fn has_small_results(&self) -> bool {
        self.targets.iter().all(|target| target.has_small_result)
    }

    /// Adds the call at `line` of the text, to `batch` or as a problem.
    pub fn add(&mut self, line: Range<u32>, batch: &mut BatchBuilder, parser: &mut LineParser, may_write: bool) {
        let (id, state) = self.parse(line.clone(), batch, parser, may_write, 0);
        self.slots.push(Slot { line, id, state });
    }

    /// Parses a call and puts it into `batch`, whose answers will be those of `round`.
    pub fn parse(
        &mut self,
        line: Range<u32>,
        batch: &mut BatchBuilder,
        parser: &mut LineParser,
        may_write: bool,
        round: u16,
    ) -> (Range<u32>, SlotState) {
        let text = std::mem::take(&mut self.text); // so that the call can be read while targets are added
        let bytes = &text[line.start as usize..line.end as usize];
        let parsed = self.parse_bytes(line, bytes, batch, parser, may_write, round);
        self.text = text;
        parsed
    }

    fn parse_bytes(
        &mut self,
        line: Range<u32>,
        bytes: &[u8],
        batch: &mut BatchBuilder,
        parser: &mut LineParser,
        may_write: bool,
        round: u16,
    ) -> (Range<u32>, SlotState) {
        let read = match self.format {
            Format::Json => self.read_json(bytes, batch, parser),
            Format::Cbor => self.read_all(Cbor::new(bytes), batch, parser),
        };
        let parsed = match read {
            Ok(parsed) => parsed,
            Err(error) => {
                let detail = match self.format {
                    Format::Json => {
                        format!("the line is not a call, a JSON object in UTF-8: {error}")
                    }
                    Format::Cbor => format!("the item is not a call, a CBOR map: {error}"),
                };
                return (0..0, SlotState::Refused(Refusal::malformed(detail).problem));
            }
        };
        let id = parsed
            .id
            .clone()
            .map_or(0..0, |id| line.start + id.start as u32..line.start + id.end as u32);
        let state = match self.add_call(parsed, bytes, batch, parser, may_write) {
            Ok((target, index)) => SlotState::Called { target, round, index },
            Err(refusal) => SlotState::Refused(refusal.problem),
        };
        (id, state)
    }

    fn add_call(
        &mut self,
        line: Line<'_>,
        bytes: &[u8],
        batch: &mut BatchBuilder,
        parser: &mut LineParser,
        may_write: bool,
    ) -> Result<(u16, u32), Refusal> {
        let number = match (line.target, &line.module, &line.procedure) {
            (Some(number), ..) => number,
            (None, Some(module), Some(procedure)) => {
                find_target(&mut self.targets, batch, module.as_str(), procedure.as_str())?
            }
            _ => {
                let detail = "a call names its module and its procedure";
                return Err(Refusal::malformed(detail));
            }
        };
        let target = &self.targets[number as usize];
        if !may_write && !target.schema().read_only {
            let detail = "the token's role is read, and the procedure writes; use a token with the role write";
            return Err(Refusal::new(ProblemKind::Forbidden, detail));
        }
        let key = line.idempotency_key.as_ref().map(Text::as_str);
        if key.is_some_and(|key| !is_valid_key(key)) {
            return Err(bad_key());
        }
        let raw = match line.args {
            Args::Encoded(encoded) => {
                encoded?;
                None
            }
            Args::Raw(range) => Some(&bytes[range]),
            Args::Missing => Some(&[][..]),
        };
        if let Some(raw) = raw {
            let (params, scratch) = (&target.schema().params, &mut parser.scratch);
            parser.args.clear();
            encode_document(self.format, params, raw, &mut parser.args, scratch)?;
        }
        let copy = |out: &mut Vec<u8>| -> Result<(), Refusal> {
            out.extend_from_slice(&parser.args);
            Ok(())
        };
        let index = batch.push(&target.module, target.procedure, key, copy)?;
        Ok((number, index as u32))
    }

    /// A line whose opening is that of the line before is read from its arguments on.
    fn read_json<'t>(
        &mut self,
        bytes: &'t [u8],
        batch: &BatchBuilder,
        parser: &mut LineParser,
    ) -> Result<Line<'t>, SyntaxError> {
        if let Some(target) = parser.opening.target
            && bytes.starts_with(&parser.opening.text)
        {
            let mut source = Json::new_at(bytes, parser.opening.text.len());
            parser.args.clear();
            let params = &self.targets[target as usize].schema().params;
            let encoded = encode_args(params, &mut source, &mut parser.args, &mut parser.scratch)?;
            if bytes[source.position()..] == *b"}" {
                return Ok(Line {
                    target: Some(target),
                    args: Args::Encoded(encoded),
                    ..Line::default()
                });
            }
        }
        self.read_all(Json::new(bytes), batch, parser)
    }

    fn read_all<'t, S: Source<'t>>(
        &mut self,
        mut source: S,
        batch: &BatchBuilder,
        parser: &mut LineParser,
    ) -> Result<Line<'t>, SyntaxError> {
        let Token::Map(mut items) = source.token()? else {
            return wrong(&source, "expected an object with module, procedure and args");
        };
        let mut line = Line::default();
        while let Some(name) = source.next_name(&mut items)? {
            match name.as_bytes() {
                b"module" if line.module.is_none() => line.module = Some(text(&mut source)?),
                b"procedure" if line.procedure.is_none() => {
                    line.procedure = Some(text(&mut source)?);
                }
                b"id" if line.id.is_none() => line.id = Some(source.raw()?),
                b"idempotency_key" if line.idempotency_key.is_none() => {
                    line.idempotency_key = match source.token()? {
                        Token::Null => None,
                        Token::Text(key) => Some(key),
                        _ => return wrong(&source, "an idempotency_key is a string"),
                    };
                }
                b"args" if matches!(line.args, Args::Missing) => {
                    self.read_args(&mut line, &mut source, batch, parser)?;
                }
                b"module" | b"procedure" | b"id" | b"idempotency_key" | b"args" => {
                    return wrong(&source, "a member that is given twice");
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

    fn read_args<'t, S: Source<'t>>(
        &mut self,
        line: &mut Line<'t>,
        source: &mut S,
        batch: &BatchBuilder,
        parser: &mut LineParser,
    ) -> Result<(), SyntaxError> {
        if let (Some(module), Some(procedure)) = (&line.module, &line.procedure) {
            let (module, procedure) = (module.as_str(), procedure.as_str());
            line.target = find_target(&mut self.targets, batch, module, procedure).ok();
        }
        let Some(target) = line.target else {
            line.args = Args::Raw(source.raw()?);
            return Ok(());
        };
        if line.id.is_none() && line.idempotency_key.is_none() && self.format == Format::Json {
            source.copy_read(&mut parser.opening.text);
            parser.opening.target = Some(target);
        }
        let params = &self.targets[target as usize].schema().params;
        parser.args.clear();
        let encoded = encode_args(params, source, &mut parser.args, &mut parser.scratch)?;
        line.args = Args::Encoded(encoded);
        Ok(())
    }
}

#[cold]
fn wrong<'t, T>(source: &impl Source<'t>, what: &'static str) -> Result<T, SyntaxError> {
    Err(SyntaxError {
        what,
        at: source.position(),
    })
}

fn text<'t>(source: &mut impl Source<'t>) -> Result<Text<'t>, SyntaxError> {
    match source.token()? {
        Token::Text(text) => Ok(text),
        _ => wrong(source, "a module and a procedure are named by strings"),
    }
}

fn find_target(targets: &mut Vec<Target>, batch: &BatchBuilder, module: &str, procedure: &str) -> Result<u16, Refusal> {
    // From the end: lines mostly name what the line before named, and a repeated call must find the newest version.
    let known = targets.iter().enumerate().rev().take(8).find(|(_, target)| {
        target.module.name == module
            && target.schema().name == procedure
            && batch
                .deployed()
                .current
                .get(module)
                .is_some_and(|current| current.id == target.module.id)
    });
    if let Some((number, _)) = known {
        return Ok(number as u16);
    }
    targets.push(Target::find(batch.deployed(), module, procedure)?);
    Ok(targets.len() as u16 - 1)
}
