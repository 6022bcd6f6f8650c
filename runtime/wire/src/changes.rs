//! The physiological record: the state of each row that a committed transaction changed (paper A, section III-A).
//!
//! Rows are named by table and number, which an insertion gives. The record has after-images alone. Redo needs nothing else, because
//! nothing uncommitted reaches the log. An update names the changed columns if that is shorter.

use reprise_abi::{
    row::COLUMNS_MAX,
    value::{RESULT_BYTES_MAX, push_bytes, push_varint},
};
use reprise_base::{
    PartitionId, TxnId,
    limits::{PARTITIONS_MAX, RECORD_BYTES_MAX},
};

use crate::{
    PartitionSet, WireError,
    body::BodyReader,
    caller::{KeyRef, decode_key, decode_principal, principal_bytes, principal_flag, push_principal},
    check, corrupt,
    reader::{ByteReader, UnnamedFault},
    record::{
        COMMAND_FLAGS, PARTITIONS_MASK, PlainHead, RecordKind, begin, decode_flags, decode_partitions, varint_bytes,
    },
};

/// A flag: parts of the changes lie before the record, and their number follows.
const HAS_PARTS: u8 = 16;

/// A committed transaction by its effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangesRef<'a> {
    pub txn_id: TxnId,
    pub partitions: PartitionSet<'a>,
    /// The module and the procedure of the call: for people, not for redo.
    pub module_id: u32,
    pub procedure: u16,
    /// Digest of the write set and the result, as in a command.
    pub digest: u64,
    /// Number of the caller's name, as in a command.
    pub principal: u32,
    /// Records of parts that lie right before it; the changes are those of all parts, and then these.
    pub parts: u32,
    pub keyed: Option<KeyedRef<'a>>,
    /// The changes of one partition, or a group for each changed partition. [`ChangesRef::groups`] walks them.
    pub changes: &'a [u8],
}

impl<'a> ChangesRef<'a> {
    /// The changes of a transaction that no call is named for.
    pub fn new(txn_id: TxnId, partitions: PartitionSet<'a>, changes: &'a [u8]) -> Self {
        Self {
            txn_id,
            partitions,
            module_id: 0,
            procedure: 0,
            digest: 0,
            principal: 0,
            parts: 0,
            keyed: None,
            changes,
        }
    }
}

/// The outcome for repeats with the same idempotency key. Redo does not run the procedure, so the record carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyedRef<'a> {
    pub call: KeyRef<'a>,
    /// Hash of module, procedure and arguments as the version that ran has them encoded.
    pub args_hash: u128,
    pub result: &'a [u8],
}

/// One changed row, which its number names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    Insert {
        table: u16,
        number: u64,
        row: &'a [u8],
    },
    /// The whole row after the change.
    Replace {
        table: u16,
        number: u64,
        row: &'a [u8],
    },
    /// The columns that differ.
    Patch {
        table: u16,
        number: u64,
        columns: PatchColumns<'a>,
    },
    Delete {
        table: u16,
        number: u64,
    },
}

pub(crate) const INSERT: u8 = 1;
pub(crate) const REPLACE: u8 = 2;
pub(crate) const PATCH: u8 = 3;
pub(crate) const DELETE: u8 = 4;
/// Bits of the kind. One bit behind it is 0.
pub(crate) const OP_MASK: u8 = 15;
/// First bit of the length of the row's number, which follows the table.
const NUMBER_SHIFT: u32 = 4;

/// The bytes that a number takes: as few as it needs, at least one.
#[inline(always)]
pub(crate) fn number_bytes(number: u64) -> usize {
    8 - (number | 1).leading_zeros() as usize / 8
}

/// Returns the first byte of a change of this kind, whose row's number takes `bytes` bytes.
#[inline(always)]
pub(crate) fn numbered(kind: u8, bytes: usize) -> u8 {
    kind | (bytes as u8) << NUMBER_SHIFT
}

/// Returns the bytes of the row's number, by the first byte of a change. None if it is no such byte.
#[inline(always)]
pub(crate) fn number_bytes_of(op: u8) -> Option<usize> {
    let bytes = (op >> NUMBER_SHIFT) as usize;
    (1..=8).contains(&bytes).then_some(bytes)
}

/// Changed columns with their present values: growing positions, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatchColumns<'a> {
    pub(crate) count: u16,
    pub(crate) bytes: &'a [u8],
}

impl<'a> PatchColumns<'a> {
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// Returns the number of columns and their bytes, for `again`.
    pub fn parts(self) -> (u16, &'a [u8]) {
        (self.count, self.bytes)
    }

    /// Returns the columns of `parts`, from a copy of their bytes.
    pub fn again(count: u16, bytes: &'a [u8]) -> Self {
        Self { count, bytes }
    }

    /// Position and value (as in a row's slot, or the data of a text or bytes column), None for null.
    #[inline(always)]
    pub fn iter(self) -> impl Iterator<Item = (u16, Option<&'a [u8]>)> {
        let mut reader = ByteReader::new(self.bytes);
        std::iter::from_fn(move || {
            let is_left = !reader.is_at_end();
            is_left.then(|| reader.column::<UnnamedFault>().expect("checked when it was decoded"))
        })
    }
}

/// Writes a patch: its head at once, then each column.
pub struct PatchWriter<'o> {
    out: &'o mut Vec<u8>,
    left: u16,
    next_column: u16,
}

impl<'o> PatchWriter<'o> {
    /// `count` columns follow, at least one.
    #[inline]
    pub fn begin(out: &'o mut Vec<u8>, table: u16, number: u64, count: u16) -> Self {
        assert!(count > 0 && count as usize <= COLUMNS_MAX, "columns of a patch");
        push_head(out, PATCH, table, number);
        push_varint(out, count as u32);
        Self {
            out,
            left: count,
            next_column: 0,
        }
    }

    /// Positions grow.
    #[inline]
    pub fn column(&mut self, column: u16, value: Option<&[u8]>) {
        assert!(self.left > 0 && column >= self.next_column, "columns of a patch");
        self.left -= 1;
        self.next_column = column + 1;
        push_varint(self.out, column as u32);
        match value {
            None => self.out.push(0),
            Some(value) => {
                push_varint(self.out, value.len() as u32 + 1);
                self.out.extend_from_slice(value);
            }
        }
    }

    pub fn finish(self) {
        assert_eq!(self.left, 0, "columns of a patch");
    }
}

#[inline]
fn push_head(out: &mut Vec<u8>, op: u8, table: u16, number: u64) {
    let bytes = number_bytes(number);
    out.push(numbered(op, bytes));
    push_varint(out, table as u32);
    out.extend_from_slice(&number.to_le_bytes()[..bytes]);
}

impl<'a> Change<'a> {
    pub fn table(&self) -> u16 {
        match self {
            Self::Insert { table, .. }
            | Self::Replace { table, .. }
            | Self::Patch { table, .. }
            | Self::Delete { table, .. } => *table,
        }
    }

    /// Returns the number of the row.
    pub fn number(&self) -> u64 {
        match self {
            Self::Insert { number, .. }
            | Self::Replace { number, .. }
            | Self::Patch { number, .. }
            | Self::Delete { number, .. } => *number,
        }
    }

    /// Reads again a change that [`Changes`] walked. Other bytes make none, or one whose columns panic when they are walked.
    #[inline]
    pub fn again(bytes: &'a [u8]) -> Option<Self> {
        Self::again_into(bytes, AsChange)
    }

    /// The `again` variant that hands the change to `sink`.
    #[inline(always)]
    pub fn again_into<S: ChangeSink<'a>>(bytes: &'a [u8], sink: S) -> Option<S::Out> {
        ByteReader::new(bytes).change::<UnnamedFault, S, true>(sink).ok()
    }

    /// Appends the change.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Insert { table, number, row } => {
                push_head(out, INSERT, table, number);
                push_bytes(out, row);
            }
            Self::Replace { table, number, row } => {
                push_head(out, REPLACE, table, number);
                push_bytes(out, row);
            }
            Self::Patch { table, number, columns } => {
                let mut patch = PatchWriter::begin(out, table, number, columns.count);
                for (column, value) in columns.iter() {
                    patch.column(column, value);
                }
                patch.finish();
            }
            Self::Delete { table, number } => push_head(out, DELETE, table, number),
        }
    }
}

/// A consumer of changes as they are read. `take` is inlined where the kind is known: no change passes through memory.
pub trait ChangeSink<'a>: Sized {
    type Out;

    /// Takes a change, which ends at `end` of the bytes read.
    fn take(self, end: usize, change: Change<'a>) -> Self::Out;
}

struct AsChange;

impl<'a> ChangeSink<'a> for AsChange {
    type Out = Change<'a>;

    #[inline(always)]
    fn take(self, _: usize, change: Change<'a>) -> Change<'a> {
        change
    }
}

/// Walks the changes of one partition; ends after the first error. Never an error behind a decoded record.
#[derive(Clone, Debug)]
pub struct Changes<'a>(ByteReader<'a>);

impl<'a> Changes<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(ByteReader::new(bytes))
    }

    /// Returns the offset of the next change.
    #[inline]
    pub fn offset(&self) -> usize {
        self.0.at
    }

    /// Hands the next change to `sink`; None behind the last one.
    #[inline(always)]
    pub fn next_into<S: ChangeSink<'a>>(&mut self, sink: S) -> Option<Result<S::Out, WireError>> {
        if self.0.is_at_end() {
            return None;
        }
        let start = self.0.at;
        Some(match self.0.change::<UnnamedFault, S, false>(sink) {
            Ok(out) => Ok(out),
            Err(UnnamedFault) => Err(self.fault_at(start)),
        })
    }

    #[cold]
    fn fault_at(&mut self, start: usize) -> WireError {
        self.0.at = start;
        let again = self.0.change::<WireError, AsChange, false>(AsChange);
        self.0.skip_rest();
        again.expect_err("the same decoder refused it")
    }
}

impl<'a> Iterator for Changes<'a> {
    type Item = Result<Change<'a>, WireError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.next_into(AsChange)
    }
}

impl<'a> ChangesRef<'a> {
    /// Appends a partition's group of changes, for the `changes` of a record of several partitions. Partitions grow.
    pub fn push_group(out: &mut Vec<u8>, partition: PartitionId, changes: &[u8]) {
        assert!(!changes.is_empty(), "a group holds changes");
        push_varint(out, partition.0 as u32);
        push_bytes(out, changes);
    }

    /// The changed partitions, growing, each with the bytes of its changes (see [`Changes`]).
    pub fn groups(self) -> impl Iterator<Item = (PartitionId, &'a [u8])> {
        groups_of(self.partitions, self.changes)
    }

    /// Bytes of the record in the log.
    pub fn record_bytes(&self) -> usize {
        let body = self.body_bytes();
        varint_bytes(u32::try_from(body + 1).unwrap_or(u32::MAX)) + 1 + body
    }

    /// False if the changes are more than a record can hold.
    #[inline]
    pub fn fits(&self) -> bool {
        let is_small = self.keyed.is_none() && self.changes.len() <= RECORD_BYTES_MAX / 2;
        is_small || self.body_bytes() + 6 <= RECORD_BYTES_MAX
    }

    fn body_bytes(&self) -> usize {
        let keyed = self.keyed.map_or(0, |keyed| {
            let result = keyed.result.len();
            keyed.call.encoded_bytes() + 16 + varint_bytes(result as u32) + result
        });
        let called = varint_bytes(self.module_id) + varint_bytes(self.procedure as u32);
        let numbers = called + principal_bytes(self.principal);
        let partitions = self.partitions.encoded_bytes(self.txn_id);
        let parts = if self.parts > 0 { varint_bytes(self.parts) } else { 0 };
        1 + 8 + 8 + partitions + numbers + parts + keyed + self.changes.len()
    }

    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        let partitions_code = self.partitions.code(self.txn_id);
        if !PlainHead::suits(partitions_code) || self.keyed.is_some() || self.parts > 0 {
            return self.encode_any(out);
        }
        let head = PlainHead {
            kind: RecordKind::Changes,
            partitions_code,
            txn_id: self.txn_id,
            digest: self.digest,
            module_id: self.module_id,
            procedure: self.procedure,
            principal: self.principal,
        };
        head.encode(self.changes, out);
    }

    fn encode_any(&self, out: &mut Vec<u8>) {
        begin(out, RecordKind::Changes, self.body_bytes());
        let flags = self.keyed.map_or(0, |keyed| keyed.call.flags()) | principal_flag(self.principal);
        let parts = if self.parts > 0 { HAS_PARTS } else { 0 };
        out.push(self.partitions.code(self.txn_id) | flags | parts);
        out.extend_from_slice(&self.txn_id.0.to_le_bytes());
        out.extend_from_slice(&self.digest.to_le_bytes());
        self.partitions.encode(self.txn_id, out);
        push_varint(out, self.module_id);
        push_varint(out, self.procedure as u32);
        push_principal(out, self.principal);
        if self.parts > 0 {
            push_varint(out, self.parts);
        }
        if let Some(keyed) = &self.keyed {
            keyed.call.push(out);
            out.extend_from_slice(&keyed.args_hash.to_le_bytes());
            push_bytes(out, keyed.result);
        }
        out.extend_from_slice(self.changes);
    }

    pub(crate) fn decode(body: &mut BodyReader<'a>) -> Result<Self, WireError> {
        let flags = decode_flags(body, COMMAND_FLAGS | HAS_PARTS)?;
        let txn_id = TxnId(body.u64()?);
        let digest = body.u64()?;
        let partitions = decode_partitions(body, flags & PARTITIONS_MASK, txn_id.origin())?;
        let module_id = body.varint()?;
        let procedure = body.varint_u16()?;
        let principal = decode_principal(body, flags)?;
        let parts = if flags & HAS_PARTS == 0 { 0 } else { body.varint()? };
        if flags & HAS_PARTS != 0 && parts == 0 {
            return Err(corrupt("parts of a transaction", "1 or more", parts));
        }
        let keyed = match decode_key(body, flags)? {
            None => None,
            Some(call) => Some(KeyedRef {
                call,
                args_hash: u128::from_le_bytes(body.array()?),
                result: body.bytes("result", RESULT_BYTES_MAX)?,
            }),
        };
        let record = Self {
            txn_id,
            partitions,
            module_id,
            procedure,
            digest,
            principal,
            parts,
            keyed,
            changes: body.rest("changes", RECORD_BYTES_MAX)?,
        };
        check_groups(record.partitions, record.changes)?;
        Ok(record)
    }
}

/// Returns the changes of a record of these partitions, by partition. They were made here, or checked before.
pub fn groups_of<'a>(partitions: PartitionSet<'a>, changes: &'a [u8]) -> impl Iterator<Item = (PartitionId, &'a [u8])> {
    let mut reader = BodyReader::new(changes);
    let mut one = match partitions {
        PartitionSet::One(partition) => Some(partition),
        _ => None,
    };
    let is_one = one.is_some();
    std::iter::from_fn(move || {
        if is_one {
            let partition = one.take()?;
            return (!changes.is_empty()).then_some((partition, changes));
        }
        (!reader.is_at_end()).then(|| read_group(&mut reader).expect("checked when decoded"))
    })
}

/// Checks the changes in a record of these partitions. Err: they are not in the record's format.
pub(crate) fn check_groups(partitions: PartitionSet<'_>, changes: &[u8]) -> Result<(), WireError> {
    if matches!(partitions, PartitionSet::One(_)) {
        return check_walk(changes);
    }
    let mut reader = BodyReader::new(changes);
    let mut before = None;
    while !reader.is_at_end() {
        let (partition, changes) = read_group(&mut reader)?;
        if before >= Some(partition) {
            return Err(corrupt("partition of a group", "growing", partition));
        }
        if !partitions.contains(partition) {
            return Err(corrupt("partition of a group", "one of the record's", partition));
        }
        check("a group without changes", false, changes.is_empty())?;
        check_walk(changes)?;
        before = Some(partition);
    }
    Ok(())
}

fn check_walk(changes: &[u8]) -> Result<(), WireError> {
    Changes::new(changes).try_for_each(|change| change.map(drop))
}

fn read_group<'a>(reader: &mut BodyReader<'a>) -> Result<(PartitionId, &'a [u8]), WireError> {
    let partition = reader.varint_u16()?;
    if partition >= PARTITIONS_MAX {
        let bound = format!("below {PARTITIONS_MAX}");
        return Err(corrupt("partition of a group", bound, partition));
    }
    Ok((PartitionId(partition), reader.bytes("changes", RECORD_BYTES_MAX)?))
}
