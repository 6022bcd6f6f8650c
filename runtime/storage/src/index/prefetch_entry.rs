//! Prefetches the memory that a later insertion into an index will wait for.

use super::{Body, Index};
use crate::{
    keyplan::StoredRow,
    treekey::{TreeKey, Wide},
};

impl Index {
    /// Prefetches the memory that an insertion of the row into an ordered index of integer keys will read and write.
    #[inline]
    pub fn touch_entry_of(&self, row: StoredRow<'_>) {
        let Some(ints) = self.plan.ints() else {
            return;
        };
        match &self.body {
            Body::W8(tree) => tree.touch_place_of(&u64::from_ints(ints, row)),
            Body::W16(tree) => tree.touch_place_of(&u128::from_ints(ints, row)),
            Body::W24(tree) => tree.touch_place_of(&Wide::from_ints(ints, row)),
            Body::W32(tree) => tree.touch_place_of(&Wide::from_ints(ints, row)),
            _ => {}
        }
    }
}
