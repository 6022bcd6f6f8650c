//! How fresh a standby's view is, sample by sample, and its history.

use std::collections::VecDeque;

use reprise_base::Lsn;
use reprise_wire::Progress;

use crate::views::{SAMPLE_NS, ViewSamples};

/// The score counts from the primary's view of this age: in a long run the plain ratio of the views would be one.
pub(crate) const LOOK_BACK_NS: u64 = 10_000_000_000;
/// On an idle primary, the time within which the other side must have been heard to count as fresh.
pub(crate) const HEARD_NS: u64 = 1_000_000_000;
/// Samples kept one by one: a minute.
const SAMPLES_MAX: usize = 3_000;
/// Points kept, one a second: an hour.
const POINTS_MAX: usize = 3_600;

/// For how long a view has been behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    pub us: u64,
    /// False: it is so much at least.
    pub is_known: bool,
}

impl Lag {
    pub(crate) fn of(now_ns: u64, since_ns: u64, is_known: bool) -> Self {
        let us = now_ns.saturating_sub(since_ns) / 1_000;
        Self { us, is_known }
    }
}

/// A summary of one second's samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FreshnessPoint {
    /// Its end, in microseconds since 1970.
    pub at_us: i64,
    pub samples: FreshnessSummary,
}

/// A summary of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FreshnessSummary {
    pub count: usize,
    /// From 0 to 1.
    pub score_min: f32,
    pub score_median: f32,
    /// 95 and 99 of 100 samples are at least as fresh.
    pub score_p95: f32,
    pub score_p99: f32,
    pub lag_us_median: u64,
    /// 95 and 99 of 100 samples lag no more.
    pub lag_us_p95: u64,
    pub lag_us_p99: u64,
    pub lag_us_max: u64,
    pub lag_bytes_max: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FreshnessSample {
    pub score: f32,
    pub lag_us: u64,
    pub lag_bytes: u64,
}

/// Samples, and what they say by the second.
#[derive(Default)]
pub(crate) struct FreshnessSamples {
    samples: VecDeque<FreshnessSample>,
    /// Samples of the current second.
    second: Vec<FreshnessSample>,
    second_began_ns: u64,
    points: VecDeque<FreshnessPoint>,
}

impl FreshnessSamples {
    pub fn keep(&mut self, sample: FreshnessSample, (now_ns, now_us): (u64, i64)) {
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        if self.second.is_empty() {
            self.second_began_ns = now_ns;
        }
        self.second.push(sample);
        if now_ns.saturating_sub(self.second_began_ns) < 1_000_000_000 - SAMPLE_NS {
            return;
        }
        let point = point(now_us, &self.second);
        self.second.clear();
        if self.points.len() == POINTS_MAX {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    /// One point a second, the oldest first, and the last minute in one.
    pub fn report(&self) -> (Vec<FreshnessPoint>, Option<FreshnessSummary>) {
        let minute = (!self.samples.is_empty()).then(|| summary(self.samples.iter()));
        (self.points.iter().copied().collect(), minute)
    }
}

/// Freshness of one standby, as its primary sees it: by the newest progress, so never better than it is.
#[derive(Default)]
pub(crate) struct Freshness {
    /// The standby was heard on this connection.
    is_heard: bool,
    heard_ns: Option<u64>,
    /// The view of its readers when it was last heard, also on an earlier connection.
    view: Lsn,
    score: Option<f32>,
    lag: Lag,
    history: FreshnessSamples,
}

impl Freshness {
    /// Begins anew for a new connection.
    pub fn begin(&mut self) {
        self.is_heard = false;
    }

    /// Begins anew, after the standby lost its records.
    pub fn begin_anew(&mut self) {
        self.begin();
        self.view = Lsn(0);
    }

    pub fn record(&mut self, now_ns: u64, progress: &Progress) {
        self.is_heard = true;
        self.heard_ns = Some(now_ns);
        self.view = progress.view;
    }

    /// Takes a sample: the standby's last reported view against the primary's present one.
    pub fn sample(&mut self, now: (u64, i64), views: &ViewSamples, bytes_behind: impl Fn(Lsn) -> u64) {
        let (now_ns, view) = (now.0, self.view);
        let (Some(primary), Some(before)) = (views.at(now_ns), views.at(now_ns.saturating_sub(LOOK_BACK_NS))) else {
            return;
        };
        let is_recent = self
            .heard_ns
            .is_some_and(|heard| now_ns.saturating_sub(heard) <= HEARD_NS);
        let scored = score(view, primary, before).or(is_recent.then(|| idle(view, primary)));
        self.score = scored.filter(|_| self.is_heard);
        let is_measured = self.score.is_some();
        self.lag = match (view >= primary, views.last_at(view)) {
            (true, _) => Lag::of(now_ns, now_ns, is_measured),
            (false, Some(at)) => Lag::of(now_ns, at, is_measured),
            (false, None) => Lag::of(now_ns, views.oldest().unwrap_or(now_ns), false),
        };
        let Some(score) = self.score else { return };
        let sample = FreshnessSample {
            score,
            lag_us: self.lag.us,
            lag_bytes: if view >= primary { 0 } else { bytes_behind(view) },
        };
        self.history.keep(sample, now);
    }

    /// The newest score.
    pub fn score(&self) -> Option<f64> {
        self.score.map(f64::from)
    }

    /// The newest lag.
    pub fn lag(&self) -> Lag {
        self.lag
    }

    /// One point a second, the oldest first, and the last minute in one.
    pub fn history(&self) -> (Vec<FreshnessPoint>, Option<FreshnessSummary>) {
        self.history.report()
    }
}

/// The score if the primary has done nothing: whether the view shows all that was there before.
pub(crate) fn idle(view: Lsn, primary: Lsn) -> f32 {
    if view >= primary { 1.0 } else { 0.0 }
}

/// Returns the score, or None if the primary has done nothing.
pub(crate) fn score(view: Lsn, primary: Lsn, before: Lsn) -> Option<f32> {
    let done = primary.0.checked_sub(before.0).filter(|done| *done > 0)?;
    let seen = view.min(primary).0.saturating_sub(before.0);
    Some((seen as f64 / done as f64) as f32)
}

fn sorted<'a>(samples: impl Iterator<Item = &'a FreshnessSample> + Clone) -> (Vec<f32>, Vec<u64>) {
    let mut scores: Vec<_> = samples.clone().map(|sample| sample.score).collect();
    let mut lags: Vec<_> = samples.map(|sample| sample.lag_us).collect();
    scores.sort_unstable_by(f32::total_cmp);
    lags.sort_unstable();
    (scores, lags)
}

fn point(at_us: i64, samples: &[FreshnessSample]) -> FreshnessPoint {
    let samples = summary(samples.iter());
    FreshnessPoint { at_us, samples }
}

/// Summarizes at least one sample.
fn summary<'a>(samples: impl Iterator<Item = &'a FreshnessSample> + Clone) -> FreshnessSummary {
    let (scores, lags) = sorted(samples.clone());
    let last = scores.len() - 1;
    // Scores fall from fresh to stale: `percent` of a hundred are at least as good as this.
    let score = |percent: usize| scores[last - last * percent / 100];
    let lag = |percent: usize| lags[last * percent / 100];
    FreshnessSummary {
        count: scores.len(),
        score_min: scores[0],
        score_median: score(50),
        score_p95: score(95),
        score_p99: score(99),
        lag_us_median: lag(50),
        lag_us_p95: lag(95),
        lag_us_p99: lag(99),
        lag_us_max: lags[last],
        lag_bytes_max: samples.map(|sample| sample.lag_bytes).max().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn progress_at(view: u64) -> Progress {
        Progress {
            received: Lsn(view),
            view: Lsn(view),
            ..Progress::default()
        }
    }

    fn lag(us: u64, is_known: bool) -> Lag {
        Lag { us, is_known }
    }

    #[test]
    fn a_view_is_compared_with_the_primary_s_of_now() {
        let (mut views, mut fresh) = (ViewSamples::default(), Freshness::default());
        let mut now_ns = 1_000 * MS;
        // 1,000 records a sample, for 12 s.
        for n in 0..600u64 {
            now_ns += SAMPLE_NS;
            views.record(now_ns, Lsn(n * 1_000));
        }
        // It had all but 50,000 of them, of which the last 500,000 count.
        fresh.record(now_ns, &progress_at(549_000));
        fresh.sample((now_ns, 5), &views, |lsn| 10 * lsn.0);
        let score = fresh.score().expect("measured");
        assert!((score - 0.9).abs() < 1e-4, "{score}");
        assert_eq!(fresh.lag(), lag(1_000_000, true));
        fresh.record(now_ns, &progress_at(599_000));
        fresh.sample((now_ns, 5), &views, |_| 0);
        assert_eq!((fresh.score(), fresh.lag()), (Some(1.0), lag(0, true)));
        // An earlier report does not grow with time, so new records lower the score.
        views.record(now_ns + 30 * MS, Lsn(600_000));
        fresh.sample((now_ns + 30 * MS, 5), &views, |_| 0);
        assert!(fresh.score().is_some_and(|score| score < 1.0));
        assert_eq!(fresh.lag(), lag(30_000, true));
    }

    #[test]
    fn lag_of_a_standby_behind_all_samples_is_a_lower_bound() {
        let (mut views, mut fresh) = (ViewSamples::default(), Freshness::default());
        views.record(1_000 * MS, Lsn(500));
        fresh.record(3_000 * MS, &progress_at(400));
        fresh.sample((3_000 * MS, 0), &views, |_| 77);
        assert_eq!((fresh.score(), fresh.lag()), (Some(0.0), lag(2_000_000, false)));
    }

    #[test]
    fn silent_standby_lags_since_the_primary_was_at_its_view() {
        let (mut views, mut fresh) = (ViewSamples::default(), Freshness::default());
        let now_ns = 1_000 * MS;
        views.record(now_ns, Lsn(0));
        views.record(now_ns + 400 * MS, Lsn(500));
        fresh.sample((now_ns + 1_000 * MS, 0), &views, |_| 0);
        assert_eq!((fresh.score(), fresh.lag()), (None, lag(1_000_000, false)));
        fresh.record(now_ns + 1_000 * MS, &progress_at(500));
        // The earlier view is known until another connection reports more.
        fresh.begin();
        fresh.sample((now_ns + 1_000 * MS, 0), &views, |_| 0);
        assert_eq!((fresh.score(), fresh.lag()), (None, lag(0, false)));
        fresh.begin_anew();
        fresh.sample((now_ns + 1_000 * MS, 0), &views, |_| 0);
        assert_eq!((fresh.score(), fresh.lag()), (None, lag(1_000_000, false)));
    }

    #[test]
    fn an_idle_primary_is_seen_whole_as_long_as_the_standby_is_heard() {
        let (mut views, mut fresh) = (ViewSamples::default(), Freshness::default());
        let mut now_ns = 1_000 * MS;
        views.record(now_ns, Lsn(500));
        fresh.sample((now_ns, 0), &views, |_| 0);
        assert_eq!(fresh.score(), None, "nothing was heard of it");
        fresh.record(now_ns, &progress_at(500));
        fresh.sample((now_ns, 0), &views, |_| 0);
        assert_eq!((fresh.score(), fresh.lag()), (Some(1.0), lag(0, true)));
        now_ns += 1_100 * MS;
        views.record(now_ns, Lsn(500));
        fresh.sample((now_ns, 0), &views, |_| 0);
        assert_eq!(
            (fresh.score(), fresh.lag()),
            (None, lag(0, false)),
            "nothing was heard of it for more than a second"
        );
        // The standby is lost, and the primary keeps writing: the standby shows less and less of it.
        views.record(now_ns + 20 * MS, Lsn(1_000));
        fresh.sample((now_ns + 20 * MS, 0), &views, |_| 77);
        assert_eq!((fresh.score(), fresh.lag()), (Some(0.0), lag(20_000, true)));
    }

    #[test]
    fn seconds_and_the_last_minute_are_kept() {
        let (mut views, mut fresh) = (ViewSamples::default(), Freshness::default());
        let mut now_ns = 1_000 * MS;
        for n in 0..(61 * 50u64) {
            now_ns += SAMPLE_NS;
            views.record(now_ns, Lsn(n * 100));
            // Every tenth time it is ten samples behind.
            let behind = if n % 10 == 9 { 1_000 } else { 0 };
            fresh.record(now_ns, &progress_at((n * 100u64).saturating_sub(behind)));
            fresh.sample((now_ns, n as i64), &views, |_| behind);
        }
        let (points, summary) = fresh.history();
        let summary = summary.expect("samples");
        assert_eq!((summary.count, summary.score_median), (SAMPLES_MAX, 1.0));
        assert!(
            (summary.score_p95 - 0.98).abs() < 1e-3 && summary.score_min < 0.99,
            "{summary:?}"
        );
        assert_eq!(
            (summary.lag_us_median, summary.lag_us_p95, summary.lag_us_p99),
            (0, 200_000, 200_000)
        );
        assert_eq!(points.len(), 61);
        let last = points[60];
        assert_eq!(
            (
                last.samples.score_median,
                last.samples.lag_us_max,
                last.samples.lag_bytes_max
            ),
            (1.0, 200_000, 1_000)
        );
    }
}
