//! One line of a batch, and the chunk that gathers them.

use std::{borrow::Cow, fmt, ops::Range};

use bytes::Bytes;
use reprise_api::{Problem, ProblemKind};
use reprise_router::{BatchBuilder, BatchReply};
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::{
    calls::{bad_key, is_valid_key},
    json::{ArgsError, ArgsSeed, Scratch, encode_args},
    refusal::Refusal,
    submit::Target,
};

const MEMBERS: &[&str] = &["module", "procedure", "args", "id", "idempotency_key"];

/// Lines that travel through the engine together.
pub struct Chunk {
    pub text: Bytes,
    pub slots: Vec<Slot>,
    /// Procedures that the lines name.
    pub targets: Vec<Target>,
    /// The answers; a repeated call's is in a later one.
    pub replies: Vec<BatchReply>,
}

/// A line and what became of it.
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

/// Memory that is used again from line to line.
#[derive(Default)]
pub struct LineParser {
    args: Vec<u8>,
    scratch: Scratch,
}

/// A line's members. The arguments are encoded on the way where the procedure was named before them.
#[derive(Default)]
struct Line<'t> {
    module: Option<Cow<'t, str>>,
    procedure: Option<Cow<'t, str>>,
    target: Option<u16>,
    args: Args<'t>,
    id: Option<&'t RawValue>,
    idempotency_key: Option<Cow<'t, str>>,
}

#[derive(Default)]
enum Args<'t> {
    #[default]
    Missing,
    Encoded(Result<(), ArgsError>),
    Raw(&'t RawValue),
}

impl Chunk {
    pub fn new(text: Bytes) -> Self {
        Self {
            text,
            slots: Vec::new(),
            targets: Vec::new(),
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

    /// Adds the line at `line` of the text, as a call of `batch` or as a problem.
    pub fn add(
        &mut self,
        line: Range<u32>,
        batch: &mut BatchBuilder,
        parser: &mut LineParser,
        may_write: bool,
    ) {
        let (id, state) = self.parse(line.clone(), batch, parser, may_write, 0);
        self.slots.push(Slot { line, id, state });
    }

    /// Parses a line and puts its call into `batch`, whose answers will be those of `round`.
    pub fn parse(
        &mut self,
        line: Range<u32>,
        batch: &mut BatchBuilder,
        parser: &mut LineParser,
        may_write: bool,
        round: u16,
    ) -> (Range<u32>, SlotState) {
        let text = self.text.clone(); // a count, so that the line can be read while targets are added
        let bytes = &text[line.start as usize..line.end as usize];
        let mut deserializer = serde_json::Deserializer::from_slice(bytes);
        parser.args.clear();
        let seed = LineSeed {
            targets: &mut self.targets,
            batch: &*batch,
            parser: &mut *parser,
        };
        let parsed = seed
            .deserialize(&mut deserializer)
            .and_then(|parsed| deserializer.end().map(|()| parsed));
        let parsed = match parsed {
            Ok(parsed) => parsed,
            Err(error) => {
                let detail = format!("the line is not a call, a JSON object in UTF-8: {error}");
                return (0..0, SlotState::Refused(Refusal::malformed(detail).problem));
            }
        };
        let id = parsed.id.map_or(0..0, |id| range_in(&text, id.get()));
        let state = match self.add_call(parsed, batch, parser, may_write) {
            Ok((target, index)) => SlotState::Called {
                target,
                round,
                index,
            },
            Err(refusal) => SlotState::Refused(refusal.problem),
        };
        (id, state)
    }

    fn add_call(
        &mut self,
        line: Line<'_>,
        batch: &mut BatchBuilder,
        parser: &mut LineParser,
        may_write: bool,
    ) -> Result<(u16, u32), Refusal> {
        let (Some(module), Some(procedure)) = (&line.module, &line.procedure) else {
            return Err(Refusal::malformed(
                "a call names its module and its procedure",
            ));
        };
        let number = match line.target {
            Some(number) => number,
            None => find_target(&mut self.targets, batch, module, procedure)?,
        };
        let target = &self.targets[number as usize];
        if !may_write && !target.schema().read_only {
            let detail = "the token's role is read, and the procedure writes; use a token with the role write";
            return Err(Refusal::new(ProblemKind::Forbidden, detail));
        }
        let key = line.idempotency_key.as_deref();
        if key.is_some_and(|key| !is_valid_key(key)) {
            return Err(bad_key());
        }
        let raw = match &line.args {
            Args::Raw(raw) => raw.get().as_bytes(),
            Args::Missing | Args::Encoded(_) => b"{}",
        };
        match line.args {
            Args::Encoded(encoded) => encoded?,
            Args::Raw(_) | Args::Missing => {
                encode_args(
                    &target.schema().params,
                    raw,
                    &mut parser.args,
                    &mut parser.scratch,
                )?;
            }
        }
        let copy = |out: &mut Vec<u8>| -> Result<(), Refusal> {
            out.extend_from_slice(&parser.args);
            Ok(())
        };
        let index = batch.push(&target.module, target.procedure, key, copy)?;
        Ok((number, index as u32))
    }
}

fn range_in(text: &[u8], part: &str) -> Range<u32> {
    let start = part.as_ptr() as usize - text.as_ptr() as usize;
    start as u32..(start + part.len()) as u32
}

fn find_target(
    targets: &mut Vec<Target>,
    batch: &BatchBuilder,
    module: &str,
    procedure: &str,
) -> Result<u16, Refusal> {
    // From the end: lines mostly name what the line before named, and a repeated call must find the newest version.
    let known = targets
        .iter()
        .enumerate()
        .rev()
        .take(8)
        .find(|(_, target)| {
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

struct LineSeed<'p> {
    targets: &'p mut Vec<Target>,
    batch: &'p BatchBuilder,
    parser: &'p mut LineParser,
}

impl<'de> DeserializeSeed<'de> for LineSeed<'_> {
    type Value = Line<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Line<'de>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for LineSeed<'_> {
    type Value = Line<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with module, procedure and args")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Line<'de>, A::Error> {
        let mut line = Line::default();
        while let Some(Text(name)) = members.next_key()? {
            match &*name {
                "module" => set(&mut line.module, members.next_value::<Text>()?.0, "module")?,
                "procedure" => set(
                    &mut line.procedure,
                    members.next_value::<Text>()?.0,
                    "procedure",
                )?,
                "id" => set(&mut line.id, members.next_value()?, "id")?,
                "idempotency_key" => {
                    let key = members.next_value::<Option<Text>>()?;
                    line.idempotency_key = key.map(|Text(key)| key);
                }
                "args" if matches!(line.args, Args::Missing) => {
                    if let (Some(module), Some(procedure)) = (&line.module, &line.procedure) {
                        line.target = find_target(self.targets, self.batch, module, procedure).ok();
                    }
                    line.args = match line.target {
                        None => Args::Raw(members.next_value()?),
                        Some(target) => Args::Encoded(members.next_value_seed(ArgsSeed {
                            params: &self.targets[target as usize].schema().params,
                            out: &mut self.parser.args,
                            scratch: &mut self.parser.scratch,
                        })?),
                    };
                }
                "args" => return Err(de::Error::duplicate_field("args")),
                unknown => return Err(de::Error::unknown_field(unknown, MEMBERS)),
            }
        }
        Ok(line)
    }
}

fn set<T, E: de::Error>(slot: &mut Option<T>, value: T, name: &'static str) -> Result<(), E> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(E::duplicate_field(name)),
    }
}

/// A string that borrows from the line unless it has escapes.
struct Text<'t>(Cow<'t, str>);

impl<'de> de::Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }
    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Borrowed(text)))
    }
    fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Owned(text.to_owned())))
    }
}
