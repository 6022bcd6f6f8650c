//! Idempotency keys within their scopes, and the names under which both are kept.

use std::sync::Arc;

/// A key within its scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScopedKey<'a> {
    /// The scope of the calling token; empty without tokens.
    pub scope: &'a str,
    pub key: &'a str,
}

/// A scope's length, the scope, and the key. An entry and its place by age share it.
pub(crate) type ScopedName = Arc<[u8]>;

impl ScopedKey<'_> {
    pub(crate) fn name(&self) -> ScopedName {
        let length = u8::try_from(self.scope.len()).expect("a scope has 255 bytes at most");
        [&[length], self.scope.as_bytes(), self.key.as_bytes()].concat().into()
    }
}

/// Returns a name's first part: the scope's length and the scope.
pub(crate) fn scope_of(name: &[u8]) -> &[u8] {
    let length = name.first().map_or(0, |length| usize::from(*length));
    &name[..=length]
}

pub(crate) fn split(name: &[u8]) -> (Box<str>, Box<str>) {
    let (length, rest) = name.split_first().expect("a name begins with a length");
    let (scope, key) = rest.split_at(*length as usize);
    let text = |bytes: &[u8]| str::from_utf8(bytes).expect("made of text").into();
    (text(scope), text(key))
}
