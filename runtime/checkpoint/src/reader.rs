//! Reads one checkpoint. A reader is shared by threads: each reads the blocks of its own partitions.

use std::{cell::Cell, sync::Arc};

use reprise_base::{Lsn, PartitionId, hex};
use reprise_env::{Disk, DiskFile};
use reprise_wire::{
    CHECKPOINT_BLOCK_HEADER_BYTES, CHECKPOINT_HEADER_BYTES, CHECKPOINT_RAW_BYTES_MAX, CHECKPOINT_TRAILER_BYTES,
    CheckpointBlock, CheckpointBlockKind, CheckpointDatabase, CheckpointEntry, CheckpointFormerRef, CheckpointHeader,
    CheckpointModuleRef, CheckpointPartition, CheckpointPrincipals, CheckpointQuarantine, CheckpointTrailer,
    INDEX_BLOCK_ENTRIES, WireError, check, corrupt,
};
use zstd::bulk::Decompressor;

use crate::{CheckpointSize, error::CheckpointError};

/// A module version as a checkpoint holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredModule(Vec<u8>);

impl StoredModule {
    /// Decoded.
    pub fn get(&self) -> CheckpointModuleRef<'_> {
        CheckpointModuleRef::decode(&self.0).expect("decoded when it was read")
    }
}

/// See the module's header.
#[derive(Debug)]
pub struct CheckpointReader {
    name: String,
    file: Opaque,
    header: CheckpointHeader,
    trailer: CheckpointTrailer,
    entries: Vec<CheckpointEntry>,
    database: CheckpointDatabase,
    modules: Vec<StoredModule>,
    /// JSON, by table number.
    tables: Vec<Vec<u8>>,
    /// The partitions by number.
    partitions: Vec<CheckpointPartition>,
    quarantine: Vec<CheckpointQuarantine>,
    principals: Vec<(u32, String)>,
}

struct Opaque(Arc<dyn DiskFile>);

impl std::fmt::Debug for Opaque {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("file")
    }
}

impl CheckpointReader {
    pub(crate) fn open(disk: &dyn Disk, name: &str, lsn: Lsn) -> Result<Self, CheckpointError> {
        let name = name.to_owned();
        let file = disk.open_read(&name)?;
        let header = read_header(&*file, &name, lsn)?;
        let trailer = read_trailer(&*file, &name, lsn)?;
        let mut reader = Self {
            file: Opaque(file),
            header,
            trailer,
            entries: Vec::new(),
            database: CheckpointDatabase {
                genesis: reprise_wire::Genesis {
                    database_id: header.database_id,
                    secret: [0; 2],
                    partitions: 1,
                    created_us: 0,
                },
                multi_tick: 0,
                modules: 0,
                tables: 0,
                keys: 0,
                key_clock_us: 0,
            },
            modules: Vec::new(),
            tables: Vec::new(),
            partitions: Vec::new(),
            quarantine: Vec::new(),
            principals: Vec::new(),
            name,
        };
        reader.read_index()?;
        reader.read_descriptions()?;
        reader.check_whole()?;
        Ok(reader)
    }

    /// Name of the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The header of the file.
    pub fn header(&self) -> &CheckpointHeader {
        &self.header
    }

    /// Returns the LSN before which it holds everything.
    pub fn lsn(&self) -> Lsn {
        self.header.lsn
    }

    /// Its file and its rows.
    pub fn size(&self) -> CheckpointSize {
        CheckpointSize {
            file_bytes: self.trailer.file_bytes,
            rows: self.trailer.rows,
            row_bytes: self.trailer.row_bytes,
        }
    }

    /// Settings and counters of the database.
    pub fn database(&self) -> &CheckpointDatabase {
        &self.database
    }

    /// All module versions, by number.
    pub fn modules(&self) -> &[StoredModule] {
        &self.modules
    }

    /// The bytes of a module version by their SHA-256, of one in service or out of it. None if the checkpoint does not have them.
    pub fn module_bytes(&self, hash: &[u8; 32]) -> Result<Option<Vec<u8>>, CheckpointError> {
        let modules = self.modules.iter().map(StoredModule::get);
        let mut in_service = modules.filter(|module| module.in_service && module.hash == *hash);
        if let Some(module) = in_service.next() {
            return Ok(Some(module.wasm.to_vec()));
        }
        let mut blocks = self.blocks();
        let entries = self.entries.iter().enumerate();
        for (number, entry) in entries.filter(|(_, entry)| entry.kind == CheckpointBlockKind::Former) {
            let former = CheckpointFormerRef::decode(blocks.read(number)?);
            let former = former.map_err(|error| self.corrupt(entry, error))?;
            if former.hash == *hash {
                return Ok(Some(former.wasm.to_vec()));
            }
        }
        Ok(None)
    }

    /// The tables' descriptions as JSON, by number.
    pub fn tables(&self) -> &[Vec<u8>] {
        &self.tables
    }

    /// How far a partition was, which the database has.
    pub fn partition(&self, id: PartitionId) -> &CheckpointPartition {
        &self.partitions[id.index()]
    }

    /// Procedures that take no calls.
    pub fn quarantine(&self) -> &[CheckpointQuarantine] {
        &self.quarantine
    }

    /// Names of callers by number.
    pub fn principals(&self) -> &[(u32, String)] {
        &self.principals
    }

    /// Positions of the blocks.
    pub fn entries(&self) -> &[CheckpointEntry] {
        &self.entries
    }

    /// An error about the contents of a block.
    pub fn corrupt(&self, entry: &CheckpointEntry, error: WireError) -> CheckpointError {
        CheckpointError::at(&self.name, entry.offset)(error)
    }

    /// Reads blocks one after the other, checked and decompressed.
    pub fn blocks(&self) -> Blocks<'_> {
        Blocks {
            reader: self,
            decompressor: SpareDecompressor(None),
            stored: Vec::new(),
            raw: Vec::new(),
        }
    }

    /// Reads and checks every block.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        let mut blocks = self.blocks();
        for number in 0..self.entries.len() {
            blocks.read(number)?;
        }
        Ok(())
    }

    /// Checks the stored bytes of blocks from `number` on, without decoding them, until they are `bytes` or more. Returns the next block's
    /// number.
    pub fn check_stored(&self, number: usize, bytes: usize) -> Result<usize, CheckpointError> {
        let (mut number, mut checked) = (number, 0);
        let mut blocks = self.blocks();
        while number < self.entries.len() && checked < bytes {
            let block = blocks.read_stored(self.entries[number].offset, Some(number as u32))?;
            checked += block.stored_bytes as usize;
            number += 1;
        }
        Ok(number)
    }

    fn read_index(&mut self) -> Result<(), CheckpointError> {
        let mut blocks = self.blocks();
        let mut entries = Vec::new();
        let (mut at, mut first, mut count) = (self.trailer.index_offset, None, 0);
        let end = self.trailer.file_bytes - CHECKPOINT_TRAILER_BYTES as u64;
        while at < end {
            let block = blocks.read_at(at, None)?;
            let mut validate = || {
                check("kind of a block of the index", "index", block.kind.name())?;
                let number = *first.get_or_insert(block.number);
                let expected = u64::from(number) + count as u64;
                check("number of a block of the index", expected, u64::from(block.number))?;
                // All but the last one are full.
                check(
                    "entries of the index before",
                    count * INDEX_BLOCK_ENTRIES,
                    entries.len(),
                )?;
                let found = CheckpointEntry::decode_all(&blocks.raw)?;
                check(
                    "entries of a block of the index",
                    block.items_count as usize,
                    found.len(),
                )?;
                entries.extend(found);
                Ok(())
            };
            validate().map_err(CheckpointError::at(&self.name, at))?;
            at += CHECKPOINT_BLOCK_HEADER_BYTES as u64 + u64::from(block.stored_bytes);
            count += 1;
        }
        let validate = || {
            check("end of the index", end, at)?;
            check("blocks before the index", first.unwrap_or(0) as usize, entries.len())
        };
        validate().map_err(CheckpointError::at(&self.name, self.trailer.index_offset))?;
        self.entries = entries;
        Ok(())
    }

    fn read_descriptions(&mut self) -> Result<(), CheckpointError> {
        use CheckpointBlockKind as Kind;
        let (mut modules, mut tables, mut partitions) = (Vec::new(), Vec::new(), Vec::new());
        let (mut database, mut quarantine, mut principals) = (None, None, None);
        let mut blocks = self.blocks();
        for (number, entry) in self.entries.iter().enumerate() {
            if matches!(entry.kind, Kind::Rows | Kind::Keys | Kind::Index | Kind::Former) {
                continue;
            }
            let raw = blocks.read(number)?;
            let checked = match entry.kind {
                Kind::Database => CheckpointDatabase::decode(raw).map(|found| database = Some(found)),
                Kind::Module => CheckpointModuleRef::decode(raw).and_then(|module| {
                    check("module number", modules.len() as u32, module.module_id)?;
                    modules.push(StoredModule(raw.to_vec()));
                    Ok(())
                }),
                Kind::Quarantine => CheckpointQuarantine::decode_all(raw).and_then(|found| {
                    check("procedures in quarantine", entry.items_count as usize, found.len())?;
                    check("blocks of quarantine before it", 0, quarantine.iter().len())?;
                    quarantine = Some(found);
                    Ok(())
                }),
                Kind::Principals => CheckpointPrincipals::decode_all(raw).and_then(|found| {
                    check("principals", entry.items_count as usize, found.len())?;
                    check("blocks of principals before it", 0, principals.iter().len())?;
                    principals = Some(
                        found
                            .into_iter()
                            .map(|(number, name)| (number, name.to_owned()))
                            .collect(),
                    );
                    Ok(())
                }),
                Kind::Table => {
                    let known = tables.len();
                    tables.push(raw.to_vec());
                    check("table number", known, entry.table as usize)
                }
                _ => CheckpointPartition::decode(raw).and_then(|state| {
                    check("partition", partitions.len(), entry.partition.index())?;
                    partitions.push(state);
                    Ok(())
                }),
            };
            checked.map_err(|error| self.corrupt(entry, error))?;
        }
        let missing = || corrupt("block of the database", "one", "none");
        let database = database.ok_or_else(missing);
        self.database = database.map_err(CheckpointError::at(&self.name, 0))?;
        (self.modules, self.tables, self.partitions) = (modules, tables, partitions);
        self.quarantine = quarantine.unwrap_or_default();
        self.principals = principals.unwrap_or_default();
        Ok(())
    }

    /// The parts fit together, and none is missing.
    fn check_whole(&self) -> Result<(), CheckpointError> {
        use CheckpointBlockKind as Kind;
        let validate = || {
            let (database, tables) = (&self.database, self.tables.len());
            let id = self.header.database_id;
            check("database id", hex(&id), hex(&database.genesis.database_id))?;
            check("modules", database.modules as usize, self.modules.len())?;
            check("tables", database.tables as usize, tables)?;
            let partitions = database.genesis.partitions as usize;
            check("partitions", partitions, self.partitions.len())?;
            let last = self.quarantine.last().map_or(0, |last| last.module_id as usize + 1);
            if last > self.modules.len() {
                return Err(corrupt(
                    "procedure in quarantine of",
                    "a known module",
                    "an unknown one",
                ));
            }
            let mut rows = vec![0u64; partitions * tables];
            let mut keys = 0u64;
            for entry in &self.entries {
                match entry.kind {
                    Kind::Rows => {
                        let (partition, table) = (entry.partition.index(), entry.table as usize);
                        if partition >= partitions || table >= tables {
                            return Err(corrupt("rows of", "a known table", "an unknown one"));
                        }
                        rows[partition * tables + table] += entry.items_count as u64;
                    }
                    Kind::Keys => keys += entry.items_count as u64,
                    _ => {}
                }
            }
            check("idempotency keys", database.keys, keys)?;
            for (at, state) in self.partitions.iter().enumerate() {
                check("tables of a partition", tables, state.tables.len())?;
                let expected = state.tables.iter().map(|(count, _)| *count);
                for (expected, found) in expected.zip(&rows[at * tables..]) {
                    check("rows of a table", expected, *found)?;
                }
            }
            check("rows", self.trailer.rows, rows.iter().sum::<u64>())
        };
        validate().map_err(CheckpointError::at(&self.name, self.trailer.index_offset))
    }
}

/// Reads blocks into buffers of its own.
pub struct Blocks<'r> {
    reader: &'r CheckpointReader,
    decompressor: SpareDecompressor,
    stored: Vec<u8>,
    raw: Vec<u8>,
}

thread_local! {
    /// The decompressor that this thread used last.
    static SPARE: Cell<Option<Decompressor<'static>>> = const { Cell::new(None) };
}

/// A decompressor, made when the first block needs it and left to the thread's next reader. It takes 160 KiB, and a checkpoint of many
/// small tables has as many readers.
struct SpareDecompressor(Option<Decompressor<'static>>);

impl SpareDecompressor {
    fn get(&mut self) -> std::io::Result<&mut Decompressor<'static>> {
        if self.0.is_none() {
            let spare = SPARE.try_with(Cell::take).ok().flatten();
            self.0 = Some(spare.map_or_else(Decompressor::new, Ok)?);
        }
        Ok(self.0.as_mut().expect("made above"))
    }
}

impl Drop for SpareDecompressor {
    fn drop(&mut self) {
        if let Some(decompressor) = self.0.take() {
            // A thread that ends takes it with it.
            let _ended = SPARE.try_with(|spare| spare.set(Some(decompressor)));
        }
    }
}

impl Blocks<'_> {
    /// The contents of block `number`.
    pub fn read(&mut self, number: usize) -> Result<&[u8], CheckpointError> {
        let entry = self.reader.entries[number];
        let block = self.read_at(entry.offset, Some(number as u32))?;
        let validate = || {
            check("kind of the block", entry.kind.name(), block.kind.name())?;
            check("partition of the block", entry.partition.0, block.partition.0)?;
            check("table of the block", entry.table, block.table)?;
            check("items of the block", entry.items_count, block.items_count)?;
            check("bytes of the block", entry.raw_bytes, block.raw_bytes)
        };
        validate().map_err(CheckpointError::at(&self.reader.name, entry.offset))?;
        Ok(&self.raw)
    }

    /// Moves the contents of the block that was read last out.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.raw)
    }

    /// A buffer to read into, if there is none.
    pub fn give(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() > self.raw.capacity() {
            self.raw = buffer;
        }
    }

    /// Reads the stored bytes of the block at an offset into `self.stored`.
    fn read_stored(&mut self, offset: u64, number: Option<u32>) -> Result<CheckpointBlock, CheckpointError> {
        let (name, file) = (&self.reader.name, &*self.reader.file.0);
        let mut head = [0; CHECKPOINT_BLOCK_HEADER_BYTES];
        let read = file.read_at(offset, &mut head)?;
        let block = CheckpointBlock::decode(&head[..read])
            .and_then(|block| {
                check("checkpoint of the block", self.reader.header.lsn.0, block.lsn.0)?;
                check("number of the block", number.unwrap_or(block.number), block.number)?;
                Ok(block)
            })
            .map_err(CheckpointError::at(name, offset))?;
        self.stored.resize(block.stored_bytes as usize, 0);
        let at = offset + CHECKPOINT_BLOCK_HEADER_BYTES as u64;
        let read = file.read_at(at, &mut self.stored)?;
        let checked = block.check_stored(&self.stored[..read]);
        checked.map_err(CheckpointError::at(name, offset))?;
        Ok(block)
    }

    /// Reads the block at an offset into `self.raw`.
    fn read_at(&mut self, offset: u64, number: Option<u32>) -> Result<CheckpointBlock, CheckpointError> {
        let block = self.read_stored(offset, number)?;
        let name = &self.reader.name;
        if !block.compressed {
            std::mem::swap(&mut self.stored, &mut self.raw);
            return Ok(block);
        }
        self.raw.clear();
        self.raw
            .reserve((block.raw_bytes as usize).min(CHECKPOINT_RAW_BYTES_MAX));
        let decompressor = self.decompressor.get();
        let decompressor = decompressor.map_err(|error| CheckpointError::Compress(error.to_string()))?;
        let done = decompressor.decompress_to_buffer(&self.stored, &mut self.raw);
        let checked = match done {
            Ok(bytes) => check("decompressed bytes", block.raw_bytes as usize, bytes),
            Err(error) => Err(corrupt("compressed block", "a zstd frame", error)),
        };
        checked.map_err(CheckpointError::at(name, offset))?;
        Ok(block)
    }
}

fn read_header(file: &dyn DiskFile, name: &str, lsn: Lsn) -> Result<CheckpointHeader, CheckpointError> {
    let mut bytes = [0; CHECKPOINT_HEADER_BYTES];
    let read = file.read_at(0, &mut bytes)?;
    let validate = || {
        let header = CheckpointHeader::decode(&bytes[..read])?;
        check("position in the header", lsn.0, header.lsn.0)?;
        Ok(header)
    };
    validate().map_err(CheckpointError::at(name, 0))
}

fn read_trailer(file: &dyn DiskFile, name: &str, lsn: Lsn) -> Result<CheckpointTrailer, CheckpointError> {
    let file_bytes = file.len()?;
    let at = file_bytes.saturating_sub(CHECKPOINT_TRAILER_BYTES as u64);
    let mut bytes = [0; CHECKPOINT_TRAILER_BYTES];
    let read = file.read_at(at, &mut bytes)?;
    let validate = || {
        let trailer = CheckpointTrailer::decode(&bytes[..read])?;
        check("bytes of the file", trailer.file_bytes, file_bytes)?;
        check("position in the trailer", lsn.0, trailer.lsn.0)?;
        Ok(trailer)
    };
    validate().map_err(CheckpointError::at(name, at))
}
