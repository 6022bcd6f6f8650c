//! What a transaction over several partitions knows of the stores that it holds and of the copies of a row there.

use reprise_abi::{ColumnSet, Placement, ReadSpan, Target};
use reprise_base::PartitionId;
use reprise_storage::{Rid, Store};

use crate::module::TableBinding;

pub(crate) const MOVED: &str = "a procedure can't move a row to another partition: delete the row and insert it";

/// What many keys are looked for in.
pub(crate) struct LookUp<'b> {
    pub target: Target,
    pub binding: &'b TableBinding,
    pub index: u16,
    /// Bytes of a row that are read.
    pub prefetch: ReadSpan<'b>,
}

/// The places of one row: on its store, or on each that holds a replicated table.
pub(crate) enum Copies {
    One((usize, Rid)),
    All(Vec<(usize, Rid)>),
}

impl Copies {
    pub fn places(&self) -> &[(usize, Rid)] {
        match self {
            Self::One(place) => std::slice::from_ref(place),
            Self::All(places) => places,
        }
    }
}

/// Writing these columns may change where a row belongs.
pub(crate) fn may_move(binding: &TableBinding, columns: ColumnSet) -> bool {
    matches!(binding.placement, Placement::By(at) if at < 64 && columns.0 >> at & 1 == 1)
}

pub(crate) fn shared<'b>(stores: &'b [(PartitionId, &mut Store)]) -> Vec<&'b Store> {
    stores.iter().map(|(_, store)| &**store).collect()
}
