//! Encoded records on their way to the log.

use reprise_base::PlacedBytes;

use crate::{ChangesRef, CommandRef, RecordCounts, RecordEffect, RecordRef, WireError, stand_in::push_stand_in};

/// Which form of a transaction is in the log, where standbys get the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TwoForms {
    /// The command; standbys get the changes.
    CommandHere,
    /// The changes; standbys get the command.
    ChangesHere,
}

/// Encoded records, one behind the other, and how many they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordBatch {
    bytes: Vec<u8>,
    count: u32,
    /// Records of changes among them, parts included.
    changes_count: u32,
    /// Alternate records among them.
    stand_ins_count: u32,
    /// The placed pieces, in growing order.
    placed: Vec<PlacedBytes>,
    /// These records in the form that standbys get; empty if that is the logged form.
    shipped: Vec<u8>,
}

impl RecordBatch {
    /// One record.
    pub fn of(record: &RecordRef<'_>) -> Self {
        let mut batch = Self::default();
        batch.push(record);
        batch
    }

    pub fn push(&mut self, record: &RecordRef<'_>) {
        let at = self.bytes.len();
        record.encode(&mut self.bytes);
        self.record_encoded(record.facts().effect == RecordEffect::Rows, at);
    }

    /// Appends a transaction's record: its changes, behind its command if there is one. With `forms` it is one of the two, and standbys get
    /// the other one.
    pub fn push_forms(&mut self, command: Option<&CommandRef<'_>>, changes: &ChangesRef<'_>, forms: Option<TwoForms>) {
        let Some((command, forms)) = command.zip(forms) else {
            command.into_iter().for_each(|command| self.push_command(command));
            return self.push_changes(changes);
        };
        let (command, changes) = (RecordRef::Command(*command), RecordRef::Changes(*changes));
        match forms {
            TwoForms::CommandHere => self.push_apart(&command, &changes),
            TwoForms::ChangesHere => self.push_apart(&changes, &command),
        }
    }

    /// Appends `own`, which standbys get as `shipped`.
    fn push_apart(&mut self, own: &RecordRef<'_>, shipped: &RecordRef<'_>) {
        let at = self.bytes.len();
        if self.shipped.is_empty() {
            self.shipped.extend_from_slice(&self.bytes);
        }
        own.encode(&mut self.bytes);
        push_stand_in(&mut self.shipped, &self.bytes[at..], shipped);
        self.count += 1;
        self.changes_count += u32::from(own.facts().effect == RecordEffect::Rows);
    }

    #[inline]
    pub fn push_command(&mut self, command: &CommandRef<'_>) {
        let at = self.bytes.len();
        command.encode(&mut self.bytes);
        self.record_encoded(false, at);
    }

    #[inline]
    pub fn push_changes(&mut self, changes: &ChangesRef<'_>) {
        let at = self.bytes.len();
        changes.encode(&mut self.bytes);
        self.record_encoded(true, at);
    }

    /// The `push_changes` variant for changes that a ring of NVRAM already holds, except the bytes between `pieces`, which are in growing
    /// order.
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

    /// Returns the pieces of `bytes` that a ring of NVRAM already holds, in growing order.
    #[inline]
    pub fn placed(&self) -> &[PlacedBytes] {
        &self.placed
    }

    /// Appends records that were encoded before. Err: they are none, and nothing was appended.
    pub fn push_encoded(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        let counts = RecordCounts::of(bytes)?;
        let at = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.mirror(at);
        self.count += counts.all;
        self.changes_count += counts.changes;
        self.stand_ins_count += counts.stand_ins;
        Ok(())
    }

    /// A record was encoded from `at` on.
    #[inline]
    fn record_encoded(&mut self, holds_rows: bool, at: usize) {
        self.mirror(at);
        self.count += 1;
        self.changes_count += u32::from(holds_rows);
    }

    #[inline]
    fn mirror(&mut self, at: usize) {
        if !self.shipped.is_empty() {
            self.shipped.extend_from_slice(&self.bytes[at..]);
        }
    }

    /// Returns the records in the form that standbys get; none if that is the logged form.
    #[inline]
    pub fn shipped(&self) -> Option<&[u8]> {
        (!self.shipped.is_empty()).then_some(&self.shipped)
    }

    /// Bytes of the longer form.
    #[inline]
    pub fn bytes_max(&self) -> usize {
        self.bytes.len().max(self.shipped.len())
    }

    /// How many of them stand for others.
    #[inline]
    pub fn stand_ins_count(&self) -> u32 {
        self.stand_ins_count
    }

    /// Returns the records in the form of the log.
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
        self.shipped.clear();
        (self.count, self.changes_count, self.stand_ins_count) = (0, 0, 0);
    }
}
