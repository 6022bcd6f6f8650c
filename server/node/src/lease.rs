//! The lease in etcd, which decides which server is the primary.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use reprise_database::{Database, Holder, LeaseConfig, LeaseContents, LeaseStore, StoreError, SyncRecord};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    config::{replication::ReplicationSettings, tls::TlsSettings},
    etcd::{EtcdClient, EtcdEndpoint, EtcdFiles, KeepAliveAnswer, LeaseAnswer, RangeAnswer, TxnAnswer, encode},
};

/// Shortest time limit of a lease operation.
const TIME_MIN: Duration = Duration::from_millis(500);

/// A server's part in a lease.
pub struct ServerLease {
    endpoints: Vec<EtcdEndpoint>,
    files: EtcdFiles,
    ttl: Duration,
    name: String,
    url: Option<Arc<str>>,
}

impl ServerLease {
    /// Returns the server's part. None: the operator decides which server is the primary.
    pub fn of(settings: &ReplicationSettings, tls: &TlsSettings, name: &str, url: Option<Arc<str>>) -> Option<Self> {
        let endpoints = settings.lease_etcd.value.as_ref()?;
        Some(Self {
            endpoints: endpoints.0.clone(),
            files: EtcdFiles {
                ca_cert: settings.lease_ca_cert.value.clone(),
                certificate: tls.tls_cert.value.clone().zip(tls.tls_key.value.clone()),
            },
            ttl: Duration::from_millis(settings.lease_ttl_ms.value),
            name: name.to_owned(),
            url,
        })
    }

    /// Takes part from here on. A primary gets the lease before it replays anything.
    pub fn keep(self, database: &Arc<Database>) -> anyhow::Result<()> {
        let id = database
            .database_id()
            .context("a server without a log has no part in a lease")?;
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let time_max = (self.ttl / 4).max(TIME_MIN);
        let store = EtcdStore {
            etcd: EtcdClient::new(&self.endpoints, self.files, time_max).context("lease in etcd")?,
            primary_key: format!("/reprise/{id}/primary"),
            record_key: format!("/reprise/{id}/in-sync"),
            lease: None,
            written: None,
        };
        let config = LeaseConfig {
            store: Box::new(store),
            name: self.name,
            url: self.url,
            ttl: self.ttl,
        };
        database.keep_lease(config).context("take part in the lease")
    }
}

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
    node: String,
    lsn: u64,
}

/// The keys `/reprise/DATABASE/primary`, which lives with the lease, and `/reprise/DATABASE/in-sync`.
struct EtcdStore {
    etcd: EtcdClient,
    primary_key: String,
    record_key: String,
    lease: Option<i64>,
    /// Revision of the record that this server wrote last.
    written: Option<i64>,
}

fn read_stored<T: for<'a> Deserialize<'a>>(key: &str, value: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(value).map_err(|error| StoreError(format!("{key} can't be read: {error}").into()))
}

fn has_revision(key: &str, revision: i64) -> Value {
    json!({"key": encode(key), "target": "MOD", "result": "EQUAL", "modRevision": revision.to_string()})
}

fn has_lease(key: &str, lease: i64) -> Value {
    json!({"key": encode(key), "target": "LEASE", "result": "EQUAL", "lease": lease.to_string()})
}

fn put_holder(key: &str, holder: &Holder, lease: i64) -> Value {
    let stored = StoredHolder {
        name: holder.name.clone(),
        url: holder.url.clone(),
        instance: holder.instance,
    };
    let value = serde_json::to_vec(&stored).expect("texts");
    json!({"requestPut": {"key": encode(key), "value": encode(value), "lease": lease.to_string()}})
}

fn put_record(key: &str, record: &SyncRecord) -> Value {
    let stored = StoredRecord {
        primary: record.primary.clone(),
        epoch: record.epoch,
        in_sync: record.in_sync.clone(),
        node: record.node.clone(),
        lsn: record.lsn,
    };
    let value = serde_json::to_vec(&stored).expect("names and a number");
    json!({"requestPut": {"key": encode(key), "value": encode(value)}})
}

fn lease_question(lease: i64) -> Value {
    json!({"ID": lease.to_string()})
}

impl LeaseStore for EtcdStore {
    fn kind(&self) -> &'static str {
        "etcd"
    }

    fn read(&mut self) -> Result<LeaseContents, StoreError> {
        let range = |key: &String| json!({"requestRange": {"key": encode(key)}});
        let ranges = json!({"success": [range(&self.primary_key), range(&self.record_key)]});
        let answer: TxnAnswer = self.etcd.run(|etcd| etcd.ask("v3/kv/txn", &ranges))?;
        let mut seen = LeaseContents {
            holder: None,
            record: None,
            versions: (0, 0),
        };
        for entry in answer.entries() {
            if entry.key == self.primary_key.as_bytes() {
                let stored: StoredHolder = read_stored(&self.primary_key, &entry.value)?;
                seen.holder = Some(Holder {
                    name: stored.name,
                    url: stored.url,
                    instance: stored.instance,
                });
                seen.versions.0 = entry.mod_revision;
            } else {
                let stored: StoredRecord = read_stored(&self.record_key, &entry.value)?;
                seen.record = Some(SyncRecord {
                    primary: stored.primary,
                    epoch: stored.epoch,
                    in_sync: stored.in_sync,
                    node: stored.node,
                    lsn: stored.lsn,
                });
                seen.versions.1 = entry.mod_revision;
            }
        }
        Ok(seen)
    }

    fn take(
        &mut self,
        holder: &Holder,
        record: &SyncRecord,
        seen: &LeaseContents,
        ttl: Duration,
    ) -> Result<Option<Duration>, StoreError> {
        let (primary_key, record_key) = (&self.primary_key, &self.record_key);
        // etcd counts in seconds.
        let seconds = ttl.as_secs().max(1).to_string();
        let (granted, taken) = self.etcd.run(|etcd| {
            let granted: LeaseAnswer = etcd.ask("v3/lease/grant", &json!({"TTL": seconds}))?;
            let question = json!({
                "compare": [has_revision(primary_key, seen.versions.0), has_revision(record_key, seen.versions.1)],
                "success": [put_holder(primary_key, holder, granted.id), put_record(record_key, record)],
            });
            let answer: TxnAnswer = etcd.ask("v3/kv/txn", &question)?;
            let taken = answer.revision();
            if taken.is_none() {
                etcd.ask::<Value>("v3/lease/revoke", &lease_question(granted.id))?;
            }
            Ok((granted, taken))
        })?;
        Ok(taken.map(|revision| {
            (self.lease, self.written) = (Some(granted.id), Some(revision));
            Duration::from_secs(granted.ttl_s.max(0) as u64)
        }))
    }

    fn renew(&mut self) -> Result<Option<Duration>, StoreError> {
        let Some(lease) = self.lease else {
            return Ok(None);
        };
        let range = json!({"key": encode(&self.primary_key)});
        let left_s = self.etcd.run(|etcd| {
            let kept: KeepAliveAnswer = etcd.ask("v3/lease/keepalive", &lease_question(lease))?;
            let found: RangeAnswer = etcd.ask("v3/kv/range", &range)?;
            let is_own = found.kvs.first().is_some_and(|entry| entry.lease == lease);
            Ok(if is_own { kept.result.ttl_s } else { 0 })
        })?;
        if left_s <= 0 {
            self.lease = None;
        }
        Ok((left_s > 0).then(|| Duration::from_secs(left_s as u64)))
    }

    fn record(&mut self, record: &SyncRecord) -> Result<bool, StoreError> {
        // etcd may write the record although the request fails. The caller then reads the store again.
        let (Some(lease), Some(written)) = (self.lease, self.written.take()) else {
            return Ok(false);
        };
        let question = json!({
            "compare": [has_lease(&self.primary_key, lease), has_revision(&self.record_key, written)],
            "success": [put_record(&self.record_key, record)],
        });
        let answer: TxnAnswer = self.etcd.run(|etcd| etcd.ask("v3/kv/txn", &question))?;
        self.written = answer.revision();
        Ok(self.written.is_some())
    }

    fn release(&mut self) -> Result<(), StoreError> {
        let Some(lease) = self.lease.take() else {
            return Ok(());
        };
        let revoke = |etcd: &mut EtcdClient| etcd.ask::<Value>("v3/lease/revoke", &lease_question(lease));
        self.etcd.run(revoke).map(drop)
    }
}
