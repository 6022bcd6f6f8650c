//! The checkpoint file: a header, blocks, the blocks' index, and a trailer that leads to it.

mod keys;
mod module;

use reprise_abi::{
    key::KEY_BYTES_MAX,
    row::ROW_BYTES_MAX,
    value::{ValueReader, push_bytes, push_varint},
};
use reprise_base::{
    Lsn, PartitionId, TxnId,
    limits::{BLOCK_BYTES_MAX, DESCRIPTION_BYTES_MAX, MODULE_BYTES_MAX, TABLES_MAX},
    named_enum,
};

use crate::{
    Genesis, WireError,
    body::BodyReader,
    check, corrupt, crc32c,
    record::{GENESIS_BODY_BYTES, QUARANTINE_TEXT_BYTES_MAX, decode_genesis, push_genesis},
    segment::{check_numbers, put_numbers},
    u32_at, u64_at,
};

pub use keys::{CheckpointKeyRef, CheckpointKeys};
pub use module::{CheckpointModuleRef, CheckpointOrigin};

pub const CHECKPOINT_HEADER_BYTES: usize = 512;
pub const CHECKPOINT_BLOCK_HEADER_BYTES: usize = 48;
pub const CHECKPOINT_TRAILER_BYTES: usize = 64;
/// Longest block before compression.
pub const CHECKPOINT_RAW_BYTES_MAX: usize = BLOCK_BYTES_MAX;

const _: () = assert!(MODULE_BYTES_MAX + DESCRIPTION_BYTES_MAX + 4096 < CHECKPOINT_RAW_BYTES_MAX);
const _: () = assert!(ROW_BYTES_MAX + KEY_BYTES_MAX < CHECKPOINT_RAW_BYTES_MAX);

const MAGIC: [u8; 8] = *b"RPRSCKP\n";
const BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"RPCB");
const TRAILER_MAGIC: [u8; 8] = *b"RPCKEND\n";
const HEADER_FIELDS_BYTES: usize = 64;
const INDEX_ENTRY_BYTES: usize = 28;
/// Entries of each block of the index but the last: 224 KiB.
pub const INDEX_BLOCK_ENTRIES: usize = 8_192;

/// The header of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointHeader {
    pub database_id: [u8; 16],
    /// LSN of the checkpoint: it has everything that the log has before it.
    pub lsn: Lsn,
    pub settings_hash: u64,
    /// Id of the mark in the log; its time is when the checkpoint began.
    pub txn_id: TxnId,
    /// Counted memory of the database at the checkpoint; 0: not told.
    pub memory_bytes: u64,
}

impl CheckpointHeader {
    pub fn encode(&self) -> [u8; CHECKPOINT_HEADER_BYTES] {
        let mut out = [0; CHECKPOINT_HEADER_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        put_numbers(&mut out);
        out[16..32].copy_from_slice(&self.database_id);
        out[32..40].copy_from_slice(&self.lsn.0.to_le_bytes());
        out[40..48].copy_from_slice(&self.settings_hash.to_le_bytes());
        out[48..56].copy_from_slice(&self.txn_id.0.to_le_bytes());
        out[56..64].copy_from_slice(&self.memory_bytes.to_le_bytes());
        let at = CHECKPOINT_HEADER_BYTES - 4;
        let crc = crc32c(&out[..at]);
        out[at..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        check("checkpoint header length", CHECKPOINT_HEADER_BYTES, bytes.len())?;
        if bytes[..8] != MAGIC {
            let found = bytes[..8].escape_ascii();
            return Err(corrupt("checkpoint magic", MAGIC.escape_ascii(), found));
        }
        let at = CHECKPOINT_HEADER_BYTES - 4;
        check("checkpoint header checksum", crc32c(&bytes[..at]), u32_at(bytes, at))?;
        check_numbers(bytes)?;
        let nonzero = bytes[HEADER_FIELDS_BYTES..at].iter().filter(|byte| **byte != 0).count();
        check("reserved checkpoint bytes", 0, nonzero)?;
        Ok(Self {
            database_id: bytes[16..32].try_into().expect("16 bytes"),
            lsn: Lsn(u64_at(bytes, 32)),
            settings_hash: u64_at(bytes, 40),
            txn_id: TxnId(u64_at(bytes, 48)),
            memory_bytes: u64_at(bytes, 56),
        })
    }
}

named_enum! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum CheckpointBlockKind {
        /// [`CheckpointDatabase`].
        Database = 1 => "database",
        /// [`CheckpointModuleRef`], one each, in the order of their numbers.
        Module = 2 => "module",
        /// A stored table's description as JSON, in the order of their numbers.
        Table = 3 => "table",
        /// [`CheckpointPartition`].
        Partition = 4 => "partition",
        /// Rows of one table on one partition: [`CheckpointRows`].
        Rows = 5 => "rows",
        /// Outcomes under idempotency keys: [`CheckpointKeys`].
        Keys = 6 => "keys",
        /// Places of the other blocks; the last ones in the file.
        Index = 7 => "index",
        /// Procedures that take no calls: [`CheckpointQuarantine`]. Left out if there are none.
        Quarantine = 8 => "quarantine",
        /// Names of callers by number: [`CheckpointPrincipals`]. Left out if there are none.
        Principals = 9 => "principals",
        /// The bytes of a module version out of service: [`CheckpointFormerRef`]. No two have the same hash.
        Former = 10 => "former module",
    }
}

impl CheckpointBlockKind {
    fn decode(byte: u8) -> Result<Self, WireError> {
        let found = Self::ALL.into_iter().find(|kind| *kind as u8 == byte);
        found.ok_or_else(|| corrupt("checkpoint block kind", "1 to 10", byte))
    }
}

/// The head of a block. The stored bytes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointBlock {
    pub kind: CheckpointBlockKind,
    /// The stored bytes are a zstd frame.
    pub compressed: bool,
    /// Partition of rows or of a partition's state; else 0.
    pub partition: PartitionId,
    /// Table of rows or descriptions; else 0.
    pub table: u16,
    /// The checkpoint's, so that blocks of other checkpoints are not believed.
    pub lsn: Lsn,
    /// Position among the blocks of the file.
    pub number: u32,
    /// Rows, keys or index entries; else 1.
    pub items_count: u32,
    pub raw_bytes: u32,
    pub stored_bytes: u32,
    /// CRC-32C of the stored bytes.
    pub stored_crc: u32,
}

impl CheckpointBlock {
    /// Takes the checksum of `stored` and encodes the head.
    pub fn seal(&mut self, stored: &[u8]) -> [u8; CHECKPOINT_BLOCK_HEADER_BYTES] {
        assert!(self.raw_bytes as usize <= CHECKPOINT_RAW_BYTES_MAX);
        self.stored_bytes = stored.len() as u32;
        self.stored_crc = crc32c(stored);
        let mut out = [0; CHECKPOINT_BLOCK_HEADER_BYTES];
        out[..4].copy_from_slice(&BLOCK_MAGIC.to_le_bytes());
        out[8..16].copy_from_slice(&self.lsn.0.to_le_bytes());
        out[16..20].copy_from_slice(&self.number.to_le_bytes());
        out[20] = self.kind as u8;
        out[21] = self.compressed as u8;
        out[22..24].copy_from_slice(&self.partition.0.to_le_bytes());
        out[24..26].copy_from_slice(&self.table.to_le_bytes());
        out[28..32].copy_from_slice(&self.items_count.to_le_bytes());
        out[32..36].copy_from_slice(&self.raw_bytes.to_le_bytes());
        out[36..40].copy_from_slice(&self.stored_bytes.to_le_bytes());
        out[40..44].copy_from_slice(&self.stored_crc.to_le_bytes());
        let crc = crc32c(&out[8..]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        check("block header length", CHECKPOINT_BLOCK_HEADER_BYTES, bytes.len())?;
        check("block magic", BLOCK_MAGIC, u32_at(bytes, 0))?;
        check("block header checksum", crc32c(&bytes[8..]), u32_at(bytes, 4))?;
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        check("reserved block bytes", 0, u16_at(26) as u32 | u32_at(bytes, 44))?;
        if bytes[21] > 1 {
            return Err(corrupt("block compression", "0 or 1", bytes[21]));
        }
        let block = Self {
            kind: CheckpointBlockKind::decode(bytes[20])?,
            compressed: bytes[21] == 1,
            partition: PartitionId(u16_at(22)),
            table: u16_at(24),
            lsn: Lsn(u64_at(bytes, 8)),
            number: u32_at(bytes, 16),
            items_count: u32_at(bytes, 28),
            raw_bytes: u32_at(bytes, 32),
            stored_bytes: u32_at(bytes, 36),
            stored_crc: u32_at(bytes, 40),
        };
        let longest = block.raw_bytes.max(block.stored_bytes) as usize;
        if longest > CHECKPOINT_RAW_BYTES_MAX {
            let bound = format!("at most {CHECKPOINT_RAW_BYTES_MAX}");
            return Err(corrupt("block length", bound, longest));
        }
        if !block.compressed {
            check("stored bytes of a plain block", block.raw_bytes, block.stored_bytes)?;
        }
        Ok(block)
    }

    /// Checks the stored bytes against this head.
    pub fn check_stored(&self, stored: &[u8]) -> Result<(), WireError> {
        check("block length", self.stored_bytes as usize, stored.len())?;
        check("block checksum", self.stored_crc, crc32c(stored))
    }
}

/// The last bytes of the file: without them it is not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointTrailer {
    pub lsn: Lsn,
    /// Offset of the first block of the index. The trailer follows the last one.
    pub index_offset: u64,
    pub file_bytes: u64,
    pub rows: u64,
    /// Bytes of rows, before compression.
    pub row_bytes: u64,
}

impl CheckpointTrailer {
    pub fn encode(&self) -> [u8; CHECKPOINT_TRAILER_BYTES] {
        let mut out = [0; CHECKPOINT_TRAILER_BYTES];
        out[..8].copy_from_slice(&TRAILER_MAGIC);
        let fields = [
            self.lsn.0,
            self.index_offset,
            self.file_bytes,
            self.rows,
            self.row_bytes,
        ];
        for (at, field) in fields.iter().enumerate() {
            out[8 + 8 * at..16 + 8 * at].copy_from_slice(&field.to_le_bytes());
        }
        let crc = crc32c(&out[..60]);
        out[60..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        check("trailer length", CHECKPOINT_TRAILER_BYTES, bytes.len())?;
        if bytes[..8] != TRAILER_MAGIC {
            let found = bytes[..8].escape_ascii();
            return Err(corrupt("trailer magic", TRAILER_MAGIC.escape_ascii(), found));
        }
        check("trailer checksum", crc32c(&bytes[..60]), u32_at(bytes, 60))?;
        check(
            "reserved trailer bytes",
            0,
            u64_at(bytes, 48) | u32_at(bytes, 56) as u64,
        )?;
        Ok(Self {
            lsn: Lsn(u64_at(bytes, 8)),
            index_offset: u64_at(bytes, 16),
            file_bytes: u64_at(bytes, 24),
            rows: u64_at(bytes, 32),
            row_bytes: u64_at(bytes, 40),
        })
    }
}

/// A block as the index names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointEntry {
    pub offset: u64,
    pub stored_bytes: u32,
    pub raw_bytes: u32,
    pub items_count: u32,
    pub kind: CheckpointBlockKind,
    pub partition: PartitionId,
    pub table: u16,
}

impl CheckpointEntry {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.stored_bytes.to_le_bytes());
        out.extend_from_slice(&self.raw_bytes.to_le_bytes());
        out.extend_from_slice(&self.items_count.to_le_bytes());
        out.extend_from_slice(&(self.kind as u32).to_le_bytes());
        out.extend_from_slice(&self.partition.0.to_le_bytes());
        out.extend_from_slice(&self.table.to_le_bytes());
    }

    /// The entries of one block of the index, which are the whole of `bytes`.
    pub fn decode_all(bytes: &[u8]) -> Result<Vec<Self>, WireError> {
        check("remainder of the index", 0, bytes.len() % INDEX_ENTRY_BYTES)?;
        bytes.chunks_exact(INDEX_ENTRY_BYTES).map(Self::decode).collect()
    }

    fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let kind = u32_at(bytes, 20);
        let kind = u8::try_from(kind).map_err(|_| corrupt("checkpoint block kind", "1 to 9", kind))?;
        Ok(Self {
            offset: u64_at(bytes, 0),
            stored_bytes: u32_at(bytes, 8),
            raw_bytes: u32_at(bytes, 12),
            items_count: u32_at(bytes, 16),
            kind: CheckpointBlockKind::decode(kind)?,
            partition: PartitionId(u16::from_le_bytes([bytes[24], bytes[25]])),
            table: u16::from_le_bytes([bytes[26], bytes[27]]),
        })
    }
}

/// Facts about the database, and the number of items of each kind in the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointDatabase {
    pub genesis: Genesis,
    /// The last tick that a multi-partition transaction took.
    pub multi_tick: u64,
    pub modules: u32,
    pub tables: u16,
    pub keys: u64,
    /// The key clock of the mark.
    pub key_clock_us: u64,
}

impl CheckpointDatabase {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(GENESIS_BODY_BYTES + 30);
        push_genesis(out, &self.genesis);
        out.extend_from_slice(&self.multi_tick.to_le_bytes());
        out.extend_from_slice(&self.modules.to_le_bytes());
        out.extend_from_slice(&self.tables.to_le_bytes());
        out.extend_from_slice(&self.keys.to_le_bytes());
        out.extend_from_slice(&self.key_clock_us.to_le_bytes());
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut body = BodyReader::new(bytes);
        let database = Self {
            genesis: decode_genesis(&mut body)?,
            multi_tick: body.u64()?,
            modules: u32::from_le_bytes(body.array()?),
            tables: body.u16()?,
            keys: body.u64()?,
            key_clock_us: body.u64()?,
        };
        body.finish()?;
        if database.tables as usize > TABLES_MAX {
            let bound = format!("at most {TABLES_MAX}");
            return Err(corrupt("tables of the database", bound, database.tables));
        }
        Ok(database)
    }
}

/// The bytes of a module version out of service, so that a rollback finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointFormerRef<'a> {
    /// SHA-256 of `wasm`.
    pub hash: [u8; 32],
    pub wasm: &'a [u8],
}

impl<'a> CheckpointFormerRef<'a> {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.hash);
        out.extend_from_slice(self.wasm);
    }

    pub fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut body = BodyReader::new(bytes);
        Ok(Self {
            hash: body.array()?,
            wasm: body.rest("module", MODULE_BYTES_MAX)?,
        })
    }
}

/// A procedure that takes no calls, as in its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointQuarantine {
    pub module_id: u32,
    pub procedure: u16,
    pub diverged: Lsn,
    pub what: String,
}

impl CheckpointQuarantine {
    pub fn encode(&self, out: &mut Vec<u8>) {
        push_varint(out, self.module_id);
        push_varint(out, self.procedure as u32);
        out.extend_from_slice(&self.diverged.0.to_le_bytes());
        push_bytes(out, self.what.as_bytes());
    }

    /// All of a block, which grow by module and procedure; one at least.
    pub fn decode_all(bytes: &[u8]) -> Result<Vec<Self>, WireError> {
        let mut body = BodyReader::new(bytes);
        let mut found: Vec<Self> = Vec::new();
        while found.is_empty() || !body.is_at_end() {
            let next = Self {
                module_id: body.varint()?,
                procedure: body.varint_u16()?,
                diverged: Lsn(body.u64()?),
                what: body.text("what diverged", QUARANTINE_TEXT_BYTES_MAX)?.to_owned(),
            };
            let place = (next.module_id, next.procedure);
            if found
                .last()
                .is_some_and(|last| (last.module_id, last.procedure) >= place)
            {
                return Err(corrupt("procedures in quarantine", "growing", next.procedure));
            }
            found.push(next);
        }
        Ok(found)
    }
}

/// One partition's place in the order, and the size of its tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointPartition {
    pub last_tick: u64,
    /// End of its last record.
    pub last_end: Lsn,
    /// Counts of each table: rows, and the number of the next row in tables without a primary key.
    pub tables: Vec<(u64, u64)>,
}

impl CheckpointPartition {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.last_tick.to_le_bytes());
        out.extend_from_slice(&self.last_end.0.to_le_bytes());
        for (rows, next_number) in &self.tables {
            out.extend_from_slice(&rows.to_le_bytes());
            out.extend_from_slice(&next_number.to_le_bytes());
        }
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() < 16 || !bytes.len().is_multiple_of(16) || bytes.len() > 16 * (TABLES_MAX + 1) {
            return Err(corrupt(
                "bytes of a partition's state",
                "16 and 16 a table",
                bytes.len(),
            ));
        }
        let pairs = bytes.chunks_exact(16).map(|pair| (u64_at(pair, 0), u64_at(pair, 8)));
        let mut pairs = pairs.collect::<Vec<_>>();
        let (last_tick, last_end) = pairs.remove(0);
        Ok(Self {
            last_tick,
            last_end: Lsn(last_end),
            tables: pairs,
        })
    }
}

/// Appends a row and its number to a block of rows.
#[inline]
pub fn push_checkpoint_row(out: &mut Vec<u8>, row: &[u8], number: u64) {
    push_bytes(out, row);
    out.extend_from_slice(&number.to_le_bytes());
}

/// Walks the rows of a block; ends after the first error.
pub struct CheckpointRows<'a> {
    reader: ValueReader<'a>,
    failed: bool,
}

impl<'a> CheckpointRows<'a> {
    pub fn new(raw: &'a [u8]) -> Self {
        Self {
            reader: ValueReader::new(raw),
            failed: false,
        }
    }

    fn read(&mut self) -> Result<(&'a [u8], u64), WireError> {
        let cut = |_| corrupt("rows of a block", "whole rows", "a row that is cut off");
        let row = self.reader.bytes().map_err(cut)?;
        if row.len() > ROW_BYTES_MAX {
            let bound = format!("at most {ROW_BYTES_MAX} bytes");
            return Err(corrupt("row", bound, row.len()));
        }
        let number = self.reader.array().map_err(cut)?;
        Ok((row, u64::from_le_bytes(number)))
    }
}

impl<'a> Iterator for CheckpointRows<'a> {
    /// A row and its number.
    type Item = Result<(&'a [u8], u64), WireError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.reader.finish().is_ok() {
            return None;
        }
        let row = self.read();
        self.failed = row.is_err();
        Some(row)
    }
}
