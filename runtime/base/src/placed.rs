//! What of a log record lies elsewhere already when the record is whole.

/// Bytes of a batch's records that lie in a ring of NVRAM already (NV-Logging, section 4.3: flush-on-insert).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedBytes {
    /// Where they begin in the records.
    pub at: u32,
    /// How many they are.
    pub bytes: u32,
    /// Where they begin among the ring's objects: bytes since the region was made.
    pub place: u64,
}

impl PlacedBytes {
    /// Behind them, in the records.
    pub fn end(&self) -> u32 {
        self.at + self.bytes
    }
}
