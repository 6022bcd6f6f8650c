//! Looking at tables without a procedure: statistics, rows page by page, the digest of everything.

use reprise_abi::{RowLayout, ScanFlags};
use reprise_base::{Lsn, PartitionId};
use reprise_partition::Held;
use reprise_storage::{Range, ScanPosition, Store, TableId};
use reprise_txn::Merge;

use crate::router::{Router, Unavailable};

/// One table over all partitions. A replicated table counts once a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableStats {
    pub rows: u64,
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

impl Router {
    /// Statistics by `TableId`.
    pub fn table_stats(&self) -> Result<Vec<TableStats>, Unavailable> {
        self.run_on_all(|held| {
            let mut all = Vec::new();
            for partition in held.partitions.iter() {
                for id in partition.store.table_ids() {
                    all.resize(all.len().max(id.0 as usize + 1), TableStats::default());
                    let (stats, sum) = (partition.store.stats(id), &mut all[id.0 as usize]);
                    sum.rows += stats.rows;
                    sum.row_bytes += stats.row_bytes;
                    sum.index_bytes += stats.index_bytes;
                }
            }
            all
        })
    }

    /// A page of rows in index order over all partitions, all seen at one moment.
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

/// A cursor: the key of the last row shown, and the partition it lay on, for rows with equal keys.
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
    };
    if stores[0].is_ordered(table, request.index) {
        merge_page(&stores, table, request, &mut page)?;
    } else {
        sorted_page(&stores, table, request, &mut page)?;
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
        if page.rows.len() as u32 >= request.limit {
            page.next_cursor = last.map(|(key, shown)| join_cursor(&key, shown));
            return Ok(());
        }
        let row = stores[at].row(table, rid).expect("an index names live rows");
        page.rows.push(row.to_vec());
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

/// A table whose primary key is a hash: its rows sorted by key, then cut.
fn sorted_page(
    stores: &[&Store],
    table: TableId,
    request: &RowsRequest,
    page: &mut RowsPage,
) -> Result<(), RowsError> {
    let schema = stores[0].schema(table);
    let layout = RowLayout::of_table(schema);
    let after = match &request.cursor {
        None => None,
        Some(bytes) => Some(split_cursor(bytes)?),
    };
    let mut rows = Vec::new();
    for (at, store) in stores.iter().enumerate() {
        for rid in store.sorted_rids(table) {
            let row = store.row(table, rid).expect("a live row");
            let mut key = Vec::new();
            layout.push_key(row, &schema.primary_key, &mut key);
            key.extend_from_slice(&PartitionId(at as u16).0.to_be_bytes());
            let is_after = after.is_none_or(|(cursor, _)| key.as_slice() > cursor);
            if key.starts_with(&request.prefix) && is_after {
                rows.push((key, row));
            }
        }
    }
    rows.sort_unstable();
    let more = rows.len() > request.limit as usize;
    rows.truncate(request.limit as usize);
    if let (true, Some((key, _))) = (more, rows.last()) {
        page.next_cursor = Some(join_cursor(key, 1));
    }
    page.rows = rows.into_iter().map(|(_, row)| row.to_vec()).collect();
    Ok(())
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
