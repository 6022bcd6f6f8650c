//! The time in which a module starts and describes itself: that of the call that needs its instance, or of its deployment. No guest code
//! runs without one of them, so cancel, deadline and limits end it wherever it runs.

use std::{ptr::NonNull, sync::Arc};

use reprise_abi::HostOps;
use reprise_base::limits::{DEPLOY_TIME_LIMIT, DEPLOY_TIME_MAX_S};
use reprise_env::{Clock, RealClock};

use crate::state::{Answer, GuestStop};

/// The time in which a module must start and describe itself outside of a call.
#[derive(Clone)]
pub struct StartTime {
    clock: Option<Arc<dyn Clock>>,
    max_s: u32,
}

impl StartTime {
    /// Makes the time of a deployment, in seconds of `clock`; 0: until its fuel is used up.
    pub fn within(clock: Arc<dyn Clock>, max_s: u32) -> Self {
        let clock = (max_s > 0).then_some(clock);
        Self { clock, max_s }
    }

    /// Makes the time of a module that was deployed once, within its time. A repetition must have the same end, so only its fuel ends it.
    pub fn again() -> Self {
        Self { clock: None, max_s: 0 }
    }

    /// Begins the time of a deployment now.
    pub(crate) fn begin(&self) -> StartDeadline {
        let until = self.clock.clone().map(|clock| {
            let until_ns = clock.monotonic_ns() + u64::from(self.max_s) * 1_000_000_000;
            (clock, until_ns)
        });
        StartDeadline {
            until,
            max_s: self.max_s,
        }
    }
}

impl Default for StartTime {
    /// Makes the time of a deployment, unless the server sets another.
    fn default() -> Self {
        Self::within(Arc::new(RealClock::new()), DEPLOY_TIME_MAX_S)
    }
}

/// The time until which a module must have started and described itself.
#[derive(Clone)]
pub(crate) struct StartDeadline {
    /// The clock, and its reading in nanoseconds. None: there is no limit.
    until: Option<(Arc<dyn Clock>, u64)>,
    max_s: u32,
}

impl StartDeadline {
    fn ask(&self) -> Answer<()> {
        match &self.until {
            Some((clock, until_ns)) if clock.monotonic_ns() >= *until_ns => Err(GuestStop::Limit {
                limit: DEPLOY_TIME_LIMIT,
                max: self.max_s.into(),
            }),
            _ => Ok(()),
        }
    }
}

/// The owner of the time in which guest code runs that is no procedure.
pub(crate) enum StartFor<'c> {
    /// A call that needs an instance.
    Call(&'c mut dyn HostOps),
    /// A deployment.
    Deployment(&'c StartDeadline),
}

/// The party that decides whether a start may continue.
pub(crate) enum Starter {
    /// The transaction of the call, with its lifetime erased (`HostState::begin_start`).
    Call(NonNull<dyn HostOps>),
    Deployment(StartDeadline),
}

impl Starter {
    /// Checks whether the start may continue. Returns the factor for its limits.
    pub fn ask(&mut self) -> Answer<u64> {
        match self {
            Self::Deployment(deadline) => deadline.ask().map(|()| 1),
            Self::Call(ops) => {
                // SAFETY: `begin_start`'s caller keeps the borrow exclusive until the start ends and this goes.
                let ops = unsafe { ops.as_mut() };
                ops.go_on()?;
                Ok(ops.limits_times())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{rewrite::Allowance, state::HostState};

    #[test]
    fn guest_code_without_a_call_or_a_deployment_is_stopped() {
        let allowance = Allowance {
            fuel_max: u64::MAX,
            stack_bytes: 0,
        };
        let mut state = HostState::new(allowance);
        assert!(state.refuel(-1).is_err());
        assert!(state.charge(usize::MAX >> 1).is_err());
    }
}
