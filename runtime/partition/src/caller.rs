//! Callers, and the idempotency keys of their calls: in batches, and in the record of a running call.

use std::sync::Arc;

use reprise_txn::call_hash;
use reprise_wire::KeyRef;

use crate::turn::CallContext;

/// The client that calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Name of the token.
    pub name: Arc<str>,
    /// Number of the name in records ([`crate::Principals`]). While it is 0, no record may be left for this caller.
    pub number: u32,
    /// Scope of the caller's idempotency keys: two callers with one scope share keys.
    pub scope: Arc<str>,
}

/// An idempotency key, and the digest of the call that was sent under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallKey<'a> {
    /// 1 to 255 bytes.
    pub key: &'a str,
    /// Digest of module, procedure and arguments as the client sent them.
    pub fingerprint: u128,
}

impl<'a> CallContext<'a> {
    #[inline]
    pub(crate) fn principal(&self) -> u32 {
        self.caller.map_or(0, |caller| caller.number)
    }

    #[inline]
    pub(crate) fn key_ref(&self) -> Option<KeyRef<'a>> {
        let (key, fingerprint) = self.key?;
        Some(KeyRef {
            key,
            scope: self.caller.map_or(&[], |caller| caller.scope.as_bytes()),
            fingerprint,
        })
    }

    pub(crate) fn call_hash(&self) -> u128 {
        let procedure = &self.module.schema.procedures[self.procedure as usize];
        call_hash(&self.module.name, &procedure.name, self.args)
    }
}
