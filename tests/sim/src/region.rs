//! NVRAM that is a file of the simulated disk: it is cut by the same crashes, with any of what was not drained lost.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use reprise_base::Lsn;
use reprise_env::{Disk, DiskError, DiskFile, SimDisk};
use reprise_nvram::{Memory, OpenMemory, Persistence, PmemError, Region};

/// Bytes of every region: room for records of long rows on each site.
pub const REGION_BYTES: u64 = 512 << 10;
/// The folder of the regions on the disk.
const FOLDER: &str = "nvram";

pub struct SimRegions(pub SimDisk);

struct SimMemory {
    folder: SimDisk,
    name: String,
    file: Arc<dyn DiskFile>,
}

/// The path of a region.
pub fn region_path(number: u64) -> PathBuf {
    format!("region-{number}").into()
}

/// Behind the last record that the region has.
pub fn region_end(disk: &SimDisk, number: u64) -> Result<Lsn, String> {
    let memory = SimRegions(disk.clone()).open(&region_path(number), None);
    let region = Region::open(memory.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
    let recovered = region.map(|region| region.recover()).transpose();
    let recovered = recovered.map_err(|error| error.to_string())?.unwrap_or_default();
    Ok(recovered.records.last().map_or(Lsn(0), |record| record.end()))
}

impl OpenMemory for SimRegions {
    fn open(&self, path: &Path, bytes: Option<u64>) -> Result<Arc<dyn Memory>, PmemError> {
        let failed = |error: DiskError| PmemError::File {
            path: path.to_owned(),
            error: std::io::Error::other(error.to_string()),
        };
        let name = path.display().to_string();
        let folder = self.0.folder(FOLDER);
        let is_there = folder.list().map_err(failed)?.contains(&name);
        if !is_there {
            let missing = || PmemError::File {
                path: path.to_owned(),
                error: std::io::ErrorKind::NotFound.into(),
            };
            let bytes = bytes.ok_or_else(missing)?;
            folder.create(&name).map_err(failed)?;
            folder.store(&name, bytes - 1, &[0]);
            folder.drain(&name);
        }
        // Its name may have been given by a life that ended before it was durable.
        folder.sync_dir().map_err(failed)?;
        let file = folder.open_read(&name).map_err(failed)?;
        let found = file.len().map_err(failed)?;
        if found < REGION_BYTES {
            // Made by a life that ended before it was as long.
            folder.store(&name, REGION_BYTES - 1, &[0]);
            folder.drain(&name);
        }
        Ok(Arc::new(SimMemory { folder, name, file }))
    }
}

impl Memory for SimMemory {
    fn bytes(&self) -> usize {
        REGION_BYTES as usize
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.folder.store(&self.name, at as u64, bytes);
    }

    fn store(&self, at: usize, word: u64) {
        self.write(at, &word.to_le_bytes());
    }

    fn store_all(&self, at: usize, words: &[u64]) {
        words
            .iter()
            .enumerate()
            .for_each(|(n, word)| self.store(at + n * 8, *word));
    }

    fn load(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        self.read(at, &mut word);
        u64::from_le_bytes(word)
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        let read = self.file.read_at(at as u64, into).expect("reads do not fail");
        assert_eq!(read, into.len(), "within the region");
    }

    fn drain(&self) {
        self.folder.drain(&self.name);
    }

    fn persistence(&self) -> Persistence {
        Persistence::Fence
    }
}
