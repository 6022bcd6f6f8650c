//! The rate at which calls are answered. From it, a refused client learns when to come back.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Time over which a rate is measured. A rate whose window is longer than `STALE` says nothing about the present.
const WINDOW: Duration = Duration::from_millis(250);
const STALE: Duration = Duration::from_secs(2);
const RETRY_AFTER_MS_MAX: u64 = 60_000;
/// Shortest advised wait: nothing changes sooner.
const RETRY_AFTER_MS_MIN: u64 = 10;

#[derive(Default)]
pub(crate) struct Pace {
    answered: AtomicU64,
    seen: Mutex<RateSample>,
}

#[derive(Default)]
struct RateSample {
    at_ns: u64,
    answered: u64,
    /// The rate. None until two samples are close enough.
    per_s: Option<f64>,
}

impl Pace {
    pub fn record(&self, calls: u64) {
        self.answered.fetch_add(calls, Ordering::Relaxed);
    }

    /// Returns the milliseconds until this many waiting calls are done, at the present rate of answers.
    pub fn retry_after_ms(&self, now_ns: u64, waiting: u64) -> u32 {
        let mut seen = self.seen.lock().expect("no code panics under this lock");
        let answered = self.answered.load(Ordering::Relaxed);
        let since = Duration::from_nanos(now_ns.saturating_sub(seen.at_ns));
        if since >= WINDOW {
            let per_s = (answered - seen.answered) as f64 / since.as_secs_f64();
            *seen = RateSample {
                at_ns: now_ns,
                answered,
                per_s: (since < STALE).then_some(per_s),
            };
        }
        let ms = match seen.per_s {
            None => 200,
            // No call is answered, because a long one holds the queue.
            Some(per_s) if per_s < 1.0 => waiting.saturating_mul(1_000),
            Some(per_s) => (waiting as f64 * 1_000.0 / per_s).ceil() as u64,
        };
        ms.clamp(RETRY_AFTER_MS_MIN, RETRY_AFTER_MS_MAX) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_caller_gets_the_length_of_the_queue() {
        let pace = Pace::default();
        let mut now_ns = 3_600_000_000_000;
        let mut sample = |pace: &Pace, ms: u64, waiting| {
            now_ns += ms * 1_000_000;
            pace.retry_after_ms(now_ns, waiting)
        };
        assert_eq!(sample(&pace, 0, 5_000), 200, "nothing was measured yet");
        pace.record(100);
        assert_eq!(sample(&pace, 1_000, 5_000), 50_000);
        assert_eq!(sample(&pace, 1, 100), 1_000);
        assert_eq!(sample(&pace, 1_000, 5_000), 60_000, "nothing is answered");
        pace.record(1_000_000);
        assert_eq!(sample(&pace, 1_000, 5_000), 10, "five milliseconds would do");
        pace.record(1);
        assert_eq!(sample(&pace, 60_000, 5_000), 200, "too long ago");
    }
}
