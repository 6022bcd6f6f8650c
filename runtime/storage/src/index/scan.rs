//! Walks over one tree in the order of its keys: row by row, a page at a time, or only counting.

use super::{Range, ScanPosition, ScanState, Visit};
use crate::{
    indirection::Rid,
    tree::{Tree, edge},
    treekey::{Edge, TreeKey},
};

#[inline]
pub(super) fn first_in_tree<K: TreeKey, const CAP: usize>(tree: &Tree<K, CAP>, range: &Range<'_>) -> Option<u32> {
    let (lower, upper) = (K::probe(range.lower_edge()), K::probe(range.upper_edge()));
    if range.is_reverse() {
        let (key, rid) = tree.previous(tree.seek(&upper))?;
        (!key.is_before(&lower)).then_some(rid)
    } else {
        let (key, rid) = tree.next(tree.seek(&lower))?;
        key.is_before(&upper).then_some(rid)
    }
}

pub(super) fn scan_tree<K: TreeKey, const CAP: usize>(
    tree: &Tree<K, CAP>,
    range: &Range<'_>,
    position: &mut ScanPosition,
    mut visit: impl FnMut(Rid) -> Visit,
) {
    if position.is_end() {
        return;
    }
    let mut buffer = std::mem::take(&mut position.key);
    let stopped = walk(tree, range, position.state, &buffer, &mut visit);
    buffer.clear();
    position.state = match stopped {
        Some((key, state)) => {
            key.push_to(&mut buffer);
            state
        }
        None => ScanState::End,
    };
    position.key = buffer;
}

/// The `scan_tree` variant that goes up until `rids` is full.
pub(super) fn page_tree<K: TreeKey, const CAP: usize>(
    tree: &Tree<K, CAP>,
    range: &Range<'_>,
    position: &mut ScanPosition,
    rids: &mut [Rid],
) -> usize {
    let mut buffer = std::mem::take(&mut position.key);
    let lower = match position.state {
        ScanState::Start => range.lower_edge(),
        ScanState::At => edge(&buffer, false),
        ScanState::Beyond => edge(&buffer, true),
        ScanState::End => return 0,
    };
    let (lower, upper) = (K::probe(lower), K::probe(range.upper_edge()));
    let mut filled = 0;
    let place = tree.seek(&lower);
    drop(lower);
    let stopped = tree.walk_leaves(place, &upper, |found| {
        let room = &mut rids[filled..];
        let count = room.len().min(found.len());
        for (room, rid) in room[..count].iter_mut().zip(found) {
            *room = Rid(*rid);
        }
        filled += count;
        count
    });
    buffer.clear();
    position.state = match stopped {
        Some(next) => {
            next.push_to(&mut buffer);
            ScanState::At
        }
        None => ScanState::End,
    };
    position.key = buffer;
    filled
}

/// Returns the edges between which a scan continues from this state.
#[inline]
pub(super) fn edges_from<'a>(range: &Range<'a>, state: ScanState, key: &'a [u8]) -> (Edge<'a>, Edge<'a>) {
    let is_reverse = range.is_reverse();
    let (mut lower, mut upper) = (range.lower_edge(), range.upper_edge());
    if state != ScanState::Start {
        // Going up, "at the key" is the edge before it; going down, the edge behind it.
        let resume = edge(key, (state == ScanState::Beyond) != is_reverse);
        *(if is_reverse { &mut upper } else { &mut lower }) = resume;
    }
    (lower, upper)
}

/// Returns the place and the state at which the visitor stopped; none when the range ended.
#[inline]
fn walk<K: TreeKey, const CAP: usize>(
    tree: &Tree<K, CAP>,
    range: &Range<'_>,
    state: ScanState,
    key: &[u8],
    visit: &mut impl FnMut(Rid) -> Visit,
) -> Option<(K, ScanState)> {
    let is_reverse = range.is_reverse();
    let (lower, upper) = edges_from(range, state, key);
    let (lower, upper) = (K::probe(lower), K::probe(upper));
    let mut stopped = None;
    let on_entry = |key: &K, rid: u32| {
        let state = match visit(Rid(rid)) {
            Visit::Next => return true,
            Visit::Stop => ScanState::Beyond,
            Visit::Again => ScanState::At,
        };
        stopped = Some((key.clone(), state));
        false
    };
    if is_reverse {
        tree.walk_down(tree.seek(&upper), &lower, on_entry);
    } else {
        tree.walk_up(tree.seek(&lower), &upper, on_entry);
    }
    stopped
}

pub(super) fn count_tree<K: TreeKey, const CAP: usize>(
    tree: &Tree<K, CAP>,
    range: &Range<'_>,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> u64 {
    let lower = tree.seek(&K::probe(range.lower_edge()));
    tree.count(lower, &K::probe(range.upper_edge()), go_on)
}
