//! The memory that a structure accounts for. No budget counts it until `count_in`.

use std::sync::Arc;

use reprise_base::{Budget, Grant};

#[derive(Default)]
pub(crate) struct Charge {
    bytes: usize,
    grant: Option<Grant>,
}

impl Charge {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts its memory in `budget` from now on. The memory that it has counts first, whatever the limits are.
    pub fn count_in(&mut self, budget: &Arc<Budget>) {
        self.grant = Some(budget.take(self.bytes as u64));
    }

    /// Counts more bytes. False, with nothing counted, if they would pass the limit.
    pub fn try_grow(&mut self, bytes: usize) -> bool {
        let taken = self.grant.as_mut().is_none_or(|grant| grant.try_grow(bytes as u64));
        self.bytes += if taken { bytes } else { 0 };
        taken
    }

    /// Counts more bytes that can't be refused any more.
    pub fn grow(&mut self, bytes: usize) {
        self.resize(self.bytes + bytes);
    }

    pub fn resize(&mut self, bytes: usize) {
        self.bytes = bytes;
        if let Some(grant) = &mut self.grant {
            grant.resize(bytes as u64);
        }
    }
}

/// Bytes that are kept for views.
#[derive(Default)]
pub(crate) struct VersionMemory {
    pub versions: usize,
    pub notes: usize,
    pub charge: Charge,
}

impl VersionMemory {
    pub fn bytes(&self) -> usize {
        self.versions + self.notes
    }

    pub fn set_versions(&mut self, bytes: usize) {
        self.versions = bytes;
        self.charge.resize(self.bytes());
    }

    pub fn add_notes(&mut self, grown: isize) {
        if grown != 0 {
            self.notes = self.notes.saturating_add_signed(grown);
            self.charge.resize(self.bytes());
        }
    }
}
