//! Open scans: what a cursor remembers, and the merge of one range over several stores.

use reprise_abi::{OpError, RowLayout, ScanRequest};
use reprise_storage::{Range, Rid, ScanPosition, Store, TableId, Visit};

/// A scan that may go on.
pub(crate) struct Cursor {
    /// The module's number of the table.
    pub table: u16,
    pub stored: TableId,
    pub index: u16,
    pub request: OwnedRange,
    /// Rows that may still be visited; None without limit.
    pub left: Option<u32>,
    /// One a store that is scanned.
    pub positions: Vec<ScanPosition>,
}

/// A range that outlives the guest's memory it came from.
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

/// The range of a request, checked.
pub(crate) fn range_of<'a>(request: &ScanRequest<'a>) -> Result<Range<'a>, OpError> {
    if !request.flags.is_known() {
        return Err(OpError::Guest(format!("scan flags {:#x} are not known", request.flags.0)));
    }
    Ok(Range::new(request.lower, request.upper, request.flags))
}

/// Walks one range over several stores in index order; rows with equal keys come in the order of the stores.
pub struct Merge<'a> {
    table: TableId,
    index: u16,
    range: Range<'a>,
    /// Columns that make up the order: the index's, then the primary key's.
    columns: Vec<u16>,
    layout: RowLayout,
    is_reverse: bool,
    heads: Vec<Head>,
}

/// The next row of one store.
#[derive(Default)]
struct Head {
    /// Behind the row in `next`.
    position: ScanPosition,
    /// Before it: where to go on when it is not taken.
    before: ScanPosition,
    key: Vec<u8>,
    next: Option<Rid>,
}

impl<'a> Merge<'a> {
    /// Begins at `positions`, one a store. Err: the index can't be scanned.
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
            merge.heads.push(Head {
                position,
                ..Head::default()
            });
            merge.refill(merge.heads.len() - 1, store)?;
        }
        Ok(merge)
    }

    fn refill(&mut self, at: usize, store: &Store) -> Result<(), OpError> {
        let head = &mut self.heads[at];
        head.before.clone_from(&head.position);
        head.next = None;
        head.key.clear();
        let (layout, columns) = (&self.layout, &self.columns);
        let (key, next) = (&mut head.key, &mut head.next);
        store
            .scan(self.table, self.index, &self.range, &mut head.position, |rid, row| {
                layout.push_key(row, columns, key);
                *next = Some(rid);
                Visit::Stop
            })
            .map_err(|error| OpError::Guest(error.to_string()))
    }

    /// The store and row that come next.
    pub fn peek(&self) -> Option<(usize, Rid)> {
        let mut best: Option<(usize, &Head)> = None;
        for (at, head) in self.heads.iter().enumerate() {
            if head.next.is_none() {
                continue;
            }
            let is_better = match best {
                None => true,
                Some((_, other)) if self.is_reverse => head.key > other.key,
                Some((_, other)) => head.key < other.key,
            };
            if is_better {
                best = Some((at, head));
            }
        }
        best.and_then(|(at, head)| Some((at, head.next?)))
    }

    /// Key bytes of the row that comes next.
    pub fn key(&self, at: usize) -> &[u8] {
        &self.heads[at].key
    }

    /// Passes over the next row of store `at`.
    pub fn advance(&mut self, at: usize, store: &Store) -> Result<(), OpError> {
        self.refill(at, store)
    }

    /// Where each store goes on, its next row not having been taken.
    pub fn into_positions(self) -> Vec<ScanPosition> {
        self.heads.into_iter().map(|head| head.before).collect()
    }
}
