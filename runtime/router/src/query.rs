//! Looking at tables without a procedure: statistics, rows page by page, the digest of everything.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use reprise_abi::{IndexKind, Placement, RowLayout, ScanFlags, TableSchema};
use reprise_base::{Lsn, PartitionId, SiteId};
use reprise_partition::{Held, SiteMessage, Touched};
use reprise_storage::{Range, Rid, ScanPosition, Store, TableId};
use reprise_txn::{Deployed, Merge, partition_between};

use crate::router::{Router, Unavailable};

/// One table over all partitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableStats {
    /// As clients see them: the copies of a replicated table count once.
    pub rows: u64,
    /// Held in memory, all copies.
    pub row_bytes: u64,
    pub index_bytes: u64,
}

#[derive(Clone, Debug)]
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
}

pub struct RowsPage {
    /// Stored rows; decode them with the table's `RowLayout`.
    pub rows: Vec<Vec<u8>>,
    /// None after the last row.
    pub next_cursor: Option<Vec<u8>>,
    /// The last record of the partitions that were read. It was durable before the page was answered.
    pub lsn: Lsn,
    /// Of all rows.
    bytes: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    #[error("no such table or index")]
    NotFound,
    #[error("the cursor is not one that a page returned")]
    BadCursor,
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
/// How long partitions are waited for that are asked for their statistics: a busy one told some time ago.
const TELL_WAIT_MAX: Duration = Duration::from_millis(20);

impl RowsPage {
    fn is_full(&self, limit: u32) -> bool {
        self.rows.len() as u32 >= limit || self.bytes >= PAGE_BYTES_MAX
    }

    fn push(&mut self, row: &[u8]) {
        self.bytes += row.len();
        self.rows.push(row.to_vec());
    }
}

impl Router {
    /// Statistics by `TableId`, as the partitions told them: now where they are free, else while they worked. Holds none.
    pub fn table_stats(&self) -> Result<Vec<TableStats>, Unavailable> {
        self.check_ready()?;
        self.ask_to_tell();
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

    fn ask_to_tell(&self) {
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
        if shared.threads.is_stepped() {
            return; // time goes on there when somebody steps; what was told before is what there is
        }
        let until = Instant::now() + TELL_WAIT_MAX;
        for _ in &waiters {
            if answers.recv_deadline(until).is_err() {
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
            Placement::By(column) if !request.prefix.is_empty() => {
                let (index, bounds) = (request.index, (&request.prefix[..], &request.prefix[..]));
                match partition_between(schema, index, column, bounds, count) {
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

fn schema_of<'d>(deployed: &'d Deployed, request: &RowsRequest) -> Result<&'d TableSchema, RowsError> {
    let schema = deployed.tables.get(request.table as usize).ok_or(RowsError::NotFound)?;
    match request.index as usize > schema.indexes.len() {
        true => Err(RowsError::NotFound),
        false => Ok(schema),
    }
}

/// Rows without a primary key all have the same, an empty one: that is no order.
fn is_ordered(schema: &TableSchema, index: u16) -> bool {
    index > 0 || !schema.primary_key.is_empty() && schema.primary_kind == IndexKind::Ordered
}

fn read_page(held: &mut Held<'_>, request: &RowsRequest) -> Result<RowsPage, RowsError> {
    let deployed = held.tools.deployed().clone();
    let schema = schema_of(&deployed, request)?;
    let mut page = RowsPage {
        rows: Vec::new(),
        next_cursor: None,
        lsn: held.partitions.iter().map(|part| part.last_end).max().unwrap_or_default(),
        bytes: 0,
    };
    let parts: Vec<(PartitionId, &Store)> =
        held.partitions.iter().map(|part| (part.id, &part.store)).collect();
    match is_ordered(schema, request.index) {
        true => merge_page(&parts, schema, request, &mut page)?,
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
    /// Of the index, and of the primary key as far as the index lacks it: no two rows of a partition have the same, or they
    /// differ in their numbers.
    key: &'a [u8],
}

impl<'a> Shown<'a> {
    fn split(cursor: &'a [u8]) -> Result<Self, RowsError> {
        let (key, place) = cursor.split_last_chunk::<10>().ok_or(RowsError::BadCursor)?;
        let [number @ .., low, high] = *place;
        Ok(Self {
            partition: PartitionId(u16::from_le_bytes([low, high])),
            number: u64::from_be_bytes(number),
            key,
        })
    }

    fn join(&self) -> Vec<u8> {
        let (number, partition) = (self.number.to_be_bytes(), self.partition.0.to_le_bytes());
        [self.key, &number, &partition].concat()
    }

    /// Where a partition goes on. Rows with one key come in the order of their partitions.
    fn position_in(&self, partition: PartitionId, has_number: bool) -> ScanPosition {
        if partition > self.partition {
            return ScanPosition::default();
        }
        let mut key = self.key.to_vec();
        if partition == self.partition && has_number {
            key.extend_from_slice(&self.number.to_be_bytes());
        }
        ScanPosition::behind(key)
    }
}

/// The columns of an index's entries.
fn entry_columns(schema: &TableSchema, index: u16) -> Vec<u16> {
    let own = match index {
        0 => &[][..],
        secondary => &schema.indexes[secondary as usize - 1].columns,
    };
    let rest = schema.primary_key.iter().filter(|column| !own.contains(column));
    own.iter().chain(rest).copied().collect()
}

fn merge_page(
    parts: &[(PartitionId, &Store)],
    schema: &TableSchema,
    request: &RowsRequest,
    page: &mut RowsPage,
) -> Result<(), RowsError> {
    let table = TableId(request.table);
    let stores: Vec<&Store> = parts.iter().map(|(_, store)| *store).collect();
    let has_number = schema.primary_key.is_empty();
    let after = request.cursor.as_deref().map(Shown::split).transpose()?;
    let lower = after.as_ref().map_or(&request.prefix[..], |shown| shown.key);
    if !lower.starts_with(&request.prefix) {
        return Err(RowsError::BadCursor);
    }
    let range = Range::new(lower, &request.prefix, ScanFlags::default());
    let position = |id| after.as_ref().map_or_else(ScanPosition::default, |a| a.position_in(id, has_number));
    let positions = parts.iter().map(|(id, _)| position(*id)).collect();
    let mut merge = Merge::new(&stores, table, request.index, range, positions)
        .map_err(|_| RowsError::NotFound)?;
    let mut last: Option<(usize, Rid)> = None;
    while let Some((at, rid)) = merge.peek() {
        if page.is_full(request.limit) {
            let (at, rid) = last.expect("a full page has a last row");
            let (layout, columns) = (RowLayout::of_table(schema), entry_columns(schema, request.index));
            let mut key = Vec::new();
            layout.push_key(stores[at].row(table, rid).expect("shown just now"), &columns, &mut key);
            let (partition, number) = (parts[at].0, stores[at].row_number(table, rid));
            page.next_cursor = Some(Shown { partition, number, key: &key }.join());
            return Ok(());
        }
        page.push(stores[at].row(table, rid).expect("an index names live rows"));
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
            page.rows.extend(rid.and_then(|rid| store.row(table, rid)).map(<[u8]>::to_vec));
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
            page.push(row);
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
