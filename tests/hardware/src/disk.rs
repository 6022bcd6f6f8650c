//! Disks that a power failure may leave, made of the record of the writes.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::Rng;

use crate::writes::{Entry, Record, Write};

/// The safe part of the disk, moved on from point to point.
pub struct SafeDisk<'a> {
    record: &'a Record,
    image: PathBuf,
    file: File,
    /// Entries whose effect is in the image.
    applied: usize,
}

impl<'a> SafeDisk<'a> {
    pub fn new(record: &'a Record, image: PathBuf, bytes: u64) -> Result<Self> {
        let file = File::create(&image).context("create the disk's image")?;
        file.set_len(bytes).context("size the disk's image")?;
        Ok(Self {
            record,
            image,
            file,
            applied: 0,
        })
    }

    /// Writes to `copy` the bytes that a power failure right behind `entries[point - 1]` may leave. Points may only grow.
    pub fn fail_at(&mut self, point: usize, copy: &Path, rng: &mut Rng) -> Result<()> {
        let record = self.record;
        let is_safe = |entry: &Entry| matches!(entry, Entry::Write(write) if write.is_flush);
        let flushed = record.entries[..point].iter().rposition(is_safe).map_or(0, |at| at + 1);
        for entry in &record.entries[self.applied.min(flushed)..flushed] {
            apply(record, entry, &self.file)?;
        }
        self.applied = self.applied.max(flushed);
        fs::copy(&self.image, copy).context("copy the disk")?;
        let disk = File::options().write(true).open(copy).context("open the copy")?;
        for entry in &record.entries[flushed..point] {
            match entry {
                Entry::Write(write) if !write.is_forced => tear(record, write, &disk, rng)?,
                _ => apply(record, entry, &disk)?,
            }
        }
        Ok(())
    }
}

fn apply(record: &Record, entry: &Entry, disk: &File) -> Result<()> {
    match entry {
        Entry::Write(write) => put(disk, write.start, &record.data(write, write.bytes)?),
        // Discarded bytes may read as anything. The old bytes are the hardest case, because they look like present ones.
        Entry::Discard | Entry::Mark(_) => Ok(()),
    }
}

/// A write that no flush made safe: all of it, nothing, or its first sectors.
fn tear(record: &Record, write: &Write, disk: &File, rng: &mut Rng) -> Result<()> {
    let sectors = write.bytes / record.sector_bytes;
    let kept = match rng.below(4) {
        0 => 0,
        1 if sectors > 0 => rng.below(sectors) * record.sector_bytes,
        _ => write.bytes,
    };
    put(disk, write.start, &record.data(write, kept)?)
}

fn put(disk: &File, start: u64, data: &[u8]) -> Result<()> {
    disk.write_all_at(data, start).context("write to the disk's image")
}

/// Replays the file system's journal, as mounting does, and takes everything out of it into `to`.
pub fn take_out(image: &Path, to: &Path) -> Result<()> {
    let replayed = tool("e2fsck")
        .args(["-y", "-E", "journal_only"])
        .arg(image)
        .output()
        .context("run e2fsck")?;
    ensure!(
        matches!(replayed.status.code(), Some(0 | 1)),
        "e2fsck: {}{}",
        String::from_utf8_lossy(&replayed.stdout),
        String::from_utf8_lossy(&replayed.stderr)
    );
    fs::create_dir_all(to).context("create the directory of what was taken out")?;
    let command = format!("rdump / {}", to.display());
    let dumped = tool("debugfs")
        .args(["-R", &command])
        .arg(image)
        .output()
        .context("run debugfs")?;
    ensure!(
        dumped.status.success(),
        "debugfs: {}",
        String::from_utf8_lossy(&dumped.stderr)
    );
    Ok(())
}

/// A program that Debian keeps out of people's PATH.
fn tool(name: &str) -> Command {
    let found = ["/usr/sbin", "/sbin"]
        .map(|dir| Path::new(dir).join(name))
        .into_iter()
        .find(|path| path.is_file());
    Command::new(found.unwrap_or_else(|| name.into()))
}
