//! A module version as a checkpoint holds it.

use reprise_abi::{
    SEMANTICS,
    value::{push_bytes, push_varint},
};
use reprise_base::{TxnId, limits::MODULE_BYTES_MAX};

use super::CHECKPOINT_RAW_BYTES_MAX;
use crate::{WireError, body::BodyReader, check, corrupt, record::push_name, segment::check_semantics};

/// A module version. The log that brought it may be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointModuleRef<'a> {
    pub module_id: u32,
    pub version: u32,
    pub name: &'a str,
    pub in_service: bool,
    pub installed_by: TxnId,
    pub hash: [u8; 32],
    /// Migrations that the tables of its module have had, as `push_migration` appended them; with the newest version of the name alone.
    pub migrations: &'a [u8],
    /// Sources of its tables, as `push_origin` appended them in the order of their declaration. Empty in service, or if they are not kept.
    pub origins: &'a [u8],
    /// Length of its bytes, wherever they are kept.
    pub wasm_bytes: u32,
    /// The module's description of itself, in JSON, as it was sent.
    pub description: &'a [u8],
    /// Empty for a version out of service. See [`CheckpointFormerRef`].
    pub wasm: &'a [u8],
}

impl<'a> CheckpointModuleRef<'a> {
    /// Appends a name to `migrations`.
    pub fn push_migration(out: &mut Vec<u8>, name: &str) {
        push_name(out, name);
    }

    /// Names of the migrations.
    pub fn migration_names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut body = BodyReader::new(self.migrations);
        std::iter::from_fn(move || {
            let is_at_end = body.is_at_end();
            (!is_at_end).then(|| body.name().expect("checked when it was decoded"))
        })
    }

    /// Appends the number of a stored table to `origins`, and for each column that was declared its position there, if it is there.
    /// None: another module's table, or one that was dropped.
    pub fn push_origin(out: &mut Vec<u8>, origin: Option<(u16, &[Option<u16>])>) {
        let number = |number: u16| u32::from(number) + 1;
        let Some((table, columns)) = origin else {
            return push_varint(out, 0);
        };
        push_varint(out, number(table));
        push_varint(out, columns.len() as u32);
        columns.iter().for_each(|at| push_varint(out, at.map_or(0, number)));
    }

    /// Returns the sources of its tables.
    pub fn table_origins(&self) -> impl Iterator<Item = CheckpointOrigin> + use<'a> {
        let mut body = BodyReader::new(self.origins);
        std::iter::from_fn(move || {
            let is_at_end = body.is_at_end();
            (!is_at_end).then(|| next_origin(&mut body).expect("checked when it was decoded"))
        })
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        push_varint(out, self.module_id);
        push_varint(out, self.version);
        push_varint(out, SEMANTICS);
        push_name(out, self.name);
        out.push(self.in_service as u8);
        out.extend_from_slice(&self.installed_by.0.to_le_bytes());
        out.extend_from_slice(&self.hash);
        push_bytes(out, self.migrations);
        push_bytes(out, self.origins);
        push_varint(out, self.wasm_bytes);
        push_bytes(out, self.description);
        out.extend_from_slice(self.wasm);
    }

    pub fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut body = BodyReader::new(bytes);
        let (module_id, version) = (body.varint()?, body.varint()?);
        check_semantics(body.varint()?)?;
        let module = Self {
            module_id,
            version,
            name: body.name()?,
            in_service: match body.array::<1>()? {
                [flag @ 0..=1] => flag == 1,
                [other] => return Err(corrupt("module in service", "0 or 1", other)),
            },
            installed_by: TxnId(body.u64()?),
            hash: body.array()?,
            migrations: decode_migrations(&mut body)?,
            origins: decode_origins(&mut body)?,
            wasm_bytes: body.varint()?,
            description: body.bytes("description", CHECKPOINT_RAW_BYTES_MAX)?,
            wasm: body.rest("module", MODULE_BYTES_MAX)?,
        };
        let expected = if module.in_service {
            module.wasm_bytes as usize
        } else {
            0
        };
        check("bytes of a module", expected, module.wasm.len())?;
        Ok(module)
    }
}

/// The stored table of a declared one, and the stored position of each declared column.
pub type CheckpointOrigin = Option<(u16, Vec<Option<u16>>)>;

fn next_origin(body: &mut BodyReader<'_>) -> Result<CheckpointOrigin, WireError> {
    let number = |body: &mut BodyReader<'_>| match body.varint()? {
        found if found > u32::from(u16::MAX) + 1 => Err(corrupt("place of a former table", "at most 65536", found)),
        found => Ok(found.checked_sub(1).map(|at| at as u16)),
    };
    let Some(table) = number(body)? else {
        return Ok(None);
    };
    let count = body.varint()?;
    let columns = (0..count).map(|_| number(body));
    Ok(Some((table, columns.collect::<Result<_, _>>()?)))
}

fn decode_origins<'a>(body: &mut BodyReader<'a>) -> Result<&'a [u8], WireError> {
    let origins = body.bytes("places of former tables", CHECKPOINT_RAW_BYTES_MAX)?;
    let mut list = BodyReader::new(origins);
    while !list.is_at_end() {
        next_origin(&mut list)?;
    }
    Ok(origins)
}

fn decode_migrations<'a>(body: &mut BodyReader<'a>) -> Result<&'a [u8], WireError> {
    let names = body.bytes("migrations", CHECKPOINT_RAW_BYTES_MAX)?;
    let mut body = BodyReader::new(names);
    while !body.is_at_end() {
        body.name()?;
    }
    Ok(names)
}
