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

/// Bytes of a name that is put together without an allocation.
const SHORT_NAME_BYTES: usize = 128;

impl ScopedKey<'_> {
    pub(crate) fn name(&self) -> ScopedName {
        self.with_name(|name| name.into())
    }

    /// Calls `read` with the bytes of the name.
    pub(crate) fn with_name<T>(&self, read: impl FnOnce(&[u8]) -> T) -> T {
        let length = u8::try_from(self.scope.len()).expect("a scope has 255 bytes at most");
        let (scope, key) = (self.scope.as_bytes(), self.key.as_bytes());
        let mut short = [0; SHORT_NAME_BYTES];
        match short.get_mut(..1 + scope.len() + key.len()) {
            Some(name) => {
                name[0] = length;
                name[1..=scope.len()].copy_from_slice(scope);
                name[1 + scope.len()..].copy_from_slice(key);
                read(name)
            }
            None => read(&[&[length], scope, key].concat()),
        }
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
