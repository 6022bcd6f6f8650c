//! The record of a deployment: the module, and what it ran.

use reprise_abi::{SEMANTICS, value::push_varint};
use reprise_base::{
    TxnId,
    limits::{MODULE_BYTES_MAX, PARTITIONS_MAX, RECORD_BYTES_MAX},
};

use crate::{
    WireError,
    body::BodyReader,
    corrupt,
    record::{RecordKind, begin_numbered, push_name, varint_bytes},
    segment::check_semantics,
};

/// Kinds of the record: a module that ran nothing, and one that ran something: its plan and digests lie in front of its bytes.
pub(crate) const DEPLOY: u8 = RecordKind::Deploy as u8;
pub(crate) const DEPLOY_MIGRATED: u8 = 9;
/// Longest plan of a deployment, in bytes.
pub const PLAN_BYTES_MAX: usize = 32 << 10;

const _: () = assert!(MODULE_BYTES_MAX + PLAN_BYTES_MAX + 8 * PARTITIONS_MAX as usize + 1024 <= RECORD_BYTES_MAX);

/// A module version taken into service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeployRef<'a> {
    pub txn_id: TxnId,
    /// Number of this version, unique in the database; commands name it.
    pub module_id: u32,
    /// Counts the versions under this name, from 1.
    pub version: u32,
    pub name: &'a str,
    /// SHA-256 of `wasm`.
    pub hash: [u8; 32],
    pub wasm: &'a [u8],
    /// None: it runs nothing when it is deployed.
    pub migration: Option<MigrationRef<'a>>,
}

/// What a module ran when it was deployed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationRef<'a> {
    /// What became of the stored tables, a line each, for people.
    pub plan: &'a str,
    /// Eight bytes a partition, at least one.
    digests: &'a [u8],
}

impl<'a> MigrationRef<'a> {
    /// `digests`: of what was written, by partition, each in eight bytes, little-endian. Panics where there is none, or too much text.
    pub fn new(plan: &'a str, digests: &'a [u8]) -> Self {
        assert!(plan.len() <= PLAN_BYTES_MAX, "a plan of {} bytes", plan.len());
        assert!(!digests.is_empty() && digests.len().is_multiple_of(8), "whole digests");
        Self { plan, digests }
    }

    /// By partition.
    pub fn digests(&self) -> impl Iterator<Item = u64> + use<'a> {
        self.digests.chunks_exact(8).map(|digest| {
            let digest = digest.try_into().expect("chunks of 8 bytes");
            u64::from_le_bytes(digest)
        })
    }

    fn bytes(&self) -> usize {
        let plan = varint_bytes(self.plan.len() as u32) + self.plan.len();
        plan + varint_bytes(self.count()) + self.digests.len()
    }

    fn count(&self) -> u32 {
        (self.digests.len() / 8) as u32
    }

    fn encode(&self, out: &mut Vec<u8>) {
        push_varint(out, self.plan.len() as u32);
        out.extend_from_slice(self.plan.as_bytes());
        push_varint(out, self.count());
        out.extend_from_slice(self.digests);
    }

    fn decode(body: &mut BodyReader<'a>) -> Result<Self, WireError> {
        let bytes = body.varint()? as usize;
        if bytes > PLAN_BYTES_MAX {
            return Err(corrupt(
                "plan of a deployment",
                format!("at most {PLAN_BYTES_MAX} bytes"),
                bytes,
            ));
        }
        let plan = str::from_utf8(body.take(bytes)?);
        let plan = plan.map_err(|_| corrupt("plan of a deployment", "text", "other bytes"))?;
        let count = body.varint()?;
        if count == 0 || count > u32::from(PARTITIONS_MAX) {
            return Err(corrupt(
                "digests of a deployment",
                format!("1 to {PARTITIONS_MAX}"),
                count,
            ));
        }
        let digests = body.take(count as usize * 8)?;
        Ok(Self { plan, digests })
    }
}

impl<'a> DeployRef<'a> {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let kind = match &self.migration {
            None => DEPLOY,
            Some(_) => DEPLOY_MIGRATED,
        };
        let numbers = varint_bytes(SEMANTICS) + varint_bytes(self.module_id) + varint_bytes(self.version);
        let migration = self.migration.as_ref().map_or(0, MigrationRef::bytes);
        let body = 8 + numbers + 1 + self.name.len() + 32 + migration + self.wasm.len();
        begin_numbered(out, kind, body);
        out.extend_from_slice(&self.txn_id.0.to_le_bytes());
        push_varint(out, SEMANTICS);
        push_varint(out, self.module_id);
        push_varint(out, self.version);
        push_name(out, self.name);
        out.extend_from_slice(&self.hash);
        if let Some(migration) = &self.migration {
            migration.encode(out);
        }
        out.extend_from_slice(self.wasm);
    }

    pub(crate) fn decode(body: &mut BodyReader<'a>, kind: u8) -> Result<Self, WireError> {
        let txn_id = TxnId(body.u64()?);
        check_semantics(body.varint()?)?;
        Ok(Self {
            txn_id,
            module_id: body.varint()?,
            version: body.varint()?,
            name: body.name()?,
            hash: body.array()?,
            migration: match kind {
                DEPLOY_MIGRATED => Some(MigrationRef::decode(body)?),
                _ => None,
            },
            wasm: body.rest("module", MODULE_BYTES_MAX)?,
        })
    }
}
