//! The guest's heap, made for short calls whose memory is reset as a whole afterwards.
//!
//! Blocks have one of four sizes between two powers of two, so that little is wasted. The host resets the memory that a call touches page
//! by page. Memory of the last block is free at once when it is freed. Other freed blocks wait in a list of their size. Fresh ones come
//! from the end of memory. The last block grows in place, so that a buffer that is filled piece by piece is not copied.

/// Smallest block, and the alignment of all of them.
const BLOCK_BYTES_MIN: usize = 16;
/// Up to here sizes are multiples of the smallest one.
const EVEN_BYTES_MAX: usize = 64;
/// Sizes between two powers of two.
const STEPS: usize = 4;
const _: () = assert!(EVEN_BYTES_MAX == STEPS * BLOCK_BYTES_MIN);
/// Largest block: 2^30 bytes, far beyond the memory that a guest gets.
const CLASSES: usize = STEPS + STEPS * (30 - EVEN_BYTES_MAX.ilog2() as usize);
const NO_BLOCK: usize = 0;

/// The memory under the heap, by address. Address 0 is never part of it.
pub trait HeapMemory {
    /// Grows the memory so that `end` is its end or lies before it; false when it can't.
    fn grow_to(&mut self, end: usize) -> bool;
    /// The first address that the heap may use.
    fn base(&self) -> usize;
    fn load(&self, address: usize) -> usize;
    fn store(&mut self, address: usize, value: usize);
}

pub struct Heap<M> {
    memory: M,
    /// Start of the memory that no block has; 0 before the first allocation.
    next: usize,
    /// Maximum of `next`: memory behind it was never written.
    end: usize,
    /// The first free block of each size; each links to the next one of its size.
    free: [usize; CLASSES],
}

impl<M: HeapMemory> Heap<M> {
    pub const fn new(memory: M) -> Self {
        Self {
            memory,
            next: NO_BLOCK,
            end: NO_BLOCK,
            free: [NO_BLOCK; CLASSES],
        }
    }

    /// The address of a block of at least `bytes`, or 0.
    #[inline]
    pub fn allocate(&mut self, bytes: usize, align: usize) -> usize {
        let Some(class) = class_of(bytes) else {
            return NO_BLOCK;
        };
        // Freed blocks are aligned to 16 bytes, which is not enough for the few that ask for more.
        if align <= BLOCK_BYTES_MIN {
            let block = self.free[class];
            if block != NO_BLOCK {
                self.free[class] = self.memory.load(block);
                return block;
            }
        }
        self.allocate_fresh(bytes_of(class), align.max(BLOCK_BYTES_MIN))
    }

    /// Allocates like `allocate`. True if the block may hold other bytes than zeros: memory that no block ever had does not.
    #[inline]
    pub fn allocate_for_zeros(&mut self, bytes: usize, align: usize) -> (usize, bool) {
        let end = self.end;
        let block = self.allocate(bytes, align);
        (block, block < end)
    }

    fn allocate_fresh(&mut self, block_bytes: usize, align: usize) -> usize {
        if self.next == NO_BLOCK {
            self.next = self.memory.base();
        }
        // A power of two: a division would take longer than all else here.
        let start = self.next.checked_add(align - 1).map(|end| end & !(align - 1));
        let end = start.and_then(|start| start.checked_add(block_bytes));
        match (start, end) {
            (Some(start), Some(end)) if self.memory.grow_to(end) => {
                self.next_is(end);
                start
            }
            _ => NO_BLOCK,
        }
    }

    #[inline(always)]
    fn next_is(&mut self, next: usize) {
        self.next = next;
        self.end = self.end.max(next);
    }

    #[inline]
    pub fn free(&mut self, block: usize, bytes: usize) {
        let Some(class) = class_of(bytes) else {
            return;
        };
        if block + bytes_of(class) == self.next {
            // The block was the last one, so the next block, of whatever size, may lie at its place.
            self.next = block;
            return;
        }
        self.memory.store(block, self.free[class]);
        self.free[class] = block;
    }

    /// Returns whether the block of `bytes` now has room for `bytes_new` at its place.
    #[inline]
    pub fn resize_in_place(&mut self, block: usize, bytes: usize, bytes_new: usize) -> bool {
        let (Some(class), Some(class_new)) = (class_of(bytes), class_of(bytes_new)) else {
            return false;
        };
        if class == class_new {
            return true;
        }
        let is_last = block + bytes_of(class) == self.next;
        let end = block + bytes_of(class_new);
        if class_new < class || !is_last || !self.memory.grow_to(end) {
            return false;
        }
        self.next_is(end);
        true
    }
}

/// The class of the smallest blocks with at least `bytes` bytes.
#[inline]
fn class_of(bytes: usize) -> Option<usize> {
    let last = bytes.max(1) - 1;
    if last < EVEN_BYTES_MAX {
        return Some(last / BLOCK_BYTES_MIN);
    }
    let power = last.ilog2() as usize;
    let step = (last >> (power - 2)) % STEPS;
    let class = STEPS + STEPS * (power - EVEN_BYTES_MAX.ilog2() as usize) + step;
    (class < CLASSES).then_some(class)
}

/// Bytes of the blocks of a class.
#[inline]
fn bytes_of(class: usize) -> usize {
    if class < STEPS {
        return (class + 1) * BLOCK_BYTES_MIN;
    }
    let (power, step) = (class / STEPS - 1 + EVEN_BYTES_MAX.ilog2() as usize, class % STEPS);
    (step + STEPS + 1) << (power - 2)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const END_MAX: usize = 1 << 20;

    /// Memory from address 40 to `END_MAX` whose words are links only.
    #[derive(Default)]
    struct Model(BTreeMap<usize, usize>);

    impl HeapMemory for Model {
        fn grow_to(&mut self, end: usize) -> bool {
            end <= END_MAX
        }
        fn base(&self) -> usize {
            40
        }
        fn load(&self, address: usize) -> usize {
            self.0[&address]
        }
        fn store(&mut self, address: usize, value: usize) {
            self.0.insert(address, value);
        }
    }

    #[test]
    fn blocks_never_overlap_and_are_used_again() {
        let mut heap = Heap::new(Model::default());
        let mut random = reprise_abi::random::TxnRandom::new([1, 2], 3);
        let mut live: Vec<(usize, usize)> = Vec::new();
        for _ in 0..20_000 {
            let draw = random.next_u64() as usize;
            let bytes = 1 + (draw >> 8) % 300;
            let end = heap.end;
            if draw.is_multiple_of(3) && !live.is_empty() {
                let (block, bytes) = live.swap_remove(draw % live.len());
                heap.free(block, bytes);
            } else if draw % 3 == 1 && !live.is_empty() {
                let slot = draw % live.len();
                let (block, old) = live[slot];
                if heap.resize_in_place(block, old, bytes) {
                    live[slot] = (block, bytes);
                }
            } else if live.len() < 100 {
                let align = 1 << ((draw >> 4) % 7);
                let (block, is_used) = heap.allocate_for_zeros(bytes, align);
                assert!(block != 0 && block % align == 0 && block >= 40);
                assert_eq!(is_used, block < end, "only what nobody had is zero");
                live.push((block, bytes));
            }
            assert!(heap.end >= end && heap.next <= heap.end);
            live.sort_unstable();
            assert!(
                live.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0),
                "{live:?}"
            );
        }
    }

    #[test]
    fn blocks_are_large_enough_and_little_larger() {
        for bytes in (1..10_000).chain((14..=30).flat_map(|power| [(1 << power) - 1, 1 << power])) {
            let block_bytes = bytes_of(class_of(bytes).expect("a class"));
            assert!(block_bytes >= bytes && block_bytes.is_multiple_of(BLOCK_BYTES_MIN));
            assert!(
                block_bytes < bytes + BLOCK_BYTES_MIN.max(bytes / 4 + 1),
                "{bytes}: {block_bytes}"
            );
        }
        assert_eq!((class_of(1 << 30), class_of((1 << 30) + 1)), (Some(CLASSES - 1), None));
    }

    #[test]
    fn the_last_block_is_given_up_for_blocks_of_any_size() {
        let mut heap = Heap::new(Model::default());
        let first = heap.allocate(100, 8);
        let large = heap.allocate(5_000, 8);
        heap.free(large, 5_000);
        let blocks = [heap.allocate_for_zeros(300, 8), heap.allocate_for_zeros(3_000, 8)];
        assert_eq!(blocks[0], (large, true));
        assert!(blocks[1].0 + 3_000 <= large + 5_000 && blocks[1].1);
        heap.free(first, 100);
        assert_eq!(heap.allocate_for_zeros(100, 8), (first, true));
        assert!(heap.allocate_for_zeros(100_000, 8).1, "it begins where others lay");
        assert!(!heap.allocate_for_zeros(16, 8).1, "nobody had this");
    }

    #[test]
    fn impossible_allocation_is_refused() {
        let mut heap = Heap::new(Model::default());
        assert_eq!(heap.allocate(END_MAX, 1), 0);
        assert_eq!(heap.allocate(usize::MAX, 1), 0);
        assert_eq!(heap.allocate(1, 1 << 30), 0);
        let block = heap.allocate(100, 8);
        assert!(
            heap.resize_in_place(block, 100, 5_000),
            "the last block grows where it is"
        );
        assert!(!heap.resize_in_place(block, 5_000, usize::MAX));
        assert!(heap.allocate(8, 8) >= block + 5_000);
    }
}
