//! Looking at tables without a procedure: statistics, rows page by page, the digest of everything.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use reprise_abi::{IndexKind, Placement, RowLayout, ScanFlags, TableSchema};
use reprise_base::{Lsn, PartitionId, SiteId};
use reprise_partition::{ExclusivePartitions, SiteMessage, Touched};
use reprise_storage::{Range, Rid, ScanPosition, Store, TableId};
use reprise_txn::{Deployed, Merge, partition_between};

use crate::router::{Router, Unavailable};

/// One table over all partitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableStats {
    /// As clients see them: the copies of a replicated table count once.
    pub rows: u64,
    /// ExclusivePartitions in memory, all copies.
    pub row_bytes: u64,
    pub index_bytes: u64,
}

#[derive(Clone, Debug, Default)]
pub struct RowsRequest {
    /// By `TableId`.
    pub table: u16,
    /// 0 = primary key.
    pub index: u16,
    pub limit: u32,
    /// As the page before returned it.
    pub cursor: Option<Vec<u8>>,
    /// Leading key bytes (`reprise_abi::key`) that a row must have; empty for all.
    pub prefix: Vec<u8>,
    /// Key bytes behind the prefix from which on, and up to which, rows are wanted: those that begin with them included. Empty: all.
    pub from: Vec<u8>,
    pub to: Vec<u8>,
    /// From the last row to the first.
    pub reverse: bool,
    /// What else a row must be.
    pub filter: Option<RowFilter>,
}

/// A judge of stored rows.
#[derive(Clone)]
pub struct RowFilter {
    /// Of whose rows it is: those of a table that was changed meanwhile it does not know.
    pub schema: Arc<TableSchema>,
    pub passes: Arc<dyn Fn(&[u8]) -> bool + Send + Sync>,
}

impl fmt::Debug for RowFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RowFilter")
    }
}

pub struct RowsPage {
    /// Stored rows; decode them with the `RowLayout` of `schema`.
    pub rows: Vec<Vec<u8>>,
    /// The table as it was when the rows were read: it may have been changed since the request was made, and again since.
    pub schema: Arc<TableSchema>,
    /// None after the last row.
    pub next_cursor: Option<Vec<u8>>,
    /// The last record of the partitions that were read. It was durable before the page was answered.
    pub lsn: Lsn,
    /// Of all rows.
    bytes: usize,
    /// Rows that were looked at, and until when some more may be.
    looked_at: usize,
    until: Instant,
}

#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    #[error("no such table or index")]
    NotFound,
    #[error("the cursor is not one that a page returned")]
    BadCursor,
    #[error("the table was changed meanwhile")]
    Changed,
    #[error("the index has no order")]
    Unordered,
    /// What was read is not durable, and never will be.
    #[error("the log can't be written: {0}")]
    LogUnavailable(Arc<str>),
    #[error("{0}")]
    Unavailable(Arc<str>),
}

impl From<Unavailable> for RowsError {
    fn from(unavailable: Unavailable) -> Self {
        Self::Unavailable(unavailable.0)
    }
}

/// Bytes of rows after which a page ends before its limit.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Rows that one page looks at, and the time that it takes: a filter that little passes must not hold a partition.
const LOOKED_AT_MAX: usize = 20_000;
const LOOK_TIME_MAX: Duration = Duration::from_millis(5);
/// Rows between two looks at the clock.
const LOOK_ROWS: usize = 256;

impl RowsPage {
    fn is_full(&self, limit: u32) -> bool {
        self.rows.len() as u32 >= limit
            || self.bytes >= PAGE_BYTES_MAX
            || self.looked_at >= LOOKED_AT_MAX
            || self.looked_at > 0 && self.looked_at.is_multiple_of(LOOK_ROWS) && Instant::now() >= self.until
    }

    fn look_at(&mut self, row: &[u8], request: &RowsRequest) {
        self.looked_at += 1;
        if request.filter.as_ref().is_none_or(|filter| (filter.passes)(row)) {
            self.bytes += row.len();
            self.rows.push(row.to_vec());
        }
    }
}

impl RowsRequest {
    /// The first and the last key bytes that are wanted.
    fn bounds(&self) -> (Vec<u8>, Vec<u8>) {
        (
            [&self.prefix[..], &self.from].concat(),
            [&self.prefix[..], &self.to].concat(),
        )
    }

    fn is_plain(&self) -> bool {
        self.from.is_empty() && self.to.is_empty() && !self.reverse
    }
}

impl Router {
    /// Statistics by `TableId`, as the partitions told them: now where they are free within `wait_max`, else while they worked.
    /// Holds none.
    pub fn table_stats(&self, wait_max: Duration) -> Result<Vec<TableStats>, Unavailable> {
        self.check_ready()?;
        self.ask_to_tell(wait_max);
        let (deployed, mut all) = (self.deployed(), Vec::new());
        for partition in 0..self.partitions_count() {
            let told = self.0.config.shared.told.stats(PartitionId(partition));
            all.resize(all.len().max(told.len()), TableStats::default());
            for (id, stats) in told.iter().enumerate() {
                let sum: &mut TableStats = &mut all[id];
                let schema = deployed.tables.get(id);
                let is_copy = schema.is_some_and(|table| table.placement == Placement::Replicated);
                sum.rows = if is_copy { stats.rows } else { sum.rows + stats.rows };
                sum.row_bytes += stats.row_bytes;
                sum.index_bytes += stats.index_bytes;
            }
        }
        Ok(all)
    }

    /// Asks all sites to take up what was deployed and to tell of their tables; waits for so long.
    pub(crate) fn ask_to_tell(&self, wait_max: Duration) {
        let shared = &self.0.config.shared;
        let (sender, answers) = crossbeam_channel::unbounded::<()>();
        let mut waiters = Vec::new();
        for site in 0..shared.sites_count {
            let (question, is_first) = shared.told.ask(SiteId(site));
            let sender = sender.clone();
            let hook = Box::new(move || _ = sender.send(())); // who asked may have gone
            waiters.extend(question.when_answered(hook));
            if is_first {
                self.send(site as usize, SiteMessage::Tell);
            }
        }
        drop(sender);
        let until = Instant::now() + wait_max;
        for _ in &waiters {
            let left = until.saturating_duration_since(Instant::now());
            if shared.threads.receive_for(&answers, left).is_err() {
                return;
            }
        }
    }

    /// A page of durable rows in index order, all seen at one moment; only the partitions that are read are held for it. The
    /// primary key of a hash table has no order, and a table may have none: such rows come as they lie, and a prefix has to be
    /// a whole key.
    pub fn table_rows(&self, request: RowsRequest) -> Result<RowsPage, RowsError> {
        self.check_ready()?;
        let deployed = self.deployed();
        let touched = self.partitions_of(schema_of(&deployed, &request)?, &request)?;
        self.run_durably(touched, move |held| read_page(held, &request))
    }

    /// The partitions that a page is read from.
    fn partitions_of(&self, schema: &TableSchema, request: &RowsRequest) -> Result<Touched, RowsError> {
        let count = self.partitions_count();
        let only = |id: PartitionId| Ok(Touched::Some(vec![id]));
        if !is_ordered(schema, request.index)
            && let Some(cursor) = &request.cursor
        {
            let (first, _) = split_place(cursor)?;
            return match first < count {
                true if schema.placement == Placement::Replicated => only(PartitionId(first)),
                true => Ok(self.partitions_from(first, request)),
                false => Err(RowsError::BadCursor),
            };
        }
        match schema.placement {
            Placement::Replicated => only(self.least_busy()),
            Placement::By(column) if !request.prefix.is_empty() || !request.from.is_empty() => {
                let (lower, upper) = request.bounds();
                match partition_between(schema, request.index, column, (&lower, &upper), count) {
                    Some(id) => only(id),
                    None => Ok(Touched::All),
                }
            }
            _ if is_ordered(schema, request.index) || !request.prefix.is_empty() => Ok(Touched::All),
            _ => Ok(self.partitions_from(0, request)),
        }
    }

    /// From `first` on, as many partitions as hold a page's rows by what they told last. Should they hold fewer, the page is
    /// shorter, and its cursor leads on.
    fn partitions_from(&self, first: u16, request: &RowsRequest) -> Touched {
        let mut rows = 0;
        let mut taken = Vec::new();
        for id in (first..self.partitions_count()).map(PartitionId) {
            taken.push(id);
            let told = self.0.config.shared.told.stats(id);
            rows += told.get(request.table as usize).map_or(0, |stats| stats.rows);
            if rows > request.limit as u64 {
                break;
            }
        }
        Touched::Some(taken)
    }

    /// The partition for which fewest calls wait.
    fn least_busy(&self) -> PartitionId {
        let waiting = self.0.config.shared.waiting.iter().enumerate();
        let least = waiting.min_by_key(|(_, count)| count.load(std::sync::atomic::Ordering::Relaxed));
        PartitionId(least.map_or(0, |(at, _)| at as u16))
    }

    /// Digest of all rows of all tables on all partitions. Walks everything while it holds everything: for tools in this
    /// process, not for clients.
    pub fn digest(&self) -> Result<u64, Unavailable> {
        self.run_on_all(|held| {
            held.partitions.iter().fold(0u64, |digest, partition| {
                let mixed = digest.rotate_left(17).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                mixed ^ partition.store.digest()
            })
        })
    }
}

fn schema_of<'d>(deployed: &'d Deployed, request: &RowsRequest) -> Result<&'d Arc<TableSchema>, RowsError> {
    let schema = deployed.tables.get(request.table as usize).ok_or(RowsError::NotFound)?;
    match schema.is_dropped() || request.index as usize > schema.indexes.len() {
        true => Err(RowsError::NotFound),
        false => Ok(schema),
    }
}

/// The last record that these partitions' rows show.
fn newest_seen(held: &ExclusivePartitions<'_>) -> Lsn {
    let ends = held.partitions.iter().map(|part| part.last_end.0);
    Lsn(ends.max().unwrap_or_default().saturating_sub(1))
}

/// Rows without a primary key all have the same, an empty one: that is no order.
fn is_ordered(schema: &TableSchema, index: u16) -> bool {
    index > 0 || !schema.primary_key.is_empty() && schema.primary_kind == IndexKind::Ordered
}

fn read_page(held: &mut ExclusivePartitions<'_>, request: &RowsRequest) -> Result<RowsPage, RowsError> {
    let deployed = held.tools.deployed().clone();
    let schema = schema_of(&deployed, request)?;
    if request
        .filter
        .as_ref()
        .is_some_and(|filter| !Arc::ptr_eq(&filter.schema, schema))
    {
        return Err(RowsError::Changed);
    }
    let mut page = RowsPage {
        rows: Vec::new(),
        schema: schema.clone(),
        next_cursor: None,
        lsn: newest_seen(held),
        bytes: 0,
        looked_at: 0,
        until: Instant::now() + LOOK_TIME_MAX,
    };
    let parts: Vec<(PartitionId, &Store)> = held.partitions.iter().map(|part| (part.id, &part.store)).collect();
    match is_ordered(schema, request.index) {
        true => merge_page(&parts, schema, request, &mut page)?,
        false if !request.is_plain() => return Err(RowsError::Unordered),
        false => {
            let count = match schema.placement {
                Placement::Replicated => parts[0].0.0 + 1,
                _ => held.tools.shared.partitions_count,
            };
            unordered_page(&parts, count, request, &mut page)?;
        }
    }
    Ok(page)
}

/// The last row that was shown: where a page in order goes on.
struct Shown<'a> {
    partition: PartitionId,
    /// Hidden number, where the table has no primary key.
    number: u64,
    /// Bytes of the index's own columns in `key`.
    own_bytes: usize,
    /// Of the index, and of the primary key as far as the index lacks it: no two rows of a partition have the same, or they
    /// differ in their numbers.
    key: &'a [u8],
}

const SHOWN_BYTES: usize = 4 + 8 + 2;

impl<'a> Shown<'a> {
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

/// An index in whose order a page is.
struct Walk<'a> {
    table: TableId,
    schema: &'a TableSchema,
    index: u16,
    layout: RowLayout,
    /// Of its entries, and the primary key's as far as these lack it.
    columns: Vec<u16>,
    own_count: usize,
    /// A unique index's entries are its own columns alone.
    is_unique: bool,
}

impl<'a> Walk<'a> {
    fn new(schema: &'a TableSchema, request: &RowsRequest) -> Self {
        let secondary = request.index.checked_sub(1).map(|at| &schema.indexes[at as usize]);
        let own = secondary.map_or(&schema.primary_key, |index| &index.columns);
        let rest = schema.primary_key.iter().filter(|column| !own.contains(column));
        Self {
            table: TableId(request.table),
            schema,
            index: request.index,
            layout: RowLayout::of_table(schema),
            columns: own.iter().chain(rest).copied().collect(),
            own_count: own.len(),
            is_unique: secondary.is_some_and(|index| index.unique),
        }
    }

    fn key_of(&self, store: &Store, rid: Rid, columns: usize) -> Vec<u8> {
        let mut key = Vec::new();
        let row = store.row(self.table, rid).expect("an index names live rows");
        self.layout.push_key(row, &self.columns[..columns], &mut key);
        key
    }

    fn cursor_behind(&self, partition: PartitionId, store: &Store, rid: Rid) -> Vec<u8> {
        let own_bytes = self.key_of(store, rid, self.own_count).len();
        let key = self.key_of(store, rid, self.columns.len());
        let number = store.row_number(self.table, rid);
        Shown {
            partition,
            number,
            own_bytes,
            key: &key,
        }
        .join()
    }

    /// What of a cursor's key every entry that is still to be shown has at least.
    fn lower<'k>(&self, shown: &Shown<'k>) -> &'k [u8] {
        match self.is_unique {
            true => &shown.key[..shown.own_bytes],
            false => shown.key,
        }
    }

    /// Where a partition goes on. Rows with one key come in the order of their partitions.
    fn position_in(&self, partition: PartitionId, shown: &Shown<'_>) -> ScanPosition {
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
        merge: &mut Merge<'_>,
        parts: &[(PartitionId, &Store)],
        shown: &Shown<'_>,
        reverse: bool,
    ) -> Result<(), RowsError> {
        for _ in parts {
            let Some((at, rid)) = merge.peek() else {
                break;
            };
            let key = self.key_of(parts[at].1, rid, self.columns.len());
            let (order, is_behind) = (key[..].cmp(shown.key), parts[at].0 > shown.partition);
            let order = if reverse { order.reverse() } else { order };
            if order.is_gt() || order.is_eq() && is_behind {
                break;
            }
            merge.advance(at, parts[at].1).map_err(|_| RowsError::NotFound)?;
        }
        Ok(())
    }
}

fn merge_page(
    parts: &[(PartitionId, &Store)],
    schema: &TableSchema,
    request: &RowsRequest,
    page: &mut RowsPage,
) -> Result<(), RowsError> {
    let walk = Walk::new(schema, request);
    let stores: Vec<&Store> = parts.iter().map(|(_, store)| *store).collect();
    let shown = request.cursor.as_deref().map(Shown::split).transpose()?;
    let (first, last) = request.bounds();
    let (mut lower, mut upper) = (&first[..], &last[..]);
    if let Some(shown) = &shown {
        let reached = walk.lower(shown);
        if !reached.starts_with(&request.prefix) {
            return Err(RowsError::BadCursor);
        }
        match request.reverse {
            true => upper = reached,
            false => lower = reached,
        }
    }
    let flags = if request.reverse {
        ScanFlags(ScanFlags::REVERSE)
    } else {
        ScanFlags::default()
    };
    let range = Range::new(lower, upper, flags);
    let position = |id| {
        shown
            .as_ref()
            .map_or_else(ScanPosition::default, |shown| walk.position_in(id, shown))
    };
    let positions = parts.iter().map(|(id, _)| position(*id)).collect();
    let mut merge = Merge::new(&stores, walk.table, walk.index, range, positions).map_err(|_| RowsError::NotFound)?;
    if let (Some(shown), true) = (&shown, walk.is_unique) {
        walk.pass_over(&mut merge, parts, shown, request.reverse)?;
    }
    let mut last: Option<(usize, Rid)> = None;
    while let Some((at, rid)) = merge.peek() {
        if let (true, Some((at, rid))) = (page.is_full(request.limit), last) {
            page.next_cursor = Some(walk.cursor_behind(parts[at].0, stores[at], rid));
            return Ok(());
        }
        page.look_at(
            stores[at].row(walk.table, rid).expect("an index names live rows"),
            request,
        );
        last = Some((at, rid));
        merge.advance(at, stores[at]).map_err(|_| RowsError::NotFound)?;
    }
    Ok(())
}

/// A table whose primary key is a hash has no order: one row by its whole key, or all rows as they lie.
fn unordered_page(
    parts: &[(PartitionId, &Store)],
    partitions_count: u16,
    request: &RowsRequest,
    page: &mut RowsPage,
) -> Result<(), RowsError> {
    let table = TableId(request.table);
    if !request.prefix.is_empty() {
        for (_, store) in parts {
            let rid = store.get(table, request.index, &request.prefix);
            if let Some(row) = rid.and_then(|rid| store.row(table, rid)) {
                page.look_at(row, request);
            }
        }
        return Ok(());
    }
    let mut from = match &request.cursor {
        None => Rid(0),
        Some(bytes) => split_place(bytes)?.1,
    };
    for (id, store) in parts {
        for rid in store.rids_from(table, from) {
            if page.is_full(request.limit) {
                page.next_cursor = Some(join_place(id.0, rid));
                return Ok(());
            }
            let row = store.row(table, rid).expect("a live row");
            page.look_at(row, request);
        }
        from = Rid(0);
    }
    let next = parts.last().map_or(0, |(id, _)| id.0 + 1);
    if next < partitions_count {
        page.next_cursor = Some(join_place(next, Rid(0)));
    }
    Ok(())
}

/// A cursor of a table without order: the partition and record id of the next row. It lasts until a restart.
fn join_place(partition: u16, rid: Rid) -> Vec<u8> {
    let mut bytes = partition.to_le_bytes().to_vec();
    bytes.extend_from_slice(&rid.0.to_le_bytes());
    bytes
}

fn split_place(bytes: &[u8]) -> Result<(u16, Rid), RowsError> {
    let bytes: [u8; 6] = bytes.try_into().map_err(|_| RowsError::BadCursor)?;
    let [a, b, rid @ ..] = bytes;
    Ok((u16::from_le_bytes([a, b]), Rid(u32::from_le_bytes(rid))))
}
