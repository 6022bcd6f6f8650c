//! A disk for reading alone, whose changes stay in memory. A tool that only inspects a database opens it so.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use crate::disk::{Disk, DiskError, DiskErrorKind, DiskFile, DiskLock};

const PAGE_BYTES: u64 = 4096;

/// The files of another disk, with changes that end with it. Not one byte is written below.
pub struct OverlayDisk {
    below: Arc<dyn Disk>,
    /// Files that were opened to be written, made, renamed or removed (None), by name.
    changed: Mutex<BTreeMap<String, Option<Arc<OverlayFile>>>>,
}

struct OverlayFile {
    name: String,
    /// The file as the disk has it; a file that was made here has none.
    base: Option<Arc<dyn DiskFile>>,
    state: Mutex<FileState>,
}

struct FileState {
    bytes: u64,
    /// The base's bytes before this place were overwritten with zeros.
    zeroed: u64,
    /// Pages that were written, by number.
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl OverlayDisk {
    /// Reads this disk.
    pub fn new(below: Arc<dyn Disk>) -> Self {
        Self {
            below,
            changed: Mutex::default(),
        }
    }

    fn changed(&self) -> MutexGuard<'_, BTreeMap<String, Option<Arc<OverlayFile>>>> {
        self.changed.lock().expect("no code panics under this lock")
    }

    fn missing(action: &'static str, name: &str) -> DiskError {
        DiskError::new(action, name, DiskErrorKind::NotFound, "there is no such file")
    }

    /// The file under a name, to be changed.
    fn file(&self, action: &'static str, name: &str) -> Result<Arc<OverlayFile>, DiskError> {
        let mut changed = self.changed();
        match changed.get(name) {
            Some(Some(file)) => Ok(file.clone()),
            Some(None) => Err(Self::missing(action, name)),
            None => {
                let base = self.below.open_read(name)?;
                let file = Arc::new(OverlayFile::new(name, base.len()?, Some(base)));
                changed.insert(name.to_owned(), Some(file.clone()));
                Ok(file)
            }
        }
    }
}

impl Disk for OverlayDisk {
    fn create(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        if self.list()?.iter().any(|known| known == name) {
            let what = "there is such a file already";
            return Err(DiskError::new("create", name, DiskErrorKind::Exists, what));
        }
        let file = Arc::new(OverlayFile::new(name, 0, None));
        self.changed().insert(name.to_owned(), Some(file.clone()));
        Ok(file)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        Ok(self.file("open", name)?)
    }

    fn open_read(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        match self.changed().get(name) {
            Some(Some(file)) => Ok(file.clone()),
            Some(None) => Err(Self::missing("open", name)),
            None => self.below.open_read(name),
        }
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        let mut names = self.below.list()?;
        let changed = self.changed();
        names.retain(|name| !changed.contains_key(name));
        names.extend(
            changed
                .iter()
                .filter(|(_, file)| file.is_some())
                .map(|(name, _)| name.clone()),
        );
        names.sort_unstable();
        Ok(names)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let file = self.file("rename", from)?;
        let mut changed = self.changed();
        changed.insert(from.to_owned(), None);
        changed.insert(to.to_owned(), Some(file));
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        if !self.list()?.iter().any(|known| known == name) {
            return Err(Self::missing("remove", name));
        }
        self.changed().insert(name.to_owned(), None);
        Ok(())
    }

    fn sync_dir(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn lock(&self) -> Result<DiskLock, DiskError> {
        self.below.lock()
    }

    fn describe(&self) -> String {
        self.below.describe()
    }
}

impl OverlayFile {
    fn new(name: &str, bytes: u64, base: Option<Arc<dyn DiskFile>>) -> Self {
        Self {
            name: name.to_owned(),
            base,
            state: Mutex::new(FileState {
                bytes,
                zeroed: 0,
                pages: BTreeMap::new(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().expect("no code panics under this lock")
    }

    /// Reads the bytes below the pages; zeros if there are none.
    fn read_base(&self, state: &FileState, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
        let read = match &self.base {
            Some(base) => base.read_at(offset, buffer)?,
            None => 0,
        };
        buffer[read..].fill(0);
        let zeroed = state.zeroed.saturating_sub(offset).min(buffer.len() as u64);
        buffer[..zeroed as usize].fill(0);
        Ok(())
    }
}

/// The part of a page that lies in `range`, as a range of the page.
fn within_page(page: u64, range: &std::ops::Range<u64>) -> std::ops::Range<usize> {
    let start = page * PAGE_BYTES;
    let from = range.start.clamp(start, start + PAGE_BYTES) - start;
    let to = range.end.clamp(start, start + PAGE_BYTES) - start;
    from as usize..to as usize
}

impl DiskFile for OverlayFile {
    fn len(&self) -> Result<u64, DiskError> {
        Ok(self.state().bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        let state = self.state();
        let count = state.bytes.saturating_sub(offset).min(buffer.len() as u64);
        let buffer = &mut buffer[..count as usize];
        self.read_base(&state, offset, buffer)?;
        let range = offset..offset + count;
        for (page, bytes) in state
            .pages
            .range(range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES))
        {
            let part = within_page(*page, &range);
            let at = (page * PAGE_BYTES + part.start as u64 - offset) as usize;
            buffer[at..at + part.len()].copy_from_slice(&bytes[part]);
        }
        Ok(count as usize)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let mut state = self.state();
        let range = offset..offset + bytes.len() as u64;
        for page in range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES) {
            if !state.pages.contains_key(&page) {
                let mut below = vec![0; PAGE_BYTES as usize].into_boxed_slice();
                self.read_base(&state, page * PAGE_BYTES, &mut below)?;
                state.pages.insert(page, below);
            }
            let part = within_page(page, &range);
            let at = (page * PAGE_BYTES + part.start as u64 - offset) as usize;
            let written = state.pages.get_mut(&page);
            let written = written.ok_or_else(|| DiskError::new("write", &self.name, DiskErrorKind::Io, "no page"))?;
            written[part.clone()].copy_from_slice(&bytes[at..at + part.len()]);
        }
        state.bytes = state.bytes.max(range.end);
        Ok(())
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.write_at(offset, bytes)
    }

    fn sync(&self) -> Result<(), DiskError> {
        Ok(())
    }

    /// Takes no memory: bytes without a page are zeros.
    fn preallocate(&self, bytes: u64) -> Result<(), DiskError> {
        let mut state = self.state();
        state.zeroed = state.zeroed.max(bytes);
        state.bytes = state.bytes.max(bytes);
        state.pages.retain(|page, _| (page + 1) * PAGE_BYTES > bytes);
        if let Some(last) = state.pages.get_mut(&(bytes / PAGE_BYTES)) {
            last[..(bytes % PAGE_BYTES) as usize].fill(0);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimDisk;

    #[test]
    fn changes_are_read_back_and_leave_no_byte_below() {
        let below = SimDisk::new();
        let old: Vec<u8> = (0..10_000).map(|at| at as u8).collect();
        for name in ["a", "b", "spare"] {
            below.create(name).expect("create").write_at(0, &old).expect("write");
        }
        let disk = OverlayDisk::new(Arc::new(below.clone()));
        let file = disk.open("a").expect("open");
        file.write_at(4_000, &[7; 200]).expect("write");
        file.write_durable_at(12_000, b"end").expect("write");
        disk.rename("a", "c").expect("rename");
        disk.remove("spare").expect("remove");
        let made = disk.create("made").expect("create");
        made.preallocate(64 << 30).expect("it takes no memory");
        made.write_at(9_000, b"xyz").expect("write");
        assert_eq!(disk.list().expect("list"), ["b", "c", "made"]);
        for gone in ["a", "spare"] {
            assert_eq!(
                disk.open_read(gone).err().map(|e| e.kind),
                Some(DiskErrorKind::NotFound)
            );
            assert_eq!(disk.remove(gone).err().map(|e| e.kind), Some(DiskErrorKind::NotFound));
        }
        assert_eq!(disk.create("b").err().map(|e| e.kind), Some(DiskErrorKind::Exists));
        // Against the same bytes in one piece, at every kind of border.
        let mut expected = old.clone();
        expected.resize(12_000, 0);
        expected.extend_from_slice(b"end");
        expected[4_000..4_200].fill(7);
        let changed = disk.open_read("c").expect("open");
        for (from, count) in [
            (0, 20_000),
            (3_990, 300),
            (4_096, 4_096),
            (9_999, 5),
            (12_002, 9),
            (12_003, 1),
        ] {
            let mut read = vec![9; count];
            let found = changed.read_at(from as u64, &mut read).expect("read");
            let end = expected.len().min(from + count);
            assert_eq!(&read[..found], &expected[from..end], "{from} {count}");
        }
        changed.preallocate(5_000).expect("zeros");
        let mut read = [9; 12];
        changed.read_at(4_995, &mut read).expect("read");
        assert_eq!((read[..5].to_vec(), read[5]), (vec![0; 5], 5_000_usize as u8));
        let mut read = [9; 5];
        made.read_at(8_999, &mut read).expect("read");
        assert_eq!(&read, b"\0xyz\0");
        // Below all is as it was.
        assert_eq!(below.list().expect("list"), ["a", "b", "spare"]);
        let mut read = vec![9; 20_000];
        let found = below.open_read("a").expect("open").read_at(0, &mut read).expect("read");
        assert_eq!(&read[..found], &old[..]);
    }
}
