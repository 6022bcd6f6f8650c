//! The host's answer to a look-up of one row.

use reprise_abi::RowHandle;

/// A row that the host found; its bytes are in the caller's buffer if they fit.
#[derive(Clone, Copy)]
pub struct FoundRow {
    pub handle: RowHandle,
    pub bytes: usize,
}
