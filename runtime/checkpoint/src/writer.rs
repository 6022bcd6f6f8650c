//! Writes one checkpoint: blocks in any order, then the index, the trailer, and the name.

use std::sync::Arc;

use reprise_base::PartitionId;
use reprise_env::{Disk, DiskFile};
use reprise_wire::{
    CHECKPOINT_RAW_BYTES_MAX, CheckpointBlock, CheckpointBlockKind, CheckpointEntry, CheckpointHeader,
    CheckpointTrailer, INDEX_BLOCK_ENTRIES,
};
use zstd::bulk::Compressor;

use crate::{CheckpointReader, TEMPORARY_NAME, checkpoint_name, error::CheckpointError};

/// A fast level, above all for reading. The rows are a sixth larger than with level 1, and are read in two thirds of the time.
const COMPRESSION_LEVEL: i32 = -1;
/// Bytes gathered for one write.
const WRITE_BYTES: usize = 1 << 20;
/// Bytes after which the file is synced: one sync of everything at the end would hold the device up for the log.
const SYNC_EVERY_BYTES: u64 = 16 << 20;

/// Size of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointSize {
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Rows of all tables and partitions.
    pub rows: u64,
    /// Bytes of rows before compression.
    pub row_bytes: u64,
}

/// A checkpoint on its way; dropped unpublished, nothing of it stays.
pub struct CheckpointWriter {
    disk: Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
    header: CheckpointHeader,
    compressor: Compressor<'static>,
    compressed: Vec<u8>,
    /// Bytes not written yet.
    buffer: Vec<u8>,
    written: u64,
    synced: u64,
    /// Blocks written, and the next block's number.
    blocks: u32,
    entries: Vec<CheckpointEntry>,
    size: CheckpointSize,
    is_published: bool,
}

impl CheckpointWriter {
    pub(crate) fn create(disk: Arc<dyn Disk>, header: CheckpointHeader) -> Result<Self, CheckpointError> {
        let compressor = Compressor::new(COMPRESSION_LEVEL);
        let compressor = compressor.map_err(|error| CheckpointError::Compress(error.to_string()))?;
        Ok(Self {
            file: disk.create(TEMPORARY_NAME)?,
            disk,
            compressor,
            compressed: Vec::new(),
            buffer: header.encode().to_vec(),
            header,
            written: 0,
            synced: 0,
            blocks: 0,
            entries: Vec::new(),
            size: CheckpointSize::default(),
            is_published: false,
        })
    }

    /// Returns the size of the written part.
    pub fn size(&self) -> CheckpointSize {
        CheckpointSize {
            file_bytes: self.written + self.buffer.len() as u64,
            ..self.size
        }
    }

    /// Adds a block. `items` counts what `raw` holds; at least one.
    pub fn block(
        &mut self,
        kind: CheckpointBlockKind,
        partition: PartitionId,
        table: u16,
        items: u32,
        raw: &[u8],
    ) -> Result<(), CheckpointError> {
        if raw.len() > CHECKPOINT_RAW_BYTES_MAX {
            let (kind, bytes) = (kind.name(), raw.len());
            let reason =
                format!("a block of kind {kind} has {bytes} bytes, and {CHECKPOINT_RAW_BYTES_MAX} at most are read");
            return Err(CheckpointError::GivenUp(reason));
        }
        let offset = self.size().file_bytes;
        let compressed = self.compress(raw)?;
        let mut block = CheckpointBlock {
            kind,
            compressed,
            partition,
            table,
            lsn: self.header.lsn,
            number: self.blocks,
            items_count: items,
            raw_bytes: raw.len() as u32,
            stored_bytes: 0,
            stored_crc: 0,
        };
        let stored = if compressed { &self.compressed[..] } else { raw };
        let head = block.seal(stored);
        self.buffer.extend_from_slice(&head);
        self.buffer.extend_from_slice(stored);
        self.blocks = self.blocks.checked_add(1).ok_or_else(|| {
            CheckpointError::GivenUp(format!(
                "it has more than {} blocks, and they are numbered in 32 bits",
                u32::MAX
            ))
        })?;
        if self.buffer.len() >= WRITE_BYTES {
            self.flush()?;
        }
        self.entries.push(CheckpointEntry {
            offset,
            stored_bytes: block.stored_bytes,
            raw_bytes: block.raw_bytes,
            items_count: items,
            kind,
            partition,
            table,
        });
        if kind == CheckpointBlockKind::Rows {
            self.size.rows += items as u64;
            self.size.row_bytes += raw.len() as u64;
        }
        Ok(())
    }

    /// Fills `self.compressed`. False if that would not be shorter.
    fn compress(&mut self, raw: &[u8]) -> Result<bool, CheckpointError> {
        self.compressed.clear();
        self.compressed.reserve(zstd::zstd_safe::compress_bound(raw.len()));
        let done = self.compressor.compress_to_buffer(raw, &mut self.compressed);
        let bytes = done.map_err(|error| CheckpointError::Compress(error.to_string()))?;
        Ok(bytes < raw.len())
    }

    fn flush(&mut self) -> Result<(), CheckpointError> {
        self.file.write_at(self.written, &self.buffer)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        if self.written - self.synced >= SYNC_EVERY_BYTES {
            self.file.sync()?;
            self.synced = self.written;
        }
        Ok(())
    }

    /// Ends the file and makes it durable. It has no name yet, and `read_back` reads it.
    pub fn finish(&mut self) -> Result<CheckpointSize, CheckpointError> {
        let index_offset = self.size().file_bytes;
        let entries = std::mem::take(&mut self.entries);
        let mut raw = Vec::new();
        for part in entries.chunks(INDEX_BLOCK_ENTRIES) {
            raw.clear();
            part.iter().for_each(|entry| entry.encode(&mut raw));
            let count = part.len() as u32;
            self.block(CheckpointBlockKind::Index, PartitionId(0), 0, count, &raw)?;
        }
        let mut size = self.size();
        size.file_bytes += reprise_wire::CHECKPOINT_TRAILER_BYTES as u64;
        let trailer = CheckpointTrailer {
            lsn: self.header.lsn,
            index_offset,
            file_bytes: size.file_bytes,
            rows: size.rows,
            row_bytes: size.row_bytes,
        };
        self.buffer.extend_from_slice(&trailer.encode());
        self.flush()?;
        self.file.sync()?;
        Ok(size)
    }

    /// Opens the finished file, like a recovery.
    pub fn read_back(&self) -> Result<CheckpointReader, CheckpointError> {
        CheckpointReader::open(&*self.disk, TEMPORARY_NAME, self.header.lsn)
    }

    /// Gives the finished file its final name. The caller has made sure that the log is durable up to the checkpoint's position.
    pub fn publish(mut self) -> Result<(), CheckpointError> {
        self.disk.rename(TEMPORARY_NAME, &checkpoint_name(self.header.lsn))?;
        self.is_published = true;
        Ok(self.disk.sync_dir()?)
    }
}

impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        if !self.is_published {
            // A file that stays is removed at the next opening or checkpoint.
            let _ = self.disk.remove(TEMPORARY_NAME);
        }
    }
}
