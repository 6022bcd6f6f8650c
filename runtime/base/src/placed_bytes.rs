//! Bytes of a log record that NVRAM already holds when the record is complete.

/// Bytes of a batch's records that lie in a ring of NVRAM already (NV-Logging, section 4.3: flush-on-insert).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedBytes {
    /// Offset of the first byte in the records.
    pub at: u32,
    /// How many they are.
    pub bytes: u32,
    /// Offset of the first byte among the ring's objects: bytes since the region was made.
    pub place: u64,
}

impl PlacedBytes {
    /// Behind them, in the records.
    pub fn end(&self) -> u32 {
        self.at + self.bytes
    }
}
