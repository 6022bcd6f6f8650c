//! Reads of tables without a procedure: statistics, rows page by page (`page` reads them), the digest of everything.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use reprise_abi::{IndexKind, TablePlacement, TableSchema};
use reprise_base::{Lsn, PartitionId, SiteId};
use reprise_partition::{ReplyOutcome, SiteMessage, TxnPartitions};
use reprise_txn::{Deployed, partition_between};

use crate::{
    page::{partition_of, read_held, split_place},
    router::{Router, Unavailable},
};

/// One table over all partitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableTotals {
    /// Rows as clients see them: the copies of a replicated table count once.
    pub rows: u64,
    /// On all partitions together, the copies of a replicated table among them.
    pub copies: u64,
    /// Bytes that the rows take in memory, all copies.
    pub row_bytes: u64,
    pub index_bytes: u64,
}

#[derive(Clone, Debug, Default)]
pub struct RowsRequest {
    /// By `TableId`.
    pub table: u16,
    /// The table by which the caller chose the index and encoded the keys. The read fails with `RowsError::Changed` if a deployment has changed the
    /// table since. None: the read takes the table as it finds it.
    pub schema: Option<Arc<TableSchema>>,
    /// 0 = primary key.
    pub index: u16,
    pub limit: u32,
    /// The cursor that the page before returned.
    pub cursor: Option<Vec<u8>>,
    /// Leading key bytes (`reprise_abi::key`) that a row must have; empty for all.
    pub prefix: Vec<u8>,
    /// Key bytes behind the prefix: the first and last rows that are wanted. Rows that begin with them are included. Empty: all.
    pub from: Vec<u8>,
    pub to: Vec<u8>,
    /// From the last row to the first.
    pub reverse: bool,
    /// A further condition on a row.
    pub filter: Option<RowFilter>,
}

/// A filter of stored rows. It can check only rows of the request's `schema`.
#[derive(Clone)]
pub struct RowFilter {
    pub passes: Arc<dyn Fn(&[u8]) -> bool + Send + Sync>,
}

impl fmt::Debug for RowFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RowFilter")
    }
}

/// A page of a table's rows.
pub struct StoredPage {
    /// Stored rows; decode them with the `RowLayout` of `schema`.
    pub rows: Vec<Vec<u8>>,
    /// The table as it was when the rows were read. It equals the request's `schema`, if that has one.
    pub schema: Arc<TableSchema>,
    /// None after the last row.
    pub next_cursor: Option<Vec<u8>>,
    /// The last record of the partitions that were read. It was durable before the page was answered.
    pub lsn: Lsn,
}

#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    #[error("no such table or index")]
    NotFound,
    #[error("no page returned this cursor")]
    BadCursor,
    #[error("a deployment changed the table meanwhile")]
    Changed,
    #[error("the index has no order")]
    Unordered,
    /// The rows read are not durable, and never will be.
    #[error("the log can't be written: {0}")]
    LogUnavailable(Arc<str>),
    /// Standbys are missing, and what was read may not be shown without them.
    #[error("{0}")]
    StandbyUnavailable(Arc<str>),
    /// Standbys are missing, and another server may lead.
    #[error("{0}")]
    LeaseLost(Arc<str>),
    /// The view at which it was read is over.
    #[error("{0}")]
    TooStale(Arc<str>),
    #[error("{0}")]
    Unavailable(Arc<str>),
}

impl From<Unavailable> for RowsError {
    fn from(unavailable: Unavailable) -> Self {
        Self::Unavailable(unavailable.0)
    }
}

impl From<ReplyOutcome> for RowsError {
    fn from(outcome: ReplyOutcome) -> Self {
        match outcome {
            ReplyOutcome::StandbyUnavailable(reason) => Self::StandbyUnavailable(reason),
            ReplyOutcome::LeaseLost(reason) => Self::LeaseLost(reason),
            other => Self::LogUnavailable(other.reason()),
        }
    }
}

impl RowsRequest {
    /// The first and the last key bytes that are wanted.
    pub(crate) fn bounds(&self) -> (Vec<u8>, Vec<u8>) {
        (
            [&self.prefix[..], &self.from].concat(),
            [&self.prefix[..], &self.to].concat(),
        )
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.from.is_empty() && self.to.is_empty() && !self.reverse
    }
}

impl Router {
    /// Statistics by `TableId`, as the partitions told them: now where they are free within `wait_max`, else while they worked.
    /// Holds none.
    pub fn table_stats(&self, wait_max: Duration) -> Result<Vec<TableTotals>, Unavailable> {
        self.check_ready()?;
        self.request_stats(wait_max);
        let (deployed, mut all) = (self.deployed(), Vec::new());
        for partition in 0..self.partitions_count() {
            let stats = self.0.config.shared.published.stats(PartitionId(partition));
            all.resize(all.len().max(stats.len()), TableTotals::default());
            for (id, stats) in stats.iter().enumerate() {
                let sum: &mut TableTotals = &mut all[id];
                let schema = deployed.tables.get(id);
                let is_copy = schema.is_some_and(|table| table.placement == TablePlacement::Replicated);
                sum.rows = if is_copy { stats.rows } else { sum.rows + stats.rows };
                sum.copies += stats.rows;
                sum.row_bytes += stats.row_bytes;
                sum.index_bytes += stats.index_bytes;
            }
        }
        Ok(all)
    }

    /// Asks all sites to take up the deployed modules and to publish their tables' sizes. Waits for at most `wait_max`.
    pub(crate) fn request_stats(&self, wait_max: Duration) {
        let shared = &self.0.config.shared;
        let (sender, answers) = crossbeam_channel::unbounded::<()>();
        let mut waiters = Vec::new();
        for site in 0..shared.sites_count {
            let (question, is_first) = shared.published.ask(SiteId(site));
            let sender = sender.clone();
            let hook = Box::new(move || _ = sender.send(())); // the caller may have gone
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
    /// a whole key. On a standby a reader reads the page at a view, and nothing is held.
    pub fn table_rows(&self, request: RowsRequest) -> Result<StoredPage, RowsError> {
        self.check_ready()?;
        let deployed = self.deployed();
        let touched = self.partitions_of(schema_of(&deployed, &request)?, &request)?;
        if self.is_standby()
            && let Some(aside) = self.read_aside()
        {
            return self.page_at_view(&aside, touched, request);
        }
        self.run_durably(touched, move |held| read_held(held, &request))
    }

    /// The partitions that a page is read from.
    fn partitions_of(&self, schema: &TableSchema, request: &RowsRequest) -> Result<TxnPartitions, RowsError> {
        let count = self.partitions_count();
        let only = |id: PartitionId| Ok(TxnPartitions::Some(vec![id]));
        if !is_ordered(schema, request.index)
            && let Some(cursor) = &request.cursor
        {
            let (first, _) = split_place(cursor)?;
            return match first < count {
                true if schema.placement == TablePlacement::Replicated => only(PartitionId(first)),
                true => Ok(self.partitions_from(first, request)),
                false => Err(RowsError::BadCursor),
            };
        }
        match schema.placement {
            // The next page comes from the same copy: a position in one copy is none in another.
            TablePlacement::Replicated => match request.cursor.as_deref().map(partition_of).transpose()? {
                Some(id) if id.0 < count => only(id),
                Some(_) => Err(RowsError::BadCursor),
                None => only(self.least_busy()),
            },
            TablePlacement::By(column) if !request.prefix.is_empty() || !request.from.is_empty() => {
                let (lower, upper) = request.bounds();
                match partition_between(schema, request.index, column, (&lower, &upper), count) {
                    Some(id) => only(id),
                    None => Ok(TxnPartitions::All),
                }
            }
            _ if is_ordered(schema, request.index) || !request.prefix.is_empty() => Ok(TxnPartitions::All),
            _ => Ok(self.partitions_from(0, request)),
        }
    }

    /// From `first` on, as many partitions as hold a page's rows by what they told last. Should they hold fewer, the page is
    /// shorter, and its cursor leads on.
    fn partitions_from(&self, first: u16, request: &RowsRequest) -> TxnPartitions {
        let mut rows = 0;
        let mut taken = Vec::new();
        for id in (first..self.partitions_count()).map(PartitionId) {
            taken.push(id);
            let stats = self.0.config.shared.published.stats(id);
            rows += stats.get(request.table as usize).map_or(0, |stats| stats.rows);
            if rows > request.limit as u64 {
                break;
            }
        }
        TxnPartitions::Some(taken)
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
            held.partitions.iter_mut().fold(0u64, |digest, partition| {
                partition.store.build_notes();
                let mixed = digest.rotate_left(17).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                mixed ^ partition.store.digest()
            })
        })
    }
}

/// Returns the table that a request reads. The request's bytes and positions mean nothing in another form of the table, or in another table that
/// a deployment put in its place.
pub(crate) fn schema_of<'d>(deployed: &'d Deployed, request: &RowsRequest) -> Result<&'d Arc<TableSchema>, RowsError> {
    let schema = deployed.tables.get(request.table as usize).ok_or(RowsError::NotFound)?;
    // A deployment that leaves a table as it is may still replace its `Arc`, so the values count. A table's name and its owner are among them.
    if request.schema.as_ref().is_some_and(|asked| asked != schema) {
        return Err(RowsError::Changed);
    }
    match schema.is_dropped() || request.index as usize > schema.indexes.len() {
        true => Err(RowsError::NotFound),
        false => Ok(schema),
    }
}

/// Rows without a primary key all have the same, an empty one: that is no order.
pub(crate) fn is_ordered(schema: &TableSchema, index: u16) -> bool {
    index > 0 || !schema.primary_key.is_empty() && schema.primary_kind == IndexKind::Ordered
}
