//! The lease in etcd: who is the primary, and who may be.

use std::sync::Arc;

use anyhow::Context;
use reprise_database::{Database, LeaseConfig};

use crate::config::replication::ReplicationSettings;

/// What a server needs for its part in a lease.
pub struct Lease {
    endpoints: Vec<String>,
    ttl_ms: u64,
    name: String,
    url: Option<Arc<str>>,
}

impl Lease {
    /// None: who is the primary is decided by hand.
    pub fn of(settings: &ReplicationSettings, name: &str, url: Option<Arc<str>>) -> Option<Self> {
        let endpoints = settings.lease_etcd.value.as_ref()?;
        Some(Self {
            endpoints: endpoints.0.clone(),
            ttl_ms: settings.lease_ttl_ms.value,
            name: name.to_owned(),
            url,
        })
    }

    /// Takes part from here on. Of a primary: once it has the lease, and before anything is replayed.
    pub fn keep(self, database: &Arc<Database>) -> anyhow::Result<()> {
        let ttl = std::time::Duration::from_millis(self.ttl_ms);
        let id = database
            .database_id()
            .context("a server without a log has no part in a lease")?;
        let store = etcd::store(&self.endpoints, id, ttl)?;
        let config = LeaseConfig {
            store,
            name: self.name,
            url: self.url,
            ttl,
        };
        database.keep_lease(config).context("take part in the lease")
    }
}

/// Whether this program can ask etcd at all.
pub const HAS_ETCD: bool = cfg!(feature = "etcd");

#[cfg(not(feature = "etcd"))]
mod etcd {
    use std::time::Duration;

    use reprise_database::LeaseStore;

    pub fn store(_: &[String], _: [u8; 16], _: Duration) -> anyhow::Result<Box<dyn LeaseStore>> {
        anyhow::bail!("this program was built without etcd (cargo xtask etcd)")
    }
}

#[cfg(feature = "etcd")]
mod etcd {
    use std::{future::Future, time::Duration};

    use anyhow::Context;
    use etcd_client::{Client, Compare, CompareOp, ConnectOptions, Error, PutOptions, Txn, TxnOp};
    use reprise_database::{Holder, LeaseStore, Seen, StoreError, SyncRecord};
    use serde::{Deserialize, Serialize};

    /// Shortest time that a question is given.
    const ASK_TIME_MIN: Duration = Duration::from_millis(500);

    #[derive(Serialize, Deserialize)]
    struct StoredHolder {
        name: String,
        url: Option<String>,
        instance: u64,
    }

    #[derive(Serialize, Deserialize)]
    struct StoredRecord {
        primary: String,
        epoch: u32,
        in_sync: Vec<String>,
    }

    /// The keys `/reprise/DATABASE/primary`, which lives with the lease, and `/reprise/DATABASE/in-sync`.
    pub struct EtcdStore {
        runtime: tokio::runtime::Runtime,
        endpoints: Vec<String>,
        client: Option<Client>,
        primary_key: String,
        record_key: String,
        lease: Option<i64>,
        /// Revision of the record that this server wrote last.
        written: Option<i64>,
        ask_time: Duration,
    }

    pub fn store(endpoints: &[String], database_id: [u8; 16], ttl: Duration) -> anyhow::Result<Box<dyn LeaseStore>> {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().context("start a runtime for etcd")?;
        let id: String = database_id.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Box::new(EtcdStore {
            runtime,
            endpoints: endpoints.to_vec(),
            client: None,
            primary_key: format!("/reprise/{id}/primary"),
            record_key: format!("/reprise/{id}/in-sync"),
            lease: None,
            written: None,
            ask_time: (ttl / 4).max(ASK_TIME_MIN),
        }))
    }

    fn store_error(error: impl std::fmt::Display) -> StoreError {
        StoreError(error.to_string().into())
    }

    impl EtcdStore {
        /// One question, within its time. After an error the next one is asked over another connection.
        fn ask<T, F>(&mut self, question: impl FnOnce(Client) -> F) -> Result<T, StoreError>
        where
            F: Future<Output = Result<T, Error>>,
        {
            let (endpoints, known) = (self.endpoints.clone(), self.client.take());
            let options = ConnectOptions::new()
                .with_connect_timeout(self.ask_time)
                .with_timeout(self.ask_time);
            let asked = async move {
                let client = match known {
                    Some(client) => client,
                    None => Client::connect(endpoints, Some(options)).await?,
                };
                let told = question(client.clone()).await?;
                Ok::<_, Error>((client, told))
            };
            let ask_time = self.ask_time;
            let told = self
                .runtime
                .block_on(async { tokio::time::timeout(ask_time, asked).await });
            let (client, told) = told
                .map_err(|_| store_error(format!("no answer within {} ms", ask_time.as_millis())))?
                .map_err(store_error)?;
            self.client = Some(client);
            Ok(told)
        }

        fn keys(&self) -> (String, String) {
            (self.primary_key.clone(), self.record_key.clone())
        }
    }

    fn read<T: for<'a> Deserialize<'a>>(key: &str, value: &[u8]) -> Result<T, StoreError> {
        serde_json::from_slice(value).map_err(|error| store_error(format!("{key} can't be read: {error}")))
    }

    fn text(record: &SyncRecord) -> Vec<u8> {
        let stored = StoredRecord {
            primary: record.primary.clone(),
            epoch: record.epoch,
            in_sync: record.in_sync.clone(),
        };
        serde_json::to_vec(&stored).expect("names and a number")
    }

    impl LeaseStore for EtcdStore {
        fn kind(&self) -> &'static str {
            "etcd"
        }

        fn look(&mut self) -> Result<Seen, StoreError> {
            let (primary, record) = self.keys();
            let gets = [TxnOp::get(primary.clone(), None), TxnOp::get(record.clone(), None)];
            let told = self.ask(|mut client| async move { client.txn(Txn::new().and_then(gets)).await })?;
            let (mut holder, mut known, mut versions) = (None, None, (0, 0));
            for response in told.op_responses() {
                let etcd_client::TxnOpResponse::Get(got) = response else {
                    continue;
                };
                for entry in got.kvs() {
                    if entry.key() == primary.as_bytes() {
                        let stored: StoredHolder = read(&primary, entry.value())?;
                        holder = Some(Holder {
                            name: stored.name,
                            url: stored.url,
                            instance: stored.instance,
                        });
                        versions.0 = entry.mod_revision();
                    } else {
                        let stored: StoredRecord = read(&record, entry.value())?;
                        known = Some(SyncRecord {
                            primary: stored.primary,
                            epoch: stored.epoch,
                            in_sync: stored.in_sync,
                        });
                        versions.1 = entry.mod_revision();
                    }
                }
            }
            Ok(Seen {
                holder,
                record: known,
                versions,
            })
        }

        fn take(
            &mut self,
            holder: &Holder,
            record: &SyncRecord,
            seen: &Seen,
            ttl: Duration,
        ) -> Result<Option<Duration>, StoreError> {
            let (primary_key, record_key) = self.keys();
            let stored = StoredHolder {
                name: holder.name.clone(),
                url: holder.url.clone(),
                instance: holder.instance,
            };
            let holder = serde_json::to_vec(&stored).expect("texts");
            let (record, versions) = (text(record), seen.versions);
            // etcd counts in seconds.
            let seconds = ttl.as_secs().max(1) as i64;
            let (lease, ttl_s, taken) = self.ask(|mut client| async move {
                let granted = client.lease_grant(seconds, None).await?;
                let is_as_seen = [
                    Compare::mod_revision(primary_key.clone(), CompareOp::Equal, versions.0),
                    Compare::mod_revision(record_key.clone(), CompareOp::Equal, versions.1),
                ];
                let with_lease = PutOptions::new().with_lease(granted.id());
                let puts = [
                    TxnOp::put(primary_key, holder, Some(with_lease)),
                    TxnOp::put(record_key, record, None),
                ];
                let told = client.txn(Txn::new().when(is_as_seen).and_then(puts)).await?;
                let revision = told.header().map(|header| header.revision());
                if !told.succeeded() {
                    client.lease_revoke(granted.id()).await?;
                }
                let taken = revision.filter(|_| told.succeeded());
                Ok((granted.id(), granted.ttl(), taken))
            })?;
            Ok(taken.map(|revision| {
                (self.lease, self.written) = (Some(lease), Some(revision));
                Duration::from_secs(ttl_s.max(0) as u64)
            }))
        }

        fn renew(&mut self) -> Result<Option<Duration>, StoreError> {
            let Some(lease) = self.lease else {
                return Ok(None);
            };
            let primary = self.primary_key.clone();
            let left_s = self.ask(|mut client| async move {
                let (mut keeper, mut answers) = match client.lease_keep_alive(lease).await {
                    // It is not known any more.
                    Err(Error::LeaseKeepAliveError(_)) => return Ok(0),
                    opened => opened?,
                };
                keeper.keep_alive().await?;
                let left_s = answers.message().await?.map_or(0, |answer| answer.ttl());
                let told = client.get(primary, None).await?;
                let is_own = told.kvs().first().is_some_and(|entry| entry.lease() == lease);
                Ok(if is_own { left_s } else { 0 })
            })?;
            if left_s <= 0 {
                self.lease = None;
            }
            Ok((left_s > 0).then(|| Duration::from_secs(left_s as u64)))
        }

        fn record(&mut self, record: &SyncRecord) -> Result<bool, StoreError> {
            let (Some(lease), Some(written)) = (self.lease, self.written) else {
                return Ok(false);
            };
            let (primary_key, record_key) = self.keys();
            let record = text(record);
            // Should it fail, it may be written all the same: then it is looked at again.
            self.written = None;
            let revision = self.ask(|mut client| async move {
                let is_own = [
                    Compare::lease(primary_key, CompareOp::Equal, lease),
                    Compare::mod_revision(record_key.clone(), CompareOp::Equal, written),
                ];
                let put = [TxnOp::put(record_key, record, None)];
                let told = client.txn(Txn::new().when(is_own).and_then(put)).await?;
                let revision = told.header().map(|header| header.revision());
                Ok(revision.filter(|_| told.succeeded()))
            })?;
            self.written = revision;
            Ok(revision.is_some())
        }

        fn release(&mut self) -> Result<(), StoreError> {
            let Some(lease) = self.lease.take() else {
                return Ok(());
            };
            self.ask(|mut client| async move { client.lease_revoke(lease).await.map(|_| ()) })
        }
    }
}
