//! Whether a tree is whole.

use super::{Tree, child_at, inner_key, leaf_key};
use crate::{page::PageKind, pool::Pool};

impl Tree {
    /// Checks the whole tree, which no thread changes: order, levels, links. The number of entries, and of levels.
    ///
    /// # Errors
    /// The first fault that is found.
    pub fn check<const P: u32>(&self, pool: &Pool<P>) -> Result<(usize, u8), String> {
        let levels = pool.read(self.root).level() + 1;
        let mut leaves = Vec::new();
        self.check_node(pool, self.root, levels - 1, &[], &mut leaves)?;
        let (mut before, mut count): (Option<Vec<u8>>, usize) = (None, 0);
        for (at, number) in leaves.iter().enumerate() {
            let leaf = pool.read(*number);
            if leaf.next() != leaves.get(at + 1).copied().unwrap_or(0) {
                return Err(format!("leaf {number} is not linked to the one behind it"));
            }
            for slot in 0..leaf.count() {
                let key = leaf_key(leaf.record(slot)).to_vec();
                if before.is_some_and(|before| before >= key) {
                    return Err(format!("keys of leaf {number} are out of order"));
                }
                (before, count) = (Some(key), count + 1);
            }
        }
        Ok((count, levels))
    }

    fn check_node<const P: u32>(
        &self,
        pool: &Pool<P>,
        number: u32,
        level: u8,
        least: &[u8],
        leaves: &mut Vec<u32>,
    ) -> Result<(), String> {
        let node = pool.read(number);
        if node.level() != level || node.kind() != PageKind::Node {
            return Err(format!("page {number} is no node of level {level}"));
        }
        if level == 0 {
            leaves.push(number);
            let is_low = node.count() > 0 && leaf_key(node.record(0)) < least;
            return match is_low {
                true => Err(format!("leaf {number} has a key below its separator")),
                false => Ok(()),
            };
        }
        for slot in 0..node.count() {
            let key = if slot == 0 { least } else { inner_key(node.record(slot)) };
            self.check_node(pool, child_at(&node, slot), level - 1, key, leaves)?;
        }
        Ok(())
    }
}
