//! Digests of tables as they were at one moment, made while transactions go on: two nodes that replayed the same log have the same
//! ones. Rows are gone over a slice at a time, and one that is about to change is taken first, as for a snapshot.

use std::{fmt, sync::Arc};

use reprise_abi::{RowLayout, ScalarType, TableSchema, row::ROW_BYTES_MAX};
use reprise_base::{Budget, Grant};

use crate::{
    changelog::column_value, difference::value_text, digest::fold, keyplan::RowRef, rows::Rows, schema,
    snapshot::Taken, store::TableId, table::Table,
};

/// Ranges of row numbers whose digests are made at once, at most.
pub const DIGEST_RANGES_MAX: u16 = 1024;
/// Bytes of the rows that are kept beside digests of single rows, at most: one is, however long it is.
pub const DIGEST_ROWS_BYTES_MAX: usize = ROW_BYTES_MAX;
/// Columns of a row that only one of two nodes has which are shown, at most.
const ROW_COLUMNS_MAX: usize = 16;

/// Of what digests are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestPlan {
    /// Each table's rows.
    Tables,
    /// Ranges of row numbers of one table.
    Ranges(NumberRanges),
}

/// So many ranges of `1 << shift` row numbers each, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberRanges {
    /// Whose rows they are of.
    pub table: TableId,
    /// The first number of the first one.
    pub first: u64,
    /// Less than 64.
    pub shift: u8,
    /// At most `DIGEST_RANGES_MAX`.
    pub count: u16,
}

/// A table at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableDigest {
    /// Its number.
    pub table: u16,
    /// Of what its schema means for its rows.
    pub schema: u64,
    /// That it holds.
    pub rows: u64,
    /// The number that the next row would have got.
    pub next_number: u64,
    /// Of its rows with their numbers, of how many they are, and of the next number; their order is not in it.
    pub digest: u64,
}

/// Ranges of a table's rows at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeDigests {
    /// Of the rows of each range; 0 where there are none.
    pub digests: Vec<u64>,
    /// Where a range is one number: rows with theirs, in no order, as long as they fit into `DIGEST_ROWS_BYTES_MAX`.
    pub rows: Vec<(u64, Vec<u8>)>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Digested {
    /// By table number, without those that were dropped.
    Tables(Vec<TableDigest>),
    /// Of the table that was asked for.
    Ranges(RangeDigests),
}

/// Digests that are being made.
pub(crate) struct Digests {
    plan: DigestPlan,
    /// By table number; none for those that are left out, and those that are done.
    tables: Vec<Option<TableDigesting>>,
    done: Vec<TableDigest>,
    ranges: RangeDigests,
    _grant: Option<Grant>,
}

pub(crate) struct TableDigesting {
    pub taken: Taken,
    pub sums: Sums,
    /// With everything but the rows.
    begun: TableDigest,
}

/// What the rows that were taken come to.
pub(crate) enum Sums {
    Table(u64),
    Ranges {
        ranges: NumberRanges,
        found: RangeDigests,
        kept_bytes: usize,
    },
}

impl Sums {
    /// As `Table::rows_digest` takes each.
    pub fn add(&mut self, row: RowRef<'_>) {
        let digest = fold(0, row.number, row.row);
        match self {
            Self::Table(sum) => *sum = sum.wrapping_add(digest),
            Self::Ranges {
                ranges,
                found,
                kept_bytes,
            } => {
                let Some(behind) = row.number.checked_sub(ranges.first) else {
                    return;
                };
                let at = usize::try_from(behind >> ranges.shift);
                let Some(sum) = at.ok().and_then(|at| found.digests.get_mut(at)) else {
                    return;
                };
                *sum = sum.wrapping_add(digest);
                if ranges.shift == 0 && *kept_bytes + row.row.len() <= DIGEST_ROWS_BYTES_MAX {
                    *kept_bytes += row.row.len();
                    found.rows.push((row.number, row.row.to_vec()));
                }
            }
        }
    }
}

impl TableDigesting {
    fn new(id: TableId, table: &Table, plan: DigestPlan) -> Option<Self> {
        let sums = match plan {
            DigestPlan::Tables => Sums::Table(0),
            DigestPlan::Ranges(ranges) if ranges.table != id => return None,
            DigestPlan::Ranges(ranges) => Sums::Ranges {
                ranges,
                found: RangeDigests {
                    digests: vec![0; usize::from(ranges.count.min(DIGEST_RANGES_MAX))],
                    rows: Vec::new(),
                },
                kept_bytes: 0,
            },
        };
        (!table.schema.is_dropped()).then(|| Self {
            taken: Taken::none_of(&table.rows),
            sums,
            begun: TableDigest {
                table: id.0,
                schema: schema::digest(&table.schema),
                rows: table.rows.count(),
                next_number: table.next_number(),
                digest: 0,
            },
        })
    }

    /// Goes over rows until so many bytes are gone over. True when none is left.
    pub fn go_on(&mut self, rows: &Rows, bytes: &mut usize) -> bool {
        let Self { taken, sums, .. } = self;
        taken.take(rows, bytes, |row| sums.add(row))
    }
}

impl Digests {
    pub fn new(plan: DigestPlan, tables: &[Table]) -> Self {
        let numbered = (0..).map(TableId).zip(tables);
        Self {
            plan,
            tables: numbered
                .map(|(id, table)| TableDigesting::new(id, table, plan))
                .collect(),
            done: Vec::new(),
            ranges: RangeDigests::default(),
            _grant: None,
        }
    }

    /// What tells which rows are taken is memory like any other, and so are the rows that may be kept.
    pub fn count_in(&mut self, budget: Option<&Arc<Budget>>) {
        let done: u64 = self.tables.iter().flatten().map(|table| table.taken.done_bytes()).sum();
        let kept = match self.plan {
            DigestPlan::Ranges(ranges) if ranges.shift == 0 => DIGEST_ROWS_BYTES_MAX as u64,
            DigestPlan::Ranges(_) | DigestPlan::Tables => 0,
        };
        self._grant = budget.map(|budget| budget.take(done + kept));
    }

    pub fn table_mut(&mut self, id: TableId) -> Option<&mut TableDigesting> {
        self.tables.get_mut(id.0 as usize)?.as_mut()
    }

    /// Goes over rows until so many bytes are gone over. True when none is left.
    pub fn go_on(&mut self, tables: &[Table], bytes: &mut usize) -> bool {
        for (at, table) in tables.iter().enumerate() {
            let Some(digesting) = self.tables.get_mut(at).and_then(Option::as_mut) else {
                continue;
            };
            if !digesting.go_on(&table.rows, bytes) {
                return false;
            }
            self.end_table(at);
        }
        // Those that went meanwhile had all of their rows taken.
        (0..self.tables.len()).for_each(|at| self.end_table(at));
        true
    }

    fn end_table(&mut self, at: usize) {
        let Some(TableDigesting { sums, begun, .. }) = self.tables[at].take() else {
            return;
        };
        match sums {
            Sums::Table(sum) => self.done.push(TableDigest {
                digest: digest_of(sum, begun.next_number, begun.rows),
                ..begun
            }),
            Sums::Ranges { found, .. } => self.ranges = found,
        }
    }

    pub fn into_found(self) -> Digested {
        match self.plan {
            DigestPlan::Tables => Digested::Tables(self.done),
            DigestPlan::Ranges(_) => Digested::Ranges(self.ranges),
        }
    }
}

/// Of a table, from the sum of its rows' digests.
pub(crate) fn digest_of(sum: u64, next_number: u64, rows: u64) -> u64 {
    fold(fold(sum, next_number, &[]), rows, &[])
}

/// A row that two nodes have differently, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowsDiffer {
    /// Its name.
    pub table: String,
    /// Columns of the primary key with their values, and the number.
    pub row: String,
    /// None where one node has the row, and the other one has not.
    pub column: Option<String>,
    /// What this node has.
    pub own: String,
    /// What the other one has.
    pub other: String,
}

impl fmt::Display for RowsDiffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "row {} of table {}", self.row, self.table)?;
        if let Some(column) = &self.column {
            write!(f, ", column {column}")?;
        }
        write!(f, ": {} here, {} there", self.own, self.other)
    }
}

/// Names the row of a number that is `own` here and `other` on another node, and the first column in which they differ. Bytes that are no
/// row of the table are shown as they are.
pub fn name_difference(schema: &TableSchema, number: u64, (own, other): (Option<&[u8]>, Option<&[u8]>)) -> RowsDiffer {
    let layout = RowLayout::of_table(schema);
    let is_row = |row: &&[u8]| row.len() <= ROW_BYTES_MAX && layout.validate(row).is_ok();
    let read = (own.filter(is_row), other.filter(is_row));
    let column = match read {
        (Some(own), Some(other)) => layout.columns.iter().position(|slot| {
            let (own, other) = (column_value(&layout, own, slot), column_value(&layout, other, slot));
            own != other
        }),
        _ => None,
    };
    let text = |row: Option<&[u8]>, read: Option<&[u8]>| match (row, read, column) {
        (None, ..) => "no such row".into(),
        (Some(_), Some(read), Some(at)) => {
            let slot = &layout.columns[at];
            value_text(slot.ty, column_value(&layout, read, slot))
        }
        (Some(_), Some(read), None) => row_text(schema, &layout, read),
        (Some(row), None, _) => format!("no row of it ({})", value_text(ScalarType::Bytes, Some(row))),
    };
    let key = read.1.or(read.0).filter(|_| !schema.primary_key.is_empty());
    let key = key.map(|row| {
        let columns = schema
            .primary_key
            .iter()
            .map(|at| column_text(schema, &layout, row, usize::from(*at)));
        columns.collect::<Vec<_>>().join(", ")
    });
    RowsDiffer {
        table: schema.name.clone(),
        row: key.map_or_else(|| format!("number {number}"), |key| format!("{key} (number {number})")),
        column: column.map(|at| schema.columns[at].name.clone()),
        own: text(own, read.0),
        other: text(other, read.1),
    }
}

fn column_text(schema: &TableSchema, layout: &RowLayout, row: &[u8], at: usize) -> String {
    let slot = &layout.columns[at];
    format!(
        "{}={}",
        schema.columns[at].name,
        value_text(slot.ty, column_value(layout, row, slot))
    )
}

fn row_text(schema: &TableSchema, layout: &RowLayout, row: &[u8]) -> String {
    let columns = (0..layout.columns.len()).take(ROW_COLUMNS_MAX);
    let columns: Vec<_> = columns.map(|at| column_text(schema, layout, row, at)).collect();
    let rest = if layout.columns.len() > ROW_COLUMNS_MAX {
        ", …"
    } else {
        ""
    };
    format!("({}{rest})", columns.join(", "))
}
