//! Which nodes a commit waits for, by safety level (Query Fresh, section 2.1), and which nodes a promotion has to ask.

use reprise_base::{Lsn, Safety};

use crate::node_id::NodeId;

/// Nodes, each once, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeSet(Vec<NodeId>);

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> Self {
        let mut nodes: Vec<_> = nodes.into_iter().collect();
        nodes.sort_unstable();
        nodes.dedup();
        Self(nodes)
    }
}

impl NodeSet {
    pub fn contains(&self, node: NodeId) -> bool {
        self.0.contains(&node)
    }

    pub fn iter(&self) -> impl Iterator<Item = NodeId> {
        self.0.iter().copied()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the set with `node` in it.
    pub fn with(&self, node: NodeId) -> Self {
        self.iter().chain([node]).collect()
    }

    /// Returns the set without `node`.
    pub fn without(&self, node: NodeId) -> Self {
        self.iter().filter(|other| *other != node).collect()
    }

    /// Whether all nodes of this set satisfy `is`.
    pub fn all(&self, is: impl Fn(NodeId) -> bool) -> bool {
        self.iter().all(is)
    }

    /// Returns how many nodes of this set satisfy `is`.
    pub fn count(&self, is: impl Fn(NodeId) -> bool) -> usize {
        self.iter().filter(|node| is(*node)).count()
    }
}

/// Returns how many standbys of a set of `count` a write needs. More than half of the nodes, of which the primary is one, at `quorum`;
/// else all of them.
pub fn needed(level: Safety, count: usize) -> usize {
    match level {
        Safety::Quorum => count.div_ceil(2),
        _ => count,
    }
}

/// Returns the LSN before which the standbys of `set` have what `level` asks for. None: the primary waits for no standby.
pub fn limit(level: Safety, set: &NodeSet, persisted: &dyn Fn(NodeId) -> Lsn) -> Option<Lsn> {
    let without_any = match level {
        Safety::Quorum | Safety::VerySafe => Some(Lsn(0)),
        Safety::TwoSafe => None,
        Safety::OneSafe | Safety::LocalSync | Safety::LocalAsync => return None,
    };
    let mut ends: Vec<_> = set.iter().map(persisted).collect();
    ends.sort_unstable_by(|a, b| b.cmp(a));
    match needed(level, ends.len()) {
        0 => without_any,
        needed => Some(ends[needed - 1]),
    }
}

/// Whether enough nodes know of a change from one set to another. From then on no promotion can miss the new set.
pub fn is_confirmed(level: Safety, from: &NodeSet, to: &NodeSet, knows: &dyn Fn(NodeId) -> bool) -> bool {
    match level {
        Safety::Quorum => {
            // A node that leaves does not confirm it. If fewer are left than the old set asked for, all of them do.
            let stay: NodeSet = from.iter().filter(|node| to.contains(*node)).collect();
            let of_old = needed(level, from.len()).min(stay.len());
            stay.count(knows) >= of_old && to.count(knows) >= needed(level, to.len())
        }
        _ => to.all(knows),
    }
}

/// Checks whether the nodes that `answered`, under the set `set` of the primary `primary`, are a read quorum. A read quorum has a member in every
/// group by which the primary can acknowledge a write, or by which another promotion was allowed. If the primary waited for no standby, no answer can
/// show that.
pub fn is_read_quorum(level: Safety, set: &NodeSet, primary: NodeId, answered: &dyn Fn(NodeId) -> bool) -> bool {
    let (all, here) = (set.len(), set.count(answered));
    match level {
        Safety::Quorum => here > all - needed(level, all) || (answered(primary) && here >= needed(level, all)),
        Safety::VerySafe => here == all,
        _ => here == all && all > 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(nodes: &[u64]) -> NodeSet {
        nodes.iter().map(|node| NodeId(*node)).collect()
    }

    #[test]
    fn a_commit_waits_for_the_standbys_that_its_level_names() {
        use Safety::{OneSafe, Quorum, TwoSafe, VerySafe};
        // Node 1 has persisted 10, node 2 has 20, and so on.
        let persisted = |node: NodeId| Lsn(node.0 * 10);
        for (level, nodes, expected) in [
            (OneSafe, &[1, 2][..], None),
            (TwoSafe, &[], None),
            (TwoSafe, &[1, 2], Some(10)),
            (Quorum, &[], Some(0)),
            (Quorum, &[1], Some(10)),
            (Quorum, &[1, 2], Some(20)),
            (Quorum, &[1, 2, 3], Some(20)),
            (Quorum, &[1, 2, 3, 4], Some(30)),
            (VerySafe, &[], Some(0)),
            (VerySafe, &[1, 2, 3], Some(10)),
        ] {
            assert_eq!(
                limit(level, &set(nodes), &persisted),
                expected.map(Lsn),
                "{level} {nodes:?}"
            );
        }
    }

    #[test]
    fn every_group_that_writes_shares_a_node_with_every_group_that_answers() {
        let primary = NodeId(0);
        for count in 1..=5 {
            let members: NodeSet = (1..=count).map(NodeId).collect();
            let groups: Vec<u64> = (0..1 << (count + 1)).collect();
            let has = |group: u64| move |node: NodeId| group >> node.0 & 1 == 1;
            let is_asked = |group: u64| is_read_quorum(Safety::Quorum, &members, primary, &has(group));
            let writes =
                |group: u64| has(group)(primary) && members.count(has(group)) >= needed(Safety::Quorum, members.len());
            for asked in groups.iter().filter(|group| is_asked(**group)) {
                let others = groups.iter().filter(|other| writes(**other) || is_asked(**other));
                for other in others {
                    assert_ne!(asked & other, 0, "{count} standbys, {asked:b} and {other:b}");
                }
            }
        }
    }
}
