//! The freshness of a standby by its own knowledge.

use std::sync::Mutex;

use reprise_base::Lsn;

use crate::{
    freshness::{
        FreshnessPoint, FreshnessSample, FreshnessSamples, FreshnessSummary, HEARD_NS, LOOK_BACK_NS, Lag, idle, score,
    },
    primary_report::BeatSeen,
    views::{SAMPLE_NS, ViewSamples},
};

/// How long a standby assumes that an idle primary is still idle: five heartbeats.
const IDLE_NS: u64 = 5 * SAMPLE_NS;

/// Freshness of a standby by its own clock alone. Each heartbeat returns when the standby had sent the newest progress that its primary had then. A
/// standby that shows all that was durable by then lacks nothing older than that. A heartbeat may wait on the way, or in a socket while this process
/// stands still. It then makes the view older, and never younger.
pub struct OwnFreshness(Mutex<OwnBeats>);

struct OwnBeats {
    /// Start of the time of which nothing is known, as long as the view has not reached the first heartbeat of the connection.
    since_ns: u64,
    /// The primary's log ends at the times that heartbeats returned, on this connection.
    views: ViewSamples,
    /// The newest heartbeat: the time that it returned, and what was durable there.
    newest: Option<(u64, Lsn)>,
    /// When the next sample is kept.
    due_ns: u64,
    history: FreshnessSamples,
}

impl OwnFreshness {
    /// Returns one that knows nothing from `now_ns` on.
    pub fn new(now_ns: u64) -> Self {
        Self(Mutex::new(OwnBeats {
            since_ns: now_ns,
            views: ViewSamples::default(),
            newest: None,
            due_ns: 0,
            history: FreshnessSamples::default(),
        }))
    }

    fn with<R>(&self, change: impl FnOnce(&mut OwnBeats) -> R) -> R {
        change(&mut self.0.lock().expect("nothing panics under this lock"))
    }

    /// Begins anew for a new connection, perhaps to another primary. The end of its log is not known before it reports that.
    pub fn begin(&self, view: Lsn) {
        self.with(|own| {
            own.since_ns = own.views.last_at(view).unwrap_or(own.since_ns);
            (own.views, own.newest) = (ViewSamples::default(), None);
        });
    }

    /// Takes a heartbeat at `now`: by the clock whose times progress has, and in microseconds since 1970.
    pub fn record_heartbeat(&self, beat: &BeatSeen, now: (u64, i64), view: Lsn) {
        let Some(echo_ns) = beat.echo_ns else {
            return;
        };
        self.with(|own| {
            own.views.record(echo_ns, beat.durable);
            own.newest = Some((echo_ns, beat.durable));
            if now.0 < own.due_ns {
                return;
            }
            own.due_ns = now.0 + SAMPLE_NS;
            if let Some(score) = own.score(now.0, view) {
                let sample = FreshnessSample {
                    score,
                    lag_us: own.lag(now.0, view).us,
                    lag_bytes: beat.behind_bytes,
                };
                own.history.keep(sample, now);
            }
        });
    }

    /// Returns the score of this view, if its lag is known and the primary was heard within a second. Also returns the longest time for which the
    /// primary may have had something durable that this view does not show.
    pub fn now(&self, now_ns: u64, view: Lsn) -> (Option<f64>, Lag) {
        self.with(|own| (own.score(now_ns, view).map(f64::from), own.lag(now_ns, view)))
    }

    /// One point a second, the oldest first, and the last minute in one.
    pub fn history(&self) -> (Vec<FreshnessPoint>, Option<FreshnessSummary>) {
        self.with(|own| own.history.report())
    }
}

impl OwnBeats {
    fn lag(&self, now_ns: u64, view: Lsn) -> Lag {
        let known = self.views.last_at(view);
        Lag::of(now_ns, known.unwrap_or(self.since_ns), known.is_some())
    }

    /// Returns the score. It assumes that the primary works since its newest heartbeat as fast as in the 10 s before.
    fn score(&self, now_ns: u64, view: Lsn) -> Option<f32> {
        let (echo_ns, durable) = self.newest?;
        self.views.last_at(view)?;
        let unheard_ns = now_ns.saturating_sub(echo_ns);
        let before = self.views.at(now_ns.saturating_sub(LOOK_BACK_NS))?;
        let (score, is_idle) = match score(view, durable, before) {
            Some(score) => (score, false),
            None => (idle(view, durable), true),
        };
        let heard = match is_idle && unheard_ns <= IDLE_NS {
            true => 1.0,
            false => LOOK_BACK_NS as f64 / (LOOK_BACK_NS + unheard_ns) as f64,
        };
        (unheard_ns <= HEARD_NS).then_some((f64::from(score) * heard) as f32)
    }
}

#[cfg(test)]
mod tests {
    use reprise_base::Epoch;

    use super::*;

    const MS: u64 = 1_000_000;

    fn lag(us: u64, is_known: bool) -> Lag {
        Lag { us, is_known }
    }

    /// A heartbeat that returns a time; 0: none.
    fn beat(echo_ms: u64, durable: u64) -> BeatSeen {
        BeatSeen {
            epoch: Epoch::new(1, 0),
            echo_ns: Some(echo_ms * MS).filter(|echo_ns| *echo_ns > 0),
            came_ns: 0,
            durable: Lsn(durable),
            committed: Lsn(durable),
            behind_bytes: 7,
        }
    }

    fn note(own: &OwnFreshness, at_ms: u64, beat: BeatSeen, view: u64) {
        own.record_heartbeat(&beat, (at_ms * MS, 0), Lsn(view));
    }

    fn now(own: &OwnFreshness, at_ms: u64, view: u64) -> (Option<f64>, Lag) {
        own.now(at_ms * MS, Lsn(view))
    }

    #[test]
    fn lag_of_a_standby_is_unknown_before_it_shows_what_its_first_heartbeat_told() {
        let own = OwnFreshness::new(1_000 * MS);
        assert_eq!(now(&own, 3_000, 0), (None, lag(2_000_000, false)));
        // The primary had heard nothing on this connection.
        note(&own, 3_100, beat(0, 500), 40);
        assert_eq!(now(&own, 3_100, 500), (None, lag(2_100_000, false)));
        // The standby started with a backlog, which it replays while the primary keeps writing.
        for n in 0..50 {
            note(&own, 3_120 + 20 * n, beat(3_100 + 20 * n, 500 + 10 * n), 40 + 9 * n);
            assert_eq!(
                now(&own, 3_120 + 20 * n, 40 + 9 * n),
                (None, lag(2_120_000 + 20_000 * n, false)),
                "{n}"
            );
        }
        // It shows all that was durable when it sent its first progress.
        assert_eq!(now(&own, 4_200, 500).1, lag(1_100_000, true));
        assert_eq!(now(&own, 4_200, 509).1, lag(1_100_000, true));
        assert_eq!(now(&own, 4_200, 510).1, lag(1_080_000, true));
        assert!(now(&own, 4_200, 510).0.is_some_and(|score| score < 0.03));
        // The standby connects again: the primary has not told it yet what is durable now.
        own.begin(Lsn(510));
        assert_eq!(now(&own, 4_300, 10_000), (None, lag(1_180_000, false)));
    }

    #[test]
    fn heartbeats_that_waited_while_a_standby_stood_still_make_it_no_younger() {
        let own = OwnFreshness::new(0);
        note(&own, 1_000, beat(990, 100), 100);
        note(&own, 1_020, beat(1_010, 110), 110);
        // The standby stands still for 4 s. The heartbeats that waited return the primary's last news, which was fresh once.
        for n in 0..200 {
            note(&own, 5_020, beat(1_030, 120 + 10 * n), 2_110);
            let (score, behind) = now(&own, 5_020, 2_110);
            assert_eq!((score, behind), (None, lag(3_990_000, true)), "{n}");
        }
        // The first one that was sent behind that.
        note(&own, 5_025, beat(5_021, 2_200), 2_110);
        let (score, behind) = now(&own, 5_025, 2_110);
        assert_eq!(behind, lag(3_995_000, true));
        assert!(score.is_some_and(|score| (0.9..0.96).contains(&score)), "{score:?}");
        assert_eq!(now(&own, 5_025, 2_200).1, lag(4_000, true));
    }

    #[test]
    fn a_late_wire_counts_both_ways() {
        // 100 records in 20 ms, 200 ms one way: a heartbeat's position is 200 ms old, and the time that it returns 400 ms.
        let own = OwnFreshness::new(0);
        for n in 0..600 {
            note(
                &own,
                1_400 + 20 * n,
                beat(1_000 + 20 * n, 1_000 + 100 * n),
                1_000 + 100 * n,
            );
        }
        let (at_ms, shown) = (1_400 + 20 * 599, 1_000 + 100 * 599);
        let (score, behind) = now(&own, at_ms, shown);
        assert_eq!(behind, lag(400_000, true));
        assert!(score.is_some_and(|score| (0.95..0.98).contains(&score)), "{score:?}");
        // An idle primary's work since then is unknown, too.
        let idle = OwnFreshness::new(0);
        note(&idle, 1_400, beat(1_000, 100), 100);
        assert!(now(&idle, 1_400, 100).0.is_some_and(|score| score < 0.97));
        // 600 ms: it was not heard within a second.
        note(&idle, 2_600, beat(1_400, 100), 100);
        assert_eq!(now(&idle, 2_600, 100), (None, lag(1_200_000, true)));
    }

    #[test]
    fn a_standby_that_hears_nothing_takes_itself_to_grow_older() {
        let own = OwnFreshness::new(0);
        note(&own, 1_000, beat(990, 100), 100);
        // The standby does not know what the primary did since.
        assert_eq!(now(&own, 1_010, 100), (Some(1.0), lag(20_000, true)));
        note(&own, 1_020, beat(1_010, 150), 100);
        let (score, behind) = now(&own, 1_030, 100);
        assert_eq!((score, behind), (Some(0.0), lag(40_000, true)));
        // A read has the freshness of its own view, not that of the last heartbeat's.
        let (score, behind) = now(&own, 1_030, 150);
        assert!(score.is_some_and(|score| (0.99..1.0).contains(&score)), "{score:?}");
        assert_eq!(behind, lag(20_000, true));
        assert!(
            now(&own, 1_030, 125)
                .0
                .is_some_and(|score| (0.49..0.5).contains(&score))
        );
        assert_eq!(now(&own, 5_000, 150), (None, lag(3_990_000, true)));
        // Two heartbeats within a sample's time, and one more: as many samples as there were times.
        note(&own, 1_021, beat(1_015, 150), 150);
        note(&own, 1_041, beat(1_035, 150), 150);
        assert_eq!(own.history().1.map(|minute| minute.count), Some(3));
    }
}
