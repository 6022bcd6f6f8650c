//! Clients that wait no longer: a call that has not begun when its deadline passes never will, and is answered then, not at its
//! turn.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use reprise_router::{Deadline, Router};
use tokio::time::{Instant, Sleep, sleep_until};

/// Deadlines of calls that were sent together and have not passed.
#[derive(Default)]
pub struct Deadlines {
    /// The deadlines that wait, by the calls' index in their reply.
    waiting: Vec<(usize, Arc<Deadline>)>,
    /// Stays when its calls are answered: the deadline of the next call of a connection seldom comes before it.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Deadlines {
    /// Watches these from now on, by index, and no others.
    #[inline]
    pub fn set(&mut self, waiting: Vec<(usize, Arc<Deadline>)>) {
        self.waiting = waiting;
    }

    /// Returns the calls that never begin, by index, because their deadlines passed first. Each is returned once. Pending: there is none,
    /// and the next deadline, if there is one, wakes this task.
    pub fn poll(&mut self, cx: &mut Context<'_>, router: &Router) -> Poll<Vec<usize>> {
        while let Some(left) = self
            .waiting
            .iter()
            .map(|(_, deadline)| router.left_until(deadline))
            .min()
        {
            if let Some(left) = left {
                if self.poll_timer(cx, left).is_pending() {
                    return Poll::Pending;
                }
                continue;
            }
            let passed = self
                .waiting
                .extract_if(.., |(_, deadline)| router.left_until(deadline).is_none());
            // A call that has begun ends on its engine thread, or has committed in time.
            let expired: Vec<_> = passed
                .filter(|(_, deadline)| deadline.expire())
                .map(|(at, _)| at)
                .collect();
            if !expired.is_empty() {
                return Poll::Ready(expired);
            }
        }
        Poll::Pending
    }

    /// Pending until this time has passed. It may be ready before, since a timer that ends too early is cheaper than one that is
    /// set for every call.
    fn poll_timer(&mut self, cx: &mut Context<'_>, left: Duration) -> Poll<()> {
        let Some(until) = Instant::now().checked_add(left) else {
            return Poll::Pending;
        };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if timer.deadline() > until || timer.is_elapsed() {
            timer.as_mut().reset(until);
        }
        timer.as_mut().poll(cx)
    }
}
