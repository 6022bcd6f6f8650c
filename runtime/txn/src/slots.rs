//! Rows of one partition on their way to the slots that a guest has for them.

use reprise_abi::{FixedSlots, calls::HANDLE_NONE};
use reprise_storage::{Rid, VisitFound};

use crate::scratch::{Handle, TxnScratch};

/// Puts rows that were found into slots, with the handles that `count_many` made room for.
pub(crate) struct IntoSlots<'f, 's> {
    pub frame: &'f mut TxnScratch,
    pub table: u16,
    pub slots: FixedSlots<'s>,
}

impl VisitFound for IntoSlots<'_, '_> {
    #[inline(always)]
    fn on_found(&mut self, found: Option<(Rid, &[u8])>) {
        let Some((rid, row)) = found else {
            return self.slots.put(HANDLE_NONE, &[]);
        };
        let (table, store) = (self.table, 0);
        let handle = self.frame.push_counted(Handle { table, store, rid });
        self.slots.put(handle, row);
    }
}
