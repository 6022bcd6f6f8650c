//! A region as a whole: made, opened, emptied.

use std::sync::Arc;

use reprise_base::{Epoch, Lsn};

use crate::{
    Memory,
    layout::{Geometry, HeaderError, Owner, RegionHeader, VERSION, freed_word},
    object::FlushPolicy,
    ring::{RingReader, RingState, RingWriter},
};

/// Why a region can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum RegionError {
    #[error("the NVRAM region holds something else: it does not begin as a region of Reprise does")]
    Foreign,
    #[error(
        "the NVRAM region holds something else: it begins with zeros, and is neither zero throughout nor a region of Reprise. Nothing was \
         changed. Name another path; if nobody needs what is there, remove the file, or write zeros over the device"
    )]
    NotBlank,
    #[error("the NVRAM region has layout version {found}, and this program reads {VERSION} alone. Nothing was changed")]
    Version { found: u32 },
    #[error("the NVRAM region's header is damaged")]
    Header,
    #[error("the NVRAM region was made with {made} bytes and has {found} bytes")]
    Size { made: u64, found: u64 },
    #[error(
        "the NVRAM region is too small: {found} bytes for {rings} rings of {entries} entries with at least 64 KiB of records each"
    )]
    TooSmall { found: u64, rings: u32, entries: u32 },
    #[error("the NVRAM region is damaged: ring {ring}, entry {sequence}")]
    Damaged { ring: u32, sequence: u64 },
    #[error("the NVRAM region is damaged: two records have LSN {lsn}")]
    Twice { lsn: Lsn },
}

/// Marks of all records of a region. Each is persistent when its method returns.
#[derive(Clone)]
pub struct RegionMarks(Arc<dyn Memory>);

impl RegionMarks {
    /// Below which LSN the log's files have everything: a log that ends before that has lost something.
    pub fn set_copied(&self, copied: Lsn) {
        self.0.store(Geometry::copied_at(), freed_word(copied.0));
        self.0.drain();
    }

    /// Sets the epoch of later records. The files must hold all records of the region: it holds records of one epoch.
    pub fn set_epoch(&self, epoch: Epoch) {
        self.0.store(Geometry::epoch_at(), freed_word(epoch.to_bits()));
        self.0.drain();
    }
}

/// A region with a valid header.
pub struct Region {
    memory: Arc<dyn Memory>,
    owner: Owner,
    geometry: Geometry,
}

impl Region {
    /// Opens a region, whichever program made it. Ok(None): there is none, or its creation did not finish.
    pub fn open(memory: Arc<dyn Memory>) -> Result<Option<Self>, RegionError> {
        let found = memory.bytes() as u64;
        if Geometry::new(found, 1, crate::layout::ENTRIES_MIN).is_none() {
            return Err(RegionError::TooSmall {
                found,
                rings: 1,
                entries: crate::layout::ENTRIES_MIN,
            });
        }
        let header = match RegionHeader::read(&*memory) {
            Ok(header) => header,
            Err(HeaderError::Blank) => return Ok(None),
            Err(HeaderError::NotBlank) => return Err(RegionError::NotBlank),
            Err(HeaderError::Magic) => return Err(RegionError::Foreign),
            Err(HeaderError::Version(found)) => return Err(RegionError::Version { found }),
            Err(HeaderError::Checksum | HeaderError::Geometry) => return Err(RegionError::Header),
        };
        if header.region_bytes != found {
            return Err(RegionError::Size {
                made: header.region_bytes,
                found,
            });
        }
        Ok(Some(Self {
            memory,
            owner: header.owner,
            geometry: header.geometry,
        }))
    }

    /// Makes an empty region, of `rings` with `entries` each, for records of an epoch from an LSN on. Its earlier records must be safe elsewhere, as
    /// everything before that LSN is.
    pub fn format(
        memory: Arc<dyn Memory>,
        owner: Owner,
        rings: u32,
        entries: u32,
        begins: (Epoch, Lsn),
    ) -> Result<Self, RegionError> {
        let found = memory.bytes() as u64;
        let geometry = Geometry::new(found, rings, entries).ok_or(RegionError::TooSmall { found, rings, entries })?;
        let header = RegionHeader {
            owner,
            region_bytes: found,
            geometry,
        };
        let (epoch, copied) = begins;
        header.write(&*memory, epoch, copied);
        Ok(Self {
            memory,
            owner,
            geometry,
        })
    }

    /// Erases a region, so that the next owner can make a new one. Its records must be safe elsewhere.
    pub fn erase(memory: &dyn Memory) {
        RegionHeader::erase(memory);
    }

    /// The database whose records it holds.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Writer and reader of each ring of a region that was just made.
    pub fn rings(self, policy: FlushPolicy) -> Vec<(RingWriter, RingReader)> {
        let ring = |ring| {
            let shared = Arc::new(RingState::new(self.memory.clone(), self.geometry, ring));
            (RingWriter::new(shared.clone(), policy), RingReader::new(shared))
        };
        (0..self.geometry.rings).map(ring).collect()
    }

    /// The region's marks, for the threads that fill it and that copy its records to the log's files.
    pub fn marks(&self) -> RegionMarks {
        RegionMarks(self.memory.clone())
    }

    /// How it is divided.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) fn memory(&self) -> &Arc<dyn Memory> {
        &self.memory
    }
}
