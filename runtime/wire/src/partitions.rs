//! The partitions that a command touches.

use reprise_base::{PartitionId, limits::PARTITIONS_MAX};

use crate::{WireError, corrupt};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionSet<'a> {
    One(PartitionId),
    /// Two or more.
    Several(PartitionList<'a>),
    All,
}

/// Two or more partitions, growing.
#[derive(Clone, Copy, Debug)]
pub struct PartitionList<'a>(List<'a>);

#[derive(Clone, Copy, Debug)]
enum List<'a> {
    Ids(&'a [PartitionId]),
    /// `u16` each, little-endian, as in a record.
    Encoded(&'a [u8]),
}

impl<'a> PartitionList<'a> {
    /// Panics unless there are two or more, growing and in bounds: a caller's list that is not would be written.
    pub fn new(ids: &'a [PartitionId]) -> Self {
        let list = Self(List::Ids(ids));
        list.check().expect("sorted list of partitions");
        list
    }

    /// `bytes` hold whole ids.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        let list = Self(List::Encoded(bytes));
        list.check()?;
        Ok(list)
    }

    fn check(&self) -> Result<(), WireError> {
        if self.len() < 2 {
            return Err(corrupt("partitions in a list", "2 or more", self.len()));
        }
        let mut before = None;
        for id in self.iter() {
            if before >= Some(id) || id.0 >= PARTITIONS_MAX {
                return Err(corrupt("partition in a list", "growing, in bounds", id));
            }
            before = Some(id);
        }
        Ok(())
    }

    pub fn len(&self) -> usize {
        match self.0 {
            List::Ids(ids) => ids.len(),
            List::Encoded(bytes) => bytes.len() / 2,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, index: usize) -> PartitionId {
        match self.0 {
            List::Ids(ids) => ids[index],
            List::Encoded(bytes) => PartitionId(u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]])),
        }
    }

    pub fn iter(self) -> impl Iterator<Item = PartitionId> + 'a {
        (0..self.len()).map(move |index| self.get(index))
    }

    pub fn contains(self, partition: PartitionId) -> bool {
        self.iter().any(|id| id == partition)
    }
}

impl PartialEq for PartitionList<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for PartitionList<'_> {}

impl PartitionSet<'_> {
    pub fn contains(&self, partition: PartitionId) -> bool {
        match self {
            Self::One(one) => *one == partition,
            Self::Several(list) => list.contains(partition),
            Self::All => true,
        }
    }
}
