//! Changes of known inputs, by a seed: what a fuzzer does without coverage to guide it.

use reprise_env::sim::FaultRandom;

/// Bytes that an input grows to at most.
const BYTES_MAX: usize = 64 << 10;
/// Numbers at the edges of what lengths and counts may be.
const EDGES: [u64; 10] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    u64::MAX,
];

pub struct Mutator {
    random: FaultRandom,
}

impl Mutator {
    pub fn new(seed: u64) -> Self {
        Self {
            random: FaultRandom::new(seed),
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound.max(1) as u64) as usize
    }

    /// One of `inputs`, changed in one place or several.
    pub fn next(&mut self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = inputs[self.below(inputs.len())].clone();
        for _ in 0..1 + self.below(4) {
            self.change(&mut bytes, inputs);
        }
        bytes.truncate(BYTES_MAX);
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, inputs: &[Vec<u8>]) {
        let at = self.below(bytes.len());
        match self.below(8) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, self.random.next_u64() as u8),
            2 if !bytes.is_empty() => drop(bytes.remove(at)),
            3 if !bytes.is_empty() => bytes[at] = EDGES[self.below(5)] as u8,
            4 => {
                let edge = EDGES[self.below(EDGES.len())].to_le_bytes();
                let width = [2, 4, 8][self.below(3)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&edge[..width]);
            }
            5 => {
                // The front of this one and the back of another.
                let other = &inputs[self.below(inputs.len())];
                let from = self.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            6 => {
                let end = at + self.below(bytes.len() - at + 1).min(64);
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            _ if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
            _ => {}
        }
    }
}
