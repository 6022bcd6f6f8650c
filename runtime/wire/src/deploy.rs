//! The record of a deployment: the module, and the migration that it ran.

use reprise_abi::{
    SEMANTICS,
    value::{push_bytes, push_varint},
};
use reprise_base::{
    TxnId,
    limits::{DEPLOY_LIST_BYTES_MAX, MODULE_BYTES_MAX, PARTITIONS_MAX, RECORD_BYTES_MAX},
};

use crate::{
    WireError,
    body::BodyReader,
    corrupt,
    record::{RecordKind, begin_numbered, push_name, push_short, varint_bytes},
    segment::check_semantics,
};

/// Kinds of the record: a module that ran nothing, and one that ran something: its plan and digests lie in front of its bytes.
pub(crate) const DEPLOY: u8 = RecordKind::Deploy as u8;
pub(crate) const DEPLOY_MIGRATED: u8 = 9;
/// Longest plan of a deployment, in bytes.
pub const PLAN_BYTES_MAX: usize = 32 << 10;

const _: () = assert!(
    MODULE_BYTES_MAX + 2 * DEPLOY_LIST_BYTES_MAX + PLAN_BYTES_MAX + 8 * PARTITIONS_MAX as usize + 1024
        <= RECORD_BYTES_MAX
);

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
    /// Sources of the columns of the tables that it changed.
    pub tables: SourceList<'a>,
    /// Things that it destroyed, all of them with consent.
    pub destroyed: DestroyedList<'a>,
    /// None: it ran nothing when it was deployed.
    pub migration: Option<MigrationRef<'a>>,
}

/// For each changed table, the name that it had, and for each of its columns the position of its stored source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceList<'a>(&'a [u8]);

impl<'a> SourceList<'a> {
    /// Wraps the bytes that `push` appended. It panics if they are more than the log takes.
    pub fn new(bytes: &'a [u8]) -> Self {
        assert!(bytes.len() <= DEPLOY_LIST_BYTES_MAX, "sources of {} bytes", bytes.len());
        Self(bytes)
    }

    /// Appends a table to a list, with its own name and the one that it had. None: the column is new.
    pub fn push(out: &mut Vec<u8>, table: &str, was: &str, columns: &[Option<u16>]) {
        push_name(out, table);
        push_name(out, was);
        push_varint(out, columns.len() as u32);
        for source in columns {
            push_varint(out, source.map_or(0, |at| u32::from(at) + 1));
        }
    }

    /// Each table's own name, the one that it had, and its columns' sources.
    pub fn tables(&self) -> impl Iterator<Item = (&'a str, &'a str, Vec<Option<u16>>)> + use<'a> {
        let mut body = BodyReader::new(self.0);
        std::iter::from_fn(move || {
            let is_at_end = body.is_at_end();
            (!is_at_end).then(|| Self::next(&mut body).expect("checked when it was decoded"))
        })
    }

    fn next(body: &mut BodyReader<'a>) -> Result<(&'a str, &'a str, Vec<Option<u16>>), WireError> {
        let (name, was) = (body.name()?, body.name()?);
        let count = body.varint()?;
        let mut columns = Vec::new();
        for _ in 0..count {
            let source = body.varint()?;
            if source > u32::from(u16::MAX) + 1 {
                return Err(corrupt("source of a column", "at most 65536", source));
            }
            columns.push(source.checked_sub(1).map(|at| at as u16));
        }
        Ok((name, was, columns))
    }

    fn decode(body: &mut BodyReader<'a>) -> Result<Self, WireError> {
        let list = Self(body.bytes("sources of a deployment", DEPLOY_LIST_BYTES_MAX)?);
        let mut body = BodyReader::new(list.0);
        while !body.is_at_end() {
            Self::next(&mut body)?;
        }
        Ok(list)
    }
}

/// One thing that a deployment or a removal destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DestroyedRef<'a> {
    /// 1: the values of a column, 2: a table, 3: a procedure, 4: the owner of a table.
    pub kind: u8,
    /// Full name.
    pub name: &'a str,
    /// Values or rows.
    pub count: u64,
}

/// Things that were destroyed, each with consent to exactly that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DestroyedList<'a>(&'a [u8]);

impl<'a> DestroyedList<'a> {
    /// Wraps the bytes that `push` appended. It panics if they are more than the log takes.
    pub fn new(bytes: &'a [u8]) -> Self {
        assert!(bytes.len() <= DEPLOY_LIST_BYTES_MAX, "a list of {} bytes", bytes.len());
        Self(bytes)
    }

    /// Appends to a list.
    pub fn push(out: &mut Vec<u8>, destroyed: DestroyedRef<'_>) {
        out.push(destroyed.kind);
        push_short(out, destroyed.name.as_bytes());
        out.extend_from_slice(&destroyed.count.to_le_bytes());
    }

    /// Returns the entries in the order of appending.
    pub fn iter(&self) -> impl Iterator<Item = DestroyedRef<'a>> + use<'a> {
        let mut body = BodyReader::new(self.0);
        std::iter::from_fn(move || {
            let is_at_end = body.is_at_end();
            (!is_at_end).then(|| Self::next(&mut body).expect("checked when it was decoded"))
        })
    }

    fn next(body: &mut BodyReader<'a>) -> Result<DestroyedRef<'a>, WireError> {
        let [kind] = body.array()?;
        if !(1..=4).contains(&kind) {
            return Err(corrupt("kind of what was destroyed", "1 to 4", kind));
        }
        let name = body.short_bytes()?;
        let name = str::from_utf8(name).map_err(|_| corrupt("name", "UTF-8", name.escape_ascii()))?;
        let count = body.u64()?;
        Ok(DestroyedRef { kind, name, count })
    }

    pub(crate) fn bytes(&self) -> usize {
        varint_bytes(self.0.len() as u32) + self.0.len()
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        push_bytes(out, self.0);
    }

    pub(crate) fn decode(body: &mut BodyReader<'a>) -> Result<Self, WireError> {
        let list = Self(body.bytes("what was destroyed", DEPLOY_LIST_BYTES_MAX)?);
        let mut body = BodyReader::new(list.0);
        while !body.is_at_end() {
            Self::next(&mut body)?;
        }
        Ok(list)
    }
}

/// The migration that a module ran at its deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationRef<'a> {
    /// Name of the migration; empty if it has none.
    pub name: &'a str,
    /// Changes of the stored tables, a line each, for people.
    pub plan: &'a str,
    /// Eight bytes a partition, at least one.
    digests: &'a [u8],
}

impl<'a> MigrationRef<'a> {
    /// Makes the record's part. `digests` are those of the writes, by partition, each in eight bytes, little-endian. It panics if there is
    /// none, or if the text is too long.
    pub fn new(name: &'a str, plan: &'a str, digests: &'a [u8]) -> Self {
        assert!(plan.len() <= PLAN_BYTES_MAX, "a plan of {} bytes", plan.len());
        assert!(!digests.is_empty() && digests.len().is_multiple_of(8), "whole digests");
        Self { name, plan, digests }
    }

    /// Returns the digests by partition.
    pub fn digests(&self) -> impl Iterator<Item = u64> + use<'a> {
        self.digests.chunks_exact(8).map(|digest| {
            let digest = digest.try_into().expect("chunks of 8 bytes");
            u64::from_le_bytes(digest)
        })
    }

    fn bytes(&self) -> usize {
        let plan = varint_bytes(self.plan.len() as u32) + self.plan.len();
        1 + self.name.len() + plan + varint_bytes(self.count()) + self.digests.len()
    }

    fn count(&self) -> u32 {
        (self.digests.len() / 8) as u32
    }

    fn encode(&self, out: &mut Vec<u8>) {
        push_name(out, self.name);
        push_varint(out, self.plan.len() as u32);
        out.extend_from_slice(self.plan.as_bytes());
        push_varint(out, self.count());
        out.extend_from_slice(self.digests);
    }

    fn decode(body: &mut BodyReader<'a>) -> Result<Self, WireError> {
        let name = body.name()?;
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
        Ok(Self { name, plan, digests })
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
        let tables = varint_bytes(self.tables.0.len() as u32) + self.tables.0.len();
        let lists = tables + self.destroyed.bytes();
        let body = 8 + numbers + 1 + self.name.len() + 32 + lists + migration + self.wasm.len();
        begin_numbered(out, kind, body);
        out.extend_from_slice(&self.txn_id.0.to_le_bytes());
        push_varint(out, SEMANTICS);
        push_varint(out, self.module_id);
        push_varint(out, self.version);
        push_name(out, self.name);
        out.extend_from_slice(&self.hash);
        push_bytes(out, self.tables.0);
        self.destroyed.encode(out);
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
            tables: SourceList::decode(body)?,
            destroyed: DestroyedList::decode(body)?,
            migration: match kind {
                DEPLOY_MIGRATED => Some(MigrationRef::decode(body)?),
                _ => None,
            },
            wasm: body.rest("module", MODULE_BYTES_MAX)?,
        })
    }
}
