//! The primary's positions by time, against which it measures a standby's freshness (Query Fresh, section 4).

use std::collections::VecDeque;

use reprise_base::Lsn;

/// Time between two samples, in nanoseconds.
pub(crate) const SAMPLE_NS: u64 = 20_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Shortest time between two samples, in nanoseconds: heartbeats come this often while commits wait.
const APART_NS: u64 = 2_000_000;
/// Samples that are kept: 12 s at least. The score looks back 10 s.
const RECENT_MAX: usize = 6_000;
/// Number of seconds of which one sample is kept: an hour.
const COARSE_MAX: usize = 3_600;

/// At this time the primary had everything before this LSN at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ViewSample {
    at_ns: u64,
    lsn: Lsn,
}

/// Samples of the primary's view, oldest first.
#[derive(Default)]
pub(crate) struct ViewSamples {
    recent: VecDeque<ViewSample>,
    coarse: VecDeque<ViewSample>,
}

impl ViewSamples {
    /// Records a sample. Only the first one of a time counts, because later ones may include newer records.
    pub fn record(&mut self, at_ns: u64, lsn: Lsn) {
        if self.recent.back().is_some_and(|last| at_ns <= last.at_ns) {
            return;
        }
        let sample = ViewSample { at_ns, lsn };
        // The newest is always there.
        let last_but_one = self.recent.len().checked_sub(2).map(|at| self.recent[at]);
        if last_but_one.is_some_and(|before| at_ns < before.at_ns + APART_NS) {
            self.recent.pop_back();
        }
        let is_second = self.coarse.back().is_none_or(|last| at_ns >= last.at_ns + SECOND_NS);
        push(&mut self.recent, sample, RECENT_MAX);
        if is_second {
            push(&mut self.coarse, sample, COARSE_MAX);
        }
    }

    /// Returns the view at a time of the last seconds, in proportion between two samples. For an earlier time it returns the first sample.
    pub fn at(&self, at_ns: u64) -> Option<Lsn> {
        let after = self.recent.partition_point(|sample| sample.at_ns <= at_ns);
        let before = self.recent.get(after.saturating_sub(1))?;
        let Some(next) = self.recent.get(after).filter(|_| after > 0) else {
            return Some(before.lsn);
        };
        let (passed, all) = (at_ns - before.at_ns, next.at_ns - before.at_ns);
        Some(Lsn(
            before.lsn.0 + portion(next.lsn.0.saturating_sub(before.lsn.0), passed, all)
        ))
    }

    /// Returns the time at which the view was last no further than `lsn`, by the samples. None: it was further in all that are kept, or there are
    /// none.
    pub fn last_at(&self, lsn: Lsn) -> Option<u64> {
        let last_in = |samples: &VecDeque<ViewSample>| {
            let after = samples.partition_point(|sample| sample.lsn <= lsn);
            after.checked_sub(1).map(|at| samples[at].at_ns)
        };
        last_in(&self.recent).or_else(|| last_in(&self.coarse))
    }

    /// Returns the time since which samples are kept.
    pub fn oldest(&self) -> Option<u64> {
        self.coarse.front().map(|sample| sample.at_ns)
    }
}

fn portion(of: u64, passed: u64, all: u64) -> u64 {
    (u128::from(of) * u128::from(passed) / u128::from(all.max(1))) as u64
}

fn push(samples: &mut VecDeque<ViewSample>, sample: ViewSample, max: usize) {
    if samples.len() == max {
        samples.pop_front();
    }
    samples.push_back(sample);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_known_for_seconds_finely_and_for_an_hour_coarsely() {
        let mut views = ViewSamples::default();
        assert_eq!((views.at(5), views.last_at(Lsn(5)), views.oldest()), (None, None, None));
        // 100 records a second, for two hours.
        let samples = 2 * 3_600 * 50;
        (1..=samples).for_each(|n| views.record(n * SAMPLE_NS, Lsn(2 * n)));
        let now_ns = samples * SAMPLE_NS;
        assert_eq!(views.at(now_ns), Some(Lsn(2 * samples)));
        assert_eq!(views.at(now_ns - 10 * SECOND_NS + 1), Some(Lsn(2 * (samples - 500))));
        assert_eq!(views.last_at(Lsn(2 * samples - 5)), Some(now_ns - 3 * SAMPLE_NS));
        // Half way between two samples.
        assert_eq!(views.at(now_ns - 5 * SAMPLE_NS / 2), Some(Lsn(2 * samples - 5)));
        // Ten minutes behind: to the second.
        let behind = now_ns - views.last_at(Lsn(2 * samples - 60_000)).expect("known");
        assert!((599 * SECOND_NS..=601 * SECOND_NS).contains(&behind), "{behind}");
        assert_eq!((views.recent.len(), views.coarse.len()), (RECENT_MAX, COARSE_MAX));
    }

    #[test]
    fn time_of_a_view_that_no_sample_reaches_back_to_is_unknown() {
        let mut views = ViewSamples::default();
        let samples = 2 * COARSE_MAX as u64 * 50;
        (1..=samples).for_each(|n| views.record(n * SAMPLE_NS, Lsn(n)));
        let oldest_ns = views.oldest().expect("there are samples");
        assert!(oldest_ns > SECOND_NS * COARSE_MAX as u64 / 2, "{oldest_ns}");
        let oldest = oldest_ns / SAMPLE_NS;
        assert_eq!(views.last_at(Lsn(oldest)), Some(oldest_ns));
        assert_eq!(views.last_at(Lsn(oldest - 1)), None);
    }

    #[test]
    fn first_of_several_samples_of_one_time_counts() {
        let mut views = ViewSamples::default();
        views.record(5 * SECOND_NS, Lsn(100));
        views.record(5 * SECOND_NS, Lsn(200));
        views.record(4 * SECOND_NS, Lsn(300));
        assert_eq!(views.last_at(Lsn(100)), Some(5 * SECOND_NS));
        assert_eq!(views.last_at(Lsn(99)), None);
    }

    #[test]
    fn heartbeats_that_come_faster_do_not_shorten_what_is_known() {
        let mut views = ViewSamples::default();
        let step_ns = APART_NS / 10;
        let steps = 12 * SECOND_NS / step_ns;
        for n in 1..=steps {
            views.record(n * step_ns, Lsn(n));
            assert_eq!(views.at(n * step_ns), Some(Lsn(n)), "the newest");
        }
        let before = views.at((steps * step_ns).saturating_sub(10 * SECOND_NS));
        assert_eq!(before, Some(Lsn(steps / 6)), "10 of 12 s back");
        assert!(views.recent.len() <= RECENT_MAX);
    }
}
