//! Outcomes under idempotency keys in a checkpoint.

use reprise_abi::value::{RESULT_BYTES_MAX, push_bytes, push_varint};
use reprise_base::{
    Lsn, PartitionId, TxnId,
    limits::{IDEMPOTENCY_KEY_BYTES_MAX, PARTITIONS_MAX},
};

use crate::{WireError, body::BodyReader, corrupt, record::push_short};

/// The committed outcome under an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointKeyRef<'a> {
    /// 1 to 255 bytes.
    pub key: &'a [u8],
    /// The scope, as in a command; 255 bytes at most.
    pub scope: &'a [u8],
    pub fingerprint: u128,
    /// The hash of a record of changes.
    pub args_hash: u128,
    /// Reading of the key clock when the outcome was kept.
    pub kept_us: u64,
    pub module_id: u32,
    pub procedure: u16,
    pub txn_id: TxnId,
    pub lsn: Lsn,
    /// None for a multi-partition call.
    pub partition: Option<PartitionId>,
    pub result: &'a [u8],
}

impl CheckpointKeyRef<'_> {
    pub fn encode(&self, out: &mut Vec<u8>) {
        assert!((1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&self.key.len()));
        out.push(self.key.len() as u8);
        out.extend_from_slice(self.key);
        push_short(out, self.scope);
        out.extend_from_slice(&self.fingerprint.to_le_bytes());
        out.extend_from_slice(&self.args_hash.to_le_bytes());
        out.extend_from_slice(&self.kept_us.to_le_bytes());
        push_varint(out, self.module_id);
        push_varint(out, self.procedure as u32);
        out.extend_from_slice(&self.txn_id.0.to_le_bytes());
        out.extend_from_slice(&self.lsn.0.to_le_bytes());
        push_varint(out, self.partition.map_or(0, |partition| partition.0 as u32 + 1));
        push_bytes(out, self.result);
    }
}

/// Walks the outcomes of a block; ends after the first error.
pub struct CheckpointKeys<'a> {
    body: BodyReader<'a>,
    failed: bool,
}

impl<'a> CheckpointKeys<'a> {
    pub fn new(raw: &'a [u8]) -> Self {
        Self {
            body: BodyReader::new(raw),
            failed: false,
        }
    }

    fn read(&mut self) -> Result<CheckpointKeyRef<'a>, WireError> {
        let body = &mut self.body;
        Ok(CheckpointKeyRef {
            key: body.idempotency_key()?,
            scope: body.short_bytes()?,
            fingerprint: u128::from_le_bytes(body.array()?),
            args_hash: u128::from_le_bytes(body.array()?),
            kept_us: body.u64()?,
            module_id: body.varint()?,
            procedure: body.varint_u16()?,
            txn_id: TxnId(body.u64()?),
            lsn: Lsn(body.u64()?),
            partition: match body.varint()? {
                0 => None,
                one if one <= PARTITIONS_MAX as u32 => Some(PartitionId(one as u16 - 1)),
                other => {
                    let bound = format!("at most {PARTITIONS_MAX}");
                    return Err(corrupt("partition of a key", bound, other));
                }
            },
            result: body.bytes("result", RESULT_BYTES_MAX)?,
        })
    }
}

impl<'a> Iterator for CheckpointKeys<'a> {
    type Item = Result<CheckpointKeyRef<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.body.is_at_end() {
            return None;
        }
        let key = self.read();
        self.failed = key.is_err();
        Some(key)
    }
}
