//! Decides whether a running call may continue: by its time limit, by its client's deadline, and by an operator's order to end it. The call
//! asks between slices of work. A replay never asks, because a committed call runs again however long it takes.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use reprise_abi::{EndReason, OpError};
use reprise_env::Clock;

/// Calls of one batch that must end, by their position. Each thread that ends one adds it.
#[derive(Default)]
pub struct CallEnds {
    any: AtomicBool,
    calls: Mutex<Vec<u32>>,
}

impl CallEnds {
    /// Ends a call that has not ended meanwhile.
    pub fn end(&self, at: u32) {
        self.calls.lock().expect("held for a short time").push(at);
        self.any.store(true, Ordering::Release);
    }

    /// True if a call was ended.
    #[inline]
    pub fn has(&self, at: u32) -> bool {
        self.any.load(Ordering::Relaxed) && self.holds(at)
    }

    #[cold]
    fn holds(&self, at: u32) -> bool {
        self.calls.lock().expect("held for a short time").contains(&at)
    }
}

/// The events that may end the running call. A call without such events never ends early.
#[derive(Default)]
pub struct Watch {
    clock: Option<Arc<dyn Clock>>,
    ends: Option<Arc<CallEnds>>,
    /// Position of the call in its batch.
    call: u32,
    /// Time limit of the call; 0: no limit.
    time_max_ms: u32,
    /// Deadline of its client, by the clock; 0: none.
    deadline_ns: u64,
    /// Time of the first check; 0: there was none yet. The first slice is short, so that short calls never read a clock.
    begun_ns: u64,
    /// Writes of the call that a rollback would have to undo.
    writes: u64,
    /// Recent time to roll back one write; 0: not measured yet.
    take_back_ns: u64,
}

/// Time to roll back one write, before it was measured.
const TAKE_BACK_NS: u64 = 500;
/// Fewer writes are no measure.
const MEASURED_WRITES_MIN: u64 = 1_000;

impl Watch {
    /// Begins a batch, whose clients may end its calls.
    pub fn begin_batch(&mut self, clock: &Arc<dyn Clock>, ends: Option<&Arc<CallEnds>>) {
        if self.clock.is_none() {
            self.clock = Some(clock.clone());
        }
        self.ends = ends.cloned();
    }

    /// Begins a call: its position in the batch, its time limit (0: none), and its client's deadline (0: none).
    #[inline]
    pub fn begin_call(&mut self, call: u32, time_max_ms: u32, deadline_ns: u64) {
        self.call = call;
        self.time_max_ms = time_max_ms;
        self.deadline_ns = deadline_ns;
        self.begun_ns = 0;
        self.writes = 0;
    }

    /// Returns the nanoseconds since the first check. None for a short call, which reads no clock.
    #[inline]
    pub fn ran_ns(&self) -> Option<u64> {
        match self.begun_ns {
            0 => None,
            begun_ns => self
                .clock
                .as_ref()
                .map(|clock| clock.monotonic_ns().saturating_sub(begun_ns)),
        }
    }

    /// Clears all events, so that nothing ends a call.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    fn take_back_ns_each(&self) -> u64 {
        match self.take_back_ns {
            0 => TAKE_BACK_NS,
            measured => measured,
        }
    }

    /// Measures `take_back`, which rolls back this many writes.
    pub(crate) fn time_take_back(&mut self, writes: usize, take_back: impl FnOnce()) {
        let Some(clock) = self.clock.as_ref().filter(|_| writes as u64 >= MEASURED_WRITES_MIN) else {
            return take_back();
        };
        let begun_ns = clock.monotonic_ns();
        take_back();
        let each = clock.monotonic_ns().saturating_sub(begun_ns) / writes as u64;
        // A slow case may come again, so the measure falls slowly.
        self.take_back_ns = each.max(self.take_back_ns_each() * 3 / 4).max(1);
    }

    /// The `ask` variant for a call that has made this many writes.
    pub(crate) fn ask_after(&mut self, writes: usize) -> Result<(), OpError> {
        self.writes = writes as u64;
        self.ask()
    }

    /// Checks whether the call may continue.
    pub fn ask(&mut self) -> Result<(), OpError> {
        let Some(clock) = &self.clock else {
            return Ok(());
        };
        if self.ends.as_ref().is_some_and(|ends| ends.has(self.call)) {
            return Err(OpError::Ended(EndReason::Cancelled));
        }
        let now_ns = clock.monotonic_ns();
        if self.deadline_ns != 0 && now_ns >= self.deadline_ns {
            return Err(OpError::Ended(EndReason::Deadline));
        }
        if self.begun_ns == 0 {
            self.begun_ns = now_ns.max(1);
        }
        // The rollback holds the partition as well.
        let ran_ns = now_ns.saturating_sub(self.begun_ns) + self.writes * self.take_back_ns_each();
        match self.time_max_ms {
            0 => Ok(()),
            max if ran_ns < u64::from(max) * 1_000_000 => Ok(()),
            max => Err(OpError::Limit {
                limit: "time",
                max: max.into(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[derive(Default)]
    struct Hand(AtomicU64);

    impl Clock for Hand {
        fn now_us(&self) -> i64 {
            0
        }
        fn monotonic_ns(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn undo_counts_as_time() {
        let hand = Arc::new(Hand(AtomicU64::new(5)));
        let clock: Arc<dyn Clock> = hand.clone();
        let mut watch = Watch::default();
        watch.begin_batch(&clock, None);
        watch.begin_call(0, 10, 0);
        assert_eq!(watch.ask_after(19_999), Ok(()));
        let time = OpError::Limit { limit: "time", max: 10 };
        assert_eq!(watch.ask_after(20_000), Err(time.clone()));
        // The rollback took twice as long as expected.
        watch.time_take_back(20_000, || _ = hand.0.fetch_add(20_000_000, Ordering::Relaxed));
        watch.begin_call(1, 10, 0);
        assert_eq!(watch.ask_after(9_999), Ok(()));
        assert_eq!(watch.ask_after(10_000), Err(time));
        watch.begin_call(2, 10, 0);
        assert_eq!(watch.ask(), Ok(()), "another call's writes are not this one's");
    }

    #[test]
    fn a_call_ends_by_its_time_its_deadline_or_its_client() {
        let hand = Arc::new(Hand(AtomicU64::new(5)));
        let (clock, ends): (Arc<dyn Clock>, _) = (hand.clone(), Arc::new(CallEnds::default()));
        let at = |ms: u64| hand.0.store(5 + ms * 1_000_000, Ordering::Relaxed);
        let mut watch = Watch::default();
        assert_eq!(watch.ask(), Ok(()), "nobody told it anything");
        assert_eq!(watch.ran_ns(), None);
        watch.begin_batch(&clock, Some(&ends));
        watch.begin_call(0, 10, 0);
        assert_eq!(watch.ask(), Ok(()), "its time begins");
        at(9);
        assert_eq!(watch.ask(), Ok(()));
        assert_eq!(watch.ran_ns(), Some(9_000_000));
        at(10);
        let time = OpError::Limit { limit: "time", max: 10 };
        assert_eq!(watch.ask(), Err(time));
        watch.begin_call(1, 0, 5 + 20_000_000);
        assert_eq!(watch.ask(), Ok(()));
        at(20);
        assert_eq!(watch.ask(), Err(OpError::Ended(EndReason::Deadline)));
        watch.begin_call(2, 0, 0);
        ends.end(3);
        at(1_000_000);
        assert_eq!(watch.ask(), Ok(()), "another one was ended");
        watch.begin_call(3, 0, 0);
        assert_eq!(watch.ask(), Err(OpError::Ended(EndReason::Cancelled)));
        watch.forget();
        assert_eq!(watch.ask(), Ok(()));
    }
}
