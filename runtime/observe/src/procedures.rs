//! Outcomes of each procedure's calls, and the time they spent in each stage: sums, by the names of module and procedure.
//!
//! A procedure has its own meter from its first call on. The number of meters is bounded: procedures that are called later share the
//! last one.

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use reprise_base::named_enum;

/// Procedures with a meter of their own, and the one of all others.
pub const METERS_MAX: usize = 256;

/// The name of module and procedure under which all are counted for which there was no meter.
pub const OTHER: &str = "other";

/// Copies of a meter's sums: calls of different partitions are answered by different threads, which then share no cache line.
const STRIPES_COUNT: usize = 8;

named_enum! {
    /// The outcome of a call.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum CallEnd {
        /// The call committed.
        Committed => "committed",
        /// The procedure aborted.
        Aborted => "aborted",
        /// The guest trapped.
        Trapped => "trapped",
        /// The call reached a limit of one transaction.
        Limit => "limit",
        /// Its time, its client or the memory limit ended it.
        Ended => "ended",
        /// The call did not run, or its writes could not be kept.
        Refused => "refused",
    }
}

named_enum! {
    /// A stage of a call.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum CallStage {
        /// Time from its acceptance until the first call of its batch began.
        Queued => "queued",
        /// Its share of the time for which its batch ran.
        Running => "running",
        /// Time from the end of that until its record, and the records that it read, were durable.
        Logging => "logging",
    }
}

/// Calls of one procedure: how many had which end, and for how long all of them together were in which stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallSums {
    ends: [u64; CallEnd::ALL.len()],
    stages_ns: [u64; CallStage::ALL.len()],
}

impl CallSums {
    /// One call more had this end.
    #[inline]
    pub fn count(&mut self, end: CallEnd) {
        self.ends[end as usize] += 1;
    }

    /// Adds the time that calls spent in this stage.
    #[inline]
    pub fn took(&mut self, stage: CallStage, ns: u64) {
        self.stages_ns[stage as usize] += ns;
    }

    /// How many had this end.
    pub fn calls(&self, end: CallEnd) -> u64 {
        self.ends[end as usize]
    }

    /// Calls that ran, whatever became of them.
    pub fn ran(&self) -> u64 {
        self.ends.iter().sum::<u64>() - self.calls(CallEnd::Refused)
    }

    /// How long all together were in this stage.
    pub fn time(&self, stage: CallStage) -> Duration {
        Duration::from_nanos(self.stages_ns[stage as usize])
    }

    /// Mean time of one call that ran.
    pub fn mean(&self, stage: CallStage) -> Duration {
        Duration::from_nanos(self.stages_ns[stage as usize] / self.ran().max(1))
    }
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe {
    ends: [AtomicU64; CallEnd::ALL.len()],
    stages_ns: [AtomicU64; CallStage::ALL.len()],
}

/// The sums of one procedure.
#[derive(Debug, Default)]
pub struct ProcedureMeter([Stripe; STRIPES_COUNT]);

impl ProcedureMeter {
    /// Adds calls that were answered together; `site` is any number that threads rarely share.
    #[inline]
    pub fn add(&self, site: usize, sums: &CallSums) {
        let stripe = &self.0[site % STRIPES_COUNT];
        let ends = stripe.ends.iter().zip(sums.ends);
        for (counter, count) in ends.chain(stripe.stages_ns.iter().zip(sums.stages_ns)) {
            if count > 0 {
                counter.fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    /// The sums until now.
    pub fn sums(&self) -> CallSums {
        let mut sums = CallSums::default();
        for stripe in &self.0 {
            for (sum, counter) in sums.ends.iter_mut().zip(&stripe.ends) {
                *sum += counter.load(Ordering::Relaxed);
            }
            for (sum, counter) in sums.stages_ns.iter_mut().zip(&stripe.stages_ns) {
                *sum += counter.load(Ordering::Relaxed);
            }
        }
        sums
    }
}

/// The meters of one module version, by its procedures' numbers: each is looked up by name once.
#[derive(Debug)]
pub struct ModuleMeters(Box<[OnceLock<Arc<ProcedureMeter>>]>);

impl ModuleMeters {
    /// Meters of a module with `procedures_count` procedures.
    pub fn new(procedures_count: usize) -> Self {
        Self((0..procedures_count).map(|_| OnceLock::new()).collect())
    }

    /// Returns the procedure's meter, which `find` looks up. It panics if the module has no such procedure.
    #[inline]
    pub fn get(&self, procedure: usize, find: impl FnOnce() -> Arc<ProcedureMeter>) -> &ProcedureMeter {
        self.0[procedure].get_or_init(find)
    }
}

/// One procedure's line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcedureSums {
    /// Its name, or `OTHER`.
    pub module: String,
    /// Its name, or `OTHER`.
    pub procedure: String,
    /// Sums over all versions.
    pub sums: CallSums,
}

#[derive(Debug)]
struct NamedMeter {
    module: String,
    procedure: String,
    meter: Arc<ProcedureMeter>,
}

/// All meters since the start, in the order of first calls.
#[derive(Debug, Default)]
pub struct ProcedureMeters(Mutex<Vec<NamedMeter>>);

impl ProcedureMeters {
    /// The meter of these names; of all others, once there are as many as may be.
    pub fn find(&self, module: &str, procedure: &str) -> Arc<ProcedureMeter> {
        let mut list = self.0.lock().expect("nothing panics in here");
        let own = |named: &&NamedMeter| named.module == module && named.procedure == procedure;
        if let Some(named) = list.iter().find(own) {
            return named.meter.clone();
        }
        if list.len() == METERS_MAX {
            return list[METERS_MAX - 1].meter.clone();
        }
        let (module, procedure) = match list.len() + 1 < METERS_MAX {
            true => (module, procedure),
            false => (OTHER, OTHER),
        };
        let named = list.push_mut(NamedMeter {
            module: module.to_owned(),
            procedure: procedure.to_owned(),
            meter: Arc::default(),
        });
        named.meter.clone()
    }

    /// Sums of all procedures that were called.
    pub fn sums(&self) -> Vec<ProcedureSums> {
        let list = self.0.lock().expect("nothing panics in here");
        let sums = list.iter().map(|named| ProcedureSums {
            module: named.module.clone(),
            procedure: named.procedure.clone(),
            sums: named.meter.sums(),
        });
        sums.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(end: CallEnd) -> CallSums {
        let mut sums = CallSums::default();
        sums.count(end);
        sums
    }

    #[test]
    fn stripes_are_summed_and_means_are_of_calls_that_ran() {
        let meter = ProcedureMeter::default();
        for site in 0..3 * STRIPES_COUNT {
            let mut sums = one(CallEnd::Committed);
            sums.count(CallEnd::Aborted);
            sums.count(CallEnd::Refused);
            sums.took(CallStage::Running, 10);
            meter.add(site, &sums);
        }
        let sums = meter.sums();
        let count = 3 * STRIPES_COUNT as u64;
        assert_eq!(CallEnd::ALL.map(|end| sums.calls(end)), [count, count, 0, 0, 0, count]);
        assert_eq!(sums.ran(), 2 * count);
        assert_eq!(sums.mean(CallStage::Running), Duration::from_nanos(5));
        assert_eq!(sums.time(CallStage::Running), Duration::from_nanos(10 * count));
        assert_eq!(CallSums::default().mean(CallStage::Logging), Duration::ZERO);
    }

    #[test]
    fn procedures_beyond_the_bound_share_a_meter_and_those_before_keep_theirs() {
        let meters = ProcedureMeters::default();
        for number in 0..2 * METERS_MAX {
            let meter = meters.find("m", &format!("p{number}"));
            meter.add(0, &one(CallEnd::Committed));
        }
        meters.find("m", "p0").add(0, &one(CallEnd::Limit));
        let all = meters.sums();
        assert_eq!(all.len(), METERS_MAX);
        assert_eq!((all[0].procedure.as_str(), all[0].sums.ran()), ("p0", 2));
        let last = &all[METERS_MAX - 1];
        assert_eq!((last.module.as_str(), last.procedure.as_str()), (OTHER, OTHER));
        assert_eq!(last.sums.calls(CallEnd::Committed), METERS_MAX as u64 + 1);
    }
}
