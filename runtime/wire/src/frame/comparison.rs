//! The frames with which a primary and a standby compare their tables: the LSN, the primary's digests, and the standby's result.

use reprise_base::{Lsn, PartitionId};

use super::{FRAME_HEADER_BYTES, FrameFields, Kind, check_head, put_text, text_at};
use crate::{WireError, check, corrupt, u16_at, u32_at, u64_at};

/// Tables in one frame at most, each partition's counted.
pub const COMPARED_TABLES_MAX: usize = 1024;
const NAMED_BYTES: usize = FRAME_HEADER_BYTES + 16;
const DIGESTS_HEAD_BYTES: usize = FRAME_HEADER_BYTES + 16;
const TABLE_BYTES: usize = 32;
const COMPARED_BYTES: usize = FRAME_HEADER_BYTES + 16;

/// The LSN at which tables are compared. The primary sends it before it reports the records before `lsn` as committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComparePoint {
    /// Later ones have larger numbers, as long as the primary runs.
    pub number: u64,
    /// Behind a mark in the log.
    pub lsn: Lsn,
}

impl ComparePoint {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = FrameFields::new(Kind::Named);
        out.u64(self.number).u64(self.lsn.0);
        out.seal(&[])
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        check("length of a name of an LSN", NAMED_BYTES, bytes.len())?;
        Ok(Self {
            number: u64_at(bytes, 8),
            lsn: Lsn(u64_at(bytes, 16)),
        })
    }
}

/// A table on a partition, at a named LSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComparedTable {
    pub partition: PartitionId,
    pub table: u16,
    /// Digest of the parts of the schema that matter to the rows.
    pub schema: u64,
    pub rows: u64,
    /// Digest of the rows with their numbers, of their count, and of the number that the next row would get.
    pub digest: u64,
}

/// Tables at a named LSN, as the primary found them; those of a comparison come in one frame or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableDigests<'a> {
    pub number: u64,
    /// No more of them follow.
    pub is_last: bool,
    tables: &'a [u8],
}

impl<'a> TableDigests<'a> {
    /// Packs the digests for a frame: at most `COMPARED_TABLES_MAX`.
    pub fn pack(tables: &[ComparedTable]) -> Vec<u8> {
        assert!(tables.len() <= COMPARED_TABLES_MAX, "tables of a frame");
        let mut packed = Vec::with_capacity(tables.len() * TABLE_BYTES);
        for table in tables {
            packed.extend_from_slice(&table.partition.0.to_le_bytes());
            packed.extend_from_slice(&table.table.to_le_bytes());
            packed.extend_from_slice(&[0; 4]);
            for word in [table.schema, table.rows, table.digest] {
                packed.extend_from_slice(&word.to_le_bytes());
            }
        }
        packed
    }

    /// `tables` were packed.
    pub fn new(number: u64, is_last: bool, tables: &'a [u8]) -> Self {
        Self {
            number,
            is_last,
            tables,
        }
    }

    pub fn tables(&self) -> impl Iterator<Item = ComparedTable> + use<'a> {
        let (tables, _) = self.tables.as_chunks::<TABLE_BYTES>();
        tables.iter().map(|table| ComparedTable {
            partition: PartitionId(u16_at(table, 0)),
            table: u16_at(table, 2),
            schema: u64_at(table, 8),
            rows: u64_at(table, 16),
            digest: u64_at(table, 24),
        })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = FrameFields::new(Kind::Digests);
        out.u64(self.number).u16(u16::from(self.is_last));
        out.u16((self.tables.len() / TABLE_BYTES) as u16).u32(0);
        out.put(self.tables);
        out.seal(&[])
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        check_head("length of digests", DIGESTS_HEAD_BYTES, bytes)?;
        let (is_last, count) = (u16_at(bytes, 16), usize::from(u16_at(bytes, 18)));
        if is_last > 1 || count > COMPARED_TABLES_MAX {
            let expected = format!("0 or 1, and at most {COMPARED_TABLES_MAX}");
            return Err(corrupt("head of digests", expected, format!("{is_last}, {count}")));
        }
        check(
            "length of digests",
            DIGESTS_HEAD_BYTES + count * TABLE_BYTES,
            bytes.len(),
        )?;
        check("bytes before digests", 0, u32_at(bytes, 20))?;
        let tables = &bytes[DIGESTS_HEAD_BYTES..];
        let (entries, _) = tables.as_chunks::<TABLE_BYTES>();
        entries
            .iter()
            .try_for_each(|entry| check("bytes behind a table's number", 0, u32_at(entry, 4)))?;
        Ok(Self {
            number: u64_at(bytes, 8),
            is_last: is_last == 1,
            tables,
        })
    }
}

/// A standby's result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparisonOutcome {
    Equal = 0,
    Differs = 1,
}

/// Sent by the standby once it has compared, and again on a later connection where tables differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComparisonResult<'a> {
    pub number: u64,
    pub lsn: Lsn,
    pub outcome: ComparisonOutcome,
    /// The difference; empty if there is none.
    pub what: &'a str,
}

impl<'a> ComparisonResult<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = FrameFields::new(Kind::Compared);
        out.u64(self.number).u64(self.lsn.0);
        put_text(&mut out, self.outcome as u16, self.what);
        out.seal(&[])
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        check_head("length of a comparison", COMPARED_BYTES, bytes)?;
        let (outcome, what) = text_at(bytes, COMPARED_BYTES)?;
        let outcome = match outcome {
            0 => ComparisonOutcome::Equal,
            1 => ComparisonOutcome::Differs,
            other => return Err(corrupt("outcome of a comparison", "0 or 1", other)),
        };
        if outcome == ComparisonOutcome::Equal && !what.is_empty() {
            return Err(corrupt("a comparison", "no text where all is equal", what));
        }
        Ok(Self {
            number: u64_at(bytes, 8),
            lsn: Lsn(u64_at(bytes, 16)),
            outcome,
            what,
        })
    }
}
