//! Latencies: recorded into fixed buckets, read as an HDR histogram.
//!
//! The writer's side is an array of counters in HDR's own shape (linear within each power of two). So recording is one index computation
//! and one store. The reader turns it into a `hdrhistogram::Histogram`.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::Counter;

/// Each power of two is cut into `1 << SUB_BITS` buckets: values are exact to 1.6 %.
const SUB_BITS: u32 = 6;
const SUB_COUNT: u64 = 1 << SUB_BITS;
/// About 73 minutes in nanoseconds; longer ones count as that.
const VALUE_BITS: u32 = 42;
const BUCKETS_COUNT: usize = ((VALUE_BITS - SUB_BITS + 1) as usize) << SUB_BITS;

/// Nanoseconds, counted.
#[derive(Debug)]
pub struct LatencyHistogram {
    buckets: Box<[Counter]>,
}

fn bucket_of(ns: u64) -> usize {
    let ns = ns.min((1 << VALUE_BITS) - 1);
    if ns < SUB_COUNT {
        return ns as usize;
    }
    let shift = ns.ilog2() - SUB_BITS;
    let group = (shift + 1) as usize;
    (group << SUB_BITS) + ((ns >> shift) - SUB_COUNT) as usize
}

/// The middle of a bucket's values.
fn value_of(bucket: usize) -> u64 {
    let group = (bucket as u64) >> SUB_BITS;
    let sub = bucket as u64 & (SUB_COUNT - 1);
    if group == 0 {
        return sub;
    }
    let shift = group - 1;
    ((SUB_COUNT + sub) << shift) + ((1 << shift) >> 1)
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self {
            buckets: (0..BUCKETS_COUNT).map(|_| Counter::default()).collect(),
        }
    }
}

impl LatencyHistogram {
    /// Counts `count` events that took `ns` each. One thread only.
    #[inline]
    pub fn record(&self, ns: u64, count: u64) {
        self.buckets[bucket_of(ns)].add(count);
    }

    /// Records like `record`, from any thread.
    #[inline]
    pub fn record_shared(&self, ns: u64, count: u64) {
        self.buckets[bucket_of(ns)].add_shared(count);
    }

    /// Adds the latencies recorded until now to `sum`.
    pub fn add_to(&self, sum: &mut Histogram<u64>) {
        for (bucket, counter) in self.buckets.iter().enumerate() {
            let count = counter.get();
            if count > 0 {
                sum.saturating_record_n(value_of(bucket), count);
            }
        }
    }

    /// The latencies recorded until now.
    pub fn histogram(&self) -> Histogram<u64> {
        let mut sum = empty();
        self.add_to(&mut sum);
        sum
    }

    /// A summary of the latencies recorded until now.
    pub fn summary(&self) -> LatencySummary {
        LatencySummary::of(&self.histogram())
    }
}

pub(crate) fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1 << VALUE_BITS, 2).expect("constant bounds are valid")
}

/// The usual points of a distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatencySummary {
    /// Number of values.
    pub count: u64,
    /// Their mean.
    pub mean_ns: f64,
    /// Their median.
    pub p50_ns: u64,
    /// 95 of 100 are no greater.
    pub p95_ns: u64,
    /// 99 of 100 are no greater.
    pub p99_ns: u64,
    /// 999 of 1,000 are no greater.
    pub p999_ns: u64,
    /// The greatest.
    pub max_ns: u64,
}

impl LatencySummary {
    /// All zero for a histogram of nothing.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        Self {
            count: histogram.len(),
            mean_ns: histogram.mean(),
            p50_ns: histogram.value_at_quantile(0.5),
            p95_ns: histogram.value_at_quantile(0.95),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            max_ns: histogram.max(),
        }
    }
}

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_are_close_to_their_values() {
        let mut before = 0;
        for power in 0..VALUE_BITS {
            for step in 0..64 {
                let ns = (1u64 << power) + (((1u64 << power) * step) >> 6);
                let bucket = bucket_of(ns);
                assert!(bucket >= before && bucket < BUCKETS_COUNT);
                let error = value_of(bucket).abs_diff(ns) as f64 / ns as f64;
                assert!(error < 0.016, "{ns} counted as {}", value_of(bucket));
                before = bucket;
            }
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS_COUNT - 1);
    }

    #[test]
    fn quantiles_are_those_of_the_values() {
        let latency = LatencyHistogram::default();
        (1..=1000).for_each(|us| latency.record(us * 1000, 1));
        let summary = latency.summary();
        assert_eq!(summary.count, 1000);
        assert!(summary.p50_ns.abs_diff(500_000) < 15_000, "{summary:?}");
        assert!(summary.p99_ns.abs_diff(990_000) < 25_000, "{summary:?}");
        assert!(summary.max_ns.abs_diff(1_000_000) < 20_000, "{summary:?}");
        assert_eq!(LatencyHistogram::default().summary(), LatencySummary::default());
    }
}
