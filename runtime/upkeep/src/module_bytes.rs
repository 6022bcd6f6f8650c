//! Reads the bytes of module versions: from memory, from the log, or from a checkpoint.

use reprise_base::limits::{FORMER_BYTES_MAX, VERSIONS_KEPT_MAX};
use reprise_txn::{Deployed, Module};
use reprise_wire::RecordRef;

use crate::{checkpoint_info::LogMissing, engine::EngineHandles};

/// Why the bytes of a module version are not at hand.
#[derive(Debug, thiserror::Error)]
pub enum BytesError {
    /// There is neither a log nor a checkpoint.
    #[error(transparent)]
    NoLog(#[from] LogMissing),
    /// The version is too old.
    #[error(
        "the server keeps the last {versions} different versions of each module, and {mib} MiB of those out of service",
        versions = VERSIONS_KEPT_MAX,
        mib = FORMER_BYTES_MAX >> 20
    )]
    NotKept,
    /// The place that has them is damaged.
    #[error("they can't be read: {0}")]
    Unreadable(String),
}

impl EngineHandles {
    /// Reads the bytes of a version that are kept.
    pub fn read_bytes(&self, module: &Module) -> Result<Vec<u8>, BytesError> {
        let deployed = self.shared.deployed.load_full();
        if !deployed.keeps_bytes_of(module) {
            return Err(BytesError::NotKept);
        }
        self.find_bytes(&deployed, &module.hash).map_err(BytesError::Unreadable)
    }

    /// Finds bytes by their SHA-256. Err: no place has them, or the one that does can't be read.
    pub fn find_bytes(&self, deployed: &Deployed, hash: &[u8; 32]) -> Result<Vec<u8>, String> {
        let binaries = self.shared.binaries.lock().expect("held for a copy").clone();
        let versions = deployed.versions.iter().zip(&binaries);
        let same = versions
            .filter(|(module, _)| module.hash == *hash)
            .map(|(_, bytes)| bytes);
        if let Some(bytes) = same.clone().find(|bytes| !bytes.wasm.is_empty()) {
            return Ok(bytes.wasm.to_vec());
        }
        let mut reasons = Vec::new();
        let start = self.log.start();
        for lsn in same.filter_map(|bytes| bytes.logged_at).filter(|lsn| *lsn >= start) {
            match self.log.record(lsn) {
                Ok(Some(record)) => match record.get().record {
                    RecordRef::Deploy(deploy) if deploy.hash == *hash => return Ok(deploy.wasm.to_vec()),
                    _ => reasons.push(format!("the record at LSN {lsn} is none of its deployment")),
                },
                Ok(None) => {} // the log has released the record meanwhile
                Err(error) => reasons.push(error.to_string()),
            }
        }
        let stored = self.files.list().map_err(|error| error.to_string())?;
        for lsn in stored.into_iter().rev() {
            match self.files.open(lsn).and_then(|reader| reader.module_bytes(hash)) {
                Ok(Some(wasm)) => return Ok(wasm),
                Ok(None) => {}
                Err(error) => reasons.push(error.to_string()),
            }
        }
        if reasons.is_empty() {
            reasons.push("neither the log nor a checkpoint has them".to_owned());
        }
        Err(reasons.join("; "))
    }
}
