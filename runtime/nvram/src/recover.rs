//! Reading a region after a crash.

use std::{ops::Range, sync::Arc};

use reprise_base::{Epoch, Lsn};

use crate::{
    layout::{EntryState, Geometry, freed_of, is_marked},
    region::{Region, RegionError},
    ring::{NoRecord, RingReader, RingRecord, RingState},
};

/// A record that was persistent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredRecord {
    /// LSN of the first record.
    pub lsn: Lsn,
    /// Number of records, as in [`RingRecord`].
    pub count: u32,
    /// The one in which it lay.
    pub ring: u32,
    /// Encoded records, as in [`RingRecord`].
    pub bytes: Vec<u8>,
}

impl RecoveredRecord {
    /// Behind its last record.
    pub fn end(&self) -> Lsn {
        Lsn(self.lsn.0 + u64::from(self.count))
    }
}

/// All records of a region that were not freed, in LSN order (NV-Logging, section 4.6).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionContents {
    /// Epoch of all records.
    pub epoch: Epoch,
    /// The log's files had everything before it.
    pub copied: Lsn,
    /// The records in LSN order.
    pub records: Vec<RecoveredRecord>,
    /// Numbers between the first record's and the last one's that no record has: taken by a site, and lost with it. No acknowledged
    /// record depends on one.
    pub void: Vec<Range<Lsn>>,
    /// Bytes of objects in all rings: the records of lost numbers had room there.
    pub objects_bytes: u64,
}

impl Region {
    /// Reads the region's records. A ring's records count up to the first one that is not persistent: records behind it belong to
    /// later transactions that were never acknowledged.
    pub fn recover(&self) -> Result<RegionContents, RegionError> {
        let mut records = Vec::new();
        for ring in 0..self.geometry().rings {
            self.recover_ring(ring, &mut records)?;
        }
        records.sort_by_key(|record| record.lsn);
        if let Some(pair) = records.windows(2).find(|pair| pair[0].end() > pair[1].lsn) {
            return Err(RegionError::Twice { lsn: pair[1].lsn });
        }
        let between = records.windows(2).map(|pair| pair[0].end()..pair[1].lsn);
        let void = between.filter(|numbers| !numbers.is_empty());
        let epoch = self.mark(Geometry::epoch_at())?;
        Ok(RegionContents {
            epoch: Epoch::from_bits(epoch).ok_or(RegionError::Header)?,
            copied: Lsn(self.mark(Geometry::copied_at())?),
            void: void.collect(),
            objects_bytes: u64::from(self.geometry().rings) * self.geometry().objects_bytes,
            records,
        })
    }

    fn mark(&self, at: usize) -> Result<u64, RegionError> {
        freed_of(self.memory().load(at)).ok_or(RegionError::Header)
    }

    fn recover_ring(&self, ring: u32, records: &mut Vec<RecoveredRecord>) -> Result<(), RegionError> {
        let (memory, geometry) = (self.memory(), self.geometry());
        let word = memory.load(geometry.freed_at(ring));
        let freed = freed_of(word).ok_or(RegionError::Damaged { ring, sequence: 0 })?;
        let mut reader = RingReader::new(Arc::new(RingState::new(memory.clone(), *geometry, ring)));
        reader.seek(freed);
        let (mut before, mut bytes) = (None, 0);
        while reader.position() < freed + geometry.entries as u64 {
            let sequence = reader.position();
            let damaged = RegionError::Damaged { ring, sequence };
            match reader.step() {
                Ok(record) => {
                    bytes += record.bytes.len() as u64;
                    // A ring's records have growing numbers, and lie in it byte by byte.
                    let is_lsn = record.lsn.0.checked_add(record.count.into()).is_some_and(is_marked);
                    if !is_lsn || before.replace(record.lsn) >= Some(record.lsn) || bytes > geometry.objects_bytes {
                        return Err(damaged);
                    }
                    records.push(recovered(ring, record));
                }
                Err(NoRecord::End) => break,
                Err(NoRecord::Damaged) => return Err(damaged),
            }
        }
        self.check_rest(ring, reader.position(), freed)
    }

    /// Behind the ring's end entries may be set, by a group that was being persisted; none may be damaged.
    fn check_rest(&self, ring: u32, end: u64, freed: u64) -> Result<(), RegionError> {
        let geometry = self.geometry();
        for sequence in end..freed + geometry.entries as u64 {
            let entry = self.memory().load(geometry.entry_at(ring, sequence));
            if geometry.entry_state(entry, sequence) == EntryState::Damaged {
                return Err(RegionError::Damaged { ring, sequence });
            }
        }
        Ok(())
    }
}

fn recovered(ring: u32, record: RingRecord) -> RecoveredRecord {
    RecoveredRecord {
        lsn: record.lsn,
        count: record.count,
        ring,
        bytes: record.bytes,
    }
}
