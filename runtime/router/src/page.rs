//! A page of a table's rows: read from partitions that are held, or by a reader of a standby at a view. Both read stores in the same way.

use std::time::{Duration, Instant};

use reprise_abi::{OpError, RowLayout, ScanFlags, TablePlacement, TableSchema};
use reprise_base::{Lsn, PartitionId};
use reprise_partition::{
    ExclusivePartitions, HeldStores, ReadTask, ReadWork, ReplyOutcome, TableReadJob, TxnPartitions,
};
use reprise_storage::{Range, Rid, ScanPosition, TableId, Visit};
use reprise_txn::{Deployed, NextRow, ReadAheadPages, ViewStores};

use crate::{
    query::{RowsError, RowsRequest, StoredPage, is_ordered, schema_of},
    router::Router,
    views::ReadAside,
};

/// Bytes of rows after which a page ends before its limit.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Rows that the search for one page reads: a filter that little passes must end, too.
const ROWS_READ_MAX: usize = 20_000;
/// Time that the search takes at most. It must not hold a partition for longer, nor a reader, which waits for its slices.
const HELD_TIME_MAX: Duration = Duration::from_millis(5);
const READER_TIME_MAX: Duration = Duration::from_millis(50);
/// Rows between two checks of the clock.
const CLOCK_CHECK_ROWS: usize = 256;
/// Limits of one read of rows without an order: record ids to pass over, and bytes of rows.
const IDS_AT_ONCE: u32 = 256;
const READ_BYTES_MAX: usize = 32 << 10;

impl Router {
    /// A page that a reader reads. A standby shows durable rows only.
    pub(crate) fn page_at_view(
        &self,
        aside: &ReadAside,
        touched: TxnPartitions,
        request: RowsRequest,
    ) -> Result<StoredPage, RowsError> {
        let partitions_count = self.partitions_count();
        let partitions = match touched {
            TxnPartitions::All => (0..partitions_count).map(PartitionId).collect(),
            TxnPartitions::Some(list) => list,
        };
        let (sender, receiver) = crossbeam_channel::bounded(1);
        let job = PageRead {
            request,
            partitions_count,
            found: None,
            answer: sender,
        };
        let work = ReadWork::Table(Box::new(job));
        self.read(aside, ReadTask { work, partitions });
        let received = self.0.config.shared.threads.receive(&receiver);
        received.map_err(|_| RowsError::Unavailable("the engine has stopped".into()))?
    }
}

/// A page on its way through a reader.
struct PageRead {
    request: RowsRequest,
    partitions_count: u16,
    found: Option<Result<StoredPage, RowsError>>,
    answer: crossbeam_channel::Sender<Result<StoredPage, RowsError>>,
}

impl TableReadJob for PageRead {
    fn read(&mut self, stores: &mut dyn ViewStores, deployed: &Deployed, seen: Lsn) -> Result<(), OpError> {
        let reader = PageReader {
            request: &self.request,
            partitions_count: self.partitions_count,
            time_max: READER_TIME_MAX,
        };
        let found = match reader.read(stores, deployed, seen) {
            Err(NoPage::View(over)) => return Err(over),
            Err(NoPage::Rows(error)) => Err(error),
            Ok(page) => Ok(page),
        };
        self.found = Some(found);
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<(), ReplyOutcome>) {
        let answer = match (outcome, self.found) {
            (Ok(()), Some(found)) => found,
            (Err(ReplyOutcome::TooStale(reason)), _) => Err(RowsError::TooStale(reason)),
            (Err(ReplyOutcome::LogUnavailable(reason)), _) => Err(RowsError::LogUnavailable(reason)),
            (Err(ReplyOutcome::Unavailable(reason)), _) => Err(RowsError::Unavailable(reason)),
            (other, _) => Err(RowsError::Unavailable(
                format!("the engine did not read the page: {other:?}").into(),
            )),
        };
        let _ = self.answer.send(answer); // the caller may have gone
    }
}

/// A page from partitions that are held.
pub(crate) fn read_held(held: &mut ExclusivePartitions<'_>, request: &RowsRequest) -> Result<StoredPage, RowsError> {
    let deployed = held.tools.deployed().clone();
    let ends = held.partitions.iter().map(|part| part.last_end.0);
    let seen = Lsn(ends.max().unwrap_or_default().saturating_sub(1));
    let limit = held.limit_read();
    let seen = limit.as_ref().map_or(seen, |limit| Lsn(limit.end.0.saturating_sub(1)));
    let parts = held.partitions.iter_mut().map(|part| (part.id, &mut part.store));
    let mut stores = HeldStores::new(parts, limit);
    let reader = PageReader {
        request,
        partitions_count: held.tools.shared.partitions_count,
        time_max: HELD_TIME_MAX,
    };
    let read = reader.read(&mut stores, &deployed, seen);
    match (read, stores.take_refusal()) {
        (_, Some(refusal)) => Err(ReplyOutcome::from(&refusal).into()),
        (Err(NoPage::Rows(error)), None) => Err(error),
        (Err(NoPage::View(error)), None) => Err(RowsError::Unavailable(format!("{error:?}").into())),
        (Ok(page), None) => Ok(page),
    }
}

/// Why there is no page.
enum NoPage {
    Rows(RowsError),
    /// The view is over.
    View(OpError),
}

impl From<RowsError> for NoPage {
    fn from(error: RowsError) -> Self {
        Self::Rows(error)
    }
}

impl From<OpError> for NoPage {
    fn from(error: OpError) -> Self {
        match error {
            OpError::Guest(_) => Self::Rows(RowsError::NotFound), // the index has no order
            over => Self::View(over),
        }
    }
}

/// A page as it grows.
struct PageBuilder {
    page: StoredPage,
    /// Bytes of all rows.
    bytes: usize,
    /// Rows that the search read, and the time until which it may read more.
    rows_read: usize,
    until: Instant,
}

impl PageBuilder {
    fn is_full(&self, limit: u32) -> bool {
        self.page.rows.len() as u32 >= limit
            || self.bytes >= PAGE_BYTES_MAX
            || self.rows_read >= ROWS_READ_MAX
            || self.rows_read > 0 && self.rows_read.is_multiple_of(CLOCK_CHECK_ROWS) && Instant::now() >= self.until
    }

    fn add_row(&mut self, row: &[u8], request: &RowsRequest) {
        self.rows_read += 1;
        if request.filter.as_ref().is_none_or(|filter| (filter.passes)(row)) {
            self.bytes += row.len();
            self.page.rows.push(row.to_vec());
        }
    }
}

/// The request that a page answers, with its limits.
struct PageReader<'a> {
    request: &'a RowsRequest,
    partitions_count: u16,
    time_max: Duration,
}

impl PageReader<'_> {
    fn read(&self, stores: &mut dyn ViewStores, deployed: &Deployed, seen: Lsn) -> Result<StoredPage, NoPage> {
        let request = self.request;
        let schema = schema_of(deployed, request)?;
        let mut filling = PageBuilder {
            page: StoredPage {
                rows: Vec::new(),
                schema: schema.clone(),
                next_cursor: None,
                lsn: seen,
            },
            bytes: 0,
            rows_read: 0,
            until: Instant::now() + self.time_max,
        };
        match is_ordered(schema, request.index) {
            true => self.in_order(stores, schema, &mut filling)?,
            false if !request.is_plain() => return Err(RowsError::Unordered.into()),
            false if !request.prefix.is_empty() => self.by_key(stores, &mut filling)?,
            false => self.as_they_lie(stores, schema, &mut filling)?,
        }
        Ok(filling.page)
    }

    fn in_order(
        &self,
        stores: &mut dyn ViewStores,
        schema: &TableSchema,
        filling: &mut PageBuilder,
    ) -> Result<(), NoPage> {
        let (request, walk) = (self.request, IndexOrder::new(schema, self.request));
        let shown = request.cursor.as_deref().map(LastRow::split).transpose()?;
        let (first, last) = request.bounds();
        let (mut lower, mut upper) = (&first[..], &last[..]);
        if let Some(shown) = &shown {
            let reached = walk.lower(shown);
            if !reached.starts_with(&request.prefix) {
                return Err(RowsError::BadCursor.into());
            }
            match request.reverse {
                true => upper = reached,
                false => lower = reached,
            }
        }
        let flags = if request.reverse { ScanFlags::REVERSE } else { 0 };
        let range = Range::new(lower, upper, ScanFlags(flags));
        let partitions = stores.partitions().to_vec();
        let position = |id: &PartitionId| shown.as_ref().map(|shown| walk.position_in(*id, shown));
        let positions = partitions.iter().map(|id| position(id).unwrap_or_default()).collect();
        let mut pages = ReadAheadPages::new(schema, (walk.table, request.index), positions);
        if let (Some(shown), true) = (&shown, walk.is_unique) {
            walk.pass_over(&mut pages, stores, (&partitions, &range), (shown, request.reverse))?;
        }
        loop {
            pages.fill(stores, 0, &range)?;
            let Some(next) = pages.next() else { return Ok(()) };
            filling.add_row(next.row, request);
            let is_full = filling.is_full(request.limit);
            let behind = is_full.then(|| walk.cursor_behind(partitions[next.at], &next));
            let at = next.at;
            pages.take(at);
            if let Some(behind) = behind {
                pages.fill(stores, 0, &range)?;
                filling.page.next_cursor = pages.next().map(|_| behind);
                return Ok(());
            }
        }
    }

    /// Reads the row with a whole key, from an index without an order.
    fn by_key(&self, stores: &mut dyn ViewStores, filling: &mut PageBuilder) -> Result<(), NoPage> {
        let (request, table) = (self.request, TableId(self.request.table));
        for at in 0..stores.partitions().len() {
            stores.with_store(at, &mut |mut store| {
                if let Some((_, row)) = store.get_row(table, request.index, &request.prefix) {
                    filling.add_row(row, request);
                }
            })?;
        }
        Ok(())
    }

    /// All rows of a table whose primary key has no order.
    fn as_they_lie(
        &self,
        stores: &mut dyn ViewStores,
        schema: &TableSchema,
        filling: &mut PageBuilder,
    ) -> Result<(), NoPage> {
        let (request, table) = (self.request, TableId(self.request.table));
        let mut from = match &request.cursor {
            None => Rid(0),
            Some(bytes) => split_place(bytes)?.1,
        };
        let partitions = stores.partitions().to_vec();
        for (at, id) in partitions.iter().enumerate() {
            let mut next = Some(from);
            while let Some(first) = next {
                let (mut is_full, before) = (false, filling.bytes);
                stores.with_store(at, &mut |mut store| {
                    next = store.walk(table, first, IDS_AT_ONCE, |shown| {
                        if filling.is_full(request.limit) {
                            is_full = true;
                            return Visit::Again;
                        }
                        filling.add_row(shown.row, request);
                        match filling.bytes - before < READ_BYTES_MAX {
                            true => Visit::Next,
                            false => Visit::Stop,
                        }
                    });
                })?;
                if let (true, Some(rid)) = (is_full, next) {
                    filling.page.next_cursor = Some(join_place(id.0, rid));
                    return Ok(());
                }
            }
            from = Rid(0);
        }
        let end = match schema.placement {
            TablePlacement::Replicated => partitions[0].0 + 1,
            _ => self.partitions_count,
        };
        let next = partitions.last().map_or(0, |id| id.0 + 1);
        if next < end {
            filling.page.next_cursor = Some(join_place(next, Rid(0)));
        }
        Ok(())
    }
}

/// The last row that was shown: a page in order continues behind it.
struct LastRow<'a> {
    partition: PartitionId,
    /// Hidden number, where the table has no primary key.
    number: u64,
    /// Bytes of the index's own columns in `key`.
    own_bytes: usize,
    /// Key of the index, and the part of the primary key that the index lacks. No two rows of a partition have the same, or they differ in
    /// their numbers.
    key: &'a [u8],
}

const SHOWN_BYTES: usize = 4 + 8 + 2;

impl<'a> LastRow<'a> {
    fn split(cursor: &'a [u8]) -> Result<Self, RowsError> {
        let (key, [a, b, c, d, number @ .., low, high]) =
            cursor.split_last_chunk::<SHOWN_BYTES>().ok_or(RowsError::BadCursor)?;
        let shown = Self {
            partition: PartitionId(u16::from_be_bytes([*low, *high])),
            number: u64::from_be_bytes(*number),
            own_bytes: u32::from_be_bytes([*a, *b, *c, *d]) as usize,
            key,
        };
        match shown.own_bytes <= key.len() {
            true => Ok(shown),
            false => Err(RowsError::BadCursor),
        }
    }

    fn join(&self) -> Vec<u8> {
        let own_bytes = (self.own_bytes as u32).to_be_bytes();
        let (number, partition) = (self.number.to_be_bytes(), self.partition.0.to_be_bytes());
        [self.key, &own_bytes, &number, &partition].concat()
    }
}

/// Returns the partition of the last row that was shown, by the cursor of a page in order.
pub(crate) fn partition_of(cursor: &[u8]) -> Result<PartitionId, RowsError> {
    Ok(LastRow::split(cursor)?.partition)
}

/// An index in whose order a page is.
struct IndexOrder<'a> {
    table: TableId,
    schema: &'a TableSchema,
    layout: RowLayout,
    /// Columns of the index's entries, and those of the primary key that these lack.
    columns: Vec<u16>,
    own_count: usize,
    /// A unique index's entries are its own columns alone.
    is_unique: bool,
}

impl<'a> IndexOrder<'a> {
    fn new(schema: &'a TableSchema, request: &RowsRequest) -> Self {
        let secondary = request.index.checked_sub(1).map(|at| &schema.indexes[at as usize]);
        let own = secondary.map_or(&schema.primary_key, |index| &index.columns);
        let rest = schema.primary_key.iter().filter(|column| !own.contains(column));
        Self {
            table: TableId(request.table),
            schema,
            layout: RowLayout::of_table(schema),
            columns: own.iter().chain(rest).copied().collect(),
            own_count: own.len(),
            is_unique: secondary.is_some_and(|index| index.unique),
        }
    }

    fn key_of(&self, row: &[u8], columns: usize) -> Vec<u8> {
        let mut key = Vec::new();
        self.layout.push_key(row, &self.columns[..columns], &mut key);
        key
    }

    fn cursor_behind(&self, partition: PartitionId, shown: &NextRow<'_>) -> Vec<u8> {
        let own_bytes = self.key_of(shown.row, self.own_count).len();
        let key = self.key_of(shown.row, self.columns.len());
        LastRow {
            partition,
            number: shown.number,
            own_bytes,
            key: &key,
        }
        .join()
    }

    /// Returns the part of a cursor's key that bounds every entry still to come from below.
    fn lower<'k>(&self, shown: &LastRow<'k>) -> &'k [u8] {
        match self.is_unique {
            true => &shown.key[..shown.own_bytes],
            false => shown.key,
        }
    }

    /// Returns the position at which a partition continues. Rows with one key come in the order of their partitions.
    fn position_in(&self, partition: PartitionId, shown: &LastRow<'_>) -> ScanPosition {
        let is_same = partition == shown.partition;
        if partition > shown.partition || self.is_unique && !is_same {
            return ScanPosition::default();
        }
        let mut key = self.lower(shown).to_vec();
        if is_same && self.schema.primary_key.is_empty() && !self.is_unique {
            key.extend_from_slice(&shown.number.to_be_bytes());
        }
        ScanPosition::behind(key)
    }

    /// Passes over what was shown of a unique index: on each other partition one row may have the cursor's key, and its primary
    /// key says whether it came before.
    fn pass_over(
        &self,
        pages: &mut ReadAheadPages,
        stores: &mut dyn ViewStores,
        (partitions, range): (&[PartitionId], &Range<'_>),
        (shown, reverse): (&LastRow<'_>, bool),
    ) -> Result<(), NoPage> {
        for _ in partitions {
            pages.fill(stores, 0, range)?;
            let Some(next) = pages.next() else {
                break;
            };
            let key = self.key_of(next.row, self.columns.len());
            let (order, is_behind) = (key[..].cmp(shown.key), partitions[next.at] > shown.partition);
            let order = if reverse { order.reverse() } else { order };
            if order.is_gt() || order.is_eq() && is_behind {
                break;
            }
            let at = next.at;
            pages.take(at);
        }
        Ok(())
    }
}

/// A cursor of a table without order: the partition and record id of the next row. It lasts until a restart.
fn join_place(partition: u16, rid: Rid) -> Vec<u8> {
    let mut bytes = partition.to_le_bytes().to_vec();
    bytes.extend_from_slice(&rid.0.to_le_bytes());
    bytes
}

pub(crate) fn split_place(bytes: &[u8]) -> Result<(u16, Rid), RowsError> {
    let bytes: [u8; 6] = bytes.try_into().map_err(|_| RowsError::BadCursor)?;
    let [a, b, rid @ ..] = bytes;
    Ok((u16::from_le_bytes([a, b]), Rid(u32::from_le_bytes(rid))))
}
