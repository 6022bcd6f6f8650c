//! Records: the contents of a block.
//!
//! `[varint: bytes that follow][kind: 1 byte][body]`. Numbers are little-endian or, where the text says so, LEB128 varints of at most 32
//! bits. The last field of a body takes the rest of it.

use reprise_abi::{
    schema::NAME_BYTES_MAX,
    value::{ARGS_BYTES_MAX, ValueReader, push_varint},
};
use reprise_base::{
    Lsn, PartitionId, TxnId,
    limits::{PARTITIONS_MAX, RECORD_BYTES_MAX},
    named_enum,
};

use crate::{
    ChangesRef, ControlRef, KeyRef, PartitionList, PartitionSet, PrincipalRef, WireError,
    body::{BodyReader, TABLE_NAME_BYTES_MAX},
    caller::{
        HAS_KEY, HAS_PRINCIPAL, HAS_SCOPE, decode_key, decode_principal, principal_bytes, principal_flag,
        push_principal,
    },
    corrupt,
    deploy::{DEPLOY, DEPLOY_MIGRATED, DeployRef, DestroyedList},
    part::PartRef,
    reader::ByteReader,
    stand_in::{self, STAND_IN, content_in},
};

named_enum! {
    /// First byte of a record's body. A number keeps its meaning for ever. 2 is not in use, and 9 is a deployment that ran something. 13 is a
    /// stand-in, which holds a record of one of these kinds.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum RecordKind {
        Genesis = 1 => "genesis",
        Deploy = 8 => "deploy",
        Remove = 3 => "remove",
        Command = 4 => "command",
        Changes = 5 => "changes",
        Checkpoint = 6 => "checkpoint",
        DropTable = 7 => "drop_table",
        Void = 10 => "void",
        Quarantine = 11 => "quarantine",
        Part = 12 => "part",
        Principal = 14 => "principal",
        Control = 15 => "control",
    }
}

/// The log's first record, which describes the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Genesis {
    pub database_id: [u8; 16],
    /// Key of every transaction's random stream.
    pub secret: [u64; 2],
    pub partitions: u16,
    pub created_us: i64,
}

/// A module taken out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoveRef<'a> {
    pub txn_id: TxnId,
    pub name: &'a str,
    /// Things that the removal destroyed, all of them with consent.
    pub destroyed: DestroyedList<'a>,
}

/// A table that is no more, with its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropTableRef<'a> {
    pub txn_id: TxnId,
    pub table: &'a str,
}

/// Longest text about the difference of a replay, in bytes.
pub const QUARANTINE_TEXT_BYTES_MAX: usize = 4096;

/// A procedure of one module version that takes no calls any more, since its replay diverged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuarantineRef<'a> {
    pub txn_id: TxnId,
    pub module_id: u32,
    pub procedure: u16,
    /// The record that diverged.
    pub diverged: Lsn,
    /// The divergence in words, at most [`QUARANTINE_TEXT_BYTES_MAX`].
    pub what: &'a str,
}

/// A committed transaction, to be run again by replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandRef<'a> {
    pub txn_id: TxnId,
    pub partitions: PartitionSet<'a>,
    pub module_id: u32,
    pub procedure: u16,
    /// Digest of the write set and the result.
    pub digest: u64,
    /// Number of the caller's name; 0 without tokens.
    pub principal: u32,
    pub keyed: Option<KeyRef<'a>>,
    pub args: &'a [u8],
}

impl<'a> CommandRef<'a> {
    /// A call of the first procedure of the first module, by no named caller.
    pub fn new(txn_id: TxnId, partitions: PartitionSet<'a>, args: &'a [u8]) -> Self {
        Self {
            txn_id,
            partitions,
            module_id: 0,
            procedure: 0,
            digest: 0,
            principal: 0,
            keyed: None,
            args,
        }
    }
}

/// A point between two transactions on all partitions: a checkpoint, once published, stands for everything up to here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointMark {
    pub txn_id: TxnId,
    /// Time in which a primary has run, in microseconds: idempotency keys age by it.
    pub key_clock_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordRef<'a> {
    Genesis(Genesis),
    Deploy(DeployRef<'a>),
    Remove(RemoveRef<'a>),
    Command(CommandRef<'a>),
    Changes(ChangesRef<'a>),
    Checkpoint(CheckpointMark),
    DropTable(DropTableRef<'a>),
    Quarantine(QuarantineRef<'a>),
    /// Some of the changes of the transaction whose record of changes follows.
    Part(PartRef<'a>),
    Principal(PrincipalRef<'a>),
    Control(ControlRef<'a>),
    /// An LSN that was given out and lost in a crash, before any client got an answer about its record.
    Void,
}

const VOID: u8 = RecordKind::Void as u8;
const QUARANTINE: u8 = RecordKind::Quarantine as u8;
const PART: u8 = RecordKind::Part as u8;
const PRINCIPAL: u8 = RecordKind::Principal as u8;
const CONTROL: u8 = RecordKind::Control as u8;

// Flags of commands and changes.
pub(crate) const PARTITIONS_MASK: u8 = 3;
/// The partition that gave out the transaction id.
const ORIGIN: u8 = 0;
const ONE: u8 = 1;
const SEVERAL: u8 = 2;
const ALL: u8 = 3;
pub(crate) const COMMAND_FLAGS: u8 = PARTITIONS_MASK | HAS_KEY | HAS_SCOPE | HAS_PRINCIPAL;

/// Length, kind, flags, transaction id, digest, module, procedure and principal.
const PLAIN_HEAD_BYTES_MAX: usize = 5 + 1 + 1 + 8 + 8 + 5 + 3 + 5;

pub(crate) const GENESIS_BODY_BYTES: usize = 16 + 16 + 2 + 8;

pub(crate) const fn varint_bytes(value: u32) -> usize {
    // 7 bits each; `| 1` because zero takes a byte, too.
    (38 - (value | 1).leading_zeros() as usize) / 7
}

/// Its length in one byte, and its bytes.
pub(crate) fn push_short(out: &mut Vec<u8>, bytes: &[u8]) {
    assert!(bytes.len() <= u8::MAX as usize, "{} bytes", bytes.len());
    out.push(bytes.len() as u8);
    out.extend_from_slice(bytes);
}

/// Writes length and kind of a record with `body_bytes` of body.
#[inline]
pub(crate) fn begin(out: &mut Vec<u8>, kind: RecordKind, body_bytes: usize) {
    begin_numbered(out, kind as u8, body_bytes);
}

#[inline]
pub(crate) fn begin_numbered(out: &mut Vec<u8>, kind: u8, body_bytes: usize) {
    assert!(body_bytes + 6 <= RECORD_BYTES_MAX, "record of {body_bytes} bytes");
    out.reserve(body_bytes + 6);
    push_varint(out, body_bytes as u32 + 1);
    out.push(kind);
}

pub(crate) fn push_genesis(out: &mut Vec<u8>, genesis: &Genesis) {
    out.extend_from_slice(&genesis.database_id);
    out.extend_from_slice(&genesis.secret[0].to_le_bytes());
    out.extend_from_slice(&genesis.secret[1].to_le_bytes());
    out.extend_from_slice(&genesis.partitions.to_le_bytes());
    out.extend_from_slice(&genesis.created_us.to_le_bytes());
}

pub(crate) fn push_name(out: &mut Vec<u8>, name: &str) {
    assert!(name.len() <= NAME_BYTES_MAX, "name of {} bytes", name.len());
    out.push(name.len() as u8);
    out.extend_from_slice(name.as_bytes());
}

impl PartitionSet<'_> {
    #[inline]
    pub(crate) fn code(&self, txn_id: TxnId) -> u8 {
        match self {
            Self::One(one) if one.0 == txn_id.origin() => ORIGIN,
            Self::One(_) => ONE,
            Self::Several(_) => SEVERAL,
            Self::All => ALL,
        }
    }

    #[inline]
    pub(crate) fn encoded_bytes(&self, txn_id: TxnId) -> usize {
        match self {
            Self::One(one) if one.0 == txn_id.origin() => 0,
            Self::One(one) => varint_bytes(one.0 as u32),
            Self::Several(list) => varint_bytes(list.len() as u32) + 2 * list.len(),
            Self::All => 0,
        }
    }

    pub(crate) fn encode(&self, txn_id: TxnId, out: &mut Vec<u8>) {
        match self {
            Self::One(one) if one.0 == txn_id.origin() => {}
            Self::One(one) => push_varint(out, one.0 as u32),
            Self::Several(list) => {
                push_varint(out, list.len() as u32);
                list.iter().for_each(|id| out.extend_from_slice(&id.0.to_le_bytes()));
            }
            Self::All => {}
        }
    }
}

/// The head of a command or of changes whose partitions and key take no bytes: the common case.
pub(crate) struct PlainHead {
    pub kind: RecordKind,
    pub partitions_code: u8,
    pub txn_id: TxnId,
    pub digest: u64,
    pub module_id: u32,
    pub procedure: u16,
    pub principal: u32,
}

impl PlainHead {
    /// True for codes of partitions that are encoded as nothing.
    #[inline]
    pub fn suits(partitions_code: u8) -> bool {
        matches!(partitions_code, ORIGIN | ALL)
    }

    /// Appends the record. Each field goes straight to its place. A head that is assembled elsewhere and copied as a whole would wait until
    /// its parts have left the processor's store buffer.
    #[inline]
    pub fn encode(&self, rest: &[u8], out: &mut Vec<u8>) {
        let called = varint_bytes(self.module_id) + varint_bytes(self.procedure as u32);
        let numbers = called + principal_bytes(self.principal);
        let body_bytes = 1 + 8 + 8 + numbers + rest.len();
        assert!(body_bytes + 6 <= RECORD_BYTES_MAX, "record of {body_bytes} bytes");
        out.reserve(PLAIN_HEAD_BYTES_MAX + rest.len());
        push_varint(out, body_bytes as u32 + 1);
        let flags = self.partitions_code | principal_flag(self.principal);
        out.extend_from_slice(&[self.kind as u8, flags]);
        out.extend_from_slice(&self.txn_id.0.to_le_bytes());
        out.extend_from_slice(&self.digest.to_le_bytes());
        push_varint(out, self.module_id);
        push_varint(out, self.procedure as u32);
        push_principal(out, self.principal);
        out.extend_from_slice(rest);
    }
}

impl CommandRef<'_> {
    fn partitions_code(&self) -> u8 {
        self.partitions.code(self.txn_id)
    }

    #[inline]
    pub(crate) fn body_bytes(&self) -> usize {
        let partitions = self.partitions.encoded_bytes(self.txn_id);
        let key = self.keyed.map_or(0, |keyed| keyed.encoded_bytes());
        let called = varint_bytes(self.module_id) + varint_bytes(self.procedure as u32);
        let numbers = called + principal_bytes(self.principal);
        1 + 8 + 8 + partitions + numbers + key + self.args.len()
    }

    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        assert!(self.args.len() <= ARGS_BYTES_MAX);
        match (self.partitions_code(), self.keyed) {
            (code @ (ORIGIN | ALL), None) => {
                let head = PlainHead {
                    kind: RecordKind::Command,
                    partitions_code: code,
                    txn_id: self.txn_id,
                    digest: self.digest,
                    module_id: self.module_id,
                    procedure: self.procedure,
                    principal: self.principal,
                };
                head.encode(self.args, out);
            }
            _ => self.encode_any(out),
        }
    }

    fn encode_any(&self, out: &mut Vec<u8>) {
        begin(out, RecordKind::Command, self.body_bytes());
        let flags = self.keyed.map_or(0, |keyed| keyed.flags()) | principal_flag(self.principal);
        out.push(self.partitions_code() | flags);
        out.extend_from_slice(&self.txn_id.0.to_le_bytes());
        out.extend_from_slice(&self.digest.to_le_bytes());
        self.partitions.encode(self.txn_id, out);
        push_varint(out, self.module_id);
        push_varint(out, self.procedure as u32);
        push_principal(out, self.principal);
        if let Some(keyed) = self.keyed {
            keyed.push(out);
        }
        out.extend_from_slice(self.args);
    }
}

impl<'a> QuarantineRef<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        assert!(
            self.what.len() <= QUARANTINE_TEXT_BYTES_MAX,
            "{} bytes",
            self.what.len()
        );
        let numbers = varint_bytes(self.module_id) + varint_bytes(self.procedure as u32);
        begin(out, RecordKind::Quarantine, 8 + numbers + 8 + self.what.len());
        out.extend_from_slice(&self.txn_id.0.to_le_bytes());
        push_varint(out, self.module_id);
        push_varint(out, self.procedure as u32);
        out.extend_from_slice(&self.diverged.0.to_le_bytes());
        out.extend_from_slice(self.what.as_bytes());
    }

    fn decode(body: &mut BodyReader<'a>) -> Result<Self, WireError> {
        Ok(Self {
            txn_id: TxnId(body.u64()?),
            module_id: body.varint()?,
            procedure: body.varint_u16()?,
            diverged: Lsn(body.u64()?),
            what: body.rest_text("what diverged", QUARANTINE_TEXT_BYTES_MAX)?,
        })
    }
}

impl<'a> RecordRef<'a> {
    pub fn kind(&self) -> RecordKind {
        match self {
            Self::Genesis(_) => RecordKind::Genesis,
            Self::Deploy(_) => RecordKind::Deploy,
            Self::Remove(_) => RecordKind::Remove,
            Self::Command(_) => RecordKind::Command,
            Self::Changes(_) => RecordKind::Changes,
            Self::Checkpoint(_) => RecordKind::Checkpoint,
            Self::DropTable(_) => RecordKind::DropTable,
            Self::Quarantine(_) => RecordKind::Quarantine,
            Self::Part(_) => RecordKind::Part,
            Self::Principal(_) => RecordKind::Principal,
            Self::Control(_) => RecordKind::Control,
            Self::Void => RecordKind::Void,
        }
    }

    /// Returns the transaction. None for the genesis and a void record.
    pub fn txn_id(&self) -> Option<TxnId> {
        match self {
            Self::Genesis(_) | Self::Void => None,
            Self::Deploy(deploy) => Some(deploy.txn_id),
            Self::Remove(remove) => Some(remove.txn_id),
            Self::Command(command) => Some(command.txn_id),
            Self::Changes(changes) => Some(changes.txn_id),
            Self::Checkpoint(mark) => Some(mark.txn_id),
            Self::DropTable(drop) => Some(drop.txn_id),
            Self::Quarantine(found) => Some(found.txn_id),
            Self::Part(part) => Some(part.txn_id),
            Self::Principal(principal) => Some(principal.txn_id),
            Self::Control(control) => Some(control.txn_id),
        }
    }

    /// Appends the record. Allocates nothing when `out` has room.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Command(command) => command.encode(out),
            Self::Changes(changes) => changes.encode(out),
            Self::Checkpoint(mark) => {
                begin(out, RecordKind::Checkpoint, 8 + 8);
                out.extend_from_slice(&mark.txn_id.0.to_le_bytes());
                out.extend_from_slice(&mark.key_clock_us.to_le_bytes());
            }
            Self::Genesis(genesis) => {
                begin(out, RecordKind::Genesis, GENESIS_BODY_BYTES);
                push_genesis(out, genesis);
            }
            Self::Deploy(deploy) => deploy.encode(out),
            Self::Remove(remove) => {
                begin(
                    out,
                    RecordKind::Remove,
                    8 + 1 + remove.name.len() + remove.destroyed.bytes(),
                );
                out.extend_from_slice(&remove.txn_id.0.to_le_bytes());
                push_name(out, remove.name);
                remove.destroyed.encode(out);
            }
            Self::DropTable(drop) => {
                assert!(drop.table.len() <= TABLE_NAME_BYTES_MAX, "{} bytes", drop.table.len());
                begin(out, RecordKind::DropTable, 8 + 1 + drop.table.len());
                out.extend_from_slice(&drop.txn_id.0.to_le_bytes());
                push_short(out, drop.table.as_bytes());
            }
            Self::Quarantine(found) => found.encode(out),
            Self::Part(part) => part.encode(out),
            Self::Principal(principal) => principal.encode(out),
            Self::Control(control) => control.encode(out),
            Self::Void => begin(out, RecordKind::Void, 0),
        }
    }

    /// Reads the record that is the whole of `bytes`.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (content, record_bytes) = split(bytes)?;
        crate::check("record length", bytes.len(), record_bytes)?;
        decode_content(content)
    }
}

/// Returns the content (kind and body) of the first record in `bytes`, and the bytes that the record takes. For a stand-in, the content is
/// that of the record inside.
#[inline]
fn split(bytes: &[u8]) -> Result<(&[u8], usize), WireError> {
    let mut reader = ValueReader::new(bytes);
    let length = reader
        .varint()
        .map_err(|_| corrupt("record length", "a varint", "other bytes"))?;
    let content = reader
        .take(length as usize)
        .map_err(|_| corrupt("record length", format!("at most {}", bytes.len()), length))?;
    if content.is_empty() || reader.offset() > RECORD_BYTES_MAX {
        return Err(corrupt("record length", format!("1 to {RECORD_BYTES_MAX}"), length));
    }
    let content = match content[0] {
        STAND_IN => content_in(content).ok_or_else(stand_in::malformed)?,
        _ => content,
    };
    Ok((content, reader.offset()))
}

/// Records that lie one after the other in `bytes`. Their bodies are not decoded.
pub fn count_records(bytes: &[u8]) -> Result<u32, WireError> {
    let mut count = 0;
    for record in RawRecords::new(bytes) {
        record?;
        count += 1;
    }
    Ok(count)
}

/// A record by its kind and body.
fn decode_content(content: &[u8]) -> Result<RecordRef<'_>, WireError> {
    let (kind, body) = content.split_first().expect("split leaves a kind");
    let mut body = BodyReader::new(body);
    let record = match *kind {
        1 => RecordRef::Genesis(decode_genesis(&mut body)?),
        DEPLOY | DEPLOY_MIGRATED => RecordRef::Deploy(DeployRef::decode(&mut body, *kind)?),
        3 => RecordRef::Remove(RemoveRef {
            txn_id: TxnId(body.u64()?),
            name: body.name()?,
            destroyed: DestroyedList::decode(&mut body)?,
        }),
        4 => RecordRef::Command(decode_command(&mut body)?),
        5 => RecordRef::Changes(ChangesRef::decode(&mut body)?),
        6 => RecordRef::Checkpoint(CheckpointMark {
            txn_id: TxnId(body.u64()?),
            key_clock_us: body.u64()?,
        }),
        7 => RecordRef::DropTable(DropTableRef {
            txn_id: TxnId(body.u64()?),
            table: body.table_name()?,
        }),
        VOID => RecordRef::Void,
        QUARANTINE => RecordRef::Quarantine(QuarantineRef::decode(&mut body)?),
        PART => RecordRef::Part(PartRef::decode(&mut body)?),
        PRINCIPAL => RecordRef::Principal(PrincipalRef::decode(&mut body)?),
        CONTROL => RecordRef::Control(ControlRef::decode(&mut body)?),
        other => return Err(corrupt("record kind", "1, 3 to 12, 14 or 15", other)),
    };
    body.finish()?;
    Ok(record)
}

pub(crate) fn decode_genesis(body: &mut BodyReader<'_>) -> Result<Genesis, WireError> {
    let genesis = Genesis {
        database_id: body.array()?,
        secret: [body.u64()?, body.u64()?],
        partitions: body.u16()?,
        created_us: body.u64()? as i64,
    };
    if genesis.partitions == 0 || genesis.partitions > PARTITIONS_MAX {
        let bounds = format!("1 to {PARTITIONS_MAX}");
        return Err(corrupt("partitions of the database", bounds, genesis.partitions));
    }
    Ok(genesis)
}

fn decode_command<'a>(body: &mut BodyReader<'a>) -> Result<CommandRef<'a>, WireError> {
    let flags = decode_flags(body, COMMAND_FLAGS)?;
    let txn_id = TxnId(body.u64()?);
    let digest = body.u64()?;
    let partitions = decode_partitions(body, flags & PARTITIONS_MASK, txn_id.origin())?;
    let module_id = body.varint()?;
    let procedure = body.varint_u16()?;
    let principal = decode_principal(body, flags)?;
    let keyed = decode_key(body, flags)?;
    Ok(CommandRef {
        txn_id,
        partitions,
        module_id,
        procedure,
        digest,
        principal,
        keyed,
        args: body.rest("arguments", ARGS_BYTES_MAX)?,
    })
}

pub(crate) fn decode_flags(body: &mut BodyReader<'_>, known: u8) -> Result<u8, WireError> {
    let flags = body.array::<1>()?[0];
    if flags & !known != 0 {
        return Err(corrupt("record flags", format!("at most {known}"), flags));
    }
    Ok(flags)
}

pub(crate) fn decode_partitions<'a>(
    body: &mut BodyReader<'a>,
    code: u8,
    origin: u16,
) -> Result<PartitionSet<'a>, WireError> {
    let one = match code {
        ALL => return Ok(PartitionSet::All),
        SEVERAL => {
            let count = body.varint()? as usize;
            if count > PARTITIONS_MAX as usize {
                return Err(corrupt("partitions in a list", PARTITIONS_MAX, count));
            }
            return Ok(PartitionSet::Several(PartitionList::decode(body.take(2 * count)?)?));
        }
        ORIGIN => origin,
        _ => match body.varint_u16()? {
            one if one == origin => return Err(corrupt("partition", "left out", "written out")),
            one => one,
        },
    };
    if one >= PARTITIONS_MAX {
        return Err(corrupt("partition", format!("below {PARTITIONS_MAX}"), one));
    }
    Ok(PartitionSet::One(PartitionId(one)))
}

/// Kind, flags, transaction id, digest, and a module and a procedure of one byte each.
const PLAIN_HEAD_BYTES: usize = 1 + 1 + 8 + 8 + 1 + 1;

/// A record told apart from its neighbours, and not read yet.
#[derive(Clone, Copy, Debug)]
pub struct RawRecord<'a> {
    /// The record's first byte in the walked bytes, and the end of its last.
    pub start: usize,
    pub end: usize,
    content: &'a [u8],
}

impl<'a> RawRecord<'a> {
    #[inline]
    pub fn is_changes(&self) -> bool {
        self.content[0] == RecordKind::Changes as u8
    }

    pub fn is_deploy(&self) -> bool {
        self.content[0] == RecordKind::Deploy as u8
    }

    /// True for changes, or a part of them.
    pub fn holds_changes(&self) -> bool {
        self.is_changes() || self.content[0] == PART
    }

    pub fn decode(&self) -> Result<RecordRef<'a>, WireError> {
        decode_content(self.content)
    }

    /// True for changes whose command `before` is, the record before: replay applies one of the two.
    pub fn is_beside(&self, before: &RawRecord<'_>) -> bool {
        let command = || match before.decode() {
            Ok(RecordRef::Command(command)) => Some(command.txn_id),
            _ => None,
        };
        let changes = || self.changes().ok().map(|changes| changes.txn_id);
        self.is_changes() && !before.is_changes() && command().is_some_and(|txn_id| changes() == Some(txn_id))
    }

    /// Returns the transaction and the unread changes of a record of changes in its usual form, whose partition is the changed one. None
    /// for any other record, and for some records of changes: `changes` reads all.
    #[inline(always)]
    pub fn plain_changes(&self) -> Option<(TxnId, &'a [u8])> {
        let (head, changes) = self.content.split_first_chunk::<PLAIN_HEAD_BYTES>()?;
        let [kind, flags, ids @ .., module_id, procedure] = head;
        let is_plain = *kind == RecordKind::Changes as u8 && *flags & !HAS_PRINCIPAL == 0;
        let changes = match (*flags, changes) {
            (0, changes) => changes,
            (_, [1..0x80, changes @ ..]) => changes,
            _ => return None,
        };
        let txn_id = TxnId(u64::from_le_bytes(*ids.first_chunk()?));
        let is_short = *module_id < 0x80 && *procedure < 0x80;
        (is_plain && is_short && txn_id.origin() < PARTITIONS_MAX).then_some((txn_id, changes))
    }

    /// Returns a record of changes. Changes of one partition may be unchecked: [`crate::Changes`] reports their errors.
    #[inline]
    pub fn changes(&self) -> Result<ChangesRef<'a>, WireError> {
        if self.is_changes()
            && let Some(changes) = ByteReader::new(&self.content[1..]).changes()
        {
            return Ok(changes);
        }
        match self.decode()? {
            RecordRef::Changes(changes) => Ok(changes),
            other => Err(corrupt("record kind", "changes", other.kind().name())),
        }
    }
}

/// Walks the records of a block by their lengths alone. Ends after the first error.
#[derive(Clone, Debug)]
pub struct RawRecords<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> RawRecords<'a> {
    /// The records of a block.
    pub fn new(payload: &'a [u8]) -> Self {
        Self {
            bytes: payload,
            offset: 0,
        }
    }
}

impl<'a> Iterator for RawRecords<'a> {
    type Item = Result<RawRecord<'a>, WireError>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let start = self.offset;
        let rest = &self.bytes[start..];
        if rest.is_empty() {
            return None;
        }
        let mut quick = ByteReader::new(rest);
        let Some(mut content) = quick.record() else {
            return Some(self.next_checked());
        };
        if content[0] == STAND_IN {
            let Some(held) = content_in(content) else {
                return Some(self.next_checked());
            };
            content = held;
        }
        self.offset += quick.at;
        Some(Ok(RawRecord {
            start,
            end: self.offset,
            content,
        }))
    }
}

impl<'a> RawRecords<'a> {
    /// The `next` variant that reports the fault in a record.
    #[cold]
    #[inline(never)]
    fn next_checked(&mut self) -> Result<RawRecord<'a>, WireError> {
        let start = self.offset;
        match split(&self.bytes[start..]) {
            Ok((content, length)) => {
                self.offset += length;
                Ok(RawRecord {
                    start,
                    end: self.offset,
                    content,
                })
            }
            Err(error) => {
                self.offset = self.bytes.len();
                Err(error)
            }
        }
    }
}

/// Walks the records of a block: offset, record, and the bytes that it takes. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Records<'a> {
    /// The records of a block.
    pub fn new(payload: &'a [u8]) -> Self {
        Self::at(payload, 0)
    }

    /// Starts at a record that begins at `offset` of the payload.
    pub fn at(payload: &'a [u8], offset: usize) -> Self {
        Self {
            bytes: payload,
            offset: offset.min(payload.len()),
        }
    }

    pub fn offset(&self) -> usize {
        self.offset
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<(usize, RecordRef<'a>, &'a [u8]), WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.offset;
        let rest = &self.bytes[start..];
        if rest.is_empty() {
            return None;
        }
        let decoded = split(rest)
            .and_then(|(content, record_bytes)| Ok((start, decode_content(content)?, &rest[..record_bytes])));
        self.offset = match &decoded {
            Ok((_, _, bytes)) => start + bytes.len(),
            Err(_) => self.bytes.len(),
        };
        Some(decoded)
    }
}
