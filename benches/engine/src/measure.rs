//! Times an operation in batches and prints the least and the median batch.

use std::time::Instant;

const BATCHES: usize = 200;
/// Time that one batch aims at: far above the clock's resolution, far below a time slice.
const BATCH_NS: f64 = 200_000.0;

/// Nanoseconds per operation.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    pub least: f64,
    pub median: f64,
}

/// Times `operation`, which does `per_run` operations a run.
pub fn time(per_run: u32, mut operation: impl FnMut()) -> Timing {
    let started = Instant::now();
    let mut warm = 0;
    while started.elapsed().as_micros() < 20_000 {
        operation();
        warm += 1;
    }
    let run_ns = started.elapsed().as_nanos() as f64 / f64::from(warm);
    let runs = (BATCH_NS / run_ns).max(1.0) as u32;
    let batches = if run_ns > 1e6 { BATCHES / 10 } else { BATCHES };
    let mut times: Vec<f64> = (0..batches)
        .map(|_| {
            let started = Instant::now();
            for _ in 0..runs {
                operation();
            }
            started.elapsed().as_nanos() as f64 / f64::from(runs) / f64::from(per_run)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    Timing {
        least: times[0],
        median: times[times.len() / 2],
    }
}

pub fn header(title: &str) {
    println!("{title:<58} {:>12} {:>12}", "least ns", "median ns");
}

pub fn line(name: &str, timing: Timing) {
    println!("{name:<58} {:>12.1} {:>12.1}", timing.least, timing.median);
}
