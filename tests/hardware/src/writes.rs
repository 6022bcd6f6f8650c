//! The record that `dm-log-writes` keeps of a block device (Documentation/admin-guide/device-mapper/log-writes.rst).

use std::{fs::File, os::unix::fs::FileExt, path::Path};

use anyhow::{Context, Result, ensure};

const MAGIC: u64 = 0x6a_736677_736872;
const FLUSH: u64 = 1;
const FORCED: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;
/// An entry lies in a sector of its own, with a mark's text behind it.
const ENTRY_BYTES: usize = 32;

/// One entry, in the order in which the device completed them.
#[derive(Clone, Debug)]
pub enum Entry {
    Mark(String),
    Write(Write),
    Discard,
}

#[derive(Clone, Debug)]
pub struct Write {
    /// The write's place on the device, in bytes.
    pub start: u64,
    pub bytes: u64,
    /// The place of its data in the record, in bytes.
    pub data: u64,
    /// Everything before it was made safe when it completed.
    pub is_flush: bool,
    /// The write was safe itself when it completed.
    pub is_forced: bool,
}

pub struct Record {
    file: File,
    pub sector_bytes: u64,
    pub entries: Vec<Entry>,
}

impl Record {
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        let mut head = [0; ENTRY_BYTES];
        file.read_exact_at(&mut head, 0).context("read the record's head")?;
        ensure!(word(&head, 0) == MAGIC, "not a record of dm-log-writes");
        ensure!(word(&head, 1) == 1, "version {} of dm-log-writes", word(&head, 1));
        let count = word(&head, 2);
        let sector_bytes = word(&head, 3) & 0xffff_ffff;
        let mut record = Self {
            file,
            sector_bytes,
            entries: Vec::new(),
        };
        let mut at = sector_bytes;
        for _ in 0..count {
            at = record.take(at)?;
        }
        Ok(record)
    }

    /// Reads the entry at `at`, and returns the place of the next one.
    fn take(&mut self, at: u64) -> Result<u64> {
        let mut sector = vec![0; self.sector_bytes as usize];
        self.file.read_exact_at(&mut sector, at).context("read an entry")?;
        let [start, sectors, flags, inline] = [0, 1, 2, 3].map(|index| word(&sector, index));
        let (start, bytes) = (start * self.sector_bytes, sectors * self.sector_bytes);
        let data = at + self.sector_bytes;
        if flags & MARK != 0 {
            let text = &sector[ENTRY_BYTES..][..inline as usize];
            self.entries.push(Entry::Mark(
                String::from_utf8_lossy(text).trim_end_matches('\0').to_owned(),
            ));
            return Ok(data);
        }
        if flags & DISCARD != 0 {
            self.entries.push(Entry::Discard);
            return Ok(data);
        }
        let is_flush = flags & FLUSH != 0;
        self.entries.push(Entry::Write(Write {
            start,
            bytes,
            data,
            is_flush,
            is_forced: flags & FORCED != 0,
        }));
        Ok(data + bytes)
    }

    /// Returns the first `bytes` of a write.
    pub fn data(&self, write: &Write, bytes: u64) -> Result<Vec<u8>> {
        let mut data = vec![0; bytes.min(write.bytes) as usize];
        self.file
            .read_exact_at(&mut data, write.data)
            .context("read a write's data")?;
        Ok(data)
    }
}

fn word(bytes: &[u8], index: usize) -> u64 {
    let word = bytes[8 * index..][..8].try_into();
    u64::from_le_bytes(word.expect("eight bytes"))
}
