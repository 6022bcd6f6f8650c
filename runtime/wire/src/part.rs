//! Changes of one transaction in several records, the *parts*. Each part has whole changes, and behind the last one is the record of
//! changes that has the number of parts. They are consecutive in the log. Without that record the parts have no effect, whatever follows
//! them.

use std::ops::Range;

use reprise_abi::value::push_varint;
use reprise_base::{PartitionId, TxnId, limits::RECORD_BYTES_MAX};

use crate::{
    Change, ChangeSink, Changes, ChangesRef, CommandRef, PartitionSet, RecordBatch, RecordRef, STAND_IN_HEAD_BYTES_MAX,
    TwoForms, WireError,
    body::BodyReader,
    changes::{check_groups, groups_of},
    corrupt,
    record::{PARTITIONS_MASK, RecordKind, begin, decode_flags, decode_partitions, varint_bytes},
};

/// A part's record beside its partitions and its changes, at most.
const HEAD_BYTES_MAX: usize = 32;
/// Bytes of a partition's group beside its changes, at most.
const GROUP_HEAD_BYTES_MAX: usize = 8;

/// A part of a transaction's changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRef<'a> {
    pub txn_id: TxnId,
    /// All those of the transaction.
    pub partitions: PartitionSet<'a>,
    /// The version of the module that was called, under whose schema the rows are: no deployment lies between two parts.
    pub module_id: u32,
    pub procedure: u16,
    /// Number of the part, from 0.
    pub number: u32,
    /// Changes as in [`ChangesRef`], never empty. Partitions do not fall from part to part.
    pub changes: &'a [u8],
}

impl<'a> PartRef<'a> {
    /// The changes of each partition, as [`ChangesRef::groups`] returns them.
    pub fn groups(self) -> impl Iterator<Item = (PartitionId, &'a [u8])> {
        groups_of(self.partitions, self.changes)
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        assert!(!self.changes.is_empty(), "a part holds changes");
        let numbers = varint_bytes(self.module_id) + varint_bytes(self.procedure as u32) + varint_bytes(self.number);
        let partitions = self.partitions.encoded_bytes(self.txn_id);
        begin(out, RecordKind::Part, 1 + 8 + partitions + numbers + self.changes.len());
        out.push(self.partitions.code(self.txn_id));
        out.extend_from_slice(&self.txn_id.0.to_le_bytes());
        self.partitions.encode(self.txn_id, out);
        push_varint(out, self.module_id);
        push_varint(out, self.procedure as u32);
        push_varint(out, self.number);
        out.extend_from_slice(self.changes);
    }

    pub(crate) fn decode(body: &mut BodyReader<'a>) -> Result<Self, WireError> {
        let flags = decode_flags(body, PARTITIONS_MASK)?;
        let txn_id = TxnId(body.u64()?);
        let part = Self {
            txn_id,
            partitions: decode_partitions(body, flags, txn_id.origin())?,
            module_id: body.varint()?,
            procedure: body.varint_u16()?,
            number: body.varint()?,
            changes: body.rest("changes", RECORD_BYTES_MAX)?,
        };
        if part.changes.is_empty() {
            return Err(corrupt("changes of a part", "one or more", "none"));
        }
        check_groups(part.partitions, part.changes)?;
        Ok(part)
    }
}

/// A transaction that is logged in parts: where its changes are cut, and the records that come of it.
pub struct ChangesRun<'a> {
    /// The record with all changes.
    whole: ChangesRef<'a>,
    /// The command, if both forms are logged or shipped.
    command: Option<CommandRef<'a>>,
    /// None: both are logged.
    forms: Option<TwoForms>,
    /// Stretches of the changes, each of one partition.
    stretches: Vec<(PartitionId, Range<usize>)>,
    /// Behind the last stretch of each part.
    ends: Vec<usize>,
    append_bytes_max: usize,
}

/// Passes over a change.
struct Skip;

impl ChangeSink<'_> for Skip {
    type Out = ();

    fn take(self, _: usize, _: Change<'_>) {}
}

impl<'a> ChangesRun<'a> {
    /// Cuts the changes of `whole`, an encoder's, between two of them: parts have `part_bytes` at most, or one change. `command` and `forms` as
    /// of `RecordBatch::push_forms`: the parts themselves are in both logs.
    pub fn new(
        whole: ChangesRef<'a>,
        command: Option<CommandRef<'a>>,
        forms: Option<TwoForms>,
        part_bytes: usize,
    ) -> Self {
        let mut run = Self {
            whole,
            command,
            forms,
            stretches: Vec::new(),
            ends: Vec::new(),
            append_bytes_max: 0,
        };
        let (mut begun, mut bytes) = (0, 0);
        for (partition, changes) in whole.groups() {
            let base = changes.as_ptr() as usize - whole.changes.as_ptr() as usize;
            let mut walk = Changes::new(changes);
            let mut at = 0;
            while let Some(read) = walk.next_into(Skip) {
                read.expect("an encoder wrote it");
                let place = base + at..base + walk.offset();
                at = walk.offset();
                if bytes > 0 && bytes + place.len() > part_bytes {
                    run.end_part(begun, bytes);
                    (begun, bytes) = (run.stretches.len(), 0);
                }
                bytes += place.len();
                match run.stretches[begun..].last_mut() {
                    Some((last, stretch)) if *last == partition => stretch.end = place.end,
                    _ => run.stretches.push((partition, place)),
                }
            }
        }
        if bytes > 0 {
            run.end_part(begun, bytes);
        }
        run.whole.parts = run.parts();
        let last = run.last().record_bytes();
        let command = run.command.map_or(0, |command| HEAD_BYTES_MAX + command.body_bytes());
        let apart = run.forms.map_or(0, |_| STAND_IN_HEAD_BYTES_MAX);
        run.append_bytes_max = run.append_bytes_max.max(last + command + apart);
        run
    }

    fn end_part(&mut self, begun: usize, bytes: usize) {
        self.ends.push(self.stretches.len());
        let groups = (self.stretches.len() - begun) * GROUP_HEAD_BYTES_MAX;
        let partitions = self.whole.partitions.encoded_bytes(self.whole.txn_id);
        let record = HEAD_BYTES_MAX + partitions + groups + bytes;
        self.append_bytes_max = self.append_bytes_max.max(record);
    }

    /// The parts.
    pub fn parts(&self) -> u32 {
        self.ends.len() as u32
    }

    /// All records: the parts, the command if it stands beside, and what ends them.
    pub fn records(&self) -> u32 {
        let is_beside = self.command.is_some() && self.forms.is_none();
        self.parts() + u32::from(is_beside) + 1
    }

    /// Bytes of all records, about.
    pub fn bytes(&self) -> usize {
        self.whole.changes.len() + HEAD_BYTES_MAX * self.records() as usize
    }

    /// Returns the bytes of the longest part, or of the record that ends them if it is longer; or a few more.
    pub fn append_bytes_max(&self) -> usize {
        self.append_bytes_max
    }

    /// Appends the record of a part, by its number.
    pub fn push_part(&self, number: u32, out: &mut RecordBatch) {
        let at = number as usize;
        let begun = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        let stretches = &self.stretches[begun..self.ends[at]];
        let mut groups = Vec::new();
        let changes = match self.whole.partitions {
            PartitionSet::One(_) => &self.whole.changes[stretches[0].1.clone()],
            PartitionSet::Several(_) | PartitionSet::All => {
                for (partition, place) in stretches {
                    ChangesRef::push_group(&mut groups, *partition, &self.whole.changes[place.clone()]);
                }
                &groups
            }
        };
        out.push(&RecordRef::Part(PartRef {
            txn_id: self.whole.txn_id,
            partitions: self.whole.partitions,
            module_id: self.whole.module_id,
            procedure: self.whole.procedure,
            number,
            changes,
        }));
    }

    /// Appends what follows the parts, and makes them count: records of one block.
    pub fn push_last(&self, out: &mut RecordBatch) {
        out.push_forms(self.command.as_ref(), &self.last(), self.forms);
    }

    fn last(&self) -> ChangesRef<'a> {
        ChangesRef {
            changes: &[],
            ..self.whole
        }
    }
}
