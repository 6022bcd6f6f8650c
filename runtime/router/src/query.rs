//! Looking at tables without a procedure: statistics, rows page by page, the digest of everything.

use reprise_abi::{Placement, ScanFlags};
use reprise_base::Lsn;
use reprise_partition::Held;
use reprise_storage::{Range, Rid, ScanPosition, Store, TableId};
use reprise_txn::Merge;

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
    /// The last record of these partitions when the page was read.
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
    #[error("{0}")]
    Unavailable(std::sync::Arc<str>),
}

impl From<Unavailable> for RowsError {
    fn from(unavailable: Unavailable) -> Self {
        Self::Unavailable(unavailable.0)
    }
}

/// Bytes of rows after which a page ends before its limit.
const PAGE_BYTES_MAX: usize = 4 << 20;

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
    /// Statistics by `TableId`.
    pub fn table_stats(&self) -> Result<Vec<TableStats>, Unavailable> {
        self.run_on_all(|held| {
            let mut all = Vec::new();
            for partition in held.partitions.iter() {
                for id in partition.store.table_ids() {
                    all.resize(all.len().max(id.0 as usize + 1), TableStats::default());
                    let (stats, sum) = (partition.store.stats(id), &mut all[id.0 as usize]);
                    let is_copy = partition.store.schema(id).placement == Placement::Replicated;
                    sum.rows = if is_copy { stats.rows } else { sum.rows + stats.rows };
                    sum.row_bytes += stats.row_bytes;
                    sum.index_bytes += stats.index_bytes;
                }
            }
            all
        })
    }

    /// A page of rows in index order over all partitions, all seen at one moment. The primary key of a hash table has no
    /// order, and a table may have none: such rows come as they lie, and a prefix has to be a whole key.
    pub fn table_rows(&self, request: RowsRequest) -> Result<RowsPage, RowsError> {
        self.run_on_all(move |held| read_page(held, &request))?
    }

    /// Digest of all rows of all tables on all partitions. Walks everything.
    pub fn digest(&self) -> Result<u64, Unavailable> {
        self.run_on_all(|held| {
            held.partitions.iter().fold(0u64, |digest, partition| {
                let mixed = digest.rotate_left(17).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                mixed ^ partition.store.digest()
            })
        })
    }
}

fn read_page(held: &mut Held<'_>, request: &RowsRequest) -> Result<RowsPage, RowsError> {
    let deployed = held.tools.deployed().clone();
    let table = TableId(request.table);
    let schema = deployed.tables.get(request.table as usize).ok_or(RowsError::NotFound)?;
    if request.index as usize > schema.indexes.len() {
        return Err(RowsError::NotFound);
    }
    let replicated = schema.placement == reprise_abi::Placement::Replicated;
    let count = if replicated { 1 } else { held.partitions.len() };
    let stores: Vec<&Store> = held.partitions[..count].iter().map(|p| &p.store).collect();
    let lsn = held.partitions.iter().map(|p| p.last_end).max().unwrap_or_default();
    let mut page = RowsPage {
        rows: Vec::new(),
        next_cursor: None,
        lsn,
        bytes: 0,
    };
    // Rows without a primary key all have the same, an empty one: a page by key would begin with all rows before it.
    let has_keys = request.index > 0 || !schema.primary_key.is_empty();
    if has_keys && stores[0].is_ordered(table, request.index) {
        merge_page(&stores, table, request, &mut page)?;
    } else {
        unordered_page(&stores, table, request, &mut page)?;
    }
    Ok(page)
}

fn merge_page(
    stores: &[&Store],
    table: TableId,
    request: &RowsRequest,
    page: &mut RowsPage,
) -> Result<(), RowsError> {
    let after = match &request.cursor {
        None => None,
        Some(bytes) => Some(split_cursor(bytes)?),
    };
    let lower = after.map_or(&request.prefix[..], |(key, _)| key);
    let range = Range::new(lower, &request.prefix, ScanFlags::default());
    let positions = vec![ScanPosition::default(); stores.len()];
    let mut merge = Merge::new(stores, table, request.index, range, positions)
        .map_err(|_| RowsError::NotFound)?;
    let mut seen = vec![0u64; stores.len()];
    let mut last: Option<(Vec<u8>, u64)> = None;
    while let Some((at, rid)) = merge.peek() {
        // Rows with the cursor's very key come again: pass over as many as were shown.
        let same_as_cursor = after.is_some_and(|(key, _)| merge.key(at) == key);
        let key = merge.key(at).to_vec();
        if let (true, Some((_, shown))) = (same_as_cursor, after)
            && seen.iter().sum::<u64>() < shown
        {
            seen[at] += 1;
            merge.advance(at, stores[at]).map_err(|_| RowsError::NotFound)?;
            continue;
        }
        if page.is_full(request.limit) {
            page.next_cursor = last.map(|(key, shown)| join_cursor(&key, shown));
            return Ok(());
        }
        let row = stores[at].row(table, rid).expect("an index names live rows");
        page.push(row);
        let shown_before = match (&last, after) {
            (Some((before, shown)), _) if *before == key => *shown,
            (None, Some((cursor, shown))) if cursor == key => shown,
            _ => 0,
        };
        last = Some((key, shown_before + 1));
        merge.advance(at, stores[at]).map_err(|_| RowsError::NotFound)?;
    }
    Ok(())
}

/// A table whose primary key is a hash has no order: one row by its whole key, or all rows as they lie.
fn unordered_page(
    stores: &[&Store],
    table: TableId,
    request: &RowsRequest,
    page: &mut RowsPage,
) -> Result<(), RowsError> {
    if !request.prefix.is_empty() {
        for store in stores {
            let rid = store.get(table, request.index, &request.prefix);
            page.rows.extend(rid.and_then(|rid| store.row(table, rid)).map(<[u8]>::to_vec));
        }
        return Ok(());
    }
    let (first, mut from) = match &request.cursor {
        None => (0, Rid(0)),
        Some(bytes) => split_place(bytes)?,
    };
    for (at, store) in stores.iter().enumerate().skip(first) {
        for rid in store.rids_from(table, from) {
            if page.is_full(request.limit) {
                page.next_cursor = Some(join_place(at, rid));
                return Ok(());
            }
            let row = store.row(table, rid).expect("a live row");
            page.push(row);
        }
        from = Rid(0);
    }
    Ok(())
}

/// A cursor of a table without order: the partition and record id of the next row. It lasts until a restart.
fn join_place(store: usize, rid: Rid) -> Vec<u8> {
    let mut bytes = (store as u16).to_le_bytes().to_vec();
    bytes.extend_from_slice(&rid.0.to_le_bytes());
    bytes
}

fn split_place(bytes: &[u8]) -> Result<(usize, Rid), RowsError> {
    let bytes: [u8; 6] = bytes.try_into().map_err(|_| RowsError::BadCursor)?;
    let [a, b, rid @ ..] = bytes;
    Ok((u16::from_le_bytes([a, b]) as usize, Rid(u32::from_le_bytes(rid))))
}

/// A cursor is the last key shown and how many rows with that key were.
fn join_cursor(key: &[u8], shown: u64) -> Vec<u8> {
    let mut bytes = key.to_vec();
    bytes.extend_from_slice(&shown.to_le_bytes());
    bytes
}

fn split_cursor(bytes: &[u8]) -> Result<(&[u8], u64), RowsError> {
    let (key, shown) = bytes.split_last_chunk::<8>().ok_or(RowsError::BadCursor)?;
    Ok((key, u64::from_le_bytes(*shown)))
}
