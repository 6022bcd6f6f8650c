//! The stack that a guest's functions take, and the functions that pay for it. A recursion must end at the same depth on every build and
//! machine, although the compiler decides the size of native frames.
//!
//! A function's frame is estimated from above by the values that it may hold at once. Functions that a recursion may pass through pay for
//! their frame on entry, and get it back on return. The module alone bounds other functions: a function pays for those below it. If these
//! are large, they pay for themselves. So code outside of recursions pays nothing.

use std::collections::BTreeMap;

/// Facts about a function that `depth` needs.
#[derive(Clone, Default)]
pub(crate) struct FunctionShape {
    /// Number of its type in the module.
    pub ty: u32,
    /// Number of its signature among the different ones. Functions of one signature may replace each other in a table.
    pub signature: u32,
    pub params: u32,
    /// Bytes that its frame takes at most: an estimate.
    pub frame_bytes: u64,
    /// Functions that it calls, by number.
    pub calls: Vec<u32>,
    /// Signatures that it calls through a table.
    pub calls_through: Vec<u32>,
    /// True if it may be in a table.
    pub is_taken: bool,
}

/// Bytes on the stack beside a function's values.
const FRAME_BYTES: u64 = 64;
/// Bytes that a chain of calls without recursion may take before one of them pays.
const UNPAID_BYTES_MAX: u64 = 16 << 10;

/// Returns the bytes of a frame: its values as `words` of eight bytes, the operands twice, because they may also be held as arguments. It
/// adds a part of the instructions, for values that a compiler keeps.
pub(crate) fn frame_bytes(words: u64, operands: u64, instructions: u64) -> u64 {
    FRAME_BYTES + 8 * (words + 2 * operands) + instructions / 2
}

/// The functions that pay for stack, by position among the module's own, with their price.
#[derive(Default)]
pub(crate) struct Depths {
    pub deep: BTreeMap<usize, u32>,
    /// All functions, each behind those that it calls, except those of one recursion.
    pub order: Vec<usize>,
}

/// Decides which functions pay.
pub(crate) fn find_depths(shapes: &[FunctionShape], imported_functions: u32) -> Depths {
    let graph = Graph::new(shapes, imported_functions);
    let mut depths = Depths::default();
    // Bytes that a call of each node takes without paying.
    let mut unpaid = vec![0; graph.calls.len()];
    for knot in graph.knots() {
        let is_recursive = knot.len() > 1 || graph.calls[knot[0]].contains(&knot[0]);
        // A table's node has no frame. The functions that it leads to within the recursion pay for themselves.
        let (functions, tables): (Vec<_>, Vec<_>) = knot.into_iter().partition(|node| *node < shapes.len());
        for node in tables.into_iter().chain(functions) {
            let below = graph.calls[node]
                .iter()
                .map(|called| unpaid[*called])
                .max()
                .unwrap_or(0);
            let Some(shape) = shapes.get(node) else {
                unpaid[node] = below;
                continue;
            };
            depths.order.push(node);
            let bytes = shape.frame_bytes + below;
            if is_recursive || bytes > UNPAID_BYTES_MAX {
                depths
                    .deep
                    .insert(node, i32::try_from(bytes).unwrap_or(i32::MAX) as u32);
            }
            // Within a recursion each function pays, so callers count nothing for it.
            unpaid[node] = if is_recursive || bytes > UNPAID_BYTES_MAX {
                0
            } else {
                bytes
            };
        }
    }
    depths
}

/// The graph of calls: functions, and behind them a node for each signature that is called through a table.
struct Graph {
    calls: Vec<Vec<usize>>,
}

impl Graph {
    fn new(shapes: &[FunctionShape], imported_functions: u32) -> Self {
        let signatures = shapes
            .iter()
            .flat_map(|shape| shape.calls_through.iter().chain([&shape.signature]));
        let signatures = signatures.max().map_or(0, |last| *last as usize + 1);
        let mut calls = vec![Vec::new(); shapes.len() + signatures];
        for (node, shape) in shapes.iter().enumerate() {
            let own = shape
                .calls
                .iter()
                .filter_map(|called| called.checked_sub(imported_functions));
            let through = shape
                .calls_through
                .iter()
                .map(|signature| shapes.len() + *signature as usize);
            calls[node].extend(own.map(|called| called as usize).chain(through));
            if shape.is_taken {
                calls[shapes.len() + shape.signature as usize].push(node);
            }
        }
        for list in &mut calls {
            list.sort_unstable();
            list.dedup();
        }
        Self { calls }
    }

    /// Returns groups of nodes that reach each other. Each group is behind all that it calls (Tarjan's algorithm, without recursion).
    fn knots(&self) -> Vec<Vec<usize>> {
        const NEW: usize = usize::MAX;
        let count = self.calls.len();
        let (mut order, mut low, mut is_open) = (vec![NEW; count], vec![0; count], vec![false; count]);
        let (mut knots, mut open, mut next) = (Vec::new(), Vec::new(), 0);
        for root in 0..count {
            let mut path = vec![(root, 0)];
            while let Some((node, at)) = path.pop() {
                if at == 0 {
                    if order[node] != NEW {
                        continue;
                    }
                    (order[node], low[node], is_open[node]) = (next, next, true);
                    next += 1;
                    open.push(node);
                }
                let Some(&called) = self.calls[node].get(at) else {
                    if low[node] == order[node] {
                        let first = open
                            .iter()
                            .rposition(|other| *other == node)
                            .expect("pushed when it was met");
                        let knot = open.split_off(first);
                        knot.iter().for_each(|node| is_open[*node] = false);
                        knots.push(knot);
                    }
                    if let Some((caller, _)) = path.last() {
                        low[*caller] = low[*caller].min(low[node]);
                    }
                    continue;
                };
                path.push((node, at + 1));
                if order[called] == NEW {
                    path.push((called, 0));
                } else if is_open[called] {
                    low[node] = low[node].min(order[called]);
                }
            }
        }
        knots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The `calls` of each function, of 100 bytes each. A caller of 99 calls the functions in `taken`.
    fn check(calls: &[&[u32]], taken: &[usize], expected: &[(usize, u32)]) {
        let mut shapes = vec![
            FunctionShape {
                frame_bytes: 100,
                ..FunctionShape::default()
            };
            calls.len()
        ];
        for (shape, calls) in shapes.iter_mut().zip(calls) {
            shape.calls = calls.iter().copied().filter(|called| *called != 99).collect();
            shape.calls_through = calls.iter().filter(|called| **called == 99).map(|_| 0).collect();
        }
        taken.iter().for_each(|taken| shapes[*taken].is_taken = true);
        let deep: Vec<_> = find_depths(&shapes, 0).deep.into_iter().collect();
        assert_eq!(deep, expected, "{calls:?}");
    }

    #[test]
    fn only_functions_that_recursion_may_pass_through_pay() {
        check(&[&[1], &[2], &[]], &[], &[]);
        check(&[&[0]], &[], &[(0, 100)]);
        // A recursion of two functions, which calls a chain of two, and is called by one function.
        check(&[&[1], &[2], &[1, 3], &[4], &[]], &[], &[(1, 100), (2, 300)]);
        // Calls through the table: the caller may be called again. A taken function that calls none is a chain.
        check(&[&[99], &[]], &[1], &[]);
        check(&[&[99], &[]], &[0, 1], &[(0, 200)]);
        check(&[&[1], &[99, 2], &[], &[1]], &[3], &[(1, 200), (3, 100)]);
    }

    #[test]
    fn long_chains_and_large_frames_pay_here_and_there() {
        let chain: Vec<FunctionShape> = (0..1_000)
            .map(|at| FunctionShape {
                frame_bytes: 100,
                calls: (at < 999).then_some(at + 1).into_iter().collect(),
                ..FunctionShape::default()
            })
            .collect();
        let deep = find_depths(&chain, 0).deep;
        assert!(deep.len() >= 5 && deep.len() < 10, "{deep:?}");
        assert!(deep.values().all(|price| u64::from(*price) <= UNPAID_BYTES_MAX + 100));
        let large = [FunctionShape {
            frame_bytes: 1 << 40,
            ..FunctionShape::default()
        }];
        assert_eq!(find_depths(&large, 0).deep[&0], i32::MAX as u32);
    }
}
