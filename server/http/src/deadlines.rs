//! Clients that wait no longer: a call that has not begun when its deadline passes never will, and is answered then, not at its
//! turn.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use reprise_router::{BatchBuilder, Deadline, Router};
use tokio::time::{Sleep, sleep};

/// Deadlines of calls that were sent together and have not passed.
#[derive(Default)]
pub struct Deadlines {
    /// By the calls' index in their reply.
    waiting: Vec<(usize, Arc<Deadline>)>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Deadlines {
    pub fn of(batch: &mut BatchBuilder) -> Self {
        Self {
            waiting: batch.take_deadlines(),
            timer: None,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Calls that never begin, by index: their deadlines passed first. Each is told once. Pending: none, and this is woken by the
    /// next deadline, if there is one.
    pub fn poll(&mut self, cx: &mut Context<'_>, router: &Router) -> Poll<Vec<usize>> {
        while let Some(left) = self
            .waiting
            .iter()
            .map(|(_, deadline)| router.left_until(deadline))
            .min()
        {
            if let Some(left) = left {
                let mut timer = Box::pin(sleep(left));
                if timer.as_mut().poll(cx).is_pending() {
                    self.timer = Some(timer);
                    return Poll::Pending;
                }
            }
            let passed = self
                .waiting
                .extract_if(.., |(_, deadline)| router.left_until(deadline).is_none());
            // One that has begun is ended by whoever runs it, or committed in time.
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
}
