//! Encoded records on their way to the log.

use reprise_base::PlacedBytes;

use crate::{ChangesRef, CommandRef, FORMAT_VERSION, RawRecords, RecordKind, RecordRef, WireError};

/// Encoded records, one behind the other, and how many they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordBatch {
    bytes: Vec<u8>,
    count: u32,
    /// Of these, changes and parts of such.
    changes_count: u32,
    /// In growing order.
    placed: Vec<PlacedBytes>,
}

impl RecordBatch {
    /// One record.
    pub fn of(record: &RecordRef<'_>) -> Self {
        let mut batch = Self::default();
        batch.push(record);
        batch
    }

    pub fn push(&mut self, record: &RecordRef<'_>) {
        record.encode(&mut self.bytes);
        self.note(record.kind());
    }

    #[inline]
    pub fn push_command(&mut self, command: &CommandRef<'_>) {
        command.encode(&mut self.bytes);
        self.note(RecordKind::Command);
    }

    #[inline]
    pub fn push_changes(&mut self, changes: &ChangesRef<'_>) {
        changes.encode(&mut self.bytes);
        self.note(RecordKind::Changes);
    }

    /// As `push_changes`, of changes that lie in a ring of NVRAM already, but for what is between these pieces of them, which grow.
    pub fn push_placed(&mut self, changes: &ChangesRef<'_>, pieces: &[PlacedBytes]) {
        self.push_changes(changes);
        // A record of changes ends with them.
        let base = self.bytes.len() - changes.changes.len();
        debug_assert_eq!(self.bytes[base..], *changes.changes);
        let moved = pieces.iter().map(|piece| PlacedBytes {
            at: piece.at + base as u32,
            ..*piece
        });
        self.placed.extend(moved);
    }

    /// What of `bytes` lies in a ring of NVRAM already, in growing order.
    #[inline]
    pub fn placed(&self) -> &[PlacedBytes] {
        &self.placed
    }

    /// Appends records that were encoded before, in the newest format. Err: they are none, and nothing was appended.
    pub fn push_encoded(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        let (mut count, mut changes_count) = (0, 0);
        for record in RawRecords::new(bytes, FORMAT_VERSION) {
            count += 1;
            changes_count += u32::from(record?.holds_changes());
        }
        self.bytes.extend_from_slice(bytes);
        self.count += count;
        self.changes_count += changes_count;
        Ok(())
    }

    #[inline]
    fn note(&mut self, kind: RecordKind) {
        self.count += 1;
        self.changes_count += u32::from(matches!(kind, RecordKind::Changes | RecordKind::Part));
    }

    /// As they will lie in the log.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    #[inline]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// How many of them are changes.
    pub fn changes_count(&self) -> u32 {
        self.changes_count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Forgets all but its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.placed.clear();
        (self.count, self.changes_count) = (0, 0);
    }
}
