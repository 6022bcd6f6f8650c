//! How a primary and a standby compare their tables: the LSN, what the primary found there, and what the standby makes of it.

use reprise_base::{Lsn, PartitionId};

use super::{FRAME_HEADER_BYTES, Kind, Out, bytes_at, check_head, put_text, text_at, u16_at};
use crate::{WireError, check, corrupt, u32_at, u64_at};

/// Tables in one frame at most, each partition's counted.
pub const COMPARED_TABLES_MAX: usize = 1024;
/// Ranges of row numbers in one frame at most.
pub const COMPARED_RANGES_MAX: usize = 1024;
/// Bytes of rows in one frame at most.
pub const COMPARED_ROWS_BYTES_MAX: usize = 1 << 20;

const SOUGHT_BYTES: usize = 16;
const NAMED_BYTES: usize = FRAME_HEADER_BYTES + 16 + SOUGHT_BYTES;
const DIGESTS_HEAD_BYTES: usize = FRAME_HEADER_BYTES + 16;
const TABLE_BYTES: usize = 40;
const RANGES_HEAD_BYTES: usize = FRAME_HEADER_BYTES + 16;
const RANGE_BYTES: usize = 8;
/// Of each row, before its bytes.
const ROW_HEAD_BYTES: usize = 12;
const COMPARED_BYTES: usize = FRAME_HEADER_BYTES + 16 + SOUGHT_BYTES;

/// Ranges of row numbers of one table on one partition: `count` of `1 << shift` numbers each, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sought {
    pub partition: PartitionId,
    pub table: u16,
    /// The first number of the first one.
    pub first: u64,
    /// Less than 64.
    pub shift: u8,
    /// From 1 to `COMPARED_RANGES_MAX`.
    pub count: u16,
}

impl Sought {
    fn put(sought: Option<Self>, out: &mut Out) {
        let Some(sought) = sought else {
            out.put(&[0; SOUGHT_BYTES]);
            return;
        };
        out.u16(sought.partition.0).u16(sought.table).u64(sought.first);
        out.u16(u16::from(sought.shift)).u16(sought.count);
    }

    fn read(bytes: &[u8]) -> Result<Option<Self>, WireError> {
        let (shift, count) = (u16_at(bytes, 12), u16_at(bytes, 14));
        if count == 0 {
            let rest = bytes[..SOUGHT_BYTES].iter().filter(|byte| **byte != 0).count();
            return check("bytes where nothing is sought", 0, rest).map(|()| None);
        }
        if shift >= 64 || usize::from(count) > COMPARED_RANGES_MAX {
            let expected = format!("a shift below 64, at most {COMPARED_RANGES_MAX} ranges");
            return Err(corrupt("ranges of row numbers", expected, format!("{shift}, {count}")));
        }
        Ok(Some(Self {
            partition: PartitionId(u16_at(bytes, 0)),
            table: u16_at(bytes, 2),
            first: u64_at(bytes, 4),
            shift: shift as u8,
            count,
        }))
    }
}

/// Sent by the primary before it says that what lies before `lsn` is committed: there the tables are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// Later ones have larger numbers, as long as the primary runs.
    pub number: u64,
    /// Behind a mark in the log.
    pub lsn: Lsn,
    /// None: all tables on all partitions.
    pub sought: Option<Sought>,
}

impl Named {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Out::new(Kind::Named);
        out.u64(self.number).u64(self.lsn.0);
        Sought::put(self.sought, &mut out);
        out.seal(&[])
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        check("length of a name of an LSN", NAMED_BYTES, bytes.len())?;
        Ok(Self {
            number: u64_at(bytes, 8),
            lsn: Lsn(u64_at(bytes, 16)),
            sought: Sought::read(&bytes[24..])?,
        })
    }
}

/// A table on a partition, at a named LSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComparedTable {
    pub partition: PartitionId,
    pub table: u16,
    /// Of what its schema means for its rows.
    pub schema: u64,
    pub rows: u64,
    /// The number that the next row would have got.
    pub next_number: u64,
    /// Of its rows with their numbers, of how many they are, and of the next number.
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
    /// As they are put into a frame: at most `COMPARED_TABLES_MAX`.
    pub fn pack(tables: &[ComparedTable]) -> Vec<u8> {
        assert!(tables.len() <= COMPARED_TABLES_MAX, "tables of a frame");
        let mut packed = Vec::with_capacity(tables.len() * TABLE_BYTES);
        for table in tables {
            packed.extend_from_slice(&table.partition.0.to_le_bytes());
            packed.extend_from_slice(&table.table.to_le_bytes());
            packed.extend_from_slice(&[0; 4]);
            for word in [table.schema, table.rows, table.next_number, table.digest] {
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
            next_number: u64_at(table, 24),
            digest: u64_at(table, 32),
        })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Out::new(Kind::Digests);
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

/// Ranges of a table's rows at a named LSN, as the primary found them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangesFound<'a> {
    pub number: u64,
    digests: &'a [u8],
    rows: &'a [u8],
}

impl<'a> RangesFound<'a> {
    /// Digests as they are put into a frame: at most `COMPARED_RANGES_MAX`.
    pub fn pack_digests(digests: &[u64]) -> Vec<u8> {
        assert!(digests.len() <= COMPARED_RANGES_MAX, "ranges of a frame");
        digests.iter().flat_map(|digest| digest.to_le_bytes()).collect()
    }

    /// Rows with their numbers as they are put into a frame, as long as there is room: at most as many as ranges.
    pub fn pack_rows<'r>(rows: impl Iterator<Item = (u64, &'r [u8])>) -> Vec<u8> {
        let (mut packed, mut bytes) = (Vec::new(), 0);
        for (number, row) in rows.take(COMPARED_RANGES_MAX) {
            if bytes + row.len() > COMPARED_ROWS_BYTES_MAX {
                break;
            }
            bytes += row.len();
            packed.extend_from_slice(&number.to_le_bytes());
            packed.extend_from_slice(&(row.len() as u32).to_le_bytes());
            packed.extend_from_slice(row);
        }
        packed
    }

    /// Both were packed.
    pub fn new(number: u64, digests: &'a [u8], rows: &'a [u8]) -> Self {
        Self { number, digests, rows }
    }

    pub fn digests(&self) -> impl Iterator<Item = u64> + use<'a> {
        let (digests, _) = self.digests.as_chunks::<RANGE_BYTES>();
        digests.iter().map(|digest| u64::from_le_bytes(*digest))
    }

    /// With their numbers.
    pub fn rows(&self) -> impl Iterator<Item = (u64, &'a [u8])> + use<'a> {
        let mut rest = self.rows;
        std::iter::from_fn(move || {
            let (number, row, behind) = row_at(rest).ok()??;
            rest = behind;
            Some((number, row))
        })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Out::new(Kind::RangesFound);
        out.u64(self.number);
        out.u16((self.digests.len() / RANGE_BYTES) as u16)
            .u16(self.rows().count() as u16);
        out.u32(0).put(self.digests).put(self.rows);
        out.seal(&[])
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        check_head("length of ranges", RANGES_HEAD_BYTES, bytes)?;
        let (digests, rows) = (usize::from(u16_at(bytes, 16)), u16_at(bytes, 18));
        if digests > COMPARED_RANGES_MAX || usize::from(rows) > COMPARED_RANGES_MAX {
            let expected = format!("at most {COMPARED_RANGES_MAX} each");
            return Err(corrupt("ranges and rows", expected, format!("{digests}, {rows}")));
        }
        check("bytes before ranges", 0, u32_at(bytes, 20))?;
        let rows_at = RANGES_HEAD_BYTES + digests * RANGE_BYTES;
        check_head("length of ranges", rows_at, bytes)?;
        let (mut rest, mut count, mut row_bytes) = (&bytes[rows_at..], 0_u16, 0);
        while let Some((_, row, behind)) = row_at(rest)? {
            (rest, count, row_bytes) = (behind, count.saturating_add(1), row_bytes + row.len());
        }
        check("number of rows", rows, count)?;
        if row_bytes > COMPARED_ROWS_BYTES_MAX {
            let expected = format!("at most {COMPARED_ROWS_BYTES_MAX}");
            return Err(corrupt("bytes of rows", expected, row_bytes));
        }
        Ok(Self {
            number: u64_at(bytes, 8),
            digests: &bytes[RANGES_HEAD_BYTES..rows_at],
            rows: &bytes[rows_at..],
        })
    }
}

/// The first of them, its number and what follows. None: there is nothing more.
fn row_at(rows: &[u8]) -> Result<Option<(u64, &[u8], &[u8])>, WireError> {
    if rows.is_empty() {
        return Ok(None);
    }
    check_head("length of a row that is compared", ROW_HEAD_BYTES, rows)?;
    let length = u32_at(rows, 8) as usize;
    if length > COMPARED_ROWS_BYTES_MAX {
        let expected = format!("at most {COMPARED_ROWS_BYTES_MAX}");
        return Err(corrupt("length of a row that is compared", expected, length));
    }
    check_head("length of a row that is compared", ROW_HEAD_BYTES + length, rows)?;
    let (row, rest) = rows[ROW_HEAD_BYTES..].split_at(length);
    Ok(Some((u64_at(rows, 0), row, rest)))
}

/// What a standby makes of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Equal = 0,
    Differs = 1,
}

/// Sent by the standby once it has compared, and again where it asks for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compared<'a> {
    pub number: u64,
    pub lsn: Lsn,
    pub outcome: Outcome,
    /// Where it wants the primary to look, at another LSN.
    pub sought: Option<Sought>,
    /// What differs; empty where nothing does.
    pub what: &'a str,
}

impl<'a> Compared<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Out::new(Kind::Compared);
        out.u64(self.number).u64(self.lsn.0);
        Sought::put(self.sought, &mut out);
        put_text(&mut out, self.outcome as u16, self.what);
        out.seal(&[])
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        check_head("length of a comparison", COMPARED_BYTES, bytes)?;
        let (outcome, what) = text_at(bytes, COMPARED_BYTES)?;
        let outcome = match outcome {
            0 => Outcome::Equal,
            1 => Outcome::Differs,
            other => return Err(corrupt("outcome of a comparison", "0 or 1", other)),
        };
        let sought = Sought::read(&bytes_at::<SOUGHT_BYTES>(bytes, 24))?;
        if outcome == Outcome::Equal && (sought.is_some() || !what.is_empty()) {
            return Err(corrupt("a comparison", "nothing sought where all is equal", what));
        }
        Ok(Self {
            number: u64_at(bytes, 8),
            lsn: Lsn(u64_at(bytes, 16)),
            outcome,
            sought,
            what,
        })
    }
}
