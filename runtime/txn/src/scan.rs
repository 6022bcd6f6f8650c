//! Open scans: the state of a cursor, and the merge of one range over several stores.

use reprise_abi::{ColumnPlan, OpError, OutBuffer, RowLayout, RowTaker, ScanBatch, ScanRequest};
use reprise_storage::{Range, Rid, ScanPosition, Store, TableId, Visit};

use crate::{
    kept_rows::{CursorRest, run_kept},
    module::TableBinding,
    ops::guest,
    pages::ReadAheadPages,
    scratch::{Handle, TxnScratch},
};

/// A scan that may continue.
pub(crate) struct Cursor {
    /// The module's number of the table.
    pub table: u16,
    pub stored: TableId,
    pub index: u16,
    pub request: OwnedRange,
    /// Rows that may still be visited. None: no limit.
    pub left: Option<u32>,
    /// The first of the held stores that are scanned. The next ones follow, one for each position.
    pub first_store: u16,
    pub positions: Vec<ScanPosition>,
    /// Number of the cursor among those that the transaction opened; 0 before it is first left open.
    pub opened: u32,
    /// The rows that the scan has still to show, if its table was written.
    pub kept: Option<Box<CursorRest>>,
    /// The rows read ahead at a view of a standby.
    pub pages: Option<Box<ReadAheadPages>>,
}

/// A copy of a range, which stays valid when the guest's memory changes.
pub(crate) struct OwnedRange {
    lower: Vec<u8>,
    upper: Vec<u8>,
    flags: reprise_abi::ScanFlags,
}

impl OwnedRange {
    pub fn new(request: &ScanRequest<'_>) -> Self {
        Self {
            lower: request.lower.to_vec(),
            upper: request.upper.to_vec(),
            flags: request.flags,
        }
    }

    pub fn range(&self) -> Range<'_> {
        Range::new(&self.lower, &self.upper, self.flags)
    }
}

/// Returns the range of a request, checked.
pub(crate) fn range_of<'a>(request: &ScanRequest<'a>) -> Result<Range<'a>, OpError> {
    if !request.flags.is_known() {
        return Err(OpError::Guest(format!(
            "scan flags {:#x} are not known",
            request.flags.0
        )));
    }
    Ok(Range::new(request.lower, request.upper, request.flags))
}

/// Continues a scan of one store.
#[inline]
pub(crate) fn run_on_one(
    store: &Store,
    binding: &TableBinding,
    frame: &mut TxnScratch,
    mut cursor: Cursor,
    visit: &mut RowTaker<'_>,
) -> Result<ScanBatch, OpError> {
    if cursor.kept.is_some() {
        return run_kept(&[store], binding, frame, cursor, visit);
    }
    let (mut rows, mut failure) = (0, None);
    let mut position = std::mem::take(&mut cursor.positions[0]);
    let (left, table, at) = (&mut cursor.left, cursor.table, cursor.first_store);
    let on_row = |rid: Rid, row: &[u8]| {
        if *left == Some(0) {
            return Visit::Again;
        }
        let handle = Handle { table, store: at, rid };
        match show(frame, binding, handle, row, visit) {
            Ok(true) => {
                rows += 1;
                if let Some(left) = left {
                    *left -= 1;
                }
                Visit::Next
            }
            Ok(false) => Visit::Again,
            Err(error) => {
                failure = Some(error);
                Visit::Again
            }
        }
    };
    let range = cursor.request.range();
    store
        .scan(cursor.stored, cursor.index, &range, &mut position, on_row)
        .map_err(|error| guest(error.to_string()))?;
    if let Some(error) = failure {
        return Err(error);
    }
    let is_end = position.is_end() || cursor.left == Some(0);
    cursor.positions[0] = position;
    let cursor = match is_end {
        true => 0,
        false => frame.push_cursor(cursor)?,
    };
    Ok(ScanBatch { cursor, rows })
}

/// Counts the rows of a range of one store. Now and then it asks whether the call may continue.
pub(crate) fn count_rows(
    store: &Store,
    frame: &mut TxnScratch,
    (table, index): (TableId, u16),
    range: &Range<'_>,
) -> Result<u64, OpError> {
    let mut asked = Ok(());
    let count = store.count_while(table, index, range, |rows| {
        asked = frame.count_walked(rows);
        asked.is_ok()
    });
    asked?;
    count.map_err(scan_error)
}

/// Number of rows that one descent of the index finds.
const ROWS_AT_ONCE: usize = 128;

/// The `run_on_one` variant for columns of fixed width. Returns the rows read and the bytes filled. It shows no row, so it calls nothing
/// for each.
pub(crate) fn read_on_one(
    store: &Store,
    frame: &mut TxnScratch,
    leg: &mut Leg<'_>,
    plan: &ColumnPlan,
    out: &mut [u8],
) -> Result<(u32, usize), OpError> {
    let mut room = OutBuffer::new(plan, out);
    let (mut rows, prefetch) = (0, plan.prefetch());
    let mut rids = [Rid(0); ROWS_AT_ONCE];
    while leg.left != Some(0) {
        let rows_left = room.rows_left();
        let left = leg.left.map_or(ROWS_AT_ONCE, |left| left as usize);
        let page = &mut rids[..ROWS_AT_ONCE.min(left).min(rows_left)];
        let count = store.scan_page(leg.stored, leg.index, &leg.range, &mut leg.position, page);
        let count = count.map_err(scan_error)?;
        let page = &rids[..count];
        if !frame.count_many(count) {
            check_each(frame, leg, page)?;
        }
        store.read_rows(leg.stored, page, prefetch, |rids, rows| {
            let first = frame.push_all(rids.iter().map(|rid| leg.handle(*rid)));
            room.push_all(first, rows);
        });
        rows += count as u32;
        if let Some(left) = &mut leg.left {
            *left -= count as u32;
        }
        if leg.position.is_end() || leg.left == Some(0) {
            break;
        }
        if count == rows_left {
            // The next row was read and found no room.
            frame.count_op()?;
            break;
        }
    }
    Ok((rows, room.filled()))
}

/// Counts rows one by one, because one of the limits may lie among them. Err: the limit, reached at the same row as by a scan of whole rows.
/// No handle of the rows stays, because the reader of the page adds all of them.
#[cold]
fn check_each(frame: &mut TxnScratch, leg: &Leg<'_>, page: &[Rid]) -> Result<(), OpError> {
    let before = frame.handles.len();
    for rid in page {
        frame.count_op()?;
        frame.push_handle(leg.handle(*rid))?;
    }
    frame.handles.truncate(before);
    Ok(())
}

/// Continues a scan of one store for columns of fixed width.
pub(crate) fn read_columns(
    store: &Store,
    frame: &mut TxnScratch,
    mut cursor: Cursor,
    plan: &ColumnPlan,
    out: &mut [u8],
) -> Result<(ScanBatch, usize), OpError> {
    let mut leg = Leg {
        table: cursor.table,
        store: cursor.first_store,
        stored: cursor.stored,
        index: cursor.index,
        range: cursor.request.range(),
        position: std::mem::take(&mut cursor.positions[0]),
        left: cursor.left,
    };
    let (rows, filled) = read_on_one(store, frame, &mut leg, plan, out)?;
    let (is_end, left, position) = (leg.is_end(), leg.left, leg.position);
    (cursor.left, cursor.positions[0]) = (left, position);
    let cursor = match is_end {
        true => 0,
        false => frame.push_cursor(cursor)?,
    };
    Ok((ScanBatch { cursor, rows }, filled))
}

/// The scan of one store, in progress.
pub(crate) struct Leg<'a> {
    /// The module's number of the table.
    pub table: u16,
    pub store: u16,
    pub stored: TableId,
    pub index: u16,
    pub range: Range<'a>,
    pub position: ScanPosition,
    /// Rows that may still be read. None: no limit.
    pub left: Option<u32>,
}

impl Leg<'_> {
    #[inline(always)]
    fn handle(&self, rid: Rid) -> Handle {
        Handle {
            table: self.table,
            store: self.store,
            rid,
        }
    }

    pub fn is_end(&self) -> bool {
        self.position.is_end() || self.left == Some(0)
    }
}

/// Shows a row to the visitor, as the module knows it. False: the visitor did not take it.
pub(crate) fn show(
    frame: &mut TxnScratch,
    binding: &TableBinding,
    handle: Handle,
    row: &[u8],
    visit: &mut RowTaker<'_>,
) -> Result<bool, OpError> {
    frame.count_op()?;
    let handle = frame.push_handle(handle)?;
    let taken = match &binding.projection {
        None => visit(handle, row),
        Some(projection) => visit(handle, &projection.narrow(row)),
    };
    if !taken {
        frame.handles.pop();
    }
    Ok(taken)
}

/// Rows that a merge reads of a store at once, at most.
const PAGE_ROWS_MAX: usize = 64;

/// Walks one range over several stores in index order. Rows with equal keys come in the order of the stores. The stores must not change
/// while it lives.
pub(crate) struct ScanMerge<'a> {
    table: TableId,
    index: u16,
    range: Range<'a>,
    /// Columns of the order: the index's, then the primary key's.
    columns: Vec<u16>,
    layout: RowLayout,
    is_reverse: bool,
    heads: Vec<ScanHead>,
}

/// The next rows of one store.
#[derive(Default)]
struct ScanHead {
    /// Position before the first row of the page. The scan continues there if no row is taken.
    before: ScanPosition,
    /// Behind the last one.
    position: ScanPosition,
    /// Each row, and the end of its key in `keys`.
    rows: Vec<(Rid, usize)>,
    keys: Vec<u8>,
    /// Number of the page's rows that were taken.
    taken: usize,
}

impl ScanHead {
    fn next(&self) -> Option<Rid> {
        Some(self.rows.get(self.taken)?.0)
    }

    fn key(&self) -> &[u8] {
        let end_of = |row: usize| self.rows[row].1;
        let start = self.taken.checked_sub(1).map_or(0, end_of);
        &self.keys[start..end_of(self.taken)]
    }
}

pub(crate) fn scan_error(error: reprise_storage::NotOrdered) -> OpError {
    guest(error.to_string())
}

impl<'a> ScanMerge<'a> {
    /// Begins at `positions`, one for each store. Err: the index can't be scanned.
    pub fn new(
        stores: &[&Store],
        table: TableId,
        index: u16,
        range: Range<'a>,
        positions: Vec<ScanPosition>,
    ) -> Result<Self, OpError> {
        assert_eq!(stores.len(), positions.len());
        let schema = stores[0].schema(table);
        let mut columns = match index {
            0 => Vec::new(),
            secondary => schema.indexes[secondary as usize - 1].columns.clone(),
        };
        columns.extend_from_slice(&schema.primary_key);
        let mut merge = Self {
            table,
            index,
            range,
            columns,
            layout: RowLayout::of_table(schema),
            is_reverse: range.flags.has(reprise_abi::ScanFlags::REVERSE),
            heads: Vec::with_capacity(positions.len()),
        };
        for (store, position) in stores.iter().zip(positions) {
            merge.heads.push(ScanHead {
                position,
                ..ScanHead::default()
            });
            merge.refill(merge.heads.len() - 1, store, 1)?;
        }
        Ok(merge)
    }

    fn refill(&mut self, at: usize, store: &Store, rows_max: usize) -> Result<(), OpError> {
        let head = &mut self.heads[at];
        head.before.clone_from(&head.position);
        head.rows.clear();
        head.keys.clear();
        head.taken = 0;
        let (layout, columns) = (&self.layout, &self.columns);
        let (keys, rows) = (&mut head.keys, &mut head.rows);
        let on_row = |rid, row: &[u8]| {
            layout.push_key(row, columns, keys);
            rows.push((rid, keys.len()));
            match rows.len() < rows_max {
                true => Visit::Next,
                false => Visit::Stop,
            }
        };
        store
            .scan(self.table, self.index, &self.range, &mut head.position, on_row)
            .map_err(scan_error)
    }

    /// Returns the store and the row that come next.
    pub fn peek(&self) -> Option<(usize, Rid)> {
        let mut best: Option<(usize, Rid, &[u8])> = None;
        for (at, head) in self.heads.iter().enumerate() {
            let Some(rid) = head.next() else {
                continue;
            };
            let key = head.key();
            let is_better = match best {
                None => true,
                Some((_, _, other)) if self.is_reverse => key > other,
                Some((_, _, other)) => key < other,
            };
            if is_better {
                best = Some((at, rid, key));
            }
        }
        best.map(|(at, rid, _)| (at, rid))
    }

    /// Takes the next row of store `at`. Pages double, so that a scan of a few rows reads little more than these.
    pub fn advance(&mut self, at: usize, store: &Store) -> Result<(), OpError> {
        let head = &mut self.heads[at];
        head.taken += 1;
        let page = head.rows.len();
        if head.taken < page {
            return Ok(());
        }
        self.refill(at, store, (2 * page).min(PAGE_ROWS_MAX))
    }

    /// Returns the positions at which each store continues. The next row of each store is not taken.
    pub fn into_positions(self, stores: &[&Store]) -> Result<Vec<ScanPosition>, OpError> {
        let (table, index, range) = (self.table, self.index, self.range);
        let position_of = |(head, store): (ScanHead, &&Store)| {
            let (mut position, mut left) = (head.before, head.taken);
            if left > 0 {
                let on_row = |_, _: &[u8]| {
                    left -= 1;
                    if left > 0 { Visit::Next } else { Visit::Stop }
                };
                let passed = store.scan(table, index, &range, &mut position, on_row);
                passed.map_err(scan_error)?;
            }
            Ok(position)
        };
        self.heads.into_iter().zip(stores).map(position_of).collect()
    }
}

#[cfg(test)]
mod tests {
    use reprise_abi::{ColumnSchema, ColumnSet, Field, Plans, ScalarType, ScanFlags, TableSchema};
    use reprise_base::limits::HANDLES_MAX;

    use super::*;
    use crate::scratch::limit;

    const ROWS: usize = 300;
    /// Bytes of a row in the output: handle, length, and the value of a column of type i64.
    const OUT_BYTES: usize = 16;

    /// Reads a column of all rows in a transaction that has seen nearly as many rows as a call may. Returns the number of rows, and their
    /// bytes.
    fn read_at_the_limit(frame: &mut TxnScratch) -> Result<(u32, Vec<u8>), OpError> {
        let columns = vec![ColumnSchema::new("id", ScalarType::I64)];
        let schema = TableSchema::new("t", columns, &[0]);
        let layout = RowLayout::of_table(&schema);
        let mut store = Store::new();
        let table = store.create_table(schema).expect("a table");
        store.begin();
        for id in 0..ROWS {
            let row = layout.build(&[Field::Int(id as i64)]);
            store.insert(table, &row).expect("a new key");
        }
        store.commit();
        let (mut plans, mut out) = (Plans::default(), vec![0; OUT_BYTES * ROWS]);
        let plan = plans.of(&layout, ColumnSet(1));
        let seen = Handle {
            table: 0,
            store: 0,
            rid: Rid(0),
        };
        frame.handles = vec![seen; HANDLES_MAX - 10];
        let mut leg = Leg {
            table: 0,
            store: 0,
            stored: table,
            index: 0,
            range: Range::new(&[], &[], ScanFlags(0)),
            position: ScanPosition::default(),
            left: None,
        };
        let (rows, filled) = read_on_one(&store, frame, &mut leg, plan, &mut out)?;
        out.truncate(filled);
        Ok((rows, out))
    }

    #[test]
    fn column_scan_gives_each_row_one_handle_beyond_the_limit_of_a_call() {
        let mut frame = TxnScratch::default();
        let refused = read_at_the_limit(&mut frame);
        assert_eq!(refused, Err(limit("row_handles", HANDLES_MAX as u64)));
        frame.begin_migration();
        let (rows, out) = read_at_the_limit(&mut frame).expect("a migration may see more rows");
        assert_eq!((rows as usize, out.len()), (ROWS, OUT_BYTES * ROWS));
        assert_eq!(frame.handles.len(), HANDLES_MAX - 10 + ROWS);
        for (at, row) in out.chunks(OUT_BYTES).enumerate() {
            let handle = (HANDLES_MAX - 10 + at) as u32;
            assert_eq!(row[..4], handle.to_le_bytes());
            let rid = frame.handle(handle).expect("given out").rid;
            assert_eq!(rid, Rid(at as u32));
        }
    }
}
