//! `Reprise-Safety` of a call: its writes have at least that level, or are refused before they run, or left open.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::http::{HeaderMap, HeaderValue, header::HeaderName};
use reprise_api::headers;
use reprise_base::{Role, Safety};
use reprise_router::ReplyOutcome;
use tokio::{
    sync::oneshot,
    time::{Instant, Sleep, sleep_until},
};

use crate::{calls::single, refusal::Refusal, state::AppState};

/// Why no level is to be had that asks for standbys.
const NO_STANDBYS: &str = "this server has no standbys";

/// A level beyond the server's.
#[derive(Clone, Copy)]
pub struct AskedSafety {
    level: Safety,
    /// When the client waits no longer.
    until: Option<Instant>,
}

/// Waits until it is known whether writes that were sent together have the level.
pub struct Confirmation {
    asked: AskedSafety,
    state: SafetyWait,
}

enum SafetyWait {
    /// The calls are not answered yet.
    Asked,
    Waits {
        outcome: oneshot::Receiver<Result<(), Arc<str>>>,
        until: Option<Pin<Box<Sleep>>>,
    },
    Has,
    Failed(ReplyOutcome),
}

impl AskedSafety {
    /// Checks a level that a call asks for. None: the server gives it to all.
    #[inline]
    pub fn of(state: &AppState, asked: Option<Safety>, timeout: Option<Duration>) -> Result<Option<Self>, Refusal> {
        let Some(level) = asked else {
            return Ok(None);
        };
        if state.router.safety().0.covers(level) {
            return Ok(None);
        }
        if !level.asks_standbys() {
            let own = state.router.safety().0;
            let reason = format!(
                "you asked for the safety level {level}, and this server acknowledges at {own} (--commit, --log)"
            );
            return Err(Refusal::no_safety(&reason));
        }
        Ok(Some(Self {
            level,
            until: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
        }))
    }
}

impl From<AskedSafety> for Confirmation {
    fn from(asked: AskedSafety) -> Self {
        let state = SafetyWait::Asked;
        Self { asked, state }
    }
}

impl Confirmation {
    /// Before anything is run. Err: why the level can't be had.
    pub fn check(&self, state: &AppState) -> Result<(), Arc<str>> {
        // A standby says where its primary is.
        if state.router.role() == Role::Standby {
            return Ok(());
        }
        match state.router.replication() {
            Some(service) => service.check_safety(self.asked.level),
            None => Err(NO_STANDBYS.into()),
        }
    }

    /// Waits after the calls are answered, until the writes among them have the level, or will not be waited for any more.
    pub fn poll(&mut self, cx: &mut Context<'_>, state: &AppState, has_written: impl FnOnce() -> bool) -> Poll<()> {
        if let SafetyWait::Asked = self.state {
            self.state = match has_written() {
                true => self.begin(state),
                false => SafetyWait::Has,
            };
        }
        let SafetyWait::Waits {
            outcome: receiver,
            until,
        } = &mut self.state
        else {
            return Poll::Ready(());
        };
        let outcome = match Pin::new(receiver).poll(cx) {
            Poll::Ready(Ok(outcome)) => outcome,
            Poll::Ready(Err(_)) => Err("the server is stopping".into()),
            Poll::Pending => {
                let Some(until) = until else {
                    return Poll::Pending;
                };
                ready!(until.as_mut().poll(cx));
                Err("the call's time ended before standbys confirmed it".into())
            }
        };
        self.state = match outcome {
            Ok(()) => SafetyWait::Has,
            Err(reason) => SafetyWait::Failed(ReplyOutcome::Unconfirmed(reason)),
        };
        Poll::Ready(())
    }

    fn begin(&self, state: &AppState) -> SafetyWait {
        let Some(service) = state.router.replication() else {
            return SafetyWait::Failed(ReplyOutcome::Unconfirmed(NO_STANDBYS.into()));
        };
        let (sender, receiver) = oneshot::channel();
        // All answered records are before this LSN.
        let end = state.router.durable();
        let hook = Box::new(move |outcome| _ = sender.send(outcome)); // the caller may have gone
        service.when_safe(self.asked.level, end, hook);
        let until = self.asked.until.map(|until| Box::pin(sleep_until(until)));
        SafetyWait::Waits {
            outcome: receiver,
            until,
        }
    }

    /// Returns the outcome of writes that may lack the level.
    pub fn failure(&self) -> Option<&ReplyOutcome> {
        match &self.state {
            SafetyWait::Failed(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// The level that its writes have, once it is known that they do.
    pub fn reached(&self) -> Option<Safety> {
        matches!(self.state, SafetyWait::Has).then_some(self.asked.level)
    }
}

/// The level that a head names.
pub fn asked(headers: &HeaderMap) -> Result<Option<Safety>, Refusal> {
    let Some(value) = single(headers, headers::SAFETY)? else {
        return Ok(None);
    };
    let level = value.to_str().ok().and_then(|name| Safety::from_name(name.trim()));
    level.map(Some).ok_or_else(|| {
        let names: Vec<_> = Safety::ALL.iter().map(|level| level.name()).collect();
        Refusal::malformed(format!(
            "the header {} must be one of {}",
            headers::SAFETY,
            names.join(", ")
        ))
    })
}

/// The header that names the level of a write.
pub fn header(level: Safety) -> (HeaderName, HeaderValue) {
    (
        HeaderName::from_static(headers::SAFETY),
        HeaderValue::from_static(level.name()),
    )
}
