//! Regions behind the calls of a file system (NV-Disk with decentralised buffers, NV-Logging, table 3). Each site has a buffer of its own, in
//! ordinary memory. A commit writes the part that its thread filled to the file, and syncs it.

use std::{
    cell::RefCell,
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use reprise_nvram::{Memory, OpenMemory, Persistence, PmemError};

thread_local! {
    /// The bytes that this thread wrote and did not sync yet: the region, and the range.
    static WRITTEN: RefCell<Vec<(usize, usize, usize)>> = const { RefCell::new(Vec::new()) };
}

/// Number of regions until now.
static REGIONS: AtomicUsize = AtomicUsize::new(0);

pub struct FileRegions;

struct FileMemory {
    number: usize,
    file: File,
    words: Box<[AtomicU64]>,
}

impl OpenMemory for FileRegions {
    fn open(&self, path: &Path, bytes: Option<u64>) -> Result<Arc<dyn Memory>, PmemError> {
        let failed = |error: io::Error| PmemError::File {
            path: path.to_owned(),
            error,
        };
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path);
        let file = file.map_err(failed)?;
        let there = file.metadata().map_err(failed)?.len();
        let bytes = bytes.unwrap_or(there);
        if there != 0 && there != bytes {
            return Err(PmemError::Size {
                path: path.to_owned(),
                found: there,
                asked: bytes,
            });
        }
        file.set_len(bytes).map_err(failed)?;
        let mut image = vec![0; bytes as usize];
        file.read_exact_at(&mut image, 0).map_err(failed)?;
        let words = image.as_chunks::<8>().0.iter();
        Ok(Arc::new(FileMemory {
            number: REGIONS.fetch_add(1, Ordering::Relaxed),
            file,
            words: words.map(|word| AtomicU64::new(u64::from_le_bytes(*word))).collect(),
        }))
    }
}

impl FileMemory {
    fn record_write(&self, at: usize, bytes: usize) {
        WRITTEN.with_borrow_mut(|written| match written.last_mut() {
            Some((number, _, end)) if *number == self.number && *end == at => *end = at + bytes,
            _ => written.push((self.number, at, at + bytes)),
        });
    }
}

impl Memory for FileMemory {
    fn bytes(&self) -> usize {
        self.words.len() * 8
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at.is_multiple_of(8), "objects and headers lie at words");
        for (n, piece) in bytes.chunks(8).enumerate() {
            let place = &self.words[at / 8 + n];
            let mut word = place.load(Ordering::Relaxed).to_le_bytes();
            word[..piece.len()].copy_from_slice(piece);
            place.store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        self.record_write(at, bytes.len());
    }

    fn store(&self, at: usize, word: u64) {
        self.words[at / 8].store(word, Ordering::Release);
        self.record_write(at, 8);
    }

    fn store_all(&self, at: usize, words: &[u64]) {
        for (n, word) in words.iter().enumerate() {
            self.store(at + n * 8, *word);
        }
    }

    fn load(&self, at: usize) -> u64 {
        self.words[at / 8].load(Ordering::Acquire)
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        for (n, byte) in into.iter_mut().enumerate() {
            let place = at + n;
            *byte = self.words[place / 8].load(Ordering::Relaxed).to_le_bytes()[place % 8];
        }
    }

    fn drain(&self) {
        let mine = WRITTEN.with_borrow_mut(|written| {
            let mine: Vec<_> = written.extract_if(.., |(number, ..)| *number == self.number).collect();
            mine
        });
        if mine.is_empty() {
            return;
        }
        let mut bytes = Vec::new();
        for (_, at, end) in mine {
            bytes.resize(end - at, 0);
            self.read(at, &mut bytes);
            let written = self.file.write_all_at(&bytes, at as u64);
            written.expect("a comparison goes on with what it wrote");
        }
        self.file.sync_data().expect("a comparison goes on with what it wrote");
    }

    fn persistence(&self) -> Persistence {
        Persistence::Assumed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drained_bytes_are_in_the_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("region");
        let memory = FileRegions.open(&path, Some(4096)).expect("a region");
        memory.write(64, &[1; 100]);
        memory.store_all(1024, &[7, 8]);
        assert!(std::fs::read(&path).expect("the file").iter().all(|byte| *byte == 0));
        // Another thread's wait is for what that wrote.
        std::thread::scope(|scope| {
            scope.spawn(|| memory.drain());
        });
        assert!(std::fs::read(&path).expect("the file").iter().all(|byte| *byte == 0));
        memory.drain();
        drop(memory);
        let memory = FileRegions.open(&path, None).expect("a region");
        let mut back = [0; 102];
        memory.read(63, &mut back);
        assert_eq!((back[0], back[1], back[100], back[101]), (0, 1, 1, 0));
        assert_eq!((memory.load(1024), memory.load(1032)), (7, 8));
        assert!(matches!(
            FileRegions.open(&path, Some(8192)),
            Err(PmemError::Size { .. })
        ));
    }
}
