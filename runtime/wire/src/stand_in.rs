//! Stand-ins: a record as a primary ships it, if its own log has the transaction in the other form. A standby's log has the stand-in, too.
//!
//! `[varint: bytes that follow][13][sum: 4][checksum: 4][varint: bytes of the origin][the record, whole]`. The *origin* is the record in
//! the log of the node that wrote it first. It takes the same LSN, and it counts in the history. So nodes whose logs have different forms
//! of one transaction agree on the history.

use reprise_abi::value::{ValueReader, push_varint};
use reprise_base::limits::RECORD_BYTES_MAX;

use crate::{
    History, RawRecords, RecordRef, WireError, corrupt, crc32c, crc32c_behind, crc32c_behind_zeros,
    record::{RecordKind, varint_bytes},
};

/// Its number among the kinds of records.
pub(crate) const STAND_IN: u8 = 13;

/// Bytes of an alternate record beside the record in it, at most.
pub const STAND_IN_HEAD_BYTES_MAX: usize = 5 + 1 + 4 + 4 + 5;

/// No record is shorter: its length and its kind.
const ORIGIN_BYTES_MIN: u32 = 2;

/// Zeros for one step of a sum, in place of the source's absent bytes.
const ZEROS: [u8; 1 << 10] = [0; 1 << 10];
/// More of them are quicker passed over by their number: so a sum takes some microseconds at most, whatever a record tells of its origin.
const STEPPED_BYTES_MAX: u32 = 64 << 10;

/// The contents of an alternate record.
struct StandIn<'a> {
    /// The source's share of a history, beside its length.
    sum: u32,
    origin_bytes: u32,
    /// Checksum of the record in it.
    checksum: u32,
    record: &'a [u8],
    /// Kind and body of that.
    content: &'a [u8],
}

impl<'a> StandIn<'a> {
    /// None for a content that is none, or a malformed one.
    fn read(content: &'a [u8]) -> Option<Self> {
        let mut reader = ValueReader::new(content);
        let head = reader.take(9).ok()?;
        let origin_bytes = reader.varint().ok()?;
        let at = reader.offset();
        let length = reader.varint().ok()?;
        let inner = reader.take(length as usize).ok()?;
        let kind = *inner.first()?;
        let is_sound = head[0] == STAND_IN
            && (ORIGIN_BYTES_MIN..=RECORD_BYTES_MAX as u32).contains(&origin_bytes)
            && (kind == RecordKind::Command as u8 || kind == RecordKind::Changes as u8)
            && reader.offset() == content.len();
        is_sound.then_some(Self {
            sum: crate::u32_at(head, 1),
            origin_bytes,
            checksum: crate::u32_at(head, 5),
            record: &content[at..],
            content: inner,
        })
    }
}

/// Kind and body of the record in a stand-in.
pub(crate) fn content_in(content: &[u8]) -> Option<&[u8]> {
    StandIn::read(content).map(|found| found.content)
}

#[cold]
pub(crate) fn malformed() -> WireError {
    corrupt(
        "a record that stands for another",
        "a command or changes",
        "other bytes",
    )
}

/// Appends `record` in place of `origin`, a whole record.
pub(crate) fn push_stand_in(out: &mut Vec<u8>, origin: &[u8], record: &RecordRef<'_>) {
    let at = out.len();
    record.encode(out);
    let record_bytes = out.len() - at;
    let checksum = crc32c(&out[at..]);
    let origin_bytes = origin.len() as u32;
    let length = 1 + 4 + 4 + varint_bytes(origin_bytes) + record_bytes;
    assert!(length + 5 <= RECORD_BYTES_MAX, "record of {length} bytes");
    // Its length is known behind it alone.
    push_varint(out, length as u32);
    out.push(STAND_IN);
    out.extend_from_slice(&sum_of(origin).to_le_bytes());
    out.extend_from_slice(&checksum.to_le_bytes());
    push_varint(out, origin_bytes);
    out[at..].rotate_left(record_bytes);
}

/// Returns the share of these bytes in a checksum, without their length. The checksum behind them is the one behind as many zeros, with
/// this added.
fn sum_of(bytes: &[u8]) -> u32 {
    !crc32c_behind(!0, bytes)
}

/// A checksum, with as many bytes behind it whose sum is this.
fn behind_sum(mut before: u32, bytes: u32, sum: u32) -> u32 {
    if bytes > STEPPED_BYTES_MAX {
        return crc32c_behind_zeros(before, bytes) ^ sum;
    }
    let mut left = bytes as usize;
    while left > 0 {
        let step = left.min(ZEROS.len());
        before = crc32c_behind(before, &ZEROS[..step]);
        left -= step;
    }
    before ^ sum
}

impl History {
    /// Returns the history with these records behind it. A stand-in counts as the record that it stands for.
    pub fn then(self, records: &[u8]) -> Self {
        let (mut history, mut plain_from, mut at) = (self, 0, 0);
        while at < records.len() {
            let mut reader = ValueReader::new(&records[at..]);
            let content = reader
                .varint()
                .ok()
                .and_then(|length| reader.take(length as usize).ok());
            // Bytes that are no record count as they are, to the end.
            let Some(content) = content else { break };
            let end = at + reader.offset();
            if content.first() == Some(&STAND_IN)
                && let Some(found) = StandIn::read(content)
            {
                history = history.then_plain(&records[plain_from..at]);
                history = Self(behind_sum(history.0, found.origin_bytes, found.sum));
                plain_from = end;
            }
            at = end;
        }
        history.then_plain(&records[plain_from..])
    }

    /// The `then` variant for records without alternate ones.
    pub fn then_plain(self, records: &[u8]) -> Self {
        match records {
            [] => self,
            _ => Self(crc32c_behind(self.0, records)),
        }
    }
}

/// The number of records in a stretch of bytes, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCounts {
    pub all: u32,
    /// Records of changes, parts included.
    pub changes: u32,
    /// Alternate records of either form.
    pub stand_ins: u32,
}

impl RecordCounts {
    /// Counts the records in `bytes`. It does not read their bodies, but checks the checksums of alternate records.
    pub fn of(bytes: &[u8]) -> Result<Self, WireError> {
        let mut counts = Self::default();
        for record in RawRecords::new(bytes) {
            let record = record?;
            counts.all += 1;
            counts.changes += u32::from(record.holds_changes());
            if let Some(found) = record.stand_in(bytes) {
                counts.stand_ins += 1;
                crate::check(
                    "checksum of a record that stands for another",
                    found.checksum,
                    crc32c(found.record),
                )?;
            }
        }
        Ok(counts)
    }
}

impl crate::RawRecord<'_> {
    /// Returns the alternate record's contents, if it was walked in `bytes`.
    fn stand_in<'b>(&self, bytes: &'b [u8]) -> Option<StandIn<'b>> {
        let mut reader = ValueReader::new(&bytes[self.start..self.end]);
        let length = reader.varint().ok()?;
        let content = reader.take(length as usize).ok()?;
        match content.first() {
            Some(&STAND_IN) => StandIn::read(content),
            _ => None,
        }
    }
}

/// True for a whole record that stands for another one.
pub fn is_stand_in(record: &[u8]) -> bool {
    let mut reader = ValueReader::new(record);
    reader.varint().is_ok() && reader.take(1).is_ok_and(|kind| kind == [STAND_IN])
}
