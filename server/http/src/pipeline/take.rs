//! One call of the requests that a pipeline has read: a head that came before, or a new one, which is checked.

use std::sync::Arc;

use axum::http::{HeaderMap, Method, Version};
use reprise_api::headers;
use reprise_router::{Deployed, ScopedKey};

use super::{
    KNOWN_HEAD_BYTES_MAX, Pipeline,
    request::{AlikeHead, CallHead, InputKind, KnownHead, recognise},
    run::CallRun,
};
use crate::{
    calls::{Call, PATH_PREFIX, is_in_view},
    refusal::Refusal,
    trace::CallTrace,
};

/// Result of reading the request that the input begins with.
pub(super) enum TakeOutcome {
    Call,
    /// The rest of it is not here yet.
    Part,
    /// The call can't go with other calls, and there are some before it.
    Later,
    Other,
}

impl Pipeline {
    /// Takes the call that `input` begins with.
    pub(super) fn take_call(&mut self, input: &[u8], run: &mut CallRun, deployed: &Deployed) -> TakeOutcome {
        if let Some(known) = &self.known
            && known.generation == deployed.generation
            && Arc::ptr_eq(&known.auth, &self.state.auth())
            && let Some(head) = AlikeHead::find(&known.head, known.key.as_ref(), input)
        {
            let body = head.bytes..head.bytes + known.body_bytes;
            if input.len() < body.end {
                return TakeOutcome::Part;
            }
            let call = &known.call;
            if head.key.is_none_or(|key| self.is_new(key, call)) {
                let key = head.key.map(Into::into);
                let trace = || {
                    let tracer = self.state.tracer.as_ref()?;
                    let path = format!("{PATH_PREFIX}{}/{}", call.target.module.name, call.target.schema().name);
                    CallTrace::start(Some(tracer), &path, &HeaderMap::new()).map(Box::new)
                };
                return run.push(&self.state, body, call, key, trace);
            }
        }
        match recognise(input) {
            InputKind::Part => TakeOutcome::Part,
            InputKind::Other => TakeOutcome::Other,
            // A call that must wait does not hold up the ones behind it.
            InputKind::Call(head) if !is_in_view(&self.state, &head.headers) => TakeOutcome::Other,
            InputKind::Call(head) => {
                let checked = self.check(input, &head, deployed);
                let body = head.bytes..head.bytes + head.body_bytes;
                let trace = || CallTrace::start(self.state.tracer.as_ref(), head.path, &head.headers).map(Box::new);
                match checked {
                    // The name goes into the log first, which takes a while.
                    Ok(call) if call.waits_for_name(&self.state) => TakeOutcome::Other,
                    Ok(call) => run.push(&self.state, body, &call, call.terms.key.clone(), trace),
                    // The module may have arrived with the awaited record, after `deployed` was taken.
                    Err(_) if head.headers.contains_key(headers::MIN_LSN) => TakeOutcome::Other,
                    Err(refusal) => {
                        run.refuse(body.end, refusal, trace());
                        TakeOutcome::Call
                    }
                }
            }
        }
    }

    /// True if no call has this key: one that was used names the version that ran, whatever is in service.
    fn is_new(&self, key: &str, call: &Call) -> bool {
        let scope = call.terms.caller.as_ref().map_or("", |caller| &*caller.scope);
        let keys = self.state.router.idempotency();
        keys.version_of(ScopedKey { scope, key }).is_none()
    }

    /// Returns the call of a head, or the reason to refuse it.
    fn check(&mut self, input: &[u8], head: &CallHead<'_>, deployed: &Deployed) -> Result<Call, Refusal> {
        let auth = self.state.auth();
        let principal = auth.check(Version::HTTP_11, &Method::POST, head.path, &head.headers)?;
        let call = Call::of(&self.state, &principal, deployed, head.path, &head.headers)?;
        let changes = [headers::MIN_LSN, headers::MAX_LAG_MS, headers::TRACEPARENT];
        let has_number = call.terms.caller.as_ref().is_none_or(|caller| caller.number > 0);
        let is_lasting = has_number && !changes.iter().any(|name| head.headers.contains_key(*name));
        // If the key was used before, the version that ran may not be the one in service.
        let module = &call.target.module;
        let in_service = deployed.current.get(&module.name);
        let is_in_service = in_service.is_some_and(|current| Arc::ptr_eq(current, module));
        if is_lasting && is_in_service && head.bytes <= KNOWN_HEAD_BYTES_MAX {
            let mut call = call.clone();
            call.terms.key = None;
            self.known = Some(KnownHead {
                head: input[..head.bytes].into(),
                key: head.key.clone(),
                body_bytes: head.body_bytes,
                generation: deployed.generation,
                auth: Arc::clone(&auth),
                call,
            });
        }
        Ok(call)
    }
}
