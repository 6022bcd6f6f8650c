//! Callers in records: the number of a name, and the idempotency key with the digest of its call.

use reprise_abi::value::push_varint;
use reprise_base::{TxnId, limits::IDEMPOTENCY_KEY_BYTES_MAX};

use crate::{
    WireError,
    body::BodyReader,
    corrupt,
    record::{RecordKind, begin, push_short, varint_bytes},
};

// Flags of commands and changes.
pub(crate) const HAS_KEY: u8 = 4;
/// Only beside `HAS_KEY`.
pub(crate) const HAS_SCOPE: u8 = 8;
/// A caller with a name.
pub(crate) const HAS_PRINCIPAL: u8 = 32;

/// A name that records give by its number from here on.
///
/// Records hold one byte of a caller instead of a name. The definition is durable before the first record that uses it, so replay
/// and standbys know each name when they need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrincipalRef<'a> {
    pub txn_id: TxnId,
    /// 1 for the first name, then one more for each.
    pub number: u32,
    /// Name of a token, 1 to 255 bytes.
    pub name: &'a str,
}

/// An idempotency key, and the call that was asked for under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRef<'a> {
    /// 1 to 255 bytes.
    pub key: &'a [u8],
    /// Within which the key counts, 255 bytes at most. Empty: the key is from a time without tokens.
    pub scope: &'a [u8],
    /// Digest of module, procedure and arguments as the client sent them.
    pub fingerprint: u128,
}

impl KeyRef<'_> {
    /// Flags that say which of key and scope follow.
    pub(crate) fn flags(&self) -> u8 {
        match self.scope {
            [] => HAS_KEY,
            _ => HAS_KEY | HAS_SCOPE,
        }
    }

    /// Bytes of what `push` writes.
    pub(crate) fn encoded_bytes(&self) -> usize {
        let scope = if self.scope.is_empty() { 0 } else { 1 + self.scope.len() };
        1 + self.key.len() + scope + 16
    }

    /// Appends the key, its scope unless that is empty, and the fingerprint.
    pub(crate) fn push(&self, out: &mut Vec<u8>) {
        assert!((1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&self.key.len()));
        push_short(out, self.key);
        if !self.scope.is_empty() {
            push_short(out, self.scope);
        }
        out.extend_from_slice(&self.fingerprint.to_le_bytes());
    }
}

/// Flag of a principal that follows; nothing follows of number 0.
#[inline]
pub(crate) fn principal_flag(principal: u32) -> u8 {
    if principal == 0 { 0 } else { HAS_PRINCIPAL }
}

#[inline]
pub(crate) fn principal_bytes(principal: u32) -> usize {
    if principal == 0 { 0 } else { varint_bytes(principal) }
}

#[inline]
pub(crate) fn push_principal(out: &mut Vec<u8>, principal: u32) {
    if principal != 0 {
        push_varint(out, principal);
    }
}

pub(crate) fn decode_principal(body: &mut BodyReader<'_>, flags: u8) -> Result<u32, WireError> {
    if flags & HAS_PRINCIPAL == 0 {
        return Ok(0);
    }
    match body.varint()? {
        0 => Err(corrupt("number of a principal", "1 or more", 0)),
        number => Ok(number),
    }
}

/// Decodes key, scope and fingerprint, if the flags say that they exist.
pub(crate) fn decode_key<'a>(body: &mut BodyReader<'a>, flags: u8) -> Result<Option<KeyRef<'a>>, WireError> {
    let (key, scope): (_, &[u8]) = match flags & (HAS_KEY | HAS_SCOPE) {
        0 => return Ok(None),
        HAS_KEY => (body.idempotency_key()?, &[]),
        HAS_SCOPE => return Err(corrupt("record flags", "a key beside a scope", flags)),
        _ => (body.idempotency_key()?, body.scope()?),
    };
    let fingerprint = u128::from_le_bytes(body.array()?);
    Ok(Some(KeyRef {
        key,
        scope,
        fingerprint,
    }))
}

impl<'a> PrincipalRef<'a> {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        assert!(
            self.number > 0 && !self.name.is_empty(),
            "a principal has a number and a name"
        );
        begin(
            out,
            RecordKind::Principal,
            8 + varint_bytes(self.number) + 1 + self.name.len(),
        );
        out.extend_from_slice(&self.txn_id.0.to_le_bytes());
        push_varint(out, self.number);
        push_short(out, self.name.as_bytes());
    }

    pub(crate) fn decode(body: &mut BodyReader<'a>) -> Result<Self, WireError> {
        let txn_id = TxnId(body.u64()?);
        let (number, name) = body.principal()?;
        Ok(Self { txn_id, number, name })
    }
}

/// Names of callers by number, as their records defined them.
pub struct CheckpointPrincipals;

impl CheckpointPrincipals {
    /// Appends a name to a block; numbers grow.
    pub fn push(out: &mut Vec<u8>, number: u32, name: &str) {
        push_varint(out, number);
        push_short(out, name.as_bytes());
    }

    /// All of a block; one at least.
    pub fn decode_all(bytes: &[u8]) -> Result<Vec<(u32, &str)>, WireError> {
        let mut body = BodyReader::new(bytes);
        let mut found: Vec<(u32, &str)> = Vec::new();
        while found.is_empty() || !body.is_at_end() {
            let next = body.principal()?;
            if found.last().is_some_and(|last| last.0 >= next.0) {
                return Err(corrupt("numbers of principals", "growing", next.0));
            }
            found.push(next);
        }
        Ok(found)
    }
}
