//! A call as its client sent it, encoded for the procedure that it names.

use std::{cell::RefCell, ops::Range};

use reprise_api::{Problem, ProblemKind};
use reprise_codec::{ArgsScratch, Format, encode_document};
use reprise_router::{BatchBuilder, CallTerms, ScopedKey};

use crate::{refusal::Refusal, target::Target};

thread_local! {
    /// Memory to encode arguments in, and the arguments of a call that is coalesced.
    pub static SCRATCH: RefCell<(ArgsScratch, Vec<u8>)> = RefCell::default();
}

/// A call as it was sent, without its procedure.
#[derive(Clone, Debug)]
pub struct CallText {
    /// The place of its arguments in the submission's text, as they were sent.
    pub args: Range<u32>,
    pub format: Format,
    /// Its caller may call procedures that write.
    pub may_write: bool,
}

impl CallText {
    pub fn of<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        &text[self.args.start as usize..self.args.end as usize]
    }
}

/// Adds a call to a batch; its index there.
pub fn encode(
    batch: &mut BatchBuilder,
    target: &Target,
    call: &CallText,
    text: &[u8],
    terms: CallTerms<'_>,
) -> Result<usize, Refusal> {
    batch.set_caller(terms.caller.cloned());
    batch.set_deadline(terms.deadline_ns);
    let params = &target.schema().params;
    let key = target.call_key(terms.key, call.format, call.of(text))?;
    let encode = |out: &mut Vec<u8>| {
        SCRATCH.with_borrow_mut(|(scratch, _)| encode_document(call.format, params, call.of(text), out, scratch))
    };
    Ok(batch.push(&target.module, target.procedure, key, encode)?)
}

/// The `encode` variant for the version in service of the procedure's module.
pub fn encode_again(
    batch: &mut BatchBuilder,
    old: &Target,
    call: &CallText,
    text: &[u8],
    terms: CallTerms<'_>,
) -> Result<(Target, usize), Refusal> {
    let scope = terms.caller.map_or("", |caller| &*caller.scope);
    let key = terms.key.map(|key| ScopedKey { scope, key });
    let (module, procedure) = (&*old.module.name, &*old.schema().name);
    let target = Target::for_call(batch.router(), batch.deployed(), module, procedure, key)?;
    target.check_role(call.may_write)?;
    let index = encode(batch, &target, call, text, terms)?;
    Ok((target, index))
}

/// The module was replaced at every attempt.
pub fn superseded_too_often() -> Refusal {
    let mut problem = Problem::new(
        ProblemKind::Overloaded,
        "deployments keep replacing the module; try again",
    );
    problem.retry_after_ms = Some(200);
    problem.into()
}
