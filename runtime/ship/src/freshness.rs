//! How fresh a standby's view is, sample by sample, and its history.

use std::{collections::VecDeque, sync::Mutex};

use reprise_base::Lsn;
use reprise_wire::Progress;

use crate::{
    link::BeatSeen,
    views::{SAMPLE_NS, Views},
};

/// The score counts from the primary's view so long ago: in a long run the plain ratio of the views would be one.
const LOOK_BACK_NS: u64 = 10_000_000_000;
/// Where nothing was written, all is seen if somebody has said so within this time.
const HEARD_NS: u64 = 1_000_000_000;
/// A progress is a sample of its own moment for so long, and then the standby is taken to be where it was.
const CURRENT_NS: u64 = 3 * SAMPLE_NS;
/// Round trips of which the shortest tells the difference of the clocks best.
const TRIPS_MAX: usize = 64;
/// Samples kept one by one: a minute.
const SAMPLES_MAX: usize = 3_000;
/// Points kept, one a second: an hour.
const POINTS_MAX: usize = 3_600;

/// What a second's samples say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FreshnessPoint {
    /// Its end, in microseconds since 1970.
    pub at_us: i64,
    pub samples: FreshnessSummary,
}

/// What samples say.
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
struct Sample {
    score: f32,
    lag_us: u64,
    lag_bytes: u64,
}

/// Compares the standby's clock with the primary's: half of the shortest round trip is taken for the way back.
#[derive(Default)]
struct ClockMatch {
    /// Length of the trip, and standby's clock less primary's.
    trips: VecDeque<(u64, i64)>,
}

impl ClockMatch {
    fn note(&mut self, now_ns: u64, progress: &Progress) {
        let trip_ns = now_ns.checked_sub(progress.echo_ns.saturating_add(progress.held_ns));
        let Some(trip_ns) = trip_ns.filter(|_| progress.echo_ns > 0) else {
            return; // no heartbeat yet, or one that this primary has not sent
        };
        let sent_ns = now_ns - trip_ns / 2;
        if self.trips.len() == TRIPS_MAX {
            self.trips.pop_front();
        }
        self.trips
            .push_back((trip_ns, progress.at_ns.wrapping_sub(sent_ns) as i64));
    }

    /// A moment of the standby's clock on the primary's.
    fn moment(&self, at_ns: u64, now_ns: u64) -> Option<u64> {
        let (_, difference) = self.trips.iter().min()?;
        Some(at_ns.wrapping_sub(*difference as u64).min(now_ns))
    }
}

/// One standby's.
#[derive(Default)]
pub(crate) struct Freshness {
    clocks: ClockMatch,
    /// The newest progress: its moment on the primary's clock, and the view then.
    seen: Option<(u64, Lsn)>,
    heard_ns: Option<u64>,
    /// What readers there saw when it was heard last, on an earlier connection, too.
    view: Lsn,
    now: Option<Sample>,
    /// As long as there is no newest sample: how much it lags at least, in microseconds.
    lag_us_min: u64,
    /// Where somebody samples whenever something is heard.
    due_ns: u64,
    samples: VecDeque<Sample>,
    /// Of the second that has begun.
    second: Vec<Sample>,
    second_began_ns: u64,
    points: VecDeque<FreshnessPoint>,
}

impl Freshness {
    /// Of a new connection: its clock may be another's.
    pub fn begin(&mut self) {
        self.clocks = ClockMatch::default();
        self.seen = None;
    }

    /// What it had is gone.
    pub fn begin_anew(&mut self) {
        self.begin();
        self.view = Lsn(0);
    }

    pub fn note(&mut self, now_ns: u64, progress: &Progress) {
        self.clocks.note(now_ns, progress);
        self.heard_ns = Some(now_ns);
        let moment = self.clocks.moment(progress.at_ns, now_ns).unwrap_or(now_ns);
        self.seen = Some((moment, progress.view));
        self.view = progress.view;
    }

    /// One sample: the standby's view against the primary's at the same moment.
    pub fn sample(&mut self, now: (u64, i64), views: &Views, bytes_behind: impl Fn(Lsn) -> u64) {
        self.measure(now, views, bytes_behind);
        if self.now.is_none() {
            let is_behind = views.at(now.0).is_some_and(|primary| self.view < primary);
            let since_ns = views.last_at(self.view).filter(|_| is_behind);
            self.lag_us_min = since_ns.map_or(0, |since_ns| now.0.saturating_sub(since_ns) / 1_000);
        }
    }

    fn measure(&mut self, (now_ns, now_us): (u64, i64), views: &Views, bytes_behind: impl Fn(Lsn) -> u64) {
        let Some((moment, view)) = self.seen else {
            self.now = None;
            return;
        };
        let moment = match now_ns.saturating_sub(moment) <= CURRENT_NS {
            true => moment,
            false => now_ns,
        };
        let is_heard = self
            .heard_ns
            .is_some_and(|heard| now_ns.saturating_sub(heard) <= HEARD_NS);
        let (Some(primary), Some(before)) = (views.at(moment), views.at(moment.saturating_sub(LOOK_BACK_NS))) else {
            return;
        };
        let score = score(view, primary, before).or(is_heard.then(|| idle(view, primary)));
        let Some(score) = score else {
            self.now = None;
            return;
        };
        let lag_us = match view >= primary {
            true => 0,
            false => views.when(view).map_or(0, |at| moment.saturating_sub(at) / 1_000),
        };
        let lag_bytes = if view >= primary { 0 } else { bytes_behind(view) };
        self.keep(
            Sample {
                score,
                lag_us,
                lag_bytes,
            },
            now_ns,
            now_us,
        );
    }

    /// A sample's time has passed since the last one.
    fn is_due(&mut self, now_ns: u64) -> bool {
        let is_due = now_ns >= self.due_ns;
        if is_due {
            self.due_ns = now_ns + SAMPLE_NS;
        }
        is_due
    }

    fn keep(&mut self, sample: Sample, now_ns: u64, now_us: i64) {
        self.now = Some(sample);
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

    /// The newest score.
    pub fn score(&self) -> Option<f64> {
        self.now.map(|sample| f64::from(sample.score))
    }

    /// The newest lag in microseconds; so much at least where there is no score.
    pub fn lag_us(&self) -> u64 {
        self.now.map_or(self.lag_us_min, |sample| sample.lag_us)
    }

    /// One point a second, the oldest first, and the last minute in one.
    pub fn history(&self) -> (Vec<FreshnessPoint>, Option<FreshnessSummary>) {
        (self.points.iter().copied().collect(), self.summary())
    }

    fn summary(&self) -> Option<FreshnessSummary> {
        (!self.samples.is_empty()).then(|| summary(self.samples.iter()))
    }
}

/// The score where the primary has done nothing: the view shows all, or lacks what was there before.
fn idle(view: Lsn, primary: Lsn) -> f32 {
    if view >= primary { 1.0 } else { 0.0 }
}

/// None where the primary has done nothing.
fn score(view: Lsn, primary: Lsn, before: Lsn) -> Option<f32> {
    let done = primary.0.checked_sub(before.0).filter(|done| *done > 0)?;
    let seen = view.min(primary).0.saturating_sub(before.0);
    Some((seen as f64 / done as f64) as f32)
}

fn sorted<'a>(samples: impl Iterator<Item = &'a Sample> + Clone) -> (Vec<f32>, Vec<u64>) {
    let mut scores: Vec<_> = samples.clone().map(|sample| sample.score).collect();
    let mut lags: Vec<_> = samples.map(|sample| sample.lag_us).collect();
    scores.sort_unstable_by(f32::total_cmp);
    lags.sort_unstable();
    (scores, lags)
}

fn point(at_us: i64, samples: &[Sample]) -> FreshnessPoint {
    let samples = summary(samples.iter());
    FreshnessPoint { at_us, samples }
}

/// Of at least one sample.
fn summary<'a>(samples: impl Iterator<Item = &'a Sample> + Clone) -> FreshnessSummary {
    let (scores, lags) = sorted(samples.clone());
    let last = scores.len() - 1;
    // Scores fall from fresh to stale: so many of a hundred are at least as good as this.
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

/// How fresh a standby takes itself to be, by its primary's heartbeats. The way of a heartbeat counts as no time.
#[derive(Default)]
pub struct OwnFreshness(Mutex<(Views, Freshness)>);

impl OwnFreshness {
    pub fn note(&self, beat: &BeatSeen, now_us: i64, view: Lsn) {
        let mut both = self.0.lock().expect("nothing panics under this lock");
        let (views, freshness) = &mut *both;
        views.note(beat.came_ns, beat.durable);
        freshness.seen = Some((beat.came_ns, view));
        freshness.heard_ns = Some(beat.came_ns);
        if freshness.is_due(beat.came_ns) {
            freshness.sample((beat.came_ns, now_us), views, |_| beat.behind_bytes);
        }
    }

    /// The score of this view, where the primary was heard within a second; and for how many microseconds at most it may have had something
    /// that this view does not show: since it was heard last, where that was all. None: nothing was heard of it.
    pub fn now(&self, now_ns: u64, view: Lsn) -> (Option<f64>, Option<u64>) {
        let both = self.0.lock().expect("nothing panics under this lock");
        let (views, freshness) = &*both;
        // What the primary showed when it was heard, and what it showed before.
        let heard = freshness
            .heard_ns
            .filter(|heard| now_ns.saturating_sub(*heard) <= HEARD_NS)
            .and_then(|heard| Some((views.at(heard)?, views.at(heard.saturating_sub(LOOK_BACK_NS))?)));
        let lag_us = views.last_at(view).map(|at| now_ns.saturating_sub(at) / 1_000);
        let fresh = heard
            .map(|(primary, before)| f64::from(score(view, primary, before).unwrap_or_else(|| idle(view, primary))));
        (fresh, lag_us)
    }

    /// One point a second, the oldest first, and the last minute in one.
    pub fn history(&self) -> (Vec<FreshnessPoint>, Option<FreshnessSummary>) {
        self.0.lock().expect("nothing panics under this lock").1.history()
    }
}

#[cfg(test)]
mod tests {
    use reprise_base::Epoch;

    use super::*;

    const MS: u64 = 1_000_000;

    /// A standby's view of `view` that it told `trip_ms` ago, of a clock that is `ahead_ns` ahead.
    fn told(now_ns: u64, trip_ms: u64, ahead_ns: u64, view: u64) -> Progress {
        let trip_ns = trip_ms * MS;
        Progress {
            at_ns: (now_ns - trip_ns / 2).wrapping_add(ahead_ns),
            echo_ns: now_ns - trip_ns - 5 * MS,
            held_ns: 5 * MS,
            received: Lsn(view),
            view: Lsn(view),
            ..Progress::default()
        }
    }

    fn check_close(found: &Freshness, score: f64, lag_us: std::ops::RangeInclusive<u64>) {
        let (found_score, found_lag) = (found.score().expect("measured"), found.lag_us());
        assert!((found_score - score).abs() < 1e-4, "score {found_score}, not {score}");
        assert!(lag_us.contains(&found_lag), "lag {found_lag} us");
    }

    #[test]
    fn a_view_is_compared_with_the_primary_s_at_the_same_moment() {
        // The standby's clock is far ahead, or behind.
        for ahead_ns in [0, 7_000_000_000_000, u64::MAX - 1_000_000_000] {
            let (mut views, mut fresh) = (Views::default(), Freshness::default());
            let mut now_ns = 1_000 * MS;
            // 1,000 records a sample, for 12 s.
            for n in 0..600u64 {
                now_ns += SAMPLE_NS;
                views.note(now_ns, Lsn(n * 1_000));
            }
            // It had all but 50,000 of them a sample ago, when there were 598,000.
            fresh.note(now_ns, &told(now_ns, 40, ahead_ns, 548_000));
            fresh.sample((now_ns, 5), &views, |lsn| 10 * lsn.0);
            check_close(&fresh, 450_000.0 / 500_000.0, 1_000_000..=1_000_000);
            fresh.note(now_ns, &told(now_ns, 40, ahead_ns, 598_000));
            fresh.sample((now_ns, 5), &views, |_| 0);
            check_close(&fresh, 1.0, 0..=0);
        }
    }

    #[test]
    fn a_standby_that_stopped_is_not_fresh_because_its_primary_rests() {
        let (mut views, mut fresh) = (Views::default(), Freshness::default());
        let now_ns = 1_000 * MS;
        views.note(now_ns, Lsn(500));
        fresh.note(now_ns, &told(now_ns, 2, 3, 400));
        fresh.sample((now_ns, 0), &views, |_| 77);
        assert_eq!(fresh.score(), Some(0.0));
    }

    #[test]
    fn one_that_was_not_heard_lags_since_the_primary_was_where_it_is() {
        let (mut views, mut fresh) = (Views::default(), Freshness::default());
        let now_ns = 1_000 * MS;
        views.note(now_ns, Lsn(0));
        views.note(now_ns + 400 * MS, Lsn(500));
        fresh.sample((now_ns + 1_000 * MS, 0), &views, |_| 0);
        assert_eq!((fresh.score(), fresh.lag_us()), (None, 1_000_000));
        fresh.note(now_ns + 1_000 * MS, &told(now_ns + 1_000 * MS, 0, 0, 500));
        // What it showed before is known until another connection tells more.
        fresh.begin();
        fresh.sample((now_ns + 1_000 * MS, 0), &views, |_| 0);
        assert_eq!((fresh.score(), fresh.lag_us()), (None, 0));
        fresh.begin_anew();
        fresh.sample((now_ns + 1_000 * MS, 0), &views, |_| 0);
        assert_eq!((fresh.score(), fresh.lag_us()), (None, 1_000_000));
    }

    #[test]
    fn an_idle_primary_is_seen_whole_as_long_as_the_standby_is_heard() {
        let (mut views, mut fresh) = (Views::default(), Freshness::default());
        let mut now_ns = 1_000 * MS;
        views.note(now_ns, Lsn(500));
        fresh.sample((now_ns, 0), &views, |_| 0);
        assert_eq!(fresh.score(), None, "nothing was heard of it");
        fresh.note(now_ns, &told(now_ns, 2, 3, 500));
        fresh.sample((now_ns, 0), &views, |_| 0);
        check_close(&fresh, 1.0, 0..=0);
        now_ns += 1_100 * MS;
        views.note(now_ns, Lsn(500));
        fresh.sample((now_ns, 0), &views, |_| 0);
        assert_eq!(
            (fresh.score(), fresh.lag_us()),
            (None, 0),
            "nothing was heard of it for more than a second"
        );
        // It is lost, and the primary goes on: less and less is seen.
        views.note(now_ns + 20 * MS, Lsn(1_000));
        fresh.sample((now_ns + 20 * MS, 0), &views, |_| 77);
        check_close(&fresh, 0.0, 20_000..=20_000);
    }

    #[test]
    fn seconds_and_the_last_minute_are_kept() {
        let (mut views, mut fresh) = (Views::default(), Freshness::default());
        let mut now_ns = 1_000 * MS;
        for n in 0..(61 * 50u64) {
            now_ns += SAMPLE_NS;
            views.note(now_ns, Lsn(n * 100));
            // Every tenth time it is ten samples behind.
            let behind = if n % 10 == 9 { 1_000 } else { 0 };
            fresh.note(now_ns, &told(now_ns, 0, 0, (n * 100u64).saturating_sub(behind)));
            fresh.sample((now_ns, n as i64), &views, |_| behind);
        }
        let summary = fresh.summary().expect("samples");
        assert_eq!((summary.count, summary.score_median), (SAMPLES_MAX, 1.0));
        assert!(
            (summary.score_p95 - 0.98).abs() < 1e-3 && summary.score_min < 0.99,
            "{summary:?}"
        );
        assert_eq!(
            (summary.lag_us_median, summary.lag_us_p95, summary.lag_us_p99),
            (0, 200_000, 200_000)
        );
        let (points, _) = fresh.history();
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

    #[test]
    fn a_standby_that_hears_nothing_takes_itself_to_grow_older() {
        let own = OwnFreshness::default();
        let beat = |came_ms, durable| BeatSeen {
            epoch: Epoch(1),
            sent_us: 0,
            came_ns: came_ms * MS,
            durable: Lsn(durable),
            committed: Lsn(durable),
            behind_bytes: 7,
        };
        assert_eq!(own.now(5, Lsn(0)), (None, None));
        own.note(&beat(1_000, 100), 0, Lsn(100));
        // Nobody knows what the primary did since.
        assert_eq!(own.now(1_010 * MS, Lsn(100)), (Some(1.0), Some(10_000)));
        own.note(&beat(1_020, 150), 0, Lsn(100));
        assert_eq!(own.now(1_030 * MS, Lsn(100)), (Some(0.0), Some(30_000)));
        // A read has the freshness of its own view, not that of the last heartbeat's.
        assert_eq!(own.now(1_030 * MS, Lsn(150)), (Some(1.0), Some(10_000)));
        assert_eq!(own.now(1_030 * MS, Lsn(125)).0, Some(0.5));
        assert_eq!(own.now(5_000 * MS, Lsn(150)), (None, Some(3_980_000)));
        // Two heartbeats within a sample's time, and one more: as many samples as there were times.
        own.note(&beat(1_021, 150), 0, Lsn(150));
        own.note(&beat(1_041, 150), 0, Lsn(150));
        assert_eq!(own.history().1.map(|minute| minute.count), Some(3));
    }
}
