//! The typed kernels: a workload's transactions as plain Rust over hash maps and arrays, without undo, log, isolation, rows
//! or partitions. Nothing that keeps a database's promises can be faster; how near it comes is the point.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    hint::black_box,
    time::{Duration, Instant},
};

use crate::{random::Random, workload::Workload};

/// Calls that are made ahead, so that only running them is timed.
const BLOCK_CALLS: usize = 4_096;

/// A workload's data and its transactions on them.
pub(crate) trait Kernel<C> {
    /// Runs a call; what it came to, as the workload counts it.
    fn run(&mut self, call: &C) -> usize;
}

/// Calls a second over `seconds` of running, after `warmup_s`.
pub(crate) fn measure<W: Workload>(
    workload: &W,
    kernel: &mut dyn Kernel<W::Call>,
    seed: u64,
    [warmup_s, seconds]: [f64; 2],
) -> f64 {
    let mut random = Random::new(seed);
    let mut block = Vec::with_capacity(BLOCK_CALLS);
    let (mut all, mut counted, mut calls) = (Duration::ZERO, Duration::ZERO, 0_u64);
    let warmup = Duration::from_secs_f64(warmup_s);
    while counted.as_secs_f64() < seconds {
        block.clear();
        block.extend((0..BLOCK_CALLS).map(|_| workload.generate(&mut random)));
        let begun = Instant::now();
        for call in &block {
            black_box(kernel.run(call));
        }
        let took = begun.elapsed();
        if all >= warmup {
            counted += took;
            calls += BLOCK_CALLS as u64;
        }
        all += took;
    }
    (calls as f64 / counted.as_secs_f64()).round()
}

/// A map of integers hashed by one multiplication.
pub(crate) type IntMap<K, V> = HashMap<K, V, BuildHasherDefault<Fold>>;

#[derive(Default)]
pub(crate) struct Fold(u64);

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(*byte as u64));
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        let wide = (self.0 ^ value) as u128 * 0x9e37_79b9_7f4a_7c15;
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }

    #[inline]
    fn write_i64(&mut self, value: i64) {
        self.write_u64(value as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
