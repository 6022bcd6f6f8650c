//! The share of a batch's time for which the engine thread has a processor. The rest of that time goes to other threads of the machine.

use std::time::Duration;

use reprise_env::Clock;

/// Number of batches of which one is measured. To ask the system costs as much as a tenth of a short call.
const MEASURED_EVERY: u32 = 32;
/// Time of measured batches after which they count half.
const REMEMBERED: Duration = Duration::from_millis(50);

/// The processor share of an engine thread, over its last batches.
#[derive(Default)]
pub(crate) struct ProcessorShare {
    batches: u32,
    /// Beginning of the measured batch. None while no batch is measured.
    begun_ns: Option<u64>,
    processor: Duration,
    taken: Duration,
}

impl ProcessorShare {
    /// Records that a batch begins on this thread.
    #[inline]
    pub fn begin(&mut self, clock: &dyn Clock) {
        self.batches = self.batches.wrapping_add(1);
        if self.batches % MEASURED_EVERY == 1 {
            self.begun_ns = Some(clock.thread_processor_ns());
        }
    }

    /// Records that the batch ended after `ran`. Returns roughly the processor's time in it.
    #[inline]
    pub fn end(&mut self, clock: &dyn Clock, ran: Duration) -> Duration {
        if let Some(begun_ns) = self.begun_ns.take() {
            let processor = Duration::from_nanos(clock.thread_processor_ns().saturating_sub(begun_ns));
            self.processor += processor.min(ran);
            self.taken += ran;
            if self.taken > REMEMBERED {
                (self.processor, self.taken) = (self.processor / 2, self.taken / 2);
            }
        }
        match self.taken.is_zero() {
            true => ran,
            false => ran.mul_f64(self.processor.as_secs_f64() / self.taken.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A thread that has a processor for a quarter of the time.
    #[derive(Default)]
    struct Quarter(AtomicU64);

    impl Clock for Quarter {
        fn now_us(&self) -> i64 {
            0
        }

        fn monotonic_ns(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }

        fn thread_processor_ns(&self) -> u64 {
            self.monotonic_ns() / 4
        }
    }

    #[test]
    fn time_of_other_threads_does_not_count_for_a_batch() {
        let (clock, mut share) = (Quarter::default(), ProcessorShare::default());
        for _ in 0..1_000 {
            share.begin(&clock);
            clock.0.fetch_add(4_000_000, Ordering::Relaxed);
            let own = share.end(&clock, Duration::from_millis(4));
            assert!((own.as_secs_f64() - 0.001).abs() < 1e-6, "{own:?}");
        }
        // A clock without times of threads counts all of it.
        let mut share = ProcessorShare::default();
        share.begin(&reprise_env::SimClock::default());
        let own = share.end(&reprise_env::SimClock::default(), Duration::ZERO);
        assert_eq!(own, Duration::ZERO);
    }
}
