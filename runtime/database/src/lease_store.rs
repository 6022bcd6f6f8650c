//! The store of the lease and of the record beside it, as each server reaches it.

use std::{sync::Arc, time::Duration};

/// The holder of the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub name: String,
    /// URL at which clients reach it.
    pub url: Option<String>,
    /// A number that the holder's process drew. Another process of the same name is another holder.
    pub instance: u64,
}

/// The nodes that may take a free lease. The record outlives the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncRecord {
    /// The last primary.
    pub primary: String,
    pub epoch: u32,
    /// Standbys that may take over.
    pub in_sync: Vec<String>,
    /// Identity of the last primary's directory.
    pub node: String,
    /// The last primary's log was durable before this LSN. A directory of it that ends before is an old copy.
    pub lsn: u64,
}

/// The contents of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseContents {
    pub holder: Option<Holder>,
    pub record: Option<SyncRecord>,
    /// Versions of the holder's entry and of the record in the store; 0: there is none.
    pub versions: (i64, i64),
}

/// The store does not answer, or not in time. It may have carried out the request, or may do so later.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct StoreError(pub Arc<str>);

/// The lease and the record of one database. Each request is answered within the lease's time, or fails.
pub trait LeaseStore: Send {
    /// Returns the kind of store: `etcd`.
    fn kind(&self) -> &'static str;
    /// Reads the holder and the record at one point in time.
    fn read(&mut self) -> Result<LeaseContents, StoreError>;
    /// Takes the lease and writes the record in one step, if the store still holds `seen`. Returns how long the lease lasts. None: the
    /// store holds something else by now.
    fn take(
        &mut self,
        holder: &Holder,
        record: &SyncRecord,
        seen: &LeaseContents,
        ttl: Duration,
    ) -> Result<Option<Duration>, StoreError>;
    /// Prolongs the lease. None: it has ended, or belongs to another holder.
    fn renew(&mut self) -> Result<Option<Duration>, StoreError>;
    /// Writes the record while this server has the lease. False: it has lost the lease, or another server has written the record since.
    fn record(&mut self, record: &SyncRecord) -> Result<bool, StoreError>;
    /// Gives the lease back.
    fn release(&mut self) -> Result<(), StoreError>;
}
